"""The specification of the io kernel: responses leave by a socket, and a worker thread waits for the disk.

Linux only (sendfile from a file to a socket, eventfd, RWF_NOWAIT). ``send_slices`` never blocks: not on the socket,
which must be non-blocking, and not on the disk: it stops at file parts that are not in the page cache. File
systems that do not report it (EOPNOTSUPP) count as always cached. A file part may name a mapping of its bytes, from
which the fast twin sends: one call for a response's head, records and end, at half of sendfile's cost for large ones.
The mapping changes neither the bytes sent nor the reason to stop, so this twin ignores it.
"""

from __future__ import annotations

import enum
import errno
import mmap
import os
import queue
import socket
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = [
    "MAPPING_MAX",
    "SEND_LIMIT",
    "SMALL",
    "DiskWorker",
    "FilePart",
    "Mapping",
    "Sent",
    "Stop",
    "send_slices",
]

SMALL = 64 * 1024
"""File parts up to this size are read and sent with the bytes around them; larger ones by sendfile."""
SEND_LIMIT = 8 * 1024 * 1024
_RUNS_MAX = 64
_GATHER_MAX = 256 * 1024
_SENDFILE_MAX = 4 * 1024 * 1024
_PROBES = 4
_READ_AHEAD = 1024 * 1024
_NOWAIT = getattr(os, "RWF_NOWAIT", 8)


MAPPING_MAX = 8 * 1024 * 1024


class Mapping:
    """A window of a file: at most ``MAPPING_MAX`` bytes from a page's start. The file may end before it, and grow.

    Only the kernel reads it. Its error for a page that the file no longer has is reported as EIO, without a signal.
    Raises OSError if the system has no space for it. The file may be closed before the window.
    """

    def __init__(self, fd: int, position: int, length: int) -> None:
        if position < 0 or position % mmap.PAGESIZE or not 0 < length <= MAPPING_MAX:
            raise ValueError(f"no window: {length} bytes at {position}")
        os.fstat(fd)
        self.position = position
        self.length = length

    def close(self) -> None:
        """Unmap it; parts that name it are sent by sendfile."""


class FilePart(NamedTuple):
    """A run of bytes in an open file; ``mapping`` is a window that holds its first bytes at least."""

    fd: int
    position: int
    length: int
    mapping: Mapping | None = None


class Stop(enum.IntEnum):
    """Why sending stopped."""

    DONE = 0  # everything is sent
    SOCKET = 1  # the socket takes no more for now
    DISK = 2  # the next file part is not in memory: read it ahead
    LIMIT = 3  # enough for one turn


class Sent(NamedTuple):
    """How many bytes of the chunks were sent, and why sending stopped."""

    sent: int
    stop: Stop


def _read(fd: int, position: int, length: int) -> bytes | None:
    """Exactly these bytes if they are in memory, else None; raises OSError (EIO) when the file ends before."""
    buffer = bytearray(length)
    done, flags = 0, _NOWAIT
    while done < length:
        try:
            count = os.preadv(fd, [memoryview(buffer)[done:]], position + done, flags)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or not flags:
                raise
            flags = 0
            continue
        if count == 0:
            raise OSError(errno.EIO, "a file part lies behind the end of its file")
        done += count
    return bytes(buffer)


