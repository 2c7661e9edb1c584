"""Kafka's record formats of ``__consumer_offsets``: offset commits and classic group metadata, byte for byte.

Source: Kafka's OffsetCommitKey/Value and GroupMetadataKey/Value schemas (keys 0 to 2; values 0 to 4). Written are the
defaults of Kafka 3.9 to 4.1 (offset value 3, or 1 if a client set a retention; group value 3); all versions are read.
Behind an offset value 3, where other readers do not look, stands the id of the topic that it was committed for.
The keys of groups of the consumer protocol (KIP-848) are read here, too; ``groups.consumer.records`` has their values.
So are those of share groups (KIP-932; ``groups.share``). Others decode to :class:`UnknownKey`, which the reader skips.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from fleetlog._native.byte_reader import ByteReader
from fleetlog.brokers.model import TopicInfo
from fleetlog.txn.commands import CoordinatorRecord
from fleetlog.wire.types import TopicPartition

OFFSET_KEY_VERSIONS = (0, 1)
GROUP_KEY_VERSION = 2
MAX_STRING_BYTES = 0x7FFF
"""The limit of a string in these formats; longer names are rejected earlier."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_TWO_I16 = struct.Struct(">hh")
_VALUE_3 = struct.Struct(">hqih")
"""Version, offset, leader epoch and the length of the metadata; behind it is the commit's timestamp."""
_ID_BYTES = 16


class BadRecord(ValueError):
    """A record of the internal topic does not match its schema."""


class OffsetKey(NamedTuple):
    """Key of an offset commit."""

    group_id: str
    partition: TopicPartition


class GroupKey(NamedTuple):
    """Key of a classic group's metadata."""

    group_id: str


class ConsumerKind(IntEnum):
    """The records of a group of the consumer protocol, by the version of their key."""

    GROUP = 3
    MEMBER = 5
    TARGET = 6
    MEMBER_TARGET = 7
    CURRENT = 8
    REGEX = 16


class ShareKind(IntEnum):
    """The records of a share group, by the version of their key."""

    MEMBER = 10
    GROUP = 11
    TARGET = 12
    MEMBER_TARGET = 13
    CURRENT = 14
    STATES = 15


class ConsumerKey(NamedTuple):
    """Key of one of these records; ``name`` is the member's id or the regular expression, else empty."""

    kind: ConsumerKind | ShareKind
    group_id: str
    name: str = ""


_KINDS: dict[int, ConsumerKind | ShareKind] = {int(kind): kind for kind in (*ConsumerKind, *ShareKind)}
NAMED_KINDS: frozenset[ConsumerKind | ShareKind] = frozenset(
    kind for kind in _KINDS.values() if kind.name in ("MEMBER", "MEMBER_TARGET", "CURRENT", "REGEX")
)


class UnknownKey(NamedTuple):
    """A key of a kind that this version does not support."""

    version: int


Key = OffsetKey | GroupKey | ConsumerKey | UnknownKey


class CommittedOffset(NamedTuple):
    """One committed offset. ``expire_timestamp_ms`` -1: by the broker's retention; else set by an old client.

    ``topic_id`` is that of the topic for which it was committed. A later topic of the name has none of its offsets,
    whether or not the coordinator that knew of the deletion could drop them. None where the record does not tell.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1
    topic_id: bytes | None = None

    def outlives(self, topic: TopicInfo | None) -> bool:
        """Whether its topic was deleted; ``topic`` is the one that has the name now, None if there is none."""
        return self.topic_id is not None and (topic is None or topic.id.bytes != self.topic_id)


class MemberRecord(NamedTuple):
    """One member in the group's record; ``subscription`` is the one for the selected protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupRecord(NamedTuple):
    """A classic group's state as of its last completed rebalance."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberRecord, ...]


# --- encoding ---------------------------------------------------------------------------------------------------


def _string(text: str) -> bytes:
    raw = text.encode()
    assert len(raw) <= MAX_STRING_BYTES, "the caller bounds names"
    return _I16.pack(len(raw)) + raw


def _nullable_string(text: str | None) -> bytes:
    return _I16.pack(-1) if text is None else _string(text)


def _bytes(raw: bytes) -> bytes:
    return _I32.pack(len(raw)) + raw


def offset_key(group_id: str, partition: TopicPartition) -> bytes:
    """Key of an offset commit, version 1."""
    group, topic = group_id.encode(), partition.topic.encode()
    assert len(group) <= MAX_STRING_BYTES >= len(topic), "the caller bounds names"
    return b"".join((_TWO_I16.pack(1, len(group)), group, _I16.pack(len(topic)), topic, _I32.pack(partition.partition)))


def group_key(group_id: str) -> bytes:
    """Key of a group's metadata, version 2."""
    return _I16.pack(GROUP_KEY_VERSION) + _string(group_id)


