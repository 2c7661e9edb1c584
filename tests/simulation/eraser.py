"""A client that deletes the first records of the topic that all write to and read (DeleteRecords)."""

from __future__ import annotations

from collections.abc import Sequence

import fleetlog.wire.messages as m
from fleetlog.wire.types import TopicPartition
from tests.simulation.clients import OK, Client

VERSION, TIMEOUT_MS = 2, 1_000


class Eraser(Client):
    async def main(self, partitions: Sequence[TopicPartition]) -> None:
        while not self.world.closing:
            await self.pause(0.2, 1.5)
            await self.erase(self.rng.choice(partitions))

    async def erase(self, tp: TopicPartition, limit: int = 1 << 62, most: int = 12) -> None:
        """Delete up to ``most`` more, below ``limit``, also up to the middle of a batch."""
        oracle = self.world.oracle
        truth = oracle.by_name.get(tp)
        low = oracle.erasing.get(tp, 0)
        if truth is None or min(truth.end, limit) <= low:
            return
        offset = self.rng.randint(low + 1, min(truth.end, low + most, limit))
        oracle.erasing[tp] = offset
        kind = m.DeleteRecordsRequest.DeleteRecordsTopic
        one = kind.DeleteRecordsPartition(version=VERSION, partition_index=tp.partition, offset=offset)
        topics = [kind(version=VERSION, name=tp.topic, partitions=[one])]
        request = m.DeleteRecordsRequest(version=VERSION, topics=topics, timeout_ms=TIMEOUT_MS)
        answer = await self.ask(await self.leader(tp), request, VERSION)
        if answer is None or answer.topics[0].partitions[0].error_code != OK:
            await self.lost_leader(tp)
            return
        oracle.checked["records deleted"] += 1
        oracle.deleted[tp] = max(oracle.deleted.get(tp, 0), answer.topics[0].partitions[0].low_watermark)
