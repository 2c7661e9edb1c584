"""How often the loop looks after a pass of compaction: at once while there is work, at a small share of its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from fleetlog.brokers.log.cleaner import BUSY_LOOP_MS

if TYPE_CHECKING:
    from fleetlog.brokers.log.cleaner import Cleaner
    from fleetlog.brokers.model import Clock

SHORTEST_MS = 5.0
LONGEST_MS = 250.0
_SHARE = 5
"""Of the loop's time, a pass gets one part in so many at most: swaps are renames and an fsync."""
_LATE_FACTOR = 10
SLICE_MS = 50.0
"""The longest wait between two slices of work: beside a loop that is always late, ``MIN_STEP_BYTES`` in a second."""


class CleaningPace:
    """The time until a pass is continued next. Times are in ms."""

    __slots__ = ("wait_ms",)

    def __init__(self) -> None:
        self.wait_ms = SHORTEST_MS

    def continued(self, *, moved: bool, took_ms: float, late_ms: float) -> None:
        """A pass was continued: whether that was of use, how long the loop stood still for it, how late it was."""
        wait_ms = SHORTEST_MS if moved else min(SLICE_MS, self.wait_ms * 2)
        if late_ms > BUSY_LOOP_MS:
            wait_ms = max(wait_ms, min(SLICE_MS, _LATE_FACTOR * late_ms))
        self.wait_ms = min(LONGEST_MS, max(wait_ms, (_SHARE - 1) * took_ms))


async def until_next_tick(tick_s: float, cleaner: Cleaner, resume: Callable[[int], bool], clock: Clock) -> float:
    """Until the next tick, while a pass of compaction goes on. Returns by how many ms a timer was late at most."""
    pace = CleaningPace()
    now_ms = clock.mono_ms()
    end_ms, most_ms = now_ms + int(tick_s * 1000), 0.0
    while now_ms < end_ms:
        begun_ms = now_ms
        wait_ms = min(end_ms - now_ms, pace.wait_ms if cleaner.goes_on else LONGEST_MS)
        await asyncio.sleep(wait_ms / 1000)
        woke_ms = now_ms = clock.mono_ms()
        late_ms = now_ms - begun_ms - wait_ms
        most_ms = max(most_ms, late_ms)
        if cleaner.goes_on:
            moved = resume(clock.wall_ms())
            now_ms = clock.mono_ms()
            pace.continued(moved=moved, took_ms=now_ms - woke_ms, late_ms=late_ms)
    return most_ms
