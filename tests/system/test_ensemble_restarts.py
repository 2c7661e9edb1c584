"""Three ZooKeeper servers restart one after the other, and sessions of brokers expire, while producers write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.clients import Confluent
from tests.support.ensemble import Ensemble
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

TOPIC = "orders"
SESSION_MS = 2_000


class Writer(threading.Thread):
    """Writes with acks=all until it is told to end; what was acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="writer")
        self._producer = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 120_000,
        })  # fmt: skip
        self._over = threading.Event()
        self.acknowledged: list[tuple[int | None, bytes]] = []
        """Offset and value. Without an offset: the answer was lost, and a later one implies it."""
        self.errors: list[str] = []

    def run(self) -> None:
        number = 0
        while not self._over.is_set():
            self._producer.produce(TOPIC, b"%d" % number, partition=0, on_delivery=self._answered)
            number += 1
            self._producer.poll(0.01)
        if left := self._producer.flush(120):
            self.errors.append(f"{left} records were not answered")

    def _answered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acknowledged.append((message.offset(), message.value()))

    def goes_on(self) -> None:
        """Return when more is acknowledged."""
        before = len(self.acknowledged)
        eventually(lambda: len(self.acknowledged) > before + 20, "more is acknowledged", 60)

    def end(self) -> None:
        self._over.set()
        self.join(150)
        assert not self.is_alive()


@pytest.fixture
def fleet(tmp_path: Path, make_ensemble: Callable[[int], Ensemble]) -> Iterator[Fleet]:
    """Three brokers beside three servers, which are ``fleet.ensemble``."""
    fleet = Fleet(
        tmp_path / "fleet", 3, zookeeper_session_timeout_ms=SESSION_MS, min_insync_replicas=2,
        default_replication_factor=3,
    )  # fmt: skip
    try:
        fleet.zookeeper.stop()
        ensemble = fleet.ensemble = make_ensemble(3)  # type: ignore[attr-defined]
        for broker in fleet.brokers:
            text = broker.config_file.read_text()
            broker.config_file.write_text(text.replace(fleet.zookeeper_connect, ensemble.connect_string))
        yield fleet.start()
    finally:
        fleet.close()


def _expirations(fleet: Fleet) -> int:
    name = r'fleetlog_zookeeper_session_events_total{.*"expired".*}'
    return sum(int(broker._figure(name)) for broker in fleet.brokers)


def test_no_acknowledged_record_is_lost_while_zookeeper_restarts_and_sessions_expire(fleet: Fleet) -> None:
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(60)
    writer = Writer(fleet.bootstrap)
    writer.start()
    writer.goes_on()
    for number, node in enumerate(fleet.ensemble.nodes):  # type: ignore[attr-defined]
        node.kill()
        paused = fleet.brokers if number == 1 else [fleet.brokers[number]]  # once all at a time
        expected = _expirations(fleet) + len(paused)
        for broker in paused:
            broker.pause()
        try:
            threading.Event().wait(2.5 * SESSION_MS / 1000)  # what passes is what is tested
        finally:
            for broker in paused:
                broker.resume()
        node.restart()
        eventually(lambda: _expirations(fleet), "sessions expired", 60, good=expected.__le__)
        writer.goes_on()
        for broker in fleet.brokers:
            eventually(broker.caught_up, f"broker {broker.id} is in sync again, by itself", 60)
    writer.goes_on()
    writer.end()
    assert not writer.errors, writer.errors[:3]
    end = 1 + max(offset for offset, _ in writer.acknowledged if offset is not None)
    values = {
        message.offset: message.value for message in Confluent().consume(fleet.bootstrap, TOPIC, end, partition=0)
    }
    kept = set(values.items()) | {(None, value) for value in values.values()}
    lost = [record for record in writer.acknowledged if record not in kept]
    assert not lost
    assert len(set(values.values())) == len(values), "and none is there twice"
