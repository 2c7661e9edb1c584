"""Is every log one log, with everything in it that was promised: phantoms, conflicts, losses, aborted and torn work."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from tests.chaos.history import RC, RU, TELLERS, Op, Send
from tests.chaos.logs import Logs
from tests.chaos.report import Report


def phantoms(logs: Logs, report: Report) -> None:
    """Values that no client wrote there, that were read before they were written, or that were written twice by us."""
    for send in logs.twice:
        report.vague("value-not-unique", f"{send.key} {send.value} is written twice by the workload: {send.op}")
    seen = set()
    for proc, _, key, records in logs.readings():
        for offset, value in records:
            if value not in logs.writer[key] and (key, offset, value) not in seen:
                seen.add((key, offset, value))
                report.bad("phantom", f"{key} offset {offset}: {proc} read {value!r}, which no client wrote there")
    for poll in logs.history.polls:
        for key, records in poll.records.items():
            for offset, value in records:
                found = logs.writer[key].get(value)
                if found is not None and found.t0 > poll.t1:
                    report.bad("read-from-future", f"{key} offset {offset}: {poll.proc} read {value} before {found.op}")


GAVE_UP = "Local: Message timed out"


class _GivenUp:
    """The records that librdkafka gave up, and what it wrote again for that, each time in another producer epoch.

    It raises its epoch when it is about to send behind a record of the same partition that it gave up, and sends what
    is in flight then again: to the broker these are new records.
    """

    def __init__(self, logs: Logs) -> None:
        self._ops: dict[str, list[Op]] = defaultdict(list)
        self._acknowledged: dict[tuple[str, str], list[int]] = defaultdict(list)
        for op in logs.history.ops:
            if op.kind == "send" and op.error == GAVE_UP:
                self._ops[op.proc].append(op)
            elif op.kind == "send" and op.outcome == "ok":
                self._acknowledged[op.proc, op.sends[0].key].append(op.ended)
        for times in self._acknowledged.values():
            times.sort()

    def explain(self, op: Op, copies: int) -> bool:
        """Whether they are why the record was written so often."""
        return sum(self._is_reason(other, op) for other in self._ops[op.proc] if other is not op) >= copies - 1

    def _is_reason(self, other: Op, op: Op) -> bool:
        """Given up while the other was in flight; or before, and nothing was sent behind it in its partition yet."""
        if other.ended >= op.ended or op.t0 < other.ended:
            return other.ended < op.ended
        key = other.sends[0].key
        times = self._acknowledged[op.proc, key]
        after = bisect_right(times, other.ended)
        return key != op.sends[0].key and (after == len(times) or times[after] > op.t0)


def conflicts(logs: Logs, report: Report) -> None:
    """Two values at one offset; one value at two offsets."""
    given_up = _GivenUp(logs)
    for key, cells in logs.cells.items():
        for offset, values in cells.items():
            if len(values) > 1:
                told = "; ".join(f"{value} by {proc}" for value, proc in values.items())
                report.bad("inconsistent-offsets", f"{key} offset {offset} has {told}")
        for value, offsets in logs.offsets[key].items():
            if len(offsets) > 1:
                send = logs.writer[key].get(value)
                if send is not None and not send.op.idempotent:
                    report.notes["duplicate of a producer without idempotence"] += 1
                elif send is not None and given_up.explain(send.op, len(offsets)):
                    report.notes["duplicate of a producer that gave up another record"] += 1
                else:
                    said = f"{key} {value} lies at offsets {offsets}, written by {send and send.op}"
                    report.bad("duplicate", said, key, tuple(offsets))


def disagreements(logs: Logs, report: Report) -> None:
    """Two clients that read all of a log in the same isolation get the same."""
    for text in logs.disagreeing:
        report.bad("final-reads-differ", text)


def aborted_reads(logs: Logs, report: Report) -> None:
    """G1a: values of work that failed for certain. Precommitted: a transaction that reads its own sends."""
    for op in logs.history.ops:
        if op.outcome == "fail":
            for send in op.sends:
                readers = [kind for kind in (RC, RU) if send.value in logs.read[kind][send.key]]
                if RC in readers or (op.kind == "send" and readers):
                    report.bad("aborted-read", f"{send.key} {send.value} of {op} was read ({', '.join(readers)})")
        own = {(send.key, send.value) for send in op.sends}
        for poll in op.polls:
            if poll.isolation != RC:
                continue
            for key, records in poll.records.items():
                for offset, value in records:
                    if (key, value) in own:
                        report.bad("precommitted-read", f"{key} offset {offset}: {op} read its own {value}")


def losses(logs: Logs, report: Report) -> None:
    """Committed values that no reader was shown, and values that were shown once and are gone."""
    for key in sorted(logs.writer):
        final = logs.final[RC].get(key)
        if final is None:
            _losses_by_bound(logs, key, report)
            continue
        bound = max((max(offsets) for offsets in final.values()), default=-1)
        for value, send in logs.writer[key].items():
            if value in final or not logs.committed(send.op) or logs.may_be_gone(key, value):
                continue
            offsets = logs.offsets[key].get(value, [])
            if value in logs.read[RC][key]:
                report.bad(
                    "vanished-read", f"{key} {value} at {offsets} was read by read_committed and is gone: {send.op}"
                )
            elif offsets and offsets[0] > bound:
                report.bad("unseen", f"{key} {value} at {offsets}, above the last read {bound}: {send.op}")
            else:
                report.bad("lost-write", f"{key} {value} at {offsets or 'an unknown offset'} is gone: {send.op}")
    for key, final in logs.final[RU].items():
        gone = logs.read[RU][key] - final.keys()
        for value in sorted(value for value in gone if not logs.may_be_gone(key, value)):
            found = logs.writer[key].get(value)
            report.bad("vanished-read", f"{key} {value} was read by read_uncommitted and is gone: {found and found.op}")
        for value in sorted(logs.final[RC].get(key, {}).keys() - final.keys()):
            if logs.may_be_gone(key, value):
                continue
            report.bad("vanished-read", f"{key} {value} is shown to read_committed, not to read_uncommitted")
        for value, offsets in logs.final[RC].get(key, {}).items():
            if value in final and final[value] != offsets:
                report.bad("inconsistent-offsets", f"{key} {value}: {offsets} by read_committed, {final[value]} else")


def _losses_by_bound(logs: Logs, key: str, report: Report) -> None:
    """Without a final read: below an offset that was read, everything committed must have been read by some reader."""
    read = logs.read[RC][key] | logs.read[RU][key]
    bound = max((logs.offsets[key][value][0] for value in read), default=-1)
    for value, send in logs.writer[key].items():
        offsets = logs.offsets[key].get(value, [])
        if value in read or not offsets or not logs.committed(send.op) or logs.may_be_gone(key, value):
            continue
        if offsets[-1] <= bound:
            report.bad("lost-write", f"{key} {value} at {offsets}, though {bound} was read: {send.op}")
        else:
            report.bad("unseen", f"{key} {value} at {offsets} was never read: {send.op}")


def torn(logs: Logs, report: Report) -> None:
    """A transaction is visible as a whole or not at all, and so are its offsets."""
    final_offsets = {(a.group, a.key): a.offset for a in logs.history.committed if a.final}
    for op in logs.history.ops:
        if op.kind != "txn" or not op.sends:
            continue
        known = [send for send in op.sends if send.key in logs.final[RC]]
        shown = [send for send in known if send.value in logs.final[RC][send.key]]
        if shown and len(shown) < len(known):
            hidden = next(send for send in known if send not in shown)
            report.bad(
                "torn-transaction",
                f"{op} shows {shown[0].value} of {shown[0].key}, not {hidden.value} of {hidden.key}",
            )
        if shown:
            for (group, key), offset in op.offsets.items():
                if (group, key) in final_offsets and final_offsets[group, key] < offset:
                    report.bad(
                        "torn-transaction",
                        f"{op} is visible, its offset {offset} for {group} {key} is not: {final_offsets[group, key]}",
                    )


def exactly_once(logs: Logs, report: Report) -> None:
    """Read-process-write: one visible output for each input below the group's committed offset (two, a debit and a
    credit, where tellers read), none above."""
    groups: dict[str, set[str]] = defaultdict(set)
    made: dict[tuple[str, int], list[Send]] = defaultdict(list)
    for op in logs.history.ops:
        for group, key in op.offsets:
            groups[key].add(group)
        for send in op.sends:
            if send.source is not None and send.key in logs.final[RC]:
                made[send.source] += [send] * len(logs.final[RC][send.key].get(send.value, []))
    committed = {(a.group, a.key): a.offset for a in logs.history.committed if a.final}
    for key, names in sorted(groups.items()):
        if key not in logs.final[RC] or len(names) != 1:
            continue
        (group,) = names
        if (group, key) not in committed:
            report.vague("no-final-offset", f"no client asked for {group}'s offset of {key} at the end")
            continue
        limit, due = committed[group, key], 2 if group == TELLERS else 1
        for offset in sorted(o for offsets in logs.final[RC][key].values() for o in offsets):
            outputs = made.get((key, offset), [])
            ops = ", ".join(sorted({str(send.op) for send in outputs}))
            if len(outputs) > due:
                report.bad("processed-twice", f"{key} offset {offset} has {len(outputs)} outputs: {ops}")
            elif offset < limit and len(outputs) < due:
                missing = f"with {len(outputs)} of {due} outputs"
                report.bad("processed-never", f"{key} offset {offset} lies below {group}'s {limit}, {missing}")
            elif offset >= limit and outputs:
                report.bad("torn-transaction", f"{key} offset {offset} has an output, {group} stands at {limit}: {ops}")


CHECKS = (phantoms, conflicts, disagreements, aborted_reads, losses, torn, exactly_once)
