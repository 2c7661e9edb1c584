"""All logs of a broker: start, clean stop, kill, checkpoints, foreign directories, failed directories."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.log import (
    DirectoryInUse,
    DiskFailed,
    DiskFull,
    ForeignDirectory,
    LogStore,
    RealDisk,
    StoreRefused,
)
from fleetlog.brokers.log.disk.checkpoints import CleanStop, encode_clean_stop
from fleetlog.brokers.log.flush import Flusher
from fleetlog.brokers.model import LiveBroker
from fleetlog.brokers.replication.inventory_keeper import intact_since as intact_since_of
from fleetlog.coordination.registration import LastRegistration
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.support.clocks import ManualClock
from tests.support.faulty import Fault, FaultyDisk
from tests.support.logs import NOW, append, batch, produced, records
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
TOPIC_ID = uuid.UUID(int=0x1234567890)
A, B = TopicPartition("a.b_c-d", 0), TopicPartition("a.b_c-d", 11)


def _config(*paths, **changes) -> BrokerConfig:
    return BrokerConfig(broker_id=3, zookeeper_connect="z:1", log_dirs=tuple(map(str, paths)), **changes)


def _store(path, disk=None, *, cluster="cluster-1", clock=None, **changes) -> LogStore:
    paths = path if isinstance(path, list) else [path]
    return LogStore(_config(*paths, **changes), disk or RealDisk(), clock or ManualClock(), cluster_id=cluster)


def _started(path, disk=None, **options) -> LogStore:
    store = _store(path, disk, **options)
    store.load()
    return store


def _create(store, tp):
    return store.create(tp, TOPIC_ID, _config(".").topic_defaults())


def test_a_clean_stop_and_start(tmp_path):
    store = _started(tmp_path)
    for tp in (A, B):
        log = _create(store, tp)
        append(log, batch(3), epoch=2)
        append(log, produced(1, 0, 0), epoch=2)
    store.get(A).truncation.delete_records_before(2)
    store.close(broker_epoch=77)
    assert json.loads((tmp_path / ".kafka_cleanshutdown").read_text()) == {"version": 0, "brokerEpoch": 77}
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == f"0\n2\n{A.topic} 0 4\n{A.topic} 11 4\n"
    assert (tmp_path / "replication-offset-checkpoint").read_text() == f"0\n2\n{A.topic} 0 4\n{A.topic} 11 4\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == f"0\n1\n{A.topic} 0 2\n"
    again = _store(tmp_path)
    report = again.load()
    assert report.clean_directories == [str(tmp_path)]
    assert report.logs == 2
    assert not any(r.segments_scanned for r in report.recovered)
    log = again.get(A)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark, log.topic_id) == (2, 4, 4, TOPIC_ID)
    assert append(log, produced(1, 0, 0), epoch=2).duplicate
    assert not (tmp_path / ".kafka_cleanshutdown").exists(), "a crash from now on is no clean stop"
    again.close()


@pytest.mark.parametrize(("markers", "intact_since"), [
    ((3, 3), 3), ((3, 5), 5), ((0, 0), 0), ((3, "unclean"), None), (("unclean", 3), None), ((3, "kafka"), None),
    (("kafka", "kafka"), None), ((3, ""), None), ((3, "[]"), None), ((3, '{"intactSince":"x"}'), None),
])  # fmt: skip
def test_a_broker_is_intact_if_the_markers_of_all_its_directories_say_since_when(tmp_path, markers, intact_since):
    """Kafka's marker, an empty one, and one that can't be read say that a directory was closed, and nothing more."""
    paths = [tmp_path / "d1", tmp_path / "d2"]
    _started(paths).close()
    for path, marker in zip(paths, markers, strict=True):
        file = path / ".kafka_cleanshutdown"
        if marker == "unclean":
            file.unlink()
        elif isinstance(marker, int):
            file.write_bytes(encode_clean_stop(CleanStop(77, 9, marker)))
        elif marker == "kafka":
            file.write_bytes(encode_clean_stop(CleanStop(77)))
        else:
            file.write_text(marker)
    store = _store(paths)
    report = store.load()
    assert intact_since_of(report.stopped, LastRegistration(9, 77, "")) == intact_since
    assert report.unclean_directories == [str(p) for p, m in zip(paths, markers, strict=True) if m == "unclean"]
    store.close()


@pytest.mark.parametrize("way", ["the directory", "a segment", "the end of a segment", "an empty log"])
def test_a_clean_stop_does_not_count_for_a_directory_that_lost_files_since(tmp_path, way):
    """An operator moves damaged files away, or a file system loses them: the mark says that all was there."""
    store = _started(tmp_path)
    for _ in range(3):
        append(_create(store, A) if store.get(A) is None else store.get(A), batch(2))
    _create(store, B)
    store.close(broker_epoch=77, live_broker=LiveBroker(9, 9))
    segment = tmp_path / str(A) / "00000000000000000000.log"
    if way == "the directory":
        shutil.rmtree(tmp_path / str(A))
    elif way == "a segment":
        segment.unlink()
    elif way == "the end of a segment":
        segment.write_bytes(segment.read_bytes()[:-1])
    else:
        shutil.rmtree(tmp_path / str(B))
    store = _store(tmp_path)
    report = store.load()
    whole = way == "an empty log"
    assert (intact_since_of(report.stopped, LastRegistration(9, 77, "")) is not None) == whole
    ended = {"the directory": "is gone", "the end of a segment": "ends at 4", "a segment": "ends at 0"}.get(way, "")
    assert any(str(A) in line and ended in line and "6" in line for line in report.lost) != whole
    store.close()


def test_a_kill_is_noticed(tmp_path):
    store = _started(tmp_path)
    append(_create(store, A), batch(3))
    store.close(clean=False)
    again = _store(tmp_path)
    report = again.load()
    assert report.unclean_directories == [str(tmp_path)]
    assert any("not closed in order" in text for text in report.lines())
    assert report.warnings() == []
    assert again.get(A).log_end_offset == 3
    assert report.recovered[0].bytes_scanned == len(batch(3))


def test_a_cut_is_a_warning(tmp_path, caplog):
    store = _started(tmp_path)
    append(_create(store, A), batch(3))
    store.close(clean=False)
    segment = tmp_path / str(A) / "00000000000000000000.log"
    with segment.open("ab") as file:
        file.write(b"torn")
    report = _store(tmp_path).load()
    caplog.set_level(logging.INFO)
    report.log(logging.getLogger("fleetlog.test"))
    levels = [record.levelno for record in caplog.records if "cut 4 bytes at offset 3" in record.getMessage()]
    assert levels == [logging.WARNING]
    assert {record.levelno for record in caplog.records} == {logging.INFO, logging.WARNING}


def test_meta_properties(tmp_path):
    _started(tmp_path).close()
    text = dict(line.split("=", 1) for line in (tmp_path / "meta.properties").read_text().splitlines())
    assert {k: text[k] for k in ("version", "broker.id", "cluster.id")} == {
        "version": "0", "broker.id": "3", "cluster.id": "cluster-1",
    }  # fmt: skip
    with pytest.raises(ForeignDirectory, match="cluster-1"):
        _store(tmp_path, cluster="other").load()
    (tmp_path / "meta.properties").write_text("#\n#Thu Jan 01\nversion=0\nbroker.id=4\ncluster.id=cluster-1\n")
    with pytest.raises(ForeignDirectory, match="broker 4"):
        _store(tmp_path).load()


def test_partitions_without_an_owner_are_left_alone(tmp_path):
    (tmp_path / "orders-0").mkdir()
    with pytest.raises(ForeignDirectory, match="orders-0"):
        _store(tmp_path).load()


def test_the_lock(tmp_path):
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[2]); from fleetlog.brokers.log.disk.files import RealDisk;"
        "lock = RealDisk().lock(sys.argv[1] + '/.lock'); print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path, ROOT], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(DirectoryInUse, match="lock"):
                _store(tmp_path).load()
        finally:
            holder.kill()
    _started(tmp_path).close()


def test_a_log_for_which_a_directory_has_no_room_is_made_in_another_one(tmp_path):
    paths = [tmp_path / "d1", tmp_path / "d2"]
    disk = FaultyDisk(Fault("replace", "/d1/a.b_c-d-0/partition.metadata"))
    store = _started(paths, disk)
    log = _create(store, A)
    assert log.directory == str(tmp_path / "d2" / "a.b_c-d-0")
    assert not (tmp_path / "d1" / "a.b_c-d-0").exists(), "a start would find two of them"
    append(log, batch(1))
    disk.faults.append(Fault("replace", "partition.metadata"))
    with pytest.raises(DiskFull):
        _create(store, B)
    assert store.get(B) is None
    assert not [path for path in paths if (path / "a.b_c-d-11").exists()]
    disk.faults.clear()
    assert _create(store, B).directory == str(tmp_path / "d1" / "a.b_c-d-11"), "the emptier one"
    store.close()


def test_delete_and_create_again(tmp_path):
    clock = ManualClock()
    store = _started(tmp_path, clock=clock)
    log = _create(store, A)
    append(log, batch(5))
    result = log.reader.read(0, 100, end_offset=5)
    store.delete(A)
    assert store.get(A) is None
    (doomed,) = [name for name in os.listdir(tmp_path) if name.endswith("-delete")]
    assert doomed.startswith("a.b_c-d-0.")
    assert len(doomed) == len("a.b_c-d-0.") + 32 + len("-delete")
    again = store.create(A, uuid.UUID(int=9), log.config)
    assert (again.log_end_offset, again.topic_id) == (0, uuid.UUID(int=9))
    store.tick(clock.now_ms)
    clock.now_ms += 60_000
    store.tick(clock.now_ms)
    eventually(lambda: not (tmp_path / doomed).exists(), "the directory is gone")
    assert result.slices[0].read()
    result.release()
    store.close()


@pytest.mark.parametrize("killed", [False, True], ids=["same process", "next process"])
def test_a_recovery_point_does_not_outlive_its_log(tmp_path, killed):
    """A new log of the name could end just there, and what only looks whole would not be checked."""
    store = _started(tmp_path)
    append(_create(store, A), batch(3))
    append(_create(store, B), batch(2))
    store.get(A).flusher.flush()
    store.get(B).flusher.flush()
    store.checkpoint()
    points = tmp_path / "recovery-point-offset-checkpoint"
    assert points.read_text() == f"0\n2\n{A.topic} 0 3\n{A.topic} 11 2\n"
    store.delete(A)
    if killed:
        store.close(clean=False)
        store = _started(tmp_path)
    append(_create(store, A), batch(3))
    assert f"{A.topic} 0 3" not in points.read_text()
    assert f"{A.topic} 11 2" in points.read_text()
    store.close(clean=False)
    again = _started(tmp_path)
    assert again.get(A).recovery_report.segments_scanned == 1
    assert again.get(B).recovery_report.segments_scanned == 0
    again.close()


def test_a_saved_start_outlives_a_kill_and_not_its_log(tmp_path):
    store = _started(tmp_path)
    for tp in (A, B):
        append(_create(store, tp), batch(5))
        store.get(tp).truncation.delete_records_before(5 if tp == A else 0)
    store.get(A).truncation.delete_records_before(3)
    store.get(B).appender.set_high_watermark(5)
    store.get(B).truncation.delete_records_before(2)
    store.get(B).truncation.save_start()
    store.close(clean=False)
    again = _started(tmp_path)
    assert [again.get(tp).log_start_offset for tp in (A, B)] == [5, 2], "one call serves all logs of the directory"
    again.delete(A)
    again.close(clean=False)
    last = _started(tmp_path)
    append(_create(last, A), batch(3))
    last.close(clean=False)
    end = _started(tmp_path)
    assert end.get(A).log_start_offset == 0, "the start of the log before would hide what is in the new one"
    end.close()


def test_a_start_above_the_batch_at_which_a_log_restarted_is_saved(tmp_path):
    """A follower begins at its leader's start, and again at the batch in which that start lies."""
    store = _started(tmp_path)
    log = _create(store, A)
    log.truncation.restart_at(11)
    log.truncation.save_start()  # the name of the segment says it
    log.truncation.restart_at(9)
    append(log, batch(4))
    log.appender.set_high_watermark(13)
    log.truncation.raise_start(11)
    log.truncation.save_start()
    store.close(clean=False)
    again = _started(tmp_path)
    assert again.get(A).log_start_offset == 11
    again.close()


