"""One partition's log. The loop thread is its only owner; nothing here is safe to call from another.

An append is checked, placed and analysed before anything changes, then written, then made true in memory, so that a
refused or failed one leaves no trace. Appends answer with an :class:`AppendInfo` whatever goes wrong; all other methods
raise LogOffline when the disk has failed.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from _native.batch import HEADER_SIZE, BatchHeader, crc32c, parse_header, stamp, validate_batch
from _native.errors import CorruptBatch
from brokers.config import TopicConfig
from brokers.log import recovery
from brokers.log.checkpoints import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, encode_partition_metadata
from brokers.log.failures import DiskFailed, DiskFull, LogOffline, OffsetOutOfRange
from brokers.log.files import Buffer, DiskPort, FileSlice
from brokers.log.indexes import AbortedTxn
from brokers.log.producers import (
    Change,
    Duplicate,
    Marker,
    Origin,
    ProducerState,
    Refusal,
    VerificationGuard,
)
from brokers.log.recovery import RecoveryReport
from brokers.log.segment import DELETED_SUFFIX, PlacedBatch, Segment
from brokers.log.segments import Segments
from brokers.log.validation import Checked, Rejected, batch_records, check_for_leader, read_marker
from brokers.model import INTERNAL_TOPICS
from wire.compression import CodecError
from wire.errors import ErrorCode
from wire.types import NO_PRODUCER_ID, TopicPartition

logger = logging.getLogger(__name__)

_WARM_INDEXES = 4
_EARLIEST_EPOCH = -1

P = ParamSpec("P")
R = TypeVar("R")


class AppendInfo(NamedTuple):
    """What became of an append. ``error`` is NONE if the batches are in the log (or were before: ``duplicate``)."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    record_count: int
    size: int
    duplicate: bool
    error: ErrorCode
    error_message: str | None
    record_errors: tuple[tuple[int, str], ...] = ()


class ReadResult(NamedTuple):
    """Whole batches from the one holding ``first_offset``; ``next_offset`` is where the next read goes on."""

    slices: tuple[FileSlice, ...]
    size: int
    first_offset: int
    next_offset: int

    def release(self) -> None:
        """Let go of all slices."""
        for part in self.slices:
            part.release()


class AbortedTransaction(NamedTuple):
    """A producer whose records from ``first_offset`` up to its next abort marker are to be skipped."""

    producer_id: int
    first_offset: int


class LogSettings(NamedTuple):
    """The broker's settings that each log needs."""

    inflate_limit: int = 64 * 1024 * 1024
    producer_expiration_ms: int = 86_400_000
    max_producers: int = 100_000


