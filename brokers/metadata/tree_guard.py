"""Whether ZooKeeper's tree is at least as new as what this broker has seen of it.

A tree that was restored from an older copy knows nothing of later topics, elections and moves. A broker that followed
it would give up logs with acknowledged records, and lead with epochs that were used before. So it compares the tree
with its marks (:mod:`brokers.metadata.marks`) before it reads everything, registers, or takes part in an election, and
refuses as long as the tree is behind: until the newer tree is back, or one of a later generation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.loading import children_or_none, list_changes, read_or_none
from fleetlog.brokers.metadata.marks import ClusterMarks, lower, newest
from fleetlog.coordination.registration import incarnation_path
from fleetlog.coordination.store import Store, StoreError, Watch

logger = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Before the tree is looked at again."""
_PROOF = re.compile(rf"([0-9]+)-([0-9]+)-[0-9]+-{znodes.PROVEN}")
"""What a broker tells of its logs, by its id and the tree's generation."""
HELP = (
    "This broker leads nothing and deletes nothing. If a newer state of ZooKeeper exists, bring it back; else run"
    " 'fleetlog cluster repair' (docs/zookeeper-backup.md)"
)


T = TypeVar("T")


class TreeBehind(StoreError):
    """ZooKeeper is older than what this broker has seen."""


