"""Which positions of their sources a partition has accepted: the state of a topic that drops duplicates. Pure.

A record of such a topic names its source, its position in that source and an ordinal (one input may have several
outputs). A partition remembers, per source, the *set* of positions that it has accepted, not the highest one: a
producer that gives up a batch and goes on with later ones leaves a gap, and what is repeated into the gap must be
accepted.

A set is pages of :data:`PAGE_POSITIONS` bits above a floor. Everything at or above the floor is known; below it nothing
is, so a position there is refused, never dropped and never accepted. The floor passes only the lowest page of a source,
and only if nothing was accepted in it for the window, as of the source's own last record: a source that was idle for a
day still knows what it had accepted. Memory is bounded; see :meth:`PositionSets.make_room` for what goes first.
ADR 0021.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

PAGE_BITS = 12
PAGE_POSITIONS = 1 << PAGE_BITS
_MASK = PAGE_POSITIONS - 1
_PAGE_BYTES = PAGE_POSITIONS // 8
_EMPTY = bytes(_PAGE_BYTES)

PAGE_COST, ORDINAL_COST, SOURCE_COST = _PAGE_BYTES + 256, 96, 512
"""Bytes that a page, an ordinal above 0 and a source count, without the source's name; alike on all replicas."""
DEFAULT_WINDOW_MS, DEFAULT_MAX_BYTES = 1_800_000, 16 * 1024 * 1024
LEADERS_SHARE = 7 / 8
"""Of the bytes that a partition may use, what a leader fills; a follower then never lacks room for the same pages."""

Position = tuple[bytes, int, int]
"""Source id, position, ordinal."""


class BelowFloor(NamedTuple):
    """A record, by its index in the batch, of which nothing is known any more: whether it was accepted is unknown."""

    at: int
    position: Position
    floor: int


class NoRoom(NamedTuple):
    """Accepting the records would take the sets beyond their limit; both in bytes."""

    needed: int
    limit: int


class Sifted(NamedTuple):
    """Which records of a batch were accepted before, by index, and what the others are."""

    duplicates: list[int]
    fresh: list[Position]


class PositionPage:
    """Positions of one source that were accepted: a bit for ordinal 0, a set for others."""

    __slots__ = ("bits", "exact", "more", "touched_ms", "touched_offset")

    def __init__(self) -> None:
        self.bits = bytearray(_EMPTY)
        self.more: set[tuple[int, int]] = set()
        """(Place in the page, ordinal) where the ordinal is above 0."""
        self.touched_offset = -1
        """The last batch that set something here."""
        self.touched_ms = 0
        """By the source's clock, which never goes back."""
        self.exact = False
        """Whether ``touched_ms`` is when that batch was appended; else it may be much later: it was replayed."""

    def has(self, place: int, ordinal: int) -> bool:
        """Whether that position was accepted."""
        if ordinal:
            return (place, ordinal) in self.more
        return bool(self.bits[place >> 3] >> (place & 7) & 1)


class Source:
    """What one source has sent: its pages, those numbers as a heap, and the floor."""

    __slots__ = ("floor", "last_ms", "last_offset", "numbers", "pages")

    def __init__(self, floor: int = 0, last_ms: int = 0, last_offset: int = -1) -> None:
        self.floor = floor
        self.last_ms = last_ms
        self.last_offset = last_offset
        self.pages: dict[int, PositionPage] = {}
        self.numbers: list[int] = []

    def add(self, number: int) -> PositionPage:
        """A page that was not there."""
        page = self.pages[number] = PositionPage()
        heapq.heappush(self.numbers, number)
        return page

    def drop_lowest(self) -> int:
        """Forget the lowest page; the floor passes it. Returns the bytes that this gives back."""
        number = heapq.heappop(self.numbers)
        page = self.pages.pop(number)
        self.floor = (number + 1) << PAGE_BITS
        return PAGE_COST + ORDINAL_COST * len(page.more)


_NO_SOURCE = Source()


