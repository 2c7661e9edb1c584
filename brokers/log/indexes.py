"""A segment's three indexes, in Kafka's formats, loaded on first use.

``.index``: 8 bytes (relative offset i32, file position i32), the *last* offset of a batch and where that batch starts.
``.timeindex``: 12 bytes (timestamp i64, relative offset i32), strictly growing timestamps.
``.txnindex``: 34 bytes (version i16, producer id, first offset, last offset, last stable offset i64), aborted only.

New entries are kept in memory and written in runs: a crash loses nothing that recovery doesn't rebuild, since segments
above the recovery point are always scanned. None of the three is trusted: a lookup is checked against the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fleetlog._native.batch import index_floor
from fleetlog.brokers.log.disk.failures import DiskFull
from fleetlog.brokers.log.disk.files import Buffer, DiskFile, DiskPort

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TXN_ENTRY = struct.Struct(">hqqqq")
_pack_offset = _OFFSET_ENTRY.pack
_INT32_MAX = 2**31 - 1
_WRITE_BEHIND_BYTES = 4096
TXN_INDEX_VERSION = 0
_entry = tuple.__new__
"""A named tuple's own constructor is a Python function."""


class OffsetEntry(NamedTuple):
    """A batch's last offset and the position in the segment at which the batch starts."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """A timestamp in ms that no earlier batch of the segment passes, and the last offset of the batch that has it."""

    timestamp: int
    offset: int


class AbortedTxn(NamedTuple):
    """One aborted transaction: the offsets of its first record and its marker, and the stable offset at that time."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class _IndexFile:
    """A growing file of fixed-size entries: in memory when used, on disk in whole entries."""

    entry: struct.Struct

    def __init__(self, disk: DiskPort, path: str, base_offset: int) -> None:
        self._disk = disk
        self.path = path
        self.base_offset = base_offset
        self.kept: bytearray | None = None
        """All entries' bytes while they are in memory."""
        self._written = 0
        self._file: DiskFile | None = None
        self._anew = False
        """Whether the entries were made anew, and what the file holds is still to be compared with them."""
        self.new_name = False
        """Whether the file was made here since a flush asked: its name is durable with its directory only."""

    @property
    def data(self) -> bytearray:
        """All entries' bytes; loads the file on first use, dropping a torn last entry."""
        if self.kept is None:
            content = self._disk.read(self.path) or b""
            self.kept = bytearray(content[: len(content) - len(content) % self.entry.size])
            self._written = len(self.kept)
        return self.kept

    @property
    def loaded(self) -> bool:
        """Whether the entries are in memory."""
        return self.kept is not None

    @property
    def made_anew(self) -> bool:
        """Whether the entries were made anew and the file doesn't yet say the same."""
        return self._anew

    def __len__(self) -> int:
        return len(self.data) // self.entry.size

    @property
    def size_bytes(self) -> int:
        """Size of the index with entries not yet written."""
        return len(self.data)

    def _append(self, packed: Buffer) -> None:
        data = self.kept
        if data is None:
            data = self.data
        data += packed
        if len(data) - self._written >= _WRITE_BEHIND_BYTES and not self._anew:
            try:
                self.flush()
            except DiskFull:
                pass  # the batch itself is in the log by now; the entries stay in memory until there is room

    def _last_packed(self) -> bytes | None:
        """The last entry's bytes; a file that isn't in memory is not loaded for it."""
        size = self.entry.size
        if self.kept is not None:
            return bytes(self.kept[-size:]) or None
        whole = (self._disk.size(self.path) or 0) // size
        return self._open().read((whole - 1) * size, size) if whole else None

    def _open(self) -> DiskFile:
        if self._file is None:
            self.new_name = self.new_name or self._disk.size(self.path) is None
            self._file = self._disk.open(self.path, create=True)
        return self._file

    def make_file(self) -> None:
        """Make the file if there is none: Kafka's tools look for it beside the active segment, too.

        A full disk makes none now: the next flush does.
        """
        if self._file is None and not self._anew:
            try:
                self._open()
            except DiskFull:
                pass

    def flush(self, *, sync: bool = False) -> None:
        """Write what is only in memory; with ``sync``, durably. Creates the file, unless nothing was ever loaded."""
        if self.kept is None:
            if sync and self._disk.size(self.path) is not None:  # written, or emptied, before it was given back
                self._open().sync()
            return
        if self._anew:
            self._compare(self.kept, durable=sync)
        file = self._open()
        if len(self.kept) > self._written:
            file.write(bytes(memoryview(self.kept)[self._written :]), self._written)
            self._written = len(self.kept)
        if sync:
            file.sync()

    def _compare(self, data: bytearray, *, durable: bool) -> None:
        """Write the file anew only if it says something else.

        It is replaced as a whole then. ``durable``: at once, since no flush will look at it. A start after the next
        power cut may find the log at its recovery point, and believes the file without a scan. Entries that are only
        missing at its end are those of what was not flushed.
        """
        present = self._disk.read(self.path)
        if (present is not None or not data) and data.startswith(present or b""):
            self._written = len(present or b"")
        else:
            self.close()
            self._file = None
            try:
                self._disk.replace(self.path, bytes(data), durable=durable)
            except DiskFull:
                if present is None:
                    raise
                self._overwrite(present, data, durable=durable)
            self._written = len(data)
        self._anew = False

    def _overwrite(self, found: bytes, data: bytearray, *, durable: bool) -> None:
        """Write what differs in place: the file has the room of its former entries where a new one finds none.

        Until all is written it ends in half an entry, which no start believes.
        """
        size, same = self.entry.size, 0
        while same < len(data) and found[same : same + size] == data[same : same + size]:
            same += size
        file, torn = self._open(), same + (same < len(data))
        file.truncate(torn)
        if torn > same:
            if durable:
                file.sync()
            try:
                file.write(bytes(data[same:]), same)
            except DiskFull:
                file.truncate(torn)
                raise
        if durable:
            file.sync()

    def make_anew(self) -> None:
        """Forget all entries; those that are appended from now on are compared with the file at the next flush."""
        self.kept = bytearray()
        self._written = 0
        self._anew = True

    def _cut(self, entries: int) -> None:
        """Drop all but so many. Without room to open the file it is compared at the next flush."""
        size = entries * self.entry.size
        del self.data[size:]
        if self._anew:
            return
        if self._written > size or (self._disk.size(self.path) or 0) > size:
            try:
                self._open().truncate(size)
                self._written = size
            except DiskFull:
                self._anew = True

    def clear(self) -> None:
        """Forget all entries, in memory and on disk."""
        self.make_anew()
        if self._disk.size(self.path):
            self._open().truncate(0)
        self._anew = False

    def unload(self) -> None:
        """Give the memory back; the next use loads the file again. What finds no room in the file stays in memory."""
        try:
            if self.kept is not None and (len(self.kept) > self._written or self._anew):
                self.flush()
            self.kept = None
        except DiskFull:
            pass
        self.close()

    def close(self) -> None:
        """Give the descriptor back."""
        if self._file is not None:
            self._file.close()

    def rename(self, path: str) -> None:
        """The file's new name; a file that was never made needs none."""
        if self._disk.size(self.path) is not None:
            self._disk.rename(self.path, path)
        self.close()
        self._file = None
        self.path = path

    def remove(self, *, later: bool = False) -> None:
        """Delete the file, with ``later`` in the background."""
        self.close()
        self._file = None
        self.kept = None
        self._anew = False
        self._disk.remove(self.path, later=later)


