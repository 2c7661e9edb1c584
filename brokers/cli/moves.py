"""Plans of moves: the partitions, their brokers before and after, the bytes to copy, and the tables. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetlog.brokers.cli.output import CliError, bytes_text, count_text
from fleetlog.brokers.cli.overview import Overview, PartitionOverview
from fleetlog.brokers.controller.placement import Places, crowding
from fleetlog.brokers.model import BrokerId, TopicPartition


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """New replicas for one partition; the first of them is the preferred leader. ``size`` is -1 where it is unknown."""

    tp: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size: int = -1

    @property
    def brings(self) -> tuple[int, ...]:
        """The brokers that get a replica."""
        return tuple(b for b in self.after if b not in self.before)

    @property
    def drops(self) -> tuple[int, ...]:
        """The brokers that lose a replica."""
        return tuple(b for b in self.before if b not in self.after)

    @property
    def bytes_copied(self) -> int:
        """Bytes to copy over the network, as far as they are known."""
        return max(self.size, 0) * len(self.brings)


def moves_to(overview: Overview, wanted: Mapping[TopicPartition, Sequence[int]]) -> list[ReplicaMove]:
    """The moves to these replicas; partitions that already have them are left out."""
    moves = []
    for tp, after in sorted(wanted.items()):
        partition = overview.partitions[tp]
        if tuple(after) != partition.target or partition.moving:
            size = overview.size_of(partition)
            moves.append(ReplicaMove(tp, partition.settled, tuple(after), -1 if size is None else size))
    return moves


def spelled_out(partitions: Sequence[PartitionOverview], replicas: Sequence[int]) -> dict[TopicPartition, list[int]]:
    """The same brokers for each partition, each list starting one broker later, so that all of them lead."""
    rotated = {}
    for number, partition in enumerate(partitions):
        first = number % len(replicas)
        rotated[partition.tp] = [*replicas[first:], *replicas[:first]]
    return rotated


def with_factor(
    partitions: Sequence[PartitionOverview], factor: int, overview: Overview
) -> dict[TopicPartition, tuple[int, ...]]:
    """Replicas of that number: added where racks, failure domains and load are emptiest, removed where they are
    fullest.

    A replica that leads or is in sync stays before one that is not. Raises CliError when there are too few brokers.
    """
    where = {BrokerId(broker.id): broker.place for broker in overview.live_brokers()}
    if factor > len(where):
        raise CliError(f"{factor} replicas need {factor} brokers; {len(where)} are alive")
    load = Counter(b for p in overview.partitions.values() for b in p.target)
    wanted: dict[TopicPartition, tuple[int, ...]] = {}
    for partition in partitions:
        replicas = [BrokerId(b) for b in partition.target]
        load.subtract(replicas)
        while len(replicas) < factor:
            others = [b for b in where if b not in replicas]
            replicas.append(min(others, key=lambda b: (crowding(b, replicas, where), load[b], b)))
        while len(replicas) > factor:
            replicas.remove(min(reversed(replicas), key=lambda b: _worth(b, partition, replicas, where, load)))
        load.update(replicas)
        wanted[partition.tp] = tuple(replicas)
    return wanted


def _worth(
    broker_id: BrokerId,
    partition: PartitionOverview,
    replicas: Sequence[BrokerId],
    where: Places,
    load: Mapping[int, int],
) -> tuple[bool, bool, bool, int, int, int]:
    racks, domains = crowding(broker_id, replicas, where) if broker_id in where else (0, 0)
    in_sync, first = broker_id in partition.isr, broker_id == replicas[0]
    return broker_id == partition.leader, in_sync, first, -racks, -domains, -load[broker_id]


# --- output ----------------------------------------------------------------------------------------------------------


COLUMNS = ("partition", "from", "to", "copied to", "removed from", "bytes")


def rows(moves: Iterable[ReplicaMove]) -> list[list[Any]]:
    """A table of the plan."""
    return [
        [
            str(move.tp),
            list(move.before),
            list(move.after),
            list(move.brings),
            list(move.drops),
            bytes_text(move.bytes_copied) if move.size >= 0 else "unknown",
        ]
        for move in moves
    ]


def load_rows(overview: Overview, moves: Sequence[ReplicaMove]) -> list[list[Any]]:
    """Replicas, preferred leaderships and bytes of each broker, before and after the plan."""
    after = {move.tp: move for move in moves}
    table = []
    for broker_id in sorted({*overview.brokers, *(b for move in moves for b in move.after)}):
        counted = [0] * 6
        for tp, partition in overview.partitions.items():
            now = partition.target
            then = after[tp].after if tp in after else now
            size = max(overview.size_of(partition) or 0, 0)
            for column, replicas in enumerate((now, then)):
                counted[column] += broker_id in replicas
                counted[2 + column] += replicas[:1] == (broker_id,)
                counted[4 + column] += size * (broker_id in replicas)
        table.append([broker_id, *counted[:4], bytes_text(counted[4]), bytes_text(counted[5])])
    return table


LOAD_COLUMNS = ("broker", "replicas", "then", "first replica", "then", "bytes", "then")


def summary(moves: Sequence[ReplicaMove], rate: int | None) -> str:
    """The plan in one line: partitions, bytes to copy, and the least time that takes at the rate."""
    copied = sum(move.bytes_copied for move in moves)
    text = count_text(len(moves), "partition", "change")
    text += f", {bytes_text(copied)} {'are' if copied != 1 else 'is'} copied"
    if rate:
        # every broker may send and receive at that rate, so the busiest one decides
        taken = Counter[int]()
        for move in moves:
            for broker_id in move.brings:
                taken[broker_id] += max(move.size, 0)
        seconds = max(taken.values(), default=0) / rate
        text += f", which takes {_span(seconds)} or more at {bytes_text(rate)}/s"
    return text


def _span(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole / 3600:.1f} h"


def as_value(moves: Iterable[ReplicaMove]) -> list[dict[str, Any]]:
    """The plan for programs; ``topic``, ``partition`` and ``replicas`` as kafka-reassign-partitions has them."""
    return [
        {
            "topic": move.tp.topic,
            "partition": move.tp.partition,
            "replicas": list(move.after),
            "before": list(move.before),
            "bytes": move.bytes_copied if move.size >= 0 else None,
        }
        for move in moves
    ]
