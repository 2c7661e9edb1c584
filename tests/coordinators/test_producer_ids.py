"""Blocks from a store whose answers get lost: no producer id is ever assigned twice."""

from __future__ import annotations

import asyncio
import random

import pytest

from fleetlog.brokers.coordinators.transactions import coordinator
from fleetlog.brokers.coordinators.transactions.coordinator import ProducerIdAllocator
from fleetlog.brokers.metadata.marks import ClusterMarks
from fleetlog.brokers.metadata.tree_guard import TreeGuard
from fleetlog.txn.producer_ids import Block, decode_block
from tests.support.one_znode import OneZnode


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "FIRST_PAUSE_S", 0)
    monkeypatch.setattr(coordinator, "LAST_PAUSE_S", 0)


async def take(allocator: ProducerIdAllocator) -> int | None:
    future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
    allocator.when_ready(future.set_result)
    return await future


def test_ids_come_from_blocks_of_a_thousand() -> None:
    async def run() -> None:
        store = OneZnode()
        one, two = (ProducerIdAllocator(store, n, lambda n=n: f"{n}-1") for n in (1, 2))  # type: ignore[arg-type,misc]
        assert one.take() is None, "none at hand yet, but on its way"
        assert [await take(one) for _ in range(3)] == [0, 1, 2]
        assert await take(two) == 1000
        assert [await take(one) for _ in range(1_000)][-3:] == [2000, 2001, 2002]
        assert decode_block(store.data or b"").broker_id == 1
        await one.close()
        await two.close()

    asyncio.run(run())


def test_a_lost_answer_is_settled_by_reading() -> None:
    async def run() -> None:
        for mood, first in (("lost, done", 0), ("lost, not done", 0)):
            moods = iter([mood, "ok", "ok"])
            store = OneZnode(lambda moods=moods: next(moods))
            allocator = ProducerIdAllocator(store, 1, lambda: "1-1")  # type: ignore[arg-type]
            assert await take(allocator) == first, mood
            assert store.version == 0, f"{mood}: the block is used, not thrown away"
            assert store.syncs == 1

    asyncio.run(run())


def test_a_block_of_a_previous_incarnation_is_not_used() -> None:
    async def run() -> None:
        store = OneZnode()
        before = ProducerIdAllocator(store, 1, lambda: "1-1")  # type: ignore[arg-type]
        await take(before)
        after = ProducerIdAllocator(store, 1, lambda: "1-2")  # type: ignore[arg-type]
        after._unresolved["1-2-1"] = Block(0, 999)
        assert await take(after) == 1000

    asyncio.run(run())


def test_a_block_of_a_previous_process_with_the_same_stamp_is_not_used() -> None:
    """Neither process had registered: their stamps are the same."""

    async def run() -> None:
        store = OneZnode()
        before = ProducerIdAllocator(store, 1, lambda: "1--1")  # type: ignore[arg-type]
        assert await take(before) == 0
        moods = iter(["lost, not done", "ok", "ok", "ok"])
        store.mood = lambda: next(moods)
        after = ProducerIdAllocator(store, 1, lambda: "1--1")  # type: ignore[arg-type]
        assert await take(after) == 1000

    asyncio.run(run())


def test_ids_are_above_those_that_were_seen_though_the_tree_does_not_know_them() -> None:
    """As after a repair of an older copy; and none are given while it is not repaired."""

    async def run() -> None:
        store = OneZnode()
        guard = TreeGuard(store, 1, ClusterMarks(producer_id=5_123))  # type: ignore[arg-type]
        allocator = ProducerIdAllocator(store, 1, lambda: "1-1", guard)  # type: ignore[arg-type]
        assert await take(allocator) == 5_124
        assert guard.marks.producer_id == 6_123, "seen by what is saved beside the logs"
        guard.refuse("planted")
        rest = [await take(allocator) for _ in range(999)]
        assert rest[-1] == 6_123
        late = asyncio.create_task(take(allocator))
        await asyncio.sleep(0.01)
        assert not late.done()
        guard.behind = None
        assert await late == 6_124
        await allocator.close()

    asyncio.run(run())


def test_a_znode_that_is_no_block_gives_no_id() -> None:
    async def run() -> None:
        store = OneZnode()
        store.data, store.version = b"what?", 0
        assert await take(ProducerIdAllocator(store, 1, lambda: "1-1")) is None  # type: ignore[arg-type]

    asyncio.run(run())


def test_waiting_callbacks_get_none_at_the_end() -> None:
    async def run() -> None:
        store = OneZnode(lambda: "expired")
        allocator = ProducerIdAllocator(store, 1, lambda: "1-1")  # type: ignore[arg-type]
        answers: list[int | None] = []
        allocator.when_ready(answers.append)
        await asyncio.sleep(0.01)
        assert answers == []
        await allocator.close()
        assert answers == [None]

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(20))
def test_no_id_twice_whatever_is_lost(seed: int) -> None:
    rng = random.Random(seed)

    async def run() -> None:
        store = OneZnode(lambda: rng.choice(["ok", "ok", "lost, done", "lost, not done", "expired"]))
        allocators = [ProducerIdAllocator(store, n, lambda n=n: f"{n}-1") for n in range(3)]  # type: ignore[arg-type,misc]

        async def worker(allocator: ProducerIdAllocator) -> list[int | None]:
            return [await take(allocator) for _ in range(1_200)]

        found = [number for ids in await asyncio.gather(*map(worker, allocators)) for number in ids]
        assert None not in found
        assert len(set(found)) == len(found) == 3_600
        for allocator in allocators:
            await allocator.close()

    asyncio.run(run())
