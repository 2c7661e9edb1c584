"""A topic with many partitions comes and goes: their logs are made and removed a few in each turn of the loop."""

from __future__ import annotations

from pathlib import Path

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.model import TopicPartition
from fleetlog.brokers.replication.replicas import PER_TURN, Backlog
from fleetlog.wire.errors import ErrorCode as E
from tests.server import work
from tests.support import loopwatch
from tests.support.fleet import Fleet
from tests.support.harness import Client
from tests.support.stage import ME, OTHER, Stage, Turn
from tests.support.waiting import eventually

MANY = 3 * PER_TURN
BIG = 5_000
CREATED = (E.NONE, E.TOPIC_ALREADY_EXISTS)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    found = Stage(tmp_path)
    found.held = True
    return found


def opened(stage: Stage) -> list[int]:
    return [index for index in range(MANY) if stage.replicas.get(TopicPartition("big", index)) is not None]


def logs(stage: Stage) -> int:
    return sum(tp.topic == "big" for tp in stage.logs.all())


def test_logs_are_made_in_turns(stage: Stage) -> None:
    stage.topic("big", MANY)
    assert opened(stage) == list(range(PER_TURN))
    last = TopicPartition("big", MANY - 1)
    assert stage.replicas.leader(last).error is E.NOT_LEADER_OR_FOLLOWER, "clients try again"
    stage.take_turn()
    assert len(opened(stage)) == 2 * PER_TURN
    stage.take_turn()
    assert opened(stage) == list(range(MANY))
    assert not stage.backlog


def test_few_are_made_at_once(stage: Stage) -> None:
    stage.topic("few", PER_TURN)
    assert not stage.backlog
    assert all(stage.replicas.get(TopicPartition("few", index)) for index in range(PER_TURN))


def test_a_change_of_what_is_open_takes_effect_at_once(stage: Stage) -> None:
    stage.topic("big", MANY, replicas=(ME, OTHER))
    stage.topic("big", MANY, replicas=(ME, OTHER), leader=OTHER, epoch=1)
    assert not any(stage.partition("big", index).is_leader for index in opened(stage))
    while stage.backlog:
        stage.take_turn()
    assert not any(stage.partition("big", index).is_leader for index in range(MANY)), "later ones take the newest state"


def test_a_topic_deleted_meanwhile_gets_no_more_logs(stage: Stage) -> None:
    stage.topic("big", MANY)
    stage.delete("big")
    assert opened(stage) == [], "nothing of it is served"
    while stage.backlog:
        stage.take_turn()
    assert (opened(stage), logs(stage)) == ([], 0)


def test_a_topic_made_again_never_gets_the_deleted_ones_log(stage: Stage) -> None:
    stage.held = False
    stage.topic("big", MANY)
    stage.append("big", 3, index=MANY - 1)
    stage.held = True
    stage.delete("big")
    assert logs(stage) == MANY - PER_TURN, "the rest is left to later turns"
    info = stage.topic("big", MANY)
    while stage.backlog:
        stage.take_turn()
    assert opened(stage) == list(range(MANY))
    assert {log.topic_id for log in stage.logs.all().values()} == {info.id}
    assert stage.partition("big", MANY - 1).log.log_end_offset == 0


def test_a_lease_is_waived_before_the_log_is_made(stage: Stage) -> None:
    stage.topic("big", MANY)
    partition = stage.replicas.waive_lease(TopicPartition("big", MANY - 1))
    assert partition is not None
    assert partition.lease.waived


def test_nothing_is_made_once_it_is_closed(stage: Stage) -> None:
    stage.topic("big", MANY)
    stage.replicas.close()
    stage.take_turn()
    assert len(opened(stage)) == PER_TURN


def test_each_partition_once() -> None:
    turns: list[Turn] = []
    done: list[int] = []
    ends: list[int] = []

    def next_turn(callback: object) -> Turn:
        turns.append(Turn(callback))  # type: ignore[arg-type]
        return turns[-1]

    backlog = Backlog(next_turn, lambda tp: done.append(tp.partition), lambda: ends.append(len(done)))
    partitions = [TopicPartition("t", index) for index in range(PER_TURN + 2)]
    backlog.add(partitions)
    backlog.add(partitions[-2:])
    assert (done, ends, len(turns)) == (list(range(PER_TURN)), [], 1)
    assert backlog.discard(partitions[-1])
    assert not backlog.discard(partitions[0])
    turns.pop().callback()
    assert (done, ends, turns) == ([*range(PER_TURN), PER_TURN], [PER_TURN + 1], [])


@pytest.mark.zookeeper
def test_a_topic_with_thousands_of_partitions_does_not_hold_the_loop(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, brokers=1)
    try:
        broker = fleet.brokers[0]
        figures = loopwatch.started(broker)
        client = Client(broker.port)
        client.sock.settimeout(60)
        figures.reset()
        eventually(lambda: create_big(client), "the topic is created", good=lambda error: error in CREATED)
        eventually(lambda: end_of(client, BIG - 1), "its last partition is led", good=lambda error: error == E.NONE)
        figures.reset_after_a_turn()
        held = [figures.last[0]]
        delete = m.DeleteTopicsRequest(topics=[], topic_names=["big"], timeout_ms=60_000)
        assert client.ask(delete, 5).responses[0].error_code == E.NONE
        data = broker.directory / "data"
        eventually(
            lambda: [path for path in data.glob("big-*") if not path.name.endswith("-delete")], "its logs are renamed",
            good=lambda left: not left,
        )  # fmt: skip
        figures.reset_after_a_turn()
        held.append(figures.last[0])
        assert max(held) <= work.HELD_MS, f"created and deleted: {held}"
    finally:
        fleet.close()


def create_big(client: Client) -> int:
    topic = m.CreateTopicsRequest.CreatableTopic(
        name="big", num_partitions=BIG, replication_factor=1, assignments=[], configs=[]
    )
    request = m.CreateTopicsRequest(topics=[topic], timeout_ms=60_000, validate_only=False)
    return int(client.ask(request, 5).topics[0].error_code)


def end_of(client: Client, index: int) -> int:
    kind = m.ListOffsetsRequest.ListOffsetsTopic
    partition = kind.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-1)
    request = m.ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[kind(name="big", partitions=[partition])], timeout_ms=1_000
    )
    return int(client.ask(request, 5).topics[0].partitions[0].error_code)
