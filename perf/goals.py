"""The goals, and what the last results say about each: goal, measured, ratio, met or not.

A ratio is fleetlog's number over the other's in the same interleaved run. What no suite has measured is said to be
missing; nothing is quoted from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from perf.results import Results, number

BUSY_CORES = 0.2
"""What others may use of the machine before a verdict says so."""
KAFKA, FLEETLOG, FLOOR = "kafka", "fleetlog", "floor"
Found = Mapping[str, Results]


class Measured(NamedTuple):
    """``limit`` bounds ``ratio``: from below if ``at_least``, else from above. ``others``: other processes' cores.

    ``least`` is the ratio that the C program reaches, which does nothing but receive, check and write, or send.
    """

    text: str
    ratio: float
    limit: float
    at_least: bool = False
    others: float = float("nan")
    least: float = float("nan")

    @property
    def out_of_reach(self) -> bool:
        """Whether not even the C program gets there."""
        return self.least < self.limit if self.at_least else self.least > self.limit

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.ratio >= self.limit if self.at_least else self.ratio <= self.limit


class Goal(NamedTuple):
    """One line of the table. ``suites`` are the results it needs; ``judge`` gives what was found, NaN if nothing."""

    what: str
    goal: str
    suites: tuple[str, ...]
    judge: Callable[[Found], list[Measured]]


def _against(
    suite: str, case: str, name: str, limit: float, *, ours: str = FLEETLOG, other: str = KAFKA, unit: str = "",
    at_least: bool = False,
) -> Callable[[Found], list[Measured]]:  # fmt: skip
    """fleetlog's median over another's. ``ours``: which way of fleetlog's."""

    def judge(found: Found) -> list[Measured]:
        own = found[suite].median(case, ours, name)
        theirs = found[suite].median(case, other, name)
        way = "" if ours == FLEETLOG else f", {ours}"
        text = f"{case}{way}: {number(own)} against {other} {number(theirs)} {unit}".rstrip()
        ratio, least = float("nan"), float("nan")
        if theirs:
            ratio = own / theirs
            if other == KAFKA:
                least = found[suite].median(case, FLOOR, name) / theirs
        return [Measured(text, ratio, limit, at_least, _others(found[suite], case), least)]

    return judge


def _value(
    suite: str, case: str, name: str, limit: float, unit: str, scale: float = 1.0
) -> Callable[[Found], list[Measured]]:
    """A number of fleetlog's own, that must not pass a limit."""

    def judge(found: Found) -> list[Measured]:
        value = found[suite].median(case, FLEETLOG, name) * scale
        return [Measured(f"{case}: {number(value)} {unit}", value, limit, others=_others(found[suite], case))]

    return judge


def _others(results: Results, case: str) -> float:
    """Cores that other processes used during the measurement, on average; NaN if the case does not say."""
    used = [row["others_cores"] for row in results.rows if row["case"] == case and "others_cores" in row]
    return sum(used) / len(used) if used else float("nan")


def _all(*judges: Callable[[Found], list[Measured]]) -> Callable[[Found], list[Measured]]:
    return lambda found: [one for judge in judges for one in judge(found)]


def _latencies(suite: str, case: str) -> Callable[[Found], list[Measured]]:
    return _all(
        *(_against(suite, case, name, 0.5, unit=f"ms {head}") for name, head in (
            ("p50_ms", "p50"), ("p99_ms", "p99"), ("p999_ms", "p99.9"),
        ))
    )  # fmt: skip


TUNED, SINK, SOURCE = "kafka tuned", "sink, 200 B, 6 partitions", "source, 200 B, 6 partitions"
SMALL = "micro-batch of 10 rows"


def _sinks(
    name: str, other: str, limit: float, unit: str, *, at_least: bool = False
) -> Callable[[Found], list[Measured]]:
    """Spark's sink in the case that the goals are about."""
    return _against("spark", SINK, name, limit, other=other, unit=unit, at_least=at_least)


