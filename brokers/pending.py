"""What comes later: a response, a coordinator's answer. Coroutines await futures, all else :class:`Pending`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


class Pending:
    """A result that comes later, for one callback. Loop thread only.

    It ends once: by :meth:`complete` or by :meth:`cancel`, whichever comes first; what comes later is ignored. Then it
    lets go of all that it was given: they refer to it, and a circle for each wait would be left to the garbage
    collector, which holds the loop for longer the more there are.
    """

    __slots__ = ("_callback", "done", "on_cancel", "response")

    def __init__(self, on_cancel: Callable[[], None] | None = None) -> None:
        self._callback: Callable[[Any], None] | None = None
        self.done = False
        self.on_cancel = on_cancel
        """Called by :meth:`cancel`, unless the result has come."""
        self.response: Any = None
        """The result, if it came before there was a callback."""

    def on_done(self, callback: Callable[[Any], None]) -> None:
        """Call ``callback(response)`` once the result is there, possibly immediately. One callback only."""
        assert self._callback is None, "a result has one callback"
        if self.done:
            self._release()
            callback(self.response)
        else:
            self._callback = callback

    def complete(self, response: Any) -> None:
        """Hand over the result. An error of the callback is logged, and does not interrupt the caller."""
        if self.done:
            return
        self.done = True
        callback = self._callback
        self._release()
        if callback is None:
            self.response = response
            return
        try:
            callback(response)
        except Exception:
            logger.exception("the callback of a result that was waited for failed")

    def cancel(self) -> None:
        """Nothing waits for the result any more; what it was to say about still happens."""
        if not self.done:
            self.done = True
            on_cancel = self.on_cancel
            self._release()
            if on_cancel is not None:
                on_cancel()

    def _release(self) -> None:
        self._callback = self.on_cancel = None
