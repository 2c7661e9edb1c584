"""``foreachBatch`` exactly once: one transaction per micro-batch, fenced by query and batch id.

On fleetlog's brokers executors write (``executor_mode``); on Apache Kafka the driver does (``driver_mode``). The
outcome of a failed call is never guessed: the exception leaves the function, Spark replays the batch with the same
query and batch id, and the fence shows whether that batch was committed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.settings import kafka_python_settings
from fleetlog.spark.functions.confluent import avro_column
from fleetlog.spark.functions.routing import repartition_by_key
from fleetlog.spark.sink.events import ReportStage, SinkEvent
from fleetlog.spark.sink.executor_mode import ExecutorMode
from fleetlog.spark.sink.modes import choose_mode
from fleetlog.spark.sink.options import (
    COLUMN_TYPES,
    DRIVER,
    SinkOptions,
    Subject,
    check_column_type,
    check_required_columns,
)
from fleetlog.spark.sink.running import RunningQuery, refuse_connect, running_query
from fleetlog.spark.sink.writes import Write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)


class BatchMode(Protocol):
    """A mode: writes a query's batches, one at a time."""

    def prefetch(self) -> None:
        """Send what the next batch needs in any case."""

    def write(self, rows: DataFrame, write: Write) -> bool:
        """Write the rows of a batch; False where it was committed before, and is skipped. Any failure is raised."""


class ExactlyOnceBatch:
    """The function for ``foreachBatch``. The first batch chooses the mode."""

    def __init__(self, options: SinkOptions, on_event: Callable[[SinkEvent], None] | None = None) -> None:
        self._options = options
        self._on_event = on_event
        self._mode: BatchMode | None = None
        self._cluster = ""
        self._query: RunningQuery | None = None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a batch, or skip it where it is committed. Any failure is raised: a swallowed one would lose rows."""
        query = self._running_query(df)
        prefetched = self._mode
        if self._mode is None:
            prepared_rows(df, self._options.topic, structs=self._options.subject is not None)
            self._mode = self._start_mode()
        options = self._options
        write = Write(self._cluster, options.sink_id, query.id, query.run_id, batch_id, options.topic, df)
        with write.alone() if options.fenced else contextlib.nullcontext():
            if prefetched is not None:
                prefetched.prefetch()
            rows = encoded_rows(df, options.topic, options.subject)
            parts = repartition_by_key(rows, self._partitions()) if options.repartition else rows
            if not self._mode.write(parts, write):
                compute_only(rows)

    def _running_query(self, df: DataFrame) -> RunningQuery:
        """The query. Its checks take a dozen calls into the JVM: done once for each run."""
        refuse_connect(df.sparkSession)
        query_id = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if self._query is None or query_id != self._query.id or not self._query.runs():
            self._query = running_query(df, self._options.checkpoint)
        return self._query

    def _partitions(self) -> int:
        """The topic's present number of partitions."""
        topic = str(self._options.topic)
        client = Client(kafka_python_settings(self._options.kafka))  # of this query alone: one client serves one thread
        try:
            numbers = client.topics([topic]).get(topic)
        finally:
            client.close()
        if not numbers:
            raise OptionError(f"option topic: topic {topic} does not exist; create it")
        return len(numbers)

    def _start_mode(self) -> BatchMode:
        options = self._options
        mode, self._cluster = choose_mode(options.kafka, options.sink_id, options.mode, fenced=options.fenced)
        if mode == DRIVER:
            return _driver_mode(options, self._report)
        return ExecutorMode(options.for_executors(), self._report, options.takeover, options.small_rows)

    def _report(self, stage: str, query_id: str, batch_id: int, rows: int) -> None:
        logger.debug("query %s batch %d: %s, %d rows", query_id, batch_id, stage, rows)
        if self._on_event is not None:
            self._on_event(SinkEvent(stage, query_id, batch_id, rows))


def _driver_mode(options: SinkOptions, report: ReportStage) -> BatchMode:
    """Imports librdkafka, which executor mode can do without. Raises OptionError where it is not installed."""
    try:
        from fleetlog.spark.sink.driver_mode import DriverMode
    except ImportError as problem:
        raise OptionError(
            f"driver mode needs the package confluent-kafka ({problem}): pip install confluent-kafka"
        ) from (problem)
    return DriverMode(options, report)


def exactly_once_batch(
    options: Mapping[str, str], *, on_event: Callable[[SinkEvent], None] | None = None
) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that writes each batch exactly once.

    Columns as in Spark's Kafka sink: ``value`` (string or binary), and if present ``key``, ``topic``, ``partition``,
    ``headers``, ``timestamp``. Options: ``kafka.*``, ``sinkId`` (one per write of a batch), ``checkpointLocation``
    (the query's own), ``topic``, ``sink.mode`` (auto, executor, driver), ``sink.transaction.timeout.ms`` (300000),
    ``sink.repartition`` (none, key), ``sink.small.batch.rows`` (0), ``schema.subject`` with ``schema.registry.url``,
    ``fence.onMissing`` (fail, adopt), ``fence.takeover.queryId``, ``fence.enabled`` (false: at least once, in driver
    mode). ``on_event`` is called at each stage of a batch.

    Raises OptionError here; the function raises FenceConflict, FenceLost and errors of the clients.
    """
    return ExactlyOnceBatch(SinkOptions.parse(options), on_event)


def compute_only(rows: DataFrame) -> None:
    """Compute rows that are not to be written again. Raises the errors of Spark's job.

    The state and the watermark of a query are made while its batch is computed. Spark ends a query whose batch left no
    new state (STATE_STORE_COMMIT_VALIDATION_FAILED since 4.1, a missing version of it before), at each restart anew.
    """
    rows.write.format("noop").mode("overwrite").save()


def encoded_rows(df: DataFrame, topic: str | None, subject: Subject | None) -> DataFrame:
    """The same with values as bytes: by the schema that the subject has now. Raises OptionError, RegistryError."""
    rows = prepared_rows(df, topic, structs=subject is not None)
    if subject is None:
        return rows
    schema = subject.schema_for(rows.schema["value"].dataType)
    return rows.withColumn("value", avro_column("value", schema))


def prepared_rows(df: DataFrame, topic: str | None, *, structs: bool = False) -> DataFrame:
    """The columns the sink uses, and no others. OptionError names the column that is missing or wrong."""
    fields = df.schema.fields
    types = {field.name.lower(): field for field in fields}
    check_required_columns(types, topic)
    columns = {}
    for name in COLUMN_TYPES:
        if name not in types or (name == "topic" and topic is not None):
            continue
        check_column_type(name, types[name].dataType.simpleString(), structs=structs)
        columns[name] = types[name].name
    if len(columns) == len(fields) and all(name == given for name, given in columns.items()):
        return df  # each call into the JVM costs a batch of ten rows a little
    return df.selectExpr(*(f"`{given}` as `{name}`" for name, given in columns.items()))
