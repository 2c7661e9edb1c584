"""Batches of Spark's sink: each is there once, the fence says which was the last, and a fenced driver stays out."""

from __future__ import annotations

from collections import defaultdict

from tests.chaos.history import RC, Fence, Op
from tests.chaos.logs import Logs
from tests.chaos.report import Report

Attempts = dict[int, list[Op]]


def batches(logs: Logs, report: Report) -> None:
    """All that can be said of each sink."""
    sinks: dict[str, Attempts] = defaultdict(lambda: defaultdict(list))
    for op in logs.history.ops:
        if op.batch is not None:
            sinks[op.batch[0]][op.batch[1]].append(op)
    fences: dict[str, list[Fence]] = defaultdict(list)
    for fence in logs.history.fences:
        fences[fence.sink].append(fence)
    for sink in sorted(sinks.keys() | fences.keys()):
        _once(logs, sink, sinks[sink], report)
        _fences(logs, sink, sinks[sink], fences[sink], report)


def _shown(logs: Logs, op: Op) -> bool:
    return any(send.value in logs.read[RC][send.key] for send in op.sends)


def _once(logs: Logs, sink: str, attempts: Attempts, report: Report) -> None:
    """However often a batch was tried, one attempt of it is committed."""
    for batch_id, tried in sorted(attempts.items()):
        committed = [op for op in tried if op.outcome == "ok" or _shown(logs, op)]
        if len(committed) > 1:
            report.bad("batch-twice", f"{sink} batch {batch_id}: {committed[0]} and {committed[1]}")


def _fences(logs: Logs, sink: str, attempts: Attempts, fences: list[Fence], report: Report) -> None:
    finished = sorted(
        (op.t1, op.batch[1]) for tried in attempts.values() for op in tried if op.batch and op.outcome == "ok"
    )
    read_to_the_end = all(key in logs.final[RC] for key in logs.writer)
    for fence in sorted(fences, key=lambda fence: fence.t1):
        told = f"{sink}: {fence.proc} is told batch {fence.batch_id}"
        sure = max((batch_id for t1, batch_id in finished if t1 < fence.t0), default=-1)
        sure = max(sure, max((other.batch_id for other in fences if other.t1 < fence.t0), default=-1))
        if fence.batch_id < sure:
            report.bad("fence-back", f"{told}, after batch {sure}")
        tried = [op for op in attempts.get(fence.batch_id, ()) if op.t0 < fence.t1 and op.committing]
        if fence.batch_id >= 0 and not tried:
            report.bad("fence-phantom", f"{told}, which no driver had tried to commit")
        elif read_to_the_end and tried and not any(_shown(logs, op) or not op.sends for op in tried):
            report.bad("lost-write", f"{told}, but nothing of it is shown: {tried[0]}")
        _locked_out(logs, told, fence, attempts, report)


def _locked_out(logs: Logs, told: str, fence: Fence, attempts: Attempts, report: Report) -> None:
    """An attempt that had begun before BeginBatch and was not committed by then never will be."""
    for batch_id, tried in attempts.items():
        for op in tried:
            if batch_id <= fence.batch_id or not op.t0 < fence.t0 <= op.t1:
                continue  # one that was over by then and is committed says that the fence went back
            if op.outcome == "ok" or _shown(logs, op):
                report.bad("batch-not-locked-out", f"{told}, but {op} of batch {batch_id} is committed")


CHECKS = (batches,)
