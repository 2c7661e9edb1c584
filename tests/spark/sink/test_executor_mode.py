"""The sink whose executors write, in real Spark on three brokers: columns, replays, conflicts, retries, refusals."""

from __future__ import annotations

import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from fleetlog.spark import Fence, FenceConflict, move_sink, reset_fence
from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.settings import kafka_python_settings
from fleetlog.spark.sink.batch_transactions import BatchTransactions
from fleetlog.spark.sink.events import SinkEvent
from tests.spark.conftest import Cluster, run_to_end, run_while
from tests.spark.sink.job import FOREACH, FORMAT, Job, Read, committed, replicated
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side


@pytest.fixture
def job(cluster: Cluster, read_stream: Read, tmp_path: Path) -> Job:
    return Job(cluster, read_stream, tmp_path)


@pytest.fixture
def write(cluster: Cluster) -> Callable[..., None]:
    """A batch job; options by name, ``__`` for a dot."""

    def save(df: Any, mode: str = "append", **options: Any) -> None:
        named = {name.replace("__", "."): str(value) for name, value in options.items()}
        given = {"kafka.bootstrap.servers": cluster.bootstrap, "sinkId": f"job-{uuid.uuid4().hex[:10]}", **named}
        df.write.format("fleetlog").options(**given).mode(mode).save()

    return save


def test_every_column_arrives(cluster: Cluster, spark: Any, write: Callable[..., None]) -> None:
    first, second = replicated(cluster), replicated(cluster)
    rows = spark.range(0, 8, 1, 2).selectExpr(
        "case when id % 2 = 0 then string(id) end as key",
        "case when id = 4 then null else cast(string(id) as binary) end as value",
        f"case when id < 4 then '{first}' else '{second}' end as topic",
        "case when id >= 6 then 2 end as partition",
        "case when id <> 1 then array(named_struct('key', 'h', 'value', cast(string(id) as binary)),"
        " named_struct('key', 'n', 'value', cast(null as binary))) end as headers",
        "case when id <> 2 then timestamp_millis(1357034400000 + id) end as timestamp",
    )
    before = time.time() * 1000 - 60_000
    write(rows)
    found = eventually(lambda: cluster.read(first) + cluster.read(second), "8 rows", good=lambda rows: len(rows) >= 8)
    by_value = {message.value(): message for message in found}
    assert set(by_value) == {None, *(str(n).encode() for n in range(8) if n != 4)}
    for number in range(8):
        message = by_value[None if number == 4 else str(number).encode()]
        assert message.topic() == (first if number < 4 else second)
        assert message.key() == (str(number).encode() if number % 2 == 0 else None)
        assert (message.headers() or []) == ([("h", str(number).encode()), ("n", None)] if number != 1 else [])
        if number >= 6:
            assert message.partition() == 2
        if number == 2:
            assert message.timestamp()[1] > before
        else:
            moment = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
            assert moment == datetime.fromtimestamp((1357034400000 + number) / 1000, UTC)


def test_keys_go_where_javas_producer_puts_them_whatever_the_codec(
    cluster: Cluster, spark: Any, write: Callable[..., None]
) -> None:
    topic, reference = replicated(cluster, 5), cluster.topic(5)
    keys = [f"key {number}" for number in range(200)]
    cluster.send(reference, [{"key": key, "value": key} for key in keys], partitioner="murmur2_random")
    frame = spark.range(0, 200, 1, 3).selectExpr("concat('key ', id) as key", "concat('key ', id) as value")
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        write(frame, topic=topic, sinkId="codecs", kafka__compression__type=codec)
    committed(cluster, topic, 200 * len(codecs))
    expected = Counter((m.partition(), m.key()) for m in cluster.read(reference))
    found = Counter((m.partition(), m.key()) for m in cluster.read(topic))
    assert found == Counter({place: len(codecs) for place in expected})


