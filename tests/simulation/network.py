"""The network between simulated processes: connections with order, delay and breakage, and a broker's door to them.

A request goes as the real bytes through the real connection, batcher and dispatcher of the broker; only sockets are
simulated. A connection
keeps its order in both directions and other connections overtake it. Where the way is blocked, in one direction or
both, bytes are held and arrive once it is open again, also those of a process that has given up or died since: this is
how an old request comes to a new leader, much later.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from fleetlog.brokers.api.base import ClientConnection, Services
from fleetlog.brokers.log.disk.failures import DiskError, SliceGone
from fleetlog.brokers.peers.calls import PeerUnavailable
from fleetlog.brokers.server.connection import Connection, ConnectionBatcher, ConnectionLogin
from fleetlog.brokers.server.dispatch import Dispatcher
from fleetlog.brokers.server.framing import Blocks
from fleetlog.brokers.server.limits import ByteBudget, QuietLog
from fleetlog.brokers.server.login import LoginGate
from fleetlog.wire import messages
from tests.simulation.loop import Owner, SimLoop

if TYPE_CHECKING:
    from fleetlog.brokers.logins.sasl import SaslListener
    from fleetlog.brokers.metadata.cache import MetadataCache
    from fleetlog.brokers.quotas.metering import Meter

REFUSED, CLOSED = "connection refused", "connection reset"


class Broken(Exception):
    """The connection is gone; whether the request was performed is unknown."""


class Wire:
    """One connection from a client (a broker or a producer) to a broker."""

    def __init__(self, network: Network, client: Owner, name: str, server: str) -> None:
        self.client, self.name, self.server = client, name, server
        self.principal = network.principals.get(name, "User:ANONYMOUS")
        self.logs_in = name in network.logging_in
        self.open = True
        self.end: ServerEnd | None = None
        self.refused = False
        """No broker was there when it came: a broker that starts later doesn't know of it."""
        self.calls: deque[tuple[int, int, int, asyncio.Future[memoryview]]] = deque()
        self.free_us = {True: 0, False: 0}
        self.held: dict[bool, list[Any]] = {True: [], False: []}
        self.under_way: dict[bool, deque[Any]] = {True: deque(), False: deque()}
        self._network = network
        self._correlation = 0

    def send(self, api_key: int, version: int, body: bytes) -> asyncio.Future[memoryview]:
        """Send a request; the future holds the response's body, or Broken."""
        future: asyncio.Future[memoryview] = self._network.loop.create_future()
        if not self.open:
            future.set_exception(Broken(CLOSED))
            return future
        self._correlation += 1
        frame = messages.frame_request(api_key, version, self._correlation, self.name, body)
        self.calls.append((self._correlation, api_key, version, future))
        self._network.carry(self, True, frame)
        return future

    async def ask(self, api_key: int, version: int, body: bytes, timeout_s: float) -> memoryview:
        """Send a request and wait for its answer; without one in time the connection is given up. Raises Broken."""
        future = self.send(api_key, version, body)
        patience = self._network.loop.call_later(timeout_s, self.close, f"no answer within {timeout_s} s")
        try:
            return await future
        finally:
            patience.cancel()

    def answered(self, data: bytes | None) -> None:
        """What came back: answers, or None when the server's end is closed."""
        if not self.open:
            return
        if data is None:
            self.close(CLOSED)
            return
        metadata, start = memoryview(data), 0
        while start < len(metadata):
            end = start + 4 + int.from_bytes(metadata[start : start + 4], "big")
            expected, api_key, version, future = self.calls.popleft()
            correlation_id, body = messages.split_response(api_key, version, metadata[start + 4 : end])
            assert correlation_id == expected, f"answer {correlation_id} where {expected} was due"
            if not future.done():
                future.set_result(body)
            start = end

    def hung_up(self) -> None:
        """The server's end is closed."""
        self._network.carry(self, False, None)

    def close(self, reason: str) -> None:
        """Give the connection up; what was sent may still arrive."""
        if self.open:
            self.open = False
            for *_, future in self.calls:
                if not future.done():
                    future.set_exception(Broken(reason))
                    future.exception()
            self.calls.clear()
            self._network.carry(self, True, None)


