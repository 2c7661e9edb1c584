"""One client's connection: a non-blocking socket, a framer, an outbox, and the requests in between, in order.

Requests of a connection are executed one at a time, as Kafka does; only a Produce that has appended and waits for its
replicas lets the next one start. Answers leave in the order of the requests, always. Reading stops while too much is in
flight, so what a peer can make us hold is bounded: one frame, ``connection.outbox.max.bytes`` and one answer. What all
of them hold together is bounded by the server, which closes the one that holds most.

File parts that are next to leave and not in memory are read in by a worker of the disk. What the kernel counts of a TCP
connection is asked of it: nothing is counted for it on the path of a request.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from fleetlog._native import io
from fleetlog.brokers.api.base import ClientConnection, OpenConnection
from fleetlog.brokers.api.fetch_sessions import Fetches
from fleetlog.brokers.log import SliceGone
from fleetlog.brokers.logins.principals import USER, Principal
from fleetlog.brokers.logins.sasl import TOKEN_FRAME_BYTES_MAX, LoginState, SaslListener, SaslLogin
from fleetlog.brokers.model import Carried
from fleetlog.brokers.server import disk
from fleetlog.brokers.server.framing import (
    KEPT,
    LENGTH_SIZE,
    Blocks,
    Chunk,
    FrameError,
    Framer,
    Outbox,
    TlsHandshake,
)
from fleetlog.brokers.server.limits import ByteBudget, QuietLog
from fleetlog.wire.apis import APIS

if TYPE_CHECKING:
    import asyncio

    from fleetlog.brokers.metrics.registry import Counter, Histogram, Labelled, Metrics
    from fleetlog.brokers.model import Clock
    from fleetlog.brokers.quotas.metering import Meter
    from fleetlog.brokers.server.disk import ReadAhead
    from fleetlog.brokers.server.tls_transport import TlsTransport
    from fleetlog.brokers.timers import Timer, Timers

logger = logging.getLogger(__name__)


class ConnectionMarks:
    """See the module. They are by themselves because a look at a connection's attributes becomes dearer when it has
    more than 30 of them.

    ``queued_ms``: since when a request that is here is not executed; ``unsent_ms``: since when an answer has not left,
    the newest one of ``unsent_key`` then. ``answered_key``: the API of the newest answer. ``fitted``: whether an answer
    has once not left at once, so that the socket's send buffer was looked at.
    """

    __slots__ = ("answered_key", "client_id", "fitted", "queued_ms", "since_ms", "software", "unsent_key", "unsent_ms")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.software = ("unknown", "unknown")
        self.client_id: str | None = None
        self.queued_ms: int | None = None
        self.unsent_ms: int | None = None
        self.unsent_key = self.answered_key = -1
        self.fitted = False


def count_wait(waits: Labelled[Histogram], key: int, since_ms: int, clock: Clock) -> None:
    """Count a wait that is over, by the API with that key."""
    api = APIS.get(key)
    waits.labels("unknown" if api is None else api.name).observe((clock.mono_ms() - since_ms) / 1000)


SMALL_SLICE = 64 * 1024
READ_AHEAD_BYTES = 4 * 1024 * 1024


class HeadReads:
    """The reads of one outbox, one at a time."""

    __slots__ = ("_missed", "_outbox", "_read_ahead", "pending")

    def __init__(self, outbox: Outbox, read_ahead: disk.ReadAhead) -> None:
        self._outbox = outbox
        self._read_ahead = read_ahead
        self._missed: tuple[int, int] | None = None
        self.pending = False
        """Whether a worker reads: until it is through the outbox keeps its file."""

    def fetch(self, read_in: Callable[[OSError | None], None]) -> str | None:
        """Have the head read in, and call ``read_in`` then, with None or the disk's error. Returns what is wrong with
        the head, if something is.

        If it was read in and is gone again already, memory is short, and a little is read here rather than for ever.
        """
        head = self._outbox.head_slice()
        assert head is not None, "the disk was waited for, but no file part is next"
        chunk, position, length = head
        try:
            place = (chunk.fileno(), position)
        except SliceGone as error:
            return f"send failed: {error}"
        if self._missed == place:
            self._missed = None
            data = disk.read(*place, min(length, SMALL_SLICE))
            if not data:
                return "a log file is shorter than its index says"
            self._outbox.read_in(data)
            return None
        self._missed = place
        self.pending = True
        self._read_ahead.fetch(*place, min(length, READ_AHEAD_BYTES), partial(self._through, read_in))
        return None

    def _through(self, read_in: Callable[[OSError | None], None], error: OSError | None) -> None:
        self.pending = False
        read_in(error)


_INFO_BYTES: Final = 152
_ROUND_TRIP, _BYTES = struct.Struct("=I"), struct.Struct("=QQ")
_ROUND_TRIP_AT, _BYTES_AT, _LEAST_ROUND_TRIP_AT = 68, 120, 148
"""Of ``struct tcp_info`` (linux/tcp.h): tcpi_rtt, tcpi_bytes_acked with tcpi_bytes_received (Linux 4.1), tcpi_min_rtt
(4.6).
"""
NEAR_US: Final = 1_000
NEAR_SEND_BUFFER: Final = 100 * 1024
"""Holds 200 MB/s of a connection whose round trip takes a millisecond, for the kernel doubles it; what is copied there
is still in the processor's cache when a reader on the same host takes it.
"""


@contextmanager
def _socket_of(descriptor: int) -> Iterator[socket.socket]:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        yield sock
    finally:
        sock.detach()  # the connection goes on


def carried_by(descriptor: int) -> Carried:
    """The figures of a connection that is open; -1 each where the kernel has none."""
    try:
        with _socket_of(descriptor) as sock:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return Carried()
    if len(info) < _BYTES_AT + _BYTES.size:
        return Carried()
    sent, received = _BYTES.unpack_from(info, _BYTES_AT)
    return Carried(received, sent, _ROUND_TRIP.unpack_from(info, _ROUND_TRIP_AT)[0])


def fit_send_buffer(descriptor: int) -> None:
    """Bound what the kernel takes of an answer, for a reader that is near; for others it grows with the round trip."""
    with suppress(OSError), _socket_of(descriptor) as sock:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) == _INFO_BYTES and _ROUND_TRIP.unpack_from(info, _LEAST_ROUND_TRIP_AT)[0] <= NEAR_US:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NEAR_SEND_BUFFER)


STALLED_RECEIVE_BYTES = 16 * 1024
LOGIN_MS: Final = 10_000
LOGIN_REQUESTS_MAX: Final = 16
"""The longest login has four: ApiVersions, SaslHandshake and two tokens. Others are attempts with other versions."""
LOGIN_BYTES_MAX: Final = 2 * TOKEN_FRAME_BYTES_MAX
LOGIN_RECEIVES_MAX: Final = 400
"""Enough for each packet of the longest token to come by itself. Ten microseconds each, 30 with TLS."""


class ConnectionLogin:
    """The login of one connection, with the bounds that hold until it is done.

    Before that it may send ``LOGIN_REQUESTS_MAX`` requests of at most 32 KiB each (512 KiB where OAUTHBEARER is
    enabled) and ``LOGIN_BYTES_MAX`` in all, within ``LOGIN_MS``. It is read ``STALLED_RECEIVE_BYTES`` at a time,
    ``LOGIN_RECEIVES_MAX`` times at most: the loop wakes up for each part that comes, and a request that came byte by
    byte would cost it a second.
    """

    __slots__ = ("_by_mono_ms", "_bytes", "_receives", "_requests", "frame_bytes_max", "sasl")

    def __init__(self, listener: SaslListener, mono_ms: int) -> None:
        self.sasl = SaslLogin(listener)
        self.frame_bytes_max = listener.frame_bytes_max
        self._requests = 0
        self._receives = self._bytes = 0
        self._by_mono_ms = mono_ms + LOGIN_MS

    @property
    def pending(self) -> bool:
        """Whether the first login is not done."""
        return self.sasl.principal is None

    def serves(self, mono_ms: int) -> bool:
        """Whether requests are served now, without a look at each of them."""
        ends = self.sasl.session_ends_mono_ms
        return self.sasl.done and (ends is None or mono_ms <= ends)

    def overdue(self, mono_ms: int) -> bool:
        """Whether the time for the first login is over; one that was refused waits for the end of its delay."""
        sasl = self.sasl
        return self.pending and mono_ms > self._by_mono_ms and sasl.state is not LoginState.FAILED

    def count(self) -> bool:
        """Count a request before the first login; False: there were too many."""
        self._requests += self.pending
        return self._requests <= LOGIN_REQUESTS_MAX

    def receive(
        self, connection: Connection, sock: socket.socket | TlsTransport, framer: Framer, metrics: Metrics
    ) -> FrameError | None:
        """Receive a small piece into the framer, or close; what is wrong: too much, or in too many parts."""
        size = 0
        try:
            size = sock.recv_into(framer.into(STALLED_RECEIVE_BYTES))
            if not size:
                connection.close("the peer closed it")
                return None
            framer.received(size)
        except (BlockingIOError, InterruptedError):  # of a record of TLS too little has come
            framer.keep()
        except OSError as error:
            connection.close(f"receive failed: {error}")
            return None
        metrics.bytes_in.value += size
        self._receives += 1
        self._bytes += size
        if self._bytes > LOGIN_BYTES_MAX:
            return FrameError(f"more than {LOGIN_BYTES_MAX} bytes before a login")
        if self._receives > LOGIN_RECEIVES_MAX:
            return FrameError(f"its requests before a login come in more than {LOGIN_RECEIVES_MAX} parts")
        return None


REQUESTS_PER_TURN = 16
SEND_BYTES_PER_TURN = 8 * 1024 * 1024
READ_BEHIND = 64 * 1024
"""Bytes received beyond the requests being worked on, at which reading pauses."""
_FOR_BUDGET, _MUTED = 1, 2
"""Why the next request waits."""
_DISK = io.Stop.DISK
"""Looked up once: an enum's metaclass takes a thousand instructions to find a member."""


