"""TLS between a connection and its socket: what the connection uses of a loop, of a socket and of the sending kernel.

A connection with TLS has a :class:`TlsTransport` where another one has the loop, its socket and ``send_slices``, so a
connection without TLS does nothing more than before. Bytes pass the engine in pieces of a record's size: its buffers
never shrink again. Encrypted bytes that the socket does not take and received ones that the connection does not read
are counted by ``held``.

Handshakes of TLS: each begins when a whole first record is here, and takes its long steps in a worker.

A connection is looked at in the turn after the one in which it was accepted, when most clients have sent that record:
what is no TLS then, or no ClientHello, is closed before anything was set up for it. Before its first record a
connection costs its socket and what it has sent of that record. From then on it has an engine, and at most
``UNDER_WAY_MAX`` connections do; the next ones wait, unread, for a place. A connection that has let the broker wait for
``ROOM_MS`` makes room for them. Each has ``HANDSHAKE_MS`` from its acceptance on. While a step is in a worker, nothing
else uses the engine. Steps go to a worker until one has signed: the first one, unless its record has only a part of the
client's first message or the client must send another one. The next steps go there only where a client's certificate is
verified, else they take less than the way to a worker and back.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from fleetlog._native import io
from fleetlog.brokers.logins.principals import BadPrincipal, NoRuleMatches
from fleetlog.brokers.server import disk
from fleetlog.brokers.tls.machine import (
    NO_HELLO_ALERT,
    NO_TLS_ALERT,
    RECORD_BYTES_MAX,
    TlsEngine,
    TlsFailure,
    TlsProblem,
    TlsState,
    begins_hello,
    begins_tls,
    first_record_bytes,
    not_tls,
    whole_records,
)

if TYPE_CHECKING:
    import asyncio

    from fleetlog.brokers.audit.recorder import Audit
    from fleetlog.brokers.metrics.registry import Metrics
    from fleetlog.brokers.model import Clock
    from fleetlog.brokers.server.limits import QuietLog
    from fleetlog.brokers.timers import Timer, Timers
    from fleetlog.brokers.tls.listeners import TlsListener

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

    ``unread`` is what was received behind the handshake's last record, ``unsent`` what it has left to send. ``on_held``
    is called with each difference of ``held``, ``on_failure`` with what ended TLS.
    """

    __slots__ = (
        "_again_queued", "_barren", "_blocks", "_engine", "_fd", "_left_over", "_loop", "_on_failure", "_on_held",
        "_on_lost", "_peeked", "_reader", "_record_waits", "_sock", "_unread", "_unsent", "_watching", "_writer",
        "held",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        engine: TlsEngine,
        blocks: TlsBlocks,
        unread: bytes,
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
        self._unread = unread  # received, not yet with the engine
        self._record_waits = whole_records(unread) > 0  # at its begin
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
        if (self._left_over or self._record_waits) and self._reader is not None and not self._again_queued:
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
        """Receive, unless a whole record waits, and decrypt as far as there is room; how much of the buffer is filled.

        The engine is fed whole records alone: one that lacks its rest says so at the cost of a record. A piece with
        little plaintext costs far more (new keys come in 27 bytes): what is behind it waits for the others' turn.
        """
        engine = self._engine
        received: bytes | memoryview = self._unread
        if not self._record_waits:
            if filled == len(buffer) or engine.state is not TlsState.OPEN:
                return filled
            received = self._receive(max(len(buffer), RECORD_BYTES))
        at, size = 0, whole_records(received)
        while size and filled < len(buffer) and engine.state is TlsState.OPEN:
            engine.feed(received[at : at + size])
            at += size
            try:
                count = engine.read_into(buffer[filled:])
            except TlsFailure:
                if not filled:
                    raise
                break  # the next call raises it
            filled += count
            self._barren = 0 if filled else self._barren + size
            barren, size = 4 * count < size, whole_records(received, at)
            if barren:
                break
        if self._barren > BARREN_BYTES_MAX:
            text = f"the peer has sent more than {BARREN_BYTES_MAX} bytes without any data in them"
            raise TlsFailure(TlsProblem.OTHER, text)
        self._unread, self._record_waits = bytes(received[at:]), size > 0
        return filled

    def _receive(self, limit: int) -> memoryview:
        """What is here, behind what was here of a record."""
        block, begun = self._blocks.received, len(self._unread)
        block[:begun] = self._unread
        try:
            count = self._sock.recv_into(block[begun : begun + limit])
        except (BlockingIOError, InterruptedError):
            return block[:begun]
        if not count:
            self._engine.feed(self._unread)
            self._engine.feed_eof()
            self._engine.read_into(block[:1])  # it sees the end only when it is read
            return block[:0]
        return block[: begun + count]

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
        self._record_waits = False
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
        try:
            runs = [engine.sealed(plain[at : at + RECORD_BYTES]) for at in range(0, len(plain), RECORD_BYTES)]
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


HANDSHAKE_MS: Final = 10_000
UNDER_WAY_MAX: Final = 1_000
ROOM_MS: Final = 250
WORKERS: Final = 2
FLIGHT_BYTES_MIN: Final = 300
"""A flight with a certificate and a signature has more, a request for another first message about 100."""
PARTS_MAX: Final = 200
"""In which the client's messages may come: the loop wakes up for each. In small packets 64 KiB have 130."""
UNSENT_FLIGHT_BYTES_MAX: Final = 64 * 1024
"""The own chain has ten certificates at most; a peer that reads nothing of a flight that long is closed."""


CERTIFICATE_LOGIN: Final = "CERTIFICATE"
TLS_MECHANISM: Final = "TLS"
"""How metrics call what a handshake proves; with a client's certificate or without."""
"""How a client with a certificate logs in, beside the mechanisms of SASL, in the audit."""
_REFUSED_LOGINS: Final = frozenset({TlsProblem.CERTIFICATE, TlsProblem.NO_CERTIFICATE})


class Opened(NamedTuple):
    """The result of a handshake. ``principal`` is the one of the client's certificate, as ``Type:name``, if it has one.

    ``unread`` is what was received of the record behind the last one, ``unsent`` what the socket has not taken yet.
    """

    engine: TlsEngine
    principal: str | None
    unread: bytes
    unsent: bytes


class Handshake:
    """One connection that has not shaken hands yet. Exactly one of ``opened`` and ``dropped`` is called, once."""

    __slots__ = (
        "closed", "dropped", "engine", "host", "listener", "made", "opened", "parts", "reading", "received", "sock",
        "timer", "unsent", "working", "writing",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        listener: TlsListener,
        host: str,
        opened: Callable[[Opened], None],
        dropped: Callable[[], None],
    ) -> None:
        self.sock = sock
        self.listener = listener
        self.host = host
        self.opened = opened
        self.dropped = dropped
        self.engine: TlsEngine | None = None
        self.received = bytearray()
        self.unsent = b""
        self.made = 0  # bytes for the client until now
        self.parts = 0
        self.timer: Timer | None = None
        self.reading = self.writing = self.working = self.closed = False


class Handshakes:
    """All handshakes of a server. Loop thread only, but for the steps in workers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        clock: Clock,
        quiet: QuietLog,
        metrics: Metrics,
        audit: Audit | None,
    ) -> None:
        self._loop = loop
        self._timers = timers
        self._clock = clock
        self._quiet = quiet
        self._metrics = metrics
        self._audit = audit
        self._under_way_max = UNDER_WAY_MAX
        self.all: set[Handshake] = set()
        self._new: list[Handshake] = []
        self._engines = 0
        self._idle: dict[Handshake, int] = {}  # with an engine, since when the peer's next bytes are waited for
        self._queue: deque[Handshake] = deque()
        self._room_timer: Timer | None = None
        self._block = memoryview(bytearray(RECORD_BYTES_MAX))
        self.workers = ThreadPoolExecutor(WORKERS, "fleetlog-tls")

    def __len__(self) -> int:
        return len(self.all)

    def begin(self, handshake: Handshake) -> None:
        """Look for the client's first record in the loop's next turn, and wait for it; its socket does not block."""
        self.all.add(handshake)
        if not self._new:
            self._loop.call_soon(self._look_at_new)
        self._new.append(handshake)

    def _look_at_new(self) -> None:
        """Of those that were accepted in one turn."""
        new, self._new = self._new, []
        for handshake in new:
            if handshake.closed:
                continue
            self._receive(handshake)
            if not handshake.closed:
                handshake.timer = self._timers.later(HANDSHAKE_MS, partial(self._expired, handshake))

    def close(self) -> None:
        """Drop all, and wait for the workers."""
        self._queue.clear()
        for handshake in list(self.all):
            self.drop(handshake)
        if self._room_timer is not None:
            self._room_timer.cancel()
        self.workers.shutdown(wait=True, cancel_futures=True)

    # ---- bytes

    def _read_on(self, handshake: Handshake) -> None:
        if not handshake.reading:
            handshake.reading = True
            self._loop.add_reader(handshake.sock.fileno(), self._on_readable, handshake)

    def _pause(self, handshake: Handshake) -> None:
        if handshake.reading:
            handshake.reading = False
            self._loop.remove_reader(handshake.sock.fileno())

    def _on_readable(self, handshake: Handshake) -> None:
        if handshake.reading:
            self._receive(handshake)

    def _receive(self, handshake: Handshake) -> None:
        """Take the next step if all that it needs is here, else wait for the rest."""
        received = handshake.received
        try:
            count = handshake.sock.recv_into(self._block[: RECORD_BYTES_MAX - len(received)])
        except (BlockingIOError, InterruptedError):
            self._read_on(handshake)
            return
        except OSError:
            count = 0
        if not count:  # a client that is not content with the certificate often just goes
            self.drop(handshake)
            return
        self._metrics.bytes_in.value += count
        received += self._block[:count]
        handshake.parts += 1
        size = first_record_bytes(received)
        failure = self._refusal(handshake, size)
        if failure is not None:
            self._fail(handshake, failure)
        elif size is not None and len(received) >= size:
            self._pause(handshake)
            self._step(handshake)
        else:
            self._read_on(handshake)

    @staticmethod
    def _refusal(handshake: Handshake, size: int | None) -> TlsFailure | None:
        """Why what was received needs no engine, if it does not; ``size`` is that of the record at its begin."""
        received, listener = handshake.received, handshake.listener
        if handshake.engine is None:
            if not begins_tls(received):
                handshake.unsent = NO_TLS_ALERT
                return not_tls()
            if not begins_hello(received):
                handshake.unsent = NO_HELLO_ALERT
                return TlsFailure(TlsProblem.OTHER, "the peer's first message is no ClientHello")
            if listener.withheld:
                text = f"it serves none until what is stored for it can be used: {listener.refusal}"
                return TlsFailure(TlsProblem.OTHER, text)
        if size is not None and size > RECORD_BYTES_MAX:
            return TlsFailure(TlsProblem.TOO_LONG, f"the peer's first record has {size} bytes")
        if handshake.parts > PARTS_MAX:
            return TlsFailure(TlsProblem.OTHER, f"the handshake comes in more than {PARTS_MAX} parts")
        return None

    def _send(self, handshake: Handshake) -> bool:
        """Send what the engine has made; False: the peer has gone, or does not read."""
        if handshake.unsent:
            try:
                handshake.unsent = handshake.unsent[handshake.sock.send(handshake.unsent) :]
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                return False
        if len(handshake.unsent) > UNSENT_FLIGHT_BYTES_MAX:
            return False
        if bool(handshake.unsent) is not handshake.writing:
            handshake.writing = not handshake.writing
            if handshake.writing:
                self._loop.add_writer(handshake.sock.fileno(), self._on_writable, handshake)
            else:
                self._loop.remove_writer(handshake.sock.fileno())
        return True

    def _on_writable(self, handshake: Handshake) -> None:
        if handshake.writing and not self._send(handshake):
            self.drop(handshake)

    # ---- steps

    def _step(self, handshake: Handshake) -> None:
        """Take the next step in a worker, now or when there is room for another engine."""
        self._idle.pop(handshake, None)
        if handshake.engine is None:
            if self._engines >= self._under_way_max:
                self._queue.append(handshake)
                self._make_room()
                return
            self._engines += 1
            handshake.engine = TlsEngine(handshake.listener.context, server_side=True)
        in_worker = handshake.made < FLIGHT_BYTES_MIN or handshake.listener.verifies
        handshake.working = True
        end = whole_records(handshake.received)
        received, handshake.received = bytes(handshake.received[:end]), handshake.received[end:]
        if in_worker:
            self.workers.submit(self._work, handshake, handshake.engine, received)
        else:
            self._stepped(handshake, *self._outcome(handshake, handshake.engine, received))

    def _work(self, handshake: Handshake, engine: TlsEngine, received: bytes) -> None:
        """In a worker."""
        self._loop.call_soon_threadsafe(self._stepped, handshake, *self._outcome(handshake, engine, received))

    def _outcome(
        self, handshake: Handshake, engine: TlsEngine, received: bytes
    ) -> tuple[TlsEngine, bool, str | None, TlsFailure | None]:
        """Take a step: whether the handshake is done, the principal of the client's certificate, and what failed."""
        principal, failure, done = None, None, False
        try:
            engine.feed(received)
            done = engine.handshake()
            principal = handshake.listener.principal(engine) if done else None
        except TlsFailure as error:
            failure = TlsFailure(error.problem, str(error))  # that one refers to this call, and with it to the engine
        except (BadPrincipal, NoRuleMatches) as error:
            failure = TlsFailure(TlsProblem.CERTIFICATE, str(error))
        except Exception as error:  # of this connection only
            logger.exception("a handshake failed")
            failure = TlsFailure(TlsProblem.OTHER, f"an error of ours: {error}")
        return engine, done, principal, failure

    def _stepped(
        self, handshake: Handshake, engine: TlsEngine, done: bool, principal: str | None, failure: TlsFailure | None
    ) -> None:
        handshake.working = False
        if handshake.closed:
            self._engine_ended()
            return
        made = engine.take()
        handshake.made += len(made)
        handshake.unsent += made
        if failure is not None:
            self._fail(handshake, failure)
        elif not self._send(handshake):
            self.drop(handshake)
        elif done:
            if handshake.listener.protocol == "SSL":  # else the login by SASL behind it is counted
                self._metrics.authenticated(handshake.listener.name, TLS_MECHANISM, well=True)
            self._leave(handshake)
            self._engine_ended()
            handshake.opened(Opened(engine, principal, bytes(handshake.received), handshake.unsent))
        else:
            self._idle[handshake] = self._clock.mono_ms()
            self._read_on(handshake)
            self._make_room()

    def _make_room(self) -> None:
        """For those that wait for a place, as soon as the longest silent peer has been silent for ``ROOM_MS``."""
        while self._queue and self._idle and self._room_timer is None:
            oldest, since_ms = next(iter(self._idle.items()))
            left_ms = since_ms + ROOM_MS - self._clock.mono_ms()
            if left_ms > 0:
                self._room_timer = self._timers.later(left_ms, self._room_due)
            else:
                self._metrics.refused.labels("handshakes").inc()
                self.drop(oldest)  # which takes the next one out of the queue

    def _room_due(self) -> None:
        self._room_timer = None
        self._make_room()

    # ---- ends

    def _expired(self, handshake: Handshake) -> None:
        self._quiet.seldom(
            f"handshake {handshake.host}", "%s: no TLS handshake within %d ms on listener %s; the connection is closed",
            handshake.host, HANDSHAKE_MS, handshake.listener.name,
        )  # fmt: skip
        self._metrics.refused.labels("handshake").inc()
        self._metrics.authenticated(handshake.listener.name, TLS_MECHANISM, well=False)
        self.drop(handshake)

    def _fail(self, handshake: Handshake, failure: TlsFailure) -> None:
        self._send(handshake)
        self._metrics.authenticated(handshake.listener.name, TLS_MECHANISM, well=False)
        self.refused(handshake.listener, handshake.host, failure)
        self.drop(handshake)

    def refused(self, listener: TlsListener, host: str, failure: TlsFailure) -> None:
        """Count and log what ended TLS with a client, and record certificates that are not accepted."""
        self._metrics.refused.labels("handshake").inc()
        if self._audit is not None and failure.problem in _REFUSED_LOGINS:
            self._audit.login_refused(listener.name, host, CERTIFICATE_LOGIN, str(failure))
        text = str(failure)
        if failure.problem is TlsProblem.NOT_TLS:
            text = f"the client does not speak TLS: set security.protocol={listener.protocol} at the client"
        self._quiet.seldom(
            f"TLS {host} {failure.problem.value}", "%s: listener %s is %s, and %s; the connection is closed",
            host, listener.name, listener.protocol, text,
        )  # fmt: skip

    def drop(self, handshake: Handshake) -> None:
        """Close its connection; no-op if it has ended."""
        if handshake.closed:
            return
        self._leave(handshake)
        handshake.sock.close()
        if handshake.engine is not None and not handshake.working:
            self._engine_ended()
        handshake.dropped()

    def _leave(self, handshake: Handshake) -> None:
        handshake.closed = True
        self.all.discard(handshake)
        self._idle.pop(handshake, None)
        self._pause(handshake)
        if handshake.writing:
            handshake.writing = False
            self._loop.remove_writer(handshake.sock.fileno())
        if handshake.timer is not None:
            handshake.timer.cancel()
            handshake.timer = None  # it refers to the handshake: a circle would be the garbage collector's

    def _engine_ended(self) -> None:
        self._engines -= 1
        while self._queue and self._engines < self._under_way_max:
            handshake = self._queue.popleft()
            if not handshake.closed:
                self._step(handshake)
