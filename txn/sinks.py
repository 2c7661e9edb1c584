"""Batch transactions at the coordinator: begin, enlist, commit, abort, reset. Commands for a TransactionShard.

The protocol: ``begin`` bumps the sink's epoch and answers with the fence *after* that append, so no commit of an older
driver can come in between. ``enlist`` assigns producers to tasks. ``commit`` requires the present epoch, compares the
fence and sets it in the deciding record. After a driver's crash the fence shows whether its batch was committed.

Source: fleetlog's own (docs/protocol.md); the model is tests/txn/batch_model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fleetlog.txn.batches import BatchFence, BatchMember, SinkBatch
from fleetlog.txn.commands import Cancel, Effect, Now, Result
from fleetlog.txn.states import PREPARED, TransactionState
from fleetlog.txn.transaction import Transaction
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from fleetlog.txn.coordinator import FreshProducerId, Producer, TransactionShard

MAX_MEMBERS = 10_000
MAX_NAME_BYTES = 1_000
"""The limit of query ids and digests, which are in every record of the sink."""


class BeginAnswer(NamedTuple):
    """BeginBatch's outcome: the sink's present producer, and the last committed batch."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    fence: BatchFence | None = None


class EnlistAnswer(NamedTuple):
    """The enlisted members: as many as requested, or none."""

    error: ErrorCode
    members: tuple[BatchMember, ...] = ()


class CommitAnswer(NamedTuple):
    """CommitBatch's outcome; ``already``: the batch had been committed before."""

    error: ErrorCode
    already: bool = False
    fence: BatchFence | None = None
    message: str = ""


class SinkAnswer(NamedTuple):
    """The outcome of HeartbeatBatch, AbortBatch and ResetSink."""

    error: ErrorCode
    fence: BatchFence | None = None
    message: str = ""


class BatchCommitRequest(NamedTuple):
    """The request of CommitBatch."""

    query_id: str
    batch_id: int
    digest: str
    winners: frozenset[BatchMember]


