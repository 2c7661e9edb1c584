"""The data source against real brokers: what is read, what is planned, what is refused."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from fleetlog.spark import lag
from fleetlog.spark.source.options import ReadOptions
from fleetlog.spark.source.readers import StreamReader
from tests.spark.conftest import Cluster, run_to_end, run_while
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side

Read = Callable[..., Any]


def numbered(count: int, *, first: int = 0, partitions: int = 2) -> list[dict[str, Any]]:
    return [{"value": f"v{number}", "partition": number % partitions} for number in range(first, first + count)]


def values_of(df: Any) -> list[str]:
    return sorted(bytes(row.value).decode() for row in df.select("value").collect())


def test_rows_are_those_of_sparks_own_source(cluster: Cluster, read: Read) -> None:
    topic = cluster.topic()
    sent = []
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        rows = [
            {
                "key": None if copy == 0 else f"k{number}",
                "value": None if copy == 1 else b"\x00\xff" * 40 + bytes([number, copy]),
                "partition": copy % 2,
                "timestamp": 1_357_034_400_000 + 1000 * number + copy,
                "headers": [("a", b"1"), ("b", None), ("a", b"2")] if copy == 2 else [],
            }
            for copy in range(4)
        ]
        cluster.send(topic, rows, compression_type=codec)
        sent += rows
    df = read(subscribe=topic, includeHeaders="true")
    assert df.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = df.orderBy("partition", "offset").collect()
    expected = sorted(sent, key=lambda row: row["partition"])  # sorted() is stable: within a partition as sent
    assert len(rows) == len(expected)
    for number, (row, want) in enumerate(zip(rows, expected, strict=True)):
        assert row.topic == topic
        assert (row.partition, row.offset) == (want["partition"], number % 10)
        assert row.key == (None if want["key"] is None else want["key"].encode())
        assert row.value == want["value"]
        assert row.timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(want["timestamp"] / 1000, UTC)
        assert row.timestampType == 0
        headers = row.headers and [(h.key, h.value) for h in row.headers]
        assert headers == (want["headers"] or None), "null where a record has none"


def test_aborted_and_open_transactions(cluster: Cluster, read: Read) -> None:
    topic = cluster.topic(partitions=1)
    cluster.send(topic, numbered(10, partitions=1))
    aborted = cluster.transactional(topic, [{"value": f"aborted{n}"} for n in range(10)], "abort")
    cluster.send(topic, numbered(10, first=10, partitions=1))
    # The same producer again: its first abort marker must not hide what it commits later.
    aborted.begin_transaction()
    aborted.produce(topic, value="v20")
    cluster.end(aborted, topic, "commit")
    undecided = cluster.transactional(topic, [{"value": "open"}], "open")
    cluster.send(topic, [{"value": "behind the open one"}])
    committed = [f"v{n}" for n in range(21)]
    assert values_of(read(subscribe=topic)) == sorted(committed)
    everything = [*committed, *(f"aborted{n}" for n in range(10)), "open", "behind the open one"]
    assert values_of(read(subscribe=topic, kafka__isolation__level="read_uncommitted")) == sorted(everything)
    # A range that begins inside the aborted transaction, and pieces cut anywhere.
    inside = read(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 15}}))
    assert values_of(inside) == sorted(f"v{n}" for n in range(10, 21))
    pieces = read(subscribe=topic, minPartitions=7)
    assert pieces.rdd.getNumPartitions() >= 7
    assert values_of(pieces) == sorted(committed)
    cluster.end(undecided, topic, "abort")
    assert values_of(read(subscribe=topic)) == sorted([*committed, "behind the open one"])


def test_bounds_and_choices(cluster: Cluster, read: Read) -> None:
    topic = cluster.topic(name=f"bounds.{cluster.topic()}")
    rows = [{**row, "timestamp": 1_000_000 + 1000 * number} for number, row in enumerate(numbered(20))]
    cluster.send(topic, rows)

    def offsets(first: int, second: int) -> str:
        return json.dumps({topic: {"0": first, "1": second}})

    assert values_of(read(assign=json.dumps({topic: [1]}))) == sorted(f"v{n}" for n in range(1, 20, 2))
    assert len(values_of(read(subscribePattern=r"bounds\.spark.*"))) >= 20
    assert values_of(read(subscribePattern=topic[:-1])) == []  # the whole name must match
    cut = read(subscribe=topic, startingOffsets=offsets(2, -2), endingOffsets=offsets(4, 1))
    assert values_of(cut) == ["v1", "v4", "v6"]
    assert values_of(read(subscribe=topic, startingTimestamp=1_018_000)) == ["v18", "v19"]
    assert values_of(read(subscribe=topic, endingTimestamp=1_002_000)) == ["v0", "v1"]
    late = {"startingTimestamp": 2_000_000, "startingOffsetsByTimestampStrategy": "latest"}
    assert values_of(read(subscribe=topic, **late)) == []
    by_partition = json.dumps({topic: {"0": 1_016_000, "1": 1_019_000}})
    assert values_of(read(subscribe=topic, startingOffsetsByTimestamp=by_partition)) == ["v16", "v18", "v19"]


def test_filters_narrow_what_is_read(spark: Any, cluster: Cluster, read: Read) -> None:
    topic = cluster.topic()
    cluster.send(topic, [{**row, "timestamp": 1_000_000 + 1000 * n} for n, row in enumerate(numbered(40))])
    cases = [
        ("partition = 1", 1, [f"v{n}" for n in range(1, 40, 2)]),
        ("partition = 1 and offset between 3 and 4", 1, ["v7", "v9"]),
        ("offset >= 19", 2, ["v38", "v39"]),
        ("timestamp >= timestamp_millis(1037000)", 2, ["v37", "v38", "v39"]),
        ("timestamp >= timestamp_millis(9000000)", 0, []),
        ("timestamp >= timestamp_millis(-5)", 2, [f"v{n}" for n in range(40)]),
        (f"topic = '{topic}' and string(value) = 'v5'", 2, ["v5"]),
        ("topic = 'another'", 0, []),
    ]
    setting = "spark.sql.python.filterPushdown.enabled"
    for pushed in ("true", "false"):
        spark.conf.set(setting, pushed)
        try:
            for condition, tasks, expected in cases:
                found = read(subscribe=topic).where(condition)
                assert values_of(found) == sorted(expected), condition
                if pushed == "true" and tasks:
                    assert found.rdd.getNumPartitions() == tasks, condition
            later = read(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 18, "1": 19}}))
            assert values_of(later.where("timestamp >= timestamp_millis(1030000)")) == ["v36", "v38", "v39"]
        finally:
            spark.conf.unset(setting)


def test_a_start_above_its_end_is_an_error(cluster: Cluster, read: Read) -> None:
    topic = cluster.topic(partitions=1)
    cluster.send(topic, [{**row, "timestamp": 1_000_000 + n} for n, row in enumerate(numbered(10, partitions=1))])

    def at(offset: int) -> str:
        return json.dumps({topic: {"0": offset}})

    above = f"option startingOffsets: {topic}-0 would start at offset 7, above its end 4"
    with pytest.raises(Exception, match=above):
        read(subscribe=topic, startingOffsets=at(7), endingOffsets=at(4)).count()
    with pytest.raises(Exception, match="would start at offset 11, above its end 10"):
        read(subscribe=topic, startingOffsets=at(11)).count()
    with pytest.raises(
        Exception, match=r"option startingTimestamp or startingOffsetsByTimestamp: .* offset 7, .* end 4"
    ):
        read(subscribe=topic, startingTimestamp=1_000_007, endingTimestamp=1_000_004).count()
    assert read(subscribe=topic, startingOffsets=at(7), endingOffsets=at(7)).count() == 0
    for done in cluster.admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        done.result(30)
    assert read(subscribe=topic, endingOffsets=at(4)).count() == 0, "all that there was is gone"


def test_a_task_may_read_several_partitions(cluster: Cluster, read: Read) -> None:
    topic = cluster.topic(partitions=5)
    cluster.send(topic, numbered(50, partitions=5))
    several = read(subscribe=topic, maxTasks=2)
    assert several.rdd.getNumPartitions() == 2
    assert values_of(several) == sorted(f"v{n}" for n in range(50))
    both = read(subscribe=topic, minPartitions=20, maxTasks=3)
    assert both.rdd.getNumPartitions() == 3
    assert values_of(both) == sorted(f"v{n}" for n in range(50))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of the options assign, subscribe, subscribePattern"),
        ({"subscribe": "t", "assign": "{}"}, "exactly one of the options"),
        ({"subscribe": "t", "startingOffset": "earliest"}, "option startingoffset is unknown"),
        ({"subscribe": "t", "startingOffsets": "latest"}, "latest would read nothing in a batch"),
        ({"subscribe": "t", "kafka__auto__offset__reset": "earliest"}, "kafka.auto.offset.reset can't be set"),
        ({"subscribe": "t", "kafka__isolation__level": "dirty"}, "'dirty' is not read_committed or read_uncommitted"),
        ({"subscribe": "t", "minPartitions": "0"}, "minPartitions: 0 is below 1"),
        ({"subscribe": "t", "maxTasks": "0"}, "maxTasks: 0 is below 1"),
    ],
)
def test_wrong_options_are_named(read: Read, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        read(**options).count()


def test_a_schema_of_ones_own_is_refused(spark: Any, cluster: Cluster, read: Read, tmp_path: Path) -> None:
    """By the process that plans: no task is begun. One that says what there is, is none of one's own."""
    topic = cluster.topic()
    cluster.send(topic, numbered(2))
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, "includeHeaders": "true"}
    said = r"columns key:binary, .*, headers:array<.*>: leave \.schema\(\.\.\.\) out"
    with pytest.raises(Exception, match=said) as caught:
        spark.read.format("fleetlog").schema("value string").options(**options).load().count()
    assert "Job aborted" not in str(caught.value)
    stream = spark.readStream.format("fleetlog").schema("value string").options(**options).load()
    with pytest.raises(Exception, match=said):
        run_to_end(stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start)
    own = read(subscribe=topic, includeHeaders="true").schema
    assert values_of(spark.read.format("fleetlog").schema(own).options(**options).load()) == ["v0", "v1"]


