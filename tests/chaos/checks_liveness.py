"""Did enough happen, did it go on, did it come to rest: liveness, availability, and what makes a run say nothing."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.chaos.history import COMPACTED, FOREVER, RC, RU, TELLERS, Fault, History
from tests.chaos.logs import Logs
from tests.chaos.report import Report

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Demands:
    """What must have happened at least, so that a clean history means something."""

    ok: Mapping[str, int] = field(default_factory=dict)
    """Successes by kind of operation, as :func:`successes` names them."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """Proven faults by kind."""
    during_faults: int = 0
    """Successful operations that ended while a fault was on."""
    final: bool = False
    """Every key that was written to has a full read in both isolations, up to its end."""


def successes(history: History) -> Counter[str]:
    """How often each kind of operation succeeded."""
    counts: Counter[str] = Counter()
    for op in history.ops:
        counts[f"{op.kind} {op.outcome}"] += 1
        if op.batch is not None:
            counts[f"batch {op.outcome}"] += 1
        if op.kind == "txn" and op.offsets:
            counts[f"read-process-write {op.outcome}"] += 1
    for poll in history.polls:
        counts["poll " + ("group" if poll.group else "assign")] += 1
        counts["records read"] += sum(map(len, poll.records.values()))
    counts["commit ok"] = sum(commit.outcome == "ok" for commit in history.commits)
    counts["committed"] = len(history.committed)
    counts["trim ok"] = sum(trim.t1 < FOREVER for trim in history.trims)
    counts["topic again"] = sum(again.read is not None for again in history.agains)
    counts["transfer ok"] = sum(
        op.outcome == "ok" and any(group == TELLERS for group, _ in op.offsets) for op in history.ops
    )
    counts["record given"] = len(history.givens)
    counts.update(f"share {given.end} ok" for given in history.givens if given.said < FOREVER)
    counts["dead letter"] = len(history.letters or ())
    counts["record compacted"] = _compacted(history)
    for answer in history.ends:
        counts[f"ends {answer.isolation}"] += 1
    counts["rebalance"] = sum(
        not hasattr(event, "records") and bool(event.group) for events in history.consumers.values() for event in events
    )
    return counts


def _compacted(history: History) -> int:
    """Acknowledged records of the compacted topic that a full read does not show any more."""
    shown = {
        value
        for final in history.finals[:1]
        for key, records in final.records.items() if key.startswith(COMPACTED)
        for _, value in records
    }  # fmt: skip
    sent = [
        send for op in history.ops for send in op.sends if send.key.startswith(COMPACTED) and send.offset is not None
    ]
    return sum(send.value not in shown for send in sent) if shown else 0


def ends_of_success(history: History) -> list[int]:
    """When the successful sends and transactions ended, in order."""
    return sorted(op.t1 for op in history.ops if op.outcome == "ok")


def within(times: list[int], t0: int, t1: int) -> int:
    """How many of the sorted times lie in the interval."""
    return bisect_right(times, t1) - bisect_left(times, t0)


def during_faults(history: History) -> int:
    """Successful operations that ended while at least one fault was on."""
    times, total, reached = ends_of_success(history), 0, 0
    for fault in history.faults:
        start = max(fault.t0, reached)
        if fault.t1 > start:
            total += within(times, start, fault.t1)
            reached = fault.t1 + 1
    return total


def longest_gaps(history: History, alone: bool = False) -> dict[str, float]:
    """Per fault kind: the longest time, in seconds, in which no send to some key succeeded, among the gaps that touch
    such a fault. Gaps lie between sends that were acknowledged, key by key. ``alone``: only gaps that touch no other
    fault, and only those of single sends; a transaction also waits for what its client does in between."""
    acked: dict[str, list[int]] = defaultdict(list)
    for op in history.ops:
        for send in op.sends:
            if send.offset is not None and not (alone and op.kind == "txn"):
                acked[send.key].append(send.acked)
    gaps: list[tuple[int, int]] = []
    for times in acked.values():
        times.sort()
        gaps += [(a, b) for a, b in itertools.pairwise(times) if b - a > SECOND // 10]
    longest: dict[str, float] = {}
    for fault in history.faults:
        others = [other for other in history.faults if other is not fault and _touch(other, fault.t0, fault.t1)]
        over = [
            b - a
            for a, b in gaps
            if _touch(fault, a, b) and not (alone and any(_touch(other, a, b) for other in others))
        ]
        longest[fault.kind] = max(longest.get(fault.kind, 0.0), max(over, default=0) / SECOND)
    return longest


def _touch(fault: Fault, start: int, end: int) -> bool:
    return start <= fault.t1 and end >= fault.t0


def proven(faults: list[Fault]) -> Counter[str]:
    """Faults by kind, only those with a proof."""
    return Counter(fault.kind for fault in faults if fault.proof)


def vacuity(logs: Logs, report: Report, demands: Demands) -> None:
    """Unknown is not a pass."""
    counts = successes(logs.history)
    report.counts.update(counts)
    for kind, least in demands.ok.items():
        if counts[kind] < least:
            report.vague("too-few-operations", f"{kind}: {counts[kind]} succeeded, {least} are needed")
    fired = proven(logs.history.faults)
    for kind, least in demands.faults.items():
        if fired[kind] < least:
            report.vague("too-few-faults", f"{kind}: fired {fired[kind]} times, {least} are needed")
    report.counts["during faults"] = during_faults(logs.history)
    if report.counts["during faults"] < demands.during_faults:
        report.vague(
            "too-few-during-faults",
            f"{report.counts['during faults']} operations succeeded while faults were on, "
            f"{demands.during_faults} are needed",
        )
    if demands.final:
        if logs.history.givens and logs.history.letters is None:
            report.vague("no-final-letters", "the dead letters were not read to their end")
        for isolation in (RC, RU):
            for key in sorted(logs.writer):
                if key not in logs.final[isolation]:
                    report.vague("no-final-read", f"{key} was not read to its end ({isolation})")


def rights(logs: Logs, report: Report) -> None:
    """Nobody takes a right away: a client that is refused for lack of one hears of a fault in the brokers."""
    for process, text in logs.history.refusals:
        report.bad("refused-without-cause", f"{process} is told: {text}")


def rest(logs: Logs, report: Report) -> None:
    """At the end nothing is open: the last stable offset is the high watermark."""
    ends: dict[str, dict[str, int]] = {RC: {}, RU: {}}
    for final in logs.history.finals:
        ends[final.isolation].update(final.ends)
    for key, high in sorted(ends[RU].items()):
        stable = ends[RC].get(key, high)
        if stable < high:
            report.bad(
                "hanging-transaction", f"{key}: the last stable offset stays at {stable}, the high watermark is {high}"
            )
