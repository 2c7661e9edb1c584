"""Handlers of the group APIs (keys 11 to 16, 42): from messages to a shard's commands and back.

A shard answers in plain values; here they become messages of the version asked for. Every wait is a ``DelayedResponse``
with a deadline of its own beside the shard's timers, so that a client gets an answer also when a shard cannot give one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import (
    DELETE_GROUP,
    DESCRIBE_CLUSTER,
    DESCRIBE_GROUP,
    DESCRIBE_TOPIC,
    GROUP,
    NOT_ASKED,
    READ_GROUP,
    bits,
    mask,
)
from fleetlog.brokers.acls.image import AclOperation
from fleetlog.brokers.api.base import Context, Done, InSlices, Outcome, Paced, in_slices, unfit
from fleetlog.brokers.api.changes import codes_of, named
from fleetlog.brokers.api.rows import Cost, Recorded, Row
from fleetlog.brokers.api.waiting import JoinedResponse, when_done
from fleetlog.brokers.audit.events import Changes, EventType
from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime, PendingAnswer
from fleetlog.brokers.groups.consumer.group import Picture
from fleetlog.brokers.groups.requests import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    Description,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    Leaver,
    Protocol,
    SyncAnswer,
    SyncRequest,
)
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.brokers.model import TopicInfo
from fleetlog.brokers.pending import Pending
from fleetlog.brokers.shares.state import ShareKey
from fleetlog.txn.commands import Command, CommandFailed
from fleetlog.wire import api_keys, requests
from fleetlog.wire.errors import ErrorCode

ANSWER_TIMEOUT_MS = 5_000
"""Kafka's offsets.commit.timeout.ms: how long a write to __consumer_offsets may take."""
JOIN_MARGIN_MS = 10_000
Code = ErrorCode | CommandFailed
"""An answer that is nothing but an error code."""
BLANKS = "".join(map(chr, range(33)))
"""What Java's ``trim`` takes off the states in a filter of ListGroups."""


# --- waiting ----------------------------------------------------------------------------------------------------


def _when_all_done(pendings: Sequence[Pending], render: Callable[[list[Code]], InSlices]) -> Outcome:
    """The rendered answers of several groups; those missing after the deadline have failed."""
    answers: list[Code] = [CommandFailed(ErrorCode.COORDINATOR_NOT_AVAILABLE)] * len(pendings)

    def cancel() -> None:
        for pending in pendings:
            pending.cancel()

    def expired() -> InSlices:
        cancel()
        return render(answers)

    joined = JoinedResponse(answers, render, ANSWER_TIMEOUT_MS, expired, cancel)
    for index, pending in enumerate(pendings):
        pending.on_done(partial(joined.take, index))
    return joined.outcome()


def bad_group_id(group_id: str, may_be_empty: bool = False) -> bool:
    """Whether a group cannot have that name."""
    return (not group_id and not may_be_empty) or unfit(group_id)


def topics_of(context: Context) -> Picture:
    """The topics, for a group of the consumer protocol, which assigns them itself."""
    return Picture(context.services.metadata.topics, context.services.metadata.sequence)


def error_of(answer: Code) -> ErrorCode:
    """The error code of an answer that is nothing else."""
    return answer.error if isinstance(answer, CommandFailed) else answer


# --- membership -------------------------------------------------------------------------------------------------


@Row(api_keys.JOIN_GROUP, (READ_GROUP,), EventType.CONSUME, cost=Cost.CHEAP)
def handle_join_group(request: requests.JoinGroupRequest, context: Context) -> Outcome:
    """JoinGroup: delayed until the join phase of the rebalance completes."""
    version = context.api_version

    def render(answer: JoinAnswer | CommandFailed) -> m.JoinGroupResponse:
        if isinstance(answer, CommandFailed):
            answer = JoinAnswer(answer.error, request.member_id)
        if answer.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            _watch_member(request.group_id, answer.member_id, context)
        return _join_response(answer, version)

    refused = _join_refusal(request, context)
    if refused is not ErrorCode.NONE:
        return Done(render(CommandFailed(refused)))
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
    picture = topics_of(context)
    pending = context.services.groups.submit(
        request.group_id, lambda shard, now, ticket: shard.join(command, now, ticket, picture)
    )
    longest_ms = max(rebalance_timeout_ms, NEW_MEMBER_JOIN_TIMEOUT_MS) + JOIN_MARGIN_MS
    return when_done(
        pending,
        render,
        longest_ms,
        ErrorCode.REBALANCE_IN_PROGRESS,
        _abandoned_join(pending, context, request.group_id),
    )


