"""The broker's timers: one wheel for delayed responses, group members, transactions, connections and retries.

The wheel keeps what is due in slots of a few milliseconds and asks the loop for one timer, the next slot's. A cancelled
timer leaves its slot at once, so a long timeout costs no memory once what it waited for is there.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from typing import Any, Protocol

from fleetlog.brokers.model import Clock

logger = logging.getLogger(__name__)

TICK_MS = 5
EXACT_MS = 50
"""Below it a delay is kept to the millisecond; longer ones share slots of ``TICK_MS``."""


class Handle(Protocol):
    """A call that the loop was asked for."""

    def cancel(self) -> None:
        """Cancel the call."""


class TimerLoop(Protocol):
    """The call of an event loop that the timers use."""

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Handle:
        """Call it after ``delay`` seconds."""


class Timer:
    """One entry of the wheel."""

    __slots__ = ("_slot", "callback")

    def __init__(self, slot: dict[Timer, None], callback: Callable[[], None]) -> None:
        self._slot = slot
        self.callback = callback

    def cancel(self) -> None:
        """Forget it; a no-op when it has run."""
        self._slot.pop(self, None)


class TimerWheel:
    """Callbacks by the time they are due at. Pure: time comes in."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[Timer, None]] = {}
        self._order: list[int] = []

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def add(self, now_ms: int, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Due ``delay_ms`` from now, rounded up to the next tick: never early."""
        due_ms = now_ms + max(0, delay_ms)
        if delay_ms >= EXACT_MS:
            due_ms = -(-due_ms // TICK_MS) * TICK_MS
        slot = self._slots.get(due_ms)
        if slot is None:
            slot = self._slots[due_ms] = {}
            heapq.heappush(self._order, due_ms)
        timer = Timer(slot, callback)
        slot[timer] = None
        return timer

    def next_ms(self) -> int | None:
        """When the earliest occupied slot is due."""
        while self._order and not self._slots[self._order[0]]:
            del self._slots[heapq.heappop(self._order)]
        return self._order[0] if self._order else None

    def due(self, now_ms: int) -> list[Timer]:
        """The timers whose time has come, in order. Each that is to run must be taken by :meth:`take`."""
        ready: list[Timer] = []
        while self._order and self._order[0] <= now_ms:
            slot = self._slots.pop(heapq.heappop(self._order))
            ready.extend(slot)
        return ready

    @staticmethod
    def take(timer: Timer) -> bool:
        """Whether the timer that is due was not cancelled meanwhile; it is out of its slot then."""
        return timer._slot.pop(timer, timer) is None


class Timers:
    """Drives the wheel with the loop's timers. Loop thread only."""

    def __init__(self, loop: TimerLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._wheel = TimerWheel()
        self._armed_ms: int | None = None
        self._handle: Handle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._wheel)

    def later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call back after ``delay_ms`` milliseconds, unless cancelled."""
        now_ms = self._clock.mono_ms()
        timer = self._wheel.add(now_ms, delay_ms, callback)
        if self._armed_ms is None or now_ms + delay_ms < self._armed_ms:
            self._arm()
        return timer

    def close(self) -> None:
        """Call nothing back any more."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        due = self._wheel.next_ms()
        if due is None or self._closed or (self._armed_ms is not None and self._armed_ms <= due):
            return
        if self._handle is not None:
            self._handle.cancel()
        self._armed_ms = due
        self._handle = self._loop.call_later(max(0, due - self._clock.mono_ms()) / 1000, self._fire)

    def _fire(self) -> None:
        self._armed_ms = None
        self._handle = None
        for timer in self._wheel.due(self._clock.mono_ms()):
            if self._wheel.take(timer):
                try:
                    timer.callback()
                except Exception:
                    logger.exception("a timer's callback failed")
        self._arm()