def test_a_view_has_its_options_and_a_table_is_refused(spark: Any, cluster: Cluster) -> None:
    """Spark gives a table's options to no reader; when it is made, it adds some of its own to them."""
    topic = cluster.topic()
    cluster.send(topic, numbered(2))
    using = f"USING fleetlog OPTIONS (`kafka.bootstrap.servers` '{cluster.bootstrap}', subscribe '{topic}')"
    with pytest.raises(Exception, match=r"a table can.t be created: .* CREATE TEMPORARY VIEW name USING fleetlog"):
        spark.sql(f"CREATE TABLE of_topic {using} COMMENT 'orders' TBLPROPERTIES ('team' = 'x')")
    spark.sql(f"CREATE TEMPORARY VIEW of_topic {using}")
    assert values_of(spark.table("of_topic")) == ["v0", "v1"]
    spark.catalog.dropTempView("of_topic")


def test_starting_offsets_must_name_every_partition(cluster: Cluster, read: Read) -> None:
    topic = cluster.topic()
    with pytest.raises(Exception, match="must name every partition once"):
        read(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 0}})).count()
    with pytest.raises(Exception, match="missing-one does not exist"):
        read(subscribe=f"{topic},missing-one").count()
    with pytest.raises(Exception, match=r"no record of .* is as late as 5 ms"):
        read(subscribe=topic, startingTimestamp=5).count()


