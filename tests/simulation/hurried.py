"""Transactional producers in a hurry: they end, begin and abort as fast as they are answered, and give answers up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import fleetlog.wire.messages as m
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.clients import (
    OK,
    RETRIABLE,
    TRANSACTION,
    TRANSACTIONAL,
    Fenced,
    OldTransactionalProducer,
    TransactionalProducer,
    produce_body,
)

LONG_MS = 60_000
"""A transaction timeout that no history reaches, unless a coordinator's clock jumps."""
IN_FLIGHT = 3
GAP = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class HurriedProducer(TransactionalProducer):
    """Protocol 2, without a pause: several batches in flight, transactions with nothing in them, aborts that wait
    for no answer. Nothing else uses its id and it always asks again, so nothing may ever refuse it for good.
    """

    async def main(self, partitions: Sequence[TopicPartition]) -> None:
        self.source = partitions[0]
        self.group = f"copies-{self.name}"
        self.partitions = list(partitions)
        self.transactions = 0
        self.open: tuple[str, int] | None = None
        self.producer = await self.begin_anew()
        while not self.world.closing:
            await self.one()
            if self.rng.random() < 0.1:
                await self.pause(*self.world.pace)

    async def begin_anew(self) -> tuple[int, int]:
        request = m.InitProducerIdRequest(
            version=4, transactional_id=self.name, transaction_timeout_ms=LONG_MS, producer_id=-1, producer_epoch=-1
        )
        answer = await self.insist_on(request, 4)
        return answer.producer_id, answer.producer_epoch

    async def insist_on(self, request: Any, version: int) -> Any:
        """The coordinator's good answer, however long it takes."""
        while True:
            answer = await self.coordinate(TRANSACTION, self.name, request, version)
            if answer is not None and answer.error_code == OK:
                return answer
            if answer is not None:
                self.may_continue(answer.error_code, type(request).__name__)
            self.forget_coordinator(TRANSACTION, self.name)
            await self.pause(0.01, 0.1)

    def may_continue(self, error: int, what: str) -> None:
        """Only what passes by itself may be told, as long as no clock jumps over the timeout."""
        if error in RETRIABLE:
            return
        if not self.world.faults.fired["clock"]:
            self.world.oracle.violate(f"{self.name} {self.producer} is refused: {what} {ErrorCode(error).name}")
        raise Fenced

    async def one(self) -> None:
        """One transaction; which kind, the seed says."""
        self.transactions += 1
        transaction = self.open = self.name, self.transactions
        kind = self.rng.choice(("commit", "commit", "abort", "abort at once", "abort nothing"))
        sending: list[asyncio.Task[None]] = []
        try:
            if kind != "abort nothing":
                chosen = self.rng.sample(self.partitions, self.rng.randint(1, len(self.partitions)))
                sending = [self.run(self.send(tp, transaction)) for tp in chosen]
                if kind == "abort at once":
                    await self.pause(0.0, 0.01)
                else:
                    await asyncio.gather(*sending)
            self.open = None
            self.world.oracle.ending(transaction, kind == "commit")
            request = m.EndTxnRequest(
                version=5, transactional_id=self.name, producer_id=self.producer[0], producer_epoch=self.producer[1],
                committed=kind == "commit",
            )  # fmt: skip
            answer = await self.insist_on(request, 5)
            self.world.oracle.ended(transaction, kind == "commit")
            self.producer = answer.producer_id, answer.producer_epoch
        except Fenced:
            self.producer = await self.begin_anew()
            self.world.oracle.initialised(self.name)
        for task in sending:
            task.cancel()  # a request that is under way stays so, and comes with an epoch that is over

    async def send(self, tp: TopicPartition, transaction: tuple[str, int]) -> None:
        """Several batches to one partition, all in flight at once; what is refused for now goes again in order."""
        producer, number = self.producer, self.transactions
        left: list[tuple[list[str], bytes]] = []
        sequence = 0
        for step in range(self.rng.randint(1, IN_FLIGHT)):
            values = [f"{self.name}-{number}.{tp.partition}.{step}.{i}" for i in range(self.rng.randint(1, 2))]
            self.world.oracle.sending(tp, values, transaction)
            data = self.batch(values, *producer, sequence, TRANSACTIONAL)
            left.append((values, produce_body(self.name, -1, 800, tp, data)))
            sequence += len(values)
        while left:
            await self.leader(tp)  # known, or they would overtake each other while they look for it
            answers = await asyncio.gather(*(self.run(self.produce(tp, body)) for _, body in left))
            refused = False
            for answer in answers:
                error = None if answer is None else answer.error_code
                if error in (OK, ErrorCode.DUPLICATE_SEQUENCE_NUMBER) and not refused:
                    values, _ = left.pop(0)
                    self.world.oracle.acknowledged(tp, values, answer.base_offset)
                    continue
                if error is not None and error != OK and not (refused and error == GAP) and self.open == transaction:
                    self.may_continue(error, f"{left[0][0][0]} in {tp}")
                refused = True
            if left:
                await self.lost_leader(tp)


class ForgetfulProducer(OldTransactionalProducer):
    """Protocol 1 as librdkafka speaks it: an answer that is lost is given up with its transaction, and the sequences of
    what is not acknowledged are used again in the same epoch.

    That is sound only where no copy is still under way (KAFKA-17754), so this one looks into the network first.
    """

    async def transaction(self, sequences: dict[TopicPartition, int], producer_id: int, epoch: int) -> tuple[int, int]:
        oracle, rng = self.world.oracle, self.rng
        self.transactions += 1
        transaction = self.name, self.transactions
        self.joined.clear()
        for step in range(rng.randint(1, 3)):
            tp = rng.choice(list(sequences))
            values = [f"{self.name}-{self.transactions}.{step}.{i}" for i in range(rng.choice((1, 1, 2)))]
            oracle.sending(tp, values, transaction)
            data = self.batch(values, producer_id, epoch, sequences[tp], TRANSACTIONAL)
            await self.enlist(tp, producer_id, epoch)
            if rng.random() < 0.4:
                if not await self.hears(tp, data, values):
                    oracle.checked["given up"] += 1
                    return await self.end(transaction, False, producer_id, epoch)
            else:
                await self.add(tp, data, values)
            sequences[tp] += len(values)
        return await self.end(transaction, rng.random() < 0.8, producer_id, epoch)

    async def hears(self, tp: TopicPartition, data: bytes, values: Sequence[str]) -> bool:
        """Send once with little patience; False when no answer came and nothing of it is under way any more."""
        broker = await self.leader(tp)
        body = produce_body(self.name, -1, 800, tp, data)
        raw = await self.exchange(broker, 0, self.produce_version, body, self.rng.choice((0.002, 0.01, 0.05)))
        if raw is not None:
            part = m.decode_response(0, self.produce_version, raw).responses[0].partition_responses[0]
            if part.error_code in (OK, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self.world.oracle.acknowledged(tp, values, part.base_offset)
                return True
            raise Fenced
        wire = self._wires[broker]
        for _ in range(50):
            if wire.end is not None and wire.end.closed:
                return False
            await self.pause(0.01, 0.02)
        raise Fenced