def _guarded(method: Callable[Concatenate[Log, P], R]) -> Callable[Concatenate[Log, P], R]:
    """Refuse when offline; on a failed disk go offline; damage found while reading is told as the log's failure too."""

    @functools.wraps(method)
    def guarded(self: Log, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.offline:
            raise LogOffline(self.directory)
        try:
            return method(self, *args, **kwargs)
        except DiskFailed as wrong:
            self.fail(wrong)
            raise LogOffline(self.directory, str(wrong)) from wrong
        except (CorruptBatch, CodecError) as wrong:
            logger.error("%s: damaged batch: %s", self.directory, wrong)
            raise LogOffline(self.directory, f"damaged batch: {wrong}") from wrong

    return guarded  # type: ignore[return-value]  # functools.wraps hides that it is a method


class Log:
    """A partition's records on disk, with what follows from them."""

    def __init__(
        self,
        disk: DiskPort,
        directory: str,
        topic_partition: TopicPartition,
        config: TopicConfig,
        settings: LogSettings,
        loaded: recovery.Loaded,
        *,
        topic_id: uuid.UUID | None,
        recovery_point: int,
        high_watermark: int,
        on_failure: Callable[[Log, DiskFailed], None] | None = None,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.settings = settings
        self.segments: Segments = loaded.segments
        self.epochs = loaded.epochs
        self.producers: ProducerState = loaded.producers
        self.recovery_report: RecoveryReport = loaded.report
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = min(max(recovery_point, loaded.log_start_offset), loaded.log_end_offset)
        self.high_watermark = min(max(high_watermark, loaded.log_start_offset), loaded.log_end_offset)
        self.offline = False
        self.unflushed_since_ms: int | None = None
        self.dirty_names = True
        """Whether files were made or renamed since the directory was last fsynced."""
        self.garbage: list[tuple[int, Segment]] = []
        """Deleted segments, with the time at which their files go."""
        self._on_failure = on_failure
        self._warm: list[Segment] = []
        self._epochs_durable = True
        self._warned_about_compaction = False
        self._config = config
        self.config = config
        self.producers.high_watermark_moved(self.high_watermark)
        self._save_epochs()

    @classmethod
    def open(
        cls,
        disk: DiskPort,
        directory: str,
        topic_partition: TopicPartition,
        config: TopicConfig,
        settings: LogSettings | None = None,
        *,
        now_ms: int,
        topic_id: uuid.UUID | None = None,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        on_failure: Callable[[Log, DiskFailed], None] | None = None,
    ) -> Log:
        """Load the directory (made if absent), recovering it unless it was closed ``clean``. Raises DiskError."""
        settings = settings or LogSettings()
        disk.make_directory(directory)
        loaded = recovery.load(
            disk,
            directory,
            topic_partition,
            ProducerState(expiration_ms=settings.producer_expiration_ms, max_producers=settings.max_producers),
            now_ms=now_ms,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            index_interval_bytes=config.index_interval_bytes,
        )
        return cls(
            disk, directory, topic_partition, config, settings, loaded, topic_id=topic_id,
            recovery_point=recovery_point, high_watermark=high_watermark, on_failure=on_failure,
        )  # fmt: skip

    # ---- what it is

    @property
    def config(self) -> TopicConfig:
        """The topic's settings; assigning new ones takes effect with the next append or upkeep."""
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._config = config
        if "compact" in config.cleanup_policy and not self.is_internal and not self._warned_about_compaction:
            self._warned_about_compaction = True
            logger.warning("%s: cleanup.policy=compact is accepted but its records are kept", self.topic_partition)

    @property
    def is_internal(self) -> bool:
        """Whether the topic is one of the coordinators'."""
        return self.topic_partition.topic in INTERNAL_TOPICS

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self.segments.size_bytes

    @property
    def last_stable_offset(self) -> int:
        """The end for read_committed: the first record of an undecided transaction, or the high watermark."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch, -1 if none is known."""
        return self.epochs.latest

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch not above ``epoch``, and where it ended; (-1, -1) if unknown."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

    def assign_epoch(self, epoch: int) -> None:
        """A leader starts to append in this epoch."""
        if self.epochs.assign(epoch, self.log_end_offset):
            self._save_epochs()

    def verification_guard(self, producer_id: int, producer_epoch: int, base_sequence: int) -> VerificationGuard | None:
        """See ``ProducerState.verification_guard``."""
        return self.producers.verification_guard(producer_id, producer_epoch, base_sequence)

    def write_metadata(self, topic_id: uuid.UUID) -> None:
        """Write ``partition.metadata``. Raises DiskError."""
        self.disk.replace(f"{self.directory}/{PARTITION_METADATA}", encode_partition_metadata(topic_id), durable=False)
        self.topic_id = topic_id

    # ---- append

    def append_as_leader(
        self,
        records: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        verification_guard: object | None = None,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append what a client or coordinator made: offsets and leader epoch are assigned here.

        A writable ``records`` is stamped in place. ``transaction_version`` 2 on a marker means that its producer epoch
        was bumped for it (KIP-890). Never raises for what is in the records or for a failing disk.
        """
        if self.offline:
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is offline")
        config = self._config
        checked = check_for_leader(
            records,
            origin=origin,
            config=config,
            now_ms=now_ms,
            inflate_limit=self.settings.inflate_limit,
            compacted="compact" in config.cleanup_policy,
        )
        if isinstance(checked, Rejected):
            return self.refused(checked.error, checked.message, checked.record_errors)
        if len(checked.buffer) > config.segment_bytes:
            return self.refused(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{len(checked.buffer)} bytes pass segment.bytes {config.segment_bytes}",
            )
        append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else -1
        placed, touched = self._place(checked, leader_epoch, append_time)
        change: Change | None = None
        if touched:
            guard = verification_guard if isinstance(verification_guard, VerificationGuard) else None
            outcome = self.producers.analyze(
                touched, origin=origin, guard=guard, transaction_version=transaction_version, now_ms=now_ms
            )
            if isinstance(outcome, Duplicate):
                return self._duplicate(outcome, append_time)
            if isinstance(outcome, Refusal):
                return self.refused(outcome.error, outcome.message)
            change = outcome
        buffer = checked.buffer
        for position, header in placed:
            stamp(buffer, position, header.base_offset, leader_epoch, -1 if header.is_control else append_time)
        failed = self._write(buffer, placed, change, now_ms)
        if failed is not None:
            return failed
        return AppendInfo(
            first_offset=placed[0].header.base_offset,
            last_offset=self.log_end_offset - 1,
            log_append_time_ms=append_time,
            log_start_offset=self.log_start_offset,
            record_count=sum(header.record_count for _, header in placed),
            size=len(buffer),
            duplicate=False,
            error=ErrorCode.NONE,
            error_message=None,
        )

    def append_control(
        self, batch: Buffer, *, leader_epoch: int, now_ms: int, transaction_version: int = 0
    ) -> AppendInfo:
        """Append transaction markers: one control batch, or a run of them that becomes visible together."""
        return self.append_as_leader(
            batch,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            origin=Origin.COORDINATOR,
            transaction_version=transaction_version,
        )

    def append_as_follower(self, records: Buffer, *, now_ms: int) -> AppendInfo:
        """Append batches as the leader has them, offsets included; a torn last batch is left out.

        CORRUPT_MESSAGE for damage, OFFSET_OUT_OF_RANGE when the batches don't follow this log's end.
        """
        if self.offline:
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is offline")
        placed: list[PlacedBatch] = []
        touched: list[tuple[BatchHeader, Marker | None]] = []
        expected, position, end = self.log_end_offset, 0, len(records)
        try:
            while end - position >= HEADER_SIZE and parse_header(records, position).size <= end - position:
                header = validate_batch(records, position)
                if header.base_offset < expected:
                    return self.refused(
                        ErrorCode.OFFSET_OUT_OF_RANGE, f"batch at {header.base_offset} where {expected} was expected"
                    )
                placed.append(PlacedBatch(position, header))
                if header.producer_id != NO_PRODUCER_ID:
                    touched.append((header, read_marker(records, position, header) if header.is_control else None))
                expected = header.last_offset + 1
                position += header.size
        except (CorruptBatch, CodecError) as wrong:
            return self.refused(ErrorCode.CORRUPT_MESSAGE, str(wrong))
        if not placed:
            return self._appended(self.log_end_offset, 0, 0)
        change = self.producers.analyze(touched, origin=Origin.REPLICATION, now_ms=now_ms) if touched else None
        assert change is None or isinstance(change, Change)
        failed = self._write(memoryview(records)[:position], placed, change, now_ms)
        if failed is not None:
            return failed
        return self._appended(placed[0].header.base_offset, sum(h.record_count for _, h in placed), position)

    def _place(
        self, checked: Checked, leader_epoch: int, append_time: int
    ) -> tuple[list[PlacedBatch], list[tuple[BatchHeader, Marker | None]]]:
        placed: list[PlacedBatch] = []
        touched: list[tuple[BatchHeader, Marker | None]] = []
        offset = self.log_end_offset
        for position, header, marker in checked.batches:
            largest = header.max_timestamp if append_time < 0 or header.is_control else append_time
            final = header._replace(base_offset=offset, partition_leader_epoch=leader_epoch, max_timestamp=largest)
            placed.append(PlacedBatch(position, final))
            if final.producer_id != NO_PRODUCER_ID:
                touched.append((final, marker))
            offset += header.last_offset_delta + 1
        return placed, touched

    def _write(self, data: Buffer, placed: list[PlacedBatch], change: Change | None, now_ms: int) -> AppendInfo | None:
        """Write, then make everything true in memory; the refusal if the disk doesn't take it."""
        last_offset = placed[-1].header.last_offset
        try:
            segment = self._segment_for(len(data), placed, last_offset, now_ms)
            segment.append(data, placed, self._config.index_interval_bytes)
        except DiskFull as wrong:
            logger.error("%s: append refused: %s", self.topic_partition, wrong)
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, f"no room: {wrong.reason}")
        except DiskFailed as wrong:
            self.fail(wrong)
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, str(wrong))
        if change is not None:
            for aborted in self.producers.apply(change):
                segment.add_aborted(aborted)
        epochs = self.epochs
        for _, header in placed:
            if header.partition_leader_epoch > epochs.latest:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
        self.log_end_offset = last_offset + 1
        if self.unflushed_since_ms is None:
            self.unflushed_since_ms = now_ms
        if epochs.dirty:
            self._save_epochs()
        return None

    def _segment_for(self, size: int, placed: list[PlacedBatch], last_offset: int, now_ms: int) -> Segment:
        """The active segment, after a roll if it is full, too old, or can't address the batch."""
        active = self.segments.active
        if not active.size and active.base_offset == placed[0].header.base_offset:
            active.created_ms = now_ms
            return active
        config = self._config
        full = active.size + size > config.segment_bytes
        if not full and active.has_room(size, last_offset, config.segment_index_bytes):
            if not active.size:
                return active
            # Kafka's rule: by the records' own time if they have any, else by the segment's age.
            begun = active.first_timestamp
            newest = max(header.max_timestamp for _, header in placed)
            waited = newest - begun if begun is not None and begun >= 0 else now_ms - active.created_ms
            if waited <= config.segment_ms - self._jitter_ms(active):
                return active
        return self.roll(placed[0].header.base_offset, now_ms)

    def _jitter_ms(self, segment: Segment) -> int:
        jitter = min(self._config.segment_jitter_ms, self._config.segment_ms)
        return crc32c(f"{self.directory}/{segment.base_offset}".encode()) % jitter if jitter else 0

    def roll(self, offset: int, now_ms: int) -> Segment:
        """Start a new segment at ``offset`` (at least the log's end). Raises DiskFull or DiskFailed."""
        active = self.segments.active
        offset = max(offset, self.log_end_offset)
        if not active.size and active.base_offset == offset:
            return active
        active.seal()
        self.disk.replace(recovery.snapshot_path(self.directory, offset), self.producers.to_snapshot(), durable=False)
        fresh = Segment(self.disk, self.directory, offset, create=True, now_ms=now_ms)
        if fresh.size:  # left by a roll that failed half-way in an earlier life
            fresh.log.truncate(0)
        fresh.reset_indexes()
        self.segments.add(fresh)
        self.dirty_names = True
        self._keep_warm(active)
        return fresh

    def refused(
        self, error: ErrorCode, message: str | None, record_errors: tuple[tuple[int, str], ...] = ()
    ) -> AppendInfo:
        """The answer to an append that changed nothing."""
        return AppendInfo(-1, -1, -1, self.log_start_offset, 0, 0, False, error, message, record_errors)

    def _appended(self, first_offset: int, record_count: int, size: int) -> AppendInfo:
        return AppendInfo(
            first_offset, self.log_end_offset - 1, -1, self.log_start_offset, record_count, size, False,
            ErrorCode.NONE, None,
        )  # fmt: skip

    def _duplicate(self, duplicate: Duplicate, append_time: int) -> AppendInfo:
        batch = duplicate.batch
        return AppendInfo(
            batch.first_offset,
            batch.last_offset,
            batch.timestamp if append_time >= 0 else -1,
            self.log_start_offset,
            batch.offset_delta + 1,
            0,
            True,
            ErrorCode.NONE,
            None,
        )

    # ---- high watermark and read

    def set_high_watermark(self, offset: int) -> None:
        """Records below ``offset`` are replicated; kept between the log's start and end."""
        self.high_watermark = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.producers.high_watermark_moved(self.high_watermark)

    @_guarded
    def read(self, offset: int, max_bytes: int, *, end_offset: int, min_one_batch: bool = True) -> ReadResult:
        """Slices of whole batches from the one that holds ``offset``, up to ``max_bytes`` and below ``end_offset``.

        With ``min_one_batch`` the first batch is returned even if it is larger. Raises OffsetOutOfRange.
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.log_end_offset)
        end_offset = min(end_offset, self.log_end_offset)
        slices: list[FileSlice] = []
        room, next_offset = max_bytes, offset
        index = self.segments.floor_index(offset)
        while next_offset < end_offset and index < len(self.segments):
            segment = self.segments[index]
            beyond = self.segments.end_of(index, self.log_end_offset)
            start = segment.position_of(next_offset)
            limit = segment.size if end_offset >= beyond else segment.position_of(end_offset)
            if limit is None:
                limit = segment.size
            if start is None or start >= limit:
                if limit < segment.size:
                    break
                next_offset = max(next_offset, beyond)
                index += 1
                continue
            end = limit
            if limit - start > room:
                end = min(segment.cut_position(start, start + max(room, 0)), limit)
                if end - start > room and (slices or not min_one_batch):
                    break
            slices.append(segment.slice(start, end))
            room -= end - start
            if end == segment.size:
                next_offset = beyond
            elif end == limit:
                next_offset = end_offset
            else:
                next_offset = parse_header(segment.log.read(end, HEADER_SIZE)).base_offset
            if segment is self.segments.active or end < segment.size:
                segment.remember(next_offset, end)
            self._keep_warm(segment)
            if end < limit:
                break
            index += 1
        return ReadResult(tuple(slices), max_bytes - room, offset, min(next_offset, max(offset, end_offset)))

    def _keep_warm(self, segment: Segment) -> None:
        """Closed segments keep their indexes in memory only while they are among the last few read."""
        warm = self._warm
        if segment is self.segments.active or (warm and warm[-1] is segment):
            return
        if segment in warm:
            warm.remove(segment)
        warm.append(segment)
        if len(warm) > _WARM_INDEXES:
            cold = warm.pop(0)
            if cold is not self.segments.active:
                cold.unload()

    @_guarded
    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in [start, end), in order of their markers."""
        found: list[AbortedTransaction] = []
        for segment in self.segments.from_offset(start):
            for entry in segment.txn_index:
                if entry.last_offset >= start and entry.first_offset < end:
                    found.append(AbortedTransaction(entry.producer_id, entry.first_offset))
                if entry.last_stable_offset >= end:
                    return found
        return found

    def aborted_entries(self) -> list[AbortedTxn]:
        """All entries of all transaction indexes."""
        return [entry for segment in self.segments for entry in segment.txn_index]

    @_guarded
    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record with at least that timestamp, None if there is none."""
        for segment in self.segments.from_offset(self.log_start_offset):
            if segment.max_timestamp[0] >= timestamp:
                found = self._find_timestamp(segment, timestamp)
                if found is not None:
                    return found
        return None

    def _find_timestamp(self, segment: Segment, timestamp: int) -> tuple[int, int, int] | None:
        begin = max(segment.time_index.floor(timestamp).offset, self.log_start_offset)
        position = segment.position_of(begin)
        if position is None:
            return None
        for _, data, batches in segment.chunks(position):
            for at, header in batches:
                if header.max_timestamp < timestamp or header.last_offset < begin or not header.record_count:
                    continue
                for record in batch_records(data, at, header, self.settings.inflate_limit):
                    if record.timestamp >= timestamp and record.offset >= self.log_start_offset:
                        return record.offset, record.timestamp, header.partition_leader_epoch
        return None

    @_guarded
    def max_timestamp(self) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the record with the largest timestamp (KIP-734)."""
        best: Segment | None = None
        for segment in self.segments:
            if segment.size and (best is None or segment.max_timestamp[0] > best.max_timestamp[0]):
                best = segment
        if best is None or best.max_timestamp[0] < 0:
            return None
        largest, last_offset = best.max_timestamp
        position = best.position_of(last_offset)
        if position is None:
            return None
        header = parse_header(best.log.read(position, HEADER_SIZE))
        if header.is_log_append_time or not header.record_count:
            return header.last_offset, header.max_timestamp, header.partition_leader_epoch
        data = best.log.read(position, header.size)
        for record in batch_records(data, 0, header, self.settings.inflate_limit):
            if record.timestamp == largest:
                return record.offset, record.timestamp, header.partition_leader_epoch
        return header.last_offset, largest, header.partition_leader_epoch

    # ---- cutting

    @_guarded
    def truncate_to(self, offset: int, *, now_ms: int) -> int:
        """Drop all records at or above ``offset`` (whole batches); returns the new end. Slices above it are gone.

        Producer state, transaction index and leader epochs become what they were at that offset.
        """
        if offset >= self.log_end_offset:
            return self.log_end_offset
        if offset < self.segments.first.base_offset:
            self.restart_at(offset, now_ms=now_ms)
            return offset
        keep = self.segments.floor(offset)
        for segment in self.segments:
            if segment.base_offset > keep.base_offset:
                self._discard(segment)
        cut = keep.truncate(offset)
        end = offset if cut is None else min(offset, cut)
        for snapshot in recovery.snapshot_offsets(self.disk, self.directory):
            if snapshot > end:
                self.disk.remove(recovery.snapshot_path(self.directory, snapshot))
        self.log_end_offset = end
        self.log_start_offset = min(self.log_start_offset, end)
        self.recovery_point = min(self.recovery_point, end)
        self.high_watermark = min(self.high_watermark, end)
        self.epochs.truncate_from_end(end)
        self._save_epochs()
        recovery.restore_producers(self.disk, self.directory, self.segments, self.producers, end, now_ms)
        self.producers.high_watermark_moved(self.high_watermark)
        return end

    @_guarded
    def restart_at(self, offset: int, *, now_ms: int) -> None:
        """Drop everything and go on, empty, at ``offset``: for a follower that has fallen off its leader's log."""
        for segment in self.segments:
            self._discard(segment)
        for snapshot in recovery.snapshot_offsets(self.disk, self.directory):
            self.disk.remove(recovery.snapshot_path(self.directory, snapshot))
        self.segments.add(Segment(self.disk, self.directory, offset, create=True, now_ms=now_ms))
        self.log_start_offset = self.log_end_offset = self.recovery_point = self.high_watermark = offset
        self.epochs.clear()
        self._save_epochs()
        self.producers.clear()
        self.dirty_names = True

    def _discard(self, segment: Segment) -> None:
        self.segments.remove(segment)
        if segment in self._warm:
            self._warm.remove(segment)
        segment.remove()

    @_guarded
    def delete_records_before(self, offset: int) -> int:
        """Raise the log's start to ``offset`` (-1: the high watermark); returns the start. Raises OffsetOutOfRange.

        Whole segments below it go with the next upkeep.
        """
        if offset == -1:
            offset = self.high_watermark
        if offset < 0 or offset > self.high_watermark:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.high_watermark)
        self.raise_start(offset)
        return self.log_start_offset

    def raise_start(self, offset: int) -> None:
        """The log starts at ``offset`` from now on, if that is higher than before."""
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.recovery_point = max(self.recovery_point, offset)
            self.high_watermark = max(self.high_watermark, offset)
            self.epochs.truncate_from_start(offset)
            self._save_epochs()

    @_guarded
    def remove_segments(self, segments: list[Segment], now_ms: int) -> None:
        """Take segments out of the log; their files get the suffix ``.deleted`` and go after file.delete.delay.ms."""
        for segment in segments:
            self.segments.remove(segment)
            if segment in self._warm:
                self._warm.remove(segment)
            self.bury(segment, now_ms)
            self.disk.remove(recovery.snapshot_path(self.directory, segment.base_offset))

    def bury(self, segment: Segment, now_ms: int) -> None:
        """Rename a segment that is no longer part of the log and let its files go later."""
        segment.change_suffix(DELETED_SUFFIX)
        self.dirty_names = True
        self.garbage.append((now_ms + self._config.file_delete_delay_ms, segment))

    @_guarded
    def sweep(self, now_ms: int) -> None:
        """Delete the files of buried segments whose time has come."""
        while self.garbage and self.garbage[0][0] <= now_ms:
            self.garbage.pop(0)[1].remove()

    # ---- durability

    @_guarded
    def flush(self) -> None:
        """fsync everything above the recovery point, then raise it to the log's end. Raises DiskFull, LogOffline."""
        end = self.log_end_offset
        for segment in self.segments.from_offset(self.recovery_point):
            if segment.size:
                segment.sync()
        if self.epochs.dirty or not self._epochs_durable:
            self._save_epochs(durable=True)
        if self.dirty_names:
            self.disk.sync_directory(self.directory)
            self.dirty_names = False
        self.recovery_point = end
        self.unflushed_since_ms = None

    @_guarded
    def close(self, *, clean: bool = True) -> None:
        """Close the files; when ``clean``, with everything flushed and a producer snapshot at the end."""
        if clean:
            active = self.segments.active
            if active.size:
                active.seal()
            self.flush()
            path = recovery.snapshot_path(self.directory, self.log_end_offset)
            if self.producers.entries:
                self.disk.replace(path, self.producers.to_snapshot())
            else:
                self.disk.remove(path)
        self.abandon()

    def abandon(self) -> None:
        """Give all descriptors back without writing anything."""
        for segment in self.segments:
            segment.log.close()
            segment.offset_index.close()
            segment.time_index.close()
            segment.txn_index.close()

    def fail(self, wrong: DiskFailed) -> None:
        """The disk under this log has failed: no retry, and the whole directory with it."""
        if not self.offline:
            self.offline = True
            logger.critical("%s goes offline: %s", self.directory, wrong)
            if self._on_failure is not None:
                self._on_failure(self, wrong)

    def _save_epochs(self, *, durable: bool = False) -> None:
        """Write the leader epochs. Without room they stay in memory for the next try: recovery can make them anew."""
        if not self.epochs.dirty and not durable:
            return
        try:
            self.disk.replace(f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}", self.epochs.to_bytes(), durable=durable)
        except DiskFull as wrong:
            logger.warning("%s: leader epochs not written: %s", self.topic_partition, wrong)
            return
        except DiskFailed as wrong:
            self.fail(wrong)
            return
        self.epochs.dirty = False
        self._epochs_durable = durable

    def describe(self) -> dict[str, Any]:
        """Numbers for metrics and tools."""
        return {
            "log_start_offset": self.log_start_offset,
            "log_end_offset": self.log_end_offset,
            "high_watermark": self.high_watermark,
            "last_stable_offset": self.last_stable_offset,
            "size_bytes": self.size_bytes,
            "segments": len(self.segments),
        }

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, [{self.log_start_offset}, {self.log_end_offset}))"
