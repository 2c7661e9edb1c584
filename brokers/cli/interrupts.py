"""Ctrl-C, SIGTERM and SIGHUP as one exception, delayed where it would leave a process behind."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interrupted(BaseException):
    """The user or the system ends the command."""


class Interrupts:
    """Raises Interrupted in the main thread; inside a ``held`` block only at its end."""

    def __init__(self) -> None:
        self._held = 0
        self._pending = False

    def catch(self) -> None:
        """Install the handlers."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Delay signals: between the start of a process and its entry in the state file it would be left behind.

        A signal counts more than an error within: Ctrl-C ends the process that is being started, too.
        """
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self.check()

    def check(self) -> None:
        """Raise if a signal has come that could not be raised (held, or swallowed by a finalizer)."""
        if self._pending and not self._held:
            self._pending = False
            raise Interrupted

    def forget(self) -> None:
        """Forget the signals so far: they are being handled."""
        self._pending = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._pending = True
        if not self._held:
            raise Interrupted


interrupts = Interrupts()
