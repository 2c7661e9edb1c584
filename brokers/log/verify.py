"""Check the files of a partition that no broker needs to be stopped for: checksums, order, indexes, epochs, snapshots.

Nothing is changed, and no file is trusted to explain another: every batch is read, and what the other files say is
compared with the batches. A broker may be appending meanwhile, so what is behind the last whole batch of the newest
segment is not counted as damage.

Source: the formats of ``brokers.log``, which are Kafka's.

Reads closed segments again, slowly, and checks each batch: damage is found while other replicas are whole.

The disk's worker reads, through descriptors of its own, at most ``log.verify.bytes.per.second``; the loop's thread
chooses what comes next, and decides whether what was found still counts. Nothing is repaired: docs/reliability.md says
how a whole copy is got from another replica.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import re
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fleetlog._native.batch import HEADER_SIZE, BatchHeader, decode_records, parse_header, validate_batch
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log.disk import checkpoints
from fleetlog.brokers.log.disk.background import PendingWork
from fleetlog.brokers.log.disk.checkpoints import DamagedFile
from fleetlog.brokers.log.disk.failures import DiskError
from fleetlog.brokers.log.disk.files import DiskPort
from fleetlog.brokers.log.epochs import UNDEFINED_EPOCH, EpochCache
from fleetlog.brokers.log.indexes import TXN_INDEX_VERSION, AbortedTxn
from fleetlog.brokers.log.log import Log
from fleetlog.brokers.log.producers.snapshots import SNAPSHOT_SUFFIX, DamagedSnapshot, decode_snapshot
from fleetlog.brokers.log.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_stem,
)
from fleetlog.brokers.log.validation import read_marker
from fleetlog.wire.compression import CodecError, decompress
from fleetlog.wire.types import NO_PRODUCER_ID, TopicPartition

logger = logging.getLogger(__name__)

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


MOST_SEGMENTS = 64
"""Of one round: small ones cost more than their bytes."""
MOST_LOGS = 500
"""That are looked at in one second: a broker may have thousands without a closed segment."""
TOLD = 3
"""Damaged segments that are named as troubles; the rest is counted."""
_STOP_S = 5.0


class DamagedSegment(NamedTuple):
    """Where the first wrong batch of a closed segment is, and what is wrong."""

    path: str
    position: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"segment {self.path} is damaged at offset {self.offset}, position {self.position}: {self.reason}"


class _Candidate(NamedTuple):
    log: Log
    segment: Segment
    end: int
    """The first offset that is not in it."""
    size: int
    cuts: int

    @property
    def still_counts(self) -> bool:
        """Whether the file is what it was when it was chosen: not cut, compacted, deleted."""
        log, segment = self.log, self.segment
        return not log.offline and log.cuts == self.cuts and segment.size == self.size and segment in log.segments


class _Round:
    """Some segments, on the worker's thread. ``found`` has a row for each that is done."""

    def __init__(self, disk: DiskPort, candidates: list[_Candidate]) -> None:
        self.disk = disk
        self.found: list[tuple[_Candidate, DamagedSegment | None]] = []
        self.handled_bytes = 0
        self.ended = self.stopped = False
        self.pending: PendingWork | None = None
        self.steps = self._run(candidates)

    def advance(self, budget_bytes: int) -> None:
        """Go on until that many bytes are read, or nothing is left."""
        while self.handled_bytes < budget_bytes and not self.stopped:
            size = next(self.steps, None)
            if size is None:
                self.ended = True
                return
            self.handled_bytes += size

    def _run(self, candidates: list[_Candidate]) -> Iterator[int]:
        for one in candidates:
            base, directory = one.segment.base_offset, one.segment.directory
            path = one.segment.log.path
            offset, position = base, 0
            try:
                own = Segment(self.disk, directory, base, create=False, now_ms=0)
                try:
                    for start, data, batches in own.chunks(0, one.size):
                        for at, header in batches:
                            position = start + at
                            validate_batch(data, at)
                            if header.base_offset < offset or header.last_offset >= one.end:
                                raise CorruptBatch(f"offset {header.base_offset} is not of {offset} to {one.end}", at)
                            offset = header.last_offset + 1
                            position += header.size
                        yield len(data)
                    if position < one.size:
                        raise CorruptBatch("a closed segment ends in half a batch", position)
                finally:
                    own.unload()
            except CorruptBatch as wrong:
                self.found.append((one, DamagedSegment(path, position, offset, wrong.reason)))
            except DiskError as wrong:
                self.found.append((one, DamagedSegment(path, position, offset, f"it cannot be read: {wrong}")))
            else:
                self.found.append((one, None))


