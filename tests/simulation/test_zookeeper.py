"""The simulated ZooKeeper against the real one: the same operations, the same results, errors, stats and watches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import pytest

from fleetlog.coordination.store import (
    Check,
    Create,
    Delete,
    MultiFailed,
    Operation,
    OperationResult,
    SessionEvent,
    SessionState,
    SetData,
    Stat,
    Store,
    StoreError,
    UnknownOutcome,
    WatchEvent,
)
from fleetlog.coordination.zookeeper import ZookeeperStore
from tests.coordination import test_changes, test_election, test_registration, test_store
from tests.simulation.loop import SimLoop
from tests.simulation.store import SimStore
from tests.simulation.zookeeper import DOWN, UP, SimZooKeeper
from tests.support.stores import expire, on_loop, record_session, states
from tests.support.waiting import eventually_async

SEQUENCES = 40
OPERATIONS = 120
CLIENTS = 3

# ---- conformance: random operations


class Client(Protocol):
    """What both stores have beside the port."""

    def credentials(self) -> tuple[int, bytes] | None: ...

    async def end_session(self, session_id: int, password: bytes) -> bool: ...


class Plan:
    """Random operations on few paths, so that they conflict. Pure: the same for both sides."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def path(self) -> str:
        depth = self.rng.choice((1, 1, 1, 2, 2, 3))
        return "".join(f"/{self.rng.choice('abc')}" for _ in range(depth))

    def data(self) -> bytes:
        return self.rng.choice((b"", b"x", b"some data", bytes(1000)))

    def version(self) -> int:
        return self.rng.choice((-1, -1, 0, 0, 1, 2))

    def operation(self) -> Operation:
        match self.rng.randrange(7):
            case 0 | 1 | 2:
                sequence = self.rng.random() < 0.2
                path = self.path() + ("/s_" if sequence else "")
                return Create(path, self.data(), self.rng.random() < 0.25, sequence)
            case 3 | 4:
                return SetData(self.path(), self.data(), self.version())
            case 5:
                return Delete(self.path(), self.version())
            case _:
                return Check(self.path(), self.version())

    def step(self) -> tuple[str, Any]:
        kind = self.rng.choice(("write", "write", "write", "multi", "multi", "get", "children", "exists", "end"))
        if kind == "write":
            operation = self.operation()
            return (kind, operation) if not isinstance(operation, Check) else ("sync", operation.path)
        if kind == "multi":
            return kind, [self.operation() for _ in range(self.rng.randint(1, 5))]
        if kind == "end":
            return kind if self.rng.random() < 0.15 else "parents", self.path()
        return kind, (self.path(), self.rng.random() < 0.6)


async def perform(store: Store, kind: str, what: Any, watch: Callable[[WatchEvent], None]) -> Any:
    """One step; its answer or its error, as something to compare."""
    try:
        match kind:
            case "write":
                match what:
                    case Create(path, data, ephemeral, sequence):
                        return await store.create(path, data, ephemeral=ephemeral, sequence=sequence)
                    case SetData(path, data, version):
                        return await store.set(path, data, version)
                    case Delete(path, version):
                        return await store.delete(path, version)
            case "multi":
                return await store.multi(what)
            case "parents":
                return await store.create(what, parents=True)
            case "sync":
                return await store.sync(what)
            case _:
                path, watched = what
                return await getattr(store, kind)(path, watch if watched else None)
    except MultiFailed as failed:
        return "MultiFailed", failed.index, type(failed.cause).__name__, str(failed.cause), failed.cause.path
    except StoreError as error:
        return type(error).__name__, str(error), error.path


class Normal:
    """Gives zxids and session ids the numbers of their first appearance; zxids must also keep their order."""

    def __init__(self) -> None:
        self._ids: dict[int, int] = {0: 0}
        self.zxids: list[int] = []

    def _zxid(self, zxid: int) -> int:
        if zxid not in self.zxids:
            self.zxids.append(zxid)
        return self.zxids.index(zxid)

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Stat):
            owner = self._ids.setdefault(value.ephemeral_owner, len(self._ids))
            return (value.version, self._zxid(value.czxid), self._zxid(value.mzxid), owner)
        if isinstance(value, OperationResult):
            return value.path, self(value.stat)
        if isinstance(value, (list, tuple)):
            return [self(part) for part in value]
        return value

    def order(self) -> list[int]:
        """The rank of each zxid in the order of appearance."""
        ranks = sorted(self.zxids)
        return [ranks.index(zxid) for zxid in self.zxids]


