"""Handlers of batch transactions (keys 12001 to 12007, ours): from messages to commands of ``txn.sinks`` and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import (
    ALTER_CLUSTER,
    DESCRIBE_TOPIC,
    DESCRIBE_TRANSACTIONAL_ID,
    WRITE_TRANSACTIONAL_ID,
)
from fleetlog.brokers.acls.image import AclOperation, ResourceType
from fleetlog.brokers.acls.znodes import TYPE_NAMES
from fleetlog.brokers.api.base import Context, DelayedResponse, Done, Outcome, Paced, in_slices, unfit
from fleetlog.brokers.api.rows import Cost, Recorded, Row
from fleetlog.brokers.api.waiting import when_done, when_ids_are_there
from fleetlog.brokers.audit.events import Change, Changes, EventType
from fleetlog.txn import sinks
from fleetlog.txn.batches import BatchFence, members_of
from fleetlog.txn.commands import CommandFailed, Now, Result, Ticket
from fleetlog.txn.coordinator import Producer, TransactionShard
from fleetlog.txn.sinks import BatchCommitRequest, BeginAnswer, CommitAnswer, EnlistAnswer, SinkAnswer
from fleetlog.txn.transaction import Transaction
from fleetlog.wire import api_keys, hot, requests
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import (
    AbortBatchRequest,
    BeginBatchRequest,
    DescribeSinksRequest,
    EnlistProducerRequest,
    HeartbeatBatchRequest,
    ResetSinkRequest,
)
from fleetlog.wire.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

ANSWER_TIMEOUT_MS = 30_000

_TEXTS = {
    ErrorCode.PRODUCER_FENCED: (
        "the batch is over: a newer driver has begun one of this sink, and this one must stop, or the transaction's "
        "time ran out (sink.transaction.timeout.ms gives it more)"
    ),
    ErrorCode.NOT_A_SINK: "the id belongs to an ordinary transactional producer; give the sink another sinkId",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "the timeout passes transaction.max.timeout.ms",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "this sink is not known here; begin a batch first",
    ErrorCode.TOO_MANY_MEMBERS: f"a batch has at most {sinks.MAX_MEMBERS} members; use fewer tasks",
}


def _fields(error: ErrorCode, message: str = "") -> dict[str, Any]:
    text = message or _TEXTS.get(error, "")
    return {"version": 0, "throttle_time_ms": 0, "error_code": error, "error_message": text or None}


def _fence(kind: Any, fence: BatchFence | None) -> Any:
    if fence is None:
        return None
    return kind.SinkFence(
        query_id=fence.query_id, batch_id=fence.batch_id, digest=fence.digest, committed_ms=fence.committed_ms
    )


def _producer(
    request: EnlistProducerRequest | HeartbeatBatchRequest | AbortBatchRequest | hot.CommitBatch,
) -> Producer:
    return Producer(request.producer_id, request.producer_epoch)


# a sink's name is a transactional id
@Row(api_keys.BEGIN_BATCH, (WRITE_TRANSACTIONAL_ID,), EventType.PRODUCE, cost=Cost.CHEAP)
def handle_begin_batch(request: BeginBatchRequest, context: Context) -> Outcome:
    """BeginBatch: fence earlier drivers of the sink, and answer with the fence."""
    sink_id, timeout_ms = request.sink_id, request.timeout_ms
    coordinator = context.services.transactions

    def render(answer: BeginAnswer | CommandFailed) -> m.BeginBatchResponse:
        result = answer if isinstance(answer, BeginAnswer) else BeginAnswer(answer.error)
        given = result.error is ErrorCode.NONE
        return m.BeginBatchResponse(
            **_fields(result.error),
            producer_id=result.producer_id if given else NO_PRODUCER_ID,
            producer_epoch=result.producer_epoch if given else NO_PRODUCER_EPOCH,
            fence=_fence(m.BeginBatchResponse, result.fence),
        )

    if (refusal := context.refusal(*WRITE_TRANSACTIONAL_ID, sink_id)) is not ErrorCode.NONE:
        return Done(render(BeginAnswer(refusal)))
    if unfit(sink_id):
        return Done(render(BeginAnswer(ErrorCode.INVALID_REQUEST)))

    def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
        return sinks.begin_batch(shard, sink_id, timeout_ms, coordinator.producer_ids.take, now)

    return when_ids_are_there(coordinator, sink_id, command, render, ANSWER_TIMEOUT_MS)


@Row(api_keys.ENLIST_PRODUCER, (WRITE_TRANSACTIONAL_ID,), EventType.PRODUCE, cost=Cost.CHEAP)
def handle_enlist_producer(request: EnlistProducerRequest, context: Context) -> Outcome:
    """EnlistProducer: producers of their own for the tasks of a batch."""

    def render(answer: EnlistAnswer) -> m.EnlistProducerResponse:
        kind = m.EnlistProducerResponse
        return kind(
            **_fields(answer.error),
            members=[
                kind.BatchMember(producer_id=member.producer_id, producer_epoch=member.epoch)
                for member in answer.members
            ],
        )

    if (refusal := context.refusal(*WRITE_TRANSACTIONAL_ID, request.sink_id)) is not ErrorCode.NONE:
        return Done(render(EnlistAnswer(refusal)))
    if unfit(request.sink_id) or not 0 < request.count <= sinks.MAX_MEMBERS:
        return Done(render(EnlistAnswer(ErrorCode.INVALID_REQUEST)))
    delayed = DelayedResponse(ANSWER_TIMEOUT_MS, lambda: render(EnlistAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)))
    context.services.transactions.enlisting.enlist(
        request.sink_id, _producer(request), request.count, lambda answer: delayed.complete(render(answer))
    )
    return delayed.outcome()


@Row(api_keys.COMMIT_BATCH, (WRITE_TRANSACTIONAL_ID,), EventType.PRODUCE)
def handle_commit_batch(request: hot.CommitBatch, context: Context) -> Outcome:
    """CommitBatch: the winners' records count, and the fence names the batch, in one record."""

    def render(answer: CommitAnswer | CommandFailed) -> m.CommitBatchResponse:
        result = answer if isinstance(answer, CommitAnswer) else CommitAnswer(answer.error)
        kind = m.CommitBatchResponse
        return kind(
            **_fields(result.error, result.message),
            already_committed=result.already,
            fence=_fence(kind, result.fence),
        )

    sink_id, producer = request.sink_id, _producer(request)
    asked = BatchCommitRequest(
        request.query_id,
        request.batch_id,
        request.digest,
        frozenset(members_of(request.winners)),
    )
    if (refusal := context.refusal(*WRITE_TRANSACTIONAL_ID, sink_id)) is not ErrorCode.NONE:
        return Done(render(CommitAnswer(refusal)))
    if unfit(sink_id, asked.query_id, asked.digest) or asked.batch_id < 0:
        return Done(render(CommitAnswer(ErrorCode.INVALID_REQUEST)))

    def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
        return sinks.commit_batch(shard, sink_id, producer, asked, now)

    return when_done(context.services.transactions.submit(sink_id, command), render, ANSWER_TIMEOUT_MS)


