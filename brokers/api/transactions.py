"""Handlers of the transaction APIs (keys 22, 24 to 27): from messages to commands and back.

What may happen is decided by the pure shards (``txn.coordinator``); here is the mapping of versions and error codes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import (
    ALTER_CLUSTER,
    CLUSTER_ACTION_CLUSTER,
    IDEMPOTENT_WRITE_CLUSTER,
    READ_GROUP,
    TOPIC,
    WRITE,
    WRITE_TOPIC,
    WRITE_TRANSACTIONAL_ID,
)
from fleetlog.brokers.api.base import (
    Context,
    DelayedResponse,
    Done,
    InSlices,
    Outcome,
    Paced,
    in_slices,
    named_once,
    unfit,
)
from fleetlog.brokers.api.changes import changes_of_brokers
from fleetlog.brokers.api.group_offsets import not_committer
from fleetlog.brokers.api.rows import Cost, Recorded, Row
from fleetlog.brokers.api.waiting import JoinedResponse, when_done, when_ids_are_there
from fleetlog.brokers.audit.events import EventType
from fleetlog.brokers.coordinators.pending import PendingAnswer
from fleetlog.brokers.coordinators.shard_host import TransactionMarker
from fleetlog.brokers.coordinators.transactions.coordinator import MarkerRuns
from fleetlog.brokers.coordinators.transactions.verification import command_for, errors_of
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, INTERNAL_TOPICS
from fleetlog.txn.commands import CommandFailed, Now, Result, Ticket
from fleetlog.txn.coordinator import (
    AddPartitionsAnswer,
    End,
    EndAnswer,
    InitAnswer,
    Producer,
    TransactionShard,
)
from fleetlog.txn.markers import SentBy
from fleetlog.txn.verification import Ask, Question
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    WriteTxnMarkersRequest,
)
from fleetlog.wire.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

if TYPE_CHECKING:
    _AddedPartition = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult.AddPartitionsToTxnPartitionResult
    _MarkerRow = (
        m.WriteTxnMarkersResponse.WritableTxnMarkerResult.WritableTxnMarkerTopicResult.WritableTxnMarkerPartitionResult
    )

ANSWER_TIMEOUT_MS = 30_000
MARKERS_TIMEOUT_MS = 5_000


Answer = InitAnswer | AddPartitionsAnswer | EndAnswer | CommandFailed
"""What a coordinator says to a command here."""


def _known_to(error: ErrorCode, version: int, fenced_from: int) -> ErrorCode:
    """PRODUCER_FENCED is newer than some versions of each API (KIP-588)."""
    if error is ErrorCode.PRODUCER_FENCED and version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


# --- InitProducerId ---------------------------------------------------------------------------------------------------


# without an id: one of both
@Row(
    api_keys.INIT_PRODUCER_ID,
    (WRITE_TRANSACTIONAL_ID, IDEMPOTENT_WRITE_CLUSTER, WRITE_TOPIC),
    EventType.PRODUCE,
    cost=Cost.CHEAP,
)
def handle_init_producer_id(request: InitProducerIdRequest, context: Context) -> Outcome:
    """InitProducerId: an id for an idempotent producer, or the next epoch of a transactional one."""
    version = context.api_version

    def render(answer: Answer) -> m.InitProducerIdResponse:
        error = _known_to(answer.error, version, 4)
        given = answer if isinstance(answer, InitAnswer) and error is ErrorCode.NONE else InitAnswer(error)
        return m.InitProducerIdResponse(
            version=version,
            error_code=error,
            producer_id=given.producer_id,
            producer_epoch=given.producer_epoch,
        )

    transactional_id = request.transactional_id
    ids = context.services.transactions.producer_ids
    if transactional_id is None:
        if not (context.services.access.allows_any(context, WRITE, TOPIC) or context.allows(*IDEMPOTENT_WRITE_CLUSTER)):
            return Done(render(InitAnswer(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)))
        return _idempotent(ids.when_ready, render)
    if (refusal := context.refusal(*WRITE_TRANSACTIONAL_ID, transactional_id)) is not ErrorCode.NONE:
        return Done(render(InitAnswer(refusal)))
    expected = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    if version >= 3:
        expected = (request.producer_id, request.producer_epoch)
    if (expected[0] == NO_PRODUCER_ID) != (expected[1] == NO_PRODUCER_EPOCH) or unfit(transactional_id):
        return Done(render(InitAnswer(ErrorCode.INVALID_REQUEST)))
    named = None if expected[0] == NO_PRODUCER_ID else expected
    timeout_ms = request.transaction_timeout_ms

    def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
        return shard.init_producer_id(transactional_id, timeout_ms, named, ids.take, now)

    return when_ids_are_there(context.services.transactions, transactional_id, command, render, ANSWER_TIMEOUT_MS)


def _idempotent(
    when_ready: Callable[[Callable[[int | None], None]], None], render: Callable[[Answer], m.InitProducerIdResponse]
) -> Outcome:
    """Without a transactional id every request gets a new producer id, whatever else it says."""
    none_left = InitAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    delayed = DelayedResponse(ANSWER_TIMEOUT_MS, lambda: render(none_left))

    def ready(producer_id: int | None) -> None:
        delayed.complete(render(none_left if producer_id is None else InitAnswer(ErrorCode.NONE, producer_id, 0)))

    when_ready(ready)
    return delayed.outcome()


# --- AddPartitionsToTxn, AddOffsetsToTxn ------------------------------------------------------------------------------


# from version 4 on the last one
@Row(
    api_keys.ADD_PARTITIONS_TO_TXN,
    (WRITE_TRANSACTIONAL_ID, WRITE_TOPIC, CLUSTER_ACTION_CLUSTER),
    EventType.PRODUCE,
    cost=Cost.CHEAP,
    brokers_from=4,
)
@in_slices
def handle_add_partitions_to_txn(request: AddPartitionsToTxnRequest, context: Context) -> Paced:
    """AddPartitionsToTxn: one transaction from a client (v0 to 3), a batch of them from a broker (v4 and up)."""
    if context.api_version >= 4:
        return (yield from _add_partitions_batched(request, context))
    version = context.api_version
    asked = yield from named_once((topic.name, topic.partitions) for topic in request.v3_and_below_topics)
    transactional_id = request.v3_and_below_transactional_id

    @in_slices
    def render(errors: Mapping[TopicPartition, ErrorCode]) -> Generator[None, None, m.AddPartitionsToTxnResponse]:
        results = yield from _topic_results(errors)
        return m.AddPartitionsToTxnResponse(version=version, results_by_topic_v3_and_below=results)

    if (refusal := context.refusal(*WRITE_TRANSACTIONAL_ID, transactional_id)) is not ErrorCode.NONE:
        return Done(render(dict.fromkeys(asked, refusal)))
    if unfit(transactional_id):
        return Done(render(dict.fromkeys(asked, ErrorCode.INVALID_REQUEST)))
    denied = yield from context.denied_in_turns(*WRITE_TOPIC, (tp.topic for tp in asked))
    metadata = context.services.metadata
    errors: dict[TopicPartition, ErrorCode] = {}
    for tp in asked:
        yield
        if (
            tp.topic in denied or tp.topic in INTERNAL_TOPICS
        ):  # offsets join by AddOffsetsToTxn, with the group's rights
            errors[tp] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif metadata.partition(tp) is None:
            errors[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if errors:  # all or nothing: the client must not believe that some of them are in
        return Done(render(dict.fromkeys(asked, ErrorCode.OPERATION_NOT_ATTEMPTED) | errors))
    pending = _submit_add(
        context, transactional_id, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch, asked
    )
    return when_done(
        pending,
        lambda answer: render(dict.fromkeys(asked, _known_to(answer.error, version, 2))),
        ANSWER_TIMEOUT_MS,
    )


def _submit_add(
    context: Context, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
) -> PendingAnswer:
    producer = Producer(producer_id, producer_epoch)

    def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
        return shard.add_partitions(transactional_id, producer, partitions, 0, now)

    return context.services.transactions.submit_patiently(transactional_id, command)


def _add_partitions_batched(request: AddPartitionsToTxnRequest, context: Context) -> Paced:
    version = context.api_version
    if (refusal := context.refusal(*CLUSTER_ACTION_CLUSTER)) is not ErrorCode.NONE:
        return Done(m.AddPartitionsToTxnResponse(version=version, error_code=refusal))
    questions = []
    for entry in request.transactions:
        yield
        partitions = yield from named_once((topic.name, topic.partitions) for topic in entry.topics)
        questions.append(
            Question(
                entry.transactional_id,
                entry.producer_id,
                entry.producer_epoch,
                partitions,
                Ask.VERIFY if entry.verify_only else Ask.ADD,
                abortable=True,
            )
        )
    answers: list[dict[TopicPartition, ErrorCode]] = [
        dict.fromkeys(q.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE) for q in questions
    ]

    @in_slices
    def render(answers: list[dict[TopicPartition, ErrorCode]]) -> Generator[None, None, m.AddPartitionsToTxnResponse]:
        kind = m.AddPartitionsToTxnResponse
        results = []
        for asked, errors in zip(questions, answers, strict=True):
            yield
            results.append(
                kind.AddPartitionsToTxnResult(
                    transactional_id=asked.transactional_id, topic_results=(yield from _topic_results(errors))
                )
            )
        return kind(version=version, error_code=ErrorCode.NONE, results_by_transaction=results)

    joined = JoinedResponse(answers, render, ANSWER_TIMEOUT_MS)

    def take(index: int, response: object) -> None:
        joined.take(index, errors_of(questions[index], response))

    for index, asked in enumerate(questions):
        yield
        if unfit(asked.transactional_id):
            take(index, CommandFailed(ErrorCode.INVALID_REQUEST))
            continue
        pending = context.services.transactions.submit(asked.transactional_id, command_for(asked))
        pending.on_done(partial(take, index))
    return joined.outcome()


def _topic_results(errors: Mapping[TopicPartition, ErrorCode]) -> Generator[None, None, list[Any]]:
    """Rows of one transaction, or of the one in a batch."""
    kind = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    by_topic: dict[str, list[_AddedPartition]] = {}
    for (topic, index), error in errors.items():
        yield
        by_topic.setdefault(topic, []).append(
            kind.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
        )
    results = []
    for name, partitions in by_topic.items():
        yield
        results.append(kind(name=name, results_by_partition=partitions))
    return results


@Row(api_keys.ADD_OFFSETS_TO_TXN, (WRITE_TRANSACTIONAL_ID, READ_GROUP), EventType.PRODUCE, cost=Cost.CHEAP)
def handle_add_offsets_to_txn(request: AddOffsetsToTxnRequest, context: Context) -> Outcome:
    """AddOffsetsToTxn: the group's partition of __consumer_offsets joins the transaction."""
    version = context.api_version

    def render(answer: Answer) -> m.AddOffsetsToTxnResponse:
        return m.AddOffsetsToTxnResponse(version=version, error_code=_known_to(answer.error, version, 2))

    if (refusal := not_committer(request, context)) is not ErrorCode.NONE:
        return Done(render(CommandFailed(refusal)))
    if unfit(request.transactional_id, request.group_id):
        return Done(render(CommandFailed(ErrorCode.INVALID_REQUEST)))
    partition = TopicPartition(GROUP_METADATA_TOPIC, context.services.groups.partition_for(request.group_id))
    pending = _submit_add(context, request.transactional_id, request.producer_id, request.producer_epoch, [partition])
    return when_done(pending, render, ANSWER_TIMEOUT_MS)