@pytest.mark.parametrize("way", [FORMAT, FOREACH])
def test_replayed_batch_counts_once(job: Job, way: str) -> None:
    job.send("a", "b", "c")
    query = job.run(way=way)
    assert job.values(3) == ["a", "b", "c"]
    assert job.fence() == Fence(query, 0)
    job.forget_commit(0)
    job.send("d")
    assert job.run(way=way) == query
    assert job.values(4) == ["a", "b", "c", "d"]
    assert job.fence() == Fence(query, 1)
    # The data source learns the batch's number at the commit: it writes again, and that is aborted.
    assert job.written() == Counter({"a": 2, "b": 2, "c": 2, "d": 1} if way == FORMAT else "abcd")
    if way == FOREACH:
        assert job.stages() == [
            ("written", 0, 3),
            ("committed", 0, 3),
            ("skipped", 0, 0),
            ("written", 1, 1),
            ("committed", 1, 1),
        ]


@pytest.mark.parametrize(("way", "other"), [(FOREACH, FORMAT), (FORMAT, FOREACH)])
def test_a_batch_that_is_replayed_in_the_other_way_counts_once(job: Job, way: str, other: str) -> None:
    """Both keep the target of their write in the fence."""
    job.send("a")
    query = job.run(way=way)
    job.forget_commit(0)
    job.send("b")
    assert job.run(way=other) == query
    assert job.values(2) == ["a", "b"]
    assert job.fence() == Fence(query, 1)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("way", [FORMAT, FOREACH])
def test_a_batch_that_is_replayed_to_another_topic_is_refused_by_the_format(job: Job, way: str, named: bool) -> None:
    """Whichever of the two committed it: skipped in silence, it would be missing from the other topic."""
    job.send("a")
    query, target, other = job.run(way=way), job.target, replicated(job.cluster)
    job.forget_commit(0)
    job.target = other if named else ""
    rows = job.rows() if named else job.rows().selectExpr("value", f"'{other}' as topic")
    there = f"to topic {other}" if named else "to the topics that its rows name"
    with pytest.raises(Exception, match=f"was committed by a write to topic {target}, and this write goes {there}"):
        job.run(rows)
    job.target = target
    assert job.run() == query
    job.send("b")
    job.target = other
    job.run()
    assert job.values(1) == ["b"]
    assert committed(job.cluster, target, 1) == ["a"]


def test_replay_with_other_rows_counts_once(job: Job) -> None:
    """What is random in a query differs in the replay: batches are fenced, rows are not compared."""
    job.send("a", "b")
    job.run(job.rows().selectExpr("concat(string(value), uuid()) as value"))
    first = job.values(2)
    job.forget_commit(0)
    job.run(job.rows().selectExpr("concat(string(value), uuid()) as value"))
    assert job.values() == first
    assert len(job.written()) == 4


@pytest.mark.parametrize("way", [FORMAT, FOREACH])
def test_new_checkpoint_is_a_conflict_until_the_fence_is_reset(job: Job, way: str) -> None:
    job.send("a")
    first = job.run(way=way)
    shutil.rmtree(job.checkpoint)
    with pytest.raises(Exception, match=f"query {first}"):
        job.run(way=way)
    assert job.values(1) == ["a"]
    with pytest.raises(FenceConflict):
        reset_fence(job.cluster.bootstrap, job.sink_id, expected_query_id="another")
    assert job.fence() == Fence(first, 0)
    reset_fence(job.cluster.bootstrap, job.sink_id, expected_query_id=first)
    assert job.fence() is None
    second = job.run(way=way)
    assert job.fence() == Fence(second, 0)
    assert job.values(2) == ["a", "a"]  # a new checkpoint reads from the start: what was asked for
    if way == FOREACH:
        shutil.rmtree(job.checkpoint)
        third = job.run(way=way, fence__takeover__queryid=second)
        assert job.fence() == Fence(third, 0)


