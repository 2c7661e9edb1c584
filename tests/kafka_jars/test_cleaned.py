"""Compaction beside Kafka 4.4.0's own: its dump tool and cleaner take over what we cleaned, we what it cleaned.

Not part of ``make test``: see ``conftest.py``.
"""

from __future__ import annotations

import random
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.log import LogStore, RealDisk
from fleetlog.brokers.log.disk.checkpoints import CLEANER_CHECKPOINT, decode_offsets
from fleetlog.wire import compression
from fleetlog.wire.types import TopicPartition
from tests.kafka_jars.kafka import DAMAGE, Kafka, dumped, formatted
from tests.log.compaction.compacted import clean, cleaner_of, last_values
from tests.support.clocks import ManualClock
from tests.support.logs import append, append_txn, config, end_txn, open_log
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars]

TP = TopicPartition("state", 0)
SETTINGS = {
    "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "400", "delete.retention.ms": "1000"
}  # fmt: skip
Table = dict[bytes, bytes]


@pytest.fixture
def kafka(tmp_path: Path, classpath: str) -> Iterator[Kafka]:
    properties = {"log.cleaner.backoff.ms": 200, "log.initial.task.delay.ms": 0}
    with formatted(classpath, tmp_path / "kafka", properties=properties) as made:
        yield made


def _create(admin: Any) -> None:
    from confluent_kafka.admin import NewTopic

    topic = NewTopic("state", num_partitions=1, replication_factor=1, config=SETTINGS)
    for future in admin.create_topics([topic]).values():
        future.result(30)


def _table(bootstrap: str) -> Table:
    """What a consumer of committed records keeps of the topic."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "isolation.level": "read_committed", "log_level": 0,
         "enable.auto.commit": False, "enable.partition.eof": True}
    )  # fmt: skip
    consumer.assign([Place("state", 0, 0)])
    table: Table = {}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            break
        if message.value() is None:
            table.pop(message.key(), None)
        else:
            table[message.key()] = message.value()
    consumer.close()
    return table


def _shows(kafka: Kafka, table: Table) -> None:
    """Kafka answers a commit before its marker is in the log: the last transaction may be seen a moment later."""
    eventually(lambda: _table(kafka.bootstrap), "the last transaction is visible", good=table.__eq__)


def _update(bootstrap: str, table: Table, count: int, codec: str = "none") -> None:
    """Updates, tombstones, and transactions of which each third is aborted."""
    from confluent_kafka import Producer

    rng = random.Random(count)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"t-{codec}", "compression.type": codec, "log_level": 0}
    )
    producer.init_transactions(60)
    for number in range(count):
        changes: dict[bytes, bytes | None] = {}
        producer.begin_transaction()
        for _ in range(rng.randrange(1, 20)):
            key = b"k%d" % rng.randrange(30)
            changes[key] = None if rng.random() < 0.15 else b"%s %d" % (codec.encode(), number)
            producer.produce("state", changes[key], key)
        if number % 3 == 2:
            assert producer.flush(60) == 0
            producer.abort_transaction(60)
            continue
        producer.commit_transaction(60)
        for name, value in changes.items():
            if value is None:
                table.pop(name, None)
            else:
                table[name] = value


def _clean_offset(kafka: Kafka) -> int:
    try:
        return decode_offsets((kafka.data / CLEANER_CHECKPOINT).read_bytes(), "").get(TP, 0)
    except FileNotFoundError:
        return 0


def _cleaned_beyond(kafka: Kafka, table: Table, offset: int) -> None:
    """Write until Kafka's cleaner has passed that offset: it closes a segment at the first append after segment.ms."""

    def written() -> bool:
        _update(kafka.bootstrap, table, 2, "lz4")
        return _clean_offset(kafka) > offset

    eventually(written, "Kafka has cleaned", 90, pause_s=0.5)


