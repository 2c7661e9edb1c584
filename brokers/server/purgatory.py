"""The delayed responses of a broker: requests that wait for replication, for data, for a rebalance.

A slot is the place of an answer among those of its connection, which leave in the order of the requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fleetlog.brokers.api.base import DelayedResponse
    from fleetlog.brokers.server.framing import Chunk
    from fleetlog.brokers.timers import Timer, Timers


class AnsweringConnection(Protocol):
    """What a slot needs of its connection."""

    def answered(self, slot: Slot) -> None:
        """The slot has its answer."""


class Slot:
    """The place of one request's answer among the connection's answers."""

    __slots__ = ("chunks", "connection", "cost", "on_drop", "ready", "serial")

    def __init__(self, connection: AnsweringConnection, cost: int) -> None:
        self.connection = connection
        self.cost = cost
        self.serial = True
        self.ready = False
        self.chunks: list[Chunk] = []
        self.on_drop: Callable[[], None] | None = None

    def answer(self, chunks: list[Chunk]) -> None:
        """The answer's frame (nothing for acks=0). Late answers of a closed connection are dropped."""
        if self.ready:
            return
        self.ready = True
        self.chunks = chunks
        self.connection.answered(self)

    def release(self) -> None:
        """Drop the answer: let go of the file parts in it."""
        for chunk in self.chunks:
            if not isinstance(chunk, bytes):
                chunk.release()


class Purgatory:
    """Ends each wait in one of three ways: the response completes, its deadline passes, or its connection closes."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._deadlines = 0

    def __len__(self) -> int:
        """Delayed responses with a deadline."""
        return self._deadlines

    def delay(
        self, delayed: DelayedResponse, slot: Slot, send: Callable[[Any], None], failed: Callable[[], None]
    ) -> None:
        """``send`` the response when it completes or expires, never if the slot's connection closes first.

        ``failed`` is called where the answer at the deadline cannot be made.
        """
        timer: Timer | None = None

        def end() -> None:
            nonlocal timer
            if timer is not None:
                timer.cancel()
                timer = None
                self._deadlines -= 1

        def complete(response: Any) -> None:
            end()
            send(response)

        def drop() -> None:
            end()
            delayed.cancel()

        def expire() -> None:
            try:
                delayed.expire()
            except Exception:
                drop()
                failed()

        if delayed.deadline_ms is not None and not delayed.done:
            timer = self._timers.later(delayed.deadline_ms, expire)
            self._deadlines += 1
        slot.on_drop = drop
        delayed.on_done(complete)
