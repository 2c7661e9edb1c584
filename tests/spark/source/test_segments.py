"""Log directories read without their brokers, beside what a stock read_committed consumer sees."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetlog._native.batch import BatchHeader, encode_batch, parse_header
from fleetlog._native.batch_py import Record
from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.numbers import LATEST, READ_UNCOMMITTED
from fleetlog.spark.source.segments import AbortedSpan, _checkpoint, resolve_transactions
from fleetlog.wire.types import TopicPartition
from tests.spark.client.rig import Rig, rows
from tests.spark.conftest import Cluster
from tests.support.fleet import Fleet

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side


@pytest.fixture
def own_fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Three brokers that note their high watermarks every second: what is read of a directory ends there."""
    fleet = Fleet(tmp_path, log_flush_offset_checkpoint_interval_ms=1_000)
    try:
        yield fleet
    finally:
        fleet.close()


def read(spark: Any, path: Path, **options: str) -> Any:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return spark.read.format("fleetlog_segments").options(**named).load(str(path))


def noted(path: Path, topic: str, partition: int, offset: int) -> None:
    """Until the broker has noted that high watermark."""
    deadline = time.monotonic() + 60
    file = path / "replication-offset-checkpoint"
    tp = TopicPartition(topic, partition)
    while _checkpoint(file).get(tp, -1) < offset:
        assert time.monotonic() < deadline, file.read_text() if file.exists() else "no checkpoint"
        time.sleep(0.2)


def test_directories_show_what_a_consumer_sees(own_fleet: Fleet, spark: Any) -> None:
    own_fleet.start()
    cluster = Cluster(own_fleet.bootstrap)
    rig = Rig(cluster, partitions=2)
    topic, directory = rig.topic, own_fleet.brokers[0].directory / "data"
    cluster.send(topic, [{"value": f"plain{n}", "partition": n % 2, "headers": [("h", b"%d" % n)]} for n in range(50)])
    cluster.transactional(topic, [{"value": f"no{n}", "partition": 0} for n in range(20)], "abort")
    cluster.transactional(topic, [{"value": f"yes{n}", "partition": 1} for n in range(20)], "commit")
    batch = rig.sink.begin(60_000)
    members = []
    for number in range(3):
        member, producer = rig.task(batch)
        producer.write(rows(100 * number, 100))
        producer.flush()
        members.append(member)
    rig.sink.commit(batch, "q", 0, "", members[:2])
    rig.settled(270)
    undecided = cluster.producer(transactional_id=f"open-{topic}", transaction_timeout_ms=600_000)
    undecided.init_transactions(30)
    undecided.begin_transaction()
    undecided.produce(topic, value="open", partition=0)
    assert undecided.flush(30) == 0
    cluster.send(topic, [{"value": "behind the open one", "partition": 0}])
    everything = cluster.read(topic, "read_uncommitted")
    for partition in (0, 1):
        noted(directory, topic, partition, cluster_end(cluster, topic, partition))
    expected = sorted((m.partition(), m.offset(), m.key(), m.value()) for m in cluster.read(topic))
    found = read(spark, directory, subscribe=topic)
    assert found.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert expected == sorted((row.partition, row.offset, _bytes(row.key), bytes(row.value)) for row in found.collect())
    dirty = read(spark, directory, subscribe=topic, kafka__isolation__level="read_uncommitted", includeHeaders="true")
    assert dirty.count() == len(everything)
    (row,) = dirty.where("string(value) = 'plain7'").collect()
    assert [(h.key, bytes(h.value)) for h in row.headers] == [("h", b"7")]
    undecided.abort_transaction(30)
    deadline = time.monotonic() + 60
    while len(cluster.values(topic)) == len(expected):
        assert time.monotonic() < deadline, "the open transaction is not aborted"
        time.sleep(0.2)
    for broker in own_fleet.brokers:
        assert broker.stop() == 0
    assert read(spark, directory, until="end").where(f"topic = '{topic}'").count() == len(expected) + 1


def cluster_end(cluster: Cluster, topic: str, partition: int) -> int:
    client = Client({"bootstrap_servers": cluster.bootstrap.split(",")})
    tp = TopicPartition(topic, partition)
    found = client.offsets({tp: LATEST}, READ_UNCOMMITTED)[tp][0]
    client.close()
    return found


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def data(offset: int, producer: int, count: int = 1) -> tuple[BatchHeader, bytes]:
    records = [Record(offset + n, 0, None, b"v") for n in range(count)]
    raw = encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=0, attributes=0x10)
    return parse_header(raw)._replace(base_offset=offset), b""


def marker(offset: int, producer: int, kind: int, follow: int | None = None) -> tuple[BatchHeader, bytes]:
    value = b"\0\0" + bytes(4) + (b"" if follow is None else follow.to_bytes(4, "big"))
    record = Record(offset, 0, b"\0\0" + kind.to_bytes(2, "big"), value)
    raw = encode_batch([record], producer_id=producer, producer_epoch=0, attributes=0x30)
    return parse_header(raw)._replace(base_offset=offset), raw


def test_transactions_are_followed() -> None:
    log = [data(0, 1, 5), data(5, 2), marker(6, 1, 0), data(7, 1), marker(8, 2, 1), data(9, 3)]
    found = resolve_transactions(log, 100)
    assert found.aborted == [AbortedSpan(1, 0, 6)]
    assert found.stable == 7, "producer 1 began again at 7, and 3 is open, too"
    assert resolve_transactions(log, 7).stable == 5
    assert resolve_transactions(log[:3], 7).stable == 5


def test_a_run_of_markers_decides_when_it_is_whole() -> None:
    log = [data(0, 1), data(1, 2), marker(2, 1, 1, 1), marker(3, 2, 0, 0)]
    assert resolve_transactions(log, 100).stable == 100
    assert resolve_transactions(log[:3], 100).stable == 0
    assert resolve_transactions(log, 3).stable == 0, "the second marker is above the high watermark"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": "high"}, "option speed is unknown"),
        ({"until": "noon"}, "option until"),
        ({"kafka__isolation__level": "dirty"}, "isolation.level"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "at most one"),
        ({}, "is no directory"),
    ],
)
def test_wrong_options_are_named(spark: Any, tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        read(spark, tmp_path / "nothing", **options).count()


def test_a_damaged_checkpoint_is_named(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "replication-offset-checkpoint").write_text("0\n7\n")
    with pytest.raises(Exception, match=r"replication-offset-checkpoint is damaged"):
        read(spark, tmp_path).count()
    assert read(spark, tmp_path, until="end").count() == 0