async def history(seed: int, open_store: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Run a seed's operations on three clients, one after the other, and write down all that can be seen."""
    plan, normal = Plan(seed), Normal()
    stores = [await open_store() for _ in range(CLIENTS)]
    fired: list[list[WatchEvent]] = [[] for _ in stores]
    watches = [events.append for events in fired]
    seen: list[Any] = []
    for _ in range(OPERATIONS):
        index = plan.rng.randrange(CLIENTS)
        kind, what = plan.step()
        if kind == "end":
            victim = plan.rng.randrange(CLIENTS)
            if victim == index:
                continue
            events: list[SessionEvent] = []
            stores[victim].on_session(events.append)
            await expire(stores[victim], stores[index])
            answer: Any = await eventually_async(
                lambda: states(events)[-2:],  # noqa: B023
                "the next session is connected",
                good=lambda last: last[-1:] == [SessionState.CONNECTED],
            )
        else:
            answer = await perform(stores[index], kind, what, watches[index])
        for store in stores:
            await store.sync("/")
        # the ephemerals of a closed session go in no particular order
        told = [sorted(events, key=repr) if kind == "end" else list(events) for events in fired]
        seen.append((kind, what, normal(answer), told))
        for events_ in fired:
            events_.clear()
    seen.append(normal.order())
    for store in stores:
        await store.close()
    return seen


def simulated(seed: int, servers: int) -> list[Any]:
    loop = SimLoop(seed)
    zookeeper = SimZooKeeper(loop, seed, servers=servers)

    async def open_store() -> SimStore:
        store = SimStore(zookeeper, loop.world, lambda: loop.now_us // 1000)
        await store.start()
        return store

    try:
        result: list[Any] = loop.run_coroutine(loop.world, history(seed, open_store))
        assert not loop.errors
        return result
    finally:
        loop.close()


@pytest.mark.zookeeper
@on_loop
async def test_the_same_operations_have_the_same_results(connect: str) -> None:
    compared = 0
    kinds: dict[str, int] = {}
    for seed in range(SEQUENCES):

        async def open_store(chroot: str = f"{connect}/{seed}") -> ZookeeperStore:
            store = ZookeeperStore(chroot, session_timeout_ms=40_000)
            await store.start(20_000)
            return store

        real = await history(seed, open_store)
        for servers in (1, 3):
            ours = await asyncio.to_thread(simulated, seed, servers)
            for number, (theirs, mine) in enumerate(zip(real, ours, strict=True)):
                assert mine == theirs, f"seed {seed}, operation {number}"
        compared += len(real)
        for kind, *_rest in real[:-1]:
            kinds[kind] = kinds.get(kind, 0) + 1
    assert compared > 4000
    assert min(kinds.values()) > 20, kinds


# ---- the tests of the real store, on the simulated one


class SimStores:
    """What ``tests.support.stores.Stores`` is for the real one."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.loop = loop
        self.all: list[SimStore] = []

    async def __aenter__(self) -> SimStores:
        return self

    async def __aexit__(self, *_: object) -> None:
        for store in self.all:
            await store.close()

    async def open(self, zookeeper: SimZooKeeper, timeout_ms: int = 6000) -> SimStore:
        owner = self.loop.world
        store = SimStore(zookeeper, owner, lambda: self.loop.now_us // 1000, session_timeout_ms=timeout_ms)
        self.all.append(store)
        await store.start(20_000)
        return store


SHARED = [
    (module, name)
    for module, left_out in (
        (test_store, ("test_limits_are_refused_here_and_just_below_them_it_works", "test_many_below_a_root")),
        (test_changes, ()),
        (test_election, ()),
        (test_registration, ()),
    )
    for name, test in vars(module).items()
    if name.startswith("test_")
    and name not in left_out
    and getattr(test, "__wrapped__", None) is not None
    and test.__wrapped__.__code__.co_varnames[: test.__wrapped__.__code__.co_argcount] == ("connect",)
    and not {"Proxy", "to_thread", "subprocess", "boot_ms", "enlist"} & set(test.__wrapped__.__code__.co_names)
]


def test_most_of_the_stores_tests_are_shared() -> None:
    assert len(SHARED) >= 16, [name for _, name in SHARED]


@pytest.mark.parametrize(("module", "name"), SHARED, ids=[name for _, name in SHARED])
@pytest.mark.parametrize("servers", [1, 3])
def test_a_test_of_the_real_store(module: Any, name: str, servers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Stores", SimStores)
    loop = SimLoop(servers)
    test: Callable[[SimZooKeeper], Coroutine[Any, Any, None]] = getattr(module, name).__wrapped__
    loop.run_coroutine(loop.world, test(SimZooKeeper(loop, servers, servers=servers)))
    loop.close()
    assert not loop.errors


# ---- what a quiet real server cannot show: broken connections, lost servers, pauses


def test_no_lease_outlives_its_session() -> None:
    """Whatever breaks: while a store's lease is valid its session stands, and afterwards all stores work again."""
    assert sum(troubles(seed) for seed in range(25)) > 25


def troubles(seed: int) -> int:
    """Four stores in trouble; returns how many sessions expired."""
    loop = SimLoop(seed)
    zookeeper = SimZooKeeper(loop, seed)
    rng = random.Random(seed)
    stores = []
    for number in range(4):
        owner = loop.owner(f"c{number}")
        store = SimStore(zookeeper, owner, lambda: loop.now_us // 1000, session_timeout_ms=3000)
        stores.append(store)
        loop.spawn(owner, store.start(20_000))

    def check() -> None:
        for store in stores:
            info = store.session()
            if info is not None and store.lease.valid():
                assert not zookeeper.sessions[info.session_id].over, f"{store.name} holds a lease at {loop.time()}"
        loop.call_later(0.003, check, context=loop.world.context)

    async def faults() -> None:
        for _ in range(25):
            await asyncio.sleep(rng.uniform(0.1, 4))
            store, span, index = rng.choice(stores), rng.choice((0.3, 1, 2.5, 5)), rng.randrange(3)
            match rng.randrange(6):
                case 0:
                    loop.pause(store.owner)
                    loop.call_later(span, loop.resume, store.owner)
                case 1:
                    zookeeper.block(store.name, *rng.choice(((UP,), (DOWN,), (UP, DOWN))))
                    loop.call_later(span, zookeeper.unblock, store.name)
                case 2:
                    zookeeper.break_connections(store.name)
                case 3 if all(server.up for server in zookeeper.servers) or rng.random() < 0.2:
                    zookeeper.stop_server(index)
                    loop.call_later(span, zookeeper.start_server, index)
                case 4:
                    zookeeper.servers[index].lag_us = rng.choice((0, 200_000, 2_000_000))
                case 5 if zookeeper.leader is not None and all(server.up for server in zookeeper.servers):
                    leader = zookeeper.leader.index
                    zookeeper.cut_server(leader)
                    loop.call_later(span, zookeeper.start_server, leader)
        await asyncio.sleep(12)
        for server in zookeeper.servers:
            server.lag_us = 0
        await asyncio.sleep(20)

    loop.call_later(0.003, check, context=loop.world.context)
    loop.run_coroutine(loop.world, faults())
    assert not loop.errors, loop.errors
    for store in stores:
        loop.run_coroutine(store.owner, store.create(f"/{store.name}", ephemeral=True), 20)
        assert store.lease.valid()
    expired = sum(session.over for session in zookeeper.sessions.values())
    loop.close()
    return expired


@pytest.mark.parametrize("seed", range(20))
def test_a_lost_answer_is_an_unknown_outcome_of_either_kind(seed: int) -> None:
    loop = SimLoop(seed)
    zookeeper = SimZooKeeper(loop, seed)

    async def main() -> tuple[int, int]:
        store = SimStore(zookeeper, loop.world, lambda: loop.now_us // 1000)
        await store.start()
        events = record_session(store)
        unknown = applied = 0
        for number in range(20):
            loop.call_later(zookeeper.rng.uniform(0, 0.002), zookeeper.break_connections, "world")
            try:
                await store.create(f"/{number}")
            except UnknownOutcome:
                unknown += 1
                await store.sync("/")
                applied += await store.exists(f"/{number}") is not None
            await eventually_async(lambda: store.credentials() is not None, "there is a session")
            await asyncio.sleep(0.01)
        assert set(states(events)) == {SessionState.SUSPENDED, SessionState.CONNECTED}
        return unknown, applied

    unknown, applied = loop.run_coroutine(loop.world, main())
    loop.close()
    assert 0 < unknown <= 20
    assert 0 <= applied <= unknown
