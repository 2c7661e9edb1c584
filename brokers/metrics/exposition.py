"""What a scrape reads, in slices of the loop's time, and the text that is made of it elsewhere.

A page has sources. A source is a function that yields families; where it reads much it yields None in between, and the
loop takes a turn: :data:`SLICE` rows at most between two yields. Families of few samples are prometheus-client's;
those of many rows with the same labels are :class:`Rows`, of which the loop only makes tuples. The text is made on the
endpoint's thread; what is text already is yielded as bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeVar

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

BROKER_PAGE, PARTITION_PAGE, KAFKA_PAGE = "/metrics", "/metrics/partitions", "/metrics/kafka"
SLICE = 100
"""Rows that a source reads at most before it yields: less than 1 ms, where a scrape may hold the loop for 5 ms."""

LONG_SLICE = 500
"""The same of rows of which a number or two are looked at."""
LINES_PER_BLOCK = 1_000
"""Lines that become text at one go, on the endpoint's thread: the loop's waits for that long."""

T = TypeVar("T")


class RowFamily(NamedTuple):
    """One family of :class:`Rows`. ``kind`` is gauge or counter; a counter's name ends in ``_total`` here, too."""

    name: str
    kind: str
    doc: str


@dataclass(slots=True)
class Rows:
    """Families with the same labels. A row is its labels' values (or none), then a number (or None) for each."""

    labels: tuple[str, ...]
    families: Sequence[RowFamily]
    rows: list[tuple[Sequence[str], Sequence[float | None]]] = field(default_factory=list)

    def blocks(self) -> Iterator[bytes]:
        """The families with their samples, in the text format; a family without samples has none of its lines.

        The interpreter joins and frees a list at one go, and no other thread moves meanwhile: so none is long.
        """
        labelled = [
            "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in zip(self.labels, values, strict=True)) + "}"
            if values
            else ""
            for values, _ in self.rows
        ]
        for index, (name, kind, doc) in enumerate(self.families):
            head = f"# HELP {name} {doc}\n# TYPE {name} {kind}\n"
            for begin in range(0, len(self.rows), LINES_PER_BLOCK):
                end = begin + LINES_PER_BLOCK
                lines = [
                    f"{name}{labels} {numbers[index]}\n"
                    for labels, (_, numbers) in zip(labelled[begin:end], self.rows[begin:end], strict=True)
                    if numbers[index] is not None
                ]
                if lines:
                    yield "".join([head, *lines]).encode()
                    head = ""


def escaped(value: str) -> str:
    """A label's value as the text format wants it.

    What clients call themselves may hold what a screen would obey, turn round or not show: that is shown as an escape.
    """
    if not value.isprintable():
        value = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in value)
    if "\\" in value or '"' in value:
        return value.replace("\\", "\\\\").replace('"', '\\"')
    return value


@dataclass(frozen=True, slots=True)
class OffLoop:
    """Families that need nothing of the loop: ``collect`` is called where the text is made."""

    collect: Callable[[], Iterable[Metric]]


MetricSource = Callable[[], Iterable[Metric | Rows | OffLoop | bytes | None]]


@dataclass(slots=True, eq=False)
class Exposition:
    """One page: its sources, in the order in which they were added."""

    sources: list[MetricSource] = field(default_factory=list)

    async def collect(self) -> list[Metric | Rows | OffLoop | bytes]:
        """All families, as they are now; the loop has a turn after each, and where a source yields None."""
        found: list[Metric | Rows | OffLoop | bytes] = []
        for source in list(self.sources):
            for family in source():
                if family is not None:
                    found.append(family)
                await asyncio.sleep(0)
        return found

    def collect_now(self) -> list[Metric | Rows | OffLoop | bytes]:
        """The same without a turn of the loop."""
        return [family for source in self.sources for family in source() if family is not None]


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> list[Metric]:
        return self._families


def exposition_text(families: Iterable[Metric | Rows | OffLoop | bytes]) -> bytes:
    """The text format of families; needs no loop, and any thread may call it."""
    from prometheus_client.exposition import generate_latest  # with it comes a whole web server

    families = list(families)
    elsewhere = [family for one in families if isinstance(one, OffLoop) for family in one.collect()]
    plain = _Collected([*(family for family in families if isinstance(family, Metric)), *elsewhere])
    blocks = [generate_latest(plain)]
    for family in families:
        if isinstance(family, Rows):
            blocks += family.blocks()
            while family.rows:
                del family.rows[-LINES_PER_BLOCK:]
    made = (family for family in families if isinstance(family, bytes))
    return b"".join([*blocks, *made])  # which lets other threads move


def by_slices(many: Iterable[T], size: int = SLICE) -> Iterator[list[T]]:
    """Lists of that many, as they were when the walk began: what is walked may change between two of them."""
    every = iter(list(many))
    while some := list(islice(every, size)):
        yield some


def in_weighed_slices(many: Iterable[T], weigh: Callable[[T], int], size: int = SLICE) -> Iterator[list[T]]:
    """The same, where some take more of the loop's time: lists that weigh that much at most, or of a single one."""
    some: list[T] = []
    weight = 0
    for one in list(many):
        more = weigh(one)
        if some and weight + more > size:
            yield some
            some, weight = [], 0
        some.append(one)
        weight += more
    if some:
        yield some
