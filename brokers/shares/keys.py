"""Which records of a share partition may be given out so that none overtakes another of its key. Pure.

Keys are learned in the order of offsets. Of each key the first record that is not finished may be given out, and while
it is with a member, or waits to be tried again, those behind it wait. Records without a key wait for nobody.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

MAX_KEYED = 20_000
"""The most records whose keys are kept, some 200 bytes each: those that are learned and not finished."""


class KeyOrder:
    """See the module. ``free`` says whether a record could be given out if its key permitted it."""

    def __init__(self, start: int, free: Callable[[int], bool]) -> None:
        self.end = start
        """The keys of all records below are known, but for those that were finished."""
        self._free = free
        self._keys: dict[int, bytes | None] = {}
        self._queues: dict[bytes, deque[int]] = {}
        self._heads: list[int] = []
        """A heap of what may be the next one of its key, with some that are not any more."""

    def __len__(self) -> int:
        return len(self._keys)

    def learn(self, offset: int, key: bytes | None) -> None:
        """The record after those that are known."""
        self.end = offset + 1
        self._keys[offset] = key
        if key is not None:
            queue = self._queues.get(key)
            if queue is not None:
                queue.append(offset)
                return
            self._queues[key] = deque((offset,))
        heapq.heappush(self._heads, offset)

    def begin(self, start: int) -> None:
        """All below is finished, whether it was known or not."""
        self.end = max(self.end, start)

    def freed(self, first: int, last: int) -> None:
        """These may be given out (again), as far as their keys permit it."""
        for offset in range(first, min(last + 1, self.end)):
            if self._is_head(offset):
                heapq.heappush(self._heads, offset)

    def finished(self, first: int, last: int) -> None:
        """These have come to their end: the next ones of their keys may be given out."""
        for offset in range(first, min(last + 1, self.end)):
            key = self._keys.pop(offset, None)
            if key is None:
                continue
            queue = self._queues[key]
            head = queue[0] == offset
            if head:
                queue.popleft()
            else:
                queue.remove(offset)
            if not queue:
                del self._queues[key]
            elif head:
                heapq.heappush(self._heads, queue[0])

    def behind(self, offset: int) -> list[int]:
        """The known records of its key that are behind one, in order."""
        key = self._keys.get(offset)
        return [] if key is None else [other for other in self._queues[key] if other > offset]

    def longest(self) -> tuple[int, bytes] | None:
        """The first record of the key that has most of the known ones, and the key; None if none has one."""
        if not self._queues:
            return None
        key = max(self._queues, key=lambda key: len(self._queues[key]))
        return self._queues[key][0], key

    def before(self, offset: int) -> int | None:
        """Of a record that was just learned: the one of its key before it; None if there is none."""
        key = self._keys.get(offset)
        if key is None or len(self._queues[key]) < 2:
            return None
        return self._queues[key][-2]

    def next(self) -> int | None:
        """The first record that may be given out; None if there is none among the known ones."""
        while self._heads:
            if self._is_head(self._heads[0]) and self._free(self._heads[0]):
                return self._heads[0]
            heapq.heappop(self._heads)
        return None

    def pop(self) -> int:
        """Take :meth:`next` out: it is given out."""
        return heapq.heappop(self._heads)

    def pop_if(self, offset: int) -> bool:
        """Take the record out that is given out, if :meth:`next` would be this one, which is free."""
        if self._heads and self._heads[0] == offset and self._is_head(offset):
            heapq.heappop(self._heads)
            return True
        return False

    def _is_head(self, offset: int) -> bool:
        if offset not in self._keys:
            return False
        key = self._keys[offset]
        return key is None or self._queues[key][0] == offset
