"""``fleetlog log dump``: the contents of a log directory's files. Reads files only; no broker is needed.

It reads Kafka's directories as well as fleetlog's. A damaged batch is reported with its position and ends the file's
dump with exit code 1: the batches behind it cannot be found.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from heapq import nlargest
from pathlib import Path
from typing import Any

import click

from fleetlog._native.batch import HEADER_SIZE, BatchHeader, Record, decode_records, parse_header, validate_batch
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.cli.output import CliError, iso, text, warn
from fleetlog.brokers.groups import records as group_records
from fleetlog.brokers.log.compaction.passes import MetTransactions
from fleetlog.brokers.log.disk import checkpoints
from fleetlog.brokers.log.indexes import unpack_aborted
from fleetlog.brokers.log.producers.snapshots import DamagedSnapshot, decode_snapshot
from fleetlog.brokers.model import id_text
from fleetlog.txn import records as transaction_records
from fleetlog.wire.compression import NAMES, CodecError, decompress
from fleetlog.wire.types import TopicPartition

MAX_DECOMPRESSED_BYTES = 1 << 30
TOP_KEYS = 10
DECODERS = ["auto", "none", "offsets", "transactions"]

Row = dict[str, Any]
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TXN_ENTRY = struct.Struct(">hqqqq")


class Damaged(Exception):
    """The file is damaged; everything before the damage was dumped."""


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="FILE...")
@click.option("--records", "-r", is_flag=True, help="Also show the records of each batch.")
@click.option(
    "--decode",
    type=click.Choice(DECODERS),
    default="auto",
    show_default=True,
    help="How to decode keys and values; auto recognizes the internal topics by their directory.",
)
@click.option("--offset", type=click.IntRange(min=0), help="Only batches that end at or after this offset.")
@click.option("--count", "-n", type=click.IntRange(min=1), help="At most this many rows of each file.")
@click.option(
    "--duplicates",
    is_flag=True,
    help="Of partitions' directories, count instead how many records a later one with the same key supersedes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, for programs.")
def dump(
    *,
    paths: tuple[Path, ...],
    records: bool,
    decode: str,
    offset: int | None,
    count: int | None,
    duplicates: bool,
    as_json: bool,
) -> None:
    """Dump segments (.log), indexes, producer snapshots and checkpoints; of a directory all files."""
    damaged = False
    if duplicates:
        _dump_duplicates(paths, as_json)
        return
    files = [file for path in paths for file in _files(path)]
    if not files:
        raise CliError(f"{paths[0]} contains no file of a log directory")
    for file in files:
        if not as_json:
            click.echo(f"{file}  {file.stat().st_size} bytes")
        try:
            for number, row in enumerate(_rows(file, records, decode, offset)):
                if count is not None and number >= count:
                    break
                click.echo(json.dumps({"file": str(file), **row}, default=str) if as_json else _line(row))
        except (Damaged, checkpoints.DamagedFile, DamagedSnapshot) as error:
            damaged = True
            warn(f"{file}: {error}")
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        except OSError as error:
            raise CliError(f"{file}: {error.strerror or error}") from error
    if damaged:
        sys.exit(1)


def _dump_duplicates(paths: tuple[Path, ...], as_json: bool) -> None:
    for path in paths:
        if not path.is_dir() or not any(path.glob("*.log")):
            raise CliError(f"{path} is not the directory of a partition: --duplicates reads all segments of a log")
        if not as_json:
            click.echo(str(path))
        try:
            for row in duplicate_rows(path):
                click.echo(json.dumps({"directory": str(path), **row}) if as_json else _line(row))
        except OSError as error:
            raise CliError(f"{path}: {error.strerror or error}") from error


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [file for file in sorted(path.iterdir()) if file.is_file() and _reader(file) is not None]


def _reader(file: Path) -> Callable[[Path], Iterator[Row]] | None:
    return _BY_NAME.get(file.name) or _BY_SUFFIX.get(_suffix(file))


def _suffix(file: Path) -> str:
    """The suffix that names the kind; files to be deleted keep it before ``.deleted``."""
    return file.with_suffix("").suffix if file.suffix in {".deleted", ".cleaned", ".swap"} else file.suffix


def _rows(file: Path, records: bool, decode: str, offset: int | None) -> Iterator[Row]:
    if _suffix(file) == ".log":
        return _segment(file, records, _decoder(file, decode), offset)
    reader = _reader(file)
    if reader is None:
        raise CliError(f"{file} is not a file of a log directory (.log, .index, .timeindex, .txnindex, .snapshot, ...)")
    return reader(file)


def _line(row: Row) -> str:
    if "record" in row:
        return "    " + "  ".join(f"{name} {text(value)}" for name, value in row.items() if name != "record")
    return "  " + "  ".join(f"{name} {text(value)}" for name, value in row.items())


# --- segments ---------------------------------------------------------------------------------------------------


def _segment(file: Path, records: bool, decoder: Callable[[Any], Row], offset: int | None) -> Iterator[Row]:
    if file.stat().st_size == 0:
        return
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        try:
            yield from _batches(view, records, decoder, offset)
        finally:
            view.release()


def _batches(view: memoryview, records: bool, decoder: Callable[[Any], Row], offset: int | None) -> Iterator[Row]:
    position = 0
    while position < len(view):
        if not any(view[position : position + HEADER_SIZE]):
            yield {"position": position, "unused": len(view) - position}
            return
        try:
            header = parse_header(view, position)
        except CorruptBatch as error:
            raise Damaged(f"no batch at position {position}: {error.reason}") from error
        if position + header.size > len(view):
            missing = position + header.size - len(view)
            raise Damaged(f"the batch at position {position} is torn: {missing} of {header.size} bytes are missing")
        damage = _damage(view, position)
        if offset is None or header.last_offset >= offset:
            yield _batch_row(header, position, damage)
            if records and damage is None:
                yield from _record_rows(view, position, header, decoder)
        position += header.size


def _damage(view: memoryview, position: int) -> str | None:
    try:
        validate_batch(view, position)
    except CorruptBatch as error:
        return str(error.reason)
    return None


def _batch_row(header: BatchHeader, position: int, damage: str | None) -> Row:
    row: Row = {
        "offsets": f"{header.base_offset}..{header.last_offset}",
        "records": header.record_count,
        "position": position,
        "size": header.size,
        "epoch": header.partition_leader_epoch,
        "codec": NAMES.get(header.codec, header.codec),
        "time": iso(header.max_timestamp),
    }
    if header.producer_id >= 0:
        row |= {
            "producer": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "sequence": header.base_sequence,
        }
    marks = [
        name
        for name, on in (
            ("transactional", header.is_transactional),
            ("control", header.is_control),
            ("log-append-time", header.is_log_append_time),
        )
        if on
    ]
    row |= {"is": marks} if marks else {}
    return row | ({"damaged": damage} if damage else {"crc": f"{header.crc:08x}"})


def _record_rows(view: memoryview, position: int, header: BatchHeader, decoder: Callable[[Any], Row]) -> Iterator[Row]:
    try:
        records = _decoded(view[position : position + header.size], header)
    except (CodecError, CorruptBatch) as error:
        yield {"record": None, "damaged": str(error)}
        return
    for record in records:
        row: Row = {"record": True, "offset": record.offset, "time": iso(record.timestamp)}
        row |= _control(record) if header.is_control else decoder(record)
        if record.headers:
            row["headers"] = {name: _text(value) for name, value in record.headers}
        yield row


def _decoded(batch: memoryview, header: BatchHeader) -> list[Record]:
    """The records of a batch. Raises CodecError, CorruptBatch."""
    payload: bytes | bytearray | memoryview = batch[HEADER_SIZE:]
    if header.codec and header.record_count:
        payload = decompress(header.codec, payload, MAX_DECOMPRESSED_BYTES)
    return decode_records(payload, header)


def _control(record: Any) -> Row:
    kinds = {0: "abort", 1: "commit"}
    try:
        _version, kind = struct.unpack_from(">hh", record.key or b"")
        _version, epoch = struct.unpack_from(">hi", record.value or b"")
    except struct.error:
        return {"marker": "unreadable"}
    return {"marker": kinds.get(kind, kind), "coordinator_epoch": epoch}


# --- duplicates ----------------------------------------------------------------------------------------------------


def duplicate_rows(directory: Path) -> Iterator[Row]:
    """A row for each segment, one for all, and one for each of the keys with the most records. Raises CliError.

    The segments are read twice: for the last offset of each key, then to count. Records of aborted transactions
    supersede nothing, as for the cleaner. Memory: about 200 bytes a key and the keys themselves.
    """
    segments = sorted(directory.glob("*.log"))
    clean = _clean_offset(directory)
    last: dict[bytes, int] = {}
    counts: Counter[bytes] = Counter()
    for file in segments:
        for record, aborted in _records_of(directory, file):
            if record.key is not None and not aborted:
                last[record.key] = record.offset
                counts[record.key] += 1
    total: Counter[str] = Counter()
    for file in segments:
        fates = Counter(_fate(record, aborted, last) for record, aborted in _records_of(directory, file))
        total.update(fates)
        base = int(file.stem)
        yield {"segment": base, **_counted(fates), "compacted": None if clean is None else base < clean}
    yield {"all": len(segments), **_counted(total), "keys": len(last), "clean_up_to": clean}
    for key, count in nlargest(TOP_KEYS, counts.items(), key=lambda item: item[1]):
        if count > 1:
            yield {"key": key.decode(errors="backslashreplace"), "records": count, "last_offset": last[key]}


def _fate(record: Record, aborted: bool, last: dict[bytes, int]) -> str:
    if aborted:
        return "aborted"
    if record.key is None:
        return "without_key"
    if last[record.key] > record.offset:
        return "superseded"
    return "tombstones" if record.value is None else "last_values"


def _counted(found: Counter[str]) -> Row:
    names = ("last_values", "tombstones", "superseded", "aborted", "without_key")
    return {"records": found.total(), **{name: found[name] for name in names}}


def _records_of(directory: Path, file: Path) -> Iterator[tuple[Record, bool]]:
    """The records of a segment, each with whether its transaction was aborted."""
    met = MetTransactions(
        entry for index in sorted(directory.glob("*.txnindex")) for entry in unpack_aborted(index.read_bytes())
    )
    for batch, header in _data_batches(file):
        aborted = met.is_aborted(header)
        try:
            yield from ((record, aborted) for record in _decoded(batch, header))
        except (CodecError, CorruptBatch) as error:
            raise CliError(f"{file}: the batch at offset {header.base_offset}: {error}") from error


def _data_batches(file: Path) -> Iterator[tuple[memoryview, BatchHeader]]:
    """The data batches of a segment; what is behind the last whole one is being written, or not used."""
    data = memoryview(file.read_bytes())
    position = 0
    while position + HEADER_SIZE <= len(data) and any(data[position : position + HEADER_SIZE]):
        try:
            header = parse_header(data, position)
            if position + header.size > len(data):
                return
            validate_batch(data, position)
        except CorruptBatch as error:
            raise CliError(f"{file}: the batch at position {position}: {error.reason}") from error
        if not header.is_control:
            yield data[position : position + header.size], header
        position += header.size


def _clean_offset(directory: Path) -> int | None:
    """Up to where the cleaner's checkpoint says that the log is clean; None if it says nothing."""
    topic, _, index = directory.resolve().name.rpartition("-")
    try:
        data = (directory.resolve().parent / checkpoints.CLEANER_CHECKPOINT).read_bytes()
        offsets = checkpoints.decode_offsets(data, checkpoints.CLEANER_CHECKPOINT)
    except (OSError, checkpoints.DamagedFile):
        return None
    return offsets.get(TopicPartition(topic, int(index))) if index.isdigit() else None


