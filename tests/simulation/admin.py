"""The operator: creates and deletes topics, moves partitions, asks for elections, changes settings, all the while."""

from __future__ import annotations

from typing import Any

import fleetlog.wire.messages as m
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.clients import Client

TIMEOUT_MS = 4_000


class Admin(Client):
    """One operator. Commands go to the controller, and again if it is another by now."""

    async def command(self, message: Any, version: int, attempts: int = 30) -> Any:
        """The controller's answer, or None after so many attempts."""
        for _ in range(attempts):
            await self.refresh()
            answer = await self.ask(self.controller, message, version, 5.0) if self.controller >= 0 else None
            if answer is not None and getattr(answer, "error_code", 0) != ErrorCode.NOT_CONTROLLER:
                return answer
            await self.pause(0.05, 0.3)
        return None

    def creation(self, name: str, partitions: int, factor: int, configs: dict[str, str] | None = None) -> Any:
        """A request for a new topic, of version 5."""
        kind = m.CreateTopicsRequest.CreatableTopic
        topic = kind(
            version=5, name=name, num_partitions=partitions, replication_factor=factor, assignments=[],
            configs=[kind.CreatableTopicConfig(version=5, name=k, value=v) for k, v in (configs or {}).items()],
        )  # fmt: skip
        return m.CreateTopicsRequest(version=5, topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=False)

    async def create(self, name: str, partitions: int, factor: int, configs: dict[str, str] | None = None) -> None:
        """Create a topic and wait until it is there."""
        request = self.creation(name, partitions, factor, configs)
        while TopicPartition(name, partitions - 1) not in self.topics:
            await self.command(request, 5, 1)
            await self.refresh()

    async def delete(self, name: str) -> None:
        self.world.oracle.deletions.add(name)
        await self.command(m.DeleteTopicsRequest(version=5, topic_names=[name], timeout_ms=TIMEOUT_MS), 5, 5)

    async def extend(self, name: str, count: int) -> None:
        """Give the topic that many partitions."""
        topic = m.CreatePartitionsRequest.CreatePartitionsTopic(version=2, name=name, count=count, assignments=None)
        await self.command(
            m.CreatePartitionsRequest(version=2, topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=False), 2, 5
        )

    async def move(self, tp: TopicPartition, replicas: list[int] | None) -> None:
        """Give the partition other replicas; None cancels a move."""
        kind = m.AlterPartitionReassignmentsRequest.ReassignableTopic
        part = kind.ReassignablePartition(version=0, partition_index=tp.partition, replicas=replicas)
        topic = kind(version=0, name=tp.topic, partitions=[part])
        await self.command(m.AlterPartitionReassignmentsRequest(version=0, timeout_ms=TIMEOUT_MS, topics=[topic]), 0, 5)

    async def elect(self, tp: TopicPartition) -> None:
        """Ask for the preferred leader."""
        topic = m.ElectLeadersRequest.TopicPartitions(version=2, topic=tp.topic, partitions=[tp.partition])
        request = m.ElectLeadersRequest(version=2, election_type=0, topic_partitions=[topic], timeout_ms=TIMEOUT_MS)
        await self.command(request, 2, 5)

    async def configure(self, topic: str, name: str, value: str) -> None:
        """Set one setting of a topic."""
        kind = m.IncrementalAlterConfigsRequest.AlterConfigsResource
        config = kind.AlterableConfig(version=1, name=name, config_operation=0, value=value)
        resource = kind(version=1, resource_type=2, resource_name=topic, configs=[config])
        request = m.IncrementalAlterConfigsRequest(version=1, resources=[resource], validate_only=False)
        await self.command(request, 1, 5)

    async def main(self, topic: str, partitions: int) -> None:
        """Something every few seconds."""
        brokers = list(self.world.fleet.brokers)
        extra = 0
        while not self.world.closing:
            await self.pause(0.3, 2.0)
            tp = TopicPartition(topic, self.rng.randrange(partitions))
            roll = self.rng.random() * (1.0 if len(brokers) == 3 or self.rng.random() < 0.5 else 0.35)
            if roll < 0.35:
                replicas = self.rng.sample(brokers, 3)
                self.world.note(f"operator moves {tp} to {replicas}")
                await self.move(tp, replicas if self.rng.random() < 0.85 else None)
            elif roll < 0.6:
                await self.elect(tp if self.rng.random() < 0.6 else self.rng.choice(self.world.internal))
            elif roll < 0.75:
                minimum = self.rng.choice("1223")
                self.world.note(f"operator sets min.insync.replicas of {topic} to {minimum}")
                self.world.least_minimum = min(self.world.least_minimum, int(minimum))
                await self.configure(topic, "min.insync.replicas", minimum)
            elif roll < 0.87:
                extra += 1
                await self.create(f"extra{extra}", 1, 3)
            elif roll < 0.94 and extra:
                await self.extend(f"extra{self.rng.randint(1, extra)}", 2)
            elif extra:
                await self.delete(f"extra{self.rng.randint(1, extra)}")
