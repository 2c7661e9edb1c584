"""Handlers of the groups' offsets (keys 8, 9, 28, 47): OffsetCommit, OffsetFetch, TxnOffsetCommit, OffsetDelete.

A request may name ten thousand partitions. What is done with each of them before and after the shard's command is done
in slices (``brokers.server.dispatch``); the command itself, and a read of one group, are done in one go: nothing comes
between two partitions of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple, TypeVar

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import (
    DELETE_GROUP,
    DESCRIBE_GROUP,
    DESCRIBE_TOPIC,
    READ_GROUP,
    READ_TOPIC,
    WRITE_TRANSACTIONAL_ID,
)
from fleetlog.brokers.acls.image import AclOperation
from fleetlog.brokers.api.base import Context, Done, InSlices, Outcome, Paced, in_slices, in_task, named_once, unfit
from fleetlog.brokers.api.changes import brief, codes_of
from fleetlog.brokers.api.groups import ANSWER_TIMEOUT_MS, bad_group_id, error_of
from fleetlog.brokers.api.rows import Cost, Recorded, Row
from fleetlog.brokers.api.waiting import when_done
from fleetlog.brokers.audit.events import Change, Changes, EventType
from fleetlog.brokers.coordinators.transactions.verification import admit
from fleetlog.brokers.groups.records import CommittedOffset
from fleetlog.brokers.groups.requests import FetchedOffset, FetchRequest, OffsetCommitRequest
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.brokers.model import GROUP_METADATA_TOPIC
from fleetlog.txn.commands import CommandFailed, Now, Result, Ticket
from fleetlog.txn.verification import TRY_AGAIN, Ask, Question, VerifiedFrom, client_error, question
from fleetlog.wire import api_keys, requests
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

Errors = dict[TopicPartition, ErrorCode]
OFFSETS_TIMEOUT_MS = 5_000
VERIFIED = VerifiedFrom(adding=5, abortable=4)
Committing = requests.OffsetCommitRequest | requests.TxnOffsetCommitRequest
CommitResponse = m.OffsetCommitResponse | m.TxnOffsetCommitResponse | m.OffsetDeleteResponse
FetchTopics = Sequence[requests.OffsetFetchTopics] | Sequence[requests.OffsetFetchGroupsTopics]
FetchedGroup = m.OffsetFetchResponse.OffsetFetchResponseGroup
T = TypeVar("T")
TOPIC_IDS_VERSION = {api_keys.OFFSET_COMMIT: 10, api_keys.OFFSET_FETCH: 10, api_keys.TXN_OFFSET_COMMIT: 6}
"""From which version on a topic is named by its id alone (KIP-848, KIP-1319)."""


@Row(api_keys.OFFSET_COMMIT, (READ_GROUP, READ_TOPIC), EventType.CONSUME, cost=Cost.CHEAP)
@in_slices
def handle_offset_commit(request: requests.OffsetCommitRequest, context: Context) -> Paced:
    """OffsetCommit: partitions of unknown topics are refused, the others committed together."""
    version = context.api_version
    if (denied := context.refusal(*READ_GROUP, request.group_id)) is not ErrorCode.NONE:
        refused = yield from everywhere(request, denied)
        return Done(commit_response(m.OffsetCommitResponse, request, version, refused))
    known, refused = yield from split_partitions(request, context)

    def render(answer: Errors | CommandFailed) -> InSlices:
        if isinstance(answer, CommandFailed):
            answer = {partition: answer.error for partition, _ in known}
        return commit_response(m.OffsetCommitResponse, request, version, {**refused, **answer})

    if bad_group_id(request.group_id, may_be_empty=True):
        return Done(render(CommandFailed(ErrorCode.INVALID_GROUP_ID)))
    command = OffsetCommitRequest(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        of_present_topics(known, refused, context),
        request.retention_time_ms if 2 <= version <= 4 else -1,
        knows_missing_groups=version >= 9,
    )
    pending = context.services.groups.submit(
        request.group_id, lambda shard, now, ticket: shard.commit(command, now, ticket)
    )
    return when_done(pending, render, ANSWER_TIMEOUT_MS)


def split_partitions(
    request: Committing, context: Context, leader_epochs: bool = True
) -> Generator[None, None, tuple[tuple[tuple[TopicPartition, CommittedOffset], ...], Errors]]:
    """The offsets of an OffsetCommit or TxnOffsetCommit for partitions that exist, and the errors of the others.

    A version without ``leader_epochs`` has none to be kept. A topic whose id is unknown gets the name "".
    """
    metadata = context.services.metadata
    if by_id(context):
        yield from _name_topics(request.topics, context)
    denied = yield from context.denied_in_turns(*READ_TOPIC, (topic.name for topic in request.topics if topic.name))
    known: list[tuple[TopicPartition, CommittedOffset]] = []
    refused: Errors = {}
    for topic in request.topics:
        for asked in topic.partitions:
            yield
            partition = TopicPartition(topic.name, asked.partition_index)
            if topic.name in denied:
                refused[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            present = metadata.topics.get(topic.name)
            if present is None or (by_id(context) and present.id != topic.topic_id):
                refused[partition] = unknown_topic(context)
                continue
            if not 0 <= asked.partition_index < len(present.partitions):
                refused[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            leader_epoch = asked.committed_leader_epoch if leader_epochs else -1
            committed = CommittedOffset(
                asked.committed_offset, leader_epoch, asked.committed_metadata or "", topic_id=present.id.bytes
            )
            known.append((partition, committed))
    return tuple(known), refused


def by_id(context: Context) -> bool:
    """Whether the request names topics by their ids."""
    return context.api_version >= TOPIC_IDS_VERSION.get(context.api_key, 2**15)


def unknown_topic(context: Context) -> ErrorCode:
    """The error of a topic that is not there."""
    return ErrorCode.UNKNOWN_TOPIC_ID if by_id(context) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _name_topics(
    topics: Iterable[requests.OffsetCommitTopics | requests.TxnOffsetCommitTopics | requests.OffsetFetchGroupsTopics],
    context: Context,
) -> Generator[None, None, None]:
    """Give topics that are named by their ids the names of today; "" without one."""
    for topic in topics:
        yield
        topic.name = "" if topic.topic_id is None else context.services.metadata.topic_names.get(topic.topic_id, "")


def of_present_topics(
    offsets: tuple[tuple[TopicPartition, CommittedOffset], ...], refused: Errors, context: Context
) -> tuple[tuple[TopicPartition, CommittedOffset], ...]:
    """Those to be committed in this turn: the others are ``refused``, as their topics were deleted in the meantime.

    Written now, they would stand behind what is committed, and acknowledged, for a new topic of the name.
    """
    topics = context.services.metadata.topics
    gone = {partition for partition, committed in offsets if committed.outlives(topics.get(partition.topic))}
    if not gone:
        return offsets
    refused.update(dict.fromkeys(gone, unknown_topic(context)))
    return tuple(row for row in offsets if row[0] not in gone)


def everywhere(request: Committing, error: ErrorCode) -> Generator[None, None, Errors]:
    """The error for each partition of an OffsetCommit or TxnOffsetCommit."""
    errors: Errors = {}
    for topic in request.topics:
        for asked in topic.partitions:
            yield
            errors[TopicPartition(topic.name, asked.partition_index)] = error
    return errors


@in_slices
def commit_response(
    response: type[CommitResponse], request: Committing | requests.OffsetDeleteRequest, version: int, errors: Errors
) -> Generator[None, None, CommitResponse]:
    """The response of an OffsetCommit, TxnOffsetCommit or OffsetDelete in the request's order, made in slices."""
    name = response.__name__
    topic_class, partition_class = getattr(response, f"{name}Topic"), getattr(response, f"{name}Partition", None)
    if partition_class is None:
        partition_class = getattr(topic_class, f"{name}Partition")
    topics, first_by_id = [], TOPIC_IDS_VERSION.get(response.API_KEY, 2**15)
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            yield
            error = errors[TopicPartition(topic.name, asked.partition_index)]
            partitions.append(partition_class(partition_index=asked.partition_index, error_code=int(error)))
        row = topic_class(name=topic.name, partitions=partitions)
        if version >= first_by_id:
            row.topic_id = getattr(topic, "topic_id", None)
        topics.append(row)
    return response(version=version, topics=topics)