def test_deleted_records_are_data_loss(cluster: Cluster, read: Read) -> None:
    topic = cluster.topic(partitions=1)
    cluster.send(topic, numbered(10, partitions=1))
    planned = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 0}})}
    for done in cluster.admin.delete_records([TopicPartition(topic, 0, 4)]).values():
        done.result(30)
    with pytest.raises(Exception, match="failOnDataLoss=false"):
        read(**planned).count()
    assert values_of(read(**planned, failOnDataLoss="false")) == [f"v{n}" for n in range(4, 10)]
    assert values_of(read(subscribe=topic)) == [f"v{n}" for n in range(4, 10)]


class Batches:
    """Collects what each micro-batch brought."""

    def __init__(self, df: Any, checkpoint: Path) -> None:
        self._df = df
        self._checkpoint = checkpoint
        self.sizes: list[int] = []
        self.values: list[str] = []

    def run(self) -> None:
        def keep(df: Any, _: int) -> None:
            found = values_of(df)
            self.sizes.append(len(found))
            self.values += found

        writer = self._df.writeStream.foreachBatch(keep).option("checkpointLocation", str(self._checkpoint))
        run_to_end(writer.trigger(availableNow=True).start)


def test_a_batch_waits_for_enough_records(cluster: Cluster, read_stream: Read, tmp_path: Path) -> None:
    """For how long at most: test_triggers.py."""
    topic = cluster.topic()
    cluster.send(topic, numbered(10))
    options = {"subscribe": topic, "minOffsetsPerTrigger": 30, "maxTriggerDelay": "1h"}
    sizes: list[int] = []
    writer = read_stream(**options).writeStream.foreachBatch(lambda df, _: sizes.append(df.count()))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = run_while(writer.start, lambda: sizes, "the first batch waits for nothing", lambda found: found == [10])
    try:
        cluster.send(topic, numbered(29))
        time.sleep(5)  # a batch of the few would begin at once
        cluster.send(topic, numbered(31))
        eventually(lambda: sizes, "enough records wait for nothing", 200, good=lambda found: len(found) > 1)
        assert sizes[0] == 10
        assert sizes[1] >= 30
    finally:
        query.stop()
    cluster.send(topic, numbered(5))
    rest = Batches(read_stream(**options), tmp_path / "checkpoint")
    rest.run()
    assert sum(rest.sizes) >= 5  # with AvailableNow no batch waits


