"""What replicas propose for the in-sync set, and what counts until it is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleetlog.brokers.log import Origin
from fleetlog.brokers.model import BrokerId, LiveBroker
from fleetlog.brokers.replication import isr
from fleetlog.brokers.replication.serving import WAIVED_MAX_MS
from fleetlog.wire.errors import ErrorCode as E
from tests.replication.trio import ALL, LAG_MS, THIRD, Trio
from tests.support.stage import ME, OTHER


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
    trio.p.in_sync.proposal_written(state)
    assert (trio.p.state.isr, trio.watermark) == ((ME, OTHER), 1)


def test_a_refused_shrink_keeps_counting_all_members(trio: Trio) -> None:
    trio.append("t")
    trio.fetch(OTHER, 1)
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    trio.p.in_sync.proposal_refused(trio.proposed())
    assert trio.watermark == 0
    trio.fetch(THIRD, 1)
    assert trio.watermark == 1


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
    trio.p.in_sync.proposal_refused(state)
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
    trio.p.in_sync.proposal_written(state)
    trio.metadata.brokers[THIRD] = replace(
        trio.metadata.brokers[THIRD], incarnation=trio.incarnation + 1, intact_since=trio.incarnation
    )
    trio.fetch(THIRD, 0)
    assert trio.proposals == [], "it lost nothing between its incarnations"


def test_a_lowered_minimum_first_clears_the_eligible(tmp_path: Path) -> None:
    trio = Trio(tmp_path, isr=(ME, OTHER), min_insync_replicas="2")
    trio.append("t")
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    trio.p.in_sync.proposal_written(trio.proposed())
    state = trio.p.state
    trio.topic("t", replicas=ALL, isr=state.isr, min_insync_replicas="1")
    trio.p.update_state(state)
    trio.p.advance()
    assert trio.watermark == 0, "another replica could still be elected, without our record"
    trio.check()
    settled = trio.proposed()
    assert (settled.isr, settled.elr) == ((ME,), ())
    trio.p.in_sync.proposal_written(settled)
    assert trio.watermark == 1


def test_replicas_that_are_being_added_do_not_raise_the_minimum(tmp_path: Path) -> None:
    """A topic of one replica that is moved to three takes acks=all writes all the time."""
    trio = Trio(tmp_path, isr=(ME,), min_insync_replicas="2")
    moving = replace(trio.p.state, adding=(OTHER, THIRD), partition_epoch=trio.p.state.partition_epoch + 1)
    trio.p.update_state(moving)
    assert trio.p.in_sync.effective_min_isr == 1
    assert trio.p.append(trio.batch(), acks=-1, origin=Origin.CLIENT).error is E.NONE
    trio.p.update_state(replace(moving, adding=(THIRD,), partition_epoch=moving.partition_epoch + 1))
    assert trio.p.in_sync.effective_min_isr == 2
    assert trio.p.append(trio.batch(), acks=-1, origin=Origin.CLIENT).error is E.NOT_ENOUGH_REPLICAS


def test_a_newer_state_ends_a_proposal(trio: Trio) -> None:
    trio.append("t")
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    mine = trio.proposed()
    assert mine.isr == (ME,)
    theirs = replace(isr.without(trio.p.state, {THIRD}, 1), partition_epoch=mine.partition_epoch)
    trio.p.update_state(theirs)
    trio.p.in_sync.proposal_written(mine)
    assert trio.p.state.isr == (ME, OTHER), "the controller was quicker"
    trio.fetch(OTHER, 1)
    assert trio.watermark == 1


def test_an_older_state_only_brings_replicas(trio: Trio) -> None:
    trio.append("t")
    trio.fetch(OTHER, 1)
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    old, written = trio.p.state, trio.proposed()
    trio.p.in_sync.proposal_written(written)
    trio.p.update_state(replace(old, replicas=(*ALL, BrokerId(4)), adding=(BrokerId(4),)))
    assert trio.p.state.isr == written.isr
    assert trio.p.state.replicas == (*ALL, 4)
    assert trio.p.in_sync.effective_min_isr == 1


def test_a_leader_whose_log_failed_leads_no_more(trio: Trio) -> None:
    trio.p.log.offline = True
    trio.replicas.tick(trio.clock.mono_ms())
    state = trio.proposed()
    assert (state.leader, state.last_known_leader, state.isr) == (-1, ME, (OTHER, THIRD))
    assert state.leader_epoch == trio.p.leader_epoch + 1
    assert trio.p.in_sync.abdicate() is None, "one at a time"


def test_the_last_member_with_a_failed_log_stays_but_no_longer_counts(tmp_path: Path) -> None:
    trio = Trio(tmp_path, isr=(ME,))
    trio.p.log.offline = True
    trio.replicas.tick(trio.clock.mono_ms())
    state = trio.proposed()
    ((member, incarnation),) = isr.members(state)
    assert member == ME
    assert not LiveBroker(trio.incarnation, 0).continues(incarnation)


def test_only_a_state_proposed_after_it_voids_a_waiver(trio: Trio) -> None:
    """The controller compares the version that it knew when it asked: what was proposed before may be that one."""
    trio.clock.now_ms += LAG_MS + 1
    trio.append("t")
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    before = trio.proposed()
    trio.p.waive_lease()
    trio.p.in_sync.proposal_written(before)
    assert trio.p.lease.waived
    trio.clock.now_ms += WAIVED_MAX_MS + 1
    trio.check()
    after = trio.proposed()
    assert after == replace(trio.p.state, partition_epoch=trio.p.state.partition_epoch + 1), "the same in a new version"
    trio.p.waive_lease()  # asked again: the controller may know the version that is being written
    trio.p.in_sync.proposal_written(after)
    assert trio.p.lease.waived
    trio.clock.now_ms += WAIVED_MAX_MS + 1
    trio.check()
    trio.p.in_sync.proposal_written(trio.proposed())
    assert trio.p.lease_valid()


def take_out_the_third(trio: Trio) -> None:
    """Both followers are at the end, and the leader reads a state of somebody else without one of them."""
    trio.append("t")
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 1)
    trio.clock.now_ms += 100
    left = isr.without(trio.p.state, {THIRD}, 1)
    trio.p.update_state(replace(left, partition_epoch=left.partition_epoch + 1))


def test_a_follower_that_takes_itself_out_comes_back_when_it_follows_again(trio: Trio) -> None:
    """Its disk failed: it fetches no more, but the leader reads the state before the fetch that says so."""
    take_out_the_third(trio)
    trio.check()
    assert trio.proposals == []
    trio.sessions[THIRD].fetched(trio.clock.mono_ms() + 5, trio.clock.mono_ms())
    trio.check()
    assert trio.proposals == [], "the answer that this fetch acknowledges may have left before"
    trio.clock.now_ms += 10
    trio.fetch(THIRD, 1)
    assert trio.proposed().isr == (ME, OTHER, THIRD)


def test_a_follower_that_was_taken_out_and_goes_on_following_joins_without_a_word(trio: Trio) -> None:
    """It restarted, say, and was in its new session before its leader read that it had been away."""
    take_out_the_third(trio)
    trio.sessions[THIRD].fetched(trio.clock.mono_ms() + 5, trio.clock.mono_ms() + 1)
    trio.check()
    assert trio.proposed().isr == (ME, OTHER, THIRD)


def test_a_leaders_own_shrink_that_it_hears_of_by_the_cache_takes_no_follower_out(trio: Trio) -> None:
    """The answer to its write was lost: a follower that has caught up meanwhile joins at once."""
    trio.append("t")
    trio.fetch(OTHER, 1)
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    shrunk = trio.proposed()
    trio.fetch(THIRD, 1)
    trio.p.update_state(shrunk)
    assert trio.proposed().isr == (ME, OTHER, THIRD)
