"""The records of ``__transaction_state``, byte for byte Kafka's: key v0, value v0 and the flexible v1.

Source: TransactionLogKey.json and TransactionLogValue.json of Kafka 4.1; compact types and tags by KIP-482. Topics and
partitions are written in sorted order, so that equal states give equal bytes. A sink's batch, the flag of an abort by
timeout and the epoch before an InitProducerId are in fleetlog's own tagged fields, which Kafka's readers skip.
"""

from __future__ import annotations

import struct
from itertools import starmap

from fleetlog._native.byte_reader import ByteReader, varint_bytes
from fleetlog.txn.batches import BatchFence, BatchMember, SinkBatch, members_of
from fleetlog.txn.states import TransactionState
from fleetlog.txn.transaction import Transaction
from fleetlog.wire.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

__all__ = [
    "RecordError",
    "decode_transaction",
    "decode_transaction_key",
    "encode_transaction",
    "encode_transaction_key",
]

KEY_VERSION = 0
LEGACY_VERSION, FLEXIBLE_VERSION = 0, 1
_TAG_PREVIOUS_ID, _TAG_NEXT_ID, _TAG_CLIENT_VERSION = 0, 1, 2
_TAG_BATCH, _TAG_TIMED_OUT, _TAG_EPOCH_BEFORE = 100, 101, 102
_BATCH_VERSION = 0
_MEMBER = struct.Struct(">qh")
_FENCE = struct.Struct(">qq")  # batch id, time of the commit
_FIXED = struct.Struct(">qhib")  # producer id, epoch, timeout, status
_TIMES = struct.Struct(">qq")  # last update, start


class RecordError(ValueError):
    """The bytes are not a record of this topic."""


def encode_transaction_key(transactional_id: str) -> bytes:
    """Key v0."""
    name = transactional_id.encode()
    return struct.pack(">hh", KEY_VERSION, len(name)) + name


def decode_transaction_key(key: bytes) -> str | None:
    """The transactional id; None for an unknown key version. Raises RecordError."""
    reader = _Reader(key)
    if reader.int16() != KEY_VERSION:
        return None
    return reader.text(reader.int16())


def encode_transaction(transaction: Transaction, version: int = FLEXIBLE_VERSION) -> bytes:
    """Value v0 (transaction version 0) or v1. v0 has no fields for previous and next producer ids."""
    assert version in (LEGACY_VERSION, FLEXIBLE_VERSION)
    flexible = version >= FLEXIBLE_VERSION
    t = transaction
    parts = [struct.pack(">h", version), _FIXED.pack(t.producer_id, t.producer_epoch, t.timeout_ms, t.state)]
    if t.state is TransactionState.EMPTY:
        assert not t.partitions
        parts.append(b"\0" if flexible else struct.pack(">i", -1))
    else:
        parts.append(_encode_partitions(t.partitions, flexible))
    parts.append(_TIMES.pack(t.last_update_ms, t.start_ms))
    if flexible:
        parts.append(_encode_tags(t))
    return b"".join(parts)


def _encode_partitions(partitions: frozenset[TopicPartition], flexible: bool) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    parts = [_length(len(by_topic), flexible)]
    for topic, indexes in by_topic.items():
        name = topic.encode()
        parts.append(varint_bytes(len(name) + 1) if flexible else struct.pack(">h", len(name)))
        parts.append(name)
        parts.append(_length(len(indexes), flexible))
        parts.append(struct.pack(f">{len(indexes)}i", *indexes))
        if flexible:
            parts.append(b"\0")
    return b"".join(parts)


def _encode_tags(t: Transaction) -> bytes:
    tags: list[tuple[int, bytes]] = []
    if t.previous_producer_id != NO_PRODUCER_ID:
        tags.append((_TAG_PREVIOUS_ID, struct.pack(">q", t.previous_producer_id)))
    if t.next_producer_id != NO_PRODUCER_ID:
        tags.append((_TAG_NEXT_ID, struct.pack(">q", t.next_producer_id)))
    if t.client_version != 0:
        tags.append((_TAG_CLIENT_VERSION, struct.pack(">h", t.client_version)))
    if t.batch is not None:
        tags.append((_TAG_BATCH, _encode_batch(t.batch)))
    if t.timed_out:
        tags.append((_TAG_TIMED_OUT, b""))
    if t.epoch_before != NO_PRODUCER_EPOCH:
        tags.append((_TAG_EPOCH_BEFORE, struct.pack(">h", t.epoch_before)))
    return varint_bytes(len(tags)) + b"".join(varint_bytes(tag) + varint_bytes(len(data)) + data for tag, data in tags)


