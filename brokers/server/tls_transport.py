"""TLS between a connection and its socket: what the connection uses of a loop, of a socket and of the sending kernel.

A connection with TLS has a :class:`TlsTransport` where another one has the loop, its socket and ``send_slices``, so a
connection without TLS does nothing more than before. Bytes pass the engine in pieces of a record's size: its buffers
never shrink again. Encrypted bytes that the socket does not take and received ones that the connection does not read
are counted by ``held``.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from fleetlog._native import io
from fleetlog.brokers.server import disk
from fleetlog.brokers.tls.machine import RECORD_BYTES_MAX, TlsEngine, TlsFailure, TlsProblem, TlsState

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)

RECORD_BYTES: Final = 16 * 1024
"""The plaintext of a TLS record at most."""
RECEIVED_BYTES_MAX: Final = 256 * 1024
"""What one call receives at most."""
BARREN_BYTES_MAX: Final = 64 * 1024
"""Beyond that many bytes on end without plaintext (new keys and the like), a peer is closed: a record has fewer."""
ENCRYPTED_AT_ONCE: Final = 64 * 1024
"""What is encrypted before it is sent, so that little waits where the socket takes no more."""
SENT_BYTES_PER_TURN: Final = 1024 * 1024
"""Plaintext that one connection may encrypt before the others' turn: about a millisecond of the loop."""
UNSENT_BYTES_MAX: Final = 2 * ENCRYPTED_AT_ONCE
"""From here on, a peer that has TLS itself answered (new keys) and reads nothing is closed."""

_DONE, _SOCKET, _DISK, _LIMIT = io.Stop.DONE, io.Stop.SOCKET, io.Stop.DISK, io.Stop.LIMIT

_Callback = Callable[[], object]
_Parts = Sequence["bytes | memoryview | io.FilePart"]


class TlsBlocks:
    """Memory that all connections with TLS of a loop use in turn: nothing stays in it when a call returns."""

    def __init__(self) -> None:
        self.received = memoryview(bytearray(RECEIVED_BYTES_MAX))
        self.plain = memoryview(bytearray(ENCRYPTED_AT_ONCE))


