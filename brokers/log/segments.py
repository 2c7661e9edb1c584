"""The segments of one log, in order of their base offsets."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence

from fleetlog.brokers.log.segment import Segment


class Segments:
    """A sorted list; never empty once the log is open."""

    __slots__ = ("_bases", "_items", "active")

    active: Segment
    """The segment that is appended to: the last one."""

    def __init__(self) -> None:
        self._items: list[Segment] = []
        self._bases: list[int] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Segment]:
        return iter(list(self._items))

    def __getitem__(self, index: int) -> Segment:
        return self._items[index]

    def add(self, segment: Segment) -> None:
        """Put a segment in its place; its base offset must be new."""
        assert segment.base_offset not in self._bases[-1:], f"two segments at {segment.base_offset}"
        insort(self._items, segment, key=lambda item: item.base_offset)
        insort(self._bases, segment.base_offset)
        self.active = self._items[-1]

    def remove(self, segment: Segment) -> None:
        """Take a segment out."""
        index = self._items.index(segment)
        del self._items[index]
        del self._bases[index]
        if self._items:
            self.active = self._items[-1]

    @property
    def first(self) -> Segment:
        """The oldest segment."""
        return self._items[0]

    def floor_index(self, offset: int) -> int:
        """Index of the segment that holds ``offset`` if any does; the first one for offsets below all."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def after(self, offset: int) -> tuple[Sequence[Segment], int]:
        """All segments, and the index of the one that holds ``offset`` if any does: good until the next change."""
        index = bisect_right(self._bases, offset)
        return self._items, index - 1 if index else 0

    def floor(self, offset: int) -> Segment:
        """The segment that holds ``offset`` if any does."""
        return self._items[self.floor_index(offset)]

    def from_offset(self, offset: int) -> list[Segment]:
        """The segment that holds ``offset`` and all after it."""
        return self._items[self.floor_index(offset) :]

    def changed_since(self, recovery_point: int) -> list[Segment]:
        """What a flush must cover.

        Also a segment that ends at the recovery point: a cut may have ended it there, not yet durably.
        """
        return self._items[self.floor_index(recovery_point - 1) :]

    def end_of(self, index: int, log_end_offset: int) -> int:
        """The first offset beyond the segment at ``index``."""
        return self._bases[index + 1] if index + 1 < len(self._bases) else log_end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all logs."""
        return sum(segment.size for segment in self._items)
