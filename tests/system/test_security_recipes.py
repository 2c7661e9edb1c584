"""The recipes of docs/security.md, run as they are printed, with a real broker and stock clients.

Only addresses, ports and the directory are a test's own. Those for a Spark job are in ``tests/spark/test_secured.py``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.fleet import Fleet
from tests.support.ports import free_port
from tests.support.recipes import PAGE, recipe, run_printed

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

AUTHORIZER = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
HOST = "127.0.0.1"


class Recipes:
    """A broker whose settings are a recipe's, and the directory in which its commands run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fleet = Fleet(directory / "fleet", 1)
        (self.broker,) = self.fleet.brokers
        self.others = self.broker.config_file.read_text().splitlines(keepends=True)
        self.outside = free_port()

    def own(self, text: str) -> str:
        """A printed text with this test's addresses and directory."""
        own_names = {
            "10.0.0.11:9093": f"{HOST}:{self.outside}", "10.0.0.11:9092": self.broker.address, "10.0.0.11": HOST,
            "10.0.0.1:2181": self.fleet.zookeeper_connect, "/etc/fleetlog": str(self.directory),
        }  # fmt: skip
        for printed, used in own_names.items():
            text = text.replace(printed, used)
        return text

    def start(self, *printed: str) -> None:
        """Start the broker with these settings, or start it again."""
        if self.broker.process is not None:
            self.broker.stop()
        settings = self.own("".join(printed))
        kept = [line for line in self.others if "listeners=" not in settings or not line.startswith("listeners=")]
        self.broker.config_file.write_text("".join(kept) + settings)
        self.broker.start()
        self.broker.wait_ready()

    def run(self, printed: str, answers: str = "", *, pipe: bool = False, **environment: str) -> str:
        """Run commands; what they print. The commands' own broker is the inner listener."""
        named = {"FLEETLOG_BOOTSTRAP": self.broker.address, **environment}
        return run_printed(self.own(printed), self.directory, answers, pipe=pipe, **named)

    def client(self, **settings: str) -> AdminClient:
        """A stock client at the outer listener; ``_`` for ``.``."""
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return AdminClient({"bootstrap.servers": f"{HOST}:{self.outside}", "log_level": 0, **named})


@pytest.fixture
def recipes(tmp_path: Path) -> Iterator[Recipes]:
    found = Recipes(tmp_path)
    try:
        yield found
    finally:
        found.fleet.close()


def topics(client: AdminClient, timeout_s: float = 20) -> set[str]:
    return set(client.list_topics(timeout=timeout_s).topics)


def test_tls_and_client_certificates(recipes: Recipes) -> None:
    directory = recipes.directory
    commands, acl = recipe("Client certificates", "bash")
    recipes.run(recipe("TLS", "bash")[0])
    recipes.start(recipe("TLS", "properties")[0])
    recipes.run("fleetlog topics create orders --partitions 1")
    tls = {"security_protocol": "SSL", "ssl_ca_location": str(directory / "ca.pem")}
    assert topics(recipes.client(**tls)) == {"orders"}

    recipes.run(commands)
    inside = AUTHORIZER + "super.users=User:ANONYMOUS\n"  # brokers and this test, by the inner listener
    recipes.start(recipe("TLS", "properties")[0], recipe("Client certificates", "properties")[0], inside)
    own = str(directory / "alice.pem")
    alice = recipes.client(**tls, ssl_certificate_location=own, ssl_key_location=own)
    assert topics(alice) == set()
    recipes.run(acl)
    assert topics(alice) == {"orders"}
    with pytest.raises(KafkaException):  # without a certificate
        topics(recipes.client(**tls), 2)


