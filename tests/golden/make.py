"""Writes golden bytes with the Python clients: ``python tests/golden/make.py`` (see README.md)."""

from __future__ import annotations

import importlib.metadata
import socket
from pathlib import Path
from typing import Any

from fleetlog.wire import messages
from tests.golden.content import PRODUCER, RECORDS

HERE = Path(__file__).parent
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def folder(client: str) -> Path:
    """A folder named after the client and its version."""
    path = HERE / f"{client}-{importlib.metadata.version(client)}"
    path.mkdir(exist_ok=True)
    return path


def with_kafka_python() -> None:
    """Its record batch builder."""
    from kafka.record.default_records import DefaultRecordBatchBuilder

    out = folder("kafka-python")
    for codec, name in enumerate(CODECS):
        builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
        _fill(builder)
        (out / f"batch-{name}.bin").write_bytes(bytes(builder.build()))
    builder = DefaultRecordBatchBuilder(2, 0, True, *PRODUCER, 1 << 20)
    _fill(builder)
    (out / "batch-transactional.bin").write_bytes(bytes(builder.build()))


def with_aiokafka() -> None:
    """Its record batch builder, compiled."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    out = folder("aiokafka")
    for codec, name in enumerate(CODECS):
        builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
        _fill(builder)
        (out / f"batch-{name}.bin").write_bytes(bytes(builder.build()))
    builder = DefaultRecordBatchBuilder(2, 0, 1, *PRODUCER, 1 << 20)
    _fill(builder)
    (out / "batch-transactional.bin").write_bytes(bytes(builder.build()))


def _fill(builder: Any) -> None:
    for number, record in enumerate(RECORDS):
        builder.append(number, record.timestamp, record.key, record.value, list(record.headers))


def with_librdkafka() -> None:
    """Produced to librdkafka's own mock cluster and fetched from it as it was stored."""
    from confluent_kafka import Producer

    out = folder("confluent-kafka")
    for name in CODECS:
        producer = Producer(
            {
                "test.mock.num.brokers": 1,
                "bootstrap.servers": "unused",
                "compression.type": name,
                "linger.ms": 1000,
                "acks": "all",
            }
        )
        for record in RECORDS:
            producer.produce(
                "golden", record.value, record.key, 0, timestamp=record.timestamp, headers=list(record.headers)
            )
        assert producer.flush(20) == 0
        broker = next(iter(producer.list_topics().brokers.values()))
        (out / f"batch-{name}.bin").write_bytes(_fetch(broker.host, broker.port))


def _fetch(host: str, port: int) -> bytes:
    request = messages.FetchRequest(
        version=4, replica_id=-1, max_wait_ms=1000, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
        topics=[
            messages.FetchRequest.FetchTopic(
                topic="golden",
                partitions=[
                    messages.FetchRequest.FetchTopic.FetchPartition(
                        partition=0, fetch_offset=0, partition_max_bytes=1 << 20
                    )
                ],
            )
        ],
    )  # fmt: skip
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(messages.encode_request(1, 4, 1, "golden", request))
        stream = connection.makefile("rb")
        payload = stream.read(int.from_bytes(stream.read(4), "big"))
    response = messages.decode_response(1, 4, memoryview(payload)[4:])
    return bytes(response.responses[0].partitions[0].records)


if __name__ == "__main__":
    with_kafka_python()
    with_aiokafka()
    with_librdkafka()