def _watch_member(group_id: str, member_id: str, context: Context) -> None:
    """When the connection closes before the member asks for its assignment, its session ends soon."""
    groups = context.services.groups

    def closed() -> None:
        groups.submit(group_id, lambda shard, now, ticket: shard.disconnected(group_id, member_id, now, ticket))

    if context.gone():
        closed()
    else:
        context.services.disconnects.watch(context.connection.id, (group_id, member_id), closed)


def _abandoned_join(pending: PendingAnswer, context: Context, group_id: str) -> Callable[[], None]:
    """The same when the connection closes before the JoinGroup is answered."""
    groups, join = context.services.groups, pending.ticket

    def closed() -> None:
        groups.submit(group_id, lambda shard, now, ticket: shard.abandoned(group_id, join, now, ticket))

    return closed


def _join_refusal(request: requests.JoinGroupRequest, context: Context) -> ErrorCode:
    if (denied := context.refusal(*READ_GROUP, request.group_id)) is not ErrorCode.NONE:
        return denied
    if bad_group_id(request.group_id):
        return ErrorCode.INVALID_GROUP_ID
    names = [request.protocol_type, request.group_instance_id, context.client_id, request.member_id]
    if unfit(*names, *(p.name for p in request.protocols)) or request.group_instance_id == "":
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _join_response(answer: JoinAnswer, version: int) -> m.JoinGroupResponse:
    protocol = answer.protocol if version >= 7 else answer.protocol or ""
    member = m.JoinGroupResponse.JoinGroupResponseMember
    return m.JoinGroupResponse(
        version=version,
        error_code=int(answer.error),
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            member(member_id=j.member_id, group_instance_id=j.instance_id, metadata=j.metadata) for j in answer.members
        ],
    )


@Row(api_keys.SYNC_GROUP, (READ_GROUP, DESCRIBE_TOPIC), EventType.CONSUME, cost=Cost.CHEAP)
def handle_sync_group(request: requests.SyncGroupRequest, context: Context) -> Outcome:
    """SyncGroup: delayed until the leader's assignment is committed.

    A member of a consumer group is assigned no topic that it may not describe, as by ConsumerGroupHeartbeat.
    """
    version = context.api_version

    def render(answer: SyncAnswer | CommandFailed) -> m.SyncGroupResponse | InSlices:
        if isinstance(answer, CommandFailed):
            answer = SyncAnswer(answer.error)
        return may_hear(answer) if answer.topics else respond(answer)

    @in_slices
    def may_hear(answer: SyncAnswer) -> Generator[None, None, m.SyncGroupResponse]:
        denied = yield from context.denied_in_turns(*DESCRIBE_TOPIC, answer.topics)
        return respond(SyncAnswer(ErrorCode.TOPIC_AUTHORIZATION_FAILED) if denied else answer)

    def respond(answer: SyncAnswer) -> m.SyncGroupResponse:
        if answer.error is ErrorCode.NONE:
            context.services.disconnects.unwatch(context.connection.id, (request.group_id, request.member_id))
        return m.SyncGroupResponse(
            version=version,
            error_code=int(answer.error),
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol,
            assignment=answer.assignment,
        )

    if (denied := context.refusal(*READ_GROUP, request.group_id)) is not ErrorCode.NONE:
        return Done(render(CommandFailed(denied)))
    if bad_group_id(request.group_id):
        return Done(render(CommandFailed(ErrorCode.INVALID_GROUP_ID)))
    if version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return Done(render(CommandFailed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)))
    command = SyncRequest(
        request.group_id,
        request.generation_id,
        request.member_id,
        request.group_instance_id,
        request.protocol_type if version >= 5 else None,
        request.protocol_name if version >= 5 else None,
        tuple((a.member_id, bytes(a.assignment)) for a in request.assignments),
    )
    picture = topics_of(context)
    pending = context.services.groups.submit(
        request.group_id, lambda shard, now, ticket: shard.sync(command, now, ticket, picture)
    )
    longest_ms = NEW_MEMBER_JOIN_TIMEOUT_MS + JOIN_MARGIN_MS
    return when_done(pending, render, longest_ms, ErrorCode.REBALANCE_IN_PROGRESS)


