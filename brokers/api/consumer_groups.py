"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe (keys 68, 69).

They are served once ``group.version`` 1 is finalized: an older coordinator skips their records and would take such a
group for a classic one. Until then a heartbeat is refused as Kafka refuses it where the feature is off. The consumers
of librdkafka (seen in 2.16) would wait for ever for a broker that does not advertise the key; those of Java fail at
once either way.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import DESCRIBE_GROUP, DESCRIBE_TOPIC, NOT_ASKED, READ_GROUP
from fleetlog.brokers.api.base import Batching, Context, Done, Outcome, Paced, in_slices, unfit
from fleetlog.brokers.api.groups import ANSWER_TIMEOUT_MS, bad_group_id, described_each, topics_of
from fleetlog.brokers.api.rows import Cost, Row
from fleetlog.brokers.api.unpacking import PAUSE
from fleetlog.brokers.api.waiting import when_done
from fleetlog.brokers.audit.events import EventType
from fleetlog.brokers.coordinators.shard_host import Beside
from fleetlog.brokers.groups.consumer.group import (
    JOINS,
    LEAVES,
    LEAVES_FOR_NOW,
    Beat,
    BeatAnswer,
    ConsumerGroup,
    Member,
)
from fleetlog.brokers.groups.consumer.records import Partition, Resolved, indexes_by_topic
from fleetlog.brokers.groups.members import timer_name
from fleetlog.brokers.groups.requests import ConsumerSettings
from fleetlog.brokers.metadata.features import GROUP_VERSION
from fleetlog.txn.commands import CommandFailed
from fleetlog.txn.patterns import BadPattern, Pattern
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatTopicPartitions,
)

