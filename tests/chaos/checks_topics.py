"""Topics with rules of their own: deleted records, a topic that is made again and again, and the bank."""

from __future__ import annotations

from collections import Counter, defaultdict

from tests.chaos.history import FOREVER, RC, TELLERS, Again
from tests.chaos.logs import Logs
from tests.chaos.report import Report


def deleted_records(logs: Logs, report: Report) -> None:
    """What DeleteRecords was acknowledged to have removed is in no full read that began later."""
    for trim in logs.history.trims:
        for final in logs.history.finals:
            back = [offset for offset, _ in final.records.get(trim.key, ()) if offset < trim.offset]
            if back and trim.t1 < final.t0 and trim.t1 < FOREVER:
                report.bad("deleted-record-back", f"{trim.key} offset {back[0]} is read, deleted below {trim.offset}")


def topics_made_again(logs: Logs, report: Report) -> None:
    """A topic that was made again holds what was acknowledged to it, once, and nothing of another one's log.

    Produce of these clients names a topic by its name (before version 13): a request that a paused broker had in its
    socket while the topic went and came is appended to the new one, though it was acknowledged after a retry. Such
    records are few, and not where they were; a log that came back begins as the deleted one did.
    """
    owner: dict[str, Again] = {}
    for again in logs.history.agains:
        owner |= dict.fromkeys(again.acked, again)
    for again in logs.history.agains:
        if again.read is None:
            continue
        where = f"topic {again.topic_id} of {again.proc}"
        counts = Counter(again.read)
        for value in again.acked:
            if value not in counts:
                report.bad("lost-write", f"{where}: {value} was acknowledged and is gone")
        for value, count in counts.items():
            if count > 1 and count - 1 <= _given_up_before(value, again):
                report.notes["duplicate of a producer that gave up another record"] += 1
            elif count > 1:
                report.bad("duplicate", f"{where}: {value} is there {count} times")
            if value.startswith("damaged"):
                report.bad("phantom", f"{where}: {value}")
            before = owner.get(value, again)
            if before.topic_id == again.topic_id:
                continue
            if again.read[:2] == (before.read or before.acked)[:2]:
                report.bad("record-of-a-deleted-topic", f"{where}: {value} belongs to topic {before.topic_id}")
            else:
                report.notes["late request of a deleted topic"] += 1


def _given_up_before(value: str, again: Again) -> int:
    """How many records the round's producer sent before that one and gave up: librdkafka sends what is in flight then
    once more, in another producer epoch (``checks_log``).
    """
    before = again.sent[: again.sent.index(value)] if value in again.sent else ()
    return len(set(before) - set(again.acked))


def bank(logs: Logs, report: Report) -> None:
    """The two sides of each transfer add up to nothing, and so do all accounts."""
    sides: dict[tuple[str, int], list[int]] = defaultdict(list)
    keys = set()
    for op in logs.history.ops:
        if any(group == TELLERS for group, _ in op.offsets):
            for send in op.sends:
                keys.add(send.key)
                if send.source is not None and send.value in logs.final[RC].get(send.key, ()):
                    sides[send.source].append(amount(send.value))
    for (key, offset), amounts in sorted(sides.items()):
        if sum(amounts):
            report.bad("bank-unbalanced", f"the order at {key} offset {offset} has the sides {sorted(amounts)}")
    total = sum(amount(value) * len(at) for key in keys for value, at in logs.final[RC].get(key, {}).items())
    if total:
        report.bad("bank-unbalanced", f"the accounts add up to {total}")


def amount(value: str) -> int:
    """The amount in the value of one side of a transfer, its last part: ``PROC.N.KEY.OFFSET.AMOUNT``."""
    return int(value.rsplit(".", 1)[1])


CHECKS = (deleted_records, topics_made_again, bank)
