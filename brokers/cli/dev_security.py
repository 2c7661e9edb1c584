"""The security of a local fleet: an authority, a certificate of the brokers, users, and clients' settings.

All of it is in one directory that only its owner can read, and is kept when the fleet is down: passwords, the authority
and the settings of clients stay the same. Certificates are made by the ``openssl`` command.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fleetlog.coordination.connect import ConnectionSecurity

SUBDIRECTORY: Final = "security"
PROTOCOL: Final = "SASL_SSL"
MECHANISM: Final = "SCRAM-SHA-512"
LISTENER: Final = "SECURE"
BROKER, ADMIN, APP, REGISTRY, CONSOLE = "broker", "admin", "app", "registry", "console"
"""Of the brokers, operators and programs, the schema registry; by the last one the console collects figures."""
USERS: Final = (BROKER, ADMIN, APP, REGISTRY, CONSOLE)
NAMES: Final = ("DNS:localhost", "IP:127.0.0.1", "IP:::1")
_DAYS: Final = "3650"
_USERS_FILE: Final = "users.json"
_ZOOKEEPER_FILE: Final = "zookeeper.password"
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class SecurityError(Exception):
    """Certificates cannot be made; the message says what to do."""


@dataclass(frozen=True, slots=True)
class DevSecurity:
    """The directory's content. Passwords are shown by what prints clients' settings only."""

    directory: Path
    passwords: Mapping[str, str]
    zookeeper_password: str

    def __repr__(self) -> str:
        return f"DevSecurity({self.directory})"

    @property
    def authority(self) -> Path:
        """The certificate that clients trust."""
        return self.directory / "ca.pem"

    def login_line(self, user: str) -> str:
        """``sasl.jaas.config`` of that user."""
        return f'{_MODULE} required username="{user}" password="{self.passwords[user]}";'

    @property
    def zookeeper(self) -> ConnectionSecurity:
        """How the fleet's own processes use its ZooKeeper, which all users of the machine can reach."""
        from fleetlog.brokers.tls.zookeeper import SECRET_PATHS
        from fleetlog.coordination.connect import ConnectionSecurity

        return ConnectionSecurity(None, (("digest", self._digest),), True, SECRET_PATHS)

    @property
    def _digest(self) -> str:
        return f"fleetlog:{self.zookeeper_password}"

    def broker_settings(self, replicas: int) -> dict[str, str]:
        """What a broker needs besides its address, which is that of the listener ``LISTENER``."""
        login = f"listener.name.{LISTENER.lower()}.{MECHANISM.lower()}.sasl.jaas.config"
        return {
            "listener.security.protocol.map": f"{LISTENER}:{PROTOCOL}",
            "inter.broker.listener.name": LISTENER,
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            login: self.login_line(BROKER),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.directory / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "authorizer.class.name": _AUTHORIZER,
            "super.users": f"User:{BROKER};User:{ADMIN}",
            "zookeeper.set.acl": "true",
            "zookeeper.digest.credentials": self._digest,
            "audit.enable": "true",
            "audit.topic.num.partitions": "3",
            "audit.topic.replication.factor": str(replicas),
        }

    def librdkafka(self, bootstrap: str, user: str = APP) -> dict[str, str]:
        """Settings of librdkafka (kcat, confluent-kafka)."""
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": PROTOCOL,
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": self.passwords[user],
            "ssl.ca.location": str(self.authority),
        }

    def java(self, bootstrap: str, user: str = APP) -> dict[str, str]:
        """Settings of Java's clients, which Kafka's tools and ``fleetlog`` take, too."""
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": PROTOCOL,
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": self.login_line(user),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
        }

    def spark(self, bootstrap: str, user: str = APP) -> dict[str, str]:
        """Options of ``format("fleetlog")`` and ``format("kafka")``."""
        return {f"kafka.{name}": value for name, value in self.java(bootstrap, user).items()}

    def client_file(self, user: str, kind: str) -> Path:
        """Where a user's settings stand; ``kind`` is librdkafka or java."""
        return self.directory / (f"{user}.conf" if kind == "librdkafka" else f"{user}.properties")

    def write_client_files(self, bootstrap: str) -> None:
        """Write the settings of the clients' users for programs that take a file."""
        made = {"librdkafka": self.librdkafka, "java": self.java}
        for user, kind in (*((user, kind) for user in (ADMIN, APP, CONSOLE) for kind in made), (REGISTRY, "java")):
            settings = made[kind](bootstrap, user)
            write_private(self.client_file(user, kind), "".join(f"{n}={v}\n" for n, v in settings.items()))


def load_or_make(fleet_directory: Path, names: Sequence[str] = NAMES) -> DevSecurity:
    """What is in the fleet's directory; made where it is missing. Raises SecurityError."""
    directory = fleet_directory / SUBDIRECTORY
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    if not (directory / "broker.pem").exists():
        _make_certificates(directory, names)
    passwords = _passwords(directory / _USERS_FILE)
    file = directory / _ZOOKEEPER_FILE
    if not file.exists():
        write_private(file, secrets.token_urlsafe(24) + "\n")
    return DevSecurity(directory, passwords, file.read_text().strip())


def _passwords(file: Path) -> dict[str, str]:
    """Those of the users; one that an earlier version had not gets one, too. Raises SecurityError."""
    known: dict[str, str] = {}
    try:
        if file.exists():
            read = json.loads(file.read_text())
            known = {user: str(read[user]) for user in USERS if user in read or user not in (REGISTRY, CONSOLE)}
    except (ValueError, KeyError, TypeError) as error:
        raise SecurityError(f"{file} cannot be read ({error}); remove {file.parent} to make all of it anew") from error
    passwords = {user: known.get(user) or secrets.token_urlsafe(24) for user in USERS}
    if passwords != known:
        write_private(file, json.dumps(passwords, indent=2) + "\n")
    return passwords


def is_secure(fleet_directory: Path) -> bool:
    """Whether the fleet in that directory was secured."""
    return (fleet_directory / SUBDIRECTORY / _USERS_FILE).exists()


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)


# ---------------------------------------------------------------- certificates


def _make_certificates(directory: Path, names: Sequence[str]) -> None:
    authority, signed = directory / "ca.pem", directory / "broker.pem"
    key, broker_key, request = (directory / name for name in ("ca.key", "broker.key", "broker.csr"))
    extensions = directory / "broker.ext"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    _openssl(
        "req", "-x509", *curve, "-days", _DAYS, "-subj", "/CN=fleetlog development authority",
        "-keyout", str(key), "-out", str(authority),
    )  # fmt: skip
    _openssl("req", "-new", *curve, "-subj", "/CN=localhost", "-keyout", str(broker_key), "-out", str(request))
    write_private(extensions, f"subjectAltName={','.join(names)}\n")
    certificate = _openssl(
        "x509", "-req", "-in", str(request), "-CA", str(authority), "-CAkey", str(key),
        "-set_serial", str(secrets.randbits(64)), "-days", _DAYS, "-extfile", str(extensions),
    )  # fmt: skip
    for made in (key, authority):
        made.chmod(0o600)
    write_private(signed, broker_key.read_text() + certificate)
    for left in (broker_key, request, extensions):
        left.unlink()


def _openssl(*words: str) -> str:
    program = shutil.which("openssl")
    if program is None:
        raise SecurityError("the openssl command is missing, which makes the certificates: `apt-get install openssl`")
    before = os.umask(0o077)
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60, check=False)
    finally:
        os.umask(before)
    if done.returncode != 0:
        raise SecurityError(f"openssl {words[0]} failed: {done.stderr.strip()[-300:]}")
    return done.stdout