def test_a_log_that_starts_over_below_its_saved_start_keeps_what_it_gets(tmp_path):
    """A leader that was elected uncleanly ends below what was deleted: the former start must hide nothing."""
    store = _started(tmp_path)
    log = _create(store, A)
    log.truncation.restart_at(40)
    append(log, batch(60), epoch=1)
    log.truncation.delete_records_before(50)
    log.truncation.save_start()
    log.truncation.truncate_to(30, now_ms=NOW)
    for _ in range(50):
        append(log, batch(1), epoch=2)
    log.flusher.flush()
    store.close(clean=False)
    again = _started(tmp_path)
    assert (again.get(A).log_start_offset, again.get(A).log_end_offset) == (30, 80)
    again.close()


def test_a_start_that_is_saved_is_not_overtaken_by_the_checkpoint_under_way(tmp_path):
    store, log = _flushed(tmp_path)
    store.tick(NOW + 60_000)
    assert store.directories[0].checkpoint is not None
    log.appender.set_high_watermark(10)
    log.truncation.delete_records_before(7)
    log.truncation.save_start()
    for _ in range(3):
        store.tick(NOW + 60_000)
    assert store.directories[0].checkpoint is None
    assert f"{A.topic} 0 10" in (tmp_path / "recovery-point-offset-checkpoint").read_text(), "the others are written"
    assert store.offline_directories == [], "what was renamed already is not renamed again"
    store.close(clean=False)
    again = _started(tmp_path)
    assert again.get(A).log_start_offset == 7
    again.close()


