"""Offsets of a read: the options' grammar, the limit per trigger, the split into tasks."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.source import offsets
from fleetlog.spark.source.offsets import (
    Bound,
    Range,
    limit_offsets,
    parse_assign,
    parse_bound,
    share_out,
    split_ranges,
)
from fleetlog.wire.types import TopicPartition

PARTS = [TopicPartition("t", number) for number in range(5)]
logs = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=5)


@given(logs, st.integers(1, 10**7))
@example([(0, 1), (0, 10), (0, 10)], 8)  # what is lost to rounding goes to partitions that have more
def test_limit_moves_on_and_stays_within(log: list[tuple[int, int]], most: int) -> None:
    start = {PARTS[number]: first for number, (first, _) in enumerate(log)}
    latest = {PARTS[number]: first + size for number, (first, size) in enumerate(log)}
    end = limit_offsets(start, latest, most)
    assert all(start[tp] <= end[tp] <= latest[tp] for tp in start)
    moved = sum(end[tp] - start[tp] for tp in start)
    waiting = sum(size for _, size in log)
    assert moved == min(most, waiting)
    if most >= len(log):
        assert all(end[tp] > start[tp] for tp in start if latest[tp] > start[tp]), "a partition starves"


@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 10))
def test_partitions_take_turns_below_a_small_limit(partitions: int, most: int, ahead: int) -> None:
    """Each gets a record with each batch, so all of them always wait; the first is far behind its end."""
    parts = PARTS[:partitions]
    position = dict.fromkeys(parts, 0)
    end = {**dict.fromkeys(parts, 10), parts[0]: 10 + 1000 * ahead}
    for _ in range(20):
        position = limit_offsets(position, end, most)
        end = {tp: offset + 1 for tp, offset in end.items()}
    assert min(position.values()) >= 20 * min(most, partitions) // partitions - 1


@given(logs, st.integers(1, 40))
def test_split_covers_each_offset_once(log: list[tuple[int, int]], pieces: int) -> None:
    ranges = [Range("t", number, first, first + size) for number, (first, size) in enumerate(log)]
    found = split_ranges(ranges, pieces)
    assert all(item.size > 0 for item in found)
    for whole in ranges:
        edges = sorted((item.start, item.end) for item in found if item.partition == whole.partition)
        covered = whole.start
        for low, high in edges:
            assert low == covered
            covered = high
        assert covered == whole.end if edges else whole.size == 0


@given(logs, st.integers(1, 8))
def test_tasks_share_ranges_evenly(log: list[tuple[int, int]], most: int) -> None:
    ranges = [Range("t", number, first, first + size) for number, (first, size) in enumerate(log)]
    tasks = share_out(ranges, most)
    assert sorted(item for task in tasks for item in task) == ranges
    assert len(tasks) == min(most, len(ranges))
    sizes = [sum(item.size for item in task) for task in tasks]
    assert max(sizes) - min(sizes) <= max(item.size for item in ranges)


def test_offsets_have_sparks_form() -> None:
    value = {"b": {"0": 7}, "a": {"10": 1, "2": 5}}
    assert offsets.to_json(offsets.from_json(value)) == value
    assert json.dumps(offsets.to_json(offsets.from_json(value))) == '{"a": {"2": 5, "10": 1}, "b": {"0": 7}}'


def test_topic_ids_stand_beside_the_topics() -> None:
    noted = offsets.to_json({TopicPartition("a", 2): 5}, {"b": "9", "a": "7"})
    assert json.dumps(noted) == '{"a": {"2": 5}, "topic ids": {"a": "7", "b": "9"}}'
    assert offsets.from_json(noted) == {TopicPartition("a", 2): 5}
    assert offsets.topic_ids_of(noted) == {"a": "7", "b": "9"}
    assert offsets.topic_ids_of({"a": {"2": 5}}) == {}
    assert offsets.recreated({"a": "7", "b": "9", "c": "1"}, {"a": "7", "b": "8", "d": "2"}) == ["b"]


def test_times_go_before_offsets_in_a_bound() -> None:
    everything = {"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"t":{"0":9}}', "startingOffsets": "latest"}
    assert parse_bound(everything, "starting", -2) == Bound(timestamp_ms=5)
    del everything["startingTimestamp"]
    assert parse_bound(everything, "starting", -2) == Bound(timestamps={PARTS[0]: 9})
    del everything["startingOffsetsByTimestamp"]
    assert parse_bound(everything, "starting", -2) == Bound(everywhere=-1)
    assert parse_bound({}, "starting", -2) == Bound(everywhere=-2)
    assert parse_bound({"endingOffsets": '{"t":{"0":-1,"1":3}}'}, "ending", -1) == Bound(
        offsets={PARTS[0]: -1, PARTS[1]: 3}
    )
    assert parse_assign('{"t":[1,0]}') == PARTS[:2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("startingOffsets", "first"),
        ("startingOffsets", '{"t": 5}'),
        ("startingOffsets", '{"t": {"0": -3}}'),
        ("startingOffsets", '{"t": {"x": 3}}'),
        ("startingTimestamp", "now"),
        ("startingOffsetsByTimestamp", '{"t": {"0": -1}}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"t": {"0": -2}}'),
    ],
)
def test_bad_bounds_name_the_option(name: str, text: str) -> None:
    side = "starting" if name.startswith("starting") else "ending"
    with pytest.raises(OptionError, match=f"{name}"):
        parse_bound({name: text}, side, -2)


@pytest.mark.parametrize("text", ["", "[]", '{"t": 1}', "{}", '{"t": ["x"]}'])
def test_bad_assign(text: str) -> None:
    with pytest.raises(OptionError, match="assign"):
        parse_assign(text)
