"""Reads topics into Spark, in batch and as a stream.

Options and rows are those of Spark's own Kafka source, with one difference: ``kafka.isolation.level`` is
``read_committed`` unless set, and ranges end at last stable offsets, so a planned batch never waits for an open
transaction. Offsets in a range without a row (transaction markers, aborted and compacted records) are not data loss.

Spark keeps the position in its checkpoint; no consumer group is involved.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from fleetlog.spark.client.connections import Client, shared_client
from fleetlog.spark.client.failures import DataLoss, OptionError
from fleetlog.spark.client.kernels import check_kernels
from fleetlog.spark.client.numbers import EARLIEST, READ_COMMITTED
from fleetlog.spark.client.workers import keep_loaded
from fleetlog.spark.source import offsets
from fleetlog.spark.source.offsets import Json, Offsets, Range, TopicIds
from fleetlog.spark.source.options import ReadOptions
from fleetlog.spark.source.planner import Planner, RangePartition, planned_tasks, report_loss
from fleetlog.spark.source.pushdown import FilterPushdown
from fleetlog.spark.source.triggers import TriggerDelay
from fleetlog.spark.versions import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow, has_filters
from fleetlog.wire.errors import ErrorCode

_STALLED_S = 60.0  # a new leader may lag for a while; an end that never arrives was truncated

logger = logging.getLogger(__name__)


def read_range(item: Range, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """A range's rows as Arrow batches; the next fetch travels while the caller works on the rows of the last."""
    from fleetlog.spark.source import decode  # late: a process that only plans decodes nothing

    client = shared_client(options.settings)
    tp, position = item.tp, item.start
    schema = decode.row_arrow_schema(options.headers)
    if options.from_bucket:
        from fleetlog.spark.source.bucket_reads import read_from_bucket

        position = yield from read_from_bucket(client, item, options, schema)
    pending = None
    progress_at = time.monotonic()
    while position < item.end:
        answer = client.finish_fetch(tp, pending, position, options.isolation, options.fetch_bytes)
        pending = None
        topic_id = client.topic_id(tp.topic)
        if item.topic_id is not None and topic_id not in (None, item.topic_id):
            message = f"{tp}: offsets {position}..{item.end} are gone: the topic was deleted and created again"
            report_loss(message, options)
            return
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            position = _after_loss(client, item, position, options)
            continue
        decoded = decode.decode_rows(
            answer.records,
            position,
            item.end,
            aborted=answer.aborted,
            committed=options.isolation == READ_COMMITTED,
            headers=options.headers,
            tp=tp,
        )
        if decoded.next_offset > position:
            position, progress_at = decoded.next_offset, time.monotonic()
        elif time.monotonic() - progress_at > _STALLED_S:
            raise DataLoss(
                f"{tp}: no records from offset {position} on for {_STALLED_S:.0f} s, the plan ends at {item.end}"
            )
        if position < item.end:
            pending = client.start_fetch(tp, position, options.isolation, options.fetch_bytes)
        if decoded.rows:
            yield decode.row_batch(decoded, tp, schema)


