"""The specification of the columns kernel: keys to partitions, and records between batches and columns.

A column is an Arrow column: for byte runs a validity bitmap (bit n of byte n//8, least significant first), 32-bit
offsets in the machine's order (rows + 1 of them) and the data one after the other. So this module needs no Arrow, and
``columns`` makes Arrow arrays of its results without reading a row.
Source: Apache Arrow's columnar format; Kafka's default partitioner (murmur2) for the keys.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from fleetlog._native.batch_py import BatchHeader, Record, decode_records, encode_records
from fleetlog._native.errors import CorruptBatch

__all__ = [
    "Columns",
    "Headers",
    "Runs",
    "decode_columns",
    "encode_columns",
    "group_rows",
    "hash_runs",
    "murmur2",
    "partition_for_key",
]

Buffer = bytes | bytearray | memoryview

_SEED = 0x9747B28C
_M = 0x5BD1E995
_U32 = 0xFFFFFFFF
INT32_MAX = 2**31 - 1


class Runs(NamedTuple):
    """A column of nullable byte runs; any buffers are accepted. ``validity`` None means that no row is null."""

    validity: Any | None
    offsets: Any
    data: Any


class Headers(NamedTuple):
    """Lists of headers per row: ``offsets`` (int32, rows + 1) assign names and values to rows; null is none."""

    validity: Any | None
    offsets: Any
    names: Runs
    values: Runs


class Columns(NamedTuple):
    """Decoded rows. ``timestamps`` in ms; ``kinds`` 0 CreateTime, 1 LogAppendTime (int32).

    ``header_offsets`` says which of ``header_names`` and ``header_values`` belong to which row; None if not asked for.
    """

    rows: int
    offsets: bytes
    timestamps: bytes
    kinds: bytes
    keys: Runs
    values: Runs
    header_offsets: bytes | None
    header_names: Runs | None
    header_values: Runs | None


def murmur2(key: Buffer) -> int:
    """Kafka's 32-bit murmur2 of a key, as a signed number."""
    length = len(key)
    h = (_SEED ^ length) & _U32
    whole = length & ~3
    for (k,) in struct.iter_unpack("<I", bytes(key[:whole])):
        k = (k * _M) & _U32
        k ^= k >> 24
        h = ((h * _M) & _U32) ^ ((k * _M) & _U32)
    rest = length - whole
    if rest >= 3:
        h ^= key[whole + 2] << 16
    if rest >= 2:
        h ^= key[whole + 1] << 8
    if rest >= 1:
        h = ((h ^ key[whole]) * _M) & _U32
    h ^= h >> 13
    h = (h * _M) & _U32
    h ^= h >> 15
    return h - (1 << 32) if h >= 1 << 31 else h


def partition_for_key(key: Buffer, partitions: int) -> int:
    """The partition that Kafka's default partitioner gives a key."""
    if partitions <= 0:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def hash_runs(column: Runs, rows: int, partitions: int = 0) -> bytes:
    """int32 per row: murmur2, or with ``partitions`` the partition; 0 or -1 for a null key.

    Raises ValueError when offsets and data don't fit together.
    """
    if partitions < 0:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    bounds = _bounds(column, rows)
    data = _view(column.data)
    out = array("i")
    for row in range(rows):
        if not _valid(column, row):
            out.append(-1 if partitions else 0)
            continue
        key = data[bounds[row] : bounds[row + 1]]
        out.append(partition_for_key(key, partitions) if partitions else murmur2(key))
    return out.tobytes()


def decode_columns(
    parts: Sequence[tuple[Buffer, BatchHeader]], start: int = 0, end: int = 2**63 - 1, headers: bool = False
) -> Columns:
    """The records of several batches (decompressed payload and header) with ``start <= offset < end`` as columns.

    Raises CorruptBatch; also when a column would pass 2 GiB, which a caller avoids by passing fewer batches.
    """
    rows: list[Record] = []
    kinds = array("i")
    for payload, header in parts:
        for record in decode_records(payload, header):
            if start <= record.offset < end:
                rows.append(record)
                kinds.append(1 if header.is_log_append_time else 0)
    header_offsets = array("i", [0])
    for record in rows:
        header_offsets.append(header_offsets[-1] + len(record.headers))
    flat = [pair for record in rows for pair in record.headers]
    return Columns(
        len(rows),
        array("q", [record.offset for record in rows]).tobytes(),
        array("q", [record.timestamp for record in rows]).tobytes(),
        kinds.tobytes(),
        _runs([record.key for record in rows]),
        _runs([record.value for record in rows]),
        header_offsets.tobytes() if headers else None,
        _runs([name.encode() for name, _ in flat]) if headers else None,
        _runs([value for _, value in flat]) if headers else None,
    )


