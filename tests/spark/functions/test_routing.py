"""Dead letters, repartitioning and figures, in real Spark on three brokers."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from fleetlog.spark import Fence, OptionError, SinkListener, SinkProgress, repartition_by_key, split_bad
from fleetlog.spark.sink.collector import Collector
from tests.spark.conftest import Cluster
from tests.spark.sink.job import FOREACH, FORMAT, Job, Read, committed, replicated

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side


@pytest.fixture
def job(cluster: Cluster, read_stream: Read, tmp_path: Path) -> Job:
    return Job(cluster, read_stream, tmp_path)


@pytest.mark.parametrize("way", [FORMAT, FOREACH])
def test_dead_letters_go_with_their_batch(job: Job, way: str) -> None:
    """One transaction for both topics: a failed batch leaves neither rows nor dead letters."""
    dead = replicated(job.cluster)
    job.send('{"n": 1}', "broken", '{"n": 3}', "{}")
    rows = job._read_stream(subscribe=job.source, includeHeaders="true")
    parsed = rows.withColumn("n", f.get_json_object(f.col("value").cast("string"), "$.n"))
    parsed = parsed.select(
        "key", f.col("n").alias("value"), "headers", f.lit(None).cast("int").alias("partition"),
        f.col("value").alias("raw"),
    )  # fmt: skip
    split = split_bad(
        parsed, f.col("value").isNull(), topic=job.target, dead_letters=dead, original="raw", reason=f.lit("no n")
    )
    good, job.target = job.target, ""  # the rows' own column says where to
    job.run(split, way)
    found = committed(job.cluster, dead, 2)
    assert found == sorted(["broken", "{}"])
    assert committed(job.cluster, good, 2) == ["1", "3"]
    for message in job.cluster.read(dead):
        assert message.headers() == [("error", b"no n")]
        assert message.key() == message.value()


def test_rows_go_to_the_task_of_their_partition(job: Job, spark: Any) -> None:
    frame = spark.range(0, 300, 1, 4).selectExpr(
        "case when id % 10 <> 0 then concat('key ', id) end as key", "concat('v', id) as value"
    )
    tasks = repartition_by_key(frame, 3).rdd.glom().collect()
    assert len(tasks) == 3
    job.cluster.send(job.target, [{"key": row.key, "value": row.value} for task in tasks for row in task if row.key],
                     partitioner="murmur2_random")  # fmt: skip
    place = {message.value().decode(): message.partition() for message in job.cluster.read(job.target)}
    assert len(place) == 270
    for number, rows in enumerate(tasks):
        assert {place[row.value] for row in rows if row.key} == {number}
    with pytest.raises(OptionError, match="not 0"):
        repartition_by_key(frame, 0)


def test_option_repartition_and_the_listener(job: Job, spark: Any) -> None:
    told: list[SinkProgress] = []
    done = threading.Event()

    def tell(progress: SinkProgress) -> None:
        told.append(progress)
        done.set()

    listener = SinkListener(tell)
    spark.streams.addListener(listener)
    try:
        job.send(*(f"v{n}" for n in range(60)))
        query = job.run(way=FOREACH, sink__repartition="key")
        assert len(job.values(60)) == 60
        assert done.wait(30)
    finally:
        spark.streams.removeListener(listener)
    (one,) = [progress for progress in told if progress.query_id == query and progress.figures is not None]
    figures = one.figures
    assert figures is not None
    assert (figures.stage, figures.rows, figures.tasks) == ("committed", 60, 3)
    assert figures.bytes > 120
    assert sum(one.lag.values()) == 0
    # One marker for each task and partition it could have written to: every row's partition has rows of one task only.
    per_partition = Counter(message.partition() for message in job.cluster.read(job.target))
    assert len(per_partition) == 3
    assert json.loads(one.progress.json)["batchId"] == 0


@pytest.mark.parametrize("partitions", [None, 1])
def test_small_batches_need_no_worker(job: Job, partitions: int | None) -> None:
    """Small, large, small: with either writer, each row is there once, and the fence moves on."""
    query = ""
    for count, batch in ((5, 0), (500, 1), (5, 2), (5, 3)):
        job.send(*(f"v{batch}.{n}" for n in range(count)))
        rows = job._read_stream(subscribe=job.source).select("key", "value")
        query = job.run(rows if partitions is None else rows.coalesce(1), FOREACH, sink__small__batch__rows=100)
    assert job.fence() == Fence(query, 3)
    assert job.values(515) == sorted(
        f"v{b}.{n}" for count, b in ((5, 0), (500, 1), (5, 2), (5, 3)) for n in range(count)
    )
    assert max(job.written().values()) == 1


def test_a_small_batch_may_have_no_rows(job: Job) -> None:
    """Its member was asked for before that was known, and counts for nothing."""
    query = ""
    for batch, wanted in enumerate(("none", "v1", "none", "v3")):
        job.send(f"v{batch}")
        rows = job._read_stream(subscribe=job.source).select("key", "value").coalesce(1)
        query = job.run(rows.where(f"string(value) = '{wanted}'"), FOREACH, sink__small__batch__rows=100)
        assert job.fence() == Fence(query, batch)
    assert job.values(2) == ["v1", "v3"]


COLUMNS = (
    "cast(concat('k', id) as binary) as key",
    "if(id % 3 = 0, null, concat('v', id)) as value",
    "cast(id % 2 as int) as partition",
    "if(id % 2 = 0, null, array(named_struct('key', 'h', 'value', cast(string(id) as binary)))) as headers",
    "timestamp_millis(1700000000000 + id) as timestamp",
)


@pytest.mark.parametrize("large", ["false", "true"])
@pytest.mark.parametrize(("per_batch", "parts"), [("10000", 1), ("50", 1), ("10000", 3)])
def test_rows_are_collected_alike_in_every_way(spark: Any, large: str, per_batch: str, parts: int) -> None:
    collector = Collector(100)
    settings = {"useLargeVarTypes": large, "maxRecordsPerBatch": per_batch}
    try:
        for name, value in settings.items():
            spark.conf.set(f"spark.sql.execution.arrow.{name}", value)
        for count in (100, 101, 25_000, 0, 7):
            frame = spark.range(0, count, 1, parts).selectExpr(*COLUMNS)
            found = collector.collect(frame)
            if count > 100:
                assert found is None
                continue
            expected = frame.toArrow().sort_by("timestamp")
            table = pa.Table.from_batches(found, expected.schema if not found else None)
            assert table.cast(expected.schema).sort_by("timestamp").equals(expected)
    finally:
        for name in settings:
            spark.conf.unset(f"spark.sql.execution.arrow.{name}")


def test_a_job_that_fails_while_rows_are_collected_is_reported(spark: Any) -> None:
    frame = spark.range(0, 5, 1, 1).selectExpr("raise_error('this row is broken') as value")
    with pytest.raises(Exception, match="this row is broken"):
        Collector(100).collect(frame)