class TlsTransport:
    """See the module. Loop thread only; the handshake is done.

    ``unsent`` is what the handshake has left to send. ``on_held`` is called with each difference of ``held``,
    ``on_failure`` with what ended TLS.
    """

    __slots__ = (
        "_again_queued", "_barren", "_blocks", "_engine", "_fd", "_left_over", "_loop", "_on_failure", "_on_held",
        "_on_lost", "_peeked", "_reader", "_sock", "_unread", "_unsent", "_watching", "_writer", "held",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        engine: TlsEngine,
        blocks: TlsBlocks,
        unsent: bytes,
        on_held: Callable[[int], None],
        on_failure: Callable[[TlsFailure], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._engine = engine
        self._blocks = blocks
        self._peeked = b""  # decrypted, and looked at
        self._unread = b""  # received, not yet with the engine
        self._barren = 0  # bytes that the engine was fed since the last plaintext
        self._unsent = unsent
        self._left_over = True  # requests may have come with the end of the handshake
        self._again_queued = False
        self._reader: _Callback | None = None
        self._writer: _Callback | None = None
        self._watching = False
        self._on_held = on_held
        self._on_failure = on_failure
        self._on_lost: Callable[[str], None] | None = None
        self.held = 0

    @property
    def tls(self) -> tuple[str, str]:
        """The cipher and the version of the protocol, as OpenSSL names them."""
        return self._engine.cipher or "unknown", self._engine.version or "unknown"

    # ---- instead of the loop

    def on_lost(self, lost: Callable[[str], None]) -> None:
        """``lost`` closes the connection when sending fails while it has nothing to send itself."""
        self._on_lost = lost
        self._watch()

    def add_reader(self, fd: int, callback: _Callback) -> None:
        """Call back when there is something to receive, which may be here already."""
        self._reader = callback
        self._loop.add_reader(fd, callback)
        self._look_again()

    def remove_reader(self, fd: int) -> None:
        """Read nothing for now."""
        self._reader = None
        self._loop.remove_reader(fd)

    def add_writer(self, _fd: int, callback: _Callback) -> None:
        """Call back when more can be sent."""
        self._writer = callback
        self._watch()

    def remove_writer(self, _fd: int) -> None:
        """There is nothing more to send for now; what is encrypted is sent all the same."""
        self._writer = None
        self._watch()

    def _look_again(self) -> None:
        """The loop does not tell of bytes that are here already."""
        if (self._left_over or self._unread) and self._reader is not None and not self._again_queued:
            self._again_queued = True
            self._loop.call_soon(self._again)

    def _again(self) -> None:
        self._again_queued = False
        if self._reader is not None:
            self._reader()
            self._look_again()  # it may have been busy

    def _watch(self) -> None:
        wanted = bool(self._unsent) or self._writer is not None
        if wanted is not self._watching:
            self._watching = wanted
            if wanted:
                self._loop.add_writer(self._fd, self._on_writable)
            else:
                self._loop.remove_writer(self._fd)

    def _on_writable(self) -> None:
        try:
            flushed = self._flush()
        except OSError as error:
            if self._on_lost is not None:
                self._on_lost(f"send failed: {error}")
            return
        if flushed and self._writer is not None:
            self._writer()

    # ---- instead of the socket

    def recv_into(self, buffer: memoryview) -> int:
        """As a socket's, decrypted. Raises BlockingIOError where nothing is there, OSError also where TLS fails."""
        engine = self._engine
        if self._peeked:
            count = min(len(buffer), len(self._peeked))
            buffer[:count] = self._peeked[:count]
            self._peeked = self._peeked[count:]
            self._look_again()
            return count
        try:
            filled = engine.read_into(buffer) if self._left_over else 0
            filled = self._decrypt_into(buffer, filled)
            self._left_over = filled == len(buffer) or engine.state is not TlsState.OPEN
        except TlsFailure as failure:
            raise self._failed(failure) from None
        if engine.outgoing_bytes:
            self._answer()
        self._account()
        self._look_again()
        if not filled and engine.state is TlsState.OPEN:
            raise BlockingIOError
        return filled

    def peek(self, limit: int) -> bytes:
        """What is received next, ``limit`` bytes at most, which stay there. Raises as :meth:`recv_into`."""
        if not self._peeked:
            buffer = bytearray(limit)
            count = self.recv_into(memoryview(buffer))
            self._peeked = bytes(buffer[:count])
            self._left_over = True
        return self._peeked

    def _decrypt_into(self, buffer: memoryview, filled: int) -> int:
        """Receive, unless something waits, and decrypt as far as there is room; how much of the buffer is filled.

        A piece has the end of a record, and of the longest ones that is plaintext for the most part. One with little
        plaintext costs far more (new keys come in 27 bytes): what is behind it waits for the others' turn.
        """
        engine = self._engine
        received: bytes | memoryview = self._unread
        if not received:
            if filled == len(buffer) or engine.state is not TlsState.OPEN:
                return filled
            received = self._receive(max(len(buffer), RECORD_BYTES))
        at = 0
        while at < len(received) and filled < len(buffer) and engine.state is TlsState.OPEN:
            piece = received[at : at + RECORD_BYTES_MAX]
            engine.feed(piece)
            at += len(piece)
            try:
                count = engine.read_into(buffer[filled:])
            except TlsFailure:
                if not filled:
                    raise
                break  # the next call raises it
            filled += count
            self._barren = 0 if filled else self._barren + len(piece)
            if 4 * count < len(piece):
                break
        if self._barren > BARREN_BYTES_MAX:
            text = f"the peer has sent more than {BARREN_BYTES_MAX} bytes without any data in them"
            raise TlsFailure(TlsProblem.OTHER, text)
        self._unread = bytes(received[at:])
        return filled

    def _receive(self, limit: int) -> memoryview:
        block = self._blocks.received
        try:
            count = self._sock.recv_into(block[:limit])
        except (BlockingIOError, InterruptedError):
            return block[:0]
        if not count:
            self._engine.feed_eof()
            self._engine.read_into(block[:1])  # it sees the end only when it is read
        return block[:count]

    def _answer(self) -> None:
        """Reading has made bytes for the peer: new keys, or that there are none to be negotiated."""
        self._unsent += self._engine.take()
        self._flush()
        if len(self._unsent) > UNSENT_BYTES_MAX:
            raise self._failed(TlsFailure(TlsProblem.OTHER, "the peer does not read what TLS has to answer"))

    def _failed(self, failure: TlsFailure) -> OSError:
        """Send the alert, as far as the socket takes it."""
        self._unsent += self._engine.take()
        try:
            self._flush()
        except OSError:
            pass  # the peer has gone
        self._on_failure(failure)
        return ConnectionAbortedError(f"TLS: {failure}")

    def close(self) -> None:
        """Tell the peer the end, unless more waits to be sent, and close the socket."""
        self._reader = self._writer = self._on_lost = None
        if self._watching:
            self._watching = False
            self._loop.remove_writer(self._fd)
        if not self._unsent and self._engine.state in {TlsState.OPEN, TlsState.ENDED}:
            self._engine.close_notify()
            self._unsent = self._engine.take()
        try:
            if self._unsent:
                self._sock.send(self._unsent)
        except OSError:
            pass  # the socket takes nothing, or the peer has gone
        self._sock.close()
        self._unread = self._unsent = self._peeked = b""
        self._account()

    # ---- instead of the sending kernel

    def send_slices(self, parts: _Parts, limit: int = io.SEND_LIMIT) -> tuple[int, io.Stop]:
        """As ``io.send_slices``: how many bytes of the parts are encrypted and on their way, and why not more.

        Raises OSError as that does, and where TLS has failed.
        """
        limit = min(limit, SENT_BYTES_PER_TURN)
        sent = index = offset = 0
        while self._flush():
            if index == len(parts):
                return sent, _DONE
            if sent >= limit:
                return sent, _LIMIT
            filled, index, offset, on_disk = _filled(self._blocks.plain, parts, index, offset)
            if filled:
                self._send(self._blocks.plain[:filled])
                sent += filled
            if on_disk:
                return sent, _DISK
        return sent, _SOCKET

    def _send(self, plain: memoryview) -> None:
        engine = self._engine
        runs = []
        try:
            for at in range(0, len(plain), RECORD_BYTES):
                engine.write(plain[at : at + RECORD_BYTES])
                runs.append(engine.take())
        except TlsFailure as failure:
            raise ConnectionAbortedError(f"TLS: {failure}") from None
        try:
            count = self._sock.sendmsg(runs)
        except (BlockingIOError, InterruptedError):
            count = 0
        if count < sum(map(len, runs)):
            self._unsent = b"".join(runs)[count:]
            self._account()
            self._watch()

    def _flush(self) -> bool:
        """Send what is encrypted; whether nothing is left of it."""
        if self._unsent:
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except (BlockingIOError, InterruptedError):
                pass
            self._account()
            self._watch()
        return not self._unsent

    def _account(self) -> None:
        held = len(self._unread) + len(self._unsent)
        if held != self.held:
            self._on_held(held - self.held)
            self.held = held


def _filled(block: memoryview, parts: _Parts, index: int, offset: int) -> tuple[int, int, int, bool]:
    """Copy parts into the block, from the byte ``offset`` of the part ``index`` on.

    Returns how much of the block is filled, index and offset of what is next, and whether that must be waited for at
    the disk. Raises OSError where a file cannot be read.
    """
    filled = 0
    while index < len(parts) and filled < len(block):
        part = parts[index]
        if isinstance(part, io.FilePart):
            size = part.length
            step = min(size - offset, len(block) - filled)
            count = disk.read_cached(part.fd, part.position + offset, block[filled : filled + step])
            if count is None:
                return filled, index, offset, True
            step = count
        else:
            size = len(part)
            step = min(size - offset, len(block) - filled)
            block[filled : filled + step] = part[offset : offset + step]
        filled += step
        offset += step
        if offset == size:
            index, offset = index + 1, 0
    return filled, index, offset, False
