"""``df.writeStream.format("fleetlog")`` and ``df.write.format("fleetlog")``: executors write, one commit decides.

The driver begins a batch, which fences every older driver; each task attempt enlists a producer of its own and writes;
Spark names the attempts that count, and one CommitBatch makes their rows visible together with the fence. A replayed
batch is found in the fence and not written again.

Spark makes a new writer for every micro-batch and another for its commit, so what they share travels in the commit
messages. The data source begins the batch before Spark copies the writer to its tasks; copying it does no I/O.
"""

from __future__ import annotations

import functools
import logging
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from fleetlog.spark.client.connections import Client, shared_client
from fleetlog.spark.client.failures import FenceConflict, FenceError
from fleetlog.spark.client.kernels import check_kernels
from fleetlog.spark.client.workers import keep_loaded
from fleetlog.spark.client.write_settings import TaskMember
from fleetlog.spark.sink.batch_transactions import UNSUPPORTED, BatchTransactions, Heartbeats, OpenBatch
from fleetlog.spark.sink.events import BatchFigures, log_batch
from fleetlog.spark.sink.fence import decide
from fleetlog.spark.sink.handover import hand_over_figures
from fleetlog.spark.sink.modes import refuse_driver_fence
from fleetlog.spark.sink.options import REFUSE, FlowRefresh, WriteOptions
from fleetlog.spark.sink.writes import refuse_other_target, target_of
from fleetlog.spark.versions import ArrowWriter, StreamArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SINKS_KEPT = 64
"""Sinks whose coordinators a process remembers."""

BATCH_JOB = "batch"
"""The query id of batch jobs in a fence: they have none of their own."""

TaskFunction = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """What a task attempt wrote: its member (None without rows), and the batch it wrote for."""

    batch: OpenBatch
    member: TaskMember | None
    rows: int
    bytes: int
    query_id: str
    write_ms: float = 0.0


def write_task(options: WriteOptions, batch: OpenBatch, rows: Iterator[pa.RecordBatch]) -> TaskResult:
    """One task attempt: enlist, write all rows, and return when all are acknowledged."""
    from fleetlog.spark.client.producer import MemberProducer  # late: only tasks write; with its kernels, to be checked

    began = time.monotonic()
    check_kernels()
    keep_loaded()
    query_id = _local_property("sql.streaming.queryId")
    if query_id and batch.fence is not None and batch.fence.query_id != query_id:
        raise FenceConflict(
            f"sink {options.sink_id} was last written by query {batch.fence.query_id} (batch {batch.fence.batch_id}), "
            f"this is query {query_id}: give it another sinkId, or see fleetlog sinks reset"
        )
    producer: MemberProducer | None = None
    encode = None
    if options.schema is not None:
        from fleetlog.spark.functions.avro import encoder

        encode = encoder(options.schema)
    with Heartbeats(options.settings, batch, options.transaction_timeout_ms):
        for part in rows:
            if part.num_rows == 0:
                continue
            if producer is None:
                member, producer = batch_transactions(options).writer(batch, options.rows)
            producer.write(part if encode is None else encode(part))
        if producer is None:
            return TaskResult(batch, None, 0, 0, query_id)
        producer.flush()
    write_ms = (time.monotonic() - began) * 1000
    return TaskResult(batch, member, producer.rows, producer.bytes, query_id, write_ms)


def batch_transactions(options: WriteOptions) -> BatchTransactions:
    """The sink's batch transactions, over this process's client; those of the last sinks know their coordinators."""
    return _kept_transactions(shared_client(options.settings), options.sink_id)


@functools.lru_cache(SINKS_KEPT)
def _kept_transactions(client: Client, sink_id: str) -> BatchTransactions:
    return BatchTransactions(client, sink_id)


