"""Check the files of a partition that no broker needs to be stopped for: checksums, order, indexes, epochs, snapshots.

Nothing is changed, and no file is trusted to explain another: every batch is read, and what the other files say is
compared with the batches. A broker may be appending meanwhile, so what is behind the last whole batch of the newest
segment is not counted as damage.

Source: the formats of ``brokers.log``, which are Kafka's.
"""

from __future__ import annotations

import itertools
import mmap
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fleetlog._native.batch import HEADER_SIZE, BatchHeader, decode_records, parse_header, validate_batch
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log.disk import checkpoints
from fleetlog.brokers.log.disk.checkpoints import DamagedFile
from fleetlog.brokers.log.epochs import UNDEFINED_EPOCH, EpochCache
from fleetlog.brokers.log.indexes import TXN_INDEX_VERSION, AbortedTxn
from fleetlog.brokers.log.producers.snapshots import SNAPSHOT_SUFFIX, DamagedSnapshot, decode_snapshot
from fleetlog.brokers.log.segment import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, file_stem
from fleetlog.brokers.log.validation import read_marker
from fleetlog.wire.compression import CodecError, decompress
from fleetlog.wire.types import NO_PRODUCER_ID, TopicPartition

MAX_PROBLEMS = 100
"""Of one partition; what comes after them is counted only."""
MAX_DECOMPRESSED_BYTES = 1 << 30
_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,10})")
_SEGMENT = re.compile(r"(\d{20})" + re.escape(LOG_SUFFIX))
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TXN_ENTRY = struct.Struct(">hqqqq")


class Problem(NamedTuple):
    """One contradiction: the file, the offset it concerns (-1: the file as a whole), and what is wrong."""

    file: str
    offset: int
    what: str


@dataclass
class Verified:
    """What was found in the directory of one partition."""

    partition: TopicPartition
    directory: str
    segments: int = 0
    batches: int = 0
    size: int = 0
    """Bytes of batches that were read."""
    start: int = -1
    """The first offset there is a segment for, -1: there is none."""
    end: int = -1
    """The offset behind the last whole batch."""
    unfinished: int = 0
    """Bytes behind the last whole batch of the newest segment: being written, or cut off by the next start."""
    problems: list[Problem] = field(default_factory=list)
    more: int = 0
    """Problems that are not listed."""

    def add(self, file: Path, offset: int, what: str) -> None:
        """One more problem."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(str(file), offset, what))
        else:
            self.more += 1


def partition_of(directory: Path) -> TopicPartition | None:
    """The partition whose directory has this name; None if no partition's has."""
    match = _PARTITION.fullmatch(directory.name)
    return TopicPartition(match[1], int(match[2])) if match else None


def verify_partition(
    directory: Path, *, records: bool = False, progress: Callable[[int], None] = lambda read: None
) -> Verified:
    """Read all files of a partition's directory. ``records``: decompress and decode every record, too.

    ``progress`` is called with the bytes read since the last call. Raises OSError; ValueError if the directory's name
    is not ``TOPIC-PARTITION``.
    """
    partition = partition_of(directory)
    if partition is None:
        raise ValueError(f"{directory} is not a partition's directory (TOPIC-PARTITION)")
    report = Verified(partition, str(directory))
    _Verifier(directory, report, records, progress).run()
    return report


