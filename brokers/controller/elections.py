"""Leader election: pure decisions over a partition's state and the registered brokers.

A broker counts only if its logs still hold what they held in the incarnation that the state names
(:mod:`brokers.replication.isr`). The order of choice:

1. members of the in-sync set that count, in the order of the assignment;
2. eligible leader replicas that count (KIP-966): the high watermark has not moved since they left the in-sync set;
3. if all of these are back but none counts, because each restarted uncleanly, the one with the longest log, or another
   live replica whose log extends that one: it was behind when it left the in-sync set, but may have lost no tail since.
   This needs log end probes;
4. if the topic or an operator allows it, the live replica with the longest log: an unclean election, which may lose
   acknowledged records;
5. none. The partition stays offline, and its state keeps the last known leader.

A live leader stays. Members of its in-sync set that died or lost their tail are removed.

Source: Kafka's PartitionLeaderElectionAlgorithms (3.9) and KIP-966; incarnations are fleetlog's (docs/INVARIANTS.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import StrEnum

from fleetlog.brokers.model import INTERNAL_TOPICS, NO_LEADER, NO_LOG, BrokerId, LogEnd, PartitionState, TopicPartition
from fleetlog.brokers.replication import isr
from fleetlog.brokers.replication.isr import LiveBrokers

RECOVERED = 0
RECOVERING = 1
"""Leader recovery states (KIP-704): the leader was elected uncleanly."""


class ElectionReason(StrEnum):
    """Why a partition has another leader, or the same in a new epoch."""

    LEADER_GONE = "leader_gone"
    """The leader's registration ended, or its logs are not what they were; a replica leads in a new epoch."""
    LEADERLESS = "leaderless"
    """The same, and no replica may lead."""
    RETURNED = "returned"
    """A partition without a leader has one again, also in the second step of the handover of a coordinator."""
    UNCLEAN = "unclean"
    """The same, and acknowledged records may be lost."""
    SHUTDOWN = "shutdown"
    """The leader is about to stop, and hands over."""
    REASSIGNMENT = "reassignment"
    """The leader hands over to a replica of the new assignment."""
    PREFERRED = "preferred"
    """The leader hands over to the preferred replica."""


def reason_of(
    old: PartitionState, new: PartitionState, live_brokers: LiveBrokers, leaving: Collection[int]
) -> ElectionReason | None:
    """Why a state that the controller wrote has another leader; None: it has not, or only lets the old one go."""
    if new.leader_epoch == old.leader_epoch or new.leader == old.leader == NO_LEADER:
        return None
    if new.leader == NO_LEADER:
        return None if is_led(old, live_brokers) else ElectionReason.LEADERLESS
    if new.leader_recovery_state == RECOVERING:
        return ElectionReason.UNCLEAN
    if old.leader == NO_LEADER:
        return ElectionReason.RETURNED
    if not is_led(old, live_brokers):
        return ElectionReason.LEADER_GONE
    if old.leader in leaving:
        return ElectionReason.SHUTDOWN
    if old.adding or old.removing or old.leader not in new.replicas:
        return ElectionReason.REASSIGNMENT
    return ElectionReason.PREFERRED


def new_partition(replicas: tuple[BrokerId, ...], live_brokers: LiveBrokers, controller_epoch: int) -> PartitionState:
    """The first state: every live replica is in sync, because all logs are empty; the first of them leads.

    Without a live replica the whole list is the in-sync set and there is no leader: any of them may start the (empty)
    log later.
    """
    members = tuple(b for b in replicas if b in live_brokers)
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
        leader_incarnation=live_brokers[members[0]].incarnation,
        isr_incarnations=tuple(live_brokers[b].incarnation for b in members),
    )


def is_led(state: PartitionState, live_brokers: LiveBrokers) -> bool:
    """Whether the leader is registered in the incarnation that the state names."""
    live_broker = live_brokers.get(state.leader)
    return (
        live_broker is not None
        and live_broker.incarnation == state.leader_incarnation
        and state.leader in state.isr
        and state.leader in state.replicas
    )


