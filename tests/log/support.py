"""Small makers for the log's tests."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

from _native.batch import Record, control_batch, encode_batch, scan
from brokers.config import BrokerConfig, TopicConfig
from brokers.log import Log, Origin, RealDisk
from brokers.log.validation import batch_records
from wire import compression
from wire.types import TopicPartition

TP = TopicPartition("events", 0)
NOW = 1_700_000_000_000
TRANSACTIONAL = 0x10
DEFAULTS = BrokerConfig(broker_id=1, zookeeper_connect="none:1").topic_defaults()


def until(condition) -> None:
    """Wait for what happens on a thread."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)


class FixedClock:
    """A clock that tests move by hand."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def wall_ms(self) -> int:
        return self.now

    def mono_ms(self) -> int:
        return self.now


def config(**changes) -> TopicConfig:
    return dataclasses.replace(DEFAULTS, **changes)


def open_log(path: Path, disk=None, topic: TopicPartition = TP, **options) -> Log:
    changes = options.pop("config", config())
    return Log.open(disk or RealDisk(), str(path), topic, changes, now_ms=options.pop("now_ms", NOW), **options)


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


def append(log: Log, data: bytes, *, epoch=0, now_ms=NOW, commit_hw=True, **options):
    info = log.append_as_leader(bytearray(data), leader_epoch=epoch, now_ms=now_ms, **options)
    if commit_hw:
        log.set_high_watermark(log.log_end_offset)
    return info


def append_txn(log: Log, pid, epoch, sequence, count=1, **fields):
    """A transactional append with the verification that a broker would have done."""
    guard = log.verification_guard(pid, epoch, sequence)
    return append(log, produced(pid, epoch, sequence, count, txn=True, **fields), verification_guard=guard)


def end_txn(log: Log, pid, epoch, *, commit, **options):
    data = marker(pid, epoch, commit=commit, coordinator_epoch=options.pop("coordinator_epoch", 0))
    return append(log, data, origin=Origin.COORDINATOR, **options)


def content(log: Log, start: int | None = None, end: int | None = None, max_bytes=1 << 30) -> bytes:
    offset = log.log_start_offset if start is None else start
    end = log.log_end_offset if end is None else end
    parts = []
    while offset < end:
        result = log.read(offset, max_bytes, end_offset=end)
        if not result.slices:
            break
        parts += [part.read() for part in result.slices]
        result.release()
        offset = result.next_offset
    return b"".join(parts)


def records(log: Log, start: int | None = None, end: int | None = None) -> list[Record]:
    data = content(log, start, end)
    return [
        record
        for at, header in scan(data)
        if not header.is_control
        for record in batch_records(data, at, header, 1 << 30)
    ]


def headers(log: Log):
    data = content(log)
    return [header for _, header in scan(data)]


def files(path: Path) -> dict[str, bytes]:
    """Every file of a directory, for comparing two of them."""
    return {name: (path / name).read_bytes() for name in sorted(os.listdir(path)) if (path / name).is_file()}
