"""Who leads: a table of situations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokers.cluster.elections import elect, new_partition
from brokers.model import BrokerId, PartitionState

EPOCH = 7


def state(leader: int, incarnation: int, isr: list[int], lives: list[int], replicas: list[int]) -> PartitionState:
    return PartitionState(
        replicas=tuple(map(BrokerId, replicas)),
        leader=leader,
        leader_epoch=4,
        isr=tuple(map(BrokerId, isr)),
        partition_epoch=9,
        controller_epoch=3,
        leader_incarnation=incarnation,
        isr_incarnations=tuple(lives),
    )


ONE = state(1, 5, [1], [5], [1])
ONE_OFFLINE = state(-1, -1, [1], [5], [1])
THREE = state(1, 5, [1, 2, 3], [5, 6, 7], [1, 2, 3])

TABLE = {
    "the leader lives": (ONE, {1: 5, 2: 1}, None),
    "the only replica is dead": (ONE, {2: 1}, (-1, -1, [1], [5])),
    "dead already and still": (ONE_OFFLINE, {2: 1}, None),
    "the only replica is back": (ONE_OFFLINE, {1: 6}, (1, 6, [1], [6])),
    "the only replica came back before its death was noticed": (ONE, {1: 6}, (1, 6, [1], [6])),
    "an earlier life can't be told from the present one by id": (ONE, {1: 4}, (1, 4, [1], [4])),
    "a leader of three dies": (THREE, {2: 6, 3: 7}, (2, 6, [2, 3], [6, 7])),
    "the leader bounced: others lead, it must catch up": (THREE, {1: 8, 2: 6, 3: 7}, (2, 6, [2, 3], [6, 7])),
    "the leader dies and one follower bounced": (THREE, {2: 9, 3: 7}, (3, 7, [3], [7])),
    "a dead follower is the leader's business": (THREE, {1: 5, 2: 6}, None),
    "all dead": (THREE, {4: 1}, (-1, -1, [1, 2, 3], [5, 6, 7])),
    "some are back in later lives, one is missing: it may know more": (
        replace(THREE, leader=-1, leader_incarnation=-1),
        {1: 8, 2: 9},
        None,
    ),
    "all are back in later lives": (
        replace(THREE, leader=-1, leader_incarnation=-1),
        {1: 8, 2: 9, 3: 9},
        (1, 8, [1], [8]),
    ),
    "a replica outside the ISR never leads": (
        state(1, 5, [1], [5], [1, 2]),
        {2: 6},
        (-1, -1, [1], [5]),
    ),
    "preference follows the assignment, not the ISR": (
        state(1, 5, [1, 3, 2], [5, 7, 6], [1, 2, 3]),
        {2: 6, 3: 7},
        (2, 6, [3, 2], [7, 6]),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_elections(name: str) -> None:
    before, live, expected = TABLE[name]
    after = elect(before, live, EPOCH)
    if expected is None:
        assert after is None
        return
    assert after is not None
    leader, incarnation, isr, lives = expected
    assert (after.leader, after.leader_incarnation) == (leader, incarnation)
    assert (list(after.isr), list(after.isr_incarnations)) == (isr, lives)
    assert after.leader_epoch == before.leader_epoch + 1
    assert after.partition_epoch == before.partition_epoch + 1
    assert after.controller_epoch == EPOCH
    assert after.replicas == before.replicas
    assert elect(after, live, EPOCH) is None, "an election settles the matter"


def test_new_partition_counts_the_living_as_in_sync() -> None:
    made = new_partition((BrokerId(1), BrokerId(2), BrokerId(3)), {2: 4, 3: 5}, EPOCH)
    assert (made.leader, made.leader_epoch, made.isr, made.isr_incarnations) == (2, 0, (2, 3), (4, 5))
    assert elect(made, {2: 4, 3: 5}, EPOCH) is None


def test_a_partition_born_without_living_replica_starts_with_the_first_that_comes() -> None:
    made = new_partition((BrokerId(1), BrokerId(2)), {}, EPOCH)
    assert made.leader == -1
    led = elect(made, {2: 4}, EPOCH)
    assert led is not None
    assert (led.leader, led.isr) == (2, (2,))
