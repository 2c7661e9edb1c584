"""Committed offsets: commit, commit in a transaction, fetch, delete, expiry.

Sources: KIP-211 (offsets expire only without a subscriber), KIP-447 (transactional commits are fenced by member and
generation; a reader may require stable offsets, without pending transactions), KIP-496 (OffsetDelete).
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from fleetlog.brokers.groups import records
from fleetlog.brokers.groups.consumer.group import ConsumerGroup, tombstones
from fleetlog.brokers.groups.members import CONSUMER_PROTOCOL_TYPE, TABLE, Group, GroupState, Turn, coordinator_error
from fleetlog.brokers.groups.records import CommittedOffset
from fleetlog.brokers.groups.requests import (
    CommitAnswer,
    FetchedOffset,
    FetchRequest,
    GroupSettings,
    OffsetCommitRequest,
)
from fleetlog.txn.commands import Result
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

LAST_MS = 2**63 - 1
"""The latest timestamp of a record: an old client's infinite retention ends there."""


def commit_error(group: Group | None, request: OffsetCommitRequest, transactional: bool) -> ErrorCode:
    """The error of a commit; NONE also for simple commits to a group that does not exist."""
    anonymous = request.generation < 0 and not request.member_id and request.instance_id is None
    if group is None or group.state is GroupState.DEAD:
        if request.generation < 0:
            return ErrorCode.NONE
        return ErrorCode.GROUP_ID_NOT_FOUND if request.knows_missing_groups else ErrorCode.ILLEGAL_GENERATION
    if request.generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if anonymous:
        # Before TxnOffsetCommit v3 a transactional commit has no membership: its producer id is fenced instead.
        return ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_member(request.member_id, request.instance_id)
    if error is ErrorCode.NONE and request.generation != group.generation:
        error = ErrorCode.ILLEGAL_GENERATION
    if error is ErrorCode.NONE and not transactional:
        error = TABLE[group.state].commit
    return error


def commit_as_member(
    consumer: ConsumerGroup,
    request: OffsetCommitRequest,
    producer: tuple[int, int] | None,
    turn: Turn,
    settings: GroupSettings,
) -> Result:
    """Commit offsets of a group of the consumer protocol, with ``producer`` in its transaction.

    A commit between an assignment and the member's next heartbeat is taken, partition by partition (KIP-1251). It is
    no heartbeat.
    """
    errors = consumer.commit_errors(request, producer is not None)
    if isinstance(errors, ErrorCode):
        if errors is not ErrorCode.NONE:
            return turn.result(_all(request, errors))
        errors = {}
    stale = errors
    result = _write(
        request._replace(offsets=tuple(row for row in request.offsets if row[0] not in stale)), turn, settings
    )
    result.response = {**result.response, **stale}
    result.producer = producer
    return result


def commit_offsets(group: Group | None, request: OffsetCommitRequest, turn: Turn, settings: GroupSettings) -> Result:
    """Commit offsets; the answer comes when they are replicated. A member's commit counts as a heartbeat."""
    error = commit_error(group, request, transactional=False)
    if error is not ErrorCode.NONE:
        return turn.result(_all(request, error))
    if group is not None and request.member_id in group.members:
        group.members[request.member_id].gone = False
        turn.keep_alive(group, group.members[request.member_id])
    return _write(request, turn, settings)


def commit_transactional(
    group: Group | None, request: OffsetCommitRequest, producer: tuple[int, int], turn: Turn, settings: GroupSettings
) -> Result:
    """Commit offsets as part of the producer's transaction: they take effect with its commit marker."""
    error = commit_error(group, request, transactional=True)
    if error is not ErrorCode.NONE:
        return turn.result(_all(request, error))
    result = _write(request, turn, settings)
    result.producer = producer
    return result