def elect(
    state: PartitionState,
    live_brokers: LiveBrokers,
    controller_epoch: int,
    *,
    min_isr: int,
    leaving: Collection[int] = (),
) -> PartitionState | None:
    """The next state given the live brokers, or None if the present one stands.

    ``min_isr`` is the effective minimum (:func:`isr.min_in_sync`). ``leaving`` brokers are about to stop: they are
    chosen last. The result's ``partition_epoch`` is the znode's version after the write (compare-and-set on the
    present one). Where an election needs log end probes, :func:`to_ask` names the replicas.
    """
    if is_led(state, live_brokers):
        gone = [b for b, i in isr.members(state) if b != state.leader and not isr.counts(live_brokers, b, i)]
        if not gone:
            return None
        shrunk = isr.without(state, gone, min_isr)
        return replace(shrunk, partition_epoch=state.partition_epoch + 1, controller_epoch=controller_epoch)
    chosen = successor(state, live_brokers, leaving)
    if chosen is not None:
        return led_by(state, chosen, live_brokers, controller_epoch, min_isr=min_isr)
    if _never_led(state):
        living = tuple(b for b in state.replicas if b in live_brokers)
        return _led(state, living, live_brokers, controller_epoch) if living else None
    if state.leader == NO_LEADER:
        return None  # offline already, without a candidate
    return released(state, controller_epoch)


def successor(state: PartitionState, live_brokers: LiveBrokers, leaving: Collection[int] = ()) -> BrokerId | None:
    """The replica that can lead without a probe: a member of the in-sync set, else an eligible one, that counts."""
    in_sync, eligible = dict(isr.members(state)), dict(isr.eligible(state))
    for staying in (True, False):
        for known in (in_sync, eligible):
            for b in state.replicas:
                if b in known and (b not in leaving) is staying and isr.counts(live_brokers, b, known[b]):
                    return b
    return None


def led_by(
    state: PartitionState, leader: BrokerId, live_brokers: LiveBrokers, controller_epoch: int, *, min_isr: int
) -> PartitionState:
    """A new epoch under this leader, which must count; members that don't count leave the in-sync set."""
    kept = [
        (b, live_brokers[b].incarnation)
        for b, i in isr.members(state)
        if isr.counts(live_brokers, b, i) and b in state.replicas
    ]
    if leader not in {b for b, _ in kept}:
        kept.append((leader, live_brokers[leader].incarnation))
    return replace(
        isr.reduced_to(state, kept, min_isr),
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        partition_epoch=state.partition_epoch + 1,
        controller_epoch=controller_epoch,
        leader_incarnation=live_brokers[leader].incarnation,
        leader_recovery_state=RECOVERED,
        last_known_leader=NO_LEADER,
    )


def released(state: PartitionState, controller_epoch: int) -> PartitionState:
    """A new epoch without a leader; the rest stays, and ``last_known_leader`` keeps the previous leader."""
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
    """Whether no replica has been live since the partition's creation: its log is empty on every broker."""
    return state.leader_epoch == 0 and state.leader == NO_LEADER and all(i == -1 for i in state.isr_incarnations)


# ---------------------------------------------------------------- elections by log ends


def to_ask(state: PartitionState, live_brokers: LiveBrokers, *, unclean: bool) -> tuple[BrokerId, ...]:
    """The replicas whose log ends an election of this partition needs; empty if none.

    These are all live replicas, once every member of the in-sync set and every eligible replica is live, or once an
    unclean election is allowed.
    """
    if state.leader != NO_LEADER or successor(state, live_brokers) is not None or _never_led(state):
        return ()
    knowing = _knowing(state)
    if not unclean and any(b not in live_brokers for b in knowing):
        return ()
    return tuple(b for b in dict.fromkeys((*knowing, *state.replicas)) if b in live_brokers)


