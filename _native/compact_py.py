"""The specification of the compaction kernel: which record of a key is the last, and which records of a batch stay.

It also reads the positions that records of deduplicating topics have in a header, and leaves duplicates out.

The map is one block of slots of 24 bytes: a keyed hash of the key (16 bytes, SipHash-2-4 with 128 bits, under a secret
of the pass) and the record's offset plus one, little-endian; zero is an empty slot. Open addressing, linear probing.
Keys whose hashes are equal count as one key, and the older record of one of them is lost: hence 128 bits, and a secret
that a producer does not know (ADR 0020).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from fleetlog._native.batch_py import BatchHeader, _RecordReader, decode_records, validate_records
from fleetlog._native.byte_reader import put_varint, zigzag

__all__ = [
    "PAGE_BITS", "SLOT_BYTES", "Gathered", "Kept", "KeyMap", "PagePositions", "Position", "collect_keys",
    "gather_positions", "header_values", "keep_records", "leave_out", "page_positions", "read_positions", "record_keys",
    "siphash128",
]  # fmt: skip

Buffer = bytes | bytearray | memoryview

SLOT_BYTES = 24
_SLOT = struct.Struct("<QQQ")
_MASK = 2**64 - 1
_INT64_MAX = 2**63 - 1


def _rounds(v0: int, v1: int, v2: int, v3: int, count: int) -> tuple[int, int, int, int]:
    for _ in range(count):
        v0 = (v0 + v1) & _MASK
        v1 = ((v1 << 13 | v1 >> 51) & _MASK) ^ v0
        v0 = (v0 << 32 | v0 >> 32) & _MASK
        v2 = (v2 + v3) & _MASK
        v3 = ((v3 << 16 | v3 >> 48) & _MASK) ^ v2
        v0 = (v0 + v3) & _MASK
        v3 = ((v3 << 21 | v3 >> 43) & _MASK) ^ v0
        v2 = (v2 + v1) & _MASK
        v1 = ((v1 << 17 | v1 >> 47) & _MASK) ^ v2
        v2 = (v2 << 32 | v2 >> 32) & _MASK
    return v0, v1, v2, v3


def siphash128(secret: bytes, data: Buffer) -> tuple[int, int]:
    """SipHash-2-4 with a result of 128 bits, as two little-endian halves. ``secret`` has 16 bytes (else ValueError)."""
    if len(secret) != 16:
        raise ValueError(f"a secret of {len(secret)} bytes, where 16 are needed")
    k0, k1 = struct.unpack("<QQ", secret)
    v0, v1 = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE
    v2, v3 = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573
    view = memoryview(data)
    whole = len(view) - len(view) % 8
    tail = bytes(view[whole:]).ljust(7, b"\0") + bytes([len(view) & 0xFF])
    for word in (*(word for (word,) in struct.iter_unpack("<Q", view[:whole])), *struct.unpack("<Q", tail)):
        v3 ^= word
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 2)
        v0 ^= word
    v0, v1, v2, v3 = _rounds(v0, v1, v2 ^ 0xEE, v3, 4)
    first = v0 ^ v1 ^ v2 ^ v3
    v0, v1, v2, v3 = _rounds(v0, v1 ^ 0xDD, v2, v3, 4)
    return first, v0 ^ v1 ^ v2 ^ v3


class KeyMap:
    """The last offset of each key, in a block of fixed size that is given back with the map."""

    __slots__ = ("_block", "_secret", "_used", "limit", "slots")

    def __init__(self, slots: int, limit: int, secret: bytes) -> None:
        """``limit`` keys at most, fewer than ``slots``. Raises ValueError for other sizes, MemoryError."""
        if not 0 < limit < slots or slots > _INT64_MAX // SLOT_BYTES:
            raise ValueError(f"{limit} keys in {slots} slots")
        siphash128(secret, b"")
        self.slots = slots
        self.limit = limit
        self._secret = bytes(secret)
        self._used = 0
        self._block = bytearray(slots * SLOT_BYTES)

    def __len__(self) -> int:
        return self._used

    def _find(self, key: Buffer) -> tuple[int, int, int, int]:
        """The slot's position, both halves of the hash, and what the slot has as its offset plus one."""
        first, second = siphash128(self._secret, key)
        slot = first % self.slots
        while True:
            at = slot * SLOT_BYTES
            one, two, known = _SLOT.unpack_from(self._block, at)
            if not known or (one == first and two == second):
                return at, first, second, known
            slot = slot + 1 if slot + 1 < self.slots else 0

    def put(self, key: Buffer, offset: int) -> bool:
        """Remember the offset unless a larger one is known; False if there is no room for another key."""
        at, first, second, known = self._find(key)
        if not known:
            if self._used >= self.limit:
                return False
            self._used += 1
        if offset + 1 > known:
            _SLOT.pack_into(self._block, at, first, second, offset + 1)
        return True

    def get(self, key: Buffer) -> int:
        """The largest offset of the key, -1 if it is not there."""
        return self._find(key)[3] - 1


