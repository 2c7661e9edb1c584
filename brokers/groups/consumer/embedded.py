"""What consumers of the classic protocol say in JoinGroup and hear in SyncGroup, and a group of them as a record.

Source: ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0 to 3, none of them flexible; a version
above is read as 3, as Kafka reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from fleetlog.brokers.groups.consumer.records import Current, MemberValue, Partition, indexes_by_topic
from fleetlog.brokers.groups.members import CONSUMER_PROTOCOL_TYPE, Group, GroupMember
from fleetlog.brokers.groups.records import BadRecord, GroupRecord, RecordReader
from fleetlog.brokers.model import TopicInfo
from fleetlog.txn.commands import Now

NEWEST = 3


class Subscription(NamedTuple):
    """``owned`` are partitions by their topics' names; none before version 1, whose members give up all to join."""

    version: int
    topics: tuple[str, ...]
    owned: tuple[tuple[str, int], ...]
    rack_id: str | None


class Assignment(NamedTuple):
    """``user_data``: whether an assignor of its own told the member more than its partitions."""

    partitions: tuple[tuple[str, int], ...]
    user_data: bool


def _version(reader: RecordReader) -> int:
    version = reader.i16()
    if version < 0:
        raise BadRecord(f"version {version} of the embedded protocol")
    return min(version, NEWEST)


def _partitions(reader: RecordReader) -> Iterator[tuple[str, int]]:
    for _ in range(reader.array_size()):
        topic, count = reader.string(), reader.array_size()
        for index in struct.unpack(f">{count}i", reader.take(4 * count)):
            yield topic, index


def _user_data(reader: RecordReader) -> bool:
    size = reader.i32()
    return size > 0 and bool(reader.take(size))


def decode_subscription(metadata: bytes) -> Subscription:
    """Of a protocol in a JoinGroup. Raises BadRecord."""
    reader = RecordReader(metadata)
    version = _version(reader)
    topics = tuple(reader.string() for _ in range(reader.array_size()))
    _user_data(reader)
    owned = tuple(_partitions(reader)) if version >= 1 else ()
    if version >= 2:
        reader.i32()
    return Subscription(version, topics, owned, reader.nullable_string() if version >= 3 else None)


def decode_assignment(raw: bytes) -> Assignment:
    """Of a leader's SyncGroup; empty bytes assign nothing. Raises BadRecord."""
    if not raw:
        return Assignment((), False)
    reader = RecordReader(raw)
    _version(reader)
    partitions = tuple(_partitions(reader))
    return Assignment(partitions, _user_data(reader))


def assignment_bytes(partitions: Iterable[Partition], names: Mapping[bytes, str], version: int) -> bytes:
    """An assignment for SyncGroup; partitions of topics without a name are left out."""
    rows = []
    for topic_id, indexes in indexes_by_topic(partitions).items():
        if topic_id in names:
            name = names[topic_id].encode()
            rows.append(struct.pack(f">h{len(name)}si{len(indexes)}i", len(name), name, len(indexes), *indexes))
    return struct.pack(">hi", version, len(rows)) + b"".join(rows) + struct.pack(">i", -1)


def assignment_of(value: MemberValue, partitions: Iterable[Partition], topics: Mapping[str, TopicInfo]) -> bytes:
    """Partitions for a classic member, of the topics that it subscribes to, in the version that it speaks."""
    assert value.classic is not None
    names = {topics[name].id.bytes: name for name in value.topics if name in topics}
    return assignment_bytes(partitions, names, decode_subscription(value.classic.protocols[0].metadata).version)


def classic_record(
    group_id: str,
    generation: int,
    members: Mapping[str, tuple[MemberValue, Current]],
    topics: Mapping[str, TopicInfo],
    now: Now,
) -> GroupRecord | None:
    """The members as a classic group; None if they have no protocol in common.

    Kafka writes the members' targets. Here stands what each has, or has yet to give up: if the group becomes one of
    the consumer protocol again before they have all joined, nobody else gets that sooner.
    """
    group = Group(group_id, generation=generation, protocol_type=CONSUMER_PROTOCOL_TYPE)
    assignments = {}
    for name, (value, at) in members.items():
        assert value.classic is not None
        group.members[name] = GroupMember(
            name, value.instance_id, value.client_id, value.client_host, value.classic.protocols,
            value.classic.session_timeout_ms, value.rebalance_timeout_ms,
        )  # fmt: skip
        assignments[name] = assignment_of(value, (*at.assigned, *at.pending), topics)
    group.protocol = group.select_protocol()
    group.leader = next(iter(group.members))
    return group.record(now, assignments) if group.protocol is not None else None
