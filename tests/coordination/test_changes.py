"""The change log: numbers without gaps, and pruning. The reader is the cluster view: tests/metadata/test_cache.py."""

from __future__ import annotations

import asyncio

import pytest

from fleetlog.coordination.changes import CHANGES, Pruner, entry, path_of, sequence_of
from fleetlog.coordination.election import ControllerMoved, Leadership, campaign
from fleetlog.coordination.store import Check, Create, MultiFailed
from fleetlog.coordination.tree import adopt
from fleetlog.coordination.zookeeper import ZookeeperStore
from tests.support.stores import Stores, on_loop


class Writer:
    """Writes state and log entry in one multi."""

    def __init__(self, store: ZookeeperStore) -> None:
        self.store = store
        self.written = 0

    async def write(self, count: int = 1) -> list[int]:
        sequences = []
        for _ in range(count):
            data = str(self.written).encode()
            results = await self.store.multi([Create(f"/state/{self.written}", data), entry(data)])
            sequences.append(sequence_of(results[1].path))
            self.written += 1
        return sequences


async def prepared(stores: Stores, connect: str) -> tuple[Writer, ZookeeperStore]:
    writing, reading = await stores.open(connect), await stores.open(connect)
    await adopt(writing, lambda: "c", ["/state"])
    return Writer(writing), reading


async def lead(store: ZookeeperStore) -> Leadership:
    outcome = await campaign(store, 1, lambda: 0)
    assert outcome.leadership is not None
    return outcome.leadership


@pytest.mark.zookeeper
@on_loop
async def test_numbers_have_no_gaps_across_deletes_and_failed_multis(connect: str) -> None:
    async with Stores() as stores:
        writer, _ = await prepared(stores, connect)
        seen = await writer.write(5)
        await writer.store.delete(path_of(seen[0]))
        await writer.store.delete(path_of(seen[4]))
        for _ in range(3):
            with pytest.raises(MultiFailed):
                await writer.store.multi([entry(b"x"), Check("/state", 99)])
        seen += await writer.write(5)
        results = await asyncio.gather(
            *(writer.store.multi([entry(str(i).encode()), Check("/state", 0)]) for i in range(100))
        )
        seen += [sequence_of(result[0].path) for result in results]
        assert seen == list(range(110))


@pytest.mark.zookeeper
@on_loop
async def test_pruning_by_count_and_by_age_keeps_the_newest(connect: str) -> None:
    async with Stores() as stores:
        writer, _ = await prepared(stores, connect)
        leadership = await lead(writer.store)
        now_ms = 0
        pruner = Pruner(writer.store, keep_count=700, keep_ms=1000, mono_ms=lambda: now_ms)
        await asyncio.gather(*(writer.store.multi([entry(b"0")]) for _ in range(1300)))
        assert await pruner.prune(leadership) == 600, "more than one multi can hold"
        assert len(await writer.store.children(CHANGES)) == 700
        now_ms = 500
        await writer.store.multi([entry(b"0")])
        assert await pruner.prune(leadership) == 1
        now_ms = 1000
        assert await pruner.prune(leadership) == 699
        now_ms = 10_000
        assert await pruner.prune(leadership) == 0
        assert await writer.store.children(CHANGES) == ["c_0000001300"]


@pytest.mark.zookeeper
@on_loop
async def test_only_the_controller_prunes(connect: str) -> None:
    async with Stores() as stores:
        writer, other = await prepared(stores, connect)
        leadership = await lead(writer.store)
        await writer.write(5)
        await other.delete("/controller")
        await lead(other)
        pruner = Pruner(writer.store, keep_count=1, keep_ms=10**9, mono_ms=lambda: 0)
        with pytest.raises(ControllerMoved):
            await pruner.prune(leadership)
        assert len(await other.children(CHANGES)) == 5
