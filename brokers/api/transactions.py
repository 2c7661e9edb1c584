"""Handlers of the transaction APIs (keys 22, 24 to 28): from messages to commands and back.

What may happen is decided by the pure shards (``txn.coordinator``); here is the mapping of versions and error codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import wire.messages as m
from brokers.api.base import Context, Done, Outcome, Park
from brokers.api.transaction_lists import (
    handle_describe_producers,
    handle_describe_transactions,
    handle_list_transactions,
)
from brokers.api.waiting import when_done
from brokers.coordinators.pending import Pending
from brokers.coordinators.ports import Marker
from brokers.coordinators.transactions import TransactionCoordinator
from brokers.coordinators.verification import admit, command_for, errors_of
from brokers.groups.records import CommittedOffset
from brokers.groups.requests import CommitRequest
from brokers.groups.shard import GroupShard
from brokers.model import GROUP_METADATA_TOPIC
from txn.commands import Failed, Now, Result, Ticket
from txn.coordinator import (
    AddPartitionsAnswer,
    End,
    EndAnswer,
    InitAnswer,
    Producer,
    TransactionShard,
)
from txn.verification import TXN_OFFSET_COMMIT_KEY, Ask, Question, client_error, question
from wire.errors import ErrorCode
from wire.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

__all__ = [
    "handle_add_offsets_to_txn",
    "handle_add_partitions_to_txn",
    "handle_describe_producers",
    "handle_describe_transactions",
    "handle_end_txn",
    "handle_init_producer_id",
    "handle_list_transactions",
    "handle_txn_offset_commit",
    "handle_write_txn_markers",
]

ANSWER_TIMEOUT_MS = 30_000
OFFSETS_TIMEOUT_MS = 5_000
MARKERS_TIMEOUT_MS = 5_000
NAME_BYTES_MAX = 30_000
"""Names end up in records as strings of at most 32,767 bytes."""


def _coordinator(context: Context) -> TransactionCoordinator:
    found = context.services.transactions
    assert isinstance(found, TransactionCoordinator)
    return found


def _error_of(answer: Any) -> ErrorCode:
    assert isinstance(answer, (InitAnswer, AddPartitionsAnswer, EndAnswer, Failed)), answer
    return answer.error


def _told(error: ErrorCode, version: int, fenced_from: int) -> ErrorCode:
    """PRODUCER_FENCED is newer than some versions of each API (KIP-588)."""
    if error is ErrorCode.PRODUCER_FENCED and version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _too_long(*names: str | None) -> bool:
    return any(name is not None and len(name.encode()) > NAME_BYTES_MAX for name in names)


# --- InitProducerId ---------------------------------------------------------------------------------------------------


def handle_init_producer_id(request: Any, context: Context) -> Outcome:
    """InitProducerId: an id for an idempotent producer, or the next epoch of a transactional one."""
    version = context.api_version

    def render(answer: Any) -> Any:
        error = _told(_error_of(answer), version, 4)
        given = answer if isinstance(answer, InitAnswer) and error is ErrorCode.NONE else InitAnswer(error)
        return m.InitProducerIdResponse(
            version=version,
            error_code=error,
            producer_id=given.producer_id,
            producer_epoch=given.producer_epoch,
        )

    transactional_id = request.transactional_id
    ids = _coordinator(context).producer_ids
    if transactional_id is None:
        return _idempotent(ids.when_ready, render)
    expected = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    if version >= 3:
        expected = (request.producer_id, request.producer_epoch)
    if (expected[0] == NO_PRODUCER_ID) != (expected[1] == NO_PRODUCER_EPOCH) or _too_long(transactional_id):
        return Done(render(InitAnswer(ErrorCode.INVALID_REQUEST)))
    named = None if expected[0] == NO_PRODUCER_ID else expected
    timeout_ms = request.transaction_timeout_ms

    def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
        return shard.init_producer_id(transactional_id, timeout_ms, named, ids.take, now)

    def late() -> Any:
        return render(Failed(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    park = Park(ANSWER_TIMEOUT_MS, late)

    def begin() -> None:
        if not park.done:
            pending = _coordinator(context).submit_patiently(transactional_id, command)
            park.on_drop = pending.abandon
            pending.on_done(lambda answer: park.complete(render(answer)))

    ids.when_filled(begin)
    return Done(park.response) if park.done else park


def _idempotent(when_ready: Callable[[Callable[[int | None], None]], None], render: Callable[[Any], Any]) -> Outcome:
    """Without a transactional id every request gets a new producer id, whatever else it says."""
    none_left = InitAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    park = Park(ANSWER_TIMEOUT_MS, lambda: render(none_left))

    def ready(producer_id: int | None) -> None:
        park.complete(render(none_left if producer_id is None else InitAnswer(ErrorCode.NONE, producer_id, 0)))

    when_ready(ready)
    return Done(park.response) if park.done else park


# --- AddPartitionsToTxn, AddOffsetsToTxn ------------------------------------------------------------------------------


def handle_add_partitions_to_txn(request: Any, context: Context) -> Outcome:
    """AddPartitionsToTxn: one transaction from a client (v0 to 3), a batch of them from a broker (v4 and up)."""
    if context.api_version >= 4:
        return _add_partitions_batched(request, context)
    version = context.api_version
    asked = _partitions_of(request.v3_and_below_topics)
    transactional_id = request.v3_and_below_transactional_id

    def render(errors: dict[TopicPartition, ErrorCode]) -> Any:
        told = {tp: _told(error, version, 2) for tp, error in errors.items()}
        return m.AddPartitionsToTxnResponse(
            version=version,
            throttle_time_ms=0,
            results_by_topic_v3_and_below=_topic_results(version, told),
        )

    if _too_long(transactional_id):
        return Done(render(dict.fromkeys(asked, ErrorCode.INVALID_REQUEST)))
    view = context.services.view
    unknown = {tp for tp in asked if view.partition(tp) is None}
    if unknown:
        # All or nothing: the client must not believe that some of them are in.
        return Done(
            render(
                {
                    tp: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if tp in unknown else ErrorCode.OPERATION_NOT_ATTEMPTED
                    for tp in asked
                }
            )
        )
    pending = _submit_add(
        context, transactional_id, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch, asked
    )
    return when_done(pending, lambda answer: render(dict.fromkeys(asked, _error_of(answer))), ANSWER_TIMEOUT_MS)


def _submit_add(
    context: Context, transactional_id: str, producer_id: int, producer_epoch: int, partitions: list[TopicPartition]
) -> Pending:
    producer = Producer(producer_id, producer_epoch)

    def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
        return shard.add_partitions(transactional_id, producer, partitions, 0, now)

    return _coordinator(context).submit_patiently(transactional_id, command)


def _add_partitions_batched(request: Any, context: Context) -> Outcome:
    version = context.api_version
    questions = [
        Question(
            entry.transactional_id,
            entry.producer_id,
            entry.producer_epoch,
            tuple(_partitions_of(entry.topics)),
            Ask.VERIFY if entry.verify_only else Ask.ADD,
            abortable=True,
        )
        for entry in request.transactions
    ]
    answers: list[dict[TopicPartition, ErrorCode]] = [
        dict.fromkeys(q.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE) for q in questions
    ]
    missing = set(range(len(questions)))

    def render() -> Any:
        kind = m.AddPartitionsToTxnResponse
        return kind(
            version=version,
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            results_by_transaction=[
                kind.AddPartitionsToTxnResult(
                    version=version,
                    transactional_id=asked.transactional_id,
                    topic_results=_topic_results(version, errors),
                )
                for asked, errors in zip(questions, answers, strict=True)
            ],
        )

    if not questions:
        return Done(render())
    park = Park(ANSWER_TIMEOUT_MS, render)

    def take(index: int, response: Any) -> None:
        answers[index] = errors_of(questions[index], response)
        missing.discard(index)
        if not missing:
            park.complete(render())

    for index, asked in enumerate(questions):
        if _too_long(asked.transactional_id):
            take(index, Failed(ErrorCode.INVALID_REQUEST))
            continue
        pending = context.services.transactions.submit(asked.transactional_id, command_for(asked))
        pending.on_done(partial(take, index))
    return Done(park.response) if park.done else park


def _partitions_of(topics: Iterable[Any]) -> list[TopicPartition]:
    """Each partition once, in the request's order."""
    return list(dict.fromkeys(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions))


