"""A disk that is full, and a disk that fails."""

from __future__ import annotations

import errno
import os

import pytest

from fleetlog.brokers.log import DiskFull, LogOffline
from fleetlog.wire.errors import ErrorCode
from tests.support.faulty import Fault, FaultyDisk
from tests.support.logs import (
    NOW,
    append,
    append_txn,
    batch,
    config,
    content,
    end_txn,
    open_log,
    patched,
    produced,
    records,
)


@pytest.mark.parametrize("written", [0, 1, 30, 61, 70])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, 0])
def test_a_full_disk_refuses_and_recovers(tmp_path, written, error):
    """The append is refused, nothing of it stays, and the partition goes on when there is room again."""
    disk = FaultyDisk()
    log = open_log(tmp_path / "e-0", disk)
    append(log, produced(1, 0, 0))
    before = content(log)
    disk.faults.append(Fault("write", ".log", error=error, times=2, written=written))
    for _ in range(2):
        info = append(log, produced(1, 0, 1))
        assert info.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert content(log) == before == (tmp_path / "e-0" / f"{0:020d}.log").read_bytes()
    assert not log.offline
    info = append(log, produced(1, 0, 1))
    assert (info.error, info.first_offset, info.duplicate) == (ErrorCode.NONE, 1, False)
    log.abandon()
    assert open_log(tmp_path / "e-0").log_end_offset == 2


@pytest.mark.parametrize("op", ["replace", "create", "write"])
def test_a_full_disk_at_a_roll(tmp_path, op):
    disk = FaultyDisk()
    log = open_log(tmp_path / "e-0", disk, config=config(segment_bytes=200, index_interval_bytes=0))
    append(log, batch(1, value=b"x" * 50))
    append_txn(log, 1, 0, 0)
    path = {"replace": ".snapshot", "create": ".log", "write": "index"}[op]
    disk.faults.append(Fault(op, path, times=3))
    refused = 0
    for _ in range(10):
        refused += append(log, batch(1, value=b"x" * 50)).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert refused == (3 if op != "write" else refused)
    assert len(records(log)) == 12 - refused
    end_txn(log, 1, 0, commit=False)
    assert log.last_stable_offset == log.log_end_offset
    log.close()
    again = open_log(tmp_path / "e-0", clean=True, config=log.config)
    assert len(records(again)) == 12 - refused


def test_a_full_disk_when_a_follower_starts_over(tmp_path):
    disk = FaultyDisk()
    log = open_log(tmp_path / "e-0", disk, config=config(segment_bytes=200))
    for _ in range(10):
        append(log, produced(1, 0, len(records(log))))
    disk.faults.append(Fault("create", ".log", times=1))
    with pytest.raises(DiskFull):
        log.truncation.restart_at(1000, now_ms=NOW)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes, log.segments.first.base_offset) == (0, 0, 0, 0)
    log.abandon()
    log = open_log(tmp_path / "e-0", disk)
    assert (log.log_end_offset, records(log)) == (0, [])
    log.truncation.restart_at(1000, now_ms=NOW)
    assert append(log, produced(1, 0, 0)).first_offset == 1000
    log.truncation.restart_at(1000, now_ms=NOW)
    assert (log.log_end_offset, log.size_bytes) == (1000, 0)


def test_without_room_for_epochs_the_log_continues(tmp_path):
    disk = FaultyDisk(Fault("replace", "leader-epoch", times=1))
    log = open_log(tmp_path / "e-0", disk)
    log.assign_epoch(3)
    assert append(log, batch(1), epoch=3).error == ErrorCode.NONE
    assert append(log, batch(1), epoch=4).error == ErrorCode.NONE
    assert (tmp_path / "e-0" / "leader-epoch-checkpoint").read_text() == "0\n2\n3 0\n4 1\n"


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
def test_a_failed_write_takes_the_log_offline(tmp_path, error):
    disk = FaultyDisk(Fault("write", ".log", error=error, skip=1, times=1))
    told = []
    log = open_log(tmp_path / "e-0", disk, on_failure=lambda log, wrong: told.append(wrong))
    append(log, batch(1))
    assert append(log, batch(1)).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline
    assert len(told) == 1
    writes = len([op for op, _ in disk.calls if op == "write"])
    assert append(log, batch(1)).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert len([op for op, _ in disk.calls if op == "write"]) == writes, "nothing is tried again"
    with pytest.raises(LogOffline):
        log.reader.read(0, 100, end_offset=1)
    with pytest.raises(LogOffline):
        log.flusher.flush()


@pytest.mark.parametrize("written", [0, 40, 10_000])
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_an_append_to_a_file_system_that_is_read_only_by_now_takes_the_log_offline(tmp_path, who, written):
    """Nothing of it counts, and what a start finds then is what was acknowledged, or that and the whole batch."""
    disk, told = FaultyDisk(), []
    log = open_log(tmp_path / "e-0", disk, on_failure=lambda log, wrong: told.append(str(wrong)))
    for n in range(3):
        append(log, produced(1, 0, n))
    whole = produced(1, 0, 3)
    read_only = [Fault(op, error=errno.EROFS) for op in ("sync", "truncate", "create", "replace", "rename", "remove")]
    disk.faults += [Fault("write", error=errno.EROFS, written=written), *read_only]
    info = append(log, whole) if who == "leader" else log.appender.append_as_follower(patched(whole, base_offset=3))
    assert info.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.offline, log.log_end_offset) == (True, 3)
    (why,) = told
    assert os.strerror(errno.EROFS) in why
    with pytest.raises(LogOffline):
        log.flusher.flush()
    log.abandon()
    again = open_log(tmp_path / "e-0")
    assert again.log_end_offset == 3 + (written > len(whole))
    info = append(again, whole)
    assert (info.error, info.duplicate) == (ErrorCode.NONE, written > len(whole)), "a producer that sends it again"
    assert [one.offset for one in records(again)] == [0, 1, 2, 3]
    again.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
