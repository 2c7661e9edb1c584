"""Handshakes of TLS: each begins when a whole first record is here, and takes its long steps in a worker.

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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from fleetlog.brokers.api.base import ClientConnection
from fleetlog.brokers.logins.principals import BadPrincipal, NoRuleMatches
from fleetlog.brokers.tls.machine import (
    NO_HELLO_ALERT,
    NO_TLS_ALERT,
    RECORD_BYTES_MAX,
    TlsEngine,
    TlsFailure,
    TlsProblem,
    begins_hello,
    begins_tls,
    first_record_bytes,
    not_tls,
)

if TYPE_CHECKING:
    import asyncio

    from fleetlog.brokers.api.base import Auditor
    from fleetlog.brokers.metrics.registry import Metrics
    from fleetlog.brokers.model import Clock
    from fleetlog.brokers.server.limits import QuietLog
    from fleetlog.brokers.timers import Timer, Timers
    from fleetlog.brokers.tls.listeners import TlsListener

logger = logging.getLogger(__name__)

HANDSHAKE_MS: Final = 10_000
UNDER_WAY_MAX: Final = 1_000
ROOM_MS: Final = 250
WORKERS: Final = 2
FLIGHT_BYTES_MIN: Final = 300
"""A flight with a certificate and a signature has more, a request for another first message about 100."""
PARTS_MAX: Final = 200
"""In which the client's messages may come: the loop wakes up for each. In small packets 64 KiB have 130."""
UNSENT_BYTES_MAX: Final = 64 * 1024
"""The own chain has ten certificates at most; a peer that reads nothing of a flight that long is closed."""


CERTIFICATE_LOGIN: Final = "CERTIFICATE"
TLS_MECHANISM: Final = "TLS"
"""How metrics call what a handshake proves; with a client's certificate or without."""
"""How a client with a certificate logs in, beside the mechanisms of SASL, in the audit."""
_REFUSED_LOGINS: Final = frozenset({TlsProblem.CERTIFICATE, TlsProblem.NO_CERTIFICATE})


class Opened(NamedTuple):
    """The result of a handshake. ``principal`` is the one of the client's certificate, as ``Type:name``, if it has one.

    ``unsent`` is what the socket has not taken yet.
    """

    engine: TlsEngine
    principal: str | None
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
        audit: Auditor | None,
    ) -> None:
        self._loop = loop
        self._timers = timers
        self._clock = clock
        self._quiet = quiet
        self._metrics = metrics
        self._audit = audit
        self._under_way_max = UNDER_WAY_MAX
        self._all: set[Handshake] = set()
        self._new: list[Handshake] = []
        self._engines = 0
        self._idle: dict[Handshake, int] = {}  # with an engine, since when the peer's next bytes are waited for
        self._queue: deque[Handshake] = deque()
        self._room_timer: Timer | None = None
        self._block = memoryview(bytearray(RECORD_BYTES_MAX))
        self.workers = ThreadPoolExecutor(WORKERS, "fleetlog-tls")

    def __len__(self) -> int:
        return len(self._all)

    def begin(self, handshake: Handshake) -> None:
        """Look for the client's first record in the loop's next turn, and wait for it; its socket does not block."""
        self._all.add(handshake)
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
        for handshake in list(self._all):
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
        if len(handshake.unsent) > UNSENT_BYTES_MAX:
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
        received, handshake.received = bytes(handshake.received), bytearray()
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
            handshake.opened(Opened(engine, principal, handshake.unsent))
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
            self._audit.login_refused(ClientConnection(-1, listener.name, host), CERTIFICATE_LOGIN, str(failure))
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
        self._all.discard(handshake)
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