class Slot:
    """The place of one request's answer among those of its connection, which leave in the order of the requests."""

    __slots__ = ("chunks", "connection", "cost", "on_drop", "ready", "serial")

    def __init__(self, connection: Connection, cost: int) -> None:
        self.connection = connection
        self.cost = cost
        self.serial = True
        self.ready = False
        self.chunks: list[Chunk] = []
        self.on_drop: Callable[[], None] | None = None

    def answer(self, chunks: list[Chunk]) -> None:
        """The answer's frame (nothing for acks=0). Late answers of a closed connection are dropped."""
        if self.ready:
            return
        self.ready = True
        self.chunks = chunks
        self.connection.answered(self)

    def release(self) -> None:
        """Drop the answer: let go of the file parts in it."""
        for chunk in self.chunks:
            if not isinstance(chunk, bytes):
                chunk.release()


class Environment(Protocol):
    """What the connections of a broker share."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    timers: Timers
    metrics: Metrics
    received: Counter | None
    sent: Counter | None
    """Count bytes, where some page shows it."""
    budget: ByteBudget
    read_ahead: ReadAhead
    quiet: QuietLog
    blocks: Blocks
    max_frame: int
    max_control_frame: int
    max_outbox: int
    fits_send_buffers: bool
    max_in_flight: int

    def dispatch(self, connection: Connection, frame: memoryview, slot: Slot) -> None:
        """Execute one request; its answer goes into the slot, now or later."""

    def dispatch_run(self, connection: Connection, data: memoryview, start: int, end: int, most: int) -> int:
        """Execute requests where they were received, if ``data`` begins with such; returns where they end."""

    def join_batch(self, connection: Connection) -> bool:
        """Whether its requests wait for those of other connections, until :meth:`Connection.resume` is called soon."""

    def meter(self, peer: ClientConnection) -> Meter | None:
        """What measures a connection of that peer; None if no quota can govern it."""

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""

    def held(self, difference: int) -> None:
        """The connections hold that many bytes more, or less, in memory."""


class Connection:
    """The driver. All methods run on the loop thread."""

    _send_slices: Callable[..., tuple[int, io.Stop]] = staticmethod(io.send_slices)

    def __init__(
        self,
        environment: Environment,
        sock: socket.socket,
        peer: ClientConnection,
        login: ConnectionLogin | None = None,
        tls: TlsTransport | None = None,
    ) -> None:
        self.peer = peer
        self.login = login
        """What decides about requests until the login is done, or, where sessions end, always; else None."""
        self.mechanism = ""
        """By which SASL mechanism it logged in; empty before, and without a login."""
        self.closed = False
        self.fetches: Fetches = ()
        self.last_active_ms = environment.clock.mono_ms()
        self.frame_since_ms: int | None = None
        self._env = environment
        self._fd = sock.fileno()
        self._loop: asyncio.AbstractEventLoop | TlsTransport = environment.loop if tls is None else tls
        self._sock: socket.socket | TlsTransport = sock if tls is None else tls
        self._framer = Framer(environment.max_frame, environment.blocks, environment.max_control_frame)
        if login is not None:
            self._framer.limit(login.frame_bytes_max, limited_by="before a login")
        self._outbox = Outbox()
        self._slots: deque[Slot] = deque()
        self._reserved = self.held = self._held_up = 0
        self._reading = self._writing = self._pumping = False
        self._reads = HeadReads(self._outbox, environment.read_ahead)
        self.marks = ConnectionMarks(self.last_active_ms)
        self.batchable = False
        """Whether it is worth while to execute what it sends with what others do: small Produce requests."""
        self.lasting = False
        """Whether the request that is executed is executed to its end: what came behind it is not lost either."""
        self.awaits_batch = False
        """Whether what it received is to be executed with what others did, by the batcher alone."""
        self.meter = environment.meter(peer) if login is None else None
        """What its requests are measured by; None if no quota can govern them."""
        self.muted_until_ms = 0
        self._muted: Timer | None = None
        self._unmute()

    @property
    def principal(self) -> str:
        """Whose connection it is, as ``Type:name``: ``User:ANONYMOUS`` until a login sets another one.

        Requests that are under way keep the one with which they began.
        """
        return self.peer.principal

    @principal.setter
    def principal(self, principal: str) -> None:
        self.peer = dataclasses.replace(self.peer, principal=principal)
        self.meter = self._env.meter(self.peer)

    @property
    def software(self) -> tuple[str, str]:
        """The client's name and version, once it has said them (KIP-511)."""
        return self.marks.software

    @software.setter
    def software(self, software: tuple[str, str]) -> None:
        self.marks.software = software

    def described(self) -> OpenConnection:
        """As administrators see it; what it has carried is what the kernel counts."""
        marks = self.marks
        return OpenConnection(
            self.peer, self.mechanism, marks.client_id or "", marks.software, marks.since_ms, self.last_active_ms,
            carried_by(self._fd), self.unsent, self.fetches,
        )  # fmt: skip

    # -- muting ---------------------------------------------------------------------------------------------------

    def mute(self, mute_ms: int) -> None:
        """Read and execute nothing for so long (KIP-219): its client is over a quota. What is answered still leaves."""
        until_ms = self._env.clock.mono_ms() + mute_ms
        if self.closed or until_ms <= self.muted_until_ms:
            return
        if self._muted is not None:
            self._muted.cancel()
        self.muted_until_ms = until_ms
        self._held_up |= _MUTED
        self._mute()
        self._muted = self._env.timers.later(mute_ms, self.end_mute)

    def end_mute(self) -> None:
        """Go on: the time is over, or other quotas hold. What a client had begun to send is not late for it."""
        if self._muted is None or self.closed:
            return
        self._muted.cancel()
        self._muted = None
        self.muted_until_ms = 0
        self._held_up &= ~_MUTED
        self.last_active_ms = self._env.clock.mono_ms()
        if self.frame_since_ms is not None:
            self.frame_since_ms = self.last_active_ms
        self._env.loop.call_soon(self.pump)

    def measure_anew(self) -> None:
        """Other quotas hold from now on. Before a login nothing is measured."""
        if self.login is None or self.login.sasl.principal is not None:
            self.meter = self._env.meter(self.peer)
        self.end_mute()

    def count_throttled(self, api_key: int, left_ms: int) -> None:
        """An answer says that the connection is muted for so long."""
        self._env.metrics.throttle_seconds.labels(APIS[api_key].name).observe(left_ms / 1000)

    @property
    def mute_left_ms(self) -> int:
        """How long the connection is still muted: what its answers say."""
        return max(0, self.muted_until_ms - self._env.clock.mono_ms())

    # -- reading --------------------------------------------------------------------------------------------------

    def _unmute(self) -> None:
        if not self._reading and not self.closed:
            early = self.login is not None and self.login.pending
            self._loop.add_reader(self._fd, self._on_readable_before_login if early else self._on_readable)
            self._reading = True

    def _mute(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._fd)
            self._reading = False

    def _on_readable(self) -> None:
        if self.closed or self.awaits_batch:  # with very many connections libuv looks again before the turn is over
            return
        framer = self._framer
        stalled = self._stalled()
        if framer.waiting >= READ_BEHIND:
            if stalled:
                self._mute()
                return
            if framer.may_be_whole:  # there was more to do than a turn may
                self.pump()
                return
        try:
            count = self._sock.recv_into(framer.into(STALLED_RECEIVE_BYTES if stalled else None))
        except (BlockingIOError, InterruptedError):
            framer.keep()
            return
        except OSError as error:
            self.close(f"receive failed: {error}")
            return
        if count == 0:
            if self.lasting:  # it is read again behind the requests that came before it
                framer.keep()
                self._mute()
            else:
                self.close("the peer closed it")
            return
        self.last_active_ms = self._env.clock.mono_ms()
        received = self._env.received
        if received is not None:
            received.value += count
        framer.received(count)
        if stalled or not self.batchable or not self._env.join_batch(self):
            self.resume()

    def _on_readable_before_login(self) -> None:
        """In small pieces, of which there may be only so many, and nothing behind a request that is not answered."""
        if self._stalled() or self.login is None:
            self._mute()
        elif error := self.login.receive(self, self._sock, self._framer, self._env.metrics):
            self._refuse("login", error)
        else:
            self.resume()

    def resume(self) -> None:
        """Execute what was received in this turn of the loop. Afterwards others may receive where it lies."""
        self.awaits_batch = False
        try:
            self.pump()
        finally:
            self._framer.keep()

    def received(self) -> tuple[memoryview, int, int, int] | None:
        """Where requests lie that may be executed together, from where to where, and how many at most."""
        if self.login is not None and not self.login.serves(self._env.clock.mono_ms()):
            return None
        here = None if self.closed or self._stalled() else self._framer.received_here()
        return None if here is None else (*here, self._env.max_in_flight - len(self._slots))

    def _stalled(self) -> bool:
        """Whether the next request has to wait."""
        slots = self._slots
        if slots and (len(slots) >= self._env.max_in_flight or (slots[-1].serial and not slots[-1].ready)):
            return True
        return self._held_up > 0 or self._outbox.pending > self._env.max_outbox

    def pump(self) -> None:
        """Execute what has been received, as far as order and bounds allow."""
        if self._pumping or self.awaits_batch:
            return
        self._pumping = True
        if self.marks.queued_ms is not None and not self._stalled():
            count_wait(self._env.metrics.queue_seconds, self._framer.next_key(), self.marks.queued_ms, self._env.clock)
            self.marks.queued_ms = None
        more = True
        try:
            for _ in range(REQUESTS_PER_TURN):
                if self.closed or self._stalled():
                    break
                if not self._run() and not self._one():
                    more = False
                    break
                if not self._framer.waiting:
                    self.frame_since_ms = None
                    more = False
                    break
        except FrameError as error:
            self._refuse("frame", error)
        finally:
            self._pumping = False
        if self.closed:
            return
        if self._outbox.pending and not self._writing and not self._reads.pending:
            self._send()
        self._account()
        if more and self.marks.queued_ms is None and self._framer.waiting:
            self.marks.queued_ms = self._env.clock.mono_ms()
        if more and not self.closed and not self._stalled():
            self._env.loop.call_soon(self.pump)  # the others' turn first
        if self._reading or self._held_up:
            return
        if self._framer.waiting < READ_BEHIND or not self._stalled():
            self._unmute()

    def _run(self) -> bool:
        """Execute the next requests where they were received, if they are of that kind.

        They leave nothing behind in the block they were received into, so the budget is not asked.
        """
        framer = self._framer
        if self.login is not None and not self.login.serves(self._env.clock.mono_ms()):
            return False
        here = framer.received_here()
        if here is None:
            return False
        data, start, end = here
        most = self._env.max_in_flight - len(self._slots)
        executed = self._env.dispatch_run(self, data, start, end, most)
        if executed == start:
            return False
        self.executed(executed)
        return True

    def executed(self, end: int) -> None:
        """The requests before that position of the block were executed, as a run."""
        if not self.closed:
            self._framer.skip_to(end)
            self.frame_since_ms = None
            if self._reserved:  # the first of them was awaited
                self._env.budget.release(self._reserved)
                self._reserved = 0

    def next_slot(self) -> Slot:
        """The place of the next answer, for requests that were executed together."""
        slot = Slot(self, 0)
        self._slots.append(slot)
        return slot

    def deliver(self, key: int, chunks: Sequence[Chunk]) -> None:
        """The answers of an API's requests that were executed at once, without a slot: they leave behind the pump."""
        self.marks.answered_key = key
        if self._slots:
            self.next_slot().answer(list(chunks))
        elif not self.closed:
            self._outbox.put(chunks)

    def _one(self) -> bool:
        """Execute the next request if all of it is here."""
        framer = self._framer
        if not self._reserved:
            size = framer.size()
            if size is None:
                self._partial(framer.waiting > 0)
                return False
            login = self.login
            if login is not None and login.pending and framer.waiting < LENGTH_SIZE + size:
                framer.next()  # a large one gets its block; before a login a size reserves nothing, only a whole frame
                self._partial(True)
                return False
            if not self._env.budget.reserve(size):
                self._held_up |= _FOR_BUDGET
                self._mute()
                self._env.budget.wait(self._budget_returned)
                return False
            self._reserved = size
        frame = framer.next()
        if frame is None:
            self._partial(True)
            return False
        self.frame_since_ms = None
        slot = Slot(self, self._reserved)
        self._reserved = 0
        self._slots.append(slot)
        self._env.dispatch(self, frame, slot)
        return True

    def _partial(self, begun: bool) -> None:
        """Note since when a frame is incomplete; the time in which we did not look does not count."""
        if not begun:
            self.frame_since_ms = None
        elif self.frame_since_ms is None:
            self.frame_since_ms = self._env.clock.mono_ms()

    def _account(self) -> None:
        """Tell what this connection holds: received bytes that wait, and answers that were not taken yet."""
        waiting = self._framer.waiting - self._reserved  # a frame being received is counted by the budget
        holds = 0 if self.closed else self._outbox.held + (waiting if waiting > 0 else 0)
        if holds != self.held:
            self._env.held(holds - self.held)
            self.held = holds

    def _budget_returned(self) -> None:
        self._held_up &= ~_FOR_BUDGET
        if not self.closed:
            self._env.loop.call_soon(self.pump)

    def logged_in(self, principal: str, mechanism: str, *, lasting: bool) -> None:
        """Requests are served for that principal from now on; without a look at the login if it is ``lasting``."""
        self.principal = principal
        self.mechanism = mechanism
        self._framer.limit(self._env.max_frame, self._env.max_control_frame)
        if lasting:
            self.login = None
        self._mute()  # it is read in another way once this is answered

    def last_answer(self, slot: Slot, chunks: Sequence[Chunk], reason: str) -> None:
        """Send that answer and close; what was received behind its request is dropped."""
        self._framer.clear()
        slot.answer(list(chunks))
        self.flush_and_close(reason)

    # -- answering ------------------------------------------------------------------------------------------------

    def answered(self, slot: Slot) -> None:
        """A slot has its answer: send what is now at the head of the order."""
        if slot.cost:
            self._env.budget.release(slot.cost)
            slot.cost = 0
        slot.on_drop = None
        if self.closed:
            slot.release()
            return
        slots = self._slots
        while slots and slots[0].ready:
            self._outbox.put(slots.popleft().chunks)
        if not self._pumping:
            self.pump()

    def _send(self) -> None:
        """Send, as far as possible now."""
        outbox = self._outbox
        try:
            sent, stop = self._send_slices(self._fd, outbox.parts(), SEND_BYTES_PER_TURN)
        except (OSError, SliceGone) as error:
            self.close(f"send failed: {error}")
            return
        if sent:
            outbox.sent(sent)
            counter = self._env.sent
            if counter is not None:
                counter.value += sent
            self.last_active_ms = self._env.clock.mono_ms()
        if stop == _DISK:
            self._read_ahead()
            if self.closed:
                return
        if outbox.pending or self._writing:
            self._want_writable(bool(outbox.pending) and not self._reads.pending)

    def _want_writable(self, wanted: bool) -> None:
        if wanted and not self._writing:
            self._loop.add_writer(self._fd, self._on_writable)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._fd)
        self._writing = wanted
        marks = self.marks
        if wanted:
            if marks.unsent_ms is None:
                marks.unsent_ms, marks.unsent_key = self._env.clock.mono_ms(), marks.answered_key
            if not marks.fitted:
                marks.fitted = True
                if self._env.fits_send_buffers:
                    fit_send_buffer(self._fd)
        elif marks.unsent_ms is not None and not self._outbox.pending:
            count_wait(self._env.metrics.send_seconds, marks.unsent_key, marks.unsent_ms, self._env.clock)
            marks.unsent_ms = None

    def _read_ahead(self) -> None:
        """The file part at the head is not in memory: a worker reads it in."""
        wrong = self._reads.fetch(self._read_in)
        if wrong is not None:
            self.close(wrong)

    def _read_in(self, error: OSError | None) -> None:
        if self.closed:
            self._outbox.clear()
        elif error is not None:
            self.close(f"reading a log failed: {error}")
        else:
            self._send()
            self.pump()

    def _on_writable(self) -> None:
        if not self.closed:
            self._send()
            self.pump()  # below its bound the outbox takes answers again

    def _refuse(self, reason: str, error: Exception) -> None:
        self._env.metrics.refused.labels(reason).inc()
        host, text = self.peer.peer_host, "%s: %s; the connection is closed"
        if isinstance(error, TlsHandshake) and self.login is not None:
            error = TlsHandshake("the client speaks TLS, this listener has none: set security.protocol=SASL_PLAINTEXT")
        if isinstance(error, TlsHandshake):
            self._env.quiet.seldom(host, text, host, error)  # such a client tries again several times a second
        else:
            self._env.quiet.warning(text, host, error)
        self.close(str(error))

    def close(self, reason: str) -> None:
        """Close the socket and drop what waits; requests that were executed stay executed."""
        if self.closed:
            return
        self.closed = True
        if self._muted is not None:
            self._muted.cancel()
        logger.debug("connection %d of %s closed: %s", self.peer.id, self.peer.peer_host, reason)
        self._mute()
        if self._writing:
            self._loop.remove_writer(self._fd)
            self._writing = False
        self._sock.close()
        if not self._reads.pending:  # else the worker still reads from the file; it is released when it is done
            self._outbox.clear()
        self._framer.clear()
        if self._reserved:
            self._env.budget.release(self._reserved)
            self._reserved = 0
        for slot in self._slots:
            if slot.ready:
                slot.release()
                continue
            if slot.cost:
                self._env.budget.release(slot.cost)
                slot.cost = 0
            if slot.on_drop is not None:
                slot.on_drop()
        self._slots.clear()
        self._account()
        self._env.forget(self)

    @property
    def held_in_all(self) -> int:
        """What this connection holds in memory, also outside the framer and the outbox."""
        return self.held

    @property
    def unsent(self) -> int:
        """Answer bytes that have not left yet."""
        return self._outbox.pending

    def overdue(self, now_ms: int, partial_ms: int, idle_ms: int) -> str | None:
        """Why the connection should be closed by now, if it should.

        A frame that has begun gets ``partial_ms``, and a millisecond more for every 16 bytes that did come, so that a
        slow line may send a large frame but no client keeps a connection with a byte now and then. A connection without
        any traffic gets ``idle_ms``, unless a request of it is being worked on. Also a muted one, whose client may have
        left: nothing is read from it, and a mute may last for days.
        """
        if self.login is not None and self.login.overdue(now_ms):
            return "no login in time"
        if self.frame_since_ms is not None and not self._stalled():
            if now_ms - self.frame_since_ms > partial_ms + self._framer.waiting // 16:
                return f"a frame was not complete after {now_ms - self.frame_since_ms} ms"
        elif now_ms - self.last_active_ms > idle_ms and (self.idle or self.unsent):
            return f"no traffic for {now_ms - self.last_active_ms} ms"
        return None

    @property
    def idle(self) -> bool:
        """Whether nothing is being worked on."""
        return not self._slots

    def flush_and_close(self, reason: str) -> None:
        """Send what can be sent at once, then close."""
        if not self.closed:
            if self._outbox.pending and not self._writing and not self._reads.pending:
                self._send()
            self.close(reason)


