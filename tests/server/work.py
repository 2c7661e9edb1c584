"""The most expensive legal requests of every API and version, made from the message schemas.

A request is grown along its arrays: *wide* (as many elements of the outermost arrays as fit), *deep* (one outermost
element with innermost arrays as long as fit), with names that exist, that are unknown, all the same, or as long as a
string may be. What fits is bounded by the bytes asked for and by what the decoder admits.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, encode_batch, parse_header
from fleetlog.wire import api_keys, compression, hot
from fleetlog.wire.apis import APIS
from fleetlog.wire.bounded import MAX_FIELDS, MalformedRequest, Reader

KIB, MIB = 1024, 1024 * 1024
SIZES = {"256 KiB": 256 * KIB, "1 MiB": MIB, "the limit": 8 * MIB - 200}
LONG = 30_000
HELD_MS = 100.0
"""How long the loop may be held: computing time of its thread between two turns."""
MOST_IN_A_KERNEL = 20_000
TOPICS, PARTITIONS_PER_TOPIC = 100, 100
TOPIC = "many-{}"
MILLION = 1_000_000
MAX_TIMESTAMP = -3
LIST_OFFSETS_VERSION = 7
PRODUCE_VERSION = 12  # the last that names topics
PATTERN = r"\pL+"
"""1,201 instructions of RE2's; it matches all of :data:`TRANSACTIONAL_IDS`, which are about as long as may be."""
_LETTERS = random.Random("transactional ids")
TRANSACTIONAL_IDS = tuple("".join(map(chr, _LETTERS.choices(range(0x4E00, 0x9FA5), k=1_380))) for _ in range(100))
BATCH = encode_batch([Record(0, int(time.time() * 1000), b"k", b"v", ())])
"""What deep Produce requests have for each partition: it is appended."""


class Shape(NamedTuple):
    """How a request is grown."""

    deep: bool
    names: str  # known, unknown, same, long


SHAPES = tuple(Shape(deep, names) for deep in (False, True) for names in ("known", "unknown", "same", "long"))


@dataclass(frozen=True)
class Entry:
    """What makes an API's requests legal and expensive: ``fields`` are values by name, for all structs.

    ``deep_unknown`` are others, for requests that are deep, with unknown names: one resource that has many of them, or
    what is expensive with less in it. What would stay is only validated.
    """

    fields: dict[str, Any]
    deep_unknown: dict[str, Any] = field(default_factory=dict)

    def with_deep_unknown(self, **fields: Any) -> Entry:
        return Entry(self.fields, fields)


def _entry(**fields: Any) -> Entry:
    return Entry(fields)


