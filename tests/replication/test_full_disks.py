"""Replicas in log directories without room leave the in-sync set, or hand their leadership over."""

from __future__ import annotations

from pathlib import Path

from fleetlog.brokers.log import DiskFull, Origin
from fleetlog.brokers.log.directories.directories import FIRST_PAUSE_MS
from fleetlog.brokers.model import BrokerId, PartitionState
from fleetlog.brokers.replication import full_disks, isr
from fleetlog.brokers.replication.serving import Serve
from fleetlog.wire.errors import ErrorCode as E
from tests.replication.trio import ALL, THIRD, Trio
from tests.support.stage import ME, OTHER


def no_room(trio: Trio) -> None:
    trio.p.log.no_room(DiskFull("t-0", "No space left on device"))
    assert trio.logs.crowded() == [trio.p.log]


def way_made(trio: Trio, with_room: set[BrokerId], *, level: bool) -> PartitionState | None:
    return full_disks.make_way(trio.p, ME, trio.replicas.successors(trio.p.state), with_room, level=level)


def test_a_leader_without_room_hands_over_and_stays_counted_on(trio: Trio) -> None:
    no_room(trio)
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)
    assert way_made(trio, {OTHER}, level=True) is not None
    state = trio.proposed()
    assert (state.leader, state.last_known_leader, state.isr) == (-1, ME, (OTHER, THIRD))
    assert state.leader_epoch == trio.p.leader_epoch + 1
    assert trio.p.append(memoryview(b""), acks=1, origin=Origin.CLIENT).error is E.NOT_LEADER_OR_FOLLOWER
    assert trio.p.must_wait(1, 0)
    assert trio.p.may_serve(Serve.LIST_OFFSETS) is E.NOT_LEADER_OR_FOLLOWER, "a successor may lead already"
    assert trio.p.may_serve(Serve.FETCH) is E.NONE
    told: list[E] = []
    trio.p.when_confirmed(told.append)
    assert told == []
    trio.p.in_sync.proposal_written(state)
    assert not trio.p.lease_valid(), "written, so a successor may lead before this broker's metadata cache knows"
    assert trio.p.must_wait(1, 0)
    assert trio.p.append(memoryview(b""), acks=1, origin=Origin.CLIENT).error is E.NOT_LEADER_OR_FOLLOWER
    assert trio.p.may_serve(Serve.LIST_OFFSETS) is E.NOT_LEADER_OR_FOLLOWER
    assert told == []
    trio.topic("t", replicas=ALL, epoch=2)
    assert trio.p.lease_valid(), "elected again"


def test_below_the_minimum_it_stays_eligible_in_its_true_incarnation(tmp_path: Path) -> None:
    trio = Trio(tmp_path, isr=(ME, OTHER), min_insync_replicas="2")
    no_room(trio)
    assert way_made(trio, {OTHER}, level=False) is not None
    state = trio.proposed()
    assert (state.isr, isr.eligible(state)) == ((OTHER,), [(ME, trio.incarnation)]), "its log holds everything"


def test_a_leader_without_room_stays_where_no_replica_has_room(trio: Trio) -> None:
    no_room(trio)
    assert way_made(trio, set(), level=False) is None
    assert way_made(trio, {ME}, level=False) is None
    del trio.metadata.brokers[OTHER]
    assert way_made(trio, {OTHER}, level=False) is None, "it is dead"
    assert trio.proposals == []


def test_what_it_acknowledged_alone_goes_over_with_the_leadership(trio: Trio) -> None:
    trio.append("t")
    trio.fetch(OTHER, 1)
    trio.fetch(THIRD, 0)
    no_room(trio)
    assert way_made(trio, {OTHER, THIRD}, level=True) is None, "the third may be elected, and lacks a record"
    trio.fetch(THIRD, 1)
    assert way_made(trio, {OTHER, THIRD}, level=True) is not None


def test_a_follower_without_room_leaves_and_fetches_no_more_until_there_is_room(trio: Trio) -> None:
    followed: list[str] = []
    trio.replicas.on_follower(lambda partition: followed.append("follow"))
    trio.replicas.on_unfollow(lambda tp: followed.append("unfollow"))
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=1)
    no_room(trio)
    trio.replicas.stand_back(trio.p)
    state = trio.proposed()
    assert (state.leader, state.leader_epoch, state.isr) == (OTHER, 1, (OTHER, THIRD))
    trio.topic("t", replicas=ALL, leader=THIRD, epoch=2, isr=(OTHER, THIRD))
    assert followed == ["follow", "unfollow", "unfollow"], "nor from the next leader"
    trio.replicas.stand_back(trio.p)
    assert trio.proposals == [], "it is out already"
    assert trio.logs.with_room_again(trio.clock.mono_ms()) == [], "not at once"
    trio.clock.now_ms += FIRST_PAUSE_MS
    assert trio.logs.with_room_again(trio.clock.mono_ms()) == [trio.p.log]
    trio.replicas.follow_again(trio.p.tp)
    assert followed[-1] == "follow"
    assert trio.logs.crowded() == []


def test_troubles_are_named(trio: Trio) -> None:
    assert trio.replicas.troubles() == []
    no_room(trio)
    (said,) = trio.replicas.troubles()
    assert "has no room: 1 replica(s) cannot append" in said
    (usage,) = trio.logs.usage()
    assert usage.usable_bytes == 0, "tools and other brokers ask for it"
    trio.logs.take_offline(trio.logs.directories[0])
    (said,) = trio.replicas.troubles()
    assert "is offline" in said
    trio.topic("u", replicas=ALL, leader=OTHER, epoch=1)
    assert "no log of 1 replica(s) assigned to this broker (u-0" in trio.replicas.troubles()[1]
