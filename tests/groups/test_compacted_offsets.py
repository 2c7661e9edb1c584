"""What groups have committed is the same live, replayed from the log, and replayed from the compacted log: random
histories of commits, transactions, deletions and expiries over a real log, its cleaner and the coordinators' loader.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.coordinators.shard_host import Loader
from fleetlog.brokers.log import Log, Origin
from fleetlog.txn.commands import CoordinatorRecord, Now
from fleetlog.wire.errors import ErrorCode
from tests.groups.histories import SETTINGS, crowd, perform
from tests.log.compaction.compacted import QuickDisk, clean, cleaner_of, internal_log
from tests.support.clocks import ManualClock
from tests.support.group_driver import Driver, Entry
from tests.support.logs import NOW, append, end_txn

DAY_MS = 86_400_000
TRANSACTIONAL = 0x10


class Entries:
    """Stands in for a shard that is loaded: notes what the loader applies; and for the loop, which calls at once."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def apply(self, record: CoordinatorRecord, producer: tuple[int, int] | None, now: Now) -> None:
        self.entries.append((record, producer))

    def apply_marker(self, producer_id: int, producer_epoch: int, commit: bool, now: Now) -> None:
        self.entries.append((producer_id, producer_epoch, commit))

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Any:
        callback(*args)


def replayed(log: Log, driver: Driver) -> dict[str, object]:
    """What a coordinator knows that is elected now, with this log."""
    found = Entries()
    outcomes: list[Exception | None] = []
    shard: Any = found
    Loader(log, shard, found, ManualClock(), outcomes.append).start()
    assert outcomes == [None]
    return Driver(SETTINGS, found.entries, driver.now.wall_ms).durable()


def write(log: Log, entry: Entry) -> None:
    """As the coordinator does, one batch for each."""
    if len(entry) == 3:
        info = end_txn(log, entry[0], entry[1], commit=entry[2])
    else:
        record, producer = entry
        fields: dict[str, Any] = {}
        if producer is not None:
            fields = {"producer_id": producer[0], "producer_epoch": producer[1], "attributes": TRANSACTIONAL}
        info = append(log, encode_batch([Record(-1, NOW, record.key, record.value, ())], **fields),
                      origin=Origin.COORDINATOR)  # fmt: skip
    assert info.error is ErrorCode.NONE, info


COMMITS = (
    [("simple", n) for n in range(2)] + [("transact", n) for n in (0, 0, 2, 4, 1)] + [("commit", n) for n in range(3)]
)
ENDS = [(f"{how} marker", n) for how in ("commit", "abort") for n in range(3)]
MEMBERS = [("join", n) for n in range(6)] + [("sync", n) for n in range(6)] + [("leave", 1), ("forget", 2)]
RARE = [
    *(("delete group", 1), ("delete offsets", 0), ("delete offsets", 1), ("fail", 0), ("restart", 0)),
    *(("wait", 70_000), ("wait", 400_000)),
]


@pytest.mark.parametrize("seed", range(60))
def test_committed_offsets_are_the_same_live_replayed_and_replayed_from_the_compacted_log(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    kinds = rng.choices((COMMITS, ENDS, MEMBERS, RARE), (50, 25, 20, rng.choice((0, 3))), k=rng.randint(5, 80))
    script = [rng.choice(kind) for kind in kinds]
    passes = rng.sample(range(80), 4)
    log = internal_log(tmp_path, QuickDisk(), min_cleanable_dirty_ratio=0.0)
    cleaner = cleaner_of(log.disk, log)
    driver = Driver(SETTINGS)
    clients = crowd(driver)
    written = 0
    for number, (what, argument) in enumerate(script):
        driver = perform(driver, clients, what, argument)
        for entry in driver.log[written:]:
            write(log, entry)
        written = len(driver.log)
        if number in passes:
            clean(cleaner)
            assert replayed(log, driver) == driver.durable()
    assert replayed(log, driver) == driver.durable()
    log.appender.roll(NOW)
    for now_ms in (NOW, NOW + 2 * DAY_MS, NOW + 4 * DAY_MS):  # tombstones and markers go with a later pass
        write(log, (CoordinatorRecord(b"\0\1\0\1-\0\1-\0\0\0\0", None), None))
        log.appender.roll(now_ms)
        clean(cleaner, now_ms=now_ms)
        assert replayed(log, driver) == driver.durable()
    log.abandon()
