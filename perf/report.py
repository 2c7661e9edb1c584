"""``python -m perf report``: ``docs/performance.md`` and its charts, from the last results of every suite.

Results are not in the repository: a suite that was not run here keeps its section of the page, and its goals their
lines.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perf import charts, goals
from perf.build import ROOT
from perf.results import DIRECTORY, Results, table

PAGE = ROOT / "docs" / "performance.md"
CHARTS = ROOT / "docs" / "performance"
PLANNED = ROOT / "brokers" / "cli" / "plan_figures.json"
"""What ``fleetlog plan`` reckons with: figures of the page."""
PLANNED_CASES = {
    "peers": ("produce 1 KiB", "produce 16 KiB", "produce 128 KiB", "fetch 64 KiB"),
    "peers-3": ("produce 1 KiB", "produce 16 KiB", "produce 128 KiB"),
}
HEADS = {
    "requests_s": "requests/s",
    "records_s": "records/s",
    "commits_s": "commits/s",
    "rows_s": "rows/s",
    "cpu": "CPU s/million rows",
    "spark_cpu": "of it Spark",
    "broker_cpu": "of it brokers",
    "commit_ms": "commit ms",
    "visible_ms": "visible after ms",
    "rebalance_ms": "rebalance ms",
    "slowest_ms": "slowest ms",
    "mb_s": "MB/s",
    "requests_cpu_s": "requests/CPU s",
    "cpu_s_gb": "CPU s/GB",
    "cpu_us_commit": "CPU us/commit",
    "cpu_ms_rebalance": "CPU ms/rebalance",
    "cpu_ms": "CPU ms/batch",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "p999_ms": "p99.9 ms",
    "lag_ms": "loop lag ms, at most",
    "start_s": "start s",
    "create_s": "create s",
    "idle_cores": "idle cores",
    "metadata_ms": "Metadata ms",
    "metadata_cpu_ms": "Metadata CPU ms",
    "metadata_kib": "Metadata KiB",
    "start_clean_s": "start s, clean",
    "led_clean_s": "all led s, clean",
    "start_killed_s": "start s, killed",
    "led_killed_s": "all led s, killed",
    "produces_s": "produces/s",
    "fetches_s": "fetches/s",
    "connection_kib": "KiB/connection",
    "rss_mib": "RSS MiB",
    "rss_restarted_mib": "RSS MiB, restarted",
    "pure_ns": "pure ns/item",
    "cython_ns": "Cython ns/item",
    "ratio": "ratio",
    "generator_us_request": "generator us/request",
    "others_cores": "others' cores",
}
"""Columns in their order; what is not here is in the JSON only."""

TITLES = {
    "kernels": "Kernels: Cython against pure",
    "broker": "A whole broker: Cython against pure",
    "floor": "Against the least a C program can do",
    "peers": "Against Apache Kafka, one broker each",
    "peers-3": "Against Apache Kafka, three brokers, three replicas",
    "transactions": "Transactions of 100 records over three partitions",
    "transactions-3": "Transactions on three brokers",
    "groups": "Rebalances of a group of 50 members",
    "groups-3": "Rebalances on three brokers",
    "scale": "How cost grows",
    "spark": "Spark: source and sink beside Spark's own connector",
}
CHARTED = {
    "floor": (("mb_s", "Throughput", "MB/s"),),
    "broker": (("cpu_s_gb", "Broker CPU", "CPU seconds per GB, less is better"),),
    "peers": (
        ("cpu_s_gb", "Broker CPU", "CPU seconds per GB, less is better"),
        ("mb_s", "Throughput", "MB/s, more is better"),
        ("p99_ms", "p99", "milliseconds, less is better"),
        ("rss_mib", "Memory", "MiB, less is better"),
    ),
    "peers-3": (
        ("cpu_s_gb", "CPU of three brokers", "CPU seconds per GB, less is better"),
        ("p99_ms", "p99", "milliseconds, less is better"),
    ),
    "transactions": (("commits_s", "Transactions", "commits per second, more is better"),),
    "groups": (("rebalance_ms", "Rebalances", "milliseconds, less is better"),),
}
_REQUESTS = ("_native", "wire", "brokers/server", "brokers/api", "brokers/log", "brokers/replication")
_COORDINATED = (*_REQUESTS, "brokers/coordinators", "brokers/groups", "txn")
DESCRIBED = {
    TITLES["kernels"]: ("_native",),
    TITLES["spark"]: ("spark_udfs",),
    **dict.fromkeys((TITLES[suite] for suite in ("broker", "floor", "peers", "peers-3")), _REQUESTS),
    **dict.fromkeys(
        (TITLES[suite] for suite in ("transactions", "transactions-3", "groups", "groups-3")), _COORDINATED
    ),
    TITLES["scale"]: ("_native", "wire", "brokers", "coordination"),
}
"""The code that a section of the page measures."""
OLDER = "**Older than its code**"
HEAD, GOALS, FAILOVER = "## ", "Goals", "Failover"
GOAL_CELLS = 6
NOTES = Path(__file__).parent / "notes.md"
"""The goals that are not reached, where their time goes and what was tried; written by hand."""
ABOUT = """\
# Performance

