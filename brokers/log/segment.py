"""One segment: a ``.log`` file and its indexes.

Positions are bytes in the ``.log`` file, offsets are record offsets. A segment never trusts its indexes: a lookup reads
the batch header it leads to, and a contradiction rebuilds the index from the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from _native.batch import HEADER_SIZE, Admitted, BatchHeader, parse_header, scan, walk
from _native.errors import CorruptBatch
from brokers.log.failures import DiskFailed, DiskFull
from brokers.log.files import Buffer, DiskFile, DiskPort, FileSlice
from brokers.log.indexes import AbortedTxn, OffsetEntry, OffsetIndex, TimeIndex, TransactionIndex

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

_SCAN_BYTES = 64 * 1024
_WALK_BYTES = 4 * 1024
"""As the offset index's interval: one read finds the border behind an entry, whatever the batches' sizes."""
_HINTS = 32
MAX_POSITION = 2**31 - 1
"""Positions in a segment and offsets relative to its base have 32 bits."""
_INT64_MAX = 2**63 - 1


def file_stem(offset: int) -> str:
    """Kafka's 20-digit name of the files that start at an offset."""
    return f"{offset:020d}"


def _scan_until_damage(data: bytes) -> list[tuple[int, BatchHeader]]:
    """The batches before the first bytes that are none; CorruptBatch if these come first."""
    try:
        return scan(data)
    except CorruptBatch as wrong:
        if wrong.position <= 0:
            raise
        return scan(data, 0, wrong.position)


class _Walked(NamedTuple):
    """The batch at which a walk stopped (``size`` 0: none), and the offset behind the batches before it, or -1.

    ``first`` is the last offset of the batch with which it began.
    """

    first: int
    position: int
    passed: int
    base_offset: int = -1
    last_offset: int = -1
    size: int = 0
    damaged: bool = False


_walked = tuple.__new__
"""A named tuple's own constructor is a Python function."""


class PlacedBatch(NamedTuple):
    """A batch with its place in a buffer or file: where it starts, and its final header."""

    position: int
    header: BatchHeader


