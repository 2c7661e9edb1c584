"""``foreachBatch`` exactly once: one transaction per micro-batch, fenced by query and batch id.

On our brokers executors write (``executor_mode``). What follows is driver mode, which works on any Kafka-compatible
broker. Rows come to the driver, partition by partition, as Arrow batches. For batch n:
the fence goes into the transaction first, then the committed fence is read, then rows are written or the batch is
skipped, then everything commits at once. The order is what makes it safe: once the transaction holds the fence, no
other driver can commit one without cutting this one off, so what is read afterwards stays true until the commit.

Spark replays a batch whose commit it has not logged, with the same query and batch id; the fence tells whether that
batch was committed. The outcome of a failed call is never guessed: the exception leaves, and the replay finds out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaException, Producer

from spark_udfs import fence as fences
from spark_udfs import modes
from spark_udfs.client import Client
from spark_udfs.failures import FenceError
from spark_udfs.fence import Decision, Fence, retrying
from spark_udfs.listener import BatchFigures, record
from spark_udfs.producing import write_settings
from spark_udfs.routing import repartition_by_key
from spark_udfs.settings import (
    OptionError,
    bool_option,
    client_settings,
    int_option,
    kafka_settings,
    librdkafka_settings,
    lowered,
    reader_settings,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_udfs.executor_mode import ExecutorMode

_OPTIONS = frozenset(
    {
        "topic",
        "sinkid",
        "checkpointlocation",
        "sink.mode",
        "sink.transaction.timeout.ms",
        "fence.onmissing",
        "fence.takeover.queryid",
        "fence.enabled",
        "includeheaders",
        "sink.repartition",
        "sink.small.batch.rows",
    }
)
_REFUSED_SETTINGS = {
    "transactional.id": "it is made of sinkId",
    "acks": "exactly once needs all",
    "request.required.acks": "exactly once needs all",
    "enable.idempotence": "exactly once needs it",
    "transaction.timeout.ms": "use sink.transaction.timeout.ms",
    "group.id": "it is made of sinkId",
    "isolation.level": "it belongs to readers",
    "key.serializer": "rows carry bytes",
    "value.serializer": "rows carry bytes",
}
_DEFAULT_TRANSACTION_TIMEOUT_MS = 300_000
_IPC_BYTES = 4 << 20
_HEADERS_TYPE = "array<struct<key:string,value:binary>>"

log = logging.getLogger(__name__)


class SinkEvent(NamedTuple):
    """Progress of one batch. ``stage``: begun, written (all rows acknowledged, not committed), committed, skipped."""

    stage: str
    query_id: str
    batch_id: int
    rows: int


@dataclass(frozen=True)
class SinkOptions:
    """The sink's options, checked."""

    settings: dict[str, str]
    topic: str | None
    name: str
    checkpoint: str
    transaction_timeout_ms: int
    adopt: bool
    takeover: str
    fenced: bool
    sink_id: str
    mode: str
    repartition: bool = False
    small_rows: int = 0

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Raises OptionError, which names the option and what is allowed."""
        given = lowered(options)
        for name in given:
            if not name.startswith("kafka.") and name not in _OPTIONS:
                raise OptionError(f"option {name} is unknown; known are kafka.* and {', '.join(sorted(_OPTIONS))}")
        settings = kafka_settings(given)
        for name in sorted(_REFUSED_SETTINGS.keys() & settings.keys()):
            raise OptionError(f"option kafka.{name} can't be set: {_REFUSED_SETTINGS[name]}")
        for name, why in (("sinkid", "sinkId"), ("checkpointlocation", "checkpointLocation")):
            if not given.get(name, "").strip():
                raise OptionError(f"option {why} is required: without it a restarted query would not be recognised")
        mode = given.get("sink.mode", modes.AUTO).lower()
        fenced = bool_option("fence.enabled", given.get("fence.enabled", "true"))
        if mode not in modes.MODES:
            raise OptionError(f"option sink.mode: {given['sink.mode']!r} is not one of {', '.join(modes.MODES)}")
        if mode == modes.EXECUTOR and not fenced:
            raise OptionError("option fence.enabled=false goes with sink.mode=driver: executors can't do without it")
        timeout = given.get("sink.transaction.timeout.ms", str(_DEFAULT_TRANSACTION_TIMEOUT_MS))
        return cls(
            settings=settings,
            topic=given.get("topic"),
            name=fences.sink_name(given["sinkid"]),
            checkpoint=given["checkpointlocation"],
            transaction_timeout_ms=int_option("sink.transaction.timeout.ms", timeout, 1000),
            adopt=fences.adopts(given),
            takeover=given.get("fence.takeover.queryid", ""),
            fenced=fenced,
            sink_id=given["sinkid"],
            mode=mode,
            repartition=_repartition(given),
            small_rows=int_option("sink.small.batch.rows", given.get("sink.small.batch.rows", "0")),
        )


def _repartition(given: Mapping[str, str]) -> bool:
    """Option ``sink.repartition``."""
    value = given.get("sink.repartition", "none").lower()
    if value not in ("none", "key"):
        raise OptionError(f"option sink.repartition: {value!r} is not none or key")
    if value == "key" and "topic" not in given:
        raise OptionError("option sink.repartition=key goes with option topic: several topics differ in partitions")
    return value == "key"


class ExactlyOnceBatch:
    """The function for ``foreachBatch``. The first batch settles the mode."""

    def __init__(self, options: SinkOptions, on_event: Callable[[SinkEvent], None] | None = None) -> None:
        self._options = options
        self._on_event = on_event
        self._engine: DriverMode | ExecutorMode | None = None
        self._run: tuple[str | None, str | None] | None = None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Writes a batch, or proves that it was written. Any failure is raised: a swallowed one would lose rows."""
        query_id = self._query(df)
        if self._engine is not None:
            self._engine.ahead()
        rows = prepared_rows(df, self._options.topic)
        if self._engine is None:
            self._engine = self._choose()
        if self._options.repartition:
            rows = repartition_by_key(rows, self._partitions())
        self._engine.write(rows, query_id, batch_id)

    def _query(self, df: DataFrame) -> str:
        """The query's id. Asking Spark about the query takes a dozen calls into the JVM: once for each run of it."""
        refuse_connect(df.sparkSession)
        context = df.sparkSession.sparkContext
        run = (context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("spark.jobGroup.id"))
        if self._run is None or None in run or run != self._run:
            running_query(df, self._options.checkpoint)
            self._run = run
        return str(run[0])

    def _partitions(self) -> int:
        """How many the topic has now."""
        topic = str(self._options.topic)
        client = Client(reader_settings(self._options.settings))  # of this query alone: one client serves one thread
        try:
            found = client.topics([topic]).get(topic)
        finally:
            client.close()
        if not found:
            raise OptionError(f"option topic: topic {topic} does not exist")
        return len(found)

    def _choose(self) -> DriverMode | ExecutorMode:
        options = self._options
        mode = modes.choose_mode(options.settings, options.sink_id, options.mode, fenced=options.fenced)
        if mode == modes.DRIVER:
            return DriverMode(options, self._tell)
        from spark_udfs.executor_mode import ExecutorMode
        from spark_udfs.writer import WriteOptions

        to_write = WriteOptions(
            settings=reader_settings(options.settings),
            kafka=options.settings,
            rows=write_settings(options.settings, options.topic),
            sink_id=options.sink_id,
            transaction_timeout_ms=options.transaction_timeout_ms,
        )
        return ExecutorMode(to_write, options.adopt, options.takeover, self._tell, options.small_rows)

    def _tell(self, stage: str, query_id: str, batch_id: int, rows: int) -> None:
        log.info("query %s batch %d: %s, %d rows", query_id, batch_id, stage, rows)
        if self._on_event is not None:
            self._on_event(SinkEvent(stage, query_id, batch_id, rows))


