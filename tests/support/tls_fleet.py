"""Brokers with a listener for each kind of TLS: brokers among themselves use another one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from coordination.ensemble import free_ports
from tests.support.fleet import Broker, Fleet
from tests.support.secured import PASSWORD, PLAIN_MODULE, USER, jaas, users
from tests.support.tls_listeners import Certificates

KINDS = {"ONEWAY": "SSL", "MUTUAL": "SSL", "LOGIN": "SASL_SSL", "BOTH": "SASL_SSL"}
"""Listeners and their protocols; MUTUAL and BOTH demand a certificate of the client."""
PRINCIPALS = {
    "ONEWAY": "User:ANONYMOUS", "MUTUAL": "User:CN=alice,O=fleet", "LOGIN": f"User:{USER}", "BOTH": f"User:{USER}"
}  # fmt: skip


class TlsFleet(Fleet):
    """Not started. ``ports`` are those of the first broker's listeners."""

    def __init__(self, directory: Path, certificates: Certificates, brokers: int = 1, **more: object) -> None:
        super().__init__(directory, 0)
        self.certificates = certificates
        self.store = str(directory / "broker.pem")
        shutil.copy(certificates.broker_file, self.store)
        protocols = ",".join(f"{name}:{protocol}" for name, protocol in KINDS.items())
        self.size = brokers
        self.settings = {
            "listener.security.protocol.map": f"INSIDE:PLAINTEXT,{protocols}",
            "inter.broker.listener.name": "INSIDE",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": certificates.authority.file,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.both.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            **{
                f"listener.name.{name}.plain.sasl.jaas.config": jaas(PLAIN_MODULE, **{f"user_{USER}": PASSWORD})
                for name in ("login", "both")
            },
            **{name.replace("_", "."): value for name, value in more.items()},
        }
        self.ports: dict[str, int] = {}
        self.brokers = [self._with_listeners(Broker(self, number)) for number in range(1, brokers + 1)]
        users(self, "add", USER, "--password-stdin", "--mechanism", "SCRAM-SHA-512", password=PASSWORD)

    def _with_listeners(self, broker: Broker) -> Broker:
        ports = dict(zip(KINDS, free_ports(len(KINDS)), strict=True))
        self.ports = self.ports or ports
        listed = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
        text = broker.config_file.read_text()
        plain = f"listeners=PLAINTEXT://127.0.0.1:{broker.port}\n"
        assert plain in text
        broker.config_file.write_text(text.replace(plain, f"listeners=INSIDE://127.0.0.1:{broker.port},{listed}\n"))
        return broker

    def bootstrap_of(self, kind: str) -> str:
        return f"127.0.0.1:{self.ports[kind]}"

    def confluent(self, kind: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        """Settings of librdkafka and kcat."""
        found: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_of(kind), "security.protocol": KINDS[kind],
            "ssl.ca.location": self.certificates.authority.file,
        }  # fmt: skip
        if kind in ("MUTUAL", "BOTH"):
            found |= {"ssl.certificate.location": self.certificates.alice, "ssl.key.location": self.certificates.alice}
        if KINDS[kind] == "SASL_SSL":
            found |= {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
        return found

    def python_client(self, kind: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        """Settings of kafka-python and aiokafka."""
        found: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_of(kind), "security_protocol": KINDS[kind],
            "ssl_context": self.certificates.client(self.certificates.alice if kind in ("MUTUAL", "BOTH") else ""),
        }  # fmt: skip
        if KINDS[kind] == "SASL_SSL":
            found |= {"sasl_mechanism": mechanism, "sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
        return found
