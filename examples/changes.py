"""Changes of a table become a compacted topic that holds the table: a key for each row, exactly once.

    python examples/changes.py --bootstrap 127.0.0.1:9092 --checkpoint checkpoints/changes

Reads ``changes``, what Debezium writes of a table (``op``, ``before``, ``after``, ``source.lsn``), and writes each row
that changed to ``customers``: its id as key and its columns as value, or no value (a tombstone) where it was deleted.
A connector that starts again repeats changes: the one with the highest position in the database's log counts, however
often and in whatever order they arrive.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from fleetlog.spark import spark_environment, write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

ROW = "id BIGINT, city STRING, points BIGINT"
CHANGE = f"op STRING, before STRUCT<{ROW}>, after STRUCT<{ROW}>, source STRUCT<lsn: BIGINT>"


def rows(records: DataFrame) -> DataFrame:
    """The query: records of changes to the newest state of each row that changed.

    Debezium's own tombstones, which follow a delete, have no value, and are left out: the delete writes one.
    """
    changes = records.select(f.from_json(f.col("value").cast("string"), CHANGE).alias("change")).select("change.*")
    changes = changes.where("source.lsn IS NOT NULL").withColumn("id", f.coalesce("after.id", "before.id"))
    newest = changes.groupBy("id").agg(f.max_by(f.struct("op", "after"), "source.lsn").alias("newest"))
    value = f.when(f.col("newest.op") != "d", f.to_json("newest.after"))
    return newest.select(f.col("id").cast("string").alias("key"), value.alias("value"))


def start(spark: SparkSession, given: argparse.Namespace) -> StreamingQuery:
    """Starts the query. It goes on where it stood when it is started with the same checkpoint and sink id.

    Output mode update, rows that changed in this batch, is there for foreachBatch only: hence ``write_stream``.
    """
    spark.conf.set("spark.sql.shuffle.partitions", 2)  # parts of the state, for good; a cluster wants as many as cores
    records = (
        spark.readStream.format("fleetlog")
        .option("kafka.bootstrap.servers", given.bootstrap)
        .option("subscribe", given.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", given.per_batch)
        .load()
    )
    return write_stream(
        rows(records),
        bootstrap_servers=given.bootstrap,
        topic=given.target,
        sink_id=given.sink_id,
        checkpoint_location=given.checkpoint,
        output_mode="update",
        trigger={"availableNow": True} if given.once else {"processingTime": "5 seconds"},
    )


def arguments(line: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--checkpoint", required=True, help="a directory that outlives the driver")
    parser.add_argument("--source", default="changes")
    parser.add_argument("--target", default="customers")
    parser.add_argument("--sink-id", default="customers-v1")
    parser.add_argument("--per-batch", type=int, default=10_000, help="records of a micro-batch at most")
    parser.add_argument("--once", action="store_true", help="end when all that is there now is read")
    return parser.parse_args(line)


def main() -> None:
    os.environ.update(spark_environment())  # a Java, and this Python for Spark's workers
    start(SparkSession.builder.appName("customers").getOrCreate(), arguments()).awaitTermination()


if __name__ == "__main__":
    main()