class OffsetIndex(_IndexFile):
    """Sparse map from offset to position."""

    entry = _OFFSET_ENTRY

    def append(self, offset: int, position: int) -> None:
        """Add the entry of a batch that follows all indexed ones; the caller rolls before 32 bits end."""
        relative = offset - self.base_offset
        assert 0 <= relative <= _INT32_MAX
        self._append(_OFFSET_ENTRY.pack(relative, position))

    def extend(self, entries: Sequence[tuple[int, int, int, int]]) -> None:
        """As :meth:`append`, for several that begin with offset and position."""
        base, packed = self.base_offset, bytearray()
        assert 0 <= entries[0][0] - base <= entries[-1][0] - base <= _INT32_MAX
        for offset, position, _, _ in entries:
            packed += _pack_offset(offset - base, position)
        self._append(packed)

    def __getitem__(self, index: int) -> OffsetEntry:
        relative, position = _OFFSET_ENTRY.unpack_from(self.data, index * 8)
        return OffsetEntry(self.base_offset + relative, position)

    def last(self) -> OffsetEntry:
        """The last entry; the segment's start if there is none."""
        packed = self._last_packed()
        if packed is None:
            return OffsetEntry(self.base_offset, 0)
        relative, position = _OFFSET_ENTRY.unpack(packed)
        return OffsetEntry(self.base_offset + relative, position)

    def floor(self, offset: int) -> OffsetEntry:
        """The last entry with an offset at most ``offset``; the segment's start if there is none."""
        return self._floor(offset - self.base_offset, 0)

    def floor_position(self, position: int) -> OffsetEntry:
        """The last entry with a position at most ``position``."""
        return self._floor(position, 4)

    def _floor(self, wanted: int, field: int) -> OffsetEntry:
        kept = self.kept
        return _entry(OffsetEntry, index_floor(self.data if kept is None else kept, self.base_offset, field, wanted))

    def truncate(self, offset: int) -> None:
        """Drop entries at or above ``offset``."""
        count = len(self)
        while count and self[count - 1].offset >= offset:
            count -= 1
        self._cut(count)

    def plausible(self, log_size: int, end_offset: int) -> bool:
        """A cheap look: whole entries, the last one inside the segment."""
        size = self._disk.size(self.path)
        if size is None or size % 8:
            return False
        count = len(self)
        if not count:
            return True
        last = self[count - 1]
        return self.base_offset <= last.offset < end_offset and 0 <= last.position < log_size


