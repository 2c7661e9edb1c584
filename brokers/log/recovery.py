"""From the files of a partition's directory to a log's state; the same after a clean stop, a kill and a power cut.

Order as Kafka's: leftovers of unfinished deletions and compactions first, then the segments, then, unless the broker
stopped cleanly or the log ends at its recovery point, every batch from there on is checked (checksum included) and the
log is cut at the first that is wrong. Indexes, producer state and leader epochs above that point are made anew from the
batches themselves, so a recovered directory equals one rebuilt from scratch, and recovering twice changes nothing.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from itertools import islice

from fleetlog._native.batch import HEADER_SIZE, Admitted, BatchHeader, parse_header, validate_batch
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log.disk.checkpoints import LEADER_EPOCH_CHECKPOINT, DamagedFile
from fleetlog.brokers.log.disk.failures import DiskFull
from fleetlog.brokers.log.disk.files import DiskPort
from fleetlog.brokers.log.epochs import EpochCache
from fleetlog.brokers.log.positions import DEDUP_FILE, decode_dedup_file
from fleetlog.brokers.log.producers.snapshots import SNAPSHOT_SUFFIX, snapshot_path, snapshots_among
from fleetlog.brokers.log.producers.state import ProducerState, admitted_of
from fleetlog.brokers.log.recovery_report import RecoveryReport
from fleetlog.brokers.log.replay import apply_batches, restore_producers
from fleetlog.brokers.log.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_stem,
)
from fleetlog.brokers.log.segments import Segments
from fleetlog.wire.compression import CodecError
from fleetlog.wire.types import TopicPartition

logger = logging.getLogger(__name__)

_SEGMENT_FILE = re.compile(r"(\d{20})(\.[a-z]+)")
_READ_BYTES = 1024 * 1024
_SMALL_BYTES = 64 * 1024
_INT32_MAX = 2**31 - 1


@dataclass(slots=True)
class LoadedLog:
    """A log's state, read from its directory."""

    segments: Segments
    epochs: EpochCache
    producers: ProducerState
    log_start_offset: int
    log_end_offset: int
    report: RecoveryReport


def load_log(
    disk: DiskPort,
    directory: str,
    partition: TopicPartition,
    producers: ProducerState,
    *,
    now_ms: int,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    index_interval_bytes: int,
    may_have_holes: bool,
    point_is_known: bool = True,
) -> LoadedLog:
    """Read (and, unless ``clean``, check and repair) a partition's directory.

    ``recovery_point`` is the offset below which everything was fsynced; ``log_start_offset`` comes from its checkpoint.
    ``may_have_holes`` says that compaction may have taken offsets out; elsewhere a missing offset is a lost write, and
    the log ends before it. Without ``point_is_known`` its point was lost: then none of it may have been above it.
    Raises DiskFull or DiskFailed.
    """
    report = RecoveryReport(partition, clean)
    names = disk.names(directory)
    if not names:
        disk.make_directory(directory)
    swapped: set[int] = set()
    if any(map(_is_unfinished, names)):
        swapped = _finish_what_was_begun(disk, directory, names, report)
        names = disk.names(directory)
    if DEDUP_FILE in names:
        producers.positions = decode_dedup_file(disk.read(f"{directory}/{DEDUP_FILE}") or b"")
    segments = _open_segments(disk, directory, names, report, now_ms)
    if not len(segments):
        segments.add(Segment(disk, directory, max(0, log_start_offset), create=True, now_ms=now_ms))
    epochs = _load_epochs(disk, directory, names, segments, report)
    if swapped:  # their indexes are gone: those below the recovery point are made anew, the others scanned
        clean = False
    loader = _Loader(
        disk, directory, segments, epochs, producers, report, now_ms, index_interval_bytes, may_have_holes,
        point_is_known, snapshots_among(names),
    )  # fmt: skip
    end: int | None = None
    if clean:
        end = _clean_end(segments, report)
    else:
        loader.repeat_cut(recovery_point)
        loader.check_indexes(recovery_point)
        if loader.stands_at(recovery_point):
            end, report.clean = recovery_point, True
    if end is None:
        end = loader.recover(segments.active.base_offset if clean else recovery_point, recovery_point)
    else:
        loader.load_producers(end)
    start = max(log_start_offset, segments.first.base_offset)
    if start > end:
        report.notes.append(f"the log ended at {end}, before its start {start}: it starts anew, empty")
        for segment in segments:
            segments.remove(segment)
            segment.remove()
        segments.add(Segment(disk, directory, start, create=True, now_ms=now_ms))
        producers.clear(start)
        epochs.clear()  # of records that are not here: a leader whose epochs ended before would be no leader to follow
        loader.drop_snapshots(-1, None)
        end = start
    epochs.truncate_from_end(end)
    epochs.truncate_from_start(start)
    loader.remove_stray_snapshots(end)
    segments.active.unload()  # opened again with its next use: most partitions of a large fleet sleep
    return LoadedLog(segments, epochs, producers, start, end, report)


