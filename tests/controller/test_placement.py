"""Where replicas go."""

from __future__ import annotations

from collections import Counter

import pytest

from fleetlog.brokers.controller.placement import Place, PlacementError, alternating, assign, check_assignment, crowding
from fleetlog.brokers.model import BrokerId, BrokerInfo


def brokers(*ids: int, racks: dict[int, str] | None = None, hosts: dict[int, str] | None = None) -> list[BrokerInfo]:
    return [BrokerInfo(BrokerId(i), 1, 1, (), (racks or {}).get(i), failure_domain=(hosts or {}).get(i)) for i in ids]


def test_one_replica_goes_round() -> None:
    assert assign(brokers(3, 1, 2), 6, 1) == ((1,), (2,), (3,), (1,), (2,), (3,))
    assert assign(brokers(1, 2, 3), 3, 1, start=2) == ((3,), (1,), (2,))


def test_absent_brokers_take_what_the_living_cannot() -> None:
    made = assign(brokers(1, 2), 4, 3, absent=brokers(3, 4))
    assert [set(replicas[:2]) for replicas in made] == [{1, 2}] * 4
    assert Counter(replicas[2] for replicas in made) == {3: 2, 4: 2}
    assert assign(brokers(1, 2), 2, 2, absent=brokers(3)) == assign(brokers(1, 2), 2, 2), "only as far as needed"
    racks = {1: "a", 2: "b", 3: "a", 4: "c"}
    spread = assign(brokers(1, 2, racks=racks), 3, 3, absent=brokers(3, 4, racks=racks))
    assert {replicas[2] for replicas in spread} == {4}, "on a rack of its own"
    with pytest.raises(PlacementError):
        assign((), 1, 1, absent=brokers(3))


def test_added_partitions_continue_where_the_topic_stopped() -> None:
    whole = assign(brokers(1, 2, 3), 7, 2, start=1)
    parts = assign(brokers(1, 2, 3), 4, 2, start=1) + assign(brokers(1, 2, 3), 3, 2, start=1, first_partition=4)
    assert parts == whole


@pytest.mark.parametrize(("count", "factor", "partitions"), [(3, 2, 6), (5, 3, 20), (4, 4, 12), (6, 3, 30)])
def test_replicas_are_distinct_and_even(count: int, factor: int, partitions: int) -> None:
    made = assign(brokers(*range(1, count + 1)), partitions, factor)
    assert all(len(set(replicas)) == factor for replicas in made)
    leaders = Counter(replicas[0] for replicas in made)
    assert max(leaders.values()) - min(leaders.values()) <= 1
    load = Counter(b for replicas in made for b in replicas)
    assert max(load.values()) - min(load.values()) <= factor


def test_followers_of_one_leader_are_spread() -> None:
    made = assign(brokers(*range(5)), 20, 2)
    followers = {replicas[1] for replicas in made if replicas[0] == 0}
    assert len(followers) > 1, "the loss of a leader would fall on one broker"


def test_racks_are_all_used() -> None:
    racks = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}
    made = assign(brokers(*range(6), racks=racks), 18, 3)
    for replicas in made:
        assert {racks[b] for b in replicas} == {"a", "b", "c"}
    assert len(set(made)) > 6


def test_uneven_racks_are_spread_as_far_as_they_go() -> None:
    racks = {0: "a", 1: "a", 2: "a", 3: "b"}
    for replicas in assign(brokers(*range(4), racks=racks), 8, 2):
        assert {racks[b] for b in replicas} == {"a", "b"}


def test_racks_alternate_and_without_racks_hosts_do() -> None:
    racks = {BrokerId(i): Place(rack, "host") for i, rack in enumerate("aabbc")}
    assert alternating(racks) == [0, 2, 4, 1, 3]
    hosts = {BrokerId(i): Place(f"\0{i}", host) for i, host in enumerate("aabb")}
    assert alternating(hosts) == [0, 2, 1, 3]


@pytest.mark.parametrize("racks", [None, {i: "xyz"[i // 4] for i in range(12)}], ids=["no racks", "three racks"])
def test_replicas_avoid_sharing_a_host(racks: dict[int, str] | None) -> None:
    """Twelve brokers, two to a host: no two replicas stand on one host, and the load stays even."""
    hosts = {i: f"host{i // 2}" for i in range(12)}
    made = assign(brokers(*range(12), racks=racks, hosts=hosts), 48, 3)
    for replicas in made:
        assert len({hosts[b] for b in replicas}) == 3
        assert racks is None or len({racks[b] for b in replicas}) == 3
    load = Counter(b for replicas in made for b in replicas)
    assert max(load.values()) - min(load.values()) <= 6
    assert set(Counter(replicas[0] for replicas in made).values()) == {4}


def test_racks_that_are_too_few_still_spare_hosts() -> None:
    racks = dict.fromkeys(range(3), "a") | dict.fromkeys(range(3, 6), "b")
    hosts = {0: "h0", 1: "h0", 2: "h1", 3: "h2", 4: "h2", 5: "h3"}
    for replicas in assign(brokers(*range(6), racks=racks, hosts=hosts), 30, 3):
        assert {racks[b] for b in replicas} == {"a", "b"}
        assert len({hosts[b] for b in replicas}) == 3


def test_one_host_is_the_last_resort_and_works() -> None:
    hosts = dict.fromkeys((1, 2, 3), "laptop")
    for replicas in assign(brokers(1, 2, 3, hosts=hosts), 9, 3):
        assert sorted(replicas) == [1, 2, 3]


def test_crowding_counts_racks_first() -> None:
    where = {BrokerId(i): Place(*place.split()) for i, place in enumerate(["a h", "a h", "a i", "b h", "b j"])}
    assert [crowding(BrokerId(i), [BrokerId(0)], where) for i in range(1, 5)] == [(1, 1), (1, 0), (0, 1), (0, 0)]
    assert crowding(BrokerId(1), [BrokerId(0), BrokerId(2), BrokerId(9)], where) == (2, 1)


@pytest.mark.parametrize(
    ("alive", "partitions", "factor", "partitions_wrong"),
    [(3, 0, 1, True), (3, -2, 1, True), (3, 1, 0, False), (3, 1, 4, False), (0, 1, 1, False)],
)
def test_what_cannot_be_placed(alive: int, partitions: int, factor: int, partitions_wrong: bool) -> None:
    with pytest.raises(PlacementError) as problem:
        assign(brokers(*range(alive)), partitions, factor)
    assert problem.value.partitions is partitions_wrong


@pytest.mark.parametrize(
    ("assignment", "first", "wrong"),
    [
        ({0: [1], 1: [2]}, 0, None),
        ({3: [1, 2], 4: [2, 3]}, 3, None),
        ({1: [1]}, 0, "consecutive"),
        ({0: [1], 2: [1]}, 0, "consecutive"),
        ({0: []}, 0, "no replicas"),
        ({0: [1, 1]}, 0, "Duplicate"),
        ({0: [9]}, 0, "Unknown broker"),
        ({0: [1], 1: [1, 2]}, 0, "same number"),
    ],
)
def test_manual_assignments(assignment: dict[int, list[int]], first: int, wrong: str | None) -> None:
    found = check_assignment(assignment, [1, 2, 3], first_partition=first)
    assert (found is None) if wrong is None else (found is not None and wrong in found)
