"""Printing a log directory's files: pure functions from bytes to rows, for ``fleetlog log dump``.

Each row is a flat dict of plain values, fit for JSON; ``line`` makes text of it. Damage is a row with ``error``, never
an exception: a tool that is needed when files are broken must not break on them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

from _native.batch import HEADER_SIZE, BatchHeader, parse_header, validate_batch
from _native.errors import CorruptBatch
from brokers.log import checkpoints
from brokers.log.checkpoints import DamagedFile
from brokers.log.files import Buffer
from brokers.log.producers import SNAPSHOT_SUFFIX, DamagedSnapshot, decode_snapshot, last_sequence_of
from brokers.log.validation import batch_records, read_marker
from wire import compression

Row = dict[str, Any]
Decoder = Callable[[bytes | None, bytes | None], tuple[str, str]]
"""Turns a record's key and value into text, for internal topics."""

_NAME = re.compile(r"(\d{20})(\.[a-z]+)")
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TXN_ENTRY = struct.Struct(">hqqqq")
_INFLATE_LIMIT = 256 * 1024 * 1024
_OFFSET_TABLES = (
    checkpoints.RECOVERY_POINT_CHECKPOINT,
    checkpoints.LOG_START_CHECKPOINT,
    checkpoints.HIGH_WATERMARK_CHECKPOINT,
    checkpoints.CLEANER_CHECKPOINT,
)


def dump(name: str, data: Buffer, *, records: bool = False, decoder: Decoder | None = None) -> Iterator[Row]:
    """The rows of a file, by its name (``00000000000000000000.log``, ``leader-epoch-checkpoint``, ...).

    ``records`` also prints each record of a ``.log`` file, ``decoder`` says how. An unknown name gives an error row.
    """
    name = name.rsplit("/", 1)[-1]
    match = _NAME.match(name)
    if match:
        base, suffix = int(match[1]), match[2]
        if suffix == ".log":
            return dump_log(data, records=records, decoder=decoder)
        if suffix == ".index":
            return dump_offset_index(data, base)
        if suffix == ".timeindex":
            return dump_time_index(data, base)
        if suffix == ".txnindex":
            return dump_transaction_index(data)
        if suffix == SNAPSHOT_SUFFIX:
            return dump_snapshot(data)
    return dump_small_file(name, bytes(data))


def dump_log(data: Buffer, *, records: bool = False, decoder: Decoder | None = None) -> Iterator[Row]:
    """One row a batch, and with ``records`` one a record after it."""
    position = 0
    while position < len(data):
        try:
            header = parse_header(data, position)
        except CorruptBatch as wrong:
            yield {"type": "error", "position": position, "error": wrong.reason, "bytes_left": len(data) - position}
            return
        row = _batch_row(position, header)
        try:
            validate_batch(data, position)
        except CorruptBatch as wrong:
            row["is_valid"] = False
            row["error"] = wrong.reason
            yield row
            if header.size > len(data) - position or header.size < HEADER_SIZE:
                return
            position += header.size
            continue
        yield row
        if header.is_control or records:
            yield from _record_rows(data, position, header, records, decoder)
        position += header.size


def _batch_row(position: int, header: BatchHeader) -> Row:
    return {
        "type": "batch",
        "position": position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "base_sequence": header.base_sequence,
        "last_sequence": last_sequence_of(header),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "partition_leader_epoch": header.partition_leader_epoch,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "delete_horizon_ms": header.base_timestamp if header.attributes & 0x40 else None,
        "create_time" if not header.is_log_append_time else "log_append_time": header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compression": compression.NAMES.get(header.codec, str(header.codec)),
        "crc": header.crc,
        "is_valid": True,
    }


def _record_rows(
    data: Buffer, position: int, header: BatchHeader, records: bool, decoder: Decoder | None
) -> Iterator[Row]:
    try:
        if header.is_control:
            marker = read_marker(data, position, header)
            if marker is not None:
                kind = "COMMIT" if marker.commit else "ABORT"
                yield {
                    "type": "marker", "offset": header.base_offset, "marker": kind,
                    "coordinator_epoch": marker.coordinator_epoch,
                }  # fmt: skip
            return
        if not records:
            return
        for record in batch_records(data, position, header, _INFLATE_LIMIT):
            row: Row = {
                "type": "record",
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key_size": -1 if record.key is None else len(record.key),
                "value_size": -1 if record.value is None else len(record.value),
                "headers": {name: _text(value) for name, value in record.headers},
            }
            if decoder is None:
                row["key"], row["value"] = _text(record.key), _text(record.value)
            else:
                try:
                    row["key"], row["value"] = decoder(record.key, record.value)
                except Exception as wrong:  # a decoder of another subject, fed with anything
                    row["error"] = f"not decoded: {wrong}"
            yield row
    except (CorruptBatch, compression.CodecError) as wrong:
        yield {"type": "error", "position": position, "error": str(wrong)}


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _entries(entry: struct.Struct, data: Buffer) -> Iterator[tuple[int, ...]]:
    view = memoryview(data)
    yield from entry.iter_unpack(view[: len(view) - len(view) % entry.size])


