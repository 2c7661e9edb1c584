"""Where replicas go: Kafka's rack-aware round robin over the living brokers. Pure.

Source: KIP-36 (rack-aware assignment) and the shape of Kafka's AdminUtils: first replicas round robin from a start
position, further replicas shifted by a distance that grows each time the brokers are used up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from brokers.model import BrokerId, BrokerInfo


class PlacementError(Exception):
    """The assignment asked for can't be made; ``partitions`` tells which number was wrong."""

    def __init__(self, message: str, *, partitions: bool = False) -> None:
        super().__init__(message)
        self.partitions = partitions


def assign(
    brokers: Iterable[BrokerInfo],
    partitions: int,
    replication_factor: int,
    *,
    start: int = 0,
    first_partition: int = 0,
) -> tuple[tuple[BrokerId, ...], ...]:
    """Replica lists for ``partitions`` new partitions.

    ``start`` chooses the broker (by position) that leads the first one, so that many small topics spread out;
    ``first_partition`` continues an existing topic. Replicas of one partition sit on different racks as long as there
    are racks enough; brokers without a rack count as one rack each. Raises PlacementError.
    """
    alive = sorted(brokers, key=lambda broker: broker.id)
    if partitions <= 0:
        raise PlacementError("Number of partitions must be larger than 0.", partitions=True)
    if replication_factor <= 0:
        raise PlacementError("Replication factor must be larger than 0.")
    if replication_factor > len(alive):
        raise PlacementError(f"Replication factor: {replication_factor} larger than available brokers: {len(alive)}.")
    racks = {broker.id: broker.rack if broker.rack is not None else f"\0{broker.id}" for broker in alive}
    order = rack_alternating(racks)
    return tuple(
        _replicas(order, racks, replication_factor, index, start)
        for index in range(first_partition, first_partition + partitions)
    )


def rack_alternating(racks: Mapping[BrokerId, str]) -> list[BrokerId]:
    """The brokers so ordered that neighbours are on different racks, as far as the racks are equally large."""
    by_rack: dict[str, list[BrokerId]] = {}
    for broker_id in sorted(racks):
        by_rack.setdefault(racks[broker_id], []).append(broker_id)
    columns = [by_rack[rack] for rack in sorted(by_rack, key=lambda rack: by_rack[rack][0])]
    return [broker_id for row in zip_longest(*columns) for broker_id in row if broker_id is not None]


def _replicas(
    order: Sequence[BrokerId], racks: Mapping[BrokerId, str], replication_factor: int, index: int, start: int
) -> tuple[BrokerId, ...]:
    """The first replica goes round; the others start one further at each round and avoid racks already used."""
    count = len(order)
    position = index + start
    chosen = [order[position % count]]
    shift = 1 + (position // count) % max(1, count - 1)
    ring = [order[(position + shift + step) % count] for step in range(count)]
    candidates = [broker_id for broker_id in dict.fromkeys(ring) if broker_id != chosen[0]]
    while len(chosen) < replication_factor:
        used = {racks[broker_id] for broker_id in chosen}
        fresh = next((b for b in candidates if racks[b] not in used), None)
        pick = fresh if fresh is not None else candidates[0]
        candidates.remove(pick)
        chosen.append(pick)
    return tuple(chosen)


def check_assignment(
    assignment: Mapping[int, Sequence[int]], alive: Iterable[int], *, first_partition: int = 0
) -> str | None:
    """What is wrong with a manual assignment, or None (Kafka answers INVALID_REPLICATION_ASSIGNMENT with the text)."""
    expected = list(range(first_partition, first_partition + len(assignment)))
    if sorted(assignment) != expected:
        return f"Partitions should be a consecutive 0-based integer sequence, starting at {first_partition}."
    known = set(alive)
    factors = set()
    for index, replicas in sorted(assignment.items()):
        if not replicas:
            return f"Partition {index} has no replicas."
        if len(set(replicas)) != len(replicas):
            return f"Duplicate brokers not allowed in replica assignment: {list(replicas)} for partition {index}."
        unknown = [b for b in replicas if b not in known]
        if unknown:
            return f"Unknown broker(s) {unknown} in replica assignment for partition {index}."
        factors.add(len(replicas))
    if len(factors) > 1:
        return "All partitions must have the same number of replicas."
    return None
