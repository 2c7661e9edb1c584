"""Requests as ready bytes for the generator, with the places that it reads and moves.

Produce 11 and Fetch 12 name their topics, so one frame serves every server; both are flexible versions (KIP-482) that
Apache Kafka 4 and its clients of the last years speak. Positions in answers follow from the topic's name alone.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fleetlog._native.batch import Record, encode_batch
from fleetlog.wire import messages

PRODUCE, FETCH = 0, 1
PRODUCE_VERSION, FETCH_VERSION = 11, 12
OFFSET_COMMIT, OFFSET_COMMIT_VERSION = 8, 8
END_TXN, END_TXN_VERSION = 26, 3
CLIENT_ID = "perf"
SOURCE = "fleetlog.source"
ALL = -1
_HEAD = struct.Struct("<6I2Q")
_OFFSET_MARK = 0x0123456789ABCDEF


class Frame(NamedTuple):
    """One request. ``error_at`` and ``records_at`` count from behind the answer's length, ``offset_at`` in the frame.

    ``payload``: bytes of records it carries. A fetch starts again at offset 0 when it reaches ``wrap`` (0: never).
    """

    data: bytes
    error_at: int
    records_at: int = 0
    offset_at: int = 0
    batch_bytes: int = 0
    batch_records: int = 0
    payload: int = 0
    wrap: int = 0


def batch_of(batch_bytes: int, record_bytes: int, now_ms: int = 0, **producer: Any) -> tuple[bytes, int]:
    """A batch of about ``batch_bytes`` made of records of about ``record_bytes``, and their number.

    ``producer``: its id, epoch and sequence, and attributes, as ``encode_batch`` names them.
    """
    noise = random.Random(batch_bytes)
    count = max(1, batch_bytes // record_bytes)
    value = noise.randbytes(max(1, batch_bytes // count - 9))
    now = now_ms or time.time_ns() // 1_000_000
    batch = bytes(encode_batch([Record(-1, now, None, value)] * count, **producer))
    excess = len(batch) - batch_bytes
    if excess > 0 and excess // count + 1 < len(value):
        value = value[: -(excess // count + 1)]
        batch = bytes(encode_batch([Record(-1, now, None, value)] * count, **producer))
    return batch, count


def sourced_batch(count: int, value_bytes: int, first: int, now_ms: int, step: int = 1) -> bytes:
    """A batch whose records name their positions in a source, as a topic that drops duplicates wants them.

    They are ``step`` apart, as records are that a key has sent to one of so many partitions.
    """
    value = random.Random(value_bytes).randbytes(value_bytes)
    rows = [
        Record(-1, now_ms, b"k%d" % (first + n), value, ((SOURCE, b"enrich:orders-3:%d:0" % ((first + n) * step)),))
        for n in range(count)
    ]
    return bytes(encode_batch(rows))


def framed_batch(count: int, value_bytes: int, number: int, now_ms: int) -> bytes:
    """A batch whose values begin with the id of a schema, as serializers write it."""
    value = b"\0" + number.to_bytes(4, "big") + random.Random(value_bytes).randbytes(value_bytes - 5)
    return bytes(encode_batch([Record(-1, now_ms, None, value, ())] * count))


ORDER: Any = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "paid", "type": "boolean"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": "string"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "place", "type": {"type": "record", "name": "Place", "fields": [
            {"name": "x", "type": "double"}, {"name": "y", "type": "double"}]}},
    ],
}  # fmt: skip
"""A schema of Avro with ten fields of all kinds."""


def order_payload() -> bytes:
    """A value of :data:`ORDER` of 1,000 bytes, some letters of which are not ASCII."""

    def text(data: bytes) -> bytes:
        size = 2 * len(data)  # zig-zag
        return (bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])) + data

    tags = b"".join(text(b"t" * 20) for _ in range(10))
    more = b"".join(text(b"k%d" % n) + text(b"v" * 30) for n in range(10))
    head = b"\xca\1" + text(b"c" * 100) + text((12_345_678).to_bytes(4, "big")) + b"\x80\xa0\xbf\x90\xc0\x63\1"
    tail = b"\x14" + tags + b"\0\x14" + more + b"\0\2" + struct.pack("<2d", 1.5, 2.5)
    note = "né".encode() * 100
    return head + b"\2" + text(note + b"n" * (996 - len(head) - len(tail) - len(note) + 1)) + tail


def checked_batch(count: int, number: int, now_ms: int) -> bytes:
    """A batch of values of :data:`ORDER` behind a schema's id, about as large as those of 1 KiB each."""
    value = b"\0" + number.to_bytes(4, "big") + order_payload()
    return bytes(encode_batch([Record(-1, now_ms, None, value, ())] * count))