def _topic_results(version: int, errors: dict[TopicPartition, ErrorCode]) -> list[Any]:
    kind = m.AddPartitionsToTxnResponse
    by_topic: dict[str, list[Any]] = {}
    for (topic, index), error in errors.items():
        by_topic.setdefault(topic, []).append(
            kind.AddPartitionsToTxnTopicResult.AddPartitionsToTxnPartitionResult(
                partition_index=index, partition_error_code=error
            )
        )
    return [
        kind.AddPartitionsToTxnTopicResult(name=name, results_by_partition=results)
        for name, results in by_topic.items()
    ]


def handle_add_offsets_to_txn(request: Any, context: Context) -> Outcome:
    """AddOffsetsToTxn: the group's partition of __consumer_offsets joins the transaction."""
    version = context.api_version

    def render(answer: Any) -> Any:
        return m.AddOffsetsToTxnResponse(
            version=version, throttle_time_ms=0, error_code=_told(_error_of(answer), version, 2)
        )

    if _too_long(request.transactional_id, request.group_id):
        return Done(render(Failed(ErrorCode.INVALID_REQUEST)))
    partition = TopicPartition(GROUP_METADATA_TOPIC, context.services.groups.partition_for(request.group_id))
    pending = _submit_add(context, request.transactional_id, request.producer_id, request.producer_epoch, [partition])
    return when_done(pending, render, ANSWER_TIMEOUT_MS)


