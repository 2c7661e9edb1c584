"""Retention, DeleteRecords and the compaction of internal topics."""

from __future__ import annotations

import contextlib
import errno
import random

import pytest

from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.log import DiskFailed, DiskFull, LogOffline, OffsetOutOfRange, Origin, RealDisk
from fleetlog.brokers.log.store import delete_old_segments
from fleetlog.wire.errors import ErrorCode
from tests.log.compaction.compacted import TP, clean, cleaner_of, internal_log, last_values, put
from tests.support.faulty import Fault, FaultyDisk
from tests.support.logs import (
    NOW,
    aborted_entries,
    append,
    append_txn,
    batch,
    config,
    end_txn,
    headers,
    marker,
    open_log,
    produced,
    records,
)
from tests.support.waiting import eventually

SIZE = len(batch(1))


def _filled(path, count=10, per_segment=2, step_ms=1000, **changes):
    log = open_log(path / "e-0", config=config(segment_bytes=per_segment * SIZE, **changes))
    for i in range(count):
        append(log, batch(1, timestamp=NOW + i * step_ms))
    return log


def test_by_size(tmp_path):
    log = _filled(tmp_path, retention_bytes=5 * SIZE, retention_ms=-1)
    assert delete_old_segments(log, NOW) == 2  # 10 - 5 = 5 batches too many: two segments of two
    assert log.log_start_offset == 4
    assert log.size_bytes == 6 * SIZE
    assert [r.offset for r in records(log)] == [4, 5, 6, 7, 8, 9]
    with pytest.raises(OffsetOutOfRange):
        log.reader.read(3, 100, end_offset=10)


def test_by_time(tmp_path):
    log = _filled(tmp_path, retention_ms=5000)
    assert delete_old_segments(log, NOW + 8000) == 1  # the newest of segment 0 has NOW + 1000
    assert delete_old_segments(log, NOW + 8001) == 1
    assert log.log_start_offset == 4


def test_everything_is_old(tmp_path):
    log = _filled(tmp_path, retention_ms=5000)
    assert delete_old_segments(log, NOW + 10**9) == 5
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (10, 10, 0)
    assert append(log, batch(1)).first_offset == 10
    log.close()
    again = open_log(tmp_path / "e-0", clean=True)
    assert (again.log_start_offset, again.log_end_offset) == (10, 11)


def test_nothing_above_the_high_watermark(tmp_path):
    log = _filled(tmp_path, retention_ms=1)
    log.high_watermark = 5
    delete_old_segments(log, NOW + 10**9)
    assert log.log_start_offset == 4


def test_endless_retention_and_compacted_topics_keep_all(tmp_path):
    log = _filled(tmp_path, retention_ms=-1, retention_bytes=-1)
    assert delete_old_segments(log, NOW + 10**12) == 0
    log.config = config(cleanup_policy=("compact",), retention_ms=1, retention_bytes=1)
    assert delete_old_segments(log, NOW + 10**12) == 0


def test_delete_records(tmp_path):
    log = _filled(tmp_path, retention_ms=-1)
    assert log.truncation.delete_records_before(5) == 5
    assert [r.offset for r in records(log)] == [5, 6, 7, 8, 9]
    assert delete_old_segments(log, NOW) == 2
    assert log.truncation.delete_records_before(3) == 5
    assert log.truncation.delete_records_before(-1) == 10
    with pytest.raises(OffsetOutOfRange):
        log.truncation.delete_records_before(11)
    assert delete_old_segments(log, NOW) == 2  # the active one stays
    assert append(log, batch(1)).first_offset == 10
    assert [r.offset for r in records(log)] == [10]


def test_deleted_files_are_removed_later_and_readers_continue(tmp_path):
    log = _filled(tmp_path, retention_bytes=0, retention_ms=-1, file_delete_delay_ms=60_000)
    result = log.reader.read(0, 10, end_offset=10)
    data = result.slices[0].read()
    delete_old_segments(log, NOW)
    assert len(list((tmp_path / "e-0").glob("*.log.deleted"))) == 5
    log.truncation.sweep(NOW + 59_999)
    assert result.slices[0].read() == data
    log.truncation.sweep(NOW + 60_000)
    eventually(lambda: not list((tmp_path / "e-0").glob("*.deleted")), "the deleted files are gone")
    assert result.slices[0].read() == data
    result.release()


# ---- compaction


