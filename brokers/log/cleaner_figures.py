"""What the cleaner is set to, what it has done, and how far it is with a log: values."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class CleanerSettings(NamedTuple):
    """The broker's settings of the cleaner: sizes in bytes, times in ms."""

    dedupe_buffer_bytes: int = 32 * 1024 * 1024
    max_bytes_per_second: float = float("inf")
    backoff_ms: int = 15_000


class CleanerFigures:
    """What the cleaner has done since the start, and found when it looked last."""

    __slots__ = (
        "bytes_after", "bytes_before", "last_end_ms", "last_map_percent", "last_pass_keys", "last_pass_ms", "looked_ms",
        "max_dirty_ratio", "max_overdue_ms", "passes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.passes = 0
        self.bytes_before = 0
        self.bytes_after = 0
        self.last_pass_ms = 0
        self.last_pass_keys = 0
        self.last_map_percent = 0.0
        """How full the map of keys was, of what ``log.cleaner.dedupe.buffer.size`` allows."""
        self.last_end_ms = 0
        """When the last pass ended."""
        self.looked_ms = 0
        """When the cleaner took its last step."""
        self.max_dirty_ratio = 0.0
        """Of all logs, the largest dirty share."""
        self.max_overdue_ms = 0
        """By how much ``max.compaction.lag.ms`` is passed somewhere."""


class CleaningState(IntEnum):
    """Of one log."""

    IDLE = 0
    ASKED = 1
    CLEANING = 2
    STOPPED = 3
    OFF = 4


class CleaningReport(NamedTuple):
    """How far a log is clean: offsets of records, bytes."""

    state: CleaningState
    clean_offset: int
    end_offset: int
    size_bytes: int
    dirty_ratio: float
    trouble: str | None
    """Why it is not compacted."""
