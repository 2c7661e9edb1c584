"""Moves of replicas against a real ZooKeeper: brought on by leaders, taken over by the next controller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fleetlog.brokers.controller import move_commands, plans
from fleetlog.brokers.controller.requests import NewPartitions, NewTopic
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, TopicPartition
from fleetlog.coordination.store import Operation
from fleetlog.wire.errors import ErrorCode
from tests.support.nodes import PATIENCE_MS, Node, Nodes, lose_the_answer
from tests.support.stores import on_loop
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.zookeeper

T0 = TopicPartition("t", 0)
OK = (ErrorCode.NONE, None)


async def fleet(nodes: Nodes, *ids: int, topic: NewTopic) -> Node:
    boss = await nodes.start(1)
    await nodes.controller()
    for broker_id in ids:
        await nodes.start(broker_id)
    await nodes.agree(lambda node: set(node.metadata.brokers) == {1, *ids})
    (made,) = await boss.controller.create_topics([topic], timeout_ms=60_000)
    assert made.ok, made
    await nodes.agree(lambda node: topic.name in node.metadata.topics)
    return boss


def on(*replicas: int, name: str = "t") -> NewTopic:
    return NewTopic(name, assignments={0: replicas})


@on_loop
async def test_replicas_move_while_leaders_take_them_in(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, 4, topic=on(1, 2))
        alter = boss.controller.alter_reassignments
        assert await alter({T0: [3, 4]}) == {T0: OK}
        moving = boss.state("t", 0)
        assert (moving.replicas, moving.adding, moving.removing) == ((3, 4, 1, 2), (3, 4), (1, 2))
        assert (moving.leader, moving.isr) == (1, (1, 2))
        await boss.join(T0, 3)
        await nodes.agree(lambda node: node.state("t", 0).isr == (1, 2, 3))
        assert boss.state("t", 0).adding == (3, 4)
        await boss.join(T0, 4)
        await nodes.agree(lambda node: node.state("t", 0).replicas == (3, 4))
        done = boss.state("t", 0)
        assert (done.leader, set(done.isr), done.adding, done.removing) == (3, {3, 4}, (), ())
        data, _stat = await boss.real.get(znodes.topic_path("t"))
        written = znodes.decode_topic(znodes.topic_path("t"), data)
        assert (written.assignment, dict(written.adding), dict(written.removing)) == (((3, 4),), {}, {})


@on_loop
async def test_no_replicas_while_a_broker_cannot_follow(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, topic=on(1))
        old = await nodes.start(3, registered=False)
        old.old = True
        await old.register()
        await nodes.agree(lambda node: 3 in node.metadata.brokers)
        wanted = [NewTopic("many", 1, 2), on(1, 2, name="named"), on(3, name="single")]
        many, named, single = await boss.controller.create_topics(wanted)
        assert (many.error, named.error) == (ErrorCode.INVALID_REPLICATION_FACTOR,) * 2
        assert "broker(s) 3 run a version without replication" in (many.message or "")
        assert single.ok
        (error, message) = (await boss.controller.alter_reassignments({T0: [1, 2]}))[T0]
        assert (error, "Upgrade them first" in (message or "")) == (ErrorCode.INVALID_REPLICATION_FACTOR, True)
        assert boss.state("t", 0).replicas == (1,)
        await nodes.die(old)
        await nodes.start(3)
        await nodes.agree(lambda node: 3 in node.metadata.brokers and node.metadata.brokers[3].replicates)
        assert await boss.controller.alter_reassignments({T0: [1, 2]}) == {T0: OK}


@on_loop
async def test_factors_grow_and_shrink(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, topic=NewTopic("t", 3, 1))
        tps = [TopicPartition("t", i) for i in range(3)]
        assert await boss.controller.alter_reassignments({tp: [1, 2, 3] for tp in tps}) == dict.fromkeys(tps, OK)
        more = await boss.controller.create_partitions([NewPartitions("t", 4)])
        assert more[0].ok
        assert len(boss.state("t", 3).replicas) == 3
        assert boss.state("t", 0).adding == (2, 3), "a topic that grows keeps its moves"
        for tp in tps:
            leader = nodes.alive[boss.state("t", tp.partition).leader]
            await leader.join(tp, 1, 2, 3)
        await nodes.agree(lambda node: not any(s.adding for s in node.metadata.topics["t"].partitions))
        assert all(set(state.isr) == {1, 2, 3} for state in boss.metadata.topics["t"].partitions)
        everything = [*tps, TopicPartition("t", 3)]
        assert set((await boss.controller.alter_reassignments({tp: [2] for tp in everything})).values()) == {OK}
        await nodes.agree(lambda node: all(s.replicas == (2,) for s in node.metadata.topics["t"].partitions))
        assert boss.leaders("t") == [2] * 4
        assert all(state.isr == (2,) for state in boss.metadata.topics["t"].partitions)


@on_loop
async def test_each_partition_is_answered_for_itself(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, topic=NewTopic("t", 3, 1))
        tps = [TopicPartition("t", i) for i in range(5)]
        results = await boss.controller.alter_reassignments(
            {tps[0]: [1, 2], tps[1]: None, tps[2]: [9], tps[3]: [1], TopicPartition("no", 0): [1]}
        )
        assert {tp: error for tp, (error, _) in results.items()} == {
            tps[0]: ErrorCode.NONE,
            tps[1]: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            tps[2]: ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
            tps[3]: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            TopicPartition("no", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        other = nodes.alive[2].controller
        assert (await other.alter_reassignments({T0: None}))[T0][0] is ErrorCode.NOT_CONTROLLER
        assert await boss.controller.alter_reassignments({T0: None}) == {T0: OK}
        await nodes.agree(lambda node: node.state("t", 0).replicas == (1,))
        assert boss.state("t", 0).adding == ()


@on_loop
async def test_the_next_controller_continues(connect: str) -> None:
    """One controller starts the move, and the last replica catches up while there is no controller."""
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, topic=on(2, 1))
        assert await boss.controller.alter_reassignments({T0: [2, 3]}) == {T0: OK}
        await nodes.agree(lambda node: node.state("t", 0).adding == (3,))
        await nodes.die(boss)
        second = nodes.alive[2]
        await second.join(T0, 3)
        await nodes.controller()
        await nodes.agree(lambda node: node.state("t", 0).replicas == (2, 3))
        done = second.state("t", 0)
        assert (done.leader, done.isr, done.adding, done.removing) == (2, (2, 3), (), ())


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not-applied"])
@on_loop
async def test_unknown_outcomes_are_decided_by_reading(connect: str, applied: bool) -> None:
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, topic=on(1))

        def lose_next() -> None:
            number = boss.store.multis + 1

            def lose(at: int, operations: object) -> None:
                if at == number:
                    lose_the_answer(at, [])

            if applied:
                boss.store.after_multi = lose
            else:
                boss.store.before_multi = lose

        lose_next()
        assert await boss.controller.alter_reassignments({T0: [1, 2]}) == {T0: OK}
        assert boss.state("t", 0).adding == (2,)
        lose_next()
        assert await boss.controller.alter_reassignments({T0: None}) == {T0: OK}
        assert boss.state("t", 0).replicas == (1,)
        assert await boss.controller.alter_reassignments({T0: [2]}) == {T0: OK}
        lose_next()
        await boss.join(T0, 2)
        await nodes.agree(lambda node: node.state("t", 0).replicas == (2,))
        lose_next()
        assert (await boss.controller.elect_leaders([T0], unclean=False))[T0][0] is ErrorCode.ELECTION_NOT_NEEDED


@on_loop
async def test_another_leads_only_when_a_live_leader_has_waived_its_lease(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, topic=on(2, 3))
        leader = nodes.alive[2]
        leader.silent = True
        assert await boss.controller.alter_reassignments({T0: [1, 3]}) == {T0: OK}
        await leader.join(T0, 1)
        await nodes.agree(lambda node: node.state("t", 0).isr == (2, 3, 1))
        ((error, text),) = (await boss.controller.elect_leaders([T0], unclean=False)).values()
        assert (error, text is not None and "leader 2 does not answer" in text) == (ErrorCode.REQUEST_TIMED_OUT, True)
        assert (boss.state("t", 0).leader, leader.waived) == (2, [])
        leader.silent = False
        await nodes.agree(lambda node: node.state("t", 0).replicas == (1, 3))
        assert (boss.leaders("t"), T0 in leader.waived) == ([1], True)


@on_loop
async def test_a_silent_leader_is_replaced_when_its_session_ends(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, topic=on(2, 3))
        leader = nodes.alive[2]
        leader.silent = True
        assert await boss.controller.alter_reassignments({T0: [1, 3]}) == {T0: OK}
        await leader.join(T0, 1)
        await nodes.agree(lambda node: 1 in node.state("t", 0).isr)
        await nodes.die(leader)
        await nodes.agree(lambda node: node.state("t", 0).leader in (1, 3))
        assert leader.waived == []


@on_loop
async def test_a_coordinators_partition_moves_when_its_leader_has_confirmed(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, topic=on(2, 3, name=GROUP_METADATA_TOPIC))
        tp = TopicPartition(GROUP_METADATA_TOPIC, 0)
        nodes.alive[2].silent = True
        assert await boss.controller.alter_reassignments({tp: [1, 3]}) == {tp: OK}
        await nodes.alive[2].join(tp, 1)
        await nodes.agree(lambda node: node.state(tp.topic, 0).leader == -1)
        await asyncio.sleep(0.3)
        assert boss.state(tp.topic, 0).removing == (2,)
        assert boss.state(tp.topic, 0).leader == -1
        nodes.alive[2].silent = False
        await nodes.agree(lambda node: node.state(tp.topic, 0).replicas == (1, 3))
        assert (boss.leaders(tp.topic), set(boss.state(tp.topic, 0).isr)) == ([1], {1, 3})


@on_loop
async def test_replicas_are_removed_when_those_that_stay_answer(connect: str) -> None:
    """One whose power has failed stays in the in-sync set until its session ends: the third copy is the last one."""
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, topic=on(2, 3, 1))
        staying = nodes.alive[3]
        staying.silent = True
        assert await boss.controller.alter_reassignments({T0: [2, 3]}) == {T0: OK}
        await asyncio.sleep(0.3)
        waiting = boss.state("t", 0)
        assert (waiting.replicas, waiting.removing, waiting.isr) == ((2, 3, 1), (1,), (2, 3, 1))
        assert boss.controller.work().silent_brokers == (3,)
        staying.silent = False
        await nodes.agree(lambda node: node.state("t", 0).replicas == (2, 3))
        assert boss.state("t", 0).isr == (2, 3)
        assert boss.controller.work().silent_brokers == ()


@pytest.mark.parametrize("loss", ["log", "incarnation"])
@on_loop
async def test_an_answer_counts_only_with_a_log_and_of_the_registered_incarnation(connect: str, loss: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, topic=on(2, 3, 1))
        staying = nodes.alive[3]
        known = staying.incarnation
        if loss == "incarnation":
            staying.incarnation += 1  # it has started again, and its registration is not seen yet
        else:
            staying.offline.add(T0)
        assert await boss.controller.alter_reassignments({T0: [2, 3]}) == {T0: OK}
        await asyncio.sleep(0.3)
        assert boss.state("t", 0).removing == (1,)
        staying.incarnation = known
        staying.offline.clear()
        await nodes.agree(lambda node: node.state("t", 0).replicas == (2, 3))


@on_loop
async def test_a_move_is_not_cancelled_while_those_that_stay_are_silent(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, 4, topic=on(2))
        assert await boss.controller.alter_reassignments({T0: [3, 4]}) == {T0: OK}
        await nodes.alive[2].join(T0, 3)
        await nodes.agree(lambda node: node.state("t", 0).isr == (2, 3))
        nodes.alive[2].silent = True
        ((error, text),) = (await boss.controller.alter_reassignments({T0: None})).values()
        assert (error, text is not None and "[2] are to keep the data" in text) == (ErrorCode.REQUEST_TIMED_OUT, True)
        assert boss.state("t", 0).isr == (2, 3)
        nodes.alive[2].silent = False
        assert await boss.controller.alter_reassignments({T0: None}) == {T0: OK}
        assert (boss.state("t", 0).replicas, boss.state("t", 0).isr) == ((2,), (2,))


@pytest.mark.parametrize("target", [None, [2, 3, 5]], ids=["cancelled", "replaced"])
@on_loop
async def test_no_move_ends_while_the_copy_that_it_drops_may_be_the_last(
    connect: str, target: list[int] | None
) -> None:
    """All in sync have died; two are back without their tails, and the third one, which the move added, is away."""
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, 4, 5, topic=on(2, 3))
        assert await boss.controller.alter_reassignments({T0: [4, 5]}) == {T0: OK}
        await nodes.alive[2].join(T0, 4)
        await nodes.agree(lambda node: set(node.state("t", 0).isr) == {2, 3, 4})
        assert boss.controller.active is not None
        async with boss.controller.active.context.lock:
            for broker_id in (2, 3, 4):
                await nodes.die(nodes.alive[broker_id])
            assert await boss.metadata.wait_until(lambda: set(boss.metadata.brokers) == {1, 5}, PATIENCE_MS)
        await nodes.agree(lambda node: node.state("t", 0).leader == -1)
        for broker_id in (2, 3):
            await nodes.start(broker_id)
        await nodes.agree(lambda node: {2, 3} <= set(node.metadata.brokers))
        ((error, text),) = (await boss.controller.alter_reassignments({T0: target})).values()
        assert (error, "Replicas [2, 3] would keep the data" in (text or "")) == (
            ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
            True,
        )
        assert 4 in boss.state("t", 0).replicas


@on_loop
async def test_an_answer_counts_only_for_a_while(connect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, 4, 5, topic=on(2, 5))
        assert await boss.controller.alter_reassignments({T0: [3, 4]}) == {T0: OK}
        await nodes.alive[2].join(T0, 3)
        await nodes.agree(lambda node: node.state("t", 0).isr == (2, 5, 3))
        nodes.alive[5].silent = True
        ((error, text),) = (await boss.controller.alter_reassignments({T0: None})).values()
        assert (error, "Replicas [5] are to keep" in (text or "")) == (ErrorCode.REQUEST_TIMED_OUT, True)
        nodes.alive[5].silent, nodes.alive[2].silent = False, True
        monkeypatch.setattr(move_commands, "FRESH_SECONDS", 0.2)
        await asyncio.sleep(0.3)
        ((error, text),) = (await boss.controller.alter_reassignments({T0: None})).values()
        assert (error, "Replicas [2" in (text or "")) == (ErrorCode.REQUEST_TIMED_OUT, True)
        assert boss.state("t", 0).isr == (2, 5, 3)


@on_loop
async def test_the_newest_answer_counts(connect: str) -> None:
    """A disk fails between two questions: what its broker said before does not count any more."""
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, topic=on(2, 3, 1))
        nodes.alive[3].silent = True
        assert await boss.controller.alter_reassignments({T0: [2, 3]}) == {T0: OK}
        await eventually_async(lambda: boss.controller.work().silent_brokers == (3,), "moves wait for (3,)")
        nodes.alive[2].offline = {T0}
        await eventually_async(lambda: boss.controller.work().silent_brokers == (2, 3), "moves wait for (2, 3)")
        nodes.alive[3].silent = False
        await eventually_async(lambda: boss.controller.work().silent_brokers == (2,), "moves wait for (2,)")
        assert boss.state("t", 0).removing == (1,)
        nodes.alive[2].offline = set()
        await nodes.agree(lambda node: node.state("t", 0).replicas == (2, 3))


@on_loop
async def test_what_joins_while_brokers_are_asked_is_asked_about_again(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, 4, topic=on(2, 3))
        assert await boss.controller.alter_reassignments({T0: [4, 1]}) == {T0: OK}
        real, asked = move_commands.RemainingReplicas.ask, []

        async def ask(self: move_commands.RemainingReplicas, staying: move_commands.Staying) -> list[TopicPartition]:
            asked.append(staying)
            found = await real(self, staying)
            if len(asked) == 1:
                await nodes.alive[2].join(T0, 4)
                await nodes.agree(lambda node: 4 in node.state("t", 0).isr)
            return found

        monkeypatch.setattr(move_commands.RemainingReplicas, "ask", ask)
        assert await boss.controller.alter_reassignments({T0: None}) == {T0: OK}
        assert asked[0] == {}
        assert {T0: (2, 3)} in asked
        assert boss.state("t", 0).replicas == (2, 3)


@on_loop
async def test_what_is_asked_at_once_is_bounded(connect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers must be fresh when the last of their partitions is written."""
    monkeypatch.setattr(move_commands, "PARTITIONS_PER_ROUND", 3)
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, topic=NewTopic("t", assignments=dict.fromkeys(range(10), (2, 3, 1))))
        tps = [TopicPartition("t", i) for i in range(10)]
        nodes.alive[3].offline = {tps[0], tps[4]}
        assert await boss.controller.alter_reassignments({tp: [2, 3] for tp in tps}) == dict.fromkeys(tps, OK)
        await nodes.agree(lambda node: sum(bool(s.removing) for s in node.metadata.topics["t"].partitions) == 2)
        assert boss.controller.work().silent_brokers == (3,)
        nodes.alive[3].offline = set()
        await nodes.agree(lambda node: not any(s.removing for s in node.metadata.topics["t"].partitions))
        assert await boss.controller.alter_reassignments({tp: [1, 2] for tp in tps}) == dict.fromkeys(tps, OK)
        boss.silent = True  # the moves wait for it, and are taken back
        for tp in tps:
            await nodes.alive[2].join(tp, 1)
        await nodes.agree(lambda node: all(1 in s.isr for s in node.metadata.topics["t"].partitions))
        assert await boss.controller.alter_reassignments(dict.fromkeys(tps)) == dict.fromkeys(tps, OK)
        assert {node.most_asked for node in nodes.alive.values() if node.asked} <= {1, 2, 3}


