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

from fleetlog._native.batch import BatchHeader, CorruptBatch, decode_records, scan, validate_batch
from fleetlog._native.columns import decode_batches
from fleetlog.spark.client.records import HEADER_TYPE, MAX_PAYLOAD_BYTES, MILLIS_MAX, TIMESTAMP_TYPE, batch_payload
from fleetlog.wire.compression import decompress
from fleetlog.wire.types import TopicPartition

_CONTROL_TYPE = struct.Struct(">hh")
ABORT = 0


class Decoded(NamedTuple):
    """Columns of the rows inside the range, and the offset after the last whole batch."""

    columns: dict[str, pa.Array]
    next_offset: int
    rows: int


class AbortedTransactions:
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


def decode_rows(
    records: bytes,
    start: int,
    end: int,
    *,
    aborted: Iterable[tuple[int, int]] | AbortedTransactions = (),
    committed: bool = True,
    headers: bool = False,
    tp: TopicPartition | None = None,
) -> Decoded:
    """Rows with ``start <= offset < end`` out of a run of v2 batches; a torn last batch is left for the next fetch.

    ``aborted``: of one fetch answer; those that follow it through several runs, as they are after the run before.
    Raises CorruptBatch or CodecError (both ValueError) for damaged batches, checksums included, and ValueError for a
    timestamp that Spark can't hold, with ``tp`` and the offset.
    """
    wanted: list[tuple[int, BatchHeader]] = []  # the batches whose records count
    next_offset = start
    aborts = aborted
    if not isinstance(aborts, AbortedTransactions):
        aborts = AbortedTransactions(aborts if committed else ())
    for position, header in scan(records):
        if header.base_offset >= end:
            next_offset = end  # the records before it were compacted away
            break
        if header.is_control:
            if committed and control_record(records, position, header)[0] == ABORT:
                aborts.aborted(header.producer_id)
        elif (
            not aborts.drops(header.last_offset, header.producer_id, header.is_transactional)
            and header.last_offset >= start
        ):
            wanted.append((position, header))
        next_offset = max(next_offset, header.last_offset + 1)
    columns = _columns(records, wanted, start, end, headers)
    columns["timestamp"] = _micros(columns, tp)
    return Decoded(columns, min(next_offset, end), len(columns["offset"]))


def control_record(records: bytes, position: int, header: BatchHeader) -> tuple[int, bytes]:
    """(type, value) of a control batch's record. Raises CorruptBatch, CodecError."""
    validate_batch(records, position)
    marker = decode_records(batch_payload(records, position, header), header)
    key = marker[0].key if marker else None
    if key is None or len(key) < _CONTROL_TYPE.size:
        raise CorruptBatch("a control batch without its type", position)
    return int(_CONTROL_TYPE.unpack_from(key)[1]), marker[0].value or b""


def _columns(
    records: bytes, wanted: list[tuple[int, BatchHeader]], start: int, end: int, headers: bool
) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = decode_batches(
        records, wanted, decompress=_decompress, start=start, end=end, headers=headers
    )
    if headers:  # of a record without them null, as in Spark's own source
        lists = columns["headers"]
        columns["headers"] = pa.ListArray.from_arrays(
            lists.offsets, lists.values, mask=pc.equal(pc.list_value_length(lists), 0)
        )
    return columns


def _micros(columns: dict[str, pa.Array], tp: TopicPartition | None) -> pa.Array:
    """The timestamps in µs, as Spark counts. ValueError beyond them, for the first record."""
    times = columns["timestamp"]
    try:
        return pc.multiply_checked(times, 1000).view(TIMESTAMP_TYPE)
    except pa.ArrowInvalid:
        beyond = pc.or_(pc.greater(times, MILLIS_MAX), pc.less(times, -MILLIS_MAX))
        number = pc.index(beyond, True).as_py()
        offset, ms = columns["offset"][number].as_py(), times[number].as_py()
        raise ValueError(
            f"{'' if tp is None else f'{tp}: '}the record at offset {offset} has the timestamp {ms} ms, beyond "
            f"Spark's µs; startingOffsets from {offset + 1} on leaves it out"
        ) from None


def _decompress(codec: int, payload: memoryview) -> bytes | bytearray:
    return decompress(codec, payload, MAX_PAYLOAD_BYTES)


def row_arrow_schema(headers: bool) -> pa.Schema:
    """The source's columns, with ``headers`` or without."""
    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP_TYPE),
        pa.field("timestampType", pa.int32()),
    ]
    if headers:
        fields.append(pa.field("headers", pa.list_(pa.field("element", HEADER_TYPE))))
    return pa.schema(fields)


def row_batch(decoded: Decoded, tp: TopicPartition, schema: pa.Schema) -> pa.RecordBatch:
    """Decoded columns of one partition as a batch of ``schema``."""
    columns = dict(decoded.columns)
    columns["topic"] = pa.repeat(tp.topic, decoded.rows)
    columns["partition"] = pa.repeat(pa.scalar(tp.partition, pa.int32()), decoded.rows)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
