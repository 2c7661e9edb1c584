"""Replicas in log directories without room: they leave the in-sync set or hand their leadership over.

A follower leaves the in-sync set at once, otherwise acks=all would wait replica.lag.time.max.ms for it; it fetches
again when there is room. A leader asks the other in-sync replicas for their room (DescribeLogDirs) and resigns as soon
as one has enough. It leaves the in-sync set at the same time, and the controller elects as after any resignation. If no
replica has room the leader stays: producers get KAFKA_STORAGE_ERROR with the reason, consumers are served, and no
acknowledged record has fewer copies than before.

The same holds for a new log without room: its replica leaves the in-sync set or hands its leadership over before it has
a log (:mod:`brokers.replication.unopened`).

No record is lost by this, so the replica still counts as far as its log reaches: it becomes eligible in its true
incarnation, unlike a replica whose directory failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from fleetlog.brokers.model import PartitionState, TopicPartition, has_room
from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.brokers.replication import isr
from fleetlog.brokers.replication.unopened import UnopenedReplica, step_aside
from fleetlog.wire import messages

if TYPE_CHECKING:
    from fleetlog.brokers.replication.partition import Partition
    from fleetlog.brokers.replication.replicas import ReplicaManager

logger = logging.getLogger(__name__)

DESCRIBE_LOG_DIRS, VERSION = 35, 4
ASK_MS = 2_000
LEVEL_MS = 2_000
"""How long a leader waits for the other in-sync members to fetch its last records, before it resigns anyway."""


def make_way(
    partition: Partition, broker_id: int, successors: Collection[int], with_room: Collection[int], *, level: bool
) -> PartitionState | None:
    """Propose this leader's resignation; None while it has to stay.

    It stays unless one of the ``successors`` (live members) is ``with_room``, while another change is in flight, and,
    if ``level``, until every successor has all records of this log, so that records acknowledged with acks=1 survive.
    """
    end, ends = partition.log.log_end_offset, partition.followers.ends()
    if not set(successors) & set(with_room) or (level and any(ends.get(b, -1) < end for b in successors)):
        return None
    in_sync = partition.in_sync
    return in_sync.abdicate(isr.without(in_sync.state, {broker_id}, in_sync.effective_min_isr))


def make_way_unopened(
    replica: UnopenedReplica, broker_id: int, successors: Collection[int], with_room: Collection[int]
) -> PartitionState | None:
    """As :func:`make_way` for a leader without a log, whose successors have nothing to fetch."""
    if not set(successors) & set(with_room):
        return None
    return replica.abdicate(isr.without(replica.state, {broker_id}, replica.effective_min_isr))


class RoomKeeper:
    """See the module. Call :meth:`tick` a few times a second; it costs nothing while every directory has room."""

    def __init__(
        self, broker_id: int, replicas: ReplicaManager, peers: PeersPort, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._peers = peers
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._since: dict[TopicPartition, int] = {}
        """The leaders without room, with the time since when, in ms."""

    def tick(self, now_ms: int) -> None:
        """Handle replicas without room, and resume those that have room again."""
        replicas = self._replicas
        for log in replicas.logs.with_room_again(now_ms):
            logger.info("%s: log directory has room again", log.topic_partition)
            replicas.follow_again(log.topic_partition)
        led: list[Partition] = []
        for log in replicas.logs.crowded():
            partition = replicas.get(log.topic_partition)
            if partition is None or log.offline:
                continue
            if partition.is_leader:
                led.append(partition)
            else:
                replicas.stand_back(partition)
        unopened: list[UnopenedReplica] = []
        for replica in replicas.without_room():
            if replica.is_leader:
                unopened.append(replica)
            elif step_aside(replica, self._broker_id) is not None:
                logger.error("%s: no room for a new log: this broker leaves the in-sync set", replica.tp)
        known, self._since = self._since, {}
        for partition in led:
            self._since[partition.tp] = known.get(partition.tp, now_ms)
        if (led or unopened) and (self._task is None or self._task.done()):
            self._task = self._loop.create_task(self._make_way(led, unopened, now_ms), name="room")

    def stop(self) -> None:
        """Cancel handovers in progress."""
        if self._task is not None:
            self._task.cancel()

    async def _make_way(self, led: list[Partition], unopened: list[UnopenedReplica], now_ms: int) -> None:
        roomy = await self._with_room([*led, *unopened])
        for replica in unopened:
            if not replica.full:
                continue  # its log exists by now
            successors = self._replicas.successors(replica.state)
            if make_way_unopened(replica, self._broker_id, successors, roomy.get(replica.tp, ())) is not None:
                logger.error("%s: no room for a new log: this broker hands its leadership over", replica.tp)
        for partition in led:
            since_ms = self._since.get(partition.tp, now_ms)
            if not partition.log.crowded or not partition.is_leader:
                continue
            successors, with_room = self._replicas.successors(partition.state), roomy.get(partition.tp, ())
            level = now_ms - since_ms < LEVEL_MS
            if make_way(partition, self._broker_id, successors, with_room, level=level) is not None:
                logger.error(
                    "%s: no room in log directory %s: this broker hands its leadership over",
                    partition.tp, partition.log.directory,
                )  # fmt: skip
            elif since_ms == now_ms and partition.tp not in roomy:
                logger.error(
                    "%s: no room in log directory %s: producers get KAFKA_STORAGE_ERROR until this or another in-sync"
                    " replica has room", partition.tp, partition.log.directory,
                )  # fmt: skip

    async def _with_room(self, led: list[Partition | UnopenedReplica]) -> dict[TopicPartition, set[int]]:
        """The in-sync members that could lead and have their log in a directory with room, by partition."""
        asked: dict[int, list[TopicPartition]] = {}
        for replica in led:
            for broker_id in self._replicas.successors(replica.state):
                asked.setdefault(broker_id, []).append(replica.tp)
        answers = await asyncio.gather(*(self._ask(broker_id, tps) for broker_id, tps in asked.items()))
        roomy: dict[TopicPartition, set[int]] = {}
        for broker_id, named in zip(asked, answers, strict=True):
            for tp in named:
                roomy.setdefault(tp, set()).add(broker_id)
        return roomy

    async def _ask(self, broker_id: int, asked: list[TopicPartition]) -> list[TopicPartition]:
        """Those of the partitions that have room on that broker; none if it does not answer."""
        request = messages.request_class(DESCRIBE_LOG_DIRS)
        topics: dict[str, list[int]] = {}
        for tp in asked:
            topics.setdefault(tp.topic, []).append(tp.partition)
        rows = [request.DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in topics.items()]
        message = request(version=VERSION, topics=rows)
        try:
            answer = await self._peers.call(broker_id, DESCRIBE_LOG_DIRS, VERSION, message, ASK_MS)
        except PeerUnavailable as problem:
            logger.info("describing the log directories of broker %d failed: %s", broker_id, problem)
            return []
        return [
            TopicPartition(topic.name, row.partition_index)
            for directory in answer.results
            if directory.error_code == 0 and has_room(directory.total_bytes, directory.usable_bytes)
            for topic in directory.topics
            for row in topic.partitions
        ]