@Row(api_keys.TXN_OFFSET_COMMIT, (WRITE_TRANSACTIONAL_ID, READ_GROUP, READ_TOPIC), EventType.PRODUCE, cost=Cost.CHEAP)
@in_slices
def handle_txn_offset_commit(request: requests.TxnOffsetCommitRequest, context: Context) -> Paced:
    """TxnOffsetCommit: offsets that count once the transaction commits; the group's shard keeps them pending.

    Of a partition that stands in the request twice the last offset counts.
    """
    version = context.api_version
    if (refusal := not_committer(request, context)) is not ErrorCode.NONE:
        refused = yield from everywhere(request, refusal)
        return Done(commit_response(m.TxnOffsetCommitResponse, request, version, refused))
    known, errors = yield from split_partitions(request, context, leader_epochs=version >= 2)
    member = version >= 3
    commit = OffsetCommitRequest(
        group_id=request.group_id,
        generation=request.generation_id_or_member_epoch if member else -1,
        member_id=request.member_id if member else "",
        instance_id=request.group_instance_id if member else None,
        offsets=tuple(dict(known).items()),
        knows_missing_groups=version >= 6,
    )

    def render(answer: Errors | CommandFailed) -> InSlices:
        if isinstance(answer, CommandFailed):
            answer = dict.fromkeys((tp for tp, _ in commit.offsets), answer.error)
        return commit_response(m.TxnOffsetCommitResponse, request, version, {**errors, **answer})

    if unfit(request.group_id, request.transactional_id):
        return Done(render(CommandFailed(ErrorCode.INVALID_GROUP_ID)))
    if not commit.offsets:
        return Done(render({}))
    return _commit_in_transaction(request, context, commit, errors, render)


