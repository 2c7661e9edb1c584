"""Allocates blocks of producer ids in ZooKeeper by compare-and-set. ``txn.producer_ids`` decides.

Every attempt has a unique stamp, so that after an unknown outcome the znode, read after a sync, shows whether it was
written. If the stamp is not there the attempt may have been overwritten; its ids are lost and never used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fleetlog.brokers.metadata.tree_guard import TreeBehind, TreeGuard
from fleetlog.coordination.store import BadVersion, NodeExists, NoNode, SessionExpired, StoreError, UnknownOutcome
from fleetlog.coordination.store import Store as StorePort
from fleetlog.txn.producer_ids import Block, BlockError, Exhausted, ProducerIds, decode_block, encode_block, next_block

logger = logging.getLogger(__name__)

PATH = "/latest_producer_id_block"
FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 2.0
MAX_WAITING = 10_000


class ProducerIdAllocator:
    """Producer ids for this broker. ``attempt_prefix`` names broker and incarnation, for the stamps.

    No id is given twice: not while the tree is ``guard``ed as older than what was seen, and none below those seen.
    """

    def __init__(
        self, store: StorePort, broker_id: int, attempt_prefix: Callable[[], str], guard: TreeGuard | None = None
    ) -> None:
        self._store = store
        self._guard = guard or TreeGuard(store, broker_id)
        self._broker_id = broker_id
        self._attempt_prefix = attempt_prefix
        self._attempts = 0
        self._unresolved: dict[str, Block] = {}
        """What was written without an answer, by stamp. A process before this one may have used the same stamps."""
        self._ids = ProducerIds()
        self._waiting: list[Callable[[int | None], None]] = []
        self._fillers: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None

    def take(self) -> int | None:
        """An id, or None if none is available (then a block is requested)."""
        taken = self._ids.take()
        if self._ids.wants_block:
            self._refill()
        return taken

    def when_ready(self, callback: Callable[[int | None], None]) -> None:
        """Call with an id as soon as there is one, or with None if too many callbacks wait already."""
        taken = self.take()
        if taken is not None or len(self._waiting) >= MAX_WAITING:
            callback(taken)
        else:
            self._waiting.append(callback)

    def when_filled(self, callback: Callable[[], None]) -> None:
        """Call when :meth:`take` can return an id, or when no more ids will come."""
        if self._ids.wants_block:
            self._refill()
        if self._ids.left or len(self._fillers) >= MAX_WAITING:
            callback()
        else:
            self._fillers.append(callback)

    async def close(self) -> None:
        """Stop allocating; waiting callbacks get None."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._serve_waiting(give_up=True)

    def _refill(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._fetch(), name="producer id block")

    async def _fetch(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._ids.wants_block or self._waiting or self._fillers:
            try:
                block = await self._try_once()
            except (Exhausted, BlockError) as error:
                logger.error("no producer ids available: %s", error or "all are used up")
                self._serve_waiting(give_up=True)
                return
            except StoreError as error:
                logger.info("allocating a producer id block failed, retrying: %s", error)
                block = None
            if block is not None:
                self._ids.add(block)
                self._serve_waiting()
                pause_s = FIRST_PAUSE_S
                continue
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LAST_PAUSE_S)

    def _serve_waiting(self, give_up: bool = False) -> None:
        fillers, self._fillers = self._fillers, []
        for filler in fillers:
            filler()
        waiting, self._waiting = self._waiting, []
        for position, callback in enumerate(waiting):
            taken = None if give_up else self._ids.take()
            if taken is None and not give_up:
                self._waiting = waiting[position:] + self._waiting
                return
            callback(taken)

    async def _try_once(self) -> Block | None:
        """One compare-and-set; None if another broker was faster or the outcome is unknown."""
        if self._guard.behind is not None:
            raise TreeBehind("ZooKeeper may have given these ids to others")
        if self._unresolved:
            await self._store.sync(PATH)
        try:
            data, stat = await self._store.get(PATH)
        except NoNode:
            data, stat = b"", None
        stored = decode_block(data) if data else None
        if stored is not None and self._unresolved.get(stored.stamp) == stored.block:
            self._unresolved.clear()
            self._guard.note(producer_id=stored.block.last)
            return stored.block  # the write whose answer was lost
        block = next_block(stored, self._guard.marks.producer_id)
        self._attempts += 1
        stamp = f"{self._attempt_prefix()}-{self._attempts}"
        written = encode_block(block, self._broker_id, stamp)
        try:
            if stat is None:
                await self._store.create(PATH, written, parents=True)
            else:
                await self._store.set(PATH, written, stat.version)
        except UnknownOutcome:
            self._unresolved[stamp] = block
            raise
        except (BadVersion, NodeExists, NoNode, SessionExpired):
            return None
        self._unresolved.clear()
        self._guard.note(producer_id=block.last)
        return block
