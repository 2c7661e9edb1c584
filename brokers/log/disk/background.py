"""What a disk does on threads of its own: fsync, and removing what may take long.

A file system frees a file's pages and blocks when its last reference goes, some 60 to 100 ms for a gigabyte, and names
may have to wait for its journal. The thread removes a name where that can wait. Where it cannot (compaction puts
another file in its place) the caller removes the name and leaves closing the file, which takes long, to the thread.
"""

from __future__ import annotations

import logging
import os
import queue
import shutil
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fleetlog.brokers.log.disk.failures import DiskError, disk_error
from fleetlog.brokers.log.disk.sync_times import sync_once

logger = logging.getLogger(__name__)

T = TypeVar("T")
LARGE = 8 * 1024 * 1024
"""Bytes. Smaller files are freed on the spot, in less than a millisecond."""


class PendingSync:
    """A background fsync. Its owner looks at ``done`` now and then; ``error`` says how it failed."""

    __slots__ = ("done", "error", "paths")

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.done = False
        self.error: DiskError | None = None

    def run(self) -> None:
        """Do it, on the calling thread."""
        try:
            for path in self.paths:
                _sync_path(path)
        except OSError as wrong:
            told = wrong if isinstance(wrong, DiskError) else disk_error(self.paths[0], wrong)
            self.error = type(told)(told.path, told.reason)  # without its frames
        finally:
            self.done = True


class PendingWork:
    """Something that the disk's thread does. Its owner looks at ``done`` now and then; ``error`` says how it failed."""

    __slots__ = ("_ended", "_work", "error")

    def __init__(self, work: Callable[[], object]) -> None:
        self.error: Exception | None = None
        self._work = work
        self._ended = threading.Event()

    @property
    def done(self) -> bool:
        """Whether it has ended, in one way or the other."""
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came."""
        return self._ended.wait(timeout_s)

    def run(self) -> None:
        """Do it, on the calling thread."""
        try:
            self._work()
        except Exception as wrong:  # its owner decides what that means
            # its frames refer to this one: what they hold would wait for the garbage collector
            self.error = wrong.with_traceback(None)
        finally:
            self._work = _nothing
            self._ended.set()


def _nothing() -> None:
    """Of work that is done nothing is kept."""


def new_secret() -> bytes:
    """16 bytes that no client knows."""
    return os.urandom(16)


def _sync_path(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as wrong:
        raise disk_error(path, wrong) from wrong
    try:
        sync_once(fd, path)
    finally:
        os.close(fd)


class Worker:
    """A thread that does one thing after the other, started by the first. The process ends without waiting for it.

    It ends when nothing refers to its worker any more, behind what it still has to do.
    """

    __slots__ = ("_name", "_niceness", "_thread", "_waiting")

    def __init__(self, name: str, niceness: int = 0) -> None:
        """``niceness`` is the thread's own, beyond that of the process, where the system knows one per thread."""
        self._name = name
        self._niceness = niceness
        self._thread: threading.Thread | None = None
        self._waiting: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()

    def __len__(self) -> int:
        return self._waiting.qsize()

    def __del__(self) -> None:
        self._waiting.put(None)

    def do(self, work: Callable[[], object]) -> None:
        """In its turn. ``work`` raises nothing."""
        if self._thread is None:
            how = (self._name, self._niceness, self._waiting)
            self._thread = threading.Thread(target=_work, args=how, name=self._name, daemon=True)
            self._thread.start()
        self._waiting.put(work)


def _work(name: str, niceness: int, waiting: queue.SimpleQueue[Callable[[], object] | None]) -> None:
    if niceness and sys.platform == "linux":  # elsewhere it would be the process's
        thread = threading.get_native_id()
        try:
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)
        except OSError as wrong:  # a sandbox may refuse it
            logger.warning("the thread %s has the process's priority: %s", name, wrong.strerror)
    while (work := waiting.get()) is not None:
        work()
        del work  # what it holds goes now, and not with the next one


class Removals:
    """Removing in the background.

    Descriptors of removed files wait for it, about ``limit`` at most: beyond that files are freed at once.
    """

    __slots__ = ("_limit", "_worker")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._worker = Worker("log removal")

    def hold(self, path: str) -> int:
        """A descriptor for :meth:`close`, to be opened before the name goes; -1 if that is not possible."""
        if len(self._worker) >= self._limit:
            return -1
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return -1  # it may be absent, or there are too many open files: then its room goes with its name

    def close(self, fd: int) -> None:
        """Close a removed file's descriptor soon; -1 is none."""
        if fd < 0:
            return
        if len(self._worker) >= self._limit:
            os.close(fd)
        else:
            self.later(os.close, fd)

    def later(self, remove: Callable[[T], object], what: T) -> None:
        """Call ``remove`` soon. What fails is logged, and goes at the next start."""
        self._worker.do(partial(_tried, remove, what))


def _tried(remove: Callable[[T], object], what: T) -> None:
    try:
        remove(what)
    except Exception as wrong:  # the thread continues, or nothing would be removed any more
        logger.warning("%s is left behind: %s", what, wrong)


def remove_file(path: str) -> None:
    """Remove a file; one that is absent is fine."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def remove_tree(path: str) -> None:
    """Remove a directory with all that is in it. Names that another thread removes meanwhile are fine."""
    shutil.rmtree(path, onerror=_unless_gone)


def _unless_gone(_: Any, __: str, raised: Any) -> None:
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]
