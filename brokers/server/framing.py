"""What a connection is, without its socket: frames out of bytes, and answers waiting to leave. Pure.

Source: every Kafka request and response is a big-endian int32 length and that many bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from sys import getrefcount
from typing import Protocol

from fleetlog._native.io import FilePart
from fleetlog.wire.apis import LARGE_KEYS

LENGTH_SIZE = 4
KEY_SIZE = 2
LARGE_FRAME = 64 * 1024
"""From here on the rest of a frame is received where the frame will lie, unless it is behind others."""
SMALL_BLOCK = 16 * 1024
"""What a frame gets of which hardly more than its size has come; then four times of what has."""
_NOTHING = memoryview(b"")
RECEIVE_BYTES = 256 * 1024
LARGE_RECEIVE_BYTES = 1024 * 1024
"""What is received at once behind a large frame: several of them are executed and answered together."""
LARGE_STEP = 64 * 1024
KEPT = 8
"""Blocks for what is used up in a turn."""
LARGE_KEPT = 4
LARGE_MOST = 2 * 1024 * 1024
_ALONE = 2
"""References to a block that only its list refers to, as seen by getrefcount: the list's and the call's."""


class FrameError(ValueError):
    """The length prefix is impossible: the connection cannot continue."""


class TlsHandshake(FrameError):
    """The bytes are the beginning of a TLS connection, which a PLAINTEXT listener does not understand."""


TLS_HANDSHAKE = 0x1603
"""The first two bytes of every TLS connection: a handshake record of TLS. As a length they mean 369 MB."""


class Blocks:
    """Blocks that are given out as views. A block is given out again when no view of it is left.

    Nothing is given back: a view refers to its block, and that can be counted. A frame that is still held costs the
    next receiver a new block, never a byte of the frame.
    """

    def __init__(self, size: int = RECEIVE_BYTES) -> None:
        self._size = size
        self._common: list[bytearray] = []
        self.large_blocks: list[bytearray] = []

    def common(self) -> memoryview:
        """A block for what is used up in a turn of the loop, whole: the same one, unless it is still read."""
        kept = self._common
        if kept and getrefcount(kept[0]) <= _ALONE:
            return memoryview(kept[0])
        return memoryview(self._free(kept, self._size, KEPT))

    def _free(self, kept: list[bytearray], size: int, most: int) -> bytearray:
        for index in range(len(kept)):
            if len(kept[index]) >= size and getrefcount(kept[index]) <= _ALONE:
                return kept[index]
        block = bytearray(size)
        if size <= LARGE_MOST:
            if len(kept) >= most:
                del kept[0]
            kept.append(block)
        return block

    def large(self, size: int) -> memoryview:
        """A block for one large frame. A few are kept: fresh memory costs the system more than receiving into it."""
        if size < LARGE_STEP:
            return memoryview(bytearray(size))
        return memoryview(self._free(self.large_blocks, -(-size // LARGE_STEP) * LARGE_STEP, LARGE_KEPT))[:size]


class Framer:
    """Cuts frames out of received bytes, one when asked. Holds at most one read beyond the current frame.

    A turn is :meth:`into`, :meth:`received`, frames by :meth:`next`, and :meth:`keep` before the loop's block goes to
    another connection. Frames are cut where they were received. What is left of a turn is kept here and moves to the
    front of the next block, once: the first part of a large frame that is not whole then moves into a block of its own,
    which receives the rest.
    """

    __slots__ = (
        "_after_large", "_blocks", "_data", "_end", "_have", "_lent", "_limited_by", "_max_control", "_max_frame",
        "_size", "_start", "_whole", "waiting",
    )  # fmt: skip

    def __init__(self, max_frame: int, blocks: Blocks, max_control: int | None = None) -> None:
        self.limit(max_frame, max_control)
        self._blocks = blocks
        self._data = _NOTHING
        self._start = self._end = 0
        self._lent = False
        self._whole: memoryview | None = None  # the large frame that is being received, behind its prefix
        self._have = 0
        self._size = -1  # of the next frame, as far as it is known
        self._after_large = False  # whether the last frame was a large one
        self.waiting = 0
        """Bytes that were received and not cut yet."""

    def limit(
        self, max_frame: int, max_control: int | None = None, limited_by: str = "socket.request.max.bytes"
    ) -> None:
        """The largest frame from now on, the largest one without records, and what sets the first."""
        self._max_frame = max_frame
        self._max_control = max_frame if max_control is None else min(max_control, max_frame)
        self._limited_by = limited_by

    @property
    def may_be_whole(self) -> bool:
        """Whether all of the next frame may have been received: only one whose size is known may not."""
        if self._whole is not None:
            return self._have >= self._size
        return self._size < 0 or self._end - self._start >= LENGTH_SIZE + self._size

    def into(self, limit: int | None = None) -> memoryview:
        """Where to receive next, ``limit`` bytes at most; there is room unless :meth:`next` was not asked for long.

        Without a limit: after a large frame more than else, for others of its kind are expected.
        """
        whole = self._whole
        if whole is not None:
            if self._have == len(whole):
                whole = self._grow(whole)
            return whole[self._have :] if limit is None else whole[self._have : self._have + limit]
        held = self._end - self._start
        if self._after_large or held >= LARGE_FRAME:
            block = self._blocks.large(LARGE_RECEIVE_BYTES)
        else:
            block = self._blocks.common()
        if held:
            block[:held] = self._data[self._start : self._end]
        self._data, self._start, self._end, self._lent = block, 0, held, True
        if held or limit is not None:
            return block[held:] if limit is None else block[held : held + limit]
        return block

    def received(self, count: int) -> None:
        """So many bytes are there now."""
        self.waiting += count
        if self._whole is not None:
            self._have += count
        else:
            self._end += count

    def received_here(self) -> tuple[memoryview, int, int] | None:
        """The block with its first and last position that belong to frames; None while a large one is received."""
        return (self._data, self._start, self._end) if self._whole is None and self._start < self._end else None

    def skip_to(self, position: int) -> None:
        """The frames before that position of the block are used up."""
        used = position - self._start
        self.waiting -= used
        if used >= LARGE_FRAME:
            first = int.from_bytes(self._data[self._start : self._start + LENGTH_SIZE], "big")
            self._after_large = LENGTH_SIZE + first >= LARGE_FRAME
        else:
            self._after_large = False
        self._start, self._size = position, -1

    def size(self) -> int | None:
        """The size of the frame that is next or being received, None before its prefix is there.

        A large one is known only when its API key is there, too: most APIs have a cap of their own.

        Raises:
            FrameError: negative, or above the cap.

        """
        if self._size >= 0:
            return self._size
        start = self._start
        if self._end - start < LENGTH_SIZE:
            return None
        size = int.from_bytes(self._data[start : start + LENGTH_SIZE], "big", signed=True)
        if not 0 <= size <= self._max_frame:
            if size >> 16 == TLS_HANDSHAKE:
                raise TlsHandshake(
                    "the client speaks TLS, this listener is PLAINTEXT: set security.protocol=PLAINTEXT at the client"
                )
            raise FrameError(f"a frame of {size} bytes; allowed are 0 to {self._max_frame} ({self._limited_by})")
        if size > self._max_control:
            if self._end - start < LENGTH_SIZE + KEY_SIZE:
                return None
            key = int.from_bytes(self._data[start + LENGTH_SIZE : start + LENGTH_SIZE + KEY_SIZE], "big")
            if key not in LARGE_KEYS:
                raise FrameError(
                    f"a frame of {size} bytes with API key {key}; a request that carries no records has "
                    f"{self._max_control} at most (socket.control.request.max.bytes)"
                )
        self._size = size
        return size

    def next_key(self) -> int:
        """The API key of the request that is next; -1 before it is there."""
        if self._whole is not None:
            return int.from_bytes(self._whole[:KEY_SIZE], "big") if self._have >= KEY_SIZE else -1
        start = self._start + LENGTH_SIZE
        return int.from_bytes(self._data[start : start + KEY_SIZE], "big") if self._end >= start + KEY_SIZE else -1

    def next(self) -> memoryview | None:
        """The next whole frame without its prefix, or None. Writable, and the caller's alone.

        It shares its memory with what was received beside it: to keep it beyond the turn, copy it.

        Raises:
            FrameError: as :meth:`size`.

        """
        whole = self._whole
        if whole is not None:
            if self._have < self._size:
                return None
            self.waiting -= LENGTH_SIZE + self._size
            self._whole, self._size = None, -1
            return whole
        size = self._size if self._size >= 0 else self.size()
        if size is None:
            return None
        start = self._start + LENGTH_SIZE
        end = start + size
        if end > self._end:
            if not self._start and end >= LARGE_FRAME:  # behind others it comes to the front of a block first
                self._begin_large(size, start)
            return None
        used = end - self._start
        self.waiting -= used
        self._after_large = used >= LARGE_FRAME
        self._start, self._size = end, -1
        return self._data[start:end]

    def _begin_large(self, size: int, start: int) -> None:
        self._have = self._end - start
        self._after_large = True
        self._grow(self._data[start : self._end])
        self._forget()

    def _grow(self, have: memoryview) -> memoryview:
        """Move what is there of a large frame where more has room: a size that is only claimed costs no memory."""
        room = min(self._size, max(SMALL_BLOCK, 4 * len(have)))
        whole = self._whole = self._blocks.large(room)
        whole[: len(have)] = have
        return whole

    def keep(self) -> None:
        """The turn is over: keep what is left, for the block it lies in is the loop's."""
        if self._lent:
            if self._start == self._end:  # as _forget
                self._data, self._start, self._end, self._lent = _NOTHING, 0, 0, False
            else:
                self._data = memoryview(bytearray(self._data[self._start : self._end]))
                self._start, self._end = 0, len(self._data)
                self._lent = False

    def clear(self) -> None:
        """Let go of everything: a closed connection may be found by the garbage collector much later."""
        self._whole, self._size, self.waiting = None, -1, 0
        self._forget()

    def _forget(self) -> None:
        self._data, self._start, self._end, self._lent = _NOTHING, 0, 0, False


class SlicePort(Protocol):
    """A run of bytes in a file, kept open for us (``brokers.log`` FileSlice)."""

    position: int
    length: int

    def fileno(self) -> int:
        """The open file."""

    def part(self, position: int, length: int) -> FilePart:
        """Bytes of it, for the sending kernel."""

    def release(self) -> None:
        """We are done with it."""


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
                size = len(chunk)
                if size:
                    self.chunks.append(chunk)
                    self.pending += size
                    self.held += size
            elif chunk.length:
                self.chunks.append(chunk)
                self.pending += chunk.length
            else:
                chunk.release()

    def parts(self, limit: int = 64) -> list[bytes | memoryview | FilePart]:
        """What is to be sent next, from the first byte that is not sent: at most ``limit`` chunks."""
        parts: list[bytes | memoryview | FilePart] = []
        skip = self.offset
        for chunk in self.chunks:
            if isinstance(chunk, bytes):
                parts.append(memoryview(chunk)[skip:] if skip else chunk)
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
        if count == self.pending:
            if count != self.held:
                for chunk in self.chunks:
                    if not isinstance(chunk, bytes):
                        chunk.release()
            self.chunks.clear()
            self.offset = self.pending = self.held = 0
            return
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
