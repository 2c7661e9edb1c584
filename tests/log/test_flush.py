"""A flush: the recovery point rises only after data, indexes, epochs and names are durable, also after a cut."""

from __future__ import annotations

import pytest

from fleetlog._native.batch import scan
from fleetlog.brokers.log.disk.checkpoints import LEADER_EPOCH_CHECKPOINT, EpochEntry
from fleetlog.brokers.log.disk.failures import DiskFull
from tests.support.crashes import RecordingDisk
from tests.support.faulty import Fault, FaultyDisk
from tests.support.logs import NOW, append, append_txn, batch, config, content, end_txn, open_log, produced

SMALL = config(segment_bytes=300, index_interval_bytes=100)


def test_a_flush_makes_the_removals_of_a_cut_durable(tmp_path):
    """A snapshot or a segment that came back would be in the middle of what was appended since."""
    disk = RecordingDisk()
    log = open_log(tmp_path, disk, config=SMALL)
    for number in range(20):
        append(log, produced(1, 0, number))
    log.flusher.flush()
    assert len(log.segments) > 3
    log.truncation.truncate_to(log.segments[1].base_offset + 1, now_ms=NOW)
    append(log, batch(2))
    log.flusher.flush()
    assert log.recovery_point == log.log_end_offset
    last = max(number for number, op in enumerate(disk.ops) if op.kind == "remove")
    assert any(op.kind == "syncdir" and op.path == str(tmp_path) for op in disk.ops[last:])
    log.abandon()


def test_a_flush_makes_the_name_of_a_new_index_durable(tmp_path):
    """The index of aborted transactions has no file before the first; a start believes its absence."""
    disk = RecordingDisk()
    log = open_log(tmp_path, disk)
    append(log, batch(1))
    log.flusher.flush()
    append_txn(log, 7, 0, 0)
    end_txn(log, 7, 0, commit=False)
    begin = len(disk.ops)
    log.flusher.flush()
    index = log.segments.active.txn_index.path
    made = max(number for number, op in enumerate(disk.ops) if op.path == index)
    assert made >= begin
    assert any(op.kind == "syncdir" and op.path == str(tmp_path) for op in disk.ops[made:])
    begin = len(disk.ops)
    append(log, batch(1))
    log.flusher.flush()
    assert not [op for op in disk.ops[begin:] if op.kind == "syncdir"], "no flush without a new name needs it"
    log.abandon()


def test_a_cut_that_a_killed_process_leaves_half_done_leaves_no_hole(tmp_path):
    disk = RecordingDisk()
    log = open_log(tmp_path, disk, config=SMALL)
    for _ in range(20):
        append(log, batch(1))
    bases = [segment.base_offset for segment in log.segments][1:]
    assert len(bases) > 2
    begin = len(disk.ops)
    log.truncation.truncate_to(1, now_ms=NOW)
    removed = [op.path for op in disk.ops[begin:] if op.kind == "remove" and op.path.endswith(".log")]
    assert [int(path[-24:-4]) for path in removed] == bases[::-1]
    log.abandon()


def test_epochs_saved_while_a_flush_is_under_way_wait_for_the_next_one(tmp_path):
    disk = RecordingDisk()
    log = open_log(tmp_path, disk)
    append(log, batch(1), epoch=1)
    log.flusher.begin_flush(active=True)
    append(log, batch(1), epoch=2)
    log.flusher.end_flush()
    begin = len(disk.ops)
    log.flusher.flush()
    assert log.recovery_point == 2
    assert [op for op in disk.ops[begin:] if op.kind == "sync" and LEADER_EPOCH_CHECKPOINT in op.path]
    log.abandon()


@pytest.mark.parametrize("background", [False, True])
def test_epochs_that_find_no_room_hold_the_recovery_point(tmp_path, background):
    """Else a log that ends at its recovery point, and is not scanned, would not know its last epoch."""
    disk = FaultyDisk()
    log = open_log(tmp_path, disk)
    append(log, batch(1), epoch=1)
    log.flusher.flush()
    full = Fault("replace", LEADER_EPOCH_CHECKPOINT)
    disk.faults.append(full)
    append(log, batch(1), epoch=2)

    def flush():
        if background:
            log.flusher.begin_flush(active=True)
            log.flusher.end_flush()
        else:
            log.flusher.flush()

    flush()
    assert log.recovery_point == 1
    with pytest.raises(DiskFull):
        log.flusher.settle()
    disk.faults.remove(full)
    flush()
    assert log.recovery_point == 2
    log.abandon()
    again = open_log(tmp_path, recovery_point=2)
    assert again.epochs.entries == [EpochEntry(1, 0), EpochEntry(2, 1)]
    again.abandon()


@pytest.mark.parametrize("epochs", [(1, 1), (1, 2), (2, 4), (0, 1)])
def test_recovery_mends_epochs_of_a_history_that_was_cut_off(tmp_path, epochs):
    """The checkpoint of before the cut comes back with the power; what was appended since has other epochs."""
    log = open_log(tmp_path)
    for epoch in (0, 0, 3, 3, 5):
        append(log, batch(1), epoch=epoch)
    log.flusher.flush()
    file = tmp_path / LEADER_EPOCH_CHECKPOINT
    before = file.read_bytes()
    log.truncation.truncate_to(2, now_ms=NOW)
    for epoch in epochs:
        log.appender.append_as_follower(_of_epoch(tmp_path / "leader", log.log_end_offset, epoch))
    assert log.log_end_offset == 4
    right = list(log.epochs.entries)
    log.abandon()
    file.write_bytes(before)
    again = open_log(tmp_path, recovery_point=2)
    assert again.epochs.entries == right
    for _, header in scan(content(again)):
        assert again.epochs.epoch_at(header.base_offset) == header.partition_leader_epoch
    again.abandon()


def test_a_flush_after_recovery_makes_the_transaction_index_durable(tmp_path):
    """Recovery made it anew and gave its memory back: nothing tells a segment that loses it from one without aborts."""
    log = open_log(tmp_path)
    append_txn(log, 7, 0, 0)
    end_txn(log, 7, 0, commit=False)
    log.flusher.begin_flush(active=True)  # a process that is killed leaves its files in the page cache, not on the disk
    log.abandon()
    disk = RecordingDisk()
    again = open_log(tmp_path, disk)
    assert again.recovery_point == 0
    append(again, batch(1))
    again.flusher.flush()
    assert again.recovery_point == again.log_end_offset
    assert [op.path for op in disk.ops if op.kind == "sync" and op.path.endswith(".txnindex")]
    again.abandon()


def _of_epoch(directory, offset, epoch):
    """A batch as a leader of that epoch has it."""
    leader = open_log(directory / f"{offset}", log_start_offset=offset)
    append(leader, batch(1), epoch=epoch)
    data = content(leader)
    leader.abandon()
    return data