def commit_task_results(
    transactions: BatchTransactions, batch: OpenBatch, messages: Sequence[Any], query_id: str, batch_id: int,
    digest: str,
) -> bool:  # fmt: skip
    """Make the tasks' rows visible; True if the batch had been committed before. Any failure is raised."""
    results = [message for message in messages if isinstance(message, TaskResult)]
    if len(results) != len(messages):
        raise FenceError(f"sink {batch.sink_id}: {len(messages) - len(results)} tasks returned no result")
    if any(result.batch != batch for result in results):
        raise FenceError(f"sink {batch.sink_id}: tasks of different drivers wrote for batch {batch_id}")
    members = [result.member for result in results if result.member is not None]
    return transactions.commit(batch, query_id, batch_id, digest, members)


def _commit(options: WriteOptions, messages: Sequence[Any], query_id: str, batch_id: int, digest: str) -> None:
    """Commit in the process that Spark keeps for it, and say so there."""
    keep_loaded()
    batch, began = _written_batch(options, messages), time.monotonic()
    already = commit_task_results(batch_transactions(options), batch, messages, query_id, batch_id, digest)
    figures = task_figures(messages, max(message.write_ms for message in messages), (time.monotonic() - began) * 1000)
    figures = BatchFigures("skipped") if already else figures
    log_batch(options.sink_id, query_id, batch_id, figures)
    hand_over_figures(query_id, batch_id, figures)


def task_figures(results: Sequence[TaskResult], write_ms: float, commit_ms: float) -> BatchFigures:
    """The figures of a committed batch, of those of its tasks."""
    return BatchFigures(
        "committed",
        sum(result.rows for result in results),
        sum(result.bytes for result in results),
        sum(result.member is not None for result in results),
        write_ms,
        commit_ms,
    )


def _written_batch(options: WriteOptions, messages: Sequence[Any]) -> OpenBatch:
    """The batch that the tasks wrote for. Spark runs a task even where there are no rows."""
    batch = next((message.batch for message in messages if isinstance(message, TaskResult)), None)
    if batch is None:
        raise FenceError(f"sink {options.sink_id}: no task returned the batch it wrote for")
    return batch


