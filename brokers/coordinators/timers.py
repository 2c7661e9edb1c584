"""Named timers of one shard. Heartbeats postpone deadlines far more often than one passes, so postponing is cheap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fleetlog.brokers.model import Clock
from fleetlog.brokers.timers import Timer, Timers


class _Deadline:
    __slots__ = ("deadline_ms", "timer", "wakes_ms")

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.wakes_ms = deadline_ms
        self.timer: Timer | None = None


class ShardTimers:
    """Calls ``on_due(name)`` once after the delay, unless the timer is replaced or cancelled before."""

    def __init__(self, timers: Timers, clock: Clock, on_due: Callable[[str], None]) -> None:
        self._timers = timers
        self._clock = clock
        self._on_due = on_due
        self._deadlines: dict[str, _Deadline] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def schedule(self, name: str, delay_ms: int) -> None:
        """Set or replace the timer."""
        deadline_ms = self._clock.mono_ms() + max(0, delay_ms)
        deadline = self._deadlines.get(name)
        if deadline is None:
            deadline = self._deadlines[name] = _Deadline(deadline_ms)
            self._arm(name, deadline, delay_ms)
            return
        deadline.deadline_ms = deadline_ms
        if deadline_ms < deadline.wakes_ms:
            self._arm(name, deadline, delay_ms)  # a later deadline uses the wake-up that is already scheduled

    def cancel(self, name: str) -> None:
        """Cancel the timer, if any."""
        deadline = self._deadlines.pop(name, None)
        if deadline is not None and deadline.timer is not None:
            deadline.timer.cancel()

    def clear(self) -> None:
        """Cancel all timers."""
        for name in list(self._deadlines):
            self.cancel(name)

    def _arm(self, name: str, deadline: _Deadline, delay_ms: int) -> None:
        if deadline.timer is not None:
            deadline.timer.cancel()
        deadline.wakes_ms = deadline.deadline_ms
        deadline.timer = self._timers.later(delay_ms, partial(self._wake, name, deadline))

    def _wake(self, name: str, deadline: _Deadline) -> None:
        if self._deadlines.get(name) is not deadline:
            return
        left_ms = deadline.deadline_ms - self._clock.mono_ms()
        if left_ms > 0:
            self._arm(name, deadline, left_ms)
            return
        del self._deadlines[name]
        self._on_due(name)
