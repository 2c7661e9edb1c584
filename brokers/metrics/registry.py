"""The broker's numbers, as Prometheus metrics in a registry of its own. Names start with ``fleetlog_``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Generic, TypeVar

from prometheus_client.metrics import Gauge
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from fleetlog._native.tally import TIME_BOUNDS_S, Times
from fleetlog.brokers.metrics.exposition import (
    BROKER_PAGE,
    KAFKA_PAGE,
    PARTITION_PAGE,
    Exposition,
    MetricSource,
    by_slices,
    exposition_text,
)
from fleetlog.wire.errors import ErrorCode

_PARTS = ("totaltimems", "localtimems", "remotetimems")
"""Parts of request times by Kafka's names, of followers' fetches, too."""
_SELDOM_PARTS = ("throttletimems", "requestqueuetimems", "responsesendtimems")
"""The parts that most requests do not have: only the others are measured."""
HISTOGRAMS_PER_SLICE = 10
"""Of so many a scrape makes samples in one turn of the loop."""
_BOUNDS = (*(str(bound) for bound in TIME_BOUNDS_S), "+Inf")


class Counter:
    """A number that grows. A plain attribute: the library's counters lock, and cost more than what they count."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        """Count; where every microsecond counts, add to ``value``."""
        self.value += amount


class Histogram(Times):
    """Seconds by ``TIME_BOUNDS_S``."""

    __slots__ = ()

    @property
    def value(self) -> int:
        """How many were counted."""
        return sum(self.counts)

    def without(self, part: Histogram) -> Histogram:
        """The rest. Both clocks were read at slightly different times: no bucket falls below 0."""
        rest = Histogram()
        rest.counts = [max(0, whole - gone) for whole, gone in zip(self.counts, part.counts, strict=True)]
        rest.total = max(0.0, self.total - part.total)
        return rest


class DelayedTimes:
    """The times of requests whose answer waited: for replicas, for data, for a coordinator."""

    __slots__ = ("local", "remote", "total")

    def __init__(self) -> None:
        self.local, self.remote, self.total = Histogram(), Histogram(), Histogram()

    def observe(self, local: float, remote: float, count: int) -> None:
        """Count requests: seconds until they waited, and for how long."""
        self.local.observe(local, count)
        self.remote.observe(remote, count)
        self.total.observe(local + remote, count)


class FollowerFetches:
    """The times of followers' fetches, which are also counted as those of all fetches."""

    __slots__ = ("delayed", "total")

    def __init__(self) -> None:
        self.total, self.delayed = Histogram(), DelayedTimes()

    def observe(self, begun_us: int, delayed_us: int, now_us: int) -> None:
        """Count one that is answered now, by monotonic times; ``delayed_us`` is 0 if it did not wait."""
        self.total.observe((now_us - begun_us) / 1e6)
        if delayed_us:
            self.delayed.observe((delayed_us - begun_us) / 1e6, (now_us - delayed_us) / 1e6, 1)


class StartFigures:
    """How far a start is with the broker's logs, and what it found. Any thread may read it."""

    __slots__ = ("bytes_left", "logs_done", "logs_left", "seconds", "shortened_logs", "under_way")

    def __init__(self) -> None:
        self.logs_left = self.logs_done = self.bytes_left = self.shortened_logs = 0
        self.seconds = 0.0
        self.under_way = False

    def text(self) -> bytes:
        """The families alone, for scrapes while the loop stands still."""
        families = (GaugeMetricFamily(name, doc, value=getattr(self, one)) for one, (name, doc) in START_GAUGES.items())
        return exposition_text(list(families))

    def words(self) -> str:
        """The same in one line."""
        return f"loading logs: {self.logs_done} done, {self.logs_left} left, {self.bytes_left} bytes of these to check"


START_GAUGES = {
    "logs_left": ("fleetlog_start_logs_left", "Logs that this start has not loaded yet, of directories that it knows."),
    "bytes_left": ("fleetlog_start_bytes_left", "Bytes of these that are checked, at most: above the recovery points."),
    "logs_done": ("fleetlog_start_logs_done", "Logs that this start has loaded."),
    "seconds": ("fleetlog_start_log_seconds", "How long that took so far."),
    "shortened_logs": (
        "fleetlog_shortened_logs",
        "Logs that this start found gone, or shorter than the clean stop before had left them.",
    ),
}
"""Name and meaning by the attribute of :class:`StartFigures`."""