@Row(api_keys.HEARTBEAT, (READ_GROUP,), EventType.HEARTBEAT, cost=Cost.CHEAP)
def handle_heartbeat(request: requests.HeartbeatRequest, context: Context) -> Outcome:
    """Heartbeat: keeps the member in its group, and tells it of a rebalance."""

    def render(answer: Code) -> m.HeartbeatResponse:
        return m.HeartbeatResponse(version=context.api_version, error_code=int(error_of(answer)))

    if (denied := context.refusal(*READ_GROUP, request.group_id)) is not ErrorCode.NONE:
        return Done(render(denied))
    if bad_group_id(request.group_id):
        return Done(render(ErrorCode.INVALID_GROUP_ID))
    command = HeartbeatRequest(request.group_id, request.generation_id, request.member_id, request.group_instance_id)
    picture = topics_of(context)
    pending = context.services.groups.submit(
        request.group_id, lambda shard, now, ticket: shard.heartbeat(command, now, ticket, picture)
    )
    return when_done(pending, render, ANSWER_TIMEOUT_MS)


@Row(api_keys.LEAVE_GROUP, (READ_GROUP,), EventType.CONSUME, cost=Cost.CHEAP)
def handle_leave_group(request: requests.LeaveGroupRequest, context: Context) -> Outcome:
    """LeaveGroup: one member before version 3, a batch from then on."""
    version = context.api_version
    if version >= 3:
        leavers = tuple(Leaver(one.member_id, one.group_instance_id) for one in request.members)
    else:
        leavers = (Leaver(request.member_id, None),)

    @in_slices
    def render(answer: LeaveAnswer | CommandFailed) -> Generator[None, None, m.LeaveGroupResponse]:
        if isinstance(answer, CommandFailed):
            answer = LeaveAnswer(answer.error)
        error = answer.error
        if version < 3 and error is ErrorCode.NONE:
            error = answer.members[0][1]
        member = m.LeaveGroupResponse.MemberResponse
        members = []
        for leaver, outcome in answer.members if version >= 3 else ():
            yield
            members.append(
                member(member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=int(outcome))
            )
        return m.LeaveGroupResponse(version=version, error_code=int(error), members=members)

    group_id = request.group_id
    if (denied := context.refusal(*READ_GROUP, group_id)) is not ErrorCode.NONE:
        return Done(render(CommandFailed(denied)))
    if bad_group_id(group_id):
        return Done(render(CommandFailed(ErrorCode.INVALID_GROUP_ID)))
    picture = topics_of(context)
    pending = context.services.groups.submit(
        group_id, lambda shard, now, ticket: shard.leave(group_id, leavers, now, ticket, picture)
    )
    return when_done(pending, render, ANSWER_TIMEOUT_MS)


# --- administration ---------------------------------------------------------------------------------------------


@Row(api_keys.DESCRIBE_GROUPS, (DESCRIBE_GROUP,))
@in_slices
def handle_describe_groups(request: requests.DescribeGroupsRequest, context: Context) -> Paced:
    """DescribeGroups: each group once. Before version 6 an unknown group is Dead without an error."""
    version = context.api_version
    groups = []
    for group_id in dict.fromkeys(request.groups):
        yield
        operations = bits(context.operations(GROUP, group_id)) if request.include_authorized_operations else None
        groups.append(_described_group(_describe_one(context, group_id), version, operations))
    return Done(m.DescribeGroupsResponse(version=version, groups=groups))


def _describe_one(context: Context, group_id: str) -> Description:
    if (refusal := context.refusal(*DESCRIBE_GROUP, group_id)) is not ErrorCode.NONE:
        return Description(refusal, group_id, "")
    error, shard = context.services.groups.shard_for(group_id)
    return Description(error, group_id, "") if shard is None else shard.describe(group_id)


