"""What a connection is, without its socket: frames out of bytes, and answers waiting to leave. Pure.

Source: every Kafka request and response is a big-endian int32 length and that many bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from _native.io import FilePart

LENGTH_SIZE = 4
LARGE_FRAME = 64 * 1024
"""From here on a frame is received up to its own end only, so that its buffer can be handed over without a copy."""


class FrameError(ValueError):
    """The length prefix is impossible: the connection cannot go on."""


class Framer:
    """Collects bytes and gives out whole frames, one when asked. Holds at most one read beyond the current frame."""

    __slots__ = ("_buffer", "_max_frame", "_start")

    def __init__(self, max_frame: int) -> None:
        self._buffer = bytearray()
        self._start = 0
        self._max_frame = max_frame

    def __len__(self) -> int:
        return len(self._buffer) - self._start

    def feed(self, data: memoryview | bytes) -> None:
        """Take received bytes in."""
        self._buffer += data

    def size(self) -> int | None:
        """The size of the frame that is being received, None before its prefix is there.

        Raises:
            FrameError: negative, or above the cap.

        """
        if len(self) < LENGTH_SIZE:
            return None
        size = int.from_bytes(self._buffer[self._start : self._start + LENGTH_SIZE], "big", signed=True)
        if not 0 <= size <= self._max_frame:
            raise FrameError(f"a frame of {size} bytes; allowed are 0 to {self._max_frame} (socket.request.max.bytes)")
        return size

    def room(self, limit: int) -> int:
        """How many bytes to receive next, at most ``limit``."""
        size = self.size()
        if size is None or size < LARGE_FRAME:
            return limit
        missing = size + LENGTH_SIZE - len(self)
        return min(limit, missing) if missing > 0 else limit

    def next(self) -> memoryview | None:
        """The next whole frame without its prefix, or None. The memory is the caller's alone and writable.

        Raises:
            FrameError: as :meth:`size`.

        """
        size = self.size()
        if size is None or len(self) < size + LENGTH_SIZE:
            if self._start:
                del self._buffer[: self._start]
                self._start = 0
            return None
        start = self._start + LENGTH_SIZE
        end = start + size
        if end == len(self._buffer) and self._start == 0 and size >= LARGE_FRAME:
            whole, self._buffer = self._buffer, bytearray()
            return memoryview(whole)[LENGTH_SIZE:]
        frame = self._buffer[start:end]
        if end == len(self._buffer):
            self._buffer.clear()
            self._start = 0
        else:
            self._start = end
        return memoryview(frame)


class SlicePort(Protocol):
    """A run of bytes in a file, kept open for us (``brokers.log`` FileSlice)."""

    position: int
    length: int

    def fileno(self) -> int:
        """The open file."""
        ...

    def part(self, position: int, length: int) -> FilePart:
        """Bytes of it, for the sending kernel."""
        ...

    def release(self) -> None:
        """We are done with it."""
        ...


Chunk = bytes | SlicePort


class _Rest:
    """A slice without its first bytes."""

    __slots__ = ("_whole", "length", "position")

    def __init__(self, whole: SlicePort, skip: int) -> None:
        self._whole = whole
        self.position = whole.position + skip
        self.length = whole.length - skip

    def fileno(self) -> int:
        """The open file."""
        return self._whole.fileno()

    def part(self, position: int, length: int) -> FilePart:
        """Bytes of it, for the sending kernel."""
        return self._whole.part(position, length)

    def release(self) -> None:
        """We are done with it."""
        self._whole.release()


class Outbox:
    """Answers on their way out: byte runs and file slices, in order, each possibly sent in part.

    ``held`` counts the bytes in memory, ``pending`` all bytes including those still in files.
    """

    __slots__ = ("chunks", "held", "offset", "pending")

    def __init__(self) -> None:
        self.chunks: deque[Chunk] = deque()
        self.offset = 0  # bytes of the first chunk that are sent
        self.pending = 0
        self.held = 0

    def put(self, chunks: Iterable[Chunk]) -> None:
        """Queue an answer."""
        for chunk in chunks:
            if isinstance(chunk, bytes):
                if chunk:
                    self.chunks.append(chunk)
                    self.pending += len(chunk)
                    self.held += len(chunk)
            elif chunk.length:
                self.chunks.append(chunk)
                self.pending += chunk.length
            else:
                chunk.release()

    def parts(self, limit: int = 64) -> list[memoryview | FilePart]:
        """What is to be sent next, from the first byte that is not sent: at most ``limit`` chunks."""
        parts: list[memoryview | FilePart] = []
        skip = self.offset
        for chunk in self.chunks:
            if isinstance(chunk, bytes):
                parts.append(memoryview(chunk)[skip:])
            else:
                parts.append(chunk.part(chunk.position + skip, chunk.length - skip))
            if len(parts) == limit:
                break
            skip = 0
        return parts

    def head_slice(self) -> tuple[SlicePort, int, int] | None:
        """The file slice at the head, with the position and the length that are still to be sent."""
        if not self.chunks or isinstance(self.chunks[0], bytes):
            return None
        chunk = self.chunks[0]
        return chunk, chunk.position + self.offset, chunk.length - self.offset

    def read_in(self, data: bytes) -> None:
        """Some of the slice at the head was read into memory: send that first, then what is left of it."""
        head = self.chunks.popleft()
        assert not isinstance(head, bytes), "there is no slice at the head"
        read = self.offset + len(data)
        assert read <= head.length, "more was read than is there"
        if read < head.length:
            self.chunks.appendleft(_Rest(head, read))
        else:
            head.release()
        self.offset = 0
        self.chunks.appendleft(data)
        self.held += len(data)

    def sent(self, count: int) -> None:
        """``count`` bytes from the head are with the kernel."""
        self.pending -= count
        while count:
            chunk = self.chunks[0]
            is_run = isinstance(chunk, bytes)
            left = (len(chunk) if isinstance(chunk, bytes) else chunk.length) - self.offset
            step = min(left, count)
            count -= step
            if is_run:
                self.held -= step
            if step < left:
                self.offset += step
                return
            self.offset = 0
            self.chunks.popleft()
            if not isinstance(chunk, bytes):
                chunk.release()

    def clear(self) -> None:
        """Drop everything; the files may go."""
        for chunk in self.chunks:
            if not isinstance(chunk, bytes):
                chunk.release()
        self.chunks.clear()
        self.offset = self.pending = self.held = 0
