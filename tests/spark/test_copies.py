"""Spark copies sources, readers and writers into other processes by pickling them: no copy opens a connection."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from fleetlog.spark.client.failures import FenceError
from fleetlog.spark.data_source import FleetlogSource, SegmentsSource
from fleetlog.spark.sink import batch_transactions, modes, writer
from fleetlog.spark.sink.batch_transactions import OpenBatch
from fleetlog.spark.sink.fence import Fence

READ = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
WRITE = {"kafka.bootstrap.servers": "127.0.0.1:1", "sinkId": "s", "topic": "t"}
SCHEMA = StructType([StructField("value", StringType())])
COLUMNS = {
    "key": BinaryType, "value": BinaryType, "topic": StringType, "partition": IntegerType, "offset": LongType,
    "timestamp": TimestampType, "timestampType": IntegerType,
}  # fmt: skip
ROWS = StructType([StructField(name, kind()) for name, kind in COLUMNS.items()])
BEGUN = OpenBatch("s", 7, 3, Fence("q", 41), 2)


def copied(value: Any) -> Any:
    """As Spark sends it to another process."""
    serializer = CloudPickleSerializer()
    return serializer.loads(serializer.dumps(value))


@pytest.fixture
def begins(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """No socket opens, no library of the brokers is entered; the timeouts of the batches that were begun."""
    calls: list[int] = []

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("network I/O")

    def begin(_: Any, transaction_timeout_ms: int) -> OpenBatch:
        calls.append(transaction_timeout_ms)
        return BEGUN

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(modes, "Client", refuse)
    monkeypatch.setattr(modes, "read_driver_fence", refuse)
    monkeypatch.setattr(writer, "shared_client", lambda _: None)
    monkeypatch.setattr(batch_transactions.BatchTransactions, "supported", lambda _: True)
    monkeypatch.setattr(batch_transactions.BatchTransactions, "begin", begin)
    return calls


def test_readers_are_copied_without_network(begins: list[int], tmp_path: Any) -> None:
    source = copied(FleetlogSource(dict(READ)))
    segments = copied(SegmentsSource({"path": str(tmp_path)}))
    for reader in (source.reader(ROWS), source.streamReader(ROWS), segments.reader(ROWS)):
        assert type(copied(reader)) is type(reader)
    assert begins == []


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_a_writers_batch_is_begun_once_and_travels_with_its_copies(begins: list[int], kind: str) -> None:
    planned = getattr(FleetlogSource({**WRITE, "sink.transaction.timeout.ms": "4000"}), kind)(SCHEMA, False)
    assert begins == [4000]
    first, second = copied(planned), copied(copied(planned))
    assert first.batch == second.batch == planned.batch == BEGUN
    assert begins == [4000]


def test_the_writer_that_commits_begins_nothing(begins: list[int]) -> None:
    committing = copied(FleetlogSource(dict(WRITE))).streamWriter(SCHEMA, False)
    assert begins == []
    with pytest.raises(FenceError, match="sink s: no batch was begun"):
        committing.write(iter(()))


def test_a_copy_of_a_writer_that_was_never_begun_writes_nothing(begins: list[int]) -> None:
    from fleetlog.spark.sink.options import WriteOptions

    with pytest.raises(FenceError, match="no batch was begun"):
        copied(writer.BatchWriter(WriteOptions.parse(WRITE))).write(iter(()))
    assert begins == []
