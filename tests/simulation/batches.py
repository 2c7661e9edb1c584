"""Drivers of a streaming query that write into one sink through tasks (docs/protocol.md).

They die and come back, two at once now and then; what a dead one or its tasks still send may arrive much later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import fleetlog.wire.messages as m
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.clients import OK, RETRIABLE, TRANSACTION, TRANSACTIONAL, Fenced, Producer, produce_body
from tests.simulation.sinks import SINK

QUERY = "query"
TIMEOUT_MS = 2_500
SPARE = "spare"
"""A sink for what would take the other one's fence back."""


class Session(NamedTuple):
    """What BeginBatch gave a driver."""

    producer_id: int
    epoch: int
    fence: int


class Driver(Producer):
    async def main(self, partitions: Sequence[TopicPartition]) -> None:
        self.partitions = partitions
        self.late: list[asyncio.Task[None]] = []
        self.written = 0
        while not self.world.closing:
            try:
                await self.one_batch(await self.begin(SINK))
                await self.pause(*self.world.pace)
            except Fenced:
                self.hang_up()
                await self.pause(0.05, 0.8)
        await asyncio.gather(*self.late)

    def maybe_die(self) -> None:
        if self.rng.random() < self.world.client_crashes:
            raise Fenced

    # ---- requests

    async def insist(self, sink: str, message: Any, attempts: int = 40) -> Any:
        """The coordinator's answer, once it is not a retriable error; Fenced after so many attempts."""
        for _ in range(attempts):
            answer = await self.coordinate(TRANSACTION, sink, message, 0)
            if answer is not None and answer.error_code not in RETRIABLE:
                return answer
            self.forget_coordinator(TRANSACTION, sink)
            await self.pause(0.05, 0.3)
        raise Fenced

    async def begin(self, sink: str) -> Session:
        oracle = self.world.oracle
        floor = oracle.sinks.fence
        answer = await self.insist(sink, m.BeginBatchRequest(version=0, sink_id=sink, timeout_ms=TIMEOUT_MS))
        if answer.error_code != OK:
            oracle.violate(f"{self.name}: BeginBatch {ErrorCode(answer.error_code).name}")
        fence = answer.fence.batch_id if answer.fence is not None else -1
        if sink == SINK:
            oracle.sinks.began(self.name, answer.producer_epoch, fence, floor)
        return Session(answer.producer_id, answer.producer_epoch, fence)

    async def enlist(self, session: Session, count: int) -> list[Any]:  # type: ignore[override]
        answer = await self.insist(
            SINK,
            m.EnlistProducerRequest(
                version=0, sink_id=SINK, producer_id=session.producer_id, producer_epoch=session.epoch, count=count
            ),
        )
        if answer.error_code != OK:
            raise Fenced
        return list(answer.members)

    async def commit(self, session: Session, batch_id: int, winners: Sequence[Any], transaction: Any) -> None:
        """Ask until it is answered, or give up after a while: the next driver finds out from the fence."""
        oracle = self.world.oracle
        kind = m.CommitBatchRequest.BatchMember
        members = [kind(version=0, producer_id=w.producer_id, producer_epoch=w.producer_epoch) for w in winners]
        request = m.CommitBatchRequest(
            version=0, sink_id=SINK, producer_id=session.producer_id, producer_epoch=session.epoch, query_id=QUERY,
            batch_id=batch_id, digest=str(batch_id), winners=members,
        )  # fmt: skip
        for _ in range(self.rng.choice((1, 20))):
            late = oracle.sinks.committing(transaction)
            answer = await self.coordinate(TRANSACTION, SINK, request, 0)
            if answer is not None and answer.error_code == OK:
                oracle.sinks.committed(self.name, transaction, answer.already_committed, late)
                return
            if answer is not None and answer.error_code == ErrorCode.FENCE_CONFLICT:
                oracle.violate(f"{self.name}: batch {batch_id} after {session.fence}: {answer.error_message}")
            if answer is not None and answer.error_code not in RETRIABLE:
                raise Fenced
            self.forget_coordinator(TRANSACTION, SINK)
            await self.pause(0.02, 0.2)
        raise Fenced

    # ---- a batch

    async def one_batch(self, session: Session) -> None:
        """One batch from its first record to its end; the batch before once more where the driver has forgotten it."""
        oracle, rng = self.world.oracle, self.rng
        if rng.random() < 0.05:
            await self.reset()
        batch_id = session.fence + 1 if session.fence < 0 or rng.random() < 0.85 else session.fence
        self.maybe_die()
        members = await self.enlist(session, rng.randint(1, 3))
        loser = (await self.enlist(session, 1))[0] if rng.random() < 0.3 else None
        transaction = oracle.sinks.attempt(batch_id, session.epoch)
        lost = f"lost in {transaction[0]}", transaction[1]
        if loser is not None:
            await self.task(loser, lost, [rng.choice(self.partitions)])
        for member in members:
            await self.task(member, transaction, rng.sample(self.partitions, rng.randint(1, len(self.partitions))))
            self.maybe_die()
        if rng.random() < 0.2:
            await self.insist(SINK, m.HeartbeatBatchRequest(
                version=0, sink_id=SINK, producer_id=session.producer_id, producer_epoch=session.epoch))  # fmt: skip
        roll = rng.random()
        if roll < 0.1:
            await self.abort(session, transaction)
        elif roll < 0.3:
            self.late.append(self.run(self.zombie(session, batch_id, members, transaction)))
            raise Fenced
        else:
            await self.commit(session, batch_id, members, transaction)
        if rng.random() < 0.2:
            late = f"late after {transaction[0]}", transaction[1]
            member = rng.choice(members)
            oracle.sinks.continues_late(late, transaction, member.producer_id)
            self.late.append(self.run(self.late_task(member, late)))

    async def abort(self, session: Session, transaction: Any) -> None:
        answer = await self.insist(SINK, m.AbortBatchRequest(
            version=0, sink_id=SINK, producer_id=session.producer_id, producer_epoch=session.epoch))  # fmt: skip
        if answer.error_code == OK:
            self.world.oracle.ended(transaction, False)

    async def zombie(self, session: Session, batch_id: int, members: Sequence[Any], transaction: Any) -> None:
        """What a driver still does that was stopped for a while."""
        await self.pause(0.1, 3.0)
        try:
            await self.commit(session, batch_id, members, transaction)
        except Fenced:
            pass

    async def late_task(self, member: Any, transaction: Any) -> None:
        """A task goes on after its batch is over."""
        await self.pause(0.0, 1.0)
        try:
            await self.task(member, transaction, [self.rng.choice(self.partitions)], fresh=False)
        except Fenced:
            pass

    async def task(
        self, member: Any, transaction: Any, partitions: Sequence[TopicPartition], *, fresh: bool = True
    ) -> None:
        """Write into these partitions as a member. Once it is over it does not know its sequences any more."""
        oracle = self.world.oracle
        for tp in partitions:
            self.written += 1
            values = [f"{SINK}/{self.name}.{self.written}.{i}" for i in range(self.rng.randint(1, 2))]
            oracle.sending(tp, values, transaction)
            sequence = 0 if fresh else self.rng.randint(0, 3)
            data = self.batch(values, member.producer_id, member.producer_epoch, sequence, TRANSACTIONAL)
            body = produce_body(SINK, -1, 800, tp, data)
            for _ in range(20):
                answer = await self.produce(tp, body)
                if answer is not None and answer.error_code not in RETRIABLE:
                    break
                await self.lost_leader(tp)
            else:
                raise Fenced
            if answer.error_code != OK:
                raise Fenced
            if fresh:
                oracle.acknowledged(tp, values, answer.base_offset)
                if transaction in oracle.sinks:
                    oracle.sinks.wrote(transaction, tp, member.producer_id, answer.base_offset)

    async def reset(self) -> None:
        """An operator looks at the sinks and takes the fence of one away."""
        session = await self.begin(SPARE)
        await self.insist(SPARE, m.CommitBatchRequest(
            version=0, sink_id=SPARE, producer_id=session.producer_id, producer_epoch=session.epoch, query_id=QUERY,
            batch_id=max(0, session.fence), digest="", winners=[]))  # fmt: skip
        await self.insist(SPARE, m.DescribeSinksRequest(version=0, sink_ids=self.rng.choice((None, [SPARE, SINK]))))
        await self.insist(SPARE, m.ResetSinkRequest(
            version=0, sink_id=SPARE, expected_query_id=QUERY, query_id=None, batch_id=-1))  # fmt: skip
