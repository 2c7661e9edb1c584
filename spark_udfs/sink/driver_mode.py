"""``foreachBatch`` in driver mode: an ordinary transaction of a stock producer, on any Kafka-compatible broker.

Rows come to the driver, partition by partition, as Arrow batches. For batch n: the fence goes into the transaction
first, then the committed fence is read, then rows are written or the batch is skipped, then everything commits at once.
The order is what makes it safe: once the transaction holds the fence, no other driver can commit one without fencing
this one, so the fence that is read afterwards stays valid until the commit.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaException, Producer

from fleetlog.spark.client.failures import FenceError, OptionError
from fleetlog.spark.client.kafka_names import check_effect
from fleetlog.spark.client.producer import unnamed_header, wrong_partition
from fleetlog.spark.client.settings import DRIVER_NAMES, connection_settings, librdkafka_settings
from fleetlog.spark.sink import driver_fence
from fleetlog.spark.sink.events import BatchFigures, ReportStage, record_figures
from fleetlog.spark.sink.fence import Decision, Fence, decide, transactional_name
from fleetlog.spark.sink.options import SinkOptions
from fleetlog.spark.sink.running import is_active
from fleetlog.spark.sink.writes import Write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_IPC_BYTES = 4 << 20
_STATE_TIMEOUT_S = 10.0
LOOK_S = 5.0
"""How often it is looked whether the query still runs, whose clients are open."""

logger = logging.getLogger(__name__)


class DriverMode:
    """Writes a query's batches through the driver.

    Keeps its clients, and closes them after any failure and when the query has ended: nothing else tells the function
    of foreachBatch, and librdkafka goes on connecting, and logging in, from threads of its own.
    """

    def __init__(self, options: SinkOptions, report: ReportStage) -> None:
        check_effect(options.kafka, DRIVER_NAMES, "a sink in driver mode")
        self._options = options
        self._report = report
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._undelivered: list[tuple[str, int, str]] = []
        """Topic, partition and error of the first row that was not written, if there is one."""
        self._writing = threading.Lock()
        self._opened = 0
        """How many producers there were. Only ``_producer`` may hold one: an exception keeps what frames hold."""

    def prefetch(self) -> None:
        """Nothing can be sent before the rows arrive."""

    def write(self, rows: DataFrame, write: Write) -> bool:
        """Write the rows of a batch; False where it was committed before.

        Raises FenceConflict, FenceLost, KafkaException, errors of Spark's job.
        """
        with self._writing:
            watched = self._opened
            committed = self._write(rows, write)
            opened = self._opened
        if opened != watched:
            given = rows.sparkSession, write.query_id, opened
            threading.Thread(target=self._close_after, args=given, daemon=True).start()
        return committed

    def _close_after(self, session: SparkSession, query_id: str, opened: int) -> None:
        """Close the producer when the query has ended, unless it was closed or replaced before."""
        while True:
            time.sleep(LOOK_S)
            with self._writing:
                if self._producer is None or self._opened != opened:
                    return
                if not is_active(session, query_id):
                    self._close()

    def _write(self, rows: DataFrame, write: Write) -> bool:
        began = time.monotonic()
        self._undelivered.clear()
        try:
            return self._run(rows, write)
        except BaseException as problem:
            took_ms, allowed_ms = (time.monotonic() - began) * 1000, self._options.transaction_timeout_ms
            if self._undelivered and self._producer is not None:
                problem.add_note(f"sink {self._options.sink_id}: {_not_written(self._producer, *self._undelivered[0])}")
            self._discard()
            traceback.clear_frames(problem.__traceback__)  # Spark keeps the exception, and with it the producer
            # confluent-kafka's flush ends with a SystemError where rows are purged since their transaction was aborted
            if isinstance(problem, KafkaException | SystemError) and took_ms > allowed_ms:
                raise FenceError(
                    f"sink {self._options.sink_id}: batch {write.batch_id} took {took_ms:.0f} ms, its transaction may "
                    f"take {allowed_ms}: set sink.transaction.timeout.ms above a batch's duration (the brokers allow "
                    "transaction.max.timeout.ms), or make batches smaller (maxOffsetsPerTrigger)"
                ) from problem
            raise

    def _run(self, rows: DataFrame, write: Write) -> bool:
        query_id, batch_id = write.query_id, write.batch_id
        producer, consumer = self._connect()
        driver_fence.begin_with_fence(producer, consumer, Fence(query_id, batch_id), write.target)
        if self._options.fenced:
            fence, target = driver_fence.committed_write(consumer)
            decision = decide(fence, query_id, batch_id, adopt=self._options.adopt, takeover=self._options.takeover)
            write.settle(decision, target)
            if decision is Decision.SKIP:
                driver_fence.retrying(producer.abort_transaction)
                record_figures(self._options.sink_id, query_id, batch_id, BatchFigures("skipped"))
                self._report("skipped", query_id, batch_id, 0)
                return False
        self._report("begun", query_id, batch_id, 0)
        began = time.monotonic()
        count = sum(produce_batch(producer, batch, self._options.topic) for batch in arrow_batches(rows))
        producer.flush()
        self._report("written", query_id, batch_id, count)
        written = time.monotonic()
        driver_fence.retrying(producer.commit_transaction)
        times = (written - began) * 1000, (time.monotonic() - written) * 1000
        figures = BatchFigures("committed", count, 0, 1, *times)
        record_figures(self._options.sink_id, query_id, batch_id, figures)
        self._report("committed", query_id, batch_id, count)
        return True

    def _connect(self) -> tuple[Producer, Consumer]:
        if self._producer is None or self._consumer is None:
            options = self._options
            driver_fence.create_fence_topic(options.kafka)
            self._consumer = driver_fence.fence_consumer(
                connection_settings(options.kafka), transactional_name(options.sink_id)
            )
            producer = Producer({**_producer_settings(options), "on_delivery": self._not_delivered})
            driver_fence.retrying(producer.init_transactions)
            self._producer = producer
            self._opened += 1
        return self._producer, self._consumer

    def _not_delivered(self, error: Any, message: Any) -> None:
        """Errors of transactions name no topic."""
        if error is not None and not self._undelivered:
            self._undelivered.append((message.topic(), message.partition(), f"{error.name()} ({error.str()})"))

    def _discard(self) -> None:
        """Abort the transaction if possible; the next batch's producer has a new epoch in any case."""
        try:
            if self._producer is not None:
                self._producer.purge()
                self._producer.abort_transaction(5.0)
        except KafkaException as exc:
            logger.info("the failed transaction could not be aborted: %s", exc)
        finally:
            self._close()

    def _close(self) -> None:
        self._producer = None  # closed with its last reference: its method waits for the end of an open transaction
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def _not_written(producer: Producer, topic: str, partition: int, error: str) -> str:
    """What is known of a row that the brokers did not take: its error, and how its partition stands.

    A row that times out has a time-out for its error: librdkafka tells of no answer after which it tried again. Too few
    replicas in sync, and a leader that is away, are seen by the partition's state.
    """
    where = f"a row for partition {partition} of topic {topic}" if partition >= 0 else f"a row for topic {topic}"
    try:
        state = producer.list_topics(topic, timeout=_STATE_TIMEOUT_S).topics[topic].partitions.get(partition)
    except KafkaException as problem:
        return f"{where}: {error}; its leader is not known: {problem.args[0].str()}"
    if state is None:
        return f"{where}: {error}"
    leader = f"its leader is broker {state.leader}" if state.leader >= 0 else "it has no leader"
    in_sync = ", ".join(map(str, sorted(state.isrs))) or "none"
    return f"{where}: {error}; {leader}, in sync: {in_sync}, of its replicas {', '.join(map(str, state.replicas))}"


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


