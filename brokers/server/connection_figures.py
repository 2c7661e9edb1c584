"""Connections by listener and by the software at their other end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from brokers.exposition import BROKER_PAGE, KAFKA_PAGE, in_slices

if TYPE_CHECKING:
    from brokers.metrics import Metrics
    from brokers.server.connection import Connection

SOFTWARE_MAX = 50
"""Names and versions that metrics name: those with the most connections; the rest are other."""
_PER_SLICE = 1_000


class ConnectionFigures:
    """Counts the connections that are open when it is asked."""

    def __init__(self, connections: Mapping[int, Connection], listeners: Sequence[str]) -> None:
        self._connections = connections
        self._listeners = listeners

    def collect(self) -> Iterator[Metric | None]:
        """By the broker's own names."""
        yield from self._families(
            "fleetlog_listener_connections", "fleetlog_client_connections", ("software", "version")
        )

    def collect_for_kafka(self) -> Iterator[Metric | None]:
        """By the names of Kafka's dashboards."""
        name = "kafka_server_socket_server_metrics_connection"
        yield from self._families(f"{name}_count", f"{name}s_software", ("clientSoftwareName", "clientSoftwareVersion"))

    def _families(self, by_listener: str, by_software: str, labels: tuple[str, str]) -> Iterator[Metric | None]:
        listeners: Counter[str] = Counter(dict.fromkeys(self._listeners, 0))
        software: Counter[tuple[str, str, str]] = Counter()
        for some in in_slices(self._connections.values(), _PER_SLICE):
            listeners.update([one.peer.listener for one in some])
            software.update([(*one.software, one.peer.listener) for one in some])
            yield None
        family = GaugeMetricFamily(by_listener, "Open connections by listener.", labels=["listener"])
        for listener, count in listeners.items():
            family.add_metric([listener], count)
        yield family
        family = GaugeMetricFamily(by_software, "Open connections by client.", labels=[*labels, "listener"])
        named = software.most_common(SOFTWARE_MAX)
        for key, count in named:
            family.add_metric(key, count)
        rest = software.total() - sum(count for _, count in named)
        if rest:
            family.add_metric(("other", "other", "other"), rest)
        yield family


def watch_connections(metrics: Metrics, connections: Mapping[int, Connection], listeners: Sequence[str]) -> None:
    """Add the figures to the broker's pages."""
    figures = ConnectionFigures(connections, listeners)
    metrics.register(BROKER_PAGE, figures.collect)
    metrics.register(KAFKA_PAGE, figures.collect_for_kafka)