class TreeGuard:
    """See the module. ``marks`` are those from before the start. Loop thread only."""

    def __init__(self, store: Store, broker_id: int, marks: ClusterMarks | None = None) -> None:
        self.marks = marks or ClusterMarks()
        self.behind: str | None = None
        """Why ZooKeeper is older than what this broker has seen; None if it is not."""
        self.proven = False
        """Whether this broker has found that out by itself, and not only heard it from others."""
        self.repaired = False
        """Whether the tree was repaired since this process, or the one before it, saw it."""
        self.on_behind: Callable[[], None] = lambda: None
        self._store = store
        self._broker_id = broker_id
        self._trusted = False
        self._logs_ahead: str | None = None

    def note(self, *, change: int = -1, change_ms: int = -1, producer_id: int = -1) -> None:
        """This was seen in a tree that was found to be new enough."""
        if change > self.marks.change or producer_id > self.marks.producer_id:
            seen = ClusterMarks(self.marks.generation, change=change, producer_id=producer_id, change_ms=change_ms)
            self.marks = newest((self.marks, seen))

    def registered(self, incarnation: int) -> None:
        """This broker has registered, for the first time since a repair if there was one."""
        self.repaired = False
        self.marks = self.marks._replace(incarnation=max(self.marks.incarnation, incarnation))

    async def check(self) -> None:
        """Compare the tree's numbers with those seen, and note higher ones. Raises TreeBehind (after a pause)."""
        marks, wrong = await self._look()
        if wrong is not None:
            await self._store.sync(znodes.CHANGES)  # the server that answered may lag behind the others
            marks, wrong = await self._look()
        self.proven = wrong is not None or self._logs_ahead is not None
        if wrong is None and not self._trusted:
            wrong = await self._others(marks.generation)
        if wrong is not None:
            self.refuse(wrong)
            await asyncio.sleep(PAUSE_S)
            raise TreeBehind(f"ZooKeeper is older than what this broker has seen: {wrong}")
        if marks.generation > self.marks.generation:
            logger.warning("ZooKeeper was repaired: generation %d", marks.generation)
            self.repaired = True
            marks = marks._replace(producer_id=max(marks.producer_id, self.marks.producer_id))
        self.marks = newest((self.marks, marks))
        self._trusted = True
        if self.behind is not None and self._logs_ahead is None:
            logger.warning("ZooKeeper is not older any more than what this broker has seen")
        self.behind = self._logs_ahead

    async def is_current(self) -> bool:
        """Whether the tree is new enough now; if not, the answer takes a second."""
        try:
            await self.check()
        except TreeBehind:
            return False
        return self._logs_ahead is None

    async def when_current(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do it once the tree is new enough, and again if the tree is found older meanwhile; returns the last outcome.

        Raises StoreError, and what ``act`` raises.
        """
        while True:
            if await self.is_current():
                outcome = await act()
                if self.behind is None:
                    return outcome

    def refuse(self, why: str) -> None:
        """ZooKeeper is older than what this broker has seen."""
        before, self.behind, self._trusted = self.behind, why, False
        if before is not None:
            return
        logger.error(
            "ZooKeeper is older than what this broker has seen: %s. Was it restored from a copy? %s", why, HELP
        )
        self.on_behind()

    async def compare_logs(self, later: Callable[[], str | None], refreshed: Callable[[], Awaitable[object]]) -> None:
        """Return when no log has leader epochs of elections that the tree does not know: ``later`` names such logs.

        Before it believes that there are some it waits until what was read of the tree is ``refreshed``.
        """
        if later() is not None:
            with contextlib.suppress(StoreError):
                await refreshed()  # the server that answered may lag behind the others
        while (ahead := later()) is not None:
            self._logs_ahead, self.proven = ahead, True
            self.refuse(ahead)
            await asyncio.sleep(PAUSE_S)
        self._logs_ahead = None

    async def _look(self) -> tuple[ClusterMarks, str | None]:
        seen = self.marks  # more may be seen while the tree is read
        marks = await read_marks(self._store, self._broker_id)
        return marks, lower(seen, marks) or await self._other_change(seen, marks)

    async def _other_change(self, seen: ClusterMarks, found: ClusterMarks) -> str | None:
        """Whether the newest change that was seen is another one here. Brokers that saw less may have made it.

        An entry that was pruned meanwhile cannot be compared.
        """
        if found.generation != seen.generation or seen.change_ms < 0:
            return None
        same = found.change == seen.change
        made_ms = found.change_ms if same else await _made_ms(self._store, seen.change)
        return None if made_ms in {-1, seen.change_ms} else f"its change {seen.change} is not the one that was seen"

    async def _others(self, generation: int) -> str | None:
        """Whether other brokers have found this tree behind: this one may have been away when it was newer.

        Those that only heard it do not count, else all would wait for each other when the newer tree is back.
        """
        return self._proof(await children_or_none(self._store, znodes.INVENTORIES), generation)

    async def listen(self, watch: Watch) -> None:
        """Refuse if another broker has found this tree behind; ``watch`` says when to listen again."""
        if await self._store.exists(znodes.INVENTORIES, watch) is None:
            return
        wrong = self._proof(await self._store.children(znodes.INVENTORIES, watch), self.marks.generation)
        if wrong is not None and self.behind is None:
            self.refuse(wrong)

    def _proof(self, inventories: Iterable[str], generation: int) -> str | None:
        for match in map(_PROOF.fullmatch, inventories):
            if match is not None and int(match[1]) != self._broker_id and int(match[2]) == generation:
                return f"broker {match[1]} says so"
        return None


async def read_marks(store: Store, broker_id: int) -> ClusterMarks:
    """The numbers of the tree as it is now."""
    generation = await read_or_none(store, znodes.GENERATION)
    controller_epoch = await read_or_none(store, znodes.CONTROLLER_EPOCH)
    changes = await list_changes(store)
    registrations = await store.exists(incarnation_path(broker_id))
    return ClusterMarks(
        znodes.decode_number(znodes.GENERATION, generation[0]) if generation is not None else 0,
        znodes.decode_number(znodes.CONTROLLER_EPOCH, controller_epoch[0]) if controller_epoch is not None else -1,
        changes[-1] if changes else -1,
        registrations.version if registrations is not None else 0,
        change_ms=await _made_ms(store, changes[-1]) if changes else -1,
    )


async def _made_ms(store: Store, change: int) -> int:
    """When ZooKeeper made this entry of the change log; -1 if it has none."""
    stat = await store.exists(znodes.change_path(change))
    return stat.created_ms if stat is not None else -1
