"""The lag of this coordinator's groups, in records and in seconds, computed anew every ``group.lag.interval.ms``.

Each round takes what the groups have committed, asks the leaders of these partitions where their logs end and how long
the first record behind each offset has waited, and judges (``brokers.groups.lag``). A time that is known once isn't
asked for again. A leader that does not answer leaves the last figures as they were.

Groups, topics and partitions as text for ``/metrics``: our own families, kafka_exporter's and kminion's.

A broker has the groups that it coordinates and the partitions that it leads, so sums over all brokers count nothing
twice; what is of the whole fleet is shown by the controller alone. The text is made after each round of the lag watch,
in slices and while somebody scrapes: a scrape only sends it. Above ``series_max`` partitions, topics, partitions of
groups, or groups with their topics there are sums alone; then groups that are behind have series of their own before
the others.

Names and labels are those of kafka_exporter 1.9 and kminion 2; ``kafka_consumergroup_uncommitted_offsets`` and
``kafka_consumer_lag_millis`` are those of Grafana's fork of the former.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from operator import itemgetter
from typing import NamedTuple

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
from fleetlog.brokers.coordinators.shard_host import ShardState
from fleetlog.brokers.coordinators.share_offsets import ShareOffsets
from fleetlog.brokers.groups.consumer.group import ConsumerGroup
from fleetlog.brokers.groups.lag import (
    AssignmentUnreadable,
    LogPosition,
    PartitionLag,
    PartitionWindow,
    Progress,
    assigned_counts,
    worst,
)
from fleetlog.brokers.groups.members import CONSUMER_PROTOCOL_TYPE, Group, GroupState
from fleetlog.brokers.groups.records import CommittedOffset
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.brokers.groups.share import ShareGroup
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.metrics.exposition import escaped
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.brokers.model import BrokerInfo, Clock, TopicPartition
from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.brokers.replication.figures import SEGMENTS_PER_ROW
from fleetlog.brokers.replication.partition import Partition
from fleetlog.brokers.replication.positions import NO_OFFSET, Asked, ask_positions, own_position
from fleetlog.brokers.replication.replicas import ReplicaManager
from fleetlog.brokers.replication.serving import Serve
from fleetlog.brokers.shares.state import ShareKey
from fleetlog.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

ROWS_PER_TURN = 100
"""Partitions that are worked on in one turn of the loop."""
ROWS_PER_ROUND = 50_000
"""Partitions of groups that are looked at in one round; the groups behind them come first in the next."""
SHARE_ROWS_PER_ROUND = 1_000
"""Share partitions of which the share coordinators are asked in one round; those behind them come first in the next."""
SHARE_REST_MS = 60_000
"""How often the states of a share group without members are asked for."""


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


class _ShareCommit(NamedTuple):
    """How far a share group is: its start, how many records are finished from there on, and when that was seen."""

    start: int
    complete: int
    at_ms: int


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
        shares: ShareOffsets | None = None,
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
        self._shares = shares
        self._asked: dict[str, tuple[int, bool]] = {}
        """When the states of each share group were asked for, and whether it had no members then."""
        self._share_commits: dict[tuple[str, TopicPartition], _ShareCommit] = {}
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
        committed = await self._committed() | await self._of_shares()
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
                groups.update({name: Group(name) for name in host.shard.consumers if name not in host.shard.groups})
                groups.update({name: Group(name) for name in host.shard.shares})
                groups.update(host.shard.groups)
        return groups

    async def _of_shares(self) -> dict[str, Committed]:
        """Where share groups begin, in place of what others commit; those that are left out keep their last figures."""
        keys: dict[ShareKey, TopicPartition] = {}
        asked: list[ShareKey] = []
        groups = self._share_groups()
        for group in sorted(groups, key=lambda group: self._asked.get(group.id, (0, False))[0]):
            mine: dict[ShareKey, TopicPartition] = {}
            for topic_id, topic in list(group.states.items()):
                await self._turn()
                name = self._metadata.topic_names.get(uuid.UUID(bytes=topic_id))
                if name is not None:
                    places = (TopicPartition(name, index) for index in range(topic.partitions))
                    mine.update((ShareKey(group.id, topic_id, tp.partition), tp) for tp in places)
            keys |= mine
            if len(asked) < SHARE_ROWS_PER_ROUND and self._may_have_moved(group):
                asked += mine
        self._asked = {group.id: self._asked[group.id] for group in groups if group.id in self._asked}
        answers = await self._shares.summaries(asked) if self._shares is not None and asked else {}
        for key, answer in answers.items():
            if answer.error is not ErrorCode.NONE:
                self._asked.pop(key.group_id, None)
        by_group: dict[str, Committed] = {}
        before, self._share_commits = self._share_commits, {}
        for key, tp in keys.items():
            await self._turn()
            state, known = answers[key].state if key in answers else None, before.get((key.group_id, tp))
            if state is not None and answers[key].error is ErrorCode.NONE and state.start >= 0:
                pair = state.start, max(state.complete, 0)
                if known is None or known[:2] != pair:
                    known = _ShareCommit(*pair, self._clock.wall_ms())
            if known is not None:
                self._share_commits[key.group_id, tp] = known
                entry = hash(known), CommittedOffset(known.start, commit_timestamp_ms=known.at_ms)
                by_group.setdefault(key.group_id, []).append((tp, entry))
        return by_group

    def _share_groups(self) -> list[ShareGroup]:
        """Those of the shards that this broker may speak for."""
        hosts = [host for host in self._runtime.hosts() if host.state is ShardState.ACTIVE]
        spoken = [host for host in hosts if host.partition.may_serve(Serve.COORDINATOR_STATE) is ErrorCode.NONE]
        return [group for host in spoken for group in host.shard.shares.values()]

    def _may_have_moved(self, group: ShareGroup) -> bool:
        """Whether its states are to be asked for now: in each round while it has members, else once a minute, and when
        something was done to them from outside. That is noted.
        """
        now_ms, changed = self._clock.mono_ms(), self._shares.changed if self._shares is not None else set[str]()
        at_ms, rests = self._asked.get(group.id, (0, False))
        if rests and not group.members and group.id not in changed and now_ms - at_ms < SHARE_REST_MS:
            return False
        changed.discard(group.id)
        self._asked[group.id] = now_ms, not group.members
        return True

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
                share = self._share_commits.get((group.id, tp))
                until = commit.offset + share.complete if share is not None else commit.offset
                lag = window.look(sequence, until, at_ms, position, now_ms, self._interval_ms)
                lags[tp] = lag._replace(committed=commit.offset)
            elif before is not None and tp in before.partitions and self._metadata.partition(tp) is not None:
                lags[tp] = before.partitions[tp]
        self._windows[group.id] = kept
        _, shard = self._runtime.shard_for(group.id)
        shares = shard.shares.get(group.id) if shard is not None else None
        if shares is not None:
            return GroupLag(
                group.id, shares.state, "share", "simple", len(shares.members), await self._counted(shares),
                sum(window.seen for window in kept.values()), lags, self._clock.mono_ms(), shares.epoch,
            )  # fmt: skip
        consumer = shard.consumers.get(group.id) if shard is not None else None
        if consumer is not None:
            return GroupLag(
                group.id, consumer.state, CONSUMER_PROTOCOL_TYPE, consumer.assignor("uniform"), len(consumer.members),
                await self._counted(consumer), group.commits, lags, self._clock.mono_ms(), consumer.epoch,
            )  # fmt: skip
        return GroupLag(
            group.id, group.state.value, group.protocol_type or "", group.protocol or "", len(group.members),
            await self._assignments(group), group.commits, lags, self._clock.mono_ms(), group.rebalances,
        )  # fmt: skip

    async def _counted(self, group: ConsumerGroup | ShareGroup) -> list[dict[str, int]]:
        """Of each member, its partitions by topic."""
        every: list[dict[str, int]] = []
        names = self._metadata.topic_names
        for assigned in [member.at.assigned for member in group.members.values()]:
            await self._turn()
            ids = Counter(topic_id for topic_id, _ in assigned)
            topics = ((names.get(uuid.UUID(bytes=topic_id)), count) for topic_id, count in ids.items())
            every.append({name: count for name, count in topics if name is not None})
        return every

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


SAMPLES_PER_TURN = 300
"""Samples that are made in one turn of the loop."""
BLOCK_SAMPLES = 1_000
"""Samples that are kept as one piece of text."""
ASKED_WITHIN_MS = 15 * 60_000
"""If nobody has scraped for so long, the text is not made until somebody does."""
BEHIND_S = 60
"""From this lag on a group has series of its own before groups that get on."""

_FAMILIES: dict[str, str] = {
    "fleetlog_group_lag_records": "Records that a group has not consumed, by topic.",
    "fleetlog_group_lag_seconds": "Age of the oldest record that a group has not consumed, by topic.",
    "fleetlog_group_state": "0 OK, 1 WARN, 2 STOP, 3 STALL, 4 REWIND: the worst of a group's partitions.",
    "fleetlog_group_members": "Members of a group.",
    "fleetlog_group_commits_total": "Offsets that a group committed.",
    "fleetlog_group_rebalances_total": "Rebalances of a group since its coordinator loaded it.",
    "fleetlog_groups": "Groups, by the worst state of their partitions.",
    "fleetlog_groups_lag_records": "Records that groups have not consumed, added up over all groups.",
    "fleetlog_groups_lag_seconds": "Age of the oldest record that some group has not consumed.",
    "fleetlog_lag_series_left_out": "Partitions without series of their own: group.lag.series.max.",
    "fleetlog_lag_groups_left_out": "Groups without series of their own: group.lag.series.max.",
    "fleetlog_lag_topics_left_out": "Topics without series of their own: group.lag.series.max.",
    "kafka_exporter_build_info": "1, for dashboards of kafka_exporter that look for it.",
    "kafka_brokers": "Brokers of the fleet.",
    "kafka_broker_info": "1 for each broker.",
    "kafka_topic_partitions": "Partitions of a topic.",
    "kafka_topic_partition_current_offset": "End of a partition.",
    "kafka_topic_partition_oldest_offset": "Start of a partition.",
    "kafka_topic_partition_in_sync_replica": "Replicas in sync.",
    "kafka_topic_partition_leader": "Broker that leads a partition.",
    "kafka_topic_partition_leader_is_preferred": "1 if the first replica leads.",
    "kafka_topic_partition_replicas": "Replicas of a partition.",
    "kafka_topic_partition_under_replicated_partition": "1 if a replica is not in sync.",
    "kafka_consumergroup_current_offset": "Offset that a group committed.",
    "kafka_consumergroup_lag": "Records that a group has not consumed.",
    "kafka_consumergroup_uncommitted_offsets": "The same.",
    "kafka_consumer_lag_millis": "Age of the first record that a group has not consumed, in ms.",
    "kafka_consumergroup_current_offset_sum": "Offsets that a group committed, added up over a topic.",
    "kafka_consumergroup_lag_sum": "Records that a group has not consumed, of a topic.",
    "kafka_consumergroup_members": "Members of a group.",
    "kminion_exporter_up": "1 if every leader answered when lag was last computed.",
    "kminion_kafka_cluster_info": "1, with labels of the fleet.",
    "kminion_kafka_broker_info": "1 for each broker.",
    "kminion_kafka_broker_log_dir_size_total_bytes": "Bytes of a broker's logs.",
    "kminion_kafka_topic_info": "1 for each topic.",
    "kminion_kafka_topic_partition_high_water_mark": "End of a partition.",
    "kminion_kafka_topic_partition_low_water_mark": "Start of a partition.",
    "kminion_kafka_topic_high_water_mark_sum": "Ends of the partitions, added up over a topic.",
    "kminion_kafka_topic_low_water_mark_sum": "Starts of the partitions, added up over a topic.",
    "kminion_kafka_topic_log_dir_size_total_bytes": "Bytes of a topic's replicas on this broker.",
    "kminion_kafka_consumer_group_info": "1 if the group is stable, else 0.",
    "kminion_kafka_consumer_group_members": "Members of a group.",
    "kminion_kafka_consumer_group_empty_members": "Members of a group without a partition.",
    "kminion_kafka_consumer_group_topic_members": "Members of a group with partitions of a topic.",
    "kminion_kafka_consumer_group_topic_assigned_partitions": "Partitions of a topic assigned to a group's members.",
    "kminion_kafka_consumer_group_topic_offset_sum": "Offsets that a group committed, added up over a topic.",
    "kminion_kafka_consumer_group_topic_partition_lag": "Records that a group has not consumed.",
    "kminion_kafka_consumer_group_topic_lag": "Records that a group has not consumed, of a topic.",
    "kminion_kafka_consumer_group_offset_commits_total": "Offsets that a group committed.",
}
"""Every family of this page with its help."""


class _Page:
    """Samples by family, in slices of the loop's time.

    Lists are short: a long one would hold the loop when it is joined, and when it is freed.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[str]] = {name: [] for name in _FAMILIES}
        self._blocks: dict[str, list[bytes]] = {name: [] for name in _FAMILIES}
        self._samples = 0

    def add(self, name: str, value: float, **labels: object) -> None:
        """One sample; a label that is None is left out."""
        told = ",".join(f'{label}="{one}"' for label, one in labels.items() if one is not None)
        if not told.isprintable() or "\\" in told or told.count('"') != 2 * len(labels):
            told = ",".join(f'{label}="{escaped(str(one))}"' for label, one in labels.items() if one is not None)
        rows = self._rows[name]
        rows.append(f"{name}{{{told}}} {value}\n" if told else f"{name} {value}\n")
        self._samples += 1
        if len(rows) >= BLOCK_SAMPLES:
            self._blocks[name].append("".join(rows).encode())
            rows.clear()

    async def turn(self, looked_at: int = 0) -> None:
        """Let the loop run now and then; ``looked_at`` are rows that became no samples."""
        self._samples += looked_at
        if self._samples >= SAMPLES_PER_TURN:
            self._samples = 0
            await asyncio.sleep(0)

    def blocks(self) -> tuple[bytes, ...]:
        """The text of all families that have samples."""
        blocks: list[bytes] = []
        for name, rows in self._rows.items():
            made = self._blocks[name]
            if rows or made:
                kind = "counter" if name.endswith("_total") else "gauge"
                head = f"# HELP {name} {_FAMILIES[name]}\n# TYPE {name} {kind}\n".encode()
                blocks += [head, *made, "".join(rows).encode()]
        return tuple(blocks)


