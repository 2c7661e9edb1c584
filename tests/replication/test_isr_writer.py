"""The writer of proposed states, on a real ZooKeeper: topics that are deleted and created again."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.model import PartitionState, TopicPartition
from fleetlog.brokers.replication.isr_writer import IsrWriter
from fleetlog.coordination.registration import incarnation_path
from fleetlog.coordination.store import Store, StoreError
from fleetlog.coordination.tree import ensure
from tests.support.stores import Stores, on_loop
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.zookeeper

T = TopicPartition("t", 0)
THEN = PartitionState((1, 2), 1, 0, (1, 2), 0, 1, 0, (0, 0))
NOW = PartitionState((1, 2), 2, 0, (1, 2), 0, 1, 0, (0, 0))


class Replica:
    """Proposes to leave the in-sync set of the topic that it knows."""

    def __init__(self, topic_id: uuid.UUID) -> None:
        self.tp, self.topic_id, self.state = T, topic_id, THEN
        self.proposed: PartitionState | None = replace(THEN, isr=(1,), isr_incarnations=(0,), partition_epoch=1)
        self.outcome = ""

    def proposal_written(self, state: PartitionState) -> None:
        self.proposed, self.outcome = None, "written"

    def proposal_refused(self, state: PartitionState) -> None:
        self.proposed, self.outcome = None, "refused"


class Known:
    """What the broker knows of topics, and what it has read so far."""

    def __init__(self, topic_id: uuid.UUID) -> None:
        self.topic_id = topic_id
        self.unread: list[uuid.UUID | bool | StoreError] = []

    async def refreshed(self, timeout_ms: int) -> bool:
        await asyncio.sleep(0)
        found = self.unread.pop(0) if self.unread else True
        if isinstance(found, StoreError):
            raise found
        if isinstance(found, uuid.UUID):
            self.topic_id = found
            return True
        return found


async def _fleet(stores: Stores, connect: str) -> Store:
    store = await stores.open(connect)
    for path in znodes.PERSISTENT_PATHS:
        await ensure(store, path)
    await store.create(incarnation_path(2), b"", parents=True)
    await store.create(znodes.state_path(T), znodes.encode_state(NOW), parents=True)
    return store


@on_loop
async def test_what_was_proposed_for_a_deleted_topic_is_not_written_for_the_next_one(connect: str) -> None:
    """Its broker had no session when the topic was deleted, and registers again with what it knew then."""
    async with Stores() as stores:
        store = await _fleet(stores, connect)
        then, now = uuid.uuid4(), uuid.uuid4()
        known, replica = Known(then), Replica(then)
        known.unread = [False, StoreError("no answer"), now]
        writer = IsrWriter(
            store, 2, incarnation=lambda: 0, topic_exists=lambda one: one.topic_id == known.topic_id,
            refreshed=known.refreshed,
        )  # fmt: skip
        assert replica.proposed is not None
        writer.propose(replica, replica.proposed)
        await eventually_async(lambda: replica.outcome, "it has an outcome")
        assert replica.outcome == "refused"
        assert (await store.get(znodes.state_path(T)))[0] == znodes.encode_state(NOW)
        await writer.stop()


@on_loop
async def test_a_broker_reads_once_in_each_registration(connect: str) -> None:
    async with Stores() as stores:
        store = await _fleet(stores, connect)
        known, incarnation = Known(uuid.uuid4()), [0]
        reads: list[int] = []

        async def refreshed(timeout_ms: int) -> bool:
            reads.append(incarnation[0])
            return True

        writer = IsrWriter(
            store, 2, incarnation=lambda: incarnation[0], topic_exists=lambda one: True, refreshed=refreshed
        )
        for version in range(4):
            if version == 2:
                await store.set(incarnation_path(2), b"")
                incarnation[0] += 1
            replica = Replica(known.topic_id)
            assert replica.proposed is not None
            replica.proposed = replace(replica.proposed, partition_epoch=version + 1)
            writer.propose(replica, replica.proposed)
            await eventually_async(lambda replica=replica: replica.outcome, "it has an outcome")
            assert replica.outcome == "written"
        assert reads == [0, 1]
        await writer.stop()
