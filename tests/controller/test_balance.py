"""Proposals that even out a fleet: what they reach, what they leave alone, what they never break."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.controller.balance import propose
from fleetlog.brokers.controller.placement import Place, assign, crowding, places
from fleetlog.brokers.model import BrokerId, BrokerInfo, TopicPartition

Assignments = dict[TopicPartition, tuple[BrokerId, ...]]


def brokers(*ids: int, racks: dict[int, str] | None = None, hosts: dict[int, str] | None = None) -> list[BrokerInfo]:
    return [BrokerInfo(BrokerId(i), 1, 1, (), (racks or {}).get(i), failure_domain=(hosts or {}).get(i)) for i in ids]


def topic(name: str, made: tuple[tuple[BrokerId, ...], ...]) -> Assignments:
    return {TopicPartition(name, i): replicas for i, replicas in enumerate(made)}


def after(before: Assignments, where: dict[BrokerId, Place]) -> Assignments:
    return {**before, **propose(before, where)}


def loads(assignments: Assignments) -> Counter[int]:
    return Counter(b for replicas in assignments.values() for b in replicas)


def leaders(assignments: Assignments) -> Counter[int]:
    return Counter(replicas[0] for replicas in assignments.values())


def copied(before: Assignments, then: Assignments) -> int:
    return sum(len(set(then[tp]) - set(before[tp])) for tp in before)


def spread(counts: Counter[int], where: dict[BrokerId, Place]) -> int:
    return max(counts[b] for b in where) - min(counts[b] for b in where)


def test_an_even_fleet_is_left_alone() -> None:
    where = places(brokers(1, 2, 3))
    assert propose(topic("t", assign(brokers(1, 2, 3), 9, 2)), where) == {}
    assert propose({}, where) == {}
    assert propose(topic("t", assign(brokers(1, 2, 3), 9, 2)), {}) == {}


def test_a_new_broker_gets_its_share_and_nothing_else_moves() -> None:
    before = topic("t", assign(brokers(1, 2, 3), 12, 3)) | topic("u", assign(brokers(1, 2, 3), 8, 1))
    where = places(brokers(1, 2, 3, 4))
    then = after(before, where)
    assert spread(loads(then), where) <= 1
    assert spread(leaders(then), where) <= 1
    assert copied(before, then) == 44 // 4, "as many replicas move as the new broker needs"
    assert Counter(tp.topic for tp in then if 4 in then[tp])["u"] == 2, "of every topic its share"


def test_a_broker_is_emptied() -> None:
    before = topic("t", assign(brokers(1, 2, 3, 4), 16, 3))
    where = places(brokers(1, 2, 4))
    then = after(before, where)
    assert all(sorted(replicas) == [1, 2, 4] for replicas in then.values())
    assert copied(before, then) == loads(before)[3]
    assert spread(leaders(then), where) <= 1
    fewer = after(before, places(brokers(1, 2)))
    assert all(sorted(replicas) == [1, 2] for replicas in fewer.values()), "as many as fit"
    alone = after(topic("u", ((BrokerId(9),),)), places(brokers(1)))
    assert alone == topic("u", ((BrokerId(1),),))


def test_leadership_is_evened_out_without_copying() -> None:
    before = topic("t", tuple((BrokerId(1), BrokerId(2), BrokerId(3)) for _ in range(9)))
    then = after(before, places(brokers(1, 2, 3)))
    assert copied(before, then) == 0
    assert leaders(then) == {1: 3, 2: 3, 3: 3}
    assert sum(before[tp] != then[tp] for tp in before) == 6


def test_leadership_goes_along_chains() -> None:
    """Broker 1 leads too much and shares nothing with 3; 2 takes from 1 and gives to 3."""
    pairs = [(1, 2)] * 6 + [(2, 3)] * 3 + [(3, 2)]
    before = topic("t", tuple((BrokerId(a), BrokerId(b)) for a, b in pairs))
    where = places(brokers(1, 2, 3))
    then = dict(before)
    then.update({tp: r for tp, r in propose(before, where).items() if set(r) == set(before[tp])})
    assert spread(leaders(after(before, where)), where) <= 1


def test_replicas_that_share_a_rack_without_need_are_parted() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    before = topic("t", tuple((BrokerId(1), BrokerId(2)) for _ in range(4)))
    where = places(brokers(1, 2, 3, 4, racks=racks))
    then = after(before, where)
    assert all({racks[b] for b in replicas} == {"a", "b"} for replicas in then.values())
    assert spread(loads(then), where) <= 1
    assert copied(before, then) == 4


def test_racks_come_before_evenness() -> None:
    """One broker alone on its rack must hold a replica of everything."""
    racks = {1: "a", 2: "a", 3: "a", 4: "b"}
    before = topic("t", assign(brokers(1, 2, 3, 4, racks=racks), 12, 2))
    where = places(brokers(1, 2, 3, 4, racks=racks))
    then = after(before, where)
    assert loads(then)[4] == 12
    assert spread(leaders(then), where) <= 1


@given(st.integers(0, 2**32))
def test_whatever_the_fleet(seed: int) -> None:
    rng = random.Random(seed)
    ids = list(range(1, rng.randint(2, 8)))
    racks = {i: rng.choice("abc") for i in ids} if rng.random() < 0.5 else None
    hosts = {i: rng.choice("wxyz") for i in ids}
    where = places(brokers(*ids, racks=racks, hosts=hosts))
    everybody = [*ids, 8, 9]
    before: Assignments = {}
    for name in "tuv":
        factor = rng.randint(1, min(3, len(ids)))
        for i in range(rng.randint(0, 12)):
            before[TopicPartition(name, i)] = tuple(map(BrokerId, rng.sample(everybody, factor)))
    then = after(before, where)
    assert then.keys() == before.keys()
    for tp, replicas in then.items():
        assert len(set(replicas)) == len(replicas) == len(before[tp])
        assert set(replicas) <= set(where)
        crowded = sum(sum(crowding(b, replicas, where)) for b in replicas)
        if set(before[tp]) <= set(where):
            assert crowded <= sum(sum(crowding(b, before[tp], where)) for b in before[tp])
    assert propose(then, where) == {}, "a proposal that was carried out leaves nothing to propose"
    if racks is None and len(set(hosts.values())) == 1:
        assert spread(loads(then), where) <= 1
