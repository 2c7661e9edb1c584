"""The PySpark query, in a process of its own: reads ``flights``, writes ``flights-enriched`` exactly once.

    python -m examples.flights.job --bootstrap HOST:PORT --checkpoint DIR ...

It says on standard output, one JSON line each, what the sink does. ``--stop-at written:2`` makes it say so and stand
still when batch 2 is written and not yet committed, and ``--stop-at committed:4`` when batch 4 is committed in Kafka
and Spark has not yet noted it: the process that started it can then kill it at that very moment.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from examples.access import FleetAccess
from fleetlog.spark import SinkEvent, write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FLIGHT = (
    "carrier STRING, flight INT, origin STRING, dest STRING, scheduled STRING, tailnum STRING, "
    "dep_time INT, dep_delay INT, arr_delay INT, air_time INT, distance INT"
)
COLUMNS = ["carrier", "flight", "origin", "dest", "scheduled", "tailnum"]
COLUMNS += ["dep_delay", "arr_delay", "distance", "airline", "delay_class"]
# Three short runs on two cores: starting fast is worth more than the second compiler. The deeper stack is for regular
# expressions in Spark's own planning, which have been seen to overflow the default one.
JVM_OPTIONS = "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def enrich(records: DataFrame, airlines: DataFrame) -> DataFrame:
    """One output record per flight: airline name and delay class added. Left join: an unknown carrier stays."""
    flights = records.select("key", f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight")).select(
        "key", "flight.*"
    )
    delay_class = (
        f.when(f.col("dep_time").isNull(), "cancelled")
        .when(f.col("arr_delay").isNull(), "diverted")
        .when(f.col("arr_delay") <= 15, "on time")
        .when(f.col("arr_delay") <= 60, "late")
        .otherwise("very late")
    )
    enriched = flights.join(f.broadcast(airlines), "carrier", "left").withColumn("delay_class", delay_class)
    return enriched.select("key", f.to_json(f.struct(*COLUMNS)).alias("value"))


def say(**fields: object) -> None:
    """One line to the process that started this one."""
    print(json.dumps(fields), flush=True)


def failed_tasks(spark: SparkSession) -> int:
    """Tasks that failed in this batch's jobs so far, and were run again."""
    tracker, group = spark.sparkContext.statusTracker(), spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numFailedTasks for stage in stages if stage is not None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--command-config", type=Path, help="settings of a login, by Java's names")
    parser.add_argument("--source", default="flights")
    parser.add_argument("--target", default="flights-enriched")
    parser.add_argument("--airlines", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--sink-id", required=True)
    parser.add_argument("--batch-rows", type=int, required=True)
    parser.add_argument("--stop-at", default="")
    parser.add_argument("--no-fence", action="store_true")
    given = parser.parse_args()
    login = FleetAccess(given.bootstrap, given.command_config).spark_options()

    def on_event(event: SinkEvent) -> None:
        more = {"failed_tasks": failed_tasks(spark)} if event.stage == "written" else {}
        say(stage=event.stage, batch=event.batch_id, rows=event.rows, pid=os.getpid(), **more)
        if given.stop_at == f"{event.stage}:{event.batch_id}":
            say(stage="waiting", batch=event.batch_id)
            time.sleep(3600)

    spark = (
        SparkSession.builder.master("local[2,4]")
        .appName("flights")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", JVM_OPTIONS)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    say(stage="spark")
    airlines = spark.read.schema("carrier STRING, name STRING").csv(given.airlines, header=True)
    airlines = airlines.withColumnRenamed("name", "airline")
    records = (
        spark.readStream.format("fleetlog")
        .options(**login)
        .option("subscribe", given.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", given.batch_rows)
        .load()
    )
    query = write_stream(
        enrich(records, airlines),
        bootstrap_servers=given.bootstrap,
        topic=given.target,
        sink_id=given.sink_id,
        checkpoint_location=given.checkpoint,
        trigger={"availableNow": True},
        options={**login, "fence.enabled": str(not given.no_fence).lower()},
        on_event=on_event,
        compression_type="lz4",
    )
    say(stage="query", id=query.id)
    query.awaitTermination()
    say(stage="done")
    spark.stop()


if __name__ == "__main__":
    main()
