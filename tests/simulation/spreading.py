"""Requests with batches for several partitions: of each the answer must be true though it waits for the slowest.

While one partition's record waits for a follower, another one's is lost: its leader changed, and another record stands
at its offset. So the topic's partitions change hands all the while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import fleetlog.wire.messages as m
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.admin import Admin
from tests.simulation.clients import OK, PRODUCE, PRODUCE_VERSION, RETRIABLE, NewBatch, Producer, produce_bodies

if TYPE_CHECKING:
    from tests.simulation.clients import Client
    from tests.simulation.world import World

WIDE = "wide"
PARTITIONS = [TopicPartition(WIDE, index) for index in range(4)]
SETTINGS = {"min.insync.replicas": "2"}
TIMEOUT_MS, PATIENCE_S = 4_000, 5.0
"""Longer than most troubles last."""


class SpreadingProducer(Producer):
    """Sends a batch for each of some partitions; what a broker leads of them comes to it in one request."""

    async def main(self, partitions: Sequence[TopicPartition]) -> None:
        """Until the run closes; each batch is sent again until it is acknowledged."""
        await self.prepare(partitions)
        while not self.world.closing:
            chosen = self.rng.sample(partitions, self.rng.choice((2, 3, 4, 4)))
            left = {tp: self.next_batch(tp, 3) for tp in chosen}
            while left:
                by_leader: dict[int, dict[TopicPartition, NewBatch]] = {}
                for tp, batch in left.items():
                    by_leader.setdefault(await self.leader(tp), {})[tp] = batch
                done = await asyncio.gather(*(self.push(leader, some) for leader, some in by_leader.items()))
                for tp in [tp for some in done for tp in some]:
                    del left[tp]
                if left:
                    await self.lost_leader(next(iter(left)))
            await self.pause(0.0, 0.05)

    async def push(self, leader: int, batches: dict[TopicPartition, NewBatch]) -> list[TopicPartition]:
        """The partitions whose batches are acknowledged now."""
        parts = [(tp.partition, batch.data) for tp, batch in batches.items()]
        body = produce_bodies(None, -1, TIMEOUT_MS, WIDE, parts)
        raw = await self.exchange(leader, PRODUCE, PRODUCE_VERSION, body, PATIENCE_S)
        if raw is None:
            return []
        oracle, acknowledged, lost = self.world.oracle, [], 0
        for part in m.decode_response(PRODUCE, PRODUCE_VERSION, raw).responses[0].partition_responses:
            tp = TopicPartition(WIDE, part.index)
            if part.error_code in (OK, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                oracle.acknowledged(tp, batches[tp].values, part.base_offset)
                acknowledged.append(tp)
            elif part.error_code in RETRIABLE:
                lost += 1
            else:
                error = ErrorCode(part.error_code).name
                oracle.violate(f"{self.name} gets {error} for {batches[tp].values[0]} in {tp}")
        oracle.checked["spread"] += bool(lost and acknowledged)
        return acknowledged


class Shuffler(Admin):
    """Lets one broker lead two partitions, and another lead one of them while requests wait for the other one."""

    async def shuffle(self) -> None:
        """Until the run closes."""
        brokers = list(self.world.fleet.brokers)
        while not self.world.closing:
            leader, near, far = self.rng.sample(brokers, 3)
            lost, late = self.rng.sample(PARTITIONS, 2)
            for tp, replicas in ((lost, [leader, near]), (late, [leader, near, far])):
                await self.move(tp, replicas)
                await self.elect(tp)
            await self.pause(0.05, 0.4)
            seconds = self.rng.uniform(0.2, 0.6)
            self._slow((f"b{near}", f"b{leader}"), seconds)
            self._slow((f"b{far}", f"b{leader}"), self.rng.uniform(2.0, 6.0) * seconds)
            await self.pause(0.05, 0.25)
            self.world.note(f"broker {near} is to lead {lost} instead of {leader}, {late} waits for {far}")
            await self.move(lost, [near, leader])
            await self.elect(lost)
            await self.pause(0.2, 1.0)

    def _slow(self, way: tuple[str, str], seconds: float) -> None:
        slow = self.world.network.slow
        slow[way] = round(seconds * 1e6)
        self.loop.call_later(seconds, slow.pop, way, None, context=self.loop.world.context)


def clients(world: World) -> list[tuple[Client, Any]]:
    """Two such producers, two of a partition at a time, and what shuffles, each with its work."""
    producers: list[Producer] = [SpreadingProducer(world, name) for name in ("wa", "wb")]
    producers += [Producer(world, name) for name in ("wc", "wd")]
    shuffler = Shuffler(world, "shuffler")
    return [*((one, one.main(PARTITIONS)) for one in producers), (shuffler, shuffler.shuffle())]
