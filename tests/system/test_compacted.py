"""Compacted topics on real brokers: librdkafka writes updates, tombstones and transactions, and reads while passes go
on, brokers are killed and leaders change.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fleetlog._native.batch import scan
from fleetlog.brokers.log.disk.checkpoints import CLEANER_CHECKPOINT, decode_offsets
from fleetlog.brokers.log.validation import batch_records, read_marker
from fleetlog.wire.types import TopicPartition
from tests.support.copies import Cluster, quick_cleaning
from tests.support.fleet import Broker
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

KEYS, ONCE = 40, 10
TOPIC = "state"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with quick_cleaning(tmp_path) as found:
        yield found


class Writer:
    """Updates of few keys by a transactional producer: some are deletions, some transactions are aborted."""

    def __init__(self, bootstrap: str, topic: str, table: dict[bytes, bytes | None] | None = None) -> None:
        from confluent_kafka import Producer

        self.topic = topic
        self.table: dict[bytes, bytes | None] = table or {}
        """The last committed value of each key, None where that is a deletion."""
        self._rng = random.Random(5)
        self._number = 0
        self._stop = threading.Event()
        self.failure: BaseException | None = None
        self.transactions = 0
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"writer-{topic}", "linger.ms": 1,
             "transaction.timeout.ms": 60_000, "message.timeout.ms": 60_000, "retry.backoff.ms": 50,
             "topic.metadata.refresh.interval.ms": 1000, "reconnect.backoff.max.ms": 500}
        )  # fmt: skip
        self._producer.init_transactions(PATIENCE_S)
        self._write_once()
        self._thread = threading.Thread(target=self._run, name="writer")
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._transaction()
        except BaseException as failure:
            self.failure = failure

    def _transaction(self) -> None:
        rng, changes = self._rng, dict[bytes, bytes | None]()
        self._producer.begin_transaction()
        for _ in range(rng.randrange(1, 30)):
            self._number += 1
            key = b"key %d" % rng.randrange(KEYS)
            value = None if rng.random() < 0.1 else b"%d" % self._number + b"." * rng.randrange(200)
            self._producer.produce(self.topic, value, key, partition=0)
            changes[key] = value
        if rng.random() < 0.2:
            assert self._producer.flush(PATIENCE_S) == 0
            self._producer.abort_transaction(PATIENCE_S)
        else:
            self._producer.commit_transaction(PATIENCE_S)
            self.table.update(changes)
        self.transactions += 1

    def _write_once(self) -> None:
        """Keys without later updates: only passes keep them, not the active segment. Half are deleted."""
        keys = [b"once %d" % number for number in range(ONCE)]
        self._producer.begin_transaction()
        for key in keys:
            self._producer.produce(self.topic, b"kept", key, partition=0)
        self._producer.commit_transaction(PATIENCE_S)
        self.table.update(dict.fromkeys(keys, b"kept"))
        self.delete(keys[::2])

    def delete(self, keys: list[bytes]) -> None:
        """One transaction. After :meth:`finish` its records are in the active segment, which no pass takes."""
        self._producer.begin_transaction()
        for key in keys:
            self._producer.produce(self.topic, None, key, partition=0)
        self._producer.commit_transaction(PATIENCE_S)
        self.table.update(dict.fromkeys(keys))

    def wait(self, more: int, what: str) -> None:
        """Until so many more transactions have ended."""
        before = self.transactions
        eventually(lambda: self.transactions >= before + more or self.failure, what)
        assert self.failure is None, self.failure

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self.failure is None, self.failure


class Reader:
    """Reads from the start, slowly at first, and keeps the last value of each key that it saw, deletions included."""

    def __init__(self, bootstrap: str, topic: str, pause_s: float = 0.0) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self.seen: dict[bytes, bytes | None] = {}
        self._tp = TopicPartition(topic, 0, 0)
        self._pause_s = pause_s
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False,
             "isolation.level": "read_committed", "auto.offset.reset": "error", "fetch.message.max.bytes": 20_000,
             "reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 1000}
        )  # fmt: skip
        self._consumer.assign([self._tp])
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader")
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for message in self._consumer.consume(50, 0.2):
                    if message.error() is None:
                        self.seen[message.key()] = message.value()
                time.sleep(self._pause_s)
        except BaseException as failure:
            self.failure = failure

    def check(self, table: dict[bytes, bytes | None]) -> None:
        """Sooner or later it has seen the last value of each key, and each deletion."""
        self._pause_s = 0.0
        try:
            eventually(lambda: self.seen == table or self.failure, "the reader sees all keys' last values")
            assert self.failure is None, self.failure
            assert self.seen == table
        finally:
            self._stop.set()
            self._thread.join()
            self._consumer.close()


def _cleaned(broker: Broker, topic: str = TOPIC) -> int:
    """How far the broker's checkpoint says that its copy is clean."""
    path = broker.directory / "data" / CLEANER_CHECKPOINT
    if not path.exists():
        return 0
    return decode_offsets(path.read_bytes(), "").get(TopicPartition(topic, 0), 0)


