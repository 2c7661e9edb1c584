"""A replica that is counted on and whose log is gone never begins anew by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetlog.brokers.model import BrokerId, PartitionState, TopicPartition
from fleetlog.brokers.replication import ends, isr
from fleetlog.brokers.replication.isr import FAILED_INCARNATION
from fleetlog.wire.errors import ErrorCode as E
from tests.support.stage import ME, OTHER, Stage

THIRD = BrokerId(3)
T = TopicPartition("t", 0)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A broker that was registered in incarnation 6 as well, and lacks a log directory since."""
    stage = Stage(tmp_path)
    stage.logs.owner.missing = {"x": "/gone"}
    stage.replicas.registered(stage.incarnation, stage.incarnation)
    return stage


def counted_in(stage: Stage, incarnation: int, *, leader: int = -1, epoch: int = 4, others: bool = True) -> None:
    """The topic's state names this broker in that incarnation."""
    present, stage.incarnation = stage.incarnation, incarnation
    members = (ME, OTHER) if others else (ME,)
    try:
        stage.replicas._incarnation = lambda: present
        stage.topic("t", leader=leader, epoch=epoch, replicas=(ME, OTHER, THIRD), isr=members, min_insync_replicas="2")
    finally:
        stage.incarnation = present


def tick(stage: Stage) -> list[PartitionState]:
    stage.clock.now_ms += 10_000
    stage.replicas.tick(stage.clock.now_ms)
    return [state for _, state in stage.proposals]


def end(stage: Stage) -> ends.ReplicaEnd:
    state = stage.metadata.partition(T)
    assert state is not None
    return ends.own_end(T, state, stage.replicas)


def test_it_is_not_made_and_everybody_is_told(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    counted_in(stage, 6)
    assert stage.replicas.get(T) is None
    assert stage.logs.get(T) is None
    assert end(stage).error is E.LOG_DIR_NOT_FOUND
    assert end(stage).end is None, "an older controller takes it for a broker that has no answer"
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("t-0: the log is")]
    assert "in a missing log directory (/gone)" in line
    assert "fleetlog topics elect t --partition 0 --unclean" in line
    fault, trouble = stage.replicas.troubles()
    assert fault == line
    assert "no log of 1 replica(s)" in trouble
    assert not stage.replicas.has_all_logs()


def test_its_state_says_so_for_later_starts(stage: Stage) -> None:
    counted_in(stage, 6)
    (state,) = tick(stage)
    assert (state.isr, isr.eligible(state)) == ((OTHER,), [(ME, FAILED_INCARNATION)])
    stage.proposals.clear()
    counted_in(stage, FAILED_INCARNATION, epoch=5, others=False)
    stage.logs.owner.missing = {}
    assert tick(stage) == [], "it says so already"
    assert stage.logs.get(T) is None


def test_a_later_clean_start_does_not_make_it_either(stage: Stage) -> None:
    """The state could not be written before the stop."""
    stage.logs.owner.missing = {}
    stage.replicas.registered(stage.incarnation, 6)
    counted_in(stage, 5)
    assert end(stage).error is E.LOG_DIR_NOT_FOUND


def test_it_is_made_once_nothing_counts_on_it(stage: Stage) -> None:
    counted_in(stage, 6)
    stage.topic("t", leader=OTHER, epoch=5, replicas=(ME, OTHER, THIRD), isr=(OTHER,))
    assert not stage.partition("t").is_leader


def test_it_begins_anew_by_an_election_that_allows_it(stage: Stage) -> None:
    counted_in(stage, 6)
    stage.topic("t", leader=ME, epoch=5, replicas=(ME, OTHER, THIRD), isr=(ME,))
    assert stage.partition("t").is_leader


@pytest.mark.parametrize("leader", [ME, OTHER])
def test_a_new_partition_has_its_log_at_once(stage: Stage, leader: BrokerId) -> None:
    """Also as a follower, and while a directory is offline: else acks=all waits until this broker has left."""
    stage.logs.take_offline(stage.logs.directories[0])
    incarnations = {ME: stage.incarnation, OTHER: stage.incarnation + 4}
    assert stage.replicas._may_create(T, PartitionState(
        (ME, OTHER), leader, 0, (ME, OTHER), 0, 1, incarnations[leader], tuple(incarnations.values())
    ))  # fmt: skip


def test_a_crash_between_a_partitions_state_and_its_log_is_no_loss(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.replicas.registered(stage.incarnation, stage.incarnation)
    counted_in(stage, 6, others=False)
    assert end(stage).error is E.NONE