@pytest.mark.parametrize("way", [FORMAT, FOREACH])
def test_a_checkpoint_that_resumes_without_its_fence_is_refused_until_allowed(job: Job, way: str) -> None:
    job.send("a")
    query = job.run(way=way)
    reset_fence(job.cluster.bootstrap, job.sink_id, expected_query_id=query)
    job.send("b")
    with pytest.raises(Exception, match=r"batch 1 of query .* finds no fence"):
        job.run(way=way)
    assert job.values() == ["a"]
    assert job.fence() is None
    assert job.run(way=way, fence__onMissing="adopt") == query
    assert job.values(2) == ["a", "b"]
    assert job.fence() == Fence(query, 1)


def test_rolled_back_checkpoint(job: Job, tmp_path: Path) -> None:
    job.send("a")
    job.run()
    shutil.copytree(job.checkpoint, tmp_path / "old")
    for value in "bc":
        job.send(value)
        job.run()
    shutil.rmtree(job.checkpoint)
    (tmp_path / "old").rename(job.checkpoint)
    with pytest.raises(Exception, match=r"batch 1 does not follow batch 2"):
        job.run()
    assert job.values(3) == ["a", "b", "c"]


def test_a_second_query_does_not_get_the_sink(job: Job, tmp_path: Path) -> None:
    job.send("a")
    running = run_while(lambda: job.start(once=False), job.values, "its first row", lambda found: found == ["a"])
    try:
        own, job.checkpoint = job.checkpoint, tmp_path / "other"
        with pytest.raises(Exception, match=f"query {running.id}"):
            job.run()
        job.checkpoint = own
        job.send("b")
        assert job.values(2) == ["a", "b"]
    finally:
        running.stop()


def test_failed_attempts_leave_nothing_that_counts(job: Job, spark: Any, tmp_path: Path) -> None:
    """Each task fails once, after its rows went out."""
    seen = str(tmp_path)

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        rows = 0
        for batch in batches:
            rows += batch.num_rows
            for start in range(0, batch.num_rows, 100):
                yield batch.slice(start, 100)
        context = TaskContext.get()
        assert context is not None
        marker = Path(seen) / f"attempt-{context.partitionId()}"
        if rows and not marker.exists():
            marker.touch()
            raise OSError("no luck the first time")

    values = [f"v{number}" for number in range(2000)]
    job.send(*values)
    rows = job.rows()
    job.run(rows.mapInArrow(fail_once, rows.schema), kafka__buffer__memory=1 << 20, kafka__batch__size=1000)
    assert job.values(2000) == sorted(values)
    assert len(list(tmp_path.glob("attempt-*"))) == 2


def test_a_job_that_fails_shows_nothing(cluster: Cluster, spark: Any, write: Callable[..., None]) -> None:
    topic = replicated(cluster)
    broken = spark.range(0, 1000, 1, 2).selectExpr(
        "case when id = 999 then cast(raise_error('enough') as string) else string(id) end as value"
    )
    with pytest.raises(Exception, match="enough"):
        write(broken, topic=topic, sinkId="failing")
    write(spark.range(10).selectExpr("string(id) as value"), topic=topic, sinkId="failing")
    assert committed(cluster, topic, 10) == sorted(map(str, range(10)))


@pytest.mark.parametrize("way", [FORMAT, FOREACH])
def test_batches_without_rows_move_the_fence(job: Job, way: str) -> None:
    job.send("a")
    query = job.run(job.rows().where("string(value) = 'b'"), way)
    assert job.fence() == Fence(query, 0)
    job.send("b")
    job.run(job.rows().where("string(value) = 'b'"), way)
    assert job.values(1) == ["b"]
    assert job.fence() == Fence(query, 1)


UNNAMED = "array(named_struct('key', string(null), 'value', binary('x')))"


