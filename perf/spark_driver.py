"""The Spark process of ``perf spark``: one session, and one JSON line for each command that it carries out.

Every way to write and to read runs in the same session, so the JVM's state, the rows and the machine are the same for
all. The source of rows is Spark's range and a slice of a fixed text: cheap, and as compressible as JSON is.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fleetlog.spark.client.producer import MemberProducer
from fleetlog.spark.client.write_settings import TaskMember, WriteSettings
from fleetlog.spark.sink.executor_mode import ExecutorMode
from fleetlog.spark.sink.options import WriteOptions
from fleetlog.spark.sink.writes import Write
from perf.processes import ProcessTree

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TASKS = 2
TEXT_BYTES = 48 << 10
TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": "900000", "kafka.buffer.memory": str(64 << 20)}
"""What makes Spark's own sink fast (the JVM's producer, with acks=all and idempotence, its defaults)."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "3g",
    "spark.driver.extraJavaOptions": "-Xss8m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
}

Command = dict[str, Any]


def session(jars: str, more: dict[str, str]) -> SparkSession:
    """``local[2]`` with the connector's jars; ``more`` settings win."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{TASKS}]").appName("perf")
    for name, value in {**SETTINGS, **({"spark.jars": jars} if jars else {}), **more}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def text() -> bytes:
    """Words and numbers, the same in every run."""
    chance = random.Random(7)
    words = [f'"{chance.choice("abcdefgh")}{n}":{chance.randrange(10**9)},' for n in range(TEXT_BYTES // 8)]
    return "".join(words).encode()[:TEXT_BYTES]


class Work:
    """The commands."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._text = text().hex()
        self._tree = ProcessTree(os.getpid())
        self._running: dict[str, tuple[ExecutorMode, int]] = {}

    def rows(self, count: int, size: int, tasks: int = TASKS) -> DataFrame:
        """Keys of up to 8 bytes, values of ``size`` bytes."""
        places = TEXT_BYTES - size
        return self._spark.range(0, count, 1, tasks).selectExpr(
            "cast(cast(id as string) as binary) as key",
            f"substring(X'{self._text}', cast(pmod(id * 7919, {places}) as int) + 1, {size}) as value",
        )

    def write(self, given: Command) -> None:
        """A batch job: all rows into a topic."""
        rows = self.rows(given["rows"], given["size"], given.get("tasks", TASKS))
        getattr(self, f"_{given['kind']}")(rows, given)

    def _nothing(self, rows: DataFrame, _: Command) -> None:
        rows.write.format("noop").mode("overwrite").save()

    def _counted(self, rows: DataFrame, _: Command) -> None:
        def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            yield pa.record_batch([pa.array([sum(batch.num_rows for batch in batches)])], ["n"])

        rows.mapInArrow(count, "n long").collect()

    def _spark_sink(self, rows: DataFrame, given: Command) -> None:
        options = {"kafka.bootstrap.servers": given["bootstrap"], "topic": given["topic"], **given["options"]}
        rows.write.format("kafka").options(**options).save()

    def _exactly_once(self, rows: DataFrame, given: Command) -> None:
        """A batch of a query that runs: its connections are there, as those of tasks are."""
        engine, number = self._running.pop(given["bootstrap"], (None, 0))
        if engine is None:
            engine = ExecutorMode(self._options(given), lambda *_: None)
        engine._options = self._options(given, engine._options.sink_id)
        engine.prefetch()
        sink = engine._options
        engine.write(rows, Write("perf", sink.sink_id, "perf", "perf", number, sink.rows.topic, rows))
        self._running[given["bootstrap"]] = engine, number + 1

    def _exactly_once_format(self, rows: DataFrame, given: Command) -> None:
        options = {"kafka.bootstrap.servers": given["bootstrap"], "topic": given["topic"], **given["options"]}
        rows.write.format("fleetlog").options(sinkId=f"perf-{uuid.uuid4().hex}", **options).mode("append").save()

    def _at_least_once(self, rows: DataFrame, given: Command) -> None:
        options = self._options(given)
        settings, how = options.settings, options.rows

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            yield pa.record_batch([pa.array([_plain(settings, how, batches)])], ["n"])

        rows.mapInArrow(run, "n long").collect()

    @staticmethod
    def _options(given: Command, sink_id: str = "") -> WriteOptions:
        options = {"kafka.bootstrap.servers": given["bootstrap"], "topic": given["topic"], **given["options"]}
        return WriteOptions.parse({**options, "sinkId": sink_id or f"perf-{uuid.uuid4().hex}"})

    def read(self, given: Command) -> None:
        """A whole topic, every column, into nothing."""
        options = {"kafka.bootstrap.servers": given["bootstrap"], "subscribe": given["topic"], **given["options"]}
        reader = self._spark.read.format(given["format"]).option("startingOffsets", "earliest").options(**options)
        reader.load().write.format("noop").mode("overwrite").save()

    def small_batches(self, given: Command) -> dict[str, Any]:
        """Micro-batches of ten rows, one after the other: the median of Spark's figure for a whole trigger, in ms.

        Kinds "collect" and "nothing" take the rows to Python and do nothing else: what any function of foreachBatch, or
        any data source in Python, costs.
        ``phases``: the medians of all that Spark's progress says of it (``durationMs``). ``cpu_ms``: CPU of this
        process and all that it started, for each batch.
        """
        from fleetlog.spark import write_stream

        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 1)
        rows = source.load().selectExpr("cast(string(value) as binary) as key", "repeat('x', 200) as value")
        with tempfile.TemporaryDirectory(prefix="perf-spark-", ignore_cleanup_errors=True) as checkpoint:
            common = {"kafka.bootstrap.servers": given["bootstrap"], "topic": given["topic"]}
            sink = f"perf-{uuid.uuid4().hex}"
            if given["kind"] == "foreach":
                query = write_stream(
                    rows, bootstrap_servers=given["bootstrap"], topic=given["topic"], sink_id=sink,
                    checkpoint_location=checkpoint, options=given["options"],
                )  # fmt: skip
            elif given["kind"] == "collect":
                writer = rows.writeStream.option("checkpointLocation", checkpoint)
                query = writer.foreachBatch(_collect).start()
            else:
                if given["kind"] == "nothing":
                    self._spark.dataSource.register(_nothing())
                options = {**common, "checkpointLocation": checkpoint, **given["options"]}
                options |= {"sinkId": sink} if given["kind"] == "fleetlog" else {}
                query = rows.writeStream.format(given["kind"]).options(**options).start()
            seen: dict[int, dict[str, int]] = {}
            used: list[tuple[int, float]] = []
            try:
                deadline = time.monotonic() + 300
                while len(seen) < given["batches"] and time.monotonic() < deadline and query.isActive:
                    for progress in query.recentProgress:
                        seen[progress.batchId] = dict(progress.durationMs)
                    if len(seen) > given["warmup"]:
                        used.append((len(seen), self._tree.cpu_s()))
                    time.sleep(0.5)  # what asks takes part of the machine, too
                failure = query.exception()
            finally:
                query.stop()
            if failure is not None or len(seen) < given["batches"]:
                raise RuntimeError(f"{len(seen)} batches only: {failure}")
        times = [took for number, took in sorted(seen.items()) if number >= given["warmup"]]
        phases = {name: statistics.median(took.get(name, 0) for took in times) for name in sorted(times[-1])}
        (first, before), (last, after) = used[0], used[-1]
        cpu_ms = (after - before) * 1000 / (last - first) if last > first else None
        return {"p50_ms": phases["triggerExecution"], "cpu_ms": cpu_ms, "batches": len(times), "phases": phases}


