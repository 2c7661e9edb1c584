"""The broker's figures by the names that Kafka's dashboards query: the page /metrics/kafka.

The names are those of Strimzi's configuration of the JMX exporter, whose dashboards are the most used. Other
configurations spell the same numbers differently; :data:`RENAMED` has their rows, and ``?names=confluent`` or
``?names=bitnami`` applies them. Source: Strimzi's examples/metrics, jmx-monitoring-stacks, Bitnami's chart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from fleetlog._native.tally import TIME_BOUNDS_S
from fleetlog.brokers.api.base import Services
from fleetlog.brokers.metrics.exposition import SLICE, RowFamily, Rows, by_slices
from fleetlog.brokers.metrics.registry import Histogram
from fleetlog.brokers.model import NO_LEADER
from fleetlog.brokers.replication.figures import PARTITION_LABELS, ReplicaLook, looks, states_in_slices
from fleetlog.brokers.tiering.tiers import TierSize

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
_QUANTILE_LABELS = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
WINDOW_MS = 60_000
_TOPIC_METRICS = (
    ("messagesin", "records_in"),
    ("bytesin", "bytes_in"),
    ("bytesout", "bytes_out"),
    ("totalproducerequests", "batches_in"),
    ("failedproducerequests", "failed_produces"),
    ("totalfetchrequests", "fetches"),
    ("failedfetchrequests", "failed_fetches"),
    ("replicationbytesin", "replicated_in"),
    ("replicationbytesout", "replicated_out"),
)
_TIER_METRICS = (
    ("remotecopybytes", "copied_bytes"),
    ("remotecopyrequests", "copies"),
    ("remotecopyerrors", "copy_errors"),
    ("remotefetchbytes", "fetched_bytes"),
    ("remotefetchrequests", "fetches"),
    ("remotefetcherrors", "fetch_errors"),
    ("remotedeleterequests", "deletes"),
    ("remotedeleteerrors", "delete_errors"),
)
_TIER_GAUGES = ("remotecopylagbytes", "remotecopylagsegments", "remotelogsizebytes", "remotelogmetadatacount")
_REPLICA_MANAGER: tuple[tuple[str, Callable[[ReplicaLook], int]], ...] = (
    ("partitioncount", lambda look: 1),
    ("leadercount", lambda look: look.leads),
    ("underreplicatedpartitions", lambda look: look.under_replicated),
    ("underminisrpartitioncount", lambda look: look.under_minimum),
    ("atminisrpartitioncount", lambda look: look.at_minimum),
)
_PARTITION_FAMILIES = tuple(
    RowFamily(f"kafka_{name}", "gauge", doc)
    for name, doc in (
        ("log_log_size", "Size of the log, in bytes."),
        ("log_log_logstartoffset", "First offset of the log."),
        ("log_log_logendoffset", "Offset of the next record."),
        ("log_log_numlogsegments", "Segments of the log."),
        ("cluster_partition_replicascount", "Replicas, at the leader."),
        ("cluster_partition_insyncreplicascount", "In-sync replicas, at the leader."),
        ("cluster_partition_underreplicated", "1 where the in-sync set lacks a replica."),
        ("cluster_partition_underminisr", "1 where acks=all gets errors."),
        ("cluster_partition_atminisr", "1 where acks=all has no replica to spare."),
    )
)

_COUNTED = (
    r"(kafka_server_brokertopicmetrics_\w+|kafka_server_replicamanager_isr(?:shrinks|expands)"
    r"|kafka_controller_controllerstats_uncleanleaderelections)_total"
)
RENAMED: dict[str, tuple[tuple[str, str], ...]] = {
    "confluent": (
        (_COUNTED, r"\1persec"),
        (r"(kafka_network_socketserver_networkprocessoravgidle)_percent", r"\1percent"),
        (r"(kafka_server_kafkarequesthandlerpool_requesthandleravgidle)_percent", r"\1percent"),
    ),
    "bitnami": (
        (_COUNTED, r"\1persec_count"),
        (r"(kafka_network_socketserver_networkprocessoravgidle)_percent", r"\1percent_value"),
        (r"(kafka_server_kafkarequesthandlerpool_requesthandleravgidle)_percent", r"\1percent_count"),
        (r"(kafka_server_replicamanager_\w+(?:count|partitions))", r"\1_value"),
        (r"(kafka_controller_kafkacontroller_\w+count)", r"\1_value"),
        (r"(kafka_cluster_partition_\w+)", r"\1_value"),
        (r"(kafka_log_log_\w+)", r"\1_value"),
    ),
}
"""By the family of names: patterns of whole names in Strimzi's spelling, and what they become."""