def _torn(entry: struct.Struct, data: Buffer) -> Iterator[Row]:
    if len(data) % entry.size:
        yield {"type": "error", "error": f"{len(data) % entry.size} bytes after the last whole entry"}


def dump_offset_index(data: Buffer, base_offset: int) -> Iterator[Row]:
    """One row an entry: the last offset of a batch, and where the batch starts."""
    previous = (-1, -1)
    for relative, position in _entries(_OFFSET_ENTRY, data):
        row: Row = {"type": "offset", "offset": base_offset + relative, "position": position}
        if relative <= previous[0] or position < previous[1]:
            row["error"] = "does not rise"
        previous = (relative, position)
        yield row
    yield from _torn(_OFFSET_ENTRY, data)


def dump_time_index(data: Buffer, base_offset: int) -> Iterator[Row]:
    """One row an entry."""
    previous = -1
    for timestamp, relative in _entries(_TIME_ENTRY, data):
        row: Row = {"type": "time", "timestamp": timestamp, "offset": base_offset + relative}
        if timestamp <= previous:
            row["error"] = "does not rise"
        previous = timestamp
        yield row
    yield from _torn(_TIME_ENTRY, data)


def dump_transaction_index(data: Buffer) -> Iterator[Row]:
    """One row an aborted transaction."""
    for version, producer_id, first, last, stable in _entries(_TXN_ENTRY, data):
        yield {
            "type": "aborted", "version": version, "producer_id": producer_id, "first_offset": first,
            "last_offset": last, "last_stable_offset": stable,
        }  # fmt: skip
    yield from _torn(_TXN_ENTRY, data)


def dump_snapshot(data: Buffer) -> Iterator[Row]:
    """One row a producer."""
    try:
        entries = decode_snapshot(bytes(data))
    except DamagedSnapshot as wrong:
        yield {"type": "error", "error": str(wrong)}
        return
    for entry in entries:
        yield {
            "type": "producer",
            "producer_id": entry.producer_id,
            "producer_epoch": entry.epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "current_txn_first_offset": entry.txn_first_offset if entry.txn_first_offset >= 0 else None,
            "last_timestamp": entry.timestamp,
            "last_sequence": entry.last_sequence,
            "last_offset": entry.last_offset,
            "offset_delta": entry.batches[-1].offset_delta if entry.batches else 0,
        }


def dump_small_file(name: str, data: bytes) -> Iterator[Row]:
    """Checkpoints, ``partition.metadata``, ``meta.properties`` and the clean-shutdown marker."""
    try:
        if name in _OFFSET_TABLES:
            for tp, offset in checkpoints.decode_offsets(data, name).items():
                yield {"type": "checkpoint", "topic": tp.topic, "partition": tp.partition, "offset": offset}
        elif name == checkpoints.LEADER_EPOCH_CHECKPOINT:
            for entry in checkpoints.decode_epochs(data, name):
                yield {"type": "epoch", "epoch": entry.epoch, "start_offset": entry.start_offset}
        elif name == checkpoints.PARTITION_METADATA:
            topic_id = checkpoints.decode_partition_metadata(data)
            yield {"type": "topic", "topic_id": checkpoints.encode_topic_id(topic_id), "uuid": str(topic_id)}
        elif name == checkpoints.META_PROPERTIES:
            yield {"type": "properties", **checkpoints.decode_properties(data)}
        elif name == checkpoints.CLEAN_SHUTDOWN:
            yield {"type": "clean shutdown", "broker_epoch": checkpoints.decode_clean_shutdown(data)}
        else:
            yield {"type": "error", "error": f"{name}: no file of a log directory by that name"}
    except DamagedFile as wrong:
        yield {"type": "error", "error": str(wrong)}


def line(row: Row) -> str:
    """One row as text: ``type: name=value name=value``; absent values are left out."""
    values = " ".join(f"{name}={value}" for name, value in row.items() if name != "type" and value is not None)
    return f"{row['type']}: {values}"
