"""A coordinator's answer, waited for as a parked request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokers.api.base import Done, Outcome, Park
from brokers.coordinators.pending import Pending
from txn.commands import Failed
from wire.errors import ErrorCode


def when_done(
    pending: Pending,
    render: Callable[[Any], Any],
    deadline_ms: int,
    late: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE,
) -> Outcome:
    """The rendered answer, at once or when it comes; after ``deadline_ms`` the rendered ``Failed(late)``."""
    if pending.done:
        return Done(render(pending.response))

    def expired() -> Any:
        pending.abandon()
        return render(Failed(late))

    park = Park(deadline_ms, expired, on_drop=pending.abandon)
    pending.on_done(lambda response: park.complete(render(response)))
    return park