class _Verifier:
    """One partition, segment by segment; what reaches over segments is kept here."""

    def __init__(self, directory: Path, found: Verified, records: bool, progress: Callable[[int], None]) -> None:
        self._directory = directory
        self._found = found
        self._records = records
        self._progress = progress
        self._epochs: EpochCache | None = None
        self._epoch = -1
        self._open: dict[int, int] = {}
        """First offset of each transaction that is open where the reading is, by producer id."""
        self._holes_allowed = _is_compacted(directory.parent, found.partition)
        self._vanished = False
        """Whether a segment was deleted while the directory was read, so that the next one need not follow."""
        self._indexed: set[tuple[int, int]] = set()
        """Producer id and marker's offset of the aborted transactions in the segment's index."""

    def run(self) -> None:
        """Everything there is."""
        bases = sorted(int(match[1]) for file in self._directory.iterdir() if (match := _SEGMENT.fullmatch(file.name)))
        self._small_files()
        if bases:
            self._found.start = self._found.end = bases[0]
        for base in bases:
            self._segment(base, newest=base == bases[-1])

    # ---- the files beside the segments

    def _small_files(self) -> None:
        epochs = self._directory / checkpoints.LEADER_EPOCH_CHECKPOINT
        self._checked(epochs, self._load_epochs)
        self._checked(self._directory / checkpoints.PARTITION_METADATA, checkpoints.decode_partition_metadata)
        for snapshot in sorted(self._directory.glob("*" + SNAPSHOT_SUFFIX)):
            self._checked(snapshot, decode_snapshot)

    def _load_epochs(self, data: bytes) -> None:
        self._epochs = EpochCache.from_bytes(data, checkpoints.LEADER_EPOCH_CHECKPOINT)

    def _checked(self, file: Path, decode: Callable[[bytes], object]) -> None:
        try:
            decode(file.read_bytes())
        except FileNotFoundError:
            return
        except (DamagedFile, DamagedSnapshot) as wrong:
            self._found.add(file, -1, str(wrong))

    # ---- segments

    def _segment(self, base: int, *, newest: bool) -> None:
        file = self._directory / (file_stem(base) + LOG_SUFFIX)
        report = self._found
        try:
            stream = file.open("rb")
        except FileNotFoundError:
            self._vanished = True
            return
        with stream:
            report.segments += 1
            if base < report.end:
                report.add(
                    file, base, f"the segment begins at {base}, below the end of the one before it, {report.end}"
                )
            elif base > report.end and not self._holes_allowed and not self._vanished:
                report.add(file, base, f"offsets {report.end} to {base - 1} are in no segment")
            report.end = max(report.end, base)
            self._vanished = False
            size = file.stat().st_size
            if not size:
                return
            with mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                self._batches(file, base, view, newest)

    def _batches(self, file: Path, base: int, view: memoryview, newest: bool) -> None:
        report = self._found
        indexes = _Indexes(file, base, report)
        self._indexed = {(entry.producer_id, entry.last_offset) for entry in indexes.aborted}
        position = reported = 0
        damaged = ""
        while len(view) - position >= HEADER_SIZE and any(view[position : position + HEADER_SIZE]):
            try:
                header = parse_header(view, position)
                if header.size > len(view) - position:
                    break
                validate_batch(view, position)
            except CorruptBatch as wrong:
                damaged = wrong.reason
                break
            self._batch(file, base, view, position, header, newest)
            indexes.passed(position, header)
            position += header.size
            if position - reported >= 1 << 20:
                self._progress(position - reported)
                reported = position
        self._progress(len(view) - reported)
        report.size += position
        left = len(view) - position
        if damaged:
            report.add(file, report.end, f"position {position}: {damaged}; {left} bytes from there on were not read")
        elif newest:
            report.unfinished = left if any(view[position : position + HEADER_SIZE]) else 0
        elif left:
            report.add(
                file, report.end, f"position {position}: {left} bytes are not a batch, and newer segments follow"
            )
        if not damaged:
            indexes.ended(newest)

    def _batch(self, file: Path, base: int, view: memoryview, position: int, header: BatchHeader, newest: bool) -> None:
        report = self._found
        first, last = header.base_offset, header.last_offset
        report.batches += 1
        if first < max(report.end, base) or last < first:
            report.add(file, first, f"position {position}: batch {first} to {last}, where offset {report.end} is next")
        elif first > report.end and not self._holes_allowed:
            report.add(file, first, f"position {position}: offsets {report.end} to {first - 1} are missing")
        self._epoch_of(file, header)
        if header.producer_id != NO_PRODUCER_ID and header.is_transactional:
            self._transactional(file, view, position, header, newest)
        if self._records:
            wrong = _wrong_records(view, position, header)
            if wrong:
                report.add(file, first, f"position {position}: {wrong}")
        report.end = max(report.end, last + 1)

    def _epoch_of(self, file: Path, header: BatchHeader) -> None:
        epoch, first = header.partition_leader_epoch, header.base_offset
        if epoch < self._epoch:
            self._found.add(file, first, f"leader epoch {epoch} follows {self._epoch}")
        self._epoch = max(self._epoch, epoch)
        if self._epochs is None or epoch < 0 or (said := self._epochs.epoch_at(first)) == epoch:
            return
        if said != UNDEFINED_EPOCH or not self._epochs.entries:  # what is below the log's start has no entry
            name = checkpoints.LEADER_EPOCH_CHECKPOINT
            self._found.add(file.parent / name, first, f"says leader epoch {said}, the batch says {epoch}")
            self._epochs = None  # one line is enough: all that follow would say the same

    def _transactional(self, file: Path, view: memoryview, position: int, header: BatchHeader, newest: bool) -> None:
        """Follow each producer's transaction; an aborted one with records must be in the index of its marker.

        The newest segment's entries may still be in a broker's memory.
        """
        producer, offset = header.producer_id, header.base_offset
        if not header.is_control:
            self._open.setdefault(producer, offset)
            return
        first = self._open.pop(producer, None)
        try:
            marker = read_marker(view, position, header)
        except CorruptBatch as wrong:
            self._found.add(file, offset, f"position {position}: {wrong.reason}")
            return
        aborted = marker is not None and not marker.commit and first is not None
        if aborted and not newest and (producer, offset) not in self._indexed:
            index = file.with_suffix(TXN_INDEX_SUFFIX)
            self._found.add(index, offset, f"lacks the transaction of producer {producer} from offset {first}")