def test_what_is_refused(job: Job, spark: Any, write: Callable[..., None]) -> None:
    good = spark.range(1).selectExpr("string(id) as value")
    topic = job.target
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (good, {"sinkId": ""}, "sinkId is required"),
        (good, {"sinkId": "no spaces"}, "sinkId"),
        (good, {}, "neither option topic nor column topic"),
        (good, {"topic": topic, "mode": "overwrite"}, r"can't be done: \.mode\('append'\)"),
        (good, {"topic": topic, "kafka__acks": "1"}, r"kafka\.acks can't be set"),
        (good, {"topic": topic, "speed": "high"}, "option speed is unknown"),
        (good, {"topic": topic, "kafka__compression__type": "rar"}, r"kafka\.compression\.type"),
        (good, {"topic": "not-there"}, "topic not-there does not exist"),
        (spark.range(1), {"topic": topic}, "column value is required"),
        (spark.range(1).selectExpr("id as value"), {"topic": topic}, "column value is bigint"),
        (good.selectExpr("value", "1L as partition"), {"topic": topic}, "column partition is bigint"),
        (good.selectExpr("value", "1 as weight"), {"topic": topic}, "column weight is unknown"),
        (good.selectExpr("value", "string(null) as topic"), {}, "a row has no topic"),
        (good.selectExpr("value", "7 as partition"), {"topic": topic}, "names partition 7 of .*, which has"),
        (good.selectExpr("value", "-3 as partition"), {"topic": topic}, "names partition -3 of .*leave it null"),
        (good.selectExpr("value", f"{UNNAMED} as headers"), {"topic": topic}, "has a header without a name"),
        (good.selectExpr("value", "'k' as Key"), {"topic": topic}, "column Key is written key: rename it"),
        (good.selectExpr("value as Value"), {"topic": topic}, "column Value is written value: rename it"),
        (good.selectExpr("repeat('x', 300000) as value"), {"topic": topic}, r"MESSAGE_TOO_LARGE.*max\.message\.bytes"),
        (good, {"topic": topic, "sink__transaction__timeout__ms": 10**9}, r"transaction\.max\.timeout\.ms"),
    ]
    for df, options, message in cases:
        with pytest.raises(Exception, match=message):
            write(df, **options)
    counts = job.rows().groupBy("value").count().select("value")
    with pytest.raises(Exception, match='cannot be written in the "ErrorIfExists" mode'):  # docs/spark.md has its cause
        write(good, topic=topic, mode="error")
    with pytest.raises(Exception, match="does not support Update mode"):
        job.run(counts, mode="update")
    for way in (FORMAT, FOREACH):
        with pytest.raises(Exception, match="output mode complete"):
            job.run(counts, way, mode="complete")
    job.send("a")
    named = {"kafka.bootstrap.servers": job.cluster.bootstrap, "topic": topic, "sinkId": job.sink_id}
    nowhere = job.rows().writeStream.format("fleetlog").options(**named).trigger(availableNow=True)
    with pytest.raises(Exception, match="checkpointLocation must be specified"):
        run_to_end(nowhere.start)
    with pytest.raises(OptionError, match=r"goes with sink\.mode=driver"):
        job.run(way=FOREACH, sink__mode="executor", fence__enabled="false")
    assert job.values() == []


def test_a_batch_that_outlives_its_transaction_says_what_to_set(job: Job, cluster: Cluster) -> None:
    """In driver mode; executors send heartbeats."""
    job.send("a")

    def dawdle(event: SinkEvent) -> None:
        deadline = time.monotonic() + 60
        while event.stage == "written" and not aborted(cluster, job.target):
            assert time.monotonic() < deadline, "the transaction's time does not run out"
            time.sleep(0.2)

    job.on_event = dawdle
    with pytest.raises(Exception, match=r"set sink\.transaction\.timeout\.ms above a batch's duration"):
        job.run(way=FOREACH, sink__mode="driver", sink__transaction__timeout__ms=1000)
    job.on_event = job.events.append
    job.run(way=FOREACH, sink__mode="driver")
    assert job.values(1) == ["a"]


def aborted(cluster: Cluster, topic: str) -> bool:
    """Whether no transaction is open: the last stable offsets are the ends."""
    ends = []
    for isolation in ("read_uncommitted", "read_committed"):
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "look", "isolation.level": isolation})
        ends.append([consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=30)[1] for n in range(3)])
        consumer.close()
    return ends[0] == ends[1]


