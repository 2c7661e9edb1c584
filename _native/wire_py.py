"""The specification of the wire kernel: the messages that carry the load, without an object per field.

Requests of Produce (versions 0 to 13) and Fetch (4 to 18) come out as tuples whose records are views into the received
frame; answers leave as byte runs with holes for file slices. Metadata (0 to 13) is joined from parts that a broker can
keep per topic and version. Source: Kafka's message schemas; KIP-482 (tagged fields), KIP-516 (topic ids), KIP-951
(leaders in answers). kafka-python's classes are the reference in the tests: equal bytes for equal content.

Every length and count is held against the bytes that are left before it is used; what does not fit raises
MalformedMessage. Encoders take values that fit into their fields.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from _native.errors import MalformedMessage

Buffer = bytes | bytearray | memoryview

MAX_OBJECTS = 200_000
MAX_TAGS = 64
NO_HIGH_WATERMARK = 2**63 - 1
_MAX_STRING = 0x7FFF
_MAX_UINT32 = 2**32 - 1
_NO_ID = uuid.UUID(int=0)
_PRODUCE_FLEXIBLE, _PRODUCE_TOPIC_IDS = 9, 13
_FETCH_FLEXIBLE, _FETCH_TOPIC_IDS = 12, 13
_METADATA_FLEXIBLE = 9

_I8, _I16, _I32, _I64 = struct.Struct(">b"), struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


class Slice(Protocol):
    """A run of bytes in a file, sent as it is."""

    position: int
    length: int

    def fileno(self) -> int:
        """The open file."""
        ...

    def release(self) -> None:
        """Nobody sends it any more."""
        ...


class NodeEndpoint(NamedTuple):
    """Where a broker is: in answers that send the client elsewhere (KIP-951), and in Metadata."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


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

    error: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None


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

    error: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    slices: Sequence[Slice] = ()
    size: int = 0
    diverging: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    preferred_read_replica: int = -1


class MetadataPartition(NamedTuple):
    """One partition in a Metadata answer."""

    error: int
    partition: int
    leader_id: int
    leader_epoch: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
    offline: Sequence[int] = ()


# ---- reading ----------------------------------------------------------------------------------------------------