class DriverMode:
    """Writes a query's batches through the driver. Keeps its producer, and drops it after any failure."""

    def __init__(self, options: SinkOptions, tell: Callable[[str, str, int, int], None]) -> None:
        self._options = options
        self._tell = tell
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None

    def ahead(self) -> None:
        """Nothing can be done before the rows are there."""

    def write(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        """Raises FenceConflict, FenceLost, KafkaException, and whatever Spark's job ends with."""
        began = time.monotonic()
        try:
            self._run(rows, query_id, batch_id)
        except BaseException as problem:
            self._discard()
            allowed_ms, took_ms = self._options.transaction_timeout_ms, (time.monotonic() - began) * 1000
            if isinstance(problem, KafkaException) and took_ms > allowed_ms:
                raise FenceError(
                    f"sink {self._options.sink_id}: batch {batch_id} took {took_ms:.0f} ms, its transaction may take "
                    f"{allowed_ms}: set sink.transaction.timeout.ms above a batch's duration (the brokers allow "
                    "transaction.max.timeout.ms), or make batches smaller (maxOffsetsPerTrigger)"
                ) from problem
            raise

    def _run(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        producer, consumer = self._connect()
        fences.begin_with_fence(producer, consumer, Fence(query_id, batch_id))
        if self._options.fenced:
            found = fences.committed_fence(consumer)
            decision = fences.decide(
                found, query_id, batch_id, adopt=self._options.adopt, takeover=self._options.takeover
            )
            if decision is Decision.SKIP:
                retrying(producer.abort_transaction)
                record(query_id, batch_id, BatchFigures("skipped"))
                self._tell("skipped", query_id, batch_id, 0)
                return
        self._tell("begun", query_id, batch_id, 0)
        began = time.monotonic()
        count = sum(produce_batch(producer, batch, self._options.topic) for batch in arrow_batches(rows))
        producer.flush()
        self._tell("written", query_id, batch_id, count)
        written = time.monotonic()
        retrying(producer.commit_transaction)
        times = (written - began) * 1000, (time.monotonic() - written) * 1000
        record(query_id, batch_id, BatchFigures("committed", count, 0, 1, *times))
        self._tell("committed", query_id, batch_id, count)

    def _connect(self) -> tuple[Producer, Consumer]:
        if self._producer is None or self._consumer is None:
            options = self._options
            fences.create_fence_topic(options.settings)
            self._consumer = fences.fence_consumer(client_settings(options.settings), options.name)
            producer = Producer(_producer_settings(options))
            retrying(producer.init_transactions)
            self._producer = producer
        return self._producer, self._consumer

    def _discard(self) -> None:
        """Ends the transaction if it can still be ended; the next batch begins with a new producer epoch anyway."""
        producer, self._producer = self._producer, None
        consumer, self._consumer = self._consumer, None
        if producer is not None:
            try:
                producer.purge()
                producer.abort_transaction(5.0)
            except KafkaException as exc:
                log.info("the failed transaction could not be aborted from here: %s", exc)
        if consumer is not None:
            consumer.close()


def exactly_once_batch(
    options: Mapping[str, str], *, on_event: Callable[[SinkEvent], None] | None = None
) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that writes each batch exactly once.

    Columns as in Spark's Kafka sink: ``value`` (string or binary), and if present ``key``, ``topic``, ``partition``,
    ``headers``, ``timestamp``. Options: ``kafka.*``, ``sinkId`` (one per query), ``checkpointLocation`` (the query's
    own), ``topic``, ``sink.mode`` (auto, executor, driver), ``sink.transaction.timeout.ms`` (300000),
    ``sink.repartition`` (none, key), ``sink.small.batch.rows`` (0),
    ``fence.onMissing`` (fail, adopt), ``fence.takeover.queryId``, ``fence.enabled`` (false: at least once, in driver
    mode). ``on_event`` sees the progress.

    Raises OptionError here; the function raises FenceConflict, FenceLost and what stops a client.
    """
    return ExactlyOnceBatch(SinkOptions.parse(options), on_event)


def write_stream(
    df: DataFrame,
    *,
    bootstrap_servers: str,
    sink_id: str,
    checkpoint_location: str,
    topic: str | None = None,
    query_name: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    output_mode: str = "append",
    options: Mapping[str, str] | None = None,
    on_event: Callable[[SinkEvent], None] | None = None,
    **kafka: Any,
) -> StreamingQuery:
    """Starts a streaming query into the sink. ``kafka``: settings, ``_`` for ``.``; ``trigger`` as in Spark."""
    refuse_connect(df.sparkSession)
    if output_mode.lower() == "complete":
        raise OptionError("output mode complete rewrites its whole result in every batch; a topic can't be rewritten")
    every = {
        **{f"kafka.{name.replace('_', '.')}": str(value) for name, value in kafka.items()},
        **(options or {}),
        "kafka.bootstrap.servers": bootstrap_servers,
        "sinkId": sink_id,
        "checkpointLocation": checkpoint_location,
        **({} if topic is None else {"topic": topic}),
    }
    writer = df.writeStream.outputMode(output_mode).option("checkpointLocation", checkpoint_location)
    writer = writer.foreachBatch(exactly_once_batch(every, on_event=on_event))
    if query_name is not None:
        writer = writer.queryName(query_name)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.start()


# -- Spark's side --------------------------------------------------------------------------------------------------


def refuse_connect(session: Any) -> None:
    """Raises FenceError for a session of Spark Connect: its functions don't learn for which query they run."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise FenceError(
            "write_stream and exactly_once_batch need a classic Spark session: over Spark Connect a function of "
            "foreachBatch cannot learn the id of its query. df.writeStream.format('fleetlog') works there"
        )


def running_query(df: DataFrame, checkpoint: str) -> str:
    """The id of the query that runs this batch, as its checkpoint keeps it.

    Raises FenceError when the query's checkpoint is not ``checkpoint``, or when its output mode is complete.
    """
    session = df.sparkSession
    query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query_id:
        raise FenceError("exactly_once_batch works only as the function of foreachBatch in a streaming query")
    jvm, jsession = session._jvm, session._jsparkSession
    assert jvm is not None
    execution = jsession.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query_id))
    if execution is None:
        raise FenceError(f"Spark does not list query {query_id} among its running ones")
    if execution.outputMode().toString().lower() == "complete":
        raise FenceError("output mode complete rewrites its whole result in every batch; a topic can't be rewritten")
    wanted = jvm.org.apache.hadoop.fs.Path(checkpoint)
    filesystem = wanted.getFileSystem(jsession.sessionState().newHadoopConf())
    if (
        filesystem.makeQualified(wanted).toString()
        != filesystem.makeQualified(jvm.org.apache.hadoop.fs.Path(execution.resolvedCheckpointRoot())).toString()
    ):
        raise FenceError(
            f"the query keeps its checkpoint in {execution.resolvedCheckpointRoot()}, the sink was told {checkpoint}; "
            "give both the same checkpointLocation, or a restart would be taken for a new query"
        )
    return str(query_id)


