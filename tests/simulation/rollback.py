"""ZooKeeper comes back as an older copy of itself, in place of a seed's faults; then as it was, or it is repaired."""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from fleetlog.brokers.cli.repair import read_plan, write_plan
from fleetlog.brokers.metadata import znodes
from fleetlog.coordination.store import NoNode
from tests.simulation.admin import Admin
from tests.simulation.clients import Producer
from tests.simulation.store import SimStore

if TYPE_CHECKING:
    from tests.simulation.world import World

PATIENCE_S = 20.0
REFUSING_S = 3.0
"""How long the brokers run beside the older tree: longer than sessions of then and elections last."""
SAVED_S = 4.0
"""After that brokers have saved what they saw of the tree."""
LATE = "late"


class Rollback:
    """See the module. All brokers are killed, so that all see the older tree with their next start."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"{world.seed}/rollback")
        self._repaired = self._rng.random() < 0.5
        self._asked = 0

    async def happen(self, duration_s: float) -> None:
        """The course of events."""
        world, brokers = self._world, list(self._world.fleet.brokers.values())
        await self._acknowledged(5)
        await self._give_producer_ids()
        older = world.zookeeper.copy()
        world.note("ZooKeeper is copied")
        admin = Admin(world, "late operator")
        await asyncio.wait_for(admin.run(admin.create(LATE, 1, 3)), PATIENCE_S)
        await self._acknowledged(5)
        for broker in self._rng.sample(brokers, 2):  # elections that the copy does not know
            broker.kill()
            await asyncio.sleep(self._rng.uniform(0.5, 2))
            broker.start()
            await self._until(world.fleet.serving, f"{broker.name} serves again")
        await self._acknowledged(5)
        await self._give_producer_ids()  # of blocks that the copy does not know
        await asyncio.sleep(SAVED_S)
        for broker in brokers:
            broker.kill()
        await self._until(world.zookeeper.is_quiet, "all sessions have ended")
        newer = world.zookeeper.copy()
        logs = self._logs()
        world.zookeeper.put_back(older)
        world.note("ZooKeeper is the older copy")
        for broker in brokers:
            broker.start()
        await asyncio.sleep(REFUSING_S)
        await self._until(self._all_have_told, "all brokers have told what they have")
        for broker in brokers:
            if broker.services is not None:
                world.oracle.violate(f"{broker.name} serves beside a ZooKeeper that is older than its logs")
        if logs - self._logs():
            world.oracle.violate(f"logs are gone beside an older ZooKeeper: {sorted(logs - self._logs())}")
        if self._repaired:
            await self._repair()
        else:
            for broker in brokers:
                broker.kill()
            await self._until(world.zookeeper.is_quiet, "all sessions have ended")
            world.zookeeper.put_back(newer)
            world.note("ZooKeeper is as it was")
            for broker in brokers:
                broker.start()
        await self._until(world.fleet.serving, "all brokers serve")
        if lost := [path for path in sorted(logs - self._logs()) if not self._may_go(path)]:
            world.oracle.violate(f"logs were given up: {lost}")
        await self._give_producer_ids()
        world.oracle.checked["repaired" if self._repaired else "put forward"] += 1

    async def _repair(self) -> None:
        world = self._world
        store = SimStore(world.zookeeper, world.loop.world, world.wall_ms, name="repair", session_timeout_ms=1_000)
        await store.start()
        with contextlib.redirect_stdout(io.StringIO()):
            plan = await read_plan(store, ())
        for line in plan.lines:
            world.note(f"plan: {line}")
        committed, paths = world.zookeeper.on_commit, list[str]()
        world.zookeeper.on_commit = paths.extend  # half of it is no state of the fleet: no broker follows it yet
        await write_plan(store, plan)
        world.zookeeper.on_commit = committed
        world.oracle.assignments_repaired()
        committed(paths)
        await store.close()

    async def _give_producer_ids(self) -> None:
        """Every broker gives one, to a client of its own: the oracle knows all that were given before."""
        for broker in self._world.fleet.brokers.values():
            self._asked += 1
            client = Producer(self._world, f"producer {self._asked}")
            given = client.run(client.new_producer_id(broker.id))
            await self._until(given.done, f"{broker.name} gives a producer id")

    def _all_have_told(self) -> bool:
        told = set()
        with contextlib.suppress(NoNode):
            told = {name.split("-")[0] for name in self._world.zookeeper.tree.find(znodes.INVENTORIES).children}
        return len(told) == self._world.size or self._world.fleet.serving()

    def _logs(self) -> set[str]:
        """The names of the partitions' directories of all brokers."""
        paths = {path for broker in self._world.fleet.brokers.values() for path in broker.medium.directories}
        return {path for path in paths if path.rpartition("-")[2].isdigit()}

    def _may_go(self, log: str) -> bool:
        """Whether its topic is deleted, or its broker none of the partition's replicas any more: what an operator asked
        for goes on by itself.
        """
        _, broker, *_, directory = log.split("/")
        topic, _, index = directory.rpartition("-")
        if topic in self._world.oracle.deletions:
            return True
        path = znodes.topic_path(topic)
        with contextlib.suppress(NoNode):
            found = znodes.decode_topic(path, self._world.zookeeper.tree.find(path).data)
            return int(broker.removeprefix("b")) not in found.assignment[int(index)]
        return False

    async def _acknowledged(self, more: int) -> None:
        before = self._world.oracle.checked["acknowledged"]
        await self._until(lambda: self._world.oracle.checked["acknowledged"] >= before + more, "more is acknowledged")

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = self._world.loop.time() + PATIENCE_S
        while not condition() and not self._world.stopped:
            if self._world.loop.time() > deadline:
                self._world.oracle.violate(f"not after {PATIENCE_S} s: {what}")
                return
            await asyncio.sleep(0.05)
