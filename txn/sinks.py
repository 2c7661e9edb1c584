"""Batch transactions at the coordinator: who may begin, enlist, commit, abort, reset. Commands for a TransactionShard.

The protocol in one breath: ``begin`` bumps the sink's epoch and answers with the fence as it is *after* that append, so
no commit of an older driver can slip in between; ``enlist`` gives tasks producers of their own; ``commit`` needs the
present epoch, compares the fence and sets it in the record that decides. A driver that died is answered by the fence.

Source: ours (docs/protocol.md); the model is tests/txn/batch_model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from txn.batches import Batch, Fence, Member
from txn.commands import Cancel, Effect, Now, Result, Schedule
from txn.states import PREPARED, TransactionState
from txn.transaction import Transaction
from wire.errors import ErrorCode
from wire.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from txn.coordinator import FreshProducerId, Producer, TransactionShard

MAX_MEMBERS = 10_000
MAX_NAME_BYTES = 1_000
"""Query ids and digests stand in every record of the sink."""


class BeginAnswer(NamedTuple):
    """BeginBatch's outcome: the sink's present producer, and the last committed batch."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    fence: Fence | None = None


class EnlistAnswer(NamedTuple):
    """The members enlisted: as many as were asked for, or none."""

    error: ErrorCode
    members: tuple[Member, ...] = ()


class CommitAnswer(NamedTuple):
    """CommitBatch's outcome; ``already`` says that the batch was committed before, by whomever."""

    error: ErrorCode
    already: bool = False
    fence: Fence | None = None
    message: str = ""


class SinkAnswer(NamedTuple):
    """The outcome of HeartbeatBatch, AbortBatch and ResetSink."""

    error: ErrorCode
    fence: Fence | None = None
    message: str = ""


class CommitRequest(NamedTuple):
    """What CommitBatch asks for."""

    query_id: str
    batch_id: int
    digest: str
    winners: frozenset[Member]


def begin(shard: TransactionShard, sink_id: str, timeout_ms: int, fresh: FreshProducerId, now: Now) -> Result:
    """Lock out every driver before, abort what it left open (then: CONCURRENT_TRANSACTIONS, ask again)."""
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
    if t is not None and not t.epoch_exhausted:
        after = t.with_bumped_epoch(timeout_ms, now.wall_ms)
    else:
        producer_id = fresh()
        if producer_id is None:
            return Result(BeginAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        after = (
            t.with_new_producer_id(producer_id, timeout_ms, now.wall_ms)
            if t is not None
            else Transaction(
                producer_id, 0, timeout_ms, TransactionState.EMPTY, last_update_ms=now.wall_ms, batch=Batch()
            )
        )
    assert after.batch is not None
    answer = BeginAnswer(ErrorCode.NONE, after.producer_id, after.producer_epoch, after.batch.fence)
    return Result(answer, records=(shard.record(sink_id, after),))


def _refusal(shard: TransactionShard, sink_id: str, producer: Producer) -> ErrorCode:
    """Why this driver may do nothing now."""
    t = shard.transactions.get(sink_id)
    if t is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if t.batch is None:
        return ErrorCode.NOT_A_SINK
    if (t.producer_id, t.producer_epoch) != producer:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS if t.state in PREPARED else ErrorCode.NONE


def enlist(
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
        return refused(ErrorCode.INVALID_TXN_STATE)  # each batch begins with BeginBatch
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
        effects = (Schedule(shard.timeout_timer(sink_id), t.timeout_ms),)
    return Result(answers, records=(shard.record(sink_id, after),), effects=effects)


def commit(shard: TransactionShard, sink_id: str, producer: Producer, request: CommitRequest, now: Now) -> Result:
    """Decide the batch: the winners' records count, all others' don't, and the fence names this batch."""
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
    new = Fence(request.query_id, request.batch_id, request.digest, now.wall_ms)
    after = t.prepared_batch(request.winners, new, True, now.wall_ms)
    return Result(
        CommitAnswer(ErrorCode.NONE, fence=new),
        records=(shard.record(sink_id, after),),
        effects=(Cancel(shard.timeout_timer(sink_id)), shard.markers(sink_id, after)),
    )


def _is_retry(t: Transaction, producer: Producer) -> bool:
    """The request's epoch is the one before the present, and a commit of a batch was what bumped it."""
    committed = t.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    return committed and producer == (t.producer_id, t.producer_epoch - 1)


def _names(fence: Fence, request: CommitRequest) -> bool:
    return (fence.query_id, fence.batch_id, fence.digest) == (request.query_id, request.batch_id, request.digest)


def _conflict(fence: Fence | None, request: CommitRequest) -> str | None:
    """Why this batch can't follow the one in the fence; None if it can."""
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


def _already(shard: TransactionShard, sink_id: str, t: Transaction, fence: Fence, now: Now) -> Result:
    """The batch is committed; what was written for it once more must not count."""
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


def abort(shard: TransactionShard, sink_id: str, producer: Producer, now: Now) -> Result:
    """Give the batch up. Doing it again says NONE; a batch that was committed says INVALID_TXN_STATE."""
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


def heartbeat(shard: TransactionShard, sink_id: str, producer: Producer) -> Result:
    """The driver lives: the batch's time starts anew."""
    error = _refusal(shard, sink_id, producer)
    t = shard.transactions.get(sink_id)
    fence = t.batch.fence if t is not None and t.batch is not None else None
    if error is ErrorCode.NONE and t is not None and t.state is TransactionState.ONGOING:
        return Result(SinkAnswer(error, fence), effects=(Schedule(shard.timeout_timer(sink_id), t.timeout_ms),))
    return Result(SinkAnswer(error, fence))


def reset(
    shard: TransactionShard, sink_id: str, expected_query_id: str, fence: tuple[str, int] | None, now: Now
) -> Result:
    """An operator moves the fence: to (query id, batch id), or away. ``expected_query_id`` is the one it replaces."""
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
    if t.epoch_exhausted:
        return Result(SinkAnswer(ErrorCode.CONCURRENT_TRANSACTIONS, present, "begin a batch first"))
    new = None if fence is None else Fence(fence[0], fence[1], "", now.wall_ms)
    return Result(SinkAnswer(ErrorCode.NONE, new), records=(shard.record(sink_id, t.with_fence(new, now.wall_ms)),))


def member_refusal(t: Transaction, producer: Producer) -> ErrorCode:
    """Why this producer may not write in the sink's batch: only members of an open one may."""
    assert t.batch is not None
    member = Member(*producer)
    if t.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS if member in t.batch.members else ErrorCode.PRODUCER_FENCED
    if t.state is TransactionState.ONGOING and member in t.batch.members:
        return ErrorCode.NONE
    return ErrorCode.PRODUCER_FENCED
