"""The format, proved by Kafka 4.4.0 itself: its dump tool reads our files, it serves our directory, we open its own.

Not part of ``make test``: see ``conftest.py``.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.log import LogStore, Origin, RealDisk
from fleetlog.wire.types import TopicPartition
from tests.kafka_jars.kafka import DAMAGE, dumped, formatted
from tests.support.clocks import ManualClock
from tests.support.logs import (
    NOW,
    aborted_entries,
    append,
    append_txn,
    batch,
    config,
    end_txn,
    open_log,
    produced,
    records,
)
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars]

TP = TopicPartition("events", 0)


def _write_everything(log) -> None:
    rng = random.Random(1)
    for i in range(120):
        epoch = i // 40
        rows = batch(
            rng.randint(1, 4), value=b"v" * rng.randint(0, 60), timestamp=NOW + i * 10, codec=rng.randint(0, 4),
            headers=(("h", b"1"), ("n", None)),
        )  # fmt: skip
        append(log, rows, epoch=epoch)
        append(log, produced(1, 0, i), epoch=epoch)
        append_txn(log, 100 + i, 0, 0, 2)
        end_txn(log, 100 + i, 0, commit=i % 3 > 0, coordinator_epoch=4)
    append_txn(log, 9999, 3, 0, 1)
    end_txn(log, 9999, 4, commit=True, coordinator_epoch=5, transaction_version=2)


def _store(path: Path) -> LogStore:
    settings = BrokerConfig(broker_id=1, zookeeper_connect="z:1", log_dirs=(str(path),))
    store = LogStore(settings, RealDisk(), ManualClock(), cluster_id="c")
    store.load()
    return store


def _ours(path: Path, tp: TopicPartition = TP, **changes):
    store = _store(path)
    settings = config(index_interval_bytes=300, segment_bytes=3000, **changes)
    log = store.create(tp, uuid.UUID(int=77), settings)
    return store, log


def test_kafkas_dump_tool_reads_our_files(tmp_path, classpath):
    store, log = _ours(tmp_path)
    _write_everything(log)
    end, segments = log.log_end_offset, len(log.segments)
    rows = records(log)
    store.close()
    text = dumped(classpath, tmp_path / str(TP))
    assert not DAMAGE.findall(text), DAMAGE.search(text)
    assert text.count("Log starting offset") == segments > 10
    assert text.count("| offset:") == len(rows) + 121
    assert f"lastOffset: {end - 1} " in text
    assert text.count("endTxnMarker: ABORT") == 40
    assert len(re.findall(r"^version: 0 producerId: \d+ firstOffset", text, re.MULTILINE)) == 40
    assert "producerId: 9999 producerEpoch: 4 coordinatorEpoch: 5" in text


def test_the_dump_tool_finds_damage(tmp_path, classpath):
    """The proof above can fail: one flipped bit in a log and one in an index are seen."""
    store, log = _ours(tmp_path)
    _write_everything(log)
    store.close()
    for name, position in ((f"{0:020d}.log", 90), (f"{0:020d}.index", 7)):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / str(TP), copy)
        data = bytearray((copy / name).read_bytes())
        data[position] ^= 1
        (copy / name).write_bytes(data)
        files = f"{copy}/{name}"
        command = [
            "java",
            "-cp",
            classpath,
            "org.apache.kafka.tools.DumpLogSegments",
            "--deep-iteration",
            "--files",
            files,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode or DAMAGE.search(done.stdout + done.stderr)
        shutil.rmtree(copy)


def test_kafkas_dump_tool_reads_a_compacted_log(tmp_path, classpath):
    from fleetlog._native.batch import Record, encode_batch
    from tests.log.compaction.compacted import clean, cleaner_of

    tp = TopicPartition("__consumer_offsets", 3)
    store, log = _ours(tmp_path, tp, cleanup_policy=("compact",))
    for i in range(400):
        value = None if i % 9 == 0 else b"%d" % i
        data = encode_batch([Record(-1, NOW + i, b"key %d" % (i % 13), value, ()) for _ in range(2)])
        append(log, data, origin=Origin.COORDINATOR)
        if i % 20 == 0:
            append_txn(log, 50 + i, 0, 0)
            end_txn(log, 50 + i, 0, commit=i % 40 == 0)
    clean(cleaner_of(RealDisk(), log))
    assert len(records(log)) < 100
    store.close()
    text = dumped(classpath, tmp_path / str(tp))
    assert not DAMAGE.findall(text), DAMAGE.search(text)
    assert "deleteHorizonMs: OptionalLong[" in text


def test_kafkas_dump_tool_reads_committed_offsets(tmp_path, classpath):
    """With the topic's id behind the fields that Kafka reads."""
    from fleetlog._native.batch import Record, encode_batch
    from fleetlog.brokers.groups import records as group_records

    tp = TopicPartition("__consumer_offsets", 4)
    store, log = _ours(tmp_path, tp)
    committed = group_records.CommittedOffset(4242, 7, "a note", NOW, topic_id=bytes(range(16)))
    record = group_records.offset_record("the group", TopicPartition("orders", 3), committed)
    append(log, encode_batch([Record(-1, NOW, record.key, record.value, ())]), origin=Origin.COORDINATOR)
    store.close()
    (segment,) = (tmp_path / str(tp)).glob("*.log")
    command = [
        "java",
        "-cp",
        classpath,
        "org.apache.kafka.tools.DumpLogSegments",
        "--offsets-decoder",
        "--files",
        str(segment),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for part in ('"the group"', '"orders"', '"offset":4242', '"leaderEpoch":7', '"a note"', f'"commitTimestamp":{NOW}'):
        assert part in done.stdout, done.stdout[-2000:]


@pytest.fixture
def kafka(tmp_path, classpath):
    with formatted(classpath, tmp_path / "kafka") as made:
        yield made


def _create_topic(admin, name: str, **settings) -> None:
    from confluent_kafka.admin import NewTopic

    topic = NewTopic(name, num_partitions=1, replication_factor=1, config=settings)
    for future in admin.create_topics([topic]).values():
        future.result(30)


def _consume(bootstrap: str, count: int, isolation: str) -> list[tuple[int, bytes, bytes]]:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "isolation.level": isolation, "log_level": 0}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([Place("events", 0, 0)])
    found = []
    deadline = time.monotonic() + 40
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def _committed(log) -> list[tuple[int, bytes, bytes]]:
    aborted = {(entry.producer_id, entry.first_offset): entry.last_offset for entry in aborted_entries(log)}
    spans = sorted((first, last) for (_, first), last in aborted.items())
    return [
        (r.offset, r.key, r.value)
        for r in records(log)
        if not any(first <= r.offset <= last and r.offset < log.log_end_offset for first, last in spans)
    ]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_kafka_serves_our_directory(tmp_path, kafka, clean):
    """Our files in the place of Kafka's: it loads them (or recovers them) and its clients read what we wrote."""
    admin = kafka.start()
    _create_topic(admin, "events")
    eventually(
        (kafka.data / "events-0" / "partition.metadata").exists, "the topic's id, which is written late, is there"
    )
    kafka.stop(signal.SIGTERM if clean else signal.SIGKILL)
    store, log = _ours(tmp_path / "ours")
    _write_everything(log)
    rows = [(r.offset, r.key, r.value) for r in records(log)]
    committed = _committed(log)
    assert len(committed) < len(rows)
    store.close(clean=clean)
    target = kafka.data / "events-0"
    metadata = (target / "partition.metadata").read_bytes()
    shutil.rmtree(target)
    shutil.copytree(tmp_path / "ours" / "events-0", target)
    (target / "partition.metadata").write_bytes(metadata)
    kafka.start()
    assert _consume(kafka.bootstrap, len(rows), "read_uncommitted") == rows
    assert _consume(kafka.bootstrap, len(committed), "read_committed") == committed
    kafka.stop()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_we_open_kafkas_directory(tmp_path, kafka, clean):
    """What librdkafka wrote into Kafka, read from Kafka's own files: records, transactions, producers, epochs.

    The index of aborted transactions that is made anew from Kafka's batches is Kafka's own, byte for byte, and its
    segment is closed.
    """
    from confluent_kafka import Producer

    admin = kafka.start()
    _create_topic(admin, "events", **{"segment.bytes": "1048576", "index.interval.bytes": "1024"})
    quiet = {"bootstrap.servers": kafka.bootstrap, "log_level": 0}
    sent = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        settings = {**quiet, "compression.type": codec, "enable.idempotence": True}
        producer = Producer(settings)
        for i in range(400):
            value = f"{codec} {i} ".encode() * 20
            sent.append(value)
            producer.produce("events", value, key=str(i), headers=[("codec", codec.encode())])
        producer.flush(60)
    aborted = set()
    for number in range(6):
        producer = Producer({**quiet, "transactional.id": f"t{number % 2}"})
        producer.init_transactions(60)
        producer.begin_transaction()
        for i in range(20):
            value = f"transaction {number} {i}".encode()
            producer.produce("events", value)
            sent.append(value)
            if number % 3 == 2:
                aborted.add(value)
        if number % 3 == 2:
            producer.flush(60)
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    filler = Producer(quiet)
    for _ in range(12):
        sent.append(b"f" * 90_000)
        filler.produce("events", sent[-1])
    filler.flush(60)
    # Kafka answers a commit before its marker is in the log; a committed read waits for that
    assert len(_consume(kafka.bootstrap, len(sent) - len(aborted), "read_committed")) == len(sent) - len(aborted)
    kafka.stop(signal.SIGTERM if clean else signal.SIGKILL)
    folder = kafka.data / "events-0"
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix == ".log"}
    settings = config(segment_bytes=1 << 20, index_interval_bytes=1024)
    again = tmp_path / "again" / "events-0"
    shutil.copytree(folder, again)
    indexes = {file.name: file.read_bytes() for file in again.glob("*.txnindex") if file.stat().st_size}
    assert set(indexes) == {f"{0:020}.txnindex"}
    assert len(before) > 1
    for file in again.glob("*.txnindex"):
        file.unlink()
    open_log(again, clean=False, high_watermark=1 << 40, config=settings)
    assert {file.name: file.read_bytes() for file in again.glob("*.txnindex")} == indexes
    log = open_log(folder, clean=clean, high_watermark=1 << 40, config=settings)
    assert not log.recovery_report.truncated_bytes
    assert [r.value for r in records(log)] == sent
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix == ".log"} == before
    assert log.last_stable_offset == log.log_end_offset == log.high_watermark
    assert len(aborted_entries(log)) == 2
    spans = [(entry.first_offset, entry.last_offset) for entry in aborted_entries(log)]
    assert {r.value for r in records(log) if any(a <= r.offset <= b for a, b in spans)} == aborted
    assert log.epochs.entries[0] == (0, 0)
    assert sum(entry.last_sequence >= 399 for entry in log.producers.active()) == 5
    for offset in range(0, log.log_end_offset, 97):
        result = log.reader.read(offset, 1, end_offset=log.log_end_offset)
        assert result.slices
        result.release()
    assert append(log, batch(1), epoch=5).error == 0
    log.abandon()
