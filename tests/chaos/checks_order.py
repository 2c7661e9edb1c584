"""Order: inside a poll, between polls of a consumer, between sends of a producer, and in real time."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping

from tests.chaos.history import FOREVER, RC, RU, Answer, Commit, Poll, Position, Records
from tests.chaos.logs import Logs
from tests.chaos.report import Report


def polls(logs: Logs, report: Report) -> None:
    """Skips and steps back, inside one poll and between polls of one consumer that was not moved in between."""
    for final in logs.history.finals:
        for key, records in final.records.items():
            _inside(logs, final.proc, final.isolation, key, records, report)
            if records and (missed := logs.between(final.isolation, key, -1, records[0][0])):
                report.bad("skip-poll", f"{final.proc} {key} begins after {logs.values_at(key, missed)}")
    for proc, events in logs.history.consumers.items():
        last: dict[str, int] = {}
        for event in events:
            if isinstance(event, Position):
                kept = {key: at for key, at in last.items() if event.beside and key not in event.at}
                last = kept | {key: at - 1 for key, at in event.at.items() if at is not None}
                continue
            for key, records in event.records.items():
                if not records:
                    continue
                _inside(logs, proc, event.isolation, key, records, report)
                first = records[0][0]
                if key in last:
                    if first <= last[key]:
                        report.bad("nonmonotonic-poll", f"{proc} {key}: {first} after {last[key]}")
                    elif missed := logs.between(event.isolation, key, last[key], first):
                        report.bad("skip-poll", f"{proc} {key}: {logs.values_at(key, missed)} before {first}")
                last[key] = records[-1][0]


def _inside(logs: Logs, proc: str, isolation: str, key: str, records: Records, report: Report) -> None:
    for (one, _), (two, _) in itertools.pairwise(records):
        if two <= one:
            report.bad("nonmonotonic-poll", f"{proc} {key}: {two} after {one} in one poll")
        elif missed := logs.between(isolation, key, one, two):
            report.bad("skip-poll", f"{proc} {key}: {logs.values_at(key, missed)} between {one} and {two}")


def group_starts(logs: Logs, report: Report) -> None:
    """After a rebalance a member goes on at the committed offset: not before what was acknowledged to any member before
    the assignment (stale), not after everything that anybody ever tried to commit (skipped). Where a member keeps a
    partition, it may also go on where it was: some clients do."""
    commits: dict[tuple[str, str], list[Commit]] = defaultdict(list)
    for commit in logs.history.commits:
        commits[commit.group, commit.key].append(commit)
    for proc, events in logs.history.consumers.items():
        fresh: dict[str, Position] = {}
        own: dict[str, int] = {}
        for event in events:
            if isinstance(event, Position):
                fresh = (fresh if event.beside else {}) | {
                    key: event for key, at in event.at.items() if at is None and event.group is not None
                }
                own = {key: offset for key, offset in own.items() if (key in event.at) is not event.beside}
                continue
            for key, records in event.records.items():
                if not records:
                    continue
                if (position := fresh.pop(key, None)) is not None and own.get(key) != records[0][0]:
                    _start(logs, commits[position.group or "", key], position, proc, key, event, report)
                own[key] = records[-1][0] + 1


def _start(
    logs: Logs, commits: list[Commit], position: Position, proc: str, key: str, poll: Poll, report: Report
) -> None:
    first = poll.records[key][0][0]
    sure = max((c.offset for c in commits if c.outcome == "ok" and c.t1 < position.t), default=0)
    tried = max((c.offset for c in commits if c.outcome != "fail" and c.t0 < poll.t1), default=0)
    if first < sure:
        report.bad("stale-committed-offset", f"{proc} {key} goes on at {first}, {sure} was committed before")
    elif missed := logs.between(poll.isolation, key, tried - 1, first):
        report.bad("skip-poll", f"{proc} {key} goes on at {first}, committed {tried}: {logs.values_at(key, missed)}")


def sends(logs: Logs, report: Report) -> None:
    """An idempotent producer's records lie in the order in which they were sent."""
    last: dict[tuple[str, int, str], tuple[int, str]] = {}
    handed = sorted(
        (send for op in logs.history.ops if op.idempotent for send in op.sends if send.offset is not None),
        key=lambda send: (send.t0, send.op.number),
    )
    for send in handed:
        assert send.offset is not None
        name = (send.op.proc, send.op.instance, send.key)
        if name in last and send.offset <= last[name][0]:
            before = last[name]
            report.bad(
                "nonmonotonic-send", f"{send.key} {send.value} at {send.offset}, sent after {before[1]} at {before[0]}"
            )
        else:
            last[name] = (send.offset, send.value)


