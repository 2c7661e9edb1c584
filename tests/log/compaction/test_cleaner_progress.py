"""What a store remembers of compaction: how far each log is clean, and that logs may have holes."""

from __future__ import annotations

import errno
import shutil

import pytest

from fleetlog.brokers.log.disk.checkpoints import CLEANER_CHECKPOINT, decode_offsets
from fleetlog.wire.errors import ErrorCode
from tests.log.compaction.compacted import USERS as TP
from tests.log.compaction.compacted import QuickDisk, clean, cleaner_of, compacting, fill, store_of, tick, users_log
from tests.support.faulty import Fault, FaultyDisk
from tests.support.logs import NOW, config, content, records


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_hole_of_which_no_note_can_be_made_is_refused(tmp_path, code):
    """After a crash it would be damage, and all behind it cut off."""
    leader = users_log(tmp_path)
    fill(leader)
    clean(cleaner_of(QuickDisk(), leader))
    data = memoryview(content(leader))
    disk = FaultyDisk()
    store = store_of(tmp_path / "follower", disk)
    follower = compacting(store)
    disk.faults.append(Fault("replace", CLEANER_CHECKPOINT, error=code, times=1))
    assert follower.appender.append_as_follower(data, now_ms=NOW).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert (follower.log_end_offset, follower.offline) == (0, code == errno.EIO)
    if not follower.offline:
        assert follower.appender.append_as_follower(data, now_ms=NOW).error == ErrorCode.NONE
        assert store.cleaner.progress() == {TP: 0}
    store.close()


def test_a_note_that_is_not_durable_takes_the_directory_offline(tmp_path):
    leader = users_log(tmp_path)
    fill(leader)
    clean(cleaner_of(QuickDisk(), leader))
    disk = FaultyDisk()
    store = store_of(tmp_path / "follower", disk)
    follower = compacting(store)
    disk.faults.append(Fault("sync_later", CLEANER_CHECKPOINT, error=errno.EIO))
    follower.appender.append_as_follower(memoryview(content(leader)), now_ms=NOW)
    store.tick(NOW)
    assert follower.offline
    store.close()


def test_progress_is_checkpointed_and_outlives_neither_its_topic_nor_damage(tmp_path):
    store = store_of(tmp_path)
    log = compacting(store)
    fill(log)
    tick(store)
    end = log.segments.active.base_offset
    store.close()
    path = tmp_path / CLEANER_CHECKPOINT
    assert decode_offsets(path.read_bytes(), "") == {TP: end}
    assert path.read_text() == f"0\n1\nusers 0 {end}\n"
    store = store_of(tmp_path)
    log = compacting(store)
    log.appender.set_high_watermark(1 << 40)
    size = log.size_bytes
    tick(store)
    assert log.size_bytes == size, "nothing is cleaned twice"
    store.delete(TP)
    store.checkpoint()
    assert decode_offsets(path.read_bytes(), "") == {}
    log = compacting(store)
    fill(log)
    tick(store)
    kept = content(log)
    store.close(clean=False)
    path.write_bytes(b"damaged")
    store = store_of(tmp_path)
    log = store.get(TP)
    log.appender.set_high_watermark(1 << 40)
    assert content(log) == kept
    store.close()


@pytest.mark.parametrize("how", ["damaged", "deleted"])
def test_holes_outlive_a_checkpoint_that_cannot_be_read(tmp_path, how):
    """Not only the first start after it must know of them: it writes a checkpoint that can be read again."""
    store = store_of(tmp_path)
    log = compacting(store)
    fill(log)
    tick(store)
    kept, end = content(log), log.log_end_offset
    assert len(records(log)) < 20
    store.close(clean=False)
    path = tmp_path / CLEANER_CHECKPOINT
    if how == "damaged":
        path.write_bytes(b"damaged")
    else:
        path.unlink()
    for again in range(3):
        store = store_of(tmp_path)
        log = store.get(TP)
        log.appender.set_high_watermark(1 << 40)
        assert (content(log), log.log_end_offset) == (kept, end), again
        store.checkpoint()
        assert TP in decode_offsets(path.read_bytes(), "")
        (tmp_path / "recovery-point-offset-checkpoint").unlink()
        store.close(clean=False)


def test_progress_is_of_the_log_that_is_kept(tmp_path):
    """Of two copies in two directories; the other is set aside."""
    disks = [tmp_path / "one", tmp_path / "two"]
    ends = []
    for number, disk in enumerate(disks):
        store = store_of(disk)
        log = compacting(store)
        fill(log, 60 if number == 0 else 30)
        tick(store)
        ends.append(store.cleaner.progress()[TP])
        store.close()
    assert ends[0] > ends[1]
    store = store_of(disks[0], more=disks[1:])
    assert store.get(TP).directory.startswith(str(disks[0]))
    assert store.cleaner.progress() == {TP: ends[0]}
    store.close()


def test_progress_ends_with_a_log_that_recovery_cuts(tmp_path):
    store = store_of(tmp_path)
    log = compacting(store)
    fill(log)
    tick(store)
    assert store.cleaner.progress()[TP] > 30
    store.close(clean=False)
    store = store_of(tmp_path)
    store.cleaner.restore({TP: 49})
    store.checkpoint()
    store.close(clean=False)
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    path = tmp_path / str(TP)
    for name in path.glob("*.log"):
        if int(name.stem) > 0:
            name.unlink()
    store = store_of(tmp_path)
    log = store.get(TP)
    assert log.log_end_offset < 49
    assert store.cleaner.progress() == {TP: log.log_end_offset}
    store.close()


def test_a_killed_process_finds_no_progress_from_before_a_cut(tmp_path):
    store = store_of(tmp_path)
    log = compacting(store)
    fill(log)
    tick(store)
    assert store.cleaner.progress()[TP] > 30
    store.checkpoint()
    log.truncation.truncate_to(30, now_ms=NOW)
    fill(log)
    store.close(clean=False)
    store = store_of(tmp_path)
    assert store.get(TP).log_end_offset > 50
    assert store.cleaner.progress()[TP] <= 30
    store.close()


@pytest.mark.parametrize("how", ["its directory is gone", "its disk is offline", "the entry came with a disk"])
def test_a_new_log_has_no_progress(tmp_path, how):
    """What an older log of that name had says nothing of it."""
    disks = [tmp_path / "one", tmp_path / "two"]
    store = store_of(disks[0], more=disks[1:])
    log = compacting(store)
    fill(log)
    tick(store)
    assert TP in store.cleaner.progress()
    if how == "its disk is offline":
        store.take_offline(store._homes[TP])
        store.delete(TP)
    elif how == "its directory is gone":
        store.close()
        shutil.rmtree(log.directory)
        store = store_of(disks[0], more=disks[1:])
    else:
        store.delete(TP)
        store.cleaner.restore({TP: 40})
    assert compacting(store).log_end_offset == 0
    assert store.cleaner.progress() == {}
    store.close()


def test_a_new_directory_says_that_nothing_in_it_has_holes(tmp_path):
    store = store_of(tmp_path)
    fill(store.create(TP, None, config()))
    store.close(clean=False)
    assert decode_offsets((tmp_path / CLEANER_CHECKPOINT).read_bytes(), "") == {}
    store = store_of(tmp_path)
    assert store.cleaner.progress() == {}, "a missing offset is a lost write there"
    store.close()
