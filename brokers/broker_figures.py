"""What the broker's pages of metrics show beside what is counted where it happens: docs/metrics.md has the list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from fleetlog.brokers.api.base import Services
from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.kafka_names import KafkaPage
from fleetlog.brokers.log.disk.sync_times import SYNC_SECONDS
from fleetlog.brokers.metrics.exposition import BROKER_PAGE, KAFKA_PAGE, PARTITION_PAGE, Rows, by_slices
from fleetlog.brokers.metrics.registry import Histogram
from fleetlog.brokers.metrics.topics import OTHER_TOPICS, TopicTable
from fleetlog.brokers.model import NO_LEADER
from fleetlog.brokers.replication.figures import (
    dedup_rows,
    follower_families,
    partition_rows,
    replica_families,
    silent_transactions,
    states_in_slices,
)
from fleetlog.txn.states import TransactionState

PARTS_PER_TURN = 5
"""Parts of :meth:`txn.commands.Shard.metric_parts`, or slices of as many rows, that one turn of the loop may read."""


def counted_topics(config: BrokerConfig) -> TopicTable | None:
    """The table of what is counted by topic; None where no scrape can read it."""
    return TopicTable(config.metrics_topics_max) if config.admin_listener and config.metrics_enable else None


def watch_broker(services: Services, lease_ms: Callable[[], float], damaged_answers: Callable[[], int]) -> None:
    """Add this broker's figures to its pages.

    ``lease_ms`` is what is left of the lease, ``damaged_answers`` counts what leaders sent.
    """
    metrics, replicas = services.metrics, services.replicas
    topics = replicas.topic_figures

    def families() -> Iterator[Metric | Rows | None]:
        return replica_families(replicas, topics.label if topics is not None else _no_topic)

    metrics.register(BROKER_PAGE, families)
    metrics.register(BROKER_PAGE, lambda: follower_families(replicas, services.clock))
    metrics.register(BROKER_PAGE, lambda: silent_transactions(replicas, services.clock))
    if topics is not None:
        metrics.register(BROKER_PAGE, topics.collect)
    if services.config.metrics_partitions_enable:

        def rows() -> Iterator[Rows | None]:
            return partition_rows(replicas)

        metrics.register(PARTITION_PAGE, rows)
    metrics.register(KAFKA_PAGE, KafkaPage(services, partitions=services.config.metrics_partitions_enable).collect)
    metrics.watch_histogram("fleetlog_fsync_seconds", "How long fsync took, of files and directories.", SYNC_SECONDS)
    _watch_disks(services)
    metrics.register(BROKER_PAGE, partial(_open_transactions, services))
    _watch_checkpoints(services)
    _watch_damage(services, damaged_answers)
    metrics.register(BROKER_PAGE, lambda: dedup_rows(replicas))
    metrics.register(BROKER_PAGE, partial(_offline_partitions, services))
    metrics.register(BROKER_PAGE, partial(_coordinators, services))
    watch = metrics.watch
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
        lambda: services.controller.unclean_elections,
    )
    metrics.watch_counters(
        "fleetlog_elections", "Changes of partitions' leaders that this broker made as controller, by reason.",
        ("reason",), lambda: {(why,): number for why, number in services.controller.elections.items()},
    )  # fmt: skip
    metrics.watch_family(
        "fleetlog_fetch_sessions",
        "Fetch sessions of consumers and followers, the partitions they name, and how many were evicted.",
        "what",
        services.fetch_sessions.metrics,
    )
    watch("fleetlog_lease_seconds", "Time left on the lease.", lambda: lease_ms() / 1000)


def watch_rebalances(services: Services, seconds: Histogram) -> None:
    """How long the rebalances of this coordinator's groups take, and the one under way that began first."""
    services.metrics.watch_histogram(
        "fleetlog_group_rebalance_seconds", "How long rebalances of groups took that ended.", seconds
    )

    def longest() -> Iterator[Metric | None]:
        found_ms = number = 0
        for shard in services.groups.shards():
            for rebalance_ms in shard.longest_rebalances_ms(services.clock.mono_ms()):
                found_ms = max(found_ms, rebalance_ms)
                number += 1
                if number % PARTS_PER_TURN == 0:
                    yield None
        yield GaugeMetricFamily(
            "fleetlog_group_rebalance_longest_seconds", "How long the oldest rebalance under way has taken; 0: none.",
            found_ms / 1000,
        )  # fmt: skip

    services.metrics.register(BROKER_PAGE, longest)


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
                (
                    "stray_logs",
                    "Logs that lie aside in the log directory: `fleetlog log strays` shows and removes them.",
                ),
                ("stray_bytes", "Bytes of their segments."),
            )
        ]
        for directory, total, usable in services.replicas.logs.room():
            strays = directory.strays
            numbers = (total, usable, int(directory.offline), directory.logs, len(strays), sum(strays.values()))
            for family, number in zip(families, numbers, strict=True):
                family.add_metric([directory.path], number)
        yield from families

    services.metrics.register(BROKER_PAGE, disks)


def _watch_checkpoints(services: Services) -> None:
    times, clock = services.replicas.logs.checkpoint_times, services.clock
    services.metrics.watch_histogram(
        "fleetlog_checkpoint_seconds",
        "How long the checkpoints of a log directory took, from the first write until all of them were durable.",
        times.seconds,
    )
    services.metrics.watch_family(
        "fleetlog_checkpoint_age_seconds", "Time since the last checkpoints of a log directory; none before them.",
        "directory",
        lambda: {path: (clock.mono_ms() - ended_ms) / 1000 for path, ended_ms in times.ended_ms.items()},
    )  # fmt: skip


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


def _offline_partitions(services: Services) -> Iterator[Metric | None]:
    offline = 0
    for some in states_in_slices(services.metadata.topics.values() if services.controller.is_active else ()):
        offline += sum(state.leader == NO_LEADER for state in some)
        yield None
    yield GaugeMetricFamily(
        "fleetlog_offline_partitions", "Partitions without a leader, at the controller; 0 at the others.", offline
    )


def _coordinators(services: Services) -> Iterator[Metric | None]:
    total: dict[str, float] = {}
    parts = chain(services.groups.metric_parts(), services.transactions.metric_parts())
    for number, part in enumerate(parts):
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
        if number % PARTS_PER_TURN == 0:
            yield None
    family = GaugeMetricFamily(
        "fleetlog_coordinators", "State of this broker's group and transaction coordinators.", labels=["what"]
    )
    for name, value in sorted(total.items()):
        family.add_metric([name], value)
    yield family


def _open_transactions(services: Services) -> Iterator[Metric | None]:
    """The ages of the oldest ones: a sink's batch is one, too."""
    now_ms = services.clock.wall_ms()
    oldest_ms = oldest_batch_ms = now_ms
    number = 0
    for shard in services.transactions.shards():
        for some in by_slices(shard.transactions.values()):
            for transaction in some:
                if transaction.state is TransactionState.ONGOING and transaction.start_ms >= 0:
                    oldest_ms = min(oldest_ms, transaction.start_ms)
                    if transaction.batch is not None:
                        oldest_batch_ms = min(oldest_batch_ms, transaction.start_ms)
            number += 1
            if number % PARTS_PER_TURN == 0:
                yield None
    for name, what, begun_ms in (
        ("transaction", "open transaction", oldest_ms),
        ("sink_batch", "open batch of a Spark sink", oldest_batch_ms),
    ):
        yield GaugeMetricFamily(
            f"fleetlog_oldest_{name}_seconds", f"Age of this coordinator's oldest {what}; 0: none.",
            (now_ms - begun_ms) / 1000,
        )  # fmt: skip
