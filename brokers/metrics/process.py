"""What the process uses, for the pages of metrics: CPU, memory, descriptors, disk, garbage collection, the loop.

And its session with ZooKeeper.
"""

from __future__ import annotations

import collections
import gc
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from fleetlog.brokers.metrics.exposition import BROKER_PAGE, KAFKA_PAGE, OffLoop
from fleetlog.brokers.metrics.registry import Counter, Metrics
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
        self._events: collections.Counter[SessionState] = collections.Counter()
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


_IO = Path("/proc/self/io")


class ProcessFigures:
    """Measures between one scrape and the next, and how long garbage collections take. :meth:`stop` once."""

    def __init__(self, metrics: Metrics) -> None:
        self._collections, self._pause_ns = Counter(), Counter()
        self._began_ns = 0
        self._last = (time.perf_counter(), time.process_time())
        self._busy = 0.0
        process = OffLoop(ProcessCollector(registry=None).collect)  # it counts thousands of open files one by one
        for page in (BROKER_PAGE, KAFKA_PAGE):
            metrics.register(page, lambda: (process,))
        GCCollector(registry=metrics.registry)
        metrics.watch_counters(
            "fleetlog_gc_pauses", "Garbage collections, each of which held the loop.", (),
            lambda: {(): self._collections.value},
        )  # fmt: skip
        metrics.watch_counters(
            "fleetlog_gc_pause_seconds", "How long garbage collections held the loop.", (),
            lambda: {(): self._pause_ns.value / 1e9},
        )  # fmt: skip
        metrics.watch(
            "fleetlog_cpu_busy", "Share of one core that the broker used since the scrape before: 1 is all.", self.busy
        )
        metrics.register(KAFKA_PAGE, self.kafka_families)
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """Measure garbage collections no longer."""
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, _: object) -> None:
        if phase == "start":
            self._began_ns = time.perf_counter_ns()
        else:
            self._collections.value += 1
            self._pause_ns.value += time.perf_counter_ns() - self._began_ns

    def busy(self) -> float:
        """The share of one core used since the last call; calls within a second get the same answer."""
        now, used = time.perf_counter(), time.process_time()
        before, used_before = self._last
        if now - before >= 1.0:
            self._last = now, used
            self._busy = min(1.0, max(0.0, (used - used_before) / (now - before)))
        return self._busy

    def kafka_families(self) -> Iterator[Metric]:
        """The same as Kafka's dashboards name it: one loop is all network threads and request handlers."""
        idle = 1.0 - self.busy()
        for name in (
            "kafka_network_socketserver_networkprocessoravgidle_percent",
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        ):
            yield GaugeMetricFamily(name, "Share of time in which the broker's loop is idle, 0 to 1.", idle)
        counted = dict(line.split(": ") for line in _IO.read_text().splitlines()) if _IO.exists() else {}
        for what in ("read", "write"):
            family = GaugeMetricFamily(f"kafka_server_kafkaserver_linux_disk_{what}_bytes", f"Bytes of disk {what}s.")
            family.add_metric([], float(counted.get(f"{what}_bytes", 0)))
            yield family
