"""Metadata answers in bytes: topics are encoded once and kept, an answer is those bytes joined.

A full answer for 10,000 partitions takes the message library 100 ms and more, for every client that starts; joined from
kept rows it takes microseconds. A kept row is valid as long as the image holds the very same topic and brokers (both
are replaced, never changed), so nothing has to be invalidated. The library is the reference in the tests.

Source: Kafka's MetadataResponse.json, versions 0 to 13.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fleetlog._native.byte_reader import varint_bytes
from fleetlog.brokers.acls.access import NOT_ASKED
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.model import NO_LEADER, PROTECTED_TOPICS, BrokerInfo, PartitionState, TopicInfo
from fleetlog.wire.errors import ErrorCode

FLEXIBLE = 9
MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Above this the cache is emptied; rows are encoded again when asked for."""
NO_ID = uuid.UUID(int=0)

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_LEADER = struct.Struct(">hii")
_LEADER_EPOCH = struct.Struct(">hiii")


def leader_of(state: PartitionState, metadata: MetadataCache, listener: str) -> tuple[int, ErrorCode]:
    """The leader a client may be sent to, or -1 and why there is none."""
    broker = metadata.brokers.get(state.leader)
    if broker is None or broker.incarnation != state.leader_incarnation:
        return NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
    if broker.endpoint(listener) is None:
        return NO_LEADER, ErrorCode.LISTENER_NOT_FOUND
    return broker.id, ErrorCode.NONE


def _count(number: int, version: int) -> bytes:
    """An array's length; -1 is null."""
    if version < FLEXIBLE:
        return _I32.pack(number)
    return varint_bytes(number + 1)


def _string(text: str | None, version: int) -> bytes:
    if text is None:
        return b"\0" if version >= FLEXIBLE else b"\xff\xff"
    data = text.encode()
    return (varint_bytes(len(data) + 1) if version >= FLEXIBLE else _I16.pack(len(data))) + data


def _ids(ids: Sequence[int], version: int) -> bytes:
    return _count(len(ids), version) + struct.pack(f">{len(ids)}i", *ids)


def _tags(version: int) -> bytes:
    return b"\0" if version >= FLEXIBLE else b""


def topic_row(topic: TopicInfo, metadata: MetadataCache, listener: str, version: int, operations: int) -> bytes:
    """One topic that exists; ``operations`` is their bit field."""
    parts = [_topic_head(ErrorCode.NONE, topic.name, topic.id, version), _count(len(topic.partitions), version)]
    tags = _tags(version)
    for index, state in enumerate(topic.partitions):
        leader, error = leader_of(state, metadata, listener)
        if version >= 7:
            parts.append(_LEADER_EPOCH.pack(error, index, leader, state.leader_epoch))
        else:
            parts.append(_LEADER.pack(error, index, leader))
        parts.append(_ids(state.replicas, version))
        parts.append(_ids(state.isr, version))
        if version >= 5:
            parts.append(_ids([b for b in state.replicas if b not in metadata.brokers], version))
        parts.append(tags)
    parts.append(_topic_tail(operations, version))
    return b"".join(parts)


def error_row(name: str | None, topic_id: uuid.UUID | None, error: ErrorCode, version: int) -> bytes:
    """One topic that does not exist, or that the client may not describe."""
    name = name if version >= 12 else name or ""
    return _topic_head(error, name, topic_id, version) + _count(0, version) + _topic_tail(NOT_ASKED, version)


def _topic_head(error: ErrorCode, name: str | None, topic_id: uuid.UUID | None, version: int) -> bytes:
    head = _I16.pack(error) + _string(name, version)
    if version >= 10:
        head += (topic_id or NO_ID).bytes
    if version >= 1:
        head += b"\1" if name in PROTECTED_TOPICS else b"\0"
    return head


def _topic_tail(operations: int, version: int) -> bytes:
    return (_I32.pack(operations) if version >= 8 else b"") + _tags(version)


def body(rows: Sequence[bytes], metadata: MetadataCache, listener: str, version: int, operations: int) -> bytes:
    """The whole answer around the topics' rows.

    A broker that has just gone is named a little longer. librdkafka moves a partition from the old leader's thread to
    the new leader's at once; but if the same answer no longer names the old one, it ends that thread first, and the
    partition waits for the next periodic look, a second later.
    """
    brokers = [
        (broker, endpoint)
        for _, broker in sorted({**metadata.departed, **metadata.brokers}.items())
        if (endpoint := broker.endpoint(listener)) is not None
    ]
    parts = [_I32.pack(0)] if version >= 3 else []
    parts.append(_count(len(brokers), version))
    for broker, endpoint in brokers:
        parts += [_I32.pack(broker.id), _string(endpoint.host, version), _I32.pack(endpoint.port)]
        if version >= 1:
            parts.append(_string(broker.rack, version))
        parts.append(_tags(version))
    if version >= 2:
        parts.append(_string(metadata.cluster_id, version))
    if version >= 1:
        # a controller the client can't reach on its listener is none to it
        reachable = any(broker.id == metadata.controller_id for broker, _ in brokers)
        parts.append(_I32.pack(metadata.controller_id if reachable else -1))
    parts.append(_count(len(rows), version))
    parts += rows
    if 8 <= version <= 10:
        parts.append(_I32.pack(operations))
    if version >= 13:
        parts.append(_I16.pack(ErrorCode.NONE))
    parts.append(_tags(version))
    return b"".join(parts)


class _Kept(NamedTuple):
    topic: TopicInfo
    brokers: Mapping[int, BrokerInfo]
    row: bytes


class TopicRows:
    """Encoded topics, by name, version, listener and what was asked for."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int, str, int], _Kept] = {}
        self._bytes = 0

    def get(self, topic: TopicInfo, metadata: MetadataCache, listener: str, version: int, *, operations: int) -> bytes:
        """The topic's row, encoded now unless the one kept is still true."""
        key = (topic.name, version, listener, operations)
        kept = self._kept.get(key)
        if kept is not None:
            if kept.topic is topic and kept.brokers is metadata.brokers:
                return kept.row
            self._bytes -= len(kept.row)
        row = topic_row(topic, metadata, listener, version, operations)
        if self._bytes + len(row) > MAX_KEPT_BYTES:
            self._kept.clear()
            self._bytes = 0
        self._kept[key] = _Kept(topic, metadata.brokers, row)
        self._bytes += len(row)
        return row