def _nothing() -> type[Any]:
    """A data source whose writer takes the rows, and leaves it at that."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

    class Writer(DataSourceStreamArrowWriter):
        def write(self, iterator: Any) -> Any:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Nothing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nothing"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return Writer()

    return Nothing


def _collect(rows: DataFrame, _: int) -> None:
    rows.collect()


def _plain(settings: dict[str, Any], how: WriteSettings, batches: Iterator[pa.RecordBatch]) -> int:
    """The same producer without a transaction: a task that is repeated writes its rows again."""
    from fleetlog.spark.client.connections import shared_client

    producer = MemberProducer(shared_client(settings), None, TaskMember(-1, -1), how)
    for batch in batches:
        producer.write(batch)
    producer.flush()
    return producer.rows


def main() -> None:
    """Commands from standard input until it ends."""
    given = json.loads(sys.argv[1])
    spark = session(given["jars"], given["settings"])
    work = Work(spark)
    print(json.dumps({"ready": spark.version}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        run: Callable[[Command], dict[str, Any] | None] = getattr(work, command["do"])
        started = time.monotonic()
        try:
            answer = run(command) or {}
        except Exception as problem:
            answer = {"failed": f"{type(problem).__name__}: {problem}"[:2000]}
        print(json.dumps({"seconds": time.monotonic() - started, **answer}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