def read_partition(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """A task's rows. Where the plan has no partition, Spark runs one task with a partition that it makes itself."""
    check_kernels()
    keep_loaded()
    for item in partition.ranges if isinstance(partition, RangePartition) else ():
        yield from read_range(item, options)


def _after_loss(client: Client, item: Range, position: int, options: ReadOptions) -> int:
    """The offset to continue from when ``position`` is gone: the log's start, or the range's end. Raises DataLoss."""
    first = client.offsets({item.tp: EARLIEST}, options.isolation)[item.tp][0]
    message = f"{item.tp}: offset {position} of the range {item.start}..{item.end} is gone; the log starts at {first}"
    report_loss(message, options)
    return min(first, item.end) if first > position else item.end


def _ends(planner: Planner) -> tuple[Offsets, TopicIds]:
    """Where the logs of the query's partitions end, and the ids of their topics."""
    named = planner.partitions()
    topic_ids = planner.topic_ids(named)
    return planner.latest(named), topic_ids


class BatchReader(DataSourceReader):
    """Reads from the starting to the ending bound, both resolved when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushdown = FilterPushdown()
        if has_filters():
            self.pushFilters = self._pushdown  # type: ignore[method-assign]

    def _planner(self) -> Planner:
        return Planner(self._options)

    def partitions(self) -> Sequence[InputPartition]:
        """One range per partition, more with ``minPartitions``; narrower ones where filters were pushed down."""
        planner = self._planner()
        named = planner.partitions(strict=True)
        start = planner.resolve(self._options.starting, named, "starting")
        end = planner.resolve(self._options.ending, named, "ending")
        self._check_order(start, end)
        narrowing = self._pushdown.narrowing
        topic_ids = planner.topic_ids(named)
        whole = [Range(*tp, start[tp], end[tp], topic_ids.get(tp.topic)) for tp in named if narrowing.keeps(*tp)]
        ranges = [narrowing.cut(item) for item in whole]
        ranges = planner.since(ranges, narrowing.since_ms)
        first = planner.earliest([item.tp for item in ranges])
        for item in ranges:
            if item.start < first[item.tp]:
                planner.report_loss(f"{item.tp}: starting offset {item.start} is gone; log starts at {first[item.tp]}")
        ranges = [item._replace(start=max(item.start, first[item.tp])) for item in ranges]
        if narrowing.used:
            logger.info("filters leave %d offsets: %s", sum(item.size for item in ranges), ", ".join(narrowing.used))
        return planned_tasks(ranges, self._options)

    def _check_order(self, start: Offsets, end: Offsets) -> None:
        """OptionError for a start above the end that the options say; what is the earliest may be above it."""
        starting, ending = self._options.starting, self._options.ending
        by_time = starting.everywhere is None and starting.offsets is None
        for tp in sorted(tp for tp in start if start[tp] > end[tp]):
            if (starting.offsets or {}).get(tp, EARLIEST) >= 0:
                option = "startingOffsets"
            elif by_time and ending.everywhere is None and ending.offsets is None:
                option = "startingTimestamp or startingOffsetsByTimestamp"
            else:
                continue
            raise OptionError(f"option {option}: {tp} would start at offset {start[tp]}, above its end {end[tp]}")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_partition(partition, self._options)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches. One instance on the driver plans for the whole query; `read` runs on copies in the tasks.

    Spark asks a restarted query for `initialOffset` again where its first batch was not committed, and gives it to
    `partitions` with the end that the offset log has. That end notes the start; the new answer counts for nothing.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._initial: Json | None = None
        self._refused: OptionError | None = None
        self._target: tuple[Offsets, TopicIds] | None = None
        self._position: Json | None = None
        least = options.min_per_trigger
        self._delay = None if least is None else TriggerDelay(least, options.max_trigger_delay_ms)

    def _planner(self) -> Planner:
        return Planner(self._options)

    def initialOffset(self) -> Json:  # noqa: N802
        """Where the starting bound is now. Resolved once: Spark asks twice, and offsets may move in between.

        A bound that can't be met is an error of the first `latestOffset`: a query whose first batch is planned needs
        it no more.
        """
        if self._initial is None:
            planner = self._planner()
            try:
                named = planner.partitions(strict=True)
                start = planner.resolve(self._options.starting, named, "starting")
                self._initial = offsets.to_json(start, planner.topic_ids(named), planned={})
            except OptionError as problem:
                self._initial, self._refused = offsets.to_json({}, planned={}), problem
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``maxOffsetsPerTrigger``."""
        most = self._options.max_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the offsets at which this run ends."""
        self._target = _ends(self._planner())

    def latestOffset(self, start: Json | None = None, limit: ReadLimit | None = None) -> Json:  # noqa: N802
        """How far the next batch goes: the last stable offsets, cut to the limit.

        Never behind ``start``, except where the records below ``start`` are gone and others are there: in a log that
        ends before it, and in a topic that was created again. These are read from the log's start.

        Before 4.2 Spark calls it without arguments: the start is where the batch before ended.
        """
        if start is None:
            start = self.initialOffset() if self._position is None else self._position
            self._position = self._next(start, limit)
            return self._position
        return self._next(start, limit)

    def _next(self, start: Json, limit: ReadLimit | None) -> Json:
        first = start == self._initial
        if first and self._refused is not None:
            raise self._refused
        planner = self._planner()
        before = offsets.from_json(start)
        latest, topic_ids = _ends(planner) if self._target is None else self._target
        gone = sorted(set(before) - set(latest))
        if gone and (self._target is None or not set(gone) <= set(planner.partitions())):
            planner.report_gone(gone)
        known = {tp: offset for tp, offset in before.items() if tp in latest}
        replaced = set(offsets.recreated(offsets.topic_ids_of(start), topic_ids))
        for topic in sorted(replaced):
            planner.report_loss(f"{topic} was deleted and created again: its log is read from the start")
        begin = {tp: offset for tp, offset in known.items() if tp.topic not in replaced}
        for tp, log_end in planner.high_watermarks([tp for tp in sorted(begin) if latest[tp] < begin[tp]]).items():
            if log_end < begin[tp]:  # else an open transaction is below a position of read_uncommitted
                planner.report_loss(
                    f"{tp}: the position is {begin[tp]}, and the log ends at {log_end}: it is read from the start"
                )
                del begin[tp]
        whole = len(begin) == len(known) and not gone
        # A new partition is read from its start.
        fresh = planner.earliest([tp for tp in latest if tp not in begin])
        begin.update(fresh)
        if whole and self._puts_off(sum(max(0, latest[tp] - begin[tp]) for tp in latest)):
            if not first:
                return start
            end = begin  # Spark makes a batch of a query's first offsets, whatever they are
        elif isinstance(limit, ReadMaxRows):
            end = offsets.limit_offsets(begin, latest, limit.max_rows)
        else:
            end = {tp: max(latest[tp], begin[tp]) for tp in latest}
        planned = begin if first else fresh
        if not planned and (end, topic_ids) == (before, offsets.topic_ids_of(start)):
            return start  # with what it says of its own batch: another text would be another batch
        return offsets.to_json(end, topic_ids, planned or None)

    def _puts_off(self, waiting: int) -> bool:
        """Whether there are too few offsets for a batch yet. With AvailableNow a query reads all there is."""
        if self._delay is None or self._target is not None:
            return False
        return self._delay.delays(waiting, time.monotonic() * 1000)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """For the query's progress."""
        planner = self._planner()
        return offsets.to_json(planner.latest(planner.partitions()))

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The ranges between two offsets. A restarted query asks for its last batch again, or for none after it.

        Partitions without records in the batch are left out. Raises DataLoss where it can't be told what the batch was.
        """
        self._position = end
        if start == end:
            return []
        planner = self._planner()
        low, high, planned = offsets.from_json(start), offsets.from_json(end), offsets.planned_from(end)
        if start == self._initial and high.keys() - planned.keys():  # of a version that did not note the start
            if self._refused is not None:
                raise self._refused
            logger.warning("the checkpoint does not say where the first batch starts: at the starting offsets of now")
        topic_ids = offsets.topic_ids_of(end)
        replaced = set(offsets.recreated(offsets.topic_ids_of(start), topic_ids))
        fresh = [tp for tp in sorted(high) if tp not in low or tp.topic in replaced]
        low.update(planner.earliest([tp for tp in fresh if tp not in planned]))
        low.update(planned)
        for tp in sorted(tp for tp in high if high[tp] < low[tp]):
            planner.report_loss(
                f"{tp}: the batch ends at {high[tp]}, below its start {low[tp]}, so which records it had is not known; "
                'if it is the first, startingOffsets such as {"topic": {"0": 23}} can name where it started'
            )
        ranges = [Range(*tp, low[tp], high[tp], topic_ids.get(tp.topic)) for tp in sorted(high)]
        return planned_tasks(ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_partition(partition, self._options)
