"""Which offsets a query reads: the options' grammar, the limit per trigger, the split into tasks. Pure.

Offsets in Spark's checkpoint have the form of Spark's own Kafka source, ``{"topic": {"0": 17, "1": 4}}``, and beside
the topics their ids: a topic that was deleted and created again has other records at the same offsets.

Spark's checkpoint has the end of a query's first batch and not its start. A batch that is read again starts where it
was planned to, so its end says where that was, for each partition whose start is not the end of a batch before.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.numbers import EARLIEST, LATEST
from fleetlog.wire.types import TopicPartition

Offsets = dict[TopicPartition, int]
TopicIds = dict[str, str]
Json = dict[str, dict[str, Any]]

_TOPIC_IDS = "topic ids"
"""The ids' place among the topics; no topic's name has a space."""
_PLANNED_FROM = "planned from"
"""The starts' place among the topic ids, where a version that does not know them looks for topics that it knows."""


class Range(NamedTuple):
    """Offsets ``start`` (included) to ``end`` (excluded) of one partition, and its topic's id if it is known."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None

    @property
    def tp(self) -> TopicPartition:
        """The partition's name."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Offsets in the range; transaction markers and compacted records count too."""
        return max(0, self.end - self.start)


class Bound(NamedTuple):
    """Where to start or end. Exactly one field is set; offsets may hold EARLIEST and LATEST."""

    everywhere: int | None = None
    offsets: Offsets | None = None
    timestamp_ms: int | None = None
    timestamps: dict[TopicPartition, int] | None = None


def to_json(
    offsets: Mapping[TopicPartition, int], topic_ids: TopicIds | None = None, planned: Offsets | None = None
) -> Json:
    """The checkpoint's form, sorted, so that equal offsets are equal text.

    ``planned``: of `planned_from`. An empty one tells a query's starting offsets from any end of a batch.
    """
    out: Json = {}
    for tp in sorted(offsets):
        out.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    beside: dict[str, Any] = dict(sorted((topic_ids or {}).items()))
    if planned is not None:
        beside[_PLANNED_FROM] = to_json(planned)
    if beside:
        out[_TOPIC_IDS] = beside
    return out


def from_json(value: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """The offsets of `to_json`."""
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, parts in value.items()
        if topic != _TOPIC_IDS
        for number, offset in parts.items()
    }


def topic_ids_of(value: Mapping[str, Mapping[str, Any]]) -> TopicIds:
    """The topic ids of `to_json`; none from a checkpoint that has none."""
    return {topic: topic_id for topic, topic_id in value.get(_TOPIC_IDS, {}).items() if topic != _PLANNED_FROM}


