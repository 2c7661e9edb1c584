"""The specification of the tally: what is counted of the batches that producers, consumers and followers exchange."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

__all__ = ["SIZE_CLASSES", "TIME_BOUNDS_S", "Tally", "Times", "count_fetched"]

TIME_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the classes of :class:`Times`, but for the last one, which has none."""

SIZE_CLASSES = 33
"""The bits that a batch's size may have: 0 to 32."""


class Tally:
    """Plain numbers, of one thread. Bytes are those of whole batches."""

    def __init__(self) -> None:
        self.records_in = self.bytes_in = self.batches_in = 0
        self.fetches = self.bytes_out = self.replicated_out = 0
        self._sizes = [0] * SIZE_CLASSES

    @property
    def sizes(self) -> list[int]:
        """The batches that were appended, by the number of bits of their size."""
        return list(self._sizes)

    def appended(self, batches: Iterable[Any]) -> None:
        """Count batches of producers that are in a log: each an ``Admitted`` (:mod:`_native.batch`)."""
        for batch in batches:
            self.appended_records(batch.last_offset + 1 - batch.first_offset, batch.size)

    def appended_records(self, records: int, size: int) -> None:
        """Count one batch of that many records and bytes."""
        self.records_in += records
        self.bytes_in += size
        self.batches_in += 1
        self._sizes[min(size.bit_length(), SIZE_CLASSES - 1)] += 1

    def fetched(self, size: int, follower: bool) -> None:
        """Count an answer with bytes of a partition, to a follower or a consumer; without bytes it is none."""
        if follower:
            self.replicated_out += size
        elif size:
            self.bytes_out += size
            self.fetches += 1

    def add(self, other: Tally) -> None:
        """Add what another one has counted."""
        self.records_in += other.records_in
        self.bytes_in += other.bytes_in
        self.batches_in += other.batches_in
        self.fetches += other.fetches
        self.bytes_out += other.bytes_out
        self.replicated_out += other.replicated_out
        self._sizes = [mine + theirs for mine, theirs in zip(self._sizes, other._sizes, strict=True)]


class Times:
    """Counts by how many seconds something took, and the seconds added up."""

    def __init__(self) -> None:
        self._counts = [0] * (len(TIME_BOUNDS_S) + 1)
        self.total = 0.0

    @property
    def counts(self) -> list[int]:
        """By class: as many as there are bounds, and one."""
        return list(self._counts)

    @counts.setter
    def counts(self, counts: list[int]) -> None:
        if len(counts) != len(self._counts):
            raise ValueError(f"{len(counts)} classes, there are {len(self._counts)}")
        self._counts = list(counts)

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count one, or several that took the same time."""
        self._counts[bisect_left(TIME_BOUNDS_S, seconds)] += count
        self.total += seconds * count

    def since(self, started: float, count: int = 1) -> None:
        """Count what began at that moment of ``time.perf_counter``, and ends now."""
        self.observe(time.perf_counter() - started, count)


def count_fetched(found: Iterable[tuple[Any, Any]], follower: bool) -> int:
    """Count what is answered to a fetch: pairs of a part and its outcome, whose first field is an error, the seventh
    its bytes. ``part.partition.figures`` is a :class:`Tally`, or there is none. Returns how many have an error.
    """
    failed = 0
    for part, outcome in found:
        if outcome[0]:
            failed += 1
        elif part.partition is not None and part.partition.figures is not None:
            part.partition.figures.fetched(outcome[6], follower)
    return failed
