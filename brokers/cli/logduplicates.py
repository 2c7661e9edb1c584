"""``fleetlog log dump --duplicates``: how many records of a partition's log a later one with the same key supersedes.

Reads the segments of a directory twice: for the last offset of each key, then to count. Records of aborted transactions
supersede nothing, as for the cleaner. Memory: about 200 bytes a key and the keys themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import nlargest
from pathlib import Path
from typing import Any

from fleetlog._native.batch import HEADER_SIZE, BatchHeader, Record, decode_records, parse_header, validate_batch
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log.compaction.passes import MetTransactions
from fleetlog.brokers.log.disk import checkpoints
from fleetlog.brokers.log.indexes import unpack_aborted
from fleetlog.wire.compression import CodecError, decompress
from fleetlog.wire.types import TopicPartition

MAX_DECOMPRESSED_BYTES = 1 << 30
TOP_KEYS = 10

Row = dict[str, Any]


class NotReadable(Exception):
    """A segment is damaged, so nothing can be said of its keys."""


def duplicate_rows(directory: Path) -> Iterator[Row]:
    """A row for each segment, one for all, and one for each of the keys with the most records. Raises NotReadable."""
    segments = sorted(directory.glob("*.log"))
    clean = _clean_offset(directory)
    last: dict[bytes, int] = {}
    counts: Counter[bytes] = Counter()
    for file in segments:
        for record, aborted in _records(directory, file):
            if record.key is not None and not aborted:
                last[record.key] = record.offset
                counts[record.key] += 1
    total: Counter[str] = Counter()
    for file in segments:
        fates = Counter(_fate(record, aborted, last) for record, aborted in _records(directory, file))
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


def _records(directory: Path, file: Path) -> Iterator[tuple[Record, bool]]:
    """The records of a segment, each with whether its transaction was aborted."""
    met = MetTransactions(
        entry for index in sorted(directory.glob("*.txnindex")) for entry in unpack_aborted(index.read_bytes())
    )
    for batch, header in _batches(file):
        aborted = met.is_aborted(header)
        payload: bytes | bytearray | memoryview = batch[HEADER_SIZE:]
        try:
            if header.codec and header.record_count:
                payload = decompress(header.codec, payload, MAX_DECOMPRESSED_BYTES)
            for record in decode_records(payload, header):
                yield record, aborted
        except (CodecError, CorruptBatch) as error:
            raise NotReadable(f"{file}: the batch at offset {header.base_offset}: {error}") from error


def _batches(file: Path) -> Iterator[tuple[memoryview, BatchHeader]]:
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
            raise NotReadable(f"{file}: the batch at position {position}: {error.reason}") from error
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