# --- EndTxn -----------------------------------------------------------------------------------------------------------


@Row(api_keys.END_TXN, (WRITE_TRANSACTIONAL_ID,), EventType.PRODUCE, cost=Cost.CHEAP)
def handle_end_txn(request: EndTxnRequest, context: Context) -> Outcome:
    """EndTxn: commit or abort; from v5 on (transaction version 2) with the epoch of the next transaction."""
    version = context.api_version
    end = End(bool(request.committed), 2 if version >= 5 else 0)
    ids = context.services.transactions.producer_ids
    transactional_id = request.transactional_id
    producer = Producer(request.producer_id, request.producer_epoch)

    def render(answer: Answer) -> m.EndTxnResponse:
        error = _known_to(answer.error, version, 2)
        response = m.EndTxnResponse(version=version, error_code=error)
        if version >= 5 and isinstance(answer, EndAnswer):
            response.producer_id = answer.producer_id
            response.producer_epoch = answer.producer_epoch
        return response

    if (refusal := context.refusal(*WRITE_TRANSACTIONAL_ID, transactional_id)) is not ErrorCode.NONE:
        return Done(render(CommandFailed(refusal)))
    if unfit(transactional_id):
        return Done(render(CommandFailed(ErrorCode.INVALID_REQUEST)))

    def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
        return shard.end_transaction(transactional_id, producer, end, ids.take, now)

    return when_done(
        context.services.transactions.submit_patiently(transactional_id, command), render, ANSWER_TIMEOUT_MS
    )


