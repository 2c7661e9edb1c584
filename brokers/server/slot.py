"""The place of one request's answer among the answers of its connection, which leave in the order of the requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fleetlog.brokers.server.framing import Chunk


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
