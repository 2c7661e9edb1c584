"""One sink takes one write of each micro-batch: a second one is refused, a repeated one is skipped, in both modes."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import InheritableThread

from fleetlog.spark import Fence, FenceConflict, exactly_once_batch, read_fence
from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.settings import kafka_python_settings
from fleetlog.spark.sink.batch_transactions import BatchTransactions
from fleetlog.spark.sink.driver_fence import begin_with_fence, fencing_producer
from fleetlog.spark.sink.fence import Decision
from fleetlog.spark.sink.writes import Write
from tests.spark.conftest import Cluster, run_to_end
from tests.spark.processes import SparkProcess
from tests.spark.sink.job import Read, committed
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side

OWN_SINK = "a sinkId takes one write of each micro-batch"
REFUSED = pytest.raises(Exception, match=OWN_SINK)


class Pipeline:
    """A query whose function writes each micro-batch to several topics, as a user's script has it."""

    def __init__(self, cluster: Cluster, read_stream: Read, directory: Path, mode: str) -> None:
        self.cluster, self.mode = cluster, mode
        self._read_stream = read_stream
        self.source, self.first, self.second = (cluster.topic(1) for _ in range(3))
        self.sink_id = f"sink-{uuid.uuid4().hex[:10]}"
        self.checkpoint = str(directory / "checkpoint")

    def send(self, *values: str) -> None:
        self.cluster.send(self.source, [{"value": value} for value in values])

    def function(self, topic: str | None = None, sink_id: str = "", **more: str) -> Any:
        options = {
            "kafka.bootstrap.servers": self.cluster.bootstrap, "sinkId": sink_id or self.sink_id,
            "checkpointLocation": self.checkpoint, "sink.mode": self.mode, **more,
        }  # fmt: skip
        return exactly_once_batch(options if topic is None else {**options, "topic": topic})

    def run(self, function: Callable[[Any, int], None]) -> str:
        rows = self._read_stream(subscribe=self.source, maxOffsetsPerTrigger=1).select("value")
        writer = rows.writeStream.foreachBatch(function).option("checkpointLocation", self.checkpoint)
        return str(run_to_end(lambda: writer.trigger(availableNow=True).start()).id)

    def holds(self, first: list[str], second: list[str]) -> None:
        for topic, values in ((self.first, first), (self.second, second)):
            assert committed(self.cluster, topic, len(values)) == values

    def fenced(self, query: str, batch_id: int) -> None:
        """Driver mode's fence is seen a moment after the commit."""
        eventually(
            lambda: read_fence(self.cluster.bootstrap, self.sink_id), "the fence",
            good=lambda fence: fence == Fence(query, batch_id),
        )  # fmt: skip


@pytest.fixture(params=["executor", "driver"])
def pipeline(request: pytest.FixtureRequest, cluster: Cluster, read_stream: Read, tmp_path: Path) -> Pipeline:
    return Pipeline(cluster, read_stream, tmp_path, request.param)


def to(topic: str, df: Any) -> Any:
    return df.selectExpr("value", f"'{topic}' as topic")


@pytest.mark.parametrize("functions", ["one", "two"])
def test_a_second_write_is_refused_in_the_run_of_the_first_and_in_later_ones(
    pipeline: Pipeline, functions: str
) -> None:
    """By one function that is called twice, and by two functions with one sinkId."""

    def both() -> Any:
        if functions == "one":
            write = pipeline.function()
            return lambda df, number: write(to(pipeline.first, df), number) or write(to(pipeline.second, df), number)
        one, other = pipeline.function(pipeline.first), pipeline.function(pipeline.second)
        return lambda df, number: one(df, number) or other(df, number)

    pipeline.send("a")
    for _ in range(2):
        with REFUSED:
            pipeline.run(both())
        pipeline.holds(["a"], [])
    own = pipeline.function(pipeline.second, pipeline.sink_id + "-second")
    kept = pipeline.function(None if functions == "one" else pipeline.first)
    pipeline.send("b")
    pipeline.run(lambda df, number: kept(to(pipeline.first, df), number) or own(df, number))
    pipeline.holds(["a", "b"], ["a", "b"])