def prepared_rows(df: DataFrame, topic: str | None) -> DataFrame:
    """The columns the sink uses, and no others. OptionError names the column that is missing or wrong."""
    fields = df.schema.fields
    types = {field.name.lower(): field for field in fields}
    if "value" not in types:
        raise OptionError(f"column value is required; there are {', '.join(field.name for field in fields)}")
    if topic is None and "topic" not in types:
        raise OptionError("neither option topic nor column topic says where rows go")
    allowed = {
        "key": ("string", "binary"),
        "value": ("string", "binary"),
        "topic": ("string",),
        "partition": ("int",),
        "headers": (_HEADERS_TYPE,),
        "timestamp": ("timestamp",),
    }
    columns = {}
    for name, kinds in allowed.items():
        if name not in types or (name == "topic" and topic is not None):
            continue
        kind = types[name].dataType.simpleString()
        if kind not in kinds:
            raise OptionError(f"column {name} is {kind}; it must be {' or '.join(kinds)}")
        columns[name] = types[name].name
    if len(columns) == len(fields) and all(name == given for name, given in columns.items()):
        return df  # each call into the JVM costs a batch of ten rows a little
    return df.selectExpr(*(f"`{given}` as `{name}`" for name, given in columns.items()))


def arrow_batches(df: DataFrame) -> Iterator[pa.RecordBatch]:
    """A DataFrame's rows in the driver, one partition after the other.

    Each row of the intermediate frame is one Arrow batch in IPC form, so rows never become Python objects on the way,
    and the driver holds one partition (and the next, being fetched) instead of the whole batch. Partitions are computed
    by one job each: a batch whose partitioning is random must not lose executors half-way (as for toLocalIterator).
    """
    frames = df.mapInArrow(_to_ipc, "ipc binary").toLocalIterator(prefetchPartitions=True)
    for (frame,) in frames:
        yield from pa.ipc.open_stream(frame)


