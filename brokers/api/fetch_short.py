"""The short way of a Fetch: one partition that this broker leads, no session, and records that are there now.

It is what most consumers ask for that are busy. Whatever else there is to look at, it answers nothing, and the general
way (``fetch``) begins from the start; where it answers, it answers the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokers.api.fetch_reads import CONSUMER, READ_COMMITTED, ZSTD_VERSION, aborted_in
from brokers.api.fetch_sessions import FINAL_EPOCH
from brokers.cluster.partition import Serve
from brokers.log import DiskError, LogOffline, OffsetOutOfRange
from brokers.model import TopicPartition
from wire.errors import ErrorCode
from wire.hot import FetchOutcome, FetchPart, FetchRequest

if TYPE_CHECKING:
    from brokers.api.base import Services

Found = tuple[FetchPart, FetchOutcome]

_new = tuple.__new__
"""A named tuple's own constructor is a Python function."""


def short_fetch(request: FetchRequest, services: Services, version: int) -> Found | None:
    """The only partition with what was read, or None: ask the general way."""
    replica_id, _, wait_ms, min_bytes, max_bytes, isolation_level, session_id, epoch, parts, _, rack_id, _ = request
    if len(parts) != 1 or epoch != FINAL_EPOCH or session_id or replica_id != CONSUMER:
        return None
    part = parts[0]
    topic, topic_id, index, leader_epoch, offset, last_epoch, _, part_bytes, _ = part
    config = services.config
    if last_epoch >= 0 or version < ZSTD_VERSION or (rack_id and config.replica_selector_class):
        return None
    if topic_id is not None:
        topic = services.view.topic_names.get(topic_id)
    partition = services.replicas.get(_new(TopicPartition, (topic, index)))
    if (
        partition is None
        or (0 <= leader_epoch != partition.leader_epoch)
        or (topic_id is not None and partition.topic_id != topic_id)
        or partition.may_serve(Serve.FETCH) is not ErrorCode.NONE
    ):
        return None
    log = partition.log
    end_offset = log.high_watermark
    stable = log.last_stable_offset
    committed_only = isolation_level == READ_COMMITTED
    if offset >= (stable if committed_only else end_offset):
        return None
    if part_bytes < max_bytes:
        max_bytes = part_bytes
    if config.fetch_max_bytes < max_bytes:
        max_bytes = config.fetch_max_bytes
    limit = stable if committed_only else end_offset
    found = log.read_on(offset, max_bytes, limit)
    if found is None:
        try:
            found = log.read(offset, max_bytes if max_bytes > 0 else 0, end_offset=limit)
        except (OffsetOutOfRange, LogOffline, DiskError):
            return None
    slices, size, _, _ = found
    if not size or (size < min_bytes and wait_ms > 0):
        found.release()
        return None
    aborted: list[tuple[int, int]] | None = None
    if committed_only:
        try:
            aborted = aborted_in(log, found)
        except (LogOffline, DiskError):
            found.release()
            return None
    outcome = _new(
        FetchOutcome, (ErrorCode.NONE, end_offset, stable, log.log_start_offset, aborted, slices, size, None, None, -1)
    )
    return part, outcome
