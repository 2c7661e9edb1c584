"""The data source ``fleetlog``: topics as DataFrames, in batch and as a stream.

Options and rows are those of Spark's own Kafka source; what differs: ``kafka.isolation.level`` is ``read_committed``
unless set, and the ends of ranges are then last stable offsets, so a planned batch never waits for an open transaction.
Offsets in a range that hold no row (transaction markers, aborted records, compacted ones) are not data loss.

Spark keeps the position in its checkpoint; no consumer group is involved.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_udfs import decode, offsets
from spark_udfs.client import READ_COMMITTED, READ_UNCOMMITTED, Client, shared_client
from spark_udfs.offsets import EARLIEST, LATEST, Bound, Json, Offsets, Range
from spark_udfs.pushdown import Narrowing, Push
from spark_udfs.settings import OptionError, bool_option, int_option, kafka_settings, lowered, reader_settings
from wire.errors import ErrorCode
from wire.types import TopicPartition

SCHEMA = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
HEADERS_SCHEMA = ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"

# Settings Spark's own source refuses too, because the source itself decides them.
_REFUSED_SETTINGS = frozenset(
    {
        "auto.offset.reset",
        "key.deserializer",
        "value.deserializer",
        "enable.auto.commit",
        "interceptor.classes",
    }
)
_OPTIONS = frozenset(
    {
        "subscribe",
        "subscribepattern",
        "assign",
        "startingoffsets",
        "startingtimestamp",
        "startingoffsetsbytimestamp",
        "startingoffsetsbytimestampstrategy",
        "endingoffsets",
        "endingtimestamp",
        "endingoffsetsbytimestamp",
        "maxoffsetspertrigger",
        "minpartitions",
        "maxtasks",
        "includeheaders",
        "failondataloss",
        "groupidprefix",  # no consumer group is used: accepted, without effect
        "path",
    }
)
_ISOLATION = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
_FETCH_BYTES = 4 << 20
_STALLED_S = 60.0  # a new leader may lag for a while; an end that never comes was cut off the log

log = logging.getLogger(__name__)


class DataLoss(RuntimeError):
    """Offsets the query has still to read are gone. ``failOnDataLoss=false`` reads on from what is left."""


@dataclass(frozen=True)
class ReadOptions:
    """The source's options, checked."""

    settings: dict[str, Any]
    strategy: str
    wanted: str
    starting: Bound
    ending: Bound
    latest_if_no_match: bool
    max_per_trigger: int | None
    min_partitions: int | None
    max_tasks: int | None
    headers: bool
    fail_on_data_loss: bool
    isolation: int
    fetch_bytes: int

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """Raises OptionError, which names the option and what is allowed."""
        given = lowered(options)
        for name in given:
            if not name.startswith("kafka.") and name not in _OPTIONS:
                raise OptionError(f"option {name} is unknown; known are {', '.join(sorted(_OPTIONS - {'path'}))}")
        kafka = kafka_settings(given)
        for name in sorted(_REFUSED_SETTINGS & kafka.keys()):
            raise OptionError(f"option kafka.{name} can't be set: the source decides it")
        chosen = [name for name in ("assign", "subscribe", "subscribepattern") if name in given]
        if len(chosen) != 1:
            raise OptionError("exactly one of the options assign, subscribe, subscribePattern is required")
        isolation = kafka.get("isolation.level", "read_committed")
        if isolation not in _ISOLATION:
            raise OptionError(f"option kafka.isolation.level: {isolation!r} is not one of {', '.join(_ISOLATION)}")
        strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
        if strategy not in ("error", "latest"):
            raise OptionError(f"option startingOffsetsByTimestampStrategy: {strategy!r} is not error or latest")
        starting, ending = cls._bounds(given, streaming)
        limit = given.get("maxoffsetspertrigger")
        pieces, tasks = given.get("minpartitions"), given.get("maxtasks")
        return cls(
            settings=reader_settings(kafka),
            strategy=chosen[0],
            wanted=given[chosen[0]],
            starting=starting,
            ending=ending,
            latest_if_no_match=strategy == "latest",
            max_per_trigger=None if limit is None else int_option("maxOffsetsPerTrigger", limit, 1),
            min_partitions=None if pieces is None else int_option("minPartitions", pieces, 1),
            max_tasks=None if tasks is None else int_option("maxTasks", tasks, 1),
            headers=bool_option("includeHeaders", given.get("includeheaders", "false")),
            fail_on_data_loss=bool_option("failOnDataLoss", given.get("failondataloss", "true")),
            isolation=_ISOLATION[isolation],
            fetch_bytes=int_option(
                "kafka.max.partition.fetch.bytes", kafka.get("max.partition.fetch.bytes", str(_FETCH_BYTES)), 1
            ),
        )

    @staticmethod
    def _bounds(given: Mapping[str, str], streaming: bool) -> tuple[Bound, Bound]:
        starting = offsets.parse_bound(given, "starting", LATEST if streaming else EARLIEST)
        ending = offsets.parse_bound(given, "ending", LATEST)
        if streaming and any(name.startswith("ending") for name in given):
            raise OptionError("ending options have no meaning in a stream")
        if not streaming and (starting.everywhere == LATEST or LATEST in (starting.offsets or {}).values()):
            raise OptionError("option startingOffsets: latest would read nothing in a batch")
        return starting, ending