class Row(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


def _copy(cluster: Cluster, broker: Broker) -> list[Row]:
    """The records of a replica that are not of aborted transactions, in order: by its files."""
    data, rows = cluster.log(broker, TOPIC), list[Row]()
    open_: dict[int, list[Row]] = {}
    for at, header in scan(data):
        if header.is_control:
            ended = open_.pop(header.producer_id, [])
            rows += ended if read_marker(data, at, header).commit else []
        elif header.record_count:
            found = [Row(r.offset, r.key, r.value) for r in batch_records(data, at, header, 1 << 20)]
            open_.setdefault(header.producer_id, []).extend(found)
            if not header.is_transactional:
                rows += open_.pop(header.producer_id)
    assert not any(open_.values()), f"broker {broker.id} has records of a transaction without an end: {open_}"
    return sorted(rows)


def _check_copies(cluster: Cluster, table: dict[bytes, bytes | None]) -> None:
    """Each copy has the last value of each key, deletions included, and little else below the point up to which all are
    clean. Above the point that the cleanest has reached, no copy lacks a record, and no tombstone.
    """
    ends = {broker.id: _cleaned(broker) for broker in cluster.fleet.brokers}
    copies = {broker.id: _copy(cluster, broker) for broker in cluster.fleet.brokers}
    for number, rows in copies.items():
        assert {row.key: row.value for row in rows} == table, f"the copy of broker {number}"
        kept = [row for row in rows if row.offset < min(ends.values())]
        assert len(kept) < 2 * KEYS, f"broker {number} keeps {len(kept)} records of {KEYS + ONCE} keys"
    above = {number: [row for row in rows if row.offset >= max(ends.values())] for number, rows in copies.items()}
    first, *others = above.values()
    assert all(rows == first for rows in others), f"the copies differ above {ends}: {above}"
    assert any(row.value is None for row in first), f"no deletion is above {ends}, so nothing was compared"


def _alter(cluster: Cluster, topic: str, **config: str) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    admin = AdminClient({"bootstrap.servers": cluster.alive})
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


COMPACTED: dict[str, Any] = {
    "cleanup_policy": "compact", "segment_bytes": 300_000, "min_cleanable_dirty_ratio": 0.1, "min_insync_replicas": 2,
    "delete_retention_ms": 600_000,
}  # fmt: skip


def test_what_is_read_while_passes_go_on_and_brokers_die(cluster: Cluster) -> None:
    cluster.create(TOPIC, **COMPACTED)
    bootstrap = cluster.fleet.bootstrap
    writer = Writer(bootstrap, TOPIC)
    readers = [Reader(bootstrap, TOPIC), Reader(bootstrap, TOPIC, pause_s=0.3)]
    try:
        eventually(lambda: all(_cleaned(b) > 0 for b in cluster.running), "each replica has had a pass")
        for _ in range(2):
            leader = cluster.leader(TOPIC)
            leader.kill()
            writer.wait(20, "another leader takes over")
            leader.start()
            leader.wait_ready()
            cluster.wait_isr(TOPIC, {1, 2, 3})
            before = {b.id: _cleaned(b) for b in cluster.running}
            writer.wait(20, "it continues")
            eventually(
                lambda before=before: all(_cleaned(b) > before[b.id] for b in cluster.running),  # type: ignore[misc]
                "each replica has another pass",
            )
        follower = next(b for b in cluster.running if b is not cluster.leader(TOPIC))
        follower.stop()
        writer.wait(10, "one broker is away")
        follower.start()
        follower.wait_ready()
        cluster.wait_isr(TOPIC, {1, 2, 3})
    finally:
        writer.finish()
    writer.delete([b"key 3", b"key 7"])
    for reader in readers:
        reader.check(writer.table)
    late = Reader(bootstrap, TOPIC)
    late.check(writer.table)
    assert min(_cleaned(broker) for broker in cluster.running) > 0
    assert {cluster.metric(broker, "fleetlog_lost_commits") for broker in cluster.running} == {0}
    cluster.wait_isr(TOPIC, {1, 2, 3})
    for broker in cluster.running:
        broker.stop()
    _check_copies(cluster, writer.table)
    assert cluster.mistakes() == []


def test_a_policy_that_changes_and_a_crash_with_another_one(cluster: Cluster) -> None:
    """Holes are no damage, though the topic is not compacted any more, and a starting broker knows no settings yet."""
    cluster.create(TOPIC, **COMPACTED)
    bootstrap = cluster.fleet.bootstrap
    writer = Writer(bootstrap, TOPIC)
    try:
        eventually(lambda: all(_cleaned(b) > 0 for b in cluster.running), "each replica has had a pass")
        _alter(cluster, TOPIC, cleanup_policy="delete")
        writer.wait(20, "not compacted any more")
    finally:
        writer.finish()
    for broker in list(cluster.running):
        broker.kill()
    for broker in cluster.fleet.brokers:
        broker.start()
    for broker in cluster.fleet.brokers:
        broker.wait_ready()
    cluster.wait_isr(TOPIC, {1, 2, 3})
    Reader(bootstrap, TOPIC).check(writer.table)
    before = {b.id: _cleaned(b) for b in cluster.running}
    assert all(before.values())
    _alter(cluster, TOPIC, cleanup_policy="compact,delete")
    writer = Writer(bootstrap, TOPIC, writer.table)
    try:
        eventually(lambda: all(_cleaned(b) > before[b.id] for b in cluster.running), "passes again")
    finally:
        writer.finish()
    Reader(bootstrap, TOPIC).check(writer.table)
    for broker in cluster.running:
        assert "was expected" not in broker.output()


def test_a_record_without_a_key_is_refused(cluster: Cluster) -> None:
    from confluent_kafka import KafkaError, Producer

    cluster.create(TOPIC, **COMPACTED)
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.fleet.bootstrap, "linger.ms": 500})
    for key in (b"a", None, b"b"):
        producer.produce(TOPIC, b"v", key, on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    codes = sorted(error.code() if error is not None else 0 for error in errors)
    assert KafkaError.INVALID_RECORD in codes or -141 in codes, codes  # _INVALID_DIFFERENT_RECORD for the others
    assert 0 not in codes, "the batch is refused as a whole"
