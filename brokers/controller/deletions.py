"""Deleted topics that live brokers may still know by their names.

A leader that has not read the deletion yet takes a record for the deleted log; a group coordinator takes an offset, and
drops it with the deleted topic's; a follower proposes that it leaves the in-sync set. A client that makes a topic of
the same name in the meantime would take all that for the new topic's. So a deletion is answered, and its name is free
again, when each live broker has confirmed it, or its registration has ended. (Kafka's controller with ZooKeeper waits
in the same way, for the deletion of every replica.) Until then the name has a znode, so that the next controller waits
for them, too.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from fleetlog.brokers.controller import plans
from fleetlog.brokers.controller.context import ControllerContext, NotController
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.loading import children_or_none, read_many
from fleetlog.brokers.model import BrokerId
from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.brokers.replication import ends
from fleetlog.coordination.store import StoreError
from fleetlog.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.01
LAST_PAUSE_S = 0.5
LONGEST_S = 30.0
"""After this time a live broker has read the deletion, though it cannot be asked. So long, at least: a broker that
stands still may come back with its lease as long as its session has not ended."""


@dataclass(eq=False, slots=True)
class UnconfirmedDeletion:
    """A topic that was deleted, and which brokers, by incarnation, have confirmed that. ``give_up`` is loop time."""

    topic_id: uuid.UUID
    give_up: float
    read_here: bool = False
    confirmed: dict[BrokerId, int] = field(default_factory=dict)


class UnconfirmedDeletions(Container[str]):
    """The names of such topics, and of those whose deletion stopped half-way."""

    def __init__(self, context: ControllerContext, peers: PeersPort, broker_id: int) -> None:
        self._context = context
        self._peers = peers
        self._broker_id = broker_id
        self._waiting: dict[str, UnconfirmedDeletion] = {}
        self._added, self._freed = asyncio.Event(), asyncio.Event()
        self._ended = False

    def __contains__(self, name: object) -> bool:
        return name in self._waiting or name in self._context.deleting

    def add(self, name: str, topic_id: uuid.UUID) -> None:
        """Wait for the confirmations of a deletion. Call before its lock is free."""
        known = self._waiting.get(name)
        if known is None or known.topic_id != topic_id:
            session = self._context.store.session()
            longest_s = max(LONGEST_S, 2 * session.timeout_ms / 1000 if session is not None else 0.0)
            self._waiting[name] = UnconfirmedDeletion(topic_id, asyncio.get_running_loop().time() + longest_s)
            self._added.set()

    async def begin(self) -> None:
        """Read what the previous controllers have left; raises NotController, BadZnode."""
        await self._context.insist("reading the deleted topics", self._read_marks)

    async def _read_marks(self) -> None:
        names = await self._marked()
        paths = [znodes.deleted_topic_path(name) for name in names]
        for name, path, row in zip(names, paths, await read_many(self._context.store, paths), strict=True):
            if row is not None:
                self.add(name, znodes.decode_delete_mark(path, row[0]))

    async def _marked(self) -> list[str]:
        return await children_or_none(self._context.store, znodes.DELETED_TOPICS)

    async def confirmed(self, names: Iterable[str]) -> None:
        """Return when these names are free, which were added before; raises NotController. Call without the lock."""
        left = list(names)
        while left := [name for name in left if name in self._waiting]:
            if self._ended:
                raise NotController("another controller waits for the confirmations of what was deleted")
            await self._freed.wait()

    async def run(self) -> None:
        """Wait for confirmations, and free names, until cancelled; raises NotController, BadZnode."""
        pause = FIRST_PAUSE_S
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause if self._waiting else None):
                        await self._added.wait()
                pause = FIRST_PAUSE_S if self._added.is_set() else min(2 * pause, LAST_PAUSE_S)
                self._added.clear()
                await self._look()
        finally:
            self._ended = True
            self._freed.set()

    async def _look(self) -> None:
        """Ask the brokers once, and free the names that no live one may take for a deleted topic's any more."""
        waiting = dict(self._waiting)
        # Before the live brokers are listed: a leader's registration, too, may not have been read here yet.
        await self._read_here([deletion for deletion in waiting.values() if not deletion.read_here])
        asked = [deletion for deletion in waiting.values() if deletion.read_here]
        await asyncio.gather(
            *(self._ask(broker_id, incarnation, asked) for broker_id, incarnation in self._others().items())
        )
        self._context.check_session()  # else they were waited for in vain
        now, done = asyncio.get_running_loop().time(), {}
        for name, deletion in waiting.items():
            silent = self._silent(deletion)
            if not silent or now >= deletion.give_up:
                done[name] = deletion
            if silent and name in done:
                logger.warning("topic %s: brokers %s did not confirm its deletion in time", name, silent)
        if done:
            async with self._context.lock:
                await self._context.persist("freeing names", lambda: self._free(done))

    def _silent(self, deletion: UnconfirmedDeletion) -> list[int]:
        """The live brokers that have not confirmed."""
        others, confirmed = self._others(), deletion.confirmed
        silent: list[int] = [b for b, incarnation in others.items() if confirmed.get(b) != incarnation]
        return silent if deletion.read_here else [self._broker_id, *silent]

    def _others(self) -> dict[BrokerId, int]:
        """The incarnations of the other live brokers."""
        live_brokers = self._context.live_brokers
        return {BrokerId(b): live_broker.incarnation for b, live_broker in live_brokers.items() if b != self._broker_id}

    async def _free(self, done: Mapping[str, UnconfirmedDeletion]) -> None:
        marked = set(await self._context.read_now(self._marked()))
        names = [name for name, deletion in done.items() if self._waiting.get(name) is deletion]
        await self._context.perform(plans.free_names([name for name in names if name in marked]))
        for name in names:
            del self._waiting[name]
        self._freed.set()
        self._freed = asyncio.Event()

    async def _read_here(self, deletions: Collection[UnconfirmedDeletion]) -> None:
        """The metadata cache of this broker may lag behind its controller, too."""
        if not deletions:
            return
        try:
            current = await self._context.metadata.refreshed(int(1000 * LAST_PAUSE_S))
        except StoreError as problem:
            logger.debug("whether this broker has read its deletions is not known: %s", problem)
            return
        for deletion in deletions:
            deletion.read_here = current

    async def _ask(self, broker_id: BrokerId, incarnation: int, deletions: Iterable[UnconfirmedDeletion]) -> None:
        asked = {one.topic_id: one for one in deletions if one.confirmed.get(broker_id) != incarnation}
        if not asked:
            return
        try:
            answering, ends_by_topic = await ends.ask(self._peers, broker_id, {topic_id: [0] for topic_id in asked})
        except PeerUnavailable as problem:
            logger.debug("broker %d can't confirm the deletion of %d topics: %s", broker_id, len(asked), problem)
            return
        for topic_id, answers in ends_by_topic.items():
            if topic_id in asked and all(one.error is ErrorCode.UNKNOWN_TOPIC_ID for one in answers.values()):
                asked[topic_id].confirmed[broker_id] = answering
