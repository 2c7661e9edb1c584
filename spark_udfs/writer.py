"""``df.writeStream.format("fleetlog")`` and ``df.write.format("fleetlog")``: executors write, one commit decides.

The driver begins a batch, which locks every older driver out; each task attempt enlists a producer of its own and
writes; Spark names the attempts that count, and one CommitBatch makes their rows visible together with the fence. A
replayed batch finds itself in the fence and is not written again.

Spark makes a new writer for every micro-batch and another for its commit, so what they share travels in the commit
messages. The batch begins when Spark pickles the writer for its tasks: nothing earlier runs in one place only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_udfs import fence as fences
from spark_udfs.batches import Batch, KeptAlive, Sink
from spark_udfs.client import shared_client
from spark_udfs.failures import FenceConflict, FenceError
from spark_udfs.modes import refuse_driver_fence
from spark_udfs.producing import Member, MemberProducer, WriteSettings, write_settings
from spark_udfs.settings import OptionError, check_sink_id, int_option, kafka_settings, lowered, reader_settings

BATCH_JOB = "batch"
"""The query id of batch jobs in a fence: they have none of their own."""

_OPTIONS = frozenset(
    {
        "topic",
        "sinkid",
        "checkpointlocation",
        "sink.transaction.timeout.ms",
        "fence.onmissing",
        "batchtoken",
        "path",
    }
)
_REFUSED_SETTINGS = {
    "transactional.id": "it is made of sinkId",
    "acks": "exactly once needs all",
    "enable.idempotence": "exactly once needs it",
    "transaction.timeout.ms": "use sink.transaction.timeout.ms",
    "key.serializer": "rows carry bytes",
    "value.serializer": "rows carry bytes",
}
_TYPES = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}

TaskFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WriteOptions:
    """The writer's options, checked. ``token`` names a batch job's content: with the same token it is written once.

    ``adopt``: a batch that is not a query's first may find no fence.
    """

    settings: dict[str, Any]
    rows: WriteSettings
    sink_id: str
    transaction_timeout_ms: int
    kafka: dict[str, str]
    token: str = ""
    adopt: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Raises OptionError, which names the option and what is allowed."""
        given = lowered(options)
        for name in given:
            if not name.startswith("kafka.") and name not in _OPTIONS:
                raise OptionError(f"option {name} is unknown; known are kafka.* and {', '.join(sorted(_OPTIONS))}")
        kafka = kafka_settings(given)
        for name in sorted(_REFUSED_SETTINGS.keys() & kafka.keys()):
            raise OptionError(f"option kafka.{name} can't be set: {_REFUSED_SETTINGS[name]}")
        if not given.get("sinkid", "").strip():
            raise OptionError("option sinkId is required: without it a restarted query would not be recognised")
        return cls(
            settings=reader_settings(kafka),
            rows=write_settings(kafka, given.get("topic")),
            sink_id=check_sink_id(given["sinkid"]),
            transaction_timeout_ms=int_option(
                "sink.transaction.timeout.ms", given.get("sink.transaction.timeout.ms", "300000"), 1000
            ),
            kafka=kafka,
            token=given.get("batchtoken", ""),
            adopt=fences.adopts(given),
        )

    def check_columns(self, schema: StructType) -> None:
        """Raises OptionError for a column that is missing or of a wrong type."""
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        if "value" not in types:
            raise OptionError(f"column value is required; there are {', '.join(types)}")
        if self.rows.topic is None and "topic" not in types:
            raise OptionError("neither option topic nor column topic says where rows go")
        for name, kind in types.items():
            if name not in _TYPES:
                raise OptionError(f"column {name} is unknown; a record has {', '.join(_TYPES)}")
            if kind not in _TYPES[name]:
                raise OptionError(f"column {name} is {kind}; it must be {' or '.join(_TYPES[name])}")

    def sink(self) -> Sink:
        """The sink, over this process's client."""
        return Sink(shared_client(self.settings), self.sink_id)


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """What a task attempt did: its member (none without rows), and the batch it wrote for."""

    batch: Batch
    member: Member | None
    rows: int
    bytes: int
    query_id: str


def write_task(options: WriteOptions, batch: Batch, rows: Iterator[pa.RecordBatch]) -> TaskResult:
    """One task attempt: enlist, write everything, and return when all of it is acknowledged."""
    query_id = _local_property("sql.streaming.queryId")
    if query_id and batch.fence is not None and batch.fence.query_id != query_id:
        raise FenceConflict(
            f"sink {options.sink_id} was last written by query {batch.fence.query_id} (batch {batch.fence.batch_id}), "
            f"this is query {query_id}: give it another sinkId, or see fleetlog sinks reset"
        )
    producer: MemberProducer | None = None
    with KeptAlive(options.settings, batch, options.transaction_timeout_ms):
        for part in rows:
            if part.num_rows == 0:
                continue
            if producer is None:
                member, producer = options.sink().writer(batch, options.rows)
            producer.write(part)
        if producer is None:
            return TaskResult(batch, None, 0, 0, query_id)
        producer.flush()
    return TaskResult(batch, member, producer.rows, producer.bytes, query_id)


