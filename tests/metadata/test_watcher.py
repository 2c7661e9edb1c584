"""What keeps a broker's copies of znodes up to date: watches, reconnects, failing reads, on a real ZooKeeper."""

from __future__ import annotations

import asyncio

import pytest

from fleetlog.brokers.metadata import watcher
from fleetlog.brokers.metadata.watcher import ZnodeWatcher
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.coordination.store import Store, StoreError
from tests.support.stores import Proxy, Stores, on_loop
from tests.support.waiting import eventually_async

ROOT = "/watched"
EFFECT_S = 15.0
"""Less than until everything is read again without a watch."""


class Children:
    """Names below ``ROOT``, followed; ``passes`` says of each pass whether it was to read everything."""

    def __init__(self, store: Store, **flags: bool) -> None:
        self.names: list[str] = []
        self.passes: list[bool] = []
        self.failing: list[Exception] = []
        self._store = store
        self.watcher = ZnodeWatcher(store, "children", self._read, (ROOT,), **flags)

    async def _read(self, whole: bool) -> None:
        self.passes.append(whole)
        names = await self._store.children(ROOT, self.watcher.watch)
        if self.failing:
            raise self.failing.pop(0)
        self.names = sorted(names)


@on_loop
async def test_a_child_that_another_client_creates_is_read(connect: str) -> None:
    async with Stores() as stores:
        first, second = await stores.open(connect), await stores.open(connect)
        children = Children(second)
        await children.watcher.start()
        assert children.watcher.has_read, "after the start everything has been read"
        assert children.passes == [True]
        for name in ("a", "b"):
            await first.create(f"{ROOT}/{name}", b"")
            await eventually_async(lambda name=name: name in children.names, "it is read", EFFECT_S)  # type: ignore[misc]
        assert not any(children.passes[1:]), "only what changed is to be read after a watch event"
        await children.watcher.stop()
        await first.create(f"{ROOT}/c", b"")
        await first.sync(ROOT)
        assert children.names == ["a", "b"], "what was read stays"


@on_loop
async def test_a_start_waits_until_zookeeper_can_be_read_and_says_why(
    connect: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watcher, "START_LOOK_SECONDS", 0.05)
    async with Stores() as stores:
        children = Children(await stores.open(connect))
        children.failing = [StoreError("no quorum", ROOT)] * 3
        await children.watcher.start()
        assert children.passes == [True] * 4, "a pass that failed read nothing: the next one reads everything, too"
        await children.watcher.stop()
    assert "children cannot be read from ZooKeeper yet; waiting (no quorum" in caplog.text


@on_loop
async def test_a_znode_that_cannot_be_read_ends_the_start_only(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        children = Children(store)
        children.failing = [BadZnode(ROOT, "odd")]
        with pytest.raises(BadZnode, match="odd"):
            await children.watcher.start()
        assert not children.watcher.has_read
        later = Children(store)
        await later.watcher.start()
        later.failing = [BadZnode(ROOT, "odd")] * 2
        await store.create(f"{ROOT}/a", b"")
        await eventually_async(lambda: later.names == ["a"], "it is read once it can be", EFFECT_S)
        await later.watcher.stop()


@on_loop
async def test_after_an_unexpected_error_everything_is_read(connect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "UNEXPECTED_RETRY_SECONDS", 0.05)
    async with Stores() as stores:
        store = await stores.open(connect)
        children = Children(store)
        await children.watcher.start()
        children.failing = [RuntimeError("a bug")]
        await store.create(f"{ROOT}/a", b"")
        await eventually_async(lambda: children.names == ["a"], "it is read", EFFECT_S)
        assert children.passes == [True, False, True]
        await children.watcher.stop()


@pytest.mark.parametrize("whole", [True, False])
@on_loop
async def test_a_reconnect_leads_to_a_pass_and_to_a_whole_one_where_that_is_wanted(connect: str, whole: bool) -> None:
    address, _, path = connect.partition("/")
    async with Stores() as stores, Proxy(int(address.rpartition(":")[2])) as proxy:
        first, second = await stores.open(connect), await stores.open(f"127.0.0.1:{proxy.port}/{path}")
        children = Children(second, whole_after_reconnect=whole)
        await children.watcher.start()
        proxy.accepting = False
        proxy.cut()
        await first.create(f"{ROOT}/a", b"")
        passes = len(children.passes)
        proxy.accepting = True
        await eventually_async(lambda: children.names == ["a"], "it follows again", 30)
        assert any(children.passes[passes:]) is whole
        await children.watcher.stop()


@pytest.mark.parametrize("whole", [True, False])
@on_loop
async def test_without_watch_events_it_lists_again(connect: str, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "RELIST_SECONDS", 0.02)
    async with Stores() as stores:
        children = Children(await stores.open(connect), whole_after_relist=whole)
        await children.watcher.start()
        await eventually_async(lambda: len(children.passes) > 3, "it reads without an event", EFFECT_S)
        assert children.passes[:4] == [True, whole, whole, whole]
        await children.watcher.stop()


@on_loop
async def test_passes_do_not_overlap(connect: str) -> None:
    async with Stores() as stores:
        store, reading, most = await stores.open(connect), 0, 0

        async def read(whole: bool) -> None:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            await store.children("/")
            reading -= 1

        one = ZnodeWatcher(store, "children", read)
        await one.start()
        await asyncio.gather(*(one.read_now() for _ in range(5)))
        assert most == 1
        await one.stop()
