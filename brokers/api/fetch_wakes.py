"""Consumers' fetches that wait and were woken: some in each turn of the loop, the others in the next ones.

One batch may wake thousands. Were they all answered in the turn that brought it, producers would wait for that turn,
and then for the one in which all of these consumers ask again. A consumer that waits for its turn finds more when it
comes, so under load there are fewer answers with more in each.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

LOOKS_PER_TURN = 32


class Wakes:
    """Those of one broker, in the order in which they were woken. Loop thread only."""

    __slots__ = ("_looks", "_running")

    def __init__(self) -> None:
        self._looks: deque[Callable[[], None]] = deque()
        self._running = False

    def __len__(self) -> int:
        return len(self._looks)

    def add(self, loop: asyncio.AbstractEventLoop, look: Callable[[], None]) -> None:
        """Call ``look`` in a turn to come. A waiting fetch asks once, however often it is woken."""
        self._looks.append(look)
        if not self._running:
            self._running = True
            loop.call_soon(self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        looks = self._looks
        try:
            for _ in range(min(len(looks), LOOKS_PER_TURN)):
                looks.popleft()()
        finally:  # a look that fails is logged by the loop, and costs no other
            self._running = bool(looks)
            if looks:
                loop.call_soon(self._turn, loop)
