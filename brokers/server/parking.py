"""The one waiter: requests that wait for replication, data, a rebalance, and the one timer wheel that ends the wait.

The wheel keeps what is due in slots of a few milliseconds and asks the loop for one timer, the next slot's. A request
that is answered leaves its slot at once, so a long timeout costs no memory once the answer is out.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from brokers.model import Clock

logger = logging.getLogger(__name__)

TICK_MS = 5


class Timer:
    """One entry of the wheel."""

    __slots__ = ("callback", "slot")

    def __init__(self, slot: int, callback: Callable[[], None]) -> None:
        self.slot = slot
        self.callback = callback


class TimerWheel:
    """Callbacks by the tick they are due at. Pure: time comes in."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[Timer, None]] = {}
        self._order: list[int] = []
        self.size = 0

    def add(self, now_ms: int, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Due ``delay_ms`` from now, rounded up to the next tick: never early."""
        slot = -(-(now_ms + max(0, delay_ms)) // TICK_MS)
        timer = Timer(slot, callback)
        if slot not in self._slots:
            self._slots[slot] = {}
            heapq.heappush(self._order, slot)
        self._slots[slot][timer] = None
        self.size += 1
        return timer

    def cancel(self, timer: Timer) -> None:
        """Forget it; a no-op when it has run."""
        bucket = self._slots.get(timer.slot)
        if bucket is not None and timer in bucket:
            del bucket[timer]
            self.size -= 1

    def next_ms(self) -> int | None:
        """When the earliest occupied slot is due."""
        while self._order and not self._slots[self._order[0]]:
            del self._slots[heapq.heappop(self._order)]
        return self._order[0] * TICK_MS if self._order else None

    def due(self, now_ms: int) -> list[Callable[[], None]]:
        """Take out everything whose time has come, in order."""
        ready: list[Callable[[], None]] = []
        while self._order and self._order[0] * TICK_MS <= now_ms:
            bucket = self._slots.pop(heapq.heappop(self._order))
            self.size -= len(bucket)
            ready.extend(timer.callback for timer in bucket)
        return ready


class Parking:
    """Drives the wheel with the loop's timers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._wheel = TimerWheel()
        self._armed_ms: int | None = None
        self._handle: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return self._wheel.size

    def later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call back after ``delay_ms`` milliseconds, unless cancelled."""
        timer = self._wheel.add(self._clock.mono_ms(), delay_ms, callback)
        self._arm()
        return timer

    def cancel(self, timer: Timer) -> None:
        """Forget a timer."""
        self._wheel.cancel(timer)

    def close(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        due = self._wheel.next_ms()
        if due is None or (self._armed_ms is not None and self._armed_ms <= due):
            return
        if self._handle is not None:
            self._handle.cancel()
        self._armed_ms = due
        self._handle = self._loop.call_later(max(0, due - self._clock.mono_ms()) / 1000, self._fire)

    def _fire(self) -> None:
        self._armed_ms = None
        self._handle = None
        for callback in self._wheel.due(self._clock.mono_ms()):
            try:
                callback()
            except Exception:
                logger.exception("a parked request's deadline failed")
        self._arm()