class Segment:
    """A run of batches in one file, with ``base_offset`` as the lowest offset it may hold."""

    __slots__ = (
        "_bytes_since_index",
        "_cuts",
        "_disk",
        "_first_timestamp",
        "_max_timestamp",
        "base_offset",
        "created_ms",
        "directory",
        "hints",
        "log",
        "offset_index",
        "suffix",
        "time_index",
        "txn_index",
    )

    def __init__(
        self, disk: DiskPort, directory: str, base_offset: int, *, create: bool, now_ms: int, suffix: str = ""
    ) -> None:
        stem = f"{directory}/{file_stem(base_offset)}"
        self._disk = disk
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self.created_ms = now_ms
        self.log: DiskFile = disk.open(stem + LOG_SUFFIX + suffix, create=create)
        self.log.expect_growth()
        self.offset_index = OffsetIndex(disk, stem + OFFSET_INDEX_SUFFIX + suffix, base_offset)
        self.time_index = TimeIndex(disk, stem + TIME_INDEX_SUFFIX + suffix, base_offset)
        self.txn_index = TransactionIndex(disk, stem + TXN_INDEX_SUFFIX + suffix, base_offset)
        self._bytes_since_index = 0
        self._max_timestamp: tuple[int, int] | None = None
        self._first_timestamp: int | None = None
        self.hints: dict[
            int, int
        ] = {}  # by offset: where sequential readers come back, as reads and appends ended there
        self._cuts: list[int] = []

    @property
    def size(self) -> int:
        """Bytes of batches."""
        return self.log.size

    # ---- writing

    def append(self, data: Buffer, batches: Sequence[PlacedBatch], index_interval_bytes: int) -> None:
        """Write whole batches at the end and index them.

        DiskFull: nothing is indexed and the file is cut back to its last whole batch. DiskFailed: nothing is known.
        """
        self.index_batches(batches, self._write(data), index_interval_bytes)

    def append_one(
        self, data: Buffer, base_offset: int, last_offset: int, max_timestamp: int, index_interval_bytes: int
    ) -> None:
        """As :meth:`append`, for one batch that is all of ``data`` and not the segment's first."""
        position = self._write(data)
        self._index(position, len(data), last_offset, max_timestamp, index_interval_bytes)
        self.remember(base_offset, position)

    def append_run(self, batches: list[Buffer], admitted: Sequence[Admitted], index_interval_bytes: int) -> None:
        """As :meth:`append_one`, for batches that follow on each other; ``admitted`` is what ``admit_run`` said."""
        position = start = self.log.size
        try:
            self.log.write_run(batches, position)
        except DiskFull:
            self._cut_back(position)
            raise
        largest, since = self._max_timestamp, self._bytes_since_index
        if largest is None:
            largest = self.max_timestamp
        entries: list[tuple[int, int]] = []
        newest = self.time_index.newest()
        for _, last_offset, timestamp, size, _, _ in admitted:  # as _index, without calls for each
            if timestamp > largest[0]:
                largest = timestamp, last_offset
            if since > index_interval_bytes:
                entries.append((last_offset, position))
                if largest[0] > newest:
                    self.time_index.append(*largest)
                    newest = largest[0]
                since = 0
            since += size
            position += size
        if entries:
            self.offset_index.extend(entries)
        self._max_timestamp, self._bytes_since_index = largest, since
        self.remember(admitted[0][0], start)

    def _write(self, data: Buffer) -> int:
        position = self.log.size
        try:
            self.log.write(data, position)
        except DiskFull:
            self._cut_back(position)
            raise
        return position

    def _cut_back(self, position: int) -> None:
        """Leave nothing of a write that did not fit."""
        try:
            self.log.truncate(position)
        except DiskFull as again:
            raise DiskFailed(self.log.path, f"cannot cut a half-written batch: {again.reason}") from again

    def index_batches(self, batches: Sequence[PlacedBatch], start: int, index_interval_bytes: int) -> None:
        """Account for batches that stand at ``start`` plus their positions; also the second half of recovery."""
        if start == 0 and batches:
            self._first_timestamp = batches[0].header.max_timestamp
        for position, header in batches:
            self._index(start + position, header.size, header.last_offset, header.max_timestamp, index_interval_bytes)
        if batches:
            self.remember(batches[0].header.base_offset, start + batches[0].position)

    def _index(self, position: int, size: int, last_offset: int, timestamp: int, index_interval_bytes: int) -> None:
        largest = self._max_timestamp
        if largest is None:
            largest = self.max_timestamp
        if timestamp > largest[0]:
            largest = self._max_timestamp = timestamp, last_offset
        if self._bytes_since_index > index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append(*largest)
            self._bytes_since_index = 0
        self._bytes_since_index += size

    def has_room(self, size: int, last_offset: int, config_index_bytes: int) -> bool:
        """Whether a batch ending at ``last_offset`` fits 32-bit positions, relative offsets and the index limit."""
        return (
            self.log.size + size <= MAX_POSITION
            and last_offset - self.base_offset <= MAX_POSITION
            and self.index_room(config_index_bytes) > 0
        )

    def index_room(self, config_index_bytes: int) -> int:
        """How many batches the indexes have room for, should each of them become an entry."""
        return min(
            (config_index_bytes - self.offset_index.size_bytes) // 8,
            (config_index_bytes - self.time_index.size_bytes) // 12,
        )

    def add_aborted(self, aborted: AbortedTxn) -> None:
        """Remember an aborted transaction whose marker was appended here."""
        self.txn_index.append(aborted)

    def seal(self) -> None:
        """The segment is no longer the active one: complete the time index and write all indexes."""
        timestamp, offset = self.max_timestamp
        if self.size:
            self.time_index.append(timestamp, offset)
        self.flush_indexes()
        self.log.trim()
        self.hints.clear()

    def flush_indexes(self, *, sync: bool = False) -> None:
        """Write index entries that are only in memory."""
        if not self.size:
            if self.offset_index.made_anew:
                self.offset_index.clear()
                self.time_index.clear()
                self.txn_index.clear()
            return
        # Kafka expects both files beside a log that has data, also when they are empty.
        _ = self.offset_index.data, self.time_index.data
        self.offset_index.flush(sync=sync)
        self.time_index.flush(sync=sync)
        self.txn_index.flush(sync=sync)

    def paths(self) -> list[str]:
        """All files, to be fsynced by somebody else."""
        return [self.log.path, self.offset_index.path, self.time_index.path, self.txn_index.path]

    def sync(self) -> None:
        """fsync data and indexes."""
        self.log.sync()
        self.flush_indexes(sync=True)

    # ---- timestamps

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """The largest timestamp in ms, and the last offset of the first batch that has it; (-1, base) if empty."""
        if self._max_timestamp is None:
            self._max_timestamp = self._load_max_timestamp()
        return self._max_timestamp

    def _load_max_timestamp(self) -> tuple[int, int]:
        if not self.log.size:
            return -1, self.base_offset
        largest, offset = self.time_index.last()
        for _, header in self.headers(self.offset_index.last().position):
            if header.max_timestamp > largest:
                largest, offset = header.max_timestamp, header.last_offset
        return largest, offset

    @property
    def first_timestamp(self) -> int | None:
        """The first batch's largest timestamp, by which ``segment.ms`` counts; None if there is no batch."""
        if self._first_timestamp is None and self.log.size >= HEADER_SIZE:
            self._first_timestamp = parse_header(self.log.read(0, HEADER_SIZE)).max_timestamp
        return self._first_timestamp

    def retention_timestamp(self) -> int:
        """What ``retention.ms`` is compared with: the largest timestamp, or the file's time if it has none."""
        timestamp, _ = self.max_timestamp
        return timestamp if timestamp >= 0 else self._disk.modified_ms(self.log.path)

    # ---- reading

    def headers(self, position: int = 0, end: int = -1) -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers of whole batches from ``position`` (a batch's start) up to ``end``.

        Raises CorruptBatch at bytes that are no batch; a torn last batch ends the iteration.
        """
        for start, chunk, found in self.chunks(position, end):
            del chunk
            for at, header in found:
                yield start + at, header

    def chunks(self, position: int = 0, end: int = -1) -> Iterator[tuple[int, bytes, list[tuple[int, BatchHeader]]]]:
        """The segment in runs of whole batches: (file position of the run, its bytes, scanned headers)."""
        end = self.log.size if end < 0 else min(end, self.log.size)
        wanted = _SCAN_BYTES
        while position < end:
            data = self.log.read(position, min(wanted, end - position))
            found = _scan_until_damage(data)
            if not found:
                if len(data) < HEADER_SIZE:
                    return
                needed = parse_header(data).size
                if needed <= len(data) or position + needed > end:
                    return
                wanted = needed
                continue
            yield position, data, found
            last_position, last = found[-1]
            position += last_position + last.size
            wanted = _SCAN_BYTES

    def position_of(self, offset: int) -> int | None:
        """Where the first batch starts whose last offset is at least ``offset``; None if there is none."""
        hint = self.hints.get(offset)
        if hint is not None:
            return hint
        entry = self.offset_index.floor(offset)
        if entry.position:
            found = self._walk_from(entry, self.size, offset)
            if found is not None:
                return self._reached(found, offset)
            self.rebuild_offset_index()
            entry = self.offset_index.floor(offset)
        return self._reached(self._walk(entry.position, self.size, offset), offset)

    def _reached(self, found: _Walked, offset: int) -> int | None:
        if found.damaged:
            raise CorruptBatch("no batch begins where the one before ends", found.position)
        whole = found.size and found.position + found.size <= self.size
        return found.position if whole and found.last_offset >= offset else None

    def _walk_from(self, entry: OffsetEntry, limit: int, offset: int = _INT64_MAX) -> _Walked | None:
        """``_walk`` from the batch that the index names; None if that one is not there."""
        try:
            found = self._walk(entry.position, limit, offset)
        except CorruptBatch:
            return None
        return found if found.first == entry.offset else None

    def _walk(self, position: int, limit: int, offset: int = _INT64_MAX) -> _Walked:
        """Step from header to header up to the first batch that ends beyond ``limit`` or reaches ``offset``.

        Large batches cost one small read each, small ones share it. Raises CorruptBatch if none begins at ``position``.
        """
        first = passed = -1
        size = self.log.size
        while size - position >= HEADER_SIZE:
            left = size - position
            data = self.log.read(position, left if left < _WALK_BYTES else _WALK_BYTES)
            try:
                begun, step, behind, base, last, found = walk(data, limit - position, offset)
            except CorruptBatch:
                if first < 0:
                    raise
                return _Walked(first, position, passed, damaged=True)
            if first < 0:
                first = begun
            if behind >= 0:
                passed = behind
            position += step
            if found:
                return _walked(_Walked, (first, position, passed, base, last, found, False))
        return _Walked(first, position, passed)

    def rebuild_offset_index(self) -> None:
        """Make the offset index anew from what the log says."""
        self.offset_index.clear()
        since = 0
        for position, header in self.headers():
            if since > 4096:
                self.offset_index.append(header.last_offset, position)
                since = 0
            since += header.size

    def cut(self, start: int, limit: int) -> tuple[int, int]:
        """The largest batch border in (``start``, ``limit``], or the end of the batch at ``start`` if none is.

        Returns it with the offset behind it.
        """
        indexed = self.offset_index.floor_position(limit)
        if indexed.position > start:
            found = self._walk_from(indexed, limit)
            if found is not None:
                return found.position, found.passed if found.passed >= 0 else found.base_offset
        found = self._walk(start, limit)
        if found.passed < 0:
            return min(start + found.size, self.log.size), found.last_offset + 1
        return found.position, found.passed

    def quick_cut(self, start: int, limit: int) -> tuple[int, int] | None:
        """As :meth:`cut`, if one look behind the index's entry finds the border; None asks that."""
        offset, position = self.offset_index.floor_position(limit)
        if position <= start:
            return None
        try:
            begun, step, behind, base, _, found = walk(
                self.log.read(position, min(_WALK_BYTES, self.log.size - position)), limit - position, _INT64_MAX
            )
        except CorruptBatch:
            return None
        if not found or begun != offset:
            return None
        return position + step, behind if behind >= 0 else base

    def slice(self, position: int, end: int) -> FileSlice:
        """A pinned run of bytes."""
        return FileSlice(self.log, position, end - position, self._cuts)

    def remember(self, offset: int, position: int) -> None:
        """A reader will ask for this offset next, and its batch starts there."""
        hints = self.hints
        hints[offset] = position
        if len(hints) > _HINTS:
            del hints[next(iter(hints))]

    # ---- cutting and removing

    def cut_at(self, position: int, offset: int) -> None:
        """Drop everything from ``position``, the start of the batch with ``offset``, and index entries above it."""
        self._cuts.append(position)
        self.log.truncate(position)
        self.offset_index.truncate(offset)
        self.time_index.truncate(offset)
        self.txn_index.truncate(offset)
        self.hints.clear()
        self._max_timestamp = None
        self._bytes_since_index = 0
        if position == 0:
            self._first_timestamp = None

    def reset_indexes(self) -> None:
        """Empty all indexes, also on disk."""
        self.offset_index.clear()
        self.time_index.clear()
        self.txn_index.clear()
        self._nothing_indexed()

    def rebuild_indexes(self) -> None:
        """Empty all indexes, before recovery fills them again. Files change with the next flush, if at all."""
        self.offset_index.make_anew()
        self.time_index.make_anew()
        self.txn_index.make_anew()
        self._nothing_indexed()

    def _nothing_indexed(self) -> None:
        self.hints.clear()
        self._bytes_since_index = 0
        self._max_timestamp = (-1, self.base_offset)
        self._first_timestamp = None

    def change_suffix(self, suffix: str) -> None:
        """Rename all files from one suffix (``.cleaned``, ``.swap``, none, ``.deleted``) to another; log file last."""
        stem = f"{self.directory}/{file_stem(self.base_offset)}"
        self.offset_index.rename(stem + OFFSET_INDEX_SUFFIX + suffix)
        self.time_index.rename(stem + TIME_INDEX_SUFFIX + suffix)
        self.txn_index.rename(stem + TXN_INDEX_SUFFIX + suffix)
        self.log.rename(stem + LOG_SUFFIX + suffix)
        self.suffix = suffix

    def remove(self, *, later: bool = False) -> None:
        """Delete all files, with ``later`` in the background; readers with slices go on."""
        self.offset_index.remove(later=later)
        self.time_index.remove(later=later)
        self.txn_index.remove(later=later)
        self.log.remove(later=later)

    def unload(self) -> None:
        """Give back the indexes' memory and the descriptors."""
        self.offset_index.unload()
        self.time_index.unload()
        self.txn_index.unload()
        self.log.close()

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size} bytes)"
