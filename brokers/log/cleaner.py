"""What makes logs smaller: retention by time, size and start offset; for internal topics, one record per key."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from _native.errors import CorruptBatch
from brokers.log.compaction import Compaction, Overtaken
from brokers.log.failures import DiskFailed, LogOffline
from brokers.log.files import DiskPort
from brokers.log.log import Log
from brokers.log.segment import Segment
from wire.compression import CodecError
from wire.types import TopicPartition

logger = logging.getLogger(__name__)

STEP_BYTES = 512 * 1024
ROLL_BYTES = 8 * 1024 * 1024


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
    log.truncation.remove_segments(due, now_ms)
    log.truncation.raise_start(log.segments.first.base_offset)
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


class Cleaner:
    """Keeps the last record of each key in the internal topics, a bounded step at a time."""

    def __init__(self, disk: DiskPort, logs: Mapping[TopicPartition, Log]) -> None:
        self._disk = disk
        self._logs = logs
        self._cleaned: dict[TopicPartition, int] = {}
        self._skipped: set[TopicPartition] = set()
        self._job: Compaction | None = None
        self._steps: Iterator[int] = iter(())

    def restore(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Take over the progress from before the restart."""
        self._cleaned.update(offsets)

    def progress(self) -> dict[TopicPartition, int]:
        """First offset not yet cleaned, per partition."""
        return dict(self._cleaned)

    def forget(self, tp: TopicPartition) -> None:
        """The partition is deleted."""
        self._cleaned.pop(tp, None)
        if self._job is not None and self._job.log.topic_partition == tp:
            self._stop()

    def step(self, now_ms: int, budget_bytes: int = STEP_BYTES) -> bool:
        """Do a bounded piece of work; returns whether there was any. Raises DiskFull or LogOffline, having stopped."""
        if self._job is None and not self._begin(now_ms):
            return False
        job = self._job
        assert job is not None
        done = 0
        try:
            while done < budget_bytes:
                done += next(self._steps)
        except StopIteration:
            tp = job.log.topic_partition
            self._cleaned[tp] = job.end
            self._job = None
            logger.info("%s: compacted %d bytes to %d", tp, job.bytes_before, job.bytes_after)
        except Overtaken:
            self._job = None
        except DiskFailed as wrong:
            self._job = None
            job.log.fail(wrong)
            raise LogOffline(job.log.directory, str(wrong)) from wrong
        except (CorruptBatch, CodecError) as wrong:
            self._job = None
            self._skipped.add(job.log.topic_partition)
            logger.error("%s is not compacted: %s", job.log.directory, wrong)
        except Exception:
            self._job = None
            raise
        return True

    def _stop(self) -> None:
        self._job = None
        self._steps = iter(())

    def _begin(self, now_ms: int) -> bool:
        """Choose the log with the largest dirty share, if one is dirty enough."""
        best: tuple[float, Log, int, int] | None = None
        for log in self._logs.values():
            if log.is_internal and not log.offline and log.topic_partition not in self._skipped:
                self._roll_early(log, now_ms)
                found = self._dirt(log)
                if found is not None and (best is None or found[0] > best[0]):
                    best = (found[0], log, found[1], found[2])
        if best is None:
            return False
        _, log, dirty_from, end = best
        self._job = Compaction(self._disk, log, dirty_from, end, now_ms)
        self._steps = self._job.run()
        return True

    def _roll_early(self, log: Log, now_ms: int) -> None:
        """Close an active segment that outweighs all others: what isn't closed can't be compacted, only loaded."""
        active = log.segments.active
        if active.size >= ROLL_BYTES and active.size > log.size_bytes - active.size:
            log.appender.roll(now_ms)

    def _dirt(self, log: Log) -> tuple[float, int, int] | None:
        """(share, first dirty offset, end) if the log is worth a pass."""
        cleaned = self._cleaned.get(log.topic_partition, 0)
        stable = log.last_stable_offset
        end = dirty_from = log.segments.first.base_offset
        clean_bytes = dirty_bytes = 0
        for index, segment in enumerate(log.segments):
            after = log.segments.end_of(index, log.log_end_offset)
            if segment is log.segments.active or after > stable:
                break
            end = after
            if after <= cleaned:
                clean_bytes += segment.size
                dirty_from = after
            else:
                dirty_bytes += segment.size
        if not dirty_bytes or dirty_bytes < log.config.min_cleanable_dirty_ratio * (clean_bytes + dirty_bytes):
            return None
        return dirty_bytes / (clean_bytes + dirty_bytes), dirty_from, end