# --- EndTxn -----------------------------------------------------------------------------------------------------------


def handle_end_txn(request: Any, context: Context) -> Outcome:
    """EndTxn: commit or abort; from v5 on (transaction version 2) with the epoch of the next transaction."""
    version = context.api_version
    end = End(bool(request.committed), 2 if version >= 5 else 0)
    ids = _coordinator(context).producer_ids
    transactional_id = request.transactional_id
    producer = Producer(request.producer_id, request.producer_epoch)

    def render(answer: Any) -> Any:
        error = _told(_error_of(answer), version, 2)
        response = m.EndTxnResponse(version=version, throttle_time_ms=0, error_code=error)
        if version >= 5 and isinstance(answer, EndAnswer):
            response.producer_id = answer.producer_id
            response.producer_epoch = answer.producer_epoch
        return response

    if _too_long(transactional_id):
        return Done(render(Failed(ErrorCode.INVALID_REQUEST)))

    def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
        return shard.end_transaction(transactional_id, producer, end, ids.take, now)

    return when_done(_coordinator(context).submit_patiently(transactional_id, command), render, ANSWER_TIMEOUT_MS)


# --- WriteTxnMarkers --------------------------------------------------------------------------------------------------


def handle_write_txn_markers(request: Any, context: Context) -> Outcome:
    """WriteTxnMarkers: a coordinator (or an operator) ends transactions on partitions led here."""
    version = context.api_version
    places: list[tuple[int, TopicPartition]] = []
    markers: list[tuple[TopicPartition, Marker]] = []
    for number, entry in enumerate(request.markers):
        marker = Marker(
            entry.producer_id,
            entry.producer_epoch,
            entry.coordinator_epoch,
            bool(entry.transaction_result),
            entry.transaction_version if version >= 2 else 0,
            entry.run_remaining if version >= 2 else 0,
        )
        for topic in entry.topics:
            for index in topic.partition_indexes:
                tp = TopicPartition(topic.name, index)
                places.append((number, tp))
                markers.append((tp, marker))

    def render(errors: list[ErrorCode]) -> Any:
        return _markers_response(request, version, places, errors)

    # What is not replicated in time is reported as such; the coordinator sends it again.
    park = Park(MARKERS_TIMEOUT_MS, lambda: render([ErrorCode.REQUEST_TIMED_OUT] * len(places)))
    _coordinator(context).write_markers_here(markers, lambda errors: park.complete(render(errors)))
    return Done(park.response) if park.done else park


