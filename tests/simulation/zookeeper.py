"""A ZooKeeper ensemble on the simulated loop: the servers' side. ``store.SimStore`` is the client's.

Modelled: one leader that orders all writes; servers that apply them a little later, so reads of different sessions may
lag; per-connection order of answers and watches; watches that fire once; sessions that the leader expires in steps of a
tick, hearing of a client through its server's answers to pings (every half tick); a session that moves to another
server; requests that are on their way when a connection breaks and may or may not arrive; lost servers, a lost
majority, cut or one-way connections whose bytes arrive after the cut heals.

Source: ZooKeeper's administrator's and programmer's guides, and its server's behaviour (see ``test_zookeeper``).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fleetlog.coordination.store import (
    Delete,
    MultiFailed,
    NoNode,
    Operation,
    OperationResult,
    SessionExpired,
    StoreError,
)
from tests.simulation.loop import SimLoop
from tests.simulation.tree import Tree, Watches

if TYPE_CHECKING:
    from tests.simulation.store import SimStore

UP, DOWN = "to ZooKeeper", "from ZooKeeper"
SYNC_LIMIT_TICKS = 5
ELECTION_US = 200_000
"""An election takes at least that long: its servers wait for late votes."""


class Connect(NamedTuple):
    """A handshake: a new session (id 0), or one to take up again."""

    session_id: int
    password: bytes
    timeout_ms: int
    last_zxid: int


class Read(NamedTuple):
    """``kind`` is get, children or exists."""

    kind: str
    path: str
    watch: bool


class Write(NamedTuple):
    operations: tuple[Operation, ...]


class Sync(NamedTuple):
    pass


class Ping(NamedTuple):
    """Of kazoo's thread, which answers it by itself."""


class Close(NamedTuple):
    """End the session."""


class Hangup(NamedTuple):
    """The client closed its end; comes behind whatever it sent before."""


Request = Connect | Read | Write | Sync | Ping | Close | Hangup


@dataclass
class Session:
    """What the leader knows of a session."""

    id: int
    password: bytes
    timeout_ms: int
    expires_us: int
    connection: Connection | None = None
    over: bool = False
    ended_zxid: int = 0
    """The transaction that ended it; 0 while it stands."""

    def ended_for(self, server: Server) -> bool:
        """Whether that server has applied its end."""
        return 0 < self.ended_zxid <= server.applied


class Answer(NamedTuple):
    value: Any
    zxid: int


@dataclass
class Transaction:
    """A committed write; ``reply_to`` hears of the outcome once its server has applied it."""

    operations: tuple[Operation, ...]
    session_id: int
    reply_to: Connection | None
    outcome: list[OperationResult] | StoreError


class Copy(NamedTuple):
    """A copy of the servers' data directories."""

    tree: Tree
    log: list[Transaction]
    sessions: list[Session]


@dataclass(eq=False)
class Connection:
    """One client's connection to one server; both directions keep their order."""

    store: SimStore
    server: Server
    session: Session | None = None
    open: bool = True
    busy: bool = False
    queue: deque[Request] = field(default_factory=deque)
    watches: Watches = field(default_factory=Watches)
    free_us: dict[str, int] = field(default_factory=lambda: {UP: 0, DOWN: 0})
    held: dict[str, list[Any]] = field(default_factory=lambda: {UP: [], DOWN: []})


class Server:
    """One member of the ensemble: what it has applied, and which clients are connected to it."""

    def __init__(self, zookeeper: SimZooKeeper, index: int) -> None:
        self.index = index
        self.up = True
        self.cut = False
        self.lag_us = 0
        self.tree = Tree()
        self.applied = 0
        self.connections: list[Connection] = []
        self.heard: dict[int, Session] = {}
        self.due_us = 0
        self._zookeeper = zookeeper

    def catch_up(self, zxid: int) -> None:
        """Apply everything up to that transaction, and tell the connections."""
        while self.up and not self.cut and self.applied < zxid:
            transaction = self._zookeeper.log[self.applied]
            self.applied += 1
            if transaction.operations:
                _, events = self.tree.commit(transaction.operations, self.applied, transaction.session_id)
                for event in events:
                    for connection in list(self.connections):
                        if connection.watches.fires(event):
                            self._zookeeper.send_down(connection, event)
            asker = transaction.reply_to
            if asker is not None and asker.server is self and asker.open:
                asker.busy = False
                self._zookeeper.send_down(asker, Answer(transaction.outcome, self.applied))
                self._zookeeper.serve(asker)