T = TypeVar("T", Counter, Histogram, DelayedTimes)


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


class _Numbers:
    """Tells what our counters and histograms stand at. A row is a name, its doc, the label, and numbers by its value;
    without a label there is one number, of the value ""."""

    def __init__(self) -> None:
        self.counters: list[tuple[str, str, str, Mapping[str, Counter | Histogram]]] = []
        self.histograms: list[tuple[str, str, str, dict[str, Histogram]]] = []

    def collect(self) -> Iterator[Metric | None]:
        for name, doc, label, counters in list(self.counters):
            counted = CounterMetricFamily(name, doc, labels=[label] if label else [])
            for some in by_slices(counters.items()):
                for value, counter in some:
                    counted.add_metric([value] if label else [], counter.value)
                yield None
            yield counted
        for name, doc, label, histograms in list(self.histograms):
            observed = HistogramMetricFamily(name, doc, labels=[label] if label else [])
            for few in by_slices(histograms.items(), HISTOGRAMS_PER_SLICE):
                for value, histogram in few:
                    buckets = list(zip(_BOUNDS, accumulate(histogram.counts), strict=True))
                    observed.add_metric([value] if label else [], buckets, histogram.total)
                yield None
            yield observed


Reader = Callable[[], Mapping[Any, float]]
"""Gives numbers by their labels' values, a tuple of strings."""


class _Family(Collector):
    """A gauge or counter whose label values are known only when it is read."""

    def __init__(self, name: str, doc: str, labels: Sequence[str], read: Reader, kind: str) -> None:
        self._name, self._doc, self._labels, self._read, self._kind = name, doc, labels, read, kind

    def collect(self) -> Iterator[Metric]:
        """A read that takes long is a source of its own: :meth:`Metrics.register`."""
        kind = GaugeMetricFamily if self._kind == "gauge" else CounterMetricFamily
        family = kind(self._name, self._doc, labels=self._labels)
        for values, number in sorted(self._read().items()):
            family.add_metric(values, number)
        yield family


EARLY_DELIVERIES = "Records that share groups were given before their time: it is farther ahead than permitted."


