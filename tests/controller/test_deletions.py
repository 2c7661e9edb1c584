"""Topics that are deleted and created again: brokers that learn late of it, and controllers that change meanwhile."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlog.brokers.controller import plans
from fleetlog.brokers.controller.log_end_probes import LogEndProbes
from fleetlog.brokers.controller.move_commands import RemainingReplicas
from fleetlog.brokers.controller.requests import NewTopic
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.image import MetadataDelta, MetadataImage
from fleetlog.brokers.metadata.znodes import StatesChanged, TopicChanged, TopicDeleted, TopicZnode
from fleetlog.brokers.model import BrokerId, LiveBroker, LogEnd, PartitionState, TopicPartition
from fleetlog.brokers.replication import ends
from fleetlog.brokers.replication.ends import ReplicaEnd
from fleetlog.coordination.store import Create, Delete, UnknownOutcome
from fleetlog.wire.errors import ErrorCode
from tests.support.nodes import Node, Nodes
from tests.support.stores import on_loop
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.zookeeper


async def _created(node: Node, new: NewTopic) -> None:
    async def free() -> bool:
        (made,) = await node.controller.create_topics([new])
        return made.ok

    async with asyncio.timeout(60):
        while not await free():
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("led_by", ["it", "another"])
@on_loop
async def test_a_deletion_waits_until_live_brokers_have_confirmed_it(connect: str, led_by: str) -> None:
    """Until then a leader acknowledges records by name, and a group coordinator offsets: not for a new topic's."""
    async with Nodes(connect) as nodes:
        await nodes.start(1)
        await nodes.start(2)
        boss = await nodes.controller()
        other = next(node for node in nodes.alive.values() if node is not boss)
        leader = other if led_by == "it" else boss
        await boss.controller.create_topics([NewTopic("t", assignments={0: [leader.id], 1: [boss.id]})])
        other.silent = True
        deleted = asyncio.create_task(boss.controller.delete_topics(["t"]))
        await nodes.agree(lambda node: "t" not in node.metadata.topics)
        (early,) = await boss.controller.create_topics([NewTopic("t")])
        assert early.error is ErrorCode.TOPIC_ALREADY_EXISTS
        assert "marked for deletion" in str(early.message)
        assert not deleted.done()
        other.silent = False
        (gone,) = await asyncio.wait_for(deleted, 60)
        assert gone.ok
        (made,) = await boss.controller.create_topics([NewTopic("t")])
        assert made.ok


@on_loop
async def test_a_deletion_waits_for_no_broker_without_registration(connect: str) -> None:
    async with Nodes(connect) as nodes:
        await nodes.start(1)
        await nodes.start(2)
        boss = await nodes.controller()
        other = next(node for node in nodes.alive.values() if node is not boss)
        await boss.controller.create_topics([NewTopic("t", assignments={0: [other.id]})])
        other.silent = True
        deleted = asyncio.create_task(boss.controller.delete_topics(["t"]))
        await asyncio.sleep(0.3)
        assert not deleted.done()
        await nodes.die(other)
        (gone,) = await asyncio.wait_for(deleted, 60)
        assert gone.ok
        (made,) = await boss.controller.create_topics([NewTopic("t")])
        assert made.ok


