"""Assignors of the consumer protocol: who shall have which partitions. Pure and deterministic.

Members come in the order of their instance ids, or ids without one. ``uniform`` spreads the partitions, ``range`` gives
the same indexes of topics with equally many partitions to the same member. Both keep what a member has as far as the
balance allows. Source: the assignors of Kafka 4.4's group coordinator, by what they promise.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from fleetlog.brokers.groups.consumer.records import Partition
from fleetlog.brokers.groups.requests import ASSIGNOR_NAMES

MOVES_LOOKED_AT = 200_000
"""How many partitions of an uneven group are looked at for a better place; what is even enough by then stays."""
U = TypeVar("U", bound=Hashable)


class Subscriber(NamedTuple):
    """A member: the ids of its topics, and its target until now."""

    topics: frozenset[bytes]
    target: tuple[Partition, ...] = ()


Targets = dict[str, tuple[Partition, ...]]
Assignor = Callable[[Mapping[str, Subscriber], Mapping[bytes, int]], Targets]
"""``assignor(members, topics)``: members in order; partitions by topic id. Targets of all members, sorted."""


def spread(units: Sequence[U], members: Sequence[str], before: Mapping[str, Sequence[U]]) -> dict[str, list[U]]:
    """Each unit to one member, even within one; a member keeps of its units what its share allows."""
    least, extras = divmod(len(units), len(members))
    left = dict.fromkeys(units)
    kept: dict[str, list[U]] = {}
    large: set[str] = set()
    for member in members:
        own = [unit for unit in before.get(member, ()) if unit in left]
        room = least
        if len(own) > least and len(large) < extras:
            large.add(member)
            room += 1
        kept[member] = own[:room]
        for unit in kept[member]:
            del left[unit]
    free = iter(left)
    for member in members:
        room = least + (member in large)
        if member not in large and len(large) < extras:
            large.add(member)
            room += 1
        own = kept[member]
        own.extend(unit for _, unit in zip(range(room - len(own)), free, strict=False))
    return kept


def uniform(members: Mapping[str, Subscriber], topics: Mapping[bytes, int]) -> Targets:
    """All partitions over all members, whatever topics they are of."""
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) > 1:
        return _uneven(members, topics)
    (wanted,) = subscriptions
    units = [(topic, index) for topic in sorted(wanted) for index in range(topics.get(topic, 0))]
    before = {name: member.target for name, member in members.items()}
    return {name: tuple(sorted(own)) for name, own in spread(units, list(members), before).items()}


def _kept(members: Mapping[str, Subscriber], topics: Mapping[bytes, int]) -> dict[Partition, str]:
    """Who keeps which partition: those that are there and that the member still subscribes to."""
    owner: dict[Partition, str] = {}
    for name, member in members.items():
        for topic, index in member.target:
            if topic in member.topics and 0 <= index < topics.get(topic, 0):
                owner.setdefault((topic, index), name)
    return owner


def _uneven(members: Mapping[str, Subscriber], topics: Mapping[bytes, int]) -> Targets:
    """Members with different topics: what is free goes to the least loaded, then the loads are evened out."""
    kinds = {topics_of: number for number, topics_of in enumerate(dict.fromkeys(m.topics for m in members.values()))}
    order = {name: place for place, name in enumerate(members)}
    kind_of = {name: kinds[member.topics] for name, member in members.items()}
    eligible: dict[bytes, list[int]] = {}
    for topics_of, number in kinds.items():
        for topic in topics_of:
            eligible.setdefault(topic, []).append(number)
    owner = _kept(members, topics)
    load = dict.fromkeys(members, 0)
    for name in owner.values():
        load[name] += 1
    heaps: list[list[tuple[int, int, str]]] = [[] for _ in kinds]
    for name in members:
        heaps[kind_of[name]].append((load[name], order[name], name))
    for heap in heaps:
        heapq.heapify(heap)

    def least(topic: bytes) -> str:
        """The least loaded of the topic's members."""
        heads = []
        for number in eligible[topic]:
            heap = heaps[number]
            while heap[0][0] != load[heap[0][2]]:
                heapq.heappop(heap)
            heads.append(heap[0])
        return min(heads)[2]

    def count(name: str, change: int) -> None:
        load[name] += change
        heapq.heappush(heaps[kind_of[name]], (load[name], order[name], name))

    wanted = sorted((topic for topic in eligible if topic in topics), key=lambda topic: (len(eligible[topic]), topic))
    for topic in wanted:
        for index in range(topics[topic]):
            if (topic, index) not in owner:
                name = owner[topic, index] = least(topic)
                count(name, 1)
    looked_at, moved = 0, True
    while moved and looked_at < MOVES_LOOKED_AT:
        moved = False
        for partition, name in owner.items():
            looked_at += len(eligible[partition[0]])
            other = least(partition[0])
            if load[name] - load[other] >= 2:
                owner[partition] = other
                count(name, -1)
                count(other, 1)
                moved = True
    targets: dict[str, list[Partition]] = {name: [] for name in members}
    for partition, name in owner.items():
        targets[name].append(partition)
    return {name: tuple(sorted(own)) for name, own in targets.items()}


def in_ranges(members: Mapping[str, Subscriber], topics: Mapping[bytes, int]) -> Targets:
    """The same indexes of topics that have the same members and equally many partitions to one member."""
    subscribers: dict[bytes, list[str]] = {}
    for name, member in members.items():
        for topic in member.topics:
            subscribers.setdefault(topic, []).append(name)
    alike: dict[tuple[tuple[str, ...], int], list[bytes]] = {}
    for topic in sorted(subscribers):
        if topic in topics:
            alike.setdefault((tuple(subscribers[topic]), topics[topic]), []).append(topic)
    targets: dict[str, list[Partition]] = {name: [] for name in members}
    for (names, partitions), group in alike.items():
        before: dict[str, Sequence[int]] = {}
        present = set(group)
        for name in names:
            had = Counter(index for topic, index in members[name].target if topic in present)
            before[name] = sorted(index for index, count in had.items() if count == len(group))
        for name, indexes in spread(range(partitions), names, before).items():
            targets[name] += [(topic, index) for topic in group for index in indexes]
    return {name: tuple(sorted(own)) for name, own in targets.items()}


ASSIGNORS: Mapping[str, Assignor] = dict(zip(ASSIGNOR_NAMES, (uniform, in_ranges), strict=True))
"""By the names that members and ``group.consumer.assignors`` use."""
