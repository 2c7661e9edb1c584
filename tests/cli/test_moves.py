"""Plans of moves, without a fleet: the brokers that gain or lose a replica, and the output."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.cli import moves, moving
from fleetlog.brokers.cli.admin_client import AdminClient
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.cli.overview import BrokerOverview, Directory, Overview, PartitionOverview
from fleetlog.brokers.model import TopicPartition

MB = 1_000_000


def broker(broker_id: int, rack: str | None = None, host: str = "h") -> BrokerOverview:
    return BrokerOverview(broker_id, f"{host}{broker_id}", 9092, rack)


def partition(index: int, *replicas: int, leader: int | None = None, **fields: object) -> PartitionOverview:
    first = replicas[0] if leader is None else leader
    state: dict[str, object] = {"isr": replicas, **fields}
    return PartitionOverview("t", index, first, 1, replicas, **state)  # type: ignore[arg-type]


def overview(brokers: list[BrokerOverview], *partitions: PartitionOverview, size: int | None = None) -> Overview:
    found = Overview("c", 1, {one.id: one for one in brokers}, {one.tp: one for one in partitions})
    if size is not None:
        for one in brokers:
            held = {p.tp: size for p in partitions if one.id in p.replicas}
            one.directories = [Directory("/d", 0, 10 * size, size, held)]
    return found


def test_a_replica_is_added_where_racks_have_most_room() -> None:
    brokers = [broker(1, "a"), broker(2, "a"), broker(3, "b"), broker(4, "c")]
    fleet = overview(brokers, partition(0, 1), partition(1, 3), partition(2, 4, 3))
    wanted = moves.with_factor(fleet.of_topic("t"), 3, fleet)
    assert wanted[TopicPartition("t", 0)][0] == 1
    assert set(wanted[TopicPartition("t", 0)]) == {1, 3, 4}
    assert set(wanted[TopicPartition("t", 1)]) & {1, 2}
    assert 4 in wanted[TopicPartition("t", 1)]
    assert wanted[TopicPartition("t", 2)][:2] == (4, 3)


def test_one_host_is_one_failure() -> None:
    brokers = [BrokerOverview(1, "x", 1), BrokerOverview(2, "x", 2), BrokerOverview(3, "y", 1)]
    fleet = overview(brokers, partition(0, 1))
    assert moves.with_factor(fleet.of_topic("t"), 2, fleet) == {TopicPartition("t", 0): (1, 3)}


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 30))
def test_a_new_factor_keeps_load_even_and_leaders_where_they_are(old: int, new: int, count: int) -> None:
    brokers = [broker(number) for number in range(8)]
    partitions = [partition(index, *((index + n) % 8 for n in range(old))) for index in range(count)]
    fleet = overview(brokers, *partitions)
    wanted = moves.with_factor(partitions, new, fleet)
    for one in partitions:
        after = wanted[one.tp]
        assert len(set(after)) == len(after) == new
        assert after[0] == one.leader
        assert set(after) >= set(one.replicas) or set(after) <= set(one.replicas)
    if old == 1:
        held = [sum(b.id in after for after in wanted.values()) for b in brokers]
        assert max(held) - min(held) <= 2


def test_the_replica_that_goes_first_is_not_in_sync_and_never_the_leader() -> None:
    brokers = [broker(1), broker(2), broker(3)]
    fleet = overview(brokers, partition(0, 1, 2, 3, leader=2, isr=(2, 3)))
    assert moves.with_factor(fleet.of_topic("t"), 2, fleet) == {TopicPartition("t", 0): (2, 3)}
    assert moves.with_factor(fleet.of_topic("t"), 1, fleet) == {TopicPartition("t", 0): (2,)}


def test_more_replicas_than_live_brokers_are_refused() -> None:
    fleet = overview([broker(1), broker(2), BrokerOverview(3)], partition(0, 1))
    with pytest.raises(CliError, match="2 are alive"):
        moves.with_factor(fleet.of_topic("t"), 3, fleet)


def test_spelled_out_replicas_share_the_leading() -> None:
    wanted = moves.spelled_out([partition(index, 9) for index in range(4)], (1, 2, 3))
    assert [wanted[TopicPartition("t", index)] for index in range(4)] == [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]


def test_a_plan_says_what_is_copied_and_how_long_it_takes() -> None:
    fleet = overview([broker(1), broker(2), broker(3)], partition(0, 1, 2), partition(1, 2, 1), size=20 * MB)
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    plan = moves.moves_to(fleet, {first: [3, 2], second: [2, 1]})
    assert plan == [moves.ReplicaMove(first, (1, 2), (3, 2), 20 * MB)], "what is in place is left out"
    assert (plan[0].brings, plan[0].drops, plan[0].bytes_copied) == ((3,), (1,), 20 * MB)
    assert (
        moves.summary(plan, 2 * MB) == "1 partition changes, 20.0 MB are copied, which takes 10 s or more at 2.0 MB/s"
    )
    assert moves.rows(plan) == [["t-0", [1, 2], [3, 2], [3], [1], "20.0 MB"]]
    load = {row[0]: row[1:] for row in moves.load_rows(fleet, plan)}
    assert load[1] == [2, 1, 1, 0, "40.0 MB", "20.0 MB"]
    assert load[3] == [0, 1, 0, 1, "0 B", "20.0 MB"]
    assert moves.as_value(plan) == [
        {"topic": "t", "partition": 0, "replicas": [3, 2], "before": [1, 2], "bytes": 20 * MB}
    ]


def test_a_partition_under_way_counts_from_where_it_was() -> None:
    moving = partition(0, 1, 2, 3, isr=(1, 2), adding=(3,), removing=(1,))
    fleet = overview([broker(1), broker(2), broker(3)], moving, size=MB)
    fleet.brokers[3].directories = [Directory("/d", 0, 10, 1, {moving.tp: MB // 4})]
    assert (moving.settled, moving.target, moving.under_replicated) == ((1, 2), (2, 3), False)
    assert fleet.copied(moving) == (MB // 4, MB)
    (back,) = moves.moves_to(fleet, {moving.tp: [1, 2]})
    assert (back.before, back.brings) == ((1, 2), ())


def test_what_is_wrong_is_named_by_the_worst() -> None:
    assert partition(0, 1, 2, 3).problem is None
    assert partition(0, 1, 2, 3, isr=(1, 2)).problem == "under-replicated"
    assert partition(0, 1, 2, 3, isr=(1,), min_in_sync=2).problem == "under min ISR"
    assert partition(0, 1, isr=(1,), min_in_sync=2).problem is None, "no more is asked than there are replicas"
    assert partition(0, 1, 2, leader=-1).problem == "offline"


@pytest.mark.parametrize(("running", "begun"), [(0, 2), (1, 1), (2, 0), (3, 0)])
def test_no_more_moves_begin_than_may_be_under_way(monkeypatch: pytest.MonkeyPatch, running: int, begun: int) -> None:
    listed = [moves.ReplicaMove(TopicPartition("t", index), (1,), (2,), 10) for index in range(7)]
    under_way = {move.tp: move for move in listed[:running]}
    asked: list[TopicPartition] = []

    def alter(_client: object, wanted: dict[TopicPartition, object], _timeout_ms: int) -> dict[TopicPartition, object]:
        asked.extend(wanted)
        return dict.fromkeys(wanted, (0, None))

    monkeypatch.setattr(moving, "alter_reassignments", alter)
    result = moving.Moved(left=listed[running:])
    moving._begin(cast("AdminClient", None), result, under_way, 2, 1000)
    assert asked == [move.tp for move in listed[running : running + begun]]
    assert (len(under_way), len(result.left)) == (running + begun, 7 - running - begun)
