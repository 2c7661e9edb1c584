"""Fetched bytes to Arrow rows: which batches count, then their records as columns.

A read_committed reader gets every batch below the last stable offset and a list of aborted transactions; leaving their
records out is the reader's work (KIP-98). Control batches (transaction markers) occupy offsets and hold no records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CONTROL_TYPE = struct.Struct(">hh")
ABORT = 0

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE = pa.list_(HEADER_TYPE)
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")


class Decoded(NamedTuple):
    """Columns of the rows inside the range, and the offset after the last whole batch that was looked at."""

    columns: dict[str, pa.Array]
    next_offset: int
    rows: int


class AbortedFilter:
    """Follows the aborted transactions of one fetch answer through its batches, in offset order."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._coming = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._open: set[int] = set()

    def drops(self, base_offset: int, last_offset: int, producer_id: int, transactional: bool) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        while self._coming and self._coming[-1][0] <= last_offset:
            self._open.add(self._coming.pop()[1])
        return transactional and producer_id in self._open

    def aborted(self, producer_id: int) -> None:
        """An abort marker ends the producer's transaction; what it writes next may be kept."""
        self._open.discard(producer_id)


def decode(
    records: bytes,
    start: int,
    end: int,
    *,
    aborted: Iterable[tuple[int, int]] = (),
    committed: bool = True,
    headers: bool = False,
) -> Decoded:
    """Rows with ``start <= offset < end`` out of a run of v2 batches; a torn last batch is left for the next fetch.

    Raises CorruptBatch (a ValueError) for bytes that are no record batches, and for a wrong checksum.
    """
    wanted: list[tuple[int, int]] = []  # position and size of the batches whose records count
    next_offset = start
    position = 0
    aborts = AbortedFilter(aborted if committed else ())
    while position + _HEADER.size <= len(records):
        fields = _HEADER.unpack_from(records, position)
        base, length, attributes, last_delta, producer_id = fields[0], fields[1], fields[5], fields[6], fields[9]
        size = 12 + length
        if position + size > len(records):
            break
        if base >= end:
            next_offset = end  # what stood before it was compacted away
            break
        last = base + last_delta
        if attributes & 0x20:
            if committed and _marker_type(records, position, size) == ABORT:
                aborts.aborted(producer_id)
        elif not aborts.drops(base, last, producer_id, bool(attributes & 0x10)) and last >= start:
            wanted.append((position, size))
        next_offset = max(next_offset, last + 1)
        position += size
    columns = _columns(records, wanted, start, end, headers)
    return Decoded(columns, min(next_offset, end), len(columns["offset"]))


def _marker_type(records: bytes, position: int, size: int) -> int:
    batch = next(_batches(records[position : position + size]))
    return int(_CONTROL_TYPE.unpack(next(iter(batch)).key[:4])[1])


def _batches(records: bytes) -> Any:
    from kafka.record import MemoryRecords

    found = MemoryRecords(records)
    while found.has_next():
        yield found.next_batch()


def _columns(records: bytes, wanted: list[tuple[int, int]], start: int, end: int, headers: bool) -> dict[str, pa.Array]:
    rows: list[tuple[Any, ...]] = []
    for position, size in wanted:
        batch = next(_batches(records[position : position + size]))
        kind = batch.timestamp_type
        rows += [
            (r.key, r.value, r.offset, r.timestamp, kind, [{"key": k, "value": v} for k, v in r.headers])
            for r in batch
            if start <= r.offset < end
        ]
    keys, values, offsets, timestamps, kinds, heads = zip(*rows, strict=True) if rows else ((),) * 6
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array([t * 1000 for t in timestamps], TIMESTAMP_TYPE),
        "timestampType": pa.array(kinds, pa.int32()),
    }
    if headers:
        columns["headers"] = pa.array(heads, HEADERS_TYPE)
    return columns
