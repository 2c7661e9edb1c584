"""Plans a read on the driver: partitions, bounds as offsets, tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql.datasource import InputPartition

from fleetlog.spark.client.connections import Client, shared_client
from fleetlog.spark.client.failures import DataLoss, OptionError
from fleetlog.spark.client.numbers import EARLIEST, LATEST, READ_UNCOMMITTED
from fleetlog.spark.source import offsets
from fleetlog.spark.source.offsets import Bound, Offsets, Range, TopicIds
from fleetlog.spark.source.options import ReadOptions
from fleetlog.wire.types import TopicPartition

logger = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """One task's ranges."""

    def __init__(self, items: Sequence[Range]) -> None:
        super().__init__(tuple(map(tuple, items)))

    @property
    def ranges(self) -> list[Range]:
        """The ranges to read, one after the other."""
        return [Range(*item) for item in self.value]


def planned_tasks(ranges: Sequence[Range], options: ReadOptions) -> list[InputPartition]:
    """The tasks for these ranges: large ones cut with ``minPartitions`` and
    ``maxRecordsPerPartition``, small ones together with ``maxTasks``."""
    pieces = offsets.split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
    return [RangePartition(items) for items in offsets.share_out(pieces, options.max_tasks)]


class Planner:
    """Turns options into offsets, by requests to the brokers. Used on the driver."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @property
    def client(self) -> Client:
        """The driver's client."""
        return shared_client(self._options.settings)

    def partitions(self, *, strict: bool = False) -> list[TopicPartition]:
        """The partitions that assign, subscribe or subscribePattern select, of the topics that exist now.

        ``strict``: OptionError for a topic that does not exist; a misspelt name would read nothing for ever.
        """
        options = self._options
        if options.strategy == "assign":
            wanted = offsets.parse_assign(options.wanted)
            topics = self.client.topics({tp.topic for tp in wanted})
            parts = [tp for tp in wanted if tp.partition in topics.get(tp.topic, ())]
            absent = sorted({str(tp) for tp in wanted} - {str(tp) for tp in parts})
        elif options.strategy == "subscribe":
            names = {part.strip() for part in options.wanted.split(",") if part.strip()}
            topics = self.client.topics(names)
            absent = sorted(names - topics.keys())
            parts = [TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers]
        else:
            topics = self.client.topics_matching(options.wanted)
            absent = []
            parts = [TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers]
        if absent and strict:
            raise OptionError(f"option {options.strategy}: {', '.join(absent)} does not exist")
        return sorted(parts)

    def topic_ids(self, parts: Iterable[TopicPartition]) -> TopicIds:
        """The ids of the partitions' topics, as of the metadata that `partitions` asked for."""
        known = ((topic, self.client.topic_id(topic)) for topic in {tp.topic for tp in parts})
        return {topic: topic_id for topic, topic_id in known if topic_id is not None}

    def earliest(self, parts: Sequence[TopicPartition]) -> Offsets:
        """Log start offsets."""
        return self._list_offsets(dict.fromkeys(parts, EARLIEST))

    def latest(self, parts: Sequence[TopicPartition]) -> Offsets:
        """The ends a reader can see now: last stable offsets, for read_uncommitted high watermarks."""
        return self._list_offsets(dict.fromkeys(parts, LATEST))

    def high_watermarks(self, parts: Sequence[TopicPartition]) -> Offsets:
        """Where the logs end, open transactions included."""
        listed = self.client.offsets(dict.fromkeys(parts, LATEST), READ_UNCOMMITTED) if parts else {}
        return {tp: offset for tp, (offset, _) in listed.items()}

    def resolve(self, bound: Bound, parts: Sequence[TopicPartition], side: str) -> Offsets:
        """A bound's offsets. OptionError when it names other partitions than there are, or a time without records."""
        if bound.everywhere is not None:
            return self._list_offsets(dict.fromkeys(parts, bound.everywhere))
        if bound.offsets is not None:
            self._check_named(bound.offsets, parts, f"{side}Offsets")
            special = {tp: offset for tp, offset in bound.offsets.items() if offset < 0}
            return {**bound.offsets, **self._list_offsets(special)}
        if bound.timestamps is not None:
            self._check_named(bound.timestamps, parts, f"{side}OffsetsByTimestamp")
            times = bound.timestamps
        else:
            assert bound.timestamp_ms is not None
            times = dict.fromkeys(parts, bound.timestamp_ms)
        offsets = self._list_offsets(times)
        unmatched = sorted(tp for tp, offset in offsets.items() if offset < 0)
        if unmatched and side == "starting" and not self._options.latest_if_no_match:
            raise OptionError(
                f"no record of {unmatched[0]} is as late as {times[unmatched[0]]} ms; "
                "startingOffsetsByTimestampStrategy=latest would start at the end instead"
            )
        return {**offsets, **self._list_offsets(dict.fromkeys(unmatched, LATEST))}

    def since(self, ranges: list[Range], since_ms: int | None) -> list[Range]:
        """The ranges from the first record of that time on: all records before it are older.

        Brokers search below the end that a reader sees; what a range has above it is read whatever its time is.
        """
        if since_ms is None:
            return ranges
        ends = self.latest([item.tp for item in ranges])
        offsets = self._list_offsets({item.tp: since_ms for item in ranges})
        firsts = {tp: offset if offset >= 0 else ends[tp] for tp, offset in offsets.items()}
        return [item._replace(start=max(item.start, min(item.end, firsts[item.tp]))) for item in ranges]

    @staticmethod
    def _check_named(named: Mapping[TopicPartition, int], parts: Sequence[TopicPartition], option: str) -> None:
        if set(named) != set(parts):
            raise OptionError(
                f"option {option} must name every partition once: it has {sorted(map(str, named))}, "
                f"there are {sorted(map(str, parts))}"
            )

    def _list_offsets(self, times: Mapping[TopicPartition, int]) -> Offsets:
        if not times:
            return {}
        return {tp: offset for tp, (offset, _) in self.client.offsets(times, self._options.isolation).items()}

    def report_gone(self, parts: Sequence[TopicPartition]) -> None:
        """Report the loss of partitions that a query had: they do not exist any more, or are not chosen any more."""
        topics = self.client.topics({tp.topic for tp in parts})
        absent = [str(tp) for tp in parts if tp.partition not in topics.get(tp.topic, ())]
        left_out = [str(tp) for tp in parts if tp.partition in topics.get(tp.topic, ())]
        if absent:
            self.report_loss(f"{', '.join(absent)} do not exist any more")
        if left_out:
            option = self._options.strategy
            self.report_loss(
                f"{', '.join(left_out)} were read by the query and are left out by the option {option} now"
            )

    def report_loss(self, message: str) -> None:
        """Raises DataLoss; with failOnDataLoss=false the loss is logged."""
        report_loss(message, self._options)


def report_loss(message: str, options: ReadOptions) -> None:
    """Raises DataLoss; with failOnDataLoss=false the loss is logged."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{message} (failOnDataLoss=false reads on from what is left)")
    logger.warning("%s", message)
