"""What is done on the disk's threads: removed files go away there, and checkpoints wait there for their fsync."""

import gc
import os
import threading
import weakref

import pytest

from fleetlog._native.files import FileSlice
from fleetlog.brokers.log import DiskFailed, RealDisk
from fleetlog.brokers.log.disk.background import LARGE, PendingWork
from tests.support.waiting import eventually


@pytest.fixture
def closers(monkeypatch):
    """Inode -> name of the thread that closed the last descriptor of a removed file."""
    found: dict[int, str] = {}
    close = os.close

    def closing(fd):
        told = os.fstat(fd)
        if told.st_nlink == 0:
            found[told.st_ino] = threading.current_thread().name
        close(fd)

    monkeypatch.setattr(os, "close", closing)
    return found


def _closer(closers, inode):
    eventually(lambda: inode in closers, "the file waits for its closing")
    return closers[inode]


def _file(disk, path, size):
    file = disk.open(str(path), create=True)
    file.truncate(size)
    file.write(b"here", 0)
    return file, os.stat(path).st_ino


@pytest.mark.parametrize("opened", [True, False])
def test_a_large_file_is_freed_on_the_thread(tmp_path, closers, opened):
    disk = RealDisk()
    file, inode = _file(disk, tmp_path / "a", LARGE)
    if not opened:
        file.close()
    file.remove()
    assert not (tmp_path / "a").exists()
    assert len(disk.opened) == 0
    assert _closer(closers, inode) == "log removal"


def test_a_small_file_is_freed_on_the_spot(tmp_path, closers):
    disk = RealDisk()
    file, inode = _file(disk, tmp_path / "a", LARGE - 1)
    file.remove()
    assert closers == {inode: threading.current_thread().name}


@pytest.mark.parametrize("later", [True, False])
def test_a_pinned_file_is_freed_by_its_last_reader(tmp_path, closers, later):
    disk = RealDisk()
    file, inode = _file(disk, tmp_path / "a", LARGE)
    held = FileSlice(file, 0, 4)
    file.remove(later=later)
    eventually(lambda: not (tmp_path / "a").exists(), "the directory is gone")
    assert held.read() == b"here"
    assert inode not in closers
    held.release()
    assert _closer(closers, inode) == "log removal"


def test_removing_later_needs_no_name_left(tmp_path, caplog):
    """Files and directories, those that are gone already, and one that cannot go."""
    disk = RealDisk()
    directory = tmp_path / "t-0.deleted"
    directory.mkdir()
    file, _ = _file(disk, tmp_path / "a", 10)
    _file(disk, directory / "b", 10)
    disk.remove(str(tmp_path / "never"), later=True)
    disk.remove("/proc/self/stat", later=True)
    disk.remove_tree(str(directory), later=True)
    file.remove(later=True)
    eventually(lambda: not os.listdir(tmp_path), "everything is gone")
    assert [record.getMessage() for record in caplog.records] == [
        "/proc/self/stat is left behind: [Errno 1] Operation not permitted: '/proc/self/stat'"
    ]


def test_the_thread_outlives_an_error(tmp_path, caplog):
    disk = RealDisk()
    file, _ = _file(disk, tmp_path / "a", 10)
    disk.removals.close(1 << 20)  # no descriptor
    file.remove(later=True)
    eventually(lambda: not os.listdir(tmp_path), "everything is gone")
    assert "Bad file descriptor" in caplog.text


def test_two_removals_of_a_directory_do_not_disturb_each_other(tmp_path, monkeypatch):
    """A clean stop while the thread is still at it."""
    disk = RealDisk()
    directory = tmp_path / "d"
    directory.mkdir()
    _file(disk, directory / "a", 10)[0].close()
    unlink = os.unlink

    def slower(path, **options):
        unlink(path, **options)
        unlink(path, **options)  # another thread was faster

    monkeypatch.setattr(os, "unlink", slower)
    disk.remove_tree(str(directory))
    assert not directory.exists()
    disk.remove_tree(str(directory))


def test_what_cannot_be_removed_is_logged(tmp_path):
    with pytest.raises(DiskFailed, match="/proc/self/attr"):
        RealDisk().remove_tree("/proc/self/attr")


def test_no_more_descriptors_wait_than_the_limit(tmp_path, closers, monkeypatch):
    """While the thread does not come to close them, what is beyond the limit is freed by the caller."""
    disk = RealDisk(max_open=64)  # 16 of them may wait
    monkeypatch.setattr(disk.removals._worker, "_thread", threading.current_thread())
    before = len(os.listdir("/proc/self/fd"))
    freed = 0
    for index in range(20):
        file, inode = _file(disk, tmp_path / str(index), LARGE)
        closers.clear()  # an inode's number is used again
        file.remove()
        freed += inode in closers
    assert len(os.listdir("/proc/self/fd")) - before == 16
    assert freed == 4


def test_a_file_that_is_gone_already(tmp_path):
    disk = RealDisk()
    file, _ = _file(disk, tmp_path / "a", LARGE)
    file.close()
    (tmp_path / "a").unlink()
    file.remove()
    assert disk.removals.hold(str(tmp_path / "a")) == -1


def test_what_failed_work_held_is_freed_with_it():
    """Not by the next run of the garbage collector, which may be far off."""

    class Held:
        pass

    seen = []

    def work():
        held = Held()
        seen.append(weakref.ref(held))
        raise ValueError("no")

    gc.disable()
    try:
        pending = PendingWork(work)
        pending.run()
        assert isinstance(pending.error, ValueError)
        del pending
        assert seen[0]() is None
    finally:
        gc.enable()


def test_the_cleaner_gives_way_to_the_loop():
    """Its thread alone: fsyncs, which clients may wait for, keep the process's priority."""

    def niceness():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    disk, seen = RealDisk(), []
    assert disk.work_later(lambda: seen.append(niceness())).wait(60)
    assert seen == [min(19, niceness() + 10)]
