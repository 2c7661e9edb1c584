"""Values of the consumer protocol's records in ``__consumer_offsets``, byte for byte as Kafka 4.4 writes them.

Source: the ConsumerGroup*Value schemas of Kafka's group coordinator, version 0, all flexible: compact strings and
arrays, tagged fields. Kafka's order within a set is arbitrary; here topics and partitions are sorted. The members' ids
and the assignments' topic ids stand as in the requests; a partition is (topic id, index).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from fleetlog._native.byte_reader import varint_bytes
from fleetlog.brokers.groups.members import PROTOCOL_BYTES
from fleetlog.brokers.groups.records import BadRecord, ConsumerKey, RecordReader, consumer_key
from fleetlog.brokers.groups.requests import Protocol
from fleetlog.txn.commands import CoordinatorRecord

Partition = tuple[bytes, int]
"""A partition by its topic's id."""
STABLE, UNREVOKED, UNRELEASED = 0, 1, 2
"""States of a member: it has its target, has to give up partitions first, or waits for partitions of others."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_CURRENT = struct.Struct(">hiib")
_ID_BYTES = 16


class Classic(NamedTuple):
    """What a member of the classic protocol has said in its JoinGroup: its session timeout and its protocols."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]

    @property
    def size(self) -> int:
        """Its bytes in memory."""
        return sum(PROTOCOL_BYTES + len(one.name) + len(one.metadata) for one in self.protocols)


class MemberValue(NamedTuple):
    """What a member has said of itself; ``classic`` if it uses the classic protocol."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: Classic | None = None

    @property
    def subscription(self) -> Subscription:
        """The names that it subscribes to, and its pattern."""
        return self.topics, self.regex


Subscription = tuple[tuple[str, ...], str | None]
NO_PARTITIONS: Mapping[Partition, int] = MappingProxyType({})


class Current(NamedTuple):
    """What a member has: the partitions assigned to it and those that it must give up, with assignment epochs."""

    epoch: int = 0
    previous_epoch: int = 0
    state: int = STABLE
    assigned: Mapping[Partition, int] = NO_PARTITIONS
    pending: Mapping[Partition, int] = NO_PARTITIONS


class Resolved(NamedTuple):
    """The topics that a regular expression matches; ``version`` is the change-log entry that was looked at."""

    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


def record(key: ConsumerKey, value: bytes | None) -> CoordinatorRecord:
    """A record; a value of None is a tombstone."""
    return CoordinatorRecord(consumer_key(key), value)


# --- encoding ---------------------------------------------------------------------------------------------------


def compact_text(value: str | None) -> bytes:
    """A compact string, which may be null."""
    if value is None:
        return b"\0"
    raw = value.encode()
    return varint_bytes(len(raw) + 1) + raw


def compact_texts(values: Iterable[str]) -> bytes:
    """A compact array of strings."""
    encoded = [compact_text(value) for value in values]
    return varint_bytes(len(encoded) + 1) + b"".join(encoded)


def compact_numbers(values: list[int]) -> bytes:
    """A compact array of int32."""
    return varint_bytes(len(values) + 1) + struct.pack(f">{len(values)}i", *values)


def _tags(tags: Mapping[int, bytes]) -> bytes:
    encoded = [varint_bytes(tag) + varint_bytes(len(raw)) + raw for tag, raw in tags.items()]
    return varint_bytes(len(encoded)) + b"".join(encoded)


def indexes_by_topic(partitions: Iterable[Partition]) -> dict[bytes, list[int]]:
    """Indexes by topic id, both sorted."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return topics


def _with_epochs(partitions: Mapping[Partition, int]) -> bytes:
    rows = []
    for topic_id, indexes in indexes_by_topic(partitions).items():
        epochs = compact_numbers([partitions[topic_id, index] for index in indexes])
        rows.append(topic_id + compact_numbers(indexes) + _tags({0: epochs}))
    return varint_bytes(len(rows) + 1) + b"".join(rows)


def epoch_value(epoch: int, number: int) -> bytes:
    """Value of key 3: the group's epoch, and a hash of what its topics were.

    And of key 6: the group epoch that the target assignment is for, and when it was computed, in ms.
    """
    return _I16.pack(0) + _I32.pack(epoch) + _tags({0: _I64.pack(number)} if number else {})


def member_value(member: MemberValue) -> bytes:
    """Value of key 5."""
    return b"".join(
        (
            _I16.pack(0),
            compact_text(member.instance_id),
            compact_text(member.rack_id),
            compact_text(member.client_id),
            compact_text(member.client_host),
            compact_texts(member.topics),
            compact_text(member.regex),
            _I32.pack(member.rebalance_timeout_ms),
            compact_text(member.assignor),
            _tags({} if member.classic is None else {0: _classic(member.classic)}),
        )
    )


