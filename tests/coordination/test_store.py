"""The store against a real ZooKeeper: operations, limits, watches."""

from __future__ import annotations

import asyncio

import pytest

from fleetlog.coordination.store import (
    MAX_GET_MANY,
    MAX_MULTI_BYTES,
    MAX_MULTI_OPERATIONS,
    BadVersion,
    Check,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    SetData,
    TooLarge,
    WatchEvent,
    WatchKind,
)
from tests.support.stores import Stores, on_loop
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.zookeeper


@on_loop
async def test_a_znode_is_created_changed_and_deleted(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        assert await store.exists("/a") is None
        assert await store.create("/a", b"1") == "/a"
        data, stat = await store.get("/a")
        assert (data, stat.version, stat.ephemeral_owner) == (b"1", 0, 0)
        assert stat.czxid == stat.mzxid > 0
        changed = await store.set("/a", b"2", 0)
        assert (changed.version, changed.czxid) == (1, stat.czxid)
        assert changed.mzxid > stat.mzxid
        await store.create("/a/b")
        assert await store.children("/a") == ["b"]
        with pytest.raises(NotEmpty):
            await store.delete("/a")
        await store.delete("/a/b", 0)
        await store.delete("/a", 1)
        with pytest.raises(NoNode) as caught:
            await store.get("/a")
        assert caught.value.path == "/a"


@on_loop
async def test_what_goes_wrong_has_a_name(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await store.create("/a")
        for wrong, call in (
            (NodeExists, store.create("/a")),
            (NoNode, store.create("/x/y")),
            (NoNode, store.children("/x")),
            (NoNode, store.set("/x", b"")),
            (NoNode, store.delete("/x")),
            (BadVersion, store.set("/a", b"", 7)),
            (BadVersion, store.delete("/a", 7)),
        ):
            with pytest.raises(wrong):
                await call


@on_loop
async def test_parents_ephemerals_and_sequences(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await asyncio.gather(*(store.create(f"/p/q/r/{i}", parents=True) for i in range(10)))
        assert len(await store.children("/p/q/r")) == 10
        made = [await store.create("/p/s_", sequence=True) for _ in range(3)]
        # numbers count the children ever made, and /p/q was the first
        assert made == ["/p/s_0000000001", "/p/s_0000000002", "/p/s_0000000003"]
        other = await stores.open(connect)
        await other.create("/e", ephemeral=True)
        stat = await store.exists("/e")
        session = other.session()
        assert stat is not None
        assert session is not None
        assert stat.ephemeral_owner == session.session_id
        await other.close()
        await store.sync("/e")
        assert await store.exists("/e") is None


@on_loop
async def test_a_multi_is_all_or_nothing(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await store.create("/a", b"0")
        assert await store.multi([]) == []
        results = await store.multi(
            [
                Check("/a", 0),
                Create("/b", b"x", ephemeral=True),
                SetData("/a", b"1", 0),
                SetData("/b", b"y", 0),
                Create("/a/c_", sequence=True),
                Create("/gone"),
                Delete("/gone", 0),
            ]
        )
        paths = [result.path for result in results]
        assert paths == ["/a", "/b", "/a", "/b", "/a/c_0000000000", "/gone", "/gone"]
        stats = [result.stat for result in results]
        assert [stat is not None for stat in stats] == [False, False, True, True, False, False, False]
        assert stats[2] is not None
        assert stats[2].version == 1
        for index, cause, operations in (
            (0, BadVersion, [Check("/a", 0), Create("/n")]),
            (1, NodeExists, [Create("/n"), Create("/b"), Create("/m")]),
            (2, NoNode, [Create("/n"), Delete("/b"), SetData("/none", b"")]),
            (1, NotEmpty, [Create("/n"), Delete("/a")]),
            (0, NoNode, [Check("/none", 0)]),
        ):
            with pytest.raises(MultiFailed) as caught:
                await store.multi(operations)
            assert caught.value.index == index
            assert isinstance(caught.value.cause, cause)
            assert caught.value.cause.path == operations[index].path
        assert await store.exists("/n") is None
        assert await store.exists("/b") is not None


@on_loop
async def test_limits_are_refused_here_and_just_below_them_it_works(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await store.create("/d")
        most = [Create(f"/d/{i}") for i in range(MAX_MULTI_OPERATIONS)]
        assert len(await store.multi(most)) == MAX_MULTI_OPERATIONS
        with pytest.raises(TooLarge):
            await store.multi([*most, Create("/d/one-more")])
        large = bytes(MAX_MULTI_BYTES // 2 - 100)
        await store.multi([SetData("/d/0", large), SetData("/d/1", large)])
        with pytest.raises(TooLarge):
            await store.multi([SetData("/d/0", large), SetData("/d/1", large + bytes(200))])
        await store.set("/d/0", bytes(MAX_MULTI_BYTES - 100))
        for call in (store.set("/d/0", bytes(MAX_MULTI_BYTES)), store.create("/d/x", bytes(MAX_MULTI_BYTES))):
            with pytest.raises(TooLarge):
                await call
        assert len((await store.get("/d/0"))[0]) == MAX_MULTI_BYTES - 100


@on_loop
async def test_watches_fire_once_with_their_kind(connect: str) -> None:
    async with Stores() as stores:
        watching, acting = await stores.open(connect), await stores.open(connect)
        events: list[WatchEvent] = []
        assert await watching.exists("/a", events.append) is None
        await acting.create("/a")
        await eventually_async(lambda: events == [WatchEvent(WatchKind.CREATED, "/a")], "the creation is told")
        await watching.get("/a", events.append)
        await watching.children("/a", events.append)
        await acting.create("/a/b")
        await eventually_async(lambda: events[1:] == [WatchEvent(WatchKind.CHILDREN, "/a")], "the new child is told")
        await acting.set("/a", b"1")
        await acting.set("/a", b"2")
        await eventually_async(lambda: events[2:] == [WatchEvent(WatchKind.CHANGED, "/a")], "the change is told")
        await watching.exists("/a/b", events.append)
        await acting.delete("/a/b")
        await eventually_async(lambda: events[3:] == [WatchEvent(WatchKind.DELETED, "/a/b")], "the deletion is told")
        with pytest.raises(NoNode):
            await watching.get("/none", events.append)
        await acting.create("/none")
        await watching.sync("/")
        await watching.get("/none")
        assert len(events) == 4


@on_loop
async def test_a_watch_comes_before_the_data_that_fired_it(connect: str) -> None:
    async with Stores() as stores:
        watching, acting = await stores.open(connect), await stores.open(connect)
        await acting.create("/a", b"0")
        for round_ in range(1, 60):
            seen: list[str] = []
            await watching.get("/a", lambda _event, seen=seen: seen.append("watch"))
            write = asyncio.create_task(acting.set("/a", str(round_).encode()))
            while (await watching.get("/a"))[0] != str(round_).encode():
                pass
            seen.append("data")
            await write
            assert seen == ["watch", "data"]


@on_loop
async def test_setting_the_same_watch_again_does_not_pile_up(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await store.create("/a")
        events: list[WatchEvent] = []
        for _ in range(20):
            await store.get("/a", events.append)
        await store.set("/a", b"1")
        await store.sync("/a")
        await store.get("/a")
        assert len(events) == 1


@on_loop
async def test_thousands_of_reads_at_once(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await store.create("/d")
        await store.multi([Create(f"/d/{i}", str(i).encode()) for i in range(400)])
        names = [i % 400 for i in range(4000)]
        answers = await asyncio.gather(*(store.get(f"/d/{i}") for i in names))
        assert [data for data, _ in answers] == [str(i).encode() for i in names]


@on_loop
async def test_a_cancelled_call_leaves_the_store_usable(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        tasks = [asyncio.create_task(store.exists("/a")) for _ in range(50)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.create("/a")
        assert await store.exists("/a") is not None


@on_loop
async def test_many_by_one_request(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        paths = []
        for number in range(MAX_GET_MANY):
            paths.append(f"/n\u00e4me-{number}")
            if number % 7:
                await store.create(paths[-1], b"x" * (number % 5), ephemeral=number % 3 == 0)
        await store.set(paths[1], b"more")
        found = await store.get_many(paths)
        assert [one is not None for one in found] == [number % 7 > 0 for number in range(MAX_GET_MANY)]
        for path, one in zip(paths, found, strict=True):
            assert one is None or one == await store.get(path)
        assert found[1] == (b"more", await store.exists(paths[1]))
        assert await store.get_many([]) == []
        assert await store.get_many(["/nothing"]) == [None]


@on_loop
async def test_many_below_a_root(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect + "/root")
        await store.create("/here", b"x")
        assert await store.get_many(["/here", "/there"]) == [await store.get("/here"), None]
