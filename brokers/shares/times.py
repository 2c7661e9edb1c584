"""From when on records that wait may be given out, as they say themselves, by the wall clock. Pure.

Of the times those that are soonest are known, as many as there is room for; and of the others when the soonest comes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

MAX_TIMES = 100_000
"""The most that are known of a share partition: some 130 bytes each."""
FAR = 1 << 62
CROWDED_MS = 1_000
"""So much later a record is given out whose time has come, while its window has very many runs."""


class RecordTimes(NamedTuple):
    """What time it is, and from when on records that were read may be given out, in ms of the wall clock.

    ``of``: offset and time, in order of offsets, of the records that say one.
    """

    wall_ms: int = 0
    of: Sequence[tuple[int, int]] = ()

    def waits(self, due_ms: int, most_ms: int) -> bool:
        """Whether a record with this time waits for it: that is to come, and at most so far ahead."""
        return self.wall_ms < due_ms <= self.wall_ms + most_ms


NO_TIMES = RecordTimes()


class KnownTimes:
    """See the module. Some may be of records that do not wait any more."""

    def __init__(self) -> None:
        self._soonest: list[tuple[int, int]] = []
        """A heap of times and offsets."""
        self.unknown_ms: int | None = None
        """When the soonest comes of those that had no room; None if all are known."""

    @property
    def next_ms(self) -> int | None:
        """When the next of the known ones comes; None if there is none."""
        return self._soonest[0][0] if self._soonest else None

    def remember(self, offset: int, due_ms: int, most: int) -> None:
        """Another one; of more than ``most`` the later half is forgotten."""
        heappush(self._soonest, (due_ms, offset))
        if len(self._soonest) > most:
            self._soonest.sort()
            kept = most // 2
            soonest_ms = self._soonest[kept][0]
            self.unknown_ms = soonest_ms if self.unknown_ms is None else min(self.unknown_ms, soonest_ms)
            del self._soonest[kept:]

    def take(self, wall_ms: int) -> list[int]:
        """The offsets, in order, whose times have come; they are not known any more."""
        ready: list[int] = []
        while self._soonest and self._soonest[0][0] <= wall_ms:
            ready.append(heappop(self._soonest)[1])
        return sorted(ready)


def in_runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of offsets, in order, that follow each other."""
    first, last = 0, -1
    for offset in offsets:
        if offset != last + 1 and first <= last:
            yield first, last
        if offset != last + 1 or first > last:
            first = offset
        last = offset
    if first <= last:
        yield first, last


def piece_at(pieces: Sequence[tuple[int, int]], offset: int) -> tuple[bool, int]:
    """Whether one of the pieces (first and last offset, in order) has an offset; until which (inclusive) that is so."""
    index = bisect_left(pieces, offset, key=_last)
    if index == len(pieces):
        return False, FAR
    first, last = pieces[index]
    return (True, last) if first <= offset else (False, first - 1)


def _last(piece: tuple[int, int]) -> int:
    return piece[1]
