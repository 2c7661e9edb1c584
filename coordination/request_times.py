"""How long ZooKeeper takes to answer."""

from __future__ import annotations

from asyncio import Future
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)


class RequestTimes:
    """Requests by how long they took: ``counts`` by ``BOUNDS_MS``, with one more for those above."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.total_ms = 0
        self._now_ms = now_ms

    def measure(self, answer: Future[Any]) -> None:
        """Count a request from now until its answer, whatever that is."""
        began_ms = self._now_ms()

        def answered(_: Future[Any]) -> None:
            took_ms = self._now_ms() - began_ms
            self.counts[bisect_left(BOUNDS_MS, took_ms)] += 1
            self.total_ms += took_ms

        answer.add_done_callback(answered)
