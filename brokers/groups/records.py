"""Kafka's record formats of ``__consumer_offsets``: offset commits and classic group metadata, byte for byte.

Source: Kafka's OffsetCommitKey/Value and GroupMetadataKey/Value schemas (keys 0 to 2; values 0 to 4). We write what
Kafka 3.9 to 4.1 writes by default (offset value 3, or 1 where a client asked for a retention; group value 3) and read
all of them. Keys of other versions (KIP-848, share groups) decode to :class:`UnknownKey`: skipped by the reader.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from txn.commands import CoordinatorRecord
from wire.types import TopicPartition

OFFSET_KEY_VERSIONS = (0, 1)
GROUP_KEY_VERSION = 2
MAX_STRING_BYTES = 0x7FFF
"""What a string of these formats holds; longer names are refused before they get here."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class BadRecord(ValueError):
    """A record of the internal topic does not follow its own schema."""


class OffsetKey(NamedTuple):
    """Key of an offset commit."""

    group_id: str
    partition: TopicPartition


class GroupKey(NamedTuple):
    """Key of a classic group's metadata."""

    group_id: str


class UnknownKey(NamedTuple):
    """A key of a kind that this version does not keep."""

    version: int


Key = OffsetKey | GroupKey | UnknownKey


class CommittedOffset(NamedTuple):
    """One committed offset. ``expire_timestamp_ms`` -1: by the broker's retention; else asked for by an old client."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1
    topic_id: bytes | None = None


class MemberRecord(NamedTuple):
    """One member as the group's record keeps it; ``subscription`` is the one for the selected protocol."""

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
    return _I16.pack(1) + _string(group_id) + _string(partition.topic) + _I32.pack(partition.partition)


def group_key(group_id: str) -> bytes:
    """Key of a group's metadata, version 2."""
    return _I16.pack(GROUP_KEY_VERSION) + _string(group_id)


def offset_value(committed: CommittedOffset) -> bytes:
    """Value of an offset commit: version 3, or 1 when it carries its own expiry (as Kafka does)."""
    if committed.expire_timestamp_ms >= 0:
        return b"".join(
            (
                _I16.pack(1),
                _I64.pack(committed.offset),
                _string(committed.metadata),
                _I64.pack(committed.commit_timestamp_ms),
                _I64.pack(committed.expire_timestamp_ms),
            )
        )
    return b"".join(
        (
            _I16.pack(3),
            _I64.pack(committed.offset),
            _I32.pack(committed.leader_epoch),
            _string(committed.metadata),
            _I64.pack(committed.commit_timestamp_ms),
        )
    )


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
    """The record that forgets one committed offset."""
    return CoordinatorRecord(offset_key(group_id, partition), None)


def group_record(group_id: str, group: GroupRecord) -> CoordinatorRecord:
    """The record that stores a group's state."""
    return CoordinatorRecord(group_key(group_id), group_value(group))


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """The record that deletes a group."""
    return CoordinatorRecord(group_key(group_id), None)


# --- decoding ---------------------------------------------------------------------------------------------------


class _Reader:
    """Bounds-checked walk; every lie raises BadRecord. ``flexible`` switches to compact strings and tags."""

    def __init__(self, raw: bytes, flexible: bool = False) -> None:
        self._raw = raw
        self._position = 0
        self.flexible = flexible

    def take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._raw):
            raise BadRecord(f"{size} bytes wanted at {self._position} of {len(self._raw)}")
        piece = self._raw[self._position : end]
        self._position = end
        return piece

    def i16(self) -> int:
        return int(_I16.unpack(self.take(2))[0])

    def i32(self) -> int:
        return int(_I32.unpack(self.take(4))[0])

    def i64(self) -> int:
        return int(_I64.unpack(self.take(8))[0])

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise BadRecord("a varint of more than 5 bytes")

    def nullable_string(self) -> str | None:
        size = self.uvarint() - 1 if self.flexible else self.i16()
        if size == -1:
            return None
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise BadRecord("a string that is not UTF-8") from error

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise BadRecord("null where a string must be")
        return text

    def blob(self) -> bytes:
        return self.take(self.uvarint() - 1 if self.flexible else self.i32())

    def array_size(self) -> int:
        size = self.uvarint() - 1 if self.flexible else self.i32()
        if not 0 <= size <= len(self._raw) - self._position:
            raise BadRecord(f"an array of {size} elements")
        return size

    def tags(self) -> dict[int, bytes]:
        if not self.flexible:
            return {}
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())}


def decode_key(raw: bytes) -> Key:
    """What the key names; raises BadRecord."""
    reader = _Reader(raw)
    version = reader.i16()
    if version in OFFSET_KEY_VERSIONS:
        group_id = reader.string()
        return OffsetKey(group_id, TopicPartition(reader.string(), reader.i32()))
    if version == GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    return UnknownKey(version)


def decode_offset(raw: bytes) -> CommittedOffset | None:
    """Value of an offset commit; None for a version newer than 4. Raises BadRecord."""
    reader = _Reader(raw)
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
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms, topic_id)


def decode_group(raw: bytes) -> GroupRecord | None:
    """Value of a group's metadata; None for a version newer than 4. Raises BadRecord."""
    reader = _Reader(raw)
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


def _decode_member(reader: _Reader, version: int) -> MemberRecord:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.i32() if version >= 1 else -1
    session_timeout_ms = reader.i32()
    subscription, assignment = reader.blob(), reader.blob()
    reader.tags()
    # Value 0 had one timeout for both.
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
