"""Offsets of share groups, looked at and changed from outside (KIP-932, KIP-1226, keys 90 to 92); their windows.

What is changed is that of groups without members. One request has as many share partitions as it has time for.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import DELETE_GROUP, DESCRIBE_GROUP, DESCRIBE_TOPIC, READ_GROUP, READ_TOPIC
from fleetlog.brokers.acls.image import AclOperation
from fleetlog.brokers.api.base import Context, Done, Paced, in_slices, in_task, worked
from fleetlog.brokers.api.by_topic import rows_by_topic
from fleetlog.brokers.api.changes import codes_of, named
from fleetlog.brokers.api.rows import Recorded, Row
from fleetlog.brokers.api.share_groups import NOT_SERVED, shares_served
from fleetlog.brokers.audit.events import Changes
from fleetlog.brokers.coordinators.share_offsets import ShareOffsets, ShareProgress
from fleetlog.brokers.coordinators.share_partitions import LONG_KEY_BYTES
from fleetlog.brokers.groups.share import ShareGroup, StateTopic
from fleetlog.brokers.metadata.features import SHARE_VERSION
from fleetlog.brokers.model import INTERNAL_TOPICS, TopicInfo, TopicPartition
from fleetlog.brokers.shares.state import ShareKey
from fleetlog.brokers.shares.window import Window
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    DescribeShareWindowsRequest,
)

NO_TOPIC = uuid.UUID(int=0)
_NONE = ErrorCode.NONE


def _offsets(context: Context) -> ShareOffsets:
    offsets = context.services.share_offsets
    assert offsets is not None, "it was asked for"
    return offsets


def _group(group_id: str, context: Context) -> tuple[ErrorCode, ShareGroup | None, str | None]:
    """The share group, or why there is none, with a text."""
    if not shares_served(context) or context.services.share_offsets is None:
        return ErrorCode.UNSUPPORTED_VERSION, None, NOT_SERVED
    error, shard = context.services.groups.shard_for(group_id)
    if shard is None:
        return error, None, None
    group = shard.shares.get(group_id)
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND, None, f"Share group {group_id} not found."
    return _NONE, group, None


# --- describing -------------------------------------------------------------------------------------------------


@Row(api_keys.DESCRIBE_SHARE_GROUP_OFFSETS, (DESCRIBE_GROUP, DESCRIBE_TOPIC), feature=SHARE_VERSION)
@in_task
async def handle_describe_share_group_offsets(request: DescribeShareGroupOffsetsRequest, context: Context) -> Done:
    """DescribeShareGroupOffsets v0-v1: where groups begin in partitions, and how many records are not finished."""
    groups = [await _described(group, context) for group in request.groups]
    return Done(m.DescribeShareGroupOffsetsResponse(version=context.api_version, groups=groups))


async def _described(asked: Any, context: Context) -> Any:
    kind = m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
    await context.yield_now()
    error, group, text = context.refusal(*DESCRIBE_GROUP, asked.group_id), None, None
    if error is _NONE:
        error, group, text = _group(asked.group_id, context)
    if group is None:
        return kind(group_id=asked.group_id, topics=[], error_code=int(error), error_message=text)
    topics, named_topics = context.services.metadata.topics, asked.topics
    if named_topics is None:
        places = _all_places(group, context)
        denied = await worked(context.denied_in_turns(*DESCRIBE_TOPIC, places, logged=False))
        places = {name: indexes for name, indexes in places.items() if name not in denied}
        denied = frozenset()
    else:
        places = {}
        for topic in named_topics:
            await context.yield_now()
            places.setdefault(topic.topic_name, []).extend(topic.partitions)
        denied = await worked(context.denied_in_turns(*DESCRIBE_TOPIC, places))
    keys: dict[ShareKey, TopicPartition] = {}
    for name, indexes in places.items():
        await context.yield_now()
        there = topics.get(name) if name not in denied else None
        if there is None:
            continue
        for index in indexes:
            await context.yield_now()
            if 0 <= index < len(there.partitions):
                keys[ShareKey(group.id, there.id.bytes, index)] = TopicPartition(name, index)
    told = await _offsets(context).described(keys)
    rows = []
    for name, indexes in places.items():
        row = await _described_topic(context, group.id, name, indexes, topics.get(name), name in denied, told)
        rows.append(row)
    return kind(group_id=group.id, topics=rows)


def _all_places(group: ShareGroup, context: Context) -> dict[str, list[int]]:
    """The partitions of which the group has a state, of topics that there still are."""
    names = context.services.metadata.topic_names
    by_name = ((names.get(uuid.UUID(bytes=topic_id)), one) for topic_id, one in group.states.items())
    return {name: list(range(one.partitions)) for name, one in by_name if name is not None}


async def _described_topic(
    context: Context, group_id: str, name: str, indexes: Iterable[int], topic: TopicInfo | None, denied: bool,
    told: dict[ShareKey, ShareProgress],
) -> Any:  # fmt: skip
    group_kind = m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
    kind = group_kind.DescribeShareGroupOffsetsResponseTopic
    topic_id, rows = NO_TOPIC if topic is None or denied else topic.id, []
    for index in dict.fromkeys(indexes):
        await context.yield_now()
        one = told.get(ShareKey(group_id, topic_id.bytes, index), ShareProgress(_NONE))
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED if denied else one.error
        rows.append(
            kind.DescribeShareGroupOffsetsResponsePartition(
                partition_index=index, start_offset=one.start, leader_epoch=one.leader_epoch, lag=one.lag,
                error_code=int(error), error_message=None,
            )
        )  # fmt: skip
    return kind(topic_name=name, topic_id=topic_id, partitions=rows)


@Row(api_keys.DESCRIBE_SHARE_WINDOWS, (DESCRIBE_GROUP, DESCRIBE_TOPIC), feature=SHARE_VERSION)
@in_slices
def handle_describe_share_windows(request: DescribeShareWindowsRequest, context: Context) -> Paced:
    """DescribeShareWindows v0 (ours): what is open here of a group, and which record keeps a full window back.

    Topics that may not be described are left out.
    """
    kind = m.DescribeShareWindowsResponse
    refused, shares = context.refusal(*DESCRIBE_GROUP, request.group_id), context.services.share_partitions
    if refused is not _NONE or shares is None:
        return Done(kind(version=0, error_code=int(refused)))
    windows: dict[TopicPartition, Window] = {}
    for share in shares.of_group(request.group_id):
        yield
        if share.window is not None:
            windows[share.partition.tp] = share.window
    denied = context.denied(*DESCRIBE_TOPIC, {tp.topic for tp in windows}, logged=False)
    shown = ((tp, window) for tp, window in windows.items() if tp.topic not in denied)
    topics = yield from rows_by_topic(
        shown, _window, lambda name, rows: kind.WindowTopic(name=name, partitions=rows)
    )  # fmt: skip
    return Done(kind(version=0, topics=topics))


def _window(tp: TopicPartition, window: Window) -> Any:
    row = m.DescribeShareWindowsResponse.WindowTopic.ShareWindow(
        partition_index=tp.partition, start_offset=window.start, end_offset=window.end, unfinished=window.unfinished,
        locked=window.locked, waiting=window.waiting, holder_state="", holder_member=None, holder_key=None,
    )  # fmt: skip
    if (holder := window.holds_back) is not None:
        row.holder, row.holder_state, row.holder_deliveries, row.holder_member, row.holder_key = holder
        if holder.key is not None and len(holder.key) >= LONG_KEY_BYTES:
            row.holder_key = None  # a hash
    return row


# --- altering ---------------------------------------------------------------------------------------------------


def _altered(request: Any, response: Any) -> Changes:
    """The group is what changes."""
    codes = [part.error_code for topic in response.responses for part in getattr(topic, "partitions", [topic])]
    whole = response.error_code or next((code for code in codes if code), 0)
    return named("Group", AclOperation.READ, [(request.group_id, "offsets")], {}, whole)


@Row(api_keys.ALTER_SHARE_GROUP_OFFSETS, (READ_GROUP, READ_TOPIC), Recorded(_altered), feature=SHARE_VERSION)
@in_task
async def handle_alter_share_group_offsets(request: AlterShareGroupOffsetsRequest, context: Context) -> Done:
    """AlterShareGroupOffsets v0: a group without members begins at these offsets."""
    kind, metadata = m.AlterShareGroupOffsetsResponse, context.services.metadata
    error, text = context.refusal(*READ_GROUP, request.group_id), None
    if error is _NONE:
        error, _, text = _group(request.group_id, context)
    if error is not _NONE:
        return Done(kind(version=0, error_code=int(error), error_message=text, responses=[]))
    denied = await worked(context.denied_in_turns(*READ_TOPIC, [topic.topic_name for topic in request.topics]))
    errors: dict[tuple[str, int], ErrorCode] = {}
    starts: dict[ShareKey, int] = {}
    states: dict[bytes, StateTopic] = {}
    for topic in request.topics:
        name, info = topic.topic_name, metadata.topics.get(topic.topic_name)
        for part in topic.partitions:
            await context.yield_now()
            refused = _refused(name, info, name in denied)
            if refused is _NONE and info is not None and not 0 <= part.partition_index < len(info.partitions):
                refused = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if refused is _NONE and part.start_offset < 0:
                refused = ErrorCode.INVALID_REQUEST
            errors[name, part.partition_index] = refused
            if refused is _NONE and info is not None:
                starts[ShareKey(request.group_id, info.id.bytes, part.partition_index)] = part.start_offset
                states[info.id.bytes] = StateTopic(name, len(info.partitions))
    if starts:
        outcome = await _offsets(context).alter(request.group_id, states, starts)
        if isinstance(outcome, ErrorCode):
            return Done(kind(version=0, error_code=int(outcome), error_message=None, responses=[]))
        for key, answer in outcome.items():
            errors[states[key.topic_id].name, key.partition] = answer.error
    by_topic: dict[str, list[Any]] = {}
    row = kind.AlterShareGroupOffsetsResponseTopic
    for (name, index), code in errors.items():
        await context.yield_now()
        part_row = row.AlterShareGroupOffsetsResponsePartition(partition_index=index, error_code=int(code))
        by_topic.setdefault(name, []).append(part_row)
    ids = {name: metadata.topics[name].id if name in metadata.topics else NO_TOPIC for name in by_topic}
    return Done(
        kind(
            version=0, error_code=0,
            responses=[
                row(topic_name=name, topic_id=NO_TOPIC if name in denied else ids[name], partitions=parts)
                for name, parts in by_topic.items()
            ],
        )
    )  # fmt: skip


def _refused(name: str, info: TopicInfo | None, denied: bool) -> ErrorCode:
    if denied:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if info is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.INVALID_REQUEST if name in INTERNAL_TOPICS else _NONE


# --- deleting ---------------------------------------------------------------------------------------------------


def _deleted(request: Any, response: Any) -> Changes:
    codes = codes_of(response.responses, "topic_name")
    whole = response.error_code or next((code for code in codes.values() if code), 0)
    return named("Group", AclOperation.DELETE, [(request.group_id, "offsets")], {}, whole)


@Row(api_keys.DELETE_SHARE_GROUP_OFFSETS, (DELETE_GROUP, READ_TOPIC), Recorded(_deleted), feature=SHARE_VERSION)
@in_task
async def handle_delete_share_group_offsets(request: DeleteShareGroupOffsetsRequest, context: Context) -> Done:
    """DeleteShareGroupOffsets v0: what a group without members has of these topics is forgotten."""
    kind = m.DeleteShareGroupOffsetsResponse
    names = list(dict.fromkeys(topic.topic_name for topic in request.topics))
    error, group, text = context.refusal(*DELETE_GROUP, request.group_id), None, None
    if error is _NONE:
        error, group, text = _group(request.group_id, context)
    if group is None:
        return Done(kind(version=0, error_code=int(error), error_message=text, responses=[]))
    denied, topics = await worked(context.denied_in_turns(*READ_TOPIC, names)), context.services.metadata.topics
    infos = {name: topics[name] for name in names if name in topics and name not in denied}
    errors = {name: _refused(name, infos.get(name), name in denied) for name in names}
    states = {info.id.bytes: group.states[info.id.bytes] for info in infos.values() if info.id.bytes in group.states}
    outcome = await _offsets(context).forget(group.id, states)
    if isinstance(outcome, ErrorCode):
        return Done(kind(version=0, error_code=int(outcome), error_message=None, responses=[]))
    for key, answer in outcome.items():
        if answer.error is not _NONE:
            errors[states[key.topic_id].name] = answer.error
    row = kind.DeleteShareGroupOffsetsResponseTopic
    rows = [
        row(topic_name=name, topic_id=infos[name].id if name in infos else NO_TOPIC, error_code=int(code))
        for name, code in errors.items()
    ]
    return Done(kind(version=0, error_code=0, responses=rows))
