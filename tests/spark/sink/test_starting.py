"""Queries that are started from threads, and what is said before they start."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread

from fleetlog.spark import OptionError, reason, use_in_thread, write_stream
from tests.spark.conftest import Cluster, run_to_end
from tests.spark.sink.job import FORMAT, Job, Read

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side


@pytest.fixture
def job(cluster: Cluster, read_stream: Read, tmp_path: Path) -> Job:
    return Job(cluster, read_stream, tmp_path)


def in_a_thread(run: Callable[[], Any], kind: type[threading.Thread] = threading.Thread) -> None:
    """Raises what ``run`` raises in a new thread."""
    problems: list[BaseException] = []

    def keep_the_problem() -> None:
        try:
            run()
        except BaseException as problem:
            problems.append(problem)

    thread = kind(target=keep_the_problem)
    thread.start()
    thread.join(200)
    assert not thread.is_alive()
    if problems:
        raise problems[0]


def start(job: Job, df: Any = None, **more: Any) -> Any:
    return write_stream(
        job.rows() if df is None else df,
        bootstrap_servers=job.cluster.bootstrap,
        sink_id=job.sink_id,
        checkpoint_location=str(job.checkpoint),
        topic=job.target,
        trigger={"availableNow": True},
        **more,
    )


@pytest.mark.parametrize("by_format", [True, False])
def test_a_query_may_have_a_name(job: Job, by_format: bool) -> None:
    """Which Spark puts among the format's options; and a path where one is given to start()."""
    job.send("a")
    query = run_to_end(lambda: start(job, by_format=by_format, query_name=f"named-{job.sink_id}"))
    assert query.name == f"named-{job.sink_id}"
    assert job.values(1) == ["a"]
    job.send("b")
    given = {
        "kafka.bootstrap.servers": job.cluster.bootstrap, "sinkId": job.sink_id, "topic": job.target,
        "checkpointLocation": str(job.checkpoint),
    }  # fmt: skip
    writer = job.rows().writeStream.format("fleetlog").queryName(f"again-{job.sink_id}").options(**given)
    run_to_end(lambda: writer.trigger(availableNow=True).start("/path"))
    assert job.values(2) == ["a", "b"]


def test_a_thread_without_help_is_told_what_to_do(job: Job) -> None:
    rows = job.rows()
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND") as caught:
        in_a_thread(lambda: job.run(rows, FORMAT))
    assert "call fleetlog.spark.use_in_thread(spark) first" in str(reason(caught.value))


def test_queries_start_from_threads_in_every_way(job: Job, spark: Any) -> None:
    job.send("a")
    rows = job.rows()
    in_a_thread(lambda: run_to_end(lambda: start(job, by_format=True)))
    assert job.values(1) == ["a"]
    job.send("b")
    in_a_thread(lambda: run_to_end(lambda: start(job)))
    assert job.values(2) == ["a", "b"]
    job.send("c")
    in_a_thread(lambda: run_to_end(lambda: start(job, rows, by_format=True)), InheritableThread)
    assert job.values(3) == ["a", "b", "c"]

    def by_hand() -> None:
        use_in_thread(spark)
        job.run(way=FORMAT)

    job.send("d")
    in_a_thread(by_hand)
    assert job.values(4) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"options": {"fence.onMising": "adopt"}}, "fence.onMising is unknown; did you mean fence.onMissing"),
        ({"options": {"kafka.batch.size": "x"}}, "kafka.batch.size: 'x' is not a whole number"),
        ({"output_mode": "update"}, "leave by_format out"),
        ({"on_event": print}, "SinkListener"),
    ],
)
def test_options_are_checked_before_the_query_starts(job: Job, more: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        start(job, by_format=True, **more)


def test_columns_are_checked_before_the_query_starts_and_others_left_out(job: Job, spark: Any) -> None:
    with pytest.raises(OptionError, match="column value is required"):
        start(job, job.rows().select("key"), by_format=True)
    job.send("a")
    run_to_end(lambda: start(job, job.rows().selectExpr("*", "1 as another"), by_format=True))
    assert job.values(1) == ["a"]


def test_options_of_a_read_are_checked_when_it_is_loaded(spark: Any, bootstrap: str) -> None:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribePatern": "t"}
    said = "option subscribepatern is unknown; did you mean subscribePattern?;"  # Spark lower-cases a format's options
    for reader in (spark.read, spark.readStream):
        with pytest.raises(Exception, match=re.escape(said)) as caught:
            reader.format("fleetlog").options(**options).load()
        assert len(str(caught.value).splitlines()) <= 6, caught.value
        assert str(reason(caught.value)).startswith(f"OptionError: {said}")
    with pytest.raises(Exception, match="startingOffsets: expected earliest, latest or JSON"):
        spark.readStream.format("fleetlog").options(
            **{"kafka.bootstrap.servers": bootstrap, "subscribe": "t", "startingOffsets": "first"}
        ).load()
