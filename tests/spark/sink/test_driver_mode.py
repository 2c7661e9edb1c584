"""The sink's driver mode in one Spark process: replays, conflicts, refusals. Kills are in test_flights."""

from __future__ import annotations

import contextlib
import shutil
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from fleetlog.spark import Fence, FenceConflict, reset_fence, write_stream
from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.sink import driver_mode
from fleetlog.spark.sink.events import SinkEvent
from fleetlog.spark.sink.foreach_batch import exactly_once_batch
from tests.spark.conftest import Cluster, run_to_end
from tests.spark.sink.job import Written
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side

Read = Callable[..., Any]


class Job(Written):
    """A query from one topic to another that runs when asked to, as a restarted driver would."""

    def __init__(self, cluster: Cluster, read_stream: Read, directory: Path, partitions: int = 2) -> None:
        self.cluster = cluster
        self.source = cluster.topic(partitions)
        self.target = cluster.topic(partitions)
        self.sink_id = f"sink-{uuid.uuid4().hex[:10]}"
        self.checkpoint = directory / "checkpoint"
        self.events: list[SinkEvent] = []
        self.on_event: Callable[[SinkEvent], None] = self.events.append
        self.read_stream = read_stream

    def send(self, *values: str) -> None:
        self.cluster.send(self.source, [{"key": value, "value": value} for value in values])

    def run(self, df: Any = None, **options: Any) -> None:
        """Runs to the end of what is there; raises what the query ends with."""
        rows = self.read_stream(subscribe=self.source).select("key", "value") if df is None else df
        topic = options.pop("topic", self.target)
        options.setdefault("sink__mode", "driver")
        run_to_end(
            lambda: write_stream(
                rows,
                bootstrap_servers=self.cluster.bootstrap,
                sink_id=self.sink_id,
                checkpoint_location=str(self.checkpoint),
                topic=topic,
                trigger={"availableNow": True},
                options={name.replace("__", "."): value for name, value in options.items()},
                on_event=lambda event: self.on_event(event),
            )
        )

    def forget_commit(self, batch_id: int) -> None:
        """What a driver leaves behind that is killed after the transaction and before Spark's note of it."""
        for path in (self.checkpoint / "commits").glob(f"*{batch_id}*"):
            path.unlink()


@pytest.fixture
def job(cluster: Cluster, read_stream: Read, tmp_path: Path) -> Job:
    return Job(cluster, read_stream, tmp_path)


def test_every_column_arrives(job: Job, read_stream: Read) -> None:
    other = job.cluster.topic(3)
    job.send("a", "b")
    rows = read_stream(subscribe=job.source).selectExpr(
        f"case when string(value) = 'a' then '{job.target}' else '{other}' end as topic",
        "string(key) as key",
        "case when string(value) = 'a' then null else value end as value",
        "case when string(value) = 'b' then 2 end as partition",
        "array(named_struct('key', 'h', 'value', value), named_struct('key', 'n', 'value', binary(null))) as headers",
    )
    job.run(rows, topic=None)
    (first,) = eventually(lambda: job.cluster.read(job.target), "a row in the one topic")
    assert (first.key(), first.value(), first.headers()) == (b"a", None, [("h", b"a"), ("n", None)])
    (second,) = eventually(lambda: job.cluster.read(other), "a row in the other")
    assert (second.key(), second.value(), second.partition()) == (b"b", b"b", 2)


@pytest.mark.parametrize("fails", [None, 0, 1])
def test_its_clients_are_closed_when_the_query_has_ended(
    job: Job, monkeypatch: pytest.MonkeyPatch, fails: int | None
) -> None:
    """With its last batch, or with one that fails. A producer closes with its last reference."""

    class Seen(Producer):  # type: ignore[misc]
        def __init__(self, settings: dict[str, Any]) -> None:
            super().__init__(settings)
            made.append(weakref.ref(self))

    def fail(event: SinkEvent) -> None:
        if (event.stage, event.batch_id) == ("written", fails):
            raise ValueError("a failure that is planned")

    made: list[weakref.ref[Any]] = []
    monkeypatch.setattr(driver_mode, "Producer", Seen)
    monkeypatch.setattr(driver_mode, "LOOK_S", 0.1)
    for value in "abc":
        job.send(value)
    job.on_event = fail
    rows = job.read_stream(subscribe=job.source, maxOffsetsPerTrigger=1).select("key", "value")
    with pytest.raises(Exception, match="is planned") if fails is not None else contextlib.nullcontext() as kept:
        job.run(rows)
    eventually(lambda: [one() is None for one in made], "no producer is left", good=all)
    assert len(made) == 1
    assert (fails is None) == (kept is None), "as long as the error is kept"


