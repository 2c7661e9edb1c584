"""A coordinator's answer, waited for as a delayed request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fleetlog.brokers.api.base import DelayedResponse, Done, Outcome
from fleetlog.brokers.coordinators.pending import PendingAnswer
from fleetlog.brokers.coordinators.transactions.coordinator import TransactionCoordinator
from fleetlog.txn.commands import Command, CommandFailed
from fleetlog.wire.errors import ErrorCode


def when_done(
    pending: PendingAnswer,
    render: Callable[[Any], Any],
    deadline_ms: int,
    late: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE,
    dropped: Callable[[], None] | None = None,
) -> Outcome:
    """The rendered answer, at once or when it comes; after ``deadline_ms`` the rendered ``Failed(late)``.

    ``dropped`` is called when the connection closes first.
    """
    if pending.done:
        return Done(render(pending.response))

    def expired() -> Any:
        pending.cancel()
        return render(CommandFailed(late))

    def drop() -> None:
        pending.cancel()
        if dropped is not None:
            dropped()

    delayed = DelayedResponse(deadline_ms, expired, on_cancel=drop)
    pending.on_done(lambda response: delayed.complete(render(response)))
    return delayed


def when_ids_are_there(
    transactions: TransactionCoordinator,
    transactional_id: str,
    command: Command,
    render: Callable[[Any], Any],
    deadline_ms: int,
) -> Outcome:
    """As :func:`when_done`, for a command that may take a producer id: it is submitted once there are some."""
    delayed = DelayedResponse(deadline_ms, lambda: render(CommandFailed(ErrorCode.COORDINATOR_NOT_AVAILABLE)))

    def begin() -> None:
        if not delayed.done:
            pending = transactions.submit_patiently(transactional_id, command)
            delayed.on_cancel = pending.cancel
            pending.on_done(lambda answer: delayed.complete(render(answer)))

    transactions.producer_ids.when_filled(begin)
    return delayed.outcome()


class JoinedResponse(DelayedResponse):
    """A response made of the results of several parts: rendered when the last one has come, or at the deadline.

    ``results`` has what stands for those that are missing; :meth:`take` replaces each of them once.
    """

    __slots__ = ("_missing", "_render", "results")

    def __init__(
        self,
        results: list[Any],
        render: Callable[[list[Any]], Any],
        deadline_ms: int,
        on_deadline: Callable[[], Any] | None = None,
        on_cancel: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(deadline_ms, on_deadline or partial(render, results), on_cancel)
        self.results = results
        self._render = render
        self._missing = len(results)
        if not results:
            self.complete(render(results))

    def take(self, index: int, result: Any) -> None:
        """The result of a part has come."""
        self.results[index] = result
        self._missing -= 1
        if not self._missing:
            self.complete(self._render(self.results))