def _is_unfinished(name: str) -> bool:
    return name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX, ".tmp"))


def _finish_what_was_begun(disk: DiskPort, directory: str, names: list[str], report: RecoveryReport) -> set[int]:
    """Drop half-made and half-deleted files, finish swaps. Returns the base offsets of segments swapped in now."""
    swaps = {int(name[:20]) for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)}
    for name in names:
        # A swap without its log file was not complete: the log is renamed last. Indexes are made anew in any case.
        if _is_unfinished(name) and not name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            disk.remove(f"{directory}/{name}")
            report.files_removed.append(name)
    for base in sorted(swaps):
        path = f"{directory}/{file_stem(base)}{LOG_SUFFIX}"
        swap = Segment(disk, directory, base, create=False, now_ms=0, suffix=SWAP_SUFFIX)
        last = base
        try:
            for _, header in swap.headers():
                last = max(last, header.last_offset)
        except CorruptBatch:
            pass  # it was fsynced before it got its name; what is wrong now, recovery finds
        swap.log.close()
        for name in disk.names(directory):
            match = _SEGMENT_FILE.fullmatch(name)
            if match and base <= int(match[1]) <= last and match[2] != SNAPSHOT_SUFFIX:
                disk.remove(f"{directory}/{name}")
        disk.rename(path + SWAP_SUFFIX, path)
        report.swaps_completed += 1
    return swaps


def _open_segments(disk: DiskPort, directory: str, names: list[str], report: RecoveryReport, now_ms: int) -> Segments:
    """The segments there are; indexes without a log are removed."""
    segments = Segments()
    indexes: list[tuple[int, str]] = []
    bases: set[int] = set()
    for name in names:
        match = _SEGMENT_FILE.fullmatch(name)
        if match is None:
            continue
        base, suffix = int(match[1]), match[2]
        if suffix == LOG_SUFFIX:
            segments.add(Segment(disk, directory, base, create=False, now_ms=now_ms))
            bases.add(base)
        elif suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            indexes.append((base, name))
    for base, name in indexes:
        if base not in bases:
            disk.remove(f"{directory}/{name}")
            report.files_removed.append(name)
    return segments


def _load_epochs(
    disk: DiskPort, directory: str, names: list[str], segments: Segments, report: RecoveryReport
) -> EpochCache:
    path = f"{directory}/{LEADER_EPOCH_CHECKPOINT}"
    data = disk.read(path) if LEADER_EPOCH_CHECKPOINT in names else None
    if data is not None:
        try:
            return EpochCache.from_bytes(data, path)
        except DamagedFile as wrong:
            report.notes.append(f"leader epochs made anew: {wrong}")
    epochs = EpochCache()
    try:
        for segment in segments:
            for _, header in segment.headers():
                if header.partition_leader_epoch > epochs.latest:
                    epochs.assign(header.partition_leader_epoch, header.base_offset)
    except CorruptBatch:
        pass  # the rest is recovery's
    return epochs


