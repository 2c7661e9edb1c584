"""A client that looks at everything and tidies up: what tools of people ask for, while faults happen.

No answer may say UNKNOWN_SERVER_ERROR, which is what a broker says of its own bugs. Records that were deleted
(DeleteRecords) never come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, encode_batch
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.admin import Admin
from tests.simulation.clients import GROUP, OK, PRODUCE, PRODUCE_VERSION, TRANSACTION, produce_body

SIMPLE = "simple"
"""A group without members: offsets are committed by any client, and deleted."""
SCRATCH = TopicPartition("scratch", 0)


class Inspector(Admin):
    async def main(self, topic: str, partitions: int) -> None:
        self.parts = [TopicPartition(topic, index) for index in range(partitions)]
        self.low = self.commits = 0
        await self.create(SCRATCH.topic, 1, 3)
        looks: list[Callable[[], Any]] = [
            self.transactions, self.producers, self.groups, self.simple_group, self.moves, self.delete_records,
            self.delete_records, self.simple_group,
        ]  # fmt: skip
        while not self.world.closing:
            await self.rng.choice(looks)()
            await self.pause(0.05, 0.4)

    def checked(self, what: str, error: int) -> None:
        self.world.oracle.checked["answers to tools"] += 1
        if error == ErrorCode.UNKNOWN_SERVER_ERROR:
            self.world.oracle.violate(f"{self.name}: {what}: UNKNOWN_SERVER_ERROR")

    async def transactions(self) -> None:
        """All transactions that a broker coordinates, and some by name."""
        answer = await self.ask(self.any_broker(), m.ListTransactionsRequest(
            version=1, state_filters=[], producer_id_filters=[], duration_filter=-1), 1)  # fmt: skip
        if answer is not None:
            self.checked("ListTransactions", answer.error_code)
        names = ["sink", *(name for name in self.world.cast if name[0] in "xy")]
        answer = await self.coordinate(TRANSACTION, names[-1], m.DescribeTransactionsRequest(
            version=0, transactional_ids=names), 0)  # fmt: skip
        for described in answer.transaction_states if answer is not None else ():
            self.checked(f"DescribeTransactions of {described.transactional_id}", described.error_code)
        self.forget_coordinator(TRANSACTION, names[-1])

    async def producers(self) -> None:
        """The producers of a partition."""
        tp = self.rng.choice(self.parts)
        topic = m.DescribeProducersRequest.TopicRequest(version=0, name=tp.topic, partition_indexes=[tp.partition])
        answer = await self.ask(await self.leader(tp), m.DescribeProducersRequest(version=0, topics=[topic]), 0)
        if answer is not None:
            self.checked(f"DescribeProducers of {tp}", answer.topics[0].partitions[0].error_code)
        await self.lost_leader(tp)

    async def groups(self) -> None:
        """All groups, and some by name."""
        answer = await self.ask(self.any_broker(), m.ListGroupsRequest(version=4, states_filter=[]), 4)
        if answer is not None:
            self.checked("ListGroups", answer.error_code)
        names = ["g", SIMPLE]
        answer = await self.coordinate(GROUP, "g", m.DescribeGroupsRequest(version=5, groups=names), 5)
        for described in answer.groups if answer is not None else ():
            self.checked(f"DescribeGroups of {described.group_id}", described.error_code)
        self.forget_coordinator(GROUP, "g")

    async def simple_group(self) -> None:
        """Commit without being a member, and forget it again. Whether a late copy is done after that is unknown."""
        self.commits += 1
        tp = self.rng.choice(self.parts)
        topic = m.OffsetCommitRequest.OffsetCommitRequestTopic
        part = topic.OffsetCommitRequestPartition(
            version=8, partition_index=tp.partition, committed_offset=self.commits, committed_leader_epoch=-1,
            committed_metadata=None,
        )  # fmt: skip
        request = m.OffsetCommitRequest(
            version=8, group_id=SIMPLE, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            topics=[topic(version=8, name=tp.topic, partitions=[part])],
        )  # fmt: skip
        await self.coordinate(GROUP, SIMPLE, request, 8)
        if self.rng.random() < 0.5:
            kind = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
            one = kind.OffsetDeleteRequestPartition(version=0, partition_index=tp.partition)
            answer = await self.coordinate(GROUP, SIMPLE, m.OffsetDeleteRequest(
                version=0, group_id=SIMPLE, topics=[kind(version=0, name=tp.topic, partitions=[one])]), 0)  # fmt: skip
            if answer is not None:
                self.checked("OffsetDelete", answer.error_code)
        elif self.rng.random() < 0.5:
            answer = await self.coordinate(GROUP, SIMPLE, m.DeleteGroupsRequest(version=2, groups_names=[SIMPLE]), 2)
            if answer is not None:
                self.checked("DeleteGroups", answer.results[0].error_code)
        else:
            groups = [m.OffsetFetchRequest.OffsetFetchRequestGroup(version=8, group_id=SIMPLE, topics=None)]
            fetch = m.OffsetFetchRequest(version=8, groups=groups, require_stable=False)
            answer = await self.coordinate(GROUP, SIMPLE, fetch, 8)
            if answer is not None:
                self.checked("OffsetFetch", answer.groups[0].error_code)
        self.forget_coordinator(GROUP, SIMPLE)

    async def moves(self) -> None:
        """What is being moved."""
        answer = await self.command(m.ListPartitionReassignmentsRequest(version=0, timeout_ms=1_000, topics=None), 0, 3)
        if answer is not None:
            self.checked("ListPartitionReassignments", answer.error_code)

    async def delete_records(self) -> None:
        """Write a few records and take the first ones away; they must stay away."""
        leader = await self.leader(SCRATCH)
        record = Record(-1, self.world.wall_ms(), b"k", b"scratch", ())
        data = encode_batch([record] * 3, attributes=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)
        body = produce_body(None, 1, 800, SCRATCH, data)
        await self.exchange(leader, PRODUCE, PRODUCE_VERSION, body, 1.5)
        kind = m.DeleteRecordsRequest.DeleteRecordsTopic
        one = kind.DeleteRecordsPartition(version=2, partition_index=0, offset=self.rng.choice((-1, self.low + 1)))
        topics = [kind(version=2, name=SCRATCH.topic, partitions=[one])]
        answer = await self.ask(leader, m.DeleteRecordsRequest(version=2, topics=topics, timeout_ms=1_000), 2)
        if answer is not None:
            found = answer.topics[0].partitions[0]
            self.checked("DeleteRecords", found.error_code)
            if found.error_code == OK:
                self.low = max(self.low, found.low_watermark)
                self.world.oracle.deleted[SCRATCH] = self.low
        await self.lost_leader(SCRATCH)
