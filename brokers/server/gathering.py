"""Connections whose Produce requests came in the same turn of the loop: executed together, by one write for each log.

Writing pays by the call as much as by the byte, and most of what an append costs is the same for one batch and for
twenty. So a connection that received Produce requests waits until the loop has heard of the others that did: the rest
of this turn, never a timer. Figures: ADR 0014.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokers.server.blocks import KEPT

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from brokers.server.connection import Connection

MOST = KEPT
"""Connections at a time: each of them has a block of its own meanwhile."""
LONELY = 8
"""After so many turns in which nobody else came, so many connections go on at once before one waits again."""
APART = 64
"""So often a connection does not wait after a request of it could not be executed with those of others."""


class Gathering:
    """What waits for the end of the turn. ``together`` is the dispatcher's ``dispatch_runs``."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, together: Callable[[list[Connection]], Connection | None]
    ) -> None:
        self._loop = loop
        self._together = together
        self._waiting: list[Connection] = []
        self._lonely = 0
        self._skips = 0

    def gather(self, connection: Connection) -> bool:
        """Whether the connection waits; its ``go_on`` is called then."""
        waiting = self._waiting
        if self._skips and not waiting:
            self._skips -= 1
            return False
        if connection.apart:
            connection.apart -= 1
            return False
        connection.waits = True
        waiting.append(connection)
        if len(waiting) == 1:
            self._loop.call_soon(self._end_of_turn)
        elif len(waiting) == MOST:
            self._end_of_turn()
        return True

    def _end_of_turn(self) -> None:
        waiting, self._waiting = self._waiting, []
        if len(waiting) == 1:
            self._lonely += 1
            if self._lonely >= LONELY:
                self._skips = LONELY + self._lonely % LONELY  # not always the same one of a round
        elif waiting:
            self._lonely = self._skips = 0
            in_the_way = self._together(waiting)
            if in_the_way is not None:
                in_the_way.apart = APART
        for connection in waiting:
            connection.go_on()