def encode_columns(
    keys: Runs | None,
    values: Runs,
    timestamps: Buffer,
    first: int,
    last: int,
    base_timestamp: int,
    headers: Headers | None = None,
    order: Any | None = None,
    room: int = 0,
) -> bytes | bytearray:
    """The uncompressed payload of a batch with rows ``first`` to ``last`` (exclusive).

    ``timestamps`` is int64 ms per row in the machine's order. With ``order`` (int32 row numbers, as `group_rows` gives
    them) the rows are those at places ``first`` to ``last`` of it. With ``room`` the result is a bytearray that begins
    with that many zeros, for a header. Raises ValueError when the columns don't fit together.
    """
    times = array("q")
    times.frombytes(bytes(timestamps))
    rows = array("i", range(len(times)))
    if order is not None:
        rows = array("i")
        rows.frombytes(bytes(order))
    if not 0 <= first <= last <= len(rows):
        raise ValueError(f"rows {first} to {last} of {len(rows)}")
    if room < 0:
        raise ValueError(f"room for {room} bytes")
    if order is not None and any(not 0 <= row < len(times) for row in rows[first:last]):
        raise ValueError(f"the order names a row beyond the {len(times)} there are")
    low, high = (0, len(times)) if order is not None else (first, last)
    key_bounds = _bounds(keys, high) if keys is not None else None
    value_bounds = _bounds(values, high)
    pairs = [] if headers is None else _pairs(headers, low, high)
    records = []
    for row in rows[first:last]:
        key = None
        if keys is not None and key_bounds is not None and _valid(keys, row):
            key = bytes(_view(keys.data)[key_bounds[row] : key_bounds[row + 1]])
        value = None
        if _valid(values, row):
            value = bytes(_view(values.data)[value_bounds[row] : value_bounds[row + 1]])
        records.append(Record(-1, times[row], key, value, pairs[row - low] if pairs else ()))
    payload = encode_records(records, 0, base_timestamp)
    return bytearray(room) + payload if room else payload


def group_rows(partitions: Any, count: int) -> tuple[bytes, list[int]]:
    """Row numbers (int32) by partition, in their order within each, and where each partition's begin, plus the end.

    ``partitions`` is an int32 per row in the machine's order. Raises ValueError for a partition outside 0..count-1.
    """
    chosen = array("i")
    chosen.frombytes(bytes(partitions))
    if count < 0:
        raise ValueError(f"{count} partitions")
    places: list[list[int]] = [[] for _ in range(count)]
    for row, partition in enumerate(chosen):
        if not 0 <= partition < count:
            raise ValueError(f"partition {partition} of {count}")
        places[partition].append(row)
    starts = [0]
    order = array("i")
    for rows in places:
        order.extend(rows)
        starts.append(len(order))
    return order.tobytes(), starts


def _pairs(headers: Headers, first: int, last: int) -> list[tuple[tuple[str, bytes | None], ...]]:
    """The headers of each row from ``first`` to ``last``."""
    lists = Runs(headers.validity, headers.offsets, b"")
    bounds = _bounds(lists, last, INT32_MAX)
    names, values = _bounds(headers.names, bounds[-1]), _bounds(headers.values, bounds[-1])
    rows = []
    for row in range(first, last):
        pairs: list[tuple[str, bytes | None]] = []
        for n in range(bounds[row], bounds[row + 1]) if _valid(lists, row) else ():
            if not _valid(headers.names, n):
                raise ValueError("a header without a name")
            value = None
            if _valid(headers.values, n):
                value = bytes(_view(headers.values.data)[values[n] : values[n + 1]])
            try:
                name = str(_view(headers.names.data)[names[n] : names[n + 1]], "utf-8")
            except UnicodeDecodeError:
                raise ValueError("a header name is not UTF-8") from None
            pairs.append((name, value))
        rows.append(tuple(pairs))
    return rows


def _runs(values: Sequence[bytes | None]) -> Runs:
    offsets = array("i", [0])
    validity = bytearray((len(values) + 7) // 8)
    data = bytearray()
    nulls = 0
    for row, value in enumerate(values):
        if value is None:
            nulls += 1
        else:
            validity[row >> 3] |= 1 << (row & 7)
            data += value
        if len(data) > INT32_MAX:
            raise CorruptBatch("a column passes 2 GiB", 0)
        offsets.append(len(data))
    return Runs(bytes(validity) if nulls else None, offsets.tobytes(), bytes(data))


def _view(data: Any) -> memoryview:
    return memoryview(data).cast("B")  # Arrow declares its bytes as signed


def _valid(column: Runs, row: int) -> bool:
    return column.validity is None or bool(_view(column.validity)[row >> 3] & (1 << (row & 7)))


def _bounds(column: Runs, rows: int, size: int = -1) -> array[int]:
    """The offsets of the first ``rows`` rows, all of them within ``size`` (the data's)."""
    if rows < 0:
        raise ValueError(f"a column of {rows} rows")
    bounds = _view(column.offsets)
    limit = len(_view(column.data)) if size < 0 else size
    if len(bounds) // 4 < rows + 1 or (column.validity is not None and len(_view(column.validity)) * 8 < rows):
        raise ValueError(f"a column is shorter than {rows} rows")
    offsets = array("i")
    offsets.frombytes(bytes(bounds[: 4 * (rows + 1)]))
    previous = 0
    for bound in offsets:
        if bound < previous or bound > limit:
            raise ValueError(f"a column's offset {bound} does not fit")
        previous = bound
    return offsets
