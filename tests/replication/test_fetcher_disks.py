"""A follower whose log directory fails leaves the in-sync set itself: its leader would notice only the lag, later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleetlog.brokers.controller import elections
from fleetlog.brokers.model import BrokerId, LiveBroker
from fleetlog.brokers.replication import isr
from fleetlog.brokers.replication.isr import FAILED_INCARNATION
from tests.support.stage import ME, OTHER, Stage

THIRD = BrokerId(3)
TICK_MS = 10_000


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def follow(stage: Stage, isr: tuple[BrokerId, ...], epoch: int = 0, minimum: str = "2") -> None:
    stage.topic("t", leader=OTHER, epoch=epoch, replicas=(OTHER, ME, THIRD), isr=isr, min_insync_replicas=minimum)


def tick(stage: Stage) -> None:
    stage.clock.now_ms += TICK_MS
    stage.replicas.tick(stage.clock.now_ms)


def test_a_follower_with_a_failed_log_leaves_the_in_sync_set(stage: Stage) -> None:
    follow(stage, (OTHER, ME, THIRD))
    tick(stage)
    assert stage.proposals == []
    stage.partition("t").log.offline = True
    tick(stage)
    tick(stage)  # the first is still under way
    ((in_sync, state),) = stage.proposals
    assert in_sync is stage.partition("t").in_sync
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (OTHER, 0, 1)
    assert (state.isr, state.elr) == ((OTHER, THIRD), ())
    in_sync.proposal_written(state)
    follow(stage, (OTHER, THIRD), epoch=1)
    tick(stage)
    assert len(stage.proposals) == 1, "no state counts on it any more"


def test_its_leader_gets_no_more_fetches(stage: Stage) -> None:
    """An idle partition's follower looks caught up for ever, whatever became of its log."""
    unfollowed: list[str] = []
    stage.replicas.on_unfollow(lambda tp: unfollowed.append(tp.topic))
    follow(stage, (OTHER, ME, THIRD))
    tick(stage)
    assert unfollowed == []
    stage.partition("t").log.offline = True
    tick(stage)
    assert unfollowed == ["t"]


def test_below_the_minimum_it_is_remembered_but_not_counted_on(stage: Stage) -> None:
    """Its records were acknowledged, and if the other replica loses its tail, no other replica has them."""
    follow(stage, (OTHER, ME))
    stage.partition("t").log.offline = True
    tick(stage)
    ((_, state),) = stage.proposals
    assert (state.isr, state.isr_incarnations) == ((OTHER,), (7,))
    assert (state.elr, state.elr_incarnations) == ((ME,), (FAILED_INCARNATION,))
    live_brokers = {broker: LiveBroker(7, 7) for broker in (OTHER, ME)}
    assert not isr.counts(live_brokers, ME, FAILED_INCARNATION)
    unclean = {OTHER: LiveBroker(8, 8), ME: LiveBroker(8, 8)}
    offline = replace(state, leader=-1, leader_incarnation=-1)
    assert elections.successor(offline, unclean) is None
    assert set(elections.to_ask(offline, unclean, unclean=False)) == {OTHER, ME}
    stage.partition("t").update_state(state)
    tick(stage)
    assert len(stage.proposals) == 1, "said once"


def test_the_last_of_the_in_sync_set_stays_in_it_without_counting(stage: Stage) -> None:
    stage.topic("t", leader=-1, replicas=(ME, OTHER), isr=(ME,))
    stage.partition("t").log.offline = True
    tick(stage)
    ((_, state),) = stage.proposals
    assert (state.isr, state.isr_incarnations, state.leader_epoch) == ((ME,), (FAILED_INCARNATION,), 0)


def test_a_refused_proposal_is_repeated_until_another_leads(stage: Stage) -> None:
    follow(stage, (OTHER, ME, THIRD))
    stage.partition("t").log.offline = True
    tick(stage)
    ((in_sync, state),) = stage.proposals
    in_sync.proposal_refused(state)
    tick(stage)
    assert len(stage.proposals) == 2
    stage.topic("t", leader=THIRD, epoch=1, replicas=(OTHER, ME, THIRD), isr=(OTHER, ME, THIRD))
    assert in_sync.proposed is None
    tick(stage)
    assert stage.proposals[-1][1].leader == THIRD
