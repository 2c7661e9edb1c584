"""How fast passes of compaction go on, and what holds them up."""

from __future__ import annotations

import pytest

from fleetlog.brokers.log import RealDisk
from fleetlog.brokers.log.compaction.cleaner import SHORTEST_MS, SLICE_MS, CleaningPace
from fleetlog.wire.types import TopicPartition
from tests.log.compaction.compacted import TP, QuickDisk, cleaner_of, fill, last_values, users_log
from tests.support.logs import NOW, config, open_log, records
from tests.support.waiting import eventually


def _logs(path, disk, count=3):
    """Logs with many small segments, each a group of its own."""
    settings = users_log(path / "any", disk).config
    logs = [
        open_log(path / f"p-{number}", disk, TopicPartition("p", number), config=settings) for number in range(count)
    ]
    for log in logs:
        fill(log, 100)
        log.config = config(cleanup_policy=("compact",), segment_bytes=200, min_cleanable_dirty_ratio=0.0)
        assert len(log.segments) > 5
    return logs


def test_all_passes_that_are_due_go_on_within_one_step(tmp_path):
    logs = _logs(tmp_path, QuickDisk())
    values = [last_values(log) for log in logs]
    cleaner = cleaner_of(QuickDisk(), *logs, backoff_ms=1000)
    assert cleaner.step(NOW)
    while cleaner.goes_on:
        cleaner.resume(NOW)
    assert cleaner.figures.passes == 3
    assert [last_values(log) for log in logs] == values
    assert all(len(records(log)) < 40 for log in logs)


def test_what_may_be_read_and_written_in_a_second_is_no_less_in_small_pieces(tmp_path):
    logs = _logs(tmp_path, QuickDisk())
    before = sum(log.segments.active.base_offset and log.size_bytes - log.segments.active.size for log in logs)
    rate = 1500
    cleaner = cleaner_of(QuickDisk(), *logs, max_bytes_per_second=rate)
    steps = 0
    while cleaner.step(NOW + 1000 * steps):
        steps += 1
        while cleaner.goes_on:
            cleaner.resume(NOW + 1000 * steps)
        assert steps < 1000
    assert cleaner.figures.bytes_before == before
    handled = 2 * cleaner.figures.bytes_before + cleaner.figures.bytes_after  # for the keys, and to rewrite
    assert handled / rate - 3 < steps < handled / rate + 8


def test_the_disks_thread_works_in_slices(tmp_path, monkeypatch):
    """Work that takes a core for long would keep requests waiting where there is no other."""
    (log,) = _logs(tmp_path, QuickDisk(), 1)
    cleaner, slices = cleaner_of(QuickDisk(), log), []
    monkeypatch.setattr("fleetlog.brokers.log.compaction.cleaner.SLICE_BYTES", 1000)
    assert cleaner.step(NOW)
    while cleaner.goes_on:
        slices.append(cleaner.job.handled_bytes if cleaner.job is not None else 0)
        cleaner.resume(NOW)
    assert cleaner.figures.passes == 1
    assert max(slices) < 3000, "until a slice's bytes are passed, at a segment's end here"
    assert sum(slices) >= 2 * cleaner.figures.bytes_before
    assert sum(size > 500 for size in slices) > 5


def test_the_disks_thread_is_waited_for(tmp_path):
    (log,) = _logs(tmp_path, RealDisk(), 1)
    cleaner = cleaner_of(RealDisk(), log)
    assert cleaner.step(NOW)
    moves = []
    eventually(lambda: [moves.append(cleaner.resume(NOW)), not cleaner.goes_on][1], "all is done", 20)
    assert cleaner.figures.passes == 1
    assert any(moves)


def test_a_log_that_is_deleted_meanwhile_is_passed_over(tmp_path):
    logs = _logs(tmp_path, QuickDisk())
    by_name = {log.topic_partition: log for log in logs}
    cleaner = cleaner_of(QuickDisk(), *logs)
    cleaner._logs = by_name
    assert cleaner.step(NOW)
    del by_name[logs[1].topic_partition]
    while cleaner.goes_on:
        cleaner.resume(NOW)
    assert cleaner.figures.passes == 2
    assert TP not in cleaner.progress()


@pytest.mark.parametrize(
    ("took_ms", "late_ms", "wait_ms"),
    [(0, 0, SHORTEST_MS), (10, 0, 40), (0, 20, SLICE_MS), (0, 5, SHORTEST_MS), (90, 0, 250), (90, 20, 250)],
)
def test_the_loop_keeps_the_most_of_its_time(took_ms, late_ms, wait_ms):
    pace = CleaningPace()
    pace.continued(moved=True, took_ms=took_ms, late_ms=late_ms)
    assert pace.wait_ms == wait_ms


def test_work_on_another_thread_is_looked_after_less_and_less():
    pace = CleaningPace()
    waits = []
    for _ in range(8):
        waits.append(pace.wait_ms)
        pace.continued(moved=False, took_ms=0, late_ms=0)
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (SHORTEST_MS, SLICE_MS)
    pace.continued(moved=True, took_ms=0, late_ms=0)
    assert pace.wait_ms == SHORTEST_MS
