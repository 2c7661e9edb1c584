"""What a large segment has allocated behind its end, and when it gives that back. Needs a directory on ext4."""

import ctypes
import errno
import os
from types import SimpleNamespace

import pytest

from fleetlog.brokers.log import RealDisk
from fleetlog.brokers.log.disk import files
from fleetlog.brokers.log.disk.files import PREALLOCATED_FROM, PREALLOCATED_MAX, file_system
from tests.support.logs import append, batch, config, open_log

GIB = 1 << 30


def _allocated(path):
    return os.stat(path).st_blocks * 512


@pytest.fixture
def volume(monkeypatch):
    """An ext4 with much room, on whatever file system the tests run."""
    found = SimpleNamespace(f_frsize=4096, f_blocks=100 * GIB // 4096, f_bavail=50 * GIB // 4096)
    monkeypatch.setattr(files, "file_system", lambda _: "ext4")
    monkeypatch.setattr(os, "fstatvfs", lambda _: found)
    return found


@pytest.fixture
def calls(monkeypatch, volume):
    """(offset, length) of the calls."""
    made = []
    monkeypatch.setattr(files, "_fallocate", lambda fd, mode, *range_: made.append(range_) or 0)
    return made


@pytest.fixture
def file(tmp_path):
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    file.expect_growth()
    return file


def _write(file, size):
    file.write(bytes(size - file.size), file.size)


def test_small_files_get_nothing(file, calls):
    _write(file, PREALLOCATED_FROM)
    assert not calls
    _write(file, PREALLOCATED_FROM + 1)
    assert calls == [(PREALLOCATED_FROM + 1, PREALLOCATED_FROM + 1)]


def test_nor_do_indexes(tmp_path, calls):
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    _write(file, 2 * PREALLOCATED_FROM)
    file.truncate(PREALLOCATED_FROM)
    _write(file, 2 * PREALLOCATED_FROM)
    assert not calls


def test_as_much_as_there_is_but_not_more_than_the_limit(file, calls):
    _write(file, 3 * PREALLOCATED_FROM)
    _write(file, 6 * PREALLOCATED_FROM)
    assert len(calls) == 1
    _write(file, 2 * PREALLOCATED_MAX)
    assert calls[1:] == [(2 * PREALLOCATED_MAX, PREALLOCATED_MAX)]
    _write(file, 3 * PREALLOCATED_MAX)
    assert len(calls) == 2


def test_a_cut_begins_anew(file, calls):
    _write(file, 2 * PREALLOCATED_FROM)
    file.truncate(2 * PREALLOCATED_FROM - 1)
    _write(file, 2 * PREALLOCATED_FROM)
    assert calls == [(2 * PREALLOCATED_FROM, 2 * PREALLOCATED_FROM)] * 2


@pytest.mark.parametrize(("free", "size"), [(GIB - 1, 100), (50 * GIB, 1000)])
def test_a_disk_that_fills_up_keeps_what_it_has(file, calls, volume, free, size):
    """Sixty-four times as much must be free, and a twentieth of the volume."""
    volume.f_bavail, volume.f_blocks = free // 4096, size * GIB // 4096 + 1
    _write(file, 4 * PREALLOCATED_FROM)
    assert not calls


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EOPNOTSUPP])
def test_a_refusal_is_no_error(file, monkeypatch, volume, code):
    """What was allocated before the room ended is given back; a file system that can't is not asked again."""
    calls, cuts = [], []

    def refuse(*args):
        calls.append(args)
        ctypes.set_errno(code)
        return -1

    monkeypatch.setattr(files, "_fallocate", refuse)
    monkeypatch.setattr(os, "ftruncate", lambda _, size: cuts.append(size))
    _write(file, 2 * PREALLOCATED_FROM)
    _write(file, 5 * PREALLOCATED_FROM)
    assert len(calls) == (2 if code == errno.ENOSPC else 1)
    assert cuts == ([2 * PREALLOCATED_FROM, 5 * PREALLOCATED_FROM] if code == errno.ENOSPC else [])
    assert file.size == 5 * PREALLOCATED_FROM


def test_an_error_on_the_way_is_no_error_of_the_append(file, monkeypatch, calls, caplog):
    def failing(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fstatvfs", failing)
    _write(file, 2 * PREALLOCATED_FROM)
    assert not calls
    assert "nothing is allocated ahead" in caplog.text


def test_other_file_systems_are_left_alone(file, monkeypatch, calls):
    monkeypatch.setattr(files, "file_system", lambda _: "tmpfs")
    _write(file, 2 * PREALLOCATED_FROM)
    assert not calls


def test_file_system_of_a_device(tmp_path, monkeypatch):
    assert file_system(os.stat("/proc").st_dev) == "proc"
    assert file_system(os.makedev(4000, 7)) is None
    mounts = tmp_path / "mountinfo"
    mounts.write_bytes(b"36 35 8:1 / /caf\xe9 rw - xfs /dev/x rw\n37 35 8:2 / /data rw shared:1 - ext4 /dev/y rw\n!\n")
    monkeypatch.setattr(files, "_MOUNTS", mounts)
    assert [file_system(os.makedev(8, minor)) for minor in (1, 2, 3)] == ["xfs", "ext4", None]


def test_a_segment_on_ext4(tmp_path):
    """Kept while it is written, also over a crash; given back when the segment is closed, with the size as it was."""
    path = tmp_path / "e-0"
    path.mkdir()
    settings = config(segment_bytes=64 << 20)
    log = open_log(path, config=settings)
    for _ in range(6):
        append(log, batch(1, value=os.urandom(1 << 20)))
    segment = log.segments.active.log
    size = segment.size
    assert not segment._spare or _allocated(segment.path) > size + PREALLOCATED_FROM
    assert os.path.getsize(segment.path) == size
    log.flusher.trim_if_idle(log.last_now_ms)
    log.flusher.trim_if_idle(log.last_now_ms + 1)
    assert _allocated(segment.path) < size + 65536
    for _ in range(12):
        append(log, batch(1, value=os.urandom(1 << 20)))
    size = segment.size
    log.abandon()
    log = open_log(path, config=settings)
    append(log, batch(1))
    segment = log.segments.active.log
    log.appender.roll(0)
    assert _allocated(segment.path) < segment.size + 65536
    assert os.path.getsize(segment.path) == segment.size > size
    log.abandon()
