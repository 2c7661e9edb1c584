"""What the console's figures show on each page, as far as the page's viewer may describe what they are of."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, Final

from kafka.protocol.admin import DescribeClusterRequest

from fleetlog.brokers.cli.output import count_text
from fleetlog.brokers.console.asking import Asking
from fleetlog.brokers.console.charts import (
    BYTES,
    BYTES_S,
    COLOURS,
    COUNT,
    NUMBER,
    PER_S,
    RANGES,
    SECONDS,
    Line,
    TimeFrame,
    chart_value,
    days_text,
    days_until_full,
)
from fleetlog.brokers.console.history import KINDS, MEAN, MOST, Points, folded, trouble_text
from fleetlog.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

DESCRIBE: Final = 8
"""AclOperation."""
NO_LOGIN: Final = (
    "There are no charts: this console has no login of its own to collect figures with. Start it with "
    "--figures-config FILE."
)
FIGURES_MISSING: Final = "Figures are missing: the fleet's page says why, to those who may describe the cluster."
LAG_UNTOLD: Final = "Lag is not charted: it is known of topics together, and not all of them are yours to describe."
LAG_EARLY: Final = "Lag is charted once offsets that the group has committed were seen, which takes some seconds."
HOUR: Final = "1h"
SOON_DAYS: Final = 30
SMALL_POINTS: Final = 45
FRESH_S: Final = 25.0

ChartSpec = tuple[str, str, tuple[tuple[str, str], ...], str]
"""Title, unit, (column, name) of its lines, and words beside the title."""
FLEET_CHARTS: Final[tuple[ChartSpec, ...]] = (
    ("Bytes", BYTES_S, (("bytes_in", "in"), ("bytes_out", "out")), "from producers, to consumers"),
    ("Records", PER_S, (("records_in", "produced"), ("records_out", "consumed")), "consumed: by groups that commit"),
    ("Time of requests, p99", SECONDS, (("produce_p99_s", "produce"), ("fetch_p99_s", "fetch")),
     "a fetch waits for data"),
    ("Under-replicated partitions", COUNT, (("under_replicated", "partitions"),), ""),
    ("Disks", BYTES, (("disk_used", "used"), ("disk_total", "volumes")), ""),
    ("Connections", COUNT, (("connections", "open"),), ""),
)  # fmt: skip
TRANSACTION_CHARTS: Final[tuple[ChartSpec, ...]] = (
    ("Open transactions", COUNT, (("open_transactions", "open"),), ""),
    ("Age of the oldest one", SECONDS, (("oldest_transaction_s", "oldest"),), ""),
)
BROKER_CHARTS: Final[tuple[ChartSpec, ...]] = (
    FLEET_CHARTS[0],
    FLEET_CHARTS[2],
    ("Requests", PER_S, (
        ("produces", "Produce"), ("fetches", "Fetch"), ("offset_requests", "metadata, offsets"),
        ("group_requests", "groups"), ("other_requests", "others"),
    ), ""),
    ("Lateness of the loop, p99", SECONDS, (("loop_p99_s", "late"),), ""),
    ("Processor", NUMBER, (("cpu", "cores"),), "busy cores"),
    FLEET_CHARTS[4],
    FLEET_CHARTS[5],
    FLEET_CHARTS[3],
)  # fmt: skip
SMALL_CHARTS: Final[tuple[ChartSpec, ...]] = (
    ("Bytes in", BYTES_S, (("bytes_in", "in"),), ""),
    ("Bytes out", BYTES_S, (("bytes_out", "out"),), ""),
    ("Produce, p99", SECONDS, (("produce_p99_s", "produce"),), ""),
    ("Loop late, p99", SECONDS, (("loop_p99_s", "late"),), ""),
    ("Processor", NUMBER, (("cpu", "cores"),), ""),
    ("Connections", COUNT, (("connections", "open"),), ""),
)
TOPIC_CHARTS: Final[tuple[ChartSpec, ...]] = (
    FLEET_CHARTS[0],
    ("Records", PER_S, (("records_in", "produced"),), ""),
    ("Size", BYTES, (("size", "all replicas"),), ""),
)
GROUP_CHARTS: Final[tuple[ChartSpec, ...]] = (
    ("Lag in records", COUNT, (("lag", "behind"),), ""),
    ("Lag in seconds", SECONDS, (("lag_s", "behind"),), ""),
    ("Members", COUNT, (("members", "members"),), ""),
    ("Commits", PER_S, (("commits", "offsets"),), ""),
)
LAG_CHARTS: Final = 2
"""The first ones of a group, which are sums over topics."""


class Pictures:
    """The charts of one page, in the range that its address names; raises PageError for one that there is not."""

    def __init__(self, asking: Asking) -> None:
        name = asking.choice("range", (HOUR, *(one.name for one in RANGES)))
        self.range = next(one for one in RANGES if one.name == name)
        self._collector = asking.collector
        self._history = asking.collector.history if asking.collector is not None else None
        now_s = time.time()
        newest = self._history.newest if self._history is not None else 0
        self.frame = TimeFrame.of(self.range, newest if 0 <= now_s - newest < FRESH_S else now_s)

    def of_fleet(self, asking: Asking, brokers: Mapping[int, bool]) -> dict[str, Any]:
        """Those of the first page, the small ones of each broker, and when disks will be full. ``brokers`` says of each
        whether it is alive: one that is not does nothing now."""
        if (refused := self._refused(asking, "the fleet and its brokers")) is not None:
            return refused
        charts = self._charts("fleet", "", FLEET_CHARTS)
        small = {
            str(broker_id): self._charts("broker", str(broker_id), SMALL_CHARTS, points=SMALL_POINTS, alive=alive)
            for broker_id, alive in brokers.items()
        }
        living = [broker_id for broker_id, alive in brokers.items() if alive]
        return {**self._value(charts, why=True), "small": small, "forecasts": self._forecasts(living)}

    def of_broker(self, asking: Asking, broker_id: int, alive: bool) -> dict[str, Any]:
        """Those of one broker."""
        if (refused := self._refused(asking, "brokers")) is not None:
            return refused
        charts = self._charts("broker", str(broker_id), BROKER_CHARTS, alive=alive)
        return {**self._value(charts, why=True), "forecasts": self._forecasts([broker_id] if alive else [])}

    def of_transactions(self, asking: Asking) -> dict[str, Any]:
        """Open transactions of all coordinators."""
        if (refused := self._refused(asking, "the fleet's transactions")) is not None:
            return refused
        return self._value(self._charts("fleet", "", TRANSACTION_CHARTS), why=True)

    def of_topic(self, topic: str, partitions: int) -> dict[str, Any]:
        """Those of a topic that the viewer may describe: with the partitions' traffic where it is kept."""
        charts = self._charts("topic", topic, TOPIC_CHARTS)
        rates = {number: self._read("partition", f"{topic}/{number}")["records_in"] for number in range(partitions)}
        rates = {number: points for number, points in rates.items() if points}
        if partitions > 1 and rates:
            charts.append(chart_value(
                "Records by partition", PER_S, busiest(rates), self.frame, words="produced"
            ))  # fmt: skip
        recent = {number: _mean(points) for number, points in rates.items()}
        return {**self._value(charts), "records_s": {str(number): rate for number, rate in recent.items()}}

    def of_group(self, asking: Asking, group: str) -> dict[str, Any]:
        """Those of a group that the viewer may describe, with its rebalances; its lag is a sum over topics, and is left
        out unless the viewer may describe all of them."""
        figures = self._read("group", group)
        marks = {
            at: count_text(round(count), "rebalance")
            for at, count in figures["rebalances"] if not isnan(count) and count >= 1
        }  # fmt: skip
        untold = self._lag_untold(asking, group) if self._history is not None else None
        charts = self._charts(
            "group", group, GROUP_CHARTS[0 if untold is None else LAG_CHARTS :], figures=figures, marks=marks
        )
        value = self._value(charts)
        return value if untold is None else {**value, "notes": [*value["notes"], untold]}

    def _lag_untold(self, asking: Asking, group: str) -> str | None:
        """Why the viewer is not shown the group's lag, if that is so."""
        topics = self._collector.group_topics.get(group) if self._collector is not None else None
        if not topics:
            return LAG_EARLY
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        told = all(one["error_code"] != denied for one in asking.client.describe_topics(sorted(topics)))
        return None if told else LAG_UNTOLD

    def _charts(
        self, kind: str, name: str, specs: Sequence[ChartSpec], *, points: int = 0,
        figures: Mapping[str, Points] | None = None, marks: Mapping[int, str] | None = None, alive: bool = True,
    ) -> list[dict[str, Any]]:  # fmt: skip
        if self._history is None:
            return []
        figures = figures if figures is not None else self._read(kind, name)
        folds = {column.name: column.fold for column in KINDS[kind]}
        frame = self.frame
        if points:
            frame = frame._replace(point_s=self.range.seconds // points)
        if not alive:
            frame = frame._replace(fresh_since=frame.until + 1)
        return [
            chart_value(
                title, unit, [Line(words, figures[column], folds[column] == MOST) for column, words in lines], frame,
                marks=marks, words=beside,
            )
            for title, unit, lines, beside in specs
        ]  # fmt: skip

    def _read(self, kind: str, name: str) -> dict[str, Points]:
        return self._figures(kind, name, self.frame.since, self.frame.until, self.range.step_s)

    def _figures(self, kind: str, name: str, since: int, until: int, step_s: int) -> dict[str, Points]:
        """Those of the history; none where it cannot be read, which the log says, and the page shows without them."""
        if (history := self._history) is not None:
            try:
                return history.read(kind, name, since, until, step_s)
            except OSError as error:
                logger.warning("figures of the console: %s", trouble_text(error, history.directory))
        return {column.name: [] for column in KINDS[kind]}

    def _forecasts(self, brokers: Sequence[int]) -> list[dict[str, Any]]:
        """When brokers' disks are full if they go on filling as in the last days, the first one first."""
        forecasts = [
            {"broker": broker_id, "days": round(days, 2), "text": days_text(days), "soon": days < SOON_DAYS}
            for broker_id in brokers
            if (days := self._days_until_full(broker_id)) is not None
        ]
        return sorted(forecasts, key=lambda one: one["days"])

    def _days_until_full(self, broker_id: int) -> float | None:
        now = int(time.time())
        for longer in (RANGES[3], RANGES[2]):
            figures = self._figures("broker", str(broker_id), now - longer.seconds, now, longer.step_s)
            total = next((one for _, one in reversed(figures["disk_total"]) if not isnan(one)), 0.0)
            days = days_until_full(figures["disk_used"], total)
            if days is not None:
                return days
        return None

    def _value(self, charts: list[dict[str, Any]], *, why: bool = False) -> dict[str, Any]:
        """``why``: with the reasons of what is missing, which name addresses and the console's own login."""
        return {
            "range": self.range.name, "ranges": [[one.name, one.words] for one in RANGES], "notes": self._notes(why),
            "charts": charts, "small": {}, "forecasts": [],
        }  # fmt: skip

    def _refused(self, asking: Asking, what: str) -> dict[str, Any] | None:
        """What a viewer without the right is shown instead, or anybody where nothing is collected: asking nobody."""
        if self._collector is not None and may_describe_cluster(asking.client):
            return None
        value = self._value([])
        if self._history is not None:
            value["notes"] = [f"Charts of {what} need the right to describe the cluster."]
        return value

    def _notes(self, why: bool) -> list[str]:
        collector = self._collector
        if collector is None:
            return [NO_LOGIN]
        if not why:
            return [FIGURES_MISSING] if collector.trouble is not None or collector.troubles else []
        if collector.trouble is not None:
            return [f"No figures are collected: {collector.trouble}"]
        notes = [f"Broker {number} tells no figures: {text}" for number, text in sorted(collector.troubles.items())]
        if notes:
            notes.append("Until it does, sums over all brokers are missing.")
        lost = self._history.lost if self._history is not None else []
        return [*notes, *(f"{one[0].upper()}{one[1:]}." for one in lost)]


def busiest(rates: Mapping[int, Points]) -> list[Line]:
    """A line for each partition; of many, for the busiest, and one for the mean of all others."""
    ordered = sorted(rates, key=lambda number: -(_mean(rates[number]) or 0.0))
    if len(ordered) <= COLOURS:
        return [Line(f"partition {number}", rates[number]) for number in sorted(ordered)]
    others: dict[int, list[float]] = {}
    for number in ordered[COLOURS - 1 :]:
        for at, rate in rates[number]:
            if not isnan(rate):
                others.setdefault(at, []).append(rate)
    mean = [(at, sum(some) / len(some)) for at, some in sorted(others.items())]
    return [
        *(Line(f"partition {number}", rates[number]) for number in ordered[: COLOURS - 1]),
        Line("others, mean", mean),
    ]


def _mean(points: Points) -> float | None:
    mean = folded((rate for _, rate in points), MEAN)
    return None if isnan(mean) else mean


def may_describe_cluster(client: Any) -> bool:
    """Whether the client's login has the right to. Raises KafkaError."""
    answer = client.ask_any(DescribeClusterRequest(include_cluster_authorized_operations=True))
    return DESCRIBE in {int(one) for one in answer.authorized_operations}