def elect_by_ends(
    state: PartitionState,
    ends: Mapping[BrokerId, LogEnd | None],
    live_brokers: LiveBrokers,
    controller_epoch: int,
    *,
    unclean: bool,
    anew: bool = False,
) -> PartitionState | None:
    """The state after an election by the answers of the brokers of :func:`to_ask`; None if they don't suffice.

    ``ends`` holds None for a broker without a log, NO_LOG for one whose log is gone. The choice is clean if every
    in-sync or eligible replica has given its log end or lost its log, and every other live replica has answered: the
    longest log of the members leads, or one of the others that extends it. A log that is gone never leads: it would
    begin anew, and the others would be cut to it. If no member has a log any more, all other replicas must be back.
    If an unclean election is allowed, the present answers suffice; ``leader_recovery_state`` marks the election as
    unclean if an in-sync or eligible replica is missing. Where no replica that answers has a log, one begins anew, if
    an operator allows it (``anew``) or no other replica can have one.
    """
    asked = to_ask(state, live_brokers, unclean=unclean)
    if not asked:
        return None
    knowing = _knowing(state)
    answered = {b: end for b in state.replicas if b in live_brokers and (end := ends.get(b)) is not None}
    logs = {b: end for b, end in answered.items() if end != NO_LOG}
    known = any(b in logs for b in knowing) or all(b in logs or b in knowing for b in state.replicas)
    clean = bool(logs) and known and all(b in answered for b in knowing)
    if not unclean and not (clean and all(b in ends for b in asked)):
        return None
    if not logs and not anew and not all(b in answered for b in state.replicas):
        return None
    answered = logs or answered
    candidates = [b for b in answered if b in knowing or not clean] or list(answered)
    if not candidates:
        return None
    best = max(candidates, key=lambda b: answered[b][:2])  # the first of equals: the order of the assignment
    further = [b for b in answered if answered[b].extends(answered[best])]
    best = max(further, key=lambda b: answered[b][:2], default=best)
    chosen = _led(state, (best,), live_brokers, controller_epoch)
    if clean:
        return chosen
    return replace(chosen, leader_recovery_state=RECOVERING, unclean_epoch=chosen.leader_epoch)


def _knowing(state: PartitionState) -> tuple[BrokerId, ...]:
    """The replicas that held every acknowledged record."""
    return tuple(dict.fromkeys((*state.isr, *state.elr)))


def _led(
    state: PartitionState, members: tuple[BrokerId, ...], live_brokers: LiveBrokers, controller_epoch: int
) -> PartitionState:
    """A new epoch with these members, led by the first; no other replica is eligible."""
    return replace(
        state,
        leader=members[0],
        leader_epoch=state.leader_epoch + 1,
        isr=members,
        partition_epoch=state.partition_epoch + 1,
        controller_epoch=controller_epoch,
        leader_incarnation=live_brokers[members[0]].incarnation,
        isr_incarnations=tuple(live_brokers[b].incarnation for b in members),
        leader_recovery_state=RECOVERED,
        elr=(),
        elr_incarnations=(),
        last_known_leader=NO_LEADER,
    )


# ---------------------------------------------------------------- voluntary moves
# The controller writes none of these before the live leader has waived its lease (``LogEndProbes.may_move``).


def must_be_heard(tp: TopicPartition, state: PartitionState, live_brokers: LiveBrokers) -> BrokerId | None:
    """The previous leader that must confirm the end of its leadership before an election, or None.

    A coordinator answers from memory. While its broker is registered its lease may be valid, so until it knows that it
    no longer leads it could answer beside its successor.
    """
    if tp.topic not in INTERNAL_TOPICS or state.leader != NO_LEADER or state.last_known_leader not in live_brokers:
        return None
    return BrokerId(state.last_known_leader)


def moves_in_steps(tp: TopicPartition, state: PartitionState, live_brokers: LiveBrokers) -> bool:
    """Whether the partition has an active coordinator: it is released first, and led again after the confirmation."""
    return tp.topic in INTERNAL_TOPICS and is_led(state, live_brokers)


def handed_over(
    tp: TopicPartition,
    state: PartitionState,
    to: BrokerId,
    live_brokers: LiveBrokers,
    controller_epoch: int,
    *,
    min_isr: int,
    heard: bool = False,
) -> PartitionState:
    """The state in which a led partition goes to another member that counts, or the first step to it.

    One step suffices if the leader has confirmed (``heard``) that its coordinator is closed.
    """
    if not heard and moves_in_steps(tp, state, live_brokers):
        return released(state, controller_epoch)
    return led_by(state, to, live_brokers, controller_epoch, min_isr=min_isr)