def test_replayed_batch_is_skipped(job: Job) -> None:
    job.send("a", "b", "c")
    job.run()
    job.fences(Fence(job.events[0].query_id, 0))
    job.forget_commit(0)
    job.send("d")
    job.run()
    assert job.stages() == [
        ("written", 0, 3),
        ("committed", 0, 3),
        ("skipped", 0, 0),
        ("written", 1, 1),
        ("committed", 1, 1),
    ]
    assert job.values(4) == ["a", "b", "c", "d"]
    assert job.cluster.values(job.target, "read_uncommitted") == ["a", "b", "c", "d"]


def test_fence_off_writes_twice(job: Job) -> None:
    """The control: without looking at the fence the very same replay makes duplicates."""
    job.send("a", "b")
    job.run(fence__enabled="false")
    job.forget_commit(0)
    job.run(fence__enabled="false")
    assert job.values(4) == ["a", "a", "b", "b"]


def test_new_checkpoint_is_a_conflict_until_the_fence_is_handed_over(job: Job) -> None:
    job.send("a")
    job.run()
    first_query = job.events[0].query_id
    shutil.rmtree(job.checkpoint)
    with pytest.raises(Exception, match=f"the fence belongs to query {first_query}"):
        job.run()
    assert job.values(1) == ["a"]
    with pytest.raises(FenceConflict):
        reset_fence(job.cluster.bootstrap, job.sink_id, expected_query_id="another")
    job.fences(Fence(first_query, 0))
    reset_fence(job.cluster.bootstrap, job.sink_id, expected_query_id=first_query)
    job.run()
    second_query = job.events[-1].query_id
    job.fences(Fence(second_query, 0))
    assert job.values(2) == ["a", "a"]  # a new checkpoint reads from the start: what was asked for
    shutil.rmtree(job.checkpoint)
    job.run(fence__takeover__queryid=second_query)
    job.fences(Fence(job.events[-1].query_id, 0))


def test_lost_fence_and_rolled_back_checkpoint(job: Job, tmp_path: Path) -> None:
    job.send("a")
    job.run()
    shutil.copytree(job.checkpoint, tmp_path / "old")
    job.send("b")
    job.run()
    job.send("c")
    job.run()
    new = tmp_path / "new"
    job.checkpoint.rename(new)
    (tmp_path / "old").rename(job.checkpoint)
    with pytest.raises(Exception, match="brings batch 1, and the last one committed is 2"):
        job.run()
    shutil.rmtree(job.checkpoint)
    new.rename(job.checkpoint)
    group = f"spark-sink/{job.sink_id}"
    job.cluster.admin.delete_consumer_groups([group])[group].result(30)
    assert job.fence() is None
    job.send("d")
    with pytest.raises(Exception, match=r"batch 3 of query .* finds no fence"):
        job.run()
    assert job.values(3) == ["a", "b", "c"]
    job.run(fence__onmissing="adopt")
    assert job.values(4) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("stage", ["begun", "written", "committed"])
def test_failure_at_any_stage_is_raised_and_replayed(job: Job, stage: str) -> None:
    job.send(*(f"v{number}" for number in range(50)))

    def fail(event: SinkEvent) -> None:
        if event.stage == stage:
            raise OSError("no luck today")

    job.on_event = fail
    with pytest.raises(Exception, match="no luck today"):
        job.run()
    visible = 50 if stage == "committed" else 0
    assert len(job.values(visible)) == visible
    job.on_event = job.events.append
    job.run()
    assert job.values(50) == sorted(f"v{number}" for number in range(50))
    assert [event.stage for event in job.events] == (
        ["skipped"] if stage == "committed" else ["begun", "written", "committed"]
    )


