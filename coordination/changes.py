"""The change log: the changes of each multi, in one place, in order.

Every multi that changes shared state also creates ``/fleetlog/changes/c_<seq>`` with the new values, so brokers need
not read thousands of znodes again. ZooKeeper numbers the entries without gaps, also across deletes and failed multis.
So a missing number means entries that were pruned before they were read, and the reader reads everything again. The
pruner never deletes the newest entry, otherwise such a gap would be invisible.

Here the content of an entry is bytes; writers and readers define it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fleetlog.coordination.election import Leadership, fenced_multi
from fleetlog.coordination.store import (
    MAX_MULTI_OPERATIONS,
    Create,
    Delete,
    MultiFailed,
    NoNode,
    Store,
)
from fleetlog.coordination.tree import CHANGES

PREFIX = "c_"


def entry(data: bytes) -> Create:
    """The operation that adds an entry; one per multi, beside the changes that it describes."""
    return Create(f"{CHANGES}/{PREFIX}", data, sequence=True)


def path_of(sequence: int) -> str:
    """The entry's path."""
    return f"{CHANGES}/{PREFIX}{sequence:010d}"


def sequence_of(name: str) -> int:
    """The number in an entry's name or path."""
    return int(name.rpartition("_")[2])


class Pruner:
    """Deletes entries that are too many or too old; only the controller prunes.

    Age counts from the time when this pruner first saw the entry, on its own monotonic clock.
    """

    def __init__(self, store: Store, *, keep_count: int, keep_ms: int, mono_ms: Callable[[], int]) -> None:
        assert keep_count >= 1, "the newest entry stays: without it a gap cannot be seen"
        self._store = store
        self._keep_count = keep_count
        self._keep_ms = keep_ms
        self._mono_ms = mono_ms
        self._first_seen_ms: dict[int, int] = {}

    async def prune(self, leadership: Leadership) -> int:
        """One round; returns the number of deleted entries. Raises ControllerMoved and the store's exceptions."""
        listed = sorted(sequence_of(name) for name in await self._store.children(CHANGES))
        now_ms = self._mono_ms()
        self._first_seen_ms = {sequence: self._first_seen_ms.get(sequence, now_ms) for sequence in listed}
        doomed = self._doomed(listed, now_ms)
        deleted = 0
        for start in range(0, len(doomed), MAX_MULTI_OPERATIONS - 1):
            batch = doomed[start : start + MAX_MULTI_OPERATIONS - 1]
            try:
                await fenced_multi(self._store, leadership, [Delete(path_of(sequence)) for sequence in batch])
            except MultiFailed as failed:
                if not isinstance(failed.cause, NoNode):
                    raise
                break  # an operator deletes concurrently: continue in the next round
            deleted += len(batch)
        return deleted

    def _doomed(self, listed: Sequence[int], now_ms: int) -> list[int]:
        surplus = len(listed) - self._keep_count
        return [
            sequence
            for index, sequence in enumerate(listed[:-1])
            if index < surplus or now_ms - self._first_seen_ms[sequence] >= self._keep_ms
        ]