def renamed_text(text: str, names: str) -> str:
    """A page with the names of another family; raises KeyError if there is none of that name."""
    rules = [(re.compile(pattern), to) for pattern, to in RENAMED[names]]

    @cache
    def spelled(name: str) -> str:
        return next((rule.sub(to, name) for rule, to in rules if rule.fullmatch(name)), name)

    return _NAME.sub(lambda found: found[1] + spelled(found[2]), text)


_NAME = re.compile(r"^((?:# (?:HELP|TYPE) )?)(kafka_\w+)", re.MULTILINE)


class RecentTimes:
    """Quantiles of what histograms counted in the last minute, or since the scrape before if that is longer ago."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], list[tuple[int, list[int]]]] = {}

    def quantiles(self, key: tuple[str, str], histogram: Histogram, now_ms: int) -> list[float]:
        """The ``QUANTILES`` in milliseconds, between bounds in proportion; 0 where nothing was counted."""
        kept = self._before.setdefault(key, [])
        while len(kept) > 1 and kept[1][0] <= now_ms - WINDOW_MS:
            kept.pop(0)
        before = kept[0][1] if kept else [0] * len(histogram.counts)
        if not kept or now_ms - kept[-1][0] >= WINDOW_MS // 12:
            kept.append((now_ms, list(histogram.counts)))
        return quantiles_of([now - then for now, then in zip(histogram.counts, before, strict=True)])


def quantiles_of(counts: list[int]) -> list[float]:
    """``QUANTILES`` of the seconds that a histogram's counts stand for, in milliseconds."""
    total, quantiles = sum(counts), []
    for quantile in QUANTILES:
        left, value = quantile * total, 0.0
        for index, count in enumerate(counts):
            if count and left <= count:
                low = TIME_BOUNDS_S[index - 1] if index else 0.0
                high = TIME_BOUNDS_S[min(index, len(TIME_BOUNDS_S) - 1)]
                value = low + (high - low) * left / count
                break
            left -= count
        quantiles.append(value * 1000)
    return quantiles


