"""The Store over a real ZooKeeper: kazoo's asynchronous API, with all its events passed to the event loop in order.

One kazoo client serves one session (:class:`ZooKeeperSession`) and is discarded with it, so a request can
never reach the next session.

A session proves that the loop runs. kazoo's thread alone would ping for a blocked loop, and the broker's partitions
would have no working leader. So while the loop is blocked for longer than a heartbeat's interval the thread neither
pings nor reconnects (``heartbeats_prove``), and the session expires one timeout after the loop's last heartbeat.

Writes are sent once: a connection lost before the answer is UnknownOutcome. Reads are repeated within their session.

Of kazoo only the connection's thread is used: a queue that the loop drains replaces its worker threads, so results,
watches and session changes arrive in the order in which ZooKeeper sent them. kazoo drops its watches whenever the
connection breaks; here they fire once the same session is connected again (there may be changes), because the port
guarantees that only a new session loses them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, MarshallingError, NoNodeError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import STOP_CONNECTING, ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import EventType, KazooState, KeeperState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from fleetlog.coordination.connect import CannotConnect, ConnectionSecurity, ConnectString, diagnose, parse_connect
from fleetlog.coordination.request_times import RequestTimes
from fleetlog.coordination.store import (
    MAX_GET_MANY,
    MAX_MULTI_BYTES,
    MAX_MULTI_OPERATIONS,
    BadVersion,
    Check,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    OperationResult,
    SessionEvent,
    SessionExpired,
    SessionInfo,
    SessionLease,
    SessionState,
    SetData,
    Stat,
    StoreError,
    TooLarge,
    UnknownOutcome,
    Watch,
    WatchEvent,
    WatchKind,
)

logger = logging.getLogger(__name__)


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler without worker threads: callbacks are queued and run on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connect_timeout_s: float,
        newest_context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """With ``newest_context``, connections are TLS; it is called on kazoo's thread."""
        super().__init__()
        self._newest_context = newest_context
        self._loop = loop
        self._connect_timeout_s = connect_timeout_s
        self._callbacks: deque[Callable[[], None]] = deque()
        self._woken = False
        self.completion_queue = self

    @property
    def running(self) -> bool:
        """Always true: for a stopped handler kazoo would run callbacks on its own thread."""
        return True

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def put(self, callback: Callable[[], None]) -> None:
        """Queue a callback for the loop; any thread."""
        self._callbacks.append(callback)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                self._callbacks.clear()  # the loop is closed

    def dispatch_callback(self, callback: Any) -> None:
        """Queue the callback of a fired watch."""
        self.put(partial(callback.func, *callback.args))

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """As kazoo's, but one unresponsive host must not use up the whole session timeout."""
        timeout_s = kwargs["timeout"] = min(kwargs.get("timeout") or self._connect_timeout_s, self._connect_timeout_s)
        connection = super().create_connection(*args, **kwargs)
        if self._newest_context is None:
            return connection
        connection.settimeout(timeout_s)
        return self._newest_context().wrap_socket(connection, server_hostname=kwargs["hostname"])

    def select(self, readable: Any, writable: Any, failed: Any, timeout: float | None = None) -> Any:
        """As kazoo's, but what TLS has decrypted already is readable, although its socket is not.

        kazoo waits for the socket alone, and so leaves the second of two answers in one TLS record until a timeout.
        """
        decrypted = [one for one in readable if isinstance(one, ssl.SSLSocket) and one.pending()]
        if not decrypted:
            return super().select(readable, writable, failed, timeout)
        ready = super().select(readable, writable, failed, 0)
        return (list({*decrypted, *ready[0]}), *ready[1:])

    def _drain(self) -> None:
        self._woken = False  # before the first pop: a callback queued from here on wakes the loop again
        while self._callbacks:
            try:
                self._callbacks.popleft()()
            except Exception:
                logger.exception("ZooKeeper client: a callback failed")