`python -m perf report` writes this page from the latest results of the suites; `make perf` runs them all for a short
pass. Do not edit it.

- The load generator ([perf/generator](../perf/generator/generator.c)) sends prepared frames over plain sockets and
  drops the bytes of responses in the kernel. Its own cost is in the column *generator*.
- CPU is utime + stime of the server's processes from /proc over the measured seconds. fleetlog's ZooKeeper and Kafka's
  controller are idle then (Kafka's runs in the broker's process). RSS is RssAnon: pages of files (libraries, and
  segments mapped for fetches) belong to the page cache.
- *paced* cases are open loops: a request is due by the clock, and its latency counts from then, whatever the server
  does (no coordinated omission). The others are closed loops at full load, so their latencies show how long the queue
  was.
- Servers take turns in each round. Cells are medians with the lowest and the highest of all rounds. *others' cores*
  shows how much of the machine other processes used meanwhile: the more, the less an absolute number means. Ratios of
  interleaved runs are what counts.
- Both servers are warmed up by tens of thousands of requests, until one costs no less than before. Apache Kafka runs
  from its jars (Maven, or a class path in FLEETLOG_KAFKA_JARS) as its start script would, with a heap of 1 GB.
- `python -m perf SUITE --tree DIR` measures the brokers of another source tree, `peers` beside those of this tree.
  `--rounds` and `--seconds` set how often and how long, `--only WORDS` runs parts of a suite. Neither `--tree` nor
  `--only` keeps the numbers.
- `python -m perf spark` (not in `make perf`) runs all variants in one Spark session: `kafka` is Spark's own connector
  with its defaults, `kafka tuned` the same with linger.ms 20 and batch.size 900 kB, `fleetlog` exactly once from
  foreachBatch (batches of one running query, whose driver is connected; small ones by the driver's member, `by tasks`:
  without that), `format` exactly once by the data source's writer, `at least once` fleetlog's producer without a
  transaction. CPU is of Spark's process tree and of the brokers and contains the cost of generating the rows
  (`rows alone`; `counted`: taken to Python and only counted).
- CI has no timing: [tests/perf/test_budget.py](../tests/perf/test_budget.py) counts the instructions of a request
  (`python -m perf.budget`) against [perf/budget.json](../perf/budget.json).
"""


def section(results: Results) -> str:
    """One suite's table: columns that have something, one line for each case and server."""
    names = [name for name in HEADS if any(name in row for row in results.rows)]
    lines = []
    for case in results.cases():
        for target in results.targets(case):
            cells = [results.spread(case, target, name) for name in names]
            lines.append([case, target, *("" if cell is None else f"{cell}" for cell in cells)])
    return table(["case", "", *(HEADS[name] for name in names)], lines)


def goals_table(found: dict[str, Results], suites: Sequence[str] = (), kept: goals.Kept = MappingProxyType({})) -> str:
    """The goals beside what was measured; with ``suites`` only those that need no others. ``kept``: older lines."""
    return table(["what", "goal", "measured", "ratio", "C program", ""], goals.lines(found, suites, kept))


def _sections(page: str) -> dict[str, str]:
    """A page's sections by title, with their titles."""
    parts = re.split(f"^(?={HEAD})", page, flags=re.MULTILINE)
    return {part.split("\n", 1)[0].removeprefix(HEAD): part.rstrip("\n") + "\n" for part in parts}


def _goal_lines(text: str) -> dict[tuple[str, str], list[list[str]]]:
    """The lines of the section of goals."""
    found: dict[tuple[str, str], list[list[str]]] = {}
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == GOAL_CELLS:
            found.setdefault((cells[0], cells[1]), []).append(cells)
    return found


def _charts(results: Results) -> list[str]:
    """Write the suite's charts; the lines that show them."""
    lines = []
    for name, title, unit in CHARTED.get(results.suite, ()):
        groups: list[charts.Group] = []
        for case in results.cases():
            bars = [
                (target, spread)
                for target in results.targets(case)
                if (spread := results.spread(case, target, name)) is not None
            ]
            if len(bars) > 1:
                groups.append((case, bars))
        if groups:
            CHARTS.mkdir(exist_ok=True)
            file = CHARTS / f"{results.suite}-{name}.svg"
            file.write_text(charts.bars(f"{TITLES[results.suite]}: {title}", unit, groups))
            lines.append(f"![{title}]({file.relative_to(PAGE.parent)})")
    return lines


