"""Keys to partitions, and record batches to and from Arrow. ``columns_py`` documents each function."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fleetlog._native import columns_py, names_of
from fleetlog._native.batch import HEADER_SIZE, BatchHeader, crc32c, validate_batch
from fleetlog._native.columns_py import *
from fleetlog._native.errors import CorruptBatch

if not TYPE_CHECKING:
    globals().update(names_of("columns"))

__all__ = ["CorruptBatch", "columns_to_arrow", "decode_batches", "encode_arrow", "partitions_for_keys"]
__all__ += columns_py.__all__

_HEAD, _TAIL = struct.Struct(">qiibI"), struct.Struct(">hiqqqhii")
_TAIL_AT = _HEAD.size  # the first byte that the checksum covers

Decompress = Callable[[int, memoryview], bytes | bytearray]
"""(codec, payload) -> payload; the supplier bounds its output."""


def decode_batches(
    buf: bytes | memoryview,
    batches: Iterable[tuple[int, BatchHeader]],
    *,
    decompress: Decompress,
    start: int = 0,
    end: int = 2**63 - 1,
    headers: bool = False,
) -> dict[str, Any]:
    """The records of the given batches of ``buf`` (``batch.scan`` finds them) as Arrow arrays by column name.

    Columns: key, value (binary), offset (int64), timestamp (ms, int64), timestampType (int32), and with ``headers``
    headers (list<struct<key, value>>). Checks every batch; raises CorruptBatch with the batch's position in ``buf``.
    """
    view = memoryview(buf)
    parts = []
    for position, header in batches:
        validate_batch(view, position)
        payload: bytes | bytearray | memoryview[int] = view[position + HEADER_SIZE : position + header.size]
        if header.codec:
            try:
                payload = decompress(header.codec, memoryview(payload))
            except ValueError as error:
                raise CorruptBatch(str(error), position) from error
        parts.append((payload, header))
    return columns_to_arrow(decode_columns(parts, start, end, headers))


def columns_to_arrow(columns: Columns) -> dict[str, Any]:
    """Arrow arrays over the columns' bytes, without a copy."""
    import pyarrow as pa

    def runs(column: Runs, rows: int, kind: Any) -> Any:
        validity = None if column.validity is None else pa.py_buffer(column.validity)
        return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)])

    def numbers(data: bytes, kind: Any) -> Any:
        return pa.Array.from_buffers(kind, columns.rows, [None, pa.py_buffer(data)])

    arrays = {
        "key": runs(columns.keys, columns.rows, pa.binary()),
        "value": runs(columns.values, columns.rows, pa.binary()),
        "offset": numbers(columns.offsets, pa.int64()),
        "timestamp": numbers(columns.timestamps, pa.int64()),
        "timestampType": numbers(columns.kinds, pa.int32()),
    }
    if columns.header_offsets is not None:
        assert columns.header_names is not None, "headers come together"
        assert columns.header_values is not None, "headers come together"
        count = len(columns.header_names.offsets) // 4 - 1
        pairs = pa.StructArray.from_arrays(
            [runs(columns.header_names, count, pa.string()), runs(columns.header_values, count, pa.binary())],
            names=["key", "value"],
        )
        bounds = pa.Array.from_buffers(pa.int32(), columns.rows + 1, [None, pa.py_buffer(columns.header_offsets)])
        arrays["headers"] = pa.ListArray.from_arrays(bounds, pairs)
    return arrays


def runs_of(array: Any) -> Runs:
    """An Arrow binary or string array as the columns kernel reads it, without a copy of its data."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type):
        array = array.cast(pa.binary())
    if not (pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
        raise ValueError(f"an array of {array.type} is neither binary nor string")
    validity, offsets, data = array.buffers()
    if not array.null_count:
        validity = None
    elif array.offset:  # a slice: its first bit may be anywhere in a byte
        import numpy as np

        validity = np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little").tobytes()
    if offsets is None or not len(array):
        offsets = b"\0\0\0\0"
    elif array.offset:
        offsets = offsets.slice(4 * array.offset)
    return Runs(validity, offsets, b"" if data is None else data)


def _headers_of(array: Any) -> Headers:
    """An Arrow list of structs (name, value), or a map, as the columns kernel reads it."""
    import numpy as np
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_map(array.type):
        names, values = array.keys, array.items
    elif (
        pa.types.is_list(array.type)
        and pa.types.is_struct(array.type.value_type)
        and array.type.value_type.num_fields == 2
    ):
        names, values = array.values.field(0), array.values.field(1)
    else:
        raise ValueError(f"headers are lists of (name, value), not {array.type}")
    validity = None
    if array.null_count:
        validity = np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little").tobytes()
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype("int32").tobytes() if len(array) else bytes(4)
    return Headers(validity, offsets, runs_of(names), runs_of(values))


def partitions_for_keys(keys: Any, partitions: int) -> Any:
    """An int32 Arrow array: the partition of each key of a binary or string array; -1 for a null key."""
    import pyarrow as pa

    if partitions <= 0:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    hashed = hash_runs(runs_of(keys), len(keys), partitions)
    return pa.Array.from_buffers(pa.int32(), len(keys), [None, pa.py_buffer(hashed)])


def encode_arrow(
    keys: Any | None,
    values: Any,
    timestamps: Any,
    *,
    headers: Any | None = None,
    order: tuple[Any, int, int] | None = None,
    codec: int = 0,
    compress: Callable[[bytes], bytes] | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes | bytearray:
    """One record batch of Arrow arrays: binary or string keys (or None) and values, int64 timestamps in ms.

    ``headers`` are lists of structs (name, value), or maps; null is none. ``order`` chooses rows: row numbers as
    `group_rows` gives them, and the first and last place (exclusive). Raises ValueError for an empty array, arrays of
    different lengths, a null timestamp or a header without a name.
    """
    there = len(values)
    if there == 0 or any(len(other) != there for other in (timestamps, keys, headers) if other is not None):
        raise ValueError("keys, values, timestamps and headers must have the same length, at least 1")
    if timestamps.null_count:
        raise ValueError("a timestamp must not be null")
    times = timestamps.to_numpy(zero_copy_only=False).astype("int64", copy=False)
    chosen, first, last = (None, 0, there) if order is None else order
    if first >= last:
        raise ValueError("a batch has at least one row")
    wanted = times if chosen is None else times[_numbers(chosen)[first:last]]
    base_timestamp = int(wanted[0])
    frame = encode_columns(
        None if keys is None else runs_of(keys),
        runs_of(values),
        times,
        first,
        last,
        base_timestamp,
        None if headers is None else _headers_of(headers),
        chosen,
        HEADER_SIZE if compress is None else 0,
    )
    if compress is not None:
        frame = bytearray(HEADER_SIZE) + compress(bytes(frame))
    attributes = codec | (0x10 if transactional else 0)
    fields = (
        attributes,
        last - first - 1,
        base_timestamp,
        int(wanted.max()),
        producer_id,
        producer_epoch,
        base_sequence,
    )
    _TAIL.pack_into(frame, _TAIL_AT, *fields, last - first)
    with memoryview(frame) as view:
        checksum = crc32c(view[_TAIL_AT:])
    _HEAD.pack_into(frame, 0, 0, len(frame) - 12, -1, 2, checksum)
    return frame


def _numbers(order: Any) -> Any:
    import numpy as np

    return np.frombuffer(order, dtype=np.int32)
