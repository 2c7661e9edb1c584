"""A Spark driver in a process of its own: commands on standard input, events on standard output, as JSON lines.

    {"op": "start", "id": 1, "way": "format", "source": ..., "target": ..., ...}   starts a query
    {"op": "go", "id": 1}                                                          a query that stands still goes on

A query of "foreachBatch" may stand still at a stage ("stop_at": "written:2"), so that the test that started it can do
something at that very moment. Standard input's end ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.spark.matrix.sessions import CLUSTER_CORES

STDOUT = os.fdopen(os.dup(1), "w", buffering=1)
LOCK = threading.Lock()


def say(**fields: object) -> None:
    with LOCK:
        STDOUT.write(json.dumps(fields) + "\n")


def session(master: str, directory: Path) -> Any:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(master)
        .appName("matrix")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1500m")
        .config("spark.driver.extraJavaOptions", "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        # Several Arrow batches to a task, so that a task can be met in the middle of its writing.
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "25")
    )
    if master.startswith("spark://"):
        settings = {
            "spark.executor.memory": "512m",
            "spark.executor.cores": str(CLUSTER_CORES),
            "spark.executor.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
            "spark.speculation": "true",
            "spark.speculation.interval": "200ms",
            "spark.speculation.minTaskRuntime": "2s",
            "spark.speculation.multiplier": "1.5",
            "spark.speculation.quantile": "0.3",
            "spark.stage.maxConsecutiveAttempts": "8",
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("WARN")
    found.range(0, 3, 1, 3).mapInArrow(lambda batches: batches, "id bigint").collect()  # Python workers, warm
    return found


def failing(flag: str, times: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A step of the query that passes all rows on and then fails, in the task of partition 1, that many times."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from batches
        if context is not None and context.partitionId() == 1:
            for number in range(times):
                path = Path(f"{flag}-{number}")
                if not path.exists():
                    path.touch()
                    raise RuntimeError(f"this task fails on purpose, time {number + 1}")

    return run


def rows(spark: Any, given: dict[str, Any]) -> Any:
    """The query: which row it is, which task wrote it as which row, and which run of the driver that was."""
    from pyspark.sql import functions as f

    loaded = (
        spark.readStream.format("fleetlog")
        .option("kafka.bootstrap.servers", given["bootstrap"])
        .option("subscribe", given["source"])
        .option("startingOffsets", given.get("starting", "earliest"))
        .option("maxOffsetsPerTrigger", given["per_batch"])
        .load()
        .select("key", "partition", "offset")
    )
    shape = given["shape"]
    if shape == "empty":
        loaded = loaded.where(f"offset >= {given['from_offset']}")
    if shape == "failing":
        loaded = loaded.mapInArrow(failing(given["flag"], given["times"]), loaded.schema)
    if shape == "shuffled":
        loaded = loaded.repartition(4, "key")
    key = {"random": f.expr("uuid()"), "skewed": f.lit("the same")}.get(shape, f.col("key").cast("string"))
    parts = ["partition", "offset", f.spark_partition_id(), f.lit(given["run"])]
    parts += [f.expr("uuid()") if shape == "random" else f.lit("x" * given["padding"])]
    return loaded.select(key.alias("key"), f.concat_ws(":", *parts).alias("value"))


class Queries:
    """What runs here."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._going: dict[int, threading.Event] = {}

    def start(self, given: dict[str, Any]) -> None:
        number = given["id"]
        self._going[number] = threading.Event()
        try:  # here, in the main thread: Spark finds Python data sources by the thread's active session
            for _ in range(5):
                query = self._begin(number, given)
                if not self._too_slow(query):
                    break
            say(event="started", id=number, query=str(query.id))
        except Exception as problem:
            self._end(number, problem)
            return
        threading.Thread(target=self._wait, args=(number, query), daemon=True).start()

    @staticmethod
    def _too_slow(query: Any) -> bool:
        """Waits until the query reads. Spark gives the source's process 10 s to start, too few on a busy machine."""
        deadline = time.monotonic() + 20
        while query.isActive and "Processing" not in query.status["message"] and time.monotonic() < deadline:
            time.sleep(0.05)
        return not query.isActive and "failed to connect back" in str(query.exception())

    def go(self, given: dict[str, Any]) -> None:
        self._going[given["id"]].set()

    def _wait(self, number: int, query: Any) -> None:
        try:
            query.awaitTermination()
        except Exception as problem:
            self._end(number, problem)
        else:
            say(event="ended", id=number, error="")

    @staticmethod
    def _end(number: int, problem: Exception) -> None:
        say(event="ended", id=number, error=f"{type(problem).__name__}: {problem}"[:6000])

    def _begin(self, number: int, given: dict[str, Any]) -> Any:
        df = rows(self._spark, given)
        options = {"kafka.bootstrap.servers": given["bootstrap"], "topic": given["target"], **given["options"]}
        options |= {"sinkId": given["sink_id"], "checkpointLocation": given["checkpoint"]}
        if given["way"] == "format":
            writer = df.writeStream.format("fleetlog").options(**options).trigger(availableNow=True)
            return writer.start()
        from fleetlog.spark import write_stream

        def on_event(event: Any) -> None:
            say(event="stage", id=number, stage=event.stage, batch=event.batch_id, rows=event.rows)
            if given.get("stop_at") == f"{event.stage}:{event.batch_id}":
                say(event="waiting", id=number, batch=event.batch_id)
                self._going[number].wait(600)

        return write_stream(
            df,
            bootstrap_servers=given["bootstrap"],
            sink_id=given["sink_id"],
            checkpoint_location=given["checkpoint"],
            topic=given["target"],
            trigger={"availableNow": True},
            options=given["options"],
            on_event=on_event,
        )


def main() -> None:
    began = time.monotonic()
    spark = session(sys.argv[1], Path(sys.argv[2]))
    say(event="ready", seconds=round(time.monotonic() - began, 1))
    queries = Queries(spark)
    for line in sys.stdin:
        given = json.loads(line)
        {"start": queries.start, "go": queries.go}[given["op"]](given)
    os._exit(0)


if __name__ == "__main__":
    main()