def test_a_failed_fsync_is_not_tried_again(tmp_path, error):
    disk = FaultyDisk(Fault("sync", ".log", error=error, times=1))
    log = open_log(tmp_path / "e-0", disk)
    append(log, batch(1))
    with pytest.raises(LogOffline):
        log.flusher.flush()
    assert log.recovery_point == 0
    with pytest.raises(LogOffline):
        log.flusher.flush()
    assert [op for op, _ in disk.calls].count("sync") == 1


def test_a_failed_read_takes_the_log_offline(tmp_path):
    disk = FaultyDisk()
    log = open_log(tmp_path / "e-0", disk)
    for _ in range(3):
        append(log, batch(1))
    log.segments.active.hints.clear()
    disk.faults.append(Fault("read", ".log", error=errno.EIO))
    with pytest.raises(LogOffline):
        log.reader.read(1, 10, end_offset=3)
    assert log.offline


def test_a_cut_that_fails_takes_the_log_offline(tmp_path):
    """A torn batch that can't be cut off must never get a neighbour."""
    disk = FaultyDisk(
        Fault("write", ".log", written=40, skip=1, times=1), Fault("truncate", ".log", error=errno.EIO, times=1)
    )
    log = open_log(tmp_path / "e-0", disk)
    append(log, batch(1))
    assert append(log, batch(1)).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline
    again = open_log(tmp_path / "e-0")
    assert again.log_end_offset == 1
    assert again.recovery_report.truncated_bytes == 40


def test_damage_under_a_running_log_is_reported_and_other_logs_continue(tmp_path):
    log = open_log(tmp_path / "e-0", config=config(index_interval_bytes=0))
    for _ in range(5):
        append(log, batch(1))
    log.segments.active.hints.clear()
    size = len(batch(1))
    with (tmp_path / "e-0" / f"{0:020d}.log").open("r+b") as file:
        file.seek(2 * size + 16)
        file.write(b"\x09")  # no magic of ours
    with pytest.raises(LogOffline, match="damaged"):
        log.reader.read(2, 1, end_offset=3)
    assert not log.offline
    assert append(log, batch(1), now_ms=NOW).error == ErrorCode.NONE


def test_a_disk_that_fails_before_the_first_append(tmp_path):
    """The append is refused, the log goes offline, and nothing is tried again."""
    log = open_log(tmp_path / "e-0")
    append(log, batch(1))
    log.close()
    disk, told = FaultyDisk(), []
    log = open_log(tmp_path / "e-0", disk, clean=True, on_failure=lambda log, wrong: told.append(wrong))
    disk.faults.append(Fault("read", ".log", error=errno.EIO))
    disk.calls.clear()
    for _ in range(2):
        assert append(log, batch(1)).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline
    assert len(told) == 1
    assert [op for op, _ in disk.calls].count("read") == 1


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_damage_where_the_first_append_after_a_start_looks(tmp_path, first, who, caplog):
    """It is refused, says why, and looks for it once; after a cut the log goes on."""
    log = open_log(tmp_path / "e-0", config=config(segment_bytes=1 << 30))
    for n in range(400):
        append(log, produced(1, 0, n, value=b"x" * 1000))
    log.close()
    disk = FaultyDisk()
    log = open_log(tmp_path / "e-0", disk, clean=True, recovery_point=400, high_watermark=400)
    with (tmp_path / "e-0" / f"{0:020d}.log").open("r+b") as file:
        file.seek(16 if first else log.size_bytes - len(produced(1, 0, 399, value=b"x" * 1000)) + 16)
        file.write(b"\x09")  # no magic of ours
    size, reads = log.size_bytes, []
    for _ in range(3):
        disk.calls.clear()
        if who == "leader":
            info = append(log, batch(1))
        else:
            info = log.appender.append_as_follower(patched(batch(1), base_offset=400))
        assert info.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "damaged" in info.error_message
        assert "offline" not in info.error_message
        reads.append([op for op, _ in disk.calls].count("read"))
    assert max(reads[1:]) <= (2 if first else 0), "of the first header, at most"
    assert (log.offline, log.size_bytes, log.log_end_offset) == (False, size, 400)
    assert len([record for record in caplog.records if record.name == "fleetlog.brokers.log.state"]) == 1
    if first:
        log.truncation.restart_at(0)
    else:
        log.truncation.truncate_to(398, now_ms=NOW)
    assert append(log, produced(2, 0, 0)).first_offset == log.log_end_offset - 1


def test_a_disk_that_fails_the_index_of_aborted_transactions(tmp_path):
    """Its entries are written in runs; the append that meets the failure is refused as any other."""
    log = open_log(tmp_path / "e-0", FaultyDisk(Fault("write", ".txnindex", error=errno.EIO)))
    for producer in range(200):
        append_txn(log, producer, 0, 0)
        if end_txn(log, producer, 0, commit=False).error is not ErrorCode.NONE:
            break
    assert log.offline
    assert append(log, batch(1)).error is ErrorCode.KAFKA_STORAGE_ERROR
