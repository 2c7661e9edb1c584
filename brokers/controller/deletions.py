"""Deleted topics that live brokers may still know by their names.

A leader that has not read the deletion yet takes a record for the deleted log; a group coordinator takes an offset, and
drops it with the deleted topic's; a follower proposes that it leaves the in-sync set. A client that makes a topic of
the same name in the meantime would take all that for the new topic's. So a deletion is answered, and its name is free
again, when each live broker has confirmed it, or its registration has ended. (Kafka's controller with ZooKeeper waits
in the same way, for the deletion of every replica.)
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Container, Mapping, Sequence

from brokers.controller.context import ControllerContext
from brokers.model import BrokerId, TopicInfo
from brokers.peers.calls import PeersPort, PeerUnavailable
from brokers.replication import ends
from wire.errors import ErrorCode

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.01
LAST_PAUSE_S = 0.5
LONGEST_S = 30
"""After this time a live broker has read the deletion, though it cannot be asked: its session ends sooner otherwise."""


class UnconfirmedDeletions(Container[str]):
    """The names of such topics, and of those whose deletion stopped half-way. A successor knows only the latter."""

    def __init__(self, context: ControllerContext, peers: PeersPort, broker_id: int) -> None:
        self._context = context
        self._peers = peers
        self._broker_id = broker_id
        self._topics: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._topics or name in self._context.deleting

    def add(self, topic: TopicInfo) -> None:
        """Note the topic. Call before the deletion's lock is free."""
        self._topics.add(topic.name)

    async def confirmed(self, topics: Sequence[TopicInfo]) -> None:
        """Return when no live broker may know the topics that were added any more. Call without the lock."""
        metadata, asked = self._context.metadata, {topic.id: [0] for topic in topics}
        try:
            if asked:
                await asyncio.gather(
                    metadata.wait_until(lambda: asked.keys().isdisjoint(metadata.topic_names), LONGEST_S * 1000),
                    *(
                        self._broker_confirms(BrokerId(broker_id), live_broker.incarnation, asked)
                        for broker_id, live_broker in self._context.live_brokers.items()
                        if broker_id != self._broker_id
                    ),
                )
        finally:
            self._topics.difference_update(topic.name for topic in topics)

    async def _broker_confirms(
        self, broker_id: BrokerId, incarnation: int, asked: Mapping[uuid.UUID, list[int]]
    ) -> None:
        loop = asyncio.get_running_loop()
        give_up, pause = loop.time() + LONGEST_S, FIRST_PAUSE_S
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
            log.warning(
                "broker %d did not confirm the deletion of %d topics in %.0f s", broker_id, len(asked), LONGEST_S
            )