@pytest.mark.parametrize("with_column", [False, True])
def test_after_a_restart_the_fence_tells_which_write_set_it(pipeline: Pipeline, with_column: bool) -> None:
    """What is committed is not taken for the write that was not, though that one now comes first or alone."""

    def dies(df: Any, number: int) -> None:
        pipeline.function(None if with_column else pipeline.first)(to(pipeline.first, df), number)
        raise ValueError("a failure that is planned")

    pipeline.send("a")
    with pytest.raises(Exception, match="is planned"):
        pipeline.run(dies)
    with REFUSED:
        pipeline.run(pipeline.function(pipeline.second))
    pipeline.holds(["a"], [])
    write = pipeline.function(None if with_column else pipeline.first)
    pipeline.run(lambda df, number: write(to(pipeline.first, df), number))
    pipeline.holds(["a"], [])


def test_two_writes_whose_rows_name_topics_are_refused_in_either_order(pipeline: Pipeline) -> None:
    """Their fence is the same, so the run that makes both calls tells them apart."""

    def dies(df: Any, number: int) -> None:
        pipeline.function()(to(pipeline.first, df), number)
        raise ValueError("a failure that is planned")

    def both(df: Any, number: int) -> None:
        pipeline.function()(to(pipeline.second, df), number)
        pipeline.function()(to(pipeline.first, df), number)

    pipeline.send("a")
    with pytest.raises(Exception, match="is planned"):
        pipeline.run(dies)
    for _ in range(2):
        with REFUSED:
            pipeline.run(both)
    pipeline.holds(["a"], [])


def test_a_repeated_call_is_skipped(pipeline: Pipeline) -> None:
    """In the same run, with the rows selected anew; by another function of the same options; and after a restart."""
    pipeline.send("a", "b")
    rest = iter([True, False, False])

    def tries_again(df: Any, number: int) -> None:
        for write in (pipeline.function(pipeline.first), pipeline.function(pipeline.first)):
            for _ in range(2):
                write(df.select("value"), number)
        if next(rest):
            raise ValueError("a failure that is planned")

    with pytest.raises(Exception, match="is planned"):
        pipeline.run(tries_again)
    query = pipeline.run(tries_again)
    pipeline.holds(["a", "b"], [])
    pipeline.fenced(query, 1)


def test_other_rows_of_a_committed_batch_are_refused_by_its_run_and_skipped_after_a_restart(
    pipeline: Pipeline,
) -> None:
    """The fence of a batch names no rows: what a restarted query computes anew is taken for what was committed."""
    pipeline.send("a")

    def changes(df: Any, number: int) -> None:
        write = pipeline.function(pipeline.first)
        write(df.select("value"), number)
        with pytest.raises(FenceConflict, match=f"with other rows or to another topic.*{OWN_SINK}"):
            write(df.selectExpr("concat(value, '-changed') as value"), number)
        raise ValueError("a failure that is planned")

    with pytest.raises(Exception, match="is planned"):
        pipeline.run(changes)
    write = pipeline.function(pipeline.first)
    pipeline.run(lambda df, number: write(df.selectExpr("concat(value, '-changed') as value"), number))
    pipeline.holds(["a"], [])


def test_a_write_that_failed_is_followed_by_another(pipeline: Pipeline) -> None:
    """It is known not to be committed: the batch has its one write still to come."""
    pipeline.send("a")

    def falls_back(df: Any, number: int) -> None:
        write = pipeline.function(None)
        with pytest.raises(Exception, match="enough"):
            write(df.selectExpr("value", "string(raise_error('enough')) as topic"), number)
        write(to(pipeline.second, df), number)
        with pytest.raises(FenceConflict, match=OWN_SINK):
            write(to(pipeline.first, df), number)

    pipeline.run(falls_back)
    pipeline.holds([], ["a"])


def test_of_two_threads_one_is_refused(pipeline: Pipeline) -> None:
    pipeline.send("a")
    problems: list[FenceConflict] = []

    def write(topic: str, df: Any, number: int) -> None:
        try:
            pipeline.function(topic)(df, number)
        except FenceConflict as problem:
            problems.append(problem)

    def both(df: Any, number: int) -> None:
        topics = (pipeline.first, pipeline.second)
        threads = [InheritableThread(write, args=(topic, df, number), session=df.sparkSession) for topic in topics]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    pipeline.run(both)
    (problem,) = problems
    assert OWN_SINK in str(problem)
    read = pipeline.cluster.values
    eventually(lambda: read(pipeline.first) + read(pipeline.second), "one of them", good=lambda found: found == ["a"])