def _markers_response(
    request: Any, version: int, places: list[tuple[int, TopicPartition]], errors: list[ErrorCode]
) -> Any:
    kind = m.WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic_kind = kind.WritableTxnMarkerTopicResult
    partition_kind = topic_kind.WritableTxnMarkerPartitionResult
    results: list[dict[str, list[Any]]] = [{} for _ in request.markers]
    for (number, tp), error in zip(places, errors, strict=True):
        results[number].setdefault(tp.topic, []).append(
            partition_kind(version=version, partition_index=tp.partition, error_code=error)
        )
    return m.WriteTxnMarkersResponse(
        version=version,
        markers=[
            kind(
                version=version,
                producer_id=entry.producer_id,
                topics=[
                    topic_kind(version=version, name=name, partitions=partitions) for name, partitions in topics.items()
                ],
            )
            for entry, topics in zip(request.markers, results, strict=True)
        ],
    )


# --- TxnOffsetCommit --------------------------------------------------------------------------------------------------


async def handle_txn_offset_commit(request: Any, context: Context) -> Outcome:
    """TxnOffsetCommit: offsets that count once the transaction commits; the group's shard keeps them pending."""
    version = context.api_version
    commit, errors = _commit_request(request, context)

    def render(answer: Any) -> Any:
        told = dict(errors)
        if isinstance(answer, Failed):
            told.update((tp, answer.error) for tp, _ in commit.offsets)
        else:
            told.update(answer)
        return _offset_commit_response(request, version, told)

    if _too_long(request.group_id, request.transactional_id):
        return Done(render(Failed(ErrorCode.INVALID_GROUP_ID)))
    if not commit.offsets:
        return Done(render({}))
    groups = context.services.groups
    producer = (request.producer_id, request.producer_epoch)
    place = TopicPartition(GROUP_METADATA_TOPIC, groups.partition_for(request.group_id))
    host = groups.host_for(request.group_id)
    if isinstance(host, ErrorCode):
        return Done(render(Failed(host)))
    asked = question(TXN_OFFSET_COMMIT_KEY, version, request.transactional_id, producer, [place])
    admitted = await admit(
        context.services,
        asked.transactional_id,
        producer,
        {place: (cast(Any, host.partition.log).producers, -1)},
        add=asked.ask is Ask.ADD,
    )
    error, guard = admitted[place]
    error = _offsets_error(asked, error)
    if error is not ErrorCode.NONE:
        return Done(render(Failed(error)))

    def command(shard: GroupShard, now: Now, ticket: Ticket) -> Result:
        return shard.commit_transactional(commit, producer, now, ticket)

    pending = groups.submit(request.group_id, command, guard=guard)
    return when_done(pending, render, OFFSETS_TIMEOUT_MS)


def _offsets_error(asked: Question, answer: ErrorCode) -> ErrorCode:
    """As for a produce; but what passes by itself has a name every committer retries."""
    error = client_error(asked, answer)
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error is ErrorCode.NOT_ENOUGH_REPLICAS else error


def _commit_request(request: Any, context: Context) -> tuple[CommitRequest, dict[TopicPartition, ErrorCode]]:
    """The offsets that can be committed, and the errors of those that can't."""
    view = context.services.view
    errors: dict[TopicPartition, ErrorCode] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic in request.topics:
        for entry in topic.partitions:
            tp = TopicPartition(topic.name, entry.partition_index)
            if view.partition(tp) is None:
                errors[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            leader_epoch = entry.committed_leader_epoch if context.api_version >= 2 else -1
            offsets[tp] = CommittedOffset(entry.committed_offset, leader_epoch, entry.committed_metadata or "")
    member = context.api_version >= 3
    commit = CommitRequest(
        group_id=request.group_id,
        generation=request.generation_id if member else -1,
        member_id=request.member_id if member else "",
        instance_id=request.group_instance_id if member else None,
        offsets=tuple(offsets.items()),
    )
    return commit, errors


def _offset_commit_response(request: Any, version: int, errors: dict[TopicPartition, ErrorCode]) -> Any:
    kind = m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    partition_kind = kind.TxnOffsetCommitResponsePartition
    return m.TxnOffsetCommitResponse(
        version=version,
        throttle_time_ms=0,
        topics=[
            kind(
                version=version,
                name=topic.name,
                partitions=[
                    partition_kind(
                        version=version,
                        partition_index=entry.partition_index,
                        error_code=errors.get(
                            TopicPartition(topic.name, entry.partition_index), ErrorCode.UNKNOWN_SERVER_ERROR
                        ),
                    )
                    for entry in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
