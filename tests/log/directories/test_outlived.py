"""What the checkpoints say of a log ends with it, and with the records it was said of: no later start believes it.

Each store is left as a killed process leaves it, before the next periodic checkpoint.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from fleetlog.brokers.log import DiskFull, Log, LogStore
from fleetlog.brokers.log.disk.checkpoints import encode_offsets
from tests.support.faulty import Fault, FaultyDisk
from tests.support.log_stores import made, started
from tests.support.logs import NOW, TP, append, batch

HIGH_WATERMARKS, CLEANED = "replication-offset-checkpoint", "cleaner-offset-checkpoint"
POINTS = ("recovery-point-offset-checkpoint", HIGH_WATERMARKS)


def saved(path: Path, disk: FaultyDisk | None = None) -> tuple[LogStore, Log]:
    """A log of two batches of five records, committed and safe on disk, as the checkpoints say."""
    store = started(path, disk)
    log = made(store)
    append(log, batch(5))
    append(log, batch(5))
    log.flusher.flush()
    store.checkpoint()
    return store, log


def lose_the_tail(store: LogStore, log: Log) -> None:
    """The second batch goes with the power, which what the checkpoints say survives."""
    segment = Path(log.segments.active.log.path)
    store.close(clean=False)
    segment.write_bytes(segment.read_bytes()[: len(batch(5))])


def restarted(store: LogStore, path: Path) -> Log:
    """The log behind a kill and a start."""
    store.close(clean=False)
    log = started(path).get(TP)
    assert log is not None
    return log


def test_a_new_log_of_that_name_has_nothing_committed(tmp_path: Path) -> None:
    store, _ = saved(tmp_path)
    store.delete(TP)
    append(made(store), batch(10), commit_hw=False)
    log = restarted(store, tmp_path)
    assert (log.log_end_offset, log.high_watermark) == (10, 0)


@pytest.mark.parametrize("name", [*POINTS, CLEANED])
def test_nor_where_the_old_one_went_while_the_broker_was_down(tmp_path: Path, name: str) -> None:
    """Each checkpoint alone is enough to remember it."""
    store, log = saved(tmp_path)
    store.close(clean=False)
    shutil.rmtree(log.directory)
    for other in (*POINTS, CLEANED):
        (tmp_path / other).write_bytes(encode_offsets({TP: 10} if other == name else {}))
    store = started(tmp_path)
    append(made(store), batch(10), commit_hw=False)
    store.close(clean=False)
    assert TP.topic not in (tmp_path / name).read_text()


def test_what_is_appended_behind_a_cut_is_not_committed(tmp_path: Path) -> None:
    store, log = saved(tmp_path)
    log.truncation.truncate_to(5, now_ms=NOW)
    append(log, batch(5), commit_hw=False)
    log = restarted(store, tmp_path)
    assert (log.log_end_offset, log.high_watermark) == (10, 5)


def test_no_cut_before_the_lower_high_watermark_is_written(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store, log = saved(tmp_path, disk)
    disk.faults.append(Fault("replace", HIGH_WATERMARKS, error=errno.ENOSPC, times=2))
    for _ in range(2):
        with pytest.raises(DiskFull):
            log.truncation.truncate_to(5, now_ms=NOW)
        assert (log.log_end_offset, log.high_watermark) == (10, 10)
    log.truncation.truncate_to(5, now_ms=NOW)
    assert f"{TP.topic} {TP.partition} 5" in (tmp_path / HIGH_WATERMARKS).read_text()
    store.close()


def test_nor_behind_the_end_of_a_log_that_lost_its_tail(tmp_path: Path) -> None:
    """As power that fails leaves it: what was committed need not be on this disk."""
    store, log = saved(tmp_path)
    lose_the_tail(store, log)
    (tmp_path / CLEANED).write_bytes(encode_offsets({TP: 10}))
    store = started(tmp_path)
    (log,) = store.all().values()
    assert (log.log_end_offset, log.high_watermark) == (5, 5)
    append(log, batch(5), commit_hw=False)
    store.close(clean=False)
    for name in (*POINTS, CLEANED):
        assert f"{TP.topic} {TP.partition} 5" in (tmp_path / name).read_text()


def test_a_full_disk_does_not_keep_such_a_log_from_starting(tmp_path: Path) -> None:
    store, log = saved(tmp_path)
    lose_the_tail(store, log)
    disk = FaultyDisk()
    disk.faults.append(Fault("replace", HIGH_WATERMARKS, error=errno.ENOSPC, times=1))
    store = started(tmp_path, disk)
    assert not store.offline_directories
    store.close()
