"""Handlers of the group APIs (keys 8, 9, 11 to 16, 42, 47): from messages to a shard's commands and back.

A shard answers in plain values; here they become messages of the version asked for. Every wait is a ``Park`` with a
deadline of its own beside the shard's timers, so that a client gets an answer also when a shard cannot give one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import wire.messages as m
from brokers.api.base import Context, Done, Outcome, Park
from brokers.api.waiting import when_done
from brokers.coordinators.runtime import CoordinatorRuntime, Pending
from brokers.groups.records import CommittedOffset
from brokers.groups.requests import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    CommitRequest,
    Description,
    FetchedOffset,
    FetchRequest,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    Leaver,
    Protocol,
    SyncAnswer,
    SyncRequest,
)
from brokers.groups.shard import GroupShard
from txn.commands import Command, Failed
from wire.errors import ErrorCode
from wire.types import TopicPartition

ANSWER_TIMEOUT_MS = 5_000
"""Kafka's offsets.commit.timeout.ms: how long a write to __consumer_offsets may take."""
JOIN_MARGIN_MS = 10_000
NAME_BYTES_MAX = 30_000
"""Names go into strings of at most 32,767 bytes, some of them with a UUID behind them."""
GROUP_OPERATIONS = frozenset({3, 6, 8, 10, 11})
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: all that can be done to a group (no ACLs yet)."""


# --- waiting ----------------------------------------------------------------------------------------------------


def _when_all_done(pendings: list[Pending], render: Callable[[list[Any]], Any]) -> Outcome:
    """The rendered answers of several groups; those missing after the deadline have failed."""
    answers: list[Any] = [Failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)] * len(pendings)
    missing = len(pendings)
    if not pendings:
        return Done(render(answers))

    def abandon() -> None:
        for pending in pendings:
            pending.abandon()

    def expired() -> Any:
        abandon()
        return render(answers)

    park = Park(ANSWER_TIMEOUT_MS, expired, on_drop=abandon)

    def take(index: int, response: Any) -> None:
        nonlocal missing
        answers[index] = response
        missing -= 1
        if missing == 0:
            park.complete(render(answers))

    for index, pending in enumerate(pendings):
        pending.on_done(partial(take, index))
    return park


def _bad_group_id(group_id: str, may_be_empty: bool = False) -> bool:
    return (not group_id and not may_be_empty) or len(group_id.encode()) > NAME_BYTES_MAX


def _too_long(*names: str | None) -> bool:
    return any(name is not None and len(name.encode()) > NAME_BYTES_MAX for name in names)


def _error(answer: Any) -> ErrorCode:
    """The error code of an answer that is nothing else."""
    return answer.error if isinstance(answer, Failed) else ErrorCode(answer)


# --- membership -------------------------------------------------------------------------------------------------


def handle_join_group(request: Any, context: Context) -> Outcome:
    """JoinGroup: parks until the join phase of the rebalance completes."""
    version = context.api_version

    def render(answer: Any) -> Any:
        if isinstance(answer, Failed):
            answer = JoinAnswer(answer.error, request.member_id)
        return _join_response(answer, version)

    refused = _join_refusal(request, context)
    if refused is not ErrorCode.NONE:
        return Done(render(Failed(refused)))
    # Version 0 has one timeout for both.
    rebalance_timeout_ms = request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms
    command = JoinRequest(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        context.client_id,
        f"/{context.connection.peer_host}",
        request.protocol_type,
        tuple(Protocol(p.name, bytes(p.metadata)) for p in request.protocols),
        request.session_timeout_ms,
        rebalance_timeout_ms,
        "" if request.member_id else str(uuid.uuid4()),  # asking the system for 16 bytes is 2 % of a rebalance
        requires_known_member_id=version >= 4,
        supports_skipping_assignment=version >= 9,
    )
    pending = context.services.groups.submit(
        request.group_id, lambda shard, now, ticket: shard.join(command, now, ticket)
    )
    longest_ms = max(rebalance_timeout_ms, NEW_MEMBER_JOIN_TIMEOUT_MS) + JOIN_MARGIN_MS
    return when_done(pending, render, longest_ms, ErrorCode.REBALANCE_IN_PROGRESS)


def _join_refusal(request: Any, context: Context) -> ErrorCode:
    if _bad_group_id(request.group_id):
        return ErrorCode.INVALID_GROUP_ID
    names = [request.protocol_type, request.group_instance_id, context.client_id, request.member_id]
    if _too_long(*names, *(p.name for p in request.protocols)) or request.group_instance_id == "":
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _join_response(answer: JoinAnswer, version: int) -> Any:
    protocol = answer.protocol if version >= 7 else answer.protocol or ""
    member = m.JoinGroupResponse.JoinGroupResponseMember
    return m.JoinGroupResponse(
        version=version,
        throttle_time_ms=0,
        error_code=int(answer.error),
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            member(version=version, member_id=j.member_id, group_instance_id=j.instance_id, metadata=j.metadata)
            for j in answer.members
        ],
    )


def handle_sync_group(request: Any, context: Context) -> Outcome:
    """SyncGroup: parks until the leader's assignment is committed."""
    version = context.api_version

    def render(answer: Any) -> Any:
        if isinstance(answer, Failed):
            answer = SyncAnswer(answer.error)
        return m.SyncGroupResponse(
            version=version,
            throttle_time_ms=0,
            error_code=int(answer.error),
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol,
            assignment=answer.assignment,
        )

    if _bad_group_id(request.group_id):
        return Done(render(Failed(ErrorCode.INVALID_GROUP_ID)))
    if version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return Done(render(Failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)))
    command = SyncRequest(
        request.group_id,
        request.generation_id,
        request.member_id,
        request.group_instance_id,
        request.protocol_type if version >= 5 else None,
        request.protocol_name if version >= 5 else None,
        tuple((a.member_id, bytes(a.assignment)) for a in request.assignments),
    )
    pending = context.services.groups.submit(
        request.group_id, lambda shard, now, ticket: shard.sync(command, now, ticket)
    )
    longest_ms = NEW_MEMBER_JOIN_TIMEOUT_MS + JOIN_MARGIN_MS
    return when_done(pending, render, longest_ms, ErrorCode.REBALANCE_IN_PROGRESS)


