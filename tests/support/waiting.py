"""Waiting for what happens elsewhere: in another process, on a thread, in a task. Nothing is waited for silently."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0


def eventually(
    look: Callable[[], T],
    what: str,
    timeout_s: float = PATIENCE_S,
    *,
    good: Callable[[T], object] = bool,
    pause_s: float = 0.05,
) -> T:
    """The first value of ``look`` that is good (true, where ``good`` is not given).

    AssertionError when there is none in ``timeout_s``: it names ``what`` and shows the last value.
    """
    deadline_s = time.monotonic() + timeout_s
    while not good(found := look()):
        assert time.monotonic() < deadline_s, _in_vain(what, timeout_s, found)
        time.sleep(pause_s)
    return found


async def eventually_async(
    look: Callable[[], T | Awaitable[T]],
    what: str,
    timeout_s: float = PATIENCE_S,
    *,
    good: Callable[[T], object] = bool,
    pause_s: float = 0.01,
) -> T:
    """The same in a task, by the loop's time; ``look`` may be a coroutine function."""
    time_s = asyncio.get_running_loop().time
    deadline_s = time_s() + timeout_s
    while True:
        value = look()
        found: T = await value if inspect.isawaitable(value) else value
        if good(found):
            return found
        assert time_s() < deadline_s, _in_vain(what, timeout_s, found)
        await asyncio.sleep(pause_s)


def _in_vain(what: str, timeout_s: float, found: object) -> str:
    return f"waited {timeout_s:g} s in vain: {what}; the last value was {found!r}"
