"""Named timers of one shard. Heartbeats push a deadline back far more often than one passes, so pushing is cheap."""

from __future__ import annotations

from collections.abc import Callable

from brokers.coordinators.ports import Handle, LoopPort
from brokers.model import Clock


class _Timer:
    __slots__ = ("deadline_ms", "handle", "wakes_ms")

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.wakes_ms = deadline_ms
        self.handle: Handle | None = None


class Timers:
    """``on_due(name)`` is called once when the delay has passed on the clock, unless replaced or cancelled before."""

    def __init__(self, loop: LoopPort, clock: Clock, on_due: Callable[[str], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._on_due = on_due
        self._timers: dict[str, _Timer] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def schedule(self, name: str, delay_ms: int) -> None:
        """Set or replace the timer."""
        deadline_ms = self._clock.mono_ms() + max(0, delay_ms)
        timer = self._timers.get(name)
        if timer is None:
            timer = self._timers[name] = _Timer(deadline_ms)
            self._arm(name, timer, delay_ms)
            return
        timer.deadline_ms = deadline_ms
        if deadline_ms < timer.wakes_ms:
            self._arm(name, timer, delay_ms)  # a later deadline waits for the wake-up that is on its way

    def cancel(self, name: str) -> None:
        """Forget the timer, if any."""
        timer = self._timers.pop(name, None)
        if timer is not None and timer.handle is not None:
            timer.handle.cancel()

    def clear(self) -> None:
        """Forget all."""
        for name in list(self._timers):
            self.cancel(name)

    def _arm(self, name: str, timer: _Timer, delay_ms: int) -> None:
        if timer.handle is not None:
            timer.handle.cancel()
        timer.wakes_ms = timer.deadline_ms
        timer.handle = self._loop.call_later(max(0, delay_ms) / 1000, self._wake, name, timer)

    def _wake(self, name: str, timer: _Timer) -> None:
        if self._timers.get(name) is not timer:
            return
        left_ms = timer.deadline_ms - self._clock.mono_ms()
        if left_ms > 0:
            self._arm(name, timer, left_ms)
            return
        del self._timers[name]
        self._on_due(name)