# --- keys and values --------------------------------------------------------------------------------------------


def _decoder(file: Path, decode: str) -> Callable[[Any], Row]:
    if decode == "auto":
        topic = file.resolve().parent.name.rpartition("-")[0]
        decode = {"__consumer_offsets": "offsets", "__transaction_state": "transactions"}.get(topic, "none")
    return {"none": _plain, "offsets": offsets_row, "transactions": transactions_row}[decode]


def _text(raw: bytes | None) -> str | None:
    """Bytes as text, escaped where they are not text."""
    return None if raw is None else bytes(raw).decode(errors="backslashreplace")


def _plain(record: Any) -> Row:
    return {"key": _text(record.key), "value": _text(record.value)}


def offsets_row(record: Any) -> Row:
    """A record of ``__consumer_offsets`` in words."""
    try:
        key = group_records.decode_group_key(record.key or b"")
        if isinstance(key, group_records.UnknownKey):
            return {"key_version": key.version, **_plain(record)}
        if isinstance(key, group_records.ConsumerKey):
            kind = {"group": key.group_id, "kind": key.kind.name.lower(), "name": key.name}
            return kind | ({"deleted": True} if record.value is None else _plain(record))
        row: Row = {"group": key.group_id}
        value: Any
        if isinstance(key, group_records.OffsetKey):
            row["partition"] = f"{key.partition.topic}:{key.partition.partition}"
            value = group_records.decode_offset(record.value) if record.value is not None else None
        else:
            value = group_records.decode_group(record.value) if record.value is not None else None
    except group_records.BadRecord as error:
        return {"unreadable": str(error), **_plain(record)}
    if record.value is None:
        return row | {"deleted": True}
    if value is None:
        return row | _plain(record)
    fields = _fields(value)
    if "offset" in fields:  # the record has one, too
        row["committed"] = fields.pop("offset")
    if isinstance(value, group_records.CommittedOffset) and value.topic_id is not None:
        fields["topic_id"] = id_text(uuid.UUID(bytes=value.topic_id))
    return row | fields


