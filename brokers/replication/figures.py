"""This broker's replicas in numbers: read a slice at a time when they are asked for, and kept nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from fleetlog.brokers.log import Log
from fleetlog.brokers.metrics.exposition import LONG_SLICE, RowFamily, Rows, by_slices, in_weighed_slices
from fleetlog.brokers.model import Clock, PartitionState, TopicInfo
from fleetlog.brokers.replication.partition import Partition
from fleetlog.brokers.replication.replicas import ReplicaManager

PARTITION_LABELS = ("topic", "partition")
SEGMENTS_PER_ROW = 32
"""So many segments, of which the sizes are added up, take as much time as a row."""


class ReplicaLook(NamedTuple):
    """What there is to say of one replica. In-sync sets are a leader's; without one they are 0."""

    topic: str
    partition: int
    leads: bool
    preferred: bool
    """Whether this broker is the first of the partition's replicas."""
    in_sync: int
    wanted: int
    """Replicas that should be in sync."""
    minimum: int
    """In-sync replicas that a producer with acks=all needs."""
    start: int
    end: int
    high_watermark: int
    last_stable: int
    size_bytes: int
    segments: int
    lost_commits: int

    @property
    def under_replicated(self) -> bool:
        """Whether the in-sync set lacks a replica."""
        return self.in_sync < self.wanted

    @property
    def under_minimum(self) -> bool:
        """Whether producers with acks=all get errors."""
        return self.in_sync < self.minimum

    @property
    def at_minimum(self) -> bool:
        """Whether the next replica that is lost makes producers with acks=all get errors."""
        return self.leads and self.in_sync == self.minimum


def look_at(partition: Partition) -> ReplicaLook:
    """Read one replica."""
    tp, log, state, leads = partition.tp, partition.log, partition.state, partition.is_leader
    replicas = state.replicas
    return ReplicaLook(
        tp.topic, tp.partition, leads, leads and replicas[0] == state.leader,
        len(state.isr) if leads else 0, len(state.target) if leads else 0,
        partition.in_sync.effective_min_isr if leads else 0,
        log.log_start_offset, log.log_end_offset, log.high_watermark, log.last_stable_offset, log.size_bytes,
        len(log.segments), partition.follower_role.lost_commits,
    )  # fmt: skip


def looks(replicas: ReplicaManager) -> Iterator[list[ReplicaLook]]:
    """All replicas, as many at a time as one turn of the loop may read."""
    for some in in_weighed_slices(replicas.all(), _weight):
        yield [look_at(partition) for partition in some if not partition.deleted]


def _weight(partition: Partition) -> int:
    return 1 + len(partition.log.segments) // SEGMENTS_PER_ROW


def states_in_slices(topics: Iterable[TopicInfo]) -> Iterator[list[PartitionState]]:
    """The partitions' states, as many at a time as one turn of the loop may read."""
    some: list[PartitionState] = []
    for topic in list(topics):
        some += topic.partitions
        while len(some) >= LONG_SLICE:
            yield some[:LONG_SLICE]
            del some[:LONG_SLICE]
    yield some


def follower_families(replicas: ReplicaManager, clock: Clock) -> Iterator[Metric | None]:
    """How far followers are behind the partitions that this broker leads, by the follower's broker id."""
    by_broker: dict[int, list[float]] = {}
    for some in in_weighed_slices(replicas.all(), lambda one: _weight(one) * max(1, len(one.state.replicas) - 1)):
        now_ms = clock.mono_ms()
        for partition in some:
            if not partition.is_leader or partition.deleted or partition.log.offline:
                continue
            for broker_id, offset, late_ms in partition.followers.behind(now_ms):
                row = by_broker.setdefault(broker_id, [0, 0, 0.0])
                row[0] += partition.log.log_end_offset - max(offset, partition.log.log_start_offset)
                row[1] += bytes_from(partition.log, offset)
                row[2] = max(row[2], late_ms / 1000)
            for broker_id in partition.state.replicas:
                if broker_id != partition.state.leader:
                    by_broker.setdefault(broker_id, [0, 0, 0.0])
        yield None
    for index, (name, doc) in enumerate(_FOLLOWER_GAUGES):
        family = GaugeMetricFamily(f"fleetlog_follower_lag_{name}", doc, labels=["follower"])
        for broker_id, row in sorted(by_broker.items()):
            family.add_metric([str(broker_id)], row[index])
        yield family


def silent_transactions(replicas: ReplicaManager, clock: Clock) -> Iterator[Metric | None]:
    """Of the logs that this broker leads: a coordinator may know nothing of what holds one up."""
    silent_ms = 0
    for some in in_weighed_slices(replicas.all(), lambda one: 1 + len(one.log.producers.open), LONG_SLICE):
        now_ms = clock.wall_ms()
        for partition in some:
            producers = partition.log.producers
            if producers.open and partition.is_leader and not partition.deleted:
                silent_ms = max(silent_ms, producers.silent_ms(now_ms))
        yield None
    yield GaugeMetricFamily(
        "fleetlog_silent_transaction_seconds",
        "For how long a transaction that is open in a log led here has got no record, of the longest; 0: none is open.",
        silent_ms / 1000,
    )


def bytes_from(log: Log, offset: int) -> int:
    """Bytes of the log from an offset on, in proportion within the segment that has it: no file is read."""
    if offset >= log.log_end_offset:
        return 0
    segments, index = log.segments.after(max(offset, log.log_start_offset))
    held = segments[index]
    first, end = held.base_offset, log.segments.end_of(index, log.log_end_offset)
    share = (end - max(offset, first)) / (end - first) if end > first else 0.0
    return round(held.size * share) + sum(segment.size for segment in segments[index + 1 :])