def _flat(found: Found) -> list[Measured]:
    """A commit of 200 tasks takes as long as one of 2: less than twice, where milliseconds are counted."""
    few, many = (found["spark"].median(f"commit, {tasks} tasks", FLEETLOG, "commit_ms") for tasks in (2, 200))
    text = f"200 tasks: {number(many)} against 2 tasks {number(few)} ms"
    return [Measured(text, many / few if few else float("nan"), 2)]


GOALS = (
    Goal("produce 1 KB: requests per broker-CPU-second", ">= 5x Kafka", ("peers",),
         _against("peers", "produce 1 KiB", "requests_cpu_s", 5, at_least=True, unit="requests/CPU s")),
    Goal("produce 16 KB and 128 KB: broker CPU per GB", "<= 1/5 of Kafka", ("peers",),
         _all(_against("peers", "produce 16 KiB", "cpu_s_gb", 0.2, unit="CPU s/GB"),
              _against("peers", "produce 128 KiB", "cpu_s_gb", 0.2, unit="CPU s/GB"))),
    Goal("produce, as fast as the generator can", ">= 3x Kafka", ("peers",),
         _against("peers", "produce at full speed", "mb_s", 3, at_least=True, unit="MB/s")),
    Goal("produce, as fast as the generator can", ">= 0.7 of the C program", ("floor",),
         _against("floor", "produce 128 KiB", "mb_s", 0.7, other=FLOOR, at_least=True, unit="MB/s")),
    Goal("fetch, hot data: CPU per GB", "<= 1/2 of Kafka", ("peers",),
         _all(_against("peers", "fetch 64 KiB", "cpu_s_gb", 0.5, unit="CPU s/GB"),
              _against("peers", "fetch 1 MiB", "cpu_s_gb", 0.5, unit="CPU s/GB"))),
    Goal("fetch, hot data, 1 MB", ">= 0.8 of the C program (sendfile)", ("floor",),
         _against("floor", "fetch 1 MiB", "mb_s", 0.8, other=FLOOR, at_least=True, unit="MB/s")),
    Goal("paced load, acks=all, 1 replica: p50, p99, p99.9", "<= 1/2 of Kafka", ("peers",),
         _latencies("peers", "paced produce 16 KiB")),
    Goal("lag of the broker's event loop under load, p99.9", "<= 5 ms", ("peers",), _all(
        _value("peers", "paced produce 16 KiB", "lag_ms", 5, "ms"), _value("peers", "produce 1 KiB", "lag_ms", 5, "ms"),
        _value("peers", "fetch 64 KiB", "lag_ms", 5, "ms"))),
    Goal("paced load, acks=all, 3 replicas: p50, p99, p99.9", "<= 1/2 of Kafka", ("peers-3",),
         _latencies("peers-3", "paced produce 16 KiB")),
    Goal("3 replicas, acks=all: CPU of three brokers per GB", "<= 1/4 of Kafka", ("peers-3",),
         _all(_against("peers-3", "produce 16 KiB", "cpu_s_gb", 0.25, unit="CPU s/GB"),
              _against("peers-3", "produce 128 KiB", "cpu_s_gb", 0.25, unit="CPU s/GB"))),
    Goal("transactions of 100 records, 3 partitions: commits/s", ">= 2x Kafka", ("transactions",),
         _all(_against("transactions", "1 producers", "commits_s", 2, at_least=True, unit="commits/s"),
              _against("transactions", "8 producers", "commits_s", 2, at_least=True, unit="commits/s"))),
    Goal("consumer group of 50 members: time of a rebalance", "<= 1/2 of Kafka", ("groups",),
         _against("groups", "50 members", "rebalance_ms", 0.5, unit="ms")),
    Goal("memory of a broker, idle", "<= 60 MB", ("peers",),
         _value("peers", "memory, idle", "rss_mib", 60, "MB", 1.048576)),
    Goal("memory, 1,000 partitions loaded", "<= 120 MB", ("peers",),
         _value("peers", "memory, 1000 partitions loaded", "rss_mib", 120, "MB", 1.048576)),
    Goal("memory, 10,000 partitions", "<= 350 MB", ("scale",),
         _value("scale", "10000 partitions", "rss_mib", 350, "MB", 1.048576)),
    Goal("start to serving", "<= 0.5 s", ("peers",), _value("peers", "start", "start_s", 0.5, "s")),
    Goal("restart with 10,000 partitions: clean", "<= 3 s", ("scale",),
         _value("scale", "10000 partitions", "start_clean_s", 3, "s")),
    Goal("restart with 10,000 partitions: after kill -9", "<= 8 s", ("scale",),
         _value("scale", "10000 partitions", "start_killed_s", 8, "s")),
    Goal("10,000 partitions, idle: CPU of the broker", "<= 3 % of a core", ("scale",),
         _value("scale", "10000 partitions", "idle_cores", 3, "% of a core", 100)),
    Goal("10,000 partitions: Metadata for all of them", "<= 20 ms of loop time", ("scale",),
         _value("scale", "10000 partitions", "metadata_cpu_ms", 20, "ms")),
    Goal("1,000 producers and 10,000 consumers: p99 of produce", "<= 50 ms", ("scale",),
         _value("scale", "11000 connections", "p99_ms", 50, "ms")),
    Goal("1,000 producers and 10,000 consumers: memory per connection", "<= 20 KB", ("scale",),
         _value("scale", "11000 connections", "connection_kib", 20, "KB", 1.024)),
    Goal("Spark's sink, exactly once: rows/s", ">= 0.9x at least once", ("spark",),
         _sinks("rows_s", "at least once", 0.9, "rows/s", at_least=True)),
    Goal("Spark's sink, exactly once: rows/s", ">= 1.2x Spark's own, tuned", ("spark",),
         _sinks("rows_s", TUNED, 1.2, "rows/s", at_least=True)),
    Goal("Spark's sink, exactly once: CPU of Spark and brokers", "<= 0.7 of Spark's own, tuned", ("spark",),
         _sinks("cpu", TUNED, 0.7, "CPU s per million rows")),
    Goal("Spark's source: CPU of Spark and brokers", "<= 0.7 of Spark's own", ("spark",),
         _against("spark", SOURCE, "cpu", 0.7, unit="CPU s per million rows")),
    Goal("Spark's sink, 10 rows, by foreachBatch and format: p50", "<= 1.0x Spark's own",
         ("spark",), _all(_against("spark", SMALL, "p50_ms", 1.0, unit="ms"),
                          _against("spark", SMALL, "p50_ms", 1.0, ours="format", unit="ms"))),
    Goal("Spark's sink: time of a commit", "flat from 2 to 200 tasks", ("spark",), _flat),
)  # fmt: skip