# --- WriteTxnMarkers --------------------------------------------------------------------------------------------------


# one of both
@Row(
    api_keys.WRITE_TXN_MARKERS,
    (ALTER_CLUSTER, CLUSTER_ACTION_CLUSTER),
    Recorded(changes_of_brokers),
    cost=Cost.CHEAP,
    brokers_from=0,
)
@in_slices
def handle_write_txn_markers(request: WriteTxnMarkersRequest, context: Context) -> Paced:
    """WriteTxnMarkers: a coordinator (or an operator) ends transactions on partitions led here.

    A partition that stands in an entry twice gets one marker, and one row of the answer, as in Kafka. A request of a
    broker that comes behind one that it sent later writes nothing.
    """
    version = context.api_version
    places: list[tuple[int, TopicPartition]] = []
    markers: list[tuple[TopicPartition, TransactionMarker]] = []
    runs = MarkerRuns()
    for number, entry in enumerate(request.markers):
        marker = TransactionMarker(
            entry.producer_id,
            entry.producer_epoch,
            entry.coordinator_epoch,
            bool(entry.transaction_result),
            entry.transaction_version if version >= 2 else 0,
            entry.run_remaining if version >= 2 else 0,
        )
        named: set[TopicPartition] = set()
        for topic in entry.topics:
            for index in topic.partition_indexes:
                yield
                tp = TopicPartition(topic.name, index)
                if tp not in named:
                    named.add(tp)
                    places.append((number, tp))
                    markers.append((tp, marker))
                    runs.add(tp, marker)

    late = [ErrorCode.REQUEST_TIMED_OUT] * len(places)

    def render(written: list[list[ErrorCode]]) -> InSlices:
        errors = list(late)
        for indexes, codes in zip(runs.found, written, strict=True):
            for index, error in zip(indexes, codes, strict=True):
                errors[index] = error
        return _markers_response(request, version, places, errors)

    if not markers:
        return Done(render([]))
    if not (context.allows(*ALTER_CLUSTER) or context.allows(*CLUSTER_ACTION_CLUSTER)):
        denied = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * len(places)
        return Done(_markers_response(request, version, places, denied))
    # If something is not replicated in time, all is reported so; the coordinator sends it again.
    joined = JoinedResponse(
        [[]] * len(runs.found), render, MARKERS_TIMEOUT_MS, lambda: _markers_response(request, version, places, late)
    )
    coordinator = context.services.transactions
    sender = SentBy(request.sender_id, request.sender_incarnation, request.sender_number)
    for number, indexes in enumerate(runs.found):
        yield
        take = partial(joined.take, number)
        if sender.broker_id < 0 or coordinator.marker_senders.admits(sender):
            coordinator.write_markers_here([markers[index] for index in indexes], take)
        else:
            take([ErrorCode.STALE_BROKER_EPOCH] * len(indexes))
    return joined.outcome()


@in_slices
def _markers_response(
    request: WriteTxnMarkersRequest, version: int, places: list[tuple[int, TopicPartition]], errors: list[ErrorCode]
) -> Generator[None, None, m.WriteTxnMarkersResponse]:
    kind = m.WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic_kind = kind.WritableTxnMarkerTopicResult
    partition_kind = topic_kind.WritableTxnMarkerPartitionResult
    results: list[dict[str, list[_MarkerRow]]] = [{} for _ in request.markers]
    for (number, tp), error in zip(places, errors, strict=True):
        yield
        results[number].setdefault(tp.topic, []).append(partition_kind(partition_index=tp.partition, error_code=error))
    rows = []
    for entry, topics in zip(request.markers, results, strict=True):
        topic_rows = []
        for name, partitions in topics.items():
            yield
            topic_rows.append(topic_kind(name=name, partitions=partitions))
        yield
        rows.append(kind(producer_id=entry.producer_id, topics=topic_rows))
    return m.WriteTxnMarkersResponse(version=version, markers=rows)