_FOLLOWER_GAUGES = (
    ("records", "Records that the follower lacks; of a partition where it has not fetched yet, all."),
    ("bytes", "Bytes of these, as far as that is known without reading them."),
    ("seconds", "For how long the follower has not had all records of some partition."),
)
PARTITION_FAMILIES = tuple(
    RowFamily(f"fleetlog_partition_{name}", "gauge", doc)
    for name, doc in (
        ("log_start_offset", "First offset of the log."),
        ("log_end_offset", "Offset of the next record."),
        ("high_watermark", "Offset below which records are committed."),
        ("last_stable_offset", "Offset below which no transaction is open."),
        ("log_bytes", "Size of the log."),
        ("log_segments", "Segments of the log."),
        ("leader", "1 where this broker leads."),
        ("in_sync_replicas", "In-sync replicas, at the leader."),
        ("replicas", "Replicas that should be in sync, at the leader."),
        ("under_min_isr", "1 where acks=all gets errors, at the leader."),
    )
)


def partition_rows(replicas: ReplicaManager) -> Iterator[Rows | None]:
    """The families of the partitions' page."""
    rows = Rows(PARTITION_LABELS, PARTITION_FAMILIES)
    for some in looks(replicas):
        for look in some:
            led = (look.in_sync, look.wanted, int(look.under_minimum)) if look.leads else (None, None, None)
            numbers = (
                look.start, look.end, look.high_watermark, look.last_stable, look.size_bytes, look.segments,
                int(look.leads), *led,
            )  # fmt: skip
            rows.rows.append(((look.topic, str(look.partition)), numbers))
        yield None
    yield rows


def replica_families(replicas: ReplicaManager, label: Callable[[str], str]) -> Iterator[Metric | Rows | None]:
    """The replicas added up for the broker, and by topic; ``label`` is a topic's label."""
    total = dict.fromkeys(_BROKER_GAUGES, 0)
    topics: dict[str, list[int]] = {}
    lost = 0
    for some in looks(replicas):
        for look in some:
            total["partitions"] += 1
            total["leaders"] += look.leads
            total["preferred_leaders"] += look.leads and look.preferred
            total["under_replicated_partitions"] += look.under_replicated
            total["missing_in_sync_replicas"] += max(0, look.wanted - look.in_sync)
            total["under_min_isr_partitions"] += look.under_minimum
            total["at_min_isr_partitions"] += look.at_minimum
            total["log_bytes"] += look.size_bytes
            total["log_segments"] += look.segments
            lost += look.lost_commits
            row = topics.setdefault(label(look.topic), [0, 0, 0, 0])
            row[0] += 1
            row[1] += look.leads
            row[2] += look.under_replicated
            row[3] += look.size_bytes
        yield None
    for name, doc in _BROKER_GAUGES.items():
        yield GaugeMetricFamily(f"fleetlog_{name}", doc, value=total[name])
    yield GaugeMetricFamily(
        "fleetlog_lost_commits", "Truncations below the high watermark: only an unclean election may cause one.", lost
    )
    by_topic = Rows(("topic",), _TOPIC_GAUGES)
    for few in by_slices(sorted(topics.items())):
        by_topic.rows += [((topic,), row) for topic, row in few]
        yield None
    yield by_topic


_BROKER_GAUGES = {
    "partitions": "Replicas on this broker.",
    "leaders": "Partitions this broker leads.",
    "preferred_leaders": "Partitions this broker leads as their first replica.",
    "under_replicated_partitions": "Partitions led by this broker whose in-sync set lacks a replica.",
    "missing_in_sync_replicas": "Replicas that the in-sync sets of the partitions led by this broker lack.",
    "under_min_isr_partitions": "Partitions led by this broker with fewer in-sync replicas than acks=all needs.",
    "at_min_isr_partitions": "Partitions led by this broker with just as many in-sync replicas as acks=all needs.",
    "log_bytes": "Size of this broker's logs.",
    "log_segments": "Segments of this broker's logs.",
}
_TOPIC_GAUGES = tuple(
    RowFamily(f"fleetlog_topic_{name}", "gauge", doc)
    for name, doc in (
        ("replicas", "Replicas of the topic on this broker."),
        ("leaders", "Partitions of the topic that this broker leads."),
        ("under_replicated_partitions", "Those of them whose in-sync set lacks a replica."),
        ("log_bytes", "Size of the topic's logs on this broker."),
    )
)
DEDUP_GAUGES = tuple(
    RowFamily(f"fleetlog_dedup_{name}", "gauge", doc)
    for name, doc in (
        ("bytes", "Bytes that the accepted positions of a replica take."),
        ("sources", "Sources of which a replica knows positions."),
        ("dropped_records", "Duplicates that this broker dropped as the leader."),
        ("refused_batches", "Batches refused for want of room, or below what is known."),
    )
)


def dedup_rows(replicas: ReplicaManager) -> Iterator[Rows | None]:
    """The replicas of topics that drop duplicates."""
    rows = Rows(("partition",), DEDUP_GAUGES)
    for some in by_slices(replicas.all(), LONG_SLICE):
        for partition in some:
            sets = partition.log.producers.positions
            if sets is not None:
                numbers = (sets.cost, len(sets.sources), sets.dropped, sets.refused)
                rows.rows.append(((str(partition.tp),), numbers))
        yield None
    yield rows
