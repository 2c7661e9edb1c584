"""Which log is cleaned next, and how far: decisions over values, as Kafka's LogCleanerManager makes them.

Offsets are record offsets, sizes bytes, times ms. A pass covers whole closed segments below the last stable offset,
where Kafka also takes the beginning of the segment that holds it: such a segment waits for the next pass here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

FOREVER_MS = 2**63 - 1
T = TypeVar("T")


class SegmentFigures(NamedTuple):
    """One closed segment: the offsets it may hold, its bytes, its largest and its first batch's timestamps.

    Timestamps that nothing asks for may be -1.
    """

    base_offset: int
    end_offset: int
    size: int
    largest_timestamp: int = -1
    first_timestamp: int = -1


class CleaningTerms(NamedTuple):
    """The topic's settings that decide when its logs are cleaned."""

    min_dirty_ratio: float = 0.5
    min_lag_ms: int = 0
    max_lag_ms: int = FOREVER_MS


class Cleanable(NamedTuple):
    """What a pass would find: it maps the keys in [``dirty_from``, ``end``) and rewrites everything below ``end``."""

    dirty_from: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    """By how much ``max.compaction.lag.ms`` is passed, also by records that no pass can reach yet; 0 if it is not."""

    @property
    def ratio(self) -> float:
        """Dirty bytes among all that could be cleaned."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def first_dirty_offset(checkpoint: int | None, log_start_offset: int, log_end_offset: int) -> int:
    """Where the keys begin that no pass has seen: the checkpoint, unless the log was cut or deleted past it."""
    if checkpoint is None or not log_start_offset <= checkpoint <= log_end_offset:
        return log_start_offset
    return checkpoint


def cleanable_part(
    closed: Sequence[SegmentFigures],
    first_dirty: int,
    stable_offset: int,
    terms: CleaningTerms,
    now_ms: int,
) -> Cleanable:
    """What of a log's closed segments, rising, a pass may cover now."""
    first_base = closed[0].base_offset if closed else first_dirty
    end = dirty_from = first_base
    clean_bytes = dirty_bytes = 0
    oldest, reached = FOREVER_MS, True
    for segment in closed:
        dirty = segment.end_offset > first_dirty
        if dirty and 0 < segment.first_timestamp < oldest:
            oldest = segment.first_timestamp  # also where an open transaction holds the pass back
        young = terms.min_lag_ms > 0 and segment.largest_timestamp > now_ms - terms.min_lag_ms
        reached = reached and segment.end_offset <= stable_offset and not (dirty and young)
        if not reached:
            continue
        end = segment.end_offset
        if dirty:
            dirty_bytes += segment.size
        else:
            clean_bytes += segment.size
            dirty_from = end
    dirty_from = max(dirty_from, min(first_dirty, end))
    overdue_ms = 0
    if terms.max_lag_ms < FOREVER_MS and oldest < FOREVER_MS:
        overdue_ms = max(0, now_ms - terms.max_lag_ms - oldest)
    return Cleanable(dirty_from, end, clean_bytes, dirty_bytes, overdue_ms)


def is_due(part: Cleanable, terms: CleaningTerms, *, forced: bool = False) -> bool:
    """Whether a pass is worth it: enough is dirty, records wait for too long, or it was asked for."""
    if not part.dirty_bytes:
        return False
    return forced or part.overdue_ms > 0 or part.ratio > terms.min_dirty_ratio


def dirtiest_first(candidates: Iterable[tuple[T, Cleanable]]) -> list[tuple[T, Cleanable]]:
    """Logs that are due, by falling dirty share; equals stay in their order."""
    return sorted(candidates, key=lambda candidate: candidate[1].ratio, reverse=True)


def roll_due(first_timestamp: int, now_ms: int, max_lag_ms: int) -> bool:
    """Whether an active segment must be closed, so that a pass can reach its first record in time."""
    return 0 < first_timestamp < now_ms - max_lag_ms
