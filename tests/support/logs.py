"""Small makers for the log's tests."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path

from fleetlog._native.batch import Record, control_batch, encode_batch, parse_header, scan
from fleetlog.brokers.api.base import through
from fleetlog.brokers.config import BrokerConfig, TopicConfig
from fleetlog.brokers.log import Log, Origin, RealDisk, Terms, guards_of
from fleetlog.brokers.log.append import Appender
from fleetlog.brokers.log.indexes import AbortedTxn
from fleetlog.brokers.log.validation import batch_records, build_batch
from fleetlog.wire import compression
from fleetlog.wire.types import TopicPartition
from tests.support.clocks import START_MS

TP = TopicPartition("events", 0)
NOW = START_MS
TRANSACTIONAL = 0x10
DEFAULTS = BrokerConfig(broker_id=1, zookeeper_connect="none:1").topic_defaults()


def config(**changes) -> TopicConfig:
    return dataclasses.replace(DEFAULTS, **changes)


OPEN: list[Log] = []
"""What a test has opened; what it leaves open is abandoned after it (tests/conftest.py)."""
MANY = 100


def open_log(path: Path, disk=None, topic: TopicPartition = TP, **options) -> Log:
    changes = options.pop("config", config())
    log = Log.open(disk or RealDisk(), str(path), topic, changes, now_ms=options.pop("now_ms", NOW), **options)
    if len(OPEN) > MANY:
        OPEN[:] = [one for one in OPEN if not one.offline]
    OPEN.append(log)
    return log


def aborted_entries(log: Log) -> list[AbortedTxn]:
    return [entry for segment in log.segments for entry in segment.txn_index]


def batch(count=1, *, value=b"v", key=b"k", timestamp=NOW, codec=0, attributes=0, headers=(), **fields) -> bytes:
    records = [Record(-1, timestamp + i, key, value, headers) for i in range(count)]
    compress = (lambda payload: compression.compress(codec, payload)) if codec else None
    return encode_batch(records, attributes=codec | attributes, compress=compress, **fields)


def produced(pid, epoch, sequence, count=1, *, txn=False, **fields) -> bytes:
    return batch(
        count,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL if txn else 0,
        **fields,
    )


def marker(pid, epoch, *, commit, coordinator_epoch=0, timestamp=NOW) -> bytes:
    return control_batch(
        commit=commit,
        producer_id=pid,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=timestamp,
    )


def append_as_leader(
    log: Log, records, *, leader_epoch, now_ms=NOW, origin=Origin.CLIENT, verification_guard=None, **options
):
    """One buffer that a leader appends, which may hold several batches: what becomes of it."""
    terms = Terms(origin, guards=guards_of(records, verification_guard), **options)
    ((outcome,), _) = log.appender.append([records], leader_epoch, now_ms, terms)
    return log.appender.info(outcome)


def append(log: Log, data: bytes, *, epoch=None, now_ms=NOW, commit_hw=True, **options):
    """By the leader of that epoch, or of the log's newest one."""
    leader_epoch = max(0, log.epochs.latest) if epoch is None else epoch
    info = append_as_leader(log, bytearray(data), leader_epoch=leader_epoch, now_ms=now_ms, **options)
    if commit_hw:
        log.appender.set_high_watermark(log.log_end_offset)
    return info


def append_together(log: Log, batches, *, epoch=0, now_ms=NOW, commit_hw=True, **terms):
    """What a client's requests that came together bring, a batch each: what becomes of them."""
    appender, sent = log.appender, [bytearray(data) for data in batches]
    options = {"guards": {}} | terms
    found, _ = appender.append(sent, epoch, now_ms, Terms(Origin.CLIENT, **options))
    if commit_hw:
        log.appender.set_high_watermark(log.log_end_offset)
    return [appender.info(outcome) for outcome in found]


def looked_at(log: Log) -> list[bytes]:
    """The batches that get a closer look from now on."""
    found = []

    class Noting(type(log.appender)):
        def _look_closer(self, batch, *how):
            found.append(bytes(batch))
            return super()._look_closer(batch, *how)

    log.appender = Noting(log, log.flusher)
    return found


class Thorough(Appender):
    """No batch is ready without a closer look."""

    def _ready(self, *_):
        return [], 0


def look_at_all(log: Log) -> None:
    log.appender = Thorough(log, log.flusher)


def append_txn(log: Log, pid, epoch, sequence, count=1, **fields):
    """A transactional append with the verification that a broker would have done."""
    guard = log.producers.verification_guard(pid, epoch, sequence)
    return append(log, produced(pid, epoch, sequence, count, txn=True, **fields), verification_guard=guard)


def end_txn(log: Log, pid, epoch, *, commit, **options):
    data = marker(pid, epoch, commit=commit, coordinator_epoch=options.pop("coordinator_epoch", 0))
    return append(log, data, origin=Origin.COORDINATOR, **options)


def content(log: Log, start: int | None = None, end: int | None = None, max_bytes=1 << 30) -> bytes:
    offset = log.log_start_offset if start is None else start
    end = log.log_end_offset if end is None else end
    parts = []
    while offset < end:
        result = log.reader.read(offset, max_bytes, end_offset=end)
        if not result.slices:
            break
        parts += [part.read() for part in result.slices]
        result.release()
        offset = result.next_offset
    return b"".join(parts)


def records(log: Log, start: int | None = None, end: int | None = None, *, markers: bool = False) -> list[Record]:
    data = content(log, start, end)
    return [
        record
        for at, header in scan(data)
        if markers or not header.is_control
        for record in batch_records(data, at, header, 1 << 30)
    ]


def by_time(log: Log, timestamp: int) -> tuple[int, int, int] | None:
    """What a search by time finds when nothing interrupts it."""
    return through(log.reader.search_timestamp(timestamp, lambda _: None))


def latest(log: Log) -> tuple[int, int, int] | None:
    """The record with the largest timestamp."""
    return log.reader.max_timestamp(lambda _: None)


def assert_every_time_is_found(log: Log) -> None:
    """A search by time finds what a walk through all records finds, markers too, and each segment knows its largest
    time."""
    rows = records(log, markers=True)
    for timestamp in sorted({row.timestamp for row in rows}):
        want = next((row.offset, row.timestamp) for row in rows if row.timestamp >= timestamp)
        assert by_time(log, timestamp)[:2] == want
    for segment in log.segments:
        largest = max((header.max_timestamp for _, header in segment.headers()), default=-1)
        assert segment.max_timestamp[0] == largest, segment


def headers(log: Log):
    data = content(log)
    return [header for _, header in scan(data)]


def files(path: Path) -> dict[str, bytes]:
    """Every file of a directory, for comparing two of them."""
    return {name: (path / name).read_bytes() for name in sorted(os.listdir(path)) if (path / name).is_file()}


def patched(data: bytes, payload: bytes | None = None, **fields) -> bytes:
    """A batch with header fields changed and the checksum made right again: a careful liar."""
    header = parse_header(data)._replace(**fields)
    return bytes(build_batch(header, data[61:] if payload is None else payload))


def forty_batches(directory):
    """A log of 40 batches of 1..4 records over several segments."""
    log = open_log(directory, config=config(segment_bytes=1200, index_interval_bytes=150))
    rng = random.Random(3)
    for i in range(40):
        append(log, batch(rng.randint(1, 4), value=b"v" * rng.randint(1, 60), timestamp=NOW + 100 * i), epoch=i // 10)
    return log