class FleetlogSource(DataSource):
    """``spark.read.format("fleetlog")`` and ``spark.readStream.format("fleetlog")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "fleetlog"

    def schema(self) -> str:
        """Spark's Kafka row; ``headers`` only with ``includeHeaders``."""
        with_headers = lowered(self.options).get("includeheaders", "false")
        return SCHEMA + (HEADERS_SCHEMA if bool_option("includeHeaders", with_headers) else "")

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader."""
        return BatchReader(ReadOptions.parse(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream reader."""
        return StreamReader(ReadOptions.parse(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A batch writer: all rows or none."""
        from spark_udfs.writer import BatchWriter, WriteOptions

        if overwrite:
            raise OptionError("mode overwrite would replace the topic's records, which can't be done: use append")
        options = WriteOptions.parse(self.options)
        options.check_columns(schema)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """A stream writer, exactly once."""
        from spark_udfs.writer import StreamWriter, WriteOptions

        if overwrite:
            raise OptionError(
                "output mode complete rewrites its whole result in every batch; a topic can't be rewritten"
            )
        options = WriteOptions.parse(self.options)
        options.check_columns(schema)
        return StreamWriter(options)


class RangePartition(InputPartition):
    """One task's ranges."""

    def __init__(self, items: Sequence[Range]) -> None:
        super().__init__(tuple(map(tuple, items)))

    @property
    def ranges(self) -> list[Range]:
        """The ranges to read, one after the other."""
        return [Range(*item) for item in self.value]


def planned(ranges: Sequence[Range], options: ReadOptions) -> list[InputPartition]:
    """The tasks for these ranges: large ones cut with ``minPartitions``, small ones together with ``maxTasks``."""
    pieces = offsets.split_ranges(ranges, options.min_partitions)
    return [RangePartition(items) for items in offsets.share_out(pieces, options.max_tasks)]


class Planner:
    """Turns options into offsets by asking the fleet. Lives on the driver."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @property
    def client(self) -> Client:
        """The driver's client."""
        return shared_client(self._options.settings)

    def partitions(self, *, strict: bool = False) -> list[TopicPartition]:
        """What assign, subscribe or subscribePattern name, as far as it exists now.

        ``strict``: OptionError for a name without a topic; a misspelt one would otherwise read nothing for ever.
        """
        options = self._options
        if options.strategy == "assign":
            wanted = offsets.parse_assign(options.wanted)
            topics = self.client.topics({tp.topic for tp in wanted})
            found = [tp for tp in wanted if tp.partition in topics.get(tp.topic, ())]
            absent = sorted({str(tp) for tp in wanted} - {str(tp) for tp in found})
        elif options.strategy == "subscribe":
            names = {part.strip() for part in options.wanted.split(",") if part.strip()}
            topics = self.client.topics(names)
            absent = sorted(names - topics.keys())
            found = [TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers]
        else:
            topics = self.client.topics_matching(options.wanted)
            absent = []
            found = [TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers]
        if absent and strict:
            raise OptionError(f"option {options.strategy}: {', '.join(absent)} does not exist")
        return sorted(found)

    def earliest(self, parts: Sequence[TopicPartition]) -> Offsets:
        """Log start offsets."""
        return self._ask(dict.fromkeys(parts, EARLIEST))

    def latest(self, parts: Sequence[TopicPartition]) -> Offsets:
        """Where reading can go to now: the last stable offsets, for read_uncommitted the high watermarks."""
        return self._ask(dict.fromkeys(parts, LATEST))

    def resolve(self, bound: Bound, parts: Sequence[TopicPartition], side: str) -> Offsets:
        """A bound's offsets. OptionError when it names other partitions than there are, or a time without records."""
        if bound.everywhere is not None:
            return self._ask(dict.fromkeys(parts, bound.everywhere))
        if bound.offsets is not None:
            self._same(bound.offsets, parts, f"{side}Offsets")
            special = {tp: offset for tp, offset in bound.offsets.items() if offset < 0}
            return {**bound.offsets, **self._ask(special)}
        if bound.timestamps is not None:
            self._same(bound.timestamps, parts, f"{side}OffsetsByTimestamp")
            times = bound.timestamps
        else:
            assert bound.timestamp_ms is not None
            times = dict.fromkeys(parts, bound.timestamp_ms)
        found = self._ask(times)
        unmatched = sorted(tp for tp, offset in found.items() if offset < 0)
        if unmatched and side == "starting" and not self._options.latest_if_no_match:
            raise OptionError(
                f"no record of {unmatched[0]} is as late as {times[unmatched[0]]} ms; "
                "startingOffsetsByTimestampStrategy=latest would start at the end instead"
            )
        return {**found, **self._ask(dict.fromkeys(unmatched, LATEST))}

    def since(self, ranges: list[Range], since_ms: int | None) -> list[Range]:
        """The ranges without what stands before the first record of that time: all of it is older."""
        if since_ms is None:
            return ranges
        found = self._ask({item.tp: since_ms for item in ranges})
        return [
            item._replace(start=max(item.start, found[item.tp]) if found[item.tp] >= 0 else item.end) for item in ranges
        ]

    @staticmethod
    def _same(named: Mapping[TopicPartition, int], parts: Sequence[TopicPartition], option: str) -> None:
        if set(named) != set(parts):
            raise OptionError(
                f"option {option} must name every partition once: it has {sorted(map(str, named))}, "
                f"there are {sorted(map(str, parts))}"
            )

    def _ask(self, times: Mapping[TopicPartition, int]) -> Offsets:
        if not times:
            return {}
        return {tp: offset for tp, (offset, _) in self.client.offsets(times, self._options.isolation).items()}

    def lost(self, message: str) -> None:
        """Raises DataLoss, or logs where the options say so."""
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{message} (failOnDataLoss=false reads on from what is left)")
        log.warning("%s", message)


def read_range(item: Range, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """A range's rows as Arrow batches; the next fetch travels while the caller works on the rows of the last."""
    client = shared_client(options.settings)
    tp, position = item.tp, item.start
    schema = _arrow_schema(options.headers)
    pending = None
    progress_at = time.monotonic()
    while position < item.end:
        answer = client.finish_fetch(tp, pending, position, options.isolation, options.fetch_bytes)
        pending = None
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            position = _after_loss(client, item, position, options)
            continue
        decoded = decode.decode(
            answer.records,
            position,
            item.end,
            aborted=answer.aborted,
            committed=options.isolation == READ_COMMITTED,
            headers=options.headers,
        )
        if decoded.next_offset > position:
            position, progress_at = decoded.next_offset, time.monotonic()
        elif time.monotonic() - progress_at > _STALLED_S:
            raise DataLoss(f"{tp}: nothing came from offset {position} on for a minute, planned was up to {item.end}")
        if position < item.end:
            pending = client.start_fetch(tp, position, options.isolation, options.fetch_bytes)
        if decoded.rows:
            yield _rows(decoded, tp, schema)


def read_partition(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """A task's rows. Where the plan has no partition, Spark runs one task with a partition of its own making."""
    for item in partition.ranges if isinstance(partition, RangePartition) else ():
        yield from read_range(item, options)


def _after_loss(client: Client, item: Range, position: int, options: ReadOptions) -> int:
    """The offset to go on from when ``position`` is gone: the log's start, or the range's end. Raises DataLoss."""
    first = client.offsets({item.tp: EARLIEST}, options.isolation)[item.tp][0]
    message = f"{item.tp}: offset {position} of the range {item.start}..{item.end} is gone; the log starts at {first}"
    if options.fail_on_data_loss:
        raise DataLoss(f"{message} (failOnDataLoss=false reads on from what is left)")
    log.warning("%s", message)
    return min(first, item.end) if first > position else item.end


def _arrow_schema(headers: bool) -> pa.Schema:
    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", decode.TIMESTAMP_TYPE),
        pa.field("timestampType", pa.int32()),
    ]
    if headers:
        fields.append(pa.field("headers", pa.list_(pa.field("element", decode.HEADER_TYPE))))
    return pa.schema(fields)


def _rows(decoded: decode.Decoded, tp: TopicPartition, schema: pa.Schema) -> pa.RecordBatch:
    columns = dict(decoded.columns)
    columns["topic"] = pa.repeat(tp.topic, decoded.rows)
    columns["partition"] = pa.repeat(pa.scalar(tp.partition, pa.int32()), decoded.rows)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


class BatchReader(DataSourceReader):
    """Reads from the starting to the ending bound, both settled when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.pushFilters = Push()  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        """One range per partition, more with ``minPartitions``; less where filters say what is wanted."""
        planner = Planner(self._options)
        named = planner.partitions(strict=True)
        start = planner.resolve(self._options.starting, named, "starting")
        end = planner.resolve(self._options.ending, named, "ending")
        narrowing: Narrowing = self.pushFilters.narrowing  # type: ignore[attr-defined]
        ranges = [narrowing.cut(Range(*tp, start[tp], end[tp])) for tp in named if narrowing.keeps(*tp)]
        ranges = planner.since(ranges, narrowing.since_ms)
        first = planner.earliest([item.tp for item in ranges])
        for item in ranges:
            if item.start < first[item.tp]:
                planner.lost(f"{item.tp}: starting offset {item.start} is gone; log starts at {first[item.tp]}")
        ranges = [item._replace(start=max(item.start, first[item.tp])) for item in ranges]
        if narrowing.used:
            log.info("filters leave %d offsets: %s", sum(item.size for item in ranges), ", ".join(narrowing.used))
        return planned(ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_partition(partition, self._options)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches. The driver's instance lives as long as the query; `read` runs on copies in the tasks."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._initial: Json | None = None
        self._target: Offsets | None = None

    def initialOffset(self) -> Json:  # noqa: N802
        """Settled once: Spark asks twice, and time may pass between."""
        if self._initial is None:
            planner = Planner(self._options)
            self._initial = offsets.to_json(
                planner.resolve(self._options.starting, planner.partitions(strict=True), "starting")
            )
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``maxOffsetsPerTrigger``."""
        most = self._options.max_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Takes down where this run ends."""
        planner = Planner(self._options)
        self._target = planner.latest(planner.partitions())

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """How far the next batch goes: the last stable offsets, cut to the limit and never behind ``start``."""
        planner = Planner(self._options)
        begin = offsets.from_json(start)
        latest = self._target if self._target is not None else planner.latest(planner.partitions())
        gone = sorted(set(begin) - set(latest))
        if gone and (self._target is None or not set(gone) <= set(planner.partitions())):
            planner.lost(f"{', '.join(map(str, gone))} can't be found any more")
        begin = {tp: offset for tp, offset in begin.items() if tp in latest}
        added = [tp for tp in latest if tp not in begin]
        begin.update(planner.earliest(added))  # a new partition is read from its start
        for tp, offset in begin.items():
            if latest[tp] < offset and self._target is None:
                planner.lost(f"{tp}: the query stands at offset {offset}, and the log ends at {latest[tp]}")
        if isinstance(limit, ReadMaxRows):
            end = offsets.limit_offsets(begin, latest, limit.max_rows)
        else:
            end = {tp: max(latest[tp], begin[tp]) for tp in latest}
        return offsets.to_json(end)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """For the query's progress."""
        planner = Planner(self._options)
        return offsets.to_json(planner.latest(planner.partitions()))

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The ranges between two offsets."""
        planner = Planner(self._options)
        low, high = offsets.from_json(start), offsets.from_json(end)
        low.update(planner.earliest([tp for tp in sorted(high) if tp not in low]))
        ranges = [Range(*tp, low[tp], high[tp]) for tp in sorted(high)]
        return planned(ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_partition(partition, self._options)
