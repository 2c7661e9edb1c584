"""Calls to other brokers, over their inter-broker listener.

One pipelined connection per broker, opened on first use. Responses come in the order of the requests, so slow calls
delay later ones; long polls therefore have their own :class:`Peers`. A call that times out closes the connection,
because a slow peer cannot be told from a dead one; the other calls in flight fail with :class:`PeerUnavailable`. The
outcome of a failed call is unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from fleetlog.brokers.model import Endpoint
from fleetlog.brokers.peers.link import PeerLink, PeerUnavailable
from fleetlog.brokers.peers.login import log_in
from fleetlog.brokers.peers.tls_link import TlsLink
from fleetlog.brokers.security.followed_contexts import FollowedContexts
from fleetlog.brokers.security.listener_logins import ClientLogin
from fleetlog.brokers.security.tls import TlsFailure
from fleetlog.wire.messages import Encodable

if TYPE_CHECKING:
    from fleetlog.brokers.metadata.cache import MetadataCache
    from fleetlog.brokers.timers import Timers

__all__ = ["PeerUnavailable", "Peers", "PeersPort"]

MAX_IN_FLIGHT = 200
"""Calls in flight per peer; further ones wait."""
FIRST_BACKOFF_SECONDS = 0.05
LAST_BACKOFF_SECONDS = 1.0
CONNECT_SECONDS = 5.0
LOGIN_MS = 5_000

LogIn = Callable[[PeerLink], Awaitable[float | None]]

logger = logging.getLogger(__name__)


class PeersPort(Protocol):
    """The other brokers as a port: :class:`Peers` over sockets, something else in a simulation."""

    async def call(
        self, broker_id: int, api_key: int, version: int, message: Encodable, timeout_ms: int = 30_000
    ) -> Any:
        """Send a request (a message of ``wire.messages``); returns the decoded response. Raises PeerUnavailable."""
        ...

    async def exchange(
        self, broker_id: int, api_key: int, version: int, body: bytes, timeout_ms: int = 30_000
    ) -> memoryview:
        """Send a request's encoded body; returns the response's body, undecoded. Raises PeerUnavailable."""
        ...

    async def close(self) -> None:
        """Close all connections; calls in flight fail."""
        ...


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
