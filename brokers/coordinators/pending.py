"""A submitted command's answer, which may come later."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from txn.commands import Ticket
from wire.errors import ErrorCode

__all__ = ["Pending", "append_error"]

log = logging.getLogger(__name__)


class Pending:
    """The answer to come: the command's response, or ``Failed``. Loop thread only."""

    __slots__ = ("_callback", "_on_abandon", "done", "response", "ticket")

    def __init__(self, ticket: Ticket, on_abandon: Callable[[Ticket], None] | None = None) -> None:
        self.ticket = ticket
        self.done = False
        self.response: Any = None
        self._callback: Callable[[Any], None] | None = None
        self._on_abandon = on_abandon

    def on_done(self, callback: Callable[[Any], None]) -> None:
        """Call ``callback(response)`` when the answer is there; at once if it is there already. One callback only."""
        assert self._callback is None, "one answer has one taker"
        self._callback = callback
        if self.done:
            callback(self.response)

    def complete(self, response: Any) -> None:
        """The answer is here; a second one is ignored."""
        if self.done:
            return
        self.done = True
        self.response = response
        if self._callback is not None:
            try:
                self._callback(response)
            except Exception:
                # Whoever takes the answer must not stop the coordinator in the middle of its work.
                log.exception("an answer could not be handed over")

    def abandon(self) -> None:
        """Nobody waits any more (the connection is gone): what the command does still happens."""
        if not self.done:
            self.done = True
            if self._on_abandon is not None:
                self._on_abandon(self.ticket)


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
"""After one of these nothing more can be appended under the epoch the shard was loaded in."""


def append_error(error: ErrorCode) -> ErrorCode:
    """What a coordinator's client is told when its record could not be appended (Kafka's mapping)."""
    return _APPEND_ERRORS.get(error, error)
