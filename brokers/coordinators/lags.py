"""The lag of this coordinator's groups, in records and in seconds, computed anew every ``group.lag.interval.ms``.

Each round takes what the groups have committed, asks the leaders of these partitions where their logs end and how long
the first record behind each offset has waited, and judges (``brokers.groups.lag``). A time that is known once isn't
asked for again. A leader that does not answer leaves the last figures as they were.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
from fleetlog.brokers.coordinators.shard_host import ShardState
from fleetlog.brokers.groups.lag import (
    AssignmentUnreadable,
    LogPosition,
    PartitionLag,
    PartitionWindow,
    Progress,
    assigned_counts,
    worst,
)
from fleetlog.brokers.groups.members import CONSUMER_PROTOCOL_TYPE, Group
from fleetlog.brokers.groups.records import CommittedOffset
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.model import Clock, TopicPartition
from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.brokers.replication.positions import NO_OFFSET, Asked, ask_positions, own_position
from fleetlog.brokers.replication.replicas import ReplicaManager
from fleetlog.brokers.replication.serving import Serve
from fleetlog.wire.errors import ErrorCode

logger = logging.getLogger(__name__)


ROWS_PER_TURN = 100
"""Partitions that are worked on in one turn of the loop."""
ROWS_PER_ROUND = 50_000
"""Partitions of groups that are looked at in one round; the groups behind them come first in the next."""


class GroupLag(NamedTuple):
    """One group at the end of a round; ``at_ms`` is the monotonic time of that."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: int
    assignments: list[dict[str, int]]
    commits: int
    partitions: dict[TopicPartition, PartitionLag]
    at_ms: int
    rebalances: int = 0

    @property
    def progress(self) -> Progress:
        """The worst of its partitions' states."""
        return worst(one.progress for one in self.partitions.values())


Committed = list[tuple[TopicPartition, tuple[int, CommittedOffset]]]


