"""How long fsync takes, of the whole process: a disk that becomes slow is seen here first."""

from __future__ import annotations

import os
import threading
import time

from fleetlog.brokers.log.disk.failures import DiskFailed
from fleetlog.brokers.metrics.registry import Histogram

RECENT_S = 60.0
WORST_SHARE = 0.01
KEPT = 20_000
"""Of a minute: its first."""

SYNC_SECONDS = Histogram()
"""All of the process, in seconds. Threads add to it without a lock: two at once may count as one."""


class RecentSyncs:
    """The fsyncs of the last one to two minutes, and those under way. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: list[float] = []
        self._before: list[float] = []
        self._turned_s = 0.0
        self._under_way: dict[int, float] = {}

    def begin(self, now_s: float) -> None:
        """The calling thread begins one."""
        with self._lock:
            self._under_way[threading.get_ident()] = now_s

    def end(self, now_s: float) -> float:
        """The calling thread's has ended; how long it took."""
        with self._lock:
            took_s = now_s - self._under_way.pop(threading.get_ident())
            self._turn(now_s)
            if len(self._now) < KEPT:
                self._now.append(took_s)
        return took_s

    def slow_s(self, now_s: float) -> float:
        """What all but one in a hundred do not exceed, and no less than one that is still under way; -1: there is none.

        Of fewer than a hundred this is the slowest.
        """
        with self._lock:
            self._turn(now_s)
            every = sorted([*self._before, *self._now])
            running_s = max((now_s - begun_s for begun_s in self._under_way.values()), default=-1.0)
        ended_s = every[-1 - int(len(every) * WORST_SHARE)] if every else -1.0
        return max(ended_s, running_s)

    def _turn(self, now_s: float) -> None:
        past_s = now_s - self._turned_s
        if past_s >= RECENT_S:
            self._before = self._now if past_s < 2 * RECENT_S else []
            self._now, self._turned_s = [], now_s


RECENT_SYNCS = RecentSyncs()


def timed_fsync(fd: int) -> None:
    """Call fsync, and count how long it took. Raises OSError."""
    RECENT_SYNCS.begin(time.perf_counter())
    try:
        os.fsync(fd)
    finally:
        SYNC_SECONDS.observe(RECENT_SYNCS.end(time.perf_counter()))


def sync_once(fd: int, path: str) -> None:
    """fsync a file that stays in use. Raises DiskFailed, also for lack of room.

    The system may have dropped the pages that it could not write, and says so once: the next fsync would succeed.
    """
    try:
        timed_fsync(fd)
    except OSError as wrong:
        raise DiskFailed(path, f"fsync: {wrong.strerror or wrong}") from wrong


def slow_sync_micros() -> int:
    """How long the slowest fsyncs of the last minutes took, in microseconds; -1 without any."""
    slow_s = RECENT_SYNCS.slow_s(time.perf_counter())
    return -1 if slow_s < 0 else round(slow_s * 1_000_000)
