"""Proposes reassignments that balance replicas and preferred leaders over the brokers. Pure.

The steps, in order; each keeps what the earlier ones reached:

1. Replicas leave brokers that must not hold any.
2. Replicas that share a rack or a failure domain without need are separated.
3. Single replicas move from the fullest to the emptiest brokers until the counts are even.
4. Preferred leaders are balanced by the order within assignments, which copies no data.

No replica moves without need: a balanced cluster gets an empty proposal. The load of a broker is its number of
replicas, not bytes or requests, because the partitions of one topic are alike and traffic changes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from fleetlog.brokers.controller.placement import Places, crowding
from fleetlog.brokers.model import BrokerId, TopicPartition

Assignments = Mapping[TopicPartition, Sequence[int]]


def propose(assignments: Assignments, where: Places) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """The partitions whose replica lists should change (members or order), with the proposed lists.

    ``where`` has the brokers that may hold replicas: leave out brokers that are lost or to be emptied. A partition with
    more replicas than there are brokers keeps as many as fit.
    """
    if not where:
        return {}
    plan = _Plan(assignments, where)
    plan.leave_absent_brokers()
    while plan.part_the_crowded() or plan.even_replicas():
        pass  # balancing may free a place that separates others; each round lowers the crowding or the imbalance
    plan.even_leaders()
    return {tp: after for tp, after in plan.replicas.items() if after != tuple(assignments[tp])}


class _Plan:
    """The proposed replicas, with the counts that follow from them."""

    def __init__(self, assignments: Assignments, where: Places) -> None:
        self.where = where
        self.replicas = {tp: tuple(BrokerId(b) for b in assignments[tp]) for tp in sorted(assignments)}
        self.load: Counter[BrokerId] = Counter(dict.fromkeys(where, 0))
        self.held: dict[BrokerId, dict[TopicPartition, None]] = {b: {} for b in where}
        self.of_topic: Counter[tuple[str, BrokerId]] = Counter()
        for tp, replicas in self.replicas.items():
            for b in replicas:
                self._count(tp, b, 1)

    def _count(self, tp: TopicPartition, broker_id: BrokerId, by: int) -> None:
        self.of_topic[tp.topic, broker_id] += by
        if broker_id not in self.where:
            return
        self.load[broker_id] += by
        if by > 0:
            self.held[broker_id][tp] = None
        else:
            del self.held[broker_id][tp]

    def _move(self, tp: TopicPartition, source: BrokerId, to: BrokerId) -> None:
        self.replicas[tp] = tuple(to if b == source else b for b in self.replicas[tp])
        self._count(tp, source, -1)
        self._count(tp, to, 1)

    def _crowding(self, tp: TopicPartition, broker_id: BrokerId, instead_of: BrokerId) -> tuple[int, int]:
        return crowding(broker_id, (b for b in self.replicas[tp] if b != instead_of), self.where)

    def _free(self, tp: TopicPartition) -> Iterable[BrokerId]:
        return (b for b in self.where if b not in self.replicas[tp])

    def _best(self, tp: TopicPartition, instead_of: BrokerId) -> BrokerId | None:
        """The best broker for a replica of the partition."""
        return min(
            self._free(tp),
            key=lambda b: (self._crowding(tp, b, instead_of), self.load[b], self.of_topic[tp.topic, b], b),
            default=None,
        )

    # ------------------------------------------------------------ replicas

    def leave_absent_brokers(self) -> None:
        """Move every replica to a broker that may hold replicas."""
        for tp in self.replicas:
            for source in self.replicas[tp]:
                if source in self.where:
                    continue
                to = self._best(tp, source)
                if to is not None:
                    self._move(tp, source, to)
                elif len(self.replicas[tp]) > 1:
                    self.replicas[tp] = tuple(b for b in self.replicas[tp] if b != source)
                    self._count(tp, source, -1)

    def part_the_crowded(self) -> bool:
        """Separate replicas of a partition that share a rack or a failure domain, while another one is free. True if
        a replica moved.
        """
        moved = False
        for tp in self.replicas:
            for source in reversed(self.replicas[tp]):  # the preferred leader moves last
                now = self._crowding(tp, source, source) if source in self.where else (0, 0)
                if now == (0, 0):
                    continue
                to = self._best(tp, source)
                if to is not None and self._crowding(tp, to, source) < now:
                    self._move(tp, source, to)
                    moved = True
        return moved

    def even_replicas(self) -> bool:
        """Move one replica at a time from the fullest to the emptiest broker while their counts differ by two or more.
        True if a replica moved.
        """
        moved = False
        while True:
            ranked = sorted(self.load, key=lambda b: (self.load[b], b))
            pairs = (
                (source, to) for source in reversed(ranked) for to in ranked if self.load[source] - self.load[to] >= 2
            )
            for source, to in pairs:
                tp = self._fittest(source, to)
                if tp is not None:
                    self._move(tp, source, to)
                    moved = True
                    break
            else:
                return moved

    def _fittest(self, source: BrokerId, to: BrokerId) -> TopicPartition | None:
        """The partition whose replica should go from one broker to the other, if one can without more crowding.

        Prefers the topic with the largest surplus on ``source`` over ``to``, and followers over preferred leaders.
        """
        best: tuple[tuple[int, bool], TopicPartition] | None = None
        for tp in self.held[source]:
            if tp in self.held[to]:
                continue
            surplus = self.of_topic[tp.topic, source] - self.of_topic[tp.topic, to]
            rank = (-surplus, self.replicas[tp][0] == source)
            if best is not None and rank >= best[0]:
                continue
            if self._crowding(tp, to, source) <= self._crowding(tp, source, source):
                best = (rank, tp)
        return best[1] if best is not None else None

    # ------------------------------------------------------------ preferred leaders

    def even_leaders(self) -> None:
        """Shift preferred leaderships along chains of brokers, from the brokers with most to those with least."""
        led: dict[BrokerId, dict[TopicPartition, None]] = {b: {} for b in self.where}
        for tp, replicas in self.replicas.items():
            if replicas and replicas[0] in led:
                led[replicas[0]][tp] = None
        while (chain := self._chain(led)) is not None:
            for tp, source, to in chain:
                rest = tuple(b for b in self.replicas[tp] if b != to)
                self.replicas[tp] = (to, *rest)
                del led[source][tp]
                led[to][tp] = None

    def _chain(
        self, led: Mapping[BrokerId, Mapping[TopicPartition, None]]
    ) -> list[tuple[TopicPartition, BrokerId, BrokerId]] | None:
        """The shortest chain from a broker with most leaderships to one that leads at least two fewer."""
        for first in sorted(led, key=lambda b: (-len(led[b]), b)):
            reached: dict[BrokerId, tuple[TopicPartition, BrokerId]] = {}
            queue = deque([first])
            while queue:
                source = queue.popleft()
                for tp in led[source]:
                    for to in self.replicas[tp][1:]:
                        if to == first or to in reached or to not in led:
                            continue
                        reached[to] = (tp, source)
                        if len(led[first]) - len(led[to]) >= 2:
                            return _walk_back(reached, first, to)
                        queue.append(to)
        return None


def _walk_back(
    reached: Mapping[BrokerId, tuple[TopicPartition, BrokerId]], first: BrokerId, last: BrokerId
) -> list[tuple[TopicPartition, BrokerId, BrokerId]]:
    chain = []
    to = last
    while to != first:
        tp, source = reached[to]
        chain.append((tp, source, to))
        to = source
    return chain