Step = tuple[int, int, int, str]
"""(time, 1 to ask or 0 to tell, offset, process): what is told before a question is a floor under the answer."""


def _floors(steps: Iterable[Step]) -> Iterable[tuple[int, str, int, str]]:
    """For each question the highest offset told strictly before it: (offset, process, floor, the floor's process)."""
    floor, by = -1, ""
    for _, asks, offset, proc in sorted(steps, key=lambda step: (step[0], -step[1])):
        if asks:
            yield offset, proc, floor, by
        elif offset > floor:
            floor, by = offset, proc


def appends(logs: Logs, report: Report) -> None:
    """Linearizable appends: an offset lies above all that were acknowledged before its record was sent."""
    steps: dict[str, list[Step]] = defaultdict(list)
    for op in logs.history.ops:
        for send in op.sends:
            if send.offset is not None:
                steps[send.key].append((send.t0, 1, send.offset, f"{send.value} of {op}"))
                steps[send.key].append((send.acked, 0, send.offset, f"{send.value} of {op}"))
    for key, found in steps.items():
        for offset, proc, floor, by in _floors(found):
            if offset <= floor:
                report.bad(
                    "append-not-linear", f"{key}: {proc} at {offset}, though {by} had {floor} before it was sent"
                )


def log_ends(logs: Logs, report: Report) -> None:
    """ListOffsets never goes back, and never below what was acknowledged (latest) or shown before the question."""
    for isolation in (RU, RC):
        steps: dict[str, list[Step]] = defaultdict(list)
        told = [answer for answer in logs.history.ends if answer.isolation == isolation]
        told += [
            Answer(key, end, final.t0, final.t1, final.proc)
            for final in logs.history.finals if final.isolation == isolation
            for key, end in final.ends.items()
        ]  # fmt: skip
        for answer in told:
            steps[answer.key].append((answer.t0, 1, answer.offset, answer.proc))
            steps[answer.key].append((answer.t1, 0, answer.offset, f"the answer to {answer.proc}"))
        for poll in logs.history.polls:
            if isolation == RU or poll.isolation == RC:
                for key, records in poll.records.items():
                    if records:
                        steps[key].append((poll.t1, 0, records[-1][0] + 1, f"a poll of {poll.proc}"))
        if isolation == RU:
            for op in logs.history.ops:
                for send in op.sends:
                    if send.offset is not None:
                        steps[send.key].append((send.acked, 0, send.offset + 1, f"the acknowledgement of {send.value}"))
        for key, found in steps.items():
            for offset, proc, floor, by in _floors(found):
                if offset < floor:
                    report.bad("log-end-back", f"{key}: {proc} is told {offset} ({isolation}), after {floor} by {by}")


def committed_offsets(logs: Logs, report: Report) -> None:
    """OffsetFetch never goes back, never below what was acknowledged, and never says what no member committed."""
    commits: dict[tuple[str, str], list[Commit]] = defaultdict(list)
    for commit in logs.history.commits:
        commits[commit.group, commit.key].append(commit)
    answers: dict[tuple[str, str], list[Answer]] = defaultdict(list)
    for answer in logs.history.committed:
        answers[answer.group, answer.key].append(answer)
    assigned: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for proc, events in logs.history.consumers.items():
        for event in events:
            if isinstance(event, Position):
                for key in event.at:
                    assigned[event.group or "", key][proc].append(event.t)
    for name, asked in answers.items():
        _back(name, asked, commits[name], assigned[name], report)
        _sources(name, asked, commits[name], report)


