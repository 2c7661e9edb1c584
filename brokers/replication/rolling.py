"""What a rolling restart asks before it stops a broker, and after it has started it again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fleetlog.brokers.model import BrokerInfo, PartitionState, TopicInfo, TopicPartition
from fleetlog.brokers.replication.isr import FAILED_INCARNATION, members

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