class LagWatch:
    """See the module. :attr:`groups` is the last result, by group id; it is replaced, never changed."""

    def __init__(
        self,
        broker_id: int,
        interval_ms: int,
        groups: CoordinatorRuntime[GroupShard],
        metadata: MetadataCache,
        replicas: ReplicaManager,
        peers: PeersPort,
        clock: Clock,
    ) -> None:
        self.groups: dict[str, GroupLag] = {}
        self.complete = True
        """Whether every leader that was asked in the last round has answered."""
        self._broker_id = broker_id
        self._interval_ms = interval_ms
        self._runtime = groups
        self._metadata = metadata
        self._replicas = replicas
        self._peers = peers
        self._clock = clock
        self._windows: dict[str, dict[TopicPartition, PartitionWindow]] = {}
        self._since: dict[Asked, int] = {}
        self._later: list[str] = []
        self._rows = 0
        self._after_round: list[Callable[[], Awaitable[None]]] = []

    def after_round(self, listener: Callable[[], Awaitable[None]]) -> None:
        """Await ``listener`` at the end of each round."""
        self._after_round.append(listener)

    async def run(self) -> None:
        """Look until cancelled. A round that fails is logged, and the next one begins as usual."""
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            try:
                await self.round()
            except Exception:
                logger.exception("the lag of the groups could not be computed")

    async def close(self) -> None:
        """Close the connections to the leaders."""
        await self._peers.close()

    # ---- one round -------------------------------------------------------------------------------------------------

    async def round(self) -> None:
        """Compute once."""
        committed = await self._committed()
        positions = await self._positions(committed.values())
        judged: dict[str, GroupLag] = {}
        groups = self._present()
        for group_id, group in groups.items():
            if group_id in committed:
                judged[group_id] = await self._judged(group, committed[group_id], positions)
            elif group_id in self.groups:
                judged[group_id] = self.groups[group_id]
        for group_id in list(self._windows):
            if group_id not in groups:
                del self._windows[group_id]
            await self._turn()
        self.groups = judged
        for listener in self._after_round:
            await listener()

    async def _turn(self) -> None:
        """Let the loop run now and then."""
        self._rows += 1
        if self._rows % ROWS_PER_TURN == 0:
            await asyncio.sleep(0)

    def _present(self) -> dict[str, Group]:
        """The groups of the shards that this broker may speak for."""
        groups: dict[str, Group] = {}
        for host in self._runtime.hosts():
            refused = host.partition.may_serve(Serve.COORDINATOR_STATE)
            if host.state is ShardState.ACTIVE and refused is ErrorCode.NONE:
                groups.update(host.shard.groups)
        return groups

    async def _committed(self) -> dict[str, Committed]:
        """What the groups have committed, as far as a round goes."""
        by_group: dict[str, Committed] = {}
        groups, rows = self._present(), 0
        order = [*(name for name in self._later if name in groups), *groups]
        self._later = []
        for group_id in dict.fromkeys(order):
            if rows >= ROWS_PER_ROUND:
                self._later.append(group_id)
                continue
            rows += len(groups[group_id].offsets)
            by_group[group_id] = await self._of_present_topics(list(groups[group_id].offsets.items()))
            await self._turn()
        return by_group

    async def _of_present_topics(self, committed: Committed) -> Committed:
        """Without what was committed for topics that have been deleted."""
        kept: Committed = []
        for tp, entry in committed:
            await self._turn()
            if not entry[1].outlives(self._metadata.topics.get(tp.topic)):
                kept.append((tp, entry))
        return kept

    async def _positions(self, committed: Iterable[Committed]) -> dict[Asked, LogPosition]:
        """Where these offsets lie in their logs, by the logs' leaders."""
        by_leader: dict[int, dict[Asked, None]] = {}
        since: dict[Asked, int] = {}
        for rows in committed:
            for tp, (_, commit) in rows:
                await self._turn()
                state, pair = self._metadata.partition(tp), (tp, commit.offset)
                if state is None or state.leader < 0:
                    continue
                if pair in self._since:
                    since[pair] = self._since[pair]
                    pair = (tp, NO_OFFSET)
                by_leader.setdefault(state.leader, {})[pair] = None
        answers = await asyncio.gather(*(self._ask(leader, list(asked)) for leader, asked in by_leader.items()))
        self.complete = None not in answers
        positions: dict[Asked, LogPosition] = {}
        for answer in answers:
            positions.update(answer or {})
        for pair, waiting_since_ms in since.items():
            await self._turn()
            ends = positions.get((pair[0], NO_OFFSET))
            if ends is not None and ends.start <= pair[1]:
                positions[pair] = ends._replace(waiting_since_ms=waiting_since_ms)
        waiting: dict[Asked, int] = {}
        for pair, one in positions.items():
            await self._turn()
            if one.waiting_since_ms >= 0:
                waiting[pair] = one.waiting_since_ms
        self._since = waiting
        return positions

    async def _ask(self, leader: int, asked: list[Asked]) -> dict[Asked, LogPosition] | None:
        if leader != self._broker_id:
            try:
                return await ask_positions(self._peers, leader, asked)
            except PeerUnavailable as problem:
                logger.debug("lag: %s", problem)
                return None
        positions: dict[Asked, LogPosition] = {}
        for tp, offset in asked:
            await self._turn()
            position = own_position(tp, offset, self._replicas)
            if isinstance(position, LogPosition):
                positions[tp, offset] = position
        return positions

    async def _judged(self, group: Group, committed: Committed, positions: dict[Asked, LogPosition]) -> GroupLag:
        windows = self._windows.get(group.id, {})
        before = self.groups.get(group.id)
        kept: dict[TopicPartition, PartitionWindow] = {}
        lags: dict[TopicPartition, PartitionLag] = {}
        for tp, (sequence, commit) in committed:
            await self._turn()
            window = kept[tp] = windows.get(tp) or PartitionWindow()
            position = positions.get((tp, commit.offset))
            if position is not None:
                now_ms, at_ms = self._clock.wall_ms(), commit.commit_timestamp_ms
                lags[tp] = window.look(sequence, commit.offset, at_ms, position, now_ms, self._interval_ms)
            elif before is not None and tp in before.partitions and self._metadata.partition(tp) is not None:
                lags[tp] = before.partitions[tp]
        self._windows[group.id] = kept
        return GroupLag(
            group.id, group.state.value, group.protocol_type or "", group.protocol or "", len(group.members),
            await self._assignments(group), group.commits, lags, self._clock.mono_ms(), group.rebalances,
        )  # fmt: skip

    async def _assignments(self, group: Group) -> list[dict[str, int]]:
        """Of each member of a consumer group, its partitions by topic; none where they cannot be read."""
        if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return []
        every: list[dict[str, int]] = []
        for member in list(group.members.values()):
            counts: dict[str, int] = {}
            try:
                for topic, count in assigned_counts(member.assignment):
                    await self._turn()
                    counts[topic] = counts.get(topic, 0) + count
            except AssignmentUnreadable:
                counts = {}
            every.append(counts)
            await self._turn()
        return every
