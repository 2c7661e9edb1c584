"""The broker's numbers, as Prometheus metrics in a registry of its own. Names start with ``fleetlog_``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client.metrics import Gauge
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

LATENCY_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_BOUNDS = (*(str(bound) for bound in LATENCY_SECONDS), "+Inf")


class Counter:
    """A number that grows. A plain attribute: the library's counters lock, and cost more than what they count."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        """Count; where every microsecond counts, add to ``value``."""
        self.value += amount


class Histogram:
    """Seconds by ``LATENCY_SECONDS``."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.total = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count one, or several that took the same time."""
        self.counts[bisect_left(LATENCY_SECONDS, seconds)] += count
        self.total += seconds * count


T = TypeVar("T", Counter, Histogram)


class Labelled(Generic[T]):
    """One number for each value of a label, made when it is asked for."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] = make
        self.children: dict[str, T] = {}

    def labels(self, value: str) -> T:
        """The number of that value; keep it rather than ask again."""
        child = self.children.get(value)
        if child is None:
            child = self.children[value] = self._make()
        return child


class _Numbers(Collector):
    """Tells what our counters and histograms stand at. A row is a name, its doc, the label, and numbers by its value;
    without a label there is one number, of the value ""."""

    def __init__(self) -> None:
        self.counters: list[tuple[str, str, str, dict[str, Counter]]] = []
        self.histograms: list[tuple[str, str, str, dict[str, Histogram]]] = []

    def collect(self) -> Iterator[Metric]:
        for name, doc, label, counters in self.counters:
            counted = CounterMetricFamily(name, doc, labels=[label] if label else [])
            for value, counter in counters.items():
                counted.add_metric([value] if label else [], counter.value)
            yield counted
        for name, doc, label, histograms in self.histograms:
            observed = HistogramMetricFamily(name, doc, labels=[label] if label else [])
            for value, histogram in histograms.items():
                buckets = list(zip(_BOUNDS, accumulate(histogram.counts), strict=True))
                observed.add_metric([value] if label else [], buckets, histogram.total)
            yield observed


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
    """What the broker counts: plain numbers, read at scrape time. :meth:`watch` adds one that is kept elsewhere."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._numbers = _Numbers()
        self.requests = Labelled(Counter)
        self.request_seconds = Labelled(Histogram)
        self.refused = Labelled(Counter)
        self.bytes_in, self.bytes_out = Counter(), Counter()
        self.records_in, self.appended_bytes = Counter(), Counter()
        self.throttled, self.throttle_ms = Labelled(Counter), Labelled(Counter)
        self.throttle_ms_by_client = Labelled(Counter)
        """Its labels are bounded by what counts them."""
        self.loop_lag_seconds = Histogram()
        self.connections = Gauge("fleetlog_connections", "Open connections.", registry=self.registry)
        self._numbers.counters += [
            ("fleetlog_requests", "Requests answered.", "api", self.requests.children),
            ("fleetlog_refused_requests", "Frames or connections refused, by reason.", "reason", self.refused.children),
            ("fleetlog_received_bytes", "Bytes received from clients and brokers.", "", {"": self.bytes_in}),
            ("fleetlog_sent_bytes", "Bytes sent to clients and brokers.", "", {"": self.bytes_out}),
            ("fleetlog_appended_records", "Records appended by producers.", "", {"": self.records_in}),
            ("fleetlog_appended_bytes", "Bytes appended by producers.", "", {"": self.appended_bytes}),
        ]
        self._numbers.counters += [
            ("fleetlog_throttled", "Mutings of connections over a quota, by quota.", "quota", self.throttled.children),
            ("fleetlog_throttle_ms", "Milliseconds of these.", "quota", self.throttle_ms.children),
            (
                "fleetlog_client_throttle_ms", "Milliseconds of these by USER/CLIENT-ID; the rest as others.",
                "client", self.throttle_ms_by_client.children,
            ),
        ]  # fmt: skip
        self._numbers.histograms += [
            (
                "fleetlog_request_seconds", "From a request's last byte to its answer in the outbox, delays included.",
                "api", self.request_seconds.children,
            ),
            ("fleetlog_loop_lag_seconds", "How late the event loop runs a timer.", "", {"": self.loop_lag_seconds}),
        ]  # fmt: skip
        self.registry.register(self._numbers)
        self.group_families: Callable[[], bytes] = bytes
        """More families as text, made elsewhere: groups and their partitions."""

    def watch(self, name: str, doc: str, read: Callable[[], float]) -> None:
        """Add a gauge whose value ``read`` gives at scrape time."""
        Gauge(name, doc, registry=self.registry).set_function(read)

    def watch_family(self, name: str, doc: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Add a gauge with one label, whose values ``read`` gives at scrape time by the label's value."""
        self.registry.register(_Family(name, doc, label, read))

    def render(self) -> bytes:
        """The text exposition of all metrics."""
        from prometheus_client.exposition import generate_latest  # with it comes a whole web server

        return generate_latest(self.registry) + self.group_families()
