"""Filters that Spark hands to a batch read, as narrower ranges of offsets. Pure.

Spark evaluates every filter itself afterwards, so a filter that is not used here costs time only. What narrows:
``topic`` and ``partition`` (whole partitions are left out), ``offset`` (both ends), ``timestamp`` from below, if not
before 1970, where a broker takes a time for another question. A timestamp's upper end can't cut a log: records may be
older than those before them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader

from fleetlog.spark.source.offsets import Range

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_FAR = 2**63 - 1
_EQUAL, _AT_LEAST = ("EqualTo", "EqualNullSafe"), ("GreaterThan", "GreaterThanOrEqual")
_BOUNDS: dict[str, Callable[[int], tuple[int, int]]] = {
    "EqualTo": lambda n: (n, n + 1),
    "EqualNullSafe": lambda n: (n, n + 1),
    "GreaterThan": lambda n: (n + 1, _FAR),
    "GreaterThanOrEqual": lambda n: (n, _FAR),
    "LessThan": lambda n: (0, n),
    "LessThanOrEqual": lambda n: (0, n + 1),
}
"""From a filter on a whole number: the lowest that passes, and the lowest above that does not.

By the names of PySpark's classes, which its older versions don't have.
"""


@dataclass
class Narrowing:
    """The part of a read that passes its filters. ``since_ms``: records before that time don't."""

    topics: set[str] | None = None
    partitions: tuple[int, int] = (0, _FAR)
    chosen: set[int] | None = None
    offsets: tuple[int, int] = (0, _FAR)
    since_ms: int | None = None
    used: list[str] = field(default_factory=list)

    def add(self, one: Filter) -> None:
        """Narrow by a filter; one on other columns changes nothing."""
        kind = type(one).__name__
        value: Any = getattr(one, "value", None)
        column = getattr(one, "attribute", ())
        if column == ("topic",) and kind in (*_EQUAL, "In"):
            names = set(value) if kind == "In" else {value}
            self.topics = names if self.topics is None else self.topics & names
        elif column == ("partition",) and kind == "In":
            self.chosen = set(value) if self.chosen is None else self.chosen & set(value)
        elif column in (("partition",), ("offset",)) and kind in _BOUNDS and isinstance(value, int):
            low, high = _BOUNDS[kind](value)
            before = self.partitions if column == ("partition",) else self.offsets
            both = max(before[0], low), min(before[1], high)
            if column == ("partition",):
                self.partitions = both
            else:
                self.offsets = both
        elif column == ("timestamp",) and kind in (*_EQUAL, *_AT_LEAST) and isinstance(value, datetime):
            since = value.astimezone(UTC) - datetime.fromtimestamp(0, UTC)  # without a zone it is this process's time
            since_ms = since // timedelta(milliseconds=1)
            if since_ms < 0:
                return
            self.since_ms = max(self.since_ms or 0, since_ms)
        else:
            return
        self.used.append(repr(one))

    def keeps(self, topic: str, partition: int) -> bool:
        """Whether records of the partition can pass."""
        return (
            (self.topics is None or topic in self.topics)
            and self.partitions[0] <= partition < self.partitions[1]
            and (self.chosen is None or partition in self.chosen)
        )

    def cut(self, item: Range) -> Range:
        """The part of a range whose offsets can pass."""
        start = max(item.start, self.offsets[0])
        return item._replace(start=start, end=max(start, min(item.end, self.offsets[1])))


class FilterPushdown:
    """The reader's ``pushFilters``: narrows the read, and returns every filter to Spark.

    Spark refuses to read from a source that overrides ``pushFilters`` while ``spark.sql.python.filterPushdown.enabled``
    is false, because filters that a source claims would be lost. This source claims none, so ``pushFilters`` is an
    attribute of the reader and no override: with the setting filters narrow the read, without it they don't.
    """

    def __init__(self) -> None:
        self.narrowing = Narrowing()

    @property
    def __func__(self) -> Any:
        return DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow by these filters; all of them, for Spark to evaluate."""
        for one in filters:
            self.narrowing.add(one)
        return filters