_GET_DATA = 4
_ERROR = -1
_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">iBi")  # type of the operation, whether this is the end, error
_STAT = struct.Struct(">qqqqiiiqiiq")
_HEADER_OF_GET = _HEADER.pack(_GET_DATA, 0, -1)
_END = _HEADER.pack(-1, 1, -1)


class GetMany:
    """A kazoo request: data and Stat of each path, None where there is no znode.

    It is ZooKeeper's multiRead (3.6, ZOOKEEPER-1962), which kazoo lacks. The server answers each operation separately:
    a missing znode fails only its own read.
    """

    type = 22

    __slots__ = ("paths",)

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def __repr__(self) -> str:
        return f"GetMany({len(self.paths)} paths)"

    def serialize(self) -> bytes:
        """The body of the request."""
        parts: list[bytes] = []
        for path in self.paths:
            encoded = path.encode()
            parts += (_HEADER_OF_GET, _LENGTH.pack(len(encoded)), encoded, b"\0")  # no watch
        parts.append(_END)
        return b"".join(parts)

    def deserialize(self, answer: bytes, offset: int) -> list[tuple[bytes, Stat] | None]:
        """Decode the response's body. Raises kazoo's exception of the first error other than a missing znode."""
        rows: list[tuple[bytes, Stat] | None] = []
        try:
            while True:
                kind, done, _ = _HEADER.unpack_from(answer, offset)
                offset += _HEADER.size
                if done:
                    break
                (number,) = _LENGTH.unpack_from(answer, offset)
                offset += _LENGTH.size
                if kind == _ERROR:
                    if number != NoNodeError.code:
                        raise EXCEPTIONS[number]
                    rows.append(None)
                    continue
                end = offset + max(0, number)
                czxid, mzxid, created_ms, _, version, _, _, owner, _, children, _ = _STAT.unpack_from(answer, end)
                rows.append((answer[offset:end], Stat(version, czxid, mzxid, owner, children, created_ms)))
                offset = end + _STAT.size
        except struct.error:
            raise MarshallingError("no answer to a multiRead: ZooKeeper is older than 3.6") from None
        if len(rows) != len(self.paths):
            raise MarshallingError(f"{len(rows)} answers to a multiRead of {len(self.paths)}")
        return rows


_HARMLESS = (str, int, float, BaseException, type(None))


def client_log(name: str) -> logging.Logger:
    """The logger of that name for kazoo: errors alone, since it warns at every attempt to connect.

    kazoo writes requests and answers as they are: the passwords of logins and of sessions, and the data of znodes, such
    as credentials of SCRAM. Its levels can change while a broker runs, so no level may show them.
    """
    logger = logging.getLogger(name)
    logger.setLevel(logging.ERROR)
    logger.addFilter(_without_contents)
    return logger


def _without_contents(record: logging.LogRecord) -> bool:
    """Leave of requests, answers and bytes their type, and the path if they have one."""
    args = (record.args,) if isinstance(record.args, Mapping) else record.args or ()
    record.args = tuple(one if isinstance(one, _HARMLESS) else _kind(one) for one in args)
    return True


