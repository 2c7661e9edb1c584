"""A start on a full disk: what a kill left behind is mended in the room that there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.crashes import RecordingDisk
from tests.support.faulty import DyingDisk, Fault, FaultyDisk, Killed
from tests.support.logs import (
    NOW,
    aborted_entries,
    append,
    append_txn,
    batch,
    config,
    content,
    end_txn,
    files,
    open_log,
)
from tests.support.needs import needs_mounts

ROOT = Path(__file__).parents[3]
SETTINGS = config(index_interval_bytes=100)
_STORE = """
import errno, sys
from pathlib import Path
from tests.support.log_stores import made, started
from tests.support.logs import NOW, TP, append, batch
root = Path(sys.argv[1])
def fill():
    with (root / "ballast").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as full:
            assert full.errno == errno.ENOSPC
store = started(root / "data")
log = made(store)
for n in range(31):
    append(log, batch(1, value=b"v" * 2000, timestamp=NOW + n), epoch=1)
store.close()
store = started(root / "data")
log = store.get(TP)
for n in range(31):
    append(log, batch(1, value=b"v" * 2000, timestamp=NOW + 31 + n), epoch=1)
log.segments.active.flush_indexes()
fill()
assert append(log, batch(1, value=b"x" * 9000), epoch=1).error
fill()
store.directories[0].lock.close()
store = started(root / "data")
assert not store.offline_directories
assert store.get(TP).log_end_offset == 62
"""


def test_a_store_on_a_full_file_system(tmp_path):
    mount = f'mount -t tmpfs -o size=4m tmpfs {tmp_path} && exec "$@"'
    within = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    needs_mounts()
    run = [*within, sys.executable, "-c", _STORE, str(tmp_path)]
    subprocess.run(run, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=True, timeout=60)


def _killed(path) -> int:
    """A log that lived through a clean stop, whose indexes a rebuild would make otherwise; the end of that stop."""
    log = open_log(path, config=SETTINGS)
    for n in range(4):
        append(log, batch(1, timestamp=NOW + n))
    for producer in (7, 8):
        append_txn(log, producer, 0, 0, 2)
        end_txn(log, producer, 0, commit=producer == 7)
    log.close()
    stopped = log.log_end_offset
    log = open_log(path, clean=True, recovery_point=stopped, config=SETTINGS)
    append(log, batch(1, value=b"v" * 150, timestamp=NOW + 50))
    for n in range(4):
        append(log, batch(1, timestamp=NOW + 100 + n))
    log.segments.active.flush_indexes()
    for index, place in ((log.segments.active.txn_index, -10), (log.segments.active.offset_index, -6)):
        data = bytearray(index.data * 2)
        data[place] = 1  # an offset above the end: what it says is of a history that was cut off
        data[place - len(data) // 2] = 1
        Path(index.path).write_bytes(data)
    log.abandon()
    return stopped


def _state(log):
    return content(log), aborted_entries(log), [segment.max_timestamp for segment in log.segments]


@pytest.mark.parametrize("at_the_point", [False, True])
def test_indexes_are_mended_in_place(tmp_path, at_the_point):
    stopped = _killed(tmp_path / "e-0")
    stopped = 15 if at_the_point else stopped
    roomy, full = tmp_path / "roomy", tmp_path / "full"
    for path in (roomy, full):
        path.mkdir()
        for name, data in files(tmp_path / "e-0").items():
            (path / name).write_bytes(data)
    want = open_log(roomy, recovery_point=stopped, config=SETTINGS, high_watermark=1 << 40)
    assert want.log_end_offset == 15
    disk = FaultyDisk(Fault("replace", "index"))
    log = open_log(full, disk, recovery_point=stopped, config=SETTINGS, high_watermark=1 << 40)
    assert _state(log) == _state(want)
    log.abandon()
    want.abandon()
    assert files(full) == files(roomy)


def test_a_process_that_dies_while_it_mends_an_index_in_place(tmp_path):
    """The next start does not believe what is there by half, though the log ends at its recovery point."""
    want = None
    for step in range(200):
        path, disk = tmp_path / f"e-{step}", DyingDisk(Fault("replace", "index"))
        _killed(path)
        disk.left = step
        try:
            open_log(path, disk, recovery_point=15, config=SETTINGS).abandon()
        except Killed:
            pass
        log = open_log(path, recovery_point=15, config=SETTINGS, high_watermark=1 << 40)
        state = _state(log)
        want = want or state
        assert state == want, step
        log.abandon()
        if disk.left:
            return
    pytest.fail("a start takes fewer operations")


def test_a_start_after_a_kill_waits_for_no_disk(tmp_path):
    """What it mends above the recovery point is covered by the next flush; at the point and below none is to come."""
    stopped = _killed(tmp_path / "e-0")
    disk = RecordingDisk()
    disk.found(str(tmp_path / "e-0"))
    begun = len(disk.ops)
    log = open_log(tmp_path / "e-0", disk, recovery_point=stopped, config=SETTINGS)
    assert [op.kind for op in disk.ops[begun:] if op.kind.startswith("sync")] == []
    mended = [op.to for op in disk.ops[begun:] if op.kind == "rename"]
    assert len(mended) >= 2
    log.flusher.flush()
    synced = {op.path for op in disk.ops[begun:] if op.kind.startswith("sync")}
    assert {*mended, str(tmp_path / "e-0")} <= synced
    log.abandon()


def test_what_a_start_mends_at_the_recovery_point_is_durable(tmp_path):
    _killed(tmp_path / "e-0")
    disk = RecordingDisk()
    disk.found(str(tmp_path / "e-0"))
    begun = len(disk.ops)
    open_log(tmp_path / "e-0", disk, recovery_point=15, config=SETTINGS).abandon()
    ops = [(op.kind, op.path) for op in disk.ops[begun:]]
    mended = [place for place, (kind, _) in enumerate(ops) if kind == "rename"]
    assert len(mended) >= 2
    for place in mended:
        assert ops[place - 1] == ("sync", ops[place][1])
        assert ("syncdir", str(tmp_path / "e-0")) in ops[place:]


@pytest.mark.parametrize("kind", ["", ".index", ".timeindex", ".txnindex", ".snapshot"])
def test_a_start_without_any_room(tmp_path, kind):
    """What finds none stays in memory, and is written by the first flush that finds some."""
    path, settings = tmp_path / "e-0", config(index_interval_bytes=100, segment_bytes=600)
    log = open_log(path, config=settings)
    for producer in range(8):
        append_txn(log, producer, 0, 0, 2)
        end_txn(log, producer, 0, commit=False)
    want = _state(log)
    log.abandon()
    for file in {*path.glob(f"*{kind or 'index'}"), *path.glob("*.snapshot")}:
        file.unlink()
    disk = FaultyDisk(*(Fault(op, kind) for op in ("replace", "write", "create")))
    log = open_log(path, disk, config=settings, high_watermark=1 << 40)
    assert _state(log) == want
    disk.faults.clear()
    append(log, batch(1))
    log.flusher.flush()
    want = _state(log)
    log.abandon()
    log = open_log(path, recovery_point=log.log_end_offset, config=settings, high_watermark=1 << 40)
    assert log.recovery_report.segments_scanned == 0
    assert _state(log) == want