def commit_batch(
    sink: Sink, batch: Batch, messages: Sequence[Any], query_id: str, batch_id: int, digest: str = ""
) -> bool:
    """Make the tasks' rows visible; True if the batch had been committed before. Any failure is raised."""
    results = [message for message in messages if isinstance(message, TaskResult)]
    if len(results) != len(messages):
        raise FenceError(f"sink {batch.sink_id}: {len(messages) - len(results)} tasks said nothing of their work")
    if any(result.batch != batch for result in results):
        raise FenceError(f"sink {batch.sink_id}: tasks of different drivers wrote for batch {batch_id}")
    began = time.monotonic()
    already = sink.commit(
        batch, query_id, batch_id, digest, [result.member for result in results if result.member is not None]
    )
    log.info(
        "sink %s, query %s, batch %d: %s, %d rows, %d bytes, %d tasks, commit in %.0f ms",
        batch.sink_id, query_id, batch_id, "was committed before" if already else "committed",
        sum(result.rows for result in results), sum(result.bytes for result in results), len(results),
        (time.monotonic() - began) * 1000,
    )  # fmt: skip
    return already


def _begun(options: WriteOptions, messages: Sequence[Any]) -> Batch:
    """The batch that the tasks wrote for. Spark runs a task even where there are no rows."""
    found = next((message.batch for message in messages if isinstance(message, TaskResult)), None)
    if found is None:
        raise FenceError(f"sink {options.sink_id}: no task said for which batch it wrote")
    return found


class _Begins:
    """Begins the batch when Spark pickles the writer for its tasks, once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._batch: Batch | None = None

    def begin(self) -> Batch:
        if self._batch is None:
            sink = self._options.sink()
            if not sink.supported():
                raise FenceError(
                    "these brokers know no batch transactions (a stock Kafka does not); write with foreachBatch and "
                    "exactly_once_batch, whose sink.mode=driver works everywhere"
                )
            self._batch = sink.begin(self._options.transaction_timeout_ms)
            if self._batch.fence is None:
                refuse_driver_fence(self._options.kafka, self._options.sink_id)
        return self._batch

    def __getstate__(self) -> dict[str, Any]:
        self.begin()
        return self.__dict__


class StreamWriter(_Begins, DataSourceStreamArrowWriter):
    """``writeStream.format("fleetlog")``."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Runs in a task."""
        batch, query_id = self.begin(), _local_property("sql.streaming.queryId")
        number = _local_property("streaming.sql.batchId")  # Spark's own, unofficial: commit() knows it for certain
        if number:
            self._look_for_fence(batch, query_id, int(number))
        return write_task(self._options, batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Runs on the driver, again for a replayed batch."""
        ids = {message.query_id for message in messages if isinstance(message, TaskResult)}
        if len(ids) != 1 or "" in ids:
            raise FenceError("the tasks don't know which query they ran for")
        batch, query_id = _begun(self._options, messages), ids.pop()
        self._look_for_fence(batch, query_id, batchId)
        commit_batch(self._options.sink(), batch, messages, query_id, batchId)

    def _look_for_fence(self, batch: Batch, query_id: str, batch_id: int) -> None:
        """Raises FenceLost where batches were written before and no fence says so. Brokers take any first batch."""
        if batch.fence is None:
            fences.decide(None, query_id, batch_id, adopt=self._options.adopt)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Harmless after an ambiguous commit: a batch that was committed stays so."""
        _abort(self._options, messages)


class BatchWriter(_Begins, DataSourceArrowWriter):
    """``write.format("fleetlog")``: all rows of the job, or none. With ``batchToken`` a repeated job writes nothing."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Runs in a task."""
        batch = self.begin()
        if _is_done(batch, self._options.token):
            return TaskResult(batch, None, 0, 0, BATCH_JOB)
        if batch.fence is not None and batch.fence.query_id != BATCH_JOB:
            raise FenceConflict(
                f"sink {self._options.sink_id} belongs to streaming query {batch.fence.query_id}: give the job "
                "another sinkId"
            )
        return write_task(self._options, batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Runs on the driver."""
        batch = _begun(self._options, messages)
        if _is_done(batch, self._options.token):
            log.info("sink %s: the job with token %s is written already", self._options.sink_id, self._options.token)
            return
        number = 0 if batch.fence is None else batch.fence.batch_id + 1
        commit_batch(self._options.sink(), batch, messages, BATCH_JOB, number, self._options.token)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing of the job becomes visible."""
        _abort(self._options, messages)


def _is_done(batch: Batch, token: str) -> bool:
    return bool(token) and batch.fence is not None and (batch.fence.query_id, batch.fence.digest) == (BATCH_JOB, token)


def _abort(options: WriteOptions, messages: Sequence[Any]) -> None:
    batch = next((message.batch for message in messages if isinstance(message, TaskResult)), None)
    if batch is not None:
        options.sink().abort(batch)


def _local_property(name: str) -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.getLocalProperty(name) or "") if context is not None else ""


def task_function(
    options: WriteOptions, batch: Batch
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow`` in a foreachBatch function: a row per task with its pickled result."""
    import pickle

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        result = write_task(options, batch, rows)
        yield pa.record_batch([pa.array([pickle.dumps(result)], pa.binary())], ["result"])

    return run