@on_loop
async def test_a_name_is_free_once_its_mark_is_gone(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        names = [f"t{number}" for number in range(5)]
        await boss.controller.create_topics([NewTopic(name) for name in names])
        assert all(outcome.ok for outcome in await boss.controller.delete_topics(names))
        assert await boss.real.children(znodes.DELETED_TOPICS) == []
        assert all(outcome.ok for outcome in await boss.controller.create_topics([NewTopic(name) for name in names]))


@on_loop
async def test_a_deletion_waits_for_the_controllers_own_broker(connect: str) -> None:
    """It may be about to read the creation, and know as little as after the deletion."""
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        read, reads = asyncio.Event(), boss.store.real.get_many

        async def slowly(paths: list[str]) -> Any:
            found = await reads(paths)
            await read.wait()
            return found

        boss.store.get_many = slowly  # type: ignore[attr-defined]
        created = asyncio.create_task(boss.controller.create_topics([NewTopic("t")]))
        await eventually_async(lambda: "t" in _image(boss).topics, "it is created")
        deleted = asyncio.create_task(boss.controller.delete_topics(["t"]))
        await eventually_async(lambda: "t" not in _image(boss).topics, "it is deleted")
        await asyncio.sleep(0.3)
        assert not deleted.done()
        read.set()
        (gone,) = await asyncio.wait_for(deleted, 60)
        assert gone.ok
        created.cancel()


def _image(node: Node) -> MetadataImage:
    active = node.controller.active
    assert active is not None
    return active.context.image


@on_loop
async def test_the_next_controller_waits_for_the_same_brokers(connect: str) -> None:
    async with Nodes(connect) as nodes:
        for broker_id in (1, 2, 3):
            await nodes.start(broker_id, controller=broker_id != 3)
        boss = await nodes.controller()
        late = nodes.alive[3]
        await boss.controller.create_topics([NewTopic("t", assignments={0: [late.id]})])
        late.silent = True
        deleted = asyncio.create_task(boss.controller.delete_topics(["t"]))
        await nodes.agree(lambda node: "t" not in node.metadata.topics)
        assert not deleted.done()
        boss.controller._resigned()
        (answer,) = await asyncio.wait_for(deleted, 60)
        assert answer.error is ErrorCode.NOT_CONTROLLER, "it has not seen all confirmations"
        await nodes.die(boss)
        successor = await nodes.controller()
        (early,) = await successor.controller.create_topics([NewTopic("t")])
        assert early.error is ErrorCode.TOPIC_ALREADY_EXISTS
        assert "marked for deletion" in str(early.message)
        late.silent = False

        await _created(successor, NewTopic("t"))
        assert await successor.real.children(znodes.DELETED_TOPICS) == []


# ---- answers about a deleted topic


LIVE = {BrokerId(broker_id): LiveBroker(4, 4) for broker_id in (1, 2, 3)}


def _state(epoch: int, leader: int) -> PartitionState:
    return PartitionState((1, 2), leader, epoch, (1, 2), epoch, 1, -1 if leader < 0 else 4, (4, 4), last_known_leader=1)


class Renewed:
    """A controller's image in which ``create`` creates a topic, again if there is one; ``during`` runs while others
    are asked about log ends, of which all but the leader epoch are good.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, leader_epoch: int) -> None:
        self.image = MetadataImage()
        brokers = {broker_id: SimpleNamespace(waives_leases=True) for broker_id in LIVE}
        config = SimpleNamespace(unclean_leader_election_enable=False)
        metadata = SimpleNamespace(brokers=brokers, topic_config=lambda name: config)
        self.context: Any = SimpleNamespace(image=self.image, live_brokers=LIVE, epoch=1, metadata=metadata)
        self.probes = LogEndProbes(self.context, None, None, 9, None)  # type: ignore[arg-type]
        self.during = lambda: None
        self.leads = True

        async def ask(peers: Any, broker_id: int, asked: Any, **options: Any) -> Any:
            self.during()
            answer = ReplicaEnd(ErrorCode.NONE, leader_epoch, LogEnd(0, 5), self.leads)
            return 4, {topic_id: {0: answer} for topic_id in asked}

        monkeypatch.setattr(ends, "ask", ask)

    def create(self, tp: TopicPartition, state: PartitionState) -> None:
        known, topic_id = self.image.topics.get(tp.topic), uuid.uuid4()
        changes = [TopicDeleted(tp.topic, known.id)] if known is not None else []
        new = TopicChanged(tp.topic, TopicZnode(topic_id, ((1, 2),)), 0)
        self.image.apply([*changes, new, StatesChanged(tp.topic, topic_id, {0: state})], MetadataDelta())


T = TopicPartition("t", 0)


def test_the_leader_of_a_deleted_topic_waives_no_lease_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = Renewed(monkeypatch, leader_epoch=0)
    renewed.create(T, _state(0, leader=1))
    assert asyncio.run(renewed.probes.ask_to_waive([T])) == [T]
    state = renewed.image.partition(T)
    assert state is not None
    assert renewed.probes.may_move(T, state)
    renewed.create(T, _state(0, leader=1))
    assert not renewed.probes.may_move(T, state)
    renewed.during = lambda: renewed.create(T, _state(0, leader=1))
    assert asyncio.run(renewed.probes.ask_to_waive([T])) == []
    assert not renewed.probes.may_move(T, state)


def test_a_broker_that_does_not_lead_yet_waives_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not know yet that it is registered again, and would lead with a lease that it has not waived."""
    renewed = Renewed(monkeypatch, leader_epoch=3)
    renewed.create(T, _state(3, leader=1))
    renewed.leads = False
    assert asyncio.run(renewed.probes.ask_to_waive([T])) == []
    renewed.create(T, _state(2, leader=1))
    assert asyncio.run(renewed.probes.ask_to_waive([T])) == [T], "it knows that its epoch is over"


def test_the_coordinator_of_a_deleted_topic_was_not_that_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = TopicPartition("__consumer_offsets", 0)
    renewed = Renewed(monkeypatch, leader_epoch=0)
    renewed.create(offsets, _state(12, leader=-1))
    renewed.probes.hear(offsets, _state(12, leader=-1))
    assert not renewed.probes.must_wait(offsets, _state(12, leader=-1))
    renewed.create(offsets, _state(1, leader=-1))
    assert renewed.probes.must_wait(offsets, _state(1, leader=-1))


def test_replicas_of_a_deleted_topic_do_not_stay_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = Renewed(monkeypatch, leader_epoch=0)
    remaining = RemainingReplicas(renewed.context, None, renewed.probes)  # type: ignore[arg-type]
    two = BrokerId(2)

    async def scenario() -> None:
        renewed.create(T, _state(0, leader=1))
        assert await remaining.ask({T: (two,)}) == [T]
        assert remaining.unconfirmed(T, [two]) == []
        renewed.create(T, _state(0, leader=1))
        assert remaining.unconfirmed(T, [two]) == [two]

    asyncio.run(scenario())


def test_logs_of_a_deleted_topic_elect_no_leader_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = Renewed(monkeypatch, leader_epoch=9)
    renewed.create(T, _state(9, leader=-1))
    answers = asyncio.run(renewed.probes._ask({BrokerId(1): {T: 9}, BrokerId(2): {T: 9}}))
    assert all(renewed.probes.is_present(T, found[T]) for _, found in answers.values())
    renewed.create(T, _state(1, leader=-1))
    assert renewed.probes._elections({broker_id: found for broker_id, (_, found) in answers.items()}) == ([], {})


# ---- deletions that stop half-way, and controllers that know too little


def _writes(kind: type[Create | Delete], path: str) -> Callable[[Sequence[Any]], bool]:
    return lambda operations: any(isinstance(one, kind) and one.path == path for one in operations)


@pytest.mark.parametrize("steps", [1, 2])
@on_loop
async def test_a_name_is_freed_though_its_request_failed(
    connect: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that no controller may write beside comes, and goes, behind the first write of a deletion."""
    written = _writes(Delete, znodes.topic_path("a")) if steps == 1 else _writes(Create, znodes.deleted_topic_path("a"))
    if steps == 2:
        monkeypatch.setattr(plans, "OPERATIONS_PER_WRITE", 6)
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        await boss.controller.create_topics([NewTopic("a", partitions=4, replication_factor=1), NewTopic("b")])

        def foreign(number: int, operations: Sequence[Any]) -> None:
            if written(operations):
                boss.metadata.foreign = "/brokers/ids/9 a foreign broker"

        boss.store.after_multi = foreign
        failed = await boss.controller.delete_topics(["a", "b"])
        assert all(outcome.error is ErrorCode.NOT_CONTROLLER for outcome in failed), failed
        boss.store.after_multi = lambda number, operations: None
        boss.metadata.foreign = None
        active = boss.controller.active
        assert active is not None
        await active.react()
        await _created(boss, NewTopic("a", partitions=4, replication_factor=1))
        (gone,) = await boss.controller.delete_topics(["a"])
        assert gone.ok
        assert await boss.real.children(znodes.DELETED_TOPICS) == []


@on_loop
async def test_a_mark_that_was_left_is_in_no_deletions_way(connect: str) -> None:
    """A controller of an older version does not know it, and lets the name be used again."""
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        await boss.controller.create_topics([NewTopic("t")])
        await boss.real.create(znodes.deleted_topic_path("t"), znodes.encode_delete_mark(uuid.uuid4()))
        multis: list[Sequence[Any]] = []
        boss.store.before_multi = lambda number, operations: multis.append(operations)
        (gone,) = await boss.controller.delete_topics(["t"])
        assert gone.ok
        assert len([one for one in multis if _writes(Delete, znodes.topic_path("t"))(one)]) == 1, "it was tried again"
        assert await boss.real.children(znodes.DELETED_TOPICS) == []


@on_loop
async def test_a_name_is_not_freed_before_its_mark_is_gone(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        await boss.controller.create_topics([NewTopic("t")])
        lost = asyncio.Event()

        def lose(number: int, operations: Sequence[Any]) -> None:
            if _writes(Delete, znodes.deleted_topic_path("t"))(operations):
                lost.set()
                raise UnknownOutcome("no answer")

        boss.store.before_multi = lose
        deleted = asyncio.create_task(boss.controller.delete_topics(["t"]))
        await lost.wait()
        await asyncio.sleep(0.3)
        assert not deleted.done()
        boss.store.before_multi = lambda number, operations: None
        (gone,) = await asyncio.wait_for(deleted, 60)
        assert gone.ok
        (made,) = await boss.controller.create_topics([NewTopic("t")])
        assert made.ok


@on_loop
async def test_the_next_controller_asks_brokers_that_it_reads_of_late(connect: str) -> None:
    """A leader whose registration its metadata cache lacks still when it becomes active."""
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        successor = await nodes.start(2)
        await nodes.controller()
        await nodes.start(4, controller=False)
        await nodes.agree(lambda node: 4 in node.metadata.brokers)
        read, reads = asyncio.Event(), successor.metadata._read_brokers

        async def slowly() -> Any:
            found = await reads()
            await read.wait()
            return found

        successor.metadata._read_brokers = slowly  # type: ignore[method-assign]
        await boss.controller.create_topics([NewTopic("warm")])  # a reading begins
        await asyncio.sleep(0.2)
        late = Node(connect, 3)
        late.neighbours = nodes.alive
        await late.start(controller=False)
        nodes.alive[3] = late
        await boss.metadata.wait_until(lambda: 3 in boss.metadata.brokers, 10_000)
        await boss.controller.create_topics([NewTopic("t", assignments={0: [3]})])
        assert await late.metadata.wait_until(lambda: "t" in late.metadata.topics, 10_000)
        late.silent = True
        deleted = asyncio.create_task(boss.controller.delete_topics(["t"]))
        assert await late.metadata.wait_until(lambda: "t" not in late.metadata.topics, 10_000)
        await nodes.die(boss)
        deleted.cancel()
        await eventually_async(
            lambda: (active := successor.controller.active) is not None and "t" in active.deletions,
            "it reads the marks",
        )
        await asyncio.sleep(0.3)
        successor.metadata._read_brokers = reads  # type: ignore[method-assign]
        read.set()
        await successor.metadata.wait_until(lambda: 3 in successor.metadata.brokers, 10_000)
        await eventually_async(lambda: successor.controller.is_active, "it is active")
        await asyncio.sleep(1)
        (early,) = await successor.controller.create_topics([NewTopic("t")])
        assert early.error is ErrorCode.TOPIC_ALREADY_EXISTS
        late.silent = False
        await _created(successor, NewTopic("t"))