def consumer_key(key: ConsumerKey) -> bytes:
    """Key of a record of the consumer protocol."""
    names = (key.group_id, key.name) if key.kind in NAMED_KINDS else (key.group_id,)
    return _I16.pack(key.kind) + b"".join(_string(name) for name in names)


def offset_value(committed: CommittedOffset) -> bytes:
    """Value of an offset commit: version 3, or 1 if it has its own expiry (as Kafka)."""
    if committed.expire_timestamp_ms >= 0:
        return b"".join(
            (
                _I16.pack(1),
                _I64.pack(committed.offset),
                _string(committed.metadata),
                _I64.pack(committed.commit_timestamp_ms),
                _I64.pack(committed.expire_timestamp_ms),
                committed.topic_id or b"",
            )
        )
    metadata = committed.metadata.encode()
    assert len(metadata) <= MAX_STRING_BYTES, "the caller bounds metadata"
    head = _VALUE_3.pack(3, committed.offset, committed.leader_epoch, len(metadata))
    return head + metadata + _I64.pack(committed.commit_timestamp_ms) + (committed.topic_id or b"")


def group_value(group: GroupRecord) -> bytes:
    """Value of a group's metadata, version 3."""
    parts = [
        _I16.pack(3),
        _string(group.protocol_type),
        _I32.pack(group.generation),
        _nullable_string(group.protocol),
        _nullable_string(group.leader),
        _I64.pack(group.state_timestamp_ms),
        _I32.pack(len(group.members)),
    ]
    for member in group.members:
        parts += (
            _string(member.member_id),
            _nullable_string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _I32.pack(member.rebalance_timeout_ms),
            _I32.pack(member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    return b"".join(parts)


def offset_record(group_id: str, partition: TopicPartition, committed: CommittedOffset) -> CoordinatorRecord:
    """The record that commits one offset."""
    return CoordinatorRecord(offset_key(group_id, partition), offset_value(committed))


def offset_tombstone(group_id: str, partition: TopicPartition) -> CoordinatorRecord:
    """The record that deletes one committed offset."""
    return CoordinatorRecord(offset_key(group_id, partition), None)


def group_record(group_id: str, group: GroupRecord) -> CoordinatorRecord:
    """The record that stores a group's state."""
    return CoordinatorRecord(group_key(group_id), group_value(group))


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """The record that deletes a group."""
    return CoordinatorRecord(group_key(group_id), None)


# --- decoding ---------------------------------------------------------------------------------------------------


class RecordReader(ByteReader[bytes]):
    """Reads a record's key or value; raises BadRecord. ``flexible`` switches to compact strings and tags."""

    def __init__(self, raw: bytes, flexible: bool = False) -> None:
        super().__init__(raw)
        self.flexible = flexible

    def error(self, reason: str) -> BadRecord:
        """The exception for a record that does not match."""
        return BadRecord(reason)

    def i16(self) -> int:
        """An int16."""
        return int(_I16.unpack(self.take(2))[0])

    def i32(self) -> int:
        """An int32."""
        return int(_I32.unpack(self.take(4))[0])

    def i64(self) -> int:
        """An int64."""
        return int(_I64.unpack(self.take(8))[0])

    def nullable_string(self) -> str | None:
        """A string, or None."""
        size = self.varint() - 1 if self.flexible else self.i16()
        if size == -1:
            return None
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise BadRecord("a string that is not UTF-8") from error

    def string(self) -> str:
        """A string."""
        text = self.nullable_string()
        if text is None:
            raise BadRecord("null where a string must be")
        return text

    def blob(self) -> bytes:
        """Bytes."""
        return self.take(self.varint() - 1 if self.flexible else self.i32())

    def array_size(self) -> int:
        """The length of an array, which cannot be above the bytes that are left."""
        size = self.varint() - 1 if self.flexible else self.i32()
        if not 0 <= size <= self.end - self.pos:
            raise BadRecord(f"an array of {size} elements")
        return size

    def tags(self) -> dict[int, bytes]:
        """Tagged fields, raw; none unless flexible."""
        if not self.flexible:
            return {}
        return {self.varint(): self.take(self.varint()) for _ in range(self.varint())}


def decode_group_key(raw: bytes) -> Key:
    """The decoded key; raises BadRecord."""
    return _offset_key_1(raw) or _any_key(raw)


def _offset_key_1(raw: bytes) -> OffsetKey | None:
    """A key as :func:`offset_key` makes it, which is every key but those of groups; None for anything else."""
    try:
        version, size = _TWO_I16.unpack_from(raw)
        at = 4 + size
        (length,) = _I16.unpack_from(raw, at)
        end = at + 2 + length
        if version != 1 or size < 0 or length < 0 or len(raw) != end + 4:
            return None
        partition = TopicPartition(raw[at + 2 : end].decode(), _I32.unpack_from(raw, end)[0])
        return OffsetKey(raw[4:at].decode(), partition)
    except (struct.error, UnicodeDecodeError):
        return None


def _any_key(raw: bytes) -> Key:
    reader = RecordReader(raw)
    version = reader.i16()
    if version in OFFSET_KEY_VERSIONS:
        group_id = reader.string()
        return OffsetKey(group_id, TopicPartition(reader.string(), reader.i32()))
    if version == GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    if (kind := _KINDS.get(version)) is not None:
        return ConsumerKey(kind, reader.string(), reader.string() if kind in NAMED_KINDS else "")
    return UnknownKey(version)


def decode_offset(raw: bytes) -> CommittedOffset | None:
    """Value of an offset commit; None for a version newer than 4. Raises BadRecord."""
    return _offset_3(raw) or _any_offset(raw)


def _offset_3(raw: bytes) -> CommittedOffset | None:
    """A value as :func:`offset_value` makes most; None for anything else."""
    if len(raw) < _VALUE_3.size:
        return None
    version, offset, leader_epoch, size = _VALUE_3.unpack_from(raw)
    end = _VALUE_3.size + size
    behind = len(raw) - end - 8
    if version != 3 or size < 0 or behind not in (0, _ID_BYTES):
        return None
    try:
        metadata = raw[_VALUE_3.size : end].decode() if size else ""
    except UnicodeDecodeError:
        return None
    topic_id = _shared(raw[-_ID_BYTES:]) if behind else None
    return CommittedOffset(offset, leader_epoch, metadata, _I64.unpack_from(raw, end)[0], -1, topic_id)


@lru_cache(maxsize=4096)
def _shared(topic_id: bytes) -> bytes:
    """One copy of an id that many offsets have."""
    return topic_id


def _any_offset(raw: bytes) -> CommittedOffset | None:
    reader = RecordReader(raw)
    version = reader.i16()
    if not 0 <= version <= 4:
        return None
    reader.flexible = version >= 4
    offset = reader.i64()
    leader_epoch = reader.i32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp_ms = reader.i64()
    expire_timestamp_ms = reader.i64() if version == 1 else -1
    topic_id = reader.tags().get(0)
    if version in (1, 3) and reader.end - reader.pos == _ID_BYTES:
        topic_id = _shared(reader.take(_ID_BYTES))
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms, topic_id)


def decode_group(raw: bytes) -> GroupRecord | None:
    """Value of a group's metadata; None for a version newer than 4. Raises BadRecord."""
    reader = RecordReader(raw)
    version = reader.i16()
    if not 0 <= version <= 4:
        return None
    reader.flexible = version >= 4
    protocol_type = reader.string()
    generation = reader.i32()
    protocol = reader.nullable_string()
    leader = reader.nullable_string()
    state_timestamp_ms = reader.i64() if version >= 2 else -1
    members = tuple(_decode_member(reader, version) for _ in range(reader.array_size()))
    reader.tags()
    return GroupRecord(protocol_type, generation, protocol, leader, state_timestamp_ms, members)


def _decode_member(reader: RecordReader, version: int) -> MemberRecord:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.i32() if version >= 1 else -1
    session_timeout_ms = reader.i32()
    subscription, assignment = reader.blob(), reader.blob()
    reader.tags()
    # Version 0 has one timeout for both.
    rebalance_timeout_ms = rebalance_timeout_ms if version >= 1 else session_timeout_ms
    return MemberRecord(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )
