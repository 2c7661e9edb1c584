"""Which positions of their sources a partition has accepted: the state of a topic that drops duplicates. Pure.

A record of such a topic names its source, its position in that source and an ordinal (one input may have several
outputs). A partition remembers, per source, the *set* of positions that it has accepted, not the highest one: a
producer that gives up a batch and goes on with later ones leaves a gap, and what is repeated into the gap must be
accepted.

A set is pages of :data:`PAGE_POSITIONS` bits and a floor. Everything at or above the floor is known; below it only what
a page there has, as its leader took it after the floor had passed here: any other position there is refused, never
dropped and never accepted. The floor passes only the lowest page of a source,
and only if nothing was accepted in it for the window, as of the source's own last record: a source that was idle for a
day still knows what it had accepted. Replayed batches age nothing: when they were appended is not known. Memory is
bounded: what has no room leaves its floor behind it, also a source of which nothing else is left. ADR 0021.

The accepted positions of a partition as bytes: a part of its producer snapshot, and the file that says that it has
such a part.

The part stands between the entries, which Kafka reads, and our tail of remembered batches; the snapshot's checksum
covers it (:mod:`brokers.log.producers.snapshots` says why Kafka passes over both).
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from fleetlog._native.compact import PAGE_BITS, PagePositions, Position

PAGE_POSITIONS = 1 << PAGE_BITS
_MASK = PAGE_POSITIONS - 1

PAGE_COST, ORDINAL_COST, SOURCE_COST, FLOOR_COST = PAGE_POSITIONS // 8 + 256, 96, 512, 160
"""Bytes that a page, an ordinal above 0, a source with pages, and one of which only the floor is left count; without
the source's name; alike on all replicas."""
DEFAULT_WINDOW_MS, DEFAULT_MAX_BYTES = 1_800_000, 16 * 1024 * 1024
LEADERS_SHARE = 7 / 8
"""Of the bytes that a partition may use, what a leader fills; a follower then never lacks room for the same pages."""
_FREED_SHARE = 15 / 16
"""Of a leader's share, what is in use after pages went: not each batch looks for the next ones."""


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
    going: tuple[bytes, ...] = ()
    """Sources whose lowest pages have to go for it, once for each: see :meth:`PositionSets.forget`."""


class PositionPage:
    """Positions of one source that were accepted: a bit for ordinal 0, a set for others."""

    __slots__ = ("bits", "exact", "more", "touched_ms", "touched_offset")

    def __init__(self) -> None:
        self.bits = 0
        self.more: set[tuple[int, int]] = set()
        """(Place in the page, ordinal) where the ordinal is above 0."""
        self.touched_offset = -1
        """The last batch that set something here."""
        self.touched_ms = 0
        """When it was, or a duplicate was dropped here as the leader; by the source's clock, which never goes back."""
        self.exact = False
        """Whether ``touched_ms`` is that time; else it may be much later: the batch was replayed."""

    def has(self, place: int, ordinal: int) -> bool:
        """Whether that position was accepted."""
        if ordinal:
            return (place, ordinal) in self.more
        return bool(self.bits >> place & 1)

    def has_any(self, positions: PagePositions) -> bool:
        """Whether one of those of this page was accepted."""
        return bool(self.bits & positions.bits) or not self.more.isdisjoint(positions.more)


class PositionSource:
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
        self.floor = max(self.floor, (number + 1) << PAGE_BITS)
        return _cost_of(self.pages.pop(number))


def _cost_of(page: PositionPage) -> int:
    return PAGE_COST + ORDINAL_COST * len(page.more)


class _Vain(NamedTuple):
    """A search for room that found ``found`` bytes; while the rest stands, another one finds no more."""

    cost: int
    max_bytes: int
    window_ms: int
    until_ms: float
    found: int


class PositionSets:
    """The accepted positions of one partition. ``window_ms`` and ``max_bytes`` are the topic's settings."""

    __slots__ = (
        "_vain",
        "cost",
        "dropped",
        "floors",
        "known",
        "max_bytes",
        "refused",
        "sources",
        "unread",
        "window_ms",
    )

    def __init__(self, *, window_ms: int, max_bytes: int) -> None:
        self.window_ms = window_ms
        self.max_bytes = max_bytes
        self.sources: dict[bytes, PositionSource] = {}
        self.floors: dict[bytes, int] = {}
        """Of sources of which all pages had to go. They stay: what such a source repeats must not be accepted."""
        self.known = True
        """Whether what was accepted before the log's first record is among it. Else the log drops and takes nothing."""
        self.unread = 0
        """The offset behind the last damaged batch, if that is not known either."""
        self.cost = 0
        """Bytes in use, as counted by :data:`PAGE_COST` and its like."""
        self._vain: _Vain | None = None
        self.dropped = 0
        """Records that were dropped as duplicates here, as the leader."""
        self.refused = 0
        """Batches that were refused for want of room, or for a position below the floor."""

    # ---- as the leader

    def takes(self, batches: Iterable[list[PagePositions]], now_ms: int) -> int:
        """Of how many batches, from the first on, everything is new, also of each other, and has room as it is.

        One behind which a floor will move is the last. What :meth:`sift` says of the others is not known by that.
        """
        taken = 0
        if not self.known:
            return taken
        seen: dict[tuple[bytes, int], PagePositions] = {}
        new_sources, needed = set[bytes](), 0
        for batch in batches:
            for page in batch:
                source_id, number, bits, more = page
                source = self.sources.get(source_id)
                known = None if source is None else source.pages.get(number)
                earlier = seen.get((source_id, number))
                if number << PAGE_BITS < (self.floors.get(source_id, 0) if source is None else source.floor):
                    return taken
                if (known is not None and known.has_any(page)) or (taken and self._gets_old(source, now_ms)):
                    return taken
                if earlier is None:
                    needed += PAGE_COST if known is None else 0
                    seen[source_id, number] = page
                elif earlier.bits & bits or not earlier.more.isdisjoint(more):
                    return taken
                else:
                    seen[source_id, number] = PagePositions(source_id, number, earlier.bits | bits, earlier.more | more)
                needed += ORDINAL_COST * len(more)
                if source is None and source_id not in new_sources:
                    new_sources.add(source_id)
                    needed += self._cost_of_source(source_id)
            if needed and self.cost + needed > self._limit:
                return taken
            taken += 1
        return taken

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
                pages, floor = ({}, self.floors.get(source, 0)) if known is None else (known.pages, known.floor)
            page = pages.get(position >> PAGE_BITS)
            if one in fresh or (page is not None and page.has(position & _MASK, ordinal)):
                duplicates.append(index)
                continue
            if position < floor:
                self.refused += 1
                return BelowFloor(index, one, floor)
            fresh[one] = None
            if page is None:
                new_pages.add((source, position >> PAGE_BITS))
            if ordinal:
                ordinals += 1
        needed = len(new_pages) * PAGE_COST + ordinals * ORDINAL_COST
        new_sources = {source for source, _ in new_pages if source not in self.sources}
        needed += sum(map(self._cost_of_source, new_sources))
        if not needed or self.cost + needed <= self._limit:
            return Sifted(duplicates, list(fresh))
        going = self._find_room(needed, positions, now_ms)
        if going is None:
            self.refused += 1
            return NoRoom(self.cost + needed, self._limit)
        return Sifted(duplicates, list(fresh), tuple(going))

    def _cost_of_source(self, source_id: bytes) -> int:
        """What a source takes that has no pages yet; its floor may be known."""
        return SOURCE_COST + (-FLOOR_COST if source_id in self.floors else len(source_id))

    @property
    def _limit(self) -> int:
        return int(self.max_bytes * LEADERS_SHARE)

    def touch(self, pages: Iterable[tuple[bytes, int]], now_ms: int) -> None:
        """Duplicates were dropped in these pages (source and number) of a batch that is in the log: a writer repeats.

        So what it may repeat once more does not get old by what it writes next. Followers do not know of it.
        """
        for source_id, number in pages:
            source = self.sources.get(source_id)
            page = None if source is None else source.pages.get(number)
            if source is not None and page is not None:
                page.touched_ms, page.exact = max(source.last_ms, page.touched_ms, now_ms), True

    # ---- of what is in the log

    def accept(self, pages: Iterable[PagePositions], offset: int, now_ms: int, *, exact: bool) -> None:
        """These are in the log, in the batch at ``offset``; ``exact`` if that was appended now, not earlier.

        Only then do pages get old by it: between batches that are replayed at once an hour may have passed, or none.
        Their leader may have known a page that had to go here: what it took there is known, though below the floor.
        """
        source: PositionSource | None = None
        name, reached = b"", list[PositionSource]()
        for source_id, number, bits, more in pages:
            if source is None or source_id != name:
                name, source = source_id, self._source(source_id)
                source.last_offset, source.last_ms = offset, max(source.last_ms, now_ms)
                reached.append(source)
            page = source.pages.get(number)
            if page is None:
                page = source.add(number)
                self.cost += PAGE_COST
            page.bits |= bits
            if more:
                self.cost += ORDINAL_COST * len(more - page.more)
                page.more |= more
            page.touched_offset = max(page.touched_offset, offset)
            page.touched_ms, page.exact = source.last_ms, exact
        if exact:
            for one in reached:
                self._expire(one)
        else:
            self._vain = None  # a page of which only this is known may go
        if self.cost > self.max_bytes:
            self.forget(self._find_room(0, (), now_ms, pressed=True) or ())

    def _source(self, source_id: bytes) -> PositionSource:
        source = self.sources.get(source_id)
        if source is None:
            self.cost += self._cost_of_source(source_id)
            source = self.sources[source_id] = PositionSource(self.floors.pop(source_id, 0))
        return source

    def _expire(self, source: PositionSource) -> None:
        while source.numbers and source.pages[source.numbers[0]].touched_ms + self.window_ms < source.last_ms:
            self.cost -= source.drop_lowest()

    def _gets_old(self, source: PositionSource | None, now_ms: int) -> bool:
        """Whether the source's lowest page may go when the source writes again."""
        if source is None or not source.numbers:
            return False
        return source.pages[source.numbers[0]].touched_ms + self.window_ms < max(source.last_ms, now_ms)

    # ---- memory

    def forget(self, going: Iterable[bytes], writing: Container[bytes] = ()) -> None:
        """Drop the lowest page of each of these sources, so that there is room for a batch that is in the log now.

        Floors move only then: of a batch that the disk refused no follower hears. ``writing``: the batch's sources.
        """
        for source_id in going:
            source = self.sources[source_id]
            self.cost -= source.drop_lowest()
            if not source.numbers and source_id not in writing:
                self._keep_floor(source_id)

    def _find_room(
        self, needed: int, positions: Sequence[Position], now_ms: int, *, pressed: bool = False
    ) -> list[bytes] | None:
        """The pages that were not touched for the longest, so that a leader has room for ``needed`` bytes.

        What may go: pages without a new record for the window; pages of which nothing more is known than that they
        were replayed; with ``pressed`` any page. None that ``positions``, the batch that needs the room, reaches. If
        that is not enough nothing goes, unless ``pressed``: None.
        """
        for source_id in [source_id for source_id, source in self.sources.items() if not source.numbers]:
            self._keep_floor(source_id)
        too_much = self.cost + needed - self._limit
        vain = self._vain
        same = vain is not None and not pressed and vain[:3] == (self.cost, self.max_bytes, self.window_ms)
        if vain is not None and same and now_ms < vain.until_ms and vain.found < too_much:
            return None
        reached: dict[bytes, int] = {}
        for source_id, position, _ in positions:
            number = position >> PAGE_BITS
            reached[source_id] = min(number, reached.get(source_id, number))
        enough = too_much if pressed else self.cost + needed - int(self._limit * _FREED_SHARE)
        going, found, until_ms = self._going(enough, reached, now_ms, pressed=pressed)
        if found < too_much and not pressed:
            self._vain = _Vain(self.cost, self.max_bytes, self.window_ms, until_ms, found)
            return None
        return going

    def _going(
        self, enough: int, reached: Mapping[bytes, int], now_ms: int, *, pressed: bool
    ) -> tuple[list[bytes], int, float]:
        """Sources whose lowest pages go, once for each; what that gives back; and until when no other page may go."""
        waiting: list[tuple[int, bytes, int]] = []
        until_ms = float("inf")

        def consider(source_id: bytes, at: int) -> None:
            nonlocal until_ms
            source = self.sources[source_id]
            page = source.pages[source.numbers[at]]
            if source.numbers[at] >= reached.get(source_id, 1 << 63):
                until_ms = now_ms  # another batch may find it
            elif pressed or not page.exact or page.touched_ms + self.window_ms < now_ms:
                heapq.heappush(waiting, (page.touched_offset, source_id, at))
            else:
                until_ms = min(until_ms, page.touched_ms + self.window_ms + 1)

        for source_id, source in self.sources.items():
            if source.numbers:
                consider(source_id, 0)
        going, found = list[bytes](), 0
        while found < enough and waiting:
            _, source_id, at = heapq.heappop(waiting)
            source = self.sources[source_id]
            if not at:
                source.numbers.sort()  # is a heap, too
            going.append(source_id)
            found += _cost_of(source.pages[source.numbers[at]])
            if at + 1 < len(source.numbers):
                consider(source_id, at + 1)
            elif source_id not in reached:
                found += SOURCE_COST - FLOOR_COST
        return going, found, until_ms

    def _keep_floor(self, source_id: bytes) -> None:
        """Of a source without pages only the floor is known: it takes less then."""
        self.floors[source_id] = self.sources.pop(source_id).floor
        self.cost += FLOOR_COST - SOURCE_COST

    def like(self) -> PositionSets:
        """Empty ones with the same settings."""
        return PositionSets(window_ms=self.window_ms, max_bytes=self.max_bytes)

    def merge(self, other: PositionSets) -> None:
        """Know also what the other ones do: of each source the higher floor, and the pages of both."""
        for source_id, floor in other.floors.items():
            self._raise_floor(source_id, floor)
        for source_id, theirs in other.sources.items():
            source = self._raise_floor(source_id, theirs.floor)
            source.last_ms = max(source.last_ms, theirs.last_ms)
            source.last_offset = max(source.last_offset, theirs.last_offset)
            for number, page in theirs.pages.items():
                mine = source.pages.get(number)
                if mine is None:
                    mine = source.add(number)
                    self.cost += PAGE_COST
                self.cost += ORDINAL_COST * len(page.more - mine.more)
                mine.bits |= page.bits
                mine.more |= page.more
                if page.touched_offset >= mine.touched_offset:
                    mine.touched_offset, mine.exact = page.touched_offset, page.exact
                mine.touched_ms = max(mine.touched_ms, page.touched_ms)
        for source_id in [source_id for source_id, source in self.sources.items() if not source.numbers]:
            self._keep_floor(source_id)
        self._vain = None
        if self.cost > self.max_bytes:
            self.forget(self._find_room(0, (), 0, pressed=True) or ())

    def _raise_floor(self, source_id: bytes, floor: int) -> PositionSource:
        source = self._source(source_id)
        source.floor = max(source.floor, floor)
        return source

    def lacks(self, before: int) -> None:
        """What was accepted before that offset is not all known: damage took it."""
        self.known = False
        self.unread = max(self.unread, before)

    def clear(self) -> None:
        """Forget everything."""
        self.sources.clear()
        self.floors.clear()
        self.cost = 0
        self.known = True
        self.unread = 0
        self._vain = None


DEDUP_FILE = "deduplicated"
"""In a partition's directory: its log drops duplicates, and must know so before its topic's settings are known."""

_MAGIC = b"flp1"
_HEAD = struct.Struct(">4sI")
_COUNT = struct.Struct(">I")
_SOURCE = struct.Struct(">BqqqI")
_FLOOR = struct.Struct(">Bq")
_PAGE = struct.Struct(">qqqBHI")
_PLACE = struct.Struct(">H")
_MORE = struct.Struct(">Hi")
_RAW = 0xFFFF
_PAGE_BYTES = 1 << PAGE_BITS >> 3
_LISTED = 8
"""Up to so many positions of a page are listed; more are written as the page's bits, which is quicker."""


def encode_positions(sets: PositionSets) -> bytes:
    """The part of a snapshot. A source with pages below its floor has an entry with these before its own.

    Older versions take the last entry of a source: a page below its floor, if it went, would take the floor down there.
    """
    out, entries = [b""], 0
    for source_id, source in sets.sources.items():
        entries_of = [source.pages]
        if source.numbers and source.numbers[0] << PAGE_BITS < source.floor:
            below = {number: page for number, page in source.pages.items() if number << PAGE_BITS < source.floor}
            entries_of = [below, {number: page for number, page in source.pages.items() if number not in below}]
        for pages in entries_of:
            entries += 1
            out.append(
                _SOURCE.pack(len(source_id), source.floor, source.last_ms, source.last_offset, len(pages)) + source_id
            )
            for number, page in pages.items():
                _add_page(out, number, page)
    out[0] = _COUNT.pack(entries)
    if sets.floors:
        out.append(_COUNT.pack(len(sets.floors)))
        out += [_FLOOR.pack(len(source_id), floor) + source_id for source_id, floor in sets.floors.items()]
    body = b"".join(out)
    return _HEAD.pack(_MAGIC, len(body)) + body


def _add_page(out: list[bytes], number: int, page: PositionPage) -> None:
    whole = page.bits
    count = whole.bit_count()
    listed = count <= _LISTED
    out.append(
        _PAGE.pack(number, page.touched_offset, page.touched_ms, page.exact, count if listed else _RAW, len(page.more))
    )
    if not listed:
        out.append(whole.to_bytes(_PAGE_BYTES, "little"))
    while listed and whole:
        lowest = whole & -whole
        out.append(_PLACE.pack(lowest.bit_length() - 1))
        whole ^= lowest
    out += [_MORE.pack(place, ordinal) for place, ordinal in sorted(page.more)]


def split_positions(data: memoryview) -> tuple[memoryview | None, memoryview]:
    """The part's body, None if there is none, and what follows it. ValueError for half of one."""
    if len(data) < _HEAD.size or data[: len(_MAGIC)] != _MAGIC:
        return None, data
    _, size = _HEAD.unpack_from(data)
    end = _HEAD.size + size
    if end > len(data):
        raise ValueError(f"the accepted positions need {end} bytes, there are {len(data)}")
    return data[_HEAD.size : end], data[end:]


def load_positions(sets: PositionSets, body: memoryview) -> None:
    """Replace what the sets hold by a part's. ValueError if it is damaged."""
    sets.clear()
    try:
        end = _load(sets, body)
    except (struct.error, IndexError) as wrong:
        sets.clear()
        raise ValueError(f"the accepted positions are cut off: {wrong}") from wrong
    if end != len(body):
        sets.clear()
        raise ValueError(f"the accepted positions end at {end} of {len(body)} bytes")


