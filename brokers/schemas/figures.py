"""What a registry counts and shows to Prometheus at ``/metrics``. Names begin with ``fleetlog_registry_``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from fleetlog._native.tally import TIME_BOUNDS_S, Times
from fleetlog.brokers.schemas.registry import RegistryState

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

OTHER: Final = "other"
"""The kind of a request that no route takes."""
_BOUNDS: Final = (*(str(bound) for bound in TIME_BOUNDS_S), "+Inf")


class Standing(NamedTuple):
    """How this registry stands to the topic: the offset that it reads next, since when, and whether it writes."""

    position: int
    read_age_s: float
    is_writer: bool


class RegistryFigures:
    """Counts on the loop; ``page`` is for any thread."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds: defaultdict[str, Times] = defaultdict(Times)
        self._logins: Counter[str] = Counter(success=0, failure=0)

    def answered(self, request: str, code: int, seconds: float) -> None:
        """Count a request by its route (or OTHER), and the code of its answer: 200, or that of its error."""
        self._requests[request, str(code)] += 1
        self._seconds[request].observe(seconds)

    def logged_in(self, taken: bool) -> None:
        """Count a login that a broker was asked for."""
        self._logins["success" if taken else "failure"] += 1

    def page(self, state: RegistryState, standing: Standing, rights_age_s: float | None) -> bytes:
        """The text of Prometheus' format. ``rights_age_s``: None without logins."""
        from prometheus_client.process_collector import ProcessCollector  # late: the command's help needs none of it

        from fleetlog.brokers.metrics.exposition import exposition_text

        process = ProcessCollector(registry=None).collect()
        return exposition_text([*self._counted(), *_stored(state, standing, rights_age_s), *process])

    def _counted(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily

        requests = CounterMetricFamily(
            "fleetlog_registry_requests",
            "Requests answered, by route and Confluent's code.",
            labels=["request", "code"],
        )
        for labels, number in sorted(self._requests.copy().items()):
            requests.add_metric(labels, number)
        yield requests
        seconds = HistogramMetricFamily(
            "fleetlog_registry_request_seconds", "From a request's head to its answer.", labels=["request"]
        )
        for request, histogram in sorted(self._seconds.copy().items()):
            buckets = list(zip(_BOUNDS, map(float, accumulate(histogram.counts)), strict=True))
            seconds.add_metric([request], buckets, histogram.total)
        yield seconds
        logins = CounterMetricFamily(
            "fleetlog_registry_logins", "Logins that a broker was asked for, by result.", labels=["result"]
        )
        for result, number in self._logins.copy().items():
            logins.add_metric([result], number)
        yield logins


def _stored(state: RegistryState, standing: Standing, rights_age_s: float | None) -> Iterator[Metric]:
    from prometheus_client.metrics_core import GaugeMetricFamily

    counts = state.counts()
    yield GaugeMetricFamily("fleetlog_registry_schemas", "Schemas with an id of their own.", value=counts.schemas)
    yield GaugeMetricFamily(
        "fleetlog_registry_subjects", "Subjects with a version that is not deleted.", value=counts.subjects
    )
    versions = GaugeMetricFamily("fleetlog_registry_versions", "Versions of subjects, by state.", labels=["state"])
    versions.add_metric(["live"], counts.versions)
    versions.add_metric(["deleted"], counts.deleted)
    yield versions
    yield GaugeMetricFamily(
        "fleetlog_registry_writer",
        "1 where it has written and relies on its epoch; another may have taken it over.",
        value=standing.is_writer,
    )
    yield GaugeMetricFamily(
        "fleetlog_registry_position", "The offset of _schemas that it reads next.", value=standing.position
    )
    yield GaugeMetricFamily(
        "fleetlog_registry_read_age_seconds",
        "Since when what it knows of _schemas may be old: a second where the leader answers.",
        value=standing.read_age_s,
    )
    if rights_age_s is not None:
        yield GaugeMetricFamily(
            "fleetlog_registry_rights_age_seconds", "Since when it was told the fleet's ACLs.", value=rights_age_s
        )