def produce_batch(producer: Producer, batch: pa.RecordBatch, topic: str | None) -> int:
    """Queue a batch's rows in the producer, and wait while the queue is full; the number of rows."""

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
            raise OptionError("a row has no topic: its column topic is null; set the option topic or fill the column")
        if partition is not None and partition < 0:
            raise wrong_partition(partition, to)
        if headers and any(item is None or item["key"] is None for item in headers):
            raise unnamed_header(to)
        pairs = None if headers is None else [(item["key"], item["value"]) for item in headers]
        while True:
            try:
                produce(to, value, key, -1 if partition is None else partition, timestamp=timestamp, headers=pairs)
                break
            except BufferError:
                producer.poll(0.1)
            except KafkaException as problem:
                problem.add_note(f"a row for topic {to}")
                raise
    producer.poll(0)
    return int(batch.num_rows)


def _milliseconds(batch: pa.RecordBatch) -> Iterable[int]:
    """The rows' timestamps in ms; 0, which librdkafka replaces by the current time, for null."""
    if "timestamp" not in batch.schema.names:
        return repeat(0, batch.num_rows)
    column = pc.cast(batch.column("timestamp"), pa.timestamp("ms"), safe=False).view(pa.int64())
    times: list[int] = pc.fill_null(column, 0).to_pylist()
    return times


def _producer_settings(options: SinkOptions) -> dict[str, Any]:
    return {
        "partitioner": "murmur2_random",  # as Spark's own sink and Java's producer
        "linger.ms": 20,
        "batch.size": 900_000,
        "queue.buffering.max.kbytes": 65_536,
        "delivery.report.only.error": True,
        **librdkafka_settings(options.kafka),
        "transactional.id": transactional_name(options.sink_id),
        "transaction.timeout.ms": options.transaction_timeout_ms,
    }
