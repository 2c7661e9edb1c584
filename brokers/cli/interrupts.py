"""Ctrl-C, SIGTERM and SIGHUP as one exception, held back where it would lose a process."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interrupted(BaseException):
    """The person, or the system, wants it to end."""


class Interrupts:
    """Raises Interrupted in the main thread; inside ``held`` blocks only afterwards."""

    def __init__(self) -> None:
        self._held = 0
        self._pending = False

    def catch(self) -> None:
        """From now on."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A process that was started but not written down yet would be left behind: not in here."""
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
        """What came so far is being obeyed."""
        self._pending = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._pending = True
        if not self._held:
            raise Interrupted


interrupts = Interrupts()
