"""Clicks become sessions: windows of event time, state and late data; exactly once into a topic.

    python examples/sessions.py --bootstrap 127.0.0.1:9092 --checkpoint checkpoints/sessions

Reads ``clicks``, ``{"user": ..., "at": ..., "page": ...}``, and writes one record to ``sessions`` when a session is
over: its user clicked nothing for half an hour. Clicks may arrive out of order, and up to ten minutes late; much later
ones are left out, and counted by the query's progress (``numRowsDroppedByWatermark``).
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from fleetlog.spark import spark_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

CLICK = "user STRING, at TIMESTAMP, page STRING"
GAP = "30 minutes"
LATE = "10 minutes"


def sessions(records: DataFrame) -> DataFrame:
    """The query: records of clicks to records of sessions.

    The state holds the sessions that are not over; the watermark is the reason why they leave it, and are written.
    """
    clicks = records.select(f.from_json(f.col("value").cast("string"), CLICK).alias("click")).select("click.*")
    found = (
        clicks.where("user IS NOT NULL AND at IS NOT NULL")
        .withWatermark("at", LATE)
        .groupBy("user", f.session_window("at", GAP))
        .agg(
            f.min("at").alias("first"),
            f.max("at").alias("last"),
            f.count("*").alias("clicks"),
            f.bool_or(f.col("page") == "/buy").alias("bought"),
        )
    )
    value = f.to_json(f.struct("user", "first", "last", "clicks", "bought"), {"timeZone": "UTC"})
    return found.select(f.col("user").alias("key"), value.alias("value"))


def start(spark: SparkSession, given: argparse.Namespace) -> StreamingQuery:
    """Starts the query. It goes on where it stood when it is started with the same checkpoint and sink id."""
    spark.conf.set("spark.sql.shuffle.partitions", 2)  # parts of the state, for good; a cluster wants as many as cores
    records = (
        spark.readStream.format("fleetlog")
        .option("kafka.bootstrap.servers", given.bootstrap)
        .option("subscribe", given.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", given.per_batch)
        .load()
    )
    return (
        sessions(records)
        .writeStream.format("fleetlog")
        .option("kafka.bootstrap.servers", given.bootstrap)
        .option("topic", given.target)
        .option("sinkId", given.sink_id)
        .option("checkpointLocation", given.checkpoint)
        .trigger(**({"availableNow": True} if given.once else {"processingTime": "5 seconds"}))
        .start()
    )


def arguments(line: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--checkpoint", required=True, help="a directory that outlives the driver")
    parser.add_argument("--source", default="clicks")
    parser.add_argument("--target", default="sessions")
    parser.add_argument("--sink-id", default="sessions-v1")
    parser.add_argument("--per-batch", type=int, default=10_000, help="records of a micro-batch at most")
    parser.add_argument("--once", action="store_true", help="end when all that is there now is read")
    return parser.parse_args(line)


def main() -> None:
    os.environ.update(spark_environment())  # a Java, and this Python for Spark's workers
    start(SparkSession.builder.appName("sessions").getOrCreate(), arguments()).awaitTermination()


if __name__ == "__main__":
    main()
