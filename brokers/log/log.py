"""One partition's log. The loop thread is its only owner; nothing here is safe to call from another.

An append is checked, placed and analysed before anything changes, then written, then made true in memory, so that a
refused or failed one leaves no trace. Appends answer with an :class:`AppendInfo` whatever goes wrong; all other methods
raise LogOffline when the disk has failed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from _native.batch import HEADER_SIZE, BatchHeader, parse_header, stamp, validate_batch
from _native.errors import CorruptBatch
from brokers.config import TopicConfig
from brokers.log import recovery
from brokers.log.checkpoints import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, encode_partition_metadata
from brokers.log.failures import DiskFailed, DiskFull, OffsetOutOfRange
from brokers.log.files import Buffer, DiskPort
from brokers.log.plain import PlainAppends
from brokers.log.producers import Change, Duplicate, Marker, Origin, ProducerState, Refusal, VerificationGuard
from brokers.log.segment import DELETED_SUFFIX, PlacedBatch, Segment
from brokers.log.state import AppendInfo, LogSettings, LogState, guarded
from brokers.log.validation import (
    Checked,
    Rejected,
    check_for_leader,
    read_marker,
)
from brokers.model import INTERNAL_TOPICS
from wire.compression import CodecError
from wire.errors import ErrorCode
from wire.types import NO_PRODUCER_ID, TopicPartition

logger = logging.getLogger(__name__)


class Log(PlainAppends):
    """A partition's records on disk, with what follows from them."""

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
        on_failure: Callable[[LogState, DiskFailed], None] | None = None,
        warned_topics: set[str] | None = None,
        checkpoint: Callable[[], None] | None = None,
    ) -> Log:
        """Load the directory (made if absent), recovering it unless it was closed ``clean``. Raises DiskError."""
        settings = settings or LogSettings()
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
            may_have_holes=topic_partition.topic in INTERNAL_TOPICS or "compact" in config.cleanup_policy,
        )
        return cls(
            disk, directory, topic_partition, config, settings, loaded, topic_id=topic_id,
            recovery_point=recovery_point, now_ms=now_ms, high_watermark=high_watermark, on_failure=on_failure,
            warned_topics=warned_topics,
            checkpoint=checkpoint,
        )  # fmt: skip

    def verification_guard(self, producer_id: int, producer_epoch: int, base_sequence: int) -> VerificationGuard | None:
        """See ``ProducerState.verification_guard``."""
        return self.producers.verification_guard(producer_id, producer_epoch, base_sequence)

    def write_metadata(self, topic_id: uuid.UUID) -> None:
        """Write ``partition.metadata``; it reaches the disk in the background. Raises DiskError.

        A log that lost its file is told from one of a deleted topic of the same name only by who counts on it.
        """
        path = f"{self.directory}/{PARTITION_METADATA}"
        self.disk.replace(path, encode_partition_metadata(topic_id), durable=False)
        self.disk.sync_later([path, self.directory])
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
        if origin is not Origin.REPLICATION:
            own = origin is Origin.COORDINATOR
            appended = self._append_plain(records, leader_epoch, now_ms, guard=verification_guard, own=own)
            if appended is not None:
                return appended
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
        if failed is None and self._flush_now():
            failed = self._flushed()
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

    def append_as_follower(self, records: Buffer, *, now_ms: int | None = None) -> AppendInfo:
        """Append batches as the leader has them, offsets included; a torn last batch is left out.

        CORRUPT_MESSAGE for damage, OFFSET_OUT_OF_RANGE when the batches don't follow this log's end.
        """
        if self.offline:
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is offline")
        now_ms = self.last_now_ms if now_ms is None else now_ms
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
        if failed is None and self._flush_now():
            failed = self._flushed()  # the next fetch tells the leader what is safe here
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
        self._bounds = None
        try:
            segment = self._segment_for(len(data), placed, last_offset, now_ms)
            segment.append(data, placed, self._config.index_interval_bytes)
        except (DiskFull, DiskFailed) as wrong:
            return self._unwritten(wrong)
        if change is not None:
            for aborted in self.producers.apply(change):
                segment.add_aborted(aborted)
        epochs = self.epochs
        for _, header in placed:
            if header.partition_leader_epoch > epochs.latest:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
        self._appended_to(last_offset + 1, now_ms)
        if epochs.dirty:
            self.save_epochs()
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
            newest = max(header.max_timestamp for _, header in placed)
            if newest <= self._newest_for(active, now_ms):
                return active
        return self._roll(placed[0].header.base_offset, now_ms)

    @guarded
    def roll(self, now_ms: int) -> Segment:
        """Start a new segment at the log's end, unless the active one is empty. Raises DiskFull or LogOffline."""
        return self._roll(self.log_end_offset, now_ms)

    def _roll(self, offset: int, now_ms: int) -> Segment:
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
        self.keep_warm(active)
        return fresh

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
        if offset < self.log_start_offset:
            offset = self.log_start_offset
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        self.high_watermark = offset
        if self.producers.unreplicated:
            self.producers.high_watermark_moved(offset)

    # ---- cutting

    @guarded
    def truncate_to(self, offset: int, *, now_ms: int | None = None) -> int:
        """Drop all records at or above ``offset`` (whole batches); returns the new end. Slices above it are gone.

        Producer state, transaction index and leader epochs become what they were at that offset.
        """
        if offset >= self.log_end_offset:
            # An epoch in which nothing was appended here may still stand at the end, and contradict the leader's.
            self.epochs.truncate_from_end(offset)
            if self.epochs.dirty:
                self.save_epochs()
            return self.log_end_offset
        now_ms = self.last_now_ms if now_ms is None else now_ms
        if offset < self.segments.first.base_offset:
            self.restart_at(offset, now_ms=now_ms)
            return offset
        keep = self.segments.floor(offset)
        position = keep.position_of(offset)
        end = offset
        if position is not None:
            end = min(end, parse_header(keep.log.read(position, HEADER_SIZE)).base_offset)
        self._lower_recovery_point(end)
        self.cuts += 1
        self._settled = False
        for segment in self.segments:
            if segment.base_offset > keep.base_offset:
                self._discard(segment)
        if position is not None:
            keep.cut_at(position, end)
        for snapshot in recovery.snapshot_offsets(self.disk, self.directory):
            if snapshot > end:
                self.disk.remove(recovery.snapshot_path(self.directory, snapshot))
        self.log_end_offset = end
        self.log_start_offset = min(self.log_start_offset, end)
        self.recovery_point = min(self.recovery_point, end)
        self.high_watermark = min(self.high_watermark, end)
        self.epochs.truncate_from_end(end)
        self.save_epochs()
        recovery.restore_producers(self.disk, self.directory, self.segments, self.producers, end, now_ms)
        self.producers.high_watermark_moved(self.high_watermark)
        return end

    @guarded
    def restart_at(self, offset: int, *, now_ms: int | None = None) -> None:
        """Drop everything and go on, empty, at ``offset``: for a follower that has fallen off its leader's log."""
        self._lower_recovery_point(min(offset, self.log_start_offset))
        self.cuts += 1
        self._settled = False
        for segment in self.segments:
            self._discard(segment)
        for snapshot in recovery.snapshot_offsets(self.disk, self.directory):
            self.disk.remove(recovery.snapshot_path(self.directory, snapshot))
        created_ms = self.last_now_ms if now_ms is None else now_ms
        self.segments.add(Segment(self.disk, self.directory, offset, create=True, now_ms=created_ms))
        self.log_start_offset = self.log_end_offset = self.recovery_point = self.high_watermark = offset
        self.epochs.clear()
        self.save_epochs()
        self.producers.clear()
        self.dirty_names = True

    def _lower_recovery_point(self, offset: int) -> None:
        """Before a cut: what is appended after it is not durable, although the old recovery point would say so."""
        former = self.recovery_point
        if offset < former:
            self.recovery_point = offset
            try:
                if self._checkpoint is not None:
                    self._checkpoint()
            except BaseException:
                self.recovery_point = former  # the disk says so: whoever tries again must write it again
                raise

    def _discard(self, segment: Segment) -> None:
        self.take_out(segment)
        segment.remove()

    def take_out(self, segment: Segment) -> None:
        """The segment is no longer part of the log; its files are the caller's to bury or remove."""
        self.segments.remove(segment)
        if segment in self._warm:
            self._warm.remove(segment)

    @guarded
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
            self.save_epochs()

    @guarded
    def remove_segments(self, segments: list[Segment], now_ms: int) -> None:
        """Take segments out of the log; their files get the suffix ``.deleted`` and go after file.delete.delay.ms."""
        for segment in segments:
            self.take_out(segment)
            self.bury(segment, now_ms)
            self.disk.remove(recovery.snapshot_path(self.directory, segment.base_offset))
        self.cuts += 1

    def bury(self, segment: Segment, now_ms: int) -> None:
        """Rename a segment that is no longer part of the log and let its files go later."""
        segment.change_suffix(DELETED_SUFFIX)
        self.dirty_names = True
        self.garbage.append((now_ms + self._config.file_delete_delay_ms, segment))

    @guarded
    def sweep(self, now_ms: int) -> None:
        """Delete the files of buried segments whose time has come."""
        while self.garbage and self.garbage[0][0] <= now_ms:
            self.garbage.pop(0)[1].remove(later=True)

    @guarded
    def trim_if_idle(self, since_ms: int) -> None:
        """Give back the room ahead of the active segment if nothing was appended since then."""
        if self.last_now_ms < since_ms:
            self.segments.active.log.trim()

    # ---- durability

    @guarded
    def begin_flush(self, *, active: bool) -> None:
        """Start to flush in the background: closed segments, and with ``active`` the active one too."""
        if self.pending_flush is not None:
            return
        end = self.log_end_offset if active else self.segments.active.base_offset
        paths: list[str] = []
        for segment in self.segments.from_offset(self.recovery_point):
            if segment.size and segment.base_offset < end:
                segment.flush_indexes()
                paths += segment.paths()
        if self.epochs.dirty or not self._epochs_durable:
            self.save_epochs()
            paths.append(f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}")
        paths.append(self.directory)
        self.dirty_names = False
        self.unflushed_since_ms = None if active else self.unflushed_since_ms
        self.pending_flush = (self.disk.sync_later(paths), end, self.cuts)

    @guarded
    def end_flush(self) -> None:
        """Take over a background flush that is done. Raises DiskFull or LogOffline if it failed."""
        if self.pending_flush is None or not self.pending_flush[0].done:
            return
        pending, end, cuts = self.pending_flush
        self.pending_flush = None
        if pending.error is not None:
            self.dirty_names = True
            raise pending.error
        if cuts == self.cuts:
            self.recovery_point = max(self.recovery_point, end)
            self._epochs_durable = not self.epochs.dirty

    @guarded
    def settle(self) -> bool:
        """Write everything for a clean stop, but don't wait for the disk: whoever calls makes it durable afterwards.

        Returns whether there was anything to write.
        """
        if self._settled and not self.dirty_names and not self.epochs.behind and self._epochs_durable:
            return False
        if self.segments.active.size:
            self.segments.active.seal()
        for segment in self.segments.from_offset(self.recovery_point):
            segment.flush_indexes()
        if self.epochs.behind:
            self.save_epochs()
        path = recovery.snapshot_path(self.directory, self.log_end_offset)
        if self.producers.entries:
            self.disk.replace(path, self.producers.to_snapshot(), durable=False)
        else:
            self.disk.remove(path)
        return True

    @guarded
    def close(self, *, clean: bool = True) -> None:
        """Close the files; when ``clean``, with everything flushed and a producer snapshot at the end."""
        if clean and self.settle():
            self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Give all descriptors back without writing anything."""
        for segment in self.segments:
            segment.log.close()
            segment.offset_index.close()
            segment.time_index.close()
            segment.txn_index.close()
