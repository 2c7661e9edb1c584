"""kazoo's callbacks, passed from its connection thread to the event loop in order."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

_log = logging.getLogger(__name__)


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler without worker threads: callbacks are queued and run on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connect_timeout_s: float,
        newest_context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """With ``newest_context``, connections are TLS; it is called on kazoo's thread."""
        super().__init__()
        self._newest_context = newest_context
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
        timeout_s = kwargs["timeout"] = min(kwargs.get("timeout") or self._connect_timeout_s, self._connect_timeout_s)
        connection = super().create_connection(*args, **kwargs)
        if self._newest_context is None:
            return connection
        connection.settimeout(timeout_s)
        return self._newest_context().wrap_socket(connection, server_hostname=kwargs["hostname"])

    def select(self, readable: Any, writable: Any, failed: Any, timeout: float | None = None) -> Any:
        """As kazoo's, but what TLS has decrypted already is readable, although its socket is not.

        kazoo waits for the socket alone, and so leaves the second of two answers in one TLS record until a timeout.
        """
        decrypted = [one for one in readable if isinstance(one, ssl.SSLSocket) and one.pending()]
        if not decrypted:
            return super().select(readable, writable, failed, timeout)
        ready = super().select(readable, writable, failed, 0)
        return (list({*decrypted, *ready[0]}), *ready[1:])

    def _drain(self) -> None:
        self._woken = False  # before the first pop: a callback queued from here on wakes the loop again
        while self._callbacks:
            try:
                self._callbacks.popleft()()
            except Exception:
                _log.exception("ZooKeeper client: a callback failed")