def planned_from(end: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Where the batch that ends there starts, of the partitions whose start is not the end of the batch before.

    These are all of a query's first batch, later those that are new or read from the log's start. None from a
    checkpoint of a version that did not note them.
    """
    return from_json(end.get(_TOPIC_IDS, {}).get(_PLANNED_FROM, {}))


def recreated(before: TopicIds, after: TopicIds) -> list[str]:
    """The topics that have another id than before. A topic whose id is not known on both sides counts as the same."""
    return sorted(topic for topic in before.keys() & after.keys() if before[topic] != after[topic])


def parse_assign(text: str) -> list[TopicPartition]:
    """Option ``assign``: ``{"topic": [0, 1]}``."""
    try:
        value = json.loads(text)
        parts = [TopicPartition(str(topic), int(number)) for topic, numbers in value.items() for number in numbers]
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f'option assign: expected JSON such as {{"topic": [0, 1]}}, not {text!r}') from None
    if not parts:
        raise OptionError("option assign names no partition")
    return sorted(parts)


def _parse_numbers(name: str, text: str, low: int, words: str = "") -> Offsets:
    try:
        offsets = from_json(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        raise OptionError(
            f'option {name}: expected {words}JSON such as {{"topic": {{"0": 23}}}}, not {text!r}'
        ) from None
    for tp, number in offsets.items():
        if number < low:
            raise OptionError(f"option {name}: {tp} has {number}, below {low}")
    return offsets


def parse_bound(options: Mapping[str, str | None], side: str, default: int) -> Bound:
    """The options ``<side>Timestamp``, ``<side>OffsetsByTimestamp``, ``<side>Offsets``, the first of them that is set.

    ``side`` is ``starting`` or ``ending``. Raises OptionError.
    """
    name = f"{side}Timestamp"
    text = options.get(name)
    if text is not None:
        try:
            timestamp = int(text)
        except ValueError:
            timestamp = -1
        if timestamp < 0:
            raise OptionError(f"option {name}: {text!r} is not a time in ms since 1970")
        return Bound(timestamp_ms=timestamp)
    name = f"{side}OffsetsByTimestamp"
    text = options.get(name)
    if text is not None:
        return Bound(timestamps=_parse_numbers(name, text, 0))
    name = f"{side}Offsets"
    text = options.get(name)
    if text is None:
        return Bound(everywhere=default)
    words = "earliest, latest or " if side == "starting" else "latest or "
    everywhere = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    offsets = None if everywhere is not None else _parse_numbers(name, text, EARLIEST, words)
    if side == "ending" and (everywhere == EARLIEST or EARLIEST in (offsets or {}).values()):
        raise OptionError(f"option {name}: earliest ({EARLIEST}) would read nothing")
    return Bound(everywhere=everywhere, offsets=offsets)


def limit_offsets(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], most: int) -> Offsets:
    """End offsets ``most`` beyond ``start`` in sum, or the latest, in proportion to each partition's lag.

    Every partition with a lag moves by one offset at least, so none starves beside a large one; with a limit below
    their number they take turns. ``start`` has every partition of ``latest``.
    """
    waiting = {tp: latest[tp] - start[tp] for tp in sorted(latest) if latest[tp] > start[tp]}
    ends = {tp: start[tp] for tp in latest}
    if sum(waiting.values()) <= most:
        return {**ends, **{tp: latest[tp] for tp in waiting}}
    first = list(waiting)
    if most < len(first):  # the sum of the positions has moved by as many as had their turn
        turn = sum(start[tp] for tp in latest) % len(first)
        first = (first[turn:] + first[:turn])[:most]
    left = most - len(first)
    rest = sum(waiting.values()) - len(first)
    for tp in first:
        ends[tp] += 1 + (waiting[tp] - 1) * left // rest
    lost = most - sum(ends[tp] - start[tp] for tp in first)  # to rounding down: less than one for each of them
    for tp in first:
        if lost > 0 and ends[tp] < latest[tp]:
            ends[tp] += 1
            lost -= 1
    return ends


def split_ranges(
    ranges: Iterable[Range], min_partitions: int | None = None, max_records: int | None = None
) -> list[Range]:
    """Non-empty ranges, cut so that there are about ``min_partitions`` of about equal size.

    ``max_records``: none of them has more offsets.
    """
    whole = [item for item in ranges if item.size > 0]
    if max_records is not None:
        whole = [piece for item in whole for piece in _cut(item, -(-item.size // max_records))]
    if min_partitions is None or min_partitions <= len(whole):
        return whole
    total = sum(item.size for item in whole)
    return [piece for item in whole for piece in _cut(item, max(1, round(item.size * min_partitions / total)))]


def _cut(item: Range, count: int) -> list[Range]:
    """The range in ``count`` pieces of about equal size, or in one for each of its offsets."""
    count = min(item.size, count)
    edges = [item.start + item.size * number // count for number in range(count + 1)]
    return [item._replace(start=low, end=high) for low, high in itertools.pairwise(edges)]


def share_out(ranges: Iterable[Range], most: int | None = None) -> list[list[Range]]:
    """Ranges by task: one for each, or with ``most`` at most so many tasks of about equal size."""
    items = list(ranges)
    if most is None or len(items) <= most:
        return [[item] for item in items]
    tasks: list[list[Range]] = [[] for _ in range(most)]
    sizes = [(0, number) for number in range(most)]
    for item in sorted(items, key=lambda item: (-item.size, item)):
        size, number = heapq.heappop(sizes)
        tasks[number].append(item)
        heapq.heappush(sizes, (size + item.size, number))
    return [sorted(task) for task in tasks]
