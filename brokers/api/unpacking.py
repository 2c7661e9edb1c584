"""What the compressed batches of Produce requests may unpack to in one turn of the loop.

Some kilobytes can hold 64 MiB (``decompressed.batch.max.bytes``), which take tens of milliseconds. When a turn has
unpacked its share, requests that are decoded later in it wait for one of the next turns, whichever connection they are
of; a request of several partitions is interrupted between two of them. What a request may unpack to in all is bounded
by ``decompressed.request.max.bytes``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

PAUSE = object()
"""What a generator yields that is to go on in another turn of the loop, however little it has done in this one."""
BYTES_PER_TURN = 8 * 1024 * 1024
"""Some 8 ms of work. One batch may pass it: a batch is unpacked in one go."""
PATIENCE = 8
"""Turns that a request waits for its share: after them it goes on, so that no traffic of others stops it."""
ATTRIBUTES_AT, CODEC_MASK = 22, 0x07


class Unpacking:
    """How much was unpacked in this turn; nothing is counted before a loop has taken it."""

    __slots__ = ("_call_soon", "_spent", "exhausted")

    def __init__(self) -> None:
        self._call_soon: Callable[[Callable[[], None]], Any] | None = None
        self._spent = 0
        self.exhausted = False
        """Whether the turn has had its share."""

    def count_on(self, call_soon: Callable[[Callable[[], None]], Any]) -> None:
        """Count in turns of that loop."""
        self._call_soon = call_soon

    def spend(self, size: int) -> None:
        """So many bytes were unpacked, or what takes as long."""
        if self._call_soon is None:
            return
        if not self._spent:
            self._call_soon(self._next_turn)
        self._spent += size
        self.exhausted = self._spent >= BYTES_PER_TURN

    def share(self) -> Iterator[object]:
        """Pauses of paced work, until the turn has something left."""
        for _ in range(PATIENCE):
            if not self.exhausted:
                break
            yield PAUSE

    def _next_turn(self) -> None:
        self._spent, self.exhausted = 0, False


def is_compressed(records: bytes | memoryview | None) -> bool:
    """Whether a batch's header names a codec; what is no batch is refused before anything is unpacked."""
    return records is not None and len(records) > ATTRIBUTES_AT and records[ATTRIBUTES_AT] & CODEC_MASK != 0
