"""Which offsets a query reads: the options' grammar, the limit per trigger, the split into tasks. Pure.

Offsets in Spark's checkpoint look as those of Spark's own Kafka source: ``{"topic": {"0": 17, "1": 4}}``.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spark_udfs.settings import OptionError
from wire.types import TopicPartition

EARLIEST = -2
LATEST = -1

Offsets = dict[TopicPartition, int]
Json = dict[str, dict[str, int]]


class Range(NamedTuple):
    """Offsets ``start`` (included) to ``end`` (excluded) of one partition."""

    topic: str
    partition: int
    start: int
    end: int

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


def to_json(offsets: Mapping[TopicPartition, int]) -> Json:
    """The checkpoint's form, sorted, so that equal offsets are equal text."""
    out: Json = {}
    for tp in sorted(offsets):
        out.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return out


def from_json(value: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The inverse of `to_json`."""
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, parts in value.items()
        for number, offset in parts.items()
    }


def parse_assign(text: str) -> list[TopicPartition]:
    """Option ``assign``: ``{"topic": [0, 1]}``."""
    try:
        value = json.loads(text)
        found = [TopicPartition(str(topic), int(number)) for topic, numbers in value.items() for number in numbers]
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f'option assign: expected JSON such as {{"topic": [0, 1]}}, not {text!r}') from None
    if not found:
        raise OptionError("option assign names no partition")
    return sorted(found)


def _parse_numbers(name: str, text: str, low: int) -> Offsets:
    try:
        found = from_json(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f'option {name}: expected JSON such as {{"topic": {{"0": 23}}}}, not {text!r}') from None
    for tp, number in found.items():
        if number < low:
            raise OptionError(f"option {name}: {tp} has {number}, below {low}")
    return found


def parse_bound(options: Mapping[str, str], side: str, default: int) -> Bound:
    """The options ``<side>Timestamp``, ``<side>OffsetsByTimestamp``, ``<side>Offsets``, the first of them that is set.

    ``side`` is ``starting`` or ``ending``; ``options`` have lower-case names. Raises OptionError.
    """
    by_one = options.get(f"{side}timestamp")
    if by_one is not None:
        try:
            timestamp = int(by_one)
        except ValueError:
            timestamp = -1
        if timestamp < 0:
            raise OptionError(f"option {side}Timestamp: {by_one!r} is not a time in ms since 1970")
        return Bound(timestamp_ms=timestamp)
    by_many = options.get(f"{side}offsetsbytimestamp")
    if by_many is not None:
        return Bound(timestamps=_parse_numbers(f"{side}OffsetsByTimestamp", by_many, 0))
    text = options.get(f"{side}offsets")
    forbidden = ("earliest", EARLIEST) if side == "ending" else ("latest", None)
    if text is None:
        return Bound(everywhere=default)
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        if side == "ending" and word == "earliest":
            raise OptionError("option endingOffsets: earliest would read nothing")
        return Bound(everywhere=EARLIEST if word == "earliest" else LATEST)
    offsets = _parse_numbers(f"{side}Offsets", text, EARLIEST)
    if forbidden[1] is not None and forbidden[1] in offsets.values():
        raise OptionError(f"option {side}Offsets: {forbidden[1]} ({forbidden[0]}) makes no sense there")
    return Bound(offsets=offsets)


def limit_offsets(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], most: int) -> Offsets:
    """End offsets ``most`` beyond ``start`` in sum (or all that waits), shared out in proportion to what waits.

    Every partition where something waits moves by one offset at least, as far as the limit goes, so none starves
    beside a large one. ``start`` has every partition of ``latest``.
    """
    waiting = {tp: latest[tp] - start[tp] for tp in sorted(latest) if latest[tp] > start[tp]}
    ends = {tp: start[tp] for tp in latest}
    if sum(waiting.values()) <= most:
        return {**ends, **{tp: latest[tp] for tp in waiting}}
    first = list(waiting)[:most]
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


def split_ranges(ranges: Iterable[Range], min_partitions: int | None = None) -> list[Range]:
    """Non-empty ranges, cut so that there are about ``min_partitions`` of about equal size."""
    whole = [item for item in ranges if item.size > 0]
    if min_partitions is None or min_partitions <= len(whole):
        return whole
    total = sum(item.size for item in whole)
    pieces: list[Range] = []
    for item in whole:
        count = min(item.size, max(1, round(item.size * min_partitions / total)))
        edges = [item.start + item.size * number // count for number in range(count + 1)]
        pieces += [item._replace(start=low, end=high) for low, high in itertools.pairwise(edges)]
    return pieces


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