def test_no_task_has_more_records_than_asked_for(cluster: Cluster, read: Read) -> None:
    topic = cluster.topic()
    cluster.send(topic, numbered(50))
    cut = read(subscribe=topic, maxRecordsPerPartition=8)
    assert cut.rdd.getNumPartitions() == 8
    assert values_of(cut) == sorted(f"v{n}" for n in range(50))


def test_stream_follows_its_checkpoint(cluster: Cluster, read_stream: Read, tmp_path: Path) -> None:
    topic = cluster.topic()
    cluster.send(topic, numbered(50))
    cluster.transactional(topic, [{"value": f"x{n}", "partition": 0} for n in range(5)], "abort")
    batches = Batches(read_stream(subscribe=topic, maxOffsetsPerTrigger=20), tmp_path / "checkpoint")
    batches.run()
    assert sorted(batches.values) == sorted(f"v{n}" for n in range(50))
    assert len(batches.sizes) == 3, batches.sizes  # 56 offsets, 20 at a time
    assert max(batches.sizes) <= 20
    lines = (tmp_path / "checkpoint" / "offsets" / "2").read_text().splitlines()
    noted = json.loads(lines[-1])
    assert noted[topic] == {"0": 31, "1": 25}  # 25 + 5 aborted + their marker
    assert noted["topic ids"].keys() == {topic}

    cluster.add_partitions(topic, 3)
    cluster.send(topic, numbered(6, first=50, partitions=3))
    undecided = cluster.transactional(topic, [{"value": "open", "partition": 1}], "open")
    again = Batches(read_stream(subscribe=topic, maxOffsetsPerTrigger=20), tmp_path / "checkpoint")
    again.run()
    assert sorted(again.values) == [f"v{n}" for n in range(50, 56)]
    cluster.end(undecided, topic, "commit")
    last = Batches(read_stream(subscribe=topic), tmp_path / "checkpoint")
    last.run()
    assert last.values == ["open"]
    nothing = Batches(read_stream(subscribe=topic), tmp_path / "checkpoint")
    nothing.run()
    assert nothing.values == []


