"""Moving replicas (KIP-455): the beginning, the changes of mind and the end of a move, as pure decisions.

A move stands in the topic's znode from its first moment: the replicas are the target's, followed by those that are to
go; ``adding`` and ``removing`` tell which are which. Whoever is controller goes on from there. The partition's leader
takes new replicas into the in-sync set as they catch up; when the whole target is in it, leadership goes into the
target if it isn't there, and then the rest leaves. Nothing here takes a member out of an in-sync set that would then be
smaller than ``min.insync.replicas``.

Whenever a replica leaves the assignment, the partition's state is written in the same multi: a leader that is just
taking that replica in loses the race for the znode's version.

Source: KIP-455; the errors' texts are for the people who read Kafka's tools.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from brokers.cluster import isr
from brokers.cluster.elections import handed_over, is_led, led_by, moves_in_steps, released, successor
from brokers.cluster.isr import Lives
from brokers.cluster.picture import NO_STATE_EPOCH
from brokers.cluster.requests import Refused
from brokers.model import BrokerId, PartitionState, TopicPartition
from wire.errors import ErrorCode


class Step(NamedTuple):
    """What to write: the partition with its next assignment (None: as it is), and its next state (None: as it is)."""

    assigned: PartitionState | None
    state: PartitionState | None


def retargeted(state: PartitionState, target: Sequence[int]) -> PartitionState:
    """The partition with the assignment of a move to that target, whatever move was under way before."""
    before = state.established
    wanted = tuple(BrokerId(b) for b in target)
    replicas = tuple(dict.fromkeys((*wanted, *before)))
    return replace(
        state,
        replicas=replicas,
        adding=tuple(b for b in replicas if b not in before),
        removing=tuple(b for b in replicas if b not in wanted),
    )


def start(
    tp: TopicPartition,
    state: PartitionState,
    target: Sequence[int],
    lives: Lives,
    controller_epoch: int,
    *,
    min_isr: int,
) -> Step | None:
    """The first step of a move, which may take the place of another one; None where that target is the present one.

    ``min_isr`` is the topic's ``min.insync.replicas``. Raises Refused (INVALID_REPLICATION_ASSIGNMENT).
    """
    _check_target(target)
    assigned = retargeted(state, target)
    dead = [b for b in assigned.adding if b not in lives]
    if dead:
        raise _refused(
            f"Replica assignment has brokers that are not alive. Replica list: {list(target)}, "
            f"live broker list: {sorted(lives)}"
        )
    if _same_assignment(assigned, state):
        return None
    return _reassigned(tp, state, assigned, lives, controller_epoch, min_isr)


def cancel(tp: TopicPartition, state: PartitionState, lives: Lives, controller_epoch: int, *, min_isr: int) -> Step:
    """Back to the replicas before the move. Raises Refused: NO_REASSIGNMENT_IN_PROGRESS, or where going back would cost
    the in-sync set too much (INVALID_REPLICATION_ASSIGNMENT).
    """
    if not state.adding and not state.removing:
        raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    return _reassigned(tp, state, retargeted(state, state.established), lives, controller_epoch, min_isr)


def _check_target(target: Sequence[int]) -> None:
    if not target:
        raise _refused("Empty replica list specified in partition reassignment.")
    if len(set(target)) != len(target):
        raise _refused(f"Duplicate replica ids in partition reassignment replica list: {list(target)}")
    if any(b < 0 for b in target):
        raise _refused(f"Invalid broker id in replica list: {list(target)}")


def _refused(message: str) -> Refused:
    return Refused(ErrorCode.INVALID_REPLICATION_ASSIGNMENT, message)


def _same_assignment(one: PartitionState, other: PartitionState) -> bool:
    return (one.replicas, one.adding, one.removing) == (other.replicas, other.adding, other.removing)


def _reassigned(
    tp: TopicPartition,
    state: PartitionState,
    assigned: PartitionState,
    lives: Lives,
    controller_epoch: int,
    min_isr: int,
) -> Step:
    """The step to an assignment; whoever isn't in it any more leaves at once."""
    dropped = [b for b in state.replicas if b not in assigned.replicas]
    if not dropped or state.partition_epoch == NO_STATE_EPOCH:
        return Step(assigned, None)
    minimum = isr.min_in_sync(min_isr, assigned.established)
    staying = [b for b in state.isr if b not in dropped]
    if len(staying) < len(state.isr) and len(staying) < minimum:
        raise _refused(
            f"Of the in-sync replicas {list(state.isr)} only {staying} would stay, fewer than {minimum}"
            " (min.insync.replicas): let the others catch up first."
        )
    reduced = without(assigned, dropped, minimum)
    if state.leader not in dropped:
        return Step(assigned, _next(reduced, state, controller_epoch))
    to = successor(reduced, lives)
    if to is None:
        raise _refused(f"The leader {state.leader} would go, and no in-sync replica that would stay is alive.")
    if moves_in_steps(tp, state, lives):
        return Step(assigned, released(reduced, controller_epoch))
    return Step(assigned, led_by(reduced, to, lives, controller_epoch, min_isr=minimum))


def without(state: PartitionState, gone: Collection[int], min_isr: int) -> PartitionState:
    """The state without these replicas, whose assignment lacks them already."""
    return isr.settled(isr.without(state, gone, min_isr), min_isr)


def _next(new: PartitionState, old: PartitionState, controller_epoch: int) -> PartitionState:
    return replace(new, partition_epoch=old.partition_epoch + 1, controller_epoch=controller_epoch)


def advance(
    tp: TopicPartition,
    state: PartitionState,
    lives: Lives,
    controller_epoch: int,
    *,
    min_isr: int,
    leaving: Collection[int] = (),
) -> Step | None:
    """The next step of a move under way, or None while it has to wait: for replicas to catch up, or for a leader."""
    if not (state.adding or state.removing) or not is_led(state, lives):
        return None
    target = state.target
    counting = {b for b, i in isr.members(state) if isr.counts(lives, b, i)}
    if not target or not counting.issuperset(target):
        return None
    minimum = isr.min_in_sync(min_isr, target)
    if state.leader not in target:
        to = next((b for b in target if b not in leaving), target[0])
        return Step(None, handed_over(tp, state, to, lives, controller_epoch, min_isr=minimum))
    assigned = replace(state, replicas=target, adding=(), removing=())
    if not state.removing:
        return Step(assigned, None)
    return Step(assigned, _next(without(assigned, state.removing, minimum), state, controller_epoch))
