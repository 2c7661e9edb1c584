"""Which records of a topic a page shows, and where the next page begins.

A page never hangs: what it scans is bounded in records, bytes and seconds, and it stops where the partitions ended when
it began. Where that is too little, it shows what it has, and its cursor goes on from there.
"""

from __future__ import annotations

import base64
import heapq
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from fleetlog.brokers.cli.topic_reader import COMMITTED, UNCOMMITTED, FetchedPart, PartitionBounds, StoredRecord

RECORDS_MAX: Final = 10_000
BYTES_MAX: Final = 20_000_000
SECONDS_MAX: Final = 10.0
FIRST_SPAN: Final = 16
"""Offsets of each partition that the first step back takes; each further one takes twice as many."""
CURSOR_MAX: Final = 40_000

Positions = dict[int, int]
Matches = Callable[[StoredRecord], bool]


class RecordSource(Protocol):
    """What records come from: a TopicReader, in short."""

    def fetch(
        self, positions: Mapping[int, int], isolation: int, records_max: int, bytes_max: int
    ) -> dict[int, FetchedPart]:
        """Records of partitions, from these offsets on."""
        ...  # pragma: no cover


@dataclass(slots=True)
class ScanBudget:
    """What one page may still scan."""

    records: int = RECORDS_MAX
    size: int = BYTES_MAX
    seconds: float = SECONDS_MAX
    now_s: Callable[[], float] = time.monotonic
    scanned: int = 0
    scanned_bytes: int = 0
    only_time: bool = False
    """The first step of a page is made whatever its bytes: otherwise large records would never be shown."""
    _begun_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._begun_s = self.now_s()

    def spend(self, part: FetchedPart) -> None:
        """Count what was scanned."""
        self.scanned += len(part.records)
        self.scanned_bytes += part.size

    @property
    def left(self) -> int:
        """Records that may still be scanned."""
        return max(self.records - self.scanned, 0)

    @property
    def left_bytes(self) -> int:
        """Bytes, inflated, that may still be scanned."""
        return max(self.size - self.scanned_bytes, 0)

    @property
    def exhausted(self) -> bool:
        """Whether the page must end."""
        if self.now_s() - self._begun_s >= self.seconds:
            return True
        return not self.only_time and (not self.left or not self.left_bytes)


class BrowsedPage(NamedTuple):
    """Records in the order shown, the offsets where the next page begins, and whether the budget ended this one.

    ``following`` is None where there is nothing more in this direction; ``reached`` is where the page ends.
    """

    records: list[StoredRecord]
    following: Positions | None
    cut_short: bool
    reached: Positions