def test_a_deletion_cut_off_by_a_kill_is_finished(tmp_path):
    store = _started(tmp_path)
    _create(store, A)
    store.delete(A)
    store.close(clean=False)
    report = _store(tmp_path).load()
    assert len(report.removed) == 1
    assert report.logs == 0


def test_long_topic_names_can_be_deleted(tmp_path):
    store = _started(tmp_path)
    tp = TopicPartition("x" * 249, 0)
    _create(store, tp)
    store.delete(tp)
    (doomed,) = [name for name in os.listdir(tmp_path) if name.endswith("-delete")]
    assert len(doomed) == 255
    store.close(clean=False)
    assert len(_store(tmp_path).load().removed) == 1


def test_partitions_spread_over_directories_and_fail_alone(tmp_path):
    disk = FaultyDisk()
    store = _started([tmp_path / "d1", tmp_path / "d2"], disk)
    logs = [_create(store, TopicPartition("t", i)) for i in range(6)]
    homes = {log: Path(log.directory).parent.name for log in logs}
    assert sorted(homes.values()) == ["d1"] * 3 + ["d2"] * 3
    for log in logs:
        append(log, batch(1))
    disk.faults.append(Fault("write", "/d1/", error=errno.EIO, times=1))
    bad = next(log for log in logs if homes[log] == "d1")
    assert append(bad, batch(1)).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert store.offline_directories == [str(tmp_path / "d1")]
    for log in logs:
        want = ErrorCode.KAFKA_STORAGE_ERROR if homes[log] == "d1" else ErrorCode.NONE
        assert append(log, batch(1)).error == want
    store.tick(NOW)
    store.checkpoint()
    assert Path(_create(store, TopicPartition("u", 0)).directory).parent.name == "d2"
    store.close()
    assert not (tmp_path / "d1" / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "d2" / ".kafka_cleanshutdown").exists()


