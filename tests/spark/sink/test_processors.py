"""A stateful processor written in Python (transformWithState) between source and sink; a batch is replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetlog.spark import Fence
from tests.spark.conftest import Cluster
from tests.spark.sink.job import FOREACH, Job, Read

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""Spark's state store for such processors: its other one is refused."""


def counting() -> Any:
    """A processor that gives each key's number of rows so far; defined inside, so that it is pickled by value."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Counting(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", "n BIGINT")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N803
            before = self._count.get()[0] if self._count.exists() else 0
            count = before + sum(1 for _ in rows)
            self._count.update((count,))
            yield Row(value=f"{key[0]}={count}")

        def close(self) -> None:
            pass

    return Counting()


def test_a_processors_state_counts_each_row_once(
    cluster: Cluster, spark: Any, read_stream: Read, tmp_path: Path
) -> None:
    job = Job(cluster, read_stream, tmp_path)
    name = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(name, ROCKSDB)
    try:
        words = job.rows().selectExpr("string(value) as word")
        counts = words.groupBy("word").transformWithState(counting(), "value STRING", "Append", "None")
        job.send("a", "a", "b")
        query = job.run(counts, FOREACH)
        job.forget_commit(0)
        job.send("a", "c")
        job.run(counts, FOREACH)
    finally:
        spark.conf.unset(name)
    assert job.values(4) == ["a=2", "a=3", "b=1", "c=1"]
    assert job.fence() == Fence(query, 1)
