"""Leaders of replicated partitions with a real ZooKeeper: after failures, on request, at controlled shutdowns."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import Access
from fleetlog.brokers.api.base import ClientConnection, Context, Done, InTask
from fleetlog.brokers.api.replicas import handle_controlled_shutdown, handle_replica_ends
from fleetlog.brokers.controller.elections import RECOVERING, released
from fleetlog.brokers.controller.leader_commands import imbalanced
from fleetlog.brokers.controller.log_end_probes import LogEndProbes
from fleetlog.brokers.controller.move_commands import RemainingReplicas
from fleetlog.brokers.controller.requests import NewTopic
from fleetlog.brokers.metadata.config_writes import alter_config
from fleetlog.brokers.metadata.image import MetadataDelta, MetadataImage
from fleetlog.brokers.metadata.znodes import StatesChanged, TopicChanged, TopicDeleted, TopicZnode
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, BrokerId, LiveBroker, LogEnd, PartitionState, TopicPartition
from fleetlog.brokers.replication import ends, isr
from fleetlog.brokers.replication.ends import ReplicaEnd
from fleetlog.wire.errors import ErrorCode
from tests.support.nodes import Node, Nodes
from tests.support.stores import expire, on_loop
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.zookeeper

T0 = TopicPartition("t", 0)


async def three(nodes: Nodes, topic: NewTopic) -> Node:
    """Three nodes with that topic; the controller is node 1, which the tests leave alive."""
    boss = await nodes.start(1)
    await nodes.controller()
    for broker_id in (2, 3):
        await nodes.start(broker_id)
    await nodes.agree(lambda node: set(node.metadata.brokers) == {1, 2, 3})
    (made,) = await boss.controller.create_topics([topic])
    assert made.ok, made
    await nodes.agree(lambda node: topic.name in node.metadata.topics)
    return boss


async def answered(outcome: InTask) -> Any:
    done = await outcome.coroutine
    assert isinstance(done, Done)
    return done.response


def topic(*replicas: int, name: str = "t", **configs: str) -> NewTopic:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    return NewTopic(name, assignments={0: replicas}, configs=settings)


@on_loop
async def test_a_follower_in_sync_leads_after_a_death(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await three(nodes, topic(2, 3, 1, min_insync_replicas="2"))
        made = boss.state("t", 0)
        assert (made.leader, made.isr) == (2, (2, 3, 1))
        await nodes.die(nodes.alive[2])
        await nodes.agree(lambda node: node.state("t", 0).leader == 3)
        led = boss.state("t", 0)
        assert (led.isr, led.elr, led.leader_epoch) == ((3, 1), (), made.leader_epoch + 1)
        await nodes.die(nodes.alive[3])
        await nodes.agree(lambda node: node.state("t", 0).leader == 1)
        last = boss.state("t", 0)
        assert (last.isr, last.elr) == ((1,), (3,)), "below the minimum, a replica that leaves stays eligible"


@on_loop
async def test_dead_followers_leave_the_set_of_a_living_leader(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await three(nodes, topic(1, 2, 3))
        made = boss.state("t", 0)
        await nodes.die(nodes.alive[3])
        await nodes.agree(lambda node: node.state("t", 0).isr == (1, 2))
        shrunk = boss.state("t", 0)
        assert (shrunk.leader, shrunk.leader_epoch) == (made.leader, made.leader_epoch)
        assert shrunk.partition_epoch == made.partition_epoch + 1


@on_loop
async def test_an_eligible_replica_that_comes_back_whole_leads(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await three(nodes, topic(2, 3, min_insync_replicas="2"))
        third = nodes.alive[3]
        await nodes.die(third)
        await nodes.agree(lambda node: node.state("t", 0).elr == (3,))
        await nodes.die(nodes.alive[2])
        await nodes.agree(lambda node: node.state("t", 0).leader == -1)
        await nodes.start(3, intact_since=third.incarnation)
        await nodes.agree(lambda node: "t" in node.metadata.topics and node.state("t", 0).leader == 3)
        led = boss.state("t", 0)
        assert (led.isr, led.elr) == ((3,), (2,))


@on_loop
async def test_all_back_without_their_tails_the_longest_log_leads(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await three(nodes, topic(2, 3))
        await nodes.die(nodes.alive[2])
        await nodes.agree(lambda node: node.state("t", 0).leader == 3)
        await nodes.die(nodes.alive[3])
        await nodes.agree(lambda node: node.state("t", 0).leader == -1)
        offline = boss.state("t", 0)
        assert (offline.isr, offline.last_known_leader) == ((3,), 3)
        third = await nodes.start(3, controller=False, registered=False)
        third.log_ends[T0] = LogEnd(1, 5)
        third.silent = True
        await third.register()
        await asyncio.sleep(0.3)
        assert boss.state("t", 0).leader == -1, "no replica leads before it answered"
        third.silent = False
        await nodes.agree(lambda node: "t" in node.metadata.topics and node.state("t", 0).leader == 3)
        assert boss.state("t", 0).leader_recovery_state == 0
        assert boss.controller.unclean_elections == 0
        assert +boss.controller.elections == {"leader_gone": 1, "leaderless": 1, "returned": 1}


@on_loop
async def test_a_lone_member_without_its_tail_waits_for_the_living_replicas(connect: str) -> None:
    """Broker 3 was alone in sync, and returns with a shorter log than the live broker 2, which must be asked."""
    async with Nodes(connect) as nodes:
        boss = await three(nodes, topic(2, 3))
        await nodes.die(nodes.alive[2])
        await nodes.agree(lambda node: node.state("t", 0).leader == 3)
        await nodes.die(nodes.alive[3])
        await nodes.agree(lambda node: node.state("t", 0).leader == -1)
        assert boss.state("t", 0).isr == (3,)
        second = await nodes.start(2, controller=False, registered=False)
        second.log_ends[T0] = LogEnd(1, 9, ((1, 0),))
        second.silent = True
        await second.register()
        third = await nodes.start(3, controller=False, registered=False)
        third.log_ends[T0] = LogEnd(1, 5, ((1, 0),))
        await third.register()
        await asyncio.sleep(0.3)
        assert boss.state("t", 0).leader == -1, "a living replica may have more"
        second.silent = False
        await nodes.agree(lambda node: "t" in node.metadata.topics and node.state("t", 0).leader == 2)
        led = boss.state("t", 0)
        assert (led.isr, led.leader_recovery_state, boss.controller.unclean_elections) == ((2,), 0, 0)


@on_loop
async def test_two_without_their_tails_are_compared(connect: str) -> None:
    """Both members of the set die unseen, so that both stay in it; the second one's log reaches further."""
    async with Nodes(connect) as nodes:
        boss = await three(nodes, topic(2, 3, 1))
        await boss.controller.elect_leaders([T0], unclean=False)
        await boss.metadata.stop()
        for broker_id in (2, 3):
            await nodes.die(nodes.alive[broker_id])
        for broker_id, end in ((2, LogEnd(1, 5)), (3, LogEnd(1, 9))):
            again = await nodes.start(broker_id, controller=False, registered=False)
            again.log_ends[T0] = end
            await again.register()
        # broker 1 is a member as well, and goes without a tail, too: all three are asked
        boss.log_ends[T0] = LogEnd(1, 7)
        boss.intact_since = None
        credentials = boss.real.credentials()
        assert credentials is not None
        await expire(boss.real, nodes.alive[2].real)
        await boss.metadata.start()
        await eventually_async(
            lambda: (session := boss.real.session()) is not None and session.session_id != credentials[0],
            "the controller's broker has a new session",
        )
        await boss.register()
        await nodes.agree(lambda node: "t" in node.metadata.topics and node.state("t", 0).leader == 3)
        assert boss.state("t", 0).isr == (3,)


