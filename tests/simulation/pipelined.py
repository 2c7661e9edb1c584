"""An idempotent producer with up to five batches in flight, as stock ones have: they arrive and fail together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import fleetlog.wire.messages as m
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.clients import OK, PRODUCE, PRODUCE_VERSION, RETRIABLE, NewBatch, Producer, produce_body
from tests.simulation.network import Broken

IN_FLIGHT = 5
TICK_S = 0.1
"""Some rounds of all such producers begin at the same moments, so that their requests come to a broker together."""


class PipelinedProducer(Producer):
    """Sends a round of batches at once, and those that failed again, from the first one on, until none is left."""

    async def main(self, partitions: Sequence[TopicPartition]) -> None:
        await self.prepare(partitions)
        while not self.world.closing:
            round_of: dict[TopicPartition, list[NewBatch]] = {}
            for _ in range(self.rng.randint(1, IN_FLIGHT)):
                tp = self.rng.choice(partitions)
                round_of.setdefault(tp, []).append(self.next_batch(tp, 3))
            await asyncio.gather(*(self.push(tp, batches) for tp, batches in round_of.items()))
            await self.pause(0.0, self.world.pace[1])
            if self.rng.random() < 0.7:
                await asyncio.sleep(TICK_S - self.loop.time() % TICK_S)

    async def push(self, tp: TopicPartition, left: list[NewBatch]) -> None:
        """Send them all until all are acknowledged. None of them has a reason to be out of order: what is behind a
        batch that was refused is refused as that one was.
        """
        while left:
            wire = self.wire(await self.leader(tp))
            patience = self.loop.call_later(1.5, wire.close, "no answer within 1.5 s")
            flights = [
                (batch, wire.send(PRODUCE, PRODUCE_VERSION, produce_body(None, -1, 800, tp, batch.data)))
                for batch in left
            ]
            failed: list[NewBatch] = []
            for batch, flight in flights:
                error = await self.outcome(tp, batch, flight)
                if error in (OK, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    self.world.oracle.checked["in flight together"] += len(flights) > 1
                    continue
                if error is not None and error not in RETRIABLE:
                    self.world.oracle.violate(
                        f"{self.name} gets {error.name} for sequence {batch.sequence} in {tp}, in flight"
                        f" {[one.sequence for one in left]}, failed before {[one.sequence for one in failed]}"
                    )
                    return
                failed.append(batch)
            patience.cancel()
            left = failed
            if left:
                await self.lost_leader(tp)

    async def outcome(
        self, tp: TopicPartition, batch: NewBatch, flight: asyncio.Future[memoryview]
    ) -> ErrorCode | None:
        """What became of it; None if that is not known."""
        try:
            raw = await flight
        except Broken:
            return None
        answer = m.decode_response(PRODUCE, PRODUCE_VERSION, raw).responses[0].partition_responses[0]
        if answer.error_code in (OK, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self.world.oracle.acknowledged(tp, batch.values, answer.base_offset)
        return ErrorCode(answer.error_code)