class _Reader:
    __slots__ = ("budget", "data", "end", "pos")

    def __init__(self, data: Buffer, budget: int) -> None:
        self.data = memoryview(data)
        self.pos = 0
        self.end = len(self.data)
        self.budget = budget

    def take(self, size: int) -> memoryview:
        """The next ``size`` bytes, without a copy."""
        if size < 0 or size > self.end - self.pos:
            raise MalformedMessage(f"needs {size} bytes at {self.pos}, has {self.end - self.pos}")
        self.pos += size
        return self.data[self.pos - size : self.pos]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Fixed fields; all of them are there or none is read."""
        return layout.unpack(self.take(layout.size))

    def varint(self) -> int:
        """An unsigned varint of at most 32 bits."""
        value = shift = 0
        while True:
            if self.pos >= self.end:
                raise MalformedMessage("a varint runs past the end")
            byte = self.data[self.pos]
            self.pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise MalformedMessage("a varint is longer than five bytes")
        if value > _MAX_UINT32:
            raise MalformedMessage("a varint does not fit into 32 bits")
        return value

    def spend(self, objects: int) -> None:
        """Count objects against the budget."""
        self.budget -= objects
        if self.budget < 0:
            raise MalformedMessage("decodes into too many objects")

    def string(self, flexible: bool) -> str | None:
        """A nullable string."""
        length: int = self.varint() - 1 if flexible else self.unpack(_I16)[0]
        if length == -1:
            return None
        if length < 0 or length > _MAX_STRING:
            raise MalformedMessage(f"a string of {length} bytes")
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError:
            raise MalformedMessage("a string is not UTF-8") from None

    def name(self, flexible: bool) -> str:
        """A string that must be there."""
        value = self.string(flexible)
        if value is None:
            raise MalformedMessage("a name must not be null")
        return value

    def count(self, flexible: bool, smallest: int) -> int:
        """The length of an array whose elements have ``smallest`` bytes at least."""
        count: int = self.varint() - 1 if flexible else self.unpack(_I32)[0]
        if count < 0:
            raise MalformedMessage("an array must not be null")
        if count > (self.end - self.pos) // smallest:
            raise MalformedMessage(f"an array claims {count} elements in {self.end - self.pos} bytes")
        self.spend(count)
        return count

    def topic_id(self) -> uuid.UUID:
        """16 bytes as they are."""
        return uuid.UUID(bytes=bytes(self.take(16)))

    def tags(self) -> Iterator[int]:
        """The tag of each tagged field, while the reader ends where the field does; what is not read is skipped."""
        count = self.varint()
        if count > MAX_TAGS:
            raise MalformedMessage(f"{count} tagged fields")
        self.spend(count)
        outer = self.end
        for _ in range(count):
            tag, size = self.varint(), self.varint()
            self.take(size)
            after = self.pos
            self.pos, self.end = after - size, after
            yield tag
            self.pos, self.end = after, outer

    def skip_tags(self) -> None:
        """Tagged fields none of which is known."""
        for _ in self.tags():
            pass

    def finish(self) -> None:
        """Nothing may be left over."""
        if self.pos != self.end:
            raise MalformedMessage(f"{self.end - self.pos} bytes left over")


_ACKS = struct.Struct(">hi")
_LIMITS = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_REPLICA = struct.Struct(">iq")
_FETCH_V12 = struct.Struct(">iiqiqi")
_FETCH_V9 = struct.Struct(">iiqqi")
_FETCH_V5 = struct.Struct(">iqqi")
_FETCH_V4 = struct.Struct(">iqi")


def decode_produce(version: int, body: Buffer, budget: int = MAX_OBJECTS) -> ProduceRequest:
    """Decode a Produce of version 0 to 13; raises MalformedMessage."""
    reader = _Reader(body, budget)
    flexible = version >= _PRODUCE_FLEXIBLE
    transactional_id = reader.string(flexible) if version >= 3 else None
    acks, timeout_ms = reader.unpack(_ACKS)
    parts: list[ProducePart] = []
    for _ in range(reader.count(flexible, 3)):
        name = topic_id = None
        if version >= _PRODUCE_TOPIC_IDS:
            topic_id = reader.topic_id()
        else:
            name = reader.name(flexible)
        for _ in range(reader.count(flexible, 5)):
            (index,) = reader.unpack(_I32)
            size: int = reader.varint() - 1 if flexible else reader.unpack(_I32)[0]
            if size < -1:
                raise MalformedMessage(f"records of {size} bytes")
            parts.append(ProducePart(name, topic_id, index, reader.take(size) if size >= 0 else None))
            if flexible:
                reader.skip_tags()
        if flexible:
            reader.skip_tags()
    if flexible:
        reader.skip_tags()
    reader.finish()
    return ProduceRequest(transactional_id, acks, timeout_ms, parts)


def decode_fetch(version: int, body: Buffer, budget: int = MAX_OBJECTS) -> FetchRequest:
    """Decode a Fetch of version 4 to 18; raises MalformedMessage."""
    reader = _Reader(body, budget)
    flexible = version >= _FETCH_FLEXIBLE
    replica_id, replica_epoch = -1, -1
    if version <= 14:
        (replica_id,) = reader.unpack(_I32)
    max_wait_ms, min_bytes, max_bytes, isolation_level = reader.unpack(_LIMITS)
    session_id, session_epoch = reader.unpack(_SESSION) if version >= 7 else (0, -1)
    parts = _fetch_parts(reader, version, flexible)
    forgotten = _forgotten(reader, version, flexible) if version >= 7 else []
    rack_id = reader.name(flexible) if version >= 11 else ""
    cluster_id: str | None = None
    if flexible:
        for tag in reader.tags():
            if tag == 0:
                cluster_id = reader.string(True)
                reader.finish()
            elif tag == 1 and version >= 15:
                replica_id, replica_epoch = reader.unpack(_REPLICA)
                reader.skip_tags()
                reader.finish()
    reader.finish()
    return FetchRequest(
        replica_id, replica_epoch, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch,
        parts, forgotten, rack_id, cluster_id,
    )  # fmt: skip


def _fetch_parts(reader: _Reader, version: int, flexible: bool) -> list[FetchPart]:
    parts: list[FetchPart] = []
    for _ in range(reader.count(flexible, 3)):
        name = topic_id = None
        if version >= _FETCH_TOPIC_IDS:
            topic_id = reader.topic_id()
        else:
            name = reader.name(flexible)
        for _ in range(reader.count(flexible, 16)):
            epoch = last_epoch = start = -1
            if version >= 12:
                index, epoch, offset, last_epoch, start, limit = reader.unpack(_FETCH_V12)
            elif version >= 9:
                index, epoch, offset, start, limit = reader.unpack(_FETCH_V9)
            elif version >= 5:
                index, offset, start, limit = reader.unpack(_FETCH_V5)
            else:
                index, offset, limit = reader.unpack(_FETCH_V4)
            watermark = NO_HIGH_WATERMARK
            if flexible:
                for tag in reader.tags():
                    if tag == 0 and version >= 17:
                        reader.take(16)  # the directory of the replica, which only a controller's quorum uses
                        reader.finish()
                    elif tag == 1 and version >= 18:
                        (watermark,) = reader.unpack(_I64)
                        reader.finish()
            parts.append(FetchPart(name, topic_id, index, epoch, offset, last_epoch, start, limit, watermark))
        if flexible:
            reader.skip_tags()
    return parts


def _forgotten(reader: _Reader, version: int, flexible: bool) -> list[tuple[str | uuid.UUID, list[int]]]:
    found: list[tuple[str | uuid.UUID, list[int]]] = []
    for _ in range(reader.count(flexible, 3)):
        topic = reader.topic_id() if version >= _FETCH_TOPIC_IDS else reader.name(flexible)
        count = reader.count(flexible, 4)
        found.append((topic, list(struct.unpack(f">{count}i", reader.take(4 * count)))))
        if flexible:
            reader.skip_tags()
    return found


# ---- writing ----------------------------------------------------------------------------------------------------


def _put_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_string(out: bytearray, value: str | None, flexible: bool) -> None:
    data = None if value is None else value.encode()
    if flexible:
        _put_varint(out, 0 if data is None else len(data) + 1)
    else:
        out += _I16.pack(-1 if data is None else len(data))
    if data is not None:
        out += data


def _put_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        _put_varint(out, count + 1)
    else:
        out += _I32.pack(count)


def _put_numbers(out: bytearray, numbers: Sequence[int], flexible: bool) -> None:
    _put_count(out, len(numbers), flexible)
    out += struct.pack(f">{len(numbers)}i", *numbers)


def _put_tags(out: bytearray, fields: Sequence[tuple[int, bytes]]) -> None:
    _put_varint(out, len(fields))
    for tag, payload in fields:
        _put_varint(out, tag)
        _put_varint(out, len(payload))
        out += payload


def _leader(leader: tuple[int, int]) -> bytes:
    return struct.pack(">ii", *leader) + b"\0"


def _endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    out = bytearray()
    _put_varint(out, len(endpoints) + 1)
    for node_id, host, port, rack in endpoints:
        out += _I32.pack(node_id)
        _put_string(out, host, True)
        out += _I32.pack(port)
        _put_string(out, rack, True)
        out.append(0)
    return bytes(out)


def _by_topic(parts: Iterable[tuple[Any, Any]]) -> list[tuple[Any, list[tuple[Any, Any]]]]:
    """Group neighbours of one topic, as the request had them."""
    groups: list[tuple[Any, list[tuple[Any, Any]]]] = []
    last: Any = None
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
    """The body of a Produce answer (versions 0 to 13), in the order of ``parts``."""
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
        _put_tags(out, [(0, _endpoints(endpoints))] if endpoints and version >= 10 else [])
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
        _put_tags(out, [(0, _leader(leader))] if leader is not None else [])


def encode_fetch_response(
    version: int,
    parts: Sequence[tuple[FetchPart, FetchOutcome]],
    throttle_ms: int = 0,
    error: int = 0,
    session_id: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> list[Any]:
    """The body of a Fetch answer (versions 4 to 18): bytes and the outcomes' slices, in the order they leave."""
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
        _put_tags(out, [(0, _endpoints(endpoints))] if endpoints and version >= 16 else [])
    chunks.append(bytes(out))
    return chunks


