"""A leader's in-sync set, high watermark and confirmations, without a cluster around."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from brokers.log import DiskFull, Origin
from brokers.log.full_disks import FIRST_PAUSE_MS
from brokers.model import BrokerId, LiveBroker, PartitionState, TopicPartition
from brokers.replication import full_disks, isr
from brokers.replication.follower_progress import ReplicaSession
from brokers.replication.partition import Partition
from brokers.replication.serving import WAIVED_MAX_MS, Serve
from tests.replication.trio import ALL, LAG_MS, THIRD, Trio
from tests.support.stage import ME, OTHER
from wire.errors import ErrorCode as E


def test_a_laggard_leaves_only_when_it_is_written(trio: Trio) -> None:
    trio.append("t")
    trio.fetch(OTHER, 1)
    trio.fetch(THIRD, 0)
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    state = trio.proposed()
    assert (state.isr, state.partition_epoch) == ((ME, OTHER), trio.p.state.partition_epoch + 1)
    trio.fetch(OTHER, 1)
    assert trio.watermark == 0, "whether it is written is unknown yet: the third still counts"
    trio.check()
    assert trio.proposals == [], "one change at a time"
    trio.p.proposal_written(state)
    assert (trio.p.state.isr, trio.watermark) == ((ME, OTHER), 1)


def test_a_refused_shrink_keeps_counting_all_members(trio: Trio) -> None:
    trio.append("t")
    trio.fetch(OTHER, 1)
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    trio.p.proposal_refused(trio.proposed())
    assert trio.watermark == 0
    trio.fetch(THIRD, 1)
    assert trio.watermark == 1


def test_a_follower_at_the_end_is_caught_up_as_long_as_its_session_fetches(trio: Trio) -> None:
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)
    trio.clock.now_ms += 100 * LAG_MS
    for session in trio.sessions.values():
        session.fetched(trio.clock.mono_ms(), 0)  # fetches that name other partitions only
    trio.append("t")
    trio.clock.now_ms += LAG_MS
    trio.check()
    assert trio.proposals == []
    trio.clock.now_ms += 1
    trio.check()
    assert trio.proposed().isr == (ME,)


def test_a_follower_that_keeps_pace_behind_the_end_is_not_lagging(trio: Trio) -> None:
    for step in range(10):
        trio.append("t")
        trio.fetch(OTHER, step)
        trio.fetch(THIRD, step + 1)
        trio.clock.now_ms += LAG_MS // 2
        trio.check()
    assert trio.proposals == []


def test_joining_counts_from_the_moment_it_is_proposed(tmp_path: Path) -> None:
    trio = Trio(tmp_path, isr=(ME, OTHER))
    for _ in range(3):
        trio.append("t")
    trio.fetch(OTHER, 3)
    trio.fetch(THIRD, 2)
    assert trio.proposals == [], "it hasn't all that is committed"
    trio.fetch(THIRD, 3)
    state = trio.proposed()
    assert state.isr == (*(ME, OTHER), THIRD)
    trio.append("t")
    trio.fetch(OTHER, 4)
    assert trio.watermark == 3, "if it is written, a successor may come from the larger set"
    trio.fetch(THIRD, 4)
    assert trio.watermark == 4


def test_whoever_is_refused_holds_nothing_back_any_more(tmp_path: Path) -> None:
    """No follower need fetch again for what the present set has."""
    trio = Trio(tmp_path, isr=(ME, OTHER))
    trio.fetch(THIRD, 0)
    state = trio.proposed()
    trio.append("t")
    trio.fetch(OTHER, 1)
    assert trio.watermark == 0
    trio.p.proposal_refused(state)
    assert trio.watermark == 1


def test_no_follower_joins_below_the_start_of_the_epoch(tmp_path: Path) -> None:
    trio = Trio(tmp_path, isr=(ME, OTHER))
    trio.append("t")
    trio.append("t")
    trio.topic("t", replicas=ALL, isr=(ME, OTHER), epoch=1)  # a new leader epoch: what was committed is unknown
    trio.fetch(THIRD, 1)
    assert trio.proposals == []
    trio.fetch(THIRD, 2)
    assert trio.proposed().isr == (ME, OTHER, THIRD)


def test_no_follower_joins_that_starts_below_the_leaders_log(tmp_path: Path) -> None:
    trio = Trio(tmp_path, isr=(ME, OTHER))
    for _ in range(3):
        trio.append("t")
    trio.fetch(OTHER, 3)
    trio.p.log.truncation.raise_start(3)
    trio.fetch(THIRD, 3)
    trio.check()
    assert trio.proposals == [], "below the start nothing was compared: other records may lie there"
    trio.fetch(THIRD, 3, log_start=3)
    assert trio.proposed().isr == (ME, OTHER, THIRD)


def test_no_follower_joins_that_a_move_takes_away(tmp_path: Path) -> None:
    """The move would have to take it out of the in-sync set again, with its last write."""
    trio = Trio(tmp_path, isr=(ME, OTHER))
    moving = replace(trio.p.state, removing=(THIRD,), partition_epoch=trio.p.state.partition_epoch + 1)
    trio.p.update_state(moving)
    trio.fetch(THIRD, 0)
    trio.check()
    assert trio.proposals == []
    trio.p.update_state(replace(moving, removing=(), partition_epoch=moving.partition_epoch + 1))
    assert trio.proposed().isr == (ME, OTHER, THIRD)


@pytest.mark.parametrize("wrong", ["gone", "another registration"])
def test_no_follower_joins_by_a_session_of_a_previous_incarnation(tmp_path: Path, wrong: str) -> None:
    trio = Trio(tmp_path, isr=(ME, OTHER))
    if wrong == "gone":
        del trio.metadata.brokers[THIRD]
    else:
        trio.metadata.brokers[THIRD] = replace(trio.metadata.brokers[THIRD], epoch=2)
    trio.fetch(THIRD, 0)
    trio.check()
    assert trio.proposals == []


def test_a_member_with_a_new_incarnation_is_proposed_again(trio: Trio) -> None:
    trio.metadata.brokers[OTHER] = replace(trio.metadata.brokers[OTHER], incarnation=trio.incarnation + 1)
    trio.fetch(OTHER, 0)
    state = trio.proposed()
    assert dict(isr.members(state))[OTHER] == trio.incarnation + 1
    trio.p.proposal_written(state)
    trio.metadata.brokers[THIRD] = replace(
        trio.metadata.brokers[THIRD], incarnation=trio.incarnation + 1, intact_since=trio.incarnation
    )
    trio.fetch(THIRD, 0)
    assert trio.proposals == [], "it lost nothing between its incarnations"


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
    trio.p.proposal_written(state)
    assert told == [E.NOT_ENOUGH_REPLICAS_AFTER_APPEND], "only a request that would give up is told"
    assert trio.watermark == 1
    refused = trio.p.append(trio.batch(), acks=-1, origin=Origin.CLIENT)
    assert refused.error is E.NOT_ENOUGH_REPLICAS
    trio.fetch(THIRD, 2)
    trio.p.proposal_written(trio.proposed())
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
    trio.p.proposal_written(trio.proposed())
    assert told == [(at, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND) for at in (1, 4, 7)]
    told.clear()
    trio.fetch(THIRD, 8)
    trio.p.proposal_written(trio.proposed())
    assert told == [(at, E.NONE) for at in (0, 2, 3, 5, 6)]


def test_a_lowered_minimum_first_clears_the_eligible(tmp_path: Path) -> None:
    trio = Trio(tmp_path, isr=(ME, OTHER), min_insync_replicas="2")
    trio.append("t")
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    trio.p.proposal_written(trio.proposed())
    state = trio.p.state
    trio.topic("t", replicas=ALL, isr=state.isr, min_insync_replicas="1")
    trio.p.update_state(state)
    trio.p.advance()
    assert trio.watermark == 0, "another replica could still be elected, without our record"
    trio.check()
    settled = trio.proposed()
    assert (settled.isr, settled.elr) == ((ME,), ())
    trio.p.proposal_written(settled)
    assert trio.watermark == 1


def test_replicas_that_are_being_added_do_not_raise_the_minimum(tmp_path: Path) -> None:
    """A topic of one replica that is moved to three takes acks=all writes all the time."""
    trio = Trio(tmp_path, isr=(ME,), min_insync_replicas="2")
    moving = replace(trio.p.state, adding=(OTHER, THIRD), partition_epoch=trio.p.state.partition_epoch + 1)
    trio.p.update_state(moving)
    assert trio.p.effective_min_isr == 1
    assert trio.p.append(trio.batch(), acks=-1, origin=Origin.CLIENT).error is E.NONE
    trio.p.update_state(replace(moving, adding=(THIRD,), partition_epoch=moving.partition_epoch + 1))
    assert trio.p.effective_min_isr == 2
    assert trio.p.append(trio.batch(), acks=-1, origin=Origin.CLIENT).error is E.NOT_ENOUGH_REPLICAS


def test_a_newer_state_ends_a_proposal(trio: Trio) -> None:
    trio.append("t")
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    mine = trio.proposed()
    assert mine.isr == (ME,)
    theirs = replace(isr.without(trio.p.state, {THIRD}, 1), partition_epoch=mine.partition_epoch)
    trio.p.update_state(theirs)
    trio.p.proposal_written(mine)
    assert trio.p.state.isr == (ME, OTHER), "the controller was quicker"
    trio.fetch(OTHER, 1)
    assert trio.watermark == 1


def test_an_older_state_only_brings_replicas(trio: Trio) -> None:
    trio.append("t")
    trio.fetch(OTHER, 1)
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    old, written = trio.p.state, trio.proposed()
    trio.p.proposal_written(written)
    trio.p.update_state(replace(old, replicas=(*ALL, BrokerId(4)), adding=(BrokerId(4),)))
    assert trio.p.state.isr == written.isr
    assert trio.p.state.replicas == (*ALL, 4)
    assert trio.p.effective_min_isr == 1


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


# ---- without a lease -------------------------------------------------------------------------------------------------


def test_followers_confirm_a_leader_without_its_lease(trio: Trio) -> None:
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)
    told: list[E] = []
    trio.p.when_confirmed(told.append)
    assert told == [E.NONE]
    trio.lease = False
    assert trio.p.may_serve(Serve.COORDINATOR_STATE) is E.COORDINATOR_LOAD_IN_PROGRESS
    trio.clock.now_ms += 10
    asked = trio.clock.mono_ms()
    trio.p.when_confirmed(told.append)
    trio.sessions[OTHER].fetched(asked + 5, asked + 1)
    trio.sessions[THIRD].fetched(asked + 5, asked - 1)  # it answers to something sent before the question
    assert told == [E.NONE]
    trio.sessions[THIRD].fetched(asked + 6, asked)
    assert told == [E.NONE, E.NONE]


def test_an_eligible_replica_has_to_confirm_too(tmp_path: Path) -> None:
    """It may be elected while the in-sync set is too small, whatever the members say."""
    trio = Trio(tmp_path, isr=(ME, OTHER), min_insync_replicas="3")
    trio.append("t")
    trio.topic("t", replicas=ALL, isr=(ME, OTHER), epoch=1, min_insync_replicas="3")
    trio.p.update_state(replace(trio.p.state, elr=(THIRD,), elr_incarnations=(trio.incarnation,)))
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)  # not caught up: it is not being proposed
    assert trio.proposals == []
    trio.lease = False
    trio.clock.now_ms += 10
    asked = trio.clock.mono_ms()
    told: list[E] = []
    trio.p.when_confirmed(told.append)
    trio.sessions[OTHER].fetched(asked + 5, asked + 1)
    assert told == []
    trio.sessions[THIRD].fetched(asked + 5, asked + 1)
    assert told == [E.NONE]


def test_a_follower_that_turned_away_confirms_nothing(trio: Trio) -> None:
    trio.lease = False
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)
    told: list[E] = []
    trio.p.when_confirmed(told.append)
    trio.p.follower_forgotten(trio.sessions[OTHER])
    for session in trio.sessions.values():
        session.fetched(trio.clock.mono_ms() + 9, trio.clock.mono_ms() + 9)
    assert told == []
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=1)
    assert told == [E.NOT_LEADER_OR_FOLLOWER]


def test_a_follower_that_fetches_again_confirms_what_was_asked_before(trio: Trio) -> None:
    """A cut ended all fetch sessions, so that none was there to be waited for when the question came."""
    trio.lease = False
    told: list[E] = []
    trio.p.when_confirmed(told.append)
    trio.clock.now_ms += 10
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)
    for session in trio.sessions.values():
        session.fetched(trio.clock.mono_ms(), trio.clock.mono_ms())
    assert told == [E.NONE]


def test_a_question_that_waits_for_two_followers_is_looked_at_once_for_each_fetch(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for both again after each of their fetches; kept twice, it would be looked at 2^n times."""
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)
    trio.lease = False
    trio.clock.now_ms += 1_000
    told: list[E] = []
    for _ in range(3):
        trio.p.when_confirmed(told.append)
    looks: list[None] = []
    look = Partition.confirmed_ms
    monkeypatch.setattr(Partition, "confirmed_ms", lambda partition: looks.append(None) or look(partition))
    asked = trio.clock.mono_ms()
    for late_ms in range(16, 0, -1):
        for session in trio.sessions.values():
            session.fetched(asked, asked - late_ms)
    assert told == []
    assert len(looks) == 2 * 16


