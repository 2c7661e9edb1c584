"""Logs with holes: what a cut, a roll and a start make of offsets that no batch has."""

from __future__ import annotations

import pytest

from fleetlog._native.batch import stamp
from fleetlog.brokers.log.append import Appender, Roller
from fleetlog.brokers.log.disk.checkpoints import RECOVERY_POINT_CHECKPOINT
from fleetlog.wire.errors import ErrorCode
from tests.log.compaction.compacted import (
    COMPACT,
    USERS,
    QuickDisk,
    clean,
    cleaner_of,
    compacting,
    restarted,
    store_of,
    users_log,
)
from tests.log.compaction.compacted import write as write_users
from tests.support.faulty import DyingDisk, Killed
from tests.support.logs import NOW, batch, config, open_log

SMALL = config(segment_bytes=300, cleanup_policy=("compact",))


def at(offset, count=1, epoch=0, **fields):
    """A batch as the leader sends it."""
    data = bytearray(batch(count, **fields))
    stamp(data, 0, offset, epoch, -1)
    return bytes(data)


def follow(log, *batches):
    info = log.appender.append_as_follower(b"".join(batches), now_ms=NOW)
    assert info.error is ErrorCode.NONE, info
    return info


@pytest.mark.parametrize("roll", [False, True])
def test_a_log_that_is_cut_in_a_hole_ends_where_a_start_finds_its_end(tmp_path, roll):
    """A roll above would leave a gap between two segments, and a start would believe that the power took it."""
    log = open_log(tmp_path, config=SMALL, may_have_holes=True)
    follow(log, at(0, 3), at(50, 2))
    log.truncation.truncate_to(20)
    assert log.log_end_offset == 3
    if roll:
        log.appender.roll(NOW)
    for offset in range(20, 32):
        follow(log, at(offset, epoch=1))
    end = log.log_end_offset
    log.abandon()
    again = open_log(tmp_path, config=SMALL, may_have_holes=True)
    assert again.log_end_offset == end == 32
    assert not again.recovery_report.reason
    again.close()


def test_a_clean_stop_behind_a_cut_in_a_hole_has_lost_nothing(tmp_path):
    store = store_of(tmp_path)
    log = compacting(store)
    follow(log, at(0, 3))
    follow(log, at(50, 2))
    log.truncation.truncate_to(20)
    store.close()
    again, report = restarted(tmp_path)
    assert not report.lost
    again.close()


@pytest.mark.parametrize("kind", ["two batches", "a long one"])
def test_a_segment_that_begins_behind_a_wide_hole_stays(tmp_path, kind):
    settings = config(segment_bytes=10**6, cleanup_policy=("compact",))
    begin = 0 if kind == "two batches" else 1000
    log = open_log(tmp_path, config=settings, may_have_holes=True, log_start_offset=begin)
    if kind == "two batches":
        follow(log, at(0, 10))
        follow(log, at(10**9), at(25 * 10**8))
        follow(log, at(25 * 10**8))
    else:
        follow(log, at(1000, 1000))
        follow(log, at(2**31 + 900, 1101))
    end = log.log_end_offset
    assert end > 2**31
    log.abandon()
    again = open_log(tmp_path, config=settings, may_have_holes=True, log_start_offset=begin)
    assert again.log_end_offset == end, again.recovery_report
    again.close()


class OldRoller(Roller):
    """As Kafka's, and that of older versions: a segment begins with its first batch."""

    __slots__ = ()

    def roll(self, offset, now_ms):
        return super().roll(max(offset, self.first), now_ms)

    def segment_for(self, placed, now_ms):
        type(self).first = placed[0].first_offset
        return super().segment_for(placed, now_ms)


class OldAppender(Appender):
    __slots__ = ()

    def __init__(self, log, flusher):
        super().__init__(log, flusher)
        self._roller = OldRoller(log)


@pytest.mark.parametrize("points", ["known", "missing", "damaged"])
def test_segments_that_older_versions_began_behind_holes_stay(tmp_path, points):
    """Below the recovery point they are durable, and where that is not known they may be."""
    store = store_of(tmp_path)
    log = store.create(USERS, None, config(**{**COMPACT, "segment_bytes": 300}))
    log.appender = OldAppender(log, log.flusher)
    for offset in range(0, 200, 10):
        follow(log, at(offset))
    assert len(log.segments) > 3
    assert all(segment.base_offset % 10 == 0 for segment in log.segments), "it rolls as before"
    log.flusher.flush()
    store.checkpoint()
    store.close(clean=False)
    path = tmp_path / RECOVERY_POINT_CHECKPOINT
    if points == "missing":
        path.unlink()
    elif points == "damaged":
        path.write_bytes(b"\0" * 40)
    again = store_of(tmp_path)
    assert again.get(USERS).log_end_offset == 191
    again.close()


class QuickDyingDisk(DyingDisk):
    sync_later = QuickDisk.sync_later


def test_a_start_after_a_swap_that_stopped_looks_at_the_segments_swapped_in_alone(tmp_path):
    """The others below the recovery point are durable, however many they are."""
    for left in range(50, 400, 3):
        path, disk = tmp_path / str(left), QuickDyingDisk()
        log = users_log(path, disk, segment_bytes=3000)
        for number in range(400):
            write_users(log, (f"k{number}" if number > 30 else "same", "x" * 300))
        log.flusher.flush()
        end, segments = log.log_end_offset, len(log.segments)
        cleaner, disk.left = cleaner_of(disk, log), left
        try:
            clean(cleaner)
        except Killed:
            pass
        disk.left = None
        log.abandon()
        if list((path / str(USERS)).glob("*.log.swap")):
            break
    else:
        pytest.fail("no swap was met")
    settings = config(**{**COMPACT, "segment_bytes": 3000})
    again = open_log(path / str(USERS), None, USERS, config=settings, recovery_point=end, may_have_holes=True)
    report = again.recovery_report
    assert again.log_end_offset == end
    assert report.swaps_completed
    assert report.segments_scanned <= report.swaps_completed + 1 < segments
    again.close()
