"""What a rolling restart asks of the partitions' states."""

from __future__ import annotations

import uuid

import pytest

from fleetlog.brokers.model import BrokerId, BrokerInfo, PartitionState, TopicInfo, TopicPartition
from fleetlog.brokers.replication.isr import held_back, not_in_sync, some_of


def topic(*partitions: tuple[tuple[int, ...], tuple[int, ...]], removing: tuple[int, ...] = ()) -> TopicInfo:
    states = tuple(
        PartitionState(
            replicas, isr[0] if isr else -1, 0, isr, 0, 0, isr_incarnations=(6,) * len(isr), removing=removing
        )
        for replicas, isr in partitions
    )
    return TopicInfo("t", uuid.UUID(int=7), states, {})


def broker(number: int, incarnation: int = 6, intact_since: int = 6) -> BrokerInfo:
    return BrokerInfo(BrokerId(number), 1, incarnation, (), intact_since=intact_since)


def test_replicas_out_of_sync_are_named() -> None:
    one = topic(((1, 2, 3), (1, 2)), ((1, 2), (1, 2)), ((1, 2, 3), ()))
    assert not_in_sync([one], broker(3)) == [TopicPartition("t", 0), TopicPartition("t", 2)]
    assert not_in_sync([one], broker(2)) == [TopicPartition("t", 2)]
    assert not_in_sync([one], broker(9)) == []
    assert not_in_sync([topic(((1, 2, 3), (1, 2)), removing=(3,))], broker(3)) == []


def test_an_in_sync_set_from_before_a_crash_names_nobody() -> None:
    """A broker that comes back at once is in it until it is taken out, and would be caught up with nothing."""
    one = topic(((1, 2, 3), (1, 2, 3)))
    assert not_in_sync([one], broker(3, incarnation=7, intact_since=7)) == [TopicPartition("t", 0)]
    assert not_in_sync([one], broker(3, incarnation=7, intact_since=6)) == [], "it was stopped cleanly"


@pytest.mark.parametrize(
    ("replicas", "isr", "min_isr", "held"),
    [
        ((1, 2, 3), (1, 2, 3), 2, False),
        ((1, 2, 3), (1, 2), 2, True),
        ((1, 2, 3), (1,), 1, True),  # none would be left
        ((1, 2, 3), (2, 3), 2, False),  # it is not in sync itself
        ((1, 2, 3), (1,), 2, True),
        ((1, 2), (1, 2), 2, False),  # needs all its replicas: no order of restarts helps
        ((1,), (1,), 1, False),
        ((1, 2), (1, 2), 0, False),
    ],
)
def test_a_broker_is_held_back(replicas: tuple[int, ...], isr: tuple[int, ...], min_isr: int, held: bool) -> None:
    found = held_back([topic((replicas, isr))], 1, lambda name: {"t": min_isr}[name])
    assert found == ([TopicPartition("t", 0)] if held else [])


def test_the_first_are_named() -> None:
    partitions = [TopicPartition("t", index) for index in (4, 1, 2, 3)]
    assert some_of(partitions) == "4 partition(s): t-1, t-2, t-3, ..."
    assert some_of(partitions[:1]) == "1 partition(s): t-4"