def _described_group(
    one: Description, version: int, operations: set[int] | None
) -> m.DescribeGroupsResponse.DescribedGroup:
    group = m.DescribeGroupsResponse.DescribedGroup
    unknown = one.error is ErrorCode.GROUP_ID_NOT_FOUND
    return group(
        error_code=0 if unknown and version < 6 else int(one.error),
        error_message=one.message,
        group_id=one.group_id,
        group_state=one.state,
        protocol_type=one.protocol_type,
        protocol_data=one.protocol,
        members=[
            group.DescribedGroupMember(
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


# all groups, or those that may be described
@Row(api_keys.LIST_GROUPS, (DESCRIBE_CLUSTER, DESCRIBE_GROUP))
@in_slices
def handle_list_groups(request: requests.ListGroupsRequest, context: Context) -> Paced:
    """ListGroups of the shards this broker leads; a shard still loading makes the list incomplete, which is said."""
    runtime = context.services.groups
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if runtime.loading else ErrorCode.NONE
    states = {state.strip(BLANKS).lower() for state in request.states_filter or ()}
    types = {kind.lower() for kind in request.types_filter or ()}
    every = context.allows(*DESCRIBE_CLUSTER, logged=False)
    listed = []
    for shard in runtime.shards():
        for group in shard.listing():
            yield
            if not every and not context.allows(*DESCRIBE_GROUP, group.group_id, logged=False):
                continue
            if (not states or group.state.lower() in states) and (not types or group.group_type in types):
                listed.append(
                    m.ListGroupsResponse.ListedGroup(
                        group_id=group.group_id,
                        protocol_type=group.protocol_type,
                        group_state=group.state,
                        group_type=group.group_type,
                    )
                )
    return Done(
        m.ListGroupsResponse(version=context.api_version, error_code=int(error), groups=listed)
    )  # fmt: skip


def _delete_groups(request: requests.DeleteGroupsRequest, response: m.DeleteGroupsResponse) -> Changes:
    names = ((name, "") for name in request.groups_names)
    return named("Group", AclOperation.DELETE, names, codes_of(response.results, "group_id"))


@Row(api_keys.DELETE_GROUPS, (DELETE_GROUP,), Recorded(_delete_groups, ("groups_names",)))
@in_slices
def handle_delete_groups(request: requests.DeleteGroupsRequest, context: Context) -> Paced:
    """DeleteGroups: each group on its own."""
    every: list[str] = list(dict.fromkeys(request.groups_names))
    denied = yield from context.denied_in_turns(*DELETE_GROUP, every)
    names = [name for name in every if name not in denied]
    pendings = []
    for name in names:
        yield
        pendings.append(_deleted(name, context))

    @in_slices
    def render(answers: list[Code]) -> Generator[None, None, m.DeleteGroupsResponse]:
        results = []
        by_group: dict[str, Code] = dict.fromkeys(every, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        by_group.update(zip(names, answers, strict=True))
        for name, answer in by_group.items():
            yield
            results.append(m.DeleteGroupsResponse.DeletableGroupResult(group_id=name, error_code=int(error_of(answer))))
        return m.DeleteGroupsResponse(version=context.api_version, results=results)

    return _when_all_done(pendings, render)


def _deleted(group_id: str, context: Context) -> Pending:
    """The deletion of a group. What is persisted of a share group goes first: a later group of the name begins anew."""
    services = context.services
    _, shard = services.groups.shard_for(group_id)
    group = shard.shares.get(group_id) if shard is not None else None
    if group is None or services.share_partitions is None or services.share_offsets is None:
        return services.groups.submit(group_id, _delete(group_id))
    pending, offsets, states = Pending(), services.share_offsets, dict(group.states)

    async def work() -> None:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            error = await offsets.delete(group_id, states)
        finally:
            pending.complete(error)

    services.share_partitions.run(work(), ShareKey(group_id, b"", 0))
    return pending


def _delete(group_id: str) -> Command:
    return lambda shard, now, ticket: shard.delete_group(group_id, now, ticket)


def drop_topic_offsets(runtime: CoordinatorRuntime[GroupShard], deleted: Iterable[TopicInfo]) -> None:
    """Topics were deleted: drop the offsets that groups coordinated here have committed for them.

    That makes room, no more. What is left over, because a commit was under way, a shard was loading or the tombstone
    was refused, is not told for another topic of the name (``brokers.groups.records`` ``CommittedOffset.topic_id``).
    """
    topics: dict[str, set[bytes]] = {}
    for topic in deleted:
        topics.setdefault(topic.name, set()).add(topic.id.bytes)
    if not topics:
        return
    for shard in runtime.shards():
        for group_id in shard.groups_with_topics(topics):
            runtime.submit(group_id, _forget(group_id, topics))


def _forget(group_id: str, topics: Mapping[str, Container[bytes]]) -> Command:
    return lambda shard, now, ticket: shard.forget_topics(group_id, topics, now, ticket)


def described_each(
    request: Any,
    context: Context,
    are_served: bool,
    groups_of: Callable[[GroupShard], Mapping[str, Any]],
    described: Callable[[str, ErrorCode, Any, int, Context], Generator[None, None, Any]],
) -> Generator[None, None, list[Any]]:
    """What is described of each group once, found in its shard among those of one protocol."""
    groups = []
    for group_id in dict.fromkeys(request.group_ids):
        yield
        error = context.refusal(*DESCRIBE_GROUP, group_id)
        if error is ErrorCode.NONE and not are_served:
            error = ErrorCode.UNSUPPORTED_VERSION
        group = None
        if error is ErrorCode.NONE:
            error, shard = context.services.groups.shard_for(group_id)
            group = None if shard is None else groups_of(shard).get(group_id)
            if shard is not None and group is None:
                error = ErrorCode.GROUP_ID_NOT_FOUND
        operations = NOT_ASKED
        if request.include_authorized_operations and group is not None:
            operations = mask(context.operations(GROUP, group_id))
        groups.append((yield from described(group_id, error, group, operations, context)))
    return groups