@in_task
async def _commit_in_transaction(
    request: requests.TxnOffsetCommitRequest,
    context: Context,
    commit: OffsetCommitRequest,
    errors: Errors,
    render: Callable[[Errors | CommandFailed], InSlices],
) -> Outcome:
    """Ask the transaction coordinator whether the group's partition is in the transaction, then commit."""
    services = context.services
    groups, producer = services.groups, (request.producer_id, request.producer_epoch)
    place = TopicPartition(GROUP_METADATA_TOPIC, groups.partition_for(request.group_id))
    error, host = groups.host_for(request.group_id)
    if host is None:
        return Done(render(CommandFailed(error)))
    asked = question(VERIFIED, context.api_version, request.transactional_id, producer, [place])
    admitted = await admit(
        services.transactions.verifier.ask,
        services.clock,
        asked.transactional_id,
        producer,
        {place: (host.partition.log.producers, -1)},
        add=asked.ask is Ask.ADD,
    )
    error, guard = admitted[place]
    error = _offsets_error(asked, error)
    if error is not ErrorCode.NONE:
        return Done(render(CommandFailed(error)))
    present = commit._replace(offsets=of_present_topics(commit.offsets, errors, context))

    def command(shard: GroupShard, now: Now, ticket: Ticket) -> Result:
        return shard.commit_transactional(present, producer, now, ticket)

    pending = groups.submit(request.group_id, command, guard=guard)
    return when_done(pending, render, OFFSETS_TIMEOUT_MS)


def _offsets_error(asked: Question, answer: ErrorCode) -> ErrorCode:
    """As for a produce; but what passes by itself has a name every committer retries at the same broker."""
    error = client_error(asked, answer)
    if answer in TRY_AGAIN and error is not ErrorCode.CONCURRENT_TRANSACTIONS:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return error


def not_committer(
    request: requests.AddOffsetsToTxnRequest | requests.TxnOffsetCommitRequest, context: Context
) -> ErrorCode:
    """NONE if the client may commit offsets of the group in the transaction, but for the topics."""
    refusal = context.refusal(*WRITE_TRANSACTIONAL_ID, request.transactional_id)
    return refusal if refusal is not ErrorCode.NONE else context.refusal(*READ_GROUP, request.group_id)


class GroupOffsets(NamedTuple):
    """What a group has committed, or its error."""

    error: ErrorCode
    offsets: Sequence[FetchedOffset] = ()