def produce_frame(
    topic: str,
    partition: int,
    batch: bytes,
    acks: int = ALL,
    correlation_id: int = 0,
    transactional_id: str | None = None,
) -> Frame:
    """A Produce of one batch."""
    # the library wants the records as an object of its own: leave a hole and fill it
    request = messages.request_class(PRODUCE)
    data = request.TopicProduceData
    message = request(
        version=PRODUCE_VERSION, transactional_id=transactional_id, acks=acks, timeout_ms=30_000,
        topic_data=[data(name=topic, partition_data=[data.PartitionProduceData(index=partition, records=batch)])],
    )  # fmt: skip
    frame = messages.encode_request(PRODUCE, PRODUCE_VERSION, correlation_id, CLIENT_ID, message)
    assert batch in frame, "the batch is carried as it is"
    # correlation id, header tags, responses, name, partitions, index
    return Frame(frame, error_at=4 + 1 + 1 + 1 + len(topic) + 1 + 4, payload=len(batch))


def fetch_frame(
    topic: str,
    partition: int,
    *,
    batch_bytes: int,
    batch_records: int,
    max_bytes: int,
    wrap: int = 0,
    offset: int = 0,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    session_id: int = 0,
    session_epoch: int = -1,
) -> Frame:
    """A Fetch of one partition whose batches are all alike; without a fetch session, unless one is named."""
    request = messages.request_class(FETCH)

    def encoded(position: int) -> bytes:
        part = request.FetchTopic.FetchPartition(
            partition=partition, current_leader_epoch=-1, fetch_offset=position, last_fetched_epoch=-1,
            log_start_offset=-1, partition_max_bytes=max_bytes,
        )  # fmt: skip
        message = request(
            version=FETCH_VERSION, max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes,
            isolation_level=0, session_id=session_id, session_epoch=session_epoch, rack_id="",
            forgotten_topics_data=[], topics=[request.FetchTopic(topic=topic, partitions=[part])],
        )  # fmt: skip
        return messages.encode_request(FETCH, FETCH_VERSION, 0, CLIENT_ID, message)

    offset_at = encoded(_OFFSET_MARK).index(_OFFSET_MARK.to_bytes(8, "big"))
    # correlation id, header tags, throttle, error, session, responses, name, partitions, index
    error_at = 4 + 1 + 4 + 2 + 4 + 1 + 1 + len(topic) + 1 + 4
    # error, three offsets, no aborted transactions, preferred replica
    records_at = error_at + 2 + 24 + 1 + 4
    return Frame(encoded(offset), error_at, records_at, offset_at, batch_bytes, batch_records, 0, wrap)


def offset_commit_frame(group: str, topic: str, partition: int, offset: int) -> Frame:
    """An OffsetCommit of one partition, of a consumer that assigns its partitions itself."""
    request = messages.request_class(OFFSET_COMMIT)
    part = request.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
    )
    message = request(
        version=OFFSET_COMMIT_VERSION, group_id=group, generation_id_or_member_epoch=-1, member_id="",
        group_instance_id=None, topics=[request.OffsetCommitRequestTopic(name=topic, partitions=[part])],
    )  # fmt: skip
    frame = messages.encode_request(OFFSET_COMMIT, OFFSET_COMMIT_VERSION, 0, CLIENT_ID, message)
    # correlation id, header tags, throttle, topics, name, partitions, index
    return Frame(frame, error_at=4 + 1 + 4 + 1 + 1 + len(topic) + 1 + 4)


def end_txn_frame(transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool) -> Frame:
    """An EndTxn of a client without transaction version 2."""
    message = messages.request_class(END_TXN)(
        version=END_TXN_VERSION, transactional_id=transactional_id, producer_id=producer_id,
        producer_epoch=producer_epoch, committed=commit,
    )  # fmt: skip
    frame = messages.encode_request(END_TXN, END_TXN_VERSION, 0, CLIENT_ID, message)
    return Frame(frame, error_at=4 + 1 + 4)  # correlation id, header tags, throttle


def write_frames(path: Path, frames: Sequence[Frame]) -> None:
    """The file the generator reads."""
    with path.open("wb") as out:
        out.write(struct.pack("<I", len(frames)))
        for frame in frames:
            out.write(
                _HEAD.pack(
                    len(frame.data), frame.error_at, frame.records_at, frame.offset_at, frame.batch_bytes,
                    frame.batch_records, frame.payload, frame.wrap,
                )
            )  # fmt: skip
            out.write(frame.data)