@pytest.mark.parametrize("how", ["topic", "operator", "configured later"])
@on_loop
async def test_unclean_elections_need_leave(connect: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Nodes(connect) as nodes:
        configs = {"unclean_leader_election_enable": "true"} if how == "topic" else {}
        boss = await three(nodes, topic(2, 3, 1, **configs))
        nodes.alive[3].log_ends[T0] = LogEnd(0, 4)
        boss.log_ends[T0] = LogEnd(0, 6)
        # 1 and 3 fall behind: the leader takes them out of its set
        await nodes.alive[2].write(T0, isr.without(boss.state("t", 0), [1, 3], 1))
        await nodes.agree(lambda node: node.state("t", 0).isr == (2,))
        await nodes.die(nodes.alive[2])
        if how != "topic":
            await nodes.agree(lambda node: node.state("t", 0).leader == -1)
            (refused,) = (await boss.controller.elect_leaders([T0], unclean=False)).values()
            assert refused[0] is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            assert boss.state("t", 0).leader == -1
        if how == "operator":
            assert await boss.controller.elect_leaders([T0], unclean=True) == {T0: (ErrorCode.NONE, None)}
        elif how == "configured later":
            enable = {"unclean.leader.election.enable": "true"}
            await alter_config(boss.store, boss.metadata, "topics", "t", lambda present: {**present, **enable})
        await nodes.agree(lambda node: node.state("t", 0).leader == 1)
        led = boss.state("t", 0)
        assert (led.isr, led.elr, led.leader_recovery_state) == ((1,), (), RECOVERING)
        assert boss.controller.unclean_elections == 1
        assert any("UNCLEAN ELECTION of t-0: broker 1" in record.getMessage() for record in caplog.records)


def test_leave_for_an_unclean_election_ends_with_the_topic() -> None:
    """It stays until there is a leader; a topic of the same name begins with lower epochs."""
    image, live = MetadataImage(), {2: LiveBroker(4, 4)}
    settings = SimpleNamespace(topic_config=lambda name: SimpleNamespace(unclean_leader_election_enable=False))
    context = SimpleNamespace(image=image, live_brokers=live, epoch=1, metadata=settings)
    probes = LogEndProbes(context, None, None, 1, None)  # type: ignore[arg-type]
    state = PartitionState((1, 2), -1, 9, (1,), 12, 1, -1, (3,), last_known_leader=1)
    for topic_id, allowed in ((uuid.uuid4(), True), (uuid.uuid4(), False)):
        known = image.topics.get("t")
        gone = [] if known is None else [TopicDeleted("t", known.id)]
        made = TopicChanged("t", TopicZnode(topic_id, ((1, 2),)), 0)
        image.apply([*gone, made, StatesChanged("t", topic_id, {0: state})], MetadataDelta())
        if allowed:
            probes.allow_unclean(T0, state)
        assert probes.may_be_unclean(T0, state) == allowed


@on_loop
async def test_a_failed_log_directory_hands_over(connect: str) -> None:
    """The leader wrote its resignation and left the in-sync set; the controller only has to read it."""
    async with Nodes(connect) as nodes:
        boss = await three(nodes, topic(2, 3, 1))
        state = boss.state("t", 0)
        await nodes.alive[2].write(
            T0, replace(released(state, 0), isr=state.isr[1:], isr_incarnations=state.isr_incarnations[1:])
        )
        await nodes.agree(lambda node: node.state("t", 0).leader == 3)
        assert boss.state("t", 0).isr == (3, 1)


@on_loop
async def test_a_leader_that_adds_a_dead_member_is_put_right(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await three(nodes, topic(1, 2, 3))
        whole = boss.state("t", 0)
        await nodes.die(nodes.alive[3])
        await nodes.agree(lambda node: node.state("t", 0).isr == (1, 2))
        shrunk = boss.state("t", 0)
        await boss.write(T0, replace(shrunk, isr=whole.isr, isr_incarnations=whole.isr_incarnations))
        await nodes.agree(lambda node: node.state("t", 0).partition_epoch == shrunk.partition_epoch + 2)
        assert boss.state("t", 0).isr == (1, 2)


# ---------------------------------------------------------------- by request


@on_loop
async def test_preferred_elections(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await three(nodes, topic(2, 3, 1))
        elect = boss.controller.elect_leaders
        assert (await elect([T0], unclean=False))[T0][0] is ErrorCode.ELECTION_NOT_NEEDED
        assert (await elect([T0], unclean=True))[T0][0] is ErrorCode.ELECTION_NOT_NEEDED
        second = nodes.alive[2]
        error, remaining = await boss.controller.controlled_shutdown(2, -1, timeout_ms=60_000)
        assert (error, remaining) == (ErrorCode.NONE, [])
        await nodes.agree(lambda node: node.state("t", 0).leader == 3)
        refused = await elect([T0, TopicPartition("t", 1), TopicPartition("no", 0)], unclean=False)
        assert [error for error, _ in refused.values()] == [
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ], "it is about to stop"
        await nodes.die(second)
        await nodes.start(2, intact_since=second.incarnation)
        assert (await elect([T0], unclean=False))[T0][0] is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        await nodes.alive[3].join(T0, 2)
        await nodes.agree(lambda node: "t" in node.metadata.topics and 2 in node.state("t", 0).isr)
        assert (await elect(None, unclean=False))[T0] == (ErrorCode.NONE, None)
        assert boss.state("t", 0).leader == 2
        assert boss.state("t", 0).isr == (3, 1, 2)
        other = nodes.alive[3].controller
        assert (await other.elect_leaders([T0], unclean=False))[T0][0] is ErrorCode.NOT_CONTROLLER


@on_loop
async def test_a_coordinator_is_succeeded_only_when_it_has_confirmed(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await three(nodes, topic(2, 3, 1, name=GROUP_METADATA_TOPIC))
        tp = TopicPartition(GROUP_METADATA_TOPIC, 0)
        second, third = nodes.alive[2], nodes.alive[3]
        # broker 3 leads, by a death of broker 2 that wasn't one
        credentials = second.real.credentials()
        assert credentials is not None
        await expire(second.real, boss.real)
        await nodes.agree(lambda node: node.state(tp.topic, 0).leader == 3)
        await eventually_async(
            lambda: (session := second.real.session()) is not None and session.session_id != credentials[0],
            "the second broker has a new session",
        )
        await second.register()
        await third.join(tp, 2)
        await nodes.agree(lambda node: 2 in node.state(tp.topic, 0).isr)
        third.silent = True
        electing = asyncio.create_task(boss.controller.elect_leaders([tp], unclean=False, timeout_ms=20_000))
        await nodes.agree(lambda node: node.state(tp.topic, 0).leader == -1)
        assert boss.state(tp.topic, 0).last_known_leader == 3
        given_up = boss.state(tp.topic, 0).leader_epoch
        await asyncio.sleep(0.5)
        assert boss.state(tp.topic, 0).leader == -1, "the old coordinator may not know yet"
        third.silent = False
        assert await electing == {tp: (ErrorCode.NONE, None)}
        led = boss.state(tp.topic, 0)
        assert (led.leader, led.leader_epoch) == (2, given_up + 1)
        # its death is word enough, too
        second.silent = True
        await nodes.die(second)
        await nodes.agree(lambda node: node.state(tp.topic, 0).leader == 3)


@on_loop
async def test_a_broker_that_is_about_to_stop_leads_nothing_any_more(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await three(nodes, NewTopic("t", 30, 3))
        (made,) = await boss.controller.create_topics([topic(2, name="single")])
        assert made.ok
        (made,) = await boss.controller.create_topics([topic(2, 3, name=GROUP_METADATA_TOPIC)])
        assert made.ok
        second = nodes.alive[2]
        await nodes.agree(lambda node: GROUP_METADATA_TOPIC in node.metadata.topics)
        epoch = boss.metadata.brokers[2].epoch
        assert (await boss.controller.controlled_shutdown(2, epoch + 1, timeout_ms=60_000))[0] is (
            ErrorCode.STALE_BROKER_EPOCH
        )
        assert (await boss.controller.controlled_shutdown(9, 5, timeout_ms=60_000))[0] is ErrorCode.BROKER_NOT_AVAILABLE
        assert (await second.controller.controlled_shutdown(2, epoch, timeout_ms=300))[0] is ErrorCode.NOT_CONTROLLER
        services: Any = SimpleNamespace(
            controller=boss.controller, config=boss.config, metadata=boss.metadata, access=Access(), audit=None
        )
        context = Context(services, ClientConnection(1, "PLAINTEXT", "127.0.0.1"), 7, 3, 1, "broker-2")
        request = m.ControlledShutdownRequest(version=3, broker_id=2, broker_epoch=epoch)
        response = await answered(handle_controlled_shutdown(request, context))
        assert (response.error_code, response.remaining_partitions) == (0, [])
        await nodes.agree(lambda node: node.leaders("t").count(2) == 0)
        assert boss.leaders("single") == [2], "no other replica has it"
        assert boss.leaders(GROUP_METADATA_TOPIC) == [3], "its request is the word of its coordinators"
        assert {1, 3} == set(boss.leaders("t"))
        for index in range(30):
            assert 2 in boss.state("t", index).isr, "it still copies"
        error, remaining = await boss.controller.controlled_shutdown(3, -1, timeout_ms=60_000)
        assert error is ErrorCode.NONE
        assert remaining == [TopicPartition(GROUP_METADATA_TOPIC, 0)], "broker 2 is leaving as well"
        outside = Context(services, ClientConnection(1, "OTHER", "127.0.0.1"), 7, 3, 1, "stranger")
        refused = await answered(handle_controlled_shutdown(request, outside))
        assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        ends_refused = handle_replica_ends(m.ReplicaEndsRequest(version=0, topics=[]), outside)
        assert isinstance(ends_refused, Done)
        assert ends_refused.response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@on_loop
async def test_leadership_goes_back_by_itself(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1, leader_imbalance_check_interval_seconds=1)
        await nodes.controller()
        second = await nodes.start(2)
        await nodes.agree(lambda node: set(node.metadata.brokers) == {1, 2})
        (made,) = await boss.controller.create_topics([NewTopic("t", 10, 2)])
        assert made.ok
        assert sorted(boss.leaders("t")) == [1] * 5 + [2] * 5
        error, _ = await boss.controller.controlled_shutdown(2, -1, timeout_ms=60_000)
        assert error is ErrorCode.NONE
        await nodes.agree(lambda node: "t" in node.metadata.topics and node.leaders("t") == [1] * 10)
        credentials = second.real.credentials()
        assert credentials is not None
        active = boss.controller.active
        assert active is not None
        active.leaders._leaving.clear()  # it changed its mind
        await nodes.agree(lambda node: sorted(node.leaders("t")) == [1] * 5 + [2] * 5)


def test_imbalance_is_measured_per_preferred_broker() -> None:
    def led(leader: int, *replicas: int) -> PartitionState:
        ids = tuple(map(BrokerId, replicas))
        return PartitionState(ids, leader, 1, ids, 1, 1, 1, (1,) * len(ids))

    states = {TopicPartition("t", i): led(1, 1, 2) for i in range(10)}
    states |= {TopicPartition("u", i): led(2 if i else 1, 2, 1) for i in range(10)}
    assert imbalanced(states, 10) == []
    assert imbalanced(states, 9) == [TopicPartition("u", 0)]
    states[TopicPartition("u", 1)] = led(1, 2, 1)
    states[TopicPartition("u", 2)] = led(-1, 2, 1)
    assert imbalanced(states, 10) == [TopicPartition("u", 0), TopicPartition("u", 1)]


@pytest.mark.parametrize("again", [False, True], ids=["the same topics", "made again meanwhile"])
def test_answers_count_for_the_topics_that_were_asked_for(again: bool) -> None:
    """Two topics of one name have the same versions and epochs: the state alone does not tell them apart."""
    image, live = MetadataImage(), {BrokerId(broker_id): LiveBroker(4, 4) for broker_id in (1, 2)}
    led = PartitionState((1, 2), 1, 9, (1, 2), 12, 1, isr_incarnations=(4, 4))
    ended = replace(led, leader=-1, last_known_leader=1, isr_incarnations=(3, 3))
    offline, internal, moved = T0, TopicPartition(GROUP_METADATA_TOPIC, 0), TopicPartition("moved", 0)
    states = {offline.topic: ended, internal.topic: ended, moved.topic: led}

    def make() -> None:
        for name, state in states.items():
            known, topic_id = image.topics.get(name), uuid.uuid4()
            gone = [] if known is None else [TopicDeleted(name, known.id)]
            made = TopicChanged(name, TopicZnode(topic_id, ((1, 2),)), 0)
            image.apply([*gone, made, StatesChanged(name, topic_id, {0: state})], MetadataDelta())

    class Brokers:
        """Both have applied the states, and have the logs of the topics that they know. They answer more than asked."""

        meanwhile: Callable[[], None] = staticmethod(lambda: None)

        async def call(self, broker_id: int, key: int, version: int, request: Any, timeout_ms: int) -> Any:
            names = {info.id: name for name, info in image.topics.items()}
            answers = {
                topic.topic_id: {0: ReplicaEnd(ErrorCode.NONE, 9, LogEnd(8, 70), states[name].leader == broker_id)}
                for topic in request.topics
                if (name := names.get(topic.topic_id)) is not None
            }
            self.meanwhile()
            return ends.response(4, {**answers, uuid.uuid4(): {0: ReplicaEnd(ErrorCode.NONE, 9)}}, version)

    async def scenario() -> None:
        metadata = SimpleNamespace(
            brokers={1: SimpleNamespace(waives_leases=True)},
            topic_config=lambda name: SimpleNamespace(unclean_leader_election_enable=False),
        )
        context: Any = SimpleNamespace(image=image, live_brokers=live, epoch=1, metadata=metadata)
        brokers: Any = Brokers()
        probes = LogEndProbes(context, None, brokers, 3, None)  # type: ignore[arg-type]
        remaining = RemainingReplicas(context, None, probes)  # type: ignore[arg-type]
        make()
        answers = {b: (await probes.ask_one(b, [offline, internal]))[1] for b in live}
        assert await remaining.ask({offline: tuple(live)}) == [offline]
        assert probes.must_wait(internal, ended)
        if again:
            make()
        assert set(probes._elections(answers)[1]) == (set() if again else {offline})
        assert probes._note_heard(answers) == ([] if again else [internal])
        assert probes.must_wait(internal, ended) == again
        assert remaining.unconfirmed(offline, tuple(live)) == (list(live) if again else [])
        make()
        assert await probes.ask_to_waive([moved]) == [moved]
        assert probes.may_move(moved, led)
        probes.hear(internal, ended)
        assert not probes.must_wait(internal, ended)
        if again:
            make()
            brokers.meanwhile = make
            assert await probes.ask_to_waive([moved]) == []
        assert probes.may_move(moved, led) != again
        assert probes.must_wait(internal, ended) == again

    asyncio.run(scenario())
