"""The change log: numbers without gaps, readers that miss nothing, pruning, reload."""

from __future__ import annotations

import asyncio

import pytest

from coordination.changes import CHANGES, Change, ChangeReader, Pruner, Step, entry, next_step, path_of, sequence_of
from coordination.election import ControllerMoved, Leadership, campaign
from coordination.store import Check, Create, MultiFailed, StoreError
from coordination.tree import adopt
from coordination.zookeeper import ZookeeperStore
from tests.coordination.support import Proxy, Stores, on_loop, until


@pytest.mark.parametrize(
    ("applied", "listed", "step", "news"),
    [
        (-1, [], Step.NOTHING, []),
        (-1, [0, 1], Step.APPLY, [0, 1]),
        (-1, [1], Step.RELOAD, []),
        (4, [3, 4], Step.NOTHING, []),
        (4, [4, 5, 6], Step.APPLY, [5, 6]),
        (4, [5], Step.APPLY, [5]),
        (4, [6, 7], Step.RELOAD, []),
        (4, [4, 5, 7], Step.RELOAD, []),
        (4, [2, 3], Step.NOTHING, []),
        (4, [], Step.NOTHING, []),
    ],
)
def test_next_step(applied: int, listed: list[int], step: Step, news: list[int]) -> None:
    assert next_step(applied, listed) == (step, news or ())


class Follower:
    """Keeps a copy of everything that was written; each entry carries its own number as data."""

    def __init__(self, store: ZookeeperStore) -> None:
        self.store = store
        self.state: set[int] = set()
        self.applied: list[int] = []
        self.failures = 0
        self.reader = ChangeReader(store, reload=self.reload, apply=self.apply)

    async def reload(self) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreError("not now")
        await self.store.sync("/")
        self.state = {int(name) for name in await self.store.children("/state")}

    def apply(self, change: Change) -> None:
        self.applied.append(change.sequence)
        self.state.add(int(change.data))


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
async def test_a_reader_applies_everything_once_and_in_order(connect: str) -> None:
    async with Stores() as stores:
        writer, reading = await prepared(stores, connect)
        await writer.write(3)
        follower = Follower(reading)
        follower.failures = 2
        await follower.reader.start()
        assert follower.state == {0, 1, 2}
        await writer.write(300)
        await until(lambda: follower.reader.applied == 302)
        assert follower.applied == list(range(3, 303))
        assert follower.state == set(range(303))
        assert follower.reader.reloads == 1
        await follower.reader.stop()


@pytest.mark.zookeeper
@on_loop
async def test_a_reader_that_was_away_catches_up_or_reloads(connect: str) -> None:
    host, _, chroot = connect.partition("/")
    async with Proxy(int(host.rpartition(":")[2])) as proxy, Stores() as stores:
        writer, _ = await prepared(stores, connect)
        follower = Follower(await stores.open(f"{proxy.address}/{chroot}", timeout_ms=20_000))
        await follower.reader.start()
        await writer.write(2)
        await until(lambda: follower.reader.applied == 1)
        proxy.accepting = False
        proxy.cut()
        await writer.write(3)
        proxy.heal()
        await until(lambda: follower.reader.applied == 4)
        assert follower.reader.reloads == 1
        proxy.accepting = False
        proxy.cut()
        await writer.write(10)
        leadership = await lead(writer.store)
        assert await Pruner(writer.store, keep_count=1, keep_ms=10**9, mono_ms=lambda: 0).prune(leadership) == 14
        proxy.heal()
        await until(lambda: follower.reader.reloads == 2)
        await until(lambda: follower.reader.applied == 14)
        assert follower.state == set(range(15))
        await writer.write(1)
        await until(lambda: follower.reader.applied == 15)
        assert follower.state == set(range(16))
        await follower.reader.stop()


@pytest.mark.zookeeper
@on_loop
async def test_a_reader_goes_on_in_a_new_session(connect: str) -> None:
    async with Stores() as stores:
        writer, reading = await prepared(stores, connect)
        follower = Follower(reading)
        await follower.reader.start()
        for round_ in range(3):
            credentials = reading.credentials()
            assert credentials is not None
            await writer.store.end_session(*credentials)
            await writer.write(2)
            await until(lambda: follower.state == set(range(writer.written)))
            await until(lambda: reading.credentials() is not None)
            assert follower.reader.applied == 2 * round_ + 1
        assert follower.reader.reloads == 1
        await follower.reader.stop()


@pytest.mark.zookeeper
@on_loop
async def test_pruning_while_readers_read_loses_nothing(connect: str) -> None:
    async with Stores() as stores:
        writer, reading = await prepared(stores, connect)
        leadership = await lead(writer.store)
        pruner = Pruner(writer.store, keep_count=2, keep_ms=10**9, mono_ms=lambda: 0)
        follower = Follower(reading)
        await follower.reader.start()
        for _ in range(30):
            await writer.write(10)
            await pruner.prune(leadership)
        await until(lambda: follower.reader.applied == 299)
        assert follower.state == set(range(300))
        assert follower.applied == sorted(set(follower.applied))
        await follower.reader.stop()


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
