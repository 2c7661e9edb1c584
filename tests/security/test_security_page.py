"""The recipes of docs/security.md for TLS: their commands make what their settings need."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from brokers.config import load_config
from brokers.security.listener_tls import listener_tls
from brokers.security.tls import TlsEngine
from brokers.security.tls_contexts import client_context, server_context
from brokers.security.tls_settings import TlsSettings

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def blocks(heading: str, language: str) -> list[str]:
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def test_the_recipes_for_certificates(tmp_path: Path) -> None:
    commands = blocks("TLS", "bash")[0] + blocks("Client certificates", "bash")[0].partition("fleetlog acls")[0]
    done = subprocess.run(["bash", "-e", "-c", commands], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = blocks("TLS", "properties")[0] + blocks("Client certificates", "properties")[0]
    text = text.replace("/etc/fleetlog", str(tmp_path)) + "broker.id=1\nzookeeper.connect=z:1\n"
    (settings,) = listener_tls(load_config(text, "f")).values()
    server = TlsEngine(server_context(settings, time.time()).context, server_side=True)
    own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(tmp_path / "alice.pem")}
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(tmp_path / "ca.pem")}
    made = client_context(TlsSettings.of({**own, **trust}), time.time())
    client = TlsEngine(made.context, server_side=False, server_name="broker-1.example.com")
    while not (client.handshake() and server.handshake()):
        for one, other in ((client, server), (server, client)):
            if data := one.take():
                other.feed(data)
            other.handshake()
    subject = server.peer_subject()
    assert subject == "CN=alice,O=analytics"
    assert settings.mapper.principal_name(subject) == "alice"
