"""Calls to other brokers, over their inter-broker listener.

One pipelined connection per broker, opened on first use. Responses come in the order of the requests, so slow calls
delay later ones; long polls therefore have their own :class:`Peers`. A call that times out closes the connection,
because a slow peer cannot be told from a dead one; the other calls in flight fail with :class:`PeerUnavailable`. The
outcome of a failed call is unknown.

A broker logs in at another one by SaslHandshake and SaslAuthenticate over a new link, before any other call. TLS stands
between the socket's transport and the link, and is a transport to it. Each step of its handshake runs in a worker,
because it computes a signature or checks a chain of certificates. What comes after it is decrypted straight into the
link's buffers, on the loop.

One connection to another broker: sends requests, receives responses, completes the calls.

Responses are received without copies: small ones in the connection's buffer, large ones in a separate buffer, which is
reused once it has no other references. A call allocates only the future that its caller awaits; one timer covers all
calls.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import struct
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from fleetlog.brokers.logins.listener_settings import ClientLogin
from fleetlog.brokers.logins.mechanism_names import SCRAM_MECHANISMS
from fleetlog.brokers.logins.mechanisms import AuthenticationFailed
from fleetlog.brokers.logins.plain import plain_message
from fleetlog.brokers.logins.scram import ScramClient
from fleetlog.brokers.model import Endpoint
from fleetlog.brokers.timers import Timer, Timers
from fleetlog.brokers.tls.contexts import FollowedContexts
from fleetlog.brokers.tls.machine import HANDSHAKE_BYTES_MAX, TlsEngine, TlsFailure, TlsProblem, TlsState
from fleetlog.wire import messages
from fleetlog.wire.messages import Encodable

if TYPE_CHECKING:
    from fleetlog.brokers.metadata.cache import MetadataCache

logger = logging.getLogger(__name__)

MAX_RESPONSE_BYTES = 100 * 1024 * 1024
AREA_BYTES = 64 * 1024
SPARE_BYTES = 2 * 1024 * 1024
"""The largest buffer that is kept for the next large response."""

_LENGTH = struct.Struct(">i")
_OWN_REFERENCES = 2
"""``sys.getrefcount`` of a buffer without other references."""


class PeerUnavailable(Exception):
    """The broker ``broker_id`` is not registered, not reachable, or did not answer. Retriable."""

    def __init__(self, broker_id: int, reason: str) -> None:
        super().__init__(f"broker {broker_id}: {reason}")
        self.broker_id = broker_id
        self.reason = reason


class _Call(NamedTuple):
    correlation_id: int
    api_key: int
    version: int
    answer: asyncio.Future[Any]
    raw: bool  # the caller decodes the response
    deadline: float
    timeout_ms: int


class PeerLink(asyncio.BufferedProtocol):
    """The connection's protocol; it closes after a malformed response or the timeout of a call."""

    def __init__(self, broker_id: int, loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
        self.broker_id = broker_id
        self.open = True
        self._retiring = False
        self._loop = loop
        self._timers = timers
        self._transport: asyncio.Transport | None = None
        self._calls: deque[_Call] = deque()
        self._next_id = 0
        self._alarm: Timer | None = None
        self._alarm_at = 0.0
        self._writable: asyncio.Event | None = None  # while the transport's send buffer is full
        self._area = bytearray(AREA_BYTES)
        self._end = 0
        self._frame: memoryview | None = None  # a large response that is being received
        self._filled = 0
        self._spare = bytearray()

    # ---- calls

    async def call(
        self, api_key: int, version: int, body: bytes, client_id: str, deadline: float, timeout_ms: int, *, raw: bool
    ) -> Any:
        """Send a request and wait for its response until ``deadline`` (the loop's time); raises PeerUnavailable."""
        while self._writable is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._writable.wait()
            except TimeoutError:
                raise PeerUnavailable(self.broker_id, f"took no request within {timeout_ms} ms") from None
        if not self.open or self._transport is None:
            raise PeerUnavailable(self.broker_id, "closed the connection")
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._next_id = (self._next_id + 1) & 0x7FFF_FFFF
        self._calls.append(_Call(self._next_id, api_key, version, answer, raw, deadline, timeout_ms))
        if self._alarm is None or deadline < self._alarm_at:
            self._watch(deadline)
        self._transport.write(messages.frame_request(api_key, version, self._next_id, client_id, body))
        return await answer

    def _watch(self, deadline: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._timers.later(math.ceil(1000 * (deadline - self._loop.time())), self._look)
        self._alarm_at = deadline

    def _look(self) -> None:
        """The timer: close the connection after a missed deadline, else set the timer for the next one."""
        self._alarm = None
        waiting = [call for call in self._calls if not call.answer.done()]
        if not waiting:
            return
        first = min(waiting, key=lambda call: call.deadline)
        if first.deadline <= self._loop.time():
            self.close(f"no answer within {first.timeout_ms} ms")
        else:
            self._watch(first.deadline)

    def _answer(self, frame: memoryview | bytes) -> None:
        """Raises MalformedRequest."""
        if not self._calls:
            raise messages.MalformedRequest("sent a response without a request")
        call = self._calls[0]
        correlation_id, body = messages.split_response(call.api_key, call.version, frame)
        if correlation_id != call.correlation_id:
            raise messages.MalformedRequest(f"sent correlation id {correlation_id} instead of {call.correlation_id}")
        response = body if call.raw else messages.decode_response(call.api_key, call.version, body)
        self._calls.popleft()
        if not call.answer.done():
            call.answer.set_result(response)
        if self._retiring and not self._calls:
            self.close("was replaced")

    def retire_after(self, seconds: float, replaced: Callable[[], None]) -> None:
        """Call ``replaced`` after that time; the connection closes once the calls in flight have their answers."""
        self._timers.later(math.ceil(1000 * seconds), partial(self._retire, replaced))

    def _retire(self, replaced: Callable[[], None]) -> None:
        if not self.open:
            return
        replaced()
        self._retiring = True
        if not self._calls:
            self.close("was replaced")

    def close(self, reason: str) -> None:
        """Close the connection; calls in flight fail. Safe to call twice."""
        if not self.open:
            return
        self.open = False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for call in self._calls:
            if not call.answer.done():
                call.answer.set_exception(PeerUnavailable(self.broker_id, reason))
        self._calls.clear()
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        if self._transport is not None:
            self._transport.abort()

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, problem: Exception | None) -> None:
        """Fail the calls in flight."""
        self.close(str(problem) if problem is not None else "closed the connection")

    def pause_writing(self) -> None:
        """Hold further calls: the send buffer is full."""
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        """Release held calls."""
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def get_buffer(self, _size_hint: int) -> memoryview:
        """The buffer for the next bytes."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return memoryview(self._area)[self._end :]

    def buffer_updated(self, size: int) -> None:
        """Handle ``size`` received bytes."""
        try:
            if self._frame is None:
                self._end += size
                self._cut()
                return
            self._filled += size
            if self._filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._answer(frame)
        except messages.MalformedRequest as problem:
            self.close(str(problem))

    def _cut(self) -> None:
        """Take complete frames out of the buffer; the beginning of one that does not fit moves to its own buffer."""
        area, start, end = memoryview(self._area), 0, self._end
        self._end = 0  # the connection closes if this raises
        while end - start >= _LENGTH.size and self.open:
            (size,) = _LENGTH.unpack_from(area, start)
            if not 4 <= size <= MAX_RESPONSE_BYTES:
                self.close(f"sent a frame of {size} bytes")
                return
            begin = start + _LENGTH.size
            if end - begin >= size:
                self._answer(bytes(area[begin : begin + size]))
                start = begin + size
                continue
            if size > AREA_BYTES - _LENGTH.size:
                self._frame = self._buffer(size)
                self._filled = end - begin
                self._frame[: self._filled] = area[begin:end]
                return
            break
        self._end = end - start
        if start and self._end:
            area[: self._end] = bytes(area[start:end])

    def _buffer(self, size: int) -> memoryview:
        """A buffer for a large frame: the spare one if it is large enough and has no other references."""
        if size > SPARE_BYTES:
            return memoryview(bytearray(size))
        if len(self._spare) < size or sys.getrefcount(self._spare) > _OWN_REFERENCES:
            self._spare = bytearray(max(size, 2 * AREA_BYTES))
        return memoryview(self._spare)[:size]


SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
HANDSHAKE_VERSION: Final = 1
AUTHENTICATE_VERSION: Final = 2
RENEWED_AT: Final = 0.8
"""The part of a session after which new calls go over a new connection; those under way have the rest to end."""

_SHOWN_CHARACTERS: Final = 200

_Exchange = Callable[[bytes], Awaitable[bytes]]


async def log_in(
    link: PeerLink, login: ClientLogin, client_id: str, timeout_ms: int, nonce: Callable[[], str]
) -> float | None:
    """Log in; returns after how many seconds the link should be replaced, None for never.

    Raises PeerUnavailable, also where the other broker refuses the login or cannot prove that it knows the credential.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    lifetime_ms = 0

    async def call(key: int, version: int, message: Any) -> Any:
        body = bytes(message.encode(version=version))
        return await link.call(key, version, body, client_id, deadline, timeout_ms, raw=False)

    async def exchange(token: bytes) -> bytes:
        nonlocal lifetime_ms
        request = messages.request_class(SASL_AUTHENTICATE)(version=AUTHENTICATE_VERSION, auth_bytes=token)
        answer = await call(SASL_AUTHENTICATE, AUTHENTICATE_VERSION, request)
        if answer.error_code:
            raise AuthenticationFailed(f"error {answer.error_code}, {_shown(answer.error_message or '')}")
        lifetime_ms = answer.session_lifetime_ms
        return bytes(answer.auth_bytes)

    handshake = messages.request_class(SASL_HANDSHAKE)(version=HANDSHAKE_VERSION, mechanism=login.mechanism)
    try:
        answer = await call(SASL_HANDSHAKE, HANDSHAKE_VERSION, handshake)
        if answer.error_code:
            listed = _shown(", ".join(answer.mechanisms))
            raise AuthenticationFailed(f"its listener has {listed}, not {login.mechanism}")
        await _authenticate(login, exchange, nonce)
    except AuthenticationFailed as refusal:
        reason = f"the login of user {login.user} by {login.mechanism} failed: {refusal}"
        link.close(reason)
        raise PeerUnavailable(link.broker_id, reason) from None
    except BaseException:
        link.close("the login was given up")
        raise
    return lifetime_ms / 1000 * RENEWED_AT if lifetime_ms > 0 else None


def _shown(text: str) -> str:
    """What the other side says, in a line of the log: bounded and escaped."""
    return repr(text[:_SHOWN_CHARACTERS])


async def _authenticate(login: ClientLogin, exchange: _Exchange, nonce: Callable[[], str]) -> None:
    """Raises AuthenticationFailed."""
    mechanism = SCRAM_MECHANISMS.get(login.mechanism)
    if mechanism is None:
        await exchange(plain_message(login.user, login.password))
        return
    client = ScramClient(mechanism, login.user, login.password, nonce())
    challenge = await exchange(client.first())
    # PBKDF2: milliseconds, so not on the loop
    final = await asyncio.get_running_loop().run_in_executor(None, client.final, challenge)
    client.check(await exchange(final))


RECEIVE_BYTES: Final = 64 * 1024


class TlsLink(asyncio.BufferedProtocol):
    """The protocol of the socket, and the transport of its link. :meth:`shake_hands` first."""

    def __init__(self, link: PeerLink, context: ssl.SSLContext, host: str, loop: asyncio.AbstractEventLoop) -> None:
        """``host`` is the name or address that the other broker's certificate must have."""
        self._link = link
        self._engine = TlsEngine(context, server_side=False, server_name=host)
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._area = memoryview(bytearray(RECEIVE_BYTES))
        self._open = False
        self._arrived = bytearray()
        self._ended = False
        self._news = asyncio.Event()

    async def shake_hands(self) -> None:
        """Raises TlsFailure, after which the connection is closed. Cancelled, it closes the connection, too."""
        assert self._transport is not None, "connected before"
        try:
            while not await self._loop.run_in_executor(None, self._engine.handshake):
                self._flush()
                await self._news.wait()
                self._news.clear()
                self._feed()
        except BaseException as problem:
            if isinstance(problem, TlsFailure):
                self._flush()  # the alert
            self._transport.close()
            raise
        self._flush()
        self._open = True
        self._link.connection_made(self)  # type: ignore[arg-type]
        self._feed()
        self._pass_on()

    def _feed(self) -> None:
        """Raises TlsFailure."""
        arrived, self._arrived = self._arrived, bytearray()
        self._engine.feed(arrived)
        if self._ended:
            self._engine.feed_eof()

    def _flush(self) -> None:
        assert self._transport is not None, "connected before"
        if self._engine.outgoing_bytes and not self._transport.is_closing():
            self._transport.write(self._engine.take())

    def _pass_on(self) -> None:
        """Decrypt what is at hand into the link's buffers."""
        link = self._link
        try:
            while link.open:
                buffer = link.get_buffer(-1)
                count = self._engine.read_into(buffer)
                if count:
                    link.buffer_updated(count)
                if count < len(buffer):
                    break
        except TlsFailure as failure:
            link.close(str(failure))
            return
        if self._engine.state is not TlsState.OPEN:
            link.close("closed the connection")
        elif link.open:
            self._flush()  # an answer to the other side's change of keys

    # ---- called by the link

    def write(self, data: bytes) -> None:
        """Encrypt and send."""
        rest = memoryview(data)
        try:
            while rest:
                count = self._engine.write(rest)
                if not count:
                    raise TlsFailure(TlsProblem.OTHER, "nothing can be encrypted")
                rest = rest[count:]
                self._flush()
        except TlsFailure as failure:
            self._link.close(str(failure))

    def abort(self) -> None:
        """Close the connection at once."""
        assert self._transport is not None, "connected before"
        self._transport.abort()

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, problem: Exception | None) -> None:
        """End the handshake, or the link."""
        self._ended = True
        self._news.set()
        if self._open:
            self._link.connection_lost(problem)

    def pause_writing(self) -> None:
        """Hold further calls of the link."""
        self._link.pause_writing()

    def resume_writing(self) -> None:
        """Release the link's held calls."""
        self._link.resume_writing()

    def get_buffer(self, _size_hint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._area

    def buffer_updated(self, size: int) -> None:
        """Handle ``size`` received bytes."""
        if self._open:
            try:
                self._engine.feed(self._area[:size])
            except TlsFailure as failure:
                self._link.close(str(failure))
            else:
                self._pass_on()
            return
        self._arrived += self._area[:size]
        if len(self._arrived) > HANDSHAKE_BYTES_MAX:
            self.abort()  # a worker is at work, and the other side sends on
        self._news.set()


__all__ = ["PeerUnavailable", "Peers", "PeersPort"]

MAX_IN_FLIGHT = 200
"""Calls in flight per peer; further ones wait."""
FIRST_BACKOFF_SECONDS = 0.05
LAST_BACKOFF_SECONDS = 1.0
CONNECT_SECONDS = 5.0
LOGIN_MS = 5_000

LogIn = Callable[[PeerLink], Awaitable[float | None]]


class PeersPort(Protocol):
    """The other brokers as a port: :class:`Peers` over sockets, something else in a simulation."""

    async def call(
        self, broker_id: int, api_key: int, version: int, message: Encodable, timeout_ms: int = 30_000
    ) -> Any:
        """Send a request (a message of ``wire.messages``); returns the decoded response. Raises PeerUnavailable."""

    async def exchange(
        self, broker_id: int, api_key: int, version: int, body: bytes, timeout_ms: int = 30_000
    ) -> memoryview:
        """Send a request's encoded body; returns the response's body, undecoded. Raises PeerUnavailable."""

    async def close(self) -> None:
        """Close all connections; calls in flight fail."""


class _Peer:
    """One broker's address, connection and backoff."""

    def __init__(self, broker_id: int, timers: Timers, log_in: LogIn | None, contexts: FollowedContexts | None) -> None:
        self.broker_id = broker_id
        self._timers = timers
        self._log_in = log_in
        self._contexts = contexts
        self.gate = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._connecting = asyncio.Lock()
        self._link: PeerLink | None = None
        self._endpoint: Endpoint | None = None
        self._backoff = 0.0
        self._not_before = 0.0
        self._refused = ""

    def open_link(self, endpoint: Endpoint) -> PeerLink | None:
        """The open connection to that address, if there is one."""
        link = self._link
        return link if link is not None and link.open and endpoint == self._endpoint else None

    async def connect(self, endpoint: Endpoint) -> PeerLink:
        """The connection to that address, opened if needed; raises PeerUnavailable."""
        async with self._connecting:
            if endpoint != self._endpoint:
                self.close("its address changed")
                self._endpoint, self._backoff, self._not_before = endpoint, 0.0, 0.0
            if self._link is not None and self._link.open:
                return self._link
            loop = asyncio.get_running_loop()
            await asyncio.sleep(max(0.0, self._not_before - loop.time()))
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    self._link = await self._opened(endpoint)
            except (OSError, TimeoutError, PeerUnavailable) as problem:
                self._backoff = min(max(self._backoff * 2, FIRST_BACKOFF_SECONDS), LAST_BACKOFF_SECONDS)
                self._not_before = loop.time() + self._backoff
                reason = str(problem)
                if isinstance(problem, PeerUnavailable):
                    reason = problem.reason
                    self._warn(reason)
                raise PeerUnavailable(self.broker_id, f"{endpoint.host}:{endpoint.port}: {reason}") from problem
            self._backoff, self._refused = 0.0, ""
            return self._link

    def _warn(self, reason: str) -> None:
        """Log why TLS or the login failed; each attempt fails with the same text."""
        if reason != self._refused:
            logger.warning("no connection to broker %d: %s", self.broker_id, reason)
        self._refused = reason

    async def _opened(self, endpoint: Endpoint) -> PeerLink:
        """A new connection, secured and logged in where that is needed. Raises OSError, PeerUnavailable."""
        link = await _connected(self.broker_id, endpoint, self._timers, self._contexts)
        if self._log_in is not None:
            seconds = await self._log_in(link)
            if seconds is not None:
                link.retire_after(seconds, lambda: self._forget(link))
        return link

    def _forget(self, link: PeerLink) -> None:
        if self._link is link:
            self._link = None

    def close(self, reason: str) -> None:
        """Close the connection; calls in flight fail."""
        if self._link is not None:
            self._link.close(reason)
            self._link = None


async def _connected(broker_id: int, endpoint: Endpoint, timers: Timers, contexts: FollowedContexts | None) -> PeerLink:
    """A connection to the first of the host's addresses that accepts one; raises OSError, PeerUnavailable."""
    loop = asyncio.get_running_loop()
    link = PeerLink(broker_id, loop, timers)
    protocol: PeerLink | TlsLink = link
    if contexts is not None:
        context = await loop.run_in_executor(None, contexts.newest)
        protocol = TlsLink(link, context, endpoint.host, loop)
    # A separate task: after a timeout its late exception must still be retrieved.
    looking_up = asyncio.ensure_future(loop.getaddrinfo(endpoint.host, endpoint.port))
    looking_up.add_done_callback(_retrieve_exception)
    problem: OSError | None = None
    for address in dict.fromkeys(found[4][:2] for found in await asyncio.shield(looking_up)):
        try:
            await loop.create_connection(lambda: protocol, str(address[0]), int(address[1]))
        except OSError as refusal:
            problem = problem or refusal
            continue
        if isinstance(protocol, TlsLink):
            try:
                await protocol.shake_hands()
            except TlsFailure as failure:
                raise PeerUnavailable(broker_id, f"TLS failed: {failure}") from None
        return link
    raise problem or OSError(f"{endpoint.host} has no address")


def _no_nonce() -> str:
    raise ValueError("a login by SCRAM needs a source of nonces")


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


class Peers:
    """The other brokers, by id. Each call takes the address from the metadata cache, so a moved broker is found."""

    def __init__(
        self,
        metadata: MetadataCache,
        timers: Timers,
        listener: str,
        client_id: str,
        login: ClientLogin | None = None,
        nonce: Callable[[], str] | None = None,
        contexts: FollowedContexts | None = None,
    ) -> None:
        """``login`` is this broker's own at the others; SCRAM needs a source of unpredictable texts, ``nonce``.

        ``contexts`` are those of TLS, where the others' listener has it.
        """
        self._metadata = metadata
        self._timers = timers
        self._login = login
        self._nonce = nonce
        self._contexts = contexts
        self._listener = listener
        self._client_id = client_id
        self._peers: dict[int, _Peer] = {}

    async def call(
        self, broker_id: int, api_key: int, version: int, message: Encodable, timeout_ms: int = 30_000
    ) -> Any:
        """Send a request (a message of ``wire.messages``) and return the decoded response.

        Raises:
            PeerUnavailable: broker not registered, no connection, or timeout. The outcome is unknown.

        """
        body = bytes(message.encode(version=version))
        return await self._send(broker_id, api_key, version, body, timeout_ms, raw=False)

    async def exchange(
        self, broker_id: int, api_key: int, version: int, body: bytes, timeout_ms: int = 30_000
    ) -> memoryview:
        """Send a request's body (without header) and return the response's body, undecoded.

        ``timeout_ms`` covers everything, so a long poll's own wait must be well below it.

        Raises:
            PeerUnavailable: broker not registered, no connection, or timeout. The outcome is unknown.

        """
        answer: memoryview = await self._send(broker_id, api_key, version, body, timeout_ms, raw=True)
        return answer

    async def _send(
        self, broker_id: int, api_key: int, version: int, body: bytes, timeout_ms: int, *, raw: bool
    ) -> Any:
        peer = self._peers.get(broker_id)
        if peer is None:
            peer = self._peers[broker_id] = _Peer(
                broker_id, self._timers, None if self._login is None else self._log_in, self._contexts
            )
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        link = None if peer.gate.locked() else peer.open_link(self._endpoint(broker_id))
        if link is None:
            link = await self._connect(peer, deadline, timeout_ms)
        else:
            await peer.gate.acquire()  # at once
        try:
            return await link.call(api_key, version, body, self._client_id, deadline, timeout_ms, raw=raw)
        finally:
            peer.gate.release()

    async def _log_in(self, link: PeerLink) -> float | None:
        assert self._login is not None, "asked only with one"
        return await log_in(link, self._login, self._client_id, LOGIN_MS, self._nonce or _no_nonce)

    async def _connect(self, peer: _Peer, deadline: float, timeout_ms: int) -> PeerLink:
        """The slow path to a connection, which waits for the gate; raises PeerUnavailable."""
        try:
            async with asyncio.timeout_at(deadline):
                await peer.gate.acquire()
                try:
                    return await peer.connect(self._endpoint(peer.broker_id))
                except BaseException:
                    peer.gate.release()
                    raise
        except TimeoutError:
            raise PeerUnavailable(peer.broker_id, f"no answer within {timeout_ms} ms") from None

    def _endpoint(self, broker_id: int) -> Endpoint:
        broker = self._metadata.brokers.get(broker_id)
        if broker is None:
            peer = self._peers.pop(broker_id, None)
            if peer is not None:
                peer.close("is gone")
            raise PeerUnavailable(broker_id, "is not registered")
        endpoint = broker.endpoint(self._listener)
        if endpoint is None:
            raise PeerUnavailable(broker_id, f"has no listener {self._listener}")
        return endpoint

    async def close(self) -> None:
        """Close all connections; calls in flight fail."""
        for peer in self._peers.values():
            peer.close("this broker is stopping")
        self._peers.clear()
        await asyncio.sleep(0)
