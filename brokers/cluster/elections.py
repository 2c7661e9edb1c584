"""Who leads: pure decisions over a partition's state and the living brokers.

A broker counts only as far as its logs still hold what they held in the incarnation that the state names
(:mod:`brokers.cluster.isr`). The order of choice:

1. members of the in-sync set that count, in the order of the assignment;
2. eligible leader replicas that count (KIP-966): the high watermark has not moved since they left the in-sync set;
3. if all of these are back but none counts, because every one of them restarted uncleanly, the one whose log reaches
   furthest: nobody else can know more. It needs their word about their logs' ends;
4. if the topic or an operator allows it, the living replica whose log reaches furthest: an unclean election, which may
   lose what was acknowledged;
5. nobody. The partition waits, and remembers who led it last.

A living leader stays, and loses those members of its in-sync set that died or came back without their tail.

Source: Kafka's PartitionLeaderElectionAlgorithms (3.9) and KIP-966; incarnations are ours (docs/INVARIANTS.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from brokers.cluster import isr
from brokers.cluster.isr import Lives
from brokers.model import INTERNAL_TOPICS, NO_LEADER, BrokerId, PartitionState, TopicPartition

RECOVERED = 0
RECOVERING = 1
"""Leader recovery states (KIP-704): the leader was elected uncleanly."""


class LogEnd(NamedTuple):
    """How far a replica's log reaches; the larger one knows more, epoch first (Kafka compares logs like this, too)."""

    last_epoch: int
    offset: int


def new_partition(replicas: tuple[BrokerId, ...], lives: Lives, controller_epoch: int) -> PartitionState:
    """The first state: every living replica is in sync, because all logs are empty; the first of them leads.

    With no living replica the whole list stays the in-sync set and nobody leads, so that any of them may start the
    (empty) log later.
    """
    members = tuple(b for b in replicas if b in lives)
    if not members:
        return PartitionState(
            replicas=replicas,
            leader=NO_LEADER,
            leader_epoch=0,
            isr=replicas,
            partition_epoch=0,
            controller_epoch=controller_epoch,
            leader_incarnation=-1,
            isr_incarnations=(-1,) * len(replicas),
        )
    return PartitionState(
        replicas=replicas,
        leader=members[0],
        leader_epoch=0,
        isr=members,
        partition_epoch=0,
        controller_epoch=controller_epoch,
        leader_incarnation=lives[members[0]].incarnation,
        isr_incarnations=tuple(lives[b].incarnation for b in members),
    )


def is_led(state: PartitionState, lives: Lives) -> bool:
    """Whether the leader lives in the very incarnation that the state names."""
    life = lives.get(state.leader)
    return (
        life is not None
        and life.incarnation == state.leader_incarnation
        and state.leader in state.isr
        and state.leader in state.replicas
    )


def elect(
    state: PartitionState,
    lives: Lives,
    controller_epoch: int,
    *,
    min_isr: int,
    leaving: Collection[int] = (),
) -> PartitionState | None:
    """The state that should replace this one given who lives, or None where it is right as far as can be told.

    ``min_isr`` is the effective minimum (:func:`isr.min_in_sync`). ``leaving`` brokers are about to stop: they are
    chosen last. The result's ``partition_epoch`` is the version the write leaves behind (compare-and-set on the
    present one). Where nobody may lead without a word from the replicas, :func:`to_ask` says whose.
    """
    if is_led(state, lives):
        gone = [b for b, i in isr.members(state) if b != state.leader and not isr.counts(lives, b, i)]
        if not gone:
            return None
        shrunk = isr.without(state, gone, min_isr)
        return replace(shrunk, partition_epoch=state.partition_epoch + 1, controller_epoch=controller_epoch)
    chosen = successor(state, lives, leaving)
    if chosen is not None:
        return led_by(state, chosen, lives, controller_epoch, min_isr=min_isr)
    if _never_led(state):
        living = tuple(b for b in state.replicas if b in lives)
        return _led(state, living, lives, controller_epoch) if living else None
    if state.leader == NO_LEADER:
        return None  # offline already, and nobody to bring it back
    return released(state, controller_epoch)


def successor(state: PartitionState, lives: Lives, leaving: Collection[int] = ()) -> BrokerId | None:
    """Who may lead without doubt: a member of the in-sync set, or else an eligible replica, that counts."""
    in_sync, eligible = dict(isr.members(state)), dict(isr.eligible(state))
    for staying in (True, False):
        for known in (in_sync, eligible):
            for b in state.replicas:
                if b in known and (b not in leaving) is staying and isr.counts(lives, b, known[b]):
                    return b
    return None


def led_by(
    state: PartitionState, leader: BrokerId, lives: Lives, controller_epoch: int, *, min_isr: int
) -> PartitionState:
    """A new epoch under this leader, who must count; members that don't count leave the in-sync set."""
    kept = [(b, lives[b].incarnation) for b, i in isr.members(state) if isr.counts(lives, b, i) and b in state.replicas]
    if leader not in {b for b, _ in kept}:
        kept.append((leader, lives[leader].incarnation))
    return replace(
        isr.reduced_to(state, kept, min_isr),
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        partition_epoch=state.partition_epoch + 1,
        controller_epoch=controller_epoch,
        leader_incarnation=lives[leader].incarnation,
        leader_recovery_state=RECOVERED,
        last_known_leader=NO_LEADER,
    )


