"""Brokers with a listener for each kind of TLS, and one with logins only; brokers among themselves use another one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from fleetlog.coordination.ports import free_ports
from tests.support.certificates import shown_serial
from tests.support.fleet import Broker, Fleet
from tests.support.secured import (
    BROKER_PASSWORD,
    BROKER_USER,
    MECHANISMS,
    PASSWORD,
    PLAIN_MODULE,
    SCRAM_MODULE,
    USER,
    jaas,
    users,
)
from tests.support.tls_listeners import Certificates

KINDS = {"ONEWAY": "SSL", "MUTUAL": "SSL", "LOGIN": "SASL_SSL", "BOTH": "SASL_SSL"}
"""Listeners with TLS and their protocols; MUTUAL and BOTH demand a certificate of the client."""
PROTOCOLS = {**KINDS, "CLEAR": "SASL_PLAINTEXT"}
PRINCIPALS = {
    "ONEWAY": "User:ANONYMOUS", "MUTUAL": "User:CN=alice,O=fleet", "LOGIN": f"User:{USER}", "BOTH": f"User:{USER}"
}  # fmt: skip


class TlsFleet(Fleet):
    """Not started. ``ports`` are those of the first broker's listeners, ``ports_of`` each broker's by its id.

    With ``inside`` brokers use that one of these listeners, log in there by SCRAM-SHA-256, and have no other.
    """

    def __init__(
        self, directory: Path, certificates: Certificates, brokers: int = 1, *, inside: str = "", **more: object
    ) -> None:
        super().__init__(directory, 0)
        self.certificates = certificates
        self.store = str(directory / "broker.pem")
        self.truststore = str(directory / "truststore.pem")
        shutil.copy(certificates.broker_file, self.store)
        shutil.copy(certificates.authority.file, self.truststore)
        protocols = {**PROTOCOLS, **({} if inside else {"INSIDE": "PLAINTEXT"})}
        self.size = brokers
        self.settings = {
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "inter.broker.listener.name": inside or "INSIDE",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.truststore,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.both.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            **{
                f"listener.name.{name.lower()}.plain.sasl.jaas.config": jaas(PLAIN_MODULE, **{f"user_{USER}": PASSWORD})
                for name in PROTOCOLS
                if PROTOCOLS[name].startswith("SASL")
            },
            **(_own_login(inside) if inside else {}),
            **{name.replace("_", "."): value for name, value in more.items()},
        }
        self.ports_of: dict[int, dict[str, int]] = {}
        self.brokers = [self._with_listeners(Broker(self, number), bool(inside)) for number in range(1, brokers + 1)]
        self.ports = self.ports_of[1]
        users(self, "add", USER, "--password-stdin", password=PASSWORD)
        if inside:
            users(self, "add", BROKER_USER, "--password-stdin", password=BROKER_PASSWORD)

    def _with_listeners(self, broker: Broker, secured: bool) -> Broker:
        ports = self.ports_of[broker.id] = dict(zip(PROTOCOLS, free_ports(len(PROTOCOLS)), strict=True))
        listed = [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
        if not secured:
            listed.insert(0, f"INSIDE://{broker.address}")
        text = broker.config_file.read_text()
        plain = f"listeners=PLAINTEXT://{broker.address}\n"
        assert plain in text
        broker.config_file.write_text(text.replace(plain, f"listeners={','.join(listed)}\n"))
        return broker

    def bootstrap_of(self, kind: str) -> str:
        return f"127.0.0.1:{self.ports[kind]}"

    def serial(self, kind: str = "ONEWAY") -> int:
        """Of the first broker's certificate on that listener."""
        return shown_serial(self.ports[kind], self.certificates.client())

    def confluent(self, kind: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        """Settings of librdkafka and kcat."""
        found: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_of(kind), "security.protocol": PROTOCOLS[kind],
        }  # fmt: skip
        if kind in KINDS:
            found["ssl.ca.location"] = self.certificates.authority.file
        if kind in ("MUTUAL", "BOTH"):
            found |= {"ssl.certificate.location": self.certificates.alice, "ssl.key.location": self.certificates.alice}
        if PROTOCOLS[kind].startswith("SASL"):
            found |= {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
        return found

    def python_client(self, kind: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        """Settings of kafka-python and aiokafka."""
        found: dict[str, Any] = {"bootstrap_servers": self.bootstrap_of(kind), "security_protocol": PROTOCOLS[kind]}
        if kind in KINDS:
            own = self.certificates.alice if kind in ("MUTUAL", "BOTH") else ""
            found["ssl_context"] = self.certificates.client(own)
        if PROTOCOLS[kind].startswith("SASL"):
            found |= {"sasl_mechanism": mechanism, "sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
        return found


def _own_login(listener: str) -> dict[str, object]:
    own = jaas(SCRAM_MODULE, username=BROKER_USER, password=BROKER_PASSWORD)
    return {
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        f"listener.name.{listener.lower()}.scram-sha-256.sasl.jaas.config": own,
    }