class _Socket:
    """What a broker's end of a connection receives from: bytes that have come, and perhaps their end."""

    def __init__(self, wire: Wire) -> None:
        self.data = bytearray()
        self.ended = False
        self._wire = wire

    def fileno(self) -> int:
        return -1

    def recv_into(self, metadata: memoryview) -> int:
        data = self.data
        count = min(len(data), len(metadata))
        if not count and not self.ended:
            raise BlockingIOError
        metadata[:count] = data[:count]
        del data[:count]
        return count

    def close(self) -> None:
        self._wire.hung_up()


class ServerEnd(Connection):
    """A broker's end of a connection: the production one, on bytes that the network brings."""

    def __init__(self, door: Door, wire: Wire) -> None:
        self.door = door
        self._wire = wire
        self._incoming = _Socket(wire)
        self._looks = False
        peer = ClientConnection(door.next_number(), door.listener, wire.name, wire.principal)
        door.connections.append(self)
        logins = door.logins if wire.logs_in else None
        login = None if logins is None else ConnectionLogin(logins, door.clock.mono_ms())
        super().__init__(door, self._incoming, peer, login)  # type: ignore[arg-type]

    def arrived(self, frame: bytes | None) -> None:
        """Bytes of the peer, or their end. What comes before the broker's next turn is received at once."""
        if frame is None:
            self._incoming.ended = True
        else:
            self._incoming.data += frame
        self._look_later()

    def _look_later(self) -> None:
        if not self._looks and self._reading and (self._incoming.data or self._incoming.ended):
            self._looks = True
            # by the broker's process, which may stand still, also where the bytes were sent before it listened
            self.door.loop.call_soon(self._look, context=self.door.owner.context)

    def _look(self) -> None:
        self._looks = False
        if self._reading and not self.closed:
            self._on_readable()
            self._look_later()  # a selector tells it again

    def _unmute(self) -> None:
        self._reading = not self.closed
        self._look_later()

    def _mute(self) -> None:
        self._reading = False

    def mute(self, mute_ms: int) -> None:
        self.door.network.on_runs("mutes")
        super().mute(mute_ms)

    def _send(self) -> None:
        outbox = self._outbox
        try:
            data = b"".join(chunk if isinstance(chunk, bytes) else chunk.read() for chunk in outbox.chunks)  # type: ignore[attr-defined]
        except (SliceGone, DiskError):
            self.close("the log failed or was cut under a reader")
            return
        outbox.clear()
        self.door.network.carry(self._wire, False, data)


ROW_S = 0.0005
"""What a row of paced work seems to take: now and then something happens between two rows."""


class Door:
    """Where a living broker's connections end. Made when the broker serves, gone with its process.

    It is the ``Environment`` of the production connections, which the listener is outside the simulation.
    """

    def __init__(self, network: Network, owner: Owner, services: Services, logins: SaslListener | None) -> None:
        self.network = network
        self.owner = owner
        self.logins = logins
        self.loop = services.loop
        self.clock = services.clock
        self.timers = services.timers
        self.metrics = services.metrics
        counting = services.metrics.counting
        self.received = services.metrics.bytes_in if counting else None
        self.sent = services.metrics.bytes_out if counting else None
        self.quiet = QuietLog(services.clock.mono_ms)
        self.read_ahead: Any = None
        self.blocks = Blocks()
        config = services.config
        self.listener = config.inter_broker_listener()
        self.budget = ByteBudget(config.queued_max_request_bytes)
        self.max_frame = config.socket_request_max_bytes
        self.max_control_frame = config.socket_control_request_max_bytes
        self.max_outbox = config.connection_outbox_max_bytes
        self.fits_send_buffers = False
        self.max_in_flight = config.max_in_flight_requests_per_connection
        self._numbers = 0
        self.disconnects = services.disconnects
        ticks = count()
        gate = LoginGate(services, self.quiet, config.connection_failed_authentication_delay_ms)
        self._dispatcher = Dispatcher(
            services,
            self.budget,
            self.quiet,
            now=lambda: next(ticks) * ROW_S,
            gate=gate,
            seconds=self.loop.time,  # quotas look at their windows by it: a busy machine must not have another history
        )
        self.dispatch = self._dispatcher.dispatch
        self.join_batch = ConnectionBatcher(self.loop, self._together).join_batch

        self.connections: list[Connection] = []
        self._metering = services.metering if services.client_configs is not None else None
        if self._metering is not None:
            self._metering.replace(services.quotas.image)
            services.quotas.on_change.append(self._quotas_changed)

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def dispatch_run(self, connection: Connection, data: memoryview, start: int, end: int, most: int) -> int:
        executed = self._dispatcher.dispatch_run(connection, data, start, end, most)
        first = start + 4 + int.from_bytes(data[start : start + 4], "big")
        if executed > first:
            self.network.on_runs("runs of requests")
        return executed

    def _together(self, connections: list[Connection]) -> int:
        count = self._dispatcher.dispatch_runs(connections)
        if count > 1:
            self.network.on_runs("connections together")
        return count

    def forget(self, connection: Connection) -> None:
        self.disconnects.closed(connection.peer.id)

    def held(self, difference: int) -> None:
        pass

    def meter(self, peer: Any) -> Meter | None:
        """As the listener: where quotas are followed."""
        return self._metering.meter(peer) if self._metering is not None else None

    def _quotas_changed(self, image: Any) -> None:
        assert self._metering is not None, "else nothing follows the quotas"
        self._metering.replace(image)
        self.connections = [one for one in self.connections if not one.closed]
        for connection in self.connections:
            connection.measure_anew()