def _fields(value: Any) -> Row:
    """The fields of a record that are set."""
    shown: Row = {}
    for name, field in value._asdict().items():
        if isinstance(field, bytes):
            field = _text(field)
        elif isinstance(field, tuple):
            field = [_fields(one) for one in field]
        if field is not None and field != -1:
            shown[name] = field
    return shown


def transactions_row(record: Any) -> Row:
    """A record of ``__transaction_state`` in words."""
    try:
        name = transaction_records.decode_transaction_key(record.key or b"")
        if name is None:
            return _plain(record)
        row: Row = {"transactional_id": name}
        if record.value is None:
            return row | {"deleted": True}
        state = transaction_records.decode_transaction(record.value)
    except transaction_records.RecordError as error:
        return {"unreadable": str(error), **_plain(record)}
    if state is None:
        return row | _plain(record)
    return row | {
        "state": state.state.name,
        "producer": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "timeout_ms": state.timeout_ms,
        "started": iso(state.start_ms),
        "updated": iso(state.last_update_ms),
        "partitions": [f"{tp.topic}:{tp.partition}" for tp in sorted(state.partitions)],
        "previous_producer": state.previous_producer_id if state.previous_producer_id >= 0 else None,
        "next_producer": state.next_producer_id if state.next_producer_id >= 0 else None,
        "epoch_before": state.epoch_before if state.epoch_before >= 0 else None,
        "transaction_version": state.client_version,
    }


