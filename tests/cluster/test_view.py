"""Views against a real ZooKeeper: following, gaps, pruning, sessions that end, and readers that are never early."""

from __future__ import annotations

import pytest

from brokers.cluster import view, znodes
from brokers.cluster.requests import NewTopic
from brokers.cluster.view import ClusterView, ViewChange
from brokers.cluster.znodes import BadZnode
from brokers.config import BrokerConfig
from coordination.tree import adopt
from coordination.zookeeper import ZookeeperStore
from tests.cluster.nodes import SESSION_MS, Nodes
from tests.coordination.support import on_loop, until

pytestmark = pytest.mark.zookeeper


@on_loop
async def test_listeners_hear_each_step_and_see_it_in_the_view(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Nodes(tree) as nodes:
        node = await nodes.start(1)
        boss = await nodes.controller()
        heard: list[ViewChange] = []

        def listen(change: ViewChange) -> None:
            heard.append(change)
            for name in change.topics_changed:
                assert name in node.view.topics
            for gone in change.deleted:
                assert gone.id not in node.view.topic_names

        node.view.subscribe(listen)
        await boss.controller.create_topics([NewTopic("t", 3)])
        (made,) = [change for change in heard if "t" in change.topics_changed]
        assert [tp.partition for tp in made.partitions_changed] == [0, 1, 2]
        assert not made.reloaded
        await boss.controller.delete_topics(["t"])
        (gone,) = [change for change in heard if change.deleted]
        assert [(topic.name, len(topic.partitions)) for topic in gone.deleted] == [("t", 3)]
        other = await nodes.start(2)
        await until(lambda: any(change.brokers_changed for change in heard))
        was = node.view.brokers[2]
        monkeypatch.setattr(view, "DEPARTED_S", 0.5)
        await nodes.die(other)
        await until(lambda: 2 not in node.view.brokers)
        assert node.view.departed == {2: was}, "remembered a little, so that clients hear of the new leader first"
        await until(lambda: not node.view.departed)


@on_loop
async def test_a_view_that_missed_pruned_entries_reads_everything_again(tree: str) -> None:
    async with Nodes(tree) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        late = await nodes.start(2, controller=False, registered=False)
        await boss.controller.create_topics([NewTopic("a", 2), NewTopic("b", 2), NewTopic("gone", 1)])
        await late.view.wait_until(lambda: "gone" in late.view.topics, 5_000)
        heard: list[ViewChange] = []
        late.view.subscribe(heard.append)
        await late.view.stop()
        await boss.controller.delete_topics(["gone", "b"])
        await boss.controller.create_topics([NewTopic("b", 1), NewTopic("c", 5)])
        names = await boss.real.children(znodes.CHANGES)
        for name in names[:-1]:
            await boss.real.delete(f"{znodes.CHANGES}/{name}")
        late.view._task = None
        await late.view.start()
        await late.view.wait_until(lambda: "c" in late.view.topics, 5_000)
        (change,) = [change for change in heard if change.reloaded]
        assert sorted(topic.name for topic in change.deleted) == ["b", "gone"]
        assert set(change.topics_changed) == {"b", "c"}
        assert late.view.topics == boss.view.topics
        assert late.view.sequence == boss.view.sequence
        # and it goes on from there, entry by entry
        await boss.controller.create_topics([NewTopic("d", 1)])
        await late.view.wait_until(lambda: "d" in late.view.topics, 5_000)
        assert not heard[-1].reloaded


@on_loop
async def test_the_controller_prunes_but_keeps_the_newest(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokers.cluster.reign.KEEP_CHANGES", 3)
    async with Nodes(tree) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        await boss.controller.create_topics([NewTopic(f"t{i}") for i in range(10)])
        assert boss.controller._reign is not None
        await boss.controller._reign.prune()
        left = [znodes.change_sequence(name) for name in await boss.real.children(znodes.CHANGES)]
        assert left == [7, 8, 9]
        await boss.controller.create_topics([NewTopic("more")])
        assert boss.view.sequence == 10


@on_loop
async def test_a_new_session_loses_no_change(tree: str) -> None:
    """The view's session is ended by force; what happens meanwhile is there afterwards."""
    async with Nodes(tree) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        watcher = await nodes.start(2, controller=False, registered=False)
        credentials = watcher.real.credentials()
        assert credentials is not None
        assert await boss.real.end_session(*credentials)
        await boss.controller.create_topics([NewTopic("t")])
        assert await watcher.view.wait_until(lambda: "t" in watcher.view.topics, 15_000)
        assert watcher.view.controller_id == 1
        await boss.controller.create_topics([NewTopic("u")])
        assert await watcher.view.wait_until(lambda: "u" in watcher.view.topics, 15_000)


@on_loop
async def test_a_broker_whose_session_ends_comes_back_as_another(tree: str) -> None:
    async with Nodes(tree) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        other = await nodes.start(2, controller=False)
        await nodes.agree(lambda node: set(node.view.brokers) == {1, 2})
        first = boss.view.brokers[2]
        credentials = other.real.credentials()
        assert credentials is not None
        assert await boss.real.end_session(*credentials)
        await boss.view.wait_until(lambda: 2 not in boss.view.brokers, 15_000)
        await until(lambda: (s := other.real.session()) is not None and s.session_id != credentials[0])
        await other.register()
        await nodes.agree(lambda node: 2 in node.view.brokers and node.view.brokers[2].epoch > first.epoch)
        assert boss.view.brokers[2].incarnation == first.incarnation + 1


@on_loop
async def test_a_tree_nobody_understands_fails_the_start(tree: str) -> None:
    store = ZookeeperStore(tree, session_timeout_ms=SESSION_MS)
    await store.start(20_000)
    try:
        await adopt(store, lambda: "id-0123456789")
        await store.create(znodes.topic_path("odd"), b"{]", parents=True)
        view = ClusterView(store, BrokerConfig(broker_id=1, zookeeper_connect=tree))
        assert not view.ready
        with pytest.raises(BadZnode, match="odd"):
            await view.start()
        assert not view.ready
    finally:
        await store.close()


@on_loop
async def test_an_unreadable_entry_leads_to_a_reload_not_to_a_guess(tree: str) -> None:
    async with Nodes(tree) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        heard: list[ViewChange] = []
        boss.view.subscribe(heard.append)
        await boss.real.create(znodes.CHANGE_PREFIX, b'{"changes":[{"moon":1}]}', sequence=True)
        await boss.controller.create_topics([NewTopic("t")])
        assert "t" in boss.view.topics
        assert any(change.reloaded for change in heard)


@on_loop
async def test_the_view_stays_what_it_was_while_zookeeper_is_away(tree: str) -> None:
    async with Nodes(tree) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        await boss.controller.create_topics([NewTopic("t")])
        before = dict(boss.view.topics)
        await boss.real.close()
        boss.view._poked.set()
        await boss.view.wait_until(lambda: False, 500)
        assert boss.view.ready
        assert boss.view.topics == before
        assert set(boss.view.brokers) == {1}
