"""Gives back to the system the memory that pages have used, and looks for garbage no more often than it pays.

A page may scan 20 MB. glibc keeps what was freed, for each thread apart (an "arena"), and there are as many threads as
pages at the same time: a console that did nothing for hours would still hold what its busiest minute took.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Final

import anyio
import anyio.to_thread

QUIET_S: Final = 0.5
"""So long after a page its memory is given back: in a busy time that is done twice a second at most."""


GC_THRESHOLDS: Final = (20_000, 10, 10)
"""A page makes some ten thousand objects that live until it is sent; Python looks for cycles after each 700."""


def settle() -> None:
    """What there is at the start stays: Python's search for garbage leaves it out, and is done less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def trim_function() -> Callable[[], object] | None:
    """glibc's ``malloc_trim`` for all that is free; None where the system's library has none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return None
    trim.argtypes = (ctypes.c_size_t,)
    return lambda: trim(0)


class SpareMemory:
    """Waits for pages and gives back what they leave; ``trim`` does it."""

    def __init__(self, trim: Callable[[], object] | None) -> None:
        self._trim = trim
        self._ended = anyio.Event()

    def page_ended(self) -> None:
        """On the loop: there may be something to give back."""
        self._ended.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        if self._trim is None:
            return
        while True:
            await self._ended.wait()
            self._ended = anyio.Event()
            await anyio.sleep(QUIET_S)
            await anyio.to_thread.run_sync(self._trim)
