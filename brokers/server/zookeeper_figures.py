"""The session with ZooKeeper, for the pages of metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from fleetlog.brokers.exposition import BROKER_PAGE, KAFKA_PAGE
from fleetlog.brokers.metrics import Metrics
from fleetlog.coordination.request_times import BOUNDS_MS
from fleetlog.coordination.store import SessionEvent, SessionState
from fleetlog.coordination.zookeeper import ZookeeperStore

QUANTILES = (0.5, 0.95, 0.99)
_LISTENER = {
    SessionState.CONNECTED: "zookeepersyncconnects",
    SessionState.SUSPENDED: "zookeeperdisconnects",
    SessionState.EXPIRED: "zookeeperexpires",
}


class ZookeeperFigures:
    """Counts the session's events, and shows how long requests took."""

    def __init__(self, store: ZookeeperStore) -> None:
        self._times = store.times
        self._events: Counter[SessionState] = Counter()
        self._state = SessionState.CONNECTED
        store.on_session(self._changed)

    def _changed(self, event: SessionEvent) -> None:
        self._events[event.state] += 1
        self._state = event.state

    def collect(self) -> Iterator[Metric]:
        """By the broker's own names."""
        yield GaugeMetricFamily(
            "fleetlog_zookeeper_connected", "1 while the session is connected.", self._state is SessionState.CONNECTED
        )
        events = CounterMetricFamily("fleetlog_zookeeper_session_events", "Changes of the session.", labels=["state"])
        for state in _LISTENER:
            events.add_metric([state.name.lower()], self._events[state])
        yield events
        counts = accumulate(self._times.counts)
        bounds = (*(str(bound / 1000) for bound in BOUNDS_MS), "+Inf")
        yield HistogramMetricFamily(
            "fleetlog_zookeeper_request_seconds", "How long ZooKeeper took to answer this broker.",
            list(zip(bounds, map(float, counts), strict=True)), self._times.total_ms / 1000,
        )  # fmt: skip

    def collect_for_kafka(self) -> Iterator[Metric]:
        """By the names of Kafka's dashboards."""
        for state, name in _LISTENER.items():
            yield CounterMetricFamily(
                f"kafka_server_sessionexpirelistener_{name}", "Changes of the session.", self._events[state]
            )
        family = GaugeMetricFamily(
            "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms", "Since the start.", labels=["quantile"]
        )
        counts = list(accumulate(self._times.counts))
        for quantile in QUANTILES:
            index = next((n for n, count in enumerate(counts) if count >= quantile * counts[-1]), 0)
            family.add_metric([f"{quantile:.2f}"], BOUNDS_MS[min(index, len(BOUNDS_MS) - 1)] if counts[-1] else 0)
        yield family


def watch_zookeeper(metrics: Metrics, store: ZookeeperStore) -> None:
    """Add the figures to the broker's pages."""
    figures = ZookeeperFigures(store)
    metrics.register(BROKER_PAGE, figures.collect)
    metrics.register(KAFKA_PAGE, figures.collect_for_kafka)