class PositionSets:
    """The accepted positions of one partition. ``window_ms`` and ``max_bytes`` are the topic's settings."""

    __slots__ = ("cost", "dropped", "max_bytes", "refused", "sources", "window_ms")

    def __init__(self, *, window_ms: int, max_bytes: int) -> None:
        self.window_ms = window_ms
        self.max_bytes = max_bytes
        self.sources: dict[bytes, Source] = {}
        self.cost = 0
        """Bytes in use, as counted by :data:`PAGE_COST` and its like."""
        self.dropped = 0
        """Records that were dropped as duplicates here, as the leader."""
        self.refused = 0
        """Batches that were refused for want of room, or for a position below the floor."""

    # ---- as the leader

    def sift(self, positions: Sequence[Position], now_ms: int) -> Sifted | BelowFloor | NoRoom:
        """Tell the duplicates of a batch, also of each other, from the rest. What is accepted changes nothing yet."""
        duplicates: list[int] = []
        fresh: dict[Position, None] = {}
        new_pages: set[tuple[bytes, int]] = set()
        ordinals = 0
        name: bytes | None = None
        pages: dict[int, PositionPage] = {}
        floor = 0
        for index, one in enumerate(positions):
            source, position, ordinal = one
            if source != name:
                name, known = source, self.sources.get(source)
                pages, floor = ({}, 0) if known is None else (known.pages, known.floor)
            if position < floor:
                self.refused += 1
                return BelowFloor(index, one, floor)
            page = pages.get(position >> PAGE_BITS)
            if one in fresh or (page is not None and page.has(position & _MASK, ordinal)):
                duplicates.append(index)
                continue
            fresh[one] = None
            if page is None:
                new_pages.add((source, position >> PAGE_BITS))
            if ordinal:
                ordinals += 1
        needed = len(new_pages) * PAGE_COST + ordinals * ORDINAL_COST
        for source in {source for source, _ in new_pages}:
            if source not in self.sources:
                needed += SOURCE_COST + len(source)
        limit = int(self.max_bytes * LEADERS_SHARE)
        if needed and self.cost + needed > limit:
            using = {source for source, _, _ in fresh}
            self.make_room(limit - needed, now_ms, using=using)
            if self.cost + needed > limit:
                self.refused += 1
                return NoRoom(self.cost + needed, limit)
            return self.sift(positions, now_ms)  # a page of these sources may have gone
        return Sifted(duplicates, list(fresh))

    # ---- of what is in the log

    def accept(self, positions: Iterable[Position], offset: int, now_ms: int, *, exact: bool) -> None:
        """These are in the log, in the batch at ``offset``; ``exact`` if that was appended now, not earlier."""
        source, name = _NO_SOURCE, b""
        for source_id, position, ordinal in positions:
            if source is _NO_SOURCE or source_id != name:
                self._expire(source)
                name, source = source_id, self._source(source_id)
                source.last_offset, source.last_ms = offset, max(source.last_ms, now_ms)
            number = position >> PAGE_BITS
            if position < source.floor:
                continue  # forgotten for want of room, or by a leader whose log this is
            page = source.pages.get(number)
            if page is None:
                page = source.add(number)
                self.cost += PAGE_COST
            place = position & _MASK
            if not ordinal:
                page.bits[place >> 3] |= 1 << (place & 7)
            elif (place, ordinal) not in page.more:
                page.more.add((place, ordinal))
                self.cost += ORDINAL_COST
            page.touched_offset, page.touched_ms, page.exact = offset, source.last_ms, exact
        self._expire(source)
        if self.cost > self.max_bytes:
            self.make_room(int(self.max_bytes * LEADERS_SHARE), now_ms, pressed=True)

    def _source(self, source_id: bytes) -> Source:
        source = self.sources.get(source_id)
        if source is None:
            source = self.sources[source_id] = Source()
            self.cost += SOURCE_COST + len(source_id)
        return source

    def _expire(self, source: Source) -> None:
        while source.numbers and source.pages[source.numbers[0]].touched_ms + self.window_ms < source.last_ms:
            self.cost -= source.drop_lowest()

    def make_room(self, wanted: int, now_ms: int, *, pressed: bool = False, using: Iterable[bytes] = ()) -> None:
        """Forget what was not touched for the longest, until ``wanted`` bytes are in use.

        What may go: pages without a new record for the window; pages of which nothing more is known than that they
        were replayed; with ``pressed`` any page. Then sources that are left without pages and were idle for the window,
        but those in ``using``. A page leaves the floor behind it: its positions are refused from then on. Only with its
        floor, which goes last, a source is forgotten as if it had never sent anything.
        """
        for source in self.sources.values():
            self._expire(source)
        waiting = [
            (source.pages[source.numbers[0]].touched_offset, source_id)
            for source_id, source in self.sources.items()
            if source.numbers
        ]
        heapq.heapify(waiting)
        while self.cost > wanted and waiting:
            _, source_id = heapq.heappop(waiting)
            source = self.sources[source_id]
            page = source.pages[source.numbers[0]]
            if not pressed and page.exact and page.touched_ms + self.window_ms >= now_ms:
                continue
            self.cost -= source.drop_lowest()
            if source.numbers:
                heapq.heappush(waiting, (source.pages[source.numbers[0]].touched_offset, source_id))
        if self.cost <= wanted:
            return
        kept = set(using)
        idle = [
            (source.last_offset, source_id)
            for source_id, source in self.sources.items()
            if not source.numbers and source_id not in kept and (pressed or source.last_ms + self.window_ms < now_ms)
        ]
        for _, source_id in sorted(idle):
            if self.cost <= wanted:
                return
            del self.sources[source_id]
            self.cost -= SOURCE_COST + len(source_id)

    def clear(self) -> None:
        """Forget everything."""
        self.sources.clear()
        self.cost = 0
