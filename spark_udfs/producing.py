"""The executor's producer: Arrow batches in, acknowledged record batches out, under one member of a batch transaction.

Rows become record batches in ``_native.columns`` without a Python object per row. Batches of a partition leave in order
and up to four at once; a partition whose leader moved waits until all its answers are in, then sends again what was not
acknowledged, in order: the leader knows the sequences and drops what it has. A leader that knows nothing of a producer
takes any sequence for its first (KIP-360), so a partition's first batch travels alone, and the first after a failure,
too. Memory is bounded by what may be unacknowledged, plus one record batch.

Source: KIP-98 (sequences), KIP-890 (the leader adds the partition to the transaction).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import kafka.errors
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from _native.columns import encode_arrow, group_rows, partitions_for_keys
from spark_udfs.client import Client, ClientError
from spark_udfs.frames import ProduceFrame
from spark_udfs.settings import OptionError
from wire import compression
from wire.errors import ErrorCode
from wire.types import TopicPartition

REQUEST_TIMEOUT_MS = 30_000
IN_FLIGHT_PER_PARTITION = 4
REQUEST_BYTES = 8 << 20
PAUSE_S = 0.05
NEW_TOPIC_PATIENCE_S = 5.0
"""A topic that was just created is unknown to some brokers for a moment."""

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

log = logging.getLogger(__name__)


class TaskFenced(RuntimeError):
    """The batch this task writes for is over: another driver began a newer one, or its time ran out."""


class WriteSettings(NamedTuple):
    """How rows are written. Sizes in bytes; ``delivery_timeout_ms`` bounds how long a record batch may take."""

    topic: str | None
    codec: int = compression.NONE
    batch_bytes: int = 512 << 10
    buffer_bytes: int = 32 << 20
    delivery_timeout_ms: int = 120_000


class Member(NamedTuple):
    """The producer of one task attempt."""

    producer_id: int
    epoch: int


class _Batch:
    __slots__ = ("data", "rows", "sent")

    def __init__(self, data: bytes | bytearray, rows: int) -> None:
        self.data = data
        self.rows = rows
        self.sent = False


class _Lane:
    """One partition: its unacknowledged batches in order, and the sequence of the next row."""

    __slots__ = ("batches", "confirmed", "in_flight", "sequence", "since", "stalled")

    def __init__(self) -> None:
        self.batches: deque[_Batch] = deque()
        self.sequence = 0
        self.in_flight = 0
        self.stalled = False
        self.confirmed = False  # the leader has acknowledged a batch, so it knows where the sequence stands
        self.since = 0.0


class _Flight(NamedTuple):
    future: Any
    parts: list[tuple[TopicPartition, _Batch]]


class MemberProducer:
    """Writes one task's rows. Not for use from two threads. Without a sink the rows count at once: at least once."""

    def __init__(
        self,
        client: Client,
        sink_id: str | None,
        member: Member,
        settings: WriteSettings,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """``counts``: partitions of topics, where they were just asked for."""
        self.rows = 0
        self.bytes = 0
        self._client = client
        self._sink_id = sink_id
        self._member = member
        self._settings = settings
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._flights: list[_Flight] = []
        self._unacknowledged = 0
        self._counts = dict(counts or {})
        self._sticky = member.producer_id  # rows without a key begin at another partition in each task

    # ---- rows ------------------------------------------------------------------------------------------------------

    def write(self, batch: pa.RecordBatch) -> None:
        """Take an Arrow batch; returns when there is room for the next. Raises TaskFenced, ClientError."""
        if batch.num_rows == 0:
            return
        for topic, rows in self._by_topic(batch):
            self._write_topic(topic, rows)
        self.rows += batch.num_rows
        self._pump(self._settings.buffer_bytes)

    def flush(self) -> None:
        """Wait until every row is acknowledged by all in-sync replicas."""
        self._pump(0)

    @property
    def unacknowledged_bytes(self) -> int:
        """What is in memory: record batches sent or waiting."""
        return self._unacknowledged

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The batch's rows by topic, in their order."""
        if self._settings.topic is not None:
            yield self._settings.topic, batch
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise OptionError("a row has no topic: column topic is null, and there is no option topic")
        names = pc.unique(topics).to_pylist()
        for name in names:
            yield name, batch if len(names) == 1 else batch.filter(pc.equal(topics, name))

    def _write_topic(self, topic: str, batch: pa.RecordBatch) -> None:
        """Rows of one topic into record batches by partition: the kernel takes each row from where it stands."""
        partitions = self._partitions(topic, batch)
        times = _timestamps(batch)
        sizes = None if batch.nbytes <= self._settings.batch_bytes else _row_bytes(batch)
        order, starts = group_rows(np.ascontiguousarray(partitions, dtype=np.int32), self._counts[topic])
        for number, (first, last) in enumerate(itertools.pairwise(starts)):
            if first == last:
                continue
            lane = self._lanes.setdefault(TopicPartition(topic, number), _Lane())
            for start, end in _cuts(order, first, last, sizes, self._settings.batch_bytes):
                self._encode(lane, batch, times, (order, start, end))
                if self._unacknowledged > self._settings.buffer_bytes:
                    self._pump(self._settings.buffer_bytes)

    def _partitions(self, topic: str, batch: pa.RecordBatch) -> Any:
        """A partition per row: the one it names, else its key's, else one of this task's choice for the whole batch."""
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._count(topic)
        self._sticky += 1
        chosen = np.full(batch.num_rows, self._sticky % count, dtype=np.int32)
        if "key" in batch.schema.names:
            keys = batch.column("key")
            hashed = np.asarray(partitions_for_keys(keys, count)).astype(np.int32)
            chosen = np.where(hashed >= 0, hashed, chosen) if keys.null_count else hashed
        if "partition" in batch.schema.names:
            named = batch.column("partition")
            given = pc.fill_null(named, -1).to_numpy(zero_copy_only=False)
            if (given >= count).any() or ((given < 0) & np.asarray(named.is_valid())).any():
                raise OptionError(f"a row names partition {int(given.max())} of {topic}, which has {count}")
            chosen = np.where(given >= 0, given, chosen)
        return chosen

    def _count(self, topic: str) -> int:
        """How many partitions the topic has."""
        deadline = time.monotonic() + NEW_TOPIC_PATIENCE_S
        while True:
            found = self._client.topics([topic]).get(topic)
            if found:
                return len(found)
            if time.monotonic() > deadline:
                raise ClientError(f"topic {topic} does not exist", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            time.sleep(PAUSE_S)

    def _encode(self, lane: _Lane, rows: pa.RecordBatch, times: pa.Array, order: tuple[bytes, int, int]) -> None:
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
            base_sequence=lane.sequence if self._member.producer_id >= 0 else -1,
        )
        count = order[2] - order[1]
        lane.sequence = (lane.sequence + count) & 0x7FFF_FFFF
        lane.batches.append(_Batch(data, count))
        self.bytes += len(data)
        self._unacknowledged += len(data)

    # ---- sending ---------------------------------------------------------------------------------------------------

    def _pump(self, most: int) -> None:
        """Send, take the answers that are there, and wait for more until at most that many bytes lack theirs."""
        self._send()
        self._client.progress()
        came = [flight for flight in self._flights if flight.future.is_done]
        for flight in came:
            self._take(flight)
        if came:
            self._send()
        while self._unacknowledged > most:
            if self._flights:
                self._take(self._flights[0])
            else:
                time.sleep(PAUSE_S)  # every lane waits for a leader
            self._send()

    def _send(self) -> None:
        ready = [tp for tp, lane in self._lanes.items() if self._next(lane) is not None]
        if not ready:
            return
        try:
            by_leader = self._client.leaders_of(ready)
        except ClientError as problem:
            log.info("no leader yet: %s", problem)
            by_leader = {}
        for node_id, parts in by_leader.items():
            while self._send_to(node_id, parts):
                pass
        for tp in ready:
            lane = self._lanes[tp]
            if lane.in_flight == 0 and lane.batches:
                self._check_patience(tp, lane)

    def _send_to(self, node_id: int, parts: list[TopicPartition]) -> bool:
        """One request with the next batch of each partition; False when none has one."""
        chosen: list[tuple[TopicPartition, _Batch]] = []
        size = 0
        for tp in parts:
            batch = self._next(self._lanes[tp])
            if batch is not None and (not chosen or size + len(batch.data) <= REQUEST_BYTES):
                chosen.append((tp, batch))
                size += len(batch.data)
        if not chosen:
            return False
        future = self._client.send(self._request(chosen), node_id)
        now = time.monotonic()
        for tp, batch in chosen:
            lane = self._lanes[tp]
            batch.sent = True
            lane.in_flight += 1
            lane.since = lane.since or now
        self._flights.append(_Flight(future, chosen))
        return True

    @staticmethod
    def _next(lane: _Lane) -> _Batch | None:
        if lane.stalled or lane.in_flight >= (IN_FLIGHT_PER_PARTITION if lane.confirmed else 1):
            return None
        return next((batch for batch in lane.batches if not batch.sent), None)

    def _request(self, chosen: list[tuple[TopicPartition, _Batch]]) -> ProduceFrame:
        topics: dict[str, list[tuple[int, bytes | bytearray]]] = {}
        for tp, batch in chosen:
            topics.setdefault(tp.topic, []).append((tp.partition, batch.data))
        return ProduceFrame(self._sink_id, REQUEST_TIMEOUT_MS, topics)

    def _take(self, flight: _Flight) -> None:
        """Take an answer; waits where it is not there yet."""
        self._flights.remove(flight)
        errors: dict[TopicPartition, tuple[ErrorCode, str]] = {}
        try:
            response = self._client.wait(flight.future)
        except (kafka.errors.KafkaError, ClientError) as problem:
            log.info("no answer to a Produce: %r; sending again", problem)
        else:
            for topic in response.responses:
                for part in topic.partition_responses:
                    code = ErrorCode(part.error_code)
                    errors[TopicPartition(topic.name, part.index)] = code, part.error_message or ""
        for tp, batch in flight.parts:
            self._answered(tp, batch, *errors.get(tp, (ErrorCode.NETWORK_EXCEPTION, "")))
        self._revive()

    def _answered(self, tp: TopicPartition, batch: _Batch, code: ErrorCode, text: str) -> None:
        lane = self._lanes[tp]
        lane.in_flight -= 1
        if code in _APPENDED and lane.batches and lane.batches[0] is batch:
            lane.batches.popleft()
            lane.confirmed = True
            lane.since = time.monotonic() if lane.batches else 0.0
            self._unacknowledged -= len(batch.data)
        elif code in _FENCED:
            raise TaskFenced(f"{tp}: {code.name}: this batch of sink {self._sink_id} is over for this task {text}")
        elif (
            code in _APPENDED
            or code.retriable
            or code
            in (
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,  # a batch before it was not taken
                ErrorCode.UNKNOWN_PRODUCER_ID,
            )
        ):
            lane.stalled = True
        elif code in _TOO_LARGE:
            raise ClientError(
                f"{tp}: {code.name}: {batch.rows} rows in {len(batch.data)} bytes pass the topic's max.message.bytes; "
                "raise it, or lower kafka.batch.size where there are several rows",
                code,
            )
        else:
            raise ClientError(f"{tp}: {code.name}: {text or 'the records are refused'}", code)

    def _revive(self) -> None:
        """Lanes with all answers in send again what was not acknowledged."""
        revived = False
        for tp, lane in self._lanes.items():
            if lane.stalled and lane.in_flight == 0:
                self._check_patience(tp, lane)
                lane.stalled = lane.confirmed = False
                for batch in lane.batches:
                    batch.sent = False
                revived = True
        if revived:
            time.sleep(PAUSE_S)
            self._client.forget_leaders()

    def _check_patience(self, tp: TopicPartition, lane: _Lane) -> None:
        now = time.monotonic()
        lane.since = lane.since or now
        if (now - lane.since) * 1000 > self._settings.delivery_timeout_ms:
            raise ClientError(
                f"{tp}: not acknowledged for {self._settings.delivery_timeout_ms} ms (kafka.delivery.timeout.ms)"
            )


def _cuts(order: bytes, first: int, last: int, sizes: Any | None, most: int) -> Iterator[tuple[int, int]]:
    """Bounds of pieces of ``order[first:last]`` of at most that many bytes; a larger row is a piece of its own.

    ``sizes`` are all rows' bytes; None where everything fits into one piece.
    """
    if sizes is None:
        yield first, last
        return
    ends = np.cumsum(sizes[np.frombuffer(order, dtype=np.int32)[first:last]])
    start = 0
    while start < last - first:
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield first + start, first + end
        start = end


def _row_bytes(rows: pa.RecordBatch) -> Any:
    """About how large each row will be."""
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
    """The rows' timestamps in ms; now, where they have none."""
    now = time.time_ns() // 1_000_000
    if "timestamp" not in rows.schema.names:
        return pa.array(np.full(rows.num_rows, now, dtype=np.int64))
    column = pc.cast(rows.column("timestamp"), pa.timestamp("ms"), safe=False).view(pa.int64())
    return pc.fill_null(column, now) if column.null_count else column


def write_settings(settings: Mapping[str, str], topic: str | None) -> WriteSettings:
    """From ``kafka.*`` options with Kafka's names; raises OptionError."""
    from spark_udfs.settings import int_option

    name = settings.get("compression.type", "none").lower()
    if name not in compression.CODES:
        raise OptionError(f"option kafka.compression.type: {name!r} is not one of {', '.join(compression.CODES)}")
    defaults = WriteSettings(topic)
    return WriteSettings(
        topic,
        compression.CODES[name],
        int_option("kafka.batch.size", settings.get("batch.size", str(defaults.batch_bytes)), 1),
        int_option("kafka.buffer.memory", settings.get("buffer.memory", str(defaults.buffer_bytes)), 1 << 20),
        int_option(
            "kafka.delivery.timeout.ms", settings.get("delivery.timeout.ms", str(defaults.delivery_timeout_ms)), 1000
        ),
    )
