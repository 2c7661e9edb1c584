"""A log that is cut below the start that is saved: the former start hides nothing, and nothing comes back."""

from __future__ import annotations

import pytest

from fleetlog.brokers.log import DiskFull
from tests.support.faulty import DyingDisk, Fault, FaultyDisk, Killed
from tests.support.log_stores import made, started
from tests.support.logs import NOW, TP, append, batch, records


def _filled(path, disk=None):
    """A log of [50, 100) whose first segment begins at 40; its start is saved."""
    store = started(path, disk)
    log = made(store)
    log.truncation.restart_at(40)
    for _ in range(60):
        append(log, batch(1), epoch=1)
    log.flusher.flush()
    log.truncation.delete_records_before(50)
    log.truncation.save_start()
    return store, log


def _bounds(log):
    return log.log_start_offset, log.log_end_offset, log.segments.first.base_offset


@pytest.mark.parametrize("cut", [60, 50, 45, 40, 30])
@pytest.mark.parametrize("more", [0, 3, 30])
def test_a_kill_after_a_cut(tmp_path, cut, more):
    """What the log got since is there, and a cut that nothing followed stays."""
    store, log = _filled(tmp_path)
    log.truncation.truncate_to(cut, now_ms=NOW)
    for _ in range(more):
        append(log, batch(1), epoch=2)
    log.flusher.flush()
    start = min(cut, 50)
    assert _bounds(log)[:2] == (start, cut + more)
    store.close(clean=False)
    again = started(tmp_path)
    assert _bounds(again.get(TP))[:2] == (start, cut + more)
    again.close()


@pytest.mark.parametrize("how", ["truncate_to", "restart_at"])
@pytest.mark.parametrize("offset", [45, 30])
def test_a_start_that_only_a_periodic_checkpoint_has_written(tmp_path, how, offset):
    store = started(tmp_path, FaultyDisk())
    log = made(store)
    store.tick(NOW)
    log.truncation.restart_at(40)
    for _ in range(60):
        append(log, batch(1), epoch=1)
    log.flusher.flush()
    log.truncation.raise_start(50)
    for n in range(6):
        store.tick(NOW + 60_000 + n)
    assert f"{TP.topic} 0 50" in (tmp_path / "log-start-offset-checkpoint").read_text()
    getattr(log.truncation, how)(offset, now_ms=NOW)
    for _ in range(10):
        append(log, batch(1), epoch=2)
    log.flusher.flush()
    store.close(clean=False)
    again = started(tmp_path)
    assert _bounds(again.get(TP))[:2] == (offset, offset + 10)
    again.close()


@pytest.mark.parametrize("cut", [45, 40, 30])
@pytest.mark.parametrize("file", ["recovery-point", "log-start"])
def test_a_cut_that_finds_no_room_for_a_checkpoint(tmp_path, cut, file):
    """Nothing has changed: records that were deleted are not readable again, now or after a kill."""
    disk = FaultyDisk()
    store, log = _filled(tmp_path, disk)
    disk.faults.append(Fault("replace", file, times=1))
    with pytest.raises(DiskFull):
        log.truncation.truncate_to(cut, now_ms=NOW)
    assert _bounds(log) == (50, 100, 40)
    assert records(log)[0].offset == 50
    store.close(clean=False)
    again = started(tmp_path)
    assert _bounds(again.get(TP)) == (50, 100, 40)
    again.close()


@pytest.mark.parametrize("cut", [45, 30])
def test_a_process_that_dies_anywhere_in_a_cut_below_the_saved_start(tmp_path, cut):
    """The next attempt finds a log that it can cut, and what comes behind the cut is there after another kill."""
    for step in range(200):
        path, disk = tmp_path / str(step), DyingDisk()
        store, log = _filled(path, disk)
        disk.left = step
        try:
            log.truncation.truncate_to(cut, now_ms=NOW)
        except Killed:
            pass
        whole, disk.left = disk.left, None
        store.close(clean=False)
        store = started(path)
        log = store.get(TP)
        assert log.log_start_offset <= 50, step
        log.truncation.truncate_to(cut, now_ms=NOW)
        if log.log_end_offset < cut:
            log.truncation.restart_at(cut)
        for _ in range(10):
            append(log, batch(1), epoch=2)
        log.flusher.flush()
        want = _bounds(log)
        assert want[1] == cut + 10, step
        store.close(clean=False)
        store = started(path)
        assert _bounds(store.get(TP)) == want, step
        store.close()
        if whole:
            return
    pytest.fail("a cut takes fewer operations")
