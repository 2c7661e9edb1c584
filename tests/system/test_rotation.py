"""Certificates and truststores that change every second under load: no request fails, on three brokers.

``make test`` changes them a few times, FLEETLOG_ROTATIONS says how often.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import fleetlog.wire.messages as m
from tests.support.certificates import Authority, replaced, serial_of, shown_serial
from tests.support.harness import Client
from tests.support.tls_fleet import KINDS, TlsFleet
from tests.support.tls_listeners import Certificates
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(600)]

ROTATIONS = int(os.environ.get("FLEETLOG_ROTATIONS", "8"))
SUBJECT = "/O=fleet/CN=broker"
TOPIC = "rotated"
ON_ONE_CONNECTION = 30


class Load(threading.Thread):
    """Writes to a listener with new connections all the time, and never again what has failed."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = {**settings, "acks": "all", "retries": 0, "linger.ms": 0}
        self.stopped = threading.Event()
        self.acked = 0
        self.failed: list[Any] = []

    def run(self) -> None:
        def delivered(error: Any, _: Any) -> None:
            if error:
                self.failed.append(error)
            else:
                self.acked += 1

        while not self.stopped.is_set():
            producer = Producer(self.settings)
            for number in range(ON_ONE_CONNECTION):
                producer.produce(TOPIC, b"value", partition=number % 3, on_delivery=delivered)
                producer.flush(20)

    def stop(self) -> None:
        self.stopped.set()
        self.join(60)


class Clients:
    """What clients trust and show: both authorities, and a certificate of each."""

    def __init__(self, directory: Path, first: Authority) -> None:
        self.authorities = (first, Authority(directory, "second"))
        self.both = str(directory / "both.pem")
        Path(self.both).write_text("".join(authority.pem for authority in self.authorities))
        self.own = [
            authority.pair("/O=fleet/CN=alice").store(directory / f"alice-{number}.pem")
            for number, authority in enumerate(self.authorities)
        ]

    def context(self, own: int | None = None) -> ssl.SSLContext:
        found = ssl.create_default_context(cafile=self.both)
        if own is not None:
            found.load_cert_chain(self.own[own])
        return found


def served(port: int, context: ssl.SSLContext) -> bool:
    try:
        client = Client(port, context=context)
        return bool(client.ask(m.ApiVersionsRequest(version=0), 0).error_code == 0)
    except (ssl.SSLError, ConnectionError):
        return False


def test_stores_change_every_second_under_load_without_a_failure(tmp_path: Path) -> None:
    """On all listeners with TLS, the brokers' own one among them, with pairs of two authorities in turn."""
    certificates = Certificates(tmp_path)
    fleet = TlsFleet(tmp_path / "fleet", certificates, brokers=3, inside="BOTH")
    loads: list[Load] = []
    try:
        clients = Clients(tmp_path, certificates.authority)
        replaced(fleet.truststore, Path(clients.both).read_text())
        pairs = [clients.authorities[turn % 2].pair(SUBJECT) for turn in range(1, ROTATIONS + 1)]
        last_pair = clients.authorities[1].pair(SUBJECT)
        fleet.start()
        settings = {kind: {**fleet.confluent(kind), "ssl.ca.location": clients.both} for kind in KINDS}
        topic = NewTopic(TOPIC, 3, 3, config={"min.insync.replicas": "2"})
        admin = AdminClient(settings["ONEWAY"])
        admin.create_topics([topic])[TOPIC].result(60)
        ports = {number: ports["ONEWAY"] for number, ports in fleet.ports_of.items()}
        seen = {number: {shown_serial(port, clients.context())} for number, port in ports.items()}
        standing = [Client(ports["MUTUAL"], context=clients.context(0)) for ports in fleet.ports_of.values()]
        loads = [Load(settings[kind]) for kind in KINDS]
        for load in loads:
            load.start()
        began = time.monotonic()
        for turn, pair in enumerate(pairs, 1):
            first, second = clients.authorities[:: 1 if turn % 2 else -1]
            replaced(fleet.truststore, first.pem + second.pem)
            replaced(fleet.store, pair.key + pair.chain)
            time.sleep(max(0.0, began + turn - time.monotonic()))
            for number, port in ports.items():
                seen[number].add(shown_serial(port, clients.context()))
            for client in standing:
                assert client.ask(m.ApiVersionsRequest(version=0), 0).error_code == 0
        took_s = time.monotonic() - began
        replaced(fleet.store, last_pair.key + last_pair.chain)
        for number, port in ports.items():
            last = eventually(
                lambda port=port: shown_serial(port, clients.context()),
                "the last one",
                good=serial_of(last_pair).__eq__,
            )
            seen[number].add(last)
            assert len(seen[number]) >= 3, f"broker {number} took over none of the new ones"
        for load in loads:
            load.stop()
        assert [load.failed for load in loads] == [[]] * len(loads)
        acked = [load.acked for load in loads]
        found = [len(serials) for serials in seen.values()]
        print(f"{ROTATIONS} rotations in {took_s:.0f} s: {acked} records on {', '.join(KINDS)}; {found} serials seen")
        assert min(acked) > 30
        replaced(fleet.truststore, clients.authorities[1].pem)
        for both in fleet.ports_of.values():
            eventually(
                lambda port=both["MUTUAL"]: served(port, clients.context(0)), "the first authority does not count",
                good=lambda found: not found,
            )  # fmt: skip
            assert served(both["MUTUAL"], clients.context(1))
        for broker in fleet.brokers:
            assert "Traceback" not in broker.log_file.read_text()
    finally:
        for load in loads:
            load.stop()
        fleet.close()