def _write(request: OffsetCommitRequest, turn: Turn, settings: GroupSettings) -> Result:
    answer: CommitAnswer = {}
    now_ms = turn.now.wall_ms
    expiry = min(now_ms + request.retention_ms, LAST_MS) if request.retention_ms >= 0 else -1
    for partition, asked in request.offsets:
        if _is_too_large(asked.metadata, settings.offset_metadata_max_bytes):
            answer[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            continue
        commit_ms = asked.commit_timestamp_ms if asked.commit_timestamp_ms >= 0 else now_ms
        committed = asked._replace(commit_timestamp_ms=commit_ms, expire_timestamp_ms=expiry)
        turn.records.append(records.offset_record(request.group_id, partition, committed))
        answer[partition] = ErrorCode.NONE
    result = turn.result(answer)
    result.failed = lambda error, now: Result(
        response=_all(request, coordinator_error(error, ErrorCode.INVALID_COMMIT_OFFSET_SIZE))
    )
    return result


def _is_too_large(metadata: str, most: int) -> bool:
    """Kafka counts characters as Java has them (UTF-16), though the setting speaks of bytes."""
    if len(metadata) <= min(most, records.MAX_STRING_BYTES) and metadata.isascii():
        return False
    return len(metadata.encode("utf-16-le")) // 2 > most or len(metadata.encode()) > records.MAX_STRING_BYTES


def _all(request: OffsetCommitRequest, error: ErrorCode) -> CommitAnswer:
    return {partition: error for partition, _ in request.offsets}


# --- reading ----------------------------------------------------------------------------------------------------


def fetch(group: Group | None, request: FetchRequest) -> tuple[FetchedOffset, ...]:
    """Committed offsets; with ``require_stable``, UNSTABLE_OFFSET_COMMIT for partitions in an open transaction."""
    if group is None:
        return tuple(FetchedOffset(partition, None) for partition in request.partitions or ())
    unstable = set().union(*group.pending_offsets.values()) if request.require_stable else set()
    wanted = request.partitions
    if wanted is None:
        wanted = tuple(sorted({*group.offsets, *unstable}))
    answers = []
    for partition in wanted:
        if partition in unstable:
            answers.append(FetchedOffset(partition, None, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            continue
        committed = group.offsets.get(partition)
        answers.append(FetchedOffset(partition, committed[1] if committed else None))
    return tuple(answers)


# --- deletion and expiry ----------------------------------------------------------------------------------------


def delete_offsets(
    group: Group | None, consumer: ConsumerGroup | None, partitions: tuple[TopicPartition, ...], turn: Turn
) -> Result:
    """Delete offsets of topics without a subscriber in the group; answers an error code or a dict per partition."""
    if group is None and consumer is None:
        return turn.result(ErrorCode.GROUP_ID_NOT_FOUND)
    group = group or Group(consumer.id if consumer is not None else "")
    if group.members and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return turn.result(ErrorCode.NON_EMPTY_GROUP)
    answer: CommitAnswer = {}
    for partition in partitions:
        if group.subscribes_to(partition.topic) or (consumer is not None and consumer.subscribes_to(partition.topic)):
            answer[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            continue
        answer[partition] = ErrorCode.NONE
        if _known(group, partition):
            turn.records.append(records.offset_tombstone(group.id, partition))
    return turn.result(answer)


def _known(group: Group, partition: TopicPartition) -> bool:
    return partition in group.offsets or any(partition in pending for pending in group.pending_offsets.values())


def delete_group(group: Group | None, consumer: ConsumerGroup | None, turn: Turn) -> Result:
    """Delete an empty group with its offsets; answers an error code."""
    if (group is None or group.state is GroupState.DEAD) and consumer is None:
        return turn.result(ErrorCode.GROUP_ID_NOT_FOUND)
    if (group is not None and group.state is not GroupState.EMPTY) or (consumer is not None and consumer.members):
        return turn.result(ErrorCode.NON_EMPTY_GROUP)
    if group is not None:
        partitions = {*group.offsets}.union(*group.pending_offsets.values())
        turn.records += [records.offset_tombstone(group.id, partition) for partition in sorted(partitions)]
    if consumer is not None:
        turn.records += tombstones(consumer)
    elif group is not None:
        turn.records.append(records.group_tombstone(group.id))
    return turn.result(ErrorCode.NONE)


def delete_topic_offsets(group: Group, topics: Mapping[str, Container[bytes]], turn: Turn) -> None:
    """Tombstones for offsets of deleted topics, given with their ids (offsets of open transactions included).

    A partition keeps its offsets if one of them is of another topic of the name.
    """
    doomed: dict[TopicPartition, bool] = {}
    for offsets in (group.offsets, *group.pending_offsets.values()):
        for partition, (_, committed) in offsets.items():
            if partition.topic in topics:
                gone = committed.topic_id is None or committed.topic_id in topics[partition.topic]
                doomed[partition] = gone and doomed.get(partition, True)
    turn.records += [records.offset_tombstone(group.id, partition) for partition in sorted(doomed) if doomed[partition]]


def expire(group: Group, consumer: ConsumerGroup | None, turn: Turn, settings: GroupSettings) -> None:
    """Tombstones for expired offsets, and for the group if nothing of it is left."""
    expired = [p for p, (_, committed) in group.offsets.items() if _expired(group, p, committed, turn, settings)]
    if consumer is not None:
        subscribed = {p.topic for p in expired if consumer.subscribes_to(p.topic)}
        expired = [p for p in expired if p.topic not in subscribed]
    turn.records += [records.offset_tombstone(group.id, partition) for partition in expired]
    left = len(group.offsets) - len(expired) or group.pending_offsets or group.pending_members
    if consumer is not None:
        turn.records += tombstones(consumer) if not left and not consumer.members else []
    elif group.state is GroupState.EMPTY and not left and (expired or group.durable is not None):
        turn.records.append(records.group_tombstone(group.id))


def _expired(
    group: Group, partition: TopicPartition, committed: CommittedOffset, turn: Turn, settings: GroupSettings
) -> bool:
    since_ms = _retention_starts(group, committed)
    if since_ms is None or group.subscribes_to(partition.topic):
        return False
    if any(partition in pending for pending in group.pending_offsets.values()):
        return False
    if committed.expire_timestamp_ms >= 0:
        return turn.now.wall_ms >= committed.expire_timestamp_ms
    return turn.now.wall_ms - since_ms >= settings.offsets_retention_ms


def _retention_starts(group: Group, committed: CommittedOffset) -> int | None:
    """The start of an offset's retention; None while it does not expire."""
    if group.protocol_type is None:
        return committed.commit_timestamp_ms
    if group.state is GroupState.EMPTY:
        return group.state_timestamp_ms if group.state_timestamp_ms >= 0 else committed.commit_timestamp_ms
    if (
        group.protocol_type == CONSUMER_PROTOCOL_TYPE
        and group.state is GroupState.STABLE
        and group.subscribed is not None
    ):
        return committed.commit_timestamp_ms
    return None