def _sink_command(
    context: Context,
    kind: Any,
    sink_id: str,
    command: Callable[[TransactionShard, Now], Result],
    *,
    names: tuple[str | None, ...] = (),
    fence: bool = False,
    operator: bool = False,
) -> Outcome:
    """A command whose answer is an error, and perhaps the fence; ``names`` are those that it stores; ``operator``: the
    client must be allowed to ALTER the cluster, too."""

    def render(answer: Any) -> Any:
        result = answer if isinstance(answer, SinkAnswer) else SinkAnswer(answer.error)
        more = {"fence": _fence(kind, result.fence)} if fence else {}
        return kind(**_fields(result.error, result.message), **more)

    refusal = context.refusal(*WRITE_TRANSACTIONAL_ID, sink_id)
    if refusal is ErrorCode.NONE and operator:
        refusal = context.refusal(*ALTER_CLUSTER)
    if refusal is not ErrorCode.NONE:
        return Done(render(SinkAnswer(refusal)))
    if unfit(sink_id, *names):
        return Done(render(SinkAnswer(ErrorCode.INVALID_REQUEST)))
    pending = context.services.transactions.submit(sink_id, lambda shard, now, _ticket: command(shard, now))
    return when_done(pending, render, ANSWER_TIMEOUT_MS)


@Row(api_keys.HEARTBEAT_BATCH, (WRITE_TRANSACTIONAL_ID,), EventType.HEARTBEAT, cost=Cost.CHEAP)
def handle_heartbeat_batch(request: HeartbeatBatchRequest, context: Context) -> Outcome:
    """HeartbeatBatch: the batch's time starts anew."""
    sink_id, producer = request.sink_id, _producer(request)
    return _sink_command(
        context,
        m.HeartbeatBatchResponse,
        sink_id,
        lambda shard, now: sinks.batch_heartbeat(shard, sink_id, producer, now),
    )


