"""A producer and a reader that run while things are done to the fleet, and the account of what they saw."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import fleetlog.wire.messages as m
from tests.containers.fleet import PAUSE_S
from tests.support.clients import KAFKA_PYTHON
from tests.support.harness import Client
from tests.support.waiting import eventually

REPLICATION_FACTOR = 3
MIN_INSYNC_REPLICAS = 2
PARTITIONS = 6
_numbers = itertools.count()
_PACE_S = 0.02
_UNANSWERED_MAX = 5_000
# A stock client notices a silent broker by its time-outs only; librdkafka waits a minute for an answer unless told.
IMPATIENT = {"socket.timeout.ms": 5_000, "socket.connection.setup.timeout.ms": 3_000, "reconnect.backoff.max.ms": 500}
QUIET = {"log_level": 2}  # lost connections are what these tests are about


def create_topic(bootstrap: str, partitions: int = PARTITIONS, replicas: int = REPLICATION_FACTOR) -> str:
    """A new topic, once every broker knows its leaders."""
    topic = f"t{next(_numbers)}"
    settings = {"min.insync.replicas": str(min(replicas, MIN_INSYNC_REPLICAS))}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, replicas, config=settings)])[topic].result(30)
    wait_in_sync(bootstrap, topic, replicas)
    return topic


def in_sync(address: str, topic: str) -> dict[int, tuple[int, list[int]]]:
    """Partition: (leader, in-sync replicas), as the broker at this very address sees it.

    A stock client would ask whichever broker it likes, also one that is cut off and knows nothing new.
    """
    client = Client(int(address.rpartition(":")[2]))
    try:
        topics = [m.MetadataRequest.MetadataRequestTopic(name=topic)]
        answer = client.ask(m.MetadataRequest(topics=topics, allow_auto_topic_creation=False), 9)
    finally:
        client.close()
    partitions = answer.topics[0].partitions
    return {partition.partition_index: (partition.leader_id, list(partition.isr_nodes)) for partition in partitions}


def wait_in_sync(bootstrap: str, topic: str, replicas: int = REPLICATION_FACTOR, timeout_s: float = 90.0) -> None:
    """Wait until each broker says that each partition has a leader and ``replicas`` in-sync replicas."""

    def look(address: str) -> dict[int, tuple[int, list[int]]] | OSError:
        try:
            return in_sync(address, topic)
        except OSError as error:  # the broker is not there yet
            return error

    def whole(found: dict[int, tuple[int, list[int]]] | OSError) -> bool:
        if isinstance(found, OSError):
            return False
        return bool(found) and all(leader >= 0 and len(isr) == replicas for leader, isr in found.values())

    for address in bootstrap.split(","):
        what = f"{topic} is in sync at {address}"
        eventually(lambda address=address: look(address), what, timeout_s, good=whole, pause_s=PAUSE_S)


class Workload:
    """Writes numbered records to each partition with acks=all, and reads them at the same time."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
        self.bootstrap, self.topic, self.partitions = bootstrap, topic, partitions
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        """(partition, offset): value."""
        self.implied: set[tuple[int, bytes]] = set()
        """(partition, value) of records without an offset: their answer was lost, and a later one implies them
        (confluentinc/librdkafka#2081)."""
        self.refused: list[tuple[int, bytes, str]] = []
        self.shown: dict[tuple[int, int], bytes] = {}
        """What the reader was given."""
        self.changed: list[str] = []
        """What the reader was given again, and differently."""
        self.longest_gap_s = [0.0] * partitions
        """Longest time without an acknowledgement, of each partition."""
        self._last_ack = [time.monotonic()] * partitions
        self._newest_acknowledged = [-1] * partitions
        self._next = 0
        self._unanswered = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=loop, daemon=True) for loop in (self._write, self._read)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self.wait_progress()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(150)

    def wait_progress(self, timeout_s: float = 60.0, partitions: set[int] | None = None) -> float:
        """Wait until a record written from now on is acknowledged in each partition (or in these); seconds it took."""
        begun, first = time.monotonic(), self._next
        wanted = set(range(self.partitions)) if partitions is None else partitions

        def missing() -> set[int]:
            return {partition for partition in wanted if self._newest_acknowledged[partition] < first}

        what = f"no partition of {self.topic} is without an acknowledgement"
        eventually(missing, what, timeout_s, good=lambda found: not found, pause_s=0.02)
        return time.monotonic() - begun

    def finish(self) -> str:
        """Stop, read everything from the beginning, compare; a line for people."""
        self._stop.set()
        for thread in self._threads:
            thread.join(150)
            assert not thread.is_alive(), "a client of the workload did not end"
        assert not self.changed, self.changed[:5]
        kept = read_all(self.bootstrap, self.topic, self.partitions)
        lost = {place: value for place, value in self.acknowledged.items() if kept.get(place) != value}
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} acknowledged records are gone: {_some(lost)}"
        missing = self.implied - {(partition, value) for (partition, _), value in kept.items()}
        assert not missing, f"{len(missing)} records whose acknowledgement was implied are gone: {sorted(missing)[:5]}"
        vanished = {place: value for place, value in self.shown.items() if kept.get(place) != value}
        assert not vanished, f"{len(vanished)} records were shown and are gone: {_some(vanished)}"
        for partition in range(self.partitions):
            numbers = [int(value) for (number, _), value in sorted(kept.items()) if number == partition]
            assert numbers == sorted(set(numbers)), f"partition {partition} has duplicates, or records in wrong order"
        assert self.acknowledged, "nothing was acknowledged"
        return (
            f"{len(self.acknowledged)} acknowledged, {len(self.refused)} refused, none lost; "
            f"longest without an acknowledgement {max(self.longest_gap_s):.1f} s"
        )

    def _write(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 2,
             "message.timeout.ms": 120_000, **IMPATIENT, **QUIET}
        )  # fmt: skip
        try:
            while not self._stop.is_set():
                if self._unanswered < _UNANSWERED_MAX:
                    number = self._next
                    for partition in range(self.partitions):
                        self._unanswered += 1
                        producer.produce(self.topic, b"%d" % number, partition=partition, on_delivery=self.answered)
                    self._next = number + 1
                producer.poll(0)
                time.sleep(_PACE_S)
        finally:
            producer.flush(120)

    def answered(self, error: KafkaError | None, message: Any) -> None:
        """By librdkafka, for each record."""
        self._unanswered -= 1
        partition, value = message.partition(), message.value()
        if error is not None:
            self.refused.append((partition, value, str(error)))
            return
        now = time.monotonic()
        self.longest_gap_s[partition] = max(self.longest_gap_s[partition], now - self._last_ack[partition])
        self._last_ack[partition] = now
        self._newest_acknowledged[partition] = max(self._newest_acknowledged[partition], int(value))
        if message.offset() is None:
            self.implied.add((partition, value))
            return
        place = (partition, message.offset())
        if self.acknowledged.setdefault(place, value) != value:
            self.changed.append(f"{place} was acknowledged for {self.acknowledged[place]!r} and for {value!r}")

    def _read(self) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "unused", "enable.auto.commit": False,
             "auto.offset.reset": "earliest", **IMPATIENT, **QUIET}
        )  # fmt: skip
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(self.partitions)])
        try:
            while not self._stop.is_set():
                for message in consumer.consume(1_000, 0.1):
                    if message.error() is not None:
                        continue  # a broker is away; librdkafka goes on by itself
                    place, value = (message.partition(), message.offset()), message.value()
                    if self.shown.setdefault(place, value) != value:
                        self.changed.append(f"{place} was shown as {self.shown[place]!r} and as {value!r}")
        finally:
            consumer.close()


def read_all(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> dict[tuple[int, int], bytes]:
    """Everything in the topic, by another client than the one that wrote it."""
    from kafka import KafkaConsumer
    from kafka import TopicPartition as Place

    places = [Place(topic, partition) for partition in range(partitions)]
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","), enable_auto_commit=False, auto_offset_reset="earliest",
        request_timeout_ms=10_000, **KAFKA_PYTHON,
    )  # fmt: skip
    found: dict[tuple[int, int], bytes] = {}
    try:
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        deadline = time.monotonic() + 90
        while any(consumer.position(place) < ends[place] for place in places):
            assert time.monotonic() < deadline, f"{topic} cannot be read to its end {ends}; read {len(found)} records"
            for records in consumer.poll(timeout_ms=500).values():
                for record in records:
                    found[record.partition, record.offset] = record.value
    finally:
        consumer.close()
    return found


def _some(records: dict[tuple[int, int], bytes]) -> str:
    return ", ".join(f"{place}={value!r}" for place, value in sorted(records.items())[:5])