def handle_heartbeat(request: Any, context: Context) -> Outcome:
    """Heartbeat."""

    def render(answer: Any) -> Any:
        return m.HeartbeatResponse(version=context.api_version, throttle_time_ms=0, error_code=int(_error(answer)))

    if _bad_group_id(request.group_id):
        return Done(render(ErrorCode.INVALID_GROUP_ID))
    command = HeartbeatRequest(request.group_id, request.generation_id, request.member_id, request.group_instance_id)
    pending = context.services.groups.submit(
        request.group_id, lambda shard, now, ticket: shard.heartbeat(command, now, ticket)
    )
    return when_done(pending, render, ANSWER_TIMEOUT_MS)


def handle_leave_group(request: Any, context: Context) -> Outcome:
    """LeaveGroup: one member before version 3, a batch from then on."""
    version = context.api_version
    if version >= 3:
        leavers = tuple(Leaver(one.member_id, one.group_instance_id) for one in request.members)
    else:
        leavers = (Leaver(request.member_id, None),)

    def render(answer: Any) -> Any:
        if isinstance(answer, Failed):
            answer = LeaveAnswer(answer.error)
        error = answer.error
        if version < 3 and error is ErrorCode.NONE:
            error = answer.members[0][1]
        member = m.LeaveGroupResponse.MemberResponse
        return m.LeaveGroupResponse(
            version=version,
            throttle_time_ms=0,
            error_code=int(error),
            members=[
                member(
                    version=version,
                    member_id=leaver.member_id,
                    group_instance_id=leaver.instance_id,
                    error_code=int(outcome),
                )
                for leaver, outcome in (answer.members if version >= 3 else ())
            ],
        )

    if _bad_group_id(request.group_id):
        return Done(render(Failed(ErrorCode.INVALID_GROUP_ID)))
    group_id = request.group_id
    pending = context.services.groups.submit(
        group_id, lambda shard, now, ticket: shard.leave(group_id, leavers, now, ticket)
    )
    return when_done(pending, render, ANSWER_TIMEOUT_MS)


