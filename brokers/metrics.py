"""The broker's numbers, as Prometheus metrics in a registry of its own. Names start with ``fleetlog_``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

LATENCY_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _Family(Collector):
    """A gauge whose label values are known only when it is read."""

    def __init__(self, name: str, doc: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._name, self._doc, self._label, self._read = name, doc, label, read

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._doc, labels=[self._label])
        for value, number in sorted(self._read().items()):
            family.add_metric([value], number)
        yield family


class Metrics:
    """What the broker counts. Every attribute is a Prometheus metric; :meth:`watch` adds one read at scrape time."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.requests = Counter("fleetlog_requests", "Requests answered.", ["api"], registry=r)
        self.request_seconds = Histogram(
            "fleetlog_request_seconds", "From a request's last byte to its answer in the outbox, parking included.",
            ["api"], buckets=LATENCY_SECONDS, registry=r,
        )  # fmt: skip
        self.refused = Counter(
            "fleetlog_refused_requests", "Frames or connections refused, by reason.", ["reason"], registry=r
        )
        self.bytes_in = Counter("fleetlog_received_bytes", "Bytes received from clients and brokers.", registry=r)
        self.bytes_out = Counter("fleetlog_sent_bytes", "Bytes sent to clients and brokers.", registry=r)
        self.connections = Gauge("fleetlog_connections", "Open connections.", registry=r)
        self.records_in = Counter("fleetlog_appended_records", "Records appended by producers.", registry=r)
        self.appended_bytes = Counter("fleetlog_appended_bytes", "Bytes appended by producers.", registry=r)
        self.loop_lag_seconds = Histogram(
            "fleetlog_loop_lag_seconds", "How late the event loop runs a timer.", buckets=LATENCY_SECONDS, registry=r
        )

    def watch(self, name: str, doc: str, read: Callable[[], float]) -> None:
        """Add a gauge whose value ``read`` gives at scrape time."""
        Gauge(name, doc, registry=self.registry).set_function(read)

    def watch_family(self, name: str, doc: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Add a gauge with one label, whose values ``read`` gives at scrape time by the label's value."""
        self.registry.register(_Family(name, doc, label, read))

    def render(self) -> bytes:
        """The text exposition of all metrics."""
        return generate_latest(self.registry)
