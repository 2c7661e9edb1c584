"""Transactions of a stock client while their brokers are killed: each one is complete or absent."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper, pytest.mark.slow]

PARTITIONS = 4
PER_TRANSACTION = 6


class Transactor(threading.Thread):
    """Commits and aborts numbered transactions, each with records on several partitions and a group's offset."""

    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.id = name
        self.stopping = threading.Event()
        self.number = 0
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.unknown: list[int] = []
        self.crash: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._run_once()
        except BaseException as error:
            self.crash = error

    def _run_once(self) -> None:
        """Until an error only a new producer can heal."""
        from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": self.id, "transaction.timeout.ms": 60_000,
             "linger.ms": 0, "reconnect.backoff.max.ms": 500, "log_level": 0}
        )  # fmt: skip
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.id, "log_level": 0})
        try:
            producer.init_transactions(60)
            group = consumer.consumer_group_metadata()
            while not self.stopping.is_set():
                self.number += 1
                number = self.number
                self.unknown.append(number)
                producer.begin_transaction()
                for index in range(PER_TRANSACTION):
                    producer.produce("chaos", f"{self.id}/{number}/{index}".encode(), partition=index % PARTITIONS)
                producer.send_offsets_to_transaction([TopicPartition("chaos", 0, number)], group, 60)
                if number % 4 == 3:
                    # librdkafka 2.x does not reconnect for a batch in flight once an abort waits for it.
                    producer.flush(60)
                    producer.abort_transaction(60)
                    self.aborted.append(number)
                else:
                    producer.commit_transaction(60)
                    self.committed.append(number)
                self.unknown.remove(number)
        except KafkaException:
            pass  # what became of the transaction is unknown; the next producer's init settles it
        finally:
            consumer.close()


def read_all(bootstrap: str) -> list[bytes]:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed",
         "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    consumer.assign([TopicPartition("chaos", index, 0) for index in range(PARTITIONS)])
    found: list[bytes] = []
    ended: set[int] = set()
    deadline = time.monotonic() + 60
    while len(ended) < PARTITIONS and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            if message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            continue
        found.append(message.value())
    consumer.close()
    assert len(ended) == PARTITIONS, "the end of some partition is out of reach: a transaction hangs"
    return found


def stable_everywhere(bootstrap: str) -> bool:
    """Whether the last stable offset has reached the end on all partitions."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": bootstrap})
    places = [TopicPartition("chaos", index) for index in range(PARTITIONS)]
    ends = []
    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        asked = admin.list_offsets({place: OffsetSpec.latest() for place in places}, isolation_level=level)
        ends.append([future.result(30).offset for future in asked.values()])
    return ends[0] == ends[1]


def test_killed_brokers_leave_whole_transactions(own_fleet: Fleet) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    fleet = own_fleet.start()
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    for future in admin.create_topics([NewTopic("chaos", PARTITIONS, 1)]).values():
        future.result(30)
    writers = [Transactor(fleet.bootstrap, f"chaos-{n}") for n in range(3)]
    for writer in writers:
        writer.start()
    for broker in [*fleet.brokers, fleet.brokers[0]]:
        done = [len(writer.committed) for writer in writers]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not all(
            len(writer.committed) > before + 3 for writer, before in zip(writers, done, strict=True)
        ):
            time.sleep(0.05)
        broker.kill()
        broker.start()
        broker.wait_ready()
    time.sleep(1)
    for writer in writers:
        writer.stopping.set()
    for writer in writers:
        writer.join(120)
        assert not writer.is_alive()
        assert writer.crash is None
        assert len(writer.committed) > 12
    # What is still open belongs to no producer any more: the next producer of the same id ends it.
    from confluent_kafka import Producer

    for writer in writers:
        Producer({"bootstrap.servers": fleet.bootstrap, "transactional.id": writer.id}).init_transactions(60)
    eventually(lambda: stable_everywhere(fleet.bootstrap), "no transaction is open", pause_s=0.2)

    seen: dict[tuple[str, int], list[int]] = {}
    for value in read_all(fleet.bootstrap):
        name, number, index = value.decode().split("/")
        seen.setdefault((name, int(number)), []).append(int(index))
    whole = list(range(PER_TRANSACTION))
    for writer in writers:
        for number in writer.committed:
            assert sorted(seen.get((writer.id, number), [])) == whole, "a committed transaction lost or doubled records"
        for number in writer.aborted:
            assert (writer.id, number) not in seen, "an aborted transaction is visible"
        for number in writer.unknown:
            assert sorted(seen.get((writer.id, number), whole)) == whole, "half a transaction"
        assert not [n for name, n in seen if name == writer.id and n > writer.number]
