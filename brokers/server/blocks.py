"""The memory that the connections of one loop receive into, and when it may be used again."""

from __future__ import annotations

from sys import getrefcount

RECEIVE_BYTES = 256 * 1024
LARGE_STEP = 64 * 1024
KEPT = 8
"""Blocks for what is used up in a turn."""
LARGE_KEPT = 4
LARGE_MOST = 2 * 1024 * 1024
_ALONE = 2
"""References to a block that only its list refers to, as seen by getrefcount: the list's and the call's."""


class Blocks:
    """Blocks that are given out as views. A block is given out again when no view of it is left.

    Nobody gives anything back: a view refers to its block, and that can be counted. A frame that somebody still holds
    costs the next receiver a new block, never a byte of the frame.
    """

    def __init__(self, size: int = RECEIVE_BYTES) -> None:
        self._size = size
        self._common: list[bytearray] = []
        self._large: list[bytearray] = []

    def common(self) -> memoryview:
        """A block for what is used up in a turn of the loop, whole: the same one, unless somebody still reads it."""
        kept = self._common
        if kept and getrefcount(kept[0]) <= _ALONE:
            return memoryview(kept[0])
        return memoryview(self._free(kept, self._size, KEPT))

    def _free(self, kept: list[bytearray], size: int, most: int) -> bytearray:
        for index in range(len(kept)):
            if len(kept[index]) >= size and getrefcount(kept[index]) <= _ALONE:
                return kept[index]
        block = bytearray(size)
        if size <= LARGE_MOST:
            if len(kept) >= most:
                del kept[0]
            kept.append(block)
        return block

    def large(self, size: int) -> memoryview:
        """A block for one large frame. A few are kept: fresh memory costs the system more than receiving into it."""
        if size < LARGE_STEP:
            return memoryview(bytearray(size))
        return memoryview(self._free(self._large, -(-size // LARGE_STEP) * LARGE_STEP, LARGE_KEPT))[:size]