def test_a_lease_that_comes_back_confirms_what_was_asked_without_it(trio: Trio) -> None:
    trio.lease = False
    told: list[E] = []
    trio.p.when_confirmed(told.append)
    trio.replicas.tick(trio.clock.mono_ms())
    assert told == []
    trio.lease = True
    trio.clock.now_ms += 60_000
    trio.replicas.tick(trio.clock.mono_ms())
    assert told == [E.NONE]


def test_where_anybody_may_be_elected_nothing_is_confirmed(tmp_path: Path) -> None:
    for name, configs, expected in (("a", {}, [E.NONE]), ("b", {"unclean_leader_election_enable": "true"}, [])):
        trio = Trio(tmp_path / name, isr=(ME,), **configs)
        trio.lease = False
        told: list[E] = []
        trio.p.when_confirmed(told.append)
        assert told == expected


# ---- a failed log ----------------------------------------------------------------------------------------------------


def test_a_leader_whose_log_failed_leads_no_more(trio: Trio) -> None:
    trio.p.log.offline = True
    trio.replicas.tick(trio.clock.mono_ms())
    state = trio.proposed()
    assert (state.leader, state.last_known_leader, state.isr) == (-1, ME, (OTHER, THIRD))
    assert state.leader_epoch == trio.p.leader_epoch + 1
    assert trio.p.abdicate() is None, "one at a time"


