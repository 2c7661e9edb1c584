"""The query as a process of its own, to be killed: Spark's Kafka source and sink in real-time mode.

``python -m tests.spark.realtime.query '{"bootstrap": ..., "source": ..., ...}'`` says ``running`` when it has started,
and then the end of each batch.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from spark_udfs import with_source
from spark_udfs.java import spark_environment

SLOTS = 4
"""Every task of a real-time query runs all the time, so there is a slot for each partition of the source."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-Xss8m -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


def main(given: dict[str, Any]) -> None:
    """Run until killed, or until standard input ends."""
    os.environ.update(spark_environment())
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    builder = SparkSession.builder.master(f"local[{SLOTS}]").appName("realtime").config("spark.jars", given["jars"])
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    servers = {"kafka.bootstrap.servers": given["bootstrap"]}
    rows = (
        spark.readStream.format("kafka")
        .options(**servers)
        .options(subscribe=given["source"], startingOffsets="earliest")
        .load()
        .where("substring(cast(value as string), 1, 1) <> '#'")
        .select("*", f.posexplode(f.expr("if(pmod(crc32(key), 4) = 0, array('a', 'b'), array('a'))")))
        .withColumn("value", f.concat(f.col("value"), f.lit(b":"), f.col("pos").cast("string").cast("binary")))
    )
    query = (
        with_source(rows, "realtime", ordinal=f.col("pos"))
        .writeStream.format("kafka")
        .outputMode("update")
        .options(**servers)
        .options(topic=given["target"], checkpointLocation=given["checkpoint"])
        .trigger(realTime=f"{given['batch']} seconds")
        .start()
    )
    print("running", flush=True)
    said = -1
    while not query.awaitTermination(1):
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != said:
            said = progress["batchId"]
            print(json.dumps({"batch": said, "rows": progress["numInputRows"]}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
