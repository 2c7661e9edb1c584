"""One ZooKeeper session over kazoo: one client, discarded with its session, and kazoo's connection thread.

Only that thread is used: a queue that the loop drains replaces kazoo's worker threads, so results, watches and session
changes arrive in the order in which ZooKeeper sent them.

While the loop is blocked for longer than a heartbeat's interval the thread neither pings nor reconnects, see
:mod:`coordination.zookeeper`. kazoo drops its watches whenever the connection breaks; here they fire once the same
session is connected again (there may be changes), because the port guarantees that only a new session loses them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.protocol.connection import STOP_CONNECTING, ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import EventType, KazooState, KeeperState

from fleetlog.coordination.client_log import client_log
from fleetlog.coordination.connect import ConnectionSecurity, ConnectString
from fleetlog.coordination.loop_handler import LoopHandler
from fleetlog.coordination.request_times import RequestTimes
from fleetlog.coordination.store import SessionInfo, Watch, WatchEvent, WatchKind

_log = logging.getLogger(__name__)
_kazoo_log = client_log(
    "fleetlog.coordination.zookeeper.kazoo"
)  # nearly silent: the store logs once per session change

_WATCH_KINDS = {
    EventType.CREATED: WatchKind.CREATED,
    EventType.DELETED: WatchKind.DELETED,
    EventType.CHANGED: WatchKind.CHANGED,
    EventType.CHILD: WatchKind.CHILDREN,
}


THROTTLED_SECONDS = 0.1
"""The pause after a request that ZooKeeper did not admit."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # outside Linux, CLOCK_MONOTONIC counts sleep


def boot_ms() -> int:
    """Milliseconds of CLOCK_BOOTTIME: monotonic, also during suspend."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


class SessionOwner(Protocol):
    """The store, as its sessions see it."""

    loop: asyncio.AbstractEventLoop
    connect: ConnectString
    security: ConnectionSecurity
    requested_timeout_ms: int
    times: RequestTimes

    def stands_still(self) -> bool:
        """Whether the loop has been blocked for too long to prove anything; any thread."""
        ...

    def session_connected(self, session: ZooKeeperSession, sent_ms: int) -> None:
        """It was opened or reconnected, by a handshake that was sent then."""
        ...

    def session_suspended(self, session: ZooKeeperSession) -> None:
        """Its connection is lost."""
        ...

    def session_over(self, session: ZooKeeperSession) -> None:
        """It has ended."""
        ...


class _Handshake(NamedTuple):
    sent_ms: int
    timeout_ms: int
    session_id: int


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection thread; records the send time of handshakes, and ends with the session."""

    session: ZooKeeperSession
    handshake: _Handshake
    latest: tuple[str, int] | None = None
    dropped_since_ms: int | None = None
    """Since when no handshake was answered, though servers were reached."""

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        sent_ms = boot_ms()
        if isinstance(request, Connect):
            # kazoo would wait a whole session timeout. A starting server may drop the handshake.
            timeout = min(timeout, self.session.handshake_timeout_s)
        try:
            answer = super()._invoke(timeout, request, xid)
        except kz.ConnectionDropped:
            if isinstance(request, Connect):
                self._handshake_dropped(sent_ms)
            raise
        if isinstance(request, Connect) and isinstance(answer, tuple):
            self.dropped_since_ms = None
            self.handshake = _Handshake(sent_ms, answer[0].time_out, answer[0].session_id)
        return answer

    def _handshake_dropped(self, sent_ms: int) -> None:
        """A server closes the connection of a client that has seen later changes than it has itself.

        It does so for a moment while it starts or has no quorum, and for ever where all servers were restored from an
        older copy: then only a client that does not say what it has seen can find that out.
        """
        if self.dropped_since_ms is None:
            self.dropped_since_ms = sent_ms
        elif self.client.last_zxid and sent_ms - self.dropped_since_ms > 2 * self.session.store.requested_timeout_ms:
            _log.warning(
                "ZooKeeper has dropped this session's handshakes for %d s: its servers may not know what was seen of"
                " them (change %#x); connecting as if nothing was",
                (sent_ms - self.dropped_since_ms) // 1000, self.client.last_zxid,
            )  # fmt: skip
            self.client.last_zxid = 0

    def _send_ping(self, connect_timeout: float) -> None:
        if not self.session.store.stands_still():
            super()._send_ping(connect_timeout)

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        # The server that failed last comes last: it may hang instead of refusing connections.
        hosts: list[tuple[str, str, int]] = super()._expand_client_hosts()
        return sorted(hosts, key=lambda host: host[1:] == self.latest)

    def _connect_attempt(self, host: str, address: str, port: int, retry: Any) -> Any:
        if self.session.store.stands_still():
            return None  # a handshake would renew the session; kazoo retries within a second
        self.latest = (address, port)
        status = super()._connect_attempt(host, address, port, retry)
        return STOP_CONNECTING if self.client.client_state == KeeperState.EXPIRED_SESSION else status

    def zk_loop(self) -> None:
        """Run the thread; its end, by any cause, ends the session."""
        try:
            super().zk_loop()
        finally:
            self.session.handler.put(self.session.over)


