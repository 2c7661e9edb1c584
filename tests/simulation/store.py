"""The client's side of the simulated ZooKeeper: a ``coordination.store.Store`` for one simulated process.

It behaves as ``coordination.zookeeper.ZookeeperStore`` over kazoo does: requests wait while the connection is away,
those in flight when it breaks are lost (a write's outcome is unknown, a read is repeated), an expiry is learnt only
from a server, watches are forgotten with the connection and fire when the same session is taken up again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from fleetlog.coordination.connect import CannotConnect
from fleetlog.coordination.store import (
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
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
    UnknownOutcome,
    Watch,
    WatchEvent,
    WatchKind,
)
from fleetlog.coordination.zookeeper import (
    DEFAULT_CONNECT_TIMEOUT_MS,
    DEFAULT_SESSION_TIMEOUT_MS,
    ZookeeperStore,
    _bounded,
)
from tests.simulation.loop import Owner
from tests.simulation.zookeeper import (
    Answer,
    Close,
    Connect,
    Connection,
    Hangup,
    Ping,
    Read,
    Request,
    Session,
    SimZooKeeper,
    Sync,
    Write,
)

FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 1.0
Watcher = tuple[WatchKind, Watch]


class ConnectionLost(Exception):
    """The connection broke before the answer came."""


class _Pending:
    """A request on its way, and the watch that its answer sets."""

    __slots__ = ("future", "request", "watcher")

    def __init__(self, request: Request, future: asyncio.Future[Any], watcher: Watcher | None) -> None:
        self.request, self.future, self.watcher = request, future, watcher


class _ClientSession:
    """One session: what waits for it, what it watches."""

    def __init__(self, session_id: int = 0, password: bytes = bytes(16)) -> None:
        self.session_id = session_id
        self.password = password
        self.info: SessionInfo | None = None
        self.connection: Connection | None = None
        self.connected = False
        self.closed = False
        self.attempts = 0
        self.waiting: deque[_Pending] = deque()
        self.pending: deque[_Pending] = deque()
        self.data: dict[str, dict[Watcher, None]] = {}
        self.children: dict[str, dict[Watcher, None]] = {}
        self.forgotten: list[tuple[str, Watcher]] = []

    def fail_all(self, error: Exception) -> None:
        for queue in (self.pending, self.waiting):
            while queue:
                future = queue.popleft().future
                if not future.done():
                    future.set_exception(error)
                    future.exception()

    def forget_watches(self) -> None:
        for table in (self.children, self.data):
            self.forgotten += [(path, watcher) for path, watchers in table.items() for watcher in watchers]
            table.clear()


class SimStore:
    """See the module. Make it, ``start`` it as its owner, ``close`` it."""

    def __init__(
        self,
        zookeeper: SimZooKeeper,
        owner: Owner,
        mono_ms: Callable[[], int],
        *,
        name: str = "",
        session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
    ) -> None:
        self.owner = owner
        self.name = name or owner.name
        self.requested_timeout_ms = session_timeout_ms
        self._zookeeper = zookeeper
        self._loop = zookeeper.loop
        self._mono_ms = mono_ms
        self.lease = SessionLease(mono_ms)
        self._client: _ClientSession | None = None
        self._listeners: list[Callable[[SessionEvent], None]] = []
        self._heartbeat: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] = self._loop.create_future()
        self._visits: list[_ClientSession] = []
        self._closing = False
        self._last_zxid = 0
        self._server = -1
        self._sent_ms = 0
        self._standing_ms: Callable[[], int] = lambda: 0

    # ---- a loop that stands still

    def heartbeats_prove(self, standing_ms: Callable[[], int]) -> None:
        """From now on no session outlives a loop that stands still."""
        self._standing_ms = standing_ms

    def ping(self) -> None:
        """What kazoo's thread does whatever the loop does, if the production store lets it.

        Only while the connection stands: a loop that stands still does not connect again here.
        """
        client = self._client
        if client is None or not client.connected or client.connection is None:
            return
        if not ZookeeperStore.stands_still(cast("ZookeeperStore", self)):
            self._zookeeper.send_up(client.connection, Ping())

    # ---- start and end

    async def start(self, connect_timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS) -> None:
        self._open()
        try:
            await asyncio.wait_for(asyncio.shield(self._first), connect_timeout_ms / 1000)
        except TimeoutError:
            await self.close()
            raise CannotConnect(f"no session within {connect_timeout_ms} ms") from None

    async def close(self) -> None:
        """End the session: our ephemerals vanish at once (unless there is no connection: then with its timeout)."""
        self._closing = True
        self.lease.ended()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        client, self._client = self._client, None
        if client is not None:
            await self._dispose(client)

    async def _dispose(self, client: _ClientSession) -> None:
        client.closed = True
        under_way = client.pending.copy()
        client.fail_all(ConnectionLost())
        client.pending = under_way  # their answers still come, before the one that the session is closed
        self._visits.append(client)
        if client.connected:
            future = self._loop.create_future()
            self._send(client, _Pending(Close(), future, None))
            await asyncio.wait({future}, timeout=10)
        self._visits.remove(client)
        self._hang_up(client)

    def session(self) -> SessionInfo | None:
        return self._client.info if self._client is not None else None

    def credentials(self) -> tuple[int, bytes] | None:
        client = self._client
        return (client.session_id, client.password) if client is not None and client.connected else None

    def on_session(self, listener: Callable[[SessionEvent], None]) -> None:
        self._listeners.append(listener)

    async def end_session(self, session_id: int, password: bytes, timeout_ms: int = 5_000) -> bool:
        """End another session by its credentials; True when it is over."""
        visit = _ClientSession(session_id, password)
        self._visits.append(visit)
        self._attempt(visit)
        deadline = self._loop.time() + timeout_ms / 1000
        while not visit.connected and not visit.closed and self._loop.time() < deadline:
            await asyncio.sleep(0.005)
        self._visits.remove(visit)
        over = visit.connected or visit.closed
        await self._dispose(visit)
        return over

    # ---- connecting

    def _open(self) -> None:
        if not self._closing and self._client is None:
            self._client = _ClientSession()
            self._attempt(self._client)

    def _attempt(self, client: _ClientSession) -> None:
        """Try the next server; another one than the one that failed us, if there is another."""
        if client.closed or client.connected:
            return
        servers = self._zookeeper.servers
        choice = self._zookeeper.rng.randrange(len(servers))
        if choice == self._server:
            choice = (choice + 1) % len(servers)
        self._server = choice
        client.attempts += 1
        self._sent_ms = self._mono_ms()
        handshake = Connect(client.session_id, client.password, self.requested_timeout_ms, self._last_zxid)
        connection = client.connection = self._zookeeper.connect(self, servers[choice], handshake)
        self._loop.call_later(max(self.requested_timeout_ms / 3000, 0.5), self._handshake_overdue, client, connection)

    def _handshake_overdue(self, client: _ClientSession, connection: Connection) -> None:
        if client.connection is connection and not client.connected:
            self._lost(client)

    def _lost(self, client: _ClientSession) -> None:
        """The connection is broken, or never came to be: try again in a moment."""
        self._hang_up(client)
        if client.connected:
            client.connected = False
            client.fail_all(ConnectionLost())
            if client is self._client and client.info is not None:
                self.lease.disconnected()
                self._publish(SessionState.SUSPENDED, client.info.session_id)
            client.forget_watches()
        pause_s = min(FIRST_PAUSE_S * 1.5 ** min(client.attempts // len(self._zookeeper.servers), 10), LAST_PAUSE_S)
        self._loop.call_later(pause_s * self._zookeeper.rng.uniform(0.5, 1.0), self._attempt, client)

    def _hang_up(self, client: _ClientSession) -> None:
        connection, client.connection = client.connection, None
        if connection is not None:
            self._zookeeper.send_up(connection, Hangup())

    # ---- what comes from the server

    def received(self, connection: Connection, message: Any) -> None:
        """An answer, a watch, a session, its end, or None: the connection is gone."""
        client = next(
            (client for client in (self._client, *self._visits) if client and client.connection is connection), None
        )
        if client is None:
            return
        if message is None:
            self._lost(client)
        elif isinstance(message, Answer):
            self._last_zxid = max(self._last_zxid, message.zxid)
            self._answered(client, message.value)
        elif isinstance(message, WatchEvent):
            self._fire(client, message)
        elif isinstance(message, Session):
            self._connected(client, message)
        else:
            self._over(client)

    def _connected(self, client: _ClientSession, session: Session) -> None:
        client.session_id, client.password = session.id, session.password
        client.info = SessionInfo(session.id, session.timeout_ms)
        client.connected, client.attempts = True, 0
        if client is not self._client:
            return
        self.lease.handshake(self._sent_ms, session.timeout_ms)
        if self._heartbeat is None or self._heartbeat.done():
            self._heartbeat = self._loop.create_task(self._beat(client), name="zookeeper-heartbeat")
        if not self._first.done():
            self._first.set_result(None)
        while client.waiting:
            self._send(client, client.waiting.popleft())
        self._publish(SessionState.CONNECTED, session.id)
        forgotten, client.forgotten = client.forgotten, []
        for path, (kind, watch) in forgotten:
            watch(WatchEvent(kind, path))

    def _over(self, client: _ClientSession) -> None:
        """A server says that the session is over. What waits was never sent."""
        self._hang_up(client)
        client.closed, client.connected = True, False
        client.forgotten.clear()
        client.fail_all(SessionExpired("the session is over"))
        if client is self._client:
            self._client = None
            self.lease.ended()
            if self._heartbeat is not None:
                self._heartbeat.cancel()
                self._heartbeat = None
            self._publish(SessionState.EXPIRED, 0)
            self._loop.call_soon(self._open)

    def _publish(self, state: SessionState, session_id: int) -> None:
        for listener in list(self._listeners):
            listener(SessionEvent(state, session_id))

    def _fire(self, client: _ClientSession, event: WatchEvent) -> None:
        watchers: list[Watcher] = []
        if event.kind is not WatchKind.CHILDREN:
            watchers += client.data.pop(event.path, {})
        if event.kind in (WatchKind.CHILDREN, WatchKind.DELETED):
            watchers += client.children.pop(event.path, {})
        for _, watch in watchers:
            if not client.closed:
                watch(event)

    def _answered(self, client: _ClientSession, value: Any) -> None:
        pending = client.pending.popleft()
        request, watcher = pending.request, pending.watcher
        if watcher is not None and isinstance(request, Read) and not isinstance(value, StoreError):
            table = client.children if request.kind == "children" else client.data
            table.setdefault(request.path, {})[watcher] = None
        if not pending.future.done():
            if isinstance(value, StoreError):
                pending.future.set_exception(value)
                pending.future.exception()
            else:
                pending.future.set_result(value)

    async def _beat(self, client: _ClientSession) -> None:
        while not client.closed:
            await asyncio.sleep(self.lease.heartbeat_interval_ms / 1000)
            if not client.connected:
                continue
            sent_ms = self._mono_ms()
            answer = self._issue(client, Sync(), None)
            if len(self._zookeeper.servers) > 1:
                await asyncio.wait({answer}, timeout=self.lease.patience_ms / 1000)
                if not answer.done() and client.connected:
                    self._lost(client)
            try:
                await answer
            except (ConnectionLost, StoreError):
                continue
            self.lease.heartbeat_answered(sent_ms)

    # ---- requests

    def _issue(self, client: _ClientSession, request: Request, watcher: Watcher | None) -> asyncio.Future[Any]:
        if client.closed:
            raise SessionExpired("the session is over")
        pending = _Pending(request, self._loop.create_future(), watcher)
        if client.connected:
            self._send(client, pending)
        else:
            client.waiting.append(pending)
        return pending.future

    def _send(self, client: _ClientSession, pending: _Pending) -> None:
        assert client.connection is not None
        client.pending.append(pending)
        self._zookeeper.send_up(client.connection, pending.request)

    def _live(self, path: str) -> _ClientSession:
        if self._client is None or self._client.info is None:
            raise SessionExpired("there is no ZooKeeper session", path)
        return self._client

    async def _ask(self, path: str, request: Request, watcher: Watcher | None = None) -> Any:
        client = self._live(path)
        while True:
            try:
                return await self._issue(client, request, watcher)
            except ConnectionLost:
                if client.closed:
                    raise SessionExpired("the session ended during a read", path) from None

    async def _write(self, operations: Sequence[Operation], path: str) -> list[OperationResult]:
        _bounded(operations, path)
        client = self._live(path)
        try:
            done: list[OperationResult] = await self._issue(client, Write(tuple(operations)), None)
            return done
        except ConnectionLost:
            raise UnknownOutcome(f"no answer to a write of {path} (ConnectionLoss)", path) from None

    async def _write_one(self, operation: Operation) -> OperationResult:
        try:
            return (await self._write([operation], operation.path))[0]
        except MultiFailed as failed:
            raise failed.cause from None

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        watcher = (WatchKind.CHANGED, watch) if watch is not None else None
        found: tuple[bytes, Stat] = await self._ask(path, Read("get", path, watch is not None), watcher)
        return found

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        async def one(path: str) -> tuple[bytes, Stat] | None:
            try:
                return await self.get(path)
            except NoNode:
                return None

        return await asyncio.gather(*map(one, paths))

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        watcher = (WatchKind.CHILDREN, watch) if watch is not None else None
        names: list[str] = await self._ask(path, Read("children", path, watch is not None), watcher)
        return names

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        watcher = (WatchKind.CHANGED, watch) if watch is not None else None
        stat: Stat | None = await self._ask(path, Read("exists", path, watch is not None), watcher)
        return stat

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = False
    ) -> str:
        while True:
            try:
                return (await self._write_one(Create(path, data, ephemeral, sequence))).path
            except NoNode:
                parent = path.rpartition("/")[0]
                if not parents or not parent:
                    raise
                try:
                    await self.create(parent, parents=True)
                except NodeExists:
                    pass

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        stat = (await self._write_one(SetData(path, data, version))).stat
        assert stat is not None
        return stat

    async def delete(self, path: str, version: int = -1) -> None:
        await self._write_one(Delete(path, version))

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        return await self._write(operations, operations[0].path) if operations else []

    async def sync(self, path: str) -> None:
        await self._ask(path, Sync())
