"""A driver, in the Python of an environment: ``python -m tests.spark.versions.driver '{"bootstrap": ..., ...}'``.

It runs a query from one topic into others for each way that the package offers there, each started from a thread of its
own, until it is killed; or with "once" to the end of what the topic has, and then the batch jobs, if there is a target
for them. With "hold" no record comes through a query: its first batch is planned, and stays under way. Standard output
has a JSON line for each event.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

STARTS = 8
TOO_BUSY = 7
"""Exit status: no query could be started, because no Python worker did within Spark's ten seconds."""
LIMITED = 1500
"""Rows of a micro-batch where a source may limit it."""


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def end_with_parent() -> None:
    """Wait for the end of standard input, and end."""
    sys.stdin.read()
    os._exit(9)


def session(given: dict[str, Any]) -> Any:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[4]")
        .appName("versions")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(Path(given["directory"]) / "warehouse"))
        .config("spark.sql.session.timeZone", "America/New_York")
    )
    if given["packages"]:
        builder = builder.config("spark.jars.packages", given["packages"])
    return builder.getOrCreate()


def rows(spark: Any, given: dict[str, Any]) -> Any:
    """What each query writes: the record as it was read, and in its value where it stood."""
    from fleetlog.spark import versions

    reader = spark.readStream.format(given["source"]).option("kafka.bootstrap.servers", given["bootstrap"])
    reader = reader.option("subscribe", given["topic"]).option("startingOffsets", given["starting"])
    reader = reader.option("includeHeaders", "true")
    if given["source"] == "kafka":
        reader = reader.option("kafka.isolation.level", "read_committed")
    if given["source"] == "kafka" or versions.VERSION >= versions.READ_LIMITS:
        reader = reader.option("maxOffsetsPerTrigger", LIMITED)
    records = reader.load()
    if given["hold"]:
        records = records.where(held()("key"))
    return records.selectExpr(
        "key", "concat_ws(':', string(value), partition, offset) as value", "headers", "timestamp"
    )


def held() -> Any:
    """A function of a column that does not return before the driver is killed."""
    from pyspark.sql.functions import udf

    return udf(lambda _: time.sleep(600) or True, "boolean")


def start(spark: Any, given: dict[str, Any], way: str) -> Any:
    from fleetlog.spark import write_stream

    options = {
        "tasks": {"sink.repartition": "key"},
        "small": {"sink.small.batch.rows": str(2 * LIMITED)},
        "driver": {"sink.mode": "driver"},
    }
    return write_stream(
        rows(spark, given),
        bootstrap_servers=given["bootstrap"],
        sink_id=given["targets"][way],
        topic=given["targets"][way],
        checkpoint_location=str(Path(given["directory"]) / way),
        trigger={"availableNow": True} if given["once"] else {"processingTime": "0 seconds"},
        by_format=way == "format",
        query_name=given["targets"][way] if way == "format" else None,  # Spark makes it one of the format's options
        options=options.get(way, {}),
    )


def too_slow(problem: Any) -> bool:
    """Whether it is that a Python worker took more than the ten seconds that Spark gives it to start."""
    return "connect back" in str(problem)


def in_time(spark: Any, given: dict[str, Any], way: str) -> Any:
    """A query that runs, or has run to its end.

    Where a source cannot be asked how far a batch goes, AvailableNow is one batch: after a crash the one that was under
    way, and with the next run the rest.
    """
    from fleetlog.spark import versions

    twice = given["once"] and given["source"] == "fleetlog" and versions.VERSION < versions.READ_LIMITS
    for _ in range(2 if twice else 1):
        query = started(spark, given, way)
        if query.exception() is not None:
            break
    return query


def started(spark: Any, given: dict[str, Any], way: str) -> Any:
    """A query that runs, or ended, started from a thread. One whose worker was too slow is started again."""
    for _ in range(STARTS):
        with ThreadPoolExecutor(1) as threads:  # a new one, which ends before the query: Spark knows no session there
            query = threads.submit(start, spark, given, way).result()
        while query.isActive and (given["once"] or query.lastProgress is None):
            if given["hold"] and (Path(given["directory"]) / way / "offsets" / "0").exists():
                break
            time.sleep(0.05)
        if not too_slow(query.exception()):
            return query
    sys.exit(TOO_BUSY)


def batch_jobs(spark: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Reads a target by the format, and writes it into another topic, twice with one token."""
    from pyspark.sql import functions as f

    from fleetlog.spark import kafka_partition

    read = spark.read.format("fleetlog").option("kafka.bootstrap.servers", given["bootstrap"])
    found = read.option("subscribe", given["targets"]["tasks"]).load()
    counted = found.agg(
        f.count("*"), f.countDistinct("value"), f.sum((kafka_partition("key", 3) == f.col("partition")).cast("int"))
    ).first()
    for _ in range(2):
        writer = found.select("key", "value", "timestamp").write.format("fleetlog").mode("append")
        writer = writer.option("kafka.bootstrap.servers", given["bootstrap"]).option("topic", given["targets"]["job"])
        writer.option("sinkId", given["targets"]["job"]).option("batchToken", "once").save()
    return {"read": list(counted), "narrow": found.where("partition = 1").count()}


def refusals(given: dict[str, Any]) -> dict[str, str]:
    """What this PySpark lacks says so in one sentence."""
    from fleetlog.spark import versions
    from fleetlog.spark.client.failures import OptionError

    said = {}
    try:
        versions.require_data_sources()
        from fleetlog.spark.source.options import ReadOptions

        options = {"kafka.bootstrap.servers": given["bootstrap"], "subscribe": "t", "maxOffsetsPerTrigger": "1"}
        ReadOptions.parse(options, streaming=True)
    except OptionError as problem:
        said["limits" if versions.VERSION >= versions.DATA_SOURCES else "format"] = str(problem)
    return said


def main() -> None:
    from fleetlog.spark import spark_environment

    given = json.loads(sys.argv[1])
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.environ.update(spark_environment())
    spark = session(given)
    spark.sparkContext.setLogLevel("ERROR")
    say("ready", spark=spark.version)
    running = {}
    for way in given["ways"]:  # one after the other: a busy machine keeps none of the ten seconds otherwise
        running[way] = in_time(spark, given, way)
    say("started")
    while any(query.isActive for query in running.values()):
        for way, query in running.items():
            if too_slow(query.exception()):
                running[way] = in_time(spark, given, way)
            elif not query.isActive:
                query.awaitTermination()  # raises what it ended with
        time.sleep(0.1)
    for query in running.values():
        query.awaitTermination()
    found = {}
    while "job" in given["targets"] and not found:
        try:
            found = batch_jobs(spark, given)
        except Exception as problem:
            if not too_slow(problem):
                raise
    say("done", refusals=refusals(given), **found)
    spark.stop()


if __name__ == "__main__":
    main()
