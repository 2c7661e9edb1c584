"""The in-sync set of a partition: who counts, who leaves, who joins. Pure; leaders and the controller share it.

Source: KIP-497 and KIP-966 for the rules; incarnations are ours (docs/INVARIANTS.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from brokers.model import BrokerId, Life, PartitionState

Lives = Mapping[int, Life]
"""The living brokers by id."""


def counts(lives: Lives, broker_id: int, incarnation: int) -> bool:
    """Whether the broker lives and its logs still hold what they held in that incarnation."""
    life = lives.get(broker_id)
    return life is not None and life.continues(incarnation)


def members(state: PartitionState) -> list[tuple[BrokerId, int]]:
    """The in-sync set as (broker, incarnation counted on)."""
    return list(zip(state.isr, state.isr_incarnations, strict=True))


def eligible(state: PartitionState) -> list[tuple[BrokerId, int]]:
    """The eligible leader replicas as (broker, incarnation counted on)."""
    return list(zip(state.elr, state.elr_incarnations, strict=True))


def min_in_sync(min_insync_replicas: int, replicas: Collection[int]) -> int:
    """``min.insync.replicas``, but never more than there are replicas (as Kafka 4.1 counts it)."""
    return min(min_insync_replicas, max(1, len(replicas)))


def without(state: PartitionState, gone: Collection[int], min_isr: int) -> PartitionState:
    """The state after these brokers left the in-sync set; epochs are the caller's to set.

    Below ``min_isr`` the high watermark stands still, so whoever leaves then stays eligible to lead; with enough
    members left nobody else is. The set never becomes empty: its last members stay, for they alone hold everything.
    """
    left = [(b, i) for b, i in members(state) if b not in gone]
    if not left or len(left) == len(state.isr):
        return state
    removed = [(b, i) for b, i in members(state) if b in gone]
    return _with(state, left, [*eligible(state), *removed], min_isr)


def joined(state: PartitionState, broker_id: int, incarnation: int, min_isr: int) -> PartitionState:
    """The state after this broker, caught up, joined the in-sync set; a member's incarnation is renewed."""
    others = [(b, i) for b, i in members(state) if b != broker_id]
    return _with(state, [*others, (BrokerId(broker_id), incarnation)], eligible(state), min_isr)


def reduced_to(state: PartitionState, kept: list[tuple[BrokerId, int]], min_isr: int) -> PartitionState:
    """The state with exactly these in sync, as after an election; who leaves becomes eligible as in :func:`without`."""
    staying = {b for b, _ in kept}
    removed = [(b, i) for b, i in members(state) if b not in staying]
    return _with(state, kept, [*eligible(state), *removed], min_isr)


def settled(state: PartitionState, min_isr: int) -> PartitionState:
    """The state without eligible replicas that the size of the in-sync set makes needless (a lowered minimum)."""
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