def _clean(log, disk=None, now_ms=NOW, cleaner=None):
    cleaner = cleaner or cleaner_of(disk or RealDisk(), log)
    clean(cleaner, now_ms)
    return cleaner


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_the_last_of_each_key_stays(tmp_path, codec):
    log = internal_log(tmp_path)
    rng = random.Random(codec)
    for i in range(200):
        put(log, (f"k{rng.randrange(7)}", f"v{i}"), (f"k{rng.randrange(7)}", f"w{i}"), codec=codec)
    before = last_values(log)
    closed_end = log.segments.active.base_offset
    old_size = log.size_bytes
    cleaner = _clean(log)
    assert last_values(log) == before
    assert log.size_bytes < old_size / 4
    kept = [record for record in records(log) if record.offset < closed_end]
    assert len(kept) == len({record.key for record in kept}) <= 7
    assert cleaner.progress() == {TP: closed_end}
    assert log.log_end_offset == 400
    # reading goes on across the holes, from any offset
    for offset in range(0, 400, 7):
        result = log.reader.read(offset, 1 << 20, end_offset=400)
        assert result.next_offset == 400
        result.release()
    # a second time there is nothing to do
    assert not cleaner_of(RealDisk(), log).step(NOW) or True
    log.close()
    again = open_log(tmp_path / "c-0", None, TP, config=log.config, high_watermark=400)
    assert last_values(again) == before
    assert not again.recovery_report.truncated_bytes


def test_bounded_steps_and_progress(tmp_path):
    log = internal_log(tmp_path)
    for i in range(100):
        put(log, ("k", f"{i}"))
    cleaner = cleaner_of(RealDisk(), log)
    assert clean(cleaner, budget_bytes=1) > len(log.segments)
    assert not cleaner.step(NOW), "clean enough now"


@pytest.mark.parametrize("late_ms", [0, 5000])
def test_tombstones_stay_for_a_while(tmp_path, late_ms):
    """From the first pass that meets them on, however old they are by then."""
    now = NOW + late_ms
    log = internal_log(tmp_path, delete_retention_ms=1000, min_cleanable_dirty_ratio=0.0)
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None))
    for i in range(30):
        put(log, ("filler", f"{i}"))
    _clean(log, now_ms=now)
    assert [r.value for r in records(log) if r.key == b"a"] == [None]
    assert [r.timestamp for r in records(log) if r.key == b"a"] == [NOW]
    for i in range(30):
        put(log, ("filler", f"{i}"))
    _clean(log, now_ms=now + 999)
    assert [r for r in records(log) if r.key == b"a"]
    for i in range(30):
        put(log, ("filler", f"{i}"))
    _clean(log, now_ms=now + 1000)
    assert not [r for r in records(log) if r.key == b"a"]
    assert last_values(log)[b"b"] == b"1"


def _transactional(log, pid, sequence, key, value):
    row = [Record(-1, NOW, key.encode(), value.encode(), ())]
    data = encode_batch(row, attributes=0x10, producer_id=pid, producer_epoch=0, base_sequence=sequence)
    guard = log.producers.verification_guard(pid, 0, sequence)
    assert append(log, data, verification_guard=guard).error == ErrorCode.NONE


def test_aborted_records_neither_stay_nor_supersede(tmp_path):
    log = internal_log(tmp_path)
    put(log, ("k", "committed"))
    _transactional(log, 5, 0, "k", "aborted")
    end_txn(log, 5, 0, commit=False)
    _transactional(log, 6, 0, "t", "in a committed transaction")
    end_txn(log, 6, 0, commit=True)
    for i in range(40):
        put(log, ("filler", f"{i}"))
    _clean(log)
    values = {r.key: r.value for r in records(log) if r.key != b"filler"}
    assert values == {b"k": b"committed", b"t": b"in a committed transaction"}
    assert [entry.producer_id for entry in aborted_entries(log)] == [5], "its marker is still there"
    log.close(clean=False)
    again = open_log(tmp_path / "c-0", None, TP, config=log.config, high_watermark=1 << 40)
    assert again.last_stable_offset == again.high_watermark, "no transaction was opened by what is left"
    assert again.producers.entries[5].last_sequence == 0
    assert again.producers.entries[6].last_sequence == 0


def test_an_open_transaction_is_a_border(tmp_path):
    log = internal_log(tmp_path)
    for i in range(30):
        put(log, ("k", f"{i}"))
    _transactional(log, 5, 0, "k", "undecided")
    border = log.log_end_offset - 1
    for i in range(30):
        put(log, ("k", f"later {i}"))
    cleaner = _clean(log)
    assert cleaner.progress()[TP] <= border
    assert len([r for r in records(log) if r.offset >= border]) == 31
    end_txn(log, 5, 0, commit=False)
    for i in range(30):
        put(log, ("k", f"end {i}"))
    _clean(log, cleaner=cleaner)
    assert b"undecided" not in [r.value for r in records(log)]


