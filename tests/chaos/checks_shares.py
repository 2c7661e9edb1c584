"""A share group that keeps the order by key and has dead letters: who was given which record, what was said of it, and
which letters stand at the end.

A record was acquired at some time between the request for it and its answer. Whose word was answered without an error
had it until then, if nobody else may have finished it: what is said of a finished record is answered so, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from tests.chaos.history import ACCEPT, FOREVER, JOBS, RC, REJECT, Given
from tests.chaos.logs import Logs
from tests.chaos.report import Report

ENDS = (ACCEPT, REJECT)
REJECTED = "rejected"
"""The reason of a dead letter that somebody asked for."""
Place = tuple[str, int]


def given_again(logs: Logs, report: Report) -> None:
    """What was finished, and the answer seen, is not given out by a later request."""
    finished: dict[Place, Given] = {}
    for given in logs.history.givens:
        before = finished.get(_place(given))
        if given.end in ENDS and given.said < (before.said if before is not None else FOREVER):
            finished[_place(given)] = given
    for given in logs.history.givens:
        before = finished.get(_place(given))
        if before is not None and given.t0 > before.said:
            text = f"{_named(given)} gets {given.value}, of which {before.proc} was answered {before.end} before"
            report.bad("share-given-again", text)


def two_at_once(logs: Logs, report: Report) -> None:
    """While somebody certainly has a record, nobody gets it, or another one of its key."""
    unasked = {(one.key, one.offset) for one in logs.history.letters or () if one.reason != REJECTED}
    ends: dict[Place, list[Given]] = defaultdict(list)
    for given in logs.history.givens:
        if given.end in ENDS:
            ends[_place(given)].append(given)
    for givens in _by_key(logs).values():
        for held in givens:
            others = (one for one in ends[_place(held)] if one is not held and one.asked < held.said)
            if held.said == FOREVER or _place(held) in unasked or any(others):
                continue
            for given in givens:
                if held.t1 < given.t0 and given.t1 < held.asked:
                    kind = "share-two-at-once" if given.offset == held.offset else "share-order"
                    report.bad(kind, f"{_named(given)} gets {given.value} while {_named(held)} has {held.value}")


def overtaken(logs: Logs, report: Report) -> None:
    """No record is given out before those of its key that are before it are finished: none of them comes after it."""
    for givens in _by_key(logs).values():
        first: Given | None = None
        """Of those that ended before: the one of the highest offset."""
        ended = iter(sorted(givens, key=lambda given: given.t1))
        waiting = next(ended)
        for given in sorted(givens, key=lambda given: given.t0):
            while waiting.t1 < given.t0:
                first = waiting if first is None or waiting.offset > first.offset else first
                waiting = next(ended)
            if first is not None and given.offset < first.offset:
                report.bad("share-order", f"{_named(given)} gets {given.value} after {_named(first)} got {first.value}")


def dead_letters(logs: Logs, report: Report) -> None:
    """Each record whose rejection was answered has one, no record has two, and nobody has one unasked."""
    if logs.history.letters is None:
        return
    letters = Counter((letter.key, letter.offset) for letter in logs.history.letters)
    asked: dict[Place, set[str]] = defaultdict(set)
    for given in logs.history.givens:
        asked[_place(given)].add(given.end)
        if given.end == REJECT and given.said < FOREVER:
            asked[_place(given)].add(REJECTED)
    for place, count in letters.items():
        if count > 1:
            report.bad("dead-letter-twice", f"{place[0]} offset {place[1]} has {count} dead letters")
    for place, ends in sorted(asked.items()):
        if REJECTED in ends and ACCEPT not in ends and place not in letters:
            report.bad("dead-letter-missing", f"{place[0]} offset {place[1]} was rejected and has no dead letter")
    for letter in logs.history.letters:
        if letter.reason == REJECTED and REJECT not in asked[letter.key, letter.offset]:
            report.bad("dead-letter-unasked", f"{letter.key} offset {letter.offset} was never rejected")


def skipped(logs: Logs, report: Report) -> None:
    """When members got all that there was, each record is finished because somebody asked for it, or has a letter."""
    if logs.history.letters is None:
        return
    ended = {(letter.key, letter.offset) for letter in logs.history.letters}
    ended |= {_place(given) for given in logs.history.givens if given.end in ENDS}
    for key, values in logs.final[RC].items():
        if key.rpartition("/")[0] == JOBS:
            lacking = sorted(
                {offset for offsets in values.values() for offset in offsets if (key, offset) not in ended}
            )
            if lacking:
                told = logs.values_at(key, lacking)
                report.bad("share-skipped", f"{key}: nobody finished {told}, and they have no dead letters", key)


def _place(given: Given) -> Place:
    return given.key, given.offset


def _named(given: Given) -> str:
    return f"{given.proc} at {given.t1 / 1e9:.3f} s ({given.key} offset {given.offset})"


def _by_key(logs: Logs) -> dict[tuple[str, str], list[Given]]:
    found: dict[tuple[str, str], list[Given]] = defaultdict(list)
    for given in logs.history.givens:
        found[given.key, given.value.rpartition("@")[2]].append(given)
    return found


CHECKS = (given_again, two_at_once, overtaken, dead_letters, skipped)