def _our_log(path: Path) -> tuple[LogStore, Any]:
    settings = BrokerConfig(broker_id=1, zookeeper_connect="z:1", log_dirs=(str(path),))
    store = LogStore(settings, RealDisk(), ManualClock(), cluster_id="c")
    store.load()
    return store, store.create(TP, uuid.UUID(int=77), _ours())


def _ours(**changes: Any) -> Any:
    settings = {"cleanup_policy": ("compact",), "min_cleanable_dirty_ratio": 0.0, "index_interval_bytes": 300}
    return config(**{**settings, "segment_bytes": 3000, "delete_retention_ms": 1000, **changes})


def test_kafkas_tool_and_cleaner_go_on_with_what_we_cleaned(tmp_path: Path, kafka: Kafka, classpath: str) -> None:
    admin = kafka.start()
    _create(admin)
    target = kafka.data / str(TP)
    eventually((target / "partition.metadata").exists, "the topic's id, which is written late, is there")
    kafka.stop()
    store, log = _our_log(tmp_path / "ours")
    now_ms = int(time.time() * 1000) - 60_000
    rng, cleaner = random.Random(2), cleaner_of(RealDisk(), log)
    for turn in range(3):
        for number in range(120):
            codec = rng.randrange(5)
            rows = [
                Record(-1, now_ms, b"k%d" % rng.randrange(30), rng.choice((None, b"%d" % number, b"." * 50)), ())
                for _ in range(rng.randrange(1, 5))
            ]
            compress = (lambda payload, codec=codec: compression.compress(codec, payload)) if codec else None
            assert append(log, encode_batch(rows, attributes=codec, compress=compress), now_ms=now_ms).error == 0
            pid = 1000 * turn + number
            append_txn(log, pid, 0, 0, 2, key=b"k%d" % rng.randrange(30), value=b"in a transaction")
            end_txn(log, pid, 0, commit=number % 3 > 0)
        log.appender.roll(now_ms)
        clean(cleaner, now_ms)
        now_ms += 5000
    want, end = last_values(log), cleaner.progress()[TP]
    store.checkpoint()
    store.close()
    text = dumped(classpath, tmp_path / "ours" / str(TP))
    assert not DAMAGE.findall(text), DAMAGE.search(text)
    assert "deleteHorizonMs: OptionalLong[" in text
    metadata = (target / "partition.metadata").read_bytes()
    shutil.rmtree(target)
    shutil.copytree(tmp_path / "ours" / str(TP), target)
    (target / "partition.metadata").write_bytes(metadata)
    kafka.start()
    table = _table(kafka.bootstrap)
    assert table == want
    _cleaned_beyond(kafka, table, end + 50)
    _shows(kafka, table)
    kafka.stop()
    text = dumped(classpath, target)
    assert not DAMAGE.findall(text), DAMAGE.search(text)


def test_we_clean_what_kafka_wrote_and_cleaned(kafka: Kafka, classpath: str) -> None:
    admin = kafka.start()
    _create(admin)
    table: Table = {}
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        _update(kafka.bootstrap, table, 25, codec)
    _cleaned_beyond(kafka, table, 50)
    _update(kafka.bootstrap, table, 40, "zstd")
    _shows(kafka, table)
    kafka.stop()
    folder = kafka.data / str(TP)
    log = open_log(folder, None, TP, clean=True, high_watermark=1 << 40, config=_ours(segment_bytes=1 << 20))
    end, size = log.log_end_offset, log.size_bytes
    now_ms = int(time.time() * 1000)
    log.appender.roll(now_ms)
    for turn in range(3):  # what is aborted goes, then markers without transactions and tombstones
        cleaner = cleaner_of(RealDisk(), log)
        clean(cleaner, now_ms + 5000 * turn)
        assert cleaner.progress()[TP] == end
        assert not cleaner.uncleanable
        assert last_values(log) == table
    assert log.size_bytes < size
    log.close()
    text = dumped(classpath, folder)
    assert not DAMAGE.findall(text), DAMAGE.search(text)
    kafka.start()
    _shows(kafka, table)
    _update(kafka.bootstrap, table, 10)
    _shows(kafka, table)
    kafka.stop()
