"""Deleted topics whose previous leaders may still acknowledge records by the topic's name.

A leader that has not read the deletion yet takes a record for the deleted log. A client that makes a topic of the same
name in the meantime would take that acknowledgement for one of the new topic. So a deletion is answered, and its name
is free again, when each previous leader has confirmed it, or its registration has ended. (Kafka's controller with
ZooKeeper waits in the same way, for the deletion of every replica.)
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Container, Sequence

from brokers.controller.context import ControllerContext
from brokers.model import BrokerId, TopicInfo
from brokers.peers.calls import PeersPort, PeerUnavailable
from brokers.replication import ends
from wire.errors import ErrorCode

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.01
LAST_PAUSE_S = 0.5
LONGEST_S = 30.0
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
        """Return when the topics that were added have no live leader that has not confirmed. Call without the lock."""
        live_brokers = self._context.live_brokers
        led: dict[BrokerId, dict[uuid.UUID, list[int]]] = {}
        for topic in topics:
            for index, state in enumerate(topic.partitions):
                if state.leader in live_brokers and state.leader != self._broker_id:
                    led.setdefault(BrokerId(state.leader), {}).setdefault(topic.id, []).append(index)
        try:
            await asyncio.gather(
                *(
                    self._broker_confirms(broker_id, live_brokers[broker_id].incarnation, asked)
                    for broker_id, asked in led.items()
                )
            )
        finally:
            self._topics.difference_update(topic.name for topic in topics)

    async def _broker_confirms(self, broker_id: BrokerId, incarnation: int, asked: dict[uuid.UUID, list[int]]) -> None:
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