# --- offsets ----------------------------------------------------------------------------------------------------


def handle_offset_commit(request: Any, context: Context) -> Outcome:
    """OffsetCommit: partitions of unknown topics are refused, the others committed together."""
    version = context.api_version
    known, refused = split_partitions(request, context)

    def render(answer: Any) -> Any:
        return commit_response(m.OffsetCommitResponse, request, version, _per_partition(answer, known, refused))

    if _bad_group_id(request.group_id, may_be_empty=True):
        return Done(render(Failed(ErrorCode.INVALID_GROUP_ID)))
    command = CommitRequest(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        known,
        request.retention_time_ms if 2 <= version <= 4 else -1,
        knows_missing_groups=version >= 9,
    )
    pending = context.services.groups.submit(
        request.group_id, lambda shard, now, ticket: shard.commit(command, now, ticket)
    )
    return when_done(pending, render, ANSWER_TIMEOUT_MS)


def split_partitions(
    request: Any, context: Context
) -> tuple[tuple[tuple[TopicPartition, CommittedOffset], ...], dict[TopicPartition, ErrorCode]]:
    """The offsets of an OffsetCommit or TxnOffsetCommit for partitions that exist, and the errors of the others."""
    known: list[tuple[TopicPartition, CommittedOffset]] = []
    refused: dict[TopicPartition, ErrorCode] = {}
    for topic in request.topics:
        for asked in topic.partitions:
            partition = TopicPartition(topic.name, asked.partition_index)
            if context.services.view.partition(partition) is None:
                refused[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            leader_epoch = asked.committed_leader_epoch
            committed = CommittedOffset(asked.committed_offset, leader_epoch, asked.committed_metadata or "")
            known.append((partition, committed))
    return tuple(known), refused


def _per_partition(
    answer: Any,
    known: tuple[tuple[TopicPartition, CommittedOffset], ...],
    refused: dict[TopicPartition, ErrorCode],
) -> dict[TopicPartition, ErrorCode]:
    if isinstance(answer, Failed):
        answer = {partition: answer.error for partition, _ in known}
    return {**refused, **answer}


def commit_response(response: Any, request: Any, version: int, errors: dict[TopicPartition, ErrorCode]) -> Any:
    """An OffsetCommit or TxnOffsetCommit response in the request's order."""
    name = response.__name__
    topic_class, partition_class = getattr(response, f"{name}Topic"), getattr(response, f"{name}Partition", None)
    if partition_class is None:
        partition_class = getattr(topic_class, f"{name}Partition")
    return response(
        version=version,
        throttle_time_ms=0,
        topics=[
            topic_class(
                version=version,
                name=topic.name,
                partitions=[
                    partition_class(
                        version=version,
                        partition_index=p.partition_index,
                        error_code=int(errors[TopicPartition(topic.name, p.partition_index)]),
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def handle_offset_fetch(request: Any, context: Context) -> Outcome:
    """OffsetFetch: one group before version 8, several from then on. A plain read of committed state."""
    version = context.api_version
    runtime = context.services.groups
    if version >= 8:
        fetched = [
            (group.group_id, _fetch_one(runtime, group.group_id, group.topics, request.require_stable))
            for group in request.groups
        ]
        return Done(
            m.OffsetFetchResponse(
                version=version,
                throttle_time_ms=0,
                groups=[_fetched_group(group_id, answer, version) for group_id, answer in fetched],
            )
        )
    answer = _fetch_one(runtime, request.group_id, request.topics, request.require_stable)
    if isinstance(answer, ErrorCode):
        error, offsets = answer, _failed_offsets(request.topics, answer if version < 2 else ErrorCode.NONE)
    else:
        error, offsets = ErrorCode.NONE, answer
    return Done(
        m.OffsetFetchResponse(
            version=version,
            throttle_time_ms=0,
            error_code=int(error),
            topics=_fetched_topics(
                m.OffsetFetchResponse.OffsetFetchResponseTopic,
                m.OffsetFetchResponse.OffsetFetchResponseTopic.OffsetFetchResponsePartition,
                offsets,
                version,
            ),
        )
    )


def _fetch_one(
    runtime: CoordinatorRuntime, group_id: str, topics: Any, require_stable: bool
) -> tuple[FetchedOffset, ...] | ErrorCode:
    if _bad_group_id(group_id, may_be_empty=True):
        return ErrorCode.INVALID_GROUP_ID
    shard: GroupShard | ErrorCode = runtime.shard_for(group_id)
    if isinstance(shard, ErrorCode):
        return shard
    partitions = None if topics is None else tuple(_named(topics))
    return shard.fetch(FetchRequest(group_id, partitions, bool(require_stable)))


def _named(topics: Iterable[Any]) -> Iterable[TopicPartition]:
    for topic in topics:
        for index in topic.partition_indexes:
            yield TopicPartition(topic.name, index)


def _failed_offsets(topics: Any, error: ErrorCode) -> tuple[FetchedOffset, ...]:
    return tuple(FetchedOffset(partition, None, error) for partition in _named(topics or ()))


def _fetched_group(group_id: str, answer: tuple[FetchedOffset, ...] | ErrorCode, version: int) -> Any:
    group = m.OffsetFetchResponse.OffsetFetchResponseGroup
    topic = group.OffsetFetchResponseTopics
    error, offsets = (answer, ()) if isinstance(answer, ErrorCode) else (ErrorCode.NONE, answer)
    return group(
        version=version,
        group_id=group_id,
        error_code=int(error),
        topics=_fetched_topics(topic, topic.OffsetFetchResponsePartitions, offsets, version),
    )


def _fetched_topics(
    topic_class: Any, partition_class: Any, offsets: Iterable[FetchedOffset], version: int
) -> list[Any]:
    by_topic: dict[str, list[Any]] = {}
    for partition, committed, error in offsets:
        found = committed or CommittedOffset(-1)
        by_topic.setdefault(partition.topic, []).append(
            partition_class(
                version=version,
                partition_index=partition.partition,
                committed_offset=found.offset,
                committed_leader_epoch=found.leader_epoch,
                metadata=found.metadata,
                error_code=int(error),
            )
        )
    return [topic_class(version=version, name=name, partitions=parts) for name, parts in by_topic.items()]


def handle_offset_delete(request: Any, context: Context) -> Outcome:
    """OffsetDelete."""
    version = context.api_version
    partitions = [TopicPartition(t.name, p.partition_index) for t in request.topics for p in t.partitions]
    refused = {
        partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for partition in partitions
        if context.services.view.partition(partition) is None
    }
    known = tuple(partition for partition in partitions if partition not in refused)

    def render(answer: Any) -> Any:
        if not isinstance(answer, dict):
            return m.OffsetDeleteResponse(
                version=version, error_code=int(_error(answer)), throttle_time_ms=0, topics=[]
            )
        return commit_response(m.OffsetDeleteResponse, request, version, {**refused, **answer})

    group_id = request.group_id
    if _bad_group_id(group_id):
        return Done(render(ErrorCode.INVALID_GROUP_ID))
    pending = context.services.groups.submit(
        group_id, lambda shard, now, ticket: shard.delete_offsets(group_id, known, now, ticket)
    )
    return when_done(pending, render, ANSWER_TIMEOUT_MS)


# --- administration ---------------------------------------------------------------------------------------------


def handle_describe_groups(request: Any, context: Context) -> Outcome:
    """DescribeGroups. Before version 6 an unknown group is Dead without an error."""
    version = context.api_version
    operations = GROUP_OPERATIONS if request.include_authorized_operations else None
    described = [_describe_one(context.services.groups, group_id) for group_id in request.groups]
    return Done(
        m.DescribeGroupsResponse(
            version=version,
            throttle_time_ms=0,
            groups=[_described_group(one, version, operations) for one in described],
        )
    )


def _describe_one(runtime: CoordinatorRuntime, group_id: str) -> Description:
    shard: GroupShard | ErrorCode = runtime.shard_for(group_id)
    return Description(shard, group_id, "") if isinstance(shard, ErrorCode) else shard.describe(group_id)


def _described_group(one: Description, version: int, operations: frozenset[int] | None) -> Any:
    group = m.DescribeGroupsResponse.DescribedGroup
    unknown = one.error is ErrorCode.GROUP_ID_NOT_FOUND
    return group(
        version=version,
        error_code=0 if unknown and version < 6 else int(one.error),
        error_message=f"Group {one.group_id} not found." if unknown else None,
        group_id=one.group_id,
        group_state=one.state,
        protocol_type=one.protocol_type,
        protocol_data=one.protocol,
        members=[
            group.DescribedGroupMember(
                version=version,
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in one.members
        ],
        authorized_operations=operations if one.error is ErrorCode.NONE or (unknown and version < 6) else None,
    )


def handle_list_groups(request: Any, context: Context) -> Outcome:
    """ListGroups of the shards this broker leads; a shard still loading makes the list incomplete, which is said."""
    version = context.api_version
    runtime = context.services.groups
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if runtime.loading else ErrorCode.NONE
    states = {state.lower() for state in request.states_filter or ()}
    types = {kind.lower() for kind in request.types_filter or ()}
    listed = [
        group
        for shard in runtime.shards()
        for group in shard.listing()
        if (not states or group.state.lower() in states) and (not types or group.group_type in types)
    ]
    return Done(
        m.ListGroupsResponse(
            version=version,
            throttle_time_ms=0,
            error_code=int(error),
            groups=[
                m.ListGroupsResponse.ListedGroup(
                    version=version,
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    group_state=group.state,
                    group_type=group.group_type,
                )
                for group in listed
            ],
        )
    )


def handle_delete_groups(request: Any, context: Context) -> Outcome:
    """DeleteGroups: each group on its own."""
    version = context.api_version
    names: list[str] = list(dict.fromkeys(request.groups_names))
    pendings = [context.services.groups.submit(name, _delete(name)) for name in names]

    def render(answers: list[Any]) -> Any:
        return m.DeleteGroupsResponse(
            version=version,
            throttle_time_ms=0,
            results=[
                m.DeleteGroupsResponse.DeletableGroupResult(
                    version=version, group_id=name, error_code=int(_error(answer))
                )
                for name, answer in zip(names, answers, strict=True)
            ],
        )

    return _when_all_done(pendings, render)


def _delete(group_id: str) -> Command:
    return lambda shard, now, ticket: shard.delete_group(group_id, now, ticket)


def forget_topics(runtime: CoordinatorRuntime, topics: Iterable[str]) -> None:
    """Topics were deleted: drop the offsets that groups coordinated here have committed for them."""
    names = frozenset(topics)
    if not names:
        return
    for shard in runtime.shards():
        for group_id in shard.groups_with_topics(names):
            runtime.submit(group_id, _forget(group_id, names))


def _forget(group_id: str, names: frozenset[str]) -> Command:
    return lambda shard, now, ticket: shard.forget_topics(group_id, names, now, ticket)