class _Span(NamedTuple):
    """Where a record of a payload stands: all of it, what follows its timestamp, its key; and what it says."""

    start: int
    rest: int
    end: int
    key: tuple[int, int] | None
    has_value: bool
    timestamp: int
    offset: int


def _spans(view: memoryview, header: BatchHeader) -> list[_Span]:
    """All records of a payload. Raises CorruptBatch."""
    validate_records(view, header)
    reader = _RecordReader(view)
    spans = []
    for _ in range(header.record_count):
        start = reader.pos
        length = reader.signed(32)
        end = reader.pos + length
        reader.pos += 1
        timestamp = header.base_timestamp + reader.signed(64)
        rest = reader.pos
        offset = header.base_offset + reader.signed(32)
        key = reader.span()
        has_value = reader.span() is not None
        reader.pos = end
        spans.append(_Span(start, rest, end, key, has_value, timestamp, offset))
    return spans


def collect_keys(payload: Buffer, header: BatchHeader, keys: KeyMap, start: int) -> int:
    """Put the keys of a batch's records from offset ``start`` on into the map; records without a key are left out.

    Returns the offset of the first record that found no room, or -1. Raises CorruptBatch, after which the map is of no
    use. ``payload`` is decompressed.
    """
    view = memoryview(payload)
    for span in _spans(view, header):
        if span.offset >= start and span.key is not None and not keys.put(view[span.key[0] : span.key[1]], span.offset):
            return span.offset
    return -1


def record_keys(payload: Buffer, header: BatchHeader, start: int, most: int) -> list[tuple[int, bytes | None]]:
    """Offset and key of the records of a batch from offset ``start`` on, ``most`` at most.

    Raises CorruptBatch. ``payload`` is decompressed.
    """
    view = memoryview(payload)
    keys: list[tuple[int, bytes | None]] = []
    for span in _spans(view, header):
        if span.offset >= start and len(keys) < most:
            keys.append((span.offset, None if span.key is None else bytes(view[span.key[0] : span.key[1]])))
    return keys


def header_values(payload: Buffer, header: BatchHeader, name: str) -> list[tuple[int, bytes | None]]:
    """Offset and value of the records of a batch that have a header of that name, the last one of it.

    ``name`` is ASCII. Raises CorruptBatch. ``payload`` is decompressed.
    """
    values: list[tuple[int, bytes | None]] = []
    for record in decode_records(payload, header):
        named = [value for key, value in record.headers if key == name]
        if named:
            values.append((record.offset, named[-1]))
    return values


class Kept(NamedTuple):
    """What stays of a batch. ``payload`` is None if its bytes stay as they are."""

    payload: bytes | None
    record_count: int
    base_timestamp: int
    max_timestamp: int


def keep_records(
    payload: Buffer, header: BatchHeader, keys: KeyMap, end: int, tombstones_gone: bool, horizon: int
) -> Kept:
    """Leave out what is superseded: records below ``end`` without a key, or whose key has a larger offset in the map.

    With ``tombstones_gone`` those that delete their key go, too, as far as they lie below ``end``. If one is kept and
    ``horizon`` (ms) is not negative, the batch gets it as its base timestamp, unless a timestamp is so far away that
    the format can't say so. Raises CorruptBatch. ``payload`` is decompressed.
    """
    view = memoryview(payload)
    spans = _spans(view, header)
    kept = [
        span
        for span in spans
        if span.offset >= end
        or (
            span.key is not None
            and keys.get(view[span.key[0] : span.key[1]]) <= span.offset
            and (span.has_value or not tombstones_gone)
        )
    ]
    largest = max((span.timestamp for span in kept), default=header.max_timestamp)
    if header.is_log_append_time:
        largest = header.max_timestamp
    base = header.base_timestamp
    has_tombstone = not all(span.has_value for span in kept)
    fits = all(-_INT64_MAX - 1 <= span.timestamp - horizon <= _INT64_MAX for span in kept)
    if horizon >= 0 and has_tombstone and fits:
        base = horizon
    if len(kept) == len(spans) and base == header.base_timestamp:
        return Kept(None, len(kept), base, header.max_timestamp)
    out = bytearray()
    for span in kept:
        if base == header.base_timestamp:
            out += view[span.start : span.end]
            continue
        body = bytearray(view[_body_at(view, span.start) :][:1])
        put_varint(body, zigzag(span.timestamp - base))
        body += view[span.rest : span.end]
        put_varint(out, zigzag(len(body)))
        out += body
    return Kept(bytes(out), len(kept), base, largest)


