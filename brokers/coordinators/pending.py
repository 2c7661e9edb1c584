"""The response to a submitted command, which may come later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fleetlog.brokers.pending import Pending
from fleetlog.txn.commands import Ticket
from fleetlog.wire.errors import ErrorCode

__all__ = ["PendingAnswer", "answer_of", "commit_failure"]


class PendingAnswer(Pending):
    """The future response of a command, or ``CommandFailed``. Cancelled, the command's effects still happen."""

    __slots__ = ("_forget", "ticket")

    def __init__(self, ticket: Ticket, forget: Callable[[Ticket], object] | None = None) -> None:
        super().__init__()
        self.ticket = ticket
        self._forget = forget

    def cancel(self) -> None:
        """Drop the response: the connection has closed."""
        if not self.done:
            super().cancel()
            if self._forget is not None:
                self._forget(self.ticket)


async def answer_of(pending: Pending) -> Any:
    """The response, once it is there."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pending.on_done(lambda answer: None if future.done() else future.set_result(answer))
    return await future


_APPEND_ERRORS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}

LEADERSHIP_LOST = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""After one of these no append is possible in the leader epoch of the shard's load."""


def commit_failure(error: ErrorCode) -> ErrorCode:
    """The client's error for a coordinator record that could not be appended (Kafka's mapping)."""
    return _APPEND_ERRORS.get(error, error)