class Browse:
    """One page of a topic. With ``everything`` records of aborted and open transactions and markers are shown, too."""

    def __init__(
        self,
        source: RecordSource,
        bounds: Mapping[int, PartitionBounds],
        *,
        count: int,
        matches: Matches,
        everything: bool = False,
        budget: ScanBudget | None = None,
    ) -> None:
        self._source, self.bounds, self._count = source, bounds, count
        self._matches, self._everything = matches, everything
        self.budget = budget or ScanBudget()

    def end(self, partition: int) -> int:
        """Where reading stops."""
        bounds = self.bounds[partition]
        return bounds.end if self._everything else bounds.stable

    def onward(self, start: Positions) -> BrowsedPage:
        """The records from these offsets on, merged by time."""
        stop = {p: self.end(p) for p in start if p in self.bounds}
        at = {p: min(max(start[p], self.bounds[p].first), stop[p]) for p in stop}
        records: dict[int, list[StoredRecord]] = {p: [] for p in at}
        self._scan(at, stop, records, lambda p: len(records[p]) >= self._count)
        merged = heapq.merge(*records.values(), key=lambda one: (one.timestamp_ms, one.partition, one.offset))
        shown = [record for record, _ in zip(merged, range(self._count), strict=False)]
        number = _count_by_partition(shown)
        following = {}
        for p, rows in records.items():
            taken = number.get(p, 0)
            following[p] = rows[taken].offset if taken < len(rows) else at[p]
        at_end = all(following[p] >= stop[p] for p in following)
        reached = {**start, **following}  # a partition whose leader is away is gone on with when it is back
        return BrowsedPage(shown, None if at_end else reached, self.budget.exhausted, reached)

    def newest(self, before: Positions | None = None) -> BrowsedPage:
        """The newest records below these offsets, the newest first."""
        stop = {
            p: min((before or {}).get(p, self.end(p)), self.end(p))
            for p in self.bounds
            if before is None or p in before
        }
        records: dict[int, list[StoredRecord]] = {p: [] for p in stop}
        low = dict(stop)
        span = max(1, min(self._count, FIRST_SPAN, RECORDS_MAX // max(len(stop), 1)))
        self.budget.only_time = True
        while not self.budget.exhausted:
            top, low = low, {p: max(low[p] - span, min(self.bounds[p].first, low[p])) for p in low}
            wider = {p for p in low if low[p] < top[p]}
            if not wider:
                break
            part: dict[int, list[StoredRecord]] = {p: [] for p in wider}
            at = {p: low[p] for p in wider}
            self._scan(at, {p: top[p] for p in wider}, part, lambda _: False)
            self.budget.only_time = False
            for p in wider:
                if at[p] < top[p]:  # the budget ended in the middle: the next page takes this step again
                    low[p] = top[p]
                else:
                    records[p] = part[p] + records[p]
            if sum(map(len, records.values())) >= self._count:
                break
            span *= 2
        downward = [list(reversed(rows)) for rows in records.values()]
        merged = heapq.merge(*downward, key=lambda one: (-one.timestamp_ms, -one.partition, -one.offset))
        shown = [record for record, _ in zip(merged, range(self._count), strict=False)]
        number = _count_by_partition(shown)
        following = {}
        for p, rows in records.items():
            taken = number.get(p, 0)
            following[p] = low[p] if taken == len(rows) else rows[len(rows) - taken].offset if taken else stop[p]
        at_start = all(following[p] <= self.bounds[p].first for p in following)
        return BrowsedPage(shown, None if at_start else following, self.budget.exhausted, following)

    def _scan(
        self, at: Positions, stop: Positions, found: dict[int, list[StoredRecord]], enough: Callable[[int], bool]
    ) -> None:
        """Advance ``at`` up to ``stop``, and collect what matches, until the budget ends or nothing comes."""
        while not self.budget.exhausted:
            due = [p for p in at if at[p] < stop[p] and not enough(p)]
            if not due:
                return
            due.sort(key=lambda p: len(found[p]))  # brokers fill answers in the order asked for
            moved = False
            for isolation in (COMMITTED, UNCOMMITTED):
                asked = {p: at[p] for p in due if (at[p] < self.bounds[p].stable) == (isolation == COMMITTED)}
                for p, part in self._fetched(asked, isolation).items():
                    self.budget.spend(part)
                    found[p] += [one for one in part.records if one.offset < stop[p] and self._shown(one)]
                    moved |= part.next_offset > at[p]
                    at[p] = max(at[p], min(part.next_offset, stop[p]))
            if not moved:
                return

    def _fetched(self, asked: Positions, isolation: int) -> dict[int, FetchedPart]:
        if not asked:
            return {}
        return self._source.fetch(asked, isolation, max(self.budget.left // len(asked), 1), self.budget.left_bytes)

    def _shown(self, record: StoredRecord) -> bool:
        if not self._everything and (record.marker or record.state not in {"", "committed"}):
            return False
        return self._matches(record)


def _count_by_partition(records: Iterable[StoredRecord]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for record in records:
        counts[record.partition] = counts.get(record.partition, 0) + 1
    return counts


def encode_cursor(positions: Positions) -> str:
    """Offsets by partition as text for an address."""
    text = ",".join(f"{partition}.{offset}" for partition, offset in sorted(positions.items()))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(text: str) -> Positions:
    """The reverse; raises ValueError."""
    if len(text) > CURSOR_MAX:
        raise ValueError("the cursor is too long")
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    positions = {}
    for one in raw.split(","):
        partition, _, offset = one.partition(".")
        if not (partition.isdecimal() and offset.isdecimal() and len(partition) < 10 and len(offset) < 20):
            raise ValueError("the cursor is malformed")
        positions[int(partition)] = int(offset)
    return positions