def _body_at(view: memoryview, start: int) -> int:
    """Where a record's attributes stand, behind its length."""
    while view[start] >= 0x80:
        start += 1
    return start + 1


# ---- positions of deduplicating topics

_MAX_SOURCE_BYTES = 255
_MAX_POSITION = _INT64_MAX - 4096
"""The first position behind a page of 4,096 fits into 64 signed bits, too."""
_INT32_MAX = 2**31 - 1
PAGE_BITS = 12
"""Positions of a source are kept in pages of 2^12."""
_PAGE_MASK = (1 << PAGE_BITS) - 1

Position = tuple[bytes, int, int]
"""Source id, position, ordinal."""


class PagePositions(NamedTuple):
    """Positions of one page of a source: bit n of ``bits`` for place n with ordinal 0, else (place, ordinal)."""

    source: bytes
    number: int
    bits: int
    more: frozenset[tuple[int, int]]


class Gathered(NamedTuple):
    """The positions of a batch's records, by page, and what ``validate_records`` says of their timestamps."""

    pages: list[PagePositions]
    max_timestamp: int


def _parse_position(value: Buffer | None) -> Position | None:
    """Source id, position and ordinal of a header's value ``source:position:ordinal``; None if it is no such text.

    The source id is 1 to 255 bytes, colons among them if need be; the numbers are decimal digits, up to
    2^63 - 4097 and 2^31 - 1.
    """
    if value is None:
        return None
    fields = bytes(value).rsplit(b":", 2)
    if len(fields) != 3 or not 0 < len(fields[0]) <= _MAX_SOURCE_BYTES:
        return None
    source, position, ordinal = fields
    if not (position.isdigit() and ordinal.isdigit() and len(position) <= 19 and len(ordinal) <= 10):
        return None
    if int(position) > _MAX_POSITION or int(ordinal) > _INT32_MAX:
        return None
    return source, int(position), int(ordinal)


def read_positions(payload: Buffer, header: BatchHeader, name: bytes) -> list[Position | None]:
    """What each record of a batch says in its header ``name``: source id, position and ordinal.

    None where there is no such header, more than one, or no such text in it. Raises CorruptBatch. ``payload`` is
    decompressed.
    """
    validate_records(payload, header)
    wanted = name.decode()
    positions = []
    for record in decode_records(payload, header):
        values = [value for known, value in record.headers if known == wanted]
        positions.append(_parse_position(values[0]) if len(values) == 1 else None)
    return positions


def page_positions(positions: Iterable[Position]) -> list[PagePositions]:
    """Positions by page, in the order of the first of each; one that is there twice counts once."""
    pages: dict[tuple[bytes, int], tuple[set[int], set[tuple[int, int]]]] = {}
    for source, position, ordinal in positions:
        places, more = pages.setdefault((source, position >> PAGE_BITS), (set(), set()))
        place = position & _PAGE_MASK
        if ordinal:
            more.add((place, ordinal))
        else:
            places.add(place)
    return [
        PagePositions(source, number, sum(1 << place for place in places), frozenset(more))
        for (source, number), (places, more) in pages.items()
    ]


def gather_positions(payload: Buffer, header: BatchHeader, name: bytes, most: int) -> Gathered | None:
    """What the records of a batch say in their headers ``name``, by page, if all is as it mostly is.

    None if a record has no such position, if two have the same one, and for more than ``most`` pages:
    :func:`read_positions` says more. Raises CorruptBatch. ``payload`` is decompressed.
    """
    largest, _ = validate_records(payload, header)
    positions = read_positions(payload, header, name)
    pages = page_positions(one for one in positions if one is not None)
    distinct = sum(page.bits.bit_count() + len(page.more) for page in pages)
    return Gathered(pages, largest) if distinct == len(positions) and len(pages) <= most else None


def leave_out(payload: Buffer, header: BatchHeader, gone: set[int]) -> Kept:
    """The records of a batch but those with the indexes in ``gone``, their bytes as they are. Raises CorruptBatch.

    ``payload`` is decompressed.
    """
    view = memoryview(payload)
    kept = [span for index, span in enumerate(_spans(view, header)) if index not in gone]
    largest = max((span.timestamp for span in kept), default=header.max_timestamp)
    if header.is_log_append_time:
        largest = header.max_timestamp
    out = b"".join(view[span.start : span.end] for span in kept)
    return Kept(out, len(kept), header.base_timestamp, largest)