Kept = Mapping[tuple[str, str], list[list[str]]]
"""Lines of an older table by what and goal."""


def lines(found: Found, suites: Sequence[str] = (), kept: Kept = MappingProxyType({})) -> list[list[str]]:
    """The table's lines: what, goal, measured, ratio, the C program's ratio, met. ``suites``: only goals of these.

    ``kept``: of goals whose suites have no results.
    """
    table = []
    for goal in GOALS:
        if suites and not set(goal.suites) <= set(suites):
            continue
        missing = [suite for suite in goal.suites if suite not in found]
        if missing:
            unknown = [goal.what, goal.goal, f"not measured: python -m perf {_command(missing[0])}", "", "", ""]
            table += kept.get((goal.what, goal.goal), [unknown])
            continue
        for measured in goal.judge(found):
            known = not math.isnan(measured.ratio)
            own = goal.goal.startswith("<=") and "Kafka" not in goal.goal and "own" not in goal.goal
            ratio = "" if own or not known else f"{measured.ratio:.2f}"
            least = "" if math.isnan(measured.least) else f"{measured.least:.2f}"
            met = "not measured" if not known else "met" if measured.met else "**not met**"
            if known and not measured.met and measured.out_of_reach:
                met += ", nor by the C program"
            if measured.others > BUSY_CORES:
                met += f", but others used {number(measured.others)} cores"
            table.append([goal.what, goal.goal, measured.text, ratio, least, met])
    return table


def _command(suite: str) -> str:
    name, _, brokers = suite.partition("-")
    return f"{name} --brokers {brokers}" if brokers else name
