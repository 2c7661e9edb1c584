"""Fetched bytes to Arrow rows: which batches count, then their records as columns.

A read_committed reader gets every batch below the last stable offset and a list of aborted transactions; leaving their
records out is the reader's work (KIP-98). Control batches (transaction markers) occupy offsets and hold no records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from _native.batch import HEADER_SIZE, BatchHeader, CorruptBatch, decode_records, scan, validate_batch
from _native.columns import decode_batches
from wire.compression import Buffer, decompress

_CONTROL_TYPE = struct.Struct(">hh")
ABORT = 0
MAX_PAYLOAD_BYTES = 512 << 20  # of one batch, decompressed

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

    def drops(self, last_offset: int, producer_id: int, transactional: bool) -> bool:
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

    Raises CorruptBatch or CodecError (both ValueError) for damaged batches, checksums included.
    """
    wanted: list[tuple[int, BatchHeader]] = []  # the batches whose records count
    next_offset = start
    aborts = AbortedFilter(aborted if committed else ())
    for position, header in scan(records):
        if header.base_offset >= end:
            next_offset = end  # what stood before it was compacted away
            break
        if header.is_control:
            if committed and _marker_type(records, position, header) == ABORT:
                aborts.aborted(header.producer_id)
        elif (
            not aborts.drops(header.last_offset, header.producer_id, header.is_transactional)
            and header.last_offset >= start
        ):
            wanted.append((position, header))
        next_offset = max(next_offset, header.last_offset + 1)
    columns = _columns(records, wanted, start, end, headers)
    return Decoded(columns, min(next_offset, end), len(columns["offset"]))


def payload_of(records: Buffer, position: int, header: BatchHeader) -> Buffer:
    """A batch's records, decompressed; CodecError beyond the limit."""
    payload = memoryview(records)[position + HEADER_SIZE : position + header.size]
    return decompress(header.codec, payload, MAX_PAYLOAD_BYTES) if header.codec else payload


def _marker_type(records: bytes, position: int, header: BatchHeader) -> int:
    validate_batch(records, position)
    marker = decode_records(payload_of(records, position, header), header)
    key = marker[0].key if marker else None
    if key is None or len(key) < _CONTROL_TYPE.size:
        raise CorruptBatch("a control batch without its type", position)
    return int(_CONTROL_TYPE.unpack_from(key)[1])


def _columns(
    records: bytes, wanted: list[tuple[int, BatchHeader]], start: int, end: int, headers: bool
) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = decode_batches(
        records, wanted, decompress=_decompress, start=start, end=end, headers=headers
    )
    columns["timestamp"] = pc.multiply(columns["timestamp"], 1000).view(TIMESTAMP_TYPE)
    return columns


def _decompress(codec: int, payload: memoryview) -> bytes:
    return decompress(codec, payload, MAX_PAYLOAD_BYTES)
