"""A broker compares ZooKeeper's tree with what it has seen of it, against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import time

import pytest

from fleetlog.brokers.metadata import tree_guard, znodes
from fleetlog.brokers.metadata.marks import ClusterMarks
from fleetlog.brokers.metadata.tree_guard import TreeBehind, TreeGuard
from fleetlog.coordination.store import StoreError, WatchEvent
from fleetlog.coordination.tree import adopt, ensure
from tests.support.stores import Stores, on_loop

pytestmark = pytest.mark.zookeeper


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_guard, "PAUSE_S", 0.01)


@on_loop
async def test_a_lower_number_is_refused_until_it_is_back(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await adopt(store, lambda: "cluster")
        guard = TreeGuard(store, 1)
        refusals: list[str | None] = []
        guard.on_behind = lambda: refusals.append(guard.behind)
        await guard.check()
        await store.create(znodes.CONTROLLER_EPOCH, b"5")
        await guard.check()
        assert guard.marks == ClusterMarks(controller_epoch=5)
        await store.set(znodes.CONTROLLER_EPOCH, b"4")
        for _ in range(2):
            with pytest.raises(TreeBehind, match="controller epoch 4, 5 was seen"):
                await guard.check()
        assert not await guard.is_current()
        assert len(refusals) == 1
        assert guard.proven
        await store.set(znodes.CONTROLLER_EPOCH, b"6")
        assert await guard.is_current()
        assert guard.behind is None


@on_loop
async def test_a_change_that_was_made_again_under_its_number_is_refused(connect: str) -> None:
    """Brokers that had seen less went on with an older copy, up to the numbers that this one had seen."""
    async with Stores() as stores:
        store = await stores.open(connect)
        await adopt(store, lambda: "cluster")
        await ensure(store, znodes.CHANGES)
        await store.create(znodes.change_path(7), b"")
        guard, late = TreeGuard(store, 1), TreeGuard(store, 2)
        assert await guard.is_current()
        late.note(change=7)
        seen = guard.marks.change_ms
        assert abs(seen - time.time() * 1000) < 600_000
        await store.delete(znodes.change_path(7))
        await asyncio.sleep(0.002)
        await store.create(znodes.change_path(7), b"")
        for newest in (7, 8):
            if newest == 8:
                await store.create(znodes.change_path(8), b"")
            assert not await guard.is_current()
            assert guard.behind == "its change 7 is not the one that was seen"
            assert guard.marks.change_ms == seen
        assert await late.is_current(), "when its change was made is not known: by a broker of an earlier version"
        await store.delete(znodes.change_path(7))
        assert await guard.is_current(), "pruned"


@on_loop
async def test_logs_that_are_ahead_keep_a_broker_from_registering(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await adopt(store, lambda: "cluster")
        guard = TreeGuard(store, 1)
        ahead = "t-0 in leader epoch 3, its log has epoch 9"
        answers = [ahead, ahead, None]
        seen: list[tuple[str | None, bool]] = []

        def later() -> str | None:
            seen.append((guard.behind, guard.proven))
            return answers.pop(0)

        async def refreshed() -> None:
            raise StoreError("ZooKeeper does not answer")

        await guard.compare_logs(later, refreshed)
        assert seen == [(None, False), (None, False), ("t-0 in leader epoch 3, its log has epoch 9", True)]
        assert await guard.is_current()


@on_loop
async def test_logs_are_ahead_only_of_what_is_read_behind_a_sync(connect: str) -> None:
    """A server that lags behind the others makes no broker refuse, and by what that tells no other one."""
    async with Stores() as stores:
        guard = TreeGuard(await stores.open(connect), 1)
        refused: list[None] = []
        guard.on_behind = lambda: refused.append(None)
        ahead: list[str | None] = ["t-0 in leader epoch 3, its log has epoch 4"]

        async def refreshed() -> None:
            ahead[0] = None

        await guard.compare_logs(lambda: ahead[0], refreshed)
        assert not refused
        assert not guard.proven


@on_loop
async def test_what_other_brokers_have_found_counts_and_what_they_heard_does_not(connect: str) -> None:
    """Else brokers would wait for each other for ever when the newer tree is back."""
    async with Stores() as stores:
        store = await stores.open(connect)
        await adopt(store, lambda: "cluster")
        await ensure(store, znodes.INVENTORIES)
        await store.create(znodes.inventory_path(2, 0, 0, proven=False), b"")
        await store.create(f"{znodes.INVENTORIES}/of-somebody-else", b"")
        guard = TreeGuard(store, 1)
        assert await guard.is_current()
        await store.create(znodes.inventory_path(2, 0, 0, proven=True), b"")
        assert await guard.is_current(), "it has found the tree new enough itself"
        heard: list[WatchEvent] = []
        await guard.listen(heard.append)
        assert guard.behind == "broker 2 says so", "it may have seen less of it"
        assert not await guard.is_current()
        await store.delete(znodes.inventory_path(2, 0, 0, proven=True))
        assert await guard.is_current()
        assert [event.path for event in heard] == [znodes.INVENTORIES]
        await store.create(znodes.inventory_path(2, 0, 0, proven=True), b"")
        late = TreeGuard(store, 3)
        assert not await late.is_current()
        assert late.behind == "broker 2 says so"
        assert not late.proven
        await store.create(znodes.GENERATION, b"1")
        assert await late.is_current()
        assert late.repaired
        assert late.marks.generation == 1
        await store.set(znodes.GENERATION, b"0")
        assert not await late.is_current()


@on_loop
async def test_what_was_done_while_another_broker_found_the_tree_behind_is_done_again(connect: str) -> None:
    """A registration may wait for half a minute, until that of the session before has ended."""
    async with Stores() as stores:
        store = await stores.open(connect)
        await adopt(store, lambda: "cluster")
        await ensure(store, znodes.INVENTORIES)
        path = znodes.inventory_path(2, 0, 0, proven=True)
        guard = TreeGuard(store, 1)
        done: list[str | None] = []

        async def act() -> int:
            if not done:
                await store.create(path, b"")
                await guard.listen(lambda _event: None)
            done.append(guard.behind)
            return len(done)

        task = asyncio.create_task(guard.when_current(act))
        while not done:
            await asyncio.sleep(0.01)
        assert not await guard.is_current()
        assert not task.done(), "nothing is led in a tree that another broker knows to be older"
        await store.delete(path)
        assert await task == 2
        assert done == ["broker 2 says so", None]