def test_an_unusable_directory_at_the_start(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    store = _store([tmp_path / "file", tmp_path / "good"])
    assert store.load().offline_directories == [str(tmp_path / "file")]
    _create(store, A)
    store.close()
    with pytest.raises(StoreRefused, match=r"log\.dirs"):
        _store(tmp_path / "file").load()


def test_a_full_disk_at_upkeep_stops_nothing(tmp_path):
    disk = FaultyDisk()
    clock = ManualClock()
    store = _started(tmp_path, disk, clock=clock)
    log = _create(store, A)
    append(log, batch(1))
    store.tick(clock.now_ms)
    disk.faults.append(Fault("replace", "checkpoint"))
    clock.now_ms += 10_000_000
    store.tick(clock.now_ms)
    assert append(log, batch(1)).error == ErrorCode.NONE
    disk.faults.clear()
    clock.now_ms += 10_000_000
    store.tick(clock.now_ms)
    assert "a.b_c-d 0" in (tmp_path / "replication-offset-checkpoint").read_text()


def _tick_until_flushed(store, log, now):
    store.tick(now)
    while log.pending_flush is not None:
        time.sleep(0.001)
        store.tick(now)


def test_the_ack_policy_flushes_before_it_answers(tmp_path):
    disk = FaultyDisk()
    store = _started(tmp_path, disk, log_flush_policy="ack")
    log = _create(store, A)
    for i in range(3):
        append(log, batch(1))
        assert log.recovery_point == i + 1
    disk.faults.append(Fault("sync", ".log", error=errno.EIO, times=1))
    assert append(log, batch(1)).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert store.offline_directories


def test_a_failed_background_flush_takes_the_directory_offline(tmp_path):
    disk = FaultyDisk()
    store = _started(tmp_path, disk)
    log = store.create(A, TOPIC_ID, dataclasses.replace(_config(".").topic_defaults(), flush_ms=0))
    append(log, batch(1))
    disk.faults.append(Fault("sync_later", error=errno.EIO, times=1))
    store.tick(NOW)
    store.tick(NOW)
    assert log.recovery_point == 0
    assert store.offline_directories == [str(tmp_path)]


def test_a_clean_start_and_stop_writes_nothing(tmp_path):
    store = _started(tmp_path)
    for i in range(3):
        append(_create(store, TopicPartition("t", i)), produced(1, 0, 0))
    store.close()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("t-*/*")}
    store = _started(tmp_path)
    store.close()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("t-*/*")} == before