class TimeIndex(_IndexFile):
    """Sparse map from timestamp to offset."""

    entry = _TIME_ENTRY

    def newest(self) -> int:
        """The last entry's timestamp, -1 if there is none."""
        data = self.kept
        if not data:
            return self.last().timestamp
        timestamp: int = _TIME_ENTRY.unpack_from(data, len(data) - 12)[0]
        return timestamp

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry if its timestamp is larger than the last one's; otherwise nothing."""
        if timestamp > self.newest():
            self._append(_TIME_ENTRY.pack(timestamp, offset - self.base_offset))

    def __getitem__(self, index: int) -> TimeEntry:
        timestamp, relative = _TIME_ENTRY.unpack_from(self.data, index * 12)
        return TimeEntry(timestamp, self.base_offset + relative)

    def last(self) -> TimeEntry:
        """The last entry; (-1, base offset) if there is none."""
        packed = self._last_packed()
        if packed is None:
            return TimeEntry(-1, self.base_offset)
        timestamp, relative = _TIME_ENTRY.unpack(packed)
        return TimeEntry(timestamp, self.base_offset + relative)

    def floor(self, timestamp: int) -> TimeEntry:
        """The last entry with a timestamp at most ``timestamp``; (-1, base offset) if there is none."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) >> 1
            if self[middle].timestamp <= timestamp:
                low = middle + 1
            else:
                high = middle
        return self[low - 1] if low else TimeEntry(-1, self.base_offset)

    def truncate(self, offset: int) -> None:
        """Drop entries at or above ``offset``."""
        count = len(self)
        while count and self[count - 1].offset >= offset:
            count -= 1
        self._cut(count)

    def plausible(self, end_offset: int) -> bool:
        """A cheap look: whole entries, the last one inside the segment and not below the first."""
        size = self._disk.size(self.path)
        if size is None or size % 12:
            return False
        count = len(self)
        if count and not self.base_offset <= self[count - 1].offset < end_offset:
            return False
        return not count or (
            self[0].timestamp <= self[count - 1].timestamp and self[count - 1].offset >= self[0].offset
        )


class TransactionIndex(_IndexFile):
    """The aborted transactions whose marker lies in the segment. The file exists only if there are any."""

    entry = _TXN_ENTRY

    def append(self, aborted: AbortedTxn) -> None:
        """Add one; markers come in log order."""
        self._append(_TXN_ENTRY.pack(TXN_INDEX_VERSION, *aborted))

    def __iter__(self) -> Iterator[AbortedTxn]:
        yield from unpack_aborted(self.data)

    def truncate(self, offset: int) -> None:
        """Drop the transactions whose marker is at or above ``offset``."""
        kept = [entry for entry in self if entry.last_offset < offset]
        self._cut(len(kept))

    def flush(self, *, sync: bool = False) -> None:
        """Write new entries; an index without any has no file."""
        if self._anew and not self.kept:
            self._compare(bytearray(), durable=sync)
        if self.kept or self._file is not None or (sync and self.kept is None):
            super().flush(sync=sync)

    def plausible(self, end_offset: int) -> bool:
        """Whether every entry has a known version and its marker in the segment."""
        size = self._disk.size(self.path)
        if size is None:
            return True
        if size % self.entry.size:
            return False
        return all(
            version == TXN_INDEX_VERSION and self.base_offset <= last < end_offset and first <= last
            for version, _, first, last, _ in _TXN_ENTRY.iter_unpack(bytes(self.data))
        )


def unpack_aborted(data: Buffer) -> Iterator[AbortedTxn]:
    """The entries of a transaction index's bytes; a torn last one is left out."""
    whole = len(data) - len(data) % _TXN_ENTRY.size
    for _, *fields in _TXN_ENTRY.iter_unpack(bytes(memoryview(data)[:whole])):
        yield AbortedTxn(*fields)