def begin_batch(shard: TransactionShard, sink_id: str, timeout_ms: int, fresh: FreshProducerId, now: Now) -> Result:
    """Fence every earlier driver, and abort its open batch (then: CONCURRENT_TRANSACTIONS, retry)."""
    if not sink_id:
        return Result(BeginAnswer(ErrorCode.INVALID_REQUEST))
    if not 0 < timeout_ms <= shard.settings.max_timeout_ms:
        return Result(BeginAnswer(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
    t = shard.transactions.get(sink_id)
    if t is not None and t.batch is None:
        return Result(BeginAnswer(ErrorCode.NOT_A_SINK))
    if t is not None and t.state in PREPARED:
        return Result(BeginAnswer(ErrorCode.CONCURRENT_TRANSACTIONS))
    if t is not None and t.state is TransactionState.ONGOING:
        return shard.fence(sink_id, t, now, BeginAnswer(ErrorCode.CONCURRENT_TRANSACTIONS))
    if t is not None and not shard.exhausted(t):
        after = t.with_bumped_epoch(timeout_ms, now.wall_ms)
    else:
        producer_id = fresh()
        if producer_id is None:
            return Result(BeginAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        after = (
            t.with_new_producer_id(producer_id, timeout_ms, now.wall_ms)
            if t is not None
            else Transaction(
                producer_id, 0, timeout_ms, TransactionState.EMPTY, last_update_ms=now.wall_ms, batch=SinkBatch()
            )
        )
    assert after.batch is not None
    answer = BeginAnswer(ErrorCode.NONE, after.producer_id, after.producer_epoch, after.batch.fence)
    return Result(answer, records=(shard.record(sink_id, after),))


def _refusal(shard: TransactionShard, sink_id: str, producer: Producer) -> ErrorCode:
    """The error of this driver's requests now, or NONE."""
    t = shard.transactions.get(sink_id)
    if t is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if t.batch is None:
        return ErrorCode.NOT_A_SINK
    if (t.producer_id, t.producer_epoch) != producer:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS if t.state in PREPARED else ErrorCode.NONE


def enlist_members(
    shard: TransactionShard,
    sink_id: str,
    producer: Producer,
    counts: Sequence[int],
    fresh: FreshProducerId,
    now: Now,
) -> Result:
    """Members for each of these requests, in one record. The response is one EnlistAnswer per request."""

    def refused(error: ErrorCode) -> Result:
        return Result([EnlistAnswer(error)] * len(counts))

    error = _refusal(shard, sink_id, producer)
    if error is not ErrorCode.NONE:
        return refused(error)
    if any(count < 1 for count in counts):
        return refused(ErrorCode.INVALID_REQUEST)
    t = shard.transactions[sink_id]
    batch = t.batch
    assert batch is not None
    if t.state not in (TransactionState.EMPTY, TransactionState.ONGOING):
        return refused(ErrorCode.INVALID_TXN_STATE)  # each batch starts with BeginBatch
    wanted = sum(counts)
    if len(batch.members) + wanted > MAX_MEMBERS:
        return refused(ErrorCode.TOO_MANY_MEMBERS)
    reused, batch = batch.take_slots(wanted)
    ids: list[int] = []
    while len(reused) + len(ids) < wanted:
        producer_id = fresh()
        if producer_id is None:
            return refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        ids.append(producer_id)
    new, batch = batch.with_new(ids)
    after = t.with_batch(batch, now.wall_ms)
    members = iter((*reused, *new))
    answers = [EnlistAnswer(ErrorCode.NONE, tuple(next(members) for _ in range(count))) for count in counts]
    effects: tuple[Effect, ...] = ()
    if t.state is not TransactionState.ONGOING:
        effects = (shard.abort_later(sink_id, t.timeout_ms, now),)
    return Result(answers, records=(shard.record(sink_id, after),), effects=effects)


def commit_batch(
    shard: TransactionShard, sink_id: str, producer: Producer, request: BatchCommitRequest, now: Now
) -> Result:
    """Commit the batch: the winners' records count, all others' don't, and the fence names this batch."""
    t = shard.transactions.get(sink_id)
    if t is None:
        return Result(CommitAnswer(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    if t.batch is None:
        return Result(CommitAnswer(ErrorCode.NOT_A_SINK))
    if max(len(request.query_id.encode()), len(request.digest.encode())) > MAX_NAME_BYTES:
        return Result(CommitAnswer(ErrorCode.INVALID_REQUEST, message=f"names over {MAX_NAME_BYTES} bytes"))
    fence = t.batch.fence
    if _is_retry(t, producer) and fence is not None and _names(fence, request):
        return Result(CommitAnswer(ErrorCode.NONE, already=t.state not in PREPARED, fence=fence))
    error = _refusal(shard, sink_id, producer)
    if error is not ErrorCode.NONE:
        return Result(CommitAnswer(error, fence=fence))
    if t.state not in (TransactionState.EMPTY, TransactionState.ONGOING):
        return Result(CommitAnswer(ErrorCode.INVALID_TXN_STATE, fence=fence))
    if fence is not None and _names(fence, request):
        return _already(shard, sink_id, t, fence, now)
    conflict = _conflict(fence, request)
    if conflict is not None:
        return Result(CommitAnswer(ErrorCode.FENCE_CONFLICT, fence=fence, message=conflict))
    unknown = request.winners - set(t.batch.members)
    if unknown:
        return Result(
            CommitAnswer(
                ErrorCode.INVALID_TXN_STATE, fence=fence, message=f"not enlisted in this batch: {sorted(unknown)[:3]}"
            )
        )
    new = BatchFence(request.query_id, request.batch_id, request.digest, now.wall_ms)
    after = t.prepared_batch(request.winners, new, True, now.wall_ms)
    return Result(
        CommitAnswer(ErrorCode.NONE, fence=new),
        records=(shard.record(sink_id, after),),
        effects=(Cancel(shard.timeout_timer(sink_id)), shard.markers(sink_id, after)),
    )


def _is_retry(t: Transaction, producer: Producer) -> bool:
    """Whether the request's epoch is the previous one, and the commit of a batch bumped it."""
    committed = t.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    return committed and producer == (t.producer_id, t.producer_epoch - 1)


def _names(fence: BatchFence, request: BatchCommitRequest) -> bool:
    return (fence.query_id, fence.batch_id, fence.digest) == (request.query_id, request.batch_id, request.digest)


def _conflict(fence: BatchFence | None, request: BatchCommitRequest) -> str | None:
    """Why this batch cannot follow the one in the fence; None if it can."""
    if fence is None:
        return None
    if fence.query_id != request.query_id:
        return (
            f"the sink's last batch {fence.batch_id} is of query {fence.query_id}, this is query {request.query_id}:"
            " a new checkpoint, or two queries with one sink; see fleetlog sinks reset"
        )
    if fence.batch_id == request.batch_id:
        return f"batch {request.batch_id} was committed with other content (digest {fence.digest or 'none'})"
    if request.batch_id != fence.batch_id + 1:
        return f"batch {request.batch_id} does not follow batch {fence.batch_id}: was the checkpoint rolled back?"
    return None


def _already(shard: TransactionShard, sink_id: str, t: Transaction, fence: BatchFence, now: Now) -> Result:
    """The batch is already committed; records written for it again must not count."""
    answer = CommitAnswer(ErrorCode.NONE, already=True, fence=fence)
    if t.state is TransactionState.EMPTY:
        return Result(answer)
    return _aborted(shard, sink_id, t, answer, now)


def _aborted(shard: TransactionShard, sink_id: str, t: Transaction, answer: object, now: Now) -> Result:
    assert t.batch is not None
    after = t.prepared_batch(frozenset(), t.batch.fence, False, now.wall_ms)
    return Result(
        answer,
        records=(shard.record(sink_id, after),),
        effects=(Cancel(shard.timeout_timer(sink_id)), shard.markers(sink_id, after)),
    )


def abort_batch(shard: TransactionShard, sink_id: str, producer: Producer, now: Now) -> Result:
    """Abort the batch. A repeated abort answers NONE; a committed batch answers INVALID_TXN_STATE."""
    t = shard.transactions.get(sink_id)
    if t is None:
        return Result(SinkAnswer(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    if t.batch is None:
        return Result(SinkAnswer(ErrorCode.NOT_A_SINK))
    fence = t.batch.fence
    if producer == (t.producer_id, t.producer_epoch - 1) and t.state is not TransactionState.EMPTY:
        if _is_retry(t, producer):
            return Result(SinkAnswer(ErrorCode.INVALID_TXN_STATE, fence, "the batch is committed"))
        if t.state in (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT):
            return Result(SinkAnswer(ErrorCode.NONE, fence))
    error = _refusal(shard, sink_id, producer)
    if error is ErrorCode.NONE and t.state is TransactionState.ONGOING:
        return _aborted(shard, sink_id, t, SinkAnswer(ErrorCode.NONE, fence), now)
    return Result(SinkAnswer(error, fence))


def batch_heartbeat(shard: TransactionShard, sink_id: str, producer: Producer, now: Now) -> Result:
    """Restart the batch's timeout."""
    error = _refusal(shard, sink_id, producer)
    t = shard.transactions.get(sink_id)
    fence = t.batch.fence if t is not None and t.batch is not None else None
    if error is ErrorCode.NONE and t is not None and t.state is TransactionState.ONGOING:
        return Result(SinkAnswer(error, fence), effects=(shard.abort_later(sink_id, t.timeout_ms, now),))
    return Result(SinkAnswer(error, fence))


def reset_sink_fence(
    shard: TransactionShard, sink_id: str, expected_query_id: str, fence: tuple[str, int] | None, now: Now
) -> Result:
    """Set the fence to (query id, batch id) or remove it, for an operator. ``expected_query_id``: the present one."""
    t = shard.transactions.get(sink_id)
    if t is None:
        return Result(SinkAnswer(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND))
    if t.batch is None:
        return Result(SinkAnswer(ErrorCode.NOT_A_SINK))
    present = t.batch.fence
    if t.state in PREPARED:
        return Result(SinkAnswer(ErrorCode.CONCURRENT_TRANSACTIONS, present))
    if t.state is TransactionState.ONGOING:
        return Result(SinkAnswer(ErrorCode.INVALID_TXN_STATE, present, "a batch is open: stop the query first"))
    named = present.query_id if present is not None else ""
    if named != expected_query_id:
        return Result(
            SinkAnswer(
                ErrorCode.FENCE_CONFLICT, present, f"the fence is of query {named or '(none)'}, not the one named"
            )
        )
    if shard.exhausted(t):
        return Result(SinkAnswer(ErrorCode.CONCURRENT_TRANSACTIONS, present, "begin a batch first"))
    new = None if fence is None else BatchFence(fence[0], fence[1], "", now.wall_ms)
    return Result(SinkAnswer(ErrorCode.NONE, new), records=(shard.record(sink_id, t.with_fence(new, now.wall_ms)),))