LOOK_UP_MS = 10_000
"""How often a pattern is matched against the topics again at most, when they have changed."""
MAX_LOOK_UP_STEPS = 200_000_000
"""What matching a pattern against all topics may need, as ``txn.patterns`` counts: two seconds, in slices."""
STEPS_PER_MS, COMPILING_STEPS = 100_000, 1_000_000
"""How many of these steps a millisecond has, and as how many it counts to compile a pattern."""
REST = 4
"""So many times as long as looking its pattern up took a connection is not read: it has a fifth of a core at most."""
SIZE_BYTES, RESTING_MIN, RESTING_MAX, SHORT = 4, 32, 1024, 127
"""Bytes of a frame's size, of the shortest and the longest frame that are looked at, and of the longest text with its
size in one byte."""
NOTHING_NEW = {version: b"\0\xff\xff\xff\xff" + b"\0" * (4 + version) for version in (0, 1)}
"""How a heartbeat ends that says nothing new, behind the instance id: nulls, and a rebalance timeout of -1."""
NO_ASSIGNMENT = -1
_I32 = struct.Struct(">i")
_FRAME_HEAD = struct.Struct(">iix")
"""An answer's size, its correlation id, no tags."""
_ANSWER_HEAD, _ANSWER_TAIL = struct.Struct(">7xB"), struct.Struct(">iibx")
"""Nothing in throttling, error and message, the member id's size; behind that, the epoch, the interval, no assignment,
no tags."""
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""Types of members: by the protocol that they use (KIP-1099)."""


@in_slices
def handle_consumer_group_heartbeat(request: ConsumerGroupHeartbeatRequest, context: Context) -> Paced:
    """ConsumerGroupHeartbeat v0-v1: joins, keeps and ends a membership, and tells the member its partitions."""

    def refused(error: ErrorCode, message: str | None = None) -> Done:
        return Done(_heartbeat_response(BeatAnswer(error, message), {}, context.api_version))

    if (code := context.refusal(*READ_GROUP, request.group_id)) is not ErrorCode.NONE:
        return refused(code)
    denied = yield from context.denied_in_turns(*DESCRIBE_TOPIC, request.subscribed_topic_names or ())
    if denied:
        return refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if not served(context):
        return refused(ErrorCode.UNSUPPORTED_VERSION, NOT_SERVED)
    if (wrong := _wrong(request, context)) is not None:
        return refused(ErrorCode.INVALID_REQUEST, wrong)
    try:
        resolved = yield from _looked_up(request, context)
    except BadPattern as problem:
        text = f"SubscribedTopicRegex is not a regular expression of RE2: {problem}"
        return refused(ErrorCode.INVALID_REGULAR_EXPRESSION, text)
    owned = None if request.topic_partitions is None else (yield from _owned(request.topic_partitions))
    beat = Beat(
        request.group_id,
        request.member_id or str(uuid.uuid4()),  # before version 1 the coordinator names new members
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if request.subscribed_topic_names is None else tuple(request.subscribed_topic_names),
        request.subscribed_topic_regex,
        request.server_assignor,
        owned,
        context.client_id,
        f"/{context.connection.peer_host}",
        resolved,
        link=context.connection.id,
    )
    return _submitted(beat, context)


def _submitted(beat: Beat, context: Context) -> Outcome:
    """The group's answer to a heartbeat."""
    settings, picture = consumer_settings(beat.group_id, context), topics_of(context)

    @in_slices
    def render_assignment(answer: BeatAnswer) -> Generator[Any, None, Any]:
        by_topic = _by_topic(answer.assignment or ())
        names = context.services.metadata.topic_names
        held = [names[topic_id] for topic_id in by_topic if topic_id in names]
        denied = yield from context.denied_in_turns(*DESCRIBE_TOPIC, held)
        if denied:  # another member's pattern, or what could be described when it joined
            answer = BeatAnswer(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return _heartbeat_response(answer, by_topic, context.api_version)

    def render(answer: BeatAnswer | CommandFailed) -> Any:
        if isinstance(answer, CommandFailed):
            answer = BeatAnswer(answer.error)
        if answer.assignment is not None:
            return render_assignment(answer)
        if answer.error is ErrorCode.NONE and answer.member_id is not None and len(answer.member_id.encode()) < SHORT:
            return _unmoved(answer.member_id, answer.epoch, answer.interval_ms)
        return _heartbeat_response(answer, {}, context.api_version)

    pending = context.services.groups.submit(
        beat.group_id,
        lambda shard, now, ticket: shard.consumer_heartbeat(beat, picture, settings, now, ticket),
        beside=Beside(beat.member_id, lambda shard: shard.consumer_moves_alone(beat, picture, settings)),
    )
    return when_done(pending, render, ANSWER_TIMEOUT_MS)


def _owned(rows: Iterable[ConsumerGroupHeartbeatTopicPartitions]) -> Generator[Any, None, frozenset[Partition]]:
    """What the member says that it owns."""
    owned: set[Partition] = set()
    for row in rows:
        for index in row.partitions:
            yield
            if row.topic_id is not None:
                owned.add((row.topic_id.bytes, index))
    return frozenset(owned)


NOT_SERVED = "group.protocol=consumer is not served before group.version 1 is finalized: fleetlog features upgrade."


def served(context: Context) -> bool:
    """Whether the fleet has finalized that it serves these groups."""
    return context.services.metadata.features.get(GROUP_VERSION, 0) >= 1


def consumer_settings(group_id: str, context: Context) -> ConsumerSettings:
    """The group's own settings (config resource GROUP), else the broker's."""
    return context.services.metadata.group_settings(ConsumerSettings.of, group_id)


def _wrong(request: ConsumerGroupHeartbeatRequest, context: Context) -> str | None:
    """What Kafka refuses a heartbeat for, in its words."""
    epoch, names, regex = request.member_epoch, request.subscribed_topic_names, request.subscribed_topic_regex
    if bad_group_id(request.group_id):
        return "GroupId can't be empty."
    if not request.member_id and (context.api_version >= 1 or epoch != JOINS):
        return "MemberId can't be empty."
    for field, text in (("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if text is not None and not text.strip():
            return f"{field} can't be empty."
    texts = (request.member_id, request.instance_id, request.rack_id, context.client_id, regex, *(names or ()))
    if unfit(*texts):
        return "A name is too long, or not UTF-8."
    if epoch < LEAVES_FOR_NOW:
        return f"MemberEpoch is {epoch}, but must be greater than or equal to {LEAVES_FOR_NOW}."
    if epoch == LEAVES_FOR_NOW and request.instance_id is None:
        return "InstanceId can't be null."
    if epoch == JOINS:
        if request.rebalance_timeout_ms < 1:
            return "RebalanceTimeoutMs must be provided in first request."
        if request.topic_partitions is None or request.topic_partitions:
            return "TopicPartitions must be empty when (re-)joining."
        if names is None and regex is None:
            return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return None


def _looked_up(
    request: ConsumerGroupHeartbeatRequest, context: Context
) -> Generator[Any, None, Mapping[str, Resolved]]:
    """The member's pattern with its topics, if it is a new one or topics may have changed. Raises BadPattern.

    Every topic's name is matched, then those stay that the member may describe.
    """
    _, shard = context.services.groups.shard_for(request.group_id)
    group = (shard.consumers.get(request.group_id) if shard is not None else None) or ConsumerGroup(request.group_id)
    regex = request.subscribed_topic_regex
    if regex is None:
        member = group.members.get(request.member_id)
        regex = member.value.regex if member is not None and member.value is not None else None
    if not regex or request.member_epoch in (LEAVES, LEAVES_FOR_NOW):
        return {}
    metadata, now_ms = context.services.metadata, context.services.clock.wall_ms()
    version, before = metadata.sequence, group.looked_up.get(regex)
    if before is not None and (before.version == version or 0 <= now_ms - before.timestamp_ms < LOOK_UP_MS):
        return {}
    yield PAUSE  # patterns of several clients are compiled in one turn each
    steps, matched = COMPILING_STEPS, []
    try:
        pattern = Pattern(regex)
        for name in list(metadata.topics):
            yield
            steps += pattern.steps(name)
            if steps > MAX_LOOK_UP_STEPS:
                raise BadPattern("it takes too long for so many topics")
            if pattern.matches(name):
                matched.append(name)
    finally:
        if context.source is not None:
            context.source.mute(REST * steps // STEPS_PER_MS)
    denied = yield from context.denied_in_turns(*DESCRIBE_TOPIC, matched, logged=False)
    return {regex: Resolved(tuple(sorted(name for name in matched if name not in denied)), version, now_ms)}


def _by_topic(partitions: Iterable[Partition]) -> dict[uuid.UUID, list[int]]:
    return {uuid.UUID(bytes=topic_id): indexes for topic_id, indexes in indexes_by_topic(partitions).items()}


def _heartbeat_response(
    answer: BeatAnswer, by_topic: Mapping[uuid.UUID, list[int]], version: int
) -> m.ConsumerGroupHeartbeatResponse:
    kind = m.ConsumerGroupHeartbeatResponse
    assignment = None
    if answer.assignment is not None:
        row = kind.Assignment.TopicPartitions
        rows = [row(topic_id=topic, partitions=indexes) for topic, indexes in by_topic.items()]
        assignment = kind.Assignment(topic_partitions=rows)
    return kind(
        version=version,
        error_code=int(answer.error),
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.interval_ms,
        assignment=assignment,
    )


# --- heartbeats of members at rest: nearly all ------------------------------------------------------------------


class RestingBeat(NamedTuple):
    """A heartbeat by which a member says only that it is still there; ``ends``: where its frame does."""

    version: int
    correlation_ids: list[int]
    ends: list[int]
    client_id: str
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None


def decode_resting_beat(
    data: memoryview, start: int, end: int, lowest: int, highest: int, _most: int
) -> RestingBeat | None:  # fmt: skip
    """The heartbeat with which received frames begin, if it is whole, says nothing new, and its names are short."""
    stop = start + SIZE_BYTES + int.from_bytes(data[start : start + SIZE_BYTES], "big")
    if stop > end or not RESTING_MIN <= stop - start <= RESTING_MAX:
        return None
    frame = data[start + SIZE_BYTES : stop].tobytes()
    version = frame[3]  # behind the key; then the correlation id, and the client id, whose length has two bytes
    nothing_new = NOTHING_NEW.get(version)
    if nothing_new is None or frame[2] or frame[8] or not lowest <= version <= highest:
        return None
    try:
        at = 11 + frame[9]
        group_size, group_at = frame[at], at + 1  # sizes are one more than what they are of
        member_size, member_at = frame[at + group_size], at + group_size + 1
        epoch_at = member_at + member_size - 1
        size, client_id, instance_id = frame[epoch_at + 4], frame[10 : at - 1].decode(), None
        if frame[at - 1] or not (1 < group_size <= SHORT and 1 < member_size <= SHORT and size <= SHORT):
            return None  # tags of the header, or names that are long or missing
        tail_at = epoch_at + 5
        if size:
            instance_id, tail_at = frame[tail_at : tail_at + size - 1].decode(), tail_at + size - 1
        group_id, member_id = frame[group_at : member_at - 1].decode(), frame[member_at:epoch_at].decode()
    except (IndexError, UnicodeDecodeError):
        return None
    if frame[tail_at:] != nothing_new:
        return None
    correlation_ids, epoch = [_I32.unpack_from(frame, 4)[0]], _I32.unpack_from(frame, epoch_at)[0]
    return RestingBeat(version, correlation_ids, [stop], client_id, group_id, member_id, epoch, instance_id)


def execute_resting_beats(beats: Sequence[RestingBeat], contexts: Sequence[Context]) -> list[Outcome]:
    """The answers to members that have what they shall have; the others' requests are handled as any."""
    return [_kept_alive(beat, context) for beat, context in zip(beats, contexts, strict=True)]


def _kept_alive(beat: RestingBeat, context: Context) -> Outcome:
    context.client_id, group_id, member_id, epoch, instance_id = beat[3:]
    groups, picture = context.services.groups, topics_of(context)
    host = groups.idle_host(group_id, member_id)
    client = context.client_id, f"/{context.connection.peer_host}"
    rests = host is not None and host.shard.consumer_rests(group_id, member_id, epoch, instance_id, client, picture)
    if not served(context) or not (rests or _needs_no_look(beat, context)):
        request = m.ConsumerGroupHeartbeatRequest(
            version=beat.version, group_id=group_id, member_id=member_id, member_epoch=epoch, instance_id=instance_id
        )
        return handle_consumer_group_heartbeat(request, context)
    if (code := context.refusal(*READ_GROUP, group_id)) is not ErrorCode.NONE:
        return Done(_heartbeat_response(BeatAnswer(code), {}, beat.version))
    if host is None or not rests:
        asked = Beat(group_id, member_id, epoch, instance_id, client_id=client[0], client_host=client[1])
        return _submitted(asked._replace(link=context.connection.id), context)
    settings = consumer_settings(group_id, context)
    host.schedule(timer_name("member", group_id, member_id), settings.session_timeout_ms)
    body = _unmoved(member_id, epoch, settings.heartbeat_interval_ms)
    return Done([_FRAME_HEAD.pack(len(body) + _FRAME_HEAD.size - SIZE_BYTES, beat.correlation_ids[0]) + body])


def _needs_no_look(beat: RestingBeat, context: Context) -> bool:
    """Whether the request is one that no rule of its form forbids, of a member without a pattern to be looked up."""
    _, shard = context.services.groups.shard_for(beat.group_id)
    group = shard.consumers.get(beat.group_id) if shard is not None else None
    member = group.members.get(beat.member_id) if group is not None else None
    if member is None or member.value is None or member.value.regex or beat.member_epoch <= JOINS:
        return False
    return beat.instance_id is None or bool(beat.instance_id.strip())


def _unmoved(member_id: str, epoch: int, interval_ms: int) -> bytes:
    """The answer of both versions to a member that is told no assignment, without header."""
    name = member_id.encode()
    return _ANSWER_HEAD.pack(len(name) + 1) + name + _ANSWER_TAIL.pack(epoch, interval_ms, NO_ASSIGNMENT)


Row(
    api_keys.CONSUMER_GROUP_HEARTBEAT, (READ_GROUP, DESCRIBE_TOPIC), EventType.HEARTBEAT, cost=Cost.CHEAP,
    batching=Batching(decode_resting_beat, execute_resting_beats, None, lambda _: True, batchable=False),
)(handle_consumer_group_heartbeat)  # fmt: skip


# --- descriptions -----------------------------------------------------------------------------------------------


@Row(api_keys.CONSUMER_GROUP_DESCRIBE, (DESCRIBE_GROUP,))
@in_slices
def handle_consumer_group_describe(request: ConsumerGroupDescribeRequest, context: Context) -> Paced:
    """ConsumerGroupDescribe v0-v1: each group once; GROUP_ID_NOT_FOUND for those of other protocols.

    UNSUPPORTED_VERSION for every group, as Kafka answers, before ``group.version`` 1 is finalized.
    """
    groups = yield from described_each(request, context, served(context), lambda shard: shard.consumers, _described)
    return Done(m.ConsumerGroupDescribeResponse(version=context.api_version, groups=groups))


def _described(
    group_id: str, error: ErrorCode, group: ConsumerGroup | None, operations: int, context: Context
) -> Generator[None, None, m.ConsumerGroupDescribeResponse.DescribedGroup]:
    said = {
        ErrorCode.GROUP_ID_NOT_FOUND: f"Group {group_id} is not a consumer group.",
        ErrorCode.UNSUPPORTED_VERSION: NOT_SERVED,
    }
    message = said.get(error)
    members = []
    if group is not None:
        names = context.services.metadata.topic_names
        for member in list(group.members.values()):
            yield
            members.append(_described_member(member, names))
        both = ((one.assignment, one.target_assignment) for one in members)
        topics = (row.topic_name for pair in both for assignment in pair for row in assignment.topic_partitions)
        denied = yield from context.denied_in_turns(*DESCRIBE_TOPIC, topics, logged=False)
        if denied:
            members, group, error = [], None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
            message = "The group has described topic(s) that the client is not authorized to describe."
    return m.ConsumerGroupDescribeResponse.DescribedGroup(
        error_code=int(error),
        error_message=message,
        group_id=group_id,
        group_state=group.state if group is not None else "",
        group_epoch=group.epoch if group is not None else 0,
        assignment_epoch=group.assignment_epoch if group is not None else 0,
        assignor_name=group.assignor(consumer_settings(group_id, context).assignors[0]) if group is not None else "",
        members=members,
        authorized_operations=operations if error is ErrorCode.NONE else NOT_ASKED,
    )


def _described_member(
    member: Member, names: Mapping[uuid.UUID, str]
) -> m.ConsumerGroupDescribeResponse.DescribedGroup.Member:
    kind, value = m.ConsumerGroupDescribeResponse.DescribedGroup.Member, member.value

    def assignment(of: Any, partitions: Iterable[Partition]) -> Any:
        rows = [
            of.TopicPartitions(topic_id=topic, topic_name=names[topic], partitions=indexes)
            for topic, indexes in _by_topic(partitions).items()
            if topic in names
        ]
        return of(topic_partitions=rows)

    return kind(
        member_id=member.id,
        instance_id=value.instance_id if value is not None else None,
        rack_id=value.rack_id if value is not None else None,
        member_epoch=member.at.epoch,
        client_id=value.client_id if value is not None else "",
        client_host=value.client_host if value is not None else "",
        subscribed_topic_names=list(value.topics) if value is not None else [],
        subscribed_topic_regex=(value.regex or "") if value is not None else None,
        assignment=assignment(kind.Assignment, member.at.assigned),
        target_assignment=assignment(kind.TargetAssignment, member.target or ()),
        member_type=CLASSIC_MEMBER if member.classic else CONSUMER_MEMBER,
    )