def test_snapshots_of_earlier_stops_go(tmp_path):
    for i in range(4):
        store = _started(tmp_path)
        append(_create(store, A), produced(1, 0, i))
        store.close()
    assert len(list((tmp_path / str(A)).glob("*.snapshot"))) <= 2


def test_ticks_flush_closed_segments_and_checkpoint(tmp_path):
    clock = ManualClock()
    store = _started(tmp_path, clock=clock)
    log = store.create(A, TOPIC_ID, dataclasses.replace(_config(".").topic_defaults(), segment_bytes=300))
    store.tick(clock.now_ms)
    append(log, batch(1))
    store.tick(clock.now_ms)
    assert log.recovery_point == 0, "the active segment is left to the system"
    for _ in range(10):
        append(log, batch(1))
    closed = log.segments.active.base_offset
    _tick_until_flushed(store, log, clock.now_ms)
    assert log.recovery_point == closed > 0
    log.config = dataclasses.replace(log.config, flush_ms=500)
    _tick_until_flushed(store, log, NOW + 499)
    assert log.recovery_point == closed
    _tick_until_flushed(store, log, NOW + 500)
    assert log.recovery_point == 11
    clock.now_ms += 60_000
    store.tick(clock.now_ms)
    checkpoint = tmp_path / "recovery-point-offset-checkpoint"
    assert A.topic not in checkpoint.read_text(), "its fsync was not waited for"
    _tick_until_checkpointed(store, clock.now_ms)
    assert f"{A.topic} 0 11" in checkpoint.read_text()


def _tick_until_checkpointed(store, now):
    eventually(lambda: [store.tick(now), store.directories[0].checkpoint is None][1], "the checkpoint is written")


def _flushed(path, disk=None):
    """A store that has ticked, with one log of two batches of five records that are safe on disk."""
    store = _started(path, disk or FaultyDisk())  # which syncs at once
    log = _create(store, A)
    store.tick(NOW)
    append(log, batch(5))
    append(log, batch(5))
    log.flusher.flush()
    return store, log


def test_a_cut_gives_up_the_checkpoint_under_way(tmp_path):
    """Its recovery points would say that what is appended behind the cut is safe on disk."""
    store, log = _flushed(tmp_path)
    store.tick(NOW + 60_000)
    assert store.directories[0].checkpoint is not None
    log.truncation.truncate_to(5, now_ms=NOW)
    assert store.directories[0].checkpoint is None
    for _ in range(3):
        store.tick(NOW + 60_000)
    assert f"{A.topic} 0 5" in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    store.close()


def test_a_partition_made_again_gives_up_the_checkpoint_under_way(tmp_path):
    store, _ = _flushed(tmp_path)
    store.tick(NOW + 60_000)
    store.delete(A)
    _create(store, A)
    for _ in range(3):
        store.tick(NOW + 60_000)
    assert A.topic not in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    assert not store.offline_directories, "and nothing was left to rename"
    store.close()


