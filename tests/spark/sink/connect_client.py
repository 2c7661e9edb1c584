"""A client of Spark Connect, in a process of its own: gRPC, and no JVM.

    python -m tests.spark.sink.connect_client REMOTE '{"what": "stream", ...}'

``stream``: the query into the sink, to its end. ``everything``: the query, then what else there is; one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from fleetlog.spark import FenceError, kafka_partition, read_fence, reason, write_stream


def read(reader: Any, given: dict[str, Any], topic: str) -> Any:
    options = {"kafka.bootstrap.servers": given["bootstrap"], "startingOffsets": "earliest", "subscribe": topic}
    return reader.format("fleetlog").options(**options)


def run_stream(spark: SparkSession, given: dict[str, Any], by_format: bool = True) -> None:
    records = read(spark.readStream, given, given["source"]).option("maxOffsetsPerTrigger", given["per_batch"]).load()
    for attempts_left in reversed(range(8)):  # Spark gives a new Python worker ten seconds: not much on a busy machine
        try:
            write_stream(
                records.select("key", "value"),
                bootstrap_servers=given["bootstrap"],
                sink_id=given["sink_id"],
                checkpoint_location=given["checkpoint"],
                topic=given["target"],
                trigger={"availableNow": True},
                by_format=by_format,
                query_name=given.get("query_name"),
            ).awaitTermination()
            return
        except StreamingQueryException as problem:
            if not attempts_left or "worker failed to connect back" not in str(problem):
                raise


def everything(spark: SparkSession, given: dict[str, Any]) -> dict[str, Any]:
    run_stream(spark, given)
    try:
        run_stream(spark, given, by_format=False)
        refused = ""
    except FenceError as problem:
        refused = str(problem)
    try:
        read(spark.read, given, given["source"]).option("subscibe", "t").load().count()
        misspelt = None
    except Exception as problem:
        misspelt = reason(problem)
    table = read(spark.read, given, given["target"]).load()
    deadline = time.monotonic() + 200
    while table.count() < len(given["values"]) and time.monotonic() < deadline:  # markers come after the decision
        time.sleep(0.2)
    apart = table.where(kafka_partition(f.col("key"), given["partitions"]) != f.col("partition")).count()
    options = {"kafka.bootstrap.servers": given["bootstrap"], "topic": given["job_target"]}
    options |= {"sinkId": given["sink_id"] + "-job", "batchToken": "monday"}
    for _ in range(2):
        table.select("value").write.format("fleetlog").mode("append").options(**options).save()
    values = sorted(row.value.decode() for row in table.select("value").collect())
    fence = read_fence(given["bootstrap"], given["sink_id"])
    counted = None if fence is None else fence.batch_id
    return {"values": values, "apart": apart, "refused": refused, "misspelt": misspelt, "counted": counted}


def main() -> None:
    remote, given = sys.argv[1], json.loads(sys.argv[2])
    spark = SparkSession.builder.remote(remote).getOrCreate()
    if given["what"] == "stream":
        run_stream(spark, given)
    else:
        print(json.dumps(everything(spark, given)))


if __name__ == "__main__":
    main()
