"""Commands over TLS, and what is said where TLS fails."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetlog.brokers.cli.client import Target, reach
from fleetlog.brokers.cli.command_config import client_security
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.setting_kinds import ConfigError
from fleetlog.brokers.tls.contexts import server_context
from fleetlog.brokers.tls.settings import TlsSettings
from fleetlog.coordination.ports import free_ports
from tests.support.certificates import Authority
from tests.support.fleet import Fleet
from tests.support.secured import PASSWORD, PLAIN_MODULE, USER, jaas, secured_fleet
from tests.support.tls_terminator import TlsTerminator

ROOT = Path(__file__).parents[2]


class Certificates:
    def __init__(self, directory: Path) -> None:
        self.authority, self.stranger = Authority(directory, "authority"), Authority(directory, "stranger")
        self.broker = self.authority.pair("/CN=broker").store(directory / "broker.pem")
        self.elsewhere = self.authority.pair("/CN=b", names="DNS:b.example").store(directory / "elsewhere.pem")
        self.late = self.authority.pair("/CN=broker", days=-1).store(directory / "late.pem")
        self.alice = self.authority.pair("/CN=alice").store(directory / "alice.pem")
        self.locked = self.authority.pair("/CN=alice", password="open").store(directory / "locked.pem")
        self.mallory = self.stranger.pair("/CN=mallory").store(directory / "mallory.pem")

    def context(self, own: str, auth: str = "none") -> ssl.SSLContext:
        trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority.file}
        store = {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.broker, "ssl.client.auth": auth}
        made = server_context(TlsSettings.of({**store, **trusted}), time.time()).context
        made.load_cert_chain(own)  # also those that the settings refuse
        return made

    def client(self, **more: str) -> dict[str, str]:
        trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority.file}
        return {"security.protocol": "SSL", **trusted, **{name.replace("_", "."): text for name, text in more.items()}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def written(path: Path, properties: dict[str, str]) -> str:
    path.write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
    return str(path)


def run(bootstrap: str, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fleetlog.brokers.cli.main", *words, "--bootstrap", bootstrap]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)


@pytest.mark.zookeeper
@pytest.mark.slow
def test_commands_over_tls(made: Certificates, tmp_path: Path) -> None:
    """All kinds of clients: the probe's, the admin client, the producer, the consumer; with a client certificate."""
    fleet, (port,) = Fleet(tmp_path / "fleet", 1), free_ports(1)
    context = made.context(made.broker, "required")
    terminator = TlsTerminator(context, port, fleet.brokers[0].port)
    try:
        fleet.brokers[0].start(f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}")
        fleet.brokers[0].wait_ready()
        own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": made.locked, "ssl.key.password": "open"}
        file = written(tmp_path / "client.properties", {**made.client(), **own})
        for words, text in (
            (("topics", "create", "t"), ""),
            (("produce", "t"), "one\n"),
            (("consume", "t", "--count", "1"), ""),
            (("cluster", "describe"), ""),
        ):
            done = run(f"127.0.0.1:{port}", *words, "--command-config", file, text=text)
            assert done.returncode == 0, done.stderr
            assert "consume" not in words or "one" in done.stdout
        listed = run(f"localhost:{port}", "topics", "list", "--json", "--command-config", file)
        assert [row["topic"] for row in json.loads(listed.stdout)] == ["t"]
        bare = run(f"127.0.0.1:{port}", "topics", "list", "--command-config", written(tmp_path / "bare", made.client()))
        assert bare.returncode == 1
        assert "asks for a client certificate: set ssl.keystore.type=PEM" in bare.stderr
    finally:
        fleet.close()
        terminator.close()


@pytest.mark.zookeeper
@pytest.mark.slow
def test_commands_log_in_over_tls(made: Certificates, tmp_path: Path) -> None:
    fleet, (port,) = secured_fleet(tmp_path / "fleet", 1), free_ports(1)
    terminator = TlsTerminator(made.context(made.broker), port, fleet.brokers[0].port)
    try:
        fleet.brokers[0].start(f"advertised.listeners=INSIDE://127.0.0.1:{port}")
        fleet.brokers[0].wait_ready()
        for password, status in ((PASSWORD, 0), ("wrong-one", 1)):
            line = jaas(PLAIN_MODULE, username=USER, password=password)
            login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": line}
            file = written(tmp_path / "client.properties", {**made.client(), **login})
            done = run(f"127.0.0.1:{port}", "cluster", "describe", "--command-config", file)
            assert done.returncode == status, done.stderr
            assert status == 0 or "the login of user alice by PLAIN failed" in done.stderr
    finally:
        fleet.close()
        terminator.close()


# ---------------------------------------------------------------- what fails


@contextmanager
def answering(context: ssl.SSLContext | None, answer: bytes = b"\0") -> Iterator[int]:
    """A listener on loopback: with TLS where there is a context; answers what it gets by those bytes, and closes."""
    (inner, outer) = free_ports(2)
    listener = socket.create_server(("127.0.0.1", inner))
    script = (
        "import socket, sys\n"
        "listener = socket.socket(fileno=int(sys.argv[1]))\n"
        "while True:\n"
        "    one, _ = listener.accept()\n"
        "    one.recv(1000)\n"
        "    one.sendall(bytes.fromhex(sys.argv[2]))\n"
        "    one.close()\n"
    )
    command = [sys.executable, "-c", script, str(listener.fileno()), answer.hex()]
    process = subprocess.Popen(command, pass_fds=[listener.fileno()])
    terminator = None if context is None else TlsTerminator(context, outer, inner)
    try:
        yield inner if context is None else outer
    finally:
        if terminator is not None:
            terminator.close()
        process.kill()
        process.wait()
        listener.close()