class KafkaPage:
    """The source of the page. ``partitions``: whether it has figures of each partition."""

    def __init__(self, services: Services, *, partitions: bool) -> None:
        self._services = services
        self._partitions = partitions
        self._recent = RecentTimes()

    def collect(self) -> Iterator[Metric | Rows | None]:
        """All families that need no process or sockets."""
        yield from self._replicas()
        yield from self._topics()
        yield from self._tiers()
        yield from self._controller()
        yield from self._requests()

    def _replicas(self) -> Iterator[Metric | Rows | None]:
        totals = [0] * len(_REPLICA_MANAGER)
        rows = Rows(PARTITION_LABELS, _PARTITION_FAMILIES)
        for some in looks(self._services.replicas):
            for look in some:
                totals = [total + read(look) for total, (_, read) in zip(totals, _REPLICA_MANAGER, strict=True)]
                if self._partitions:
                    led = (
                        (look.wanted, look.in_sync, int(look.under_replicated), int(look.under_minimum),
                         int(look.at_minimum))
                        if look.leads else (None,) * 5
                    )  # fmt: skip
                    numbers = (look.size_bytes, look.start, look.end, look.segments, *led)
                    rows.rows.append(((look.topic, str(look.partition)), numbers))
            yield None
        for (name, _), total in zip(_REPLICA_MANAGER, totals, strict=True):
            yield GaugeMetricFamily(f"kafka_server_replicamanager_{name}", "Of this broker's replicas.", total)
        yield rows

    def _topics(self) -> Iterator[Metric | Rows | None]:
        topics = self._services.replicas.topic_figures
        if topics is None:
            return
        for change in ("shrinks", "expands"):
            yield CounterMetricFamily(
                f"kafka_server_replicamanager_isr{change}", "Of in-sync sets led here.", topics.total(f"isr_{change}")
            )
        yield None
        families = [
            RowFamily(f"kafka_server_brokertopicmetrics_{name}_total", "counter", "By topic, and without a label.")
            for name, _ in _TOPIC_METRICS
        ]
        rows, totals = Rows(("topic",), families), [0] * len(_TOPIC_METRICS)
        for some in by_slices(topics.all().items(), SLICE):
            for topic, figures in some:
                numbers = [getattr(figures, attribute) for _, attribute in _TOPIC_METRICS]
                totals = [total + number for total, number in zip(totals, numbers, strict=True)]
                rows.rows.append(((topic,), numbers))
            yield None
        rows.rows.append(((), totals))
        yield rows

    def _tiers(self) -> Iterator[Rows]:
        """Of tiered topics, where this broker has a bucket: what it did, and how those are that it leads now."""
        tiers = self._services.tiers
        if tiers is None:
            return
        kinds = [(f"{name}_total", "counter") for name, _ in _TIER_METRICS] + [(name, "gauge") for name in _TIER_GAUGES]
        families = [
            RowFamily(f"kafka_server_brokertopicmetrics_{name}", kind, "By topic, and without a label.")
            for name, kind in kinds
        ]
        rows, totals, now = Rows(("topic",), families), [0] * len(families), tiers.sizes()
        for topic, figures in tiers.figures.items():
            counts = [getattr(figures, attribute) for _, attribute in _TIER_METRICS]
            numbers = [*counts, *now.get(topic, TierSize())]
            totals = [total + number for total, number in zip(totals, numbers, strict=True)]
            rows.rows.append(((topic,), numbers))
        rows.rows.append(((), totals))
        yield rows

    def _controller(self) -> Iterator[Metric | Rows | None]:
        services = self._services
        active = services.controller.is_active
        offline = imbalanced = 0
        for some in states_in_slices(services.metadata.topics.values() if active else ()):
            offline += sum(state.leader == NO_LEADER for state in some)
            imbalanced += sum(bool(state.replicas) and state.leader != state.replicas[0] for state in some)
            yield None
        for name, value in (
            ("activecontrollercount", int(active)),
            ("offlinepartitionscount", offline),
            ("preferredreplicaimbalancecount", imbalanced),
            ("globaltopiccount", len(services.metadata.topics) if active else 0),
        ):
            yield GaugeMetricFamily(
                f"kafka_controller_kafkacontroller_{name}", "Of the fleet, at the controller.", value
            )
        yield CounterMetricFamily(
            "kafka_controller_controllerstats_uncleanleaderelections", "By this broker as controller.",
            services.controller.unclean_elections,
        )  # fmt: skip
        yield GaugeMetricFamily("kafka_server_kafkaserver_brokerstate", "3: it serves.", 3)

    def _requests(self) -> Iterator[Metric | Rows | None]:
        metrics = self._services.metrics
        families: dict[str, GaugeMetricFamily] = {}

        def add(request: str, parts: dict[str, Histogram]) -> None:
            now_ms = self._services.clock.mono_ms()
            for part, histogram in parts.items():
                if part not in families:
                    families[part] = GaugeMetricFamily(
                        f"kafka_network_requestmetrics_{part}", "Milliseconds, of the last minute.",
                        labels=["request", "quantile"],
                    )  # fmt: skip
                if any(histogram.counts):
                    values = self._recent.quantiles((part, request), histogram, now_ms)
                    for quantile, value in zip(_QUANTILE_LABELS, values, strict=True):
                        families[part].add_metric([request, quantile], value)

        for api, histogram in list(metrics.request_seconds.children.items()):
            if any(histogram.counts):
                add(api, metrics.request_parts(api))
                yield None
        for request, parts in metrics.fetch_parts().items():
            add(request, parts)
        yield None
        yield from families.values()
        family = CounterMetricFamily("kafka_network_requestmetrics_requests", "Answered.", labels=["request"])
        for api, counter in metrics.request_seconds.children.items():
            family.add_metric([api], counter.value)
        followers = sum(metrics.follower_fetches.total.counts)
        family.add_metric(["FetchFollower"], followers)
        family.add_metric(["FetchConsumer"], max(0, metrics.request_seconds.labels("Fetch").value - followers))
        yield family
