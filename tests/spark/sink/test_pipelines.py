"""Spark Declarative Pipelines: a run that is killed, and full refreshes of a flow into the sink."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetlog.spark import OptionError, read_fence
from fleetlog.spark.sink.options import WriteOptions
from tests.spark.conftest import Cluster, run_to_end
from tests.spark.pipelines import Pipeline
from tests.spark.sink.job import Job, Read, committed

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side

ROWS = 600


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_is_killed_and_each_row_counts_once(cluster: Cluster, tmp_path: Path) -> None:
    """And a full refresh, which would write all rows again, is refused by one sentence and can be taken back; it may
    append, or write to a topic in the other's place."""
    source, target = cluster.topic(2), cluster.topic(2)
    pipeline = Pipeline(cluster.bootstrap, source, target, tmp_path)
    pipeline.edit("transformations/orders.py", "1000", "30")  # offsets of a batch
    values = sorted(f"V{number}" for number in range(ROWS))
    cluster.send(source, [{"key": value, "value": value.lower()} for value in values])
    pipeline.run_again_after_a_kill(1)
    assert committed(cluster, target, ROWS) == values
    refreshed = pipeline.run("--full-refresh-all")
    assert refreshed.exit_code != 0
    assert f"FenceConflict: a full refresh would write again what flow {pipeline.flow} has written" in refreshed.log()
    assert cluster.values(target) == values
    assert read_fence(cluster.bootstrap, f"{pipeline.flow}.append.1") is None
    shutil.rmtree(pipeline.checkpoints / "1")
    cluster.send(source, [{"key": "new", "value": "new"}])
    last = pipeline.run()
    assert last.exit_code == 0, last.log()[-4000:]
    assert committed(cluster, target, ROWS + 1) == ["NEW", *values]
    pipeline.edit("transformations/orders.py", f'"{target}"', f'"{target}", "sink.fullRefresh": "append"')
    appended = pipeline.run("--full-refresh-all")
    assert appended.exit_code == 0, appended.log()[-4000:]
    assert committed(cluster, target, 2 * (ROWS + 1)) == sorted(2 * ["NEW", *values])
    cluster.topic(3, f"{target}.2")
    pipeline.edit("transformations/orders.py", '"append"', '"replace"')
    replaced = pipeline.run("--full-refresh-all")
    assert replaced.exit_code == 0, replaced.log()[-4000:]
    assert committed(cluster, f"{target}.2", ROWS + 1) == ["NEW", *values]
    assert len(cluster.values(target)) == 2 * (ROWS + 1)


@pytest.fixture
def flow(cluster: Cluster, read_stream: Read, tmp_path: Path) -> Callable[..., Job]:
    """Runs a query as a flow's run does, after ``refreshes`` full ones; the sink's id is the flow's name."""
    job = Job(cluster, read_stream, tmp_path)
    job.send("a", "b")

    def run(refreshes: int, **options: str) -> Job:
        job.checkpoint = tmp_path / "_checkpoints" / "out" / job.sink_id / str(refreshes)
        given = {
            "kafka.bootstrap.servers": cluster.bootstrap, "topic": job.target,
            "checkpointLocation": job.checkpoint.as_uri(),
            **{name.replace("__", "."): value for name, value in options.items()},
        }  # fmt: skip
        writer = job.rows().writeStream.format("fleetlog").queryName(job.sink_id).options(**given)
        run_to_end(lambda: writer.trigger(availableNow=True).start())
        return job

    return run


def test_a_full_refresh_is_refused_until_it_may_append(flow: Any, cluster: Cluster) -> None:
    job = flow(0)
    assert job.values(2) == ["a", "b"]
    assert job.fence().batch_id == 0
    with pytest.raises(Exception, match=r"set the sink's option sink\.fullRefresh to append .* remove the checkpoint"):
        flow(1)
    flow(1, sink__fullRefresh="append")
    assert Counter(job.values(4)) == {"a": 2, "b": 2}
    job.send("c")
    flow(1)  # that refresh was allowed: its query goes on, whatever the option says now
    assert Counter(job.values(5)) == {"a": 2, "b": 2, "c": 1}
    job.forget_commit(1)
    flow(1)
    assert Counter(job.values(5)) == {"a": 2, "b": 2, "c": 1}, "a batch of a refresh counts once"
    with pytest.raises(Exception, match="up to batch 1 of query"):
        flow(2)
    assert read_fence(cluster.bootstrap, f"{job.sink_id}.append.2") is None


def test_a_full_refresh_may_replace_the_topic_by_another(flow: Any, cluster: Cluster) -> None:
    """Which has the flow's rows once, while the one before stays as it is."""
    job = flow(0)
    with pytest.raises(Exception, match=rf"topic {job.target}\.1 does not exist"):
        flow(1, sink__fullRefresh="replace")
    cluster.topic(3, f"{job.target}.1")
    job.send("c")
    flow(1, sink__fullRefresh="replace")
    assert committed(cluster, f"{job.target}.1", 3) == ["a", "b", "c"]
    assert job.values(2) == ["a", "b"]
    job.send("d")
    with pytest.raises(Exception, match="a full refresh would write again"):
        flow(1)  # without the option its rows would go to the topic before
    flow(1, sink__fullRefresh="replace")
    assert committed(cluster, f"{job.target}.1", 4) == ["a", "b", "c", "d"]
    assert job.values(2) == ["a", "b"]


def test_a_flow_that_has_written_nothing_is_refreshed_as_it_is(flow: Any) -> None:
    job = flow(1)
    assert job.values(2) == ["a", "b"]


OF_FLOW = {
    "kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "queryname": "f",
    "checkpointlocation": "file:/s/_checkpoints/out/f/3",
}  # fmt: skip


def test_sink_ids_of_a_flow() -> None:
    assert WriteOptions.parse({**OF_FLOW, "checkpointlocation": "file:/s/_checkpoints/out/f/0"}).sink_id == "f"
    assert WriteOptions.parse(OF_FLOW).sink_id == "f.append.3"
    assert WriteOptions.parse({**OF_FLOW, "sinkid": "own"}).sink_id == "own.append.3"
    replaced = WriteOptions.parse({**OF_FLOW, "sink.fullrefresh": "Replace"})
    assert (replaced.sink_id, replaced.rows.topic) == ("f.replace.3", "t.3")
    assert replaced.refresh is not None
    assert list(replaced.refresh.earlier_sink_ids()) == [
        "f.append.3", "f.append.2", "f.replace.2", "f.append.1", "f.replace.1", "f",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**OF_FLOW, "sink.fullrefresh": "always"}, "sink.fullRefresh: 'always' is not refuse, append or replace"),
        ({**OF_FLOW, "sink.fullrefresh": "replace", "topic": None}, "replace goes with option topic"),
        ({**OF_FLOW, "checkpointlocation": "/c/f/3"}, "option sinkId is required"),
        ({**OF_FLOW, "queryname": None}, "option sinkId is required"),
        ({"sinkId": "s", "sink.fullrefresh": "append"}, "is for flows of spark-pipelines"),
        ({**OF_FLOW, "checkpointlocation": "/_checkpoints/out/my flow/0"}, "sinkId: 'my flow' is not made of"),
        ({**OF_FLOW, "sinkid": "s" * 195}, "is not made of 1 to 200"),
    ],
)
def test_wrong_options_of_a_flow_are_named(options: dict[str, Any], message: str) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", **options}
    with pytest.raises(OptionError, match=message):
        WriteOptions.parse({name: value for name, value in given.items() if value is not None})
