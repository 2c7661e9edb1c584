"""Share groups (KIP-932): ShareGroupHeartbeat and ShareGroupDescribe (keys 76, 77).

They are served once ``share.version`` 1 is finalized: older brokers know nothing of their records and states. Until
then a heartbeat is refused as Kafka refuses it where the feature is off, and only its key is advertised, because the
consumers of librdkafka (seen in 2.16) would wait for ever for a broker that does not.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterable
from typing import Any

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import DESCRIBE_GROUP, DESCRIBE_TOPIC, NOT_ASKED, READ_GROUP
from fleetlog.brokers.api.base import Context, Done, Paced, in_slices, unfit
from fleetlog.brokers.api.groups import ANSWER_TIMEOUT_MS, bad_group_id, described_each, topics_of
from fleetlog.brokers.api.rows import Cost, Row
from fleetlog.brokers.api.waiting import when_done
from fleetlog.brokers.audit.events import EventType
from fleetlog.brokers.groups.consumer.group import JOINS, LEAVES, Beat, BeatAnswer
from fleetlog.brokers.groups.consumer.records import Partition, indexes_by_topic
from fleetlog.brokers.groups.requests import ShareSettings
from fleetlog.brokers.groups.share import ShareGroup
from fleetlog.brokers.metadata.features import SHARE_VERSION
from fleetlog.txn.commands import CommandFailed
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import ShareGroupDescribeRequest, ShareGroupHeartbeatRequest

NOT_SERVED = "Share groups are not served before share.version 1 is finalized: fleetlog features upgrade."


def shares_served(context: Context) -> bool:
    """Whether the fleet has finalized that it serves share groups."""
    return context.services.metadata.features.get(SHARE_VERSION, 0) >= 1


@Row(api_keys.SHARE_GROUP_HEARTBEAT, (READ_GROUP, DESCRIBE_TOPIC), EventType.HEARTBEAT, cost=Cost.CHEAP)
@in_slices
def handle_share_group_heartbeat(request: ShareGroupHeartbeatRequest, context: Context) -> Paced:
    """ShareGroupHeartbeat v1: joins, keeps and ends a membership, and tells the member its partitions."""

    @in_slices
    def render(answer: Any) -> Generator[Any, None, Any]:
        if isinstance(answer, CommandFailed):
            answer = BeatAnswer(answer.error)
        rows = _rows(answer.assignment or ())
        names = context.services.metadata.topic_names
        held = [names[row.topic_id] for row in rows if row.topic_id in names]
        denied = yield from context.denied_in_turns(*DESCRIBE_TOPIC, held)
        if denied:
            answer = BeatAnswer(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return _response(answer, rows, context.api_version)

    def refused(error: ErrorCode, message: str | None = None) -> Done:
        return Done(_response(BeatAnswer(error, message), [], context.api_version))

    if (code := context.refusal(*READ_GROUP, request.group_id)) is not ErrorCode.NONE:
        return refused(code)
    denied = yield from context.denied_in_turns(*DESCRIBE_TOPIC, request.subscribed_topic_names or ())
    if denied:
        return refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if not shares_served(context):
        return refused(ErrorCode.UNSUPPORTED_VERSION, NOT_SERVED)
    if (wrong := _wrong(request, context)) is not None:
        return refused(ErrorCode.INVALID_REQUEST, wrong)
    names = request.subscribed_topic_names
    beat = Beat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        rack_id=request.rack_id,
        topics=None if names is None else tuple(names),
        client_id=context.client_id,
        client_host=f"/{context.connection.peer_host}",
    )
    services = context.services
    settings, picture = services.metadata.group_settings(ShareSettings.of, request.group_id), topics_of(context)
    pending = services.groups.submit(
        request.group_id, lambda shard, now, ticket: shard.share_heartbeat(beat, picture, settings, now, ticket)
    )
    return when_done(pending, render, ANSWER_TIMEOUT_MS)


def _wrong(request: ShareGroupHeartbeatRequest, context: Context) -> str | None:
    """What Kafka refuses a heartbeat for, in its words."""
    epoch, names = request.member_epoch, request.subscribed_topic_names
    if bad_group_id(request.group_id):
        return "GroupId can't be empty."
    if not request.member_id.strip():
        return "MemberId can't be empty."
    if request.rack_id is not None and not request.rack_id.strip():
        return "RackId can't be empty."
    if unfit(request.member_id, request.rack_id, context.client_id, *(names or ())):
        return "A name is too long, or not UTF-8."
    if epoch < LEAVES:
        return f"MemberEpoch is {epoch}, but must be greater than or equal to {LEAVES}."
    if epoch == JOINS and not names:
        return "SubscribedTopicNames must be set in first request."
    return None


def _rows(partitions: Iterable[Partition]) -> list[Any]:
    row = m.ShareGroupHeartbeatResponse.Assignment.TopicPartitions
    by_topic = indexes_by_topic(partitions)
    return [row(topic_id=uuid.UUID(bytes=topic), partitions=indexes) for topic, indexes in by_topic.items()]


def _response(answer: BeatAnswer, rows: list[Any], version: int) -> m.ShareGroupHeartbeatResponse:
    kind = m.ShareGroupHeartbeatResponse
    return kind(
        version=version,
        error_code=int(answer.error),
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.interval_ms,
        assignment=None if answer.assignment is None else kind.Assignment(topic_partitions=rows),
    )


@Row(api_keys.SHARE_GROUP_DESCRIBE, (DESCRIBE_GROUP,), feature=SHARE_VERSION)
@in_slices
def handle_share_group_describe(request: ShareGroupDescribeRequest, context: Context) -> Paced:
    """ShareGroupDescribe v1: each group once; GROUP_ID_NOT_FOUND for those of other protocols."""
    groups = yield from described_each(request, context, shares_served(context), lambda shard: shard.shares, _described)
    return Done(m.ShareGroupDescribeResponse(version=context.api_version, groups=groups))


def _described(
    group_id: str, error: ErrorCode, group: ShareGroup | None, operations: int, context: Context
) -> Generator[None, None, m.ShareGroupDescribeResponse.DescribedGroup]:
    kind = m.ShareGroupDescribeResponse.DescribedGroup
    said = {
        ErrorCode.GROUP_ID_NOT_FOUND: f"Group {group_id} is not a share group.",
        ErrorCode.UNSUPPORTED_VERSION: NOT_SERVED,
    }
    message = said.get(error)
    members = []
    if group is not None:
        names = context.services.metadata.topic_names
        seen: set[str] = set()
        for member in list(group.members.values()):
            yield
            rows = []
            for topic, indexes in indexes_by_topic(member.at.assigned).items():
                name = names.get(uuid.UUID(bytes=topic))
                if name is not None:
                    seen.add(name)
                    row = kind.Member.Assignment.TopicPartitions
                    rows.append(row(topic_id=uuid.UUID(bytes=topic), topic_name=name, partitions=indexes))
            value = member.value
            members.append(
                kind.Member(
                    member_id=member.id,
                    rack_id=value.rack_id if value is not None else None,
                    member_epoch=member.at.epoch,
                    client_id=value.client_id if value is not None else "",
                    client_host=value.client_host if value is not None else "",
                    subscribed_topic_names=list(value.topics) if value is not None else [],
                    assignment=kind.Member.Assignment(topic_partitions=rows),
                )
            )
        denied = yield from context.denied_in_turns(*DESCRIBE_TOPIC, sorted(seen), logged=False)
        if denied:
            members, group, error = [], None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
            message = "The group has described topic(s) that the client is not authorized to describe."
    return kind(
        error_code=int(error),
        error_message=message,
        group_id=group_id,
        group_state=group.state if group is not None else "",
        group_epoch=group.epoch if group is not None else 0,
        assignment_epoch=group.assignment_epoch if group is not None else 0,
        assignor_name="simple" if group is not None else "",
        members=members,
        authorized_operations=operations if error is ErrorCode.NONE else NOT_ASKED,
    )
