"""Every broker is killed and started again in the middle of a run: nothing acknowledged is lost, nothing is doubled."""

from __future__ import annotations

import threading
import time

import pytest

from tests.fleet import Fleet
from tests.interop.clients import READ_COMMITTED, Client, Confluent, Message

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PARTITIONS = 6


class Writer(threading.Thread):
    """Produces numbered records until told to stop; remembers which were acknowledged, per partition and in order."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        from confluent_kafka import Producer

        self.topic = topic
        self.stopping = threading.Event()
        self.sent = 0
        self.acknowledged: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
        self.failed: list[str] = []
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 120_000}
        )

    def run(self) -> None:
        while not self.stopping.is_set():
            number = self.sent
            self.producer.produce(
                self.topic, str(number).encode(), partition=number % PARTITIONS, on_delivery=self._report(number)
            )
            self.sent += 1
            self.producer.poll(0)
            if number % 50 == 0:
                time.sleep(0.01)
        assert self.producer.flush(120) == 0

    def _report(self, number: int):  # type: ignore[no-untyped-def]
        def done(error, message) -> None:  # type: ignore[no-untyped-def]
            if error is not None:
                self.failed.append(f"{number}: {error}")
            else:
                self.acknowledged[message.partition()].append(number)

        return done


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_every_broker_restarts_in_the_middle(own_fleet: Fleet, how: str) -> None:
    fleet = own_fleet.start()
    client: Client = Confluent()
    client.create_topic(fleet.bootstrap, "run", PARTITIONS)
    writer = Writer(fleet.bootstrap, "run")
    writer.start()
    for broker in fleet.brokers:
        before = writer.sent
        while writer.sent < before + 2000:
            time.sleep(0.05)
        if how == "kill":
            broker.kill()
        else:
            assert broker.stop() == 0, broker.output()
        time.sleep(1.0)
        broker.start()
        broker.wait_ready()
    writer.stopping.set()
    writer.join(150)
    assert not writer.is_alive()
    assert not writer.failed, writer.failed[:3]
    for partition in range(PARTITIONS):
        expected = list(range(partition, writer.sent, PARTITIONS))
        assert writer.acknowledged[partition] == expected
        found = client.consume(fleet.bootstrap, "run", len(expected) + 1, partition=partition, timeout_s=8)
        assert [int(m.value or b"") for m in found] == expected, f"partition {partition}: lost, doubled or reordered"


def test_transactions_and_groups_survive_the_coordinators_restart(own_fleet: Fleet) -> None:
    fleet = own_fleet.start()
    client: Client = Confluent()
    client.create_topic(fleet.bootstrap, "txn", PARTITIONS)
    producer = client.transactional(fleet.bootstrap, "survivor")
    for number, broker in enumerate(fleet.brokers):
        producer.begin()
        for partition in range(PARTITIONS):
            producer.send("txn", Message(b"%d" % number, partition=partition))
        producer.send_offsets({("txn", 0): number + 1}, "survivors")
        broker.kill()
        broker.start()
        broker.wait_ready()
        producer.commit()
        assert client.committed(fleet.bootstrap, "survivors", "txn") == number + 1
    producer.close()
    for partition in range(PARTITIONS):
        found = client.consume(fleet.bootstrap, "txn", 3, partition=partition, isolation=READ_COMMITTED)
        assert [m.value for m in found] == [b"0", b"1", b"2"]