class SimZooKeeper:
    """The ensemble. All times that cross the interface are milliseconds; the world owns its handles."""

    def __init__(self, loop: SimLoop, seed: int, *, servers: int = 3, tick_ms: int = 500) -> None:
        self.loop = loop
        self.rng = random.Random(f"{seed}/zookeeper")
        self.tick_ms = tick_ms
        self.log: list[Transaction] = []
        self.tree = Tree()
        self.sessions: dict[int, Session] = {}
        self.servers = [Server(self, index) for index in range(servers)]
        self.leader: Server | None = self.servers[0]
        self.slow_us = 0
        self.losing_answers: set[str] = set()
        """Clients whose connection breaks when their next write comes to the leader."""
        self.on_commit: Callable[[list[str]], None] = lambda paths: None
        self._blocked: set[tuple[str, str]] = set()
        self._connections: list[Connection] = []
        self._electing = False
        self.deposed: Server | None = None
        """A leader that is cut off and does not know it yet."""
        self._proposing = False
        """Whether it has a proposal under way, which no other server acknowledges to it."""
        self.lengthened_us: dict[str, int] = {}
        """When something last lengthened sessions: that client's way was cut or open again; all clients' (the empty
        name), when another leader was elected."""
        self._at(tick_ms * 1000, self._expire)
        self._at(tick_ms * 500, self._ping)

    def _at(self, delay_us: int, callback: Any, *args: Any) -> None:
        self.loop.call_at((self.loop.now_us + delay_us) / 1e6, callback, *args, context=self.loop.world.context)

    def _hop_us(self) -> int:
        """One way of a message: mostly a fraction of a millisecond, now and then much more."""
        roll = self.rng.random()
        return self.slow_us + int(100 + 400 * roll if roll < 0.98 else 20_000 * self.rng.random())

    # ---- connections

    def connect(self, store: SimStore, server: Server, handshake: Connect) -> Connection:
        """The client opens a connection and sends its handshake."""
        connection = Connection(store, server)
        self._connections.append(connection)
        server.connections.append(connection)
        self.send_up(connection, handshake)
        return connection

    def send_up(self, connection: Connection, request: Request) -> None:
        """From the client to its server."""
        if (connection.store.name, UP) in self._blocked:
            connection.held[UP].append(request)
        else:
            self.loop.call_at(
                self._arrival(connection, UP), self._received, connection, request, context=self.loop.world.context
            )

    def send_down(self, connection: Connection, message: Any) -> None:
        """From the server to its client."""
        if (connection.store.name, DOWN) in self._blocked:
            connection.held[DOWN].append(message)
        else:
            owner = connection.store.owner
            self.loop.call_at(
                self._arrival(connection, DOWN), connection.store.received, connection, message, context=owner.context
            )

    def _arrival(self, connection: Connection, way: str) -> float:
        at_us = max(connection.free_us[way], self.loop.now_us + self._hop_us())
        connection.free_us[way] = at_us
        return at_us / 1e6

    def block(self, name: str, *ways: str) -> None:
        """From now on nothing passes between that client and any server, in these directions."""
        self.lengthened_us[name] = self.loop.now_us
        self._blocked |= {(name, way) for way in ways or (UP, DOWN)}

    def unblock(self, name: str) -> None:
        """The way is open again; what was sent meanwhile arrives (TCP sent it again and again)."""
        if self._blocked & {(name, UP), (name, DOWN)}:
            self.lengthened_us[name] = self.loop.now_us
        self._blocked -= {(name, UP), (name, DOWN)}
        for connection in list(self._connections):
            if connection.store.name == name:
                held, connection.held = connection.held, {UP: [], DOWN: []}
                for request in held[UP]:
                    self.send_up(connection, request)
                for message in held[DOWN]:
                    self.send_down(connection, message)

    def hang_up(self, connection: Connection) -> None:
        """The server's end is closed; the client is told if it can be."""
        if connection.open:
            connection.open = False
            connection.queue.clear()
            connection.server.connections.remove(connection)
            if connection in self._connections and not connection.held[UP]:
                self._connections.remove(connection)
            self.send_down(connection, None)

    def break_connections(self, name: str) -> None:
        """Every connection of that client breaks; what is on its way may or may not arrive."""
        for connection in list(self._connections):
            if connection.store.name == name and connection.open:
                if self.rng.random() < 0.5:
                    self.hang_up(connection)
                else:
                    store = connection.store
                    self.loop.call_soon(store.received, connection, None, context=store.owner.context)

    # ---- a server's work

    def _received(self, connection: Connection, request: Request) -> None:
        if connection.open:
            connection.queue.append(request)
            self.serve(connection)

    def serve(self, connection: Connection) -> None:
        """Work through a connection's requests, in order, one at a time."""
        while connection.queue and connection.open and not connection.busy:
            request = connection.queue.popleft()
            server = connection.server
            leaderless = self.leader is None and not server.cut and self.deposed is None
            if not server.up or leaderless or isinstance(request, Hangup):
                self.hang_up(connection)
            elif isinstance(request, Connect):
                connection.busy = True
                self._at(self._hop_us() if server is not self.leader else 0, self._handshake, connection, request)
            elif connection.session is None:
                self.hang_up(connection)
            else:
                server.heard[connection.session.id] = connection.session
                if isinstance(request, Ping):
                    continue
                if isinstance(request, Read):
                    self.send_down(connection, Answer(self._read(connection, request), server.applied))
                elif server is self.deposed:
                    self._lead_none(connection, request)
                elif server.cut or self.leader is None:
                    connection.busy = True  # for the leader, which will not hear of it
                else:
                    connection.busy = True
                    self._at(self._hop_us() if server is not self.leader else 0, self._lead, connection, request)

    def _read(self, connection: Connection, request: Read) -> Any:
        tree, (kind, path, watch) = connection.server.tree, request
        if kind == "exists" and watch:
            connection.watches.add(path, children=False)
        try:
            node = tree.find(path)
        except NoNode as error:
            return None if kind == "exists" else error
        if kind == "exists":
            return node.stat()
        if watch:
            connection.watches.add(path, children=kind == "children")
        return sorted(node.children) if kind == "children" else (node.data, node.stat())

    # ---- the leader's work

    def _handshake(self, connection: Connection, request: Connect) -> None:
        server = connection.server
        if server is self.deposed and connection.open and server.applied >= request.last_zxid:
            known = self.sessions.get(request.session_id)
            if known is None:
                return  # to open a session is a proposal
            if known.ended_for(server):
                self.send_down(connection, SessionExpired("the session is over"))
                return
            connection.session, connection.busy = known, False
            self.send_down(connection, known)
            self.serve(connection)
        elif self.leader is None or server.cut or not connection.open or server.applied < request.last_zxid:
            self.hang_up(connection)  # a server must not show a client less than it has seen
        else:
            self._take_up(connection, request)

    def _take_up(self, connection: Connection, request: Connect) -> None:
        """The leader opens a session, or finds the one that is to go on."""
        if request.session_id == 0:
            timeout_ms = min(max(request.timeout_ms, 2 * self.tick_ms), 20 * self.tick_ms)
            session = Session(0x100000000 + len(self.sessions) + 1, self.rng.randbytes(16), timeout_ms, 0)
            self.sessions[session.id] = session
        else:
            found = self.sessions.get(request.session_id)
            if found is None or found.over or found.password != request.password:
                self.send_down(connection, SessionExpired("the session is over"))
                return
            session = found
            if session.connection is not None and session.connection is not connection:
                self.hang_up(session.connection)
        self._touch(session)
        session.connection = connection
        connection.session = session
        connection.busy = False
        self.send_down(connection, session)
        self.serve(connection)

    def _lead(self, connection: Connection, request: Request) -> None:
        session = connection.session
        assert session is not None
        if self.leader is None or (not connection.open and self.rng.random() < 0.5):
            self.hang_up(connection)
        elif session.over or session.connection is not connection:
            self.hang_up(connection)  # the session is over, or has moved to another server
        elif isinstance(request, Write):
            losing = connection.store.name in self.losing_answers
            if losing:
                self.losing_answers.discard(connection.store.name)
                self.hang_up(connection)
                if self.rng.random() < 0.3:
                    return
            self.commit(request.operations, session.id, connection)
        elif isinstance(request, Close):
            self.end(session, connection)
        else:
            server, zxid = connection.server, len(self.log)
            server.due_us = max(server.due_us, self.loop.now_us + (server is not self.leader) * self._hop_us())
            self._at(server.due_us - self.loop.now_us, self._synced, connection, zxid)

    def _lead_none(self, connection: Connection, request: Request) -> None:
        """What a deposed leader does: its proposals may be committed by the others, but it will never know.

        Source: Leader.processSync, which answers at once while no proposal is under way.
        """
        if isinstance(request, Sync) and not self._proposing:
            self.send_down(connection, Answer(None, connection.server.applied))
            return
        connection.busy = True
        if isinstance(request, Write) and connection.session is not None:
            self._proposing = True
            if self.leader is None and not connection.session.over and self.rng.random() < 0.5:
                self.commit(request.operations, connection.session.id)

    def _synced(self, connection: Connection, zxid: int) -> None:
        """The flush of a sync reaches the follower behind all that was committed before it."""
        connection.server.catch_up(zxid)
        if connection.open and connection.server.applied >= zxid:
            connection.busy = False
            self.send_down(connection, Answer(None, connection.server.applied))
            self.serve(connection)

    def commit(self, operations: Sequence[Operation], session_id: int, reply_to: Connection | None = None) -> None:
        """Order and decide one write."""
        outcome: list[OperationResult] | StoreError
        kept = tuple(operations)
        try:
            outcome, _ = self.tree.commit(kept, len(self.log) + 1, session_id)
        except MultiFailed as failed:
            outcome, kept = failed, ()
        self._replicate(Transaction(kept, session_id, reply_to, outcome))
        self.on_commit([operation.path for operation in kept])

    def _replicate(self, transaction: Transaction) -> None:
        self.log.append(transaction)
        zxid = len(self.log)
        for server in self.servers:
            delay_us = 0 if server is self.leader else self._hop_us() + server.lag_us
            server.due_us = max(server.due_us, self.loop.now_us + delay_us)
            if delay_us == 0 and server.applied == zxid - 1:
                server.catch_up(zxid)
            else:
                self._at(server.due_us - self.loop.now_us, server.catch_up, zxid)

    def _touch(self, session: Session) -> None:
        tick_us = self.tick_ms * 1000
        session.expires_us = ((self.loop.now_us + session.timeout_ms * 1000) // tick_us + 1) * tick_us

    def _ping(self) -> None:
        """The leader pings the servers; their answers name the sessions they heard of since the last one."""
        if self.leader is not None:
            for server in self.servers:
                if server.up and not server.cut:
                    heard, server.heard = server.heard, {}
                    for session in heard.values():
                        self._touch(session)
        self._at(self.tick_ms * 500, self._ping)

    def _expire(self) -> None:
        if self.leader is not None:
            for session in list(self.sessions.values()):
                if not session.over and session.expires_us <= self.loop.now_us:
                    self.end(session)
        self._at(self.tick_ms * 1000, self._expire)

    def end(self, session: Session, reply_to: Connection | None = None) -> None:
        """The session is over: its ephemerals go, in one transaction."""
        session.over = True
        doomed = [Delete(path) for path in self.tree.ephemerals(session.id)]
        self.commit(doomed, session.id, reply_to)
        session.ended_zxid = len(self.log)
        if session.connection is not None and reply_to is None:
            self.hang_up(session.connection)

    # ---- faults

    def is_quiet(self) -> bool:
        """Whether all sessions have ended, and all servers have applied everything."""
        applied = all(server.applied == len(self.log) for server in self.servers)
        return applied and all(session.over for session in self.sessions.values())

    def copy(self) -> Copy:
        """What a backup has: the tree, the transactions before it, and who had a session."""
        return Copy(deepcopy(self.tree), self.log[:], [one for one in self.sessions.values() if not one.over])

    def put_back(self, copy: Copy) -> None:
        """All servers go on from the copy; its sessions are there again for their time. Call it while all is quiet."""
        assert self.is_quiet(), "what is on its way belongs to the newer tree"
        self.tree, self.log = deepcopy(copy.tree), [replace(one, reply_to=None) for one in copy.log]
        for server in self.servers:
            server.tree, server.applied = deepcopy(copy.tree), len(copy.log)
            server.heard.clear()
            self._hang_up_all(server)
        for session in copy.sessions:
            again = self.sessions[session.id] = Session(session.id, session.password, session.timeout_ms, 0)
            self._touch(again)

    def stop_server(self, index: int) -> None:
        """A server is gone; when it was the leader, or the majority is gone, no client is served for a while."""
        server = self.servers[index]
        server.up = False
        self._hang_up_all(server)
        if server is self.leader or 2 * sum(one.up for one in self.servers) <= len(self.servers):
            self.leader = None
            for one in self.servers:
                self._hang_up_all(one)
            self._elect_later()

    def cut_server(self, index: int) -> None:
        """A server no longer reaches the others: it answers reads for a while, and then nothing.

        A leader does not know it either. It answers reads and syncs (without proposals under way it asks no other), and
        no write; the others elect another leader meanwhile.
        """
        server = self.servers[index]
        server.cut = True
        if server is self.leader:
            tick_us = self.tick_ms * 1000
            self.leader, self.deposed, self._proposing = None, server, False
            for one in self.servers:
                if one is not server:
                    self._at(self.rng.randint(9, 10) * tick_us // 2, self._hang_up_if_led_by, one, server)
            self._elect_later(SYNC_LIMIT_TICKS * tick_us + ELECTION_US, SYNC_LIMIT_TICKS * tick_us + 5 * ELECTION_US)
            self._at(self.rng.randint(10, 13) * tick_us // 2, self._give_up, server)
        else:
            self._at(SYNC_LIMIT_TICKS * self.tick_ms * 1000, self._give_up, server)

    def _hang_up_if_led_by(self, server: Server, leader: Server) -> None:
        """A follower has not heard of its leader for too long."""
        if self.leader is None and self.deposed is leader:
            self._hang_up_all(server)

    def _give_up(self, server: Server) -> None:
        if server is self.deposed:
            self.deposed = None
        if server.cut and server.up:
            self.stop_server(server.index)

    def start_server(self, index: int) -> None:
        """The server is back and reads what it missed."""
        server = self.servers[index]
        if server is self.deposed:
            self.deposed = None
            self._hang_up_all(server)
        server.up, server.cut = True, False
        server.due_us = self.loop.now_us + 10 * self._hop_us()
        self._at(server.due_us - self.loop.now_us, server.catch_up, len(self.log))
        if self.leader is None:
            self._elect_later()

    def _hang_up_all(self, server: Server) -> None:
        for connection in list(server.connections):
            self.hang_up(connection)

    def _elect_later(self, low_us: int = ELECTION_US, high_us: int = 1_500_000) -> None:
        if not self._electing:
            self._electing = True
            self._at(self.rng.randint(low_us, high_us), self._elect)

    def _elect(self) -> None:
        self._electing = False
        alive = [server for server in self.servers if server.up and not server.cut]
        if self.leader is not None or 2 * len(alive) <= len(self.servers):
            return
        self.lengthened_us[""] = self.loop.now_us
        self.leader = max(alive, key=lambda server: server.applied)
        self.leader.catch_up(len(self.log))
        for session in self.sessions.values():
            if not session.over:
                self._touch(session)  # a new leader gives every session a whole timeout
