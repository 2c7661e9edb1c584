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
from collections.abc import Container, Mapping, Sequence

from brokers.controller import plans
from brokers.controller.context import RETRY_SECONDS, ControllerContext
from brokers.metadata import znodes
from brokers.metadata.loading import children_or_none, read_or_none
from brokers.model import BrokerId, TopicInfo
from brokers.peers.calls import PeersPort, PeerUnavailable
from brokers.replication import ends
from coordination.store import StoreError
from wire.errors import ErrorCode

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.01
LAST_PAUSE_S = 0.5
LONGEST_S = 30.0
"""After this time a live broker has read the deletion, though it cannot be asked. So long, at least: a broker that
stands still may come back with its lease as long as its session has not ended."""


class UnconfirmedDeletions(Container[str]):
    """The names of such topics, and of those whose deletion stopped half-way."""

    def __init__(self, context: ControllerContext, peers: PeersPort, broker_id: int) -> None:
        self._context = context
        self._peers = peers
        self._broker_id = broker_id
        self._topics: dict[str, uuid.UUID] = {}
        self._left: set[str] = set()
        """Those for which no request waits."""
        self._wake = asyncio.Event()

    def __contains__(self, name: object) -> bool:
        return name in self._topics or name in self._context.deleting

    def add(self, topic: TopicInfo) -> None:
        """Note the topic. Call before the deletion's lock is free."""
        self._topics[topic.name] = topic.id

    def leave(self, names: Sequence[str]) -> None:
        """Let :meth:`run` wait for the confirmations of what was added."""
        self._left.update(names)
        self._wake.set()

    async def begin(self) -> None:
        """Read what the previous controllers have left; raises NotController, BadZnode."""
        await self._context.insist("reading the deleted topics", self._read_marks)
        self.leave(list(self._topics))

    async def _read_marks(self) -> None:
        for name in await self._marked():
            path = znodes.deleted_topic_path(name)
            found = await read_or_none(self._context.store, path)
            if found is not None:
                self._topics[name] = znodes.decode_delete_mark(path, found[0])

    async def _marked(self) -> list[str]:
        return await children_or_none(self._context.store, znodes.DELETED_TOPICS)

    async def run(self) -> None:
        """Wait for the confirmations that no request waits for, until cancelled; raises NotController."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            left, self._left = sorted(name for name in self._left if name in self._topics), set()
            if left:
                await self._confirm({self._topics[name]: name for name in left})

    async def confirmed(self, topics: Sequence[TopicInfo]) -> None:
        """Return when no live broker may know these topics any more, and their names are free; raises NotController.

        They were added before. Call without the lock.
        """
        names = {topic.id: topic.name for topic in topics}
        if not names:
            return
        try:
            await self._confirm(names)
        except BaseException:
            self.leave([name for name in names.values() if name in self._topics])
            raise

    async def _confirm(self, names: Mapping[uuid.UUID, str]) -> None:
        asked = {topic_id: [0] for topic_id in names}
        session = self._context.store.session()
        longest_s = max(LONGEST_S, 2 * session.timeout_ms / 1000 if session is not None else 0.0)
        give_up = asyncio.get_running_loop().time() + longest_s
        await asyncio.gather(
            self._read_here(give_up),
            *(
                self._broker_confirms(BrokerId(broker_id), live_broker.incarnation, asked, give_up)
                for broker_id, live_broker in self._context.live_brokers.items()
                if broker_id != self._broker_id
            ),
        )
        self._context.check_session()  # else they were waited for in vain
        async with self._context.lock:
            freed = await self._context.persist("freeing names", lambda: self._free(list(names.values())))
        if not freed:
            await asyncio.sleep(RETRY_SECONDS)
            self.leave(list(names.values()))

    async def _free(self, names: Sequence[str]) -> bool:
        marked = set(await self._context.read_now(self._marked()))
        await self._context.perform(plans.free_names([name for name in names if name in marked]))
        for name in names:
            self._topics.pop(name, None)
        return True

    async def _read_here(self, give_up: float) -> None:
        """The metadata cache of this broker may lag behind its controller, too."""
        loop, metadata = asyncio.get_running_loop(), self._context.metadata
        while not self._context.over and loop.time() < give_up:
            try:
                if await metadata.refreshed(int(1000 * LAST_PAUSE_S)):
                    return
            except StoreError as problem:
                log.debug("whether this broker has read its deletions is not known: %s", problem)
                await asyncio.sleep(LAST_PAUSE_S)

    async def _broker_confirms(
        self, broker_id: BrokerId, incarnation: int, asked: Mapping[uuid.UUID, list[int]], give_up: float
    ) -> None:
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE_S
        while asked and loop.time() < give_up:
            known = self._context.live_brokers.get(broker_id)
            if self._context.over or known is None or known.incarnation != incarnation:
                return
            try:
                _, found = await ends.ask(self._peers, broker_id, asked)
            except PeerUnavailable as problem:
                log.debug("broker %d can't confirm the deletion of %d topics: %s", broker_id, len(asked), problem)
            else:
                asked = {
                    topic_id: indexes
                    for topic_id, indexes in asked.items()
                    if any(one.error is not ErrorCode.UNKNOWN_TOPIC_ID for one in found.get(topic_id, {}).values())
                }
            if asked:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE_S)
        if asked:
            log.warning("broker %d did not confirm the deletion of %d topics in time", broker_id, len(asked))
