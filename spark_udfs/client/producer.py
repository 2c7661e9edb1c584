"""The executor's producer: Arrow batches in, acknowledged record batches out, under one member of a batch transaction.

Rows become record batches in ``_native.columns`` without a Python object per row. Batches of a partition leave in order
and up to four at once; a partition whose leader moved waits until all its answers are in, then sends again what was not
acknowledged, in order: the leader knows the sequences and drops duplicates. A leader without state of a producer takes
any sequence for its first (KIP-360), so a partition's first batch travels alone, and the first after a failure, too.
Memory is bounded by the unacknowledged bytes, plus one record batch.

Source: KIP-98 (sequences), KIP-890 (the leader adds the partition to the transaction).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import kafka.errors
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fleetlog._native.columns import encode_arrow, group_rows, partitions_for_keys
from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.failures import ClientError, OptionError, TaskFenced
from fleetlog.spark.client.frames import ProduceFrame
from fleetlog.spark.client.write_settings import TaskMember, WriteSettings
from fleetlog.wire import compression
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

REQUEST_TIMEOUT_MS = 30_000
IN_FLIGHT_PER_PARTITION = 4
REQUEST_BYTES = 8 << 20
PAUSE_S = 0.05
SHOWN_BYTES = 60
"""Of a key and a value that an error shows."""
NEW_TOPIC_TIMEOUT_S = 5.0
"""A topic that was just created is unknown to some brokers for so long at most."""

_FENCED = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
_APPENDED = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})

logger = logging.getLogger(__name__)


class _EncodedBatch:
    __slots__ = ("data", "rows", "sent")

    def __init__(self, data: bytes | bytearray, rows: int) -> None:
        self.data = data
        self.rows = rows
        self.sent = False


class _PartitionQueue:
    """One partition: its unacknowledged batches in order, and the sequence of the next row.

    ``since``: when the partition last made progress while batches wait; 0.0 while none does. ``stalled``: batches are
    sent again once all answers are in. ``trouble``: the last error, and its text for a message.
    """

    __slots__ = ("batches", "confirmed", "in_flight", "sequence", "since", "stalled", "trouble")

    def __init__(self) -> None:
        self.batches: deque[_EncodedBatch] = deque()
        self.sequence = 0
        self.in_flight = 0
        self.stalled = False
        self.confirmed = False  # the leader has acknowledged a batch, so it has the producer's sequence
        self.since = 0.0
        self.trouble: tuple[ErrorCode | None, str] = None, "no answer has come"


class _InFlight(NamedTuple):
    future: Any
    leader: int
    parts: list[tuple[TopicPartition, _EncodedBatch]]


class MemberProducer:
    """Writes one task's rows. Not for use from two threads.

    Without a sink the rows belong to no transaction: they are visible at once, at least once.
    """

    def __init__(
        self,
        client: Client,
        sink_id: str | None,
        member: TaskMember,
        settings: WriteSettings,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """``counts``: numbers of partitions by topic, where the metadata is at hand."""
        self.rows = 0
        self.bytes = 0
        self.unacknowledged_bytes = 0
        """Size of the record batches in memory, sent or waiting."""
        self._client = client
        self._sink_id = sink_id
        self._member = member
        self._settings = settings
        self._queues: dict[TopicPartition, _PartitionQueue] = {}
        self._in_flight: list[_InFlight] = []
        self._counts = dict(counts or {})
        self._sticky = member.producer_id  # each task starts with another partition

    # ---- rows ------------------------------------------------------------------------------------------------------

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode and send an Arrow batch; returns when the buffer has room.

        Raises TaskFenced, ClientError, OptionError.
        """
        if batch.num_rows == 0:
            return
        for topic, rows in self._by_topic(batch):
            self._write_topic(topic, rows)
        self.rows += batch.num_rows
        self._pump(self._settings.buffer_bytes)

    def flush(self) -> None:
        """Wait until all in-sync replicas have acknowledged every row. Raises TaskFenced, ClientError."""
        self._pump(0)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The batch's rows by topic, in their order."""
        if self._settings.topic is not None:
            yield self._settings.topic, batch
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise OptionError("a row has no topic: its column topic is null; set the option topic or fill the column")
        names = pc.unique(topics).to_pylist()
        for name in names:
            yield name, batch if len(names) == 1 else batch.filter(pc.equal(topics, name))

    def _write_topic(self, topic: str, batch: pa.RecordBatch) -> None:
        """Rows of one topic into record batches by partition; the kernel reads each row in place."""
        if "headers" in batch.schema.names:
            pairs = batch.column("headers").flatten()
            if pairs.null_count or pairs.field(0).null_count:
                raise unnamed_header(topic)
        partitions = self._partitions(topic, batch)
        times = _timestamps(batch)
        sizes = None if batch.nbytes <= self._settings.batch_bytes else _row_bytes(batch)
        order, starts = group_rows(np.ascontiguousarray(partitions, dtype=np.int32), self._counts[topic])
        for number, (first, last) in enumerate(itertools.pairwise(starts)):
            if first == last:
                continue
            queue = self._queues.setdefault(TopicPartition(topic, number), _PartitionQueue())
            for start, end in _cuts(order, first, last, sizes, self._settings.batch_bytes):
                self._encode(queue, batch, times, (order, start, end))
                if self.unacknowledged_bytes > self._settings.buffer_bytes:
                    self._pump(self._settings.buffer_bytes)

    def _partitions(self, topic: str, batch: pa.RecordBatch) -> Any:
        """A partition for each row: its column partition, else its key's hash, else one for the whole Arrow batch."""
        count = self._counts.get(topic)
        given = None
        if "partition" in batch.schema.names:
            given = pc.fill_null(batch.column("partition"), -1).to_numpy(zero_copy_only=False)
        if count is None or (given is not None and (given >= count).any()):  # there may be more since
            count = self._counts[topic] = self._partition_count(topic)
        self._sticky += 1
        chosen = np.full(batch.num_rows, self._sticky % count, dtype=np.int32)
        if "key" in batch.schema.names:
            keys = batch.column("key")
            hashed = np.asarray(partitions_for_keys(keys, count)).astype(np.int32)
            chosen = np.where(hashed >= 0, hashed, chosen) if keys.null_count else hashed
        if given is not None:
            wrong = (given >= count) | ((given < 0) & np.asarray(batch.column("partition").is_valid()))
            if wrong.any():
                raise wrong_partition(int(given[wrong][0]), topic, count)
            chosen = np.where(given >= 0, given, chosen)
        return chosen

    def _partition_count(self, topic: str) -> int:
        deadline = time.monotonic() + NEW_TOPIC_TIMEOUT_S
        while True:
            partitions = self._client.topics([topic]).get(topic)
            if partitions:
                return len(partitions)
            if time.monotonic() > deadline:
                raise ClientError(f"topic {topic} does not exist", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            time.sleep(PAUSE_S)

    def _encode(
        self, queue: _PartitionQueue, rows: pa.RecordBatch, times: pa.Array, order: tuple[bytes, int, int]
    ) -> None:
        names = rows.schema.names
        codec = self._settings.codec
        data = encode_arrow(
            rows.column("key") if "key" in names else None,
            rows.column("value"),
            times,
            headers=rows.column("headers") if "headers" in names else None,
            order=order,
            codec=codec,
            compress=None if codec == compression.NONE else (lambda payload: compression.compress(codec, payload)),
            transactional=self._sink_id is not None,
            producer_id=self._member.producer_id,
            producer_epoch=self._member.epoch,
            base_sequence=queue.sequence if self._member.producer_id >= 0 else -1,
        )
        count = order[2] - order[1]
        queue.sequence = (queue.sequence + count) & 0x7FFF_FFFF
        queue.batches.append(_EncodedBatch(data, count))
        self.bytes += len(data)
        self.unacknowledged_bytes += len(data)

    # ---- sending ---------------------------------------------------------------------------------------------------

    def _pump(self, limit_bytes: int) -> None:
        """Send, take the answers that have arrived, and wait until at most ``limit_bytes`` are unacknowledged."""
        self._send()
        self._client.progress()
        answered = [flight for flight in self._in_flight if flight.future.is_done]
        for flight in answered:
            self._finish(flight)
        if answered:
            self._send()
        while self.unacknowledged_bytes > limit_bytes:
            if self._in_flight:
                self._finish(self._in_flight[0])
            else:
                time.sleep(PAUSE_S)  # every partition waits for a leader
            self._send()

    def _send(self) -> None:
        ready = [tp for tp, queue in self._queues.items() if self._next(queue) is not None]
        if not ready:
            return
        try:
            by_leader = self._client.leaders_of(ready)
        except ClientError as problem:
            logger.info("no leader yet: %s", problem)
            by_leader = {}
        for node_id, parts in by_leader.items():
            while self._send_to(node_id, parts):
                pass
        for tp in set(ready).difference(*by_leader.values()):
            self._queues[tp].trouble = ErrorCode.LEADER_NOT_AVAILABLE, "it has no leader"
        for tp in ready:
            queue = self._queues[tp]
            if queue.in_flight == 0 and queue.batches:
                self._check_delivery_timeout(tp, queue)

    def _send_to(self, node_id: int, parts: list[TopicPartition]) -> bool:
        """One request with the next batch of each partition; False when none has one."""
        chosen: list[tuple[TopicPartition, _EncodedBatch]] = []
        size = 0
        for tp in parts:
            batch = self._next(self._queues[tp])
            if batch is not None and (not chosen or size + len(batch.data) <= REQUEST_BYTES):
                chosen.append((tp, batch))
                size += len(batch.data)
        if not chosen:
            return False
        future = self._client.send(self._request(chosen), node_id)
        now = time.monotonic()
        for tp, batch in chosen:
            queue = self._queues[tp]
            batch.sent = True
            queue.in_flight += 1
            queue.since = queue.since or now
        self._in_flight.append(_InFlight(future, node_id, chosen))
        return True

    @staticmethod
    def _next(queue: _PartitionQueue) -> _EncodedBatch | None:
        if queue.stalled or queue.in_flight >= (IN_FLIGHT_PER_PARTITION if queue.confirmed else 1):
            return None
        return next((batch for batch in queue.batches if not batch.sent), None)

    def _request(self, chosen: list[tuple[TopicPartition, _EncodedBatch]]) -> ProduceFrame:
        topics: dict[str, list[tuple[int, bytes | bytearray]]] = {}
        for tp, batch in chosen:
            topics.setdefault(tp.topic, []).append((tp.partition, batch.data))
        return ProduceFrame(self._sink_id, REQUEST_TIMEOUT_MS, topics)

    def _finish(self, flight: _InFlight) -> None:
        """Take a request's answer; waits for it where it has not arrived."""
        self._in_flight.remove(flight)
        errors: dict[TopicPartition, tuple[ErrorCode, str, Sequence[Any]]] = {}
        lost = ""
        try:
            response = self._client.wait(flight.future)
        except (kafka.errors.KafkaError, ClientError) as problem:
            lost = repr(problem)
            logger.info("no answer to a Produce request: %s; retrying", lost)
        else:
            for topic in response.responses:
                for part in topic.partition_responses:
                    code = ErrorCode(part.error_code)
                    place = TopicPartition(topic.name, part.index)
                    errors[place] = code, part.error_message or "", part.record_errors or ()
        for tp, batch in flight.parts:
            code, text, refused = errors.get(tp, (ErrorCode.NETWORK_EXCEPTION, lost, ()))
            if code not in _APPENDED:
                self._queues[tp].trouble = code, f"{code.name} from leader {flight.leader}{text and f' ({text})'}"
            if refused:
                raise ClientError(f"{tp}: {code.name}: {_refused_rows(batch, refused, text)}", code)
            self._answered(tp, batch, code, text)
        self._resend_stalled()

    def _answered(self, tp: TopicPartition, batch: _EncodedBatch, code: ErrorCode, text: str) -> None:
        queue = self._queues[tp]
        queue.in_flight -= 1
        if code in _APPENDED and queue.batches and queue.batches[0] is batch:
            queue.batches.popleft()
            queue.confirmed = True
            queue.since = time.monotonic() if queue.batches else 0.0
            self.unacknowledged_bytes -= len(batch.data)
        elif code in _FENCED:
            raise TaskFenced(f"{tp}: {code.name}: the batch of sink {self._sink_id} is over for this task {text}")
        elif (
            code in _APPENDED
            or code.retriable
            or code
            in (
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,  # a batch before it was not appended
                ErrorCode.UNKNOWN_PRODUCER_ID,
            )
        ):
            queue.stalled = True
        elif code in _TOO_LARGE:
            raise ClientError(
                f"{tp}: {code.name}: {batch.rows} rows in {len(batch.data)} bytes pass the topic's max.message.bytes; "
                "raise it, or lower kafka.batch.size where there are several rows",
                code,
            )
        else:
            raise ClientError(f"{tp}: {code.name}: {text or 'the broker rejects the records'}", code)

    def _resend_stalled(self) -> None:
        """Partitions with all answers in send again what was not acknowledged."""
        resent = False
        for tp, queue in self._queues.items():
            if queue.stalled and queue.in_flight == 0:
                self._check_delivery_timeout(tp, queue)
                queue.stalled = queue.confirmed = False
                for batch in queue.batches:
                    batch.sent = False
                resent = True
        if resent:
            time.sleep(PAUSE_S)
            self._client.forget_leaders()

    def _check_delivery_timeout(self, tp: TopicPartition, queue: _PartitionQueue) -> None:
        now = time.monotonic()
        queue.since = queue.since or now
        if (now - queue.since) * 1000 > self._settings.delivery_timeout_ms:
            code, trouble = queue.trouble
            raise ClientError(
                f"{tp}: not acknowledged for {self._settings.delivery_timeout_ms} ms (kafka.delivery.timeout.ms): "
                f"{trouble}",
                code,
            )


def _refused_rows(batch: _EncodedBatch, refused: Sequence[Any], text: str) -> str:
    """Which rows of a batch the broker names, and why: the first of them by its key and the start of its value."""
    from fleetlog._native.batch import decode_records, parse_header  # late: rows are decoded for this sentence only
    from fleetlog.spark.client.records import batch_payload

    first, data = refused[0], bytes(batch.data)
    header = parse_header(data)
    record = decode_records(batch_payload(data, 0, header), header)[first.batch_index]
    parts = {"key": record.key, "value": record.value}
    shown = ", ".join(
        f"{name} {'null' if part is None else ascii(part[:SHOWN_BYTES].decode(errors='replace'))}"
        for name, part in parts.items()
    )
    more = f" (and {len(refused) - 1} more of these {batch.rows})" if len(refused) > 1 else ""
    why = first.batch_index_error_message or text or "the broker rejects it"
    return f"the row with {shown}{more}: {why}"


def _cuts(order: bytes, first: int, last: int, sizes: Any | None, limit_bytes: int) -> Iterator[tuple[int, int]]:
    """Bounds of pieces of ``order[first:last]`` of at most ``limit_bytes``; a larger row is a piece of its own.

    ``sizes``: bytes of all rows; None where everything fits into one piece.
    """
    if sizes is None:
        yield first, last
        return
    ends = np.cumsum(sizes[np.frombuffer(order, dtype=np.int32)[first:last]])
    start = 0
    while start < last - first:
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + limit_bytes, side="right")))
        yield first + start, first + end
        start = end


