"""Replica placement: Kafka's rack-aware round robin over the live brokers, extended to failure domains. Pure.

Source: KIP-36 (rack-aware assignment) and the shape of Kafka's AdminUtils: first replicas round robin from a start
position, further replicas shifted by a distance that grows each time the brokers are used up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from fleetlog.brokers.model import BrokerId, BrokerInfo


class PlacementError(Exception):
    """The requested assignment is impossible; ``partitions``: the partition count is wrong, else the factor."""

    def __init__(self, message: str, *, partitions: bool = False) -> None:
        super().__init__(message)
        self.partitions = partitions


class Place(NamedTuple):
    """A broker's location: ``rack`` is its availability zone (or the broker itself, if it names none), ``domain`` its
    failure domain, by default its host.
    """

    rack: str
    domain: str


Places = Mapping[BrokerId, Place]


def places(brokers: Iterable[BrokerInfo]) -> dict[BrokerId, Place]:
    """The brokers' locations, by id. A broker without a rack counts as a rack of its own."""
    ordered = sorted(brokers, key=lambda broker: broker.id)
    return {b.id: Place(b.rack if b.rack is not None else f"\0{b.id}", b.domain) for b in ordered}


def crowding(broker_id: BrokerId, beside: Iterable[BrokerId], where: Places) -> tuple[int, int]:
    """How many of the other replicas share the broker's rack, and how many its failure domain.

    Smaller is better; (0, 0) shares nothing. Unknown brokers don't count.
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
    absent: Iterable[BrokerInfo] = (),
) -> tuple[tuple[BrokerId, ...], ...]:
    """Replica lists for ``partitions`` new partitions.

    ``start`` is the position of the broker that leads the first partition, so that many small topics spread out;
    ``first_partition`` continues an existing topic. Replicas of one partition are on different racks, and in different
    failure domains, as long as there are enough of them. If the brokers don't suffice, the last replicas of each
    partition go to ``absent`` brokers. Raises PlacementError.
    """
    where = places(brokers)
    if partitions <= 0:
        raise PlacementError("Number of partitions must be larger than 0.", partitions=True)
    if replication_factor <= 0:
        raise PlacementError("Replication factor must be larger than 0.")
    away = places(absent)
    if replication_factor > len(where) + len(away) or not where:
        count = str(len(where)) + (f", plus {len(away)} absent" if away else "")
        raise PlacementError(f"Replication factor: {replication_factor} larger than available brokers: {count}.")
    order, spare = alternating(where), alternating(away)
    everywhere = {**away, **where}
    first = first_partition + start
    period = math.lcm(len(order) * max(1, len(order) - 1), max(1, len(spare)))
    round_trip = []
    for position in range(first, first + min(period, partitions)):
        chosen = _replicas(order, where, min(replication_factor, len(where)), position)
        ring = [spare[(position + step) % len(spare)] for step in range(len(spare))]
        while len(chosen) < replication_factor:
            pick = min((b for b in ring if b not in chosen), key=lambda b: crowding(b, chosen, everywhere))
            chosen = (*chosen, pick)
        round_trip.append(chosen)
    return tuple(round_trip[i % period] for i in range(partitions))


def alternating(where: Places) -> list[BrokerId]:
    """The brokers in an order whose neighbours are on different racks, or else in different failure domains, as far as
    these have equal sizes.
    """
    racks_named = any(not place.rack.startswith("\0") for place in where.values())
    groups: dict[str, list[BrokerId]] = {}
    for broker_id in sorted(where):
        groups.setdefault(where[broker_id].rack if racks_named else where[broker_id].domain, []).append(broker_id)
    columns = sorted(groups.values(), key=lambda column: column[0])
    return [broker_id for row in zip_longest(*columns) for broker_id in row if broker_id is not None]


def _replicas(order: Sequence[BrokerId], where: Places, replication_factor: int, position: int) -> tuple[BrokerId, ...]:
    """The first replica goes round robin; the others shift by one each round and avoid racks and domains in use."""
    count = len(order)
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
    assignment: Mapping[int, Sequence[int]],
    alive: Iterable[int],
    *,
    first_partition: int = 0,
    absent: Iterable[int] = (),
) -> str | None:
    """What is wrong with a manual assignment, or None (Kafka answers INVALID_REPLICATION_ASSIGNMENT with the text)."""
    expected = list(range(first_partition, first_partition + len(assignment)))
    if sorted(assignment) != expected:
        return f"Partitions should be a consecutive 0-based integer sequence, starting at {first_partition}."
    living = set(alive)
    known = living | set(absent)
    factors = set()
    for index, replicas in sorted(assignment.items()):
        if not replicas:
            return f"Partition {index} has no replicas."
        if len(set(replicas)) != len(replicas):
            return f"Duplicate brokers not allowed in replica assignment: {list(replicas)} for partition {index}."
        unknown = [b for b in replicas if b not in known]
        if unknown:
            return f"Unknown broker(s) {unknown} in replica assignment for partition {index}."
        if living.isdisjoint(replicas):
            return f"All brokers in the replica assignment {list(replicas)} for partition {index} are absent."
        factors.add(len(replicas))
    if len(factors) > 1:
        return "All partitions must have the same number of replicas."
    return None