def test_deleted_partitions_are_forgotten_once_no_checkpoint_has_them(tmp_path):
    store, _ = _flushed(tmp_path, RealDisk())
    store.tick(NOW + 60_000)
    store.delete(A)
    _tick_until_checkpointed(store, NOW + 60_000)
    assert "a.b_c-d" in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    assert store.checkpoints.outlived == {A}, "the checkpoint that was under way still had it"
    store.tick(NOW + 120_000)
    _tick_until_checkpointed(store, NOW + 120_000)
    assert "a.b_c-d" not in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    assert store.checkpoints.outlived == set()
    store.close()


def test_a_cut_is_not_made_before_the_lower_recovery_point_is_written(tmp_path):
    """Neither at the first attempt nor at the next: the disk says what it said before."""
    disk = FaultyDisk()
    store, log = _flushed(tmp_path, disk)
    store.checkpoint()
    disk.faults.append(Fault("replace", "recovery-point-offset-checkpoint", error=errno.ENOSPC, times=2))
    for _ in range(2):
        with pytest.raises(DiskFull):
            log.truncation.truncate_to(5, now_ms=NOW)
        assert (log.log_end_offset, log.recovery_point) == (10, 10)
    log.truncation.truncate_to(5, now_ms=NOW)
    assert f"{A.topic} 0 5" in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    store.close()


@pytest.mark.parametrize(("op", "what"), [("rename", "-0"), ("sync_later", "")])
def test_a_deletion_that_the_disk_fails(tmp_path, op, what):
    """The directory goes offline: a log of that name might be the deleted one."""
    disk = FaultyDisk()
    store, _ = _flushed(tmp_path, disk)
    disk.faults.append(Fault(op, str(A) if what else str(tmp_path), error=errno.EIO, times=1))
    store.delete(A)
    store.tick(NOW)
    assert store.offline_directories == [str(tmp_path)]
    with pytest.raises(DiskFailed):
        _create(store, A)
    store.close()


def test_a_deletion_on_a_full_disk_makes_room_at_once(tmp_path):
    disk = FaultyDisk()
    store = _started(tmp_path, disk)
    append(_create(store, A), batch(10))
    disk.faults.append(Fault("rename", str(A), error=errno.ENOSPC, times=1))
    store.delete(A)
    assert not (tmp_path / str(A)).exists()
    assert not store.offline_directories
    assert _create(store, A).log_end_offset == 0
    store.close()


def test_idle_segments_give_back_what_is_allocated_ahead(tmp_path, monkeypatch):
    clock = ManualClock()
    store = _started(tmp_path, clock=clock)
    idle, busy = _create(store, A), _create(store, TopicPartition("busy", 0))
    trimmed = []
    for log in (idle, busy):
        append(log, batch(1))
    monkeypatch.setattr(
        Flusher, "trim_if_idle", lambda part, since_ms: trimmed.append((part._log, part._log.last_now_ms < since_ms))
    )
    store.tick(NOW)
    append(busy, batch(1), now_ms=NOW + 500_000)
    store.tick(NOW + 600_001)
    assert trimmed == [(idle, True), (busy, False)]
    store.close()


@pytest.mark.parametrize(("op", "code"), [("write", errno.ENOSPC), ("sync_later", errno.EIO), ("rename", errno.EIO)])
def test_a_disk_that_fails_a_checkpoint_under_way(tmp_path, op, code):
    """A full disk keeps the old ones until the next time; a failed one goes offline."""
    disk = FaultyDisk()
    store, _ = _flushed(tmp_path, disk)
    disk.faults.append(Fault(op, "recovery-point-offset-checkpoint", error=code, times=1))
    store.tick(NOW + 60_000)
    _tick_until_checkpointed(store, NOW + 60_000)
    assert store.offline_directories == ([str(tmp_path)] if code == errno.EIO else [])
    assert A.topic not in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    if code == errno.ENOSPC:
        store.tick(NOW + 120_000)
        _tick_until_checkpointed(store, NOW + 120_000)
        assert f"{A.topic} 0 10" in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    store.close()