class _Indexes:
    """The offset and time index of one segment, compared with the batches as these pass."""

    def __init__(self, file: Path, base: int, found: Verified) -> None:
        self._found = found
        self._base = base
        self._files = file.with_suffix(OFFSET_INDEX_SUFFIX), file.with_suffix(TIME_INDEX_SUFFIX)
        self._offsets = _entries(self._files[0], _OFFSET_ENTRY, found)
        self._times = _entries(self._files[1], _TIME_ENTRY, found)
        self._next_offset = next(self._offsets, None)
        self._next_time = next(self._times, None)
        self._newest = -1
        self.aborted = list(_aborted(file.with_suffix(TXN_INDEX_SUFFIX), found))
        """The entries of the transaction index."""

    def passed(self, position: int, header: BatchHeader) -> None:
        """One more batch of the segment."""
        while self._next_offset is not None and self._base + self._next_offset[0] <= header.last_offset:
            offset, at = self._base + self._next_offset[0], self._next_offset[1]
            if at != position or offset < header.base_offset:
                self._found.add(
                    self._files[0], offset, f"says position {at}; the batch {header.base_offset} to"
                    f" {header.last_offset} is at {position}"
                )  # fmt: skip
            self._next_offset = self._after(self._offsets, self._files[0], offset, 0)
        self._newest = max(self._newest, header.max_timestamp)
        while self._next_time is not None and self._base + self._next_time[1] <= header.last_offset:
            timestamp, offset = self._next_time[0], self._base + self._next_time[1]
            if timestamp != self._newest:
                self._found.add(
                    self._files[1], offset, f"says timestamp {timestamp}; the largest up to there is {self._newest}"
                )
            self._next_time = self._after(self._times, self._files[1], offset, 1)

    def _after(
        self, entries: Iterator[tuple[int, ...]], file: Path, offset: int, column: int
    ) -> tuple[int, ...] | None:
        """The next entry; none, if it is not behind the one before."""
        entry = next(entries, None)
        if entry is not None and self._base + entry[column] <= offset:
            self._found.add(file, offset, f"is not in order: offset {self._base + entry[column]} follows {offset}")
            return None
        return entry

    def ended(self, newest: bool) -> None:
        """All batches have passed. A broker may have appended to the newest segment since its size was read."""
        for file, entry, column in ((self._files[0], self._next_offset, 0), (self._files[1], self._next_time, 1)):
            if entry is not None and not newest:
                self._found.add(file, self._base + entry[column], "is behind the segment's last batch")


def _entries(file: Path, entry: struct.Struct, found: Verified) -> Iterator[tuple[int, ...]]:
    """The entries of an index; zeros at its end are room that was made beforehand."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return
    whole = len(data) - len(data) % entry.size
    if whole < len(data):
        found.add(file, -1, f"{len(data) - whole} bytes at the end are not a whole entry")
    for number, values in enumerate(entry.iter_unpack(data[:whole])):
        if number and not any(values):
            return
        yield values


def _aborted(file: Path, found: Verified) -> Iterator[AbortedTxn]:
    for version, *fields in _entries(file, _TXN_ENTRY, found):
        entry = AbortedTxn(*fields)
        if version != TXN_INDEX_VERSION or not 0 <= entry.first_offset <= entry.last_offset:
            found.add(file, entry.last_offset, f"impossible entry: version {version}, {entry}")
            return
        yield entry


def _wrong_records(view: memoryview, position: int, header: BatchHeader) -> str:
    """What is wrong with the records of a batch whose checksum is right; empty if nothing is."""
    payload: bytes | bytearray | memoryview = view[position + HEADER_SIZE : position + header.size]
    try:
        if header.codec:
            payload = decompress(header.codec, payload, MAX_DECOMPRESSED_BYTES)
        records = decode_records(payload, header)
    except (CodecError, CorruptBatch) as wrong:
        return str(wrong)
    offsets = [record.offset for record in records]
    if len(offsets) != header.record_count:
        return f"{len(offsets)} records, where the header says {header.record_count}"
    if offsets and not (header.base_offset <= offsets[0] and offsets[-1] <= header.last_offset):
        return f"records {offsets[0]} to {offsets[-1]} in the batch {header.base_offset} to {header.last_offset}"
    if any(one >= two for one, two in itertools.pairwise(offsets)):
        return "offsets of its records do not rise"
    return ""


def _is_compacted(data_directory: Path, partition: TopicPartition) -> bool:
    """Whether a cleaner has been here, so that offsets may be missing."""
    try:
        data = (data_directory / checkpoints.CLEANER_CHECKPOINT).read_bytes()
        return partition in checkpoints.decode_offsets(data, checkpoints.CLEANER_CHECKPOINT)
    except (OSError, DamagedFile):
        return False