@on_loop
async def test_brokers_are_not_asked_for_a_replica_that_is_away(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, topic=on(2, 3, 1))
        nodes.alive[3].silent = True
        assert await boss.controller.alter_reassignments({T0: [2, 3]}) == {T0: OK}
        await nodes.agree(lambda node: node.state("t", 0).removing == (1,))
        await nodes.die(nodes.alive[3])
        await nodes.agree(lambda node: node.state("t", 0).isr == (2, 1))
        await eventually_async(lambda: boss.controller.work().silent_brokers == (), "moves wait for ()")
        before = nodes.alive[2].asked
        await asyncio.sleep(1.5)
        assert nodes.alive[2].asked == before
        await nodes.start(3)
        await nodes.alive[2].join(T0, 3)
        await nodes.agree(lambda node: node.state("t", 0).replicas == (2, 3))


@on_loop
async def test_many_moves_go_in_bounded_writes_each_valid_alone(connect: str) -> None:
    """The controller dies between two writes of one request; each move is written completely or not at all."""
    many = plans.OPERATIONS_PER_WRITE * 2
    async with Nodes(connect) as nodes:
        boss = await fleet(nodes, 2, 3, topic=NewTopic("t", many, 2))
        tps = [TopicPartition("t", i) for i in range(many)]
        sizes: list[int] = []
        wanted = {tp: [max(boss.state("t", tp.partition).replicas)] for tp in tps}
        last = boss.store.multis + 2
        died = asyncio.Event()

        def crash(number: int, operations: Sequence[Operation]) -> None:
            sizes.append(len(operations))
            if number > last:
                died.set()
                raise asyncio.CancelledError

        boss.store.before_multi = crash
        moving = asyncio.create_task(boss.controller.alter_reassignments(wanted, timeout_ms=60_000))
        await died.wait()
        moving.cancel()
        await nodes.die(boss)
        successor = await nodes.controller()

        def moved(node: Node) -> bool:
            states = node.metadata.topics["t"].partitions
            return all(
                s.replicas == s.isr == tuple(wanted[tp]) == (s.leader,) for tp, s in zip(tps, states, strict=True)
            )

        before = successor.metadata.topics["t"].partitions
        assert all(s.removing or len(s.replicas) == 1 for s in before), "all were begun by one write"
        await nodes.agree(moved, 30_000)
        assert max(sizes) <= 500
        assert sum(sizes) > many // 4, "it died in the middle"
