"""Truncation: what is cut is gone from the log, its indexes, epochs, producers and aborted transactions."""

from __future__ import annotations

import random

import pytest

from fleetlog._native.batch import scan
from tests.support.faulty import DyingDisk, Killed
from tests.support.logs import (
    NOW,
    aborted_entries,
    append,
    append_txn,
    assert_every_time_is_found,
    batch,
    by_time,
    config,
    content,
    end_txn,
    forty_batches,
    open_log,
    produced,
)


@pytest.fixture
def log(tmp_path):
    return forty_batches(tmp_path / "events-0")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.33, 0.5, 0.77, 0.99])
def test_truncation_keeps_the_batches_before_an_offset(log, tmp_path, share):
    whole = scan(content(log))
    offset = int(log.log_end_offset * share)
    kept = [h for _, h in whole if h.last_offset < offset]
    end = log.truncation.truncate_to(offset, now_ms=NOW)
    assert end == (kept[-1].last_offset + 1 if kept else 0) == log.log_end_offset
    assert [h.base_offset for _, h in scan(content(log))] == [h.base_offset for h in kept]
    assert log.high_watermark <= end
    assert all(entry.start_offset < end for entry in log.epochs.entries)
    assert append(log, batch(2), epoch=8).first_offset == end
    log.close(clean=False)
    again = open_log(tmp_path / "events-0", config=log.config)
    assert again.log_end_offset == end + 2
    assert again.epochs.entries == log.epochs.entries


def test_truncation_cuts_the_indexes(tmp_path):
    """What it says must be in the log: an entry left above the cut hides the timestamps that come after it."""
    log = open_log(tmp_path / "e-0", config=config(index_interval_bytes=1))
    for n in range(8):
        append(log, batch(1, timestamp=NOW + 10 * n))
    log.truncation.truncate_to(3, now_ms=NOW)
    for index in (log.segments.active.offset_index, log.segments.active.time_index):
        assert [entry.offset for entry in map(index.__getitem__, range(len(index)))] == [1, 2]
    for n in range(4):
        append(log, batch(1, timestamp=NOW + 21 + n))
    assert log.segments.active.max_timestamp == (NOW + 24, 6)
    assert [by_time(log, NOW + at)[0] for at in (0, 20, 21, 22, 23, 24)] == [0, 2, 3, 4, 5, 6]
    assert by_time(log, NOW + 25) is None


@pytest.mark.parametrize("seed", range(20))
def test_after_a_truncation_every_time_is_found(tmp_path, seed):
    """Also where a follower wrote many batches at once, and was cut between them; retention goes by the same times."""
    rng = random.Random(seed)
    settings = config(segment_bytes=2_000, index_interval_bytes=rng.choice((0, 100, 300)))
    leader, log = open_log(tmp_path / "leader-0", config=settings), open_log(tmp_path / "e-0", config=settings)
    for epoch in range(12):
        for _ in range(rng.randint(1, 30)):
            append(leader, batch(rng.randint(1, 3), timestamp=NOW + rng.randrange(1_000)), epoch=epoch)
        while log.log_end_offset < leader.log_end_offset:
            assert log.appender.append_as_follower(content(leader, log.log_end_offset, max_bytes=1_500)).error == 0
        if rng.random() < 0.3:
            log.close()
            log = open_log(tmp_path / "e-0", clean=True, config=settings)
        cut = rng.randint(log.log_end_offset // 2, log.log_end_offset)
        for one in (leader, log):
            one.truncation.truncate_to(cut, now_ms=NOW)
        log.appender.set_high_watermark(log.log_end_offset)
        assert_every_time_is_found(log)


def test_after_a_truncation_readers_start_at_batches_of_now(tmp_path):
    """Where readers and appends ended is remembered by offset; other batches stand there afterwards."""
    log = open_log(tmp_path / "e-0")
    for _ in range(6):
        append(log, batch(1))
    log.truncation.truncate_to(2, now_ms=NOW)
    append(log, batch(4, value=b"x" * 500))
    for offset in range(6):
        (_, first), *_ = scan(content(log, offset))
        assert first.base_offset <= offset <= first.last_offset


def test_truncation_rebuilds_producers_and_aborts(tmp_path):
    log = open_log(tmp_path / "e-0", config=config(segment_bytes=500))
    states = {}
    for i in range(30):
        states[log.log_end_offset] = (
            {p: (e.last_sequence, e.txn_first_offset) for p, e in log.producers.entries.items()},
            aborted_entries(log),
            log.last_stable_offset,
        )
        kind = i % 5
        if kind == 0:
            append_txn(log, 1, 0, i // 5, 1)
        elif kind == 1:
            append(log, produced(2, 0, i // 5))
        elif kind == 2:
            append_txn(log, 3 + i, 0, 0)
        elif kind == 3:
            end_txn(log, 1, 0, commit=False)
        else:
            append(log, batch(2))
    for end in sorted(states, reverse=True):
        log.truncation.truncate_to(end, now_ms=NOW)
        got = (
            {p: (e.last_sequence, e.txn_first_offset) for p, e in log.producers.entries.items()},
            aborted_entries(log),
            log.last_stable_offset,
        )
        assert got == states[end]
    assert log.log_end_offset == 0


def _known(log):
    producers = {p: (e.last_sequence, e.last_offset, e.txn_first_offset) for p, e in log.producers.entries.items()}
    times = [segment.max_timestamp for segment in log.segments]
    return content(log), producers, aborted_entries(log), log.epochs.entries, times


@pytest.mark.parametrize("cut", [10, 0])
def test_a_process_that_dies_anywhere_in_a_cut(tmp_path, cut):
    """What it left undone says nothing of the history that is written instead, however the log is opened later."""
    for step in range(100):
        path, disk = tmp_path / f"e-{step}", DyingDisk()
        log = open_log(path)
        for n in range(10):
            append(log, produced(1, 0, n))
        append_txn(log, 7, 0, 0, 3)
        end_txn(log, 7, 0, commit=False)
        for n in range(10, 30):
            append(log, produced(1, 0, n, timestamp=NOW + 1000))
        log.close()  # leaves a snapshot at the end
        log = open_log(path, disk, clean=True, recovery_point=log.log_end_offset)
        disk.left = step
        try:
            log.truncation.truncate_to(cut, now_ms=NOW)
        except Killed:
            pass
        whole, disk.left, point = disk.left, None, log.recovery_point
        log.abandon()
        log = open_log(path, recovery_point=point)
        log.truncation.truncate_to(cut, now_ms=NOW)
        append_txn(log, 7, 0, 0, 3)
        end_txn(log, 7, 0, commit=True)
        for n in range(30):
            append(log, produced(2, 0, n), epoch=1)
        log.flusher.flush()
        want, point = _known(log), log.log_end_offset
        assert want[2] == [], step
        assert log.segments.active.time_index.last().timestamp <= NOW, step
        log.abandon()
        log = open_log(path, recovery_point=point)
        assert _known(log) == want, step
        log.close()
        if whole:
            return
    pytest.fail("a cut takes fewer operations")


def test_restart_at(log):
    log.truncation.restart_at(1000, now_ms=NOW)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (1000, 1000, 1000)
    assert append(log, batch(1)).first_offset == 1000
    assert log.size_bytes == len(batch(1))
