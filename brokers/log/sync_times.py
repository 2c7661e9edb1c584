"""How long fsync takes, of the whole process: a disk that becomes slow is seen here first."""

from __future__ import annotations

import os
import time

from brokers.metrics import Histogram

SYNC_SECONDS = Histogram()
"""All of the process, in seconds. Threads add to it without a lock: two at once may count as one."""


def timed_fsync(fd: int) -> None:
    """Call fsync, and count how long it took. Raises OSError."""
    began = time.perf_counter()
    os.fsync(fd)
    SYNC_SECONDS.observe(time.perf_counter() - began)
