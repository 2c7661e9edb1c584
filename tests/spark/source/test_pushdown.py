"""Filters of a batch read as narrower ranges."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)

from fleetlog.spark.source.offsets import Range
from fleetlog.spark.source.options import ReadOptions
from fleetlog.spark.source.planner import RangePartition
from fleetlog.spark.source.pushdown import FilterPushdown
from tests.spark.source.restarts import Logs, ModelBatchReader

COMPARISONS: list[Any] = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]


def test_filters_narrow_and_unknown_ones_do_not() -> None:
    push = FilterPushdown()
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    filters = [
        In(("topic",), ("a", "b")),
        EqualTo(("topic",), "a"),
        GreaterThan(("partition",), 1),
        In(("partition",), (0, 2, 3)),
        GreaterThanOrEqual(("offset",), 10),
        LessThan(("offset",), 20),
        GreaterThan(("timestamp",), noon),
        LessThan(("timestamp",), noon),
        EqualTo(("key",), b"x"),
        Not(EqualTo(("partition",), 2)),
        EqualTo(("headers", "partition"), 7),
    ]
    assert push(filters) is filters, "Spark applies them all itself"
    found = push.narrowing
    assert len(found.used) == 7
    assert [(t, p) for t in "ab" for p in range(5) if found.keeps(t, p)] == [("a", 2), ("a", 3)]
    assert found.cut(Range("a", 2, 0, 100)) == Range("a", 2, 10, 20)
    assert found.cut(Range("a", 2, 30, 100)).size == 0
    assert found.since_ms == int(noon.timestamp() * 1000)
    assert pickle.loads(pickle.dumps(push)).narrowing == found


OPTIONS = {"kafka.bootstrap.servers": "model:1", "subscribe": "t0", "startingOffsets": "earliest"}
EPOCH = datetime.fromtimestamp(0, UTC)


def planned(filters: list[Filter], logs: Logs, **options: str) -> set[tuple[int, int]]:
    """Partition and offset of what a batch read with these filters fetches."""
    reader = ModelBatchReader(ReadOptions.parse({**OPTIONS, **options}, streaming=False), logs)
    reader.pushFilters(filters)
    ranges = [item for task in reader.partitions() for item in cast("RangePartition", task).ranges]
    return {(item.partition, offset) for item in ranges for offset in range(item.start, item.end)}


def logs_of(*times: list[int]) -> Logs:
    logs = Logs()
    logs.create("t0", len(times))
    logs.topics_now["t0"].times = list(times)
    return logs


def time_of(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def test_a_time_before_1970_leaves_nothing_out() -> None:
    logs = logs_of([-31_536_000_000, -5000, 5, 1000])
    for low, passing in ((-40_000_000_000, {0, 1, 2, 3}), (-5000, {1, 2, 3}), (-1, {2, 3}), (0, {2, 3}), (6, {3})):
        seen = planned([GreaterThanOrEqual(("timestamp",), time_of(low))], logs)
        assert {(0, offset) for offset in passing} <= seen, low
    assert planned([GreaterThan(("timestamp",), time_of(6)), GreaterThan(("timestamp",), time_of(-6))], logs) == {
        (0, 3)
    }


def test_a_time_reads_nothing_below_starting_offsets() -> None:
    """Though older records of that time are there."""
    logs = logs_of([1000, 2000, 3000, 4000, 5000, 6000])
    since = [GreaterThanOrEqual(("timestamp",), time_of(2000))]
    bounds = {"startingOffsets": '{"t0": {"0": 3}}', "endingOffsets": '{"t0": {"0": 5}}'}
    assert planned(since, logs, **bounds) == {(0, 3), (0, 4)}
    assert planned(since, logs, startingOffsets='{"t0": {"0": 6}}') == set()
    assert planned([GreaterThanOrEqual(("timestamp",), time_of(6000))], logs, **bounds) == set()


def test_what_is_not_decided_yet_is_read_whatever_its_time_is() -> None:
    """An end that was set above the last stable offset: brokers search below it."""
    logs = logs_of([1000, 2000])
    bounds = {"endingOffsets": '{"t0": {"0": 4}}'}
    assert planned([GreaterThanOrEqual(("timestamp",), time_of(9000))], logs, **bounds) == {(0, 2), (0, 3)}


numbers = st.one_of(st.integers(-3, 8), st.sampled_from([-(2**63), 2**31 - 1, 2**63 - 2, 2**63 - 1]))
micros = st.one_of(st.integers(-3, 8), st.integers(-4000, 9000), st.sampled_from([-(10**15), 10**15]))
filters = st.lists(
    st.one_of(
        st.builds(lambda kind, value: kind(("partition",), value), st.sampled_from(COMPARISONS), numbers),
        st.builds(lambda kind, value: kind(("offset",), value), st.sampled_from(COMPARISONS), numbers),
        st.builds(
            lambda kind, value: kind(("timestamp",), EPOCH + timedelta(microseconds=value)),
            st.sampled_from(COMPARISONS), micros,
        ),
        st.builds(lambda values: In(("partition",), tuple(values)), st.lists(st.none() | numbers, max_size=3)),
        st.builds(lambda values: In(("offset",), tuple(values)), st.lists(numbers, max_size=3)),
        st.sampled_from(["partition", "offset", "timestamp"]).map(lambda column: EqualNullSafe((column,), None)),
        st.sampled_from([None, "t0", "t1"]).map(lambda name: EqualNullSafe(("topic",), name)),
        st.lists(st.sampled_from([None, "t0", "t1"])).map(lambda names: In(("topic",), tuple(names))),
    ),
    max_size=4,
)  # fmt: skip


def passes(one: Any, row: dict[str, Any]) -> bool:
    """As Spark has it."""
    value = row[one.attribute[0]]
    match type(one).__name__:
        case "In":
            return value in one.value
        case "EqualTo" | "EqualNullSafe":
            return bool(value == one.value)
        case "GreaterThan":
            return bool(value > one.value)
        case "GreaterThanOrEqual":
            return bool(value >= one.value)
        case "LessThan":
            return bool(value < one.value)
        case "LessThanOrEqual":
            return bool(value <= one.value)
    raise AssertionError(one)


@given(filters, st.lists(st.lists(st.integers(-4, 9), max_size=6), min_size=1, max_size=3))
def test_a_row_that_passes_is_read(filters: list[Any], times: list[list[int]]) -> None:
    """Of logs whose times go up and down, also before 1970."""
    rows = {
        (partition, offset): {"topic": "t0", "partition": partition, "offset": offset, "timestamp": time_of(ms)}
        for partition, log in enumerate(times)
        for offset, ms in enumerate(log)
    }
    passing = {place for place, row in rows.items() if all(passes(one, row) for one in filters)}
    seen = planned(filters, logs_of(*times))
    assert passing <= seen
    assert seen <= rows.keys()
