"""What the logs of a broker need from time to time: retention, compaction, flush by age, expiry, checkpoints, removals.

Each tick does a little of it, so that it never holds the loop for long. Retention deletes old segments by time, size
and start offset.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.log.background_verify import BackgroundVerify
from fleetlog.brokers.log.compaction.cleaner import Cleaner
from fleetlog.brokers.log.directories.checkpointing import Checkpoints
from fleetlog.brokers.log.directories.directories import LogDirectory
from fleetlog.brokers.log.disk.failures import DiskFailed, DiskFull, LogOffline
from fleetlog.brokers.log.disk.files import DiskPort
from fleetlog.brokers.log.log import Log
from fleetlog.brokers.log.segment import Segment
from fleetlog.wire.compression import CodecError
from fleetlog.wire.types import TopicPartition

logger = logging.getLogger(__name__)


def delete_old_segments(log: Log, now_ms: int) -> int:
    """Delete segments that ``retention.ms``, ``retention.bytes`` or the log's start offset allow. Returns how many.

    Only segments wholly below the high watermark go. If all of them are due, a new empty one is begun first, so that
    the log keeps its end. Topics that are only compacted lose nothing but what DeleteRecords released. Raises DiskFull,
    LogOffline.
    """
    if log.offline:
        raise LogOffline(log.directory)
    try:
        due = _due(log, now_ms)
    except (DiskFailed, CorruptBatch, CodecError) as wrong:
        raise log.failure(wrong) from wrong
    if not due:
        return 0
    if len(due) == len(log.segments):
        log.appender.roll(now_ms)
    log.truncation.raise_start(log.segments.end_of(len(due) - 1, log.log_end_offset))
    log.truncation.remove_segments(due, now_ms)
    logger.info("%s: deleted %d segment(s), starts at %d", log.topic_partition, len(due), log.log_start_offset)
    return len(due)


def _due(log: Log, now_ms: int) -> list[Segment]:
    config = log.config
    # The coordinators' topics are their memory: whatever their settings say, age and size delete nothing there.
    by_policy = "delete" in config.cleanup_policy and not log.is_internal
    excess = log.size_bytes - config.retention_bytes if by_policy and config.retention_bytes >= 0 else 0
    due: list[Segment] = []
    for index, segment in enumerate(log.segments):
        end = log.segments.end_of(index, log.log_end_offset)
        active = segment is log.segments.active
        if end > log.high_watermark or (active and not segment.size):
            break
        released = end <= log.log_start_offset and not active
        too_old = (
            by_policy and config.retention_ms >= 0 and now_ms - segment.retention_timestamp() > config.retention_ms
        )
        too_much = excess >= segment.size > 0
        if not (released or too_old or too_much):
            break
        excess -= segment.size
        due.append(segment)
    return due


_PRODUCER_EXPIRY_CHECK_MS = 600_000
_RELAXATION_MS = 30_000
_RETENTION_LOGS_PER_TICK = 500
_FLUSH_INTERVAL_MS = 1000


class Upkeep:
    """See the module. ``logs`` are those of the store, as they are now; ``end_syncs`` looks at those under way."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: DiskPort,
        logs: Mapping[TopicPartition, Log],
        directories: Sequence[LogDirectory],
        *,
        cleaner: Cleaner,
        verify: BackgroundVerify,
        checkpoints: Checkpoints,
        end_syncs: Callable[[], None],
    ) -> None:
        self._config = config
        self._disk = disk
        self._logs = logs
        self._directories = directories
        self._cleaner = cleaner
        self._verify = verify
        self._checkpoints = checkpoints
        self._end_syncs = end_syncs
        self._retention_queue: deque[Log] = deque()
        self._next_retention_ms = -1
        self._next_checkpoint_ms = -1
        self._next_producer_expiry_ms = -1
        self._next_relaxation_ms = -1

    def tick(self, now_ms: int, late_ms: float = 0) -> None:
        """A little of it: call about every second. Retention, compaction, flush by age, expiry and checkpoints.

        ``late_ms`` is how late the loop has run its timers since: compaction goes slower if that is much.
        """
        config = self._config
        if self._next_retention_ms < 0:
            self._next_retention_ms = now_ms + config.log_retention_check_interval_ms
            self._next_checkpoint_ms = now_ms + config.log_flush_offset_checkpoint_interval_ms
            self._next_producer_expiry_ms = now_ms + _PRODUCER_EXPIRY_CHECK_MS
            self._next_relaxation_ms = now_ms + _RELAXATION_MS
        if now_ms >= self._next_retention_ms:
            self._next_retention_ms = now_ms + config.log_retention_check_interval_ms
            self._retention_queue = deque(self._logs.values())
        for _ in range(min(len(self._retention_queue), _RETENTION_LOGS_PER_TICK)):
            self._enforce_retention(self._retention_queue.popleft(), now_ms)
        if now_ms >= self._next_producer_expiry_ms:
            self._next_producer_expiry_ms = now_ms + _PRODUCER_EXPIRY_CHECK_MS
            for log in list(self._logs.values()):
                log.producers.expire(now_ms)
                if not log.offline:
                    self._quietly(partial(log.flusher.trim_if_idle, now_ms - _PRODUCER_EXPIRY_CHECK_MS))
        self._quietly(lambda: self._cleaner.step(now_ms, late_ms=late_ms))
        self._verify.step()
        for log in list(self._logs.values()):
            if log.offline:
                continue
            if log.garbage:
                self._quietly(lambda log=log: log.truncation.sweep(now_ms))  # type: ignore[misc]
            if log.pending_flush is not None:
                self._quietly(log.flusher.end_flush)
            dirty = log.unflushed_since_ms
            if dirty is not None:
                self._quietly(lambda log=log, dirty=dirty: self._flush_if_due(log, now_ms - dirty))  # type: ignore[misc]
        self._remove_doomed(now_ms)
        if now_ms >= self._next_relaxation_ms:
            self._next_relaxation_ms = now_ms + _RELAXATION_MS
            self._disk.relax()
        self._end_syncs()
        self._checkpoints.resume()
        if now_ms >= self._next_checkpoint_ms:
            self._next_checkpoint_ms = now_ms + config.log_flush_offset_checkpoint_interval_ms
            self._checkpoints.begin()

    def resume_cleaning(self, now_ms: int) -> bool:
        """Between two ticks, as often as one likes: a pass of compaction continues as far as its budget allows.

        Returns whether that was of use now.
        """
        return bool(self._quietly(lambda: self._cleaner.resume(now_ms)))

    def _flush_if_due(self, log: Log, dirty_ms: int) -> None:
        due_ms = log.config.flush_ms
        if self._config.log_flush_policy == "interval":
            due_ms = min(due_ms, _FLUSH_INTERVAL_MS)
        if dirty_ms >= due_ms:
            log.flusher.begin_flush(active=True)
        elif log.segments.active.base_offset > log.recovery_point:
            # Closed segments are fsynced soon, so that a crash has only the active one to check.
            log.flusher.begin_flush(active=False)

    def _quietly(self, action: Callable[[], object]) -> object:
        """Upkeep finds a full or failed disk: a line in the log, None, and another try the next time."""
        try:
            return action()
        except DiskFull as wrong:
            logger.warning("upkeep postponed: %s", wrong)
        except LogOffline as wrong:
            logger.error("%s", wrong)
        return None

    def _enforce_retention(self, log: Log, now_ms: int) -> int:
        tp = log.topic_partition
        if log.offline or self._logs.get(tp) is not log or self._cleaner.is_cleaning(tp):
            return 0
        try:
            return delete_old_segments(log, now_ms)
        except DiskFull as wrong:
            logger.warning("%s: retention postponed: %s", log.topic_partition, wrong)
        except LogOffline as wrong:
            logger.error("%s", wrong)
        return 0

    def _remove_doomed(self, now_ms: int) -> None:
        for directory in self._directories:
            while not directory.offline and directory.doomed and directory.doomed[0][0] <= now_ms:
                self._disk.remove_tree(directory.doomed.pop(0)[1], later=True)
            if not directory.offline and directory.strays:
                self._quietly(lambda directory=directory: directory.forget_removed_strays(self._disk))  # type: ignore[misc]
