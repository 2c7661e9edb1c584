"""Logs of topics that drop duplicates: batches with positions, and what is known of them."""

from __future__ import annotations

import os
from pathlib import Path

from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.log import Log
from fleetlog.brokers.log.positions import PAGE_POSITIONS, PositionSets
from fleetlog.wire import compression
from fleetlog.wire.errors import ErrorCode
from tests.support.logs import NOW, config, records

DEDUP = config(fleetlog_dedup="source")


def sourced(*positions: int, source: bytes = b"q:1", ordinal: int = 0, codec: int = 0, **fields) -> bytes:
    """A batch whose records have these positions; their values say which."""
    rows = [
        Record(
            -1,
            NOW + at,
            b"k",
            b"%d" % one,
            (("other", None), ("fleetlog.source", b"%s:%d:%d" % (source, one, ordinal))),
        )
        for at, one in enumerate(positions)
    ]
    compress = (lambda payload: compression.compress(codec, payload)) if codec else None
    return encode_batch(rows, attributes=codec | fields.pop("attributes", 0), compress=compress, **fields)


def values(log: Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in records(log)]


def sets_of(log: Log) -> PositionSets:
    assert log.producers.positions is not None
    return log.producers.positions


def known(log: Log) -> dict[bytes, tuple[int, dict[int, int]]]:
    """What is accepted, without the times of it."""
    return {
        name: (source.floor, {number: page.bits for number, page in source.pages.items()})
        for name, source in sets_of(log).sources.items()
    }


def accepted(log: Log) -> set[int]:
    """The accepted positions, all of them of one source and below those of the first page."""
    pages = [page for _, its in known(log).values() for page in its.values()]
    return {place for page in pages for place in range(PAGE_POSITIONS) if page >> place & 1}


def replicate(leader: Log, follower: Log) -> None:
    for segment in leader.segments:
        for _, data, found in segment.chunks():
            for at, header in found:
                if header.base_offset >= follower.log_end_offset:
                    info = follower.appender.append_as_follower(data[at : at + header.size], now_ms=NOW)
                    assert info.error is ErrorCode.NONE


def damage(log: Log, batch: int, what: str = "records") -> int:
    """Damage one batch; returns its offset. Of records a bit of the last one's position, or of the packed ones."""
    batches = [
        (segment.log.path, position + at, header, data[at + header.size + 8 : at + header.size + 12])
        for segment in log.segments for position, data, found in segment.chunks() for at, header in found
    ]  # fmt: skip
    path, start, header, next_length = batches[batch]
    with Path(path).open("r+b") as file:
        if "records" in what:
            file.seek(start + header.size - 4)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        if "length" in what:
            over_the_next = header.size + int.from_bytes(next_length, "big")
            file.seek(start + 8)
            file.write(LENGTHS[what.rsplit(maxsplit=1)[-1]](header.batch_length, over_the_next).to_bytes(4, "big"))
        if "offset" in what:
            file.seek(start)
            file.write((2**40).to_bytes(8, "big"))
        if "magic" in what:
            file.seek(start + 16)
            file.write(b"\1")
    return header.base_offset


LENGTHS = {
    "less": lambda length, over: length - 7,
    "tiny": lambda length, over: 3,
    "more": lambda length, over: length + 7,
    "two": lambda length, over: over,
    "huge": lambda length, over: 2**30,
    "negative": lambda length, over: 2**31 + length,
}


DECAY = [*(f"length {one}" for one in LENGTHS), *(f"records, length {one}" for one in LENGTHS),
         "records", "offset", "magic", "records, offset", "records, magic"]  # fmt: skip
"""Kinds of damage."""
