"""Clocks for what takes time through its port, one that a test moves and the real one; and timers by the real one."""

from __future__ import annotations

import asyncio
import time

from fleetlog.brokers.timers import Timers

START_MS = 1_700_000_000_000


class ManualClock:
    """Says ``now_ms``, both for wall and for monotonic time."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def mono_ms(self) -> int:
        return self.now_ms

    def mono_us(self) -> int:
        return self.now_ms * 1000


class RealClock:
    """The machine's time plus ``ahead_ms``, which a test may change at any moment."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def mono_ms(self) -> int:
        return self.mono_us() // 1000

    def mono_us(self) -> int:
        return time.monotonic_ns() // 1000 + self.ahead_ms * 1000


def running_timers() -> Timers:
    """A wheel on the running loop, by the real time."""
    return Timers(asyncio.get_running_loop(), RealClock())
