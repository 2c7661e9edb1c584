"""What the system refuses once, and grants the next time: room to remove, to rename, to replace; an fsync."""

from __future__ import annotations

import errno
import os

import pytest

from fleetlog.brokers.log import LogOffline
from fleetlog.brokers.log.disk.checkpoints import CLEANER_CHECKPOINT, LOG_START_CHECKPOINT
from fleetlog.brokers.log.disk.failures import DiskError, DiskFailed, DiskFull
from fleetlog.brokers.log.disk.files import RealDisk
from fleetlog.brokers.log.store import delete_old_segments
from fleetlog.wire.types import TopicPartition
from tests.support.faulty import Fault, FaultyDisk
from tests.support.log_stores import started
from tests.support.logs import NOW, TP, append, batch, config, open_log, records
from tests.support.waiting import eventually

SETTINGS = config(segment_bytes=300, retention_ms=1000)
OTHER = TopicPartition("other", 0)


class Once:
    """A system call that fails once, for the file whose path ends so."""

    def __init__(self, monkeypatch, name):
        self.path, self.code, self._real = "", 0, getattr(os, name)
        monkeypatch.setattr(os, name, self)

    def __call__(self, fd, *more):
        if self.path and os.readlink(f"/proc/self/fd/{fd}").removesuffix(".tmp").endswith(self.path):
            self.path = ""
            raise OSError(self.code, os.strerror(self.code))
        return self._real(fd, *more)


@pytest.mark.parametrize("name", [LOG_START_CHECKPOINT, CLEANER_CHECKPOINT])
def test_a_checkpoint_under_way_does_not_miss_the_file_of_one_that_found_no_room(tmp_path, monkeypatch, name):
    """They have one temporary name; a directory whose file is missing would be taken offline."""
    once = Once(monkeypatch, "write")
    store = started(tmp_path)
    log, other = store.create(TP, None, config()), store.create(OTHER, None, config())
    append(log, batch(5))
    append(other, batch(5))
    store.cleaner.restore({TP: 0})
    store.checkpoints.begin()
    once.path, once.code = name, errno.ENOSPC
    if name == LOG_START_CHECKPOINT:
        log.truncation.delete_records_before(3)
        with pytest.raises(DiskFull):
            log.truncation.save_start()
    else:
        store.cleaner.restore({TP: 4})
        log.truncation.truncate_to(2)
    assert not once.path
    eventually(
        lambda: [store.tick(NOW), store.directories[0].checkpoint is None][1], "the checkpoint is written", timeout_s=30
    )
    assert not store.offline_directories
    assert not append(other, batch(1)).error
    store.close()


@pytest.mark.parametrize("skip", range(9))
def test_a_cut_that_cannot_remove_a_file_leaves_no_hole(tmp_path, skip):
    disk = FaultyDisk()
    log = open_log(tmp_path, disk, config=SETTINGS)
    for _ in range(20):
        append(log, batch(1))
    disk.faults = [Fault("remove", ".", error=errno.EDQUOT, skip=skip, times=1)]
    try:
        log.truncation.truncate_to(2)
    except (DiskError, LogOffline):
        pass
    disk.faults = []
    if not log.offline:
        append(log, batch(1))
        assert [one.offset for one in records(log)] == list(range(log.log_end_offset))
    log.abandon()
    again = open_log(tmp_path, config=SETTINGS)
    assert [one.offset for one in records(again)] == list(range(again.log_end_offset))
    again.close()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("skip", range(4))
def test_retention_that_cannot_rename_a_file_goes_on_the_next_time(tmp_path, skip, known):
    disk = FaultyDisk()
    log = open_log(tmp_path, disk, config=SETTINGS)
    for number in range(12):
        append(log, batch(1, timestamp=NOW - (10**6 if number < 8 else 0)))
    log.flusher.flush()
    disk.faults = [Fault("rename", ".", skip=skip, times=1)]
    with pytest.raises(DiskFull):
        delete_old_segments(log, NOW)
    disk.faults = []
    delete_old_segments(log, NOW)
    assert log.log_start_offset == log.segments.first.base_offset == 8
    end, point = log.log_end_offset, log.recovery_point if known else 0
    log.abandon()
    again = open_log(tmp_path, config=SETTINGS, recovery_point=point)
    assert (again.log_start_offset, again.log_end_offset) == (8, end)
    again.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_an_fsync_that_failed_is_not_believed_the_next_time(tmp_path, monkeypatch, code):
    """The system dropped what it could not write, and says that once."""
    once = Once(monkeypatch, "fsync")
    log = open_log(tmp_path, RealDisk(), config=config())
    append(log, batch(3))
    once.path, once.code = ".log", code
    with pytest.raises(LogOffline):
        log.flusher.flush()
    assert log.offline
    assert log.recovery_point == 0


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC])
def test_an_fsync_in_the_background(tmp_path, monkeypatch, code):
    once = Once(monkeypatch, "fsync")
    disk = RealDisk()
    log = open_log(tmp_path, disk, config=config())
    append(log, batch(3))
    once.path, once.code = ".log", code
    pending = disk.sync_later(log.segments.active.paths())
    eventually(lambda: pending.done, "it has ended", timeout_s=30)
    assert isinstance(pending.error, DiskFailed)
    log.close()


@pytest.mark.parametrize("how", ["no descriptor", "a cut"])
def test_a_flush_that_came_to_nothing_is_tried_again(tmp_path, how):
    disk = FaultyDisk()  # which syncs at once
    log = open_log(tmp_path, disk, config=config())
    append(log, batch(3))
    append(log, batch(3))
    if how == "no descriptor":
        disk.faults = [Fault("sync_later", "", error=errno.EMFILE, times=1)]
        log.flusher.begin_flush(active=True)
        with pytest.raises(DiskFull):
            log.flusher.end_flush()
    else:
        log.flusher.begin_flush(active=True)
        log.truncation.truncate_to(3)
        log.flusher.end_flush()
    assert log.recovery_point == 0
    assert log.unflushed_since_ms is not None, "a store flushes what has waited for long enough"
    log.flusher.begin_flush(active=True)
    log.flusher.end_flush()
    assert log.recovery_point == log.log_end_offset
    log.close()
