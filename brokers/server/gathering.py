"""Connections whose Produce requests came in the same turn of the loop: executed together, by one write for each log.

Writing pays by the call as much as by the byte, and most of what an append costs is the same for one batch and for
twenty. So a connection that received Produce requests waits until the loop has heard of the others that did: the rest
of this turn, never a timer. Figures: ADR 0014.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from brokers.server.blocks import KEPT

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from brokers.server.connection import Connection

logger = logging.getLogger(__name__)

MOST = KEPT
"""Connections at a time: each of them has a block of its own meanwhile."""
LONELY = 8
"""After so many turns in which nobody else came, so many connections go on at once before one waits again."""
APART = 64
"""So often a connection does not wait after a request of it could not be executed with those of others."""


class Gathering:
    """What waits for the end of the turn. ``together`` is the dispatcher's ``dispatch_runs``."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, together: Callable[[list[Connection]], tuple[int, Connection | None]]
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
        met = len(waiting)
        if met > 1:
            met = self._meet(waiting)
        if met > 1:
            self._lonely = self._skips = 0
        elif waiting:
            self._lonely += 1
            if self._lonely >= LONELY:
                self._skips = LONELY + self._lonely % LONELY  # not always the same one of a round
        for connection in waiting:
            try:
                connection.go_on()
            except Exception:  # of this connection only: the others must not wait for ever
                logger.exception("a connection of %s failed", connection.peer.peer_host)
                connection.close("an error of ours")

    def _meet(self, waiting: list[Connection]) -> int:
        """Execute what can be executed together; how many had something for that."""
        try:
            met, in_the_way = self._together(waiting)
        except Exception:  # nobody knows how far that came
            logger.exception("requests of %d connections failed", len(waiting))
            for connection in waiting:
                connection.close("an error of ours")
            return 0
        if in_the_way is not None:
            in_the_way.apart = APART
        return met
