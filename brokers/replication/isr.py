"""The in-sync set of a partition: which members count, leave and join. Pure; leaders and the controller share it.

Source: KIP-497 and KIP-966 for the rules; incarnations are fleetlog's (docs/INVARIANTS.md).

What a rolling restart asks before it stops a broker, and after it has started it again. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from fleetlog.brokers.model import BrokerId, BrokerInfo, LiveBroker, PartitionState, TopicInfo, TopicPartition

LiveBrokers = Mapping[int, LiveBroker]
"""The registered brokers by id."""

FAILED_INCARNATION = -2
"""The incarnation of a member whose log has failed or is gone: no other incarnation continues it."""


def counts(live_brokers: LiveBrokers, broker_id: int, incarnation: int) -> bool:
    """Whether the broker is registered and its logs still hold what they held in that incarnation."""
    live_broker = live_brokers.get(broker_id)
    return live_broker is not None and live_broker.continues(incarnation)


def members(state: PartitionState) -> list[tuple[BrokerId, int]]:
    """The in-sync set as (broker, incarnation counted on)."""
    return list(zip(state.isr, state.isr_incarnations, strict=True))


def eligible(state: PartitionState) -> list[tuple[BrokerId, int]]:
    """The eligible leader replicas as (broker, incarnation counted on)."""
    return list(zip(state.elr, state.elr_incarnations, strict=True))


def relied_on(state: PartitionState, broker_id: int) -> int | None:
    """The incarnation in which a member of the in-sync set or an eligible replica holds all; None if it is neither."""
    return dict([*eligible(state), *members(state)]).get(BrokerId(broker_id))


def min_in_sync(min_insync_replicas: int, replicas: Collection[int]) -> int:
    """``min.insync.replicas``, but never more than there are replicas (as Kafka 4.1 counts it)."""
    return min(min_insync_replicas, max(1, len(replicas)))


def without(state: PartitionState, gone: Collection[int], min_isr: int) -> PartitionState:
    """The state after these brokers left the in-sync set; the caller sets the epochs.

    Below ``min_isr`` the high watermark does not move, so a replica that leaves then stays eligible to lead; with
    enough members no other replica is eligible. The set never becomes empty: only its last members hold everything.
    """
    left = [(b, i) for b, i in members(state) if b not in gone]
    if not left or len(left) == len(state.isr):
        return state
    removed = [(b, i) for b, i in members(state) if b in gone]
    return _with(state, left, [*eligible(state), *removed], min_isr)


def failed(state: PartitionState, broker_id: int, min_isr: int) -> PartitionState:
    """The state in which a broker whose log has failed or is gone no longer counts.

    It leaves the in-sync set unless it is the only member. If the set is then below the minimum, or it is the only
    member, it may be the only replica with every record, should the others lose their tails. So it stays eligible or a
    member, in an incarnation that no other continues: it leads only after all of them are back and their logs are
    compared.
    """
    left = without(state, {broker_id}, min_isr)
    return replace(
        left,
        isr_incarnations=tuple(FAILED_INCARNATION if b == broker_id else i for b, i in members(left)),
        elr_incarnations=tuple(FAILED_INCARNATION if b == broker_id else i for b, i in eligible(left)),
    )


def joined(state: PartitionState, broker_id: int, incarnation: int, min_isr: int) -> PartitionState:
    """The state after this caught-up broker joined the in-sync set; a member's incarnation is renewed."""
    others = [(b, i) for b, i in members(state) if b != broker_id]
    return _with(state, [*others, (BrokerId(broker_id), incarnation)], eligible(state), min_isr)


def reduced_to(state: PartitionState, kept: list[tuple[BrokerId, int]], min_isr: int) -> PartitionState:
    """The state with exactly these in sync, as after an election; others become eligible as in :func:`without`."""
    staying = {b for b, _ in kept}
    removed = [(b, i) for b, i in members(state) if b not in staying]
    return _with(state, kept, [*eligible(state), *removed], min_isr)


def settled(state: PartitionState, min_isr: int) -> PartitionState:
    """The state without eligible replicas if the in-sync set is large enough (after a lowered minimum)."""
    return _with(state, members(state), eligible(state), min_isr)


def _with(
    state: PartitionState, isr: list[tuple[BrokerId, int]], elr: list[tuple[BrokerId, int]], min_isr: int
) -> PartitionState:
    in_sync = {b for b, _ in isr}
    kept = dict(elr) if len(isr) < min_isr else {}
    left = [(b, i) for b, i in kept.items() if b not in in_sync and b in state.replicas]
    return replace(
        state,
        isr=tuple(b for b, _ in isr),
        isr_incarnations=tuple(i for _, i in isr),
        elr=tuple(b for b, _ in left),
        elr_incarnations=tuple(i for _, i in left),
    )


NAMED = 3


def not_in_sync(topics: Iterable[TopicInfo], broker: BrokerInfo) -> list[TopicPartition]:
    """The partitions that have a replica on this broker which is not in their in-sync set.

    A set that names it as it was before a crash does not count: controller and leader have not taken it out yet.
    """
    continues = broker.live_broker.continues
    return [
        tp for tp, state in _replicas(topics, broker.id)
        if not continues(dict(members(state)).get(broker.id, FAILED_INCARNATION))
    ]  # fmt: skip


def held_back(topics: Iterable[TopicInfo], broker_id: int, min_isr: Callable[[str], int]) -> list[TopicPartition]:
    """The partitions that would fall below min.insync.replicas, or have no replica in sync, without this broker.

    Not those that need all their replicas (one replica, or min.insync.replicas of them): their writes stop with any
    broker, whenever it stops. ``min_isr`` gives min.insync.replicas of a topic.
    """
    held = []
    for tp, state in _replicas(topics, broker_id):
        if broker_id not in state.isr:
            continue
        needed = max(1, min_isr(tp.topic))
        if len(state.replicas) > needed and len(state.isr) - 1 < needed:
            held.append(tp)
    return held


def _replicas(topics: Iterable[TopicInfo], broker_id: int) -> Iterator[tuple[TopicPartition, PartitionState]]:
    for topic in topics:
        for index, state in enumerate(topic.partitions):
            if broker_id in state.replicas and broker_id not in state.removing:
                yield TopicPartition(topic.name, index), state


def some_of(partitions: list[TopicPartition]) -> str:
    """How many there are and the first ones, as text."""
    named = ", ".join(map(str, sorted(partitions)[:NAMED]))
    return f"{len(partitions)} partition(s): {named}{', ...' if len(partitions) > NAMED else ''}"