def _load(sets: PositionSets, body: memoryview) -> int:
    (sources,) = _COUNT.unpack_from(body)
    at = _COUNT.size
    for _ in range(sources):
        length, floor, last_ms, last_offset, pages = _SOURCE.unpack_from(body, at)
        at += _SOURCE.size
        source_id = bytes(body[at : at + length])
        at += length
        source = sets.sources.get(source_id)
        if source is None:
            source = sets.sources[source_id] = PositionSource(floor, last_ms, last_offset)
            sets.cost += SOURCE_COST + length
        for _ in range(pages):
            number, offset, touched_ms, exact, count, more = _PAGE.unpack_from(body, at)
            at += _PAGE.size
            page = source.add(number)
            page.touched_offset, page.touched_ms, page.exact = offset, touched_ms, bool(exact)
            if count == _RAW:
                page.bits = _raw(body, at)
                at += _PAGE_BYTES
            else:
                for (place,) in _PLACE.iter_unpack(body[at : at + count * _PLACE.size]):
                    page.bits |= 1 << place
                at += count * _PLACE.size
            page.more = set(_MORE.iter_unpack(body[at : at + more * _MORE.size]))
            at += more * _MORE.size
            sets.cost += PAGE_COST + ORDINAL_COST * len(page.more)
    return at if at == len(body) else _load_floors(sets, body, at)


def _load_floors(sets: PositionSets, body: memoryview, at: int) -> int:
    (count,) = _COUNT.unpack_from(body, at)
    at += _COUNT.size
    for _ in range(count):
        length, floor = _FLOOR.unpack_from(body, at)
        at += _FLOOR.size
        sets.floors[bytes(body[at : at + length])] = floor
        sets.cost += FLOOR_COST + length
        at += length
    return at


def _raw(body: memoryview, at: int) -> int:
    bits = body[at : at + _PAGE_BYTES]
    if len(bits) != _PAGE_BYTES:
        raise IndexError(f"half a page at {at}")
    return int.from_bytes(bits, "little")


def encode_dedup_file(sets: PositionSets) -> bytes:
    """What the file of a log that drops duplicates holds: the settings that count until the topic's are known."""
    return f"0\n{sets.window_ms}\n{sets.max_bytes}\n".encode()


def decode_dedup_file(data: bytes) -> PositionSets:
    """Empty sets with the file's settings; of a damaged file with such as forget nothing by time."""
    fields = data.split()
    if len(fields) == 3 and fields[0] == b"0" and fields[1].isdigit() and fields[2].isdigit():
        return PositionSets(window_ms=int(fields[1]), max_bytes=int(fields[2]))
    return PositionSets(window_ms=2**62, max_bytes=DEFAULT_MAX_BYTES)
