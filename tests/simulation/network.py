"""The network between simulated processes: connections with order, delay and breakage, and a broker's door to them.

A request goes as the real bytes through the real dispatcher of the broker; only sockets are simulated. A connection
keeps its order in both directions and other connections overtake it. Where the way is blocked, in one direction or
both, bytes are held and arrive once it is open again, also those of a process that has given up or died since: this is
how an old request comes to a new leader, much later.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from brokers.api.base import Connection as Peer
from brokers.api.base import Services
from brokers.cluster.peers import PeerUnavailable
from brokers.log.failures import DiskError, SliceGone
from brokers.server.connection import Slot
from brokers.server.dispatch import Dispatcher
from brokers.server.limits import ByteBudget, QuietLog
from brokers.server.parking import Parking
from tests.simulation.loop import Owner, SimLoop
from wire import messages

if TYPE_CHECKING:
    from brokers.cluster.view import ClusterView

REFUSED, CLOSED = "connection refused", "connection reset"


class Broken(Exception):
    """The connection is gone; whether the request was performed is unknown."""


class Wire:
    """One connection from a client (a broker or a producer) to a broker."""

    def __init__(self, network: Network, client: Owner, name: str, server: str) -> None:
        self.client, self.name, self.server = client, name, server
        self.open = True
        self.end: ServerEnd | None = None
        self.refused = False
        """Nobody was there when it came: a broker that starts later doesn't know of it."""
        self.calls: deque[tuple[int, asyncio.Future[memoryview]]] = deque()
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
        self.calls.append((self._correlation, future))
        self._network.carry(self, True, (api_key, version, frame))
        return future

    async def ask(self, api_key: int, version: int, body: bytes, timeout_s: float) -> memoryview:
        """Send a request and wait for its answer; without one in time the connection is given up. Raises Broken."""
        future = self.send(api_key, version, body)
        patience = self._network.loop.call_later(timeout_s, self.close, f"no answer within {timeout_s} s")
        try:
            return await future
        finally:
            patience.cancel()

    def answered(self, message: tuple[int, int, bytes] | None) -> None:
        """What came back: an answer, or None when the server's end is closed."""
        if not self.open:
            return
        if message is None:
            self.close(CLOSED)
            return
        api_key, version, frame = message
        correlation_id, body = messages.split_response(api_key, version, memoryview(frame)[4:])
        expected, future = self.calls.popleft()
        assert correlation_id == expected, f"answer {correlation_id} where {expected} was due"
        if not future.done():
            future.set_result(body)

    def close(self, reason: str) -> None:
        """Give the connection up; what was sent may still arrive."""
        if self.open:
            self.open = False
            for _, future in self.calls:
                if not future.done():
                    future.set_exception(Broken(reason))
                    future.exception()
            self.calls.clear()
            self._network.carry(self, True, None)


class ServerEnd:
    """A broker's end of a connection: what ``Connection`` is to the dispatcher, without a socket."""

    def __init__(self, door: Door, wire: Wire) -> None:
        self.closed = False
        self.peer = Peer(door.next_number(), door.listener, wire.name)
        self.door = door
        self._wire = wire
        self._backlog: deque[tuple[int, int, bytes]] = deque()
        self._slots: deque[tuple[Slot, int, int]] = deque()
        self._pumping = False

    def received(self, message: tuple[int, int, bytes] | None) -> None:
        if message is None:
            self.close("the peer closed it")
        elif not self.closed:
            self._backlog.append(message)
            self.pump()

    def pump(self) -> None:
        """Execute what has come, one at a time; only a Produce that has appended lets the next one start."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._backlog and not self.closed:
                if self._slots and self._slots[-1][0].serial and not self._slots[-1][0].ready:
                    break
                api_key, version, frame = self._backlog.popleft()
                slot = Slot(self, 0)  # type: ignore[arg-type]
                self._slots.append((slot, api_key, version))
                self.door.dispatcher.dispatch(self, memoryview(bytearray(frame))[4:], slot)  # type: ignore[arg-type]
        finally:
            self._pumping = False

    def answered(self, slot: Slot) -> None:
        """A slot has its answer: send what is at the head of the order."""
        if slot.cost:
            self.door.budget.release(slot.cost)
            slot.cost = 0
        slot.on_drop = None
        while not self.closed and self._slots and self._slots[0][0].ready:
            ready, api_key, version = self._slots.popleft()
            if ready.chunks:
                try:
                    frame = b"".join(c if isinstance(c, bytes) else c.read() for c in ready.chunks)
                except (SliceGone, DiskError):
                    self.close("the log failed or was cut under a reader")
                    return
                for chunk in ready.chunks:
                    if not isinstance(chunk, bytes):
                        chunk.release()
                self.door.network.carry(self._wire, False, (api_key, version, frame))
        self.pump()

    def close(self, reason: str) -> None:
        """Close it and drop what waits."""
        if self.closed:
            return
        self.closed = True
        self.door.network.carry(self._wire, False, None)
        for slot, _, _ in self._slots:
            if not slot.ready:
                self.door.budget.release(slot.cost)
                slot.cost = 0
                if slot.on_drop is not None:
                    slot.on_drop()
        self._slots.clear()


class Door:
    """Where a living broker's connections end. Made when the broker serves, gone with its process."""

    def __init__(self, network: Network, owner: Owner, services: Services) -> None:
        self.network = network
        self.owner = owner
        self.listener = services.config.inter_broker_listener()
        self.budget = ByteBudget(services.config.queued_max_request_bytes)
        self._numbers = 0
        parking = Parking(services.loop, services.clock)
        self.dispatcher = Dispatcher(services, parking, self.budget, QuietLog(services.clock.mono_ms))

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers


class Network:
    """All connections. ``blocked`` holds (from, to) pairs of names between which nothing passes."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.rng = random.Random(f"{seed}/network")
        self.doors: dict[str, Door] = {}
        self.blocked: set[tuple[str, str]] = set()
        self.slow: dict[tuple[str, str], int] = {}
        self.on_request: Callable[[str, str, int], None] = lambda client, server, api_key: None
        self._wires: list[Wire] = []
        self._prune_at = 100

    # ---- ends

    def open_door(self, name: str, owner: Owner, services: Services) -> None:
        """The broker answers from now on."""
        self.doors[name] = Door(self, owner, services)

    def close_door(self, name: str) -> None:
        """The broker stops answering and closes its connections."""
        door = self.doors.pop(name, None)
        for wire in list(self._wires):
            if door is not None and wire.end is not None and wire.end.door is door:
                wire.end.close("the broker stops")

    def connect(self, client: Owner, name: str, server: str) -> Wire:
        """A connection that a process begins to use; whether anybody is there shows with the first answer."""
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
            self.on_request(wire.name, wire.server, message[0])
        wire.end.received(message)

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


class SimPeers:
    """The peers port of one broker, for one purpose: a connection per other broker."""

    def __init__(self, network: Network, owner: Owner, name: str, view: ClusterView) -> None:
        self._network = network
        self._owner = owner
        self._name = name
        self._view = view
        self._wires: dict[int, Wire] = {}

    async def call(self, broker_id: int, api_key: int, version: int, message: Any, timeout_ms: int = 30_000) -> Any:
        answer = await self.exchange(broker_id, api_key, version, bytes(message.encode(version=version)), timeout_ms)
        return messages.decode_response(api_key, version, answer)

    async def exchange(
        self, broker_id: int, api_key: int, version: int, body: bytes, timeout_ms: int = 30_000
    ) -> memoryview:
        if broker_id not in self._view.brokers:
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