def test_retention_by_tick(tmp_path):
    clock = ManualClock()
    store = _started(tmp_path, clock=clock)
    log = store.create(A, TOPIC_ID, dataclasses.replace(_config(".").topic_defaults(), retention_ms=1000))
    append(log, batch(1))
    store.tick(clock.now_ms)
    clock.now_ms += 300_000
    store.tick(clock.now_ms)
    assert log.log_start_offset == 1


def test_a_tiered_topic_loses_by_age_what_its_tier_releases_and_nothing_else(tmp_path):
    clock = ManualClock()
    store = _started(tmp_path, clock=clock)
    store.tiered = lambda config: config.tiers
    defaults = _config(".").topic_defaults()
    log = store.create(A, TOPIC_ID, dataclasses.replace(defaults, retention_ms=1000, remote_storage_enable=True))
    append(log, batch(2))
    log.appender.roll(clock.now_ms)
    append(log, batch(1))
    store.tick(clock.now_ms)
    clock.now_ms += 300_000
    store.tick(clock.now_ms)
    assert (log.log_start_offset, len(log.segments)) == (0, 2)
    log.truncation.raise_start(2)
    clock.now_ms += 300_000
    store.tick(clock.now_ms)
    assert (log.log_start_offset, len(log.segments)) == (2, 1)


def test_many_partitions_cost_no_descriptors(tmp_path):
    disk = RealDisk()
    store = _started(tmp_path, disk)
    for i in range(300):
        _create(store, TopicPartition("t", i))
    for i in range(0, 300, 3):
        append(store.get(TopicPartition("t", i)), batch(1))
    store.close()
    disk = RealDisk(max_open=64)
    store = _started(tmp_path, disk)
    assert len(disk.opened) <= 64
    assert sum(log.log_end_offset for log in store.all().values()) == 100
    store.close()


WRITER = """
import sys; sys.path.insert(0, sys.argv[2])
import random, uuid
from fleetlog.brokers.log import RealDisk
from tests.log.test_store import _started, A, _config, TOPIC_ID
from tests.support.logs import append, append_txn, batch, end_txn, produced
import dataclasses
store = _started(sys.argv[1])
log = store.get(A)
config = dataclasses.replace(_config(".").topic_defaults(), segment_bytes=20_000, index_interval_bytes=500)
if log is None:
    log = store.create(A, TOPIC_ID, config)
log.config = config
rng = random.Random()
entry = log.producers.entries.get(1)
sequence = entry.last_sequence + 1 if entry else 0
i = 0
while True:
    info = append(log, produced(1, 0, sequence, 2, value=b"%d" % i * rng.randrange(40)))
    assert info.error == 0, info
    sequence += 2
    pid = 1000 + log.log_end_offset
    append_txn(log, pid, 0, 0)
    end_txn(log, pid, 0, commit=rng.random() < .5)
    if i % 50 == 0:
        store.tick(i * 100); store.checkpoint()
    print(log.log_end_offset, flush=True)
    i += 1
"""


def test_kill_nine_again_and_again(tmp_path):
    """A real process is killed while it appends; what it said is appended is there, and sequences go on."""
    reached = 0
    for round_number in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path, ROOT], stdout=subprocess.PIPE, text=True
        ) as writer:
            wanted = 20 + 37 * round_number
            lines = [writer.stdout.readline() for _ in range(wanted)]
            time.sleep(0.003 * round_number)
            writer.send_signal(signal.SIGKILL)
            lines += writer.stdout.read().split("\n")
        said = max(int(text) for text in lines if text.strip().isdigit())
        assert said > reached
        store = _store(tmp_path)
        report = store.load()
        assert report.unclean_directories
        log = store.get(A)
        assert log.log_end_offset >= said
        reached = log.log_end_offset
        assert [r.offset for r in records(log)] == sorted(r.offset for r in records(log))
        assert log.producers.entries[1].last_sequence % 2 == 1
        store.close(clean=False)