def released(state: PartitionState, controller_epoch: int) -> PartitionState:
    """A new epoch that nobody leads; all else stays, and who led is remembered."""
    return replace(
        state,
        leader=NO_LEADER,
        leader_epoch=state.leader_epoch + 1,
        partition_epoch=state.partition_epoch + 1,
        controller_epoch=controller_epoch,
        leader_incarnation=-1,
        last_known_leader=state.leader if state.leader != NO_LEADER else state.last_known_leader,
    )


def _never_led(state: PartitionState) -> bool:
    """Nobody lived when the partition was made, or since: its log is empty wherever it starts."""
    return state.leader_epoch == 0 and state.leader == NO_LEADER and all(i == -1 for i in state.isr_incarnations)


# ---------------------------------------------------------------- choosing by the logs' ends


def to_ask(state: PartitionState, lives: Lives, *, unclean: bool) -> tuple[BrokerId, ...]:
    """Whose log's end must be known before somebody can lead this partition; empty where nothing is to be asked.

    Without leave for an unclean election: all who may know the most, once all of them live. With it: also every other
    living replica.
    """
    if state.leader != NO_LEADER or successor(state, lives) is not None or _never_led(state):
        return ()
    knowing = _knowing(state)
    if all(b in lives for b in knowing) and not unclean:
        return knowing
    return tuple(b for b in dict.fromkeys((*knowing, *state.replicas)) if b in lives) if unclean else ()


def elect_by_ends(
    state: PartitionState, ends: Mapping[BrokerId, LogEnd], lives: Lives, controller_epoch: int, *, unclean: bool
) -> PartitionState | None:
    """The state after a choice by what the brokers of :func:`to_ask` answered; None where it doesn't suffice.

    If everybody who may know the most has answered, the choice among them is clean. Else, with leave, whoever of the
    replicas knows the most of those that answered; ``leader_recovery_state`` then says that it was unclean.
    """
    if not to_ask(state, lives, unclean=unclean):
        return None
    knowing = _knowing(state)
    clean = all(b in ends and b in lives for b in knowing)
    if not clean and not unclean:
        return None
    candidates = knowing if clean else state.replicas
    ranked = [b for b in state.replicas if b in candidates and b in ends and b in lives]
    if not ranked:
        return None
    best = max(ranked, key=lambda b: ends[b])  # the first of equals: the order of the assignment
    chosen = _led(state, (best,), lives, controller_epoch)
    return chosen if clean else replace(chosen, leader_recovery_state=RECOVERING)


def _knowing(state: PartitionState) -> tuple[BrokerId, ...]:
    """Everybody who held all that was acknowledged."""
    return tuple(dict.fromkeys((*state.isr, *state.elr)))


def _led(state: PartitionState, members: tuple[BrokerId, ...], lives: Lives, controller_epoch: int) -> PartitionState:
    """A new epoch of these, led by the first of them; nobody else is eligible."""
    return replace(
        state,
        leader=members[0],
        leader_epoch=state.leader_epoch + 1,
        isr=members,
        partition_epoch=state.partition_epoch + 1,
        controller_epoch=controller_epoch,
        leader_incarnation=lives[members[0]].incarnation,
        isr_incarnations=tuple(lives[b].incarnation for b in members),
        leader_recovery_state=RECOVERED,
        elr=(),
        elr_incarnations=(),
        last_known_leader=NO_LEADER,
    )


# ---------------------------------------------------------------- voluntary moves


def must_be_heard(tp: TopicPartition, state: PartitionState, lives: Lives) -> BrokerId | None:
    """The former leader whose word an election has to wait for, or None.

    A coordinator answers from memory. While its broker's registration stands, its lease may, so it could go on
    answering beside its successor until it has heard that it leads no more.
    """
    if tp.topic not in INTERNAL_TOPICS or state.leader != NO_LEADER or state.last_known_leader not in lives:
        return None
    return BrokerId(state.last_known_leader)


def moves_in_steps(tp: TopicPartition, state: PartitionState, lives: Lives) -> bool:
    """Whether this partition has a coordinator at work: it is given up first, and led again when that was heard."""
    return tp.topic in INTERNAL_TOPICS and is_led(state, lives)


def handed_over(
    tp: TopicPartition,
    state: PartitionState,
    to: BrokerId,
    lives: Lives,
    controller_epoch: int,
    *,
    min_isr: int,
    heard: bool = False,
) -> PartitionState:
    """The state in which a led partition goes to another member that counts, or the first step to it.

    One step suffices where the leader has said (``heard``) that it coordinates no more.
    """
    if not heard and moves_in_steps(tp, state, lives):
        return released(state, controller_epoch)
    return led_by(state, to, lives, controller_epoch, min_isr=min_isr)
