"""Low descriptors, kept for who selects: ``select`` knows none above 1,023, and a worker's tests may have more open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

COUNT = 200
_kept: list[int] = []


def keep() -> None:
    """Hold the lowest ones that are free."""
    while len(_kept) < COUNT:
        _kept.append(os.open(os.devnull, os.O_RDONLY))


@contextmanager
def released() -> Iterator[None]:
    """What is opened meanwhile gets them."""
    while _kept:
        os.close(_kept.pop())
    try:
        yield
    finally:
        keep()