def test_usage_lists_the_directories_their_volumes_and_logs(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    store = _started([first, second])
    append(_create(store, A), batch(3))
    _create(store, B)
    left, right = store.usage()
    assert [left.path, right.path] == [str(first), str(second)]
    assert {log.topic_partition for log in (*left.logs, *right.logs)} == {A, B}
    assert len(left.logs) == len(right.logs) == 1
    volume = os.statvfs(tmp_path)
    assert left.total_bytes == right.total_bytes == volume.f_blocks * volume.f_frsize
    assert 0 <= left.usable_bytes <= left.total_bytes
    store.take_offline(store.directories[0])
    left, right = store.usage()
    assert (left.offline, left.total_bytes, left.usable_bytes, len(left.logs)) == (True, -1, -1, 1)
    assert (right.offline, right.total_bytes) == (False, volume.f_blocks * volume.f_frsize)
    store.close()


@pytest.mark.parametrize("old_disk", [0, 1])
@pytest.mark.parametrize("behind", ["epoch", "end"])
def test_a_disk_that_comes_back_with_an_old_copy(tmp_path, old_disk, behind):
    """The broker ran without it, and copied the partition to the other disk."""
    disks = [tmp_path / "one", tmp_path / "two"]
    for number, disk in enumerate(disks):
        store = _started([disk])
        log = _create(store, A)
        append(log, batch(5 if behind == "epoch" and number == old_disk else 2), epoch=1)
        if number != old_disk:
            append(log, batch(1), epoch=2 if behind == "epoch" else 1)
        store.close(broker_epoch=1)
    store = _store(disks)
    report = store.load()
    (log,) = store.all().values()
    assert log.log_end_offset == 3
    assert Path(log.directory).parent == disks[1 - old_disk]
    (line,) = report.set_aside
    (aside,) = disks[old_disk].glob("*-stray")
    assert str(aside) in line
    assert line in report.warnings()
    append(log, batch(1), epoch=3)
    store.close(broker_epoch=2)
    store = _store(disks)
    assert store.load().set_aside == []
    assert store.get(A).log_end_offset == 4
    assert aside.exists(), "a person decides what becomes of it"


def test_an_old_copy_that_cannot_be_set_aside_is_served(tmp_path, monkeypatch):
    disks = [tmp_path / "one", tmp_path / "two"]
    for disk, count in zip(disks, (2, 3), strict=True):
        store = _started([disk])
        append(_create(store, A), batch(count))
        store.close(broker_epoch=1)
    store = _store(disks)

    def rename(self, source, target):
        raise DiskFull(source, "no room for a longer name")

    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "rename", rename)
        store.load()
    log = store.get(A)
    assert log.log_end_offset == 2
    assert len(records(log)) == 2
    assert append(log, batch(1)).error == ErrorCode.NONE
    store.close(broker_epoch=2)


@pytest.mark.parametrize("present", [0, 1])
@pytest.mark.parametrize("unreadable", [False, True])
def test_of_two_disks_with_two_topics_of_one_name_that_of_the_present_topic_stays(tmp_path, present, unreadable):
    """A topic was deleted and made again while one of the disks was away; its file may have lost what was in it."""
    disks = [tmp_path / "one", tmp_path / "two"]
    for number, disk in enumerate(disks):
        store = _started([disk])
        log = store.create(A, uuid.UUID(int=number + 1), _config(".").topic_defaults())
        append(log, batch(number + 2))
        store.close(broker_epoch=1)
    if unreadable:
        (disks[1 - present] / str(A) / "partition.metadata").write_bytes(b"")
    store = _started(disks)
    store.settle(A, uuid.UUID(int=present + 1))
    log = store.get(A)
    assert (log.topic_id, log.log_end_offset) == (uuid.UUID(int=present + 1), present + 2)
    assert Path(log.directory).parent == disks[present]
    assert [directory.logs for directory in store.directories] == [present == 0, present == 1]
    assert len(list(disks[1 - present].glob("*-stray"))) == 1
    append(log, batch(1))
    store.close(broker_epoch=2)
    store = _started(disks)
    assert store.get(A).log_end_offset == present + 3
    store.close()


def test_a_clean_stop_before_the_topic_is_known_leaves_both(tmp_path):
    disks = [tmp_path / "one", tmp_path / "two"]
    for number, disk in enumerate(disks):
        store = _started([disk])
        store.create(A, uuid.UUID(int=number + 1), _config(".").topic_defaults())
        store.close(broker_epoch=1)
    _started(disks).close(broker_epoch=2)
    assert all((disk / str(A)).is_dir() for disk in disks)
