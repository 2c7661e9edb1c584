"""The accepted positions of a partition as bytes: a part of its producer snapshot, and the file that says that it has
such a part.

The part stands between the entries, which Kafka reads, and our tail of remembered batches; the snapshot's checksum
covers it (:mod:`brokers.log.producers.snapshot_tail` says why Kafka passes over both).
"""

from __future__ import annotations

import struct

from fleetlog._native.compact import PAGE_BITS
from fleetlog.brokers.log.positions import (
    DEFAULT_MAX_BYTES,
    FLOOR_COST,
    ORDINAL_COST,
    PAGE_COST,
    SOURCE_COST,
    PositionPage,
    PositionSets,
    PositionSource,
)

DEDUP_FILE = "deduplicated"
"""In a partition's directory: its log drops duplicates, and must know so before its topic's settings are known."""

_MAGIC = b"flp1"
_HEAD = struct.Struct(">4sI")
_COUNT = struct.Struct(">I")
_SOURCE = struct.Struct(">BqqqI")
_FLOOR = struct.Struct(">Bq")
_PAGE = struct.Struct(">qqqBHI")
_PLACE = struct.Struct(">H")
_MORE = struct.Struct(">Hi")
_RAW = 0xFFFF
_PAGE_BYTES = 1 << PAGE_BITS >> 3
_LISTED = 8
"""Up to so many positions of a page are listed; more are written as the page's bits, which is quicker."""


def encode_positions(sets: PositionSets) -> bytes:
    """The part of a snapshot. A source with pages below its floor has an entry with these before its own.

    Older versions take the last entry of a source: a page below its floor, if it went, would take the floor down there.
    """
    out, entries = [b""], 0
    for source_id, source in sets.sources.items():
        entries_of = [source.pages]
        if source.numbers and source.numbers[0] << PAGE_BITS < source.floor:
            below = {number: page for number, page in source.pages.items() if number << PAGE_BITS < source.floor}
            entries_of = [below, {number: page for number, page in source.pages.items() if number not in below}]
        for pages in entries_of:
            entries += 1
            out.append(
                _SOURCE.pack(len(source_id), source.floor, source.last_ms, source.last_offset, len(pages)) + source_id
            )
            for number, page in pages.items():
                _add_page(out, number, page)
    out[0] = _COUNT.pack(entries)
    if sets.floors:
        out.append(_COUNT.pack(len(sets.floors)))
        out += [_FLOOR.pack(len(source_id), floor) + source_id for source_id, floor in sets.floors.items()]
    body = b"".join(out)
    return _HEAD.pack(_MAGIC, len(body)) + body


def _add_page(out: list[bytes], number: int, page: PositionPage) -> None:
    whole = page.bits
    count = whole.bit_count()
    listed = count <= _LISTED
    out.append(
        _PAGE.pack(number, page.touched_offset, page.touched_ms, page.exact, count if listed else _RAW, len(page.more))
    )
    if not listed:
        out.append(whole.to_bytes(_PAGE_BYTES, "little"))
    while listed and whole:
        lowest = whole & -whole
        out.append(_PLACE.pack(lowest.bit_length() - 1))
        whole ^= lowest
    out += [_MORE.pack(place, ordinal) for place, ordinal in sorted(page.more)]


def split_positions(data: memoryview) -> tuple[memoryview | None, memoryview]:
    """The part's body, None if there is none, and what follows it. ValueError for half of one."""
    if len(data) < _HEAD.size or data[: len(_MAGIC)] != _MAGIC:
        return None, data
    _, size = _HEAD.unpack_from(data)
    end = _HEAD.size + size
    if end > len(data):
        raise ValueError(f"the accepted positions need {end} bytes, there are {len(data)}")
    return data[_HEAD.size : end], data[end:]


def load_positions(sets: PositionSets, body: memoryview) -> None:
    """Replace what the sets hold by a part's. ValueError if it is damaged."""
    sets.clear()
    try:
        end = _load(sets, body)
    except (struct.error, IndexError) as wrong:
        sets.clear()
        raise ValueError(f"the accepted positions are cut off: {wrong}") from wrong
    if end != len(body):
        sets.clear()
        raise ValueError(f"the accepted positions end at {end} of {len(body)} bytes")


def _load(sets: PositionSets, body: memoryview) -> int:
    (sources,) = _COUNT.unpack_from(body)
    at = _COUNT.size
    for _ in range(sources):
        length, floor, last_ms, last_offset, pages = _SOURCE.unpack_from(body, at)
        at += _SOURCE.size
        source_id = bytes(body[at : at + length])
        at += length
        source = sets.sources.get(source_id)
        if source is None:
            source = sets.sources[source_id] = PositionSource(floor, last_ms, last_offset)
            sets.cost += SOURCE_COST + length
        for _ in range(pages):
            number, offset, touched_ms, exact, count, more = _PAGE.unpack_from(body, at)
            at += _PAGE.size
            page = source.add(number)
            page.touched_offset, page.touched_ms, page.exact = offset, touched_ms, bool(exact)
            if count == _RAW:
                page.bits = _raw(body, at)
                at += _PAGE_BYTES
            else:
                for (place,) in _PLACE.iter_unpack(body[at : at + count * _PLACE.size]):
                    page.bits |= 1 << place
                at += count * _PLACE.size
            page.more = set(_MORE.iter_unpack(body[at : at + more * _MORE.size]))
            at += more * _MORE.size
            sets.cost += PAGE_COST + ORDINAL_COST * len(page.more)
    return at if at == len(body) else _load_floors(sets, body, at)


def _load_floors(sets: PositionSets, body: memoryview, at: int) -> int:
    (count,) = _COUNT.unpack_from(body, at)
    at += _COUNT.size
    for _ in range(count):
        length, floor = _FLOOR.unpack_from(body, at)
        at += _FLOOR.size
        sets.floors[bytes(body[at : at + length])] = floor
        sets.cost += FLOOR_COST + length
        at += length
    return at


def _raw(body: memoryview, at: int) -> int:
    bits = body[at : at + _PAGE_BYTES]
    if len(bits) != _PAGE_BYTES:
        raise IndexError(f"half a page at {at}")
    return int.from_bytes(bits, "little")


def encode_dedup_file(sets: PositionSets) -> bytes:
    """What the file of a log that drops duplicates holds: the settings that count until the topic's are known."""
    return f"0\n{sets.window_ms}\n{sets.max_bytes}\n".encode()


def decode_dedup_file(data: bytes) -> PositionSets:
    """Empty sets with the file's settings; of a damaged file with such as forget nothing by time."""
    fields = data.split()
    if len(fields) == 3 and fields[0] == b"0" and fields[1].isdigit() and fields[2].isdigit():
        return PositionSets(window_ms=int(fields[1]), max_bytes=int(fields[2]))
    return PositionSets(window_ms=2**62, max_bytes=DEFAULT_MAX_BYTES)
