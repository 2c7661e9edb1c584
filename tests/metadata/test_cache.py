"""Views against a real ZooKeeper: following, gaps, pruning, sessions that end, and readers that are never early."""

from __future__ import annotations

import uuid
from typing import cast

import pytest

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.controller.requests import NewTopic
from fleetlog.brokers.metadata import cache, znodes
from fleetlog.brokers.metadata.cache import MetadataCache, MetadataChange
from fleetlog.brokers.metadata.image import MetadataImage
from fleetlog.brokers.metadata.loading import LoadedMetadata
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.coordination.store import Create, Delete, NoNode, Stat, Store, StoreError
from fleetlog.coordination.tree import adopt
from fleetlog.coordination.zookeeper import ZookeeperStore
from tests.support.clocks import running_timers
from tests.support.nodes import SESSION_MS, Nodes
from tests.support.stores import Proxy, Stores, expire, on_loop
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.zookeeper


@on_loop
async def test_listeners_get_each_step_and_see_it_in_the_cache(connect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Nodes(connect) as nodes:
        node = await nodes.start(1)
        boss = await nodes.controller()
        heard: list[MetadataChange] = []

        def listen(change: MetadataChange) -> None:
            heard.append(change)
            for name in change.topics_changed:
                assert name in node.metadata.topics
            for gone in change.deleted:
                assert gone.id not in node.metadata.topic_names

        node.metadata.subscribe(listen)
        await boss.controller.create_topics([NewTopic("t", 3)])
        (made,) = [change for change in heard if "t" in change.topics_changed]
        assert [tp.partition for tp in made.partitions_changed] == [0, 1, 2]
        assert not made.reloaded
        await boss.controller.delete_topics(["t"])
        (gone,) = [change for change in heard if change.deleted]
        assert [(topic.name, len(topic.partitions)) for topic in gone.deleted] == [("t", 3)]
        other = await nodes.start(2)
        await eventually_async(lambda: any(change.brokers_changed for change in heard), "the change of brokers is told")
        was = node.metadata.brokers[2]
        monkeypatch.setattr(cache, "DEPARTED_MS", 5_000)
        await nodes.die(other)
        await eventually_async(lambda: 2 not in node.metadata.brokers, "broker 2 has left")
        assert node.metadata.departed == {2: was}, "remembered a little, so that clients hear of the new leader first"
        await eventually_async(lambda: not node.metadata.departed, "the departure is forgotten")


@on_loop
async def test_a_view_that_missed_pruned_entries_reads_everything_again(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        late = await nodes.start(2, controller=False, registered=False)
        await boss.controller.create_topics([NewTopic("a", 2), NewTopic("b", 2), NewTopic("gone", 1)])
        await late.metadata.wait_until(lambda: "gone" in late.metadata.topics, 5_000)
        heard: list[MetadataChange] = []
        late.metadata.subscribe(heard.append)
        await late.metadata.stop()
        await boss.controller.delete_topics(["gone", "b"])
        await boss.controller.create_topics([NewTopic("b", 1), NewTopic("c", 5)])
        names = await boss.real.children(znodes.CHANGES)
        for name in names[:-1]:
            await boss.real.delete(f"{znodes.CHANGES}/{name}")
        late.metadata._task = None
        await late.metadata.start()
        await late.metadata.wait_until(lambda: "c" in late.metadata.topics, 5_000)
        (change,) = [change for change in heard if change.reloaded]
        assert sorted(topic.name for topic in change.deleted) == ["b", "gone"]
        assert set(change.topics_changed) == {"b", "c"}
        assert late.metadata.topics == boss.metadata.topics
        assert late.metadata.sequence == boss.metadata.sequence
        # and it goes on from there, entry by entry
        await boss.controller.create_topics([NewTopic("d", 1)])
        await late.metadata.wait_until(lambda: "d" in late.metadata.topics, 5_000)
        assert not heard[-1].reloaded


@on_loop
async def test_a_whole_reading_that_fails_at_its_end_is_told_by_the_next(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Nodes(connect) as nodes:
        node = await nodes.start(1)
        boss = await nodes.controller()
        await boss.controller.create_topics([NewTopic("t")])
        await node.metadata.wait_until(lambda: "t" in node.metadata.topics, 5_000)
        heard: list[MetadataChange] = []
        node.metadata.subscribe(heard.append)
        read = node.store.get
        failing = [znodes.FEATURE]

        async def get(path: str, watch: object = None) -> tuple[bytes, Stat]:
            if path in failing:
                failing.remove(path)
                assert "t" in node.metadata.topics, "nothing changes before it is told"
                raise StoreError("planted")
            return await read(path, watch)  # type: ignore[arg-type]

        monkeypatch.setattr(node.store, "get", get)
        image = MetadataImage()

        async def load(_store: Store) -> LoadedMetadata:
            return LoadedMetadata(image, node.metadata.sequence, [])

        monkeypatch.setattr(cache, "load_metadata", load)
        with pytest.raises(StoreError):
            await node.metadata._read_changes([], True)
        assert not failing
        delta, reloaded = await node.metadata._read_changes([], True)
        assert reloaded
        assert [topic.name for topic in delta.deleted] == ["t"]


class _ElectedBetween:
    """A store in which the controller's znode appears between a read and the watch that is set instead."""

    async def get(self, path: str, watch: object = None) -> tuple[bytes, Stat]:
        raise NoNode("NoNode", path)

    async def exists(self, path: str, watch: object = None) -> Stat | None:
        return Stat(0, 1, 1, 1)


@on_loop
async def test_a_controller_that_is_elected_between_two_looks_is_looked_for_again() -> None:
    """The watch tells of what comes after it, and the next listing is 20 s away."""
    config = BrokerConfig(broker_id=1, zookeeper_connect="none:1")
    found = MetadataCache(cast("Store", _ElectedBetween()), config, running_timers())
    assert await found._read_controller() == cache.NO_CONTROLLER
    assert found.watcher._wanted.is_set()


@on_loop
async def test_the_controller_prunes_but_keeps_the_newest(connect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetlog.brokers.controller.controller.KEEP_CHANGES", 3)
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        await boss.controller.create_topics([NewTopic(f"t{i}") for i in range(10)])
        assert boss.controller.active is not None
        await boss.controller.active.prune()
        left = [znodes.change_sequence(name) for name in await boss.real.children(znodes.CHANGES)]
        assert left == [7, 8, 9]
        await boss.controller.create_topics([NewTopic("more")])
        assert boss.metadata.sequence == 10


@on_loop
async def test_a_new_session_loses_no_change(connect: str) -> None:
    """The cache's session is killed; the cache has the changes made meanwhile afterwards."""
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        watcher = await nodes.start(2, controller=False, registered=False)
        await expire(watcher.real, boss.real)
        await boss.controller.create_topics([NewTopic("t")])
        assert await watcher.metadata.wait_until(lambda: "t" in watcher.metadata.topics, 15_000)
        assert watcher.metadata.controller_id == 1
        await boss.controller.create_topics([NewTopic("u")])
        assert await watcher.metadata.wait_until(lambda: "u" in watcher.metadata.topics, 15_000)


@on_loop
async def test_a_connection_that_comes_back_to_another_history_is_refused(connect: str) -> None:
    """ZooKeeper was restored from a copy, and others have made more changes since."""
    address, _, path = connect.partition("/")
    async with Nodes(connect) as nodes, Proxy(int(address.rpartition(":")[2])) as proxy, Stores() as stores:
        boss = await nodes.start(1)
        await nodes.controller()
        await boss.controller.create_topics([NewTopic("t")])
        store = await stores.open(f"{proxy.address}/{path}")
        metadata = MetadataCache(store, BrokerConfig(broker_id=2, zookeeper_connect="unused"), running_timers())
        await metadata.start()
        assert "t" in metadata.topics
        seen = metadata.guard.marks.change
        proxy.accepting = False
        proxy.cut()
        path = znodes.change_path(seen)
        row, _ = await boss.real.get(path)
        await boss.real.multi([Delete(path), Create(path, row)])
        await boss.controller.create_topics([NewTopic("u")])
        proxy.accepting = True
        await eventually_async(lambda: metadata.guard.behind is not None, "the other history is noticed", 30)
        assert metadata.guard.behind == f"its change {seen} is not the one that was seen"
        assert "u" not in metadata.topics
        await metadata.stop()


@on_loop
async def test_a_broker_whose_session_ends_comes_back_as_another(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        other = await nodes.start(2, controller=False)
        await nodes.agree(lambda node: set(node.metadata.brokers) == {1, 2})
        first = boss.metadata.brokers[2]
        credentials = other.real.credentials()
        assert credentials is not None
        await expire(other.real, boss.real)
        await boss.metadata.wait_until(lambda: 2 not in boss.metadata.brokers, 15_000)
        await eventually_async(
            lambda: (s := other.real.session()) is not None and s.session_id != credentials[0],
            "there is another session",
        )
        await other.register()
        await nodes.agree(lambda node: 2 in node.metadata.brokers and node.metadata.brokers[2].epoch > first.epoch)
        assert boss.metadata.brokers[2].incarnation == first.incarnation + 1


@on_loop
async def test_an_unreadable_tree_fails_the_start(connect: str) -> None:
    store = ZookeeperStore(connect, session_timeout_ms=SESSION_MS)
    await store.start(20_000)
    try:
        await adopt(store, lambda: "id-0123456789")
        await store.create(znodes.topic_path("odd"), b"{]", parents=True)
        config = BrokerConfig(broker_id=1, zookeeper_connect=connect)
        metadata = MetadataCache(store, config, running_timers())
        assert not metadata.ready
        with pytest.raises(BadZnode, match="odd"):
            await metadata.start()
        assert not metadata.ready
    finally:
        await store.close()


@on_loop
async def test_an_unreadable_entry_leads_to_a_reload_not_to_a_guess(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        heard: list[MetadataChange] = []
        boss.metadata.subscribe(heard.append)
        await boss.real.create(znodes.CHANGE_PREFIX, b'{"changes":[{"moon":1}]}', sequence=True)
        await boss.controller.create_topics([NewTopic("t")])
        assert "t" in boss.metadata.topics
        assert any(change.reloaded for change in heard)


@on_loop
async def test_the_cache_keeps_its_content_while_zookeeper_is_away(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        await boss.controller.create_topics([NewTopic("t")])
        before = dict(boss.metadata.topics)
        await boss.real.close()
        boss.metadata.watcher.read_soon()
        await boss.metadata.wait_until(lambda: False, 500)
        assert boss.metadata.ready
        assert boss.metadata.topics == before
        assert set(boss.metadata.brokers) == {1}


@on_loop
async def test_a_deletion_is_known_by_its_entry_and_by_its_mark(connect: str) -> None:
    """Its mark tells those that start while the name is taken; what is only missing was not deleted."""
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        await boss.controller.create_topics([NewTopic("a"), NewTopic("b"), NewTopic("c")])
        ids = {name: boss.metadata.topics[name].id for name in "abc"}
        assert not any(boss.metadata.was_deleted(topic_id) for topic_id in ids.values())
        await boss.controller.delete_topics(["a"])
        assert [boss.metadata.was_deleted(ids[name]) for name in "abc"] == [True, False, False]
        await boss.real.create(znodes.deleted_topic_path("b"), znodes.encode_delete_mark(ids["b"]))
        await boss.real.create(znodes.deleted_topic_path("x"), b"by another program")
        await boss.real.create(znodes.delete_topic_path("c"), znodes.encode_delete_mark(ids["c"]))
        late = await nodes.start(2, controller=False, registered=False)
        assert [late.metadata.was_deleted(ids[name]) for name in "abc"] == [False, True, True]


@on_loop
async def test_the_memory_of_deletions_is_bounded() -> None:
    config = BrokerConfig(broker_id=1, zookeeper_connect="none:1")
    metadata = MetadataCache(cast("Store", None), config, running_timers())
    ids = [uuid.UUID(int=number) for number in range(cache.DELETIONS_MAX + 2)]
    for topic_id in ids:
        metadata.note_deletions([topic_id])
    assert [metadata.was_deleted(topic_id) for topic_id in ids[:3]] == [False, False, True]
    assert metadata.was_deleted(ids[-1])