class _BatchHolder:
    """A writer's batch: begun once on the driver, copied to the tasks with the writer."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._batch: OpenBatch | None = None

    def begin(self, columns: StructType) -> None:
        """Begin the batch, whose values are written by the schema that its subject has now.

        Raises FenceError on brokers without batch transactions, FenceConflict, ClientError, OptionError, RegistryError.
        """
        self._options = self._options.with_schema(columns)
        transactions = batch_transactions(self._options)
        if not transactions.supported():
            raise FenceError(
                f"{UNSUPPORTED}: use foreachBatch with exactly_once_batch, whose sink.mode=driver works everywhere"
            )
        if self._options.refresh is not None:
            _follow_refresh(self._options, self._options.refresh)
        self._batch = transactions.begin(self._options.transaction_timeout_ms)
        if self._batch.fence is None:
            refuse_driver_fence(self._options.kafka, self._options.sink_id)

    @property
    def batch(self) -> OpenBatch:
        """The begun batch. Raises FenceError in a task whose writer was copied before the begin."""
        if self._batch is None:
            raise FenceError(f"sink {self._options.sink_id}: no batch was begun for this task's writer")
        return self._batch


class StreamWriter(_BatchHolder, StreamArrowWriter):
    """``writeStream.format("fleetlog")``."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Runs in a task."""
        batch, query_id = self.batch, _local_property("sql.streaming.queryId")
        number = _local_property("streaming.sql.batchId")  # not a documented property: commit() is given the number
        if number:
            self._check_fence(batch, query_id, int(number))
        return write_task(self._options, batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Runs on the driver, again for a replayed batch."""
        ids = {message.query_id for message in messages if isinstance(message, TaskResult)}
        if len(ids) != 1 or "" in ids:
            raise FenceError("the tasks returned no id of their query, or different ones")
        query_id = ids.pop()
        batch = _written_batch(self._options, messages)
        self._check_fence(batch, query_id, batchId)
        is_replay = batch.fence == (query_id, batchId)  # brokers know it by the digest that it was committed with
        digest = batch.digest if is_replay else target_of(self._options.rows.topic)
        _commit(self._options, messages, query_id, batchId, digest)

    def _check_fence(self, batch: OpenBatch, query_id: str, batch_id: int) -> None:
        """Raises FenceLost where batches were written before and there is no fence: brokers accept any first batch.

        FenceConflict for a batch that a write with another target has committed.
        """
        if batch.fence is None:
            decide(None, query_id, batch_id, adopt=self._options.adopt)
        elif batch.fence == (query_id, batch_id):
            what = f"sink {self._options.sink_id}: batch {batch_id} of query {query_id}"
            refuse_other_target(what, batch.digest, target_of(self._options.rows.topic))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Runs on the driver. Harmless after an ambiguous commit: a committed batch stays committed."""
        _abort(self._options, messages)


class BatchWriter(_BatchHolder, ArrowWriter):
    """``write.format("fleetlog")``: all rows of the job, or none. With ``batchToken`` a repeated job writes nothing."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Runs in a task."""
        batch = self.batch
        if self._is_done(batch):
            return TaskResult(batch, None, 0, 0, BATCH_JOB)
        if batch.fence is not None and batch.fence.query_id != BATCH_JOB:
            raise FenceConflict(
                f"sink {self._options.sink_id} belongs to streaming query {batch.fence.query_id}: give the job "
                "another sinkId"
            )
        return write_task(self._options, batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Runs on the driver."""
        batch = _written_batch(self._options, messages)
        if self._is_done(batch):
            logger.info("sink %s: the job with token %s is written already", self._options.sink_id, self._options.token)
            return
        number = 0 if batch.fence is None else batch.fence.batch_id + 1
        token = self._options.token
        digest = f"{token}\n{target_of(self._options.rows.topic)}" if token else ""
        _commit(self._options, messages, BATCH_JOB, number, digest)

    def _is_done(self, batch: OpenBatch) -> bool:
        """Raises FenceConflict where the job of this token went to another target."""
        token, target = self._options.token, target_of(self._options.rows.topic)
        if not token or batch.fence is None or batch.fence.query_id != BATCH_JOB:
            return False
        if batch.digest == token:  # of a version that kept no target
            return True
        committed, _, there = batch.digest.rpartition("\n")
        if committed != token:
            return False
        refuse_other_target(f"sink {self._options.sink_id}: the job with batchToken {token}", there, target)
        return True

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Runs on the driver: none of the job's rows becomes visible."""
        _abort(self._options, messages)


def _follow_refresh(options: WriteOptions, refresh: FlowRefresh) -> None:
    """Before the first batch of a flow's full refresh: end what an earlier run left open.

    Raises FenceConflict where rows would be written again and nobody said so.
    """
    if batch_transactions(options).fence() is not None:
        return
    earlier = (batch_transactions(replace(options, sink_id=name)) for name in refresh.earlier_sink_ids())
    latest = next(((one, fence) for one in earlier if (fence := one.fence()) is not None), None)
    if latest is None:
        return
    transactions, fence = latest
    if refresh.mode == REFUSE:
        raise FenceConflict(
            f"a full refresh would write again what flow {refresh.flow} has written (up to batch {fence.batch_id} of "
            f"query {fence.query_id}): set the sink's option sink.fullRefresh to append (again, behind the rows that "
            f"are there) or to replace (to topic {options.rows.topic or 'TOPIC'}.{refresh.number}, made before), or "
            f"remove the checkpoint {refresh.checkpoint}, and the flow goes on as if it had not been refreshed"
        )
    transactions.abort(transactions.begin(options.transaction_timeout_ms))


def _abort(options: WriteOptions, messages: Sequence[Any]) -> None:
    batch = next((message.batch for message in messages if isinstance(message, TaskResult)), None)
    if batch is not None:
        batch_transactions(options).abort(batch)


def _local_property(name: str) -> str:
    context = TaskContext.get()
    return (context.getLocalProperty(name) or "") if context is not None else ""


def task_function(options: WriteOptions, batch: OpenBatch) -> TaskFunction:
    """For ``mapInArrow`` in a foreachBatch function: a row per task with its pickled result."""

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # late: who begins and commits for Spark has no rows

        result = write_task(options, batch, rows)
        yield pa.record_batch([pa.array([pickle.dumps(result)], pa.binary())], ["result"])

    return run