WORK: dict[int, Entry] = {
    0: _entry(acks=-1, transactional_id=None),
    1: _entry(max_wait_ms=0, min_bytes=0, session_id=0, session_epoch=0, replica_id=-1, isolation_level=1),
    2: _entry(replica_id=-1, timestamp=-1, current_leader_epoch=-1),
    3: _entry(allow_auto_topic_creation=False, include_topic_authorized_operations=True),
    7: _entry(),
    8: _entry(generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, committed_metadata="x" * 200),
    9: _entry(require_stable=True),
    10: _entry(key_type=0),
    11: _entry(session_timeout_ms=1_800_000, rebalance_timeout_ms=1_800_000, protocol_type="consumer", member_id=""),
    12: _entry(),
    13: _entry(),
    14: _entry(),
    15: _entry(include_authorized_operations=True),
    16: _entry(),
    17: _entry(),
    18: _entry(),
    19: _entry(num_partitions=1_000, replication_factor=1, assignments=[], configs=[], validate_only=True),
    20: _entry(),
    21: _entry(offset=0),
    22: _entry(transactional_id=None),
    23: _entry(replica_id=-1, current_leader_epoch=-1, leader_epoch=0),
    24: _entry(verify_only=True),
    25: _entry(),
    26: _entry(),
    27: _entry(producer_epoch=0),
    28: _entry(generation_id_or_member_epoch=-1, member_id="", group_instance_id=None),
    29: _entry(resource_type_filter=2, pattern_type_filter=3, operation=2, permission_type=3),
    30: _entry(resource_type=2, resource_pattern_type=3, operation=2, permission_type=3),
    31: _entry(resource_type_filter=2, pattern_type_filter=3, operation=2, permission_type=3),
    32: _entry(resource_type=2, configuration_keys=None, include_synonyms=True, include_documentation=True),
    33: _entry(resource_type=2, validate_only=True).with_deep_unknown(resource_type=4, resource_name="1"),
    34: _entry(),
    35: _entry(),
    36: _entry(auth_bytes=b"\0user\0password"),
    37: _entry(count=PARTITIONS_PER_TOPIC + 10, assignments=None, validate_only=True),
    38: _entry(),
    39: _entry(),
    40: _entry(),
    41: _entry(),
    42: _entry(),
    43: _entry(election_type=0),
    44: _entry(resource_type=2, config_operation=2, validate_only=True).with_deep_unknown(
        resource_type=4, resource_name="1", config_operation=0
    ),
    45: _entry(replicas=[1]),
    46: _entry(),
    47: _entry(),
    48: _entry(match_type=2),
    49: _entry(validate_only=True),
    50: _entry(),
    51: _entry(mechanism=1, iterations=4096),
    57: _entry(upgrade_type=1, max_version_level=1),
    60: _entry(),
    61: _entry(),
    64: _entry(),
    65: _entry(),
    66: _entry(transactional_id_pattern=PATTERN, duration_filter=-1).with_deep_unknown(
        state_filters=[],
        producer_id_filters=[],  # every filter but the pattern leaves none of the ids
    ),
    68: _entry(member_id="m", member_epoch=1, instance_id=None, rack_id=None, subscribed_topic_regex=".*many.*"),
    69: _entry(include_authorized_operations=True),
    74: _entry(),
    75: _entry(response_partition_limit=2_000, cursor=None),
    76: _entry(),
    77: _entry(include_authorized_operations=True),
    78: _entry(member_id="m", share_session_epoch=0, max_wait_ms=0, acknowledge_types=[1]),
    79: _entry(member_id="m", share_session_epoch=1, acknowledge_types=[1]),
    83: _entry(),
    84: _entry(),
    85: _entry(delivery_state=2),
    86: _entry(),
    87: _entry(),
    90: _entry(),
    91: _entry(start_offset=0),
    92: _entry(),
    12000: _entry(),
    12001: _entry(),
    12002: _entry(count=100),
    12003: _entry(),
    12004: _entry(),
    12005: _entry(),
    12006: _entry(),
    12007: _entry(),
    12008: _entry(),
    12009: _entry(),
    12010: _entry(),
    12011: _entry(),
    12012: _entry(),
    12013: _entry(limit=2**31 - 1, after_id=-1),
    12014: _entry(limit=2**31 - 1),
    12015: _entry(),
    12016: _entry(limit=2**31 - 1),
    12020: _entry(),
    12021: _entry(max_bytes=2**31 - 1),
    12022: _entry(),
}
"""An API without an entry fails the test: think about what its requests may cost, and say it here."""


class Request(NamedTuple):
    """A frame with what it is."""

    key: int
    version: int
    size: str
    shape: Shape
    frame: bytes

    def __str__(self) -> str:
        shape = f"{'deep' if self.shape.deep else 'wide'}, {self.shape.names} names"
        return f"{APIS[self.key].name} v{self.version} of {self.size} ({len(self.frame)} bytes), {shape}"


