"""Compacted logs, what is put into them, the table that each keeps, and stores with one."""

from __future__ import annotations

import time

from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.log import LogStore, Origin
from fleetlog.brokers.log.compaction.cleaner import Cleaner, CleanerSettings
from fleetlog.brokers.log.disk.background import PendingSync, PendingWork
from fleetlog.brokers.log.disk.files import RealDisk, RealFile
from fleetlog.brokers.model import GROUP_METADATA_TOPIC
from fleetlog.wire import compression
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.support.clocks import ManualClock
from tests.support.logs import NOW, append, config, open_log, records

TP = TopicPartition(GROUP_METADATA_TOPIC, 0)
USERS = TopicPartition("users", 0)
COMPACT = {"cleanup_policy": ("compact",), "index_interval_bytes": 64}
"""Settings of a compacted topic."""


class QuickFile(RealFile):
    __slots__ = ()

    def sync(self):
        pass


class QuickDisk(RealDisk):
    """Works in the caller's thread, and never waits for the device."""

    file_class = QuickFile

    def work_later(self, work):
        pending = PendingWork(work)
        pending.run()
        return pending

    def for_work(self):
        return self

    def sync_later(self, paths):
        pending = PendingSync(paths)
        pending.done = True
        return pending

    def sync_directory(self, path):
        pass


def internal_log(path, disk=None, segment_bytes=600, **changes):
    settings = {**COMPACT, "segment_bytes": segment_bytes, **changes}
    return open_log(path / "c-0", disk, TP, config=config(**settings))


def put(log, *pairs, codec=0, **fields):
    rows = [Record(-1, NOW, key.encode(), None if value is None else value.encode(), ()) for key, value in pairs]
    compress = (lambda payload: compression.compress(codec, payload)) if codec else None
    data = encode_batch(rows, attributes=codec | fields.pop("attributes", 0), compress=compress, **fields)
    info = append(log, data, origin=Origin.COORDINATOR)
    assert info.error == ErrorCode.NONE
    return info


def last_values(log):
    table = {}
    for record in records(log):
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


def cleaner_of(disk, *logs, **settings):
    """A cleaner that looks for a log that is worth a pass in each step."""
    chosen = CleanerSettings(**{"backoff_ms": 0, **settings})
    return Cleaner(disk, {log.topic_partition: log for log in logs}, lambda: chosen)


def clean(cleaner, now_ms=NOW, budget_bytes=1 << 20):
    """Passes until nothing is left to be done; returns how many steps they took."""
    steps = 0
    while cleaner.step(now_ms, budget_bytes):
        steps += 1
        assert steps < 1_000_000
        time.sleep(0.0002)  # the worker's turn
    return steps


def users_log(path, disk=None, segment_bytes=700, **changes):
    settings = {**COMPACT, "segment_bytes": segment_bytes, "min_cleanable_dirty_ratio": 0.0, **changes}
    return open_log(path / str(USERS), disk or QuickDisk(), USERS, config=config(**settings))


def write(log, *pairs, now_ms=NOW):
    """As a client does."""
    rows = [Record(-1, now_ms, key.encode(), None if value is None else value.encode(), ()) for key, value in pairs]
    info = append(log, encode_batch(rows), now_ms=now_ms)
    assert info.error == ErrorCode.NONE, info
    return info


def fill(log, count=50, start=0):
    for number in range(start, start + count):
        write(log, (f"k{number % 5}", f"{number}"))


def restarted(path, disk=None, more=(), **changes):
    """A store and the report of its start."""
    settings = {"log_segment_bytes": 700, "log_index_interval_bytes": 64, "log_cleaner_backoff_ms": 0, **changes}
    broker = BrokerConfig(broker_id=1, zookeeper_connect="z:1", log_dirs=tuple(map(str, (path, *more))), **settings)
    store = LogStore(broker, disk or QuickDisk(), ManualClock(), cluster_id="c")
    return store, store.load()


def store_of(path, disk=None, more=(), **changes):
    return restarted(path, disk, more, **changes)[0]


def compacting(store):
    return store.create(USERS, None, config(**{**COMPACT, "segment_bytes": 700, "min_cleanable_dirty_ratio": 0.0}))


def tick(store, times=40, now_ms=NOW):
    for _ in range(times):
        store.tick(now_ms)
