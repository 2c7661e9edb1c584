"""A new replica without room for its log: it hands its leadership over, and leaves the in-sync set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetlog.brokers.log import DiskFull
from fleetlog.brokers.model import BrokerId, BrokerInfo, PartitionState, TopicPartition
from fleetlog.brokers.replication import full_disks, isr
from fleetlog.brokers.replication.partition import Partition
from fleetlog.brokers.replication.unopened import UnopenedReplica, step_aside
from fleetlog.wire.errors import ErrorCode as E
from tests.support.stage import ME, OTHER, Stage

THIRD = BrokerId(3)
ALL = (ME, OTHER, THIRD)
NEW = TopicPartition("new", 0)


class Full(Stage):
    """This broker's disk has no room for a new log until ``full`` is taken away."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.metadata.brokers[THIRD] = BrokerInfo(
            THIRD, 1, self.incarnation, self.metadata.brokers[OTHER].endpoints, "rack-3"
        )
        self.full = True
        create: Callable[..., Any] = self.logs.create

        def refused(tp: TopicPartition, *rest: Any) -> Any:
            if self.full:
                raise DiskFull(str(tp), "No space left on device")
            return create(tp, *rest)

        self.logs.create = refused  # type: ignore[method-assign]

    def look(self) -> None:
        """What the broker does every second."""
        self.clock.now_ms += 1_000
        self.replicas.tick(self.clock.mono_ms())

    @property
    def replica(self) -> UnopenedReplica:
        (found,) = self.replicas.without_room()
        return found

    def make_way(self, *with_room: BrokerId) -> PartitionState | None:
        return full_disks.make_way_unopened(self.replica, ME, self.replicas.successors(self.replica.state), with_room)

    @property
    def partition_of_new(self) -> Partition | None:
        return self.replicas.get(NEW)


@pytest.fixture
def stage(tmp_path: Path) -> Full:
    return Full(tmp_path)


@pytest.mark.parametrize("leader", [ME, OTHER])
def test_a_deleted_topics_replica_proposes_nothing_for_the_next_one(stage: Full, leader: BrokerId) -> None:
    """Both topics' states have version 0, so that ZooKeeper would take the old one's for the new one's."""
    stage.topic("new", replicas=ALL, leader=leader)
    replica, state = stage.replica, stage.replica.state
    stage.delete("new")
    stage.topic("new", replicas=(OTHER, THIRD), leader=OTHER)
    assert full_disks.make_way_unopened(replica, ME, stage.replicas.successors(state), (OTHER,)) is None
    assert stage.proposals == []


def test_a_deleted_topics_replica_drops_its_proposal(stage: Full) -> None:
    stage.topic("new", replicas=ALL)
    replica = stage.replica
    stage.make_way(OTHER)
    assert replica.proposed is not None
    stage.delete("new")
    assert replica.proposed is None, "the writer does not try again"


def test_a_leader_hands_over_where_a_replica_has_room(stage: Full) -> None:
    stage.topic("new", replicas=ALL)
    assert stage.replicas.leader(NEW).error is E.KAFKA_STORAGE_ERROR
    assert "No space left on device" in (stage.replicas.why_unopened(NEW) or ""), "producers are told"
    assert stage.make_way() is None, "no other replica has room"
    assert stage.make_way(ME) is None
    state = stage.make_way(OTHER)
    assert state is not None
    assert (state.leader, state.leader_epoch, state.last_known_leader, state.isr) == (-1, 1, ME, (OTHER, THIRD))
    assert (state.partition_epoch, state.leader_incarnation) == (1, -1)
    assert stage.proposals == [(stage.replica, state)]
    assert stage.make_way(OTHER) is None, "once"


def test_below_the_minimum_it_stays_eligible(stage: Full) -> None:
    stage.topic("new", replicas=(ME, OTHER), min_insync_replicas="2")
    state = stage.make_way(OTHER)
    assert state is not None
    assert (state.isr, isr.eligible(state)) == ((OTHER,), [(ME, stage.incarnation)]), "nothing was acknowledged"


def test_its_log_stays_closed_until_the_outcome_is_known(stage: Full) -> None:
    """Else it would lead, and answer, beside a successor."""
    stage.topic("new", replicas=ALL)
    replica, state = stage.replica, stage.make_way(OTHER)
    assert state is not None
    stage.full = False
    stage.look()
    assert stage.partition_of_new is None
    replica.proposal_written(state)
    stage.look()
    assert stage.partition_of_new is None, "the view doesn't know it yet"
    stage.topic("new", replicas=ALL, leader=OTHER, epoch=2, isr=(OTHER, THIRD))
    followed = stage.partition_of_new
    assert followed is not None
    assert not followed.is_leader
    assert stage.replicas.without_room() == []


def test_a_refused_proposal_leaves_it_the_leader(stage: Full) -> None:
    stage.topic("new", replicas=ALL)
    replica, state = stage.replica, stage.make_way(OTHER)
    assert state is not None
    stage.full = False
    replica.proposal_refused(state)
    stage.look()
    led = stage.partition_of_new
    assert led is not None
    assert led.is_leader


def test_a_follower_leaves_the_in_sync_set_at_once(stage: Full) -> None:
    stage.topic("new", replicas=ALL, leader=OTHER)
    replica = stage.replica
    state = step_aside(replica, ME)
    assert state is not None
    assert (state.leader, state.leader_epoch, state.isr) == (OTHER, 0, (OTHER, THIRD))
    stage.full = False
    stage.look()
    assert stage.partition_of_new is not None, "a follower may begin, and is taken in again when it has caught up"
    assert replica.proposed is None, "which is wanted no more"
    stage.full = True
    stage.topic("gone", replicas=ALL, leader=OTHER, isr=(OTHER, THIRD))
    assert step_aside(stage.replica, ME) is None, "it is out already"


def test_one_line_is_logged_for_each_topic(stage: Full, caplog: pytest.LogCaptureFixture) -> None:
    stage.topic("new", replicas=ALL)
    for _ in range(3):
        stage.look()
    assert sum("cannot create the log" in record.getMessage() for record in caplog.records) == 1
    (said,) = stage.replicas.troubles()
    assert "no log of 1 replica(s) assigned to this broker (new-0" in said