class _Maker:
    """Makes a message with ``count`` elements in the arrays that are grown."""

    def __init__(self, key: int, version: int, shape: Shape, count: int) -> None:
        self.key, self.version, self.shape, self.count = key, version, shape, count
        self.fields = WORK[key].fields
        if shape.deep and shape.names == "unknown":
            self.fields = {**self.fields, **WORK[key].deep_unknown}
        self.number = 0
        self.batch = BATCH

    def message(self) -> Any:
        cls = m.request_class(self.key)
        return cls(version=self.version, **self.struct(cls._struct, 0))

    def struct(self, schema: Any, depth: int) -> dict[str, Any]:
        return {
            field.name: self.value(field, depth)
            for field in schema.fields.values()
            if field.for_version_q(self.version) and not field.tagged_field_q(self.version)
        }

    def value(self, field: Any, depth: int) -> Any:
        name = field.name
        if name in self.fields:
            return self.fields[name]
        if field.is_struct_array() and self.key == 11 and self.shape.deep:
            return [field.data_class(version=self.version, **self.struct(field.array_of, depth + 1))]
        if field.is_struct_array():
            inner = any(f.is_array() for f in field.array_of.untagged_fields(self.version))
            grown = not (self.shape.deep and inner)
            elements = range(self.count if grown and (depth == 0 or self.shape.deep) else 1)
            return [field.data_class(version=self.version, **self.struct(field.array_of, depth + 1)) for _ in elements]
        if field.is_array():
            grown = self.shape.deep or depth == 0
            return [self.scalar(field.array_of.type_str, name) for _ in range(self.count if grown else 1)]
        if field.is_struct():
            if field.nullable_for_version_q(self.version):
                return None
            return field.data_class(version=self.version, **self.struct(field, depth + 1))
        return self.scalar(field.type_str, name)

    def scalar(self, kind: str, name: str) -> Any:
        self.number += 1
        number = self.number
        if kind == "string":
            return self.name(name, number)
        if kind == "uuid":
            return None if self.key in (3, 20) else uuid.UUID(int=number)
        if kind == "records":
            return self.batch if self.shape.deep else b""
        if kind == "bytes":
            return b"m" * (self.count if self.key == 11 and self.shape.deep else 10)
        if kind == "bool":
            return False
        if kind == "bitfield":
            return None
        if "timeout" in name:
            return 10_000
        if kind in ("int32", "int64") and ("partition" in name or "index" in name):
            return 0 if self.shape.names == "same" else number % PARTITIONS_PER_TOPIC
        return 1 if kind == "float64" else 0

    def name(self, name: str, number: int) -> str:
        if name in ("path", "log_dir"):
            return "/"
        match self.shape.names:
            case "known":
                return TOPIC.format(number % TOPICS)
            case "same":
                return TOPIC.format(0)
            case "long":
                return f"{number}-" + "x" * LONG
        return f"u.{number}"


def _body(key: int, version: int, shape: Shape, count: int) -> bytes:
    return bytes(_Maker(key, version, shape, count).message().encode(version=version))


def _legal(key: int, version: int, body: bytes) -> bool:
    try:
        if key in hot.DECODERS:
            hot.DECODERS[key](version, memoryview(body))
        else:
            m.decode_request(key, version, memoryview(body))
    except MalformedRequest:
        return False
    return True


def _spent(key: int, version: int, body: bytes) -> int:
    reader = Reader(memoryview(body), 0, 1 << 40)
    m._codec(key, version, False).read(reader)
    return (1 << 40) - reader.budget


def largest(key: int, version: int, shape: Shape, limit: int) -> bytes | None:
    """The frame of that shape with about the most elements that are legal; None where one of each is too large.

    Requests grow evenly with their elements: two small ones say how large the largest is.
    """
    few, many = (4, 8) if shape.names == "long" else (64, 128)
    small, large = (_body(key, version, shape, count) for count in (few, many))
    count = few
    most = MOST_IN_A_KERNEL
    if key not in hot.DECODERS:
        spent = [_spent(key, version, body) for body in (small, large)]
        most = few + (MAX_FIELDS - spent[0]) * (many - few) // max(1, spent[1] - spent[0])
    if len(large) > len(small):
        count = min(
            count + (limit - len(small)) * (many - few) // (len(large) - len(small)),
            limit if key == 11 and shape.deep else most,
        )
    while count > 0:
        body = _body(key, version, shape, count)
        if len(body) <= limit and _legal(key, version, body):
            return m.frame_request(key, version, 1, "work", body)
        count = count * 4 // 5
    return None