def _kind(one: object) -> str:
    path = getattr(one, "path", None)
    return f"{type(one).__name__} {path}" if isinstance(path, str) else type(one).__name__


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
            logger.warning(
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

    def __init__(self, store: ZookeeperStore, client_id: tuple[int, bytes] | None = None, last_zxid: int = 0) -> None:
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
            logger.warning("closing the ZooKeeper session failed: %s", error)


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

    def __init__(self, store: ZookeeperStore, session_id: int, password: bytes) -> None:
        self.arrived: asyncio.Future[None] = store.loop.create_future()
        self.session = ZooKeeperSession(store, (session_id, password))
        self.session._on_connected = self._settle  # type: ignore[method-assign, assignment]
        self.session.over = self._settle  # type: ignore[method-assign]
        self.session.open()

    def _settle(self, _handshake: _Handshake | None = None) -> None:
        if not self.arrived.done():
            self.arrived.set_result(None)


DEFAULT_SESSION_TIMEOUT_MS = 18_000
DEFAULT_CONNECT_TIMEOUT_MS = 6_000
_REOPEN_DELAY_S = 1.0
_OPERATION_OVERHEAD_BYTES = 64
"""Headers, lengths and the ACL of one operation on the wire."""

_ERRORS: dict[type[Exception], type[StoreError]] = {
    kz.NoNodeError: NoNode,
    kz.NodeExistsError: NodeExists,
    kz.BadVersionError: BadVersion,
    kz.NotEmptyError: NotEmpty,
    kz.SessionExpiredError: SessionExpired,
    kz.ConnectionClosedError: SessionExpired,
}
_LOST = (kz.ConnectionLoss, kz.OperationTimeoutError, kz.RequestTimeoutError, kz.SessionMovedError)
_NOT_THE_CULPRIT = (kz.RolledBackError, kz.RuntimeInconsistency)


class ZookeeperStore:
    """The Store over kazoo. Construct it on the loop, then ``start`` and ``close``.

    ``connect_string`` is Kafka's ``zookeeper.connect`` with an optional chroot, which is created. All times in
    milliseconds. Raises CannotConnect if the string is malformed.
    """

    def __init__(
        self,
        connect_string: str,
        *,
        session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
        security: ConnectionSecurity | None = None,
    ) -> None:
        self.security = security or ConnectionSecurity()
        self.connect: ConnectString = parse_connect(connect_string)
        self.requested_timeout_ms = session_timeout_ms
        self.loop = asyncio.get_running_loop()
        self.lease = SessionLease(boot_ms)
        self.times = RequestTimes(boot_ms)
        self._session: ZooKeeperSession | None = None
        self._listeners: list[Callable[[SessionEvent], None]] = []
        self._heartbeat: asyncio.Task[None] | None = None
        self._first_connection: asyncio.Future[None] = self.loop.create_future()
        self._disposals: set[asyncio.Future[None]] = set()
        self._closing = False
        self._standing_ms: Callable[[], int] = lambda: 0

    # --- lifecycle ---

    async def start(self, connect_timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS) -> None:
        """Open the first session and create the chroot; raises CannotConnect with the error of each address."""
        self._open(last_zxid=0)
        try:
            await asyncio.wait_for(asyncio.shield(self._first_connection), connect_timeout_ms / 1000)
        except TimeoutError:
            newest = self.security.newest_context
            context = None if newest is None else newest()
            reasons = await asyncio.gather(*(diagnose(host, port, context) for host, port in self.connect.hosts))
            await self.close()
            raise CannotConnect(
                f"zookeeper.connect={self.connect.addresses()}{self.connect.chroot}: no session within"
                f" {connect_timeout_ms} ms: " + "; ".join(reasons)
            ) from None
        await self._create_chroot()

    async def close(self) -> None:
        """Close the session: its ephemerals are deleted at once."""
        self._closing = True
        self.lease.ended()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        session, self._session = self._session, None
        if session is not None:
            self._dispose(session)
        while self._disposals:
            await asyncio.wait(self._disposals)

    def session(self) -> SessionInfo | None:
        """The present session (also while suspended), or None."""
        return self._session.info if self._session is not None else None

    def credentials(self) -> tuple[int, bytes] | None:
        """Session id and password, for ``end_session`` of a successor; None while not connected."""
        client_id = self._session.client.client_id if self._session is not None else None
        return None if client_id is None else (client_id[0], client_id[1])

    def on_session(self, listener: Callable[[SessionEvent], None]) -> None:
        """Call ``listener`` on the loop at every change of the session."""
        self._listeners.append(listener)

    async def end_session(self, session_id: int, password: bytes, timeout_ms: int = 5_000) -> bool:
        """Close another session by its credentials (this broker's own from before a crash); deletes its ephemerals.

        True if it is over, False if that is unknown after the timeout.
        """
        visitor = Visitor(self, session_id, password)
        try:
            await asyncio.wait_for(visitor.arrived, timeout_ms / 1000)
            return True
        except TimeoutError:
            return False
        finally:
            await self._dispose(visitor.session)

    def heartbeats_prove(self, standing_ms: Callable[[], int]) -> None:
        """From now on sessions expire while the loop is blocked; ``standing_ms`` returns for how long it has been.

        Other threads call ``standing_ms``. Before this call the session is kept alive also for a blocked loop.
        """
        self._standing_ms = standing_ms

    def stands_still(self) -> bool:
        """Whether the loop has been blocked for longer than the pause between two heartbeats; any thread."""
        return self._standing_ms() > self.lease.heartbeat_interval_ms

    # --- events of a session (on the loop) ---

    def session_connected(self, session: ZooKeeperSession, sent_ms: int) -> None:
        """A session was opened or reconnected."""
        if session is not self._session:
            return
        assert session.info is not None
        self.lease.handshake(sent_ms, session.info.timeout_ms)
        if self._heartbeat is None or self._heartbeat.done():
            self._heartbeat = self.loop.create_task(self._beat(session), name="zookeeper-heartbeat")
        if not self._first_connection.done():
            self._first_connection.set_result(None)
        self._publish(SessionState.CONNECTED, session.info.session_id)

    def session_suspended(self, session: ZooKeeperSession) -> None:
        """The connection is lost; the session may still be valid."""
        if session is self._session and session.info is not None:
            self.lease.disconnected()
            self._publish(SessionState.SUSPENDED, session.info.session_id)

    def session_over(self, session: ZooKeeperSession) -> None:
        """The session has ended: notify listeners, and only then open the next one."""
        if session is not self._session or self._closing:
            return
        self._session = None
        self.lease.ended()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None
        if session.info is not None:
            self._publish(SessionState.EXPIRED, 0)
        self._dispose(session)
        delay_s = 0.0 if session.info is not None else _REOPEN_DELAY_S
        self.loop.call_later(delay_s, self._open, session.last_zxid)

    def _publish(self, state: SessionState, session_id: int) -> None:
        level = logging.INFO if state is SessionState.CONNECTED else logging.WARNING
        logger.log(level, "ZooKeeper session %#x: %s", session_id, state.value)
        for listener in list(self._listeners):
            try:
                listener(SessionEvent(state, session_id))
            except Exception:
                logger.exception("ZooKeeper session: a listener failed")

    def _open(self, last_zxid: int) -> None:
        if not self._closing and self._session is None:
            # With the last seen zxid: a server that lags behind it must not serve this session.
            self._session = ZooKeeperSession(self, last_zxid=last_zxid)
            self._session.open()

    def _dispose(self, session: ZooKeeperSession) -> asyncio.Future[None]:
        session.closed = True
        # A separate thread, not the default executor: that may be shut down or busy during close.
        done: asyncio.Future[None] = self.loop.create_future()

        def settle() -> None:
            if not done.done():
                done.set_result(None)

        def run() -> None:
            session.stop()
            try:
                self.loop.call_soon_threadsafe(settle)
            except RuntimeError:
                pass  # the loop is closed

        self._disposals.add(done)
        done.add_done_callback(self._disposals.discard)
        threading.Thread(target=run, name="zookeeper-close", daemon=True).start()
        session.fail_pending(kz.ConnectionLoss())
        return done

    async def _beat(self, session: ZooKeeperSession) -> None:
        """Send heartbeats one after the other; coordination.store explains why they are syncs."""
        path = self.connect.absolute("/")
        while not session.closed:
            await asyncio.sleep(self.lease.heartbeat_interval_ms / 1000)
            if not session.connected:
                continue
            sent_ms = boot_ms()
            try:
                beat = session.issue(lambda client: client.sync_async(path))
                if len(self.connect.hosts) > 1:
                    # kazoo detects a hanging server only after the lease is over and hardly any time is left.
                    await asyncio.wait({beat}, timeout=self.lease.patience_ms / 1000)
                    if not beat.done():
                        logger.warning("ZooKeeper server does not answer a heartbeat: trying another server")
                        session.leave_server()
                await beat
            except kz.KazooException:
                continue
            self.lease.heartbeat_answered(sent_ms)

    async def _create_chroot(self) -> None:
        parts = self.connect.chroot.split("/")[1:] if self.connect.chroot else []
        for depth in range(1, len(parts) + 1):
            await self._create_absolute("/" + "/".join(parts[:depth]))

    async def _create_absolute(self, path: str) -> None:
        while True:
            try:
                await self._live(path).call(lambda client: client.create_async(path, acl=self._acl("/")))
                return
            except kz.NodeExistsError:
                return
            except _LOST:
                continue  # repeating is harmless
            except kz.KazooException as error:
                raise CannotConnect(f"zookeeper.connect: cannot create the path {path}: {error!r}") from error

    # --- requests ---

    def _live(self, path: str) -> ZooKeeperSession:
        if self._session is None or self._session.info is None:
            raise SessionExpired("there is no ZooKeeper session", path)
        return self._session

    async def _read(
        self, path: str, issue: Callable[[KazooClient, Any], Any], watch: RegisteredWatch | None = None
    ) -> Any:
        session = self._live(path)
        while True:
            try:
                return await session.call(lambda client: issue(client, watch))
            except _LOST:
                if session.closed:
                    raise SessionExpired("the session ended during a read", path) from None
            except kz.KazooException as error:
                raise _translate(error, path) from None

    async def _write(self, path: str, issue: Callable[[KazooClient], Any]) -> Any:
        session = self._live(path)
        try:
            return await session.call(issue)
        except _LOST as error:
            raise UnknownOutcome(f"no answer to a write of {path} ({type(error).__name__})", path) from None
        except kz.KazooException as error:
            raise _translate(error, path) from None

    def _watcher(self, path: str, kind: WatchKind, watch: Watch | None) -> RegisteredWatch | None:
        return None if watch is None else RegisteredWatch(self._live(path), path, kind, watch)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Data and Stat; raises NoNode (then no watch is set)."""
        where = self.connect.absolute(path)
        watcher = self._watcher(path, WatchKind.CHANGED, watch)
        data, stat = await self._read(path, lambda client, w: client.get_async(where, watch=w), watcher)
        return data or b"", _stat(stat)

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """Data and Stat of each, by one request; None where the znode does not exist. Not an atomic snapshot."""
        assert len(paths) <= MAX_GET_MANY, "a bounded request"
        if not paths:
            return []
        request = GetMany([self.connect.absolute(path) for path in paths])

        def issue(client: KazooClient, _: object) -> Any:
            answer = client.handler.async_result()
            client._call(request, answer)
            return answer

        rows: list[tuple[bytes, Stat] | None] = await self._read(paths[0], issue)
        return rows

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names of the children, sorted; raises NoNode."""
        where = self.connect.absolute(path)
        watcher = self._watcher(path, WatchKind.CHILDREN, watch)
        return sorted(await self._read(path, lambda client, w: client.get_children_async(where, watch=w), watcher))

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Stat or None; the watch is set in both cases."""
        where = self.connect.absolute(path)
        watcher = self._watcher(path, WatchKind.CHANGED, watch)
        stat = await self._read(path, lambda client, w: client.exists_async(where, watch=w), watcher)
        return None if stat is None else _stat(stat)

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = False
    ) -> str:
        """Create and return the real path; raises NodeExists, NoNode (missing parent and not ``parents``)."""
        _bounded([Create(path, data)], path)
        where = self.connect.absolute(path)
        while True:
            try:
                made: str = await self._write(
                    path,
                    lambda client: client.create_async(
                        where, data, acl=self._acl(path), ephemeral=ephemeral, sequence=sequence
                    ),
                )
                return self.connect.relative(made)
            except NoNode:
                parent = path.rpartition("/")[0]
                if not parents or not parent:
                    raise
                try:
                    await self.create(parent, parents=True)
                except NodeExists:
                    pass

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        """Compare-and-set; raises NoNode, BadVersion."""
        _bounded([SetData(path, data)], path)
        where = self.connect.absolute(path)
        return _stat(await self._write(path, lambda client: client.set_async(where, data, version=version)))

    async def delete(self, path: str, version: int = -1) -> None:
        """Delete; raises NoNode, BadVersion, NotEmpty."""
        where = self.connect.absolute(path)
        await self._write(path, lambda client: client.delete_async(where, version=version))

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """All or nothing; raises MultiFailed, TooLarge, UnknownOutcome."""
        if not operations:
            return []
        first = operations[0].path
        _bounded(operations, first)
        results = await self._write(first, lambda client: self._transaction(client, operations))
        assert len(results) == len(operations), "ZooKeeper answers each operation of a multi"
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, _NOT_THE_CULPRIT):
                raise MultiFailed(index, _translate(result, operations[index].path))
        assert not any(isinstance(result, Exception) for result in results), "a failed multi names its culprit"
        return [self._result(operation, result) for operation, result in zip(operations, results, strict=True)]

    def _transaction(self, client: KazooClient, operations: Sequence[Operation]) -> Any:
        transaction = client.transaction()
        for operation in operations:
            where = self.connect.absolute(operation.path)
            match operation:
                case Create(_, data, ephemeral, sequence):
                    acl = self._acl(operation.path)
                    transaction.create(where, data, acl=acl, ephemeral=ephemeral, sequence=sequence)
                case SetData(_, data, version):
                    transaction.set_data(where, data, version)
                case Delete(_, version):
                    transaction.delete(where, version)
                case Check(_, version):
                    transaction.check(where, version)
        return transaction.commit_async()

    def _acl(self, path: str) -> Any:
        """The ACL of a new znode, as Kafka's: its own login may do all, others read what is no secret."""
        if not self.security.owns_znodes:
            return OPEN_ACL_UNSAFE
        return CREATOR_ALL_ACL if self.security.is_secret(path) else CREATOR_ALL_ACL + READ_ACL_UNSAFE

    def _result(self, operation: Operation, result: Any) -> OperationResult:
        if isinstance(operation, Create):
            return OperationResult(self.connect.relative(result), None)
        return OperationResult(operation.path, _stat(result) if isinstance(operation, SetData) else None)

    async def sync(self, path: str) -> None:
        """Make the next reads of this session see everything committed before the call."""
        where = self.connect.absolute(path)
        await self._read(path, lambda client, _: client.sync_async(where))


def _stat(stat: Any) -> Stat:
    return Stat(stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner, stat.numChildren, stat.ctime)


def _translate(error: Exception, path: str) -> StoreError:
    kind = _ERRORS.get(type(error))
    name = type(error).__name__.removesuffix("Error")
    if isinstance(error, kz.NoAuthError):
        return StoreError(f"ZooKeeper: {name}: {path}: it belongs to another login (zookeeper.set.acl)", path)
    return kind(f"{name}: {path}", path) if kind is not None else StoreError(f"ZooKeeper: {name}: {path}", path)


def _bounded(operations: Sequence[Operation], path: str) -> None:
    if len(operations) > MAX_MULTI_OPERATIONS:
        raise TooLarge(f"{len(operations)} operations in a multi; at most {MAX_MULTI_OPERATIONS}", path)
    size = sum(
        _OPERATION_OVERHEAD_BYTES + len(op.path) + (len(op.data) if isinstance(op, (Create, SetData)) else 0)
        for op in operations
    )
    if size > MAX_MULTI_BYTES:
        raise TooLarge(f"a write of {size} bytes; at most {MAX_MULTI_BYTES}", path)
