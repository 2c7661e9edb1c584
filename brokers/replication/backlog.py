"""Partitions whose logs are made or removed a few in each turn of the loop.

A topic may come or go with 10,000 partitions in one entry of the change log, and a directory on disk costs a quarter of
a millisecond: all in one turn would hold the loop for seconds, longer than the lease.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Protocol

from fleetlog.brokers.model import TopicPartition

PER_TURN = 32
"""At most so many in one turn: about 10 ms."""


class ScheduledCall(Protocol):
    """A call in the loop's next turn."""

    def cancel(self) -> object:
        """Don't call."""


CallSoon = Callable[[Callable[[], None]], ScheduledCall]
"""The loop's ``call_soon``."""


class Backlog:
    """Calls ``work`` for each partition once, ``PER_TURN`` in a turn, in the order in which they were added.

    The first turn is the caller's: up to ``PER_TURN`` partitions are done when ``add`` returns. ``emptied`` is called
    whenever nothing is left. Loop thread only.
    """

    def __init__(
        self, call_soon: CallSoon, work: Callable[[TopicPartition], None], emptied: Callable[[], None] | None = None
    ) -> None:
        self._call_soon = call_soon
        self._work = work
        self._emptied = emptied
        self._left: dict[TopicPartition, None] = {}
        self._turn: ScheduledCall | None = None

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._left

    def __len__(self) -> int:
        return len(self._left)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Do the work for these, too, in this turn and in later ones."""
        self._left.update(dict.fromkeys(partitions))
        if self._turn is None:
            self._work_on()

    def discard(self, tp: TopicPartition) -> bool:
        """Take a partition out; returns whether its work was not done yet."""
        if tp not in self._left:
            return False
        del self._left[tp]
        return True

    def close(self) -> None:
        """Do nothing more."""
        self._left.clear()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _work_on(self) -> None:
        self._turn = None
        for tp in list(itertools.islice(self._left, PER_TURN)):
            if self.discard(tp):
                self._work(tp)
        if self._left:
            self._turn = self._call_soon(self._work_on)
        elif self._emptied is not None:
            self._emptied()
