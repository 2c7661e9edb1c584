"""One segment: a ``.log`` file and its indexes.

Positions are bytes in the ``.log`` file, offsets are record offsets. A segment never trusts its indexes: a lookup reads
the batch header it leads to, and a contradiction rebuilds the index from the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fleetlog._native.batch import (
    HEADER_SIZE,
    Admitted,
    BatchHeader,
    index_entries,
    index_floor,
    parse_header,
    scan,
    walk,
)
from fleetlog._native.errors import CorruptBatch
from fleetlog._native.files import FileSlice
from fleetlog.brokers.log.disk.failures import DiskFailed, DiskFull
from fleetlog.brokers.log.disk.files import Buffer, DiskFile, DiskPort
from fleetlog.brokers.log.indexes import AbortedTxn, OffsetEntry, OffsetIndex, TimeIndex, TransactionIndex

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


class Segment:
    """A run of batches in one file, with ``base_offset`` as the lowest offset it may hold."""

    __slots__ = (
        "_bytes_since_index",
        "_cuts",
        "_damage",
        "_disk",
        "_first_timestamp",
        "_loaded",
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
        self._damage: tuple[str, int] | None = None
        """Why the largest timestamp can't be found, and where; it is not looked for again before a cut."""
        self._loaded = False
        """Whether all indexes are in memory, so that an entry finds room there."""
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

    def append(self, pieces: Sequence[Buffer], batches: Sequence[Admitted], index_interval_bytes: int) -> None:
        """Write whole batches at the end, by one write, and index them. ``pieces`` are their bytes, in any division.

        DiskFull: nothing is indexed and the file is cut back to its last whole batch. DiskFailed: nothing is known.
        CorruptBatch: the last batches are damaged, and nothing was written.
        """
        log = self.log
        position = log.size
        if self._max_timestamp is None:  # of what stands there now: an index entry speaks of batches up to its own
            self._max_timestamp = self._load_max_timestamp()
        if not self._loaded:
            self.load_indexes()
        try:
            log.write_run(pieces, position)
        except DiskFull:
            self._cut_back(position)
            raise
        self.index(batches, position, index_interval_bytes)

    def load_indexes(self) -> None:
        """Bring all indexes into memory: a change of them finds room from then on, whatever the disk says."""
        _ = self.offset_index.data, self.time_index.data, self.txn_index.data
        self._loaded = True

    def _cut_back(self, position: int) -> None:
        """Leave nothing of a write that did not fit."""
        try:
            self.log.truncate(position)
        except DiskFull as again:
            raise DiskFailed(self.log.path, f"cannot cut a half-written batch: {again.reason}") from again

    def index(self, batches: Sequence[Admitted], position: int, index_interval_bytes: int) -> None:
        """Account for batches that stand at ``position``, one behind the other; also the second half of recovery."""
        if not batches:
            return
        if position == 0:
            self._first_timestamp = batches[0].max_timestamp
            self.offset_index.make_file()
            self.time_index.make_file()
        hints = self.hints
        hints[batches[0][0]] = position  # as remember
        if len(hints) > _HINTS:
            del hints[next(iter(hints))]
        largest = self._max_timestamp
        assert largest is not None, "recovery and append know it before"
        entries, self._bytes_since_index, newest, offset = index_entries(
            batches, position, self._bytes_since_index, index_interval_bytes, *largest
        )
        if newest != largest[0]:
            self._max_timestamp = newest, offset
        if entries:
            self.offset_index.extend(entries)
            indexed = self.time_index.newest()
            for _, _, timestamp, at in entries:
                if timestamp > indexed:
                    self.time_index.append(timestamp, at)
                    indexed = timestamp

    def index_room(self, config_index_bytes: int) -> int:
        """How many batches the indexes have room for, should each of them become an entry."""
        return min(
            (config_index_bytes - self.offset_index.size_bytes) // 8,
            (config_index_bytes - self.time_index.size_bytes) // 12,
        )

    def add_aborted(self, aborted: AbortedTxn) -> None:
        """Remember an aborted transaction whose marker was appended here."""
        self.txn_index.append(aborted)

    def seal(self, *, sync: bool = False) -> None:
        """The segment is no longer the active one: complete the time index and write all indexes."""
        timestamp, offset = self.max_timestamp
        if self.size:
            self.time_index.append(timestamp, offset)
        self.flush_indexes(sync=sync)
        self.log.trim()
        self.hints.clear()

    def flush_indexes(self, *, sync: bool = False) -> None:
        """Write index entries that are only in memory."""
        if not self.size:
            for index in (self.offset_index, self.time_index, self.txn_index):
                if index.made_anew:
                    index.clear()
            return
        # Kafka expects both files beside a log that has data, also when they are empty.
        _ = self.offset_index.data, self.time_index.data
        self.offset_index.flush(sync=sync)
        self.time_index.flush(sync=sync)
        self.txn_index.flush(sync=sync)

    def paths(self) -> list[str]:
        """All files, for the caller to fsync."""
        return [self.log.path, self.offset_index.path, self.time_index.path, self.txn_index.path]

    def sync(self) -> None:
        """fsync data and indexes."""
        self.log.sync()
        self.flush_indexes(sync=True)

    def took_names(self) -> bool:
        """Whether indexes got their files since this was asked last: their directory is to be synced, too."""
        indexes = (self.offset_index, self.time_index, self.txn_index)
        taken = any(index.new_name for index in indexes)
        for index in indexes:
            index.new_name = False
        return taken

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
        if self._damage is not None:
            raise CorruptBatch(*self._damage)
        try:
            return self._largest_from(self.offset_index.last().position)
        except CorruptBatch:
            pass  # the index leads between batches, or one is damaged
        try:
            self.rebuild_offset_index()
            return self._largest_from(self.offset_index.last().position)
        except CorruptBatch as wrong:
            self._damage = wrong.reason, wrong.position
            raise

    def _largest_from(self, position: int) -> tuple[int, int]:
        largest, offset = self.time_index.last()
        for _, header in self.headers(position):
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
        for start, chunk, batches in self.chunks(position, end):
            del chunk
            for at, header in batches:
                yield start + at, header

    def chunks(self, position: int = 0, end: int = -1) -> Iterator[tuple[int, bytes, list[tuple[int, BatchHeader]]]]:
        """The segment in runs of whole batches: (file position of the run, its bytes, scanned headers)."""
        end = self.log.size if end < 0 else min(end, self.log.size)
        wanted = _SCAN_BYTES
        while position < end:
            data = self.log.read(position, min(wanted, end - position))
            headers = _scan_until_damage(data)
            if not headers:
                if len(data) < HEADER_SIZE:
                    return
                needed = parse_header(data).size
                if needed <= len(data) or position + needed > end:
                    return
                wanted = needed
                continue
            yield position, data, headers
            last_position, last = headers[-1]
            position += last_position + last.size
            wanted = _SCAN_BYTES

    def position_of(self, offset: int) -> int | None:
        """Where the first batch starts whose last offset is at least ``offset``; None if there is none."""
        hint = self.hints.get(offset)
        if hint is not None:
            return hint
        entry = self.offset_index.floor(offset)
        if entry.position:
            walked = self._walk_from(entry, self.size, offset)
            if walked is not None:
                return self._reached(walked, offset)
            self.rebuild_offset_index()
            entry = self.offset_index.floor(offset)
        return self._reached(self._walk(entry.position, self.size, offset), offset)

    def end_before(self, position: int, offset: int) -> int:
        """The offset behind the batch that ends at ``position``, where one with ``offset`` or a later one begins."""
        entry, end = self.offset_index.floor(offset - 1), self.base_offset
        for _, header in self.headers(entry.position, position):
            end = header.last_offset + 1
        return end

    def _reached(self, found: _Walked, offset: int) -> int | None:
        if found.damaged:
            raise CorruptBatch("no batch begins where the one before ends", found.position)
        return found.position if self._ends_within(found).size and found.last_offset >= offset else None

    def _ends_within(self, found: _Walked) -> _Walked:
        if found.position + found.size > self.size:
            raise CorruptBatch(f"a batch of {found.size} bytes reaches beyond the segment", found.position)
        return found

    def _walk_from(self, entry: OffsetEntry, limit: int, offset: int = _INT64_MAX) -> _Walked | None:
        """``_walk`` from the batch that the index names; None if that one is not there."""
        try:
            walked = self._walk(entry.position, limit, offset)
        except CorruptBatch:
            return None
        return walked if walked.first == entry.offset else None

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
                begun, step, behind, base, last, hit = walk(data, limit - position, offset)
            except CorruptBatch:
                if first < 0:
                    raise
                return _Walked(first, position, passed, damaged=True)
            if first < 0:
                first = begun
            if behind >= 0:
                passed = behind
            position += step
            if hit:
                return _walked(_Walked, (first, position, passed, base, last, hit, False))
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
            walked = self._walk_from(indexed, limit)
            if walked is not None:
                return walked.position, walked.passed if walked.passed >= 0 else walked.base_offset
        walked = self._walk(start, limit)
        if walked.passed < 0:
            return self._ends_within(walked).position + walked.size, walked.last_offset + 1
        return walked.position, walked.passed

    def take(
        self, offset: int, end_offset: int, beyond: int, room: int, active: bool, one: bool
    ) -> tuple[FileSlice | None, int, bool]:
        """A pinned run of whole batches from the one that holds ``offset``: ``room`` bytes, below ``end_offset``.

        ``beyond`` is the offset behind the segment. With ``one`` the first batch is taken even if it is larger. Returns
        the run, or None; the offset at which a reader continues; and whether the run ended before the segment did.
        """
        file, hints = self.log, self.hints
        limit = size = file.size
        start = hints.get(offset)
        if start is None:
            start = self.position_of(offset)
        if end_offset < beyond:
            hint = hints.get(end_offset)
            if hint is None:
                hint = self.position_of(end_offset)
            if hint is not None:
                limit = hint
        if start is None or start >= limit:
            return (None, offset, True) if limit < size else (None, beyond if beyond > offset else offset, False)
        end, behind = limit, end_offset
        if limit - start > room:
            border = start + room if room > 0 else start
            index = self.offset_index
            kept = index.kept
            indexed, position = index_floor(index.data if kept is None else kept, self.base_offset, 4, border)
            whole = 0
            if position > start:  # mostly one look behind the index's entry finds the border
                left = size - position
                try:
                    begun, step, behind, base, _, whole = walk(
                        file.read(position, left if left < _WALK_BYTES else _WALK_BYTES), border - position, _INT64_MAX
                    )
                except CorruptBatch:
                    begun = -1
                if begun != indexed:
                    whole = 0
            if whole:
                end, behind = position + step, behind if behind >= 0 else base
            else:
                end, behind = self.cut(start, border)
            if end > limit:
                end = limit
            if end - start > room and not one:
                return None, offset, True
        if end == size:
            behind = beyond
        elif end == limit:
            behind = end_offset
        if active or end < size:
            hints[behind] = end
            if len(hints) > _HINTS:
                del hints[next(iter(hints))]
        return FileSlice(file, start, end - start, self._cuts), behind, end < limit

    # ---- cutting and removing

    def cut_at(self, position: int, offset: int) -> None:
        """Drop everything from ``position``, the start of the batch with ``offset``, and index entries above it."""
        self._cuts.append(position)
        self.log.truncate(position)
        self.offset_index.truncate(offset)
        self.time_index.truncate(offset)
        self.txn_index.truncate(offset)
        self.hints.clear()
        self._damage = None
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
        self._damage = None
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
        """Delete all files, with ``later`` in the background; readers with slices continue."""
        self._loaded = False
        self.offset_index.remove(later=later)
        self.time_index.remove(later=later)
        self.txn_index.remove(later=later)
        self.log.remove(later=later)

    def unload(self) -> None:
        """Give back the indexes' memory and the descriptors."""
        self._loaded = False
        self.offset_index.unload()
        self.time_index.unload()
        self.txn_index.unload()
        self.log.close()

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size} bytes)"
