"""The loop never waits for a disk: a slice is probed, and read into the page cache by a worker if it is not there.

The probe is ``preadv`` with RWF_NOWAIT (about 1 us), which says EAGAIN instead of reading from the device. File systems
that cannot answer it (EOPNOTSUPP) are treated as always cached: there is no way to know, and tmpfs is one of them.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)

_NOWAIT = getattr(os, "RWF_NOWAIT", None)
_PROBES = 4
_READ_AHEAD = 1024 * 1024


def cached(fd: int, position: int, length: int) -> bool:
    """Whether the pages of the range are in memory, judged by a few of them."""
    if _NOWAIT is None or length <= 0:
        return True
    byte = bytearray(1)
    step = max(1, (length - 1) // (_PROBES - 1))
    for number in range(_PROBES):
        offset = position + min(number * step, length - 1)
        try:
            os.preadv(fd, [byte], offset, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            return error.errno == errno.EOPNOTSUPP
    return True


def read_cached(fd: int, position: int, length: int) -> bytes | None:
    """The bytes if all of them are in memory, else None; also None at the end of the file."""
    buffer = bytearray(length)
    try:
        count = os.preadv(fd, [buffer], position, _NOWAIT) if _NOWAIT is not None else os.preadv(fd, [buffer], position)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        count = os.preadv(fd, [buffer], position)
    return bytes(buffer) if count == length else None


class ReadAhead:
    """A worker thread that reads slices into the page cache and tells the loop when they are there."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[tuple[int, int, int, Callable[[OSError | None], None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._work, name="fleetlog-read-ahead", daemon=True)
        self._thread.start()

    def fetch(self, fd: int, position: int, length: int, done: Callable[[OSError | None], None]) -> None:
        """Bring the range into memory, then call ``done`` on the loop with None or what the disk said.

        The caller keeps the file open until then.
        """
        self._jobs.put((fd, position, length, done))

    def close(self) -> None:
        """End the thread; jobs that wait are dropped."""
        self._jobs.put(None)
        self._thread.join(timeout=5)

    def _work(self) -> None:
        buffer = bytearray(_READ_AHEAD)
        while (job := self._jobs.get()) is not None:
            fd, position, length, done = job
            outcome: OSError | None = None
            try:
                end = position + length
                while position < end:
                    count = os.preadv(fd, [memoryview(buffer)[: min(_READ_AHEAD, end - position)]], position)
                    if count == 0:
                        break
                    position += count
            except OSError as error:
                outcome = error
            try:
                self._loop.call_soon_threadsafe(done, outcome)
            except RuntimeError:  # the loop is closed: the broker is gone
                return