def _put_fetch_outcome(
    chunks: list[Any], out: bytearray, version: int, partition: int, outcome: FetchOutcome
) -> bytearray:
    """Append one partition; returns the run that comes after the records, if there were any."""
    flexible = version >= _FETCH_FLEXIBLE
    out += struct.pack(">ihqq", partition, outcome.error, outcome.high_watermark, outcome.last_stable_offset)
    if version >= 5:
        out += _I64.pack(outcome.log_start_offset)
    if outcome.aborted is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        _put_count(out, len(outcome.aborted), flexible)
        for producer_id, first_offset in outcome.aborted:
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
            tags.append((1, _leader(outcome.current_leader)))
        _put_tags(out, tags)
    return out


# ---- Metadata, in parts that can be kept ------------------------------------------------------------------------

NO_OPERATIONS = -(2**31)  # "not asked for", Kafka's default of authorized operations


def encode_metadata_topic(
    version: int,
    error: int,
    name: str | None,
    topic_id: uuid.UUID | None,
    internal: bool,
    partitions: Sequence[MetadataPartition],
    authorized_operations: int = NO_OPERATIONS,
) -> bytes:
    """One topic's part of a Metadata answer (versions 0 to 13); ``name`` None needs version 12."""
    flexible = version >= _METADATA_FLEXIBLE
    out = bytearray(_I16.pack(error))
    _put_string(out, name, flexible)
    if version >= 10:
        out += (topic_id or _NO_ID).bytes
    if version >= 1:
        out.append(1 if internal else 0)
    _put_count(out, len(partitions), flexible)
    for problem, index, leader, epoch, replicas, in_sync, offline in partitions:
        out += struct.pack(">hii", problem, index, leader)
        if version >= 7:
            out += _I32.pack(epoch)
        _put_numbers(out, replicas, flexible)
        _put_numbers(out, in_sync, flexible)
        if version >= 5:
            _put_numbers(out, offline, flexible)
        if flexible:
            out.append(0)
    if version >= 8:
        out += _I32.pack(authorized_operations)
    if flexible:
        out.append(0)
    return bytes(out)


