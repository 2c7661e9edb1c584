"""Listeners with TLS for a test's server, and the contexts of their clients."""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from pathlib import Path

from fleetlog.brokers.server.tls_transport import Handshakes
from fleetlog.brokers.tls.contexts import client_context
from fleetlog.brokers.tls.listeners import TlsListener
from fleetlog.brokers.tls.settings import TlsSettings
from tests.support.certificates import Authority
from tests.support.harness import RunningServer


class Certificates:
    """An authority, the broker's certificate and alice's, in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory, "authority")
        self.stranger = Authority(directory, "stranger")
        self.broker_file = self.authority.pair("/O=fleet/CN=broker").store(directory / "broker.pem")
        self.alice = self.authority.pair("/O=fleet/CN=alice").store(directory / "alice.pem")
        self.mallory = self.stranger.pair("/CN=mallory").store(directory / "mallory.pem")

    def settings(self, auth: str = "none", **more: str) -> dict[str, str]:
        """Of a broker's listener, by Kafka's names; ``more`` with underscores for dots and without ``ssl.``."""
        found = {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.broker_file, "ssl.client.auth": auth}
        if auth != "none":
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority.file}
        return found | {"ssl." + name.replace("_", "."): text for name, text in more.items()}

    def listener(self, protocol: str = "SSL", auth: str = "none", **more: str) -> TlsListener:
        return TlsListener(protocol, protocol, TlsSettings.of(self.settings(auth, **more)), time.time())

    def client(self, own: str = "", version: str = "") -> ssl.SSLContext:
        found = {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority.file}
        if own:
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": own}
        if version:
            found["ssl.enabled.protocols"] = version
        return client_context(TlsSettings.of(found), time.time()).context


def handshakes(server: RunningServer) -> Handshakes:
    """What has not shaken hands yet."""
    found = server.server._handshakes
    assert found is not None
    return found


def waiting(server: RunningServer) -> int:
    return len(handshakes(server))


def engines(server: RunningServer) -> int:
    return handshakes(server)._engines


def hello(certificates: Certificates) -> bytes:
    """The first message of a client."""
    sent = ssl.MemoryBIO()
    client = certificates.client().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()
