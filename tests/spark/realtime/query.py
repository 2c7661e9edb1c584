"""The query as a process of its own, to be killed: Spark's Kafka source and sink in real-time mode.

``python -m tests.spark.realtime.query '{"bootstrap": ..., "source": ..., ...}'`` says in JSON when the query has
started, the end of each batch, and what it failed with; it is started again then, as a job's supervisor would. It
ends with its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fleetlog.spark import with_source
from fleetlog.spark.java import spark_environment
from tests.spark.realtime.figures import SPLIT

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-Xss8m -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.deploy.maxExecutorRetries": "-1",  # else the application ends after its tenth killed executor
    "spark.sql.shuffle.partitions": "2",
}
PAUSE_S = 0.2
"""Before a failed query is started again."""


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def spark_home(directory: Path) -> Path:
    """PySpark's own one by links: executors have their directories in ``work`` below it, not in the environment's."""
    import pyspark

    home = directory / "spark"
    home.mkdir(parents=True, exist_ok=True)
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work" and not (home / entry.name).is_symlink():
            (home / entry.name).symlink_to(entry)
    return home


def session(given: dict[str, Any]) -> Any:
    """On a cluster of its own: executors are processes, started again when they end."""
    os.environ.update(spark_environment())
    os.environ["SPARK_HOME"] = str(spark_home(Path(given["directory"])))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(given["master"]).appName("realtime").config("spark.jars", given["jars"])
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start(spark: Any, given: dict[str, Any]) -> Any:
    from pyspark.sql import functions as f

    servers = {"kafka.bootstrap.servers": given["bootstrap"]}
    split = f.expr(f"if(pmod(crc32(key), {SPLIT}) = 0, array('a', 'b'), array('a'))")
    rows = (
        spark.readStream.format("kafka")
        .options(**servers, **given["reading"])
        .options(subscribe=given["source"], startingOffsets="earliest")
        .load()
        .where("substring(cast(value as string), 1, 1) <> '#'")
        .select("*", f.posexplode(split))
        .withColumn("value", f.concat(f.col("value"), f.lit(b":"), f.col("pos").cast("string").cast("binary")))
    )
    return (
        with_source(rows, "realtime", ordinal=f.col("pos"))
        .writeStream.format("kafka")
        .outputMode("update")
        .options(**servers, **given["writing"])
        .options(topic=given["target"], checkpointLocation=given["checkpoint"])
        .trigger(realTime=f"{given['batch']} seconds")
        .start()
    )


def follow(query: Any) -> None:
    """Say the end of each batch, until the query ends; raises what it ends with."""
    said = -1
    while not query.awaitTermination(1):
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != said:
            said = progress["batchId"]
            say(batch=said, rows=progress["numInputRows"])


def main(given: dict[str, Any]) -> None:
    """Run until killed, or until standard input ends."""
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    spark = session(given)
    from pyspark.errors import PySparkException

    while True:
        try:
            query = start(spark, given)
            say(running=str(query.id))
            follow(query)
        except PySparkException as problem:
            print(problem, file=sys.stderr, flush=True)
            say(failed=str(problem)[:500])
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
