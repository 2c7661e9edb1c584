"""The specification of the wire kernel: the messages that carry the load, without an object per field.

Requests of Produce (versions 0 to 13) and Fetch (4 to 18) come out as tuples whose records are views into the received
frame; responses leave as byte runs with holes for file slices. A follower's side of Fetch (13 to 18) is here as well.
Metadata (0 to 13) is joined from parts that a broker can keep per topic and version. Source: Kafka's message schemas;
KIP-482 (tagged fields), KIP-516 (topic ids), KIP-951 (leaders in responses). kafka-python's classes are the reference
in the tests: equal bytes for equal content.

Every length and count is compared with the bytes that are left before it is used; what does not fit raises
MalformedMessage. Encoders take values that fit into their fields.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from fleetlog._native.byte_reader import put_varint
from fleetlog._native.errors import LooseMessage, MalformedMessage
from fleetlog._native.wire_fields import (
    I16,
    I32,
    I64,
    MAX_ASKED,
    MAX_OBJECTS,
    MAX_TAGS,
    Buffer,
    Reader,
    put_count,
    put_numbers,
    put_string,
    put_tags,
)
from fleetlog._native.wire_tuples import (
    LARGEST_FETCH_RUN,
    FetchAnswer,
    FetchAnswerPart,
    FetchOutcome,
    FetchPart,
    FetchRequest,
    FetchRun,
    MetadataPartition,
    NodeEndpoint,
    ProduceOutcome,
    ProducePart,
    ProduceRequest,
    ProduceRun,
    RequestHeader,
    Slice,
)

__all__ = [
    "MAX_ASKED",
    "MAX_OBJECTS",
    "MAX_TAGS",
    "NO_HIGH_WATERMARK",
    "NO_OPERATIONS",
    "FetchAnswer",
    "FetchAnswerPart",
    "FetchOutcome",
    "FetchPart",
    "FetchRequest",
    "FetchRun",
    "MalformedMessage",
    "MetadataPartition",
    "NodeEndpoint",
    "ProduceOutcome",
    "ProducePart",
    "ProduceRequest",
    "ProduceRun",
    "RequestHeader",
    "Slice",
    "decode_fetch",
    "decode_fetch_response",
    "decode_fetch_run",
    "decode_produce",
    "decode_produce_run",
    "encode_fetch_answer",
    "encode_fetch_request",
    "encode_fetch_response",
    "encode_metadata_topic",
    "encode_produce_response",
    "encode_produce_run",
    "join_metadata",
    "parse_request_header",
]

NO_HIGH_WATERMARK = 2**63 - 1
MAX_RUN_PARTS = 16
"""Partitions of a run: they are looked for one by one."""
_BATCH_HEADER, _CODEC_AT, _CODEC_MASK = 61, 22, 7
"""Where a record batch says whether it is compressed."""
_NO_ID = uuid.UUID(int=0)
_PRODUCE_FLEXIBLE, _PRODUCE_TOPIC_IDS = 9, 13
_FETCH_FLEXIBLE, _FETCH_TOPIC_IDS = 12, 13
_METADATA_FLEXIBLE = 9


# ---- reading ----------------------------------------------------------------------------------------------------


_REQUEST_HEAD = struct.Struct(">hhih")
_NO_VERSION = 2**15
_ACKS = struct.Struct(">hi")
_LIMITS = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_REPLICA = struct.Struct(">iq")
_FETCH_V12 = struct.Struct(">iiqiqi")
_FETCH_V9 = struct.Struct(">iiqqi")
_FETCH_V5 = struct.Struct(">iqqi")
_FETCH_V4 = struct.Struct(">iqi")


def parse_request_header(frame: Buffer, flexible_from: Mapping[int, int]) -> RequestHeader:
    """The header of a frame (without its length prefix); raises MalformedMessage, or LooseMessage with the header.

    ``flexible_from`` is the first flexible version of each API key. The client id is never compact, also in flexible
    headers. For an unknown key or version the body's position is that of a header without tags.
    """
    if len(frame) < _REQUEST_HEAD.size:
        raise MalformedMessage(f"a frame of {len(frame)} bytes has no header")
    reader = Reader(frame, MAX_OBJECTS)
    key, version, correlation_id, length = reader.unpack(_REQUEST_HEAD)
    if length < -1:
        raise MalformedMessage(f"client id of {length} bytes")
    client_id = str(reader.text(max(0, length)))  # no name that is stored: it may be what it became
    if 0 <= version >= flexible_from.get(key, _NO_VERSION):
        reader.skip_tags()
    header = RequestHeader(key, version, correlation_id, client_id, reader.pos)
    if reader.replaced:
        raise LooseMessage("client id is not UTF-8", header)
    return header


def decode_produce(version: int, body: Buffer, budget: int = MAX_ASKED) -> ProduceRequest:
    """Decode a Produce of version 0 to 13; raises MalformedMessage, or LooseMessage with it."""
    reader = Reader(body, budget)
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
            (index,) = reader.unpack(I32)
            size: int = reader.varint() - 1 if flexible else reader.unpack(I32)[0]
            if size < -1:
                raise MalformedMessage(f"records of {size} bytes")
            parts.append(ProducePart(name, topic_id, index, reader.take(size) if size >= 0 else None))
            if flexible:
                reader.skip_tags()
        if flexible:
            reader.skip_tags()
    if flexible:
        reader.skip_tags()
    return reader.whole(ProduceRequest(transactional_id, acks, timeout_ms, parts))


def decode_produce_run(data: Buffer, start: int, end: int, lowest: int, highest: int, most: int) -> ProduceRun | None:
    """The whole frames from ``start`` on that make a run: versions ``lowest`` to ``highest``, at most ``most`` frames.

    Each is a Produce with an answer, of one partition; version, acks, time-out and transactional id are those of the
    first. One whose batch has a codec is a run of its own, for what it inflates to is bounded by itself. None if the
    first is anything else, or not sound: decoding it by itself says why.
    """
    view = memoryview(data)
    run: ProduceRun | None = None
    while run is None or len(run.ends) < most:
        frame = _frame(view, start, end)
        if frame is None:
            break
        try:
            header = parse_request_header(frame, {0: _PRODUCE_FLEXIBLE})
            version = header.api_version
            if header.api_key != 0 or not max(3, lowest) <= version <= highest:
                break
            request = decode_produce(version, frame[header.body :])
        except MalformedMessage:
            break
        if request.acks not in (-1, 1) or len(request.parts) != 1:
            break
        records = request.parts[0].records
        if not records:
            break
        common = version, request.acks, request.timeout_ms, request.transactional_id
        compressed = len(records) >= _BATCH_HEADER and bool(records[_CODEC_AT] & _CODEC_MASK)
        if compressed and run is not None:
            break
        if run is None:
            run = ProduceRun(*common, [], [], [], [], [])
        elif common != run[:4]:
            break
        part = request.parts[0]._replace(records=None)
        if part not in run.parts:
            if len(run.parts) == MAX_RUN_PARTS:
                break
            run.parts.append(part)
            run.batches.append([])
        group = run.parts.index(part)
        run.batches[group].append(records)
        run.groups.append(group)
        run.correlation_ids.append(header.correlation_id)
        start += 4 + len(frame)
        run.ends.append(start)
        if compressed:
            break
    return run


def _frame(view: memoryview, start: int, end: int) -> memoryview | None:
    if end - start < 4:
        return None
    (size,) = I32.unpack_from(view, start)
    return view[start + 4 : start + 4 + size] if 0 <= size <= end - start - 4 else None


def decode_fetch_run(data: Buffer, start: int, end: int, lowest: int, highest: int, most: int) -> FetchRun | None:
    """The whole frame at ``start`` if it is a small Fetch of version ``lowest`` to ``highest``, else None.

    None, too, if it is not sound: its decoding by itself tells the reason.
    """
    frame = _frame(memoryview(data), start, end)
    if frame is None or len(frame) > LARGEST_FETCH_RUN or most < 1:
        return None
    try:
        header = parse_request_header(frame, {1: _FETCH_FLEXIBLE})
        if header.api_key != 1 or not lowest <= header.api_version <= highest:
            return None
        request = decode_fetch(header.api_version, frame[header.body :])
    except MalformedMessage:
        return None
    return FetchRun(request, header.api_version, [header.correlation_id], [start + 4 + len(frame)])


def decode_fetch(version: int, body: Buffer, budget: int = MAX_ASKED) -> FetchRequest:
    """Decode a Fetch of version 4 to 18; raises MalformedMessage, or LooseMessage with it."""
    reader = Reader(body, budget)
    flexible = version >= _FETCH_FLEXIBLE
    replica_id, replica_epoch = -1, -1
    if version <= 14:
        (replica_id,) = reader.unpack(I32)
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
    return reader.whole(FetchRequest(
        replica_id, replica_epoch, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch,
        parts, forgotten, rack_id, cluster_id,
    ))  # fmt: skip


def _fetch_parts(reader: Reader, version: int, flexible: bool) -> list[FetchPart]:
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
                        (watermark,) = reader.unpack(I64)
                        reader.finish()
            parts.append(FetchPart(name, topic_id, index, epoch, offset, last_epoch, start, limit, watermark))
        if flexible:
            reader.skip_tags()
    return parts


def _forgotten(reader: Reader, version: int, flexible: bool) -> list[tuple[str | uuid.UUID, list[int]]]:
    forgotten: list[tuple[str | uuid.UUID, list[int]]] = []
    for _ in range(reader.count(flexible, 3)):
        topic = reader.topic_id() if version >= _FETCH_TOPIC_IDS else reader.name(flexible)
        count = reader.count(flexible, 4)
        forgotten.append((topic, list(struct.unpack(f">{count}i", reader.take(4 * count)))))
        if flexible:
            reader.skip_tags()
    return forgotten


# ---- writing ----------------------------------------------------------------------------------------------------


def _leader(leader: tuple[int, int]) -> bytes:
    return struct.pack(">ii", *leader) + b"\0"


def _endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    out = bytearray()
    put_varint(out, len(endpoints) + 1)
    for node_id, host, port, rack in endpoints:
        out += I32.pack(node_id)
        put_string(out, host, True)
        out += I32.pack(port)
        put_string(out, rack, True)
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
        put_string(out, part.topic or "", flexible)


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
    put_count(out, len(groups), flexible)
    for first, members in groups:
        _put_topic(out, first, version >= _PRODUCE_TOPIC_IDS, flexible)
        put_count(out, len(members), flexible)
        for part, outcome in members:
            _put_produce_outcome(out, version, part.partition, outcome)
        if flexible:
            out.append(0)
    if version >= 1:
        out += I32.pack(throttle_ms)
    if flexible:
        put_tags(out, [(0, _endpoints(endpoints))] if endpoints and version >= 10 else [])
    return bytes(out)


def encode_produce_run(
    run: ProduceRun, log_starts: Sequence[int], admitted: Sequence[Sequence[tuple[int, ...]]]
) -> bytes:
    """The answers to a run whose batches were all appended, whole frames in the order of the requests.

    ``log_starts`` is each partition's log start offset; ``admitted`` has, for each batch of each partition, a tuple
    that begins with its first offset.
    """
    out = bytearray()
    turns = [iter(offsets) for offsets in admitted]
    for group, correlation_id in zip(run.groups, run.correlation_ids, strict=True):
        outcome = ProduceOutcome(0, next(turns[group])[0], -1, log_starts[group])
        body = encode_produce_response(run.version, [(run.parts[group], outcome)])
        header = I32.pack(correlation_id) + (b"\0" if run.version >= _PRODUCE_FLEXIBLE else b"")
        out += I32.pack(len(header) + len(body)) + header + body
    return bytes(out)


def _put_produce_outcome(out: bytearray, version: int, partition: int, outcome: ProduceOutcome) -> None:
    flexible = version >= _PRODUCE_FLEXIBLE
    out += struct.pack(">ihq", partition, outcome.error, outcome.base_offset)
    if version >= 2:
        out += I64.pack(outcome.log_append_time_ms)
    if version >= 5:
        out += I64.pack(outcome.log_start_offset)
    if version >= 8:
        put_count(out, len(outcome.record_errors), flexible)
        for index, message in outcome.record_errors:
            out += I32.pack(index)
            put_string(out, message, flexible)
            if flexible:
                out.append(0)
        put_string(out, outcome.error_message, flexible)
    if flexible:
        leader = outcome.current_leader if version >= 10 else None
        put_tags(out, [(0, _leader(leader))] if leader is not None else [])


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
    out = bytearray(I32.pack(throttle_ms))
    if version >= 7:
        out += struct.pack(">hi", error, session_id)
    groups = _by_topic(parts)
    put_count(out, len(groups), flexible)
    for first, members in groups:
        _put_topic(out, first, version >= _FETCH_TOPIC_IDS, flexible)
        put_count(out, len(members), flexible)
        for part, outcome in members:
            out = _put_fetch_outcome(chunks, out, version, part.partition, outcome)
        if flexible:
            out.append(0)
    if flexible:
        put_tags(out, [(0, _endpoints(endpoints))] if endpoints and version >= 16 else [])
    chunks.append(bytes(out))
    return chunks


def encode_fetch_answer(
    version: int,
    correlation_id: int,
    parts: Sequence[tuple[FetchPart, FetchOutcome]],
    session_id: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> list[Any]:
    """A whole Fetch answer with size and header; chunks as they leave."""
    head, *rest = encode_fetch_response(version, parts, 0, 0, session_id, endpoints)
    header = I32.pack(correlation_id) + (b"\0" if version >= _FETCH_FLEXIBLE else b"")
    size = len(header) + len(head) + sum(len(chunk) for chunk in rest if isinstance(chunk, bytes))
    size += sum(outcome.size for _, outcome in parts)
    return [I32.pack(size) + header + head, *rest]


def _put_fetch_outcome(
    chunks: list[Any], out: bytearray, version: int, partition: int, outcome: FetchOutcome
) -> bytearray:
    """Append one partition; returns the byte run after the records, if there were any."""
    flexible = version >= _FETCH_FLEXIBLE
    out += struct.pack(">ihqq", partition, outcome.error, outcome.high_watermark, outcome.last_stable_offset)
    if version >= 5:
        out += I64.pack(outcome.log_start_offset)
    if outcome.aborted is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        put_count(out, len(outcome.aborted), flexible)
        for producer_id, first_offset in outcome.aborted:
            out += struct.pack(">qq", producer_id, first_offset)
            if flexible:
                out.append(0)
    if version >= 11:
        out += I32.pack(outcome.preferred_read_replica)
    put_count(out, outcome.size, flexible)  # a length is written as a count is
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
        put_tags(out, tags)
    return out


# ---- the follower's side of Fetch -------------------------------------------------------------------------------


def encode_fetch_request(
    version: int,
    *,
    replica_id: int,
    replica_epoch: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    session_id: int,
    session_epoch: int,
    parts: Sequence[FetchPart],
    forgotten: Sequence[tuple[uuid.UUID, Sequence[int]]] = (),
    rack_id: str = "",
    isolation_level: int = 0,
) -> bytes:
    """The body of a Fetch of version 13 to 18; topics go by their id, neighbours of one topic together.

    ``replica_epoch`` is the broker's epoch (KIP-841, from version 15 on). A part's high watermark is the one that
    the follower knows (KIP-1166, from version 18 on).
    """
    out = bytearray(I32.pack(replica_id) if version <= 14 else b"")
    out += _LIMITS.pack(max_wait_ms, min_bytes, max_bytes, isolation_level)
    out += _SESSION.pack(session_id, session_epoch)
    groups = [(topic_id, list(members)) for topic_id, members in groupby(parts, attrgetter("topic_id"))]
    put_count(out, len(groups), True)
    for topic_id, members in groups:
        out += (topic_id or _NO_ID).bytes
        put_count(out, len(members), True)
        for _, _, partition, epoch, offset, last_epoch, start, limit, watermark in members:
            out += _FETCH_V12.pack(partition, epoch, offset, last_epoch, start, limit)
            known = version >= 18 and watermark != NO_HIGH_WATERMARK
            put_tags(out, [(1, I64.pack(watermark))] if known else [])
        out.append(0)
    put_count(out, len(forgotten), True)
    for topic_id, indexes in forgotten:
        out += topic_id.bytes
        put_numbers(out, indexes, True)
        out.append(0)
    put_string(out, rack_id, True)
    state = version >= 15 and (replica_id, replica_epoch) != (-1, -1)
    put_tags(out, [(1, _REPLICA.pack(replica_id, replica_epoch) + b"\0")] if state else [])
    return bytes(out)


_ANSWER = struct.Struct(">ihi")
_ANSWER_PART = struct.Struct(">ihqqq")
_DIVERGING = struct.Struct(">iq")
_LEADER = struct.Struct(">ii")


def decode_fetch_response(version: int, body: Buffer, budget: int = MAX_OBJECTS) -> FetchAnswer:
    """Decode a Fetch answer of version 13 to 18; raises MalformedMessage.

    Fields for consumers are checked and left out: aborted transactions, snapshot ids, the leaders' addresses.
    """
    assert 13 <= version <= 18, "a follower's fetch goes by topic id"
    reader = Reader(body, budget)
    throttle_ms, error, session_id = reader.unpack(_ANSWER)
    parts: list[FetchAnswerPart] = []
    for _ in range(reader.count(True, 18)):
        topic_id = reader.topic_id()
        parts.extend(_answer_part(reader, topic_id) for _ in range(reader.count(True, 37)))
        reader.skip_tags()
    reader.skip_tags()
    reader.finish()
    return FetchAnswer(throttle_ms, error, session_id, parts)


def _answer_part(reader: Reader, topic_id: uuid.UUID) -> FetchAnswerPart:
    partition, error, watermark, stable, start = reader.unpack(_ANSWER_PART)
    for _ in range(reader.nullable_count(17)):
        reader.take(16)
        reader.skip_tags()
    (preferred,) = reader.unpack(I32)
    size = reader.varint() - 1
    records = reader.take(max(0, size))
    diverging = leader = None
    for tag in reader.tags():
        if tag == 0:
            diverging = _epoch_pair(reader, _DIVERGING, 0)
        elif tag == 1:
            leader = _epoch_pair(reader, _LEADER, 1)
    return FetchAnswerPart(
        topic_id, partition, error, watermark, stable, start, diverging, leader, preferred, records
    )  # fmt: skip


def _epoch_pair(reader: Reader, layout: struct.Struct, which: int) -> tuple[int, int] | None:
    """A structure of two numbers, one of which is an epoch; a negative epoch is "none"."""
    pair = reader.unpack(layout)
    reader.skip_tags()
    reader.finish()
    return None if pair[which] < 0 else (pair[0], pair[1])


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
    out = bytearray(I16.pack(error))
    put_string(out, name, flexible)
    if version >= 10:
        out += (topic_id or _NO_ID).bytes
    if version >= 1:
        out.append(1 if internal else 0)
    put_count(out, len(partitions), flexible)
    for problem, index, leader, epoch, replicas, in_sync, offline in partitions:
        out += struct.pack(">hii", problem, index, leader)
        if version >= 7:
            out += I32.pack(epoch)
        put_numbers(out, replicas, flexible)
        put_numbers(out, in_sync, flexible)
        if version >= 5:
            put_numbers(out, offline, flexible)
        if flexible:
            out.append(0)
    if version >= 8:
        out += I32.pack(authorized_operations)
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
    out = bytearray(I32.pack(throttle_ms) if version >= 3 else b"")
    put_count(out, len(brokers), flexible)
    for node_id, host, port, rack in brokers:
        out += I32.pack(node_id)
        put_string(out, host, flexible)
        out += I32.pack(port)
        if version >= 1:
            put_string(out, rack, flexible)
        if flexible:
            out.append(0)
    if version >= 2:
        put_string(out, cluster_id, flexible)
    if version >= 1:
        out += I32.pack(controller_id)
    put_count(out, len(topics), flexible)
    out += b"".join(topics)
    if 8 <= version <= 10:
        out += I32.pack(cluster_authorized_operations)
    if version >= 13:
        out += I16.pack(error)
    if flexible:
        out.append(0)
    return bytes(out)