@Row(api_keys.ABORT_BATCH, (WRITE_TRANSACTIONAL_ID,), EventType.PRODUCE, cost=Cost.CHEAP)
def handle_abort_batch(request: AbortBatchRequest, context: Context) -> Outcome:
    """AbortBatch: nothing of the batch counts."""
    sink_id, producer = request.sink_id, _producer(request)
    return _sink_command(
        context, m.AbortBatchResponse, sink_id, lambda shard, now: sinks.abort_batch(shard, sink_id, producer, now)
    )


def _reset_sink(request: requests.ResetSinkRequest, response: m.ResetSinkResponse) -> Changes:
    kind = TYPE_NAMES[ResourceType.TRANSACTIONAL_ID]
    yield Change(kind, request.sink_id, AclOperation.ALTER, ErrorCode(response.error_code), "the sink's fence is moved")


# rows may be written twice: an operator's decision
@Row(api_keys.RESET_SINK, (WRITE_TRANSACTIONAL_ID, ALTER_CLUSTER), Recorded(_reset_sink), cost=Cost.CHEAP)
def handle_reset_sink(request: ResetSinkRequest, context: Context) -> Outcome:
    """ResetSink: an operator moves the fence, naming the query id that stands in it."""
    sink_id, expected = request.sink_id, request.expected_query_id
    fence = None if request.query_id is None else (request.query_id, request.batch_id)
    return _sink_command(
        context,
        m.ResetSinkResponse,
        sink_id,
        lambda shard, now: sinks.reset_sink_fence(shard, sink_id, expected, fence, now),
        names=(request.query_id,),
        fence=True,
        operator=True,
    )


@Row(api_keys.DESCRIBE_SINKS, (DESCRIBE_TRANSACTIONAL_ID, DESCRIBE_TOPIC))
@in_slices
def handle_describe_sinks(request: DescribeSinksRequest, context: Context) -> Paced:
    """DescribeSinks: the named sinks, or all that this broker coordinates. Of producer ids each says its own."""
    coordinator = context.services.transactions
    error = ErrorCode.NONE
    described: list[m.DescribeSinksResponse.DescribedSink] = []
    asked = frozenset(request.producer_ids or ())
    if request.sink_ids is None:
        if coordinator.loading:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        for shard in coordinator.shards():
            for name, t in list(shard.transactions.items()):
                yield
                if t.batch is not None and context.allows(*DESCRIBE_TRANSACTIONAL_ID, name, logged=False):
                    described.append(_described(name, t, context, asked))
    else:
        for name in dict.fromkeys(request.sink_ids):
            yield
            refusal = context.refusal(*DESCRIBE_TRANSACTIONAL_ID, name)
            allowed = refusal is ErrorCode.NONE
            described.append(_look_up(name, context, asked) if allowed else _undescribed(name, refusal))
    return Done(m.DescribeSinksResponse(**_fields(error), sinks=described))


def _look_up(sink_id: str, context: Context, asked: frozenset[int]) -> m.DescribeSinksResponse.DescribedSink:
    error, shard = context.services.transactions.shard_for(sink_id)
    if shard is None:
        return _undescribed(sink_id, error)
    t = shard.describe(sink_id)
    if t is None:
        return _undescribed(sink_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return (
        _described(sink_id, t, context, asked) if t.batch is not None else _undescribed(sink_id, ErrorCode.NOT_A_SINK)
    )


def _undescribed(sink_id: str, error: ErrorCode) -> m.DescribeSinksResponse.DescribedSink:
    return m.DescribeSinksResponse.DescribedSink(
        error_code=error, sink_id=sink_id, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH, start_ms=-1
    )


def _described(
    sink_id: str, t: Transaction, context: Context, asked: frozenset[int]
) -> m.DescribeSinksResponse.DescribedSink:
    """The sink, with those topics of its batch that the client may describe."""
    kind = m.DescribeSinksResponse.DescribedSink
    batch = t.batch
    assert batch is not None
    own = asked.intersection(member.producer_id for member in (*batch.members, *batch.slots)) if asked else ()
    denied = context.denied(*DESCRIBE_TOPIC, (topic for topic, _ in t.partitions), logged=False)
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(t.partitions):
        if topic not in denied:
            topics.setdefault(topic, []).append(index)
    return kind(
        error_code=ErrorCode.NONE,
        sink_id=sink_id,
        state=t.state.label,
        producer_id=t.producer_id,
        producer_epoch=t.producer_epoch,
        timeout_ms=t.timeout_ms,
        start_ms=t.start_ms,
        members=len(batch.members),
        free_slots=len(batch.slots),
        topics=[kind.SinkTopic(name=name, partitions=indexes) for name, indexes in topics.items()],
        fence=_fence(kind, batch.fence),
        own_producer_ids=sorted(own),
    )
