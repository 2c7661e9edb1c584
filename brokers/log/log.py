"""One partition's log. The loop thread is its only owner; nothing here is safe to call from another.

A log is composed: an appender, a reader, a flusher and a truncation work on one :class:`LogState`. Appends answer with
outcomes whatever goes wrong; all other methods raise LogOffline when the disk has failed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fleetlog._native.batch import HEADER_SIZE, parse_header
from fleetlog.brokers.config import TopicConfig
from fleetlog.brokers.log import recovery
from fleetlog.brokers.log.append import Appender
from fleetlog.brokers.log.disk.checkpoints import PARTITION_METADATA, encode_partition_metadata
from fleetlog.brokers.log.disk.failures import DiskFailed, DiskFull, LogOffline, OffsetOutOfRange, no_way_back
from fleetlog.brokers.log.disk.files import DiskPort
from fleetlog.brokers.log.flush import Flusher
from fleetlog.brokers.log.producers.snapshots import snapshot_offsets, snapshot_path
from fleetlog.brokers.log.producers.state import ProducerState
from fleetlog.brokers.log.read import LogReader
from fleetlog.brokers.log.replay import restore_producers
from fleetlog.brokers.log.segment import DELETED_SUFFIX, Segment
from fleetlog.brokers.log.state import LogSettings, LogState, guarded
from fleetlog.brokers.model import INTERNAL_TOPICS
from fleetlog.wire.types import TopicPartition


class Truncation:
    """What takes records out of a log: cuts at its end, deletions at its start, and starting over."""

    __slots__ = ("_log",)

    def __init__(self, log: LogState) -> None:
        self._log = log

    @guarded
    def truncate_to(self, offset: int, *, now_ms: int | None = None) -> int:
        """Drop all records at or above ``offset`` (whole batches); returns the new end. Slices above it are gone.

        Producer state, transaction index and leader epochs become what they were at that offset.
        """
        log = self._log
        if offset >= log.log_end_offset:
            # An epoch in which nothing was appended here may still stand at the end, and contradict the leader's.
            log.epochs.truncate_from_end(offset)
            if log.epochs.dirty:
                log.save_epochs()
            return log.log_end_offset
        now_ms = log.last_now_ms if now_ms is None else now_ms
        if offset < log.segments.first.base_offset:
            self.restart_at(offset, now_ms=now_ms)
            return offset
        keep = log.segments.floor(offset)
        position = keep.position_of(offset)
        end = offset
        if position is not None:
            end = min(end, parse_header(keep.log.read(position, HEADER_SIZE)).base_offset)
            end = keep.end_before(position, end)  # in a hole it would be what no start finds again
        # All that needs room comes before anything is changed: the attempt after one that failed finds the log whole.
        snapshots = snapshot_offsets(log.disk, log.directory)
        producers = log.producers.like()
        restore_producers(log.disk, log.directory, log.segments, producers, end, now_ms, snapshots)
        with self._changing(keep, end, end, [snapshot for snapshot in snapshots if snapshot > end]):
            while log.segments.active is not keep:  # from the end on: a process that is killed here leaves no hole
                self._discard(log.segments.active)
            if position is not None:
                self._cut(keep, position, end)
        self._tell_of_cut(end)
        log.log_end_offset = end
        log.log_start_offset = min(log.log_start_offset, end)
        log.epochs.truncate_from_end(end)
        log.save_epochs()
        log.producers.become(producers)
        log.producers.high_watermark_moved(log.high_watermark)
        return end

    @guarded
    def restart_at(self, offset: int, *, now_ms: int | None = None) -> None:
        """Drop everything and continue, empty, at ``offset``: for a follower that has fallen off its leader's log.

        Without room for the new segment the log is left empty where its first one began. Raises DiskFull, LogOffline.
        """
        log = self._log
        first = log.segments.first
        snapshots = snapshot_offsets(log.disk, log.directory)
        with self._changing(first, min(offset, log.log_start_offset), offset, snapshots):
            for segment in log.segments:
                if segment is not first:
                    self._discard(segment)
            self._continue_at(offset, first, log.last_now_ms if now_ms is None else now_ms)

    @contextmanager
    def _changing(self, keep: Segment, point: int, start: int, snapshots: list[int]) -> Iterator[None]:
        """Segments are cut or discarded in the block, and ``keep`` stays.

        What needs room comes first, and each step that a start would believe before the next one: recovery point and
        high watermark are at ``point`` at most, the saved start at ``start``, and these snapshots are gone.
        """
        log = self._log
        keep.load_indexes()
        keep.log.retain()
        try:
            self._lower_points(point)
            self._lower_saved_start(start)
            log.cuts += 1
            log.settled = False
            for snapshot in snapshots:
                log.dirty_names = True
                log.disk.remove(snapshot_path(log.directory, snapshot))
            yield
        finally:
            keep.log.release()

    def _continue_at(self, offset: int, first: Segment, now_ms: int) -> None:
        """Begin anew in place of the only segment that is left."""
        log = self._log
        if first.base_offset == offset:
            self._cut(first, 0, offset)
        else:
            try:
                fresh = Segment(log.disk, log.directory, offset, create=True, now_ms=now_ms)
            except DiskFull:
                self._cut(first, 0, first.base_offset)
                self._empty_at(first.base_offset)
                raise
            self._discard(first)
            log.segments.add(fresh)
        self._empty_at(offset)

    def _cut(self, segment: Segment, position: int, offset: int) -> None:
        """``Segment.cut_at`` once there is no way back. Its file is open, so that only a failed disk refuses."""
        with no_way_back(segment.log.path, "cannot be cut"):
            segment.cut_at(position, offset)

    def _tell_of_cut(self, offset: int) -> None:
        if self._log.calls.on_cut is not None:
            self._log.calls.on_cut(self._log, offset)

    def _empty_at(self, offset: int) -> None:
        log = self._log
        self._tell_of_cut(offset)
        log.log_start_offset = log.log_end_offset = log.recovery_point = log.high_watermark = offset
        log.epochs.clear()
        log.save_epochs()
        log.producers.clear(offset)
        log.dirty_names = True

    def _lower_points(self, offset: int) -> None:
        """Before a cut: what is appended after it is neither durable nor committed, as the old points would say."""
        log = self._log
        previous = log.recovery_point, log.high_watermark
        if offset < max(previous):
            log.recovery_point, log.high_watermark = min(log.recovery_point, offset), min(log.high_watermark, offset)
            try:
                if log.calls.checkpoint is not None:
                    log.calls.checkpoint()
            except BaseException:
                # the disk says so: the next attempt must write it again
                log.recovery_point, log.high_watermark = previous
                raise

    def _lower_saved_start(self, offset: int) -> None:
        """Before the log ends or starts over below a start that the directory's checkpoint or its first segment says.

        A start of the broker would hide what is appended from here up to the former start. The checkpoint may be newer
        than ``saved_start``, if a periodic one wrote it. Without room all stays as it is.
        """
        log = self._log
        previous = log.log_start_offset
        if offset < max(log.calls.saved_start, previous):
            log.log_start_offset = min(previous, offset)
            try:
                if log.calls.save_starts is not None:
                    log.calls.save_starts()
            except BaseException:
                log.log_start_offset = previous
                raise
            log.calls.saved_start = offset

    def _discard(self, segment: Segment) -> None:
        log = self._log
        log.dirty_names = True
        log.take_out(segment)
        with no_way_back(segment.log.path, "cannot be removed"):
            segment.remove()

    @guarded
    def delete_records_before(self, offset: int) -> int:
        """Raise the log's start to ``offset`` (-1: the high watermark); returns the start. Raises OffsetOutOfRange.

        Whole segments below it go with the next upkeep.
        """
        log = self._log
        if offset == -1:
            offset = log.high_watermark
        if offset < 0 or offset > log.high_watermark:
            raise OffsetOutOfRange(offset, log.log_start_offset, log.high_watermark)
        self.raise_start(offset)
        return log.log_start_offset

    def raise_start(self, offset: int) -> None:
        """The log starts at ``offset`` from now on, if that is higher than before."""
        log = self._log
        if offset > log.log_start_offset:
            log.log_start_offset = offset
            log.recovery_point = max(log.recovery_point, offset)
            log.high_watermark = max(log.high_watermark, offset)
            log.epochs.truncate_from_start(offset)
            log.save_epochs()

    @guarded
    def save_start(self) -> None:
        """Before another broker or a client counts on the log's start: a killed process must find it again.

        Cheap if it has not moved; one call serves all logs of the directory. Raises DiskFull, LogOffline.
        """
        log = self._log
        base = log.segments.first.base_offset
        if max(log.log_start_offset, base) == max(log.calls.saved_start, base):
            log.calls.saved_start = log.log_start_offset
        elif log.calls.save_starts is not None:
            log.calls.save_starts()

    @guarded
    def remove_segments(self, segments: list[Segment], now_ms: int) -> None:
        """Take segments out of the log; their files get the suffix ``.deleted`` and go after file.delete.delay.ms."""
        log = self._log
        for segment in segments:
            self.bury(segment, now_ms)
            log.take_out(segment)
            log.disk.remove(snapshot_path(log.directory, segment.base_offset))
        log.cuts += 1

    def bury(self, segment: Segment, now_ms: int) -> None:
        """Rename a segment that is no longer part of the log and let its files go later."""
        log = self._log
        segment.change_suffix(DELETED_SUFFIX)
        log.dirty_names = True
        log.garbage.append((now_ms + log.config.file_delete_delay_ms, segment))

    @guarded
    def sweep(self, now_ms: int) -> None:
        """Delete the files of buried segments whose time has come."""
        log = self._log
        while log.garbage and log.garbage[0][0] <= now_ms:
            log.garbage.pop(0)[1].remove(later=True)


class Log(LogState):
    """A partition's records on disk, with what follows from them.

    The state is the log's base class, and not one more part: the parts are given the state alone, so none of them can
    call another behind its back, while every request reads offsets, settings and failures from the log itself. Held as
    a part, the state would cost each of these reads another attribute or the call of a property.
    """

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
        may_have_holes: bool = False,
        point_is_known: bool = True,
        on_failure: Callable[[LogState, DiskFailed], None] | None = None,
        checkpoint: Callable[[], None] | None = None,
    ) -> Log:
        """Load the directory (made if absent), recovering it unless it was closed ``clean``. Raises DiskError.

        ``may_have_holes``: it was compacted, or its leader's log was, whatever the topic's settings say now.
        ``point_is_known``: False where the recovery points of a used directory are missing or damaged.
        """
        settings = settings or LogSettings()
        loaded = recovery.load_log(
            disk,
            directory,
            topic_partition,
            ProducerState(expiration_ms=settings.producer_expiration_ms, max_producers=settings.max_producers),
            now_ms=now_ms,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            index_interval_bytes=config.index_interval_bytes,
            may_have_holes=may_have_holes
            or topic_partition.topic in INTERNAL_TOPICS
            or "compact" in config.cleanup_policy,
            point_is_known=point_is_known,
        )
        log = cls(
            disk, directory, topic_partition, config, settings, loaded, topic_id=topic_id,
            recovery_point=recovery_point, now_ms=now_ms, high_watermark=high_watermark, on_failure=on_failure,
            checkpoint=checkpoint,
        )  # fmt: skip
        if config.fleetlog_dedup != "none":
            log.deduplicate(config)
        return log

    __slots__ = ("appender", "flusher", "reader", "truncation")

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.flusher = Flusher(self)
        self.appender = Appender(self, self.flusher)
        self.reader = LogReader(self)
        self.truncation = Truncation(self)

    def write_metadata(self, topic_id: uuid.UUID) -> None:
        """Write ``partition.metadata``; it reaches the disk in the background. Raises DiskError.

        Without its file, only the states that count on a log tell it from one of a deleted topic of the same name.
        """
        path = f"{self.directory}/{PARTITION_METADATA}"
        self.disk.replace(path, encode_partition_metadata(topic_id), durable=False)
        self.disk.sync_later([path, self.directory])
        self.topic_id = topic_id

    def close(self, *, clean: bool = True) -> None:
        """Close the files; when ``clean``, with everything flushed and a producer snapshot at the end.

        Raises DiskFull, LogOffline.
        """
        if self.offline:
            raise LogOffline(self.directory)
        if clean and self.flusher.settle():
            self.flusher.flush()
        self.abandon()

    def abandon(self) -> None:
        """Give all descriptors back without writing anything. Its methods raise LogOffline from now on.

        A read would open the files by their paths again, where there may be another log by then.
        """
        self.offline = True
        for segment in self.segments:
            segment.log.close()
            segment.offset_index.close()
            segment.time_index.close()
            segment.txn_index.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic_partition}, [{self.log_start_offset}, {self.log_end_offset}))"
