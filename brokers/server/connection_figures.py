"""Connections by listener, by TLS and by the software at their other end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from fleetlog.brokers.exposition import BROKER_PAGE, KAFKA_PAGE, in_slices
from fleetlog.brokers.server.tls_connection import TlsConnection

if TYPE_CHECKING:
    from fleetlog.brokers.metrics import Counter as Counted
    from fleetlog.brokers.metrics import Metrics
    from fleetlog.brokers.model import Clock
    from fleetlog.brokers.server.connection import Connection

SOFTWARE_MAX = 50
"""Names and versions that metrics name: those with the most connections; the rest are other."""
_PER_SLICE = 500
WINDOW_MS = 60_000
PROCESSOR = "networkProcessor"


class CreationRates:
    """Connections per second by listener, of the last minute or since the scrape before if that is longer ago."""

    def __init__(self, created: Mapping[str, Counted], clock: Clock) -> None:
        self._created = created
        self._clock = clock
        self._before: deque[tuple[int, dict[str, int]]] = deque([(clock.mono_ms(), {})])

    def by_listener(self) -> dict[str, float]:
        """As of now."""
        now_ms, now = self._clock.mono_ms(), {name: one.value for name, one in self._created.items()}
        while len(self._before) > 1 and self._before[1][0] <= now_ms - WINDOW_MS:
            self._before.popleft()
        then_ms, then = self._before[0]
        if now_ms - self._before[-1][0] >= WINDOW_MS // 12:
            self._before.append((now_ms, now))
        return {name: 1000 * (count - then.get(name, 0)) / max(1, now_ms - then_ms) for name, count in now.items()}


class ConnectionFigures:
    """Counts the connections that are open when it is asked, and tells how fast they come."""

    def __init__(
        self, metrics: Metrics, connections: Mapping[int, Connection], listeners: Sequence[str], clock: Clock
    ) -> None:
        self._metrics = metrics
        self._connections = connections
        self._listeners = listeners
        for listener in listeners:
            metrics.created_connections.labels(listener)
        self._rates = CreationRates(metrics.created_connections.children, clock)

    def collect(self) -> Iterator[Metric | None]:
        """By the broker's own names."""
        yield from self._families(
            "fleetlog_listener_connections", "fleetlog_client_connections", "fleetlog_tls_connections"
        )

    def collect_for_kafka(self) -> Iterator[Metric | None]:
        """By the names of Kafka's dashboards. One loop is all network processors."""
        name = "kafka_server_socket_server_metrics"
        yield from self._families(
            f"{name}_connection_count", f"{name}_connections_software", f"{name}_connections_tls_info", kafka=True
        )
        rates = GaugeMetricFamily(
            f"{name}_connection_creation_rate", "Connections per second, of the last minute.",
            labels=["listener", PROCESSOR],
        )  # fmt: skip
        for listener, rate in self._rates.by_listener().items():
            rates.add_metric([listener, "0"], rate)
        yield rates
        counts: Counter[tuple[str, str]] = Counter()
        for (listener, _, result), number in self._metrics.authentications.items():
            counts[listener, result] += number
        for result, word in (("success", "successful"), ("failure", "failed")):
            family = CounterMetricFamily(
                f"{name}_{word}_authentication", "Logins by SASL, and TLS handshakes where there is no SASL.",
                labels=["listener", PROCESSOR],
            )  # fmt: skip
            for listener in self._listeners:
                family.add_metric([listener, "0"], counts[listener, result])
            yield family

    def _families(
        self, by_listener: str, by_software: str, by_tls: str, *, kafka: bool = False
    ) -> Iterator[Metric | None]:
        listeners: Counter[str] = Counter(dict.fromkeys(self._listeners, 0))
        software: Counter[tuple[str, str, str]] = Counter()
        ciphers: Counter[tuple[str, str, str]] = Counter()
        for some in in_slices(self._connections.values(), _PER_SLICE):
            listeners.update([one.peer.listener for one in some])
            software.update([(*one.software, one.peer.listener) for one in some])
            ciphers.update([(*one.tls, one.peer.listener) for one in some if isinstance(one, TlsConnection)])
            yield None
        more, zero = ([PROCESSOR], ("0",)) if kafka else ([], ())
        family = GaugeMetricFamily(by_listener, "Open connections by listener.", labels=["listener", *more])
        for listener, count in listeners.items():
            family.add_metric([listener, *zero], count)
        yield family
        labels = ("clientSoftwareName", "clientSoftwareVersion") if kafka else ("software", "version")
        family = GaugeMetricFamily(by_software, "Open connections by client.", labels=[*labels, "listener", *more])
        named = software.most_common(SOFTWARE_MAX)
        for key, count in named:
            family.add_metric([*key, *zero], count)
        rest = software.total() - sum(count for _, count in named)
        if rest:
            family.add_metric(["other", "other", "other", *zero], rest)
        yield family
        family = GaugeMetricFamily(
            by_tls, "Open connections with TLS.", labels=["cipher", "protocol", "listener", *more]
        )  # fmt: skip
        for key, count in ciphers.items():
            family.add_metric([*key, *zero], count)
        yield family


def watch_connections(
    metrics: Metrics, connections: Mapping[int, Connection], listeners: Sequence[str], clock: Clock
) -> None:
    """Add the figures to the broker's pages."""
    figures = ConnectionFigures(metrics, connections, listeners, clock)
    metrics.register(BROKER_PAGE, figures.collect)
    metrics.register(KAFKA_PAGE, figures.collect_for_kafka)
