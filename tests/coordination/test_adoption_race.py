"""Brokers that start on an empty tree in the same instant: one writes the mark, and all accept the tree."""

from __future__ import annotations

import asyncio

import pytest

from fleetlog.coordination.store import Stat, Watch
from fleetlog.coordination.tree import MARK, adopt
from fleetlog.coordination.zookeeper import ZookeeperStore
from tests.support.stores import Stores, on_loop

pytestmark = pytest.mark.zookeeper
SEEDS = {"/feature": b"{}"}


@on_loop
async def test_a_mark_that_comes_between_two_looks_is_ours(connect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stores() as stores:
        fast, slow = await stores.open(connect), await stores.open(connect)
        look = ZookeeperStore.exists
        looked = False

        async def exists(self: ZookeeperStore, path: str, watch: Watch | None = None) -> Stat | None:
            nonlocal looked
            found = await look(self, path, watch)
            if self is slow and path == MARK and not looked:
                looked = True
                assert found is None, "the slow one looks first"
                await adopt(fast, lambda: "fast", seeds=SEEDS)
                await slow.sync("/")
            return found

        monkeypatch.setattr(ZookeeperStore, "exists", exists)
        assert await adopt(slow, lambda: "slow", seeds=SEEDS) == "fast"


@on_loop
async def test_many_at_once(connect: str) -> None:
    async with Stores() as stores:
        opened = await asyncio.gather(*(stores.open(connect) for _ in range(8)))
        ids = await asyncio.gather(*(adopt(store, lambda i=i: f"id{i}", seeds=SEEDS) for i, store in enumerate(opened)))
        assert len(set(ids)) == 1
