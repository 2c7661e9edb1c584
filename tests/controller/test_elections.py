"""Leader election: a table of situations, the rules under random histories, and elections by log ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.controller.elections import (
    RECOVERING,
    elect,
    elect_by_ends,
    handed_over,
    is_led,
    must_be_heard,
    new_partition,
    reason_of,
    released,
    to_ask,
)
from fleetlog.brokers.model import (
    GROUP_METADATA_TOPIC,
    NO_LOG,
    BrokerId,
    LiveBroker,
    LogEnd,
    PartitionState,
    TopicPartition,
)
from fleetlog.brokers.replication import isr

EPOCH = 7
LiveBrokers = dict[int, LiveBroker]


def state(
    leader: int, incarnation: int, members: list[tuple[int, int]], replicas: list[int],
    eligible: list[tuple[int, int]] | None = None,
) -> PartitionState:  # fmt: skip
    return PartitionState(
        replicas=tuple(map(BrokerId, replicas)),
        leader=leader,
        leader_epoch=4,
        isr=tuple(BrokerId(b) for b, _ in members),
        partition_epoch=9,
        controller_epoch=3,
        leader_incarnation=incarnation,
        isr_incarnations=tuple(i for _, i in members),
        elr=tuple(BrokerId(b) for b, _ in eligible or ()),
        elr_incarnations=tuple(i for _, i in eligible or ()),
    )


def unclean(**live_brokers: int) -> LiveBrokers:
    """Brokers (``b1=5``: broker 1 in incarnation 5) whose logs are intact since their present incarnation only."""
    return {int(name[1:]): LiveBroker(i, i) for name, i in live_brokers.items()}


def clean(since: int = 0, **live_brokers: int) -> LiveBrokers:
    """Brokers whose logs have lost nothing since an incarnation."""
    return {int(name[1:]): LiveBroker(i, since) for name, i in live_brokers.items()}


ONE = state(1, 5, [(1, 5)], [1])
ONE_OFFLINE = replace(ONE, leader=-1, leader_incarnation=-1, last_known_leader=1)
THREE = state(1, 5, [(1, 5), (2, 6), (3, 7)], [1, 2, 3])
THREE_OFFLINE = replace(THREE, leader=-1, leader_incarnation=-1, last_known_leader=1)
LAST = state(1, 5, [(1, 5)], [1, 2, 3], [(2, 6), (3, 7)])

# name: state, alive, min ISR, then leader, its incarnation, in-sync set, eligible replicas; or None for no change
TABLE = {
    "the leader is alive": (ONE, unclean(b1=5, b2=1), 1, None),
    "the only replica is dead": (ONE, unclean(b2=1), 1, (-1, -1, [(1, 5)], [])),
    "dead already and still": (ONE_OFFLINE, unclean(b2=1), 1, None),
    "the only replica is back, and has lost nothing": (ONE_OFFLINE, clean(b1=6), 1, (1, 6, [(1, 6)], [])),
    "the only replica is back without its tail: its log must be looked at first": (ONE_OFFLINE, unclean(b1=6), 1, None),
    "the only replica bounced uncleanly before its death was noticed": (
        ONE, unclean(b1=6), 1, (-1, -1, [(1, 5)], []),
    ),
    "the only replica's session was renewed": (ONE, clean(b1=6), 1, (1, 6, [(1, 6)], [])),
    "an earlier incarnation can't be told from the present one by id": (ONE, unclean(b1=4), 1, (-1, -1, [(1, 5)], [])),
    "a leader of three dies": (THREE, unclean(b2=6, b3=7), 1, (2, 6, [(2, 6), (3, 7)], [])),
    "a leader of three dies, and more must be in sync": (
        THREE, unclean(b2=6, b3=7), 3, (2, 6, [(2, 6), (3, 7)], [(1, 5)]),
    ),
    "the leader bounced uncleanly: others lead, it must catch up": (
        THREE, unclean(b1=8, b2=6, b3=7), 2, (2, 6, [(2, 6), (3, 7)], []),
    ),
    "the leader's session was renewed: it may lead again": (
        THREE, clean(b1=8, b2=6, b3=7), 2, (1, 8, [(1, 8), (2, 6), (3, 7)], []),
    ),
    "the leader dies and one follower bounced uncleanly": (
        THREE, unclean(b2=9, b3=7), 1, (3, 7, [(3, 7)], []),
    ),
    "a dead follower leaves the living leader's set": (THREE, unclean(b1=5, b2=6), 2, (1, 5, [(1, 5), (2, 6)], [])),
    "a follower without its tail leaves it as well": (
        THREE, unclean(b1=5, b2=6, b3=8), 2, (1, 5, [(1, 5), (2, 6)], []),
    ),
    "a follower with a renewed session stays": (THREE, clean(since=5, b1=5, b2=6, b3=8), 2, None),
    "the last but the leader leave, and stay eligible": (THREE, unclean(b1=5), 2, (1, 5, [(1, 5)], [(2, 6), (3, 7)])),
    "all dead": (THREE, unclean(b4=1), 1, (-1, -1, [(1, 5), (2, 6), (3, 7)], [])),
    "an eligible replica leads": (LAST, unclean(b2=9, b3=7), 2, (3, 7, [(3, 7)], [(2, 6), (1, 5)])),
    "an eligible replica leads, and alone it suffices": (LAST, unclean(b3=7), 1, (3, 7, [(3, 7)], [])),
    "in sync comes before eligible": (
        replace(LAST, leader=-1), clean(b1=6, b2=6, b3=7), 2, (1, 6, [(1, 6)], [(2, 6), (3, 7)]),
    ),
    "some are back without their tails, one is missing: it may know more": (
        THREE_OFFLINE, unclean(b1=8, b2=9), 1, None,
    ),
    "a failed log's member never counts": (
        replace(ONE_OFFLINE, isr_incarnations=(-2,)), clean(b1=5), 1, None,
    ),
    "a replica outside the in-sync set never leads": (
        state(1, 5, [(1, 5)], [1, 2]), unclean(b2=6), 1, (-1, -1, [(1, 5)], []),
    ),
    "preference follows the assignment, not the in-sync set": (
        state(1, 5, [(1, 5), (3, 7), (2, 6)], [1, 2, 3]), unclean(b2=6, b3=7), 1, (2, 6, [(3, 7), (2, 6)], []),
    ),
    "a leader that is no replica any more": (
        state(1, 5, [(1, 5), (2, 6)], [2, 3]), unclean(b1=5, b2=6), 1, (2, 6, [(2, 6)], []),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_an_election_gives_this_state_and_no_other_follows(name: str) -> None:
    before, live_brokers, min_isr, expected = TABLE[name]
    after = elect(before, live_brokers, EPOCH, min_isr=min_isr)
    if expected is None:
        assert after is None
        return
    assert after is not None
    leader, incarnation, members, eligible = expected
    assert (after.leader, after.leader_incarnation) == (leader, incarnation)
    assert (isr.members(after), isr.eligible(after)) == (members, eligible)
    kept = before.leader == leader and before.leader_incarnation == incarnation
    assert after.leader_epoch == before.leader_epoch + (not kept)
    assert after.partition_epoch == before.partition_epoch + 1
    assert after.controller_epoch == EPOCH
    assert after.replicas == before.replicas
    assert after.last_known_leader == (-1 if leader >= 0 else before.leader)
    assert elect(after, live_brokers, EPOCH, min_isr=min_isr) is None, "an election settles the matter"


def test_a_leaving_broker_is_chosen_last() -> None:
    live_brokers = unclean(b2=6, b3=7)
    led = elect(THREE, live_brokers, EPOCH, min_isr=1, leaving={2})
    assert led is not None
    assert led.leader == 3
    led = elect(THREE, live_brokers, EPOCH, min_isr=1, leaving={2, 3})
    assert led is not None
    assert led.leader == 2, "better one that is about to stop than none"


def test_new_partition_counts_the_living_as_in_sync() -> None:
    live_brokers = unclean(b2=4, b3=5)
    made = new_partition((BrokerId(1), BrokerId(2), BrokerId(3)), live_brokers, EPOCH)
    assert (made.leader, made.leader_epoch, made.isr, made.isr_incarnations) == (2, 0, (2, 3), (4, 5))
    assert elect(made, live_brokers, EPOCH, min_isr=2) is None


def test_a_partition_born_without_living_replica_starts_with_those_that_come() -> None:
    made = new_partition((BrokerId(1), BrokerId(2), BrokerId(3)), {}, EPOCH)
    assert made.leader == -1
    assert to_ask(made, unclean(b2=4), unclean=True) == ()
    led = elect(made, unclean(b2=4, b3=1), EPOCH, min_isr=2)
    assert led is not None
    assert (led.leader, led.isr, led.isr_incarnations) == (2, (2, 3), (4, 1))


def test_a_state_without_incarnations_is_trusted_only_by_its_logs() -> None:
    """A state written by Kafka or a tool: no replica is known to be intact, so the logs are compared."""
    foreign = replace(THREE, leader_incarnation=-1, isr_incarnations=(-1, -1, -1))
    live_brokers = clean(b1=5, b2=6, b3=7)
    offline = elect(foreign, live_brokers, EPOCH, min_isr=1)
    assert offline is not None
    assert (offline.leader, offline.last_known_leader) == (-1, 1)
    assert to_ask(offline, live_brokers, unclean=False) == (1, 2, 3)


# ---------------------------------------------------------------- by the logs' ends

BACK = unclean(b1=8, b2=9, b3=9)
BACK_IDS = (BrokerId(1), BrokerId(2), BrokerId(3))


@pytest.mark.parametrize(
    ("ends", "leader"),
    [
        ({1: (3, 10), 2: (4, 5), 3: (4, 5)}, 2),
        ({1: (4, 10), 2: (4, 12), 3: (3, 50)}, 2),
        ({1: (4, 5), 2: (4, 5), 3: (4, 6)}, 3),
        ({1: (0, 0), 2: (0, 0), 3: (0, 0)}, 1),
        ({1: (4, 5), 2: (4, 9)}, None),
        ({}, None),
    ],
)
def test_replicas_that_all_lost_their_tails_are_compared(ends: dict[int, tuple[int, int]], leader: int | None) -> None:
    assert to_ask(THREE_OFFLINE, BACK, unclean=False) == (1, 2, 3)
    known = {BrokerId(b): LogEnd(*end) for b, end in ends.items()}
    led = elect_by_ends(THREE_OFFLINE, known, BACK, EPOCH, unclean=False)
    if leader is None:
        assert led is None
        return
    assert led is not None
    assert (led.leader, led.isr, led.elr, led.leader_recovery_state) == (leader, (leader,), (), 0)
    assert led.isr_incarnations == (BACK[leader].incarnation,)
    assert led.leader_epoch == THREE_OFFLINE.leader_epoch + 1
    assert elect(led, BACK, EPOCH, min_isr=1) is None


def test_eligible_replicas_are_compared_too() -> None:
    offline = replace(LAST, leader=-1, leader_incarnation=-1)
    assert to_ask(offline, unclean(b1=8, b2=9), unclean=False) == ()
    assert to_ask(offline, BACK, unclean=False) == (1, 2, 3)
    ends = {BrokerId(1): LogEnd(4, 3), BrokerId(2): LogEnd(4, 3), BrokerId(3): LogEnd(4, 9)}
    led = elect_by_ends(offline, ends, BACK, EPOCH, unclean=False)
    assert led is not None
    assert led.leader == 3


def test_no_replica_is_probed_while_a_member_counts_or_is_missing() -> None:
    assert to_ask(THREE_OFFLINE, unclean(b1=8, b2=6, b3=9), unclean=True) == ()
    assert to_ask(THREE_OFFLINE, unclean(b1=8, b2=9), unclean=False) == ()
    assert to_ask(THREE, unclean(b1=5), unclean=True) == ()


def test_a_log_that_is_gone_does_not_lead() -> None:
    """It would begin anew, and the others would be cut to it."""
    gone = {BrokerId(1): NO_LOG, BrokerId(2): LogEnd(4, 5), BrokerId(3): LogEnd(-1, 0)}
    led = elect_by_ends(THREE_OFFLINE, gone, BACK, EPOCH, unclean=False)
    assert led is not None
    assert (led.leader, led.leader_recovery_state) == (2, 0)
    empty = gone | {BrokerId(2): LogEnd(-1, 0)}
    led = elect_by_ends(THREE_OFFLINE, empty, BACK, EPOCH, unclean=False)
    assert led is not None
    assert led.leader == 2, "its log was there all the time, and empty"


def test_what_a_lone_member_lost_is_given_up_only_by_leave() -> None:
    lone = replace(THREE_OFFLINE, isr=(BrokerId(1),), isr_incarnations=(5,))
    ends: dict[BrokerId, LogEnd | None] = {BrokerId(1): NO_LOG, BrokerId(2): LogEnd(4, 5), BrokerId(3): LogEnd(4, 7)}
    led = elect_by_ends(lone, ends, BACK, EPOCH, unclean=False)
    assert led is not None
    assert (led.leader, led.leader_recovery_state) == (3, 0), "all are back: nothing better will come"
    away = {b: live for b, live in BACK.items() if b != 2}
    del ends[BrokerId(2)]
    assert elect_by_ends(lone, ends, away, EPOCH, unclean=False) is None, "one that is away may have more"
    led = elect_by_ends(lone, ends, away, EPOCH, unclean=True)
    assert led is not None
    assert (led.leader, led.leader_recovery_state) == (3, RECOVERING)
    alone = {BrokerId(1): NO_LOG}
    assert elect_by_ends(lone, alone, unclean(b1=8), EPOCH, unclean=True) is None, "not where others may have a log"
    led = elect_by_ends(lone, alone, unclean(b1=8), EPOCH, unclean=True, anew=True)
    assert led is not None
    assert led.leader == 1, "but an operator knows"
    single = replace(lone, replicas=(BrokerId(1),))
    assert elect_by_ends(single, {BrokerId(1): NO_LOG}, BACK, EPOCH, unclean=False) is None
    ends = dict.fromkeys(BACK_IDS, NO_LOG)
    assert elect_by_ends(lone, ends, BACK, EPOCH, unclean=False) is None
    led = elect_by_ends(lone, ends, BACK, EPOCH, unclean=True)
    assert led is not None
    assert (led.leader, led.leader_recovery_state) == (1, RECOVERING), "where no log is left one begins anew"


def test_an_unclean_election_takes_the_longest_log_of_those_that_answer() -> None:
    two = state(-1, -1, [(1, 5)], [1, 2, 3])
    live_brokers = unclean(b2=3, b3=4)
    assert to_ask(two, live_brokers, unclean=False) == ()
    assert to_ask(two, live_brokers, unclean=True) == (2, 3)
    ends = {BrokerId(2): LogEnd(3, 70), BrokerId(3): LogEnd(4, 2)}
    assert elect_by_ends(two, ends, live_brokers, EPOCH, unclean=False) is None
    led = elect_by_ends(two, ends, live_brokers, EPOCH, unclean=True)
    assert led is not None
    assert (led.leader, led.isr, led.leader_recovery_state) == (3, (3,), RECOVERING)
    only_one = elect_by_ends(two, {BrokerId(2): LogEnd(3, 70)}, live_brokers, EPOCH, unclean=True)
    assert only_one is not None
    assert only_one.leader == 2


def test_with_leave_a_clean_choice_is_still_clean() -> None:
    """Replicas outside the in-sync set are asked as well; without their answer those inside decide."""
    one = state(-1, -1, [(1, 5), (2, 6)], [1, 2, 3])
    live_brokers = unclean(b1=8, b2=9, b3=4)
    assert to_ask(one, live_brokers, unclean=True) == (1, 2, 3)
    ends = {BrokerId(1): LogEnd(4, 8), BrokerId(2): LogEnd(4, 6)}
    led = elect_by_ends(one, ends, live_brokers, EPOCH, unclean=True)
    assert led is not None
    assert (led.leader, led.leader_recovery_state) == (1, 0)
    led = elect_by_ends(one, {**ends, BrokerId(3): LogEnd(4, 99)}, live_brokers, EPOCH, unclean=True)
    assert led is not None
    assert (led.leader, led.isr, led.leader_recovery_state) == (3, (3,), 0)


LONE = state(-1, -1, [(1, 5)], [1, 2, 3])
"""Broker 1 was alone in sync, with ``min.insync.replicas=1``."""


@pytest.mark.parametrize(
    ("ends", "leader"),
    [
        ({1: LogEnd(4, 5), 2: LogEnd(4, 9), 3: LogEnd(4, 7)}, 2),  # of one epoch the longer log holds the shorter one
        ({1: LogEnd(4, 9), 2: LogEnd(4, 9), 3: LogEnd(3, 99)}, 1),  # of equals the one that was in sync
        ({1: LogEnd(4, 5), 2: LogEnd(6, 9, ((4, 2), (6, 8))), 3: LogEnd(4, 4)}, 2),
        # a later epoch whose leader had less: what broker 1 has above was committed afterwards
        ({1: LogEnd(4, 5), 2: LogEnd(6, 9, ((4, 2), (6, 4))), 3: LogEnd(4, 4)}, 1),
        ({1: LogEnd(4, 5), 2: LogEnd(6, 9, ((3, 0), (6, 8))), 3: LogEnd(4, 4)}, 1),  # it lacks the epoch
        ({1: LogEnd(4, 5), 2: LogEnd(6, 9), 3: LogEnd(4, 4)}, 1),  # it doesn't tell its epochs
        ({1: LogEnd(-1, 0), 2: LogEnd(6, 9), 3: LogEnd(4, 4)}, 2),  # any log holds all of an empty one
        ({1: LogEnd(-1, 30), 2: LogEnd(6, 99, ((6, 0),)), 3: LogEnd(4, 4)}, 2),  # also where its start was raised
        ({1: LogEnd(-1, 30), 2: LogEnd(6, 30), 3: LogEnd(4, 4)}, 1),
        ({1: LogEnd(4, 5), 2: LogEnd(4, 9), 3: None}, 2),  # broker 3 has no log, and says so
        ({1: LogEnd(4, 5), 2: LogEnd(4, 9)}, None),  # broker 3 is alive, and has said nothing
        ({2: LogEnd(4, 9), 3: LogEnd(4, 9)}, None),
        ({1: None, 2: LogEnd(4, 9), 3: LogEnd(4, 9)}, None),
    ],
)
def test_a_lone_member_without_its_tail_gives_way_to_a_log_that_extends_its_own(
    ends: dict[int, LogEnd | None], leader: int | None
) -> None:
    assert to_ask(LONE, BACK, unclean=False) == (1, 2, 3)
    told = {BrokerId(b): end for b, end in ends.items()}
    led = elect_by_ends(LONE, told, BACK, EPOCH, unclean=False)
    if leader is None:
        assert led is None
        return
    assert led is not None
    assert (led.leader, led.isr, led.elr, led.leader_recovery_state) == (leader, (leader,), (), 0)


def test_replicas_that_are_away_are_not_waited_for() -> None:
    """``min.insync.replicas=1`` promises one copy: with the broker that has it back, the partition is led."""
    live_brokers = unclean(b1=8)
    assert to_ask(LONE, live_brokers, unclean=False) == (1,)
    led = elect_by_ends(LONE, {BrokerId(1): LogEnd(4, 5)}, live_brokers, EPOCH, unclean=False)
    assert led is not None
    assert led.leader == 1


# ---------------------------------------------------------------- voluntary moves


def test_a_user_partition_moves_at_once_and_a_coordinator_in_two_steps() -> None:
    live_brokers = unclean(b1=5, b2=6, b3=7)
    user, internal = TopicPartition("t", 0), TopicPartition(GROUP_METADATA_TOPIC, 0)
    moved = handed_over(user, THREE, BrokerId(3), live_brokers, EPOCH, min_isr=2)
    assert (moved.leader, moved.leader_epoch, moved.isr) == (3, 5, (1, 2, 3))
    first = handed_over(internal, THREE, BrokerId(3), live_brokers, EPOCH, min_isr=2)
    assert (first.leader, first.leader_epoch, first.isr, first.last_known_leader) == (-1, 5, (1, 2, 3), 1)
    assert must_be_heard(internal, first, live_brokers) == 1
    assert must_be_heard(internal, first, unclean(b2=6, b3=7)) is None, "the end of its registration is word enough"
    assert must_be_heard(user, first, live_brokers) is None
    heard = handed_over(internal, THREE, BrokerId(3), live_brokers, EPOCH, min_isr=2, heard=True)
    assert heard.leader == 3


# ---------------------------------------------------------------- whatever happens


members_of_three = st.lists(st.sampled_from([1, 2, 3]), unique=True, min_size=1, max_size=3)


@st.composite
def situations(draw: st.DrawFn) -> tuple[PartitionState, LiveBrokers, int]:
    incarnation = st.integers(0, 3)
    members = draw(members_of_three)
    eligible = [b for b in draw(members_of_three) if b not in members]
    led = draw(st.booleans())
    incarnations = {b: draw(incarnation) for b in (1, 2, 3)}
    drawn = state(
        members[0] if led else -1,
        incarnations[members[0]] if led else -1,
        [(b, incarnations[b]) for b in members],
        draw(st.permutations([1, 2, 3])),
        [(b, incarnations[b]) for b in eligible],
    )
    live_brokers = {}
    for b in draw(st.lists(st.sampled_from([1, 2, 3, 4]), unique=True)):
        present = draw(st.integers(0, 4))
        live_brokers[b] = LiveBroker(present, draw(st.integers(0, present)))
    return drawn, live_brokers, draw(st.integers(1, 3))


@given(situations())
def test_only_replicas_that_hold_everything_count(situation: tuple[PartitionState, LiveBrokers, int]) -> None:
    before, live_brokers, min_isr = situation
    after = elect(before, live_brokers, EPOCH, min_isr=min_isr)
    holding = {b for b, i in (*isr.members(before), *isr.eligible(before)) if isr.counts(live_brokers, b, i)}
    if after is None:
        assert is_led(before, live_brokers) or before.leader == -1
        assert is_led(before, live_brokers) or not holding
        return
    assert elect(after, live_brokers, EPOCH, min_isr=min_isr) is None
    assert after.isr, "an in-sync set is never empty"
    known = {*before.isr, *before.elr}
    if after.leader == -1:
        assert not holding
        assert (after.isr, after.isr_incarnations, after.elr) == (before.isr, before.isr_incarnations, before.elr)
        return
    assert is_led(after, live_brokers)
    assert set(after.isr) <= holding
    assert all(isr.counts(live_brokers, b, i) for b, i in isr.members(after))
    if len(after.isr) < min_isr:
        assert {*after.isr, *after.elr} == known, (
            "a replica that held everything stays eligible while nothing can be committed"
        )
    else:
        assert not after.elr or after.leader_epoch == before.leader_epoch


ADVANCED = replace(THREE, leader=2, leader_epoch=5, leader_incarnation=6)
"""The next state of THREE, with another leader."""
RELEASED = replace(THREE_OFFLINE, leader_epoch=5)


@pytest.mark.parametrize(
    ("old", "new", "live", "leaving", "reason"),
    [
        (THREE, replace(THREE, isr=THREE.isr[:2], isr_incarnations=(5, 6)), clean(b1=5, b2=6), (), None),
        (THREE, ADVANCED, clean(b2=6, b3=7), (), "leader_gone"),
        (THREE, replace(THREE, leader_epoch=5, leader_incarnation=9), clean(b1=9), (), "leader_gone"),
        (THREE, RELEASED, clean(b2=6), (), "leaderless"),
        (THREE, RELEASED, clean(b1=5), (), None),
        (RELEASED, replace(RELEASED, leader_epoch=6), clean(), (), None),
        (THREE_OFFLINE, ADVANCED, clean(b2=6), (), "returned"),
        (THREE_OFFLINE, replace(ADVANCED, leader_recovery_state=RECOVERING), clean(b2=6), (), "unclean"),
        (THREE, ADVANCED, clean(b1=5, b2=6), (1,), "shutdown"),
        (THREE, ADVANCED, clean(b1=5, b2=6), (), "preferred"),
        (replace(THREE, removing=(BrokerId(1),)), ADVANCED, clean(b1=5, b2=6), (), "reassignment"),
        (THREE, replace(ADVANCED, replicas=THREE.replicas[1:]), clean(b1=5, b2=6), (), "reassignment"),
    ],
)  # fmt: skip
def test_an_election_has_a_reason(
    old: PartitionState, new: PartitionState, live: LiveBrokers, leaving: tuple[int, ...], reason: str | None
) -> None:
    assert reason_of(old, new, live, leaving) == reason


def test_an_epoch_after_one_without_a_leader_remembers_the_last_leader() -> None:
    """An election waits for that broker's word."""
    once = released(THREE, EPOCH)
    assert (once.leader, once.last_known_leader, released(once, EPOCH).last_known_leader) == (-1, 1, 1)