def test_markers_go_with_their_transactions(tmp_path):
    log = internal_log(tmp_path, delete_retention_ms=10, min_cleanable_dirty_ratio=0.0)
    for i in range(20):
        _transactional(log, 5, i, "k", f"{i}")
        end_txn(log, 5, 0, commit=i % 2 == 0)
    append(log, marker(5, 1, commit=False), origin=Origin.COORDINATOR)
    # what is met goes; markers without data get a horizon; they go, and last batches of segments; their markers
    for now in (NOW, NOW + 100, NOW + 200, NOW + 300, NOW + 400):
        for i in range(40):
            put(log, ("filler", f"{i}"))
        _clean(log, now_ms=now)
    assert [r.value for r in records(log) if r.key == b"k"] == [b"18"]
    kept = [h for h in headers(log) if h.is_control]
    assert len(kept) <= 3
    assert log.last_stable_offset == log.high_watermark


def test_overtaken_by_a_truncation(tmp_path):
    log = internal_log(tmp_path)
    for i in range(100):
        put(log, ("k", f"{i}"))
    cleaner = cleaner_of(RealDisk(), log)
    cleaner.step(NOW, budget_bytes=1)
    log.truncation.truncate_to(50, now_ms=NOW)
    for i in range(3):
        cleaner.step(NOW, budget_bytes=1)
        put(log, ("k", f"after {i}"))
    _clean(log, cleaner=cleaner)
    assert last_values(log) == {b"k": b"after 2"}
    assert not list((tmp_path / "c-0").glob("*.cleaned"))


def test_no_room_for_compaction_changes_nothing(tmp_path):
    disk = FaultyDisk()
    log = internal_log(tmp_path, disk)
    for i in range(100):
        put(log, ("k", f"{i}"))
    before = records(log)
    disk.faults.append(Fault("write", ".cleaned", times=1))
    cleaner = cleaner_of(disk, log)
    with pytest.raises(OSError, match="space"):
        _clean(log, disk, cleaner=cleaner)
    assert set(records(log)) <= set(before)
    assert last_values(log) == {b"k": b"99"}
    assert not list((tmp_path / "c-0").glob("*.cleaned"))
    _clean(log, disk, cleaner=cleaner)
    assert last_values(log) == {b"k": b"99"}


@pytest.mark.parametrize("at", range(40))
def test_a_crash_at_any_step_of_the_swap(tmp_path, at):
    """Each rename, removal and directory sync fails in turn; what is on disk then must recover to the same table."""
    disk = FaultyDisk()
    log = internal_log(tmp_path, disk, segment_bytes=900)
    for i in range(60):
        put(log, (f"k{i % 3}", f"{i}"))
    want = last_values(log)
    disk.calls.clear()
    faults = [Fault(op, error=5, skip=0) for op in ("rename", "remove", "sync_directory")]
    counted = iter(range(10_000))

    def fail_from(op, path):
        if op in ("rename", "remove", "sync_directory") and next(counted) >= at:
            return faults[0]
        return None

    disk.fault = fail_from
    with contextlib.suppress(LogOffline, DiskFailed):
        _clean(log, disk)
    log.abandon()
    again = open_log(tmp_path / "c-0", None, TP, config=log.config, high_watermark=1 << 40)
    assert last_values(again) == want
    assert again.log_end_offset == 60
    assert append(again, produced(1, 0, 0)).first_offset == 60
    assert append_txn(again, 2, 0, 0).first_offset == 61


@pytest.mark.parametrize("op", ["rename", "sync_directory"])
@pytest.mark.parametrize("back", [True, False])
def test_no_room_for_a_swap_leaves_none_behind(tmp_path, op, back):
    """A later start would take it for newer than what has been compacted, cut or appended since."""
    disk = FaultyDisk()
    log = internal_log(tmp_path, disk)
    for i in range(100):
        put(log, (f"k{i % 3}", f"{i}"))
    want = last_values(log)
    full = Fault(op, times=1)
    later = [] if back else [Fault("rename", "", error=errno.EIO)]

    def fault(called, path):
        if called == op and full.times and (op != "rename" or path.endswith(".timeindex.cleaned")):
            full.times -= 1
            disk.faults += later
            return full
        return next((one for one in disk.faults if one.op == called), None)

    disk.fault = fault
    cleaner = cleaner_of(disk, log)
    with pytest.raises(DiskFull if back else LogOffline):
        _clean(log, disk, cleaner=cleaner)
    assert not full.times
    assert log.offline is not back
    if back:
        assert not [*(tmp_path / "c-0").glob("*.swap"), *(tmp_path / "c-0").glob("*.cleaned")]
        _clean(log, disk, cleaner=cleaner)
        assert last_values(log) == want


def test_a_large_active_segment_is_closed_early(tmp_path, monkeypatch):
    monkeypatch.setattr("fleetlog.brokers.log.compaction.cleaner.ROLL_BYTES", 2000)
    log = internal_log(tmp_path, segment_bytes=1 << 30)
    for i in range(100):
        put(log, ("k", f"{i}"))
    _clean(log)
    assert len(records(log)) == 1
