"""What a large segment has allocated behind its end, and when it gives that back. Needs a directory on ext4."""

import os

import pytest

from brokers.log import RealDisk, preallocation
from brokers.log.preallocation import FROM, MOST, file_system
from tests.log.support import append, batch, config, open_log


def _allocated(path):
    return os.stat(path).st_blocks * 512


@pytest.fixture
def calls(monkeypatch):
    """(offset, length) of the calls, on whatever file system the tests run."""
    made = []
    monkeypatch.setattr(preallocation, "file_system", lambda _: "ext4")
    monkeypatch.setattr(preallocation, "_fallocate", lambda fd, mode, *range_: made.append(range_) or 0)
    return made


def _write(file, size):
    file.write(bytes(size - file.size), file.size)


def test_small_files_get_nothing(tmp_path, calls):
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    _write(file, FROM)
    assert not calls
    _write(file, FROM + 1)
    assert calls == [(FROM + 1, FROM + 1)]


def test_as_much_as_there_is_but_not_more_than_the_limit(tmp_path, calls):
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    _write(file, 3 * FROM)
    _write(file, 6 * FROM)
    assert len(calls) == 1
    _write(file, 2 * MOST)
    assert calls[1:] == [(2 * MOST, MOST)]
    _write(file, 3 * MOST)
    assert len(calls) == 2


def test_a_cut_begins_anew(tmp_path, calls):
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    _write(file, 2 * FROM)
    file.truncate(2 * FROM - 1)
    _write(file, 2 * FROM)
    assert calls == [(2 * FROM, 2 * FROM)] * 2


@pytest.mark.parametrize("supported", [True, False])
def test_a_refusal_is_no_error(tmp_path, monkeypatch, supported):
    """No room is asked for again later; a file system that can't is not asked again."""
    import ctypes
    import errno

    calls = []

    def refuse(*args):
        calls.append(args)
        ctypes.set_errno(errno.ENOSPC if supported else errno.EOPNOTSUPP)
        return -1

    monkeypatch.setattr(preallocation, "file_system", lambda _: "ext4")
    monkeypatch.setattr(preallocation, "_fallocate", refuse)
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    _write(file, 2 * FROM)
    _write(file, 5 * FROM)
    assert len(calls) == (2 if supported else 1)
    assert file.size == 5 * FROM


def test_other_file_systems_are_left_alone(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(preallocation, "file_system", lambda _: "tmpfs")
    monkeypatch.setattr(preallocation, "_fallocate", lambda *args: calls.append(args) or 0)
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    _write(file, 2 * FROM)
    assert not calls


def test_file_system_of_a_device():
    assert file_system(os.stat("/proc").st_dev) == "proc"
    assert file_system(os.makedev(4000, 7)) is None


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
    helps = log.disk.preallocation._helps == {os.stat(path).st_dev: True}
    assert not helps or _allocated(segment.path) > size + FROM
    assert os.path.getsize(segment.path) == size
    log.abandon()
    log = open_log(path, config=settings)
    append(log, batch(1))
    segment = log.segments.active.log
    log.roll(0)
    assert _allocated(segment.path) < segment.size + 65536
    assert os.path.getsize(segment.path) == segment.size > size
    log.abandon()
