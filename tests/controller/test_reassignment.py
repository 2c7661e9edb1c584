"""Reassignments: each first and next step, and random histories of a partition that is being moved."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.controller.elections import elect, elect_by_ends, is_led, must_be_heard, new_partition, to_ask
from fleetlog.brokers.controller.plans import Step, advance, cancel_move, first_relies_on, start_move
from fleetlog.brokers.controller.requests import Refused
from fleetlog.brokers.metadata.image import stateless
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, BrokerId, LiveBroker, LogEnd, PartitionState, TopicPartition
from fleetlog.brokers.replication import isr
from fleetlog.wire.errors import ErrorCode

EPOCH = 7
TP = TopicPartition("t", 0)
GROUPS = TopicPartition(GROUP_METADATA_TOPIC, 0)
LIVE = {b: LiveBroker(10 + b, 10 + b) for b in range(1, 10)}


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


def partition(*replicas: int, members: tuple[int, ...] = (), leader: int | None = None) -> PartitionState:
    made = new_partition(ids(*replicas), LIVE, 3)
    members = members or replicas
    led = members[0] if leader is None else leader
    return replace(
        made,
        isr=ids(*members),
        isr_incarnations=tuple(LIVE[b].incarnation for b in members),
        leader=led,
        leader_incarnation=LIVE[led].incarnation if led >= 0 else -1,
        leader_epoch=4,
        partition_epoch=9,
    )


def applied(state: PartitionState, step: Step) -> PartitionState:
    """What stands in the tree after the step."""
    after = step.state or state
    if step.assigned is not None:
        one = step.assigned
        after = replace(after, replicas=one.replicas, adding=one.adding, removing=one.removing)
    return after


def begin(state: PartitionState, *target: int, min_isr: int = 1, tp: TopicPartition = TP) -> PartitionState:
    step = start_move(tp, state, target, LIVE, EPOCH, min_isr=min_isr)
    assert step is not None
    return applied(state, step)


def caught_up(state: PartitionState, *brokers: int, min_isr: int = 1) -> PartitionState:
    for broker in brokers:
        state = isr.joined(state, broker, LIVE[broker].incarnation, isr.min_in_sync(min_isr, state.established))
    return state


def onward(state: PartitionState, tp: TopicPartition = TP, min_isr: int = 1) -> PartitionState:
    while (step := advance(tp, state, LIVE, EPOCH, min_isr=min_isr)) is not None:
        state = applied(state, step)
    return state


@pytest.mark.parametrize(
    ("before", "target", "replicas", "adding", "removing"),
    [
        ((1, 2, 3), (4, 5, 6), (4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3)),
        ((1, 2, 3), (1, 2, 4), (1, 2, 4, 3), (4,), (3,)),
        ((1,), (1, 2, 3), (1, 2, 3), (2, 3), ()),
        ((1, 2, 3), (2,), (2, 1, 3), (), (1, 3)),
        ((1, 2, 3), (3, 1, 2), (3, 1, 2), (), ()),
    ],
)
def test_a_move_stands_in_the_assignment(
    before: tuple[int, ...], target: tuple[int, ...], replicas: tuple[int, ...], adding: tuple[int, ...],
    removing: tuple[int, ...],
) -> None:  # fmt: skip
    moving = begin(partition(*before), *target)
    assert (moving.replicas, moving.adding, moving.removing) == (replicas, adding, removing)
    assert moving.target == target
    assert set(moving.established) == set(before)
    assert (moving.isr, moving.leader, moving.partition_epoch) == (before, before[0], 9), "nothing else changes yet"


def test_the_present_target_is_nothing_to_do() -> None:
    assert start_move(TP, partition(1, 2), (1, 2), LIVE, EPOCH, min_isr=1) is None
    moving = begin(partition(1, 2), 3, 4)
    assert start_move(TP, moving, (3, 4), LIVE, EPOCH, min_isr=1) is None


@pytest.mark.parametrize(
    ("target", "text"),
    [((), "Empty"), ((1, 1), "Duplicate"), ((-1, 2), "Invalid broker id"), ((1, 77), "not alive")],
)
def test_targets_that_make_no_sense(target: tuple[int, ...], text: str) -> None:
    with pytest.raises(Refused, match=text) as refused:
        start_move(TP, partition(1, 2), target, LIVE, EPOCH, min_isr=1)
    assert refused.value.error is ErrorCode.INVALID_REPLICATION_ASSIGNMENT


def test_a_dead_replica_may_stay_and_may_go() -> None:
    live_brokers = {b: live_broker for b, live_broker in LIVE.items() if b != 3}
    three = partition(1, 2, 3, members=(1, 2))
    for target in ((1, 2, 3, 4), (1, 2, 4)):
        assert start_move(TP, three, target, live_brokers, EPOCH, min_isr=1) is not None


def test_a_move_waits_for_the_whole_target_and_a_leader() -> None:
    moving = begin(partition(1, 2, 3), 4, 5, 6)
    assert onward(moving) == moving
    nearly = caught_up(moving, 4, 5)
    assert onward(nearly) == nearly
    whole = caught_up(nearly, 6)
    assert onward(replace(whole, leader=-1, leader_incarnation=-1)).leader == -1
    dead = {b: live_broker for b, live_broker in LIVE.items() if b != 6}
    assert advance(TP, whole, dead, EPOCH, min_isr=1) is None, "a member that died a moment ago is no member"
    first = advance(TP, whole, LIVE, EPOCH, min_isr=1, leaving={4})
    assert first is not None
    assert first.assigned is None
    assert first.state is not None
    assert (first.state.leader, set(first.state.isr)) == (5, {1, 2, 3, 4, 5, 6}), (
        "leadership first, and not to a leaver"
    )
    done = onward(whole)
    assert (done.replicas, done.adding, done.removing) == ((4, 5, 6), (), ())
    assert (done.leader, done.leader_epoch, set(done.isr)) == (4, 6, {4, 5, 6})
    assert done.partition_epoch > whole.partition_epoch


def test_a_leader_that_stays_begins_an_epoch_with_every_replica_that_goes() -> None:
    """A leader just taking it in must lose the race, and what the replica fetched must not count when it comes back."""
    whole = caught_up(begin(partition(1, 2, 3), 1, 2, 4), 4)
    done = onward(whole)
    assert (done.leader, done.leader_epoch, set(done.isr)) == (1, 5, {1, 2, 4})
    assert done.partition_epoch == whole.partition_epoch + 1
    more = caught_up(begin(partition(1), 1, 2), 2)
    assert onward(more) == replace(more, adding=())
    fewer = onward(begin(partition(1, 2, 3, members=(1, 2)), 1, 2))
    assert (fewer.replicas, fewer.isr, fewer.partition_epoch) == ((1, 2), (1, 2), 10), "3 was not even in sync"


def test_a_smaller_factor_waits_for_those_that_stay() -> None:
    moving = begin(partition(1, 2, 3, members=(1, 3)), 1, 2)
    assert onward(moving) == moving
    done = onward(caught_up(moving, 2))
    assert (done.replicas, done.isr) == ((1, 2), (1, 2))


def test_eligible_replicas_go_with_their_assignment() -> None:
    state = replace(partition(1, 2, 3, members=(1,)), elr=ids(2, 3), elr_incarnations=(12, 13))
    moving = begin(state, 1, 2, min_isr=3)
    assert moving.elr == (2, 3)
    assert onward(moving, min_isr=3).elr == (2, 3), "only 1 is in sync"
    done = onward(caught_up(moving, 2, min_isr=3), min_isr=3)
    assert (done.replicas, done.isr, done.elr) == ((1, 2), (1, 2), ())


def test_a_coordinators_partition_is_given_up_before_it_is_led_elsewhere() -> None:
    whole = caught_up(begin(partition(1, 2), 3, 4, tp=GROUPS), 3, 4)
    given_up = onward(whole, GROUPS)
    assert (given_up.leader, given_up.last_known_leader, given_up.replicas) == (-1, 1, (3, 4, 1, 2))
    assert must_be_heard(GROUPS, given_up, LIVE) == 1
    led = elect(given_up, LIVE, EPOCH, min_isr=1)
    assert led is not None
    assert led.leader == 3
    done = onward(led, GROUPS)
    assert (done.replicas, set(done.isr), done.leader) == ((3, 4), {3, 4}, 3)


# ---------------------------------------------------------------- changes of mind


def test_a_cancelled_move_leaves_what_was() -> None:
    before = partition(1, 2, 3)
    moving = caught_up(begin(before, 4, 5, 6), 4)
    back = applied(moving, cancel_move(TP, moving, LIVE, EPOCH, min_isr=2))
    assert (back.replicas, back.adding, back.removing) == ((1, 2, 3), (), ())
    assert (back.leader, back.leader_epoch, back.isr) == (1, 5, (1, 2, 3))
    assert back.partition_epoch == moving.partition_epoch + 1
    with pytest.raises(Refused) as refused:
        cancel_move(TP, back, LIVE, EPOCH, min_isr=2)
    assert refused.value.error is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_leader_that_was_being_added_gives_up() -> None:
    moving = caught_up(begin(partition(1, 2), 3, 4), 3, 4)
    led = replace(moving, leader=BrokerId(3), leader_incarnation=13)
    back = applied(led, cancel_move(TP, led, LIVE, EPOCH, min_isr=1))
    assert (back.replicas, back.leader, back.leader_epoch, back.isr) == ((1, 2), 1, 5, (1, 2))
    groups = applied(led, cancel_move(GROUPS, led, LIVE, EPOCH, min_isr=1))
    assert (groups.replicas, groups.leader, groups.last_known_leader, groups.isr) == ((1, 2), -1, 3, (1, 2))


@pytest.mark.parametrize("min_isr", [1, 2])
def test_no_change_of_mind_costs_the_in_sync_set_too_much(min_isr: int) -> None:
    """Two of the three replicas are in sync only as part of the target: going back would leave one, or none."""
    moving = caught_up(begin(partition(1, 2, 3, members=(1,)), 4, 5, 6), 4, 5, min_isr=min_isr)
    if min_isr == 2:
        with pytest.raises(Refused, match=r"min\.insync\.replicas"):
            cancel_move(TP, moving, LIVE, EPOCH, min_isr=2)
        with pytest.raises(Refused, match=r"min\.insync\.replicas"):
            start_move(TP, moving, (7, 8), LIVE, EPOCH, min_isr=2)
        kept = applied(moving, start_move(TP, moving, (4, 8), LIVE, EPOCH, min_isr=2) or Step(None, None))
        assert set(kept.isr) == {1, 4}
    else:
        assert applied(moving, cancel_move(TP, moving, LIVE, EPOCH, min_isr=1)).isr == (1,)
    alone = isr.without(moving, [1], 1)
    alone = replace(alone, leader=BrokerId(4), leader_incarnation=14)
    with pytest.raises(Refused):
        cancel_move(TP, alone, LIVE, EPOCH, min_isr=min_isr)


@pytest.mark.parametrize("lost", [LiveBroker(20, 20), None], ids=["restarted", "away"])
def test_no_change_of_mind_costs_the_only_copy_that_counts(lost: LiveBroker | None) -> None:
    moving = caught_up(begin(partition(1, 2), 3, 4), 3)
    offline = replace(moving, leader=BrokerId(-1), leader_incarnation=-1)
    live_brokers = {b: known for b, known in {**LIVE, 2: lost}.items() if known is not None}
    with pytest.raises(Refused, match=r"Replicas \[2\] would keep the data"):
        cancel_move(TP, offline, live_brokers, EPOCH, min_isr=1)
    with pytest.raises(Refused, match=r"or replicas \[3, 4\], are back"):
        start_move(TP, offline, (1, 2, 5), live_brokers, EPOCH, min_isr=1)
    behind = caught_up(begin(partition(1, 2), 3, 4))
    offline = replace(behind, leader=BrokerId(-1), leader_incarnation=-1)
    assert cancel_move(TP, offline, live_brokers, EPOCH, min_isr=1).relies_on == ()


def test_another_target_takes_the_place_of_the_first() -> None:
    moving = caught_up(begin(partition(1, 2), 3, 4), 3)
    other = begin(moving, 4, 5)
    assert (other.replicas, set(other.adding), set(other.removing)) == ((4, 5, 1, 2), {4, 5}, {1, 2})
    assert other.isr == (1, 2)
    assert other.partition_epoch == moving.partition_epoch + 1
    done = onward(caught_up(other, 4, 5))
    assert (done.replicas, set(done.isr)) == ((4, 5), {4, 5})


def test_a_partition_without_state_is_only_assigned_anew() -> None:
    moving = begin(replace(stateless(ids(1, 2))), 3, 4)
    assert moving.replicas == (3, 4, 1, 2)
    again = start_move(TP, moving, (5,), LIVE, EPOCH, min_isr=1)
    assert again is not None
    assert again.state is None


# ---------------------------------------------------------------- whatever happens


class MovedPartition:
    """A partition with random actions of leaders, brokers and operator; the controller acts as the active one."""

    def __init__(self, seed: int, min_isr: int, tp: TopicPartition) -> None:
        self.rng = random.Random(seed)
        self.min_isr = min_isr
        self.tp = tp
        self.live_brokers = {b: LiveBroker(1, 1) for b in range(1, 7)}
        self.state = new_partition(self.some_brokers(), self.live_brokers, 3)

    def some_brokers(self) -> tuple[BrokerId, ...]:
        return ids(*self.rng.sample(range(1, 7), self.rng.randint(1, 3)))

    def join(self, broker: int) -> None:
        state = self.state
        if (
            broker in self.live_brokers
            and broker in state.replicas
            and broker not in state.isr
            and is_led(state, self.live_brokers)
        ):
            minimum = isr.min_in_sync(self.min_isr, state.established)
            joined = isr.joined(state, broker, self.live_brokers[broker].incarnation, minimum)
            self.state = replace(joined, partition_epoch=state.partition_epoch + 1)

    def die(self) -> None:
        if len(self.live_brokers) > 4:
            del self.live_brokers[self.rng.choice(sorted(self.live_brokers))]

    def come_back(self, broker: int, *, clean: bool = True) -> None:
        if broker not in self.live_brokers:
            known = [i for b, i in (*isr.members(self.state), *isr.eligible(self.state)) if b == broker]
            incarnation = max(known, default=1) + 1
            self.live_brokers[broker] = LiveBroker(incarnation, incarnation - clean)

    def order(self) -> None:
        target = None if self.rng.random() < 0.3 else self.some_brokers()
        try:
            relied_on = first_relies_on(self.state, self.state.established if target is None else target)
            if target is None:
                step: Step | None = cancel_move(self.tp, self.state, self.live_brokers, EPOCH, min_isr=self.min_isr)
            else:
                step = start_move(self.tp, self.state, target, self.live_brokers, EPOCH, min_isr=self.min_isr)
        except Refused:
            return
        if step is not None:
            assert set(step.relies_on) <= set(relied_on), "a step relies on replicas that were not asked"
            self.move(step)

    def move(self, step: Step) -> None:
        before, after = self.state, applied(self.state, step)
        minimum = isr.min_in_sync(self.min_isr, after.established)
        assert len(after.isr) >= min(minimum, len(before.isr)), "a move took too many out"
        assert set(after.isr) <= set(after.replicas)
        assert set(after.isr) <= set(before.isr), "only a leader adds a replica"
        assert after.leader == -1 or after.leader in after.isr
        if set(before.replicas) - set(after.replicas):
            assert after.partition_epoch > before.partition_epoch
        if {*before.isr, *before.elr} - {*after.replicas}:
            assert set(step.relies_on) == {*before.isr} & {*after.replicas} != set(), "a copy is given up for nothing"
            counted_on = dict(isr.members(before))
            assert all(isr.counts(self.live_brokers, b, counted_on[b]) for b in step.relies_on), "for what has no tail"
        self.state = after

    def active(self) -> None:
        for _ in range(10):
            minimum = isr.min_in_sync(self.min_isr, self.state.established)
            elected = elect(self.state, self.live_brokers, EPOCH, min_isr=minimum)
            if elected is None:
                asked = to_ask(self.state, self.live_brokers, unclean=False)
                equal = dict.fromkeys(asked, LogEnd(0, 0))
                elected = elect_by_ends(self.state, equal, self.live_brokers, EPOCH, unclean=False)
            if elected is not None:
                self.state = elected
                continue
            step = advance(self.tp, self.state, self.live_brokers, EPOCH, min_isr=self.min_isr)
            if step is None:
                return
            self.move(step)
        raise AssertionError("it doesn't come to rest")


@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from([TP, GROUPS]))
def test_random_histories_of_a_moving_partition(seed: int, min_isr: int, tp: TopicPartition) -> None:
    """No step of a move takes the in-sync set below the minimum, and in peace every move comes to its end."""
    one = MovedPartition(seed, min_isr, tp)
    for _ in range(30):
        event = one.rng.random()
        if event < 0.4:
            one.join(one.rng.choice(one.state.replicas))
        elif event < 0.5:
            one.die()
        elif event < 0.6:
            one.come_back(one.rng.randint(1, 6), clean=one.rng.random() < 0.5)
        else:
            one.order()
        one.active()
    for broker in range(1, 7):
        one.come_back(broker)
    one.active()
    for broker in one.state.replicas:
        one.join(broker)
        one.active()
    state = one.state
    assert is_led(state, one.live_brokers)
    assert not state.adding
    assert not state.removing
    assert set(state.isr) == set(state.replicas)
