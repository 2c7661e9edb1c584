"""Codecs of the messages that carry the load: Produce and Fetch, both ways, without an object per field.

Requests come out as plain tuples whose records are views into the received frame. Answers leave as byte runs with
holes for file slices (:class:`Encoded`). The library's messages are the reference in the tests: equal bytes for equal
content.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from wire.bounded import MalformedRequest, Reader
from wire.errors import ErrorCode

__all__ = [
    "DECODERS",
    "Encoded",
    "FetchOutcome",
    "FetchPart",
    "FetchRequest",
    "NodeEndpoint",
    "ProduceOutcome",
    "ProducePart",
    "ProduceRequest",
    "decode_fetch",
    "decode_produce",
    "encode_fetch_response",
    "encode_produce_response",
]

PRODUCE, FETCH = 0, 1
_PRODUCE_FLEXIBLE, _PRODUCE_TOPIC_IDS = 9, 13
_FETCH_FLEXIBLE, _FETCH_TOPIC_IDS = 12, 13
NO_HIGH_WATERMARK = 2**63 - 1

_I8, _I16, _I32, _I64 = struct.Struct(">b"), struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_NO_ID = uuid.UUID(int=0)


class Slice(Protocol):
    """A run of bytes in a file (``brokers.log`` FileSlice)."""

    position: int
    length: int

    def fileno(self) -> int:
        """The open file."""
        ...

    def release(self) -> None:
        """Nobody sends it any more."""
        ...


class Encoded:
    """An encoded body: byte runs and file slices in the order in which they leave."""

    __slots__ = ("chunks",)

    def __init__(self, chunks: list[Any]) -> None:
        self.chunks = chunks

    def release(self) -> None:
        """The answer will not be sent: the files may go."""
        for chunk in self.chunks:
            if not isinstance(chunk, bytes):
                chunk.release()
        self.chunks = []


class NodeEndpoint(NamedTuple):
    """Where a leader is, for answers that send the client elsewhere (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


# -- reading helpers ----------------------------------------------------------------------------------------------


def _string(reader: Reader, flexible: bool) -> str | None:
    length = reader.varint() - 1 if flexible else _I16.unpack(reader.take(2))[0]
    if length < 0:
        if length < -1:
            raise MalformedRequest(f"a string of {length} bytes")
        return None
    try:
        return str(reader.take(length), "utf-8")
    except UnicodeDecodeError:
        raise MalformedRequest("a string is not UTF-8") from None


def _name(reader: Reader, flexible: bool) -> str:
    value = _string(reader, flexible)
    if value is None:
        raise MalformedRequest("a topic's name must not be null")
    return value


def _topic_id(reader: Reader) -> uuid.UUID:
    return uuid.UUID(bytes=bytes(reader.take(16)))


def _count(reader: Reader, flexible: bool, smallest: int) -> int:
    count: int = reader.varint() - 1 if flexible else _I32.unpack(reader.take(4))[0]
    if count < 0:
        raise MalformedRequest("an array must not be null")
    if count * smallest > reader.end - reader.pos:
        raise MalformedRequest(f"an array claims {count} elements in {reader.end - reader.pos} bytes")
    reader.spend(count)
    return count


def _end(reader: Reader) -> None:
    if reader.pos != reader.end:
        raise MalformedRequest(f"{reader.end - reader.pos} bytes left over")


# -- Produce ------------------------------------------------------------------------------------------------------


class ProducePart(NamedTuple):
    """One partition of a Produce; ``records`` is a view into the frame, None for null."""

    topic: str | None
    topic_id: uuid.UUID | None
    partition: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    """A Produce, its partitions in one list in the order of the request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    parts: list[ProducePart]


class ProduceOutcome(NamedTuple):
    """One partition's answer. ``current_leader`` is (leader id, leader epoch)."""

    error: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None


def decode_produce(version: int, body: memoryview) -> ProduceRequest:
    """Decode a Produce of version 0 to 13.

    Raises:
        MalformedRequest: the bytes are no such request.

    """
    reader = Reader(body)
    flexible = version >= _PRODUCE_FLEXIBLE
    transactional_id = _string(reader, flexible) if version >= 3 else None
    acks, timeout_ms = struct.unpack(">hi", reader.take(6))
    parts: list[ProducePart] = []
    for _ in range(_count(reader, flexible, 3)):
        name: str | None = None
        topic_id: uuid.UUID | None = None
        if version >= _PRODUCE_TOPIC_IDS:
            topic_id = _topic_id(reader)
        else:
            name = _name(reader, flexible)
        for _ in range(_count(reader, flexible, 5)):
            index = _I32.unpack(reader.take(4))[0]
            size = reader.varint() - 1 if flexible else _I32.unpack(reader.take(4))[0]
            if size < -1:
                raise MalformedRequest(f"records of {size} bytes")
            parts.append(ProducePart(name, topic_id, index, reader.take(size) if size >= 0 else None))
            if flexible:
                reader.skip_tags()
        if flexible:
            reader.skip_tags()
    if flexible:
        reader.skip_tags()
    _end(reader)
    return ProduceRequest(transactional_id, acks, timeout_ms, parts)


# -- writing helpers ----------------------------------------------------------------------------------------------


def _varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_string(out: bytearray, value: str | None, flexible: bool) -> None:
    data = None if value is None else value.encode()
    if flexible:
        _varint(out, 0 if data is None else len(data) + 1)
    else:
        out += _I16.pack(-1 if data is None else len(data))
    if data is not None:
        out += data


def _put_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        _varint(out, count + 1)
    else:
        out += _I32.pack(count)


def _put_tags(out: bytearray, fields: Sequence[tuple[int, bytes]]) -> None:
    _varint(out, len(fields))
    for tag, payload in fields:
        _varint(out, tag)
        _varint(out, len(payload))
        out += payload


def _leader_tag(tag: int, leader: tuple[int, int]) -> tuple[int, bytes]:
    return tag, struct.pack(">ii", *leader) + b"\0"


def _endpoints_tag(endpoints: Sequence[NodeEndpoint]) -> tuple[int, bytes]:
    out = bytearray()
    _varint(out, len(endpoints) + 1)
    for endpoint in endpoints:
        out += _I32.pack(endpoint.node_id)
        _put_string(out, endpoint.host, True)
        out += _I32.pack(endpoint.port)
        _put_string(out, endpoint.rack, True)
        out.append(0)
    return 0, bytes(out)


def _by_topic(parts: Iterable[tuple[Any, Any]]) -> list[tuple[Any, list[tuple[Any, Any]]]]:
    """Group neighbours of one topic, as the request had them."""
    groups: list[tuple[Any, list[tuple[Any, Any]]]] = []
    last: Any = object()
    for part, outcome in parts:
        key = (part.topic, part.topic_id)
        if key != last:
            groups.append((part, []))
            last = key
        groups[-1][1].append((part, outcome))
    return groups


def _put_topic(out: bytearray, part: Any, by_id: bool, flexible: bool) -> None:
    if by_id:
        out += (part.topic_id or _NO_ID).bytes
    else:
        _put_string(out, part.topic or "", flexible)


def encode_produce_response(
    version: int,
    parts: Sequence[tuple[ProducePart, ProduceOutcome]],
    throttle_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """The body of a Produce answer, in the order of ``parts``."""
    flexible = version >= _PRODUCE_FLEXIBLE
    out = bytearray()
    groups = _by_topic(parts)
    _put_count(out, len(groups), flexible)
    for first, members in groups:
        _put_topic(out, first, version >= _PRODUCE_TOPIC_IDS, flexible)
        _put_count(out, len(members), flexible)
        for part, outcome in members:
            _put_produce_outcome(out, version, part.partition, outcome)
        if flexible:
            out.append(0)
    if version >= 1:
        out += _I32.pack(throttle_ms)
    if flexible:
        _put_tags(out, [_endpoints_tag(endpoints)] if endpoints and version >= 10 else [])
    return bytes(out)


def _put_produce_outcome(out: bytearray, version: int, partition: int, outcome: ProduceOutcome) -> None:
    flexible = version >= _PRODUCE_FLEXIBLE
    out += struct.pack(">ihq", partition, outcome.error, outcome.base_offset)
    if version >= 2:
        out += _I64.pack(outcome.log_append_time_ms)
    if version >= 5:
        out += _I64.pack(outcome.log_start_offset)
    if version >= 8:
        _put_count(out, len(outcome.record_errors), flexible)
        for index, message in outcome.record_errors:
            out += _I32.pack(index)
            _put_string(out, message, flexible)
            if flexible:
                out.append(0)
        _put_string(out, outcome.error_message, flexible)
    if flexible:
        leader = outcome.current_leader if version >= 10 else None
        _put_tags(out, [_leader_tag(0, leader)] if leader is not None else [])


# -- Fetch --------------------------------------------------------------------------------------------------------


class FetchPart(NamedTuple):
    """One partition of a Fetch."""

    topic: str | None
    topic_id: uuid.UUID | None
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int
    high_watermark: int


class FetchRequest(NamedTuple):
    """A Fetch; ``parts`` in the order of the request, which decides who gets bytes first (KIP-74)."""

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    parts: list[FetchPart]
    forgotten: list[tuple[str | uuid.UUID, list[int]]]
    rack_id: str
    cluster_id: str | None


class FetchOutcome(NamedTuple):
    """One partition's answer. ``aborted`` None is what read_uncommitted gets; ``slices`` are sent as they are."""

    error: ErrorCode
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    slices: Sequence[Slice] = ()
    size: int = 0
    diverging: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    preferred_read_replica: int = -1


def decode_fetch(version: int, body: memoryview) -> FetchRequest:
    """Decode a Fetch of version 4 to 18.

    Raises:
        MalformedRequest: the bytes are no such request.

    """
    reader = Reader(body)
    flexible = version >= _FETCH_FLEXIBLE
    replica_id, replica_epoch = -1, -1
    if version <= 14:
        replica_id = _I32.unpack(reader.take(4))[0]
    max_wait_ms, min_bytes, max_bytes, isolation_level = struct.unpack(">iiib", reader.take(13))
    session_id, session_epoch = struct.unpack(">ii", reader.take(8)) if version >= 7 else (0, -1)
    parts = _fetch_parts(reader, version, flexible)
    forgotten = _forgotten(reader, version, flexible) if version >= 7 else []
    rack_id = _string(reader, flexible) if version >= 11 else ""
    if rack_id is None:
        raise MalformedRequest("the rack must not be null")
    cluster_id: str | None = None
    if flexible:
        for tag, inner in _tags(reader):
            if tag == 0:
                cluster_id = _string(inner, True)
                _end(inner)
            elif tag == 1 and version >= 15:
                replica_id, replica_epoch = struct.unpack(">iq", inner.take(12))
                inner.skip_tags()
                _end(inner)
    _end(reader)
    return FetchRequest(
        replica_id, replica_epoch, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch,
        parts, forgotten, rack_id, cluster_id,
    )  # fmt: skip


def _tags(reader: Reader) -> list[tuple[int, Reader]]:
    if reader.pos < reader.end and reader.data[reader.pos] == 0:
        reader.pos += 1
        return []
    count = reader.varint()
    if count > 64:
        raise MalformedRequest(f"{count} tagged fields")
    reader.spend(count)
    return [(reader.varint(), Reader(reader.take(reader.varint()), 0, reader.budget)) for _ in range(count)]


_FETCH_V12 = struct.Struct(">iiqiqi")
_FETCH_V9 = struct.Struct(">iiqqi")
_FETCH_V5 = struct.Struct(">iqqi")
_FETCH_V4 = struct.Struct(">iqi")


def _fetch_parts(reader: Reader, version: int, flexible: bool) -> list[FetchPart]:
    parts: list[FetchPart] = []
    for _ in range(_count(reader, flexible, 3)):
        name: str | None = None
        topic_id: uuid.UUID | None = None
        if version >= _FETCH_TOPIC_IDS:
            topic_id = _topic_id(reader)
        else:
            name = _name(reader, flexible)
        for _ in range(_count(reader, flexible, 16)):
            epoch = last_epoch = start = -1
            if version >= 12:
                index, epoch, offset, last_epoch, start, limit = _FETCH_V12.unpack(reader.take(_FETCH_V12.size))
            elif version >= 9:
                index, epoch, offset, start, limit = _FETCH_V9.unpack(reader.take(_FETCH_V9.size))
            elif version >= 5:
                index, offset, start, limit = _FETCH_V5.unpack(reader.take(_FETCH_V5.size))
            else:
                index, offset, limit = _FETCH_V4.unpack(reader.take(_FETCH_V4.size))
            watermark = _fetch_part_tags(reader, version) if flexible else NO_HIGH_WATERMARK
            parts.append(
                FetchPart(name, topic_id, index, epoch, offset, last_epoch, start, limit, watermark)
            )  # fmt: skip
        if flexible:
            reader.skip_tags()
    return parts


def _fetch_part_tags(reader: Reader, version: int) -> int:
    watermark = NO_HIGH_WATERMARK
    for tag, inner in _tags(reader):
        if tag == 0 and version >= 17:
            inner.take(16)
            _end(inner)
        elif tag == 1 and version >= 18:
            watermark = _I64.unpack(inner.take(8))[0]
            _end(inner)
    return watermark


def _forgotten(reader: Reader, version: int, flexible: bool) -> list[tuple[str | uuid.UUID, list[int]]]:
    found: list[tuple[str | uuid.UUID, list[int]]] = []
    for _ in range(_count(reader, flexible, 3)):
        topic: str | uuid.UUID = (
            _topic_id(reader) if version >= _FETCH_TOPIC_IDS else _name(reader, flexible)
        )  # fmt: skip
        count = _count(reader, flexible, 4)
        found.append((topic, list(struct.unpack(f">{count}i", reader.take(4 * count)))))
        if flexible:
            reader.skip_tags()
    return found


def encode_fetch_response(
    version: int,
    parts: Sequence[tuple[FetchPart, FetchOutcome]],
    *,
    throttle_ms: int = 0,
    error: ErrorCode = ErrorCode.NONE,
    session_id: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> Encoded:
    """The body of a Fetch answer, with the records left in their files."""
    flexible = version >= _FETCH_FLEXIBLE
    chunks: list[Any] = []
    out = bytearray(_I32.pack(throttle_ms))
    if version >= 7:
        out += struct.pack(">hi", error, session_id)
    groups = _by_topic(parts)
    _put_count(out, len(groups), flexible)
    for first, members in groups:
        _put_topic(out, first, version >= _FETCH_TOPIC_IDS, flexible)
        _put_count(out, len(members), flexible)
        for part, outcome in members:
            out = _put_fetch_outcome(chunks, out, version, part.partition, outcome)
        if flexible:
            out.append(0)
    if flexible:
        _put_tags(out, [_endpoints_tag(endpoints)] if endpoints and version >= 16 else [])
    chunks.append(bytes(out))
    return Encoded(chunks)


def _put_fetch_outcome(
    chunks: list[Any], out: bytearray, version: int, partition: int, outcome: FetchOutcome
) -> bytearray:
    """Append one partition; returns the run that comes after the records, if there were any."""
    flexible = version >= _FETCH_FLEXIBLE
    out += struct.pack(">ihqq", partition, outcome.error, outcome.high_watermark, outcome.last_stable_offset)
    if version >= 5:
        out += _I64.pack(outcome.log_start_offset)
    aborted = outcome.aborted
    if aborted is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        _put_count(out, len(aborted), flexible)
        for producer_id, first_offset in aborted:
            out += struct.pack(">qq", producer_id, first_offset)
            if flexible:
                out.append(0)
    if version >= 11:
        out += _I32.pack(outcome.preferred_read_replica)
    _put_count(out, outcome.size, flexible)  # a length is written as a count is
    if outcome.slices:
        chunks.append(bytes(out))
        chunks.extend(outcome.slices)
        out = bytearray()
    if flexible:
        tags = []
        if outcome.diverging is not None:
            tags.append((0, struct.pack(">iq", *outcome.diverging) + b"\0"))
        if outcome.current_leader is not None:
            tags.append(_leader_tag(1, outcome.current_leader))
        _put_tags(out, tags)
    return out


DECODERS: dict[int, Callable[[int, memoryview], Any]] = {PRODUCE: decode_produce, FETCH: decode_fetch}
