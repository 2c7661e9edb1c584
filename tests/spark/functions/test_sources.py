"""The header that makes an at-least-once writer exact: rows of real Spark, written twice by a stock producer."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from fleetlog.spark import OptionError, with_source
from tests.spark.conftest import Cluster, run_to_end
from tests.spark.sink.job import Read

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side

PARTITIONS = 3
COLUMNS = "key string, value string, topic string, partition int, offset long"


@pytest.fixture
def once(cluster: Cluster) -> str:
    topic = f"once-{uuid.uuid4().hex[:10]}"
    new = NewTopic(topic, PARTITIONS, -1, config={"fleetlog.dedup": "source"})
    cluster.create(new)
    return topic


def test_a_restarted_query_writes_each_record_once(
    cluster: Cluster, read_stream: Read, once: str, tmp_path: Path
) -> None:
    source = cluster.topic()
    cluster.send(source, [{"value": b"%d" % n, "key": b"k%d" % (n % 5) if n % 2 else None} for n in range(40)])
    two = read_stream(subscribe=source).select("*", f.posexplode(f.array(f.lit("a"), f.lit("b"))))
    rows = two.withColumn("value", f.concat(f.col("value").cast("string"), f.col("col")).cast("binary"))
    written = with_source(rows.drop("col"), "twice", ordinal=f.col("pos"), partitions=PARTITIONS)
    assert set(written.columns) == {"key", "value", "timestamp", "timestampType", "pos", "partition", "headers"}

    def write(failing: bool) -> Any:
        def batch(df: DataFrame, _: int) -> None:
            cluster.send(once, [_message(row) for row in df.collect()])
            if failing:
                raise RuntimeError("the driver dies after it has written")

        query = written.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return query.trigger(availableNow=True).start

    with pytest.raises(StreamingQueryException, match="the driver dies"):
        run_to_end(write(failing=True))
    assert len(cluster.read(once)) == 80
    run_to_end(write(failing=False))
    assert cluster.values(once) == sorted(f"{n}{letter}" for n in range(40) for letter in "ab")


def _message(row: Any) -> dict[str, Any]:
    message = {"value": bytes(row.value), "headers": [(one.key, bytes(one.value)) for one in row.headers]}
    if row.key is None:
        return message | {"partition": row.partition}
    assert row.partition is None
    return message | {"key": bytes(row.key)}


def test_headers_of_the_source_stay_but_its_own(spark: Any) -> None:
    columns = f"{COLUMNS}, headers array<struct<key:string,value:binary>>"
    kept = [("other", bytearray(b"1")), ("fleetlog.source", bytearray(b"x:1:0"))]
    df = spark.createDataFrame([("k", "v", "t", 7, 9, kept), ("k", "v", "t", 7, 10, None)], columns)
    found = [[(one.key, bytes(one.value)) for one in row.headers] for row in with_source(df, "q").collect()]
    assert found == [
        [("other", b"1"), ("fleetlog.source", b"q/t-7:9:0")],
        [("fleetlog.source", b"q/t-7:10:0")],
    ]


def test_what_can_not_be_exact_is_refused(spark: Any) -> None:
    df = spark.createDataFrame([(None, "v", "t", 0, 1)], COLUMNS)
    with pytest.raises(OptionError, match="needs the columns offset"):
        with_source(df.drop("offset"), "q")
    for name in ("", "n" * 101):
        with pytest.raises(OptionError, match="a source's name has 1 to 100 bytes"):
            with_source(df, name)
    with pytest.raises(OptionError, match="there is no column key"):
        with_source(df.drop("key"), "q")
    with pytest.raises(OptionError, match="at least one partition"):
        with_source(df, "q", partitions=0)
    with pytest.raises(OptionError, match="an ordinal is from 0"):
        with_source(df, "q", ordinal=-1)
    with pytest.raises(Exception, match="a row without a key has no partition"):
        with_source(df, "q").collect()
