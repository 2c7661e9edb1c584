"""Where replicas go: Kafka's rack-aware round robin over the living brokers, which also spares failure domains. Pure.

Source: KIP-36 (rack-aware assignment) and the shape of Kafka's AdminUtils: first replicas round robin from a start
position, further replicas shifted by a distance that grows each time the brokers are used up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from brokers.model import BrokerId, BrokerInfo


class PlacementError(Exception):
    """The assignment asked for can't be made; ``partitions`` tells which number was wrong."""

    def __init__(self, message: str, *, partitions: bool = False) -> None:
        super().__init__(message)
        self.partitions = partitions


class Place(NamedTuple):
    """Where a broker stands: ``rack`` is its availability zone (or itself, if it names none), ``domain`` what fails
    together with it, by default its host.
    """

    rack: str
    domain: str


Places = Mapping[BrokerId, Place]


def places(brokers: Iterable[BrokerInfo]) -> dict[BrokerId, Place]:
    """Where these brokers stand, by id. A broker without a rack counts as a rack of its own."""
    ordered = sorted(brokers, key=lambda broker: broker.id)
    return {b.id: Place(b.rack if b.rack is not None else f"\0{b.id}", b.domain) for b in ordered}


def crowding(broker_id: BrokerId, beside: Iterable[BrokerId], where: Places) -> tuple[int, int]:
    """How badly a replica would share its fate with others: on how many of their racks, in how many of their domains.

    Smaller is better; (0, 0) shares nothing. Brokers that aren't known don't count.
    """
    place = where[broker_id]
    others = [where[b] for b in beside if b != broker_id and b in where]
    return sum(place.rack == other.rack for other in others), sum(place.domain == other.domain for other in others)


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
    ``first_partition`` continues an existing topic. Replicas of one partition sit on different racks, and in different
    failure domains, as long as there are enough of them. Raises PlacementError.
    """
    where = places(brokers)
    if partitions <= 0:
        raise PlacementError("Number of partitions must be larger than 0.", partitions=True)
    if replication_factor <= 0:
        raise PlacementError("Replication factor must be larger than 0.")
    if replication_factor > len(where):
        raise PlacementError(f"Replication factor: {replication_factor} larger than available brokers: {len(where)}.")
    order = alternating(where)
    return tuple(
        _replicas(order, where, replication_factor, index, start)
        for index in range(first_partition, first_partition + partitions)
    )


def alternating(where: Places) -> list[BrokerId]:
    """The brokers so ordered that neighbours are on different racks, or else in different failure domains, as far as
    these are equally large.
    """
    racks_named = any(not place.rack.startswith("\0") for place in where.values())
    groups: dict[str, list[BrokerId]] = {}
    for broker_id in sorted(where):
        groups.setdefault(where[broker_id].rack if racks_named else where[broker_id].domain, []).append(broker_id)
    columns = sorted(groups.values(), key=lambda column: column[0])
    return [broker_id for row in zip_longest(*columns) for broker_id in row if broker_id is not None]


def _replicas(
    order: Sequence[BrokerId], where: Places, replication_factor: int, index: int, start: int
) -> tuple[BrokerId, ...]:
    """The first replica goes round; the others start one further at each round and avoid places already used."""
    count = len(order)
    position = index + start
    chosen = [order[position % count]]
    shift = 1 + (position // count) % max(1, count - 1)
    ring = [order[(position + shift + step) % count] for step in range(count)]
    candidates = [broker_id for broker_id in dict.fromkeys(ring) if broker_id != chosen[0]]
    while len(chosen) < replication_factor:
        racks, domains = {where[b].rack for b in chosen}, {where[b].domain for b in chosen}
        pick = next((b for b in candidates if where[b].rack not in racks and where[b].domain not in domains), None)
        if pick is None:
            pick = min(candidates, key=lambda b: crowding(b, chosen, where))  # the first of equals on the ring
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
