"""What waits for a partition's leader: the commits of offsets, and the confirmations that it still leads."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable
from typing import Any

from fleetlog.wire.errors import ErrorCode

logger = logging.getLogger(__name__)


class CommitWaits:
    """Callbacks that wait until offsets are committed, called in the order of the offsets, then of their coming."""

    __slots__ = ("_numbers", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, bool, Callable[[ErrorCode], None]]] = []
        """(offset, number, whether it gives up, callback), the lowest offset first."""
        self._numbers = itertools.count()

    def add(self, offset: int, on_committed: Callable[[ErrorCode], None], *, gives_up: bool) -> None:
        """Wait until the record at ``offset`` is committed; ``gives_up``: a too small in-sync set ends the wait."""
        heapq.heappush(self.heap, (offset, next(self._numbers), gives_up, on_committed))

    def complete(self, high_watermark: int) -> None:
        """Everything below the high watermark is committed."""
        while self.heap and self.heap[0][0] < high_watermark:
            call(heapq.heappop(self.heap)[3], ErrorCode.NONE)

    def give_up(self) -> None:
        """The in-sync set has become too small."""
        ending = sorted(entry for entry in self.heap if entry[2])
        if ending:
            self.heap = [entry for entry in self.heap if not entry[2]]
            heapq.heapify(self.heap)
            for entry in ending:
                call(entry[3], ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def end(self) -> None:
        """This broker leads the partition no longer."""
        ending, self.heap = self.heap, []
        for entry in ending:
            call(entry[3], ErrorCode.NOT_LEADER_OR_FOLLOWER)


class ConfirmationWaits:
    """Callbacks that wait for the certainty that this broker led at some time after they came."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Callable[[ErrorCode], None]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, now_ms: int, callback: Callable[[ErrorCode], None]) -> None:
        """Wait from now on."""
        self._waiting.append((now_ms, callback))

    def complete(self, confirmed_ms: int | None) -> None:
        """It is certain that this broker led at that time; None: at no time."""
        waiting, self._waiting = self._waiting, []
        for since_ms, callback in waiting:
            if confirmed_ms is not None and confirmed_ms >= since_ms:
                call(callback, ErrorCode.NONE)
            else:
                self._waiting.append((since_ms, callback))

    def end(self) -> None:
        """This broker leads the partition no longer."""
        waiting, self._waiting = self._waiting, []
        for _, callback in waiting:
            call(callback, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def call(callback: Callable[..., None], *args: Any) -> None:
    """Run a callback; its bug must not keep other callbacks from running."""
    try:
        callback(*args)
    except Exception:
        logger.exception("partition: a callback failed")
