"""Calls to other brokers, over their inter-broker listener.

One connection per broker, opened when first needed, pipelined: answers come in the order of the requests, so slow
calls hold up later ones. Long polls therefore have a :class:`Peers` of their own. A call that runs out of time closes
the connection, because nobody can tell a slow peer from a dead one; calls then in flight fail with
:class:`PeerUnavailable`. A failed call may or may not have been performed.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from brokers.model import Endpoint
from wire import messages

if TYPE_CHECKING:
    from brokers.cluster.view import ClusterView

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 200
"""Calls outstanding per peer; further ones wait their turn."""
MAX_RESPONSE_BYTES = 100 * 1024 * 1024
FIRST_BACKOFF_SECONDS = 0.05
LAST_BACKOFF_SECONDS = 1.0
CONNECT_SECONDS = 5.0
READ_AHEAD_BYTES = 512 * 1024
"""What is buffered of an answer before the socket waits (twice that): a follower reads megabytes at a time."""

_LENGTH = struct.Struct(">i")


class PeerUnavailable(Exception):
    """The broker is unknown, can't be reached, or didn't answer; ``broker_id`` names it. Worth trying again later."""

    def __init__(self, broker_id: int, reason: str) -> None:
        super().__init__(f"broker {broker_id}: {reason}")
        self.broker_id = broker_id
        self.reason = reason


class PeersPort(Protocol):
    """The other brokers as a port: :class:`Peers` over sockets, something else in a simulation."""

    async def call(self, broker_id: int, api_key: int, version: int, message: Any, timeout_ms: int = 30_000) -> Any:
        """Send a request (a message of ``wire.messages``); returns the decoded response. Raises PeerUnavailable."""
        ...

    async def exchange(
        self, broker_id: int, api_key: int, version: int, body: bytes, timeout_ms: int = 30_000
    ) -> memoryview:
        """Send a request's encoded body; returns the response's body, undecoded. Raises PeerUnavailable."""
        ...

    async def close(self) -> None:
        """Talk to nobody any more; what is under way fails."""
        ...


class _Call(NamedTuple):
    correlation_id: int
    api_key: int
    version: int
    answer: asyncio.Future[Any]
    raw: bool  # the caller decodes the answer


class _Connection:
    """One open connection; ends itself when the peer closes it, lies, or a call runs out of time."""

    def __init__(self, broker_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.broker_id = broker_id
        self.open = True
        self._reader = reader
        self._writer = writer
        self._calls: deque[_Call] = deque()
        self._next_id = 0
        self._task = asyncio.create_task(self._read(), name=f"peer {broker_id}")

    async def call(self, api_key: int, version: int, body: bytes, client_id: str, *, raw: bool) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._next_id = (self._next_id + 1) & 0x7FFF_FFFF
        frame = messages.frame_request(api_key, version, self._next_id, client_id, body)
        self._calls.append(_Call(self._next_id, api_key, version, answer, raw))
        try:
            self._writer.write(frame)
            await self._writer.drain()
            return await answer
        except OSError as problem:
            self.close(str(problem))
            raise PeerUnavailable(self.broker_id, str(problem)) from problem

    async def _read(self) -> None:
        reason = "closed the connection"
        try:
            while True:
                (size,) = _LENGTH.unpack(await self._reader.readexactly(4))
                if not 4 <= size <= MAX_RESPONSE_BYTES:
                    reason = f"sent a frame of {size} bytes"
                    return
                self._answer(await self._reader.readexactly(size))
        except asyncio.IncompleteReadError:
            pass
        except (OSError, messages.MalformedRequest) as problem:
            reason = str(problem)
        finally:
            self.close(reason)

    def _answer(self, frame: bytes) -> None:
        if not self._calls:
            raise messages.MalformedRequest("an answer to nothing")
        call = self._calls[0]
        correlation_id, body = messages.split_response(call.api_key, call.version, frame)
        if correlation_id != call.correlation_id:
            raise messages.MalformedRequest(f"answer {correlation_id} where {call.correlation_id} was due")
        response = body if call.raw else messages.decode_response(call.api_key, call.version, body)
        self._calls.popleft()
        if not call.answer.done():
            call.answer.set_result(response)

    def close(self, reason: str) -> None:
        """Fail everything in flight. Safe to call twice."""
        if not self.open:
            return
        self.open = False
        for call in self._calls:
            if not call.answer.done():
                call.answer.set_exception(PeerUnavailable(self.broker_id, reason))
        self._calls.clear()
        self._writer.close()
        if asyncio.current_task() is not self._task:
            self._task.cancel()


class _Peer:
    """What is known about one broker's address, and the way to it."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.gate = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._connecting = asyncio.Lock()
        self._connection: _Connection | None = None
        self._endpoint: Endpoint | None = None
        self._backoff = 0.0
        self._not_before = 0.0

    async def connection(self, endpoint: Endpoint) -> _Connection:
        async with self._connecting:
            if endpoint != self._endpoint:
                self.close("has another address now")
                self._endpoint, self._backoff, self._not_before = endpoint, 0.0, 0.0
            if self._connection is not None and self._connection.open:
                return self._connection
            loop = asyncio.get_running_loop()
            await asyncio.sleep(max(0.0, self._not_before - loop.time()))
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, limit=READ_AHEAD_BYTES)
            except (OSError, TimeoutError) as problem:
                self._backoff = min(max(self._backoff * 2, FIRST_BACKOFF_SECONDS), LAST_BACKOFF_SECONDS)
                self._not_before = loop.time() + self._backoff
                raise PeerUnavailable(self.broker_id, f"{endpoint.host}:{endpoint.port}: {problem}") from problem
            self._backoff = 0.0
            self._connection = _Connection(self.broker_id, reader, writer)
            return self._connection

    def close(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.close(reason)
            self._connection = None


class Peers:
    """The other brokers, by id. Addresses come from the view at each call, so a moved broker is found again."""

    def __init__(self, view: ClusterView, listener: str, client_id: str) -> None:
        self._view = view
        self._listener = listener
        self._client_id = client_id
        self._peers: dict[int, _Peer] = {}

    async def call(self, broker_id: int, api_key: int, version: int, message: Any, timeout_ms: int = 30_000) -> Any:
        """Send a request (a message of ``wire.messages``) and return the decoded response.

        Raises:
            PeerUnavailable: no such living broker, no connection, no answer in time. The outcome is unknown.

        """
        body = bytes(message.encode(version=version))
        return await self._send(broker_id, api_key, version, body, timeout_ms, raw=False)

    async def exchange(
        self, broker_id: int, api_key: int, version: int, body: bytes, timeout_ms: int = 30_000
    ) -> memoryview:
        """Send a request's body (without header) and return the response's body, not yet looked at.

        ``timeout_ms`` covers everything, so a long poll's own wait must be well below it.

        Raises:
            PeerUnavailable: no such living broker, no connection, no answer in time. The outcome is unknown.

        """
        answer: memoryview = await self._send(broker_id, api_key, version, body, timeout_ms, raw=True)
        return answer

    async def _send(
        self, broker_id: int, api_key: int, version: int, body: bytes, timeout_ms: int, *, raw: bool
    ) -> Any:
        peer = self._peers.get(broker_id)
        if peer is None:
            peer = self._peers[broker_id] = _Peer(broker_id)
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000), peer.gate:
                connection = await peer.connection(self._endpoint(broker_id))
                return await connection.call(api_key, version, body, self._client_id, raw=raw)
        except TimeoutError:
            reason = f"no answer within {timeout_ms} ms"
            if connection is not None:
                connection.close(reason)
            raise PeerUnavailable(broker_id, reason) from None

    def _endpoint(self, broker_id: int) -> Endpoint:
        broker = self._view.brokers.get(broker_id)
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