def _to_ipc(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        step = max(1, batch.num_rows * _IPC_BYTES // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            target = pa.BufferOutputStream()
            with pa.ipc.new_stream(target, batch.schema) as stream:
                stream.write_batch(batch.slice(start, step))
            yield pa.record_batch([pa.array([target.getvalue().to_pybytes()], pa.binary())], ["ipc"])


# -- Kafka's side --------------------------------------------------------------------------------------------------


def produce_batch(producer: Producer, batch: pa.RecordBatch, topic: str | None) -> int:
    """Hands a batch's rows to the producer, which may wait for room in its queue; the number of rows."""

    def column(name: str, absent: Any) -> Iterable[Any]:
        return batch.column(name).to_pylist() if name in batch.schema.names else repeat(absent, batch.num_rows)

    topics = column("topic", None) if topic is None else repeat(topic, batch.num_rows)
    columns = zip(
        topics,
        column("value", None),
        column("key", None),
        column("partition", None),
        column("headers", None),
        _milliseconds(batch),
        strict=True,
    )
    produce = producer.produce
    for to, value, key, partition, headers, timestamp in columns:
        if to is None:
            raise OptionError("a row has no topic: column topic is null")
        pairs = None if headers is None else [(item["key"], item["value"]) for item in headers]
        while True:
            try:
                produce(to, value, key, -1 if partition is None else partition, timestamp=timestamp, headers=pairs)
                break
            except BufferError:
                producer.poll(0.1)
    producer.poll(0)
    return int(batch.num_rows)


def _milliseconds(batch: pa.RecordBatch) -> Iterable[int]:
    """The rows' timestamps; 0, which librdkafka takes for now, where there is none."""
    if "timestamp" not in batch.schema.names:
        return repeat(0, batch.num_rows)
    column = pc.cast(batch.column("timestamp"), pa.timestamp("ms"), safe=False).view(pa.int64())
    found: list[int] = pc.fill_null(column, 0).to_pylist()
    return found


def _producer_settings(options: SinkOptions) -> dict[str, Any]:
    return {
        "partitioner": "murmur2_random",  # where Spark's own sink and Java's producer put a key
        "linger.ms": 20,
        "batch.size": 900_000,
        "queue.buffering.max.kbytes": 65_536,
        **librdkafka_settings(options.settings),
        "transactional.id": options.name,
        "transaction.timeout.ms": options.transaction_timeout_ms,
    }