class BackgroundVerify:
    """One pass after the other over all closed segments, while the rate is not 0. Loop thread only."""

    def __init__(self, disk: DiskPort, logs: Mapping[TopicPartition, Log], bytes_per_second: Callable[[], int]) -> None:
        self._disk = disk
        self._work_disk: DiskPort | None = None
        self._logs = logs
        self._rate = bytes_per_second
        self.round: _Round | None = None
        self.queue: deque[tuple[TopicPartition, int]] = deque()
        """Partitions of the pass, and the base offset from which they are left to be read."""
        self.damaged: dict[tuple[TopicPartition, int], DamagedSegment] = {}
        """By partition and base offset: until a later pass finds the segment whole, or gone."""
        self.bytes = self.segments = self.failures = self.passes = 0
        """Read, checked, and found damaged since the start; passes that ended."""

    def troubles(self) -> list[str]:
        """What is damaged, as texts; empty if nothing is known to be."""
        more = len(self.damaged) - TOLD
        first = [str(one) for one in islice(self.damaged.values(), TOLD)]
        return [*first, f"{more} more segments are damaged"] if more > 0 else first

    def step(self) -> None:
        """Go on by what one second may cost; call it about every second. Off, it does nothing."""
        rate, under_way = self._rate(), self.round
        if under_way is not None and under_way.pending is not None:
            if not under_way.pending.done:
                return
            self._take(under_way)
        if not rate:
            self.round = None
            self.queue.clear()
            return
        if self.round is None:
            chosen = self._choose(rate)
            if chosen:
                if self._work_disk is None:
                    self._work_disk = self._disk.for_work()
                self.round = _Round(self._work_disk, chosen)
        if self.round is not None:
            current = self.round
            current.handled_bytes = 0
            current.pending = self._disk.work_later(lambda: current.advance(rate))

    def close(self) -> None:
        """Stop; returns when the worker reads no more."""
        under_way, self.round = self.round, None
        if under_way is not None:
            under_way.stopped = True
            if under_way.pending is not None and not under_way.pending.wait(_STOP_S):
                logger.warning("checking segments in the background does not stop")

    def _choose(self, most_bytes: int) -> list[_Candidate]:
        """The next closed segments, as many as the rate takes; a new pass begins where the last one has ended."""
        if not self.queue:
            self.queue.extend((tp, -1) for tp in sorted(self._logs))
        chosen: list[_Candidate] = []
        size = 0
        looked = 0
        while self.queue and size < most_bytes and len(chosen) < MOST_SEGMENTS and looked < MOST_LOGS:
            looked += 1
            tp, after = self.queue.popleft()
            log = self._logs.get(tp)
            if log is None or log.offline:
                self._forget(tp, set())
                continue
            closed = [one for one in log.segments if one is not log.segments.active]
            if after < 0:
                self._forget(tp, {one.base_offset for one in closed})
            for index, segment in enumerate(closed):
                if segment.base_offset <= after:
                    continue
                if size >= most_bytes or len(chosen) >= MOST_SEGMENTS:
                    self.queue.appendleft((tp, closed[index - 1].base_offset if index else -1))
                    break
                end = log.segments.end_of(index, log.log_end_offset)
                chosen.append(_Candidate(log, segment, end, segment.size, log.cuts))
                size += segment.size
        if not self.queue:
            self.passes += 1
        return chosen

    def _forget(self, tp: TopicPartition, bases: set[int]) -> None:
        """Damage of segments that are gone."""
        for known in [key for key in self.damaged if key[0] == tp and key[1] not in bases]:
            del self.damaged[known]

    def _take(self, under_way: _Round) -> None:
        pending, under_way.pending = under_way.pending, None
        assert pending is not None, "its work has ended"
        self.bytes += under_way.handled_bytes
        for candidate, damage in under_way.found:
            key = candidate.log.topic_partition, candidate.segment.base_offset
            if not candidate.still_counts:
                continue  # it was cut, compacted or deleted meanwhile
            self.segments += 1
            if damage is None:
                self.damaged.pop(key, None)
                continue
            if self.damaged.get(key) != damage:  # each pass finds it again
                self.failures += 1
                self.damaged[key] = damage
                logger.error("%s; get a whole copy from another replica: docs/reliability.md", damage)
        under_way.found.clear()
        if pending.error is not None:  # a bug: the next round begins behind these segments
            logger.error("checking segments in the background failed", exc_info=pending.error)
        if under_way.ended or pending.error is not None:
            self.round = None
