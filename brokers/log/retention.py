"""What makes logs smaller by deleting old segments: retention by time, size and start offset."""

from __future__ import annotations

import logging

from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log.failures import DiskFailed, LogOffline
from fleetlog.brokers.log.log import Log
from fleetlog.brokers.log.segment import Segment
from fleetlog.wire.compression import CodecError

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
