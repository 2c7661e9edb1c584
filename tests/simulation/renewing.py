"""A topic that is deleted and created again under its name, while clients use it by its id, as new ones do (KIP-516).

Of the deleted topic nothing may be left in the new one: no record, no producer's state, no committed offset. What is
acknowledged for the new topic must stay, also by brokers that learn late of the deletion, or of the creation. A
transaction may have records in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import fleetlog.wire.messages as m
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.admin import TIMEOUT_MS, Admin
from tests.simulation.clients import (
    OK,
    RETRIABLE,
    TRANSACTIONAL,
    Client,
    Consumer,
    Fenced,
    Producer,
    TransactionalProducer,
    commit_offset,
    fetch_offset,
    produce_body,
)
from tests.simulation.lives import Life, Lives

if TYPE_CHECKING:
    from tests.simulation.world import World

AGAIN = "again"
PARTITIONS = [TopicPartition(AGAIN, index) for index in range(2)]
BY_ID = 13
"""From this version on Produce names topics by their ids."""


class Renewer(Admin):
    """Creates the topic, lets it live for a while and deletes it, again and again; the last one stays."""

    def __init__(self, world: World, name: str, lives: Lives) -> None:
        super().__init__(world, name)
        self.lives = lives

    async def renew(self) -> None:
        """Until the run closes."""
        while True:
            life = await self.begin()
            await self.pause(0.1, 1.2)
            if self.world.closing:
                return
            if self.rng.random() < 0.3:
                await self.move(self.rng.choice(PARTITIONS), self.rng.sample(list(self.world.fleet.brokers), 3))
            await self.end(life)
            await self.pause(0.0, 0.1)

    async def begin(self) -> Life:
        """Create it, and wait until a broker shows it."""
        await self.refresh()
        while (topic_id := self.ids.get(AGAIN)) in self.lives.ids or topic_id is None:
            await self.command(self.creation(AGAIN, len(PARTITIONS), 3, {"min.insync.replicas": "2"}), 5, 1)
            await self.refresh()
        life = self.lives.begin(topic_id)
        self.world.note(f"operator has created {AGAIN} for the {life.number}. time: {topic_id}")
        return life

    async def end(self, life: Life) -> None:
        """Delete it by its id: a late copy of the request finds nothing."""
        self.world.note(f"operator deletes {AGAIN} {life.topic_id}")
        self.lives.end(life)
        topic = m.DeleteTopicsRequest.DeleteTopicState(version=6, name=None, topic_id=life.topic_id)
        request = m.DeleteTopicsRequest(version=6, topics=[topic], timeout_ms=TIMEOUT_MS)
        while True:
            answer = await self.command(request, 6)
            if answer is not None and answer.responses[0].error_code in (OK, ErrorCode.UNKNOWN_TOPIC_ID):
                return
            await self.pause(0.05, 0.3)


async def push(client: Producer, life: Life, tp: TopicPartition, body: bytes, values: Sequence[str]) -> bool:
    """Send a batch until it is acknowledged, or its topic's end was asked for; whether it is acknowledged."""
    while not life.over:
        answer = await client.produce(tp, body, BY_ID)
        if life.over:
            break
        if answer is not None and answer.error_code in (OK, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            client.world.oracle.acknowledged(tp, values, answer.base_offset)
            return True
        if answer is not None and answer.error_code not in RETRIABLE:
            raise Refused(answer.error_code)
        await client.lost_leader(tp)
    return False


class Refused(Exception):
    """With this error, which is not one to try again."""


class RenewedWriter(Producer):
    """An idempotent producer of one id. Its sequences begin anew in every life of the topic."""

    async def write(self, lives: Lives) -> None:
        """Until the run closes."""
        producer_id, made = await self.new_producer_id(), 0
        sequences: dict[tuple[Life, TopicPartition], int] = {}
        while not self.world.closing:
            life, tp = lives.now, self.rng.choice(PARTITIONS)
            if life is not None:
                values = [f"{self.name}-{life.number}.{made + i}" for i in range(self.rng.randint(1, 4))]
                made += len(values)
                sequence = sequences.get((life, tp), 0)
                sequences[life, tp] = sequence + len(values)
                self.world.oracle.sending(tp, values)
                data = self.batch(values, producer_id, 0, sequence)
                try:
                    await push(self, life, tp, produce_body(None, -1, 800, tp, data, life.topic_id), values)
                except Refused as refused:
                    error = ErrorCode(refused.args[0]).name
                    self.world.oracle.violate(f"{self.name} gets {error} for {values[0]} in {tp}")
            await self.pause(0.0, self.world.pace[1] / 2)


class RenewedTransactionalProducer(TransactionalProducer):
    """Transactions (protocol 2) over this topic and another one. They go on when the topic is another one."""

    lives: Lives

    async def transaction(self, sequences: dict[TopicPartition, int], producer_id: int, epoch: int) -> tuple[int, int]:
        """One transaction; returns the next one's producer id and epoch."""
        oracle = self.world.oracle
        self.transactions += 1
        number, transaction = self.transactions, (self.name, self.transactions)
        mine: dict[tuple[Life, TopicPartition], int] = {}
        oracle.sending(self.source, [], transaction)
        for step in range(self.rng.randint(1, 6)):
            tp, life = self.rng.choice([*PARTITIONS, self.source]), self.lives.now
            values = [f"{self.name}-{number}.{step}.{i}" for i in range(self.rng.randint(1, 3))]
            if tp is self.source:
                oracle.sending(tp, values, transaction)
                data = self.batch(values, producer_id, epoch, sequences[tp], TRANSACTIONAL)
                sequences[tp] += len(values)
                await self.add(tp, data, values)
            elif life is not None:
                oracle.sending(tp, values, transaction)
                data = self.batch(values, producer_id, epoch, mine.get((life, tp), 0), TRANSACTIONAL)
                mine[life, tp] = mine.get((life, tp), 0) + len(values)
                try:
                    await push(self, life, tp, produce_body(self.name, -1, 800, tp, data, life.topic_id), values)
                except Refused:
                    raise Fenced from None
            await self.pause(0.0, 0.3)
            if self.rng.random() < self.world.client_crashes:
                raise Fenced
        return await self.end(transaction, self.rng.random() < 0.8, producer_id, epoch)


class RenewedReader(Consumer):
    """Reads one partition of each life from its start."""

    async def read(self, lives: Lives, tp: TopicPartition, committed: bool) -> None:
        """Until the run closes."""
        last, position = None, 0
        while not self.world.closing:
            await self.pause(*self.world.pace)
            life = lives.now
            if life is None:
                continue
            if life is not last:
                last, position = life, 0
            broker = await self.leader(tp)
            if self.ids.get(AGAIN) != life.topic_id:
                await self.refresh()
                continue
            part = await self.fetch(broker, tp, position, committed=committed, max_wait_ms=300)
            if life.over:
                continue
            if part is None or part.error_code in RETRIABLE:
                await self.lost_leader(tp)
                continue
            position = await self.took(tp, position, part, committed, None)


class Committer(Client):
    """Commits offsets as a client without a group's membership does, each once, and asks for them.

    When it does not know what became of a commit it goes on as another group: the request may arrive later.
    """

    async def commit(self, lives: Lives) -> None:
        """Until the run closes."""
        group, number = 0, 0
        while not self.world.closing:
            await self.pause(0.0, self.world.pace[1] / 2)
            life, tp, name = lives.now, self.rng.choice(PARTITIONS), f"{self.name}-{group}"
            if life is None:
                continue
            if self.rng.random() < 0.5:
                offset = await fetch_offset(self, name, tp, stable=True)
                if offset is not None and not life.over:
                    lives.told(life, name, tp, offset)
                continue
            number += 1
            if await commit_offset(self, name, tp, number):
                lives.committed(life, name, tp, number)
            else:
                group += 1


def clients(world: World) -> list[tuple[Client, Any]]:
    """What renews the topic, and its users, each with its work."""
    lives = Lives(world.oracle, AGAIN)
    renewer, writer = Renewer(world, "renewer", lives), RenewedWriter(world, "na")
    transactional, committer = RenewedTransactionalProducer(world, "nt"), Committer(world, "nc")
    transactional.lives = lives
    reader = RenewedReader(world, "nr")
    source = [TopicPartition("t", 0)]
    return [
        (renewer, renewer.renew()), (writer, writer.write(lives)), (transactional, transactional.main(source)),
        (committer, committer.commit(lives)), (reader, reader.read(lives, PARTITIONS[0], True)),
    ]  # fmt: skip
