"""Courses of events in place of a seed's faults: the last member of an in-sync set comes back without its tail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fleetlog.brokers.model import PartitionState, TopicPartition
from tests.simulation.fleet import SimBroker
from tests.simulation.world import TOPIC, World

TP = TopicPartition(TOPIC, 0)
PATIENCE_S = 20.0
LED_WITHIN_S = 8.0
"""An eligible replica that is back leads by then."""


class LoneMember:
    """In place of the seed's faults, with ``min.insync.replicas=1``: a lone member comes back without its tail.

    All replicas are in sync and hold what was acknowledged. The followers die; in the very moment in which the leader
    is left alone in the in-sync set, which it hasn't heard of, its machine fails, too, and its disk is put back to what
    it was at a clean stop before. All come back, that one last.
    """

    minimum = 1

    def __init__(self, world: World) -> None:
        self.world = world
        self.alone = False
        world.operated, world.minimum = False, self.minimum
        world.faults.happen = self.happen  # type: ignore[method-assign]

    async def happen(self, duration_s: float) -> None:
        await self.until(lambda: len(self.state.isr) == 3 and self.acknowledged > 0, "all are in sync and at work")
        old = await self.copy_of(self.leader)
        await self.until(lambda: len(self.state.isr) == 3, "all are in sync again")
        leader, before = self.leader, self.acknowledged
        await self.until(
            lambda: self.acknowledged > before + 5 and len(self.state.isr) == 3, "more is acknowledged by all"
        )
        followers = [self.brokers[b] for b in self.state.isr if b != leader.id]
        self.on_states(lambda: self.fail_alone(leader))
        for follower in followers:
            follower.kill()
        await self.until(lambda: self.alone, "the leader is alone in sync")
        leader.medium.put_back(old)
        for broker in (*followers, leader):
            broker.start()
            await self.until(lambda broker=broker: broker.services is not None, f"{broker.name} serves")
        await self.until(lambda: self.state.leader >= 0, "the partition is led")

    async def copy_of(self, broker: SimBroker) -> object:
        """The disk at a clean stop of the broker, which leads again afterwards."""
        broker.stop()
        await self.until(lambda: not broker.running, "it has stopped")
        copy = broker.medium.copy()
        broker.start()
        await self.until(lambda: broker.services is not None, "it is back")
        return copy

    def on_states(self, look: Callable[[], None]) -> None:
        committed = self.world.zookeeper.on_commit

        def also(paths: list[str]) -> None:
            committed(paths)
            look()

        self.world.zookeeper.on_commit = also

    def fail_alone(self, leader: SimBroker) -> None:
        state = self.world.oracle._state(TP)
        if not self.alone and state is not None and state.isr == (leader.id,):
            self.alone = True
            self.world.note(f"{leader.name} fails, alone in sync")
            leader.kill()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while not condition():
            assert loop.time() < deadline, f"not after {PATIENCE_S} s: {what}; {self.state}"
            await asyncio.sleep(0.02)

    @property
    def brokers(self) -> dict[int, SimBroker]:
        return self.world.fleet.brokers

    @property
    def leader(self) -> SimBroker:
        return self.brokers[self.state.leader]

    @property
    def acknowledged(self) -> int:
        return self.world.oracle.checked["acknowledged"]

    @property
    def state(self) -> PartitionState:
        state = self.world.oracle._state(TP)
        assert state is not None
        return state


class EligibleReplica(LoneMember):
    """In place of the seed's faults, with ``min.insync.replicas=2``: the eligible replica has what the member lost.

    One follower dies, and the other holds what is acknowledged from then on. It dies, too, and is an eligible replica
    when the leader is left alone in the in-sync set. The leader's machine fails, and its disk is put back to what it
    was before. It comes back long before the others.
    """

    minimum = 2

    async def happen(self, duration_s: float) -> None:
        await self.until(lambda: len(self.state.isr) == 3 and self.acknowledged > 0, "all are in sync and at work")
        old = await self.copy_of(self.leader)
        await self.until(lambda: len(self.state.isr) == 3, "all are in sync again")
        leader = self.leader
        away, eligible = (self.brokers[b] for b in self.state.isr if b != leader.id)
        away.kill()
        await self.until(lambda: len(self.state.isr) == 2, "two are in sync")
        before = self.acknowledged
        await self.until(lambda: self.acknowledged > before + 5, "more is acknowledged")
        self.on_states(lambda: self.fail_alone(leader))
        eligible.kill()
        await self.until(lambda: self.alone, "the leader is alone in sync")
        leader.medium.put_back(old)
        for broker in (leader, away, eligible):
            broker.start()
            await self.until(lambda broker=broker: broker.services is not None, f"{broker.name} serves")
            await asyncio.sleep(2)
        await self.until(lambda: self.state.leader >= 0, "the partition is led")


class LostMember(LoneMember):
    """In place of the seed's faults, with ``min.insync.replicas=2``: an eligible replica leads alone.

    One follower dies and is not in sync from then on. The other stops, and is an eligible replica: what was
    acknowledged is in its log. When the leader is left alone in the in-sync set, its machine fails and stays away.
    The others come back, and the eligible one leads without it (KIP-966).
    """

    minimum = 2

    async def happen(self, duration_s: float) -> None:
        await self.until(lambda: len(self.state.isr) == 3 and self.acknowledged > 0, "all are in sync and at work")
        leader = self.leader
        away, eligible = (self.brokers[b] for b in self.state.isr if b != leader.id)
        away.kill()
        await self.until(lambda: len(self.state.isr) == 2, "two are in sync")
        before = self.acknowledged
        await self.until(lambda: self.acknowledged > before + 5, "more is acknowledged")
        self.on_states(lambda: self.fail_alone(leader))
        eligible.stop()
        await self.until(lambda: self.alone, "the leader is alone in sync")
        for broker in (away, eligible):
            broker.start()
            await self.until(lambda broker=broker: broker.services is not None, f"{broker.name} serves")
        await asyncio.sleep(LED_WITHIN_S)
        if self.state.leader != eligible.id:
            self.world.oracle.violations.append(f"{TP} is not led by {eligible.name}, which is eligible and back")
        leader.start()