class RegisteredWatch:
    """One registered watch; kazoo calls it on the loop (through the loop handler)."""

    __slots__ = ("callback", "kind", "path", "session")

    def __init__(self, session: ZooKeeperSession, path: str, kind: WatchKind, callback: Watch) -> None:
        self.session, self.path, self.kind, self.callback = session, path, kind, callback

    def __call__(self, event: Any) -> None:
        kind = _WATCH_KINDS.get(event.type)
        if kind is None:
            self.session.forgotten.append(self)
        elif not self.session.closed:
            self.callback(WatchEvent(kind, self.path))

    def __eq__(self, other: object) -> bool:
        # kazoo keeps watchers in a set: setting the same watch again before it fires must not add another.
        return (
            isinstance(other, RegisteredWatch)
            and (self.path, self.kind, self.callback) == (other.path, other.kind, other.callback)
            and self.session is other.session
        )

    def __hash__(self) -> int:
        return hash((self.path, self.kind, self.callback))

    def fire(self) -> None:
        """Fire after a reconnect: the znode may have changed meanwhile."""
        self.callback(WatchEvent(self.kind, self.path))


class ZooKeeperSession:
    """One kazoo client, for one session. All methods except ``_on_state`` run on the loop."""

    def __init__(self, store: SessionOwner, client_id: tuple[int, bytes] | None = None, last_zxid: int = 0) -> None:
        self.store = store
        hosts = len(store.connect.hosts)
        timeout_ms = store.requested_timeout_ms
        security = store.security
        self.handler = LoopHandler(store.loop, max(timeout_ms / 1000 / 3 / hosts, 0.5), security.newest_context)
        self.handshake_timeout_s = max(timeout_ms / 1000 / 3, 0.5)
        retry = {"max_tries": -1, "delay": 0.1, "backoff": 1.5, "max_delay": 1.0, "ignore_expire": False}
        self.client = KazooClient(
            hosts=store.connect.addresses(),
            timeout=timeout_ms / 1000,
            client_id=client_id,
            handler=self.handler,
            connection_retry=dict(retry),
            command_retry={**retry, "max_tries": 0},
            auth_data=security.logins,
            logger=_kazoo_log,
        )
        connection = _Connection(self.client, self.client._conn_retry.copy(), logger=self.client.logger)
        connection.session = self
        self.client._connection = connection
        self.client.last_zxid = last_zxid
        self.client.add_listener(self._on_state)
        self.connected = False
        self.info: SessionInfo | None = None
        self.closed = False
        self.forgotten: list[RegisteredWatch] = []
        self.pending: set[asyncio.Future[Any]] = set()
        self.last_zxid = last_zxid

    def open(self) -> None:
        """Start the connection thread."""
        self.client.start_async()

    def _on_state(self, state: str) -> None:
        """On kazoo's thread: pass the event to the loop with the present handshake or zxid."""
        if state == KazooState.CONNECTED:
            self.handler.put(partial(self._on_connected, self.client._connection.handshake))
        elif state == KazooState.SUSPENDED:
            self.handler.put(self._on_suspended)
        else:
            self.last_zxid = self.client.last_zxid
            self.handler.put(self.over)

    def _on_connected(self, handshake: _Handshake) -> None:
        if self.closed:
            return
        self.connected = True
        self.info = SessionInfo(handshake.session_id, handshake.timeout_ms)
        self.store.session_connected(self, handshake.sent_ms)
        forgotten, self.forgotten = self.forgotten, []
        for watcher in forgotten:
            watcher.fire()

    def _on_suspended(self) -> None:
        if not self.closed:
            self.connected = False
            self.store.session_suspended(self)

    def over(self) -> None:
        """The session has ended (or its thread died). Requests still pending were never sent."""
        if self.closed:
            return
        self.closed = True
        self.connected = False
        self.forgotten.clear()
        self.fail_pending(kz.SessionExpiredError())
        self.store.session_over(self)

    def fail_pending(self, error: Exception) -> None:
        """End what waits for an answer with that error."""
        for future in list(self.pending):
            _fail(future, error)

    def issue(self, request: Callable[[KazooClient], Any]) -> asyncio.Future[Any]:
        """Issue one kazoo request; the future holds kazoo's answer or exception."""
        if self.closed:
            raise kz.SessionExpiredError
        future: asyncio.Future[Any] = self.store.loop.create_future()
        self.pending.add(future)
        future.add_done_callback(self.pending.discard)
        self.store.times.measure(future)
        try:
            request(self.client).rawlink(partial(_settle, future))
        except BaseException:
            future.cancel()
            raise
        return future

    async def call(self, request: Callable[[KazooClient], Any]) -> Any:
        """Issue one kazoo request and wait for it; an overloaded server gets it again. Raises kazoo's exceptions."""
        while True:
            try:
                return await self.issue(request)
            except kz.ThrottledOpError:  # it did not get as far as the tree
                await asyncio.sleep(THROTTLED_SECONDS)

    def leave_server(self) -> None:
        """Break the connection, so that the session reconnects to another server."""
        connection = self.client._connection._socket
        if connection is not None:
            try:
                # Not SSLSocket's own, which takes TLS off first: kazoo's thread may be sending.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            except OSError:
                pass  # the connection is broken already

    def stop(self) -> None:
        """Close the session at ZooKeeper and end the thread. Blocking."""
        try:
            self.client.stop()
            self.client.close()
        except Exception as error:
            _log.warning("closing the ZooKeeper session failed: %s", error)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if result.exception is not None:
        _fail(future, result.exception)
    elif not future.done():
        future.set_result(result.value)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # mark as retrieved: a cancelled caller will not retrieve it


class Visitor:
    """Reconnects a session by its credentials, or detects that it is over; the caller's close then ends it."""

    def __init__(self, store: SessionOwner, session_id: int, password: bytes) -> None:
        self.arrived: asyncio.Future[None] = store.loop.create_future()
        self.session = ZooKeeperSession(store, (session_id, password))
        self.session._on_connected = self._settle  # type: ignore[method-assign, assignment]
        self.session.over = self._settle  # type: ignore[method-assign]
        self.session.open()

    def _settle(self, _handshake: _Handshake | None = None) -> None:
        if not self.arrived.done():
            self.arrived.set_result(None)
