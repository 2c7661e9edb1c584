"""Filters of a batch read as narrower ranges."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, Not

from spark_udfs.source.offsets import Range
from spark_udfs.source.pushdown import FilterPushdown


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
