"""Histories of a share partition; and each rule left out, which some history must show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fleetlog.brokers.shares import coordinator
from fleetlog.brokers.shares.acks import AckType
from fleetlog.brokers.shares.coordinator import ShareShard, StateAnswer
from fleetlog.brokers.shares.keys import KeyOrder
from fleetlog.brokers.shares.runs import WindowRun, WindowRuns
from fleetlog.brokers.shares.state import NO_OFFSET, RecordState, ShareState, ShareUpdate, StateBatch
from fleetlog.brokers.shares.times import KnownTimes
from fleetlog.brokers.shares.window import ShareLimits, Window
from fleetlog.txn.commands import Result
from tests.shares.share_world import Violation, run

SEEDS = 120
PLANTED_SEEDS = 300
"""Within so many histories a planted fault is found; most are found in the first."""


def many(seeds: int) -> None:
    for seed in range(seeds):
        run(seed)


def test_histories() -> None:
    many(SEEDS)


def answered_at_once(self: Window, member: str, pieces: Sequence[tuple[int, int, AckType]], now_ms: int) -> bool:
    acknowledge(self, member, pieces, now_ms)
    return False


def whoever_asks(self: Window, member: str, pieces: Sequence[tuple[int, int, AckType]], now_ms: int) -> bool:
    for first, last, kind in pieces:
        for each in list(self.runs):
            if each.first <= first and last <= each.last and each.member is not None:
                return acknowledge(self, each.member, [(first, last, kind)], now_ms)
    return acknowledge(self, member, pieces, now_ms)


def any_start(state: ShareState, update: ShareUpdate, now_ms: int) -> ShareState:
    start = state.start if update.start == NO_OFFSET else update.start
    return updated(state, update, now_ms)._replace(start=start)


def unfenced(self: ShareShard, *asked: object) -> Result:
    """A leader that reads is not noted, so that the one before may write."""
    result = read(self, *asked)  # type: ignore[arg-type]
    known = next(iter(self.states.values()), None)
    return result if known is None else Result(response=StateAnswer(result.response.error, known))


def skips_gaps(self: Window, state: ShareState, limits: ShareLimits, **options: Any) -> None:
    batches, end = list[StateBatch](), state.start
    for batch in state.batches:
        if batch.first > end:
            batches.append(StateBatch(end, batch.first - 1, RecordState.ARCHIVED, 0))
        batches.append(batch)
        end = batch.last + 1
    opened(self, state._replace(batches=tuple(batches)), limits, **options)


def knows_of_no_locks(self: Window, state: ShareState, limits: ShareLimits, **options: Any) -> None:
    opened(self, state, limits, **{**options, "predecessors_until_ms": 0})


def at_once(self: Window, run: WindowRun, state: RecordState, now_ms: int) -> None:
    end_lock(self, run, state, now_ms)
    if run.waits:
        run.until_ms = 0


def without_its_key(self: KeyOrder, offset: int, key: bytes | None) -> None:
    learn(self, offset, None)


def still_in_the_write(self: Window, giving: object, each: WindowRun) -> None:
    """What is acquired anew is taken for what is being persisted."""
    writing = each.writing
    give(self, giving, each)
    each.writing = writing


def whole_run(self: WindowRuns, first: int, last: int) -> WindowRun:
    return self.at(first)


def one_too_many(self: Window, first: int, last: int) -> None:
    archive_gap(self, first, last + 1 if first <= last else last)


def always_persisted(self: Window, persisted: bool, now_ms: int) -> None:
    end_write(self, True, now_ms)


def never_enough(self: Window, each: WindowRun) -> RecordState:
    return RecordState.AVAILABLE


def buried_again(self: Window, persisted: bool, now_ms: int) -> None:
    """What was buried stays doomed."""
    doomed = [each for each in self.runs if each.writing and each.doom is not None and each.becomes is None]
    whys = [each.doom for each in doomed]
    end_write(self, persisted, now_ms)
    for each, why in zip(doomed, whys, strict=True):
        if each in self.runs:
            each.state, each.doom = RecordState.ARCHIVING, why


def without_a_letter(self: Window, kind: AckType, each: WindowRun) -> None:
    return None


def passes_the_doomed(self: Window, buried: Sequence[WindowRun] | None = None) -> int:
    at = finished_until(self, buried)
    for each in self.runs:
        if each.first == at and each.doom is not None:
            at = each.last + 1
    return at


def forgets_the_doomed(self: Window, letters: bool) -> None:
    """A new leader gives out what the one before could not bury."""
    self.buries = letters


def never_waits(self: Window, *asked: object) -> None:
    """Records are given out before their time."""


def too_soon(self: KnownTimes, offset: int, due_ms: int, most: int) -> None:
    remember(self, offset, due_ms - 300, most)


def forgets_the_later(self: KnownTimes, offset: int, due_ms: int, most: int) -> None:
    remember(self, offset, due_ms, most)
    self.unknown_ms = None


remember = KnownTimes.remember
acknowledge, updated, read, opened = Window.acknowledge, coordinator.updated, ShareShard.read, Window.__init__
end_lock, learn = vars(Window)["_end_lock"], KeyOrder.learn
finished_until = vars(Window)["_finished_until"]
give, archive_gap, end_write = vars(Window)["_give"], vars(Window)["_archive_gap"], Window.end_write
PLANTED: dict[str, tuple[object, str, Callable[..., object]]] = {
    "an acknowledgement is answered before it is persisted": (Window, "acknowledge", answered_at_once),
    "whoever asks has the record": (Window, "acknowledge", whoever_asks),
    "the start goes back": (coordinator, "updated", any_start),
    "an earlier leader is not fenced": (ShareShard, "read", unfenced),
    "gaps are finished after a restart": (Window, "__init__", skips_gaps),
    "a write persists what came after it began": (Window, "_give", still_in_the_write),
    "neighbours are acknowledged, too": (WindowRuns, "cut", whole_run),
    "a gap is archived with the record after it": (Window, "_archive_gap", one_too_many),
    "a write that failed counts": (Window, "end_write", always_persisted),
    "locks do not end": (Window, "expire", lambda self, now_ms: False),
    "a record is buried twice": (Window, "end_write", buried_again),
    "a rejected record has no letter": (Window, "_doom", without_a_letter),
    "the start passes what has no letter yet": (Window, "_finished_until", passes_the_doomed),
    "what could not be buried is given out by the next leader": (Window, "bury", forgets_the_doomed),
    "a record is delivered for ever": (Window, "_freed", never_enough),
    "a record overtakes another of its key": (KeyOrder, "learn", without_its_key),
    "a new leader knows of no locks": (Window, "__init__", knows_of_no_locks),
    "what is given back is tried at once": (Window, "_end_lock", at_once),
    "records do not wait for their time": (Window, "_delay", never_waits),
    "a time comes too soon": (KnownTimes, "remember", too_soon),
    "times that have no room are forgotten": (KnownTimes, "remember", forgets_the_later),
    "what is behind a dead letter of its key is given out": (Window, "_behind", lambda self, buried: []),
    "a key is held for ever": (KeyOrder, "finished", lambda self, first, last: None),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[fault])
    with pytest.raises(Violation):
        many(PLANTED_SEEDS)