def test_logins_by_password(recipes: Recipes) -> None:
    """The password is ``...``, as printed."""
    add_broker, add_admin, as_admin, add_alice, listed, remove_alice = recipe("Logins", "bash")[0].splitlines()
    settings, client_file = recipe("Logins", "properties")[:2]
    for command in (add_broker, add_admin):
        recipes.run(command, answers="...\n...\n", pipe=True)
    recipes.start(settings)
    (recipes.directory / "client.properties").write_text(client_file)
    of_admin = client_file.replace("alice", "admin").replace("SCRAM-SHA-512", "SCRAM-SHA-256")
    (recipes.directory / "admin.properties").write_text(of_admin)
    recipes.run(f"{as_admin}\n{add_alice}", answers="...\n...\n", pipe=True)
    assert "alice" in recipes.run(f"{as_admin}\n{listed}")
    login = {"FLEETLOG_COMMAND_CONFIG": str(recipes.directory / "client.properties")}
    recipes.run("fleetlog topics create orders --partitions 1", **login)
    alice = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "alice", "sasl.password": "..."}
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        client = AdminClient({"bootstrap.servers": recipes.broker.address, "sasl.mechanism": mechanism, **alice})
        assert topics(client) == {"orders"}
    recipes.run(f"{as_admin}\n{remove_alice}", answers="y\n")
    with pytest.raises(AssertionError, match="login of user alice"):
        recipes.run("fleetlog topics list", **login)


def test_tokens_of_the_test_issuer(recipes: Recipes) -> None:
    heading = "Tokens of an issuer (OIDC)"
    issuer, client = recipe(heading, "python")
    _, settings = recipe(heading, "properties")
    (recipes.directory / "issuer.py").write_text(issuer)
    (command,) = re.findall(r"# issuer\.py: python (.*)", issuer)
    recipes.run(f"{sys.executable} {command}")
    listeners = recipe("TLS", "properties")[0].partition("ssl.")[0].replace("OUTSIDE:SSL", "OUTSIDE:SASL_PLAINTEXT")
    recipes.start(listeners, settings)
    recipes.run("fleetlog topics create orders --partitions 1")
    (recipes.directory / "client.py").write_text(recipes.own(client))
    assert recipes.run(f"{sys.executable} client.py").strip() == "['orders']"
    (line,) = re.findall(r"^`(sasl\.jaas\.config=.* required token=\"\.\.\.\")`", PAGE.read_text(), re.MULTILINE)
    token = (recipes.directory / "token").read_text().strip()
    file = recipes.directory / "token.properties"
    file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n{line.replace('...', token)};\n")
    at = {"FLEETLOG_BOOTSTRAP": f"{HOST}:{recipes.outside}", "FLEETLOG_COMMAND_CONFIG": str(file)}
    assert "orders" in recipes.run("fleetlog topics list", **at)


def test_acls_of_a_spark_job_without_logins(recipes: Recipes) -> None:
    recipes.start(AUTHORIZER, "super.users=User:ANONYMOUS\n")
    assert "orders" in recipes.run(recipe("ACLs for a Spark job", "bash")[0], answers="y\n")
    rows = recipes.run("fleetlog acls list").splitlines()
    for name, hosts in {"orders": ["10.0.1.21"], "totals-sink": ["10.0.1.20", "10.0.1.21"]}.items():
        of_name = [row for row in rows if name in row]
        assert [host for host in ("10.0.1.20", "10.0.1.21") if any(host in row for row in of_name)] == hosts


def test_switching_it_on(recipes: Recipes) -> None:
    """Nothing is denied on the way; without its ACL the operators' address sees no topic at the end."""
    (commands,) = recipe("Switching it on", "bash")
    recipes.start(AUTHORIZER, "allow.everyone.if.no.acl.found=true\n")
    recipes.run("fleetlog topics create before --partitions 1")
    recipes.run(commands.replace("10.0.0.1", HOST).replace("10.0.9.9", HOST), answers="y\n")
    recipes.start(AUTHORIZER)
    assert "before" in recipes.run("fleetlog topics list")
    assert "is Denied" not in recipes.broker.log_file.read_text()
    recipes.run(f"fleetlog acls remove --topic '*' --host {HOST} --yes")
    assert "before" not in recipes.run("fleetlog topics list")