def _classic(classic: Classic) -> bytes:
    """A structure that may be null: 1 says that it is there."""
    rows = [
        compact_text(one.name) + varint_bytes(len(one.metadata) + 1) + one.metadata + b"\0" for one in classic.protocols
    ]
    head = b"\1" + _I32.pack(classic.session_timeout_ms) + varint_bytes(len(rows) + 1)
    return head + b"".join(rows) + b"\0"


def member_target_value(partitions: Iterable[Partition]) -> bytes:
    """Value of key 7."""
    rows = [topic_id + compact_numbers(indexes) + b"\0" for topic_id, indexes in indexes_by_topic(partitions).items()]
    return _I16.pack(0) + varint_bytes(len(rows) + 1) + b"".join(rows) + b"\0"


def current_value(current: Current) -> bytes:
    """Value of key 8."""
    head = _CURRENT.pack(0, current.epoch, current.previous_epoch, current.state)
    return head + _with_epochs(current.assigned) + _with_epochs(current.pending) + b"\0"


def regex_value(resolved: Resolved) -> bytes:
    """Value of key 16."""
    numbers = _I64.pack(resolved.version) + _I64.pack(resolved.timestamp_ms)
    return _I16.pack(0) + compact_texts(resolved.topics) + numbers + b"\0"


# --- decoding: None for a version above 0; raises BadRecord -------------------------------------------------------


def _reader(raw: bytes) -> RecordReader | None:
    reader = RecordReader(raw)
    if reader.i16() != 0:
        return None
    reader.flexible = True
    return reader


def _number_array(reader: RecordReader) -> list[int]:
    return [reader.i32() for _ in range(reader.array_size())]


@lru_cache(maxsize=10_000)
def _same_id(topic_id: bytes) -> bytes:
    """One object for all members that have partitions of the topic."""
    return topic_id


def _partitions(reader: RecordReader, epoch: int) -> dict[Partition, int]:
    """Partitions with their assignment epochs; ``epoch`` where the writer knew of none."""
    partitions: dict[Partition, int] = {}
    for _ in range(reader.array_size()):
        topic_id, indexes = _same_id(reader.take(_ID_BYTES)), _number_array(reader)
        tag = reader.tags().get(0)
        epochs = [epoch] * len(indexes)
        if tag is not None and tag != b"\0":
            epochs = _number_array(RecordReader(tag, flexible=True))
        if len(epochs) != len(indexes):
            raise BadRecord(f"{len(epochs)} epochs of {len(indexes)} partitions")
        partitions.update(zip(((topic_id, index) for index in indexes), epochs, strict=True))
    return partitions


def _tagged_i64(reader: RecordReader) -> int:
    raw = reader.tags().get(0)
    return 0 if raw is None else RecordReader(raw).i64()


def decode_epoch(raw: bytes) -> tuple[int, int] | None:
    """Epoch and hash of key 3, epoch and time of key 6."""
    reader = _reader(raw)
    return None if reader is None else (reader.i32(), _tagged_i64(reader))


def decode_member(raw: bytes) -> MemberValue | None:
    """Value of key 5."""
    reader = _reader(raw)
    if reader is None:
        return None
    instance_id, rack_id = reader.nullable_string(), reader.nullable_string()
    client_id, client_host = reader.string(), reader.string()
    topics = tuple(reader.string() for _ in range(reader.array_size()))
    regex, rebalance_timeout_ms, assignor = reader.nullable_string(), reader.i32(), reader.nullable_string()
    tag = reader.tags().get(0)
    classic = None if tag is None else _decode_classic(RecordReader(tag, flexible=True))
    return MemberValue(
        instance_id, rack_id, client_id, client_host, topics, regex, rebalance_timeout_ms, assignor, classic
    )


def _decode_classic(reader: RecordReader) -> Classic | None:
    if reader.take(1) != b"\1":
        return None
    session_timeout_ms, protocols = reader.i32(), []
    for _ in range(reader.array_size()):
        protocols.append(Protocol(reader.string(), bytes(reader.blob())))
        reader.tags()
    return Classic(session_timeout_ms, tuple(protocols))


def decode_member_target(raw: bytes) -> tuple[Partition, ...] | None:
    """Value of key 7."""
    reader = _reader(raw)
    return None if reader is None else tuple(sorted(_partitions(reader, 0)))


def decode_current(raw: bytes) -> Current | None:
    """Value of key 8."""
    reader = _reader(raw)
    if reader is None:
        return None
    epoch, previous_epoch = reader.i32(), reader.i32()
    state = reader.take(1)[0]
    assigned, pending = _partitions(reader, epoch), _partitions(reader, epoch)
    return Current(epoch, previous_epoch, state, assigned, pending or NO_PARTITIONS)


def decode_regex(raw: bytes) -> Resolved | None:
    """Value of key 16."""
    reader = _reader(raw)
    if reader is None:
        return None
    topics = tuple(reader.string() for _ in range(reader.array_size()))
    return Resolved(topics, reader.i64(), reader.i64())