def refused(bootstrap: str, properties: dict[str, str]) -> str:
    began = time.monotonic()
    with pytest.raises(CliError) as error:
        reach(Target(bootstrap, 60.0, properties))
    assert time.monotonic() - began < 40
    return str(error.value)


def test_a_certificate_that_is_not_accepted(made: Certificates) -> None:
    for own, properties, text in (
        (made.mallory, made.client(), "is signed by no authority that is trusted here: set ssl.truststore.type=PEM"),
        (made.elsewhere, made.client(), "has not the name 127.0.0.1: connect by a name that it has"),
        (made.late, made.client(), "has expired: renew it at the broker"),
    ):
        with answering(made.context(own)) as port:
            found = refused(f"127.0.0.1:{port}", properties)
            assert f"the certificate of 127.0.0.1:{port}" in found
            assert text in found


def test_the_name_is_not_checked_where_that_is_off(made: Certificates) -> None:
    with answering(made.context(made.elsewhere)) as port:
        target = Target(f"127.0.0.1:{port}", 30.0, made.client(ssl_endpoint_identification_algorithm=""))
        assert reach(target) == [f"127.0.0.1:{port}"]


def test_a_client_certificate_of_a_stranger(made: Certificates) -> None:
    own = {"ssl_keystore_type": "PEM", "ssl_keystore_location": made.mallory}
    for versions in ("TLSv1.2", "TLSv1.3"):
        with answering(made.context(made.broker, "required")) as port:
            found = refused(f"127.0.0.1:{port}", made.client(**own, ssl_enabled_protocols=versions))
            assert "refused this client's certificate" in found
            found = refused(f"127.0.0.1:{port}", made.client(ssl_enabled_protocols=versions))
            assert "asks for a client certificate" in found


def test_versions_without_a_common_one(made: Certificates) -> None:
    context = made.context(made.broker)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with answering(context) as port:
        found = refused(f"127.0.0.1:{port}", made.client(ssl_enabled_protocols="TLSv1.2"))
        assert "has no version of TLS that is enabled here: see ssl.enabled.protocols" in found


def test_a_listener_without_tls(made: Certificates) -> None:
    with answering(None, b"\0\0\0\x0a1234567890") as port:
        assert "does not speak TLS: connect to a listener with TLS" in refused(f"127.0.0.1:{port}", made.client())
    with answering(None, b"") as port:
        assert "as a listener without TLS does" in refused(f"127.0.0.1:{port}", made.client())


def test_a_listener_with_tls_and_a_command_without(made: Certificates) -> None:
    with answering(None, bytes.fromhex("15030300020246")) as port:
        assert "speaks TLS: set security.protocol=SSL" in refused(f"127.0.0.1:{port}", {})


def test_one_good_address_is_enough(made: Certificates) -> None:
    with answering(made.context(made.late)) as late, answering(made.context(made.broker)) as good:
        target = Target(f"127.0.0.1:{late},127.0.0.1:{good}", 30.0, made.client())
        assert reach(target) == [f"127.0.0.1:{good}"]


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"security.protocol": "SASL_PLAINTEXT", "ssl.truststore.type": "PEM"}, "is without TLS: set SASL_SSL, or"),
        ({"ssl.truststore.type": "PEM"}, "security.protocol='PLAINTEXT': is without TLS: set SSL, or remove"),
        ({"security.protocol": "SSL", "sasl.mechanism": "PLAIN"}, "does not log in: set SASL_SSL, or remove"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/x/t.jks"}, "keytool -importkeystore -srckeystore"),
        ({"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "/missing"},
         "ssl.truststore.location='/missing': cannot be read"),
        ({"security.protocol": "SSL", "ssl.trustore.type": "PEM"}, "did you mean ssl.truststore.type?"),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.1 is not served"),
        ({"security.protocol": "SSL", "ssl.cipher.suites": "RC4"}, "RC4 is not served"),
        ({"security.protocol": "TLS"}, "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ],
)  # fmt: skip
def test_settings_that_are_refused(properties: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        client_security(properties)
    assert text in str(error.value)


def test_wrong_password_of_the_key_and_pem_inside_the_file(made: Certificates) -> None:
    own = {"ssl_keystore_type": "PEM", "ssl_keystore_location": made.locked}
    with pytest.raises(ConfigError) as error:
        client_security(made.client(**own, ssl_key_password="shut"))
    assert "does not decrypt the private key" in str(error.value)
    assert "shut" not in str(error.value)
    properties = made.client()
    del properties["ssl.truststore.location"]
    properties["ssl.truststore.certificates"] = made.authority.pem.replace("\n", " ")
    with answering(made.context(made.broker)) as port:
        assert reach(Target(f"127.0.0.1:{port}", 30.0, properties))