def close_logins(connections: Iterable[Connection], withdrawn: frozenset[tuple[str, str]]) -> None:
    """Close those that logged in with credentials, as (mechanism, user), that do not count any more."""
    gone = {(mechanism, str(Principal(USER, user))) for mechanism, user in withdrawn}
    outdated = [one for one in connections if one.mechanism and (one.mechanism, one.principal) in gone]
    for connection in outdated:
        connection.close("its user was removed, or has another password")
    if outdated:
        logger.info("%d connections closed: their users were removed, or have other passwords", len(outdated))


class TlsConnection(Connection):
    """A connection whose bytes pass TLS: only its sending differs, since the kernel sends what it is given.

    ``transport`` stands before loop and socket.
    """

    def __init__(
        self,
        environment: Environment,
        sock: socket.socket,
        peer: ClientConnection,
        login: ConnectionLogin | None,
        transport: TlsTransport,
    ) -> None:
        self._transport = transport
        super().__init__(environment, sock, peer, login, transport)
        transport.on_lost(self.close)

    @property
    def tls(self) -> tuple[str, str]:
        """Cipher and version of TLS."""
        return self._transport.tls

    @property
    def held_in_all(self) -> int:
        """What this connection holds in memory, with what waits between TLS and its socket."""
        return self.held + self._transport.held

    def _send_slices(self, _fd: int, parts: Any, limit: int) -> tuple[int, io.Stop]:
        return self._transport.send_slices(parts, limit)