def _back(
    name: tuple[str, str], asked: list[Answer], commits: list[Commit], assigned: Mapping[str, list[int]], report: Report
) -> None:
    """No answer is below what was told before the question. A member that is assigned the partition after that may go
    on where it was, as :func:`group_starts` has it, and commit so: then that is the floor."""
    floor, by, since, reset = -1, "", -1, -1
    steps: list[tuple[int, int, Answer | Commit]] = [(a.t0, 0, a) for a in asked] + [(a.t1, 2, a) for a in asked]
    for commit in commits:
        if commit.outcome == "ok" and commit.t1 < FOREVER:
            steps += [(commit.t0, 1, commit), (commit.t1, 2, commit)]
    for time, what, one in sorted(steps, key=lambda step: step[:2]):
        if what == 0 and one.offset < floor:
            kind = "committed-offset-back" if by == "an answer" else "stale-committed-offset"
            report.bad(kind, f"{name[0]} {name[1]}: {one.proc} is told {one.offset}, after {floor} by {by}")
        elif (
            what == 1
            and one.offset < floor
            and any(since < at <= time for at in assigned.get(one.proc.removeprefix("commit ").rsplit("#", 1)[0], ()))
        ):
            floor, by, since, reset = one.offset, one.proc, time, time
        elif what == 2 and one.offset > floor and one.t0 >= reset:
            floor, by, since = one.offset, "an answer" if isinstance(one, Answer) else one.proc, time


def _sources(name: tuple[str, str], asked: list[Answer], commits: list[Commit], report: Report) -> None:
    """Each answer must be the offset of an attempt that had begun and may have succeeded."""
    begun: dict[int, int] = {}
    failed: set[int] = set()
    for commit in commits:
        if commit.outcome == "fail":
            failed.add(commit.offset)
        else:
            begun[commit.offset] = min(commit.t0, begun.get(commit.offset, FOREVER))
    for answer in asked:
        if answer.offset < 0 or begun.get(answer.offset, FOREVER) < answer.t1:
            continue
        if answer.offset in failed:
            report.bad(
                "aborted-offset", f"{name[0]} {name[1]}: {answer.proc} is told {answer.offset} of a failed commit"
            )
        else:
            report.bad(
                "phantom-offset", f"{name[0]} {name[1]}: {answer.proc} is told {answer.offset}, which was never sent"
            )


def cycles(logs: Logs, report: Report) -> None:
    """G1c: transactions that read each other's work in a circle, real time counted as an edge, too."""
    ops = [
        op for op in logs.history.ops if op.kind == "txn" and (op.polls or logs.committed(op)) and op.outcome != "fail"
    ]
    number = {id(op): index for index, op in enumerate(ops)}
    edges: list[set[int]] = [set() for _ in ops]
    for index, op in enumerate(ops):
        for poll in op.polls:
            if poll.isolation != RC or not logs.committed(op):
                continue
            for key, records in poll.records.items():
                for _, value in records:
                    send = logs.writer[key].get(value)
                    if send is not None and send.op is not op and id(send.op) in number:
                        edges[number[id(send.op)]].add(index)
    reads = [set(targets) for targets in edges]
    _real_time(ops, edges)
    for component in _components(edges):
        if len(component) > 1 and any(reads[a] & component for a in component):
            told = ", ".join(str(ops[index]) for index in sorted(component)[:4])
            report.bad("circular-information", f"{len(component)} transactions read each other's work: {told}")


def _real_time(ops: list, edges: list[set[int]]) -> None:  # type: ignore[type-arg]
    """A -> B where A ended before B began; only from the frontier, the rest follows."""
    frontier: set[int] = set()
    ending: list[tuple[int, int]] = []
    begun_after: dict[int, set[int]] = {}
    for index, op in enumerate(ops):  # in the order of t0
        while ending and ending[0][0] < op.t0:
            _, done = heapq.heappop(ending)
            frontier = (frontier - begun_after[done]) | {done}
        for before in frontier:
            edges[before].add(index)
        begun_after[index] = set(frontier)
        if op.t1 < FOREVER:
            heapq.heappush(ending, (op.t1, index))


def _components(edges: list[set[int]]) -> Iterable[set[int]]:
    """Strongly connected components, by Tarjan, without recursion."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in range(len(edges)):
        if root in order:
            continue
        work = [(root, iter(sorted(edges[root])))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in order:
                    order[target] = low[target] = len(order)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(edges[target]))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    component = set()
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.add(member)
                        if member == node:
                            break
                    yield component


CHECKS = (polls, group_starts, sends, appends, log_ends, committed_offsets, cycles)