class _Summary(NamedTuple):
    """A group as its families show it."""

    group: GroupLag
    progress: Progress
    seconds: float
    records: int
    topics: dict[str, tuple[int, int, float]]
    """Sums of offsets and of records, and the longest time."""
    assigned: dict[str, tuple[int, int]]
    """Members and partitions."""
    idle: int
    """Members without a partition."""

    @property
    def series(self) -> int:
        """What counts of ``group.lag.series.max``."""
        return 1 + len(self.topics.keys() | self.assigned.keys())


class LagFamilies:
    """Makes the text while somebody reads it: it is long, and a broker that nobody scrapes has better to do.

    :attr:`blocks` are the last one. The first scrape has none; that after the next round does.
    """

    def __init__(
        self,
        broker_id: int,
        version: str,
        series_max: int,
        lags: LagWatch,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        clock: Clock,
    ) -> None:
        self.blocks: tuple[bytes, ...] = ()
        self._asked_ms: int | None = None
        self._clock = clock
        self._broker_id = broker_id
        self._version = version
        self._series_max = series_max
        self._lags = lags
        self._metadata = metadata
        self._replicas = replicas

    def page(self) -> tuple[bytes, ...]:
        """The last text, in pieces."""
        self._asked_ms = self._clock.mono_ms()
        return self.blocks

    async def make(self) -> None:
        """Make the text anew, if somebody has asked for it lately."""
        if self._asked_ms is None or self._clock.mono_ms() - self._asked_ms > ASKED_WITHIN_MS:
            self.blocks = ()
            return
        page = _Page()
        page.add("kminion_exporter_up", int(self._lags.complete), version=self._version)
        if self._metadata.controller_id == self._broker_id:
            await self._fleet(page)
        left_out = await self._partitions(page) + await self._groups(page)
        page.add("fleetlog_lag_series_left_out", left_out)
        self.blocks = page.blocks()

    # ---- the fleet, shown by its controller ------------------------------------------------------------------------

    async def _fleet(self, page: _Page) -> None:
        metadata = self._metadata
        count = len(metadata.brokers)
        page.add("kafka_brokers", count)
        page.add("kafka_exporter_build_info", 1, version=f"fleetlog {self._version}")
        page.add(
            "kminion_kafka_cluster_info", 1, broker_count=count, cluster_id=metadata.cluster_id,
            cluster_version=f"fleetlog {self._version}", controller_id=metadata.controller_id,
        )  # fmt: skip
        for broker_id, broker in sorted(metadata.brokers.items()):
            labels = _address(broker)
            page.add("kafka_broker_info", 1, id=broker_id, address=f"{labels['address']}:{labels['port']}")
            controls = str(broker_id == metadata.controller_id).lower()
            page.add("kminion_kafka_broker_info", 1, **labels, is_controller=controls)
        topics = list(metadata.topics.items())
        for name, topic in topics if len(topics) <= self._series_max else ():
            partitions = len(topic.partitions)
            page.add("kafka_topic_partitions", partitions, topic=name)
            factor = len(topic.partitions[0].replicas) if topic.partitions else 0
            page.add(
                "kminion_kafka_topic_info", 1, cleanup_policy=",".join(metadata.topic_config(name).cleanup_policy),
                partition_count=partitions, replication_factor=factor, topic_name=name,
            )  # fmt: skip
            await page.turn()

    # ---- partitions led here, logs kept here -----------------------------------------------------------------------

    async def _partitions(self, page: _Page) -> int:
        replicas = list(self._replicas.all())
        led: list[Partition] = []
        for one in replicas:
            await page.turn(1)
            if one.is_leader:
                led.append(one)
        single = len(led) <= self._series_max
        ends: dict[str, int] = {}
        starts: dict[str, int] = {}
        for one in led:
            (topic, index), log, state = one.tp, one.log, one.state
            ends[topic] = ends.get(topic, 0) + log.high_watermark
            start = self._replicas.log_start(one)
            starts[topic] = starts.get(topic, 0) + start
            await page.turn(1)
            if not single:
                continue
            missing = len(state.isr) < len(state.target)
            preferred = bool(state.target) and state.target[0] == self._broker_id
            for name, value in (
                ("current_offset", log.high_watermark),
                ("oldest_offset", start),
                ("in_sync_replica", len(state.isr)),
                ("leader", self._broker_id),
                ("leader_is_preferred", int(preferred)),
                ("replicas", len(state.target)),
                ("under_replicated_partition", int(missing)),
            ):
                page.add(f"kafka_topic_partition_{name}", value, topic=topic, partition=index)
            for name, value in (("high", log.high_watermark), ("low", start)):
                page.add(
                    f"kminion_kafka_topic_partition_{name}_water_mark", value, topic_name=topic, partition_id=index
                )
        sizes: dict[str, int] = {}
        for one in replicas:
            sizes[one.tp.topic] = sizes.get(one.tp.topic, 0) + one.log.size_bytes
            await page.turn(1 + len(one.log.segments) // SEGMENTS_PER_ROW)
        told = len(sizes) <= self._series_max
        page.add("fleetlog_lag_topics_left_out", 0 if told else len(sizes))
        for name, sums in (
            ("high_water_mark_sum", ends),
            ("low_water_mark_sum", starts),
            ("log_dir_size_total_bytes", sizes),
        ):
            for topic, value in sums.items() if told else ():
                page.add(f"kminion_kafka_topic_{name}", value, topic_name=topic)
                await page.turn()
        own = self._metadata.brokers.get(self._broker_id)
        if own is not None:
            page.add("kminion_kafka_broker_log_dir_size_total_bytes", sum(sizes.values()), **_address(own))
        return 0 if single else len(led)

    # ---- groups coordinated here -----------------------------------------------------------------------------------

    async def _groups(self, page: _Page) -> int:
        groups = list(self._lags.groups.values())
        rows = 0
        for group in groups:
            rows += len(group.partitions)
            await page.turn(1)
        single = rows <= self._series_max
        shown = await self._shown(page, groups)
        page.add("fleetlog_lag_groups_left_out", len(groups) - len(shown))
        told = 0
        for one in shown:
            await self._group(page, one)
            if single:
                await _group_partitions(page, one.group)
                told += len(one.group.partitions)
            await page.turn()
        return rows - told

    async def _shown(self, page: _Page, groups: list[GroupLag]) -> list[_Summary]:
        """The groups that have series of their own, those behind first; adds the sums over all."""
        states = dict.fromkeys(Progress, 0)
        records, longest, wanted = 0, 0.0, 0
        ranked: list[tuple[bool, str, _Summary]] = []
        for group in groups:
            one = await _summed(page, group)
            records += one.records
            longest = max(longest, one.seconds)
            states[one.progress] += 1
            wanted += one.series
            ranked.append((one.progress < Progress.STOP and one.seconds < BEHIND_S, group.group_id, one))
            await page.turn(1)
        for progress, count in states.items():
            page.add("fleetlog_groups", count, state=progress.name)
        page.add("fleetlog_groups_lag_records", records)
        page.add("fleetlog_groups_lag_seconds", longest)
        if wanted <= self._series_max:
            return [one for _, _, one in ranked]
        shown: list[_Summary] = []
        room = self._series_max
        for _, _, one in sorted(ranked, key=itemgetter(0, 1)):
            await page.turn(1)
            if one.series <= room:
                room -= one.series
                shown.append(one)
        return shown

    async def _group(self, page: _Page, one: _Summary) -> None:
        group = one.group
        name = group.group_id
        page.add("fleetlog_group_state", int(one.progress), group=name)
        page.add("fleetlog_group_members", group.members, group=name)
        page.add("fleetlog_group_commits_total", group.commits, group=name)
        page.add("fleetlog_group_rebalances_total", group.rebalances, group=name)
        page.add("kafka_consumergroup_members", group.members, consumergroup=name)
        page.add(
            "kminion_kafka_consumer_group_info", int(group.state == GroupState.STABLE.value),
            coordinator_id=self._broker_id, group_id=name, member_count=group.members, protocol=group.protocol,
            protocol_type=group.protocol_type, state=group.state,
        )  # fmt: skip
        page.add("kminion_kafka_consumer_group_members", group.members, group_id=name)
        page.add("kminion_kafka_consumer_group_offset_commits_total", group.commits, group_id=name)
        page.add("kminion_kafka_consumer_group_empty_members", one.idle, group_id=name)
        for topic, (members, partitions) in sorted(one.assigned.items()):
            page.add("kminion_kafka_consumer_group_topic_members", members, group_id=name, topic_name=topic)
            page.add(
                "kminion_kafka_consumer_group_topic_assigned_partitions", partitions, group_id=name, topic_name=topic
            )
            await page.turn()
        for topic, (offsets, records, seconds) in one.topics.items():
            page.add("fleetlog_group_lag_records", records, group=name, topic=topic)
            page.add("fleetlog_group_lag_seconds", seconds, group=name, topic=topic)
            page.add("kafka_consumergroup_current_offset_sum", offsets, consumergroup=name, topic=topic)
            page.add("kafka_consumergroup_lag_sum", records, consumergroup=name, topic=topic)
            page.add("kminion_kafka_consumer_group_topic_offset_sum", offsets, group_id=name, topic_name=topic)
            page.add("kminion_kafka_consumer_group_topic_lag", records, group_id=name, topic_name=topic)
            await page.turn()


def serve_lags(
    config: BrokerConfig,
    version: str,
    lags: LagWatch,
    metadata: MetadataCache,
    replicas: ReplicaManager,
    metrics: Metrics,
    clock: Clock,
) -> None:
    """Make the text after each round of ``lags``, for the page of ``metrics``: only if some scrape can read that."""
    if config.admin_listener and config.metrics_enable:
        families = LagFamilies(config.broker_id, version, config.group_lag_series_max, lags, metadata, replicas, clock)
        lags.after_round(families.make)
        metrics.group_families = families.page


async def _group_partitions(page: _Page, group: GroupLag) -> None:
    for (topic, index), one in group.partitions.items():
        labels = {"consumergroup": group.group_id, "topic": topic, "partition": index}
        page.add("kafka_consumergroup_current_offset", one.committed, **labels)
        page.add("kafka_consumergroup_lag", one.records, **labels)
        page.add("kafka_consumergroup_uncommitted_offsets", one.records, **labels)
        page.add("kafka_consumer_lag_millis", round(one.seconds * 1000), **labels)
        page.add(
            "kminion_kafka_consumer_group_topic_partition_lag", one.records,
            group_id=group.group_id, partition_id=index, topic_name=topic,
        )  # fmt: skip
        await page.turn()


async def _summed(page: _Page, group: GroupLag) -> _Summary:
    """A group's partitions added up by topic, and its members' assignments."""
    topics: dict[str, tuple[int, int, float]] = {}
    progress, longest, waiting = Progress.OK, 0.0, 0
    for (topic, _), one in group.partitions.items():
        offsets, records, seconds = topics.get(topic, (0, 0, 0.0))
        topics[topic] = (offsets + one.committed, records + one.records, max(seconds, one.seconds))
        progress, longest, waiting = max(progress, one.progress), max(longest, one.seconds), waiting + one.records
        await page.turn(1)
    assigned: dict[str, tuple[int, int]] = {}
    idle = 0
    for counts in group.assignments:
        has_some = False
        for topic, count in counts.items():
            members, partitions = assigned.get(topic, (0, 0))
            assigned[topic] = members + bool(count), partitions + count
            has_some = has_some or bool(count)
            await page.turn(1)
        idle += not has_some
        await page.turn(1)
    return _Summary(group, progress, longest, waiting, topics, assigned, idle)


def _address(broker: BrokerInfo) -> dict[str, object]:
    endpoint = broker.endpoints[0] if broker.endpoints else None
    return {
        "broker_id": broker.id,
        "address": endpoint.host if endpoint is not None else "",
        "port": endpoint.port if endpoint is not None else 0,
        "rack_id": broker.rack or "",
    }
