"""Controllers against a real ZooKeeper: topics made and unmade, brokers that die, controllers that die half-way."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlog.brokers.controller import plans, topic_commands
from fleetlog.brokers.controller.requests import NewPartitions, NewTopic
from fleetlog.brokers.controller.topic_commands import REMEMBERED_MS, read_known
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.image import MetadataImage
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, BrokerInfo, TopicPartition
from fleetlog.coordination.registration import incarnation_path, remove_record
from fleetlog.coordination.store import SetData, Store
from fleetlog.wire.errors import ErrorCode
from tests.support.clocks import RealClock
from tests.support.nodes import Nodes, lose_the_answer
from tests.support.stores import on_loop
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.zookeeper


@on_loop
async def test_topics_are_made_extended_and_unmade(connect: str) -> None:
    async with Nodes(connect) as nodes:
        for broker_id in (1, 2, 3):
            await nodes.start(broker_id)
        boss = await nodes.controller()
        (made,) = await boss.controller.create_topics([NewTopic("t", 6, 1, configs={"retention.ms": "-1"})])
        assert made.ok
        await nodes.agree(lambda node: "t" in node.metadata.topics)
        for node in nodes.alive.values():
            assert sorted(node.leaders("t")) == [1, 1, 2, 2, 3, 3]
            assert node.metadata.topics["t"].id == made.topic_id
            assert node.metadata.topic_config("t").retention_ms == -1
            assert node.state("t", 0).leader_incarnation == node.metadata.brokers[node.state("t", 0).leader].incarnation

        (again,) = await boss.controller.create_topics([NewTopic("t")])
        assert again.error is ErrorCode.TOPIC_ALREADY_EXISTS
        (more,) = await boss.controller.create_partitions([NewPartitions("t", 9)])
        assert more.ok
        await nodes.agree(lambda node: len(node.metadata.topics["t"].partitions) == 9)
        assert sorted(boss.leaders("t")) == [1] * 3 + [2] * 3 + [3] * 3

        assert made.topic_id is not None
        (gone,) = await boss.controller.delete_topics([made.topic_id])
        assert (gone.error, gone.name) == (ErrorCode.NONE, "t")
        await nodes.agree(
            lambda node: "t" not in node.metadata.topics and made.topic_id not in node.metadata.topic_names
        )
        assert await boss.real.exists(znodes.topic_path("t")) is None
        assert await boss.real.exists(znodes.config_path("topics", "t")) is None


@on_loop
async def test_each_topic_of_a_request_fails_by_itself(connect: str) -> None:
    async with Nodes(connect) as nodes:
        node = await nodes.start(1, num_partitions=3)
        await nodes.controller()
        wanted = {
            "ok": (NewTopic("ok"), ErrorCode.NONE),
            "bad name": (NewTopic("bad name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            "twice": (NewTopic("twice"), ErrorCode.INVALID_REQUEST),
            "config": (NewTopic("config", configs={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
            "null": (NewTopic("null", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
            "zero": (NewTopic("zero", partitions=0), ErrorCode.INVALID_PARTITIONS),
            "factor": (NewTopic("factor", replication_factor=2), ErrorCode.INVALID_REPLICATION_FACTOR),
            "huge": (NewTopic("huge", partitions=10_001), ErrorCode.POLICY_VIOLATION),
            "huge-assigned": (
                NewTopic("huge-assigned", -1, -1, {index: [1] for index in range(10_001)}),
                ErrorCode.POLICY_VIOLATION,
            ),
            "both": (NewTopic("both", 1, assignments={0: [1]}), ErrorCode.INVALID_REQUEST),
            "stranger": (NewTopic("stranger", assignments={0: [7]}), ErrorCode.INVALID_REPLICATION_ASSIGNMENT),
            "manual": (NewTopic("manual", assignments={0: [1], 1: [1]}), ErrorCode.NONE),
            "again": (
                NewTopic("again", assignments={0: [1], 1: [1]}, assigned_twice=1),
                ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
            ),
        }
        topics = [new for new, _ in wanted.values()] + [NewTopic("twice")]
        outcomes = await node.controller.create_topics(topics)
        assert [o.name for o in outcomes] == [t.name for t in topics]
        for outcome in outcomes:
            assert outcome.error is wanted[outcome.name][1], outcome
            assert outcome.ok == (outcome.message is None)
        assert sorted(node.metadata.topics) == ["manual", "ok"]
        assert len(node.metadata.topics["ok"].partitions) == 3

        (clash,) = await node.controller.create_topics([NewTopic("a.b")])
        assert clash.ok
        (clash,) = await node.controller.create_topics([NewTopic("a_b")])
        assert clash.error is ErrorCode.INVALID_TOPIC_EXCEPTION
        outcomes = await node.controller.delete_topics(["nope", uuid.UUID(int=5)])
        assert [o.error for o in outcomes] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID]
        refusals = [
            (NewPartitions("nope", 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (NewPartitions("manual", 2), ErrorCode.INVALID_PARTITIONS),
            (NewPartitions("manual", 1), ErrorCode.INVALID_PARTITIONS),
            (NewPartitions("manual", 4, [[1]]), ErrorCode.INVALID_REPLICATION_ASSIGNMENT),
            (NewPartitions("manual", 3, [[2]]), ErrorCode.INVALID_REPLICATION_ASSIGNMENT),
        ]
        for new, error in refusals:
            (outcome,) = await node.controller.create_partitions([new])
            assert outcome.error is error


@on_loop
async def test_topics_are_made_while_a_broker_is_away(connect: str) -> None:
    """As Kafka 4 places on fenced brokers: a rolling restart refuses nothing."""
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1, rack="a")
        await nodes.start(2, controller=False, rack="b")
        away = await nodes.start(3, controller=False, rack="c")
        await nodes.controller()
        await nodes.die(away)
        await nodes.agree(lambda node: set(node.metadata.brokers) == {1, 2})
        wanted = [
            NewTopic("t", 4, 3),
            NewTopic("manual", assignments={0: [3, 1]}),
            NewTopic("unassigned", assignments={0: [3]}),
            NewTopic("many", 1, 4),
        ]
        made, manual, unassigned, many = await boss.controller.create_topics(wanted)
        assert (made.ok, manual.ok) == (True, True)
        assert (unassigned.error, many.error) == (
            ErrorCode.INVALID_REPLICATION_ASSIGNMENT, ErrorCode.INVALID_REPLICATION_FACTOR,
        )  # fmt: skip
        assert "larger than available brokers: 2, plus 1 absent" in (many.message or "")
        for index in range(4):
            state = boss.state("t", index)
            assert (set(state.replicas), state.replicas[-1], set(state.isr)) == ({1, 2, 3}, 3, {1, 2})
        state = boss.state("manual", 0)
        assert (state.replicas, state.isr, state.leader) == ((3, 1), (1,), 1)
        (more,) = await boss.controller.create_partitions([NewPartitions("t", 5)])
        assert more.ok
        assert set(boss.state("t", 4).replicas) == {1, 2, 3}


@on_loop
async def test_a_controller_refuses_nothing_from_memory_without_its_lease(connect: str) -> None:
    """Its loop stood still, say: another broker may be the controller, and have made the topic."""
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        lease: Any = boss.store.lease
        boss.store.lease = SimpleNamespace(valid=lambda: False)  # type: ignore[assignment]
        (deleted,) = await boss.controller.delete_topics([uuid.uuid4()], timeout_ms=100)
        assert deleted.error is ErrorCode.NOT_CONTROLLER
        moved = await boss.controller.alter_reassignments({TopicPartition("t", 0): [1]}, timeout_ms=100)
        assert [error for error, _ in moved.values()] == [ErrorCode.NOT_CONTROLLER]
        (made,) = await boss.controller.create_topics([NewTopic("t")])
        assert made.ok, "what is written is certain"
        waits = asyncio.create_task(boss.controller.create_topics([NewTopic("t")]))
        await asyncio.sleep(0.1)
        assert not waits.done()
        boss.store.lease = lease
        assert [one.error for one in await waits] == [ErrorCode.TOPIC_ALREADY_EXISTS]


@pytest.mark.parametrize("another_leaves", [False, True])
@on_loop
async def test_a_broker_comes_back_while_topics_are_placed(
    connect: str, monkeypatch: pytest.MonkeyPatch, another_leaves: bool
) -> None:
    """The known brokers are read once per request; which of them are registered may change until they are used."""
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        leaves = await nodes.start(2, controller=False)
        await nodes.controller()
        await nodes.die(await nodes.start(3, controller=False))
        await nodes.agree(lambda node: set(node.metadata.brokers) == {1, 2})

        async def meanwhile(store: Store, image: MetadataImage, now_ms: int) -> list[BrokerInfo]:
            known = await read_known(store, image, now_ms)
            await nodes.start(3, controller=False)
            if another_leaves:
                await nodes.die(leaves)
            registered = {1, 3} if another_leaves else {1, 2, 3}
            await eventually_async(lambda: set(boss.metadata.brokers) == registered, f"brokers {registered} registered")
            return known

        monkeypatch.setattr(topic_commands, "read_known", meanwhile)
        (made,) = await boss.controller.create_topics([NewTopic("t", 2, 3)])
        assert made.ok, made.message
        assert [set(boss.state("t", index).replicas) for index in range(2)] == [{1, 2, 3}] * 2


@on_loop
async def test_a_broker_that_left_long_ago_and_holds_nothing_is_forgotten(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        gone = await nodes.start(2, controller=False)
        await nodes.controller()
        (made,) = await boss.controller.create_topics([NewTopic("held", assignments={0: [1, 2]})])
        assert made.ok
        await nodes.die(gone)
        await nodes.agree(lambda node: set(node.metadata.brokers) == {1})
        now_ms, nothing, image = RealClock().wall_ms(), MetadataImage(), boss.metadata.snapshot()
        later_ms = now_ms + REMEMBERED_MS + 60_000
        assert [b.id for b in await read_known(boss.real, nothing, now_ms)] == [1, 2]
        assert await read_known(boss.real, nothing, later_ms) == []
        assert [b.id for b in await read_known(boss.real, image, later_ms)] == [1, 2], "they hold a replica"
        _, found = await read_known(boss.real, image, now_ms)
        assert (found.incarnation, found.domain) == (1, "127.0.0.1")
        assert await remove_record(boss.real, 2)
        assert [b.id for b in await read_known(boss.real, nothing, now_ms)] == [1], "it was unregistered"
        assert [b.id for b in await read_known(boss.real, image, now_ms)] == [1, 2], "it holds a replica"


@on_loop
async def test_what_a_request_creates_has_a_bound_over_all_its_topics(connect: str) -> None:
    async with Nodes(connect) as nodes:
        await nodes.start(1, num_partitions=3)
        boss = await nodes.controller()
        wanted = [NewTopic(f"t{i}", 1_000) for i in range(10)] + [NewTopic("one more")]
        for validate_only in (True, False):
            outcomes = await boss.controller.create_topics(wanted, validate_only=validate_only)
            assert {outcome.error for outcome in outcomes} == {ErrorCode.POLICY_VIOLATION}
            assert "10003, at most 10000" in str(outcomes[0].message)
        by_hand = NewTopic("by-hand", assignments=dict.fromkeys(range(5001), (1,)))
        outcomes = await boss.controller.create_topics([by_hand, NewTopic("beside", 5_000)])
        assert {outcome.error for outcome in outcomes} == {ErrorCode.POLICY_VIOLATION}
        assert all(outcome.ok for outcome in await boss.controller.create_topics(wanted[:10], validate_only=True))
        assert all(outcome.ok for outcome in await boss.controller.create_topics([NewTopic("a"), NewTopic("b")]))
        more = [NewPartitions("a", 5_003), NewPartitions("b", 5_004)]
        outcomes = await boss.controller.create_partitions(more)
        assert {outcome.error for outcome in outcomes} == {ErrorCode.POLICY_VIOLATION}


@on_loop
async def test_no_further_topic_is_begun_for_a_client_that_has_gone(connect: str) -> None:
    async with Nodes(connect) as nodes:
        await nodes.start(1)
        boss = await nodes.controller()

        def gone() -> bool:
            assert boss.controller.active is not None
            return "b" in boss.controller.active.context.image.topics

        wanted = [NewTopic(name) for name in "abcd"]
        outcomes = await boss.controller.create_topics(wanted, gone=gone)
        assert [outcome.ok for outcome in outcomes] == [True, True, False, False]
        assert outcomes[-1].error is ErrorCode.REQUEST_TIMED_OUT
        assert "c" not in boss.metadata.topics
        (left,) = await boss.controller.delete_topics(["a"], gone=lambda: True)
        assert left.error is ErrorCode.REQUEST_TIMED_OUT
        assert "a" in boss.metadata.topics


@on_loop
async def test_validate_only_makes_nothing(connect: str) -> None:
    async with Nodes(connect) as nodes:
        node = await nodes.start(1)
        await nodes.controller()
        before = node.store.multis
        good, bad = await node.controller.create_topics([NewTopic("t", 4), NewTopic("u", 0)], validate_only=True)
        assert good.ok
        assert good.topic is not None
        assert len(good.topic.partitions) == 4
        assert bad.error is ErrorCode.INVALID_PARTITIONS
        assert node.store.multis == before
        assert await node.real.exists(znodes.topic_path("t")) is None


@on_loop
async def test_others_say_not_controller(connect: str) -> None:
    async with Nodes(connect) as nodes:
        for broker_id in (1, 2):
            await nodes.start(broker_id)
        boss = await nodes.controller()
        other = next(node for node in nodes.alive.values() if node is not boss)
        await nodes.agree(lambda node: node.metadata.controller_id == boss.id)
        for outcome in (
            *await other.controller.create_topics([NewTopic("t"), NewTopic("u")]),
            *await other.controller.delete_topics(["t"]),
            *await other.controller.create_partitions([NewPartitions("t", 2)]),
        ):
            assert outcome.error is ErrorCode.NOT_CONTROLLER


@on_loop
async def test_a_request_waits_until_the_elected_controller_is_active(connect: str) -> None:
    """Metadata names the winner of the election at once; a request that comes before it is ready must not fail."""
    async with Nodes(connect) as nodes:
        node = await nodes.start(1, controller=False)
        asked = asyncio.create_task(node.controller.create_topics([NewTopic("t")], timeout_ms=60_000))
        await asyncio.sleep(0.05)
        assert not asked.done()
        node.controller.start()
        (made,) = await asked
        assert made.ok


@on_loop
async def test_a_dead_brokers_partitions_go_offline_and_come_back_with_it(connect: str) -> None:
    async with Nodes(connect) as nodes:
        for broker_id in (1, 2, 3):
            await nodes.start(broker_id)
        boss = await nodes.controller()
        victim = next(node for node in nodes.alive.values() if node is not boss)
        (made,) = await boss.controller.create_topics([NewTopic("t", 3)])
        assert made.ok
        await nodes.agree(lambda node: "t" in node.metadata.topics)
        index = boss.leaders("t").index(victim.id)
        before = boss.state("t", index)
        await nodes.die(victim)
        await nodes.agree(lambda node: node.state("t", index).leader == -1)
        dead = boss.state("t", index)
        assert (dead.leader_epoch, dead.isr) == (before.leader_epoch + 1, (victim.id,))
        assert sorted(boss.leaders("t")) == sorted({-1, 1, 2, 3} - {victim.id})

        back = await nodes.start(victim.id)
        assert back.incarnation == victim.incarnation + 1
        await nodes.agree(lambda node: "t" in node.metadata.topics and node.state("t", index).leader == victim.id)
        led = boss.state("t", index)
        assert (led.leader_epoch, led.leader_incarnation) == (dead.leader_epoch + 1, back.incarnation)
        assert back.asked >= 1, "it came back without its tail, so its log was looked at"


@on_loop
async def test_a_broker_that_bounces_unnoticed_is_elected_anew(connect: str) -> None:
    """Its ephemeral is replaced before the controller reads it: only czxid and incarnation show the restart."""
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        other = await nodes.start(2)
        await nodes.agree(lambda node: set(node.metadata.brokers) == {1, 2})
        (made,) = await boss.controller.create_topics([NewTopic("t", 2)])
        assert made.ok
        index = boss.leaders("t").index(2)
        first = boss.state("t", index)
        await boss.metadata.stop()  # the controller's broker sees nothing of what comes
        await nodes.die(other)
        again = await nodes.start(2, controller=False)
        await boss.metadata.start()
        await nodes.agree(lambda node: node.state("t", index).leader_incarnation == again.incarnation)
        assert boss.state("t", index).leader_epoch == first.leader_epoch + 2, (
            "there was no leader before its log was looked at"
        )
        assert again.asked >= 1


@on_loop
async def test_a_dead_controller_is_replaced(connect: str) -> None:
    async with Nodes(connect) as nodes:
        for broker_id in (1, 2, 3):
            await nodes.start(broker_id)
        boss = await nodes.controller()
        (made,) = await boss.controller.create_topics([NewTopic("t", 3)])
        assert made.ok
        epoch = boss.controller.epoch
        await nodes.die(boss)
        successor = await nodes.controller()
        assert successor is not boss
        assert successor.controller.epoch == epoch + 1
        await nodes.agree(lambda node: node.metadata.controller_id == successor.id)
        await nodes.agree(lambda node: sorted(node.leaders("t")) == sorted({-1, 1, 2, 3} - {boss.id}))
        (made,) = await successor.controller.create_topics([NewTopic("u", 2)])
        assert made.ok
        await nodes.agree(lambda node: "u" in node.metadata.topics)


@on_loop
async def test_a_clean_stop_hands_over_at_once(connect: str) -> None:
    async with Nodes(connect) as nodes:
        for broker_id in (1, 2):
            await nodes.start(broker_id)
        boss = await nodes.controller()
        await boss.controller.stop()
        successor = await nodes.controller()
        assert successor is not boss
        (refused,) = await boss.controller.create_topics([NewTopic("t")])
        assert refused.error is ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not-applied"])
@on_loop
async def test_unknown_outcomes_are_decided_by_reading(connect: str, applied: bool) -> None:
    """The answer of every first attempt is lost, with the write done or not; each command succeeds exactly once."""
    async with Nodes(connect) as nodes:
        node = await nodes.start(1)
        await nodes.controller()

        def lose_next() -> None:
            number = node.store.multis + 1

            def lose(at: int, operations: object) -> None:
                if at == number:
                    lose_the_answer(at, [])

            if applied:
                node.store.after_multi = lose
            else:
                node.store.before_multi = lose

        lose_next()
        (made,) = await node.controller.create_topics([NewTopic("t", 2)])
        assert made.ok
        assert made.topic_id == node.metadata.topics["t"].id
        lose_next()
        (more,) = await node.controller.create_partitions([NewPartitions("t", 5)])
        assert more.ok
        assert len(node.metadata.topics["t"].partitions) == 5
        lose_next()
        (gone,) = await node.controller.delete_topics(["t"])
        assert gone.ok
        assert "t" not in node.metadata.topics
        entries = [
            change
            for name in await node.real.children(znodes.CHANGES)
            for change in znodes.decode_changes(name, (await node.real.get(f"{znodes.CHANGES}/{name}"))[0])
        ]
        assert sum(isinstance(change, znodes.TopicDeleted) for change in entries) == 1
        assert sum(isinstance(change, znodes.TopicChanged) for change in entries) == 2


@pytest.mark.parametrize("command", ["create", "extend", "delete"])
@pytest.mark.parametrize("writes_before_death", [1, 2])
@on_loop
async def test_a_successor_finishes_what_was_half_done(connect: str, command: str, writes_before_death: int) -> None:
    """The controller dies between the multis of one command; the next one completes it without being asked."""
    per_write = plans.OPERATIONS_PER_WRITE // 2
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        other = await nodes.start(2)
        many = per_write * 3
        if command != "create":
            small = NewTopic("t", 2 if command == "extend" else many)
            (made,) = await boss.controller.create_topics([small])
            assert made.ok
        await nodes.agree(lambda node: set(node.metadata.brokers) == {1, 2})
        died = asyncio.Event()
        last = boss.store.multis + writes_before_death

        def crash(number: int, _operations: object) -> None:
            if number > last:
                died.set()
                raise asyncio.CancelledError

        boss.store.before_multi = crash
        work = {
            "create": lambda: boss.controller.create_topics([NewTopic("t", many)]),
            "extend": lambda: boss.controller.create_partitions([NewPartitions("t", many)]),
            "delete": lambda: boss.controller.delete_topics(["t"]),
        }[command]
        running = asyncio.create_task(work())
        await died.wait()
        running.cancel()
        await nodes.die(boss)
        successor = await nodes.controller()
        assert successor is other
        if command == "delete":
            await eventually_async(lambda: "t" not in successor.metadata.topics, "the topic is deleted")
            assert await successor.real.exists(znodes.topic_path("t")) is None
            assert await successor.real.exists(znodes.delete_topic_path("t")) is None
            assert await successor.real.exists(znodes.config_path("topics", "t")) is None
            (made,) = await successor.controller.create_topics([NewTopic("t", 1)])
            assert made.ok
        else:

            def whole() -> bool:
                topic = successor.metadata.topics.get("t")
                return topic is not None and all(state.partition_epoch >= 0 for state in topic.partitions)

            await eventually_async(whole, "each partition has its state")
            assert len(successor.metadata.topics["t"].partitions) == many
            await eventually_async(lambda: set(successor.leaders("t")) <= {2, -1}, "no replica that is gone leads")
            assert successor.leaders("t").count(2) > many // 3


@on_loop
async def test_a_deposed_controller_writes_nothing(connect: str) -> None:
    """The controller is paused while another is elected: its next write fails on the epoch."""
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        # another broker was elected meanwhile, unseen by the sleeper
        data, stat = await boss.real.get(znodes.CONTROLLER_EPOCH)
        await boss.real.set(znodes.CONTROLLER_EPOCH, str(int(data) + 1).encode(), stat.version)
        assert boss.controller.is_active
        (refused,) = await boss.controller.create_topics([NewTopic("t")])
        assert refused.error is ErrorCode.NOT_CONTROLLER
        assert not boss.controller.is_active
        assert await boss.real.exists(znodes.topic_path("t")) is None


@on_loop
async def test_an_election_relies_only_on_the_incarnation_it_saw(connect: str) -> None:
    """The incarnation changes between the decision and the write: the write fails, and the next decision is right."""
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        path = incarnation_path(1)
        stat = await boss.real.exists(path)
        assert stat is not None
        await boss.real.set(path, b"", stat.version)  # as if broker 1 registered anew this very moment
        creating = asyncio.create_task(boss.controller.create_topics([NewTopic("t")], timeout_ms=20_000))
        await asyncio.sleep(0.3)
        assert await boss.real.exists(znodes.topic_path("t")) is None, (
            "no leader may be elected in an incarnation that is over"
        )
        creating.cancel()


@on_loop
async def test_many_elections_go_in_bounded_writes(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        other = await nodes.start(2, controller=False)
        await nodes.agree(lambda node: set(node.metadata.brokers) == {1, 2})
        (made,) = await boss.controller.create_topics([NewTopic("t", 2_000)], timeout_ms=60_000)
        assert made.ok
        assert boss.leaders("t").count(2) == 1_000
        sizes: list[int] = []
        boss.store.before_multi = lambda number, operations: sizes.append(
            sum(isinstance(operation, SetData) for operation in operations)
        )
        await nodes.die(other)
        await nodes.agree(lambda node: node.leaders("t").count(-1) == 1_000)
        assert sum(sizes) == 1_000
        assert max(sizes) <= plans.OPERATIONS_PER_WRITE
        (gone,) = await boss.controller.delete_topics(["t"], timeout_ms=60_000)
        assert gone.ok


@on_loop
async def test_internal_topics_have_their_own_settings(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1, offsets_topic_num_partitions=7, offsets_topic_replication_factor=1)
        await nodes.controller()
        errors = await asyncio.gather(
            *(boss.controller.auto_create([GROUP_METADATA_TOPIC, "auto", "bad name"], 60_000) for _ in range(5))
        )
        for error in errors:
            assert error == {
                GROUP_METADATA_TOPIC: ErrorCode.NONE,
                "auto": ErrorCode.NONE,
                "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
            }
        assert len(boss.metadata.topics[GROUP_METADATA_TOPIC].partitions) == 7
        assert boss.metadata.topic_config(GROUP_METADATA_TOPIC).cleanup_policy == ("compact",)
        assert boss.metadata.topic_config("auto").cleanup_policy == ("delete",)
        assert await boss.controller.auto_create(["auto"], 60_000) == {"auto": ErrorCode.NONE}
        names = [f"more-{i}" for i in range(boss.metadata.static.auto_create_topics_max_pending + 1)]
        found = await boss.controller.auto_create(names, 1)
        assert len(boss.controller._auto._creating) == len(names) - 1
        assert found[names[-1]] is ErrorCode.REQUEST_TIMED_OUT