def _encode_batch(batch: SinkBatch) -> bytes:
    parts = [struct.pack(">h", _BATCH_VERSION)]
    for members in (batch.members, batch.slots, batch.winners):
        parts.append(varint_bytes(len(members)))
        parts += starmap(_MEMBER.pack, members)
    fence = batch.fence
    if fence is None:
        parts.append(b"\0")
    else:
        parts.append(b"\1" + _FENCE.pack(fence.batch_id, fence.committed_ms))
        for text in (fence.query_id, fence.digest):
            data = text.encode()
            parts.append(varint_bytes(len(data)) + data)
    return b"".join(parts)


def _decode_batch(data: bytes) -> SinkBatch:
    reader = _Reader(data)
    version = reader.int16()
    if version != _BATCH_VERSION:
        raise RecordError(f"unknown batch version {version}: a newer fleetlog wrote it")
    members, slots, winners = (_decode_members(reader) for _ in range(3))
    fence = None
    if reader.take(1) != b"\0":
        batch_id, committed_ms = reader.unpack(_FENCE)
        query_id, digest = (reader.text(reader.varint()) for _ in range(2))
        fence = BatchFence(query_id, batch_id, digest, committed_ms)
    reader.finish()
    return SinkBatch(members, slots, winners, fence)


def _decode_members(reader: _Reader) -> tuple[BatchMember, ...]:
    return tuple(members_of(_MEMBER.iter_unpack(reader.take(reader.varint() * _MEMBER.size))))


def decode_transaction(value: bytes) -> Transaction | None:
    """The state; None for an unknown version. Raises RecordError. Unknown tags are skipped."""
    reader = _Reader(value)
    version = reader.int16()
    if version not in (LEGACY_VERSION, FLEXIBLE_VERSION):
        return None
    flexible = version >= FLEXIBLE_VERSION
    producer_id, epoch, timeout_ms, status = reader.unpack(_FIXED)
    try:
        state = TransactionState(status)
    except ValueError:
        raise RecordError(f"unknown transaction status {status}") from None
    partitions = _decode_partitions(reader, flexible)
    last_update_ms, start_ms = reader.unpack(_TIMES)
    tags = _decode_tags(reader) if flexible else {}
    reader.finish()
    batch = tags.get(_TAG_BATCH)
    return Transaction(
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=partitions,
        start_ms=start_ms,
        last_update_ms=last_update_ms,
        previous_producer_id=_number(tags.get(_TAG_PREVIOUS_ID), NO_PRODUCER_ID),
        next_producer_id=_number(tags.get(_TAG_NEXT_ID), NO_PRODUCER_ID),
        client_version=_number(tags.get(_TAG_CLIENT_VERSION), 0),
        batch=None if batch is None else _decode_batch(batch),
        timed_out=_TAG_TIMED_OUT in tags,
        epoch_before=_number(tags.get(_TAG_EPOCH_BEFORE), NO_PRODUCER_EPOCH),
    )


def _number(data: bytes | None, default: int) -> int:
    return default if data is None else int.from_bytes(data, "big", signed=True)


def _decode_partitions(reader: _Reader, flexible: bool) -> frozenset[TopicPartition]:
    partitions: set[TopicPartition] = set()
    for _ in range(reader.length(flexible)):
        topic = reader.text(reader.varint() - 1 if flexible else reader.int16())
        count = reader.length(flexible)
        indexes = reader.unpack(struct.Struct(f">{count}i"))
        partitions.update(TopicPartition(topic, index) for index in indexes)
        if flexible:
            _decode_tags(reader)
    return frozenset(partitions)


def _decode_tags(reader: _Reader) -> dict[int, bytes]:
    known = {}
    for _ in range(reader.varint()):
        tag, size = reader.varint(), reader.varint()
        known[tag] = reader.take(size)
    return known


def _length(count: int, flexible: bool) -> bytes:
    return varint_bytes(count + 1) if flexible else struct.pack(">i", count)


class _Reader(ByteReader[bytes]):
    """Reads a record's key or value: any bytes give a value or a RecordError."""

    def error(self, reason: str) -> RecordError:
        return RecordError(reason)

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def length(self, flexible: bool) -> int:
        """The length of an array; null counts as empty."""
        count = self.varint() - 1 if flexible else int.from_bytes(self.take(4), "big", signed=True)
        if count > self.end:
            raise RecordError(f"an array of {count} entries in {self.end} bytes")
        return max(0, count)

    def text(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise RecordError("a name that is not UTF-8") from None
