"""A disk fills up, with other replicas that have room: the partition stays writable, and the replica comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fleetlog.brokers.model import PartitionState, TopicPartition
from fleetlog.brokers.replication.partition import Partition
from tests.simulation.admin import Admin
from tests.simulation.fleet import LAG_MS, SETTINGS, SimBroker
from tests.simulation.runs import story
from tests.simulation.world import TOPIC, World

TP, OTHER = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
PATIENCE_S = 12.0
"""Until a client happens to write to the partition, and until a broker that had no room is in sync again."""


class FullDisks:
    """In place of the seed's faults: the leader's disk, then a follower's, then all."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: list[str] = []

    async def happen(self, duration_s: float) -> None:
        await self.until(lambda: len(self.state.isr) == 3 and self.acknowledged > 0, "all are in sync and at work")
        await self.until(self.complete, "every broker has its logs")
        await self.leader_without_room()
        await self.follower_without_room()
        await self.topics_without_room()
        await self.no_broker_has_room()

    async def leader_without_room(self) -> None:
        leader = self.brokers[self.state.leader]
        leader.medium.full = True
        await self.until(lambda: self.state.leader not in (-1, leader.id), "another replica leads")
        acknowledged = self.acknowledged
        await self.until(lambda: self.acknowledged > acknowledged + 2, "the successor acknowledges")
        await self.room_again(leader)

    async def follower_without_room(self) -> None:
        follower = self.brokers[next(b for b in self.state.isr if b != self.state.leader)]
        follower.medium.full = True
        await self.until(lambda: self.partition(follower).log.crowded, "the follower meets its full disk")
        met = self.world.loop.time()
        await self.until(lambda: follower.id not in self.state.isr, "the follower leaves the in-sync set")
        assert self.world.loop.time() - met < LAG_MS / 1000 / 2, "at once, not when it lags"
        acknowledged = self.acknowledged
        await self.until(lambda: self.acknowledged > acknowledged + 2, "acks=all goes on without it")
        await self.room_again(follower)

    async def topics_without_room(self) -> None:
        """Topics are made while a broker has no room for their logs: others lead them."""
        full = self.brokers[self.state.leader]
        full.medium.full = True
        admin = Admin(self.world, "creator")
        names = [f"new{number}" for number in range(len(self.brokers))]  # one of them is given to the full one first
        for name in names:
            await admin.run(admin.create(name, 1, 3))
        new = [TopicPartition(name, 0) for name in names]
        await self.until(lambda: all(self.led_with_log(tp) for tp in new), "all new partitions are led")
        told = [tp for tp in new if full.id in self.state_of(tp).replicas]
        assert told, "the full one has replicas of them"
        await self.until(lambda: not any(full.id in self.state_of(tp).isr for tp in told), "not in sync without a log")
        await self.room_again(full)
        await self.until(lambda: all(len(self.state_of(tp).isr) == 3 for tp in told), "in sync with room for its logs")

    def led_with_log(self, tp: TopicPartition) -> bool:
        return any(p.tp == tp and p.is_leader for p in self.replicas())

    async def no_broker_has_room(self) -> None:
        await self.until(lambda: not any(p.log.crowded for p in self.replicas()), "every log has room")
        await asyncio.sleep(1.0)  # leaderships that were on their way have arrived
        for broker in self.brokers.values():
            broker.medium.full = True
        led = {tp: self.leader_of(tp) for tp in (TP, OTHER)}
        await self.until(lambda: any(p.is_leader and p.log.crowded for p in self.replicas()), "a leader without room")
        await asyncio.sleep(3.0)
        assert {tp: self.leader_of(tp) for tp in led} == led, "no other replica could do better"
        await self.room_again(*self.brokers.values())

    async def room_again(self, *brokers: SimBroker) -> None:
        for broker in brokers:
            broker.medium.full = False
        names = ", ".join(broker.name for broker in brokers)
        await self.until(lambda: len(self.state.isr) == 3, f"with room on {names} all are in sync again")

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while not condition():
            assert loop.time() < deadline, f"not after {PATIENCE_S} s: {what}; {self.state}"
            await asyncio.sleep(0.02)
        self.seen.append(what)

    def complete(self) -> bool:
        """Every replica of every topic has its log."""
        services = [b.services for b in self.brokers.values() if b.services is not None]
        return all(
            one.replicas.get(TopicPartition(name, index)) is not None
            for one in services
            for name, topic in one.metadata.topics.items()
            for index, state in enumerate(topic.partitions)
            if one.config.broker_id in state.replicas
        )

    @property
    def brokers(self) -> dict[int, SimBroker]:
        return self.world.fleet.brokers

    @property
    def acknowledged(self) -> int:
        return self.world.oracle.checked["acknowledged"]

    @property
    def state(self) -> PartitionState:
        return self.state_of(TP)

    def state_of(self, tp: TopicPartition) -> PartitionState:
        """As the broker knows it that has heard the latest."""
        states = [b.services.metadata.partition(tp) for b in self.brokers.values() if b.services is not None]
        return max((state for state in states if state is not None), key=lambda state: state.partition_epoch)

    def leader_of(self, tp: TopicPartition) -> int:
        return self.state_of(tp).leader

    def replicas(self) -> list[Partition]:
        return [p for b in self.brokers.values() if b.services is not None for p in b.services.replicas.all()]

    def partition(self, broker: SimBroker) -> Partition:
        assert broker.services is not None
        found = broker.services.replicas.get(TP)
        assert found is not None
        return found


@pytest.mark.parametrize("seed", range(12))
def test_a_partition_stays_writable_while_a_replica_has_room(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "auto_leader_rebalance_enable", False)  # that moves leaders for its own reasons
    world = World(seed)
    world.operated = False
    full = FullDisks(world)
    world.faults.happen = full.happen  # type: ignore[method-assign]
    report = world.run()
    assert report.ok, story(report)
    assert full.seen.count("acks=all goes on without it") == 1
