"""A process without file descriptors: what is refused leaves no trace, and goes through once there are some again."""

from __future__ import annotations

import shutil

import pytest

from fleetlog.brokers.log import DiskFull, Origin
from fleetlog.wire.errors import ErrorCode
from tests.support.descriptors import descriptors_left
from tests.support.faulty import CrampedDisk
from tests.support.logs import (
    NOW,
    aborted_entries,
    append,
    append_txn,
    batch,
    config,
    content,
    end_txn,
    headers,
    open_log,
    patched,
    produced,
)


def _assert_whole(log, path) -> None:
    """The file holds what the log says, and a start after a kill finds the same."""
    expected = log.log_start_offset
    for segment in log.segments:
        for _, header in segment.headers():
            assert header.base_offset == expected
            expected = header.last_offset + 1
    assert expected == log.log_end_offset
    assert append(log, batch(1, value=b"acknowledged")).first_offset == expected
    log.flusher.flush()
    want = [content(log), aborted_entries(log), dict.fromkeys(log.producers.entries)]
    log.abandon()
    again = open_log(path, recovery_point=0)
    assert again.recovery_report.truncated_at is None
    again.appender.set_high_watermark(again.log_end_offset)
    assert [content(again), aborted_entries(again), dict.fromkeys(again.producers.entries)] == want
    again.abandon()


@pytest.mark.parametrize("left", range(4))
def test_an_abort_marker(tmp_path, left):
    """The index of aborted transactions is opened for the first of them."""
    log = open_log(tmp_path / "e-0")
    append_txn(log, 7, 0, 0, 2)
    log.close()
    log = open_log(tmp_path / "e-0", clean=True, recovery_point=2)
    append(log, batch(1))
    with descriptors_left(left):
        first = end_txn(log, 7, 0, commit=False)
    if first.error is not ErrorCode.NONE:
        assert end_txn(log, 7, 0, commit=False).error is ErrorCode.NONE
    assert [entry.producer_id for entry in aborted_entries(log)] == [7]
    assert sum(header.is_control for header in headers(log)) == 1
    _assert_whole(log, tmp_path / "e-0")


@pytest.mark.parametrize("left", range(4))
def test_a_run_into_a_new_log(tmp_path, left):
    """A follower's first run makes index entries at once."""
    leader, log = open_log(tmp_path / "leader-0"), open_log(tmp_path / "e-0")
    for n in range(12):
        append(leader, produced(1, 0, n, value=b"x" * 1000, timestamp=NOW + n))
    run = content(leader)
    with descriptors_left(left):
        first = log.appender.append_as_follower(run)
    if first.error is not ErrorCode.NONE:
        assert log.appender.append_as_follower(run).error is ErrorCode.NONE
    log.appender.set_high_watermark(log.log_end_offset)
    assert content(log) == run
    _assert_whole(log, tmp_path / "e-0")


def _known(log):
    producers = {p: (e.last_sequence, e.last_offset, e.txn_first_offset) for p, e in log.producers.entries.items()}
    aborted = aborted_entries(log)
    return log.log_end_offset, content(log), producers, aborted, log.epochs.entries, log.last_stable_offset


def _rebuilt(path, scratch):
    """What the segments alone say."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for file in path.glob("*.log"):
        shutil.copy(file, scratch)
    log = open_log(scratch, config=config(segment_bytes=900), high_watermark=1 << 40)
    found = _known(log)
    log.abandon()
    return found


def _filled(path, disk):
    """Several segments with what each producer did, of which the first begins at 3; loaded anew."""
    settings = config(segment_bytes=700, index_interval_bytes=100)
    log = open_log(path, config=settings)
    log.truncation.restart_at(3)
    for n in range(12):
        append(log, produced(5, 0, n), epoch=n // 4)
        append_txn(log, 7, 0, n, 1)
        end_txn(log, 7, 0, commit=n % 3 > 0)
    log.close()
    log = open_log(path, disk, clean=True, recovery_point=20, config=settings, high_watermark=1 << 40)
    assert len(log.segments) > 3
    return log


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(("cut", "offset"), [
    ("truncate_to", 37), ("truncate_to", 25), ("truncate_to", 3), ("truncate_to", 1), ("restart_at", 3),
    ("restart_at", 1), ("restart_at", 70), ("restart_at", 20),
])  # fmt: skip
def test_a_cut(tmp_path, cut, offset, closed):
    """It is refused before anything changed, or goes through; a new log that finds no room begins where it began."""
    for step in range(100):
        path, disk = tmp_path / f"e-{step}", CrampedDisk()
        log = _filled(path, disk)
        before = _known(log)
        if not closed:
            append(log, produced(5, 0, 12), epoch=2)
            before = _known(log)
        disk.left = step
        try:
            getattr(log.truncation, cut)(offset, now_ms=NOW)
        except DiskFull:
            assert _known(log)[0] in (before[0], log.segments.first.base_offset)
        assert not log.offline
        done, disk.left = disk.left is not None, None
        log.appender.set_high_watermark(log.log_end_offset)
        assert _known(log)[:4] == _rebuilt(path, tmp_path / "scratch")[:4], step
        getattr(log.truncation, cut)(offset, now_ms=NOW)
        assert log.log_end_offset == offset, step
        log.appender.set_high_watermark(log.log_end_offset)
        append(log, batch(1, timestamp=NOW + 1), epoch=9)
        log.flusher.flush()
        want, point = _known(log), log.log_end_offset
        assert log.segments.active.max_timestamp[0] == NOW + 1
        log.abandon()
        log = open_log(path, recovery_point=point, high_watermark=1 << 40)
        assert log.recovery_report.segments_scanned == 0
        assert _known(log) == want, step
        log.abandon()
        shutil.rmtree(path)
        if done:
            return
    pytest.fail("a cut takes fewer operations")


@pytest.mark.parametrize("who", ["leader", "coordinator", "follower"])
def test_the_first_append_after_a_start(tmp_path, who):
    """It is refused as one without room, so that the leader hands over."""
    log = open_log(tmp_path / "e-0")
    append(log, batch(1))
    log.close()
    log = open_log(tmp_path / "e-0", clean=True, recovery_point=1)
    told = []
    log.calls.on_full = lambda _, wrong: told.append(wrong)
    for _ in range(2):
        with descriptors_left():
            if who == "follower":
                info = log.appender.append_as_follower(patched(batch(1), base_offset=1))
            else:
                info = append(log, batch(1), origin=Origin.COORDINATOR if who == "coordinator" else Origin.CLIENT)
        assert info.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(told) == 2
    assert not log.offline
    assert (log.log_end_offset, log.size_bytes) == (1, len(batch(1)))
    _assert_whole(log, tmp_path / "e-0")
