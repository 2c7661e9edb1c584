"""The change log: what each multi of the controller changed, in one place, in order.

Every multi that changes shared state also creates ``/fleetlog/changes/c_<seq>`` with the new values, so brokers need
not read thousands of znodes again. ZooKeeper numbers the entries without gaps, also across deletes and failed multis;
so a missing number means entries that were pruned before we read them, and the answer is to read everything again.
The pruner never takes the newest entry, or else such a gap could not be seen.

The content of an entry is the writers' and readers' affair; here it is bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import NamedTuple

from coordination.election import Leadership, fenced_multi
from coordination.store import (
    MAX_MULTI_OPERATIONS,
    Create,
    Delete,
    MultiFailed,
    NoNode,
    SessionEvent,
    SessionState,
    Store,
    StoreError,
    WatchEvent,
)
from coordination.tree import CHANGES

PREFIX = "c_"
_READS_AT_ONCE = 128
_RETRY_S = 0.3

_log = logging.getLogger(__name__)


class Change(NamedTuple):
    """One entry of the log."""

    sequence: int
    data: bytes


def entry(data: bytes) -> Create:
    """The operation that adds an entry; one per multi, beside the changes it tells of."""
    return Create(f"{CHANGES}/{PREFIX}", data, sequence=True)


def path_of(sequence: int) -> str:
    """The entry's path."""
    return f"{CHANGES}/{PREFIX}{sequence:010d}"


def sequence_of(name: str) -> int:
    """The number in an entry's name or path."""
    return int(name.rpartition("_")[2])


class Step(Enum):
    """What a reader that has everything up to one number does with a listing."""

    NOTHING = "nothing"
    APPLY = "apply"
    RELOAD = "reload"


def next_step(applied: int, listed: Sequence[int]) -> tuple[Step, Sequence[int]]:
    """Decide from the rising numbers of a listing. ``applied`` -1: nothing yet. Pure.

    A listing that ends below ``applied`` is an older state of the tree (a lagging server): nothing to do.
    """
    news = [sequence for sequence in listed if sequence > applied]
    if not news:
        return Step.NOTHING, ()
    if news[0] != applied + 1 or news[-1] - news[0] + 1 != len(news):
        return Step.RELOAD, ()
    return Step.APPLY, news


class ChangeReader:
    """Follows the log: one full ``reload``, then ``apply`` per entry, in order, on the loop.

    ``reload`` reads the whole state; entries that existed when it began are part of what it reads, later ones are
    applied after it (their effect may be in what was read: appliers keep the newer znode version). A StoreError from it
    means another try. ``apply`` must not raise.
    """

    def __init__(self, store: Store, *, reload: Callable[[], Awaitable[None]], apply: Callable[[Change], None]) -> None:
        self._store = store
        self._reload = reload
        self._apply = apply
        self._wake = asyncio.Event()
        self._loaded: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.applied = -1
        self.reloads = 0

    async def start(self) -> None:
        """Begin to follow; returns after the first full reload."""
        loop = asyncio.get_running_loop()
        self._loaded = loop.create_future()
        self._store.on_session(self._on_session)
        self._wake.set()
        self._task = loop.create_task(self._run(), name="change-log")
        await asyncio.shield(self._loaded)

    async def stop(self) -> None:
        """Follow no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _on_session(self, event: SessionEvent) -> None:
        if event.state is SessionState.CONNECTED:
            self._wake.set()

    def _on_watch(self, _event: WatchEvent) -> None:
        self._wake.set()

    async def _run(self) -> None:
        assert self._loaded is not None
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while await self._step():
                    pass
            except StoreError as error:
                _log.info("following the change log: %s", error)
                await asyncio.sleep(_RETRY_S)
                self._wake.set()

    async def _step(self) -> bool:
        """Catch up with one listing; True when another look is due at once."""
        assert self._loaded is not None
        listed = sorted(sequence_of(name) for name in await self._store.children(CHANGES, self._on_watch))
        if self.reloads == 0:
            await self._reload_from(listed)
            self._loaded.set_result(None)
            return True
        step, news = next_step(self.applied, listed)
        if step is Step.RELOAD:
            _log.warning("the change log misses entries after %d: reading everything again", self.applied)
            await self._reload_from(listed)
            return True
        for start in range(0, len(news), _READS_AT_ONCE):
            batch = news[start : start + _READS_AT_ONCE]
            entries = await asyncio.gather(*(self._read(sequence) for sequence in batch))
            for found in entries:
                if found is None:  # pruned between the listing and the reading
                    await self._reload_from(listed)
                    return True
                self._apply(found)
                self.applied = found.sequence
        return False

    async def _reload_from(self, listed: Sequence[int]) -> None:
        await self._reload()
        self.applied = max(self.applied, listed[-1] if listed else -1)
        self.reloads += 1

    async def _read(self, sequence: int) -> Change | None:
        try:
            data, _ = await self._store.get(path_of(sequence))
        except NoNode:
            return None
        return Change(sequence, data)


class Pruner:
    """Deletes entries that are too many or too old; only the controller prunes.

    Age counts from when this pruner first saw the entry, on its own monotonic clock: entries carry no clock of others.
    """

    def __init__(self, store: Store, *, keep_count: int, keep_ms: int, mono_ms: Callable[[], int]) -> None:
        assert keep_count >= 1, "the newest entry stays: without it a gap cannot be seen"
        self._store = store
        self._keep_count = keep_count
        self._keep_ms = keep_ms
        self._mono_ms = mono_ms
        self._first_seen_ms: dict[int, int] = {}

    async def prune(self, leadership: Leadership) -> int:
        """One round; how many entries it deleted. Raises ControllerMoved and the store's exceptions."""
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
                break  # an operator deletes beside us: look again in the next round
            deleted += len(batch)
        return deleted

    def _doomed(self, listed: Sequence[int], now_ms: int) -> list[int]:
        surplus = len(listed) - self._keep_count
        return [
            sequence
            for index, sequence in enumerate(listed[:-1])
            if index < surplus or now_ms - self._first_seen_ms[sequence] >= self._keep_ms
        ]
