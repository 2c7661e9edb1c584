"""The loop never waits for a disk: what is not in the page cache is read in by a worker first.

The sending kernel probes with ``preadv(..., RWF_NOWAIT)`` (about 1 us) and stops where it would have to wait. The
worker is the kernel's too, without the interpreter's lock; its completions come through an eventfd.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from fleetlog._native.io import DiskWorker

if TYPE_CHECKING:
    import asyncio

__all__ = ["ReadAhead", "read", "read_cached"]

_NOWAIT = getattr(os, "RWF_NOWAIT", 8)


class ReadAhead:
    """Reads file ranges into the page cache, and tells the loop when they are there."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._worker = DiskWorker()
        loop.add_reader(self._worker.fileno(), self._completed)

    def fetch(self, fd: int, position: int, length: int, done: Callable[[OSError | None], None]) -> None:
        """Bring the range into memory, then call ``done`` on the loop with None or what the disk said.

        The caller keeps the file open until then.
        """
        self._worker.read_ahead(fd, position, length, done)

    def close(self) -> None:
        """Do what is queued, and end the worker."""
        self._loop.remove_reader(self._worker.fileno())
        for done, result in self._worker.completions():
            done(_outcome(result))
        self._worker.close()

    def _completed(self) -> None:
        for done, result in self._worker.completions():
            done(_outcome(result))


def _outcome(result: int) -> OSError | None:
    return OSError(-result, os.strerror(-result)) if result < 0 else None


def read(fd: int, position: int, length: int) -> bytes:
    """Up to ``length`` bytes, waiting for the disk if need be."""
    return os.pread(fd, length, position)


def read_cached(fd: int, position: int, buffer: memoryview) -> int | None:
    """Read into the buffer what the page cache has, at least a byte; None where the disk must be waited for first.

    File systems that cannot say so are read as they are. Raises OSError; EIO where the file ends before.
    """
    try:
        count = os.preadv(fd, [buffer], position, _NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        count = os.preadv(fd, [buffer], position)
    if not count:
        raise OSError(errno.EIO, "a file part lies behind the end of its file")
    return count