def join_metadata(
    version: int,
    brokers: Sequence[NodeEndpoint],
    cluster_id: str | None,
    controller_id: int,
    topics: Sequence[bytes],
    throttle_ms: int = 0,
    cluster_authorized_operations: int = NO_OPERATIONS,
    error: int = 0,
) -> bytes:
    """The body of a Metadata answer (versions 0 to 13) of topics that ``encode_metadata_topic`` made for it."""
    flexible = version >= _METADATA_FLEXIBLE
    out = bytearray(_I32.pack(throttle_ms) if version >= 3 else b"")
    _put_count(out, len(brokers), flexible)
    for node_id, host, port, rack in brokers:
        out += _I32.pack(node_id)
        _put_string(out, host, flexible)
        out += _I32.pack(port)
        if version >= 1:
            _put_string(out, rack, flexible)
        if flexible:
            out.append(0)
    if version >= 2:
        _put_string(out, cluster_id, flexible)
    if version >= 1:
        out += _I32.pack(controller_id)
    _put_count(out, len(topics), flexible)
    out += b"".join(topics)
    if 8 <= version <= 10:
        out += _I32.pack(cluster_authorized_operations)
    if version >= 13:
        out += _I16.pack(error)
    if flexible:
        out.append(0)
    return bytes(out)