@Row(api_keys.OFFSET_FETCH, (DESCRIBE_GROUP, DESCRIBE_TOPIC), cost=Cost.CHEAP)
@in_slices
def handle_offset_fetch(request: requests.OffsetFetchRequest, context: Context) -> Paced:
    """OffsetFetch: one group before version 8, several from then on. A plain read of committed state."""
    if context.api_version >= 8:
        return (yield from _fetch_groups(request, context))
    version = context.api_version
    error, offsets = yield from _fetch_one(context, request.group_id, request.topics, request.require_stable)
    if error is not ErrorCode.NONE:
        offsets = yield from _failed_offsets(request.topics, error if version < 2 else ErrorCode.NONE)
    topic = m.OffsetFetchResponse.OffsetFetchResponseTopic
    topics = yield from _fetched_topics(topic, topic.OffsetFetchResponsePartition, offsets)
    return Done(m.OffsetFetchResponse(version=version, error_code=int(error), topics=topics))


def _fetch_groups(request: requests.OffsetFetchRequest, context: Context) -> Paced:
    """A group that is named again is INVALID_REQUEST there: each may have many offsets."""
    version, groups = context.api_version, []
    seen: set[str] = set()
    for group in request.groups:
        yield
        answer = GroupOffsets(ErrorCode.INVALID_REQUEST)
        if by_id(context):
            yield from _name_topics(group.topics or (), context)
        if group.group_id not in seen:
            known = None if group.topics is None else [topic for topic in group.topics if topic.name or version < 10]
            member = (group.member_id, group.member_epoch) if version >= 9 else (None, -1)
            answer = yield from _fetch_one(context, group.group_id, known, request.require_stable, member)
        seen.add(group.group_id)
        groups.append((yield from _fetched_group(group, answer, context)))
    return Done(m.OffsetFetchResponse(version=version, groups=groups))


