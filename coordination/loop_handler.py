"""kazoo's callbacks, passed from its connection thread to the event loop in order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

_log = logging.getLogger(__name__)


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler without worker threads: callbacks are queued and run on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connect_timeout_s: float) -> None:
        super().__init__()
        self._loop = loop
        self._connect_timeout_s = connect_timeout_s
        self._callbacks: deque[Callable[[], None]] = deque()
        self._woken = False
        self.completion_queue = self

    @property
    def running(self) -> bool:
        """Always true: for a stopped handler kazoo would run callbacks on its own thread."""
        return True

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def put(self, callback: Callable[[], None]) -> None:
        """Queue a callback for the loop; any thread."""
        self._callbacks.append(callback)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                self._callbacks.clear()  # the loop is closed

    def dispatch_callback(self, callback: Any) -> None:
        """Queue the callback of a fired watch."""
        self.put(partial(callback.func, *callback.args))

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """As kazoo's, but one unresponsive host must not use up the whole session timeout."""
        kwargs["timeout"] = min(kwargs.get("timeout") or self._connect_timeout_s, self._connect_timeout_s)
        return super().create_connection(*args, **kwargs)

    def _drain(self) -> None:
        self._woken = False  # before the first pop: a callback queued from here on wakes the loop again
        while self._callbacks:
            try:
                self._callbacks.popleft()()
            except Exception:
                _log.exception("ZooKeeper client: a callback failed")