def _cached(fd: int, position: int, length: int) -> bool:
    """Whether a range is in memory, judged by a few of its pages."""
    byte = bytearray(1)
    for number in range(_PROBES):
        at = position + (length - 1) * number // (_PROBES - 1)
        try:
            os.preadv(fd, [byte], at, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
    return True


def send_slices(fd: int, chunks: Sequence[bytes | memoryview | FilePart], limit: int = SEND_LIMIT) -> Sent:
    """Send chunks in their order through the non-blocking socket ``fd``, as far as possible without waiting.

    Sends at most about ``limit`` bytes. Raises OSError when the connection is broken or a file cannot be read; the
    number of bytes sent by then is lost, because the connection must be closed.
    """
    sock = socket.socket(fileno=fd)
    try:
        return _send(sock, fd, chunks, limit)
    finally:
        sock.detach()


def _send(sock: socket.socket, fd: int, chunks: Sequence[Any], limit: int) -> Sent:
    sent = index = offset = 0  # the next byte is chunks[index][offset:]
    while index < len(chunks):
        if sent >= limit:
            return Sent(sent, Stop.LIMIT)
        runs, stop = _gather(chunks, index, offset)
        if runs:
            wanted = sum(len(run) for run in runs)
            more = index + len(runs) < len(chunks) and stop != Stop.DISK
            try:
                count = sock.sendmsg(runs, (), socket.MSG_MORE if more else 0)
            except BlockingIOError:
                return Sent(sent, Stop.SOCKET)
            sent += count
            if count < wanted:
                return Sent(sent, Stop.SOCKET)
            index, offset = index + len(runs), 0
        elif stop is None:
            source, position, length, _ = chunks[index]
            count = _sendfile(fd, source, position + offset, length - offset)
            if count < 0:
                return Sent(sent, Stop.SOCKET if count == -1 else Stop.DISK)
            sent += count
            offset += count
            if offset == length:
                index, offset = index + 1, 0
        if stop is not None:
            return Sent(sent, stop)
    return Sent(sent, Stop.DONE)


def _gather(chunks: Sequence[Any], index: int, offset: int) -> tuple[list[Any], Stop | None]:
    """Byte runs for one sendmsg from ``chunks[index:]``; DISK if they end because a file part is not in memory."""
    runs: list[Any] = []
    room = _GATHER_MAX
    while index < len(chunks) and len(runs) < _RUNS_MAX:
        chunk = chunks[index]
        if isinstance(chunk, tuple):
            source, position, length, _ = chunk
            if length > SMALL or length > room or offset:
                break
            data = _read(source, position, length)
            if data is None:
                return runs, Stop.DISK
            room -= length
            runs.append(data)
        else:
            runs.append(chunk)
        index += 1
    return runs, None


def _sendfile(fd: int, source: int, position: int, length: int) -> int:
    """Bytes sent; -1 when the socket is full, -2 when sending would wait for the disk."""
    part = min(length, _SENDFILE_MAX)
    if not _cached(source, position, part):
        return -2
    try:
        count = os.sendfile(fd, source, position, part)
    except BlockingIOError:
        return -1
    if count == 0:
        raise OSError(errno.EIO, "a file part lies behind the end of its file")
    return count


class DiskWorker:
    """A thread that waits for the disk, and an eventfd that becomes readable when it has done something.

    Ranges are read into the page cache in the order in which they were asked for. Not thread-safe: one owner.
    """

    def __init__(self) -> None:
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._jobs: queue.SimpleQueue[tuple[int, int, int, Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()
        self._closed = False
        self.pending = 0
        """Reads whose completion was not taken yet."""
        self._thread = threading.Thread(target=self._work, name="fleetlog-disk", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """The eventfd, for a loop's add_reader."""
        return self._eventfd

    def read_ahead(self, fd: int, position: int, length: int, token: Any = None) -> None:
        """Bring a range into the page cache; the caller keeps ``fd`` open until its completion."""
        if self._closed:
            raise RuntimeError("the disk worker is closed")
        self.pending += 1
        self._jobs.put((fd, position, length, token))

    def completions(self) -> list[tuple[Any, int]]:
        """(token, result) of the reads done since the last call: their bytes, or minus the errno."""
        if self._closed:
            return []
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            pass
        done: list[tuple[Any, int]] = []
        while not self._done.empty():
            done.append(self._done.get())
        self.pending -= len(done)
        return done

    def close(self) -> None:
        """Finish the queued reads, end the thread and close the eventfd; completions not taken are lost."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
            self._thread.join()
            os.close(self._eventfd)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            fd, position, length, token = job
            try:
                result = _read_ahead(fd, position, length)
            except OSError as error:
                result = -(error.errno or errno.EIO)
            self._done.put((token, result))
            os.eventfd_write(self._eventfd, 1)


def _read_ahead(fd: int, position: int, length: int) -> int:
    buffer = bytearray(min(_READ_AHEAD, max(1, length)))
    done = 0
    while done < length:
        count = os.preadv(fd, [memoryview(buffer)[: length - done]], position + done)
        if count == 0:
            break
        done += count
    return done