def packed(codec: int, records: int) -> bytes:
    """A batch of so many records that unpacks to almost 64 MiB; of fewer with snappy, which makes no more of 1 MiB."""
    now, size = int(time.time() * 1000), 64 * MIB // records - 32
    count = min(records, 20 * MIB // size) if codec == compression.SNAPPY else records
    rows = [Record(n, now + (n == count - 1), b"k", bytes(size), ()) for n in range(count)]
    return encode_batch(rows, attributes=codec, compress=lambda data: compression.compress(codec, data))


def compressed() -> Iterator[Request]:
    """Produce with batches that unpack to the most there may be, to one partition and to many; then, in the last such
    batch, which has a million records and is in a partition of its own, the last one by its time.
    """
    for codec in (compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD):
        batch = packed(codec, 63)
        for count in (1, min(30, 8 * MIB // len(batch))):
            yield _produce(batch, count, f"{compression.NAMES[codec]} in {count} partitions")
    batch = packed(compression.ZSTD, MILLION)
    yield _produce(batch, 1, "a million records")
    for timestamp in (parse_header(batch).max_timestamp, MAX_TIMESTAMP):
        topic = m.ListOffsetsRequest.ListOffsetsTopic
        partition = topic.ListOffsetsPartition(partition_index=3, current_leader_epoch=-1, timestamp=timestamp)
        asked = m.ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=[topic(name=TOPIC.format(2), partitions=[partition])]
        )
        body = bytes(asked.encode(version=LIST_OFFSETS_VERSION))
        frame = m.frame_request(api_keys.LIST_OFFSETS, LIST_OFFSETS_VERSION, 1, "work", body)
        yield Request(api_keys.LIST_OFFSETS, LIST_OFFSETS_VERSION, f"the time {timestamp}", SHAPES[0], frame)


def _produce(batch: bytes, partitions: int, what: str) -> Request:
    """A Produce with that batch for so many topics, a partition of each."""
    version = PRODUCE_VERSION
    made = _Maker(api_keys.PRODUCE, version, Shape(True, "known"), partitions)
    made.batch = batch
    frame = m.frame_request(api_keys.PRODUCE, version, 1, "work", bytes(made.message().encode(version=version)))
    return Request(api_keys.PRODUCE, version, what, made.shape, frame)


def requests(choose: Callable[[int, int, str, Shape], bool] = lambda *_: True) -> Iterator[Request]:
    """All of them, or those that are chosen; each frame once."""
    for key, row in APIS.items():
        for version in range(row.lowest, row.max_version + 1):
            seen: set[bytes] = set()
            for size, limit in SIZES.items():
                for shape in SHAPES:
                    if not choose(key, version, size, shape):
                        continue
                    frame = largest(key, version, shape, limit)
                    if frame is not None and frame not in seen:
                        seen.add(frame)
                        yield Request(key, version, size, shape, frame)


def sample(seed: str, count: int) -> Iterator[Request]:
    """``count`` of them: the newest version of each API first, then any; shapes and sizes as the seed has it."""
    rng = random.Random(seed)
    chosen: list[tuple[int, int]] = [(key, row.max_version) for key, row in APIS.items()]
    rng.shuffle(chosen)
    versions = [(key, v) for key, row in APIS.items() for v in range(row.lowest, row.max_version + 1)]
    chosen += [rng.choice(versions) for _ in range(max(0, count - len(chosen)))]
    for key, version in chosen[:count]:
        size, shape = rng.choice(list(SIZES)), rng.choice(SHAPES)
        frame = largest(key, version, shape, SIZES[size])
        if frame is not None:
            yield Request(key, version, size, shape, frame)
    yield matching()


def matching() -> Request:
    """ListTransactions with nothing but the pattern: each of :data:`TRANSACTIONAL_IDS` is matched."""
    key, shape = api_keys.LIST_TRANSACTIONS, Shape(True, "unknown")
    version = APIS[key].max_version
    frame = m.frame_request(key, version, 1, "work", _body(key, version, shape, 0))
    return Request(key, version, "a pattern", shape, frame)