def test_a_fence_that_names_no_write_is_that_of_any(pipeline: Pipeline) -> None:
    """As those of earlier versions, and those that an operator has set."""
    pipeline.send("a")

    def dies(df: Any, number: int) -> None:
        raise ValueError("a failure that is planned")

    with pytest.raises(Exception, match="is planned"):
        pipeline.run(dies)
    query = (Path(pipeline.checkpoint) / "metadata").read_text().split('"')[3]
    settings = {"bootstrap.servers": pipeline.cluster.bootstrap}
    if pipeline.mode == "driver":
        with fencing_producer(settings, pipeline.sink_id) as (producer, consumer):
            begin_with_fence(producer, consumer, Fence(query, 0))
            producer.commit_transaction(30)
    else:
        client = Client(kafka_python_settings(settings))
        transactions = BatchTransactions(client, pipeline.sink_id)
        transactions.begin(60_000)
        transactions.reset("", Fence(query, 0))
        client.close()
    pipeline.fenced(query, 0)
    pipeline.send("b")
    pipeline.run(pipeline.function(pipeline.first))
    pipeline.holds(["b"], [])


def test_one_sink_id_on_two_clusters_is_two_sinks() -> None:
    """Neither is kept from writing by the other, nor is what it wrote."""
    rows: Any = SimpleNamespace(sameSemantics=lambda other: False)
    here, there = (Write(cluster, f"sink-{uuid.uuid4()}", "q", "r", 3, "t", rows) for cluster in ("here", "there"))
    there = replace(there, sink_id=here.sink_id)
    with here.alone(), there.alone():
        pass
    here.settle(Decision.WRITE, "")
    there.settle(Decision.SKIP, "")
    twin = replace(here)
    with here.alone(), pytest.raises(FenceConflict), twin.alone():
        pass


def test_a_job_beside_the_stream_needs_a_sink_of_its_own(pipeline: Pipeline) -> None:
    """Whichever of the two writes first."""
    problem = "belongs to driver mode" if pipeline.mode == "driver" else "belongs to streaming query"
    other_problem = "belongs to executor mode" if pipeline.mode == "driver" else "the fence belongs to query batch"

    def save(df: Any, sink_id: str, token: str) -> None:
        named = {"kafka.bootstrap.servers": pipeline.cluster.bootstrap, "sinkId": sink_id, "batchToken": token}
        df.write.format("fleetlog").options(topic=pipeline.second, **named).mode("append").save()

    pipeline.send("a")
    write = pipeline.function(pipeline.first)
    with pytest.raises(Exception, match=problem):
        pipeline.run(lambda df, number: write(df, number) or save(df, pipeline.sink_id, "once"))
    pipeline.holds(["a"], [])
    other = pipeline.sink_id + "-other"
    late = pipeline.function(pipeline.first, other)
    with pytest.raises(Exception, match=other_problem):
        pipeline.run(lambda df, number: save(df, other, "once") or late(df, number))
    pipeline.holds(["a"], ["a"])


_SCRIPT = """
import os, signal, sys
from pyspark.sql import SparkSession
from fleetlog.spark import exactly_once_batch
bootstrap, source, first, second, sink, checkpoint, mode, kill = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
given = {"kafka.bootstrap.servers": bootstrap, "sinkId": sink, "checkpointLocation": checkpoint, "sink.mode": mode}
one, other = (exactly_once_batch({**given, "topic": topic}) for topic in (first, second))
def both(df, number):
    one(df, number)
    if kill == "kill":
        print("the first is written", flush=True)
        signal.pause()
    other(df, number)
rows = spark.readStream.format("fleetlog").option("kafka.bootstrap.servers", bootstrap)
rows = rows.option("subscribe", source).option("startingOffsets", "earliest").load().select("value")
writer = rows.writeStream.foreachBatch(both).option("checkpointLocation", checkpoint).trigger(availableNow=True)
writer.start().awaitTermination()
"""


def test_a_kill_between_the_two_changes_nothing(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.send("a")
    named = [pipeline.cluster.bootstrap, pipeline.source, pipeline.first, pipeline.second, pipeline.sink_id]
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    for kill in ("kill", "go on"):
        while True:
            command = [sys.executable, str(script), *named, pipeline.checkpoint, pipeline.mode, kill]
            process = SparkProcess(command, tmp_path / f"{kill}.log")
            came = process.wait("the first is written" if kill == "kill" else OWN_SINK)
            process.kill()
            if came or not process.was_too_slow:
                break
        assert came, process.log()
        pipeline.holds(["a"], [])