def test_the_last_member_with_a_failed_log_stays_but_no_longer_counts(tmp_path: Path) -> None:
    trio = Trio(tmp_path, isr=(ME,))
    trio.p.log.offline = True
    trio.replicas.tick(trio.clock.mono_ms())
    state = trio.proposed()
    ((member, incarnation),) = isr.members(state)
    assert member == ME
    assert not LiveBroker(trio.incarnation, 0).continues(incarnation)


def test_a_leader_that_waived_its_lease_asks_its_followers(trio: Trio) -> None:
    told: list[E] = []
    trio.p.waive_lease()
    assert not trio.p.lease_valid()
    assert trio.p.may_serve(Serve.LIST_OFFSETS) is E.NOT_LEADER_OR_FOLLOWER
    assert trio.p.may_serve(Serve.APPEND) is trio.p.may_serve(Serve.FETCH) is E.NONE
    assert trio.p.must_wait(1, 0), "it promises nothing that its followers don't have"
    trio.p.when_confirmed(told.append)
    assert told == []
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=1)
    assert told == [E.NOT_LEADER_OR_FOLLOWER]
    trio.topic("t", replicas=ALL, epoch=2)
    assert trio.p.lease_valid(), "a new epoch is a new lease"


def test_only_a_state_proposed_after_it_voids_a_waiver(trio: Trio) -> None:
    """The controller compares the version that it knew when it asked: what was proposed before may be that one."""
    trio.clock.now_ms += LAG_MS + 1
    trio.append("t")
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    before = trio.proposed()
    trio.p.waive_lease()
    trio.p.proposal_written(before)
    assert trio.p.lease.waived
    trio.clock.now_ms += WAIVED_MAX_MS + 1
    trio.check()
    after = trio.proposed()
    assert after == replace(trio.p.state, partition_epoch=trio.p.state.partition_epoch + 1), "the same in a new version"
    trio.p.waive_lease()  # asked again: the controller may know the version that is being written
    trio.p.proposal_written(after)
    assert trio.p.lease.waived
    trio.clock.now_ms += WAIVED_MAX_MS + 1
    trio.check()
    trio.p.proposal_written(trio.proposed())
    assert trio.p.lease_valid()