def _fetch_one(
    context: Context,
    group_id: str,
    topics: FetchTopics | None,
    require_stable: bool,
    member: tuple[str | None, int] = (None, -1),
) -> Generator[None, None, GroupOffsets]:
    """The offsets of the named topics, or of all that may be described; else the error of the group.

    ``member``: the id and the epoch of who asks, which count in groups of the consumer protocol. A commit is read as a
    whole, or not at all: the shard is asked at one go, all else is done in slices.
    """
    if (refusal := context.refusal(*DESCRIBE_GROUP, group_id)) is not ErrorCode.NONE:
        return GroupOffsets(refusal)
    partitions = None
    if topics is not None:
        partitions = yield from named_once((topic.name, topic.partition_indexes) for topic in topics)
    if bad_group_id(group_id, may_be_empty=True):
        return GroupOffsets(ErrorCode.INVALID_GROUP_ID)
    denied = yield from context.denied_in_turns(*DESCRIBE_TOPIC, (topic.name for topic in topics or ()))
    error, shard = context.services.groups.shard_for(group_id)
    if shard is None:
        return GroupOffsets(error)
    consumer = shard.consumers.get(group_id)
    if consumer is not None and (error := consumer.fetch_error(*member)) is not ErrorCode.NONE:
        return GroupOffsets(error)
    if partitions is None:
        fetched = yield from _told(shard.fetch(FetchRequest(group_id, None, bool(require_stable))), context)
        every = tuple(one for one in fetched if one.committed is not None or one.error is not ErrorCode.NONE)
        denied = yield from context.denied_in_turns(
            *DESCRIBE_TOPIC, (offset.partition.topic for offset in every), logged=False
        )
        if denied:
            every = tuple(offset for offset in every if offset.partition.topic not in denied)
        return GroupOffsets(ErrorCode.NONE, every)
    allowed = tuple(p for p in partitions if p.topic not in denied) if denied else partitions
    fetched = yield from _told(shard.fetch(FetchRequest(group_id, allowed, bool(require_stable))), context)
    hidden = (p for p in partitions if p.topic in denied)
    refused = (FetchedOffset(p, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for p in hidden)
    return GroupOffsets(ErrorCode.NONE, (*fetched, *refused))


def _told(offsets: Sequence[FetchedOffset], context: Context) -> Generator[None, None, list[FetchedOffset]]:
    """As in the shard, but nothing is committed where it was for a deleted topic.

    This broker knows each topic that has a commit in the shard: a commit names a topic that its coordinator knew, and
    the entry of the change log that elected this one comes behind all that its predecessor had read.
    """
    kept = []
    for one in offsets:
        yield
        topic = context.services.metadata.topics.get(one.partition.topic)
        if one.committed is not None and one.committed.outlives(topic):
            one = one._replace(committed=None)
        kept.append(one)
    return kept


def _failed_offsets(topics: FetchTopics | None, error: ErrorCode) -> Generator[None, None, list[FetchedOffset]]:
    """The error for each partition as often as it is named."""
    failed = []
    for topic in topics or ():
        for index in topic.partition_indexes:
            yield
            failed.append(FetchedOffset(TopicPartition(topic.name, index), None, error))
    return failed


def _fetched_group(
    asked: requests.OffsetFetchGroups, answer: GroupOffsets, context: Context
) -> Generator[None, None, FetchedGroup]:
    topic = FetchedGroup.OffsetFetchResponseTopics
    part = topic.OffsetFetchResponsePartitions
    topics = yield from _fetched_topics(topic, part, answer.offsets)
    if by_id(context):
        present = context.services.metadata.topics
        topics = [row for row in topics if row.name in present]  # a topic without an id cannot be named
        for row in topics:
            row.topic_id = present[row.name].id
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        for missing in asked.topics or () if answer.error is ErrorCode.NONE else ():
            if not missing.name and missing.partition_indexes:
                rows = [FetchedOffset(TopicPartition("", i), None, unknown) for i in missing.partition_indexes]
                (row,) = yield from _fetched_topics(topic, part, rows)
                row.topic_id = missing.topic_id
                topics.append(row)
    return FetchedGroup(group_id=asked.group_id, error_code=int(answer.error), topics=topics)


def _fetched_topics(
    topic_class: Callable[..., T], partition_class: Callable[..., object], offsets: Iterable[FetchedOffset]
) -> Generator[None, None, list[T]]:
    by_topic: dict[str, list[object]] = {}
    for partition, committed, error in offsets:
        yield
        offset = committed or CommittedOffset(-1)
        by_topic.setdefault(partition.topic, []).append(
            partition_class(
                partition_index=partition.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                error_code=int(error),
            )
        )
    topics = []
    for name, parts in by_topic.items():
        yield
        topics.append(topic_class(name=name, partitions=parts))
    return topics


def _delete_offsets(request: requests.OffsetDeleteRequest, response: m.OffsetDeleteResponse) -> Changes:
    codes = codes_of(response.topics, "name")
    code = response.error_code or next((code for code in codes.values() if code), 0)
    detail = brief("offsets of", (topic.name for topic in request.topics))
    yield Change("Group", request.group_id, AclOperation.DELETE, ErrorCode(code), detail)


@Row(api_keys.OFFSET_DELETE, (DELETE_GROUP, READ_TOPIC), Recorded(_delete_offsets))
@in_slices
def handle_offset_delete(request: requests.OffsetDeleteRequest, context: Context) -> Paced:
    """OffsetDelete."""
    version = context.api_version
    denied = yield from context.denied_in_turns(*READ_TOPIC, (topic.name for topic in request.topics))
    refused: Errors = {}
    known: list[TopicPartition] = []
    for topic in request.topics:
        for asked in topic.partitions:
            yield
            partition = TopicPartition(topic.name, asked.partition_index)
            if topic.name in denied:
                refused[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif context.services.metadata.partition(partition) is None:
                refused[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                known.append(partition)

    def render(answer: Errors | ErrorCode | CommandFailed) -> m.OffsetDeleteResponse | InSlices:
        if not isinstance(answer, dict):
            return m.OffsetDeleteResponse(version=version, error_code=int(error_of(answer)))
        return commit_response(m.OffsetDeleteResponse, request, version, {**refused, **answer})

    group_id = request.group_id
    if (refusal := context.refusal(*DELETE_GROUP, group_id)) is not ErrorCode.NONE:
        return Done(render(refusal))
    if bad_group_id(group_id):
        return Done(render(ErrorCode.INVALID_GROUP_ID))
    pending = context.services.groups.submit(
        group_id, lambda shard, now, ticket: shard.delete_offsets(group_id, tuple(known), now, ticket)
    )
    return when_done(pending, render, ANSWER_TIMEOUT_MS)
