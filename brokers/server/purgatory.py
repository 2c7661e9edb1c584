"""The delayed responses of a broker: requests that wait for replication, for data, for a rebalance."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetlog.brokers.api.base import DelayedResponse
    from fleetlog.brokers.server.slot import Slot
    from fleetlog.brokers.timers import Timer, Timers


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