# ---- a log without room ----------------------------------------------------------------------------------------------


def no_room(trio: Trio) -> None:
    trio.p.log.no_room(DiskFull("t-0", "No space left on device"))
    assert trio.logs.crowded() == [trio.p.log]


def way_made(trio: Trio, with_room: set[BrokerId], *, level: bool) -> PartitionState | None:
    return full_disks.make_way(trio.p, ME, trio.replicas.successors(trio.p), with_room, level=level)


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
    trio.p.proposal_written(state)
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


def test_a_previous_leader_does_not_know_the_others_log_starts(trio: Trio) -> None:
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)
    assert trio.p.lowest_start() == 0
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=1)
    assert trio.p.lowest_start() == -1, "or a DeleteRecords would be answered as done"


def test_a_deletion_waits_for_every_live_replica(tmp_path: Path) -> None:
    """One that is out of sync may join, and lead, while its log still begins below."""
    trio = Trio(tmp_path, isr=(ME, OTHER))
    for _ in range(3):
        trio.append("t")
    trio.fetch(OTHER, 3)
    trio.fetch(THIRD, 1)
    trio.p.log.truncation.raise_start(2)
    trio.fetch(OTHER, 3, log_start=2)
    assert trio.p.lowest_start() == 0
    trio.fetch(THIRD, 2, log_start=2)
    assert trio.p.lowest_start() == 2
    trio.fetch(THIRD, 2, log_start=1)
    del trio.metadata.brokers[THIRD]
    assert trio.p.lowest_start() == 2, "a replica that is away may not join before it begins there"


def test_a_deletion_does_not_wait_for_a_replica_that_was_moved_away(trio: Trio) -> None:
    for _ in range(2):
        trio.append("t")
    trio.fetch(OTHER, 2)
    trio.fetch(THIRD, 2)
    trio.p.log.truncation.raise_start(2)
    trio.fetch(OTHER, 2, log_start=2)
    assert trio.p.lowest_start() == 0
    known = trio.p.state
    trio.p.update_state(replace(isr.without(known, {THIRD}, 1), replicas=(ME, OTHER), partition_epoch=9))
    assert trio.p.lowest_start() == 2
    assert list(trio.p.follower_ends()) == [OTHER]


def test_a_consumer_is_sent_only_where_its_position_is(trio: Trio) -> None:
    rack = trio.metadata.brokers[OTHER].rack
    assert rack is not None
    for _ in range(3):
        trio.append("t")
    trio.fetch(OTHER, 2, log_start=1)
    assert [trio.p.preferred_replica(rack, offset) for offset in range(4)] == [-1, OTHER, OTHER, -1]


# ---- roles -----------------------------------------------------------------------------------------------------------


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