def wrong_partition(number: int, topic: str, count: int | None = None) -> OptionError:
    """What is said of a row whose column partition names none of the topic's."""
    has = "" if count is None else f", which has {count}"
    return OptionError(
        f"a row names partition {number} of {topic}{has}: name one of them (from 0 on), or leave it null"
    )


def unnamed_header(topic: str) -> OptionError:
    """What is said of a header without a name, which Kafka has none of."""
    return OptionError(f"a row for {topic} has a header without a name: fill its key, or leave the header out")


def _row_bytes(rows: pa.RecordBatch) -> Any:
    """Estimated size of each row as a record, in bytes."""
    sizes = np.full(rows.num_rows, 12, dtype=np.int64)
    for name in ("key", "value"):
        if name in rows.schema.names:
            sizes += _lengths(rows.column(name))
    if "headers" in rows.schema.names:
        lists = rows.column("headers")
        pairs = lists.flatten()
        ends = np.concatenate(([0], np.cumsum(_lengths(pairs.field(0)) + _lengths(pairs.field(1)) + 4)))
        bounds = np.concatenate(([0], np.cumsum(pc.fill_null(pc.list_value_length(lists), 0).to_numpy())))
        sizes += ends[bounds[1:]] - ends[bounds[:-1]]
    return sizes


def _lengths(column: pa.Array) -> Any:
    return pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _timestamps(rows: pa.RecordBatch) -> pa.Array:
    """The rows' timestamps in ms; the current time for null."""
    now = time.time_ns() // 1_000_000
    if "timestamp" not in rows.schema.names:
        return pa.array(np.full(rows.num_rows, now, dtype=np.int64))
    column = pc.cast(rows.column("timestamp"), pa.timestamp("ms"), safe=False).view(pa.int64())
    return pc.fill_null(column, now) if column.null_count else column