def test_a_batch_token_names_a_jobs_content(job: Job, cluster: Cluster, spark: Any, write: Callable[..., None]) -> None:
    rows = spark.range(5).selectExpr("string(id) as value")
    common = {"topic": job.target, "sinkId": job.sink_id}
    for token in ("monday", "monday", "tuesday"):
        write(rows, batchToken=token, **common)
    assert committed(cluster, job.target, 10) == sorted([*"01234"] * 2)
    other = replicated(cluster)
    with pytest.raises(Exception, match=f"batchToken tuesday was committed by a write to topic {job.target}, and"):
        write(rows, **{**common, "topic": other}, batchToken="tuesday")
    with pytest.raises(Exception, match="and this write goes to the topics that its rows name"):
        write(rows.selectExpr("value", f"'{other}' as topic"), sinkId=job.sink_id, batchToken="tuesday")
    assert cluster.values(other) == []
    write(rows, **common)
    assert committed(cluster, job.target, 15) == sorted([*"01234"] * 3)
    client = Client(kafka_python_settings({"bootstrap.servers": cluster.bootstrap}))
    transactions = BatchTransactions(client, job.sink_id)
    batch = transactions.begin(60_000)
    assert batch.fence is not None
    transactions.commit(batch, "batch", batch.fence.batch_id + 1, "wednesday", [])  # as earlier versions did
    client.close()
    write(rows, batchToken="wednesday", **common)
    assert len(job.values(15)) == 15
    job.send("a")
    with pytest.raises(Exception, match="query batch"):
        job.run()
    assert len(job.values()) == 15


@pytest.mark.parametrize("stage", ["begun", "written", "committed"])
def test_failure_at_any_stage_is_raised_and_replayed(job: Job, stage: str) -> None:
    job.send(*(f"v{number}" for number in range(50)))

    def fail(event: SinkEvent) -> None:
        if event.stage == stage:
            raise OSError("no luck today")

    job.on_event = fail
    with pytest.raises(Exception, match="no luck today"):
        job.run(way=FOREACH)
    assert len(job.values(50 if stage == "committed" else 0)) == (50 if stage == "committed" else 0)
    job.on_event = job.events.append
    job.run(way=FOREACH)
    assert job.values(50) == sorted(f"v{number}" for number in range(50))
    assert [event.stage for event in job.events] == (
        ["skipped"] if stage == "committed" else ["begun", "written", "committed"]
    )


def test_a_sink_belongs_to_one_mode_and_moves_when_asked(job: Job) -> None:
    def move(to: str, query: str) -> Fence:
        return move_sink(job.cluster.bootstrap, job.sink_id, to=to, expected_query_id=query)

    job.send("a")
    query = job.run(way=FOREACH, sink__mode="driver")
    job.send("b")
    with pytest.raises(Exception, match="belongs to driver mode"):
        job.run(way=FOREACH, sink__mode="executor")
    job.run(way=FOREACH)  # auto stays where the sink is
    job.fences(Fence(query, 1))
    with pytest.raises(FenceConflict, match="left as is"):
        move("executor", "another")
    assert move("executor", query) == Fence(query, 1)
    assert move("executor", query) == Fence(query, 1), "once more changes nothing"
    job.forget_commit(1)
    job.send("c")
    with pytest.raises(Exception, match="belongs to executor mode"):
        job.run(way=FOREACH, sink__mode="driver")
    job.run(way=FOREACH)
    job.fences(Fence(query, 2))
    assert job.values(3) == ["a", "b", "c"]
    assert job.written() == Counter("abc")
    assert move("driver", query) == Fence(query, 2)
    job.send("d")
    job.run(way=FOREACH, sink__mode="driver")
    assert job.values(4) == ["a", "b", "c", "d"]
    job.fences(Fence(query, 3))


def test_a_new_format_query_on_a_driver_mode_sink_is_refused(job: Job) -> None:
    job.send("a")
    query = job.run(way=FOREACH, sink__mode="driver")
    job.send("b")
    with pytest.raises(Exception, match="belongs to driver mode"):
        job.run()
    job.fences(Fence(query, 0))
    assert job.values(1) == ["a"]