class Network:
    """All connections. ``blocked`` holds (from, to) pairs of names between which nothing passes."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.rng = random.Random(f"{seed}/network")
        self.doors: dict[str, Door] = {}
        self.blocked: set[tuple[str, str]] = set()
        self.slow: dict[tuple[str, str], int] = {}
        self.on_request: Callable[[str, str, int], None] = lambda client, server, api_key: None
        self.on_runs: Callable[[str], None] = lambda what: None
        """Called when a broker has executed requests together."""
        self.principals: dict[str, str] = {}
        """Of the clients that are not ``User:ANONYMOUS``, for the connections that they open from now on."""
        self.logging_in: set[str] = set()
        """The clients that must log in."""
        self._turn_us = self.rng.choice((1, 300, 2_000, 2_000))
        """What comes to a broker within a turn of its loop is there at once at its end."""
        self._wires: list[Wire] = []
        self._prune_at = 100

    # ---- ends

    def open_door(self, name: str, owner: Owner, services: Services, logins: SaslListener | None = None) -> None:
        """The broker answers from now on; ``logins`` is for the clients that log in."""
        self.doors[name] = Door(self, owner, services, logins)

    def close_door(self, name: str) -> None:
        """The broker stops answering and closes its connections."""
        door = self.doors.pop(name, None)
        for wire in list(self._wires):
            if door is not None and wire.end is not None and wire.end.door is door:
                wire.end.close("the broker stops")

    def connect(self, client: Owner, name: str, server: str) -> Wire:
        """A connection that a process begins to use; whether a broker is there shows with the first answer."""
        wire = Wire(self, client, name, server)
        if len(self._wires) >= self._prune_at:
            self._wires = [w for w in self._wires if w.open or any(w.held.values()) or (w.end and not w.end.closed)]
            self._prune_at = 2 * len(self._wires) + 100
        self._wires.append(wire)
        return wire

    def died(self, name: str, owner: Owner) -> None:
        """A process is gone: its peers are told by its kernel."""
        door = self.doors.pop(name, None)
        for wire in self._wires:
            if wire.client is owner and wire.open:
                wire.open = False
                self.carry(wire, True, None)
            if wire.server == name and (wire.end is None or (wire.end.door is door and not wire.end.closed)):
                if wire.end is not None:
                    wire.end.closed = True
                self.carry(wire, False, None)

    # ---- the way

    def carry(self, wire: Wire, up: bool, message: Any) -> None:
        """Bring a message to the other end, after those sent before it."""
        way = (wire.name, wire.server) if up else (wire.server, wire.name)
        if way in self.blocked or wire.held[up]:
            wire.held[up].append(message)
            return
        at_us = max(wire.free_us[up], self.loop.now_us + self._delay_us(way))
        if up:
            at_us = -(-at_us // self._turn_us) * self._turn_us
        wire.free_us[up] = at_us
        wire.under_way[up].append(message)  # what arrives in the same instant keeps its order, too
        if up:
            door = self.doors.get(wire.server)
            owner = door.owner if door is not None else self.loop.world
            self.loop.call_at(at_us / 1e6, self._arrives, wire, context=owner.context)
        else:
            self.loop.call_at(at_us / 1e6, self._comes_back, wire, context=wire.client.context)

    def _arrives(self, wire: Wire) -> None:
        self._arrived(wire, wire.under_way[True].popleft())

    @staticmethod
    def _comes_back(wire: Wire) -> None:
        wire.answered(wire.under_way[False].popleft())

    def _delay_us(self, way: tuple[str, str]) -> int:
        roll = self.rng.random()
        delay_us = int(80 + 300 * roll) if roll < 0.97 else int(1_000 + 40_000 * self.rng.random())
        limit_us = self.slow.get(way, 0)
        return delay_us + (self.rng.randrange(limit_us) if limit_us else 0)

    def _arrived(self, wire: Wire, message: Any) -> None:
        if wire.refused:
            return
        if wire.end is None:
            door = self.doors.get(wire.server)
            if door is None:
                wire.refused = True
                if message is not None:
                    self.carry(wire, False, None)
                return
            wire.end = ServerEnd(door, wire)
        if wire.end.closed:
            return
        if message is not None:
            self.on_request(wire.name, wire.server, int.from_bytes(message[4:6], "big"))
        wire.end.arrived(message)

    # ---- faults

    def block(self, source: str, target: str) -> None:
        """Nothing passes from one to the other until :meth:`unblock`."""
        self.blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        """The way is open: what was held arrives, or its connection is found broken."""
        self.blocked.discard((source, target))
        for wire in list(self._wires):
            for up, way in ((True, (wire.name, wire.server)), (False, (wire.server, wire.name))):
                if way == (source, target) and wire.held[up]:
                    held, wire.held[up] = wire.held[up], []
                    if self.rng.random() < 0.3:
                        held = [None]
                        self.carry(wire, not up, None)
                    for message in held:
                        self.carry(wire, up, message)

    def reset(self, one: str, other: str) -> None:
        """All connections between two processes break; requests on their way may still arrive."""
        for wire in list(self._wires):
            if wire.open and {wire.name, wire.server} == {one, other}:
                if wire.end is not None and self.rng.random() < 0.5:
                    self.loop.call_soon(wire.end.close, CLOSED, context=wire.end.door.owner.context)
                else:
                    self.loop.call_soon(wire.close, CLOSED, context=wire.client.context)

    def hold_back(self, client: str, server: str, late_us: int) -> None:
        """What one sends to the other by its present connections takes so long."""
        for wire in self._open(client, server):
            wire.free_us[True] = max(wire.free_us[True], self.loop.now_us + late_us)

    def give_up(self, client: str, server: str) -> None:
        """The client closes its connections, as if it had waited for too long."""
        for wire in self._open(client, server):
            self.loop.call_soon(wire.close, CLOSED, context=wire.client.context)

    def _open(self, client: str, server: str) -> list[Wire]:
        return [wire for wire in self._wires if wire.open and (wire.name, wire.server) == (client, server)]


class SimPeers:
    """The peers port of one broker, for one purpose: a connection per other broker."""

    def __init__(self, network: Network, owner: Owner, name: str, metadata: MetadataCache) -> None:
        self._network = network
        self._owner = owner
        self._name = name
        self._metadata = metadata
        self._wires: dict[int, Wire] = {}

    async def call(self, broker_id: int, api_key: int, version: int, message: Any, timeout_ms: int = 30_000) -> Any:
        answer = await self.exchange(broker_id, api_key, version, bytes(message.encode(version=version)), timeout_ms)
        return messages.decode_response(api_key, version, answer)

    async def exchange(
        self, broker_id: int, api_key: int, version: int, body: bytes, timeout_ms: int = 30_000
    ) -> memoryview:
        if broker_id not in self._metadata.brokers:
            wire = self._wires.pop(broker_id, None)
            if wire is not None:
                wire.close("is gone")
            raise PeerUnavailable(broker_id, "is not registered")
        wire = self._wires.get(broker_id)
        if wire is None or not wire.open:
            wire = self._wires[broker_id] = self._network.connect(self._owner, self._name, f"b{broker_id}")
        try:
            return await wire.ask(api_key, version, body, timeout_ms / 1000)
        except Broken as error:
            raise PeerUnavailable(broker_id, str(error)) from error

    async def close(self) -> None:
        for wire in self._wires.values():
            wire.close("this broker is stopping")
        self._wires.clear()
        await asyncio.sleep(0)