def test_second_driver_cuts_off_the_first(job: Job) -> None:
    """While one driver stands inside its transaction, another takes the sink: the first must not commit."""
    job.send("a", "b")

    def other_driver(event: SinkEvent) -> None:
        if event.stage == "written":
            successor = job.cluster.producer(transactional_id=f"spark-sink/{job.sink_id}")
            successor.init_transactions(30)

    job.on_event = other_driver
    with pytest.raises(Exception, match=r"(?i)fenced"):
        job.run()
    assert job.values(0) == []
    assert job.fence() is None
    job.on_event = job.events.append
    job.run()
    assert job.values(2) == ["a", "b"]


def test_batch_without_rows_moves_the_fence(job: Job, read_stream: Read) -> None:
    job.send("a")
    job.run(read_stream(subscribe=job.source).select("key", "value").where("string(value) = 'none'"))
    job.fences(Fence(job.events[0].query_id, 0))
    assert job.values(0) == []


def test_complete_mode_and_foreign_checkpoint_are_refused(
    job: Job, read_stream: Read, tmp_path: Path, bootstrap: str
) -> None:
    job.send("a")
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "sinkId": job.sink_id,
        "checkpointLocation": str(job.checkpoint),
        "topic": job.target,
    }
    counts = read_stream(subscribe=job.source).groupBy("value").count().select("value")

    def run(df: Any, mode: str, checkpoint: Path) -> None:
        writer = df.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
        run_to_end(lambda: writer.foreachBatch(exactly_once_batch(options)).trigger(availableNow=True).start())

    with pytest.raises(Exception, match="output mode complete"):
        run(counts, "complete", job.checkpoint)
    with pytest.raises(Exception, match="option checkpointLocation is"):
        run(read_stream(subscribe=job.source).select("value"), "append", tmp_path / "elsewhere")
    with pytest.raises(OptionError, match="output mode complete"):
        write_stream(
            counts,
            bootstrap_servers=bootstrap,
            sink_id=job.sink_id,
            checkpoint_location=str(job.checkpoint),
            output_mode="complete",
        )
    assert job.fence() is None
    assert job.values(0) == []


def test_wrong_columns_are_named(job: Job, read_stream: Read) -> None:
    job.send("a")
    with pytest.raises(Exception, match="column value is bigint; it must be string or binary"):
        job.run(read_stream(subscribe=job.source).selectExpr("offset as value"))
    for wrong, message in (
        ("-3 as partition", "names partition -3 of"),
        ("array(named_struct('key', string(null), 'value', binary('x'))) as headers", "a header without a name"),
    ):
        shutil.rmtree(job.checkpoint)
        with pytest.raises(Exception, match=message):
            job.run(read_stream(subscribe=job.source).selectExpr("value", wrong))
    shutil.rmtree(job.checkpoint)
    with pytest.raises(Exception, match="neither option topic nor column topic"):
        job.run(read_stream(subscribe=job.source).select("value"), topic=None)


def test_a_row_that_times_out_is_named_with_its_partition_leader_and_error(
    job: Job, read_stream: Read, own_fleet: Fleet
) -> None:
    """Too few replicas in sync: the brokers refuse each try, which librdkafka repeats until the row's time is over."""
    job.send("a")
    rows = read_stream(subscribe=job.source).select("value")
    job.cluster = Cluster(own_fleet.start().bootstrap)
    topic = f"whole-{uuid.uuid4().hex[:8]}"
    new = NewTopic(topic, 1, 3, config={"min.insync.replicas": "3"})
    job.cluster.create(new)
    own_fleet.brokers[2].stop()
    expected = (
        rf"sink {job.sink_id}: a row for partition 0 of topic {topic}: _MSG_TIMED_OUT \(Local: Message timed out\); "
    )
    expected += "its leader is broker [12], in sync: 1, 2, of its replicas [123], [123], [123]"
    with pytest.raises(Exception, match=expected):
        job.run(rows, topic=topic, kafka__delivery__timeout__ms="5000")
