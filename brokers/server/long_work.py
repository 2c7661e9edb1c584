"""Long work of handlers, a slice of a few milliseconds at a time, with everything else in between.

A handler that may have much to do is a generator: it yields wherever it may be interrupted, and returns its outcome.
Most are through in their first slice and cost nothing. The others take turns: one slice of one of them in each turn of
the loop, however many there are. Work whose connection has closed is given up where it stands.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from fleetlog.brokers.api.unpacking import PAUSE

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)

SLICE_S = 0.003
"""How long a slice lasts, about."""
FIRST_SLICE_S = 0.001
"""The same for the first one: it is in the turn in which the request arrived, perhaps with others."""

Work = Generator[Any, None, Any]


class _Job(NamedTuple):
    work: Work
    gone: Callable[[], bool]
    done: Callable[[Any], None]
    failed: Callable[[], None]


class Pacing:
    """The jobs that are under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        self._loop = loop
        self._now = now
        self._jobs: deque[_Job] = deque()
        self._running = False

    def __len__(self) -> int:
        return len(self._jobs)

    def start(
        self, work: Work, gone: Callable[[], bool], done: Callable[[Any], None], failed: Callable[[], None]
    ) -> None:
        """Do the work, now or in slices: ``done`` gets what it returns, ``failed`` is called where it raises.

        Neither is called once ``gone()``: then nothing waits for the answer.
        """
        job = _Job(work, gone, done, failed)
        if not self._slice(job, FIRST_SLICE_S):
            self._jobs.append(job)
            self._schedule()

    def _schedule(self) -> None:
        if self._jobs and not self._running:
            self._running = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._running = False
        if not self._jobs:
            return
        job = self._jobs.popleft()
        if job.gone():
            job.work.close()
        elif not self._slice(job, SLICE_S):
            self._jobs.append(job)
        self._schedule()

    def _slice(self, job: _Job, seconds: float) -> bool:
        """Whether the job is through."""
        end = self._now() + seconds
        try:
            while True:
                if next(job.work) is PAUSE or self._now() >= end:
                    return False
        except StopIteration as ended:
            job.done(ended.value)
        except Exception:
            job.failed()
        return True

    def close(self) -> None:
        """Give up what is under way."""
        for job in self._jobs:
            job.work.close()
        self._jobs.clear()
