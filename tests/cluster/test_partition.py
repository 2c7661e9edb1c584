"""A leader's in-sync set, high watermark and confirmations, and a follower's truncations, without a cluster around."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from brokers.cluster import isr
from brokers.cluster.followers import ReplicaSession
from brokers.cluster.partition import Partition, Serve
from brokers.log import Origin
from brokers.model import BrokerId, BrokerInfo, Life, PartitionState, TopicPartition
from tests.server.stage import ME, OTHER, Stage
from wire.errors import ErrorCode as E

THIRD = BrokerId(3)
ALL = (ME, OTHER, THIRD)
LAG_MS = 10_000


class Trio(Stage):
    """This broker leads a partition of three replicas; sessions of both followers."""

    def __init__(self, directory: Path, isr: tuple[BrokerId, ...] = ALL, **configs: str) -> None:
        super().__init__(directory)
        self.view.brokers[THIRD] = BrokerInfo(THIRD, 1, self.incarnation, self.view.brokers[OTHER].endpoints, "rack-3")
        self.topic("t", replicas=ALL, isr=isr, **configs)
        self.sessions = {b: ReplicaSession(b, 1, self.clock.mono_ms()) for b in (OTHER, THIRD)}

    @property
    def p(self) -> Partition:
        return self.partition("t")

    def fetch(self, broker_id: int, offset: int) -> E:
        session = self.sessions[broker_id]
        session.last_fetch_ms = self.clock.mono_ms()
        return self.p.follower_fetched(session, offset, 0, self.clock.mono_ms())

    def proposed(self) -> PartitionState:
        """The only proposal made since the last look."""
        ((partition, state),) = self.proposals
        assert partition is self.p
        self.proposals.clear()
        return state

    def check(self) -> None:
        self.p.check_followers(self.clock.mono_ms(), LAG_MS)

    @property
    def watermark(self) -> int:
        return self.p.log.high_watermark


@pytest.fixture
def trio(tmp_path: Path) -> Trio:
    return Trio(tmp_path)


def test_a_laggard_leaves_only_when_it_is_written(trio: Trio) -> None:
    trio.append("t")
    trio.fetch(OTHER, 1)
    trio.fetch(THIRD, 0)
    trio.clock.now_ms += LAG_MS + 1
    trio.check()
    state = trio.proposed()
    assert (state.isr, state.partition_epoch) == ((ME, OTHER), trio.p.state.partition_epoch + 1)
    trio.fetch(OTHER, 1)
    assert trio.watermark == 0, "nobody knows yet whether it is written: the third still counts"
    trio.check()
    assert trio.proposals == [], "one change at a time"
    trio.p.proposal_written(state)
    assert (trio.p.state.isr, trio.watermark) == ((ME, OTHER), 1)


def test_a_refused_shrink_goes_on_counting_everybody(trio: Trio) -> None:
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


def test_nobody_joins_below_the_start_of_the_epoch(tmp_path: Path) -> None:
    trio = Trio(tmp_path, isr=(ME, OTHER))
    trio.append("t")
    trio.append("t")
    trio.topic("t", replicas=ALL, isr=(ME, OTHER), epoch=1)  # a new reign: nobody knows what was committed
    trio.fetch(THIRD, 1)
    assert trio.proposals == []
    trio.fetch(THIRD, 2)
    assert trio.proposed().isr == (ME, OTHER, THIRD)


@pytest.mark.parametrize("wrong", ["gone", "another registration"])
def test_nobody_joins_on_the_word_of_a_former_life(tmp_path: Path, wrong: str) -> None:
    trio = Trio(tmp_path, isr=(ME, OTHER))
    if wrong == "gone":
        del trio.view.brokers[THIRD]
    else:
        trio.view.brokers[THIRD] = replace(trio.view.brokers[THIRD], epoch=2)
    trio.fetch(THIRD, 0)
    trio.check()
    assert trio.proposals == []


def test_a_member_that_began_a_new_life_is_proposed_anew(trio: Trio) -> None:
    trio.view.brokers[OTHER] = replace(trio.view.brokers[OTHER], incarnation=trio.incarnation + 1)
    trio.fetch(OTHER, 0)
    state = trio.proposed()
    assert dict(isr.members(state))[OTHER] == trio.incarnation + 1
    trio.p.proposal_written(state)
    trio.view.brokers[THIRD] = replace(
        trio.view.brokers[THIRD], incarnation=trio.incarnation + 1, intact_since=trio.incarnation
    )
    trio.fetch(THIRD, 0)
    assert trio.proposals == [], "it lost nothing between its lives"


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
    assert told == [E.NOT_ENOUGH_REPLICAS_AFTER_APPEND], "only who would give up is told"
    assert trio.watermark == 1
    refused = trio.p.append(trio.batch(), acks=-1, origin=Origin.CLIENT)
    assert refused.error is E.NOT_ENOUGH_REPLICAS
    trio.fetch(THIRD, 2)
    trio.p.proposal_written(trio.proposed())
    assert (trio.p.state.isr, trio.p.state.elr, trio.watermark) == ((ME, THIRD), (), 2)
    assert told == [E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.NONE]


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
    assert trio.watermark == 0, "somebody else could still be elected, without our record"
    trio.check()
    settled = trio.proposed()
    assert (settled.isr, settled.elr) == ((ME,), ())
    trio.p.proposal_written(settled)
    assert trio.watermark == 1


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


def test_who_is_no_replica_is_not_counted(trio: Trio) -> None:
    stranger = ReplicaSession(9, 1, 0)
    assert trio.p.follower_fetched(stranger, 0, 0, 0) is E.UNKNOWN_LEADER_EPOCH
    assert trio.fetch(OTHER, 1) is E.OFFSET_OUT_OF_RANGE


# ---- without a lease -------------------------------------------------------------------------------------------------


def test_followers_confirm_a_leader_without_its_lease(trio: Trio) -> None:
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)
    told: list[E] = []
    trio.p.when_confirmed(told.append)
    assert told == [E.NONE]
    trio.lease = False
    assert trio.p.may_serve(Serve.COORDINATE) is E.NOT_COORDINATOR
    trio.clock.now_ms += 10
    asked = trio.clock.mono_ms()
    trio.p.when_confirmed(told.append)
    trio.sessions[OTHER].fetched(asked + 5, asked + 1)
    trio.sessions[THIRD].fetched(asked + 5, asked - 1)  # it answers to something sent before the question
    assert told == [E.NONE]
    trio.sessions[THIRD].fetched(asked + 6, asked)
    assert told == [E.NONE, E.NONE]


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


def test_the_last_member_with_a_failed_log_stays_and_counts_for_nobody(tmp_path: Path) -> None:
    trio = Trio(tmp_path, isr=(ME,))
    trio.p.log.offline = True
    trio.replicas.tick(trio.clock.mono_ms())
    state = trio.proposed()
    ((member, incarnation),) = isr.members(state)
    assert member == ME
    assert not Life(trio.incarnation, 0).continues(incarnation)


# ---- following -------------------------------------------------------------------------------------------------------


def test_a_follower_appends_only_in_the_epoch_it_asked_in(trio: Trio) -> None:
    trio.append("t")
    records = memoryview(b"".join(piece.read() for piece in trio.p.log.read(0, 1 << 20, end_offset=1).slices))
    trio.topic("f", replicas=ALL, leader=OTHER, epoch=3)
    follower = trio.partition("f")
    assert follower.replicate(2, records, 1, 0, 0) is E.FENCED_LEADER_EPOCH
    assert follower.log.log_end_offset == 0
    assert follower.replicate(3, records, 1, 0, 0) is E.NONE
    assert (follower.log.log_end_offset, follower.log.high_watermark) == (1, 1)
    assert follower.replicate(3, memoryview(b""), 0, 0, 0) is E.NONE
    assert follower.log.high_watermark == 1, "a new leader may know less than we do"


def test_an_epoch_without_records_is_forgotten_when_it_contradicts_the_leader(trio: Trio) -> None:
    trio.append("t")
    trio.topic("t", replicas=ALL, epoch=5)  # leads again, and appends nothing
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=6)
    assert trio.p.fetch_position() == (1, 5, 0)
    assert trio.p.diverged(6, 0, 1) is E.NONE
    assert trio.p.fetch_position() == (1, 0, 0), "or the leader would say the same for ever"


@pytest.mark.parametrize(
    ("ours", "told", "end"),
    [
        # (our epochs with their ends), what the leader says, where we end; KIP-101 and KIP-279
        ([(0, 3), (1, 6)], (0, 3), 3),
        ([(0, 3), (1, 6)], (1, 4), 4),
        ([(0, 3), (2, 6)], (1, 5), 3),
        ([(2, 6)], (1, 5), 0),
    ],
)
def test_truncation_by_epochs(trio: Trio, ours: list[tuple[int, int]], told: tuple[int, int], end: int) -> None:
    for epoch, until in ours:
        if epoch:
            trio.topic("t", replicas=ALL, epoch=epoch)
        while trio.p.log.log_end_offset < until:
            trio.append("t")
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=9)
    assert trio.p.diverged(9, *told) is E.NONE
    assert trio.p.log.log_end_offset == end
    assert trio.p.lost_commits == 0


def test_a_truncation_below_the_high_watermark_is_loud(trio: Trio, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        trio.append("t")
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 3)
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=1)
    assert trio.p.diverged(1, 0, 1) is E.NONE
    assert trio.p.lost_commits == 1
    assert "below the high watermark 3" in caplog.text


def test_off_the_leaders_log_a_follower_starts_over(trio: Trio) -> None:
    trio.append("t")
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=1)
    assert trio.p.out_of_range(1, 7, 9) is E.NONE
    assert trio.p.fetch_position() == (7, -1, 7)


def test_roles_are_heard(trio: Trio) -> None:
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
