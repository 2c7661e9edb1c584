"""A run in two tables, as markdown."""

from __future__ import annotations

from collections import Counter

from tests.chaos.checks_liveness import SECOND, ends_of_success, longest_gaps, proven, successes, within
from tests.chaos.history import History
from tests.chaos.report import Report


def tables(history: History, report: Report) -> str:
    """Faults with their counts and the longest time without a success, and operations by outcome."""
    fired, times = proven(history.faults), ends_of_success(history)
    gaps, alone = longest_gaps(history), longest_gaps(history, alone=True)
    seconds: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for fault in history.faults:
        seconds[fault.kind] += (fault.t1 - fault.t0) // 1_000_000
        done[fault.kind] += within(times, fault.t0, fault.t1)
    lines = [
        "| fault | fired | seconds | operations meanwhile | a partition without a write, s: alone | with others |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {kind} | {fired[kind]} | {seconds[kind] / 1000:.0f} | {done[kind]} | {alone[kind]:.1f} | {gaps[kind]:.1f} |"
        for kind in sorted(seconds)
    ]
    counts = successes(history)
    lines += ["", "| operation | count |", "|---|---|"]
    lines += [f"| {name} | {count} |" for name, count in sorted(counts.items())]
    kinds = Counter(found.kind for found in (*report.anomalies, *report.unknown))
    told = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "none"
    span = (
        max((t for _, _, t in history.phases), default=0) - min((t for _, t, _ in history.phases), default=0)
    ) / SECOND
    lines += [
        "",
        f"Anomalies: {told}. Length: {span:.0f} s. Operations while faults were on: {report.counts['during faults']}.",
    ]
    return "\n".join(lines)
