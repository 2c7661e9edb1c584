"""What the broker's pages of metrics show beside what is counted where it happens: docs/metrics.md has the list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from brokers.api.base import Services
from brokers.config import BrokerConfig
from brokers.exposition import BROKER_PAGE, KAFKA_PAGE, PARTITION_PAGE, Rows
from brokers.groups.rebalances import RebalanceTimes
from brokers.kafka_names import KafkaPage
from brokers.log.dedup_metrics import watch_dedup
from brokers.log.sync_times import SYNC_SECONDS
from brokers.replication.figures import follower_families, partition_rows, replica_families
from brokers.topic_figures import OTHER_TOPICS, TopicTable
from txn.states import TransactionState


def counted_topics(config: BrokerConfig) -> TopicTable | None:
    """The table of what is counted by topic; None where no scrape can read it."""
    return TopicTable(config.metrics_topics_max) if config.admin_listener and config.metrics_enable else None


def watch_broker(services: Services, lease_ms: Callable[[], float], damaged_answers: Callable[[], int]) -> None:
    """Add this broker's figures to its pages.

    ``lease_ms`` is what is left of the lease, ``damaged_answers`` counts what leaders sent.
    """
    metrics, replicas = services.metrics, services.replicas
    topics = replicas.topic_figures

    def families() -> Iterator[Metric | None]:
        return replica_families(replicas, topics.label if topics is not None else _no_topic)

    metrics.register(BROKER_PAGE, families)
    metrics.register(BROKER_PAGE, lambda: follower_families(replicas, services.clock))
    if topics is not None:
        metrics.register(BROKER_PAGE, topics.collect)
    if services.config.metrics_partitions_enable:

        def rows() -> Iterator[Rows | None]:
            return partition_rows(replicas)

        metrics.register(PARTITION_PAGE, rows)
    metrics.register(KAFKA_PAGE, KafkaPage(services, partitions=services.config.metrics_partitions_enable).collect)
    metrics.watch_histogram("fleetlog_fsync_seconds", "How long fsync took, of files and directories.", SYNC_SECONDS)
    _watch_disks(services)
    _watch_transactions(services)
    _watch_damage(services, damaged_answers)
    watch = metrics.watch
    watch_dedup(metrics.watch_family, lambda: (partition.log for partition in replicas.all()))
    watch(
        "fleetlog_troubles",
        "Log directories that are full or failed, replicas without a log, a lack of file descriptors;"
        " /health/ready names them.",
        lambda: len(replicas.troubles()) + len(services.process_troubles()),
    )
    watch("fleetlog_controller", "1 on the controller.", lambda: float(services.controller.is_active))
    watch(
        "fleetlog_unclean_elections",
        "Unclean leader elections of this broker as controller: the leader may lack acknowledged records.",
        lambda: getattr(services.controller, "unclean_elections", 0),
    )
    metrics.watch_family(
        "fleetlog_coordinators",
        "State of this broker's group and transaction coordinators.",
        "what",
        lambda: {**services.groups.metrics(), **services.transactions.metrics()},
    )
    metrics.watch_family(
        "fleetlog_fetch_sessions",
        "Fetch sessions of consumers and followers, the partitions they name, and how many were evicted.",
        "what",
        services.fetch_sessions.metrics,
    )
    watch("fleetlog_lease_seconds", "Time left on the lease.", lambda: lease_ms() / 1000)


def watch_rebalances(services: Services, times: RebalanceTimes) -> None:
    """How long the rebalances of this coordinator's groups take, and the one under way that began first."""
    services.metrics.watch_histogram(
        "fleetlog_group_rebalance_seconds", "How long rebalances of groups took that ended.", times.seconds
    )
    services.metrics.watch(
        "fleetlog_group_rebalance_longest_seconds",
        "How long the oldest rebalance under way has taken; 0: none.",
        lambda: (
            max((one.longest_rebalance_ms(services.clock.mono_ms()) for one in services.groups.shards()), default=0)
            / 1000
        ),
    )


def _no_topic(_: str) -> str:
    return OTHER_TOPICS


def _watch_disks(services: Services) -> None:
    def disks() -> Iterator[Metric]:
        families = [
            GaugeMetricFamily(f"fleetlog_disk_{name}", doc, labels=["directory"])
            for name, doc in (
                ("total_bytes", "Size of the log directory's volume; -1 if it is unknown."),
                ("usable_bytes", "Free bytes of it for this broker; 0 while it refuses appends, -1 if unknown."),
                ("offline", "1 if the log directory's disk failed."),
                ("logs", "Replicas in the log directory."),
            )
        ]
        for directory in services.replicas.logs.usage():
            numbers = (directory.total_bytes, directory.usable_bytes, int(directory.offline), len(directory.logs))
            for family, number in zip(families, numbers, strict=True):
                family.add_metric([directory.path], number)
        yield from families

    services.metrics.register(BROKER_PAGE, disks)


def _watch_damage(services: Services, damaged_answers: Callable[[], int]) -> None:
    verify, topics = services.replicas.logs.verify, services.replicas.topic_figures
    metrics = services.metrics
    for name, doc, read in (
        ("verified_bytes", "Bytes of closed segments that were checked in the background.", lambda: verify.bytes),
        ("verified_segments", "Closed segments that were checked in the background.", lambda: verify.segments),
        ("verify_passes", "Times that all closed segments were checked.", lambda: verify.passes),
    ):
        metrics.watch_counters(f"fleetlog_{name}", doc, (), partial(_alone, read))
    metrics.watch(
        "fleetlog_damaged_segments", "Closed segments that were damaged when they were last checked in the background.",
        lambda: len(verify.damaged),
    )  # fmt: skip
    metrics.watch_counters(
        "fleetlog_checksum_failures",
        "Batches with a wrong checksum or format: of a producer, a leader, or in a closed segment.",
        ("source",),
        lambda: {
            ("producer",): topics.total("damaged") if topics is not None else 0,
            ("leader",): damaged_answers(),
            ("segment",): verify.failures,
        },
    )


def _alone(read: Callable[[], float]) -> dict[tuple[str, ...], float]:
    return {(): read()}


def _watch_transactions(services: Services) -> None:
    def oldest() -> float:
        now_ms = services.clock.wall_ms()
        begun = [
            transaction.start_ms
            for shard in services.transactions.shards()
            for transaction in shard.transactions.values()
            if transaction.state is TransactionState.ONGOING and transaction.start_ms >= 0
        ]
        return max(0.0, (now_ms - min(begun)) / 1000) if begun else 0.0

    services.metrics.watch(
        "fleetlog_oldest_transaction_seconds",
        "Age of this coordinator's oldest open transaction; 0: none.",
        oldest,
    )
