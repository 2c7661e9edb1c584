"""Logins that are tried at the same time: some are, a few more wait, the rest is refused at once.

A login takes a worker for seconds where it fails, since brokers answer a wrong password late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from fleetlog.brokers.console.asking import PageError

T = TypeVar("T")

LOGINS: Final = 4
"""That are tried at the same time."""
LOGINS_WAITING_MAX: Final = 16
"""Beside these."""


class LoginTurns:
    """Counts logins where they arrive: the limiter itself learns of them only in a later turn of the loop, so that all
    that come in one turn would pass.
    """

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(LOGINS)
        self._present = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Do a login's work on a thread, in its turn. Raises PageError when too many wait, and what ``work`` raises."""
        if self._present >= LOGINS + LOGINS_WAITING_MAX:
            raise PageError(503, "too many logins are being tried; try again in a few seconds")
        self._present += 1
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._limiter)
        finally:
            self._present -= 1
