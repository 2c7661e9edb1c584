"""Batching of connections: those whose Produce requests came in the same turn of the loop are executed together.

They share one write for each log. Writing pays by the call as much as by the byte, and most of what an append costs is
the same for one batch and for twenty. So a connection that received Produce requests waits until the loop has heard of
the others that did: the rest of this turn, never a timer. Figures: ADR 0014.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fleetlog.brokers.server.framing import KEPT

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fleetlog.brokers.server.connection import Connection

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = KEPT
"""Connections in a batch: each of them has a block of its own meanwhile."""
BACKOFF_AFTER = 8
"""After so many turns with a single connection, so many connections are executed at once before one waits again."""


class ConnectionBatcher:
    """The connections that wait for the end of the turn. ``together`` is the dispatcher's ``dispatch_runs``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, together: Callable[[list[Connection]], int]) -> None:
        self._loop = loop
        self._together = together
        self._waiting: list[Connection] = []
        self._idle_turns = 0
        self._backoff = 0

    def join_batch(self, connection: Connection) -> bool:
        """Whether the connection waits; its ``resume`` is called then."""
        waiting = self._waiting
        if self._backoff and not waiting:
            self._backoff -= 1
            return False
        connection.awaits_batch = True
        waiting.append(connection)
        if len(waiting) == 1:
            self._loop.call_soon(self._end_of_turn)
        elif len(waiting) == MAX_CONNECTIONS:
            self._end_of_turn()
        return True

    def _end_of_turn(self) -> None:
        waiting, self._waiting = self._waiting, []
        executed = len(waiting)
        if executed > 1:
            executed = self._execute_together(waiting)
        if executed > 1:
            self._idle_turns = self._backoff = 0
        elif waiting:
            self._idle_turns += 1
            if self._idle_turns >= BACKOFF_AFTER:
                self._backoff = BACKOFF_AFTER + self._idle_turns % BACKOFF_AFTER  # not always the same one of a round
        for connection in waiting:
            try:
                connection.resume()
            except Exception:  # of this connection only: the others must not wait for ever
                logger.exception("a connection of %s failed", connection.peer.peer_host)
                connection.close("an error of ours")

    def _execute_together(self, waiting: list[Connection]) -> int:
        """Execute what can be executed together; returns how many connections had something for that."""
        try:
            return self._together(waiting)
        except Exception:  # how far it came is unknown
            logger.exception("requests of %d connections failed", len(waiting))
            for connection in waiting:
                connection.close("an error of ours")
            return 0