# --- indexes, snapshots, checkpoints ----------------------------------------------------------------------------


def _base_offset(file: Path) -> int:
    digits = file.name.split(".", 1)[0]
    if not digits.isdigit():
        raise CliError(f"{file}: an index is named by its base offset")
    return int(digits)


def _entries(file: Path, entry: struct.Struct) -> Iterator[tuple[Any, ...]]:
    data = file.read_bytes()
    whole = len(data) - len(data) % entry.size
    yield from entry.iter_unpack(data[:whole])
    if whole < len(data):
        raise Damaged(f"{len(data) - whole} bytes at the end are not a whole entry")


def _offset_index(file: Path) -> Iterator[Row]:
    base = _base_offset(file)
    for number, (relative, position) in enumerate(_entries(file, _OFFSET_ENTRY)):
        if number and not relative and not position:
            return  # Kafka preallocates the index of the active segment
        yield {"offset": base + relative, "position": position}


def _time_index(file: Path) -> Iterator[Row]:
    base = _base_offset(file)
    for number, (timestamp, relative) in enumerate(_entries(file, _TIME_ENTRY)):
        if number and not timestamp and not relative:
            return
        yield {"timestamp": timestamp, "time": iso(timestamp), "offset": base + relative}


def _transaction_index(file: Path) -> Iterator[Row]:
    for version, producer_id, first, last, stable in _entries(file, _TXN_ENTRY):
        row = {"producer": producer_id, "first_offset": first, "last_offset": last, "last_stable_offset": stable}
        yield row | ({"version": version} if version else {})


def _snapshot(file: Path) -> Iterator[Row]:
    for entry in decode_snapshot(file.read_bytes()):
        row = {
            "producer": entry.producer_id,
            "epoch": entry.epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": entry.last_offset,
            "time": iso(entry.timestamp),
            "coordinator_epoch": entry.coordinator_epoch,
        }
        yield row | ({"transaction_from": entry.txn_first_offset} if entry.txn_first_offset >= 0 else {})


def _checkpoint(file: Path) -> Iterator[Row]:
    for partition, offset in checkpoints.decode_offsets(file.read_bytes(), file.name).items():
        yield {"topic": partition.topic, "partition": partition.partition, "offset": offset}


def _epochs(file: Path) -> Iterator[Row]:
    for entry in checkpoints.decode_epochs(file.read_bytes(), file.name):
        yield {"epoch": entry.epoch, "start_offset": entry.start_offset}


def _metadata(file: Path) -> Iterator[Row]:
    yield {"topic_id": checkpoints.decode_partition_metadata(file.read_bytes())}


def _properties(file: Path) -> Iterator[Row]:
    for name, value in checkpoints.decode_properties(file.read_bytes()).items():
        yield {"name": name, "value": value}


def _clean_shutdown(file: Path) -> Iterator[Row]:
    yield checkpoints.decode_clean_stop(file.read_bytes())._asdict()


def _never(file: Path) -> Iterator[Row]:
    raise AssertionError("segments are handled before")


_BY_SUFFIX: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".log": _never,
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": _transaction_index,
    ".snapshot": _snapshot,
}
_BY_NAME: dict[str, Callable[[Path], Iterator[Row]]] = {
    checkpoints.RECOVERY_POINT_CHECKPOINT: _checkpoint,
    checkpoints.LOG_START_CHECKPOINT: _checkpoint,
    checkpoints.HIGH_WATERMARK_CHECKPOINT: _checkpoint,
    checkpoints.CLEANER_CHECKPOINT: _checkpoint,
    checkpoints.LEADER_EPOCH_CHECKPOINT: _epochs,
    checkpoints.PARTITION_METADATA: _metadata,
    checkpoints.META_PROPERTIES: _properties,
    checkpoints.CLEAN_SHUTDOWN: _clean_shutdown,
}