def _about(results: Results) -> str:
    about = results.about
    others = [row["others_cores"] for row in results.rows if "others_cores" in row]
    noise = f"; others used {min(others):.2g} to {max(others):.2g} cores meanwhile" if others else ""
    took = f", {about['took_s']:.0f} s" if "took_s" in about else ""
    kafka = f", Apache Kafka {about['kafka']} ({about['java']})" if "kafka" in about else ""
    if "kafka_warmed_up_by" in about:
        kafka += (
            f", warmed up by {about['kafka_warmed_up_by']:,} requests (fleetlog: {about['fleetlog_warmed_up_by']:,})"
        )
    if "connector" in about:
        kafka += f", PySpark {about['pyspark']}, its own connector: {about['connector']}"
    return (
        f"`{about['command']}` on {about['started']}{took}: {about['cores']} cores of {about['processor']}, "
        f"{about['memory_gb']} GB, Linux {about['kernel']}, Python {about['python']}, uvloop {about['uvloop']}, "
        f"revision {about['revision']}{kafka}{noise}."
    )


def _failover() -> list[str]:
    """``perf/failover.py`` writes times by kind; none if it was not run."""
    path = DIRECTORY / "failover.json"
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    lines = []
    for kind, times in found["times_ms"].items():
        numbers = [statistics.median(times), max(times), found["goals_ms"][kind]]
        lines.append([kind, f"{len(times)}", *(f"{value:.0f}" for value in numbers)])
    head = f"`python -m perf failover`, ZooKeeper session {found['session_ms']} ms, tick {found['tick_ms']} ms."
    made = table(["ms without an acknowledged write", "times", "median", "longest", "goal"], lines)
    return [f"{HEAD}{FAILOVER}\n\n{head}\n", made + "\n"]


def plan_figures(page: str) -> dict[str, dict[str, Any]] | None:
    """Medians of fleetlog's own lines of a page, with where they were measured; None if one is not there."""
    sections, figures = _sections(page), {}
    for suite, cases in PLANNED_CASES.items():
        lines = sections.get(TITLES[suite], "").split("\n")
        rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
        ours = {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows if row[1] == goals.FLEETLOG}
        if not set(cases) <= ours.keys():
            return None
        medians = {
            key: {case: float(ours[case][head].split(" ")[0].replace(",", "")) for case in cases}
            for key, head in HEADS.items()
            if key in ("cpu_s_gb", "mb_s")
        }
        about = next(line for line in lines if line.startswith("`python"))
        figures[suite] = {"about": re.split(r", Linux|, revision", about)[0].replace("`", ""), **medians}
    return figures


def aged(title: str, part: str) -> str:
    """A section whose code has changed since it was measured says so, below its line about the machine."""
    kept = [line for line in part.split("\n") if not line.startswith(OLDER)]
    at = next((at for at, line in enumerate(kept) if line.startswith("`python")), None)
    day = re.search(r" on (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", kept[at]) if at is not None else None
    if at is None or day is None or title not in DESCRIBED:
        return "\n".join(kept)
    command = ["git", "-C", str(ROOT), "log", f"--since={day[1]}Z", "--format=%cs", "--", *DESCRIBED[title]]
    days = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    if days:
        where = ", ".join(DESCRIBED[title])
        kept[at] += f"\n{OLDER}: commits that have changed {where} since then: {len(days)}, the last one on {days[0]}."
    return "\n".join(kept)


def found_results(suites: Sequence[str] = tuple(TITLES)) -> dict[str, Results]:
    """The last results of each suite that has some."""
    loaded = {suite: Results.load(suite) for suite in suites}
    return {suite: results for suite, results in loaded.items() if results is not None}


def main() -> int:
    """Write the page, with which of its figures are older than their code; 1 if there is nothing to write."""
    found = found_results()
    if not found and not PAGE.exists():
        print("there are no results yet: python -m perf all --short", file=sys.stderr)
        return 1
    kept = _sections(PAGE.read_text() if PAGE.exists() else "")
    lines = goals_table(found, kept=_goal_lines(kept.get(GOALS, "")))
    parts = [ABOUT, f"{HEAD}{GOALS}\n\n{lines}\n", NOTES.read_text()]
    for suite, title in TITLES.items():
        if suite not in found:
            parts += [aged(title, kept[title])] if title in kept else []
            continue
        parts.append(aged(title, f"{HEAD}{title}\n\n{_about(found[suite])}\n"))
        parts.append(section(found[suite]) + "\n")
        parts += [line + "\n" for line in _charts(found[suite])]
    parts += _failover() or ([kept[FAILOVER]] if FAILOVER in kept else [])
    PAGE.write_text("\n".join(parts))
    print(f"written: {_shown(PAGE)}")
    if figures := plan_figures(PAGE.read_text()):
        PLANNED.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT))