MAX_CONNECTIONS = KEPT
"""Connections in a batch: each of them has a block of its own meanwhile."""
BACKOFF_AFTER = 8
"""After so many turns with a single connection, so many connections are executed at once before one waits again."""


class ConnectionBatcher:
    """The connections that wait for the end of the turn: their Produce requests are executed together.

    They share one write for each log. Writing pays by the call as much as by the byte, and most of what an append costs
    is the same for one batch and for twenty. So a connection that received Produce requests waits until the loop has
    heard of the others that did: the rest of this turn, never a timer. Figures: ADR 0014. ``together`` is the
    dispatcher's ``dispatch_runs``.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, together: Callable[[list[Connection]], int]) -> None:
        self._loop = loop
        self._together = together
        self._waiting: list[Connection] = []
        self._idle_turns = 0
        self._backoff = 0

    def join_batch(self, connection: Connection) -> bool:
        """Whether the connection waits; its ``resume`` is called then."""
        waiting = self._waiting
        if self._backoff and not waiting:
            self._backoff -= 1
            return False
        connection.awaits_batch = True
        waiting.append(connection)
        if len(waiting) == 1:
            self._loop.call_soon(self._end_of_turn)
        elif len(waiting) == MAX_CONNECTIONS:
            self._end_of_turn()
        return True

    def _end_of_turn(self) -> None:
        waiting, self._waiting = self._waiting, []
        executed = len(waiting)
        if executed > 1:
            executed = self._execute_together(waiting)
        if executed > 1:
            self._idle_turns = self._backoff = 0
        elif waiting:
            self._idle_turns += 1
            if self._idle_turns >= BACKOFF_AFTER:
                self._backoff = BACKOFF_AFTER + self._idle_turns % BACKOFF_AFTER  # not always the same one of a round
        for connection in waiting:
            try:
                connection.resume()
            except Exception:  # of this connection only: the others must not wait for ever
                logger.exception("a connection of %s failed", connection.peer.peer_host)
                connection.close("an error of ours")

    def _execute_together(self, waiting: list[Connection]) -> int:
        """Execute what can be executed together; returns how many connections had something for that."""
        try:
            return self._together(waiting)
        except Exception:  # how far it came is unknown
            logger.exception("requests of %d connections failed", len(waiting))
            for connection in waiting:
                connection.close("an error of ours")
            return 0
