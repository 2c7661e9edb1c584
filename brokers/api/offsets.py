"""ListOffsets (2), DeleteRecords (21) and OffsetForLeaderEpoch (23): questions and orders about a log's ends."""

from __future__ import annotations

from typing import Any, NamedTuple

from brokers.api.base import Context, Done
from brokers.cluster.partition import Partition, Serve
from brokers.log import DiskError, LogOffline
from brokers.model import INTERNAL_TOPICS, TopicPartition
from wire.errors import ErrorCode
from wire.messages import DeleteRecordsResponse, ListOffsetsResponse, OffsetForLeaderEpochResponse

READ_COMMITTED = 1
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
_FIRST_VERSION = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
HIGH_WATERMARK = -1


class Found(NamedTuple):
    """An answer of ListOffsets for one partition; -1 for what is not there."""

    error: ErrorCode = ErrorCode.NONE
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


def handle_list_offsets(request: Any, context: Context) -> Done:
    """The offset for a timestamp, or for one of the special ones. Read committed, the latest is the stable one; for a
    follower, which asks when its position is nowhere in our log, it is the log's end.
    """
    committed_only = request.isolation_level == READ_COMMITTED
    follower = request.replica_id >= 0
    seen: set[TopicPartition] = set()
    twice: set[TopicPartition] = set()
    for topic in request.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            (twice if tp in seen else seen).add(tp)
    topics = []
    for topic in request.topics:
        answers = []
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            found = (
                Found(ErrorCode.INVALID_REQUEST) if tp in twice else _list(tp, part, committed_only, follower, context)
            )
            answers.append(
                ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
                    partition_index=part.partition_index,
                    error_code=found.error,
                    timestamp=found.timestamp,
                    offset=found.offset,
                    leader_epoch=found.leader_epoch,
                )
            )
        topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return Done(ListOffsetsResponse(version=context.api_version, topics=topics))


def _list(tp: TopicPartition, part: Any, committed_only: bool, follower: bool, context: Context) -> Found:
    first_version = _FIRST_VERSION.get(part.timestamp, 1 if part.timestamp >= 0 else 32767)
    if context.api_version < first_version:
        return Found(ErrorCode.UNSUPPORTED_VERSION)
    partition = context.services.replicas.leader(tp, part.current_leader_epoch)
    if isinstance(partition, ErrorCode):
        return Found(partition)
    error = partition.may_serve(Serve.LIST_OFFSETS)
    if error is not ErrorCode.NONE:
        return Found(error)
    try:
        return _lookup(partition, part.timestamp, committed_only, follower)
    except (LogOffline, DiskError):
        return Found(ErrorCode.KAFKA_STORAGE_ERROR)


def _lookup(partition: Partition, timestamp: int, committed_only: bool, follower: bool) -> Found:
    log = partition.log
    limit = log.last_stable_offset if committed_only else log.high_watermark
    if follower:
        limit = log.log_end_offset
    if timestamp == LATEST:
        return Found(offset=limit, leader_epoch=partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return Found(offset=log.log_start_offset, leader_epoch=log.epochs.epoch_at(log.log_start_offset))
    if timestamp == LATEST_TIERED:
        return Found()  # nothing is tiered
    found = log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is None:
        return Found()
    offset, stamp, leader_epoch = found
    if offset >= limit:
        return Found()
    return Found(ErrorCode.NONE, stamp, offset, leader_epoch)


def handle_delete_records(request: Any, context: Context) -> Done:
    """Move the start of logs; -1 means up to the high watermark."""
    topics = []
    for topic in request.topics:
        answers = []
        for part in topic.partitions:
            error, low_watermark = _delete(TopicPartition(topic.name, part.partition_index), part.offset, context)
            answers.append(
                DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult(
                    partition_index=part.partition_index, low_watermark=low_watermark, error_code=error
                )
            )
        topics.append(DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=answers))
    return Done(DeleteRecordsResponse(version=context.api_version, topics=topics))


def _delete(tp: TopicPartition, offset: int, context: Context) -> tuple[ErrorCode, int]:
    if tp.topic in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, -1
    partition = context.services.replicas.leader(tp)
    if isinstance(partition, ErrorCode):
        return partition, -1
    error = partition.may_serve(Serve.LIST_OFFSETS)
    if error is not ErrorCode.NONE:
        return error, -1
    log = partition.log
    if "delete" not in log.config.cleanup_policy:
        return ErrorCode.POLICY_VIOLATION, -1
    target = log.high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= target <= log.high_watermark:
        return ErrorCode.OFFSET_OUT_OF_RANGE, -1
    try:
        log.delete_records_before(target)
    except (LogOffline, DiskError):
        return ErrorCode.KAFKA_STORAGE_ERROR, -1
    partition.committed()  # whoever waits below the new start is out of range now; followers delete, too
    return ErrorCode.NONE, log.log_start_offset


def handle_offset_for_leader_epoch(request: Any, context: Context) -> Done:
    """Where an epoch ended, so that a client finds out whether its position was truncated (KIP-320)."""
    topics = []
    for topic in request.topics:
        answers = []
        for part in topic.partitions:
            error, epoch, end_offset = _epoch_end(TopicPartition(topic.topic, part.partition), part, context)
            answers.append(
                OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset(
                    partition=part.partition, error_code=error, leader_epoch=epoch, end_offset=end_offset
                )
            )
        topics.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
    return Done(OffsetForLeaderEpochResponse(version=context.api_version, topics=topics))


def _epoch_end(tp: TopicPartition, part: Any, context: Context) -> tuple[ErrorCode, int, int]:
    partition = context.services.replicas.leader(tp, part.current_leader_epoch)
    if isinstance(partition, ErrorCode):
        return partition, -1, -1
    error = partition.may_serve(Serve.LIST_OFFSETS)
    if error is not ErrorCode.NONE:
        return error, -1, -1
    epoch, end_offset = partition.log.epoch_end_offset(part.leader_epoch)
    return ErrorCode.NONE, epoch, end_offset