def _clean_end(segments: Segments, report: RecoveryReport) -> int | None:
    """The end of a log that was closed in order; None if the active segment turns out to be damaged after all."""
    end, wrong = _end_by_headers(segments.active)
    if wrong:
        report.notes.append(f"not as clean as the marker says: {wrong}")
        return None
    return end


def _end_by_headers(active: Segment) -> tuple[int, str]:
    """The offset after the last batch, and what is wrong with the active segment if its headers show that."""
    end, position = active.base_offset, 0
    if not active.size:
        return end, ""
    try:
        # a small file is read at once, without asking the index where to begin
        start = active.offset_index.last().position if active.size > _SMALL_BYTES else 0
        for position, header in active.headers(start):
            end = header.last_offset + 1
            position += header.size
    except CorruptBatch as wrong:
        return end, wrong.reason
    return end, "" if position == active.size else "the active segment ends in half a batch"


class _Loader:
    """The parts of loading that share everything."""

    def __init__(
        self,
        disk: DiskPort,
        directory: str,
        segments: Segments,
        epochs: EpochCache,
        producers: ProducerState,
        report: RecoveryReport,
        now_ms: int,
        index_interval_bytes: int,
        may_have_holes: bool,
        point_is_known: bool,
        snapshots: list[int],
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.segments = segments
        self.epochs = epochs
        self.producers = producers
        self.report = report
        self.now_ms = now_ms
        self.index_interval_bytes = index_interval_bytes
        self.may_have_holes = may_have_holes
        self.point_is_known = point_is_known
        self.snapshots = snapshots
        self._epoch_reached = -1
        """The newest epoch of a batch so far, while the end of the log is scanned."""

    def load_producers(self, end: int) -> None:
        """State after a clean stop: the last snapshot is usually all of it."""
        self._restore_producers(end)

    def _restore_producers(self, end: int) -> None:
        restore_producers(self.disk, self.directory, self.segments, self.producers, end, self.now_ms, self.snapshots)

    def repeat_cut(self, recovery_point: int) -> None:
        """Cut the segment before the recovery point there once more, if the next one begins there.

        A log cut at its recovery point may continue in a new segment. If the power fails before the next flush, what
        was cut off is there again, behind the offsets that are durable and before those of the new segment.
        """
        index = self.segments.floor_index(recovery_point)
        if not index or self.segments[index].base_offset != recovery_point:
            return
        segment = self.segments[index - 1]
        entry = segment.offset_index.floor(recovery_point - 1)
        position, reaches = entry.position, False
        try:
            for at, header in segment.headers(position):
                if header.base_offset >= recovery_point:
                    reaches = True
                    break
                position, reaches = at + header.size, header.last_offset + 1 == recovery_point
        except CorruptBatch:
            pass  # behind all that is durable, a half-written batch; before, decay that stays as it is
        if reaches and position < segment.size:
            self.report.truncated_bytes += segment.size - position
            segment.cut_at(position, recovery_point)

    def stands_at(self, recovery_point: int) -> bool:
        """Whether the log ends where it was fsynced last: then its files are as that fsync left them.

        The recovery point rises only after data, indexes, epochs and names are durable, and falls before anything is
        cut off. So nothing needs to be checked that a clean stop wouldn't leave unchecked. Indexes alone may have
        got entries of batches that were lost.
        """
        active = self.segments.active
        end, wrong = _end_by_headers(active)
        return not wrong and end == recovery_point and self._plausible(active, end)

    def _plausible(self, segment: Segment, end: int) -> bool:
        if not segment.size:  # a process that died in a cut may have left entries
            return not any(map(self.disk.size, segment.paths()))
        return (
            segment.offset_index.plausible(segment.size, end)
            and segment.time_index.plausible(end)
            and segment.txn_index.plausible(end)
        )

    def check_indexes(self, recovery_point: int) -> None:
        """Look at the indexes of segments that are not scanned; make implausible ones anew."""
        for index, segment in enumerate(self.segments):
            end = self.segments.end_of(index, _INT32_MAX << 32)
            if end > recovery_point:
                return
            if not self._plausible(segment, end):
                self.drop_snapshots(segment.base_offset, end)
                self._restore_producers(segment.base_offset)
                # Below the recovery point damage is decay, not a torn write: what lies behind it is kept.
                _, reason = self._check_segment(segment, cut=False)
                if reason:
                    self.report.notes.append(f"{segment.log.path} is damaged: {reason}")
                segment.seal(sync=True)
                self.report.indexes_rebuilt += 1
            segment.unload()

    def recover(self, offset: int, recovery_point: int) -> int:
        """Check every batch from the segment that holds ``offset`` on, cut at the first wrong one.

        Returns the log's end. Indexes of segments that the next flush does not cover are durable then.

        A segment begins where the one before it ends, also in a compacted log: its holes are within segments (unless
        one is so wide that no segment spans it). Above the recovery point anything else means that the power took what
        was between. Older versions, and Kafka, roll behind holes, too, so this is not said of a log without a known
        recovery point.
        """
        first = self.segments.floor(offset)
        self.drop_snapshots(first.base_offset, None)
        self._restore_producers(first.base_offset)
        self._epoch_reached = self.epochs.epoch_at(first.base_offset - 1)
        end = first.base_offset
        damaged = False
        for segment in self.segments.from_offset(first.base_offset):
            taken = self.point_is_known and segment.base_offset > recovery_point and not self._too_far(segment, end)
            if segment.base_offset > end and not damaged and (taken or not self.may_have_holes):
                damaged = True
                self.report.truncated_at = end
                self.report.reason = f"segment {segment.base_offset} where {end} was expected"
            unused = segment.base_offset > end and not segment.size  # it was begun for batches that are not there
            if damaged or unused or segment.base_offset < end:
                self.segments.remove(segment)
                segment.remove()
                if unused and not damaged:
                    self.report.notes.append(f"removed the empty segment {segment.base_offset}")
                else:
                    self.report.segments_removed += 1
                continue
            if segment is not first:
                self._write_snapshot(segment.base_offset)
            end, reason = self._check_segment(segment)
            if reason:
                damaged = True
                self.report.truncated_at = end
                self.report.reason = reason
        self._write_indexes(first.base_offset, recovery_point if recovery_point < end else None)
        return end

    def _too_far(self, segment: Segment, end: int) -> bool:
        """Whether no segment that begins at ``end`` could address this one's first batch: so it was begun for that."""
        try:
            return any(header.last_offset - end > _INT32_MAX for _, header in islice(segment.headers(), 1))
        except CorruptBatch:
            return False

    def _write_snapshot(self, offset: int) -> None:
        try:
            self.disk.replace(snapshot_path(self.directory, offset), self.producers.to_snapshot(), durable=False)
        except DiskFull as wrong:
            self.report.notes.append(f"no room for a producer snapshot: {wrong}")
        else:
            self.snapshots.append(offset)

    def _write_indexes(self, offset: int, recovery_point: int | None) -> None:
        """Of the segments from ``offset`` on; at once and durably where no flush above the recovery point covers them.

        The others may stay in memory until there is room.
        """
        flushed = [] if recovery_point is None else self.segments.changed_since(recovery_point)
        for segment in self.segments.from_offset(offset):
            sync = not flushed or segment.base_offset < flushed[0].base_offset
            try:
                if segment is self.segments.active:
                    segment.flush_indexes(sync=sync)
                else:
                    segment.seal(sync=sync)
            except DiskFull as wrong:
                if sync:
                    raise
                self.report.notes.append(f"no room for an index: {wrong}")

    def drop_snapshots(self, above: int, up_to: int | None) -> None:
        """Remove those of offsets above ``above``, and below ``up_to``."""
        for offset in self.snapshots[:]:
            if offset > above and (up_to is None or offset < up_to):
                self.disk.remove(snapshot_path(self.directory, offset))
                self.snapshots.remove(offset)

    def remove_stray_snapshots(self, end: int) -> None:
        """Keep the newest snapshot and those at the start of a segment: others are of earlier clean stops.

        Those above the log's end are of what was cut off: a later start would take them for the state at their offset.
        """
        if self.snapshots and self.snapshots[-1] > end:
            self.report.notes.append(f"removed producer snapshots above {end}")
            self.drop_snapshots(end, None)
        if len(self.snapshots) < 2:
            return
        bases = {segment.base_offset for segment in self.segments}
        for offset in self.snapshots[:-1]:
            if offset not in bases:
                self.disk.remove(snapshot_path(self.directory, offset))

    def _check_segment(self, segment: Segment, *, cut: bool = True) -> tuple[int, str]:
        """Scan one segment, filling its indexes anew; returns its end offset and what is wrong there, if anything is.

        With ``cut`` the file is cut at that place.
        """
        segment.rebuild_indexes()
        self.report.segments_scanned += 1
        position, end, reason = 0, segment.base_offset, ""
        while position < segment.size and not reason:
            data = self._read_whole_batches(segment, position)
            placed: list[Admitted] = []
            at = 0
            while at < len(data) and not reason:
                try:
                    header = self._check_batch(segment, data, at, end, cut=cut)
                    for aborted in apply_batches(self.producers, data, [(at, header)], self.now_ms):
                        segment.add_aborted(aborted)
                except (CorruptBatch, CodecError) as wrong:
                    if at and position + len(data) < segment.size:
                        break  # perhaps only cut by the read's end: look again from here
                    reason = wrong.reason if isinstance(wrong, CorruptBatch) else str(wrong)
                    break
                placed.append(admitted_of(header))
                self._note_epoch(header, mend=cut)
                at += header.size
                end = header.last_offset + 1
            segment.index(placed, position, self.index_interval_bytes)
            position += at
        self.report.bytes_scanned += position
        if position < segment.size and cut:
            self.report.truncated_bytes += segment.size - position
            segment.log.truncate(position)
        return end, reason

    def _note_epoch(self, header: BatchHeader, *, mend: bool) -> None:
        """A batch's epoch; with ``mend`` what the checkpoint says of a history that was cut off goes.

        The checkpoint of before a cut may come back with the power, and what was appended since has other epochs.
        """
        epoch, offset = header.partition_leader_epoch, header.base_offset
        if mend and epoch >= max(0, self._epoch_reached):
            self._epoch_reached = epoch
            if self.epochs.epoch_at(offset) != epoch:
                self.epochs.truncate_from_end(offset)
                self.epochs.assign(epoch, offset)
        elif epoch > self.epochs.latest:
            self.epochs.assign(epoch, offset)

    def _read_whole_batches(self, segment: Segment, position: int) -> bytes:
        data = segment.log.read(position, min(_READ_BYTES, segment.size - position))
        try:
            needed = parse_header(data).size if len(data) >= HEADER_SIZE else 0
        except CorruptBatch:
            return data
        if len(data) < needed <= segment.size - position:
            return segment.log.read(position, needed)
        return data

    def _check_batch(self, segment: Segment, data: bytes, at: int, expected_offset: int, *, cut: bool) -> BatchHeader:
        """The header of a sound batch that follows on what is before it. Raises CorruptBatch.

        Epochs never fall in a log. Where they do, the batch was cut off, and came back with the power behind what was
        written in its place.
        """
        header = validate_batch(data, at)
        if cut and 0 <= header.partition_leader_epoch < self._epoch_reached:
            why = f"leader epoch {header.partition_leader_epoch} behind {self._epoch_reached}: it was cut off before"
            raise CorruptBatch(why, at)
        missing = header.base_offset > expected_offset and not self.may_have_holes
        if missing or header.base_offset < expected_offset or header.last_offset - segment.base_offset > _INT32_MAX:
            raise CorruptBatch(f"offset {header.base_offset} where {expected_offset} was expected", at)
        return header