class Metrics:
    """What the broker counts: plain numbers, read at scrape time. :meth:`watch` adds one that is kept elsewhere."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.enabled = True
        """Whether the endpoint serves the pages."""
        self.counting = True
        """Whether requests are counted: not where no endpoint serves a page. It does not change later."""
        self.pages = {page: Exposition() for page in (BROKER_PAGE, PARTITION_PAGE, KAFKA_PAGE)}
        """What each path of the operators' endpoint shows, by path."""
        self.pages[BROKER_PAGE].sources.append(self.registry.collect)
        self._numbers = _Numbers()
        self.errors: dict[tuple[str, str], int] = {}
        """Answers with an error, by API and the error's name: see :meth:`failed`."""
        self.start = StartFigures()
        self.request_seconds = self._histograms(
            "fleetlog_request_seconds",
            "From a request's last byte to its answer in the outbox, delays included.",
            "api",
        )
        self._numbers.counters.append(("fleetlog_requests", "Requests answered.", "api", self.request_seconds.children))
        self.delayed = Labelled(DelayedTimes)
        """Of requests whose answer waited."""
        self.follower_fetches = FollowerFetches()
        self.watch_histogram(
            "fleetlog_follower_fetch_seconds", "The same of followers' fetches: a part of those with api=Fetch.",
            self.follower_fetches.total,
        )  # fmt: skip
        self.throttle_seconds = Labelled(Histogram)
        """For how long answers said that their connection is muted, where it is."""
        self.queue_seconds = self._histograms(
            "fleetlog_queue_seconds", "How long requests that were not executed at once waited.", "api"
        )
        self.send_seconds = self._histograms(
            "fleetlog_send_seconds", "How long answers that could not leave at once took.", "api"
        )
        self.created_connections = self._counters(
            "fleetlog_created_connections", "Connections that were accepted, by listener.", "listener"
        )
        self.authentications: dict[tuple[str, str, str], int] = {}
        """By listener, mechanism and result: see :meth:`authenticated`."""
        self.dead_letters = self._counters(
            "fleetlog_dead_letters", "Dead letters of share groups and checks of schemas, by reason.", "reason"
        )
        self.early_deliveries = self._counters("fleetlog_share_early_deliveries", EARLY_DELIVERIES).labels("")
        self.refused = self._counters(
            "fleetlog_refused_requests", "Frames or connections refused, by reason.", "reason"
        )
        self.bytes_in = self._counters("fleetlog_received_bytes", "Bytes received from clients and brokers.").labels("")
        self.bytes_out = self._counters("fleetlog_sent_bytes", "Bytes sent to clients and brokers.").labels("")
        self.throttled = self._counters("fleetlog_throttled", "Mutings of connections over a quota, by quota.", "quota")
        self.throttle_ms = self._counters("fleetlog_throttle_ms", "Milliseconds of these.", "quota")
        self.throttle_ms_by_client = self._counters(
            "fleetlog_client_throttle_ms", "Milliseconds of these by USER/CLIENT-ID; the rest as others.", "client"
        )
        """Its labels are bounded by what counts them."""
        self.loop_lag_seconds = Histogram()
        self.watch_histogram(
            "fleetlog_loop_lag_seconds", "How late the event loop runs a timer.", self.loop_lag_seconds
        )
        self.connections = Gauge("fleetlog_connections", "Open connections.", registry=self.registry)
        self.group_families: Callable[[], Sequence[bytes]] = tuple
        """More families as text, made elsewhere: groups and their partitions."""
        self.register(BROKER_PAGE, self._numbers.collect)
        self.register(BROKER_PAGE, lambda: self.group_families())  # noqa: PLW0108 (it is set later)
        self.watch_counters(
            "fleetlog_authentications",
            "Logins by SASL, and TLS handshakes where there is no SASL, with those that failed.",
            ("listener", "mechanism", "result"), lambda: self.authentications,
        )  # fmt: skip
        self.watch_counters(
            "fleetlog_errors", "Errors in answers, by API and code: one for each partition, topic or group.",
            ("api", "error"), lambda: self.errors,
        )  # fmt: skip
        self.register(BROKER_PAGE, self._parts)
        for attribute, (name, doc) in START_GAUGES.items():
            self.watch(name, doc, partial(getattr, self.start, attribute))

    def _counters(self, name: str, doc: str, label: str = "") -> Labelled[Counter]:
        """Counters on the broker's page by the label's value; without a label there is one, of the value ""."""
        counters = Labelled(Counter)
        self._numbers.counters.append((name, doc, label, counters.children))
        return counters

    def _histograms(self, name: str, doc: str, label: str) -> Labelled[Histogram]:
        """The same of histograms."""
        histograms = Labelled(Histogram)
        self._numbers.histograms.append((name, doc, label, histograms.children))
        return histograms

    def failed(self, api: str, error: int, count: int = 1) -> None:
        """Count errors that answers have; NONE is none."""
        if error:
            key = api, error_name(error)
            self.errors[key] = self.errors.get(key, 0) + count

    def authenticated(self, listener: str, mechanism: str, *, well: bool) -> None:
        """Count a login on a listener. Mechanisms are those that the listener has, TLS, or none if none was named."""
        key = listener, mechanism or "none", "success" if well else "failure"
        self.authentications[key] = self.authentications.get(key, 0) + 1

    def request_parts(self, api: str) -> dict[str, Histogram]:
        """The parts of an API's request times by Kafka's names. Parts that took no time are counted as 0 seconds.

        What did not wait was local from its beginning to its end, so only delayed requests are measured in parts.
        """
        total = self.request_seconds.labels(api)
        local, remote = local_and_remote(total, self.delayed.children.get(api) or DelayedTimes())
        parts = dict(zip(_PARTS, (total, local, remote), strict=True))
        count = sum(total.counts)
        for part, measured in zip(
            _SELDOM_PARTS, (self.throttle_seconds, self.queue_seconds, self.send_seconds), strict=True
        ):
            some = measured.children.get(api) or Histogram()
            every = parts[part] = Histogram()
            every.counts = [max(0, count - sum(some.counts)) + some.counts[0], *some.counts[1:]]
            every.total = some.total
        return parts

    def fetch_parts(self) -> dict[str, dict[str, Histogram]]:
        """The same for Kafka's two kinds of fetches, those of followers and the rest, by request and part: but for
        those that are not measured for each of them.
        """
        total, delayed = self.request_seconds.labels("Fetch"), self.delayed.labels("Fetch")
        waited = self.follower_fetches.delayed
        followers = self.follower_fetches.total, *local_and_remote(self.follower_fetches.total, waited)
        fetches = total, *local_and_remote(total, delayed)
        return {
            "FetchFollower": dict(zip(_PARTS, followers, strict=True)),
            "FetchConsumer": {
                part: all_of.without(of_followers)
                for part, all_of, of_followers in zip(_PARTS, fetches, followers, strict=True)
            },
        }

    def _parts(self) -> Iterator[Metric | None]:
        family = HistogramMetricFamily(
            "fleetlog_request_part_seconds", "Parts of fleetlog_request_seconds; APIs that only work here have none.",
            labels=["api", "part"],
        )  # fmt: skip
        for api in sorted(self.request_seconds.children):
            waits = self.delayed.children.get(api)
            if (waits is None or not waits.total.total) and api not in self.throttle_seconds.children:
                continue
            parts = self.request_parts(api)
            for part in ("localtimems", "remotetimems", "throttletimems"):
                histogram = parts[part]
                buckets = list(zip(_BOUNDS, map(float, accumulate(histogram.counts)), strict=True))
                family.add_metric([api, part.removesuffix("timems")], buckets, histogram.total)
            yield None
        yield family

    def watch_histogram(self, name: str, doc: str, histogram: Histogram) -> None:
        """Add a histogram that is kept elsewhere."""
        self._numbers.histograms.append((name, doc, "", {"": histogram}))

    def register(self, page: str, source: MetricSource) -> None:
        """Add a source of families to the page of that path: see ``exposition`` for what it may hold up."""
        self.pages[page].sources.append(source)

    def watch(self, name: str, doc: str, read: Callable[[], float]) -> None:
        """Add a gauge whose value ``read`` gives at scrape time."""
        Gauge(name, doc, registry=self.registry).set_function(read)

    def watch_family(self, name: str, doc: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Add a gauge with one label, whose values ``read`` gives at scrape time by the label's value."""
        self.watch_gauges(name, doc, (label,), lambda: {(value,): number for value, number in read().items()})

    def watch_gauges(self, name: str, doc: str, labels: Sequence[str], read: Reader) -> None:
        """Add a gauge with these labels, whose values ``read`` gives at scrape time by the labels' values."""
        self.registry.register(_Family(name, doc, labels, read, "gauge"))

    def watch_counters(self, name: str, doc: str, labels: Sequence[str], read: Reader) -> None:
        """The same for a counter, whose name is shown without ``_total``."""
        self.registry.register(_Family(name, doc, labels, read, "counter"))

    def render(self) -> bytes:
        """The text exposition of the broker's page, made at once."""
        return exposition_text(self.pages[BROKER_PAGE].collect_now())


def local_and_remote(total: Histogram, delayed: DelayedTimes) -> tuple[Histogram, Histogram]:
    """The two parts of the times of requests of which some waited."""
    local, remote, count = Histogram(), Histogram(), sum(total.counts)
    local.counts = [
        whole - waited + before
        for whole, waited, before in zip(total.counts, delayed.total.counts, delayed.local.counts, strict=True)
    ]
    local.total = total.total - delayed.total.total + delayed.local.total
    remote.counts = [count - sum(delayed.remote.counts) + delayed.remote.counts[0], *delayed.remote.counts[1:]]
    remote.total = delayed.remote.total
    return local, remote


def error_name(code: int) -> str:
    """The name of a protocol's error code, for a label."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
