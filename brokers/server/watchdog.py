"""How long the event loop has stood still, as a thread sees it, and where it stands.

A loop that stands still serves no client, and nothing that runs on it can say so. The loop leaves a mark every tenth of
a second; a thread compares. What reads :meth:`LoopWatch.standing_ms` on other threads: the connection to ZooKeeper,
which keeps no session alive for a loop that stands (``coordination.zookeeper``), and ``/health/live``. How late the
marks of the last minute came is what DescribeHealth says of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections import deque

logger = logging.getLogger(__name__)

MARK_S = 0.1
CHECK_S = 0.25
PATIENCE_S = 1.0
"""A stall this long is worth a stack in the log."""
REPEAT_S = 60.0
"""How long after a stack the next one of the same stall comes."""
APART_S = 10.0
"""How long after a stack that of another stall comes at the earliest."""
MAX_FRAMES = 50
RECENT_MARKS = round(60.0 / MARK_S)
"""Marks whose lateness is kept: those of a minute, and of more if the loop stood in it."""
WORST_SHARE = 0.01


class LoopWatch:
    """Watches the loop it is started on. :meth:`start` and :meth:`stop` on the loop, the rest from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, patience_s: float = PATIENCE_S) -> None:
        self._loop = loop
        self._patience_s = patience_s
        self._marked: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop_thread = 0
        self._late_s: deque[float] = deque(maxlen=RECENT_MARKS)
        self._next_stack = 0.0
        self._reported: float | None = None
        """The mark behind which a stall was reported."""

    def start(self) -> None:
        """Begin to watch."""
        self._loop_thread = threading.get_ident()
        self._mark()
        self._thread = threading.Thread(target=self._run, name="loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer; the loop counts as moving from now on."""
        self._stopping.set()
        if self._timer is not None:
            self._timer.cancel()
        self._marked = None

    def standing_ms(self) -> int:
        """For how long the loop has not moved, in milliseconds; 0 while it does, or isn't watched."""
        marked = self._marked
        return 0 if marked is None else max(0, int((time.monotonic() - marked - MARK_S) * 1000))

    def lag_micros(self) -> tuple[int, int]:
        """How late the loop ran its marks in the last minute: all but one in a hundred at most, and the latest one.

        In microseconds, -1 without a mark; call it on the loop. A loop that stands between two marks seems to stand for
        up to ``MARK_S`` less than it does.
        """
        if not self._late_s:
            return -1, -1
        every = sorted(self._late_s)
        return round(every[-1 - int(len(every) * WORST_SHARE)] * 1e6), round(every[-1] * 1e6)

    def _mark(self) -> None:
        now, before = time.monotonic(), self._marked
        if before is not None:
            self._late_s.append(max(0.0, now - before - MARK_S))
        self._marked = now
        self._timer = self._loop.call_later(MARK_S, self._mark)

    def _run(self) -> None:
        before = time.monotonic()
        while not self._stopping.wait(CHECK_S):
            now = time.monotonic()
            # This thread did not run either: the process was stopped, or starved. The loop gets its chance first.
            starved = now - before > CHECK_S + self._patience_s / 2
            before = now
            if not starved:
                self.check(now)

    def check(self, now: float) -> None:
        """Compare; on the thread."""
        marked = self._marked
        if marked is None:
            return
        reported = self._reported
        if reported is not None and marked != reported:
            logger.warning("the event loop moves again; it stood still for up to %.1f s", marked - reported)
            self._reported = None
            self._next_stack -= REPEAT_S - APART_S
        standing_s = now - marked
        if standing_s < self._patience_s or now < self._next_stack:
            return
        self._next_stack = now + REPEAT_S
        self._reported = marked
        frame = sys._current_frames().get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame, MAX_FRAMES)) if frame is not None else "(no stack)\n"
        logger.warning("the event loop has stood still for %.1f s, at:\n%s", standing_s, stack.rstrip())
