"""A leader's high watermark and what waits for it, and the roles of a replica, without a cluster around."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetlog.brokers.log import Origin
from fleetlog.brokers.model import TopicPartition
from fleetlog.brokers.replication.follower_progress import ReplicaSession
from fleetlog.wire.errors import ErrorCode as E
from tests.replication.trio import ALL, LAG_MS, THIRD, Trio
from tests.support.stage import ME, OTHER


def test_below_the_minimum_the_high_watermark_stands_still(tmp_path: Path) -> None:
    trio = Trio(tmp_path, isr=(ME, OTHER), min_insync_replicas="2")
    trio.append("t")
    trio.fetch(OTHER, 1)
    assert trio.watermark == 1
    told: list[E] = []
    trio.append("t")
    trio.p.wait_for(1, told.append, gives_up=True)
    trio.p.wait_for(1, told.append)
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    state = trio.proposed()
    assert (state.isr, state.elr) == ((ME,), (OTHER,)), "it has all that is committed, and stays eligible"
    trio.p.in_sync.proposal_written(state)
    assert told == [E.NOT_ENOUGH_REPLICAS_AFTER_APPEND], "only a request that would give up is told"
    assert trio.watermark == 1
    refused = trio.p.append(trio.batch(), acks=-1, origin=Origin.CLIENT)
    assert refused.error is E.NOT_ENOUGH_REPLICAS
    trio.fetch(THIRD, 2)
    trio.p.in_sync.proposal_written(trio.proposed())
    assert (trio.p.state.isr, trio.p.state.elr, trio.watermark) == ((ME, THIRD), (), 2)
    assert told == [E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.NONE]


def test_a_wait_that_is_given_up_leaves_the_others_in_their_order(tmp_path: Path) -> None:
    trio = Trio(tmp_path, isr=(ME, OTHER), min_insync_replicas="2")
    told: list[tuple[int, E]] = []
    for offset in range(8):
        trio.append("t")
        trio.p.wait_for(7 - offset, lambda error, at=7 - offset: told.append((at, error)), gives_up=offset % 3 == 0)  # type: ignore[misc]
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    trio.p.in_sync.proposal_written(trio.proposed())
    assert told == [(at, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND) for at in (1, 4, 7)]
    told.clear()
    trio.fetch(THIRD, 8)
    trio.p.in_sync.proposal_written(trio.proposed())
    assert told == [(at, E.NONE) for at in (0, 2, 3, 5, 6)]


def test_a_broker_that_is_no_replica_is_not_counted(trio: Trio) -> None:
    stranger = ReplicaSession(9, 1, 0)
    assert trio.p.follower_fetched(stranger, 0, 0, 0) is E.UNKNOWN_LEADER_EPOCH
    assert trio.fetch(OTHER, 1) is E.OFFSET_OUT_OF_RANGE


def test_a_wait_ends_once_also_if_another_one_ends_the_leadership(trio: Trio) -> None:
    told: list[E] = []
    trio.append("t")
    trio.p.wait_for(0, lambda _: trio.p.resign(None))
    trio.p.wait_for(0, told.append)
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 1)
    assert told == [E.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize(("later", "told"), [(1, [E.NONE]), (2, [E.NOT_LEADER_OR_FOLLOWER])])
def test_a_wait_outlasts_an_epoch_only_if_no_other_broker_led_between(trio: Trio, later: int, told: list[E]) -> None:
    answers: list[E] = []
    trio.append("t")
    trio.fetch(OTHER, 1)
    trio.p.wait_for(0, answers.append)
    trio.topic("t", epoch=later, replicas=ALL)
    assert (trio.p.is_leader, trio.p.leader_epoch) == (True, later)
    trio.fetch(THIRD, 1)
    assert trio.watermark == 0, "what was fetched in the epoch before does not count"
    trio.fetch(OTHER, 1)
    assert trio.watermark == 1
    assert answers == told


def test_roles_call_their_listeners(trio: Trio) -> None:
    heard: list[object] = []
    trio.replicas.on_follower(lambda partition: heard.append(("follow", partition.tp.topic, partition.state.leader)))
    trio.replicas.on_unfollow(lambda tp: heard.append(("unfollow", tp.topic)))
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=1)
    trio.topic("t", replicas=ALL, leader=-1, epoch=2)
    trio.topic("t", replicas=ALL, leader=THIRD, epoch=3)
    trio.topic("t", replicas=ALL, leader=ME, epoch=4)
    trio.topic("t", replicas=(OTHER, THIRD), leader=OTHER, epoch=5)
    assert heard == [
        ("follow", "t", OTHER), ("unfollow", "t"), ("follow", "t", THIRD), ("unfollow", "t"), ("unfollow", "t")
    ]  # fmt: skip
    assert trio.replicas.get(TopicPartition("t", 0)) is None