def test_a_stream_says_what_was_deleted_under_it(cluster: Cluster, read_stream: Read, tmp_path: Path) -> None:
    topic = cluster.topic(partitions=1)
    cluster.send(topic, numbered(10, partitions=1))
    first = Batches(read_stream(subscribe=topic, maxOffsetsPerTrigger=5), tmp_path / "checkpoint")
    first.run()
    assert len(first.values) == 10
    cluster.send(topic, numbered(10, first=10, partitions=1))
    for done in cluster.admin.delete_records([TopicPartition(topic, 0, 14)]).values():
        done.result(30)
    with pytest.raises(Exception, match=r"offset 10 .*is gone; the log starts at 14.*failOnDataLoss=false"):
        Batches(read_stream(subscribe=topic), tmp_path / "checkpoint").run()
    left = Batches(read_stream(subscribe=topic, failOnDataLoss="false"), tmp_path / "checkpoint")
    left.run()
    assert sorted(left.values) == sorted(f"v{n}" for n in range(14, 20))


@pytest.mark.parametrize("limit", [None, 70], ids=["all at once", "limited"])
@pytest.mark.parametrize("again", [50, 300], ids=["shorter than before", "longer than before"])
def test_a_topic_that_was_created_again_is_read_from_its_start(
    cluster: Cluster, read_stream: Read, tmp_path: Path, again: int, limit: int | None
) -> None:
    topic = cluster.topic(partitions=1)
    cluster.send(topic, numbered(100, partitions=1))
    options = {"subscribe": topic} if limit is None else {"subscribe": topic, "maxOffsetsPerTrigger": limit}
    Batches(read_stream(**options), tmp_path / "checkpoint").run()
    cluster.recreate(topic)
    cluster.send(topic, numbered(again, first=1000, partitions=1))
    with pytest.raises(Exception, match=f"{topic} was deleted and created again.*failOnDataLoss=false"):
        Batches(read_stream(**options), tmp_path / "checkpoint").run()
    left = Batches(read_stream(**options, failOnDataLoss="false"), tmp_path / "checkpoint")
    left.run()
    assert sorted(left.values) == sorted(f"v{n}" for n in range(1000, 1000 + again))
    left.run()
    assert len(left.values) == again


def test_a_topic_that_was_created_again_without_records_yet(
    cluster: Cluster, read_stream: Read, tmp_path: Path
) -> None:
    topic = cluster.topic(partitions=1)
    cluster.send(topic, numbered(100, partitions=1))
    batches = Batches(read_stream(subscribe=topic, failOnDataLoss="false"), tmp_path / "checkpoint")
    batches.run()
    cluster.recreate(topic)
    batches.run()
    cluster.send(topic, numbered(30, first=1000, partitions=1))
    batches.run()
    assert sorted(batches.values[100:]) == sorted(f"v{n}" for n in range(1000, 1030))


@pytest.mark.parametrize("again", [0, 30, 300])
def test_a_loss_that_is_accepted_is_warned_of_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, again: int
) -> None:
    topic = cluster.topic(partitions=1)
    cluster.send(topic, numbered(100, partitions=1))
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, "failOnDataLoss": "false"}
    reader = StreamReader(ReadOptions.parse({**options, "startingOffsets": "earliest"}, streaming=True))
    position = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    cluster.recreate(topic)
    cluster.send(topic, numbered(again, first=1000, partitions=1))
    caplog.set_level(logging.WARNING)
    for _ in range(4):
        position = reader.latestOffset(position, ReadAllAvailable())
    said = [record.getMessage() for record in caplog.records if record.name.startswith("fleetlog.spark")]
    assert said == [f"{topic} was deleted and created again: its log is read from the start"]
    assert position[topic] == {"0": again}


def test_progress_has_the_lag(cluster: Cluster, read_stream: Read, tmp_path: Path) -> None:
    topic = cluster.topic()
    cluster.send(topic, numbered(30))
    writer = read_stream(subscribe=topic, maxOffsetsPerTrigger=10).writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = run_to_end(writer.trigger(availableNow=True).start)
    lags = [sum(lag(progress).values()) for progress in query.recentProgress if progress.numInputRows]
    assert lags == [20, 10, 0]
