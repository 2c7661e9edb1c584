"""The window of a share partition: acquisition, acknowledgement, locks, limits, and its start."""

from __future__ import annotations

import pytest

from fleetlog.brokers.shares import window as w
from fleetlog.brokers.shares.acks import AckBatch, AckType, WrongAcknowledgement, checked
from fleetlog.brokers.shares.runs import Doom
from fleetlog.brokers.shares.state import RecordState, ShareState, StateBatch
from fleetlog.brokers.shares.times import RecordTimes
from fleetlog.brokers.shares.window import (
    Acquired,
    Doomed,
    Noted,
    ShareLimits,
    Window,
)
from fleetlog.wire.errors import ErrorCode

LOCK_MS = 30_000
ACK, FREE, GONE = RecordState.ACKNOWLEDGED, RecordState.AVAILABLE, RecordState.ARCHIVED


def opened(start: int = 0, *batches: StateBatch, records: int = 100, deliveries: int = 3) -> Window:
    return Window(ShareState(start=start, batches=batches), ShareLimits(records, deliveries, LOCK_MS))


def take(window: Window, last: int, member: str = "a", most: int = 1_000, now_ms: int = 0) -> list[Acquired]:
    """Acquire from what was read up to an offset, all of it one batch."""
    first = window.next_offset
    return window.acquire(member, (first, last), [(first, last)], most, now_ms)


def say(window: Window, first: int, last: int, *types: int, member: str = "a", now_ms: int = 0) -> bool:
    return window.acknowledge(member, checked([AckBatch(first, last, types)]), now_ms)


def persist(window: Window, now_ms: int = 0) -> w.StateWrite:
    write = window.begin_write()
    assert write is not None
    window.end_write(True, now_ms)
    return write


def test_what_is_accepted_moves_the_start_when_it_is_persisted() -> None:
    window = opened()
    assert take(window, 9) == [Acquired(0, 9, 1)]
    assert say(window, 0, 4, 1)
    write = window.begin_write()
    assert write == w.StateWrite(5, 0, ())
    assert window.start == 0
    assert window.begin_write() is None, "one at a time"
    window.end_write(True, 0)
    assert (window.start, window.end, window.unfinished) == (5, 10, 5)


def test_a_hole_in_front_keeps_the_start() -> None:
    window = opened()
    take(window, 9)
    say(window, 3, 5, 1, 2, 3)
    write = persist(window)
    assert write == w.StateWrite(0, 2, (StateBatch(3, 3, ACK, 1), StateBatch(4, 4, FREE, 1), StateBatch(5, 5, GONE, 1)))
    assert window.next_offset == 4
    assert take(window, 9, "b") == [Acquired(4, 4, 2)]


def test_a_lock_ends_and_the_limit_archives() -> None:
    window = opened(deliveries=2)
    take(window, 0)
    assert window.next_deadline_ms == LOCK_MS
    assert not window.expire(LOCK_MS - 1)
    assert window.expire(LOCK_MS)
    assert window.next_deadline_ms is None
    assert take(window, 0, "b", now_ms=LOCK_MS) == [Acquired(0, 0, 2)]
    with pytest.raises(WrongAcknowledgement) as caught:
        say(window, 0, 0, 1, member="b", now_ms=2 * LOCK_MS)
    assert caught.value.error is ErrorCode.INVALID_RECORD_STATE, "its time is over, though nobody looked yet"
    window.expire(2 * LOCK_MS)
    assert persist(window).start == 1, "nobody could"


def test_renewing_is_not_persisted() -> None:
    window = opened()
    take(window, 3)
    assert not say(window, 0, 1, 4, now_ms=LOCK_MS - 1)
    window.expire(LOCK_MS)
    assert [(run.first, run.last, run.state) for run in window.runs] == [(0, 1, RecordState.ACQUIRED), (2, 3, FREE)]


def test_all_or_nothing() -> None:
    window = opened()
    take(window, 3)
    for pieces in ([AckBatch(0, 1, [1]), AckBatch(4, 4, [1])], [AckBatch(0, 9, [1])]):
        with pytest.raises(WrongAcknowledgement):
            window.acknowledge("a", checked(pieces), 0)
    with pytest.raises(WrongAcknowledgement):
        say(window, 0, 3, 1, member="b")
    assert window.begin_write() is None
    assert say(window, 0, 3, 1)
    with pytest.raises(WrongAcknowledgement):
        say(window, 0, 3, 2)
    persist(window)
    assert not say(window, 0, 3, 1), "below the start everything is finished"


def test_a_write_that_fails_takes_acknowledgements_back() -> None:
    window = opened()
    take(window, 3)
    say(window, 0, 3, 1)
    window.begin_write()
    window.end_write(False, LOCK_MS + 1)
    assert window.next_offset == 0, "its lock ended meanwhile"
    assert persist(window).batches == (StateBatch(0, 3, FREE, 1),)


def test_a_member_that_is_gone() -> None:
    window = opened()
    take(window, 3, "a", most=2)
    say(window, 0, 0, 1)
    assert window.members == {"a"}
    assert window.release("a", 0)
    assert persist(window).start == 1, "what it has said counts"
    assert take(window, 3, "b") == [Acquired(1, 3, 2)]


def test_gaps_of_a_restart_are_given_out() -> None:
    window = opened(5, StateBatch(7, 8, ACK, 1), StateBatch(10, 10, FREE, 1))
    assert [(run.first, run.last, run.state) for run in window.runs] == [
        (5, 6, FREE), (7, 8, ACK), (9, 9, FREE), (10, 10, FREE),
    ]  # fmt: skip
    assert take(window, 12) == [Acquired(5, 6, 1), Acquired(9, 9, 1), Acquired(10, 10, 2), Acquired(11, 12, 1)]
    for batches in ([StateBatch(3, 6, ACK, 1)], [StateBatch(9, 8, ACK, 1)]):
        with pytest.raises(ValueError, match="below"):
            opened(5, *batches)


def test_what_has_no_record_is_archived() -> None:
    window = opened()
    got = window.acquire("a", (0, 9), [(2, 3), (6, 6)], 100, 0)
    assert got == [Acquired(2, 3, 1), Acquired(6, 6, 1)]
    assert window.unfinished == 3
    assert persist(window).start == 2


def test_the_batch_that_passes_the_limit() -> None:
    assert opened().acquire("a", (0, 9), [(0, 4), (5, 9)], 3, 0) == [Acquired(0, 4, 1)]
    assert opened().acquire("a", (0, 9), [(0, 4), (5, 9)], 6, 0) == [Acquired(0, 9, 1)]
    window = opened()
    assert window.acquire("a", (0, 9), [(0, 4), (5, 9)], 6, 0, whole_batches=False) == [Acquired(0, 5, 1)]
    assert window.end == 6


def test_one_slow_record_does_not_stop_the_others() -> None:
    window = opened(records=10)
    take(window, 0, "slow")
    for first in range(1, 2_000, 9):
        assert take(window, first + 8) == [Acquired(first, first + 8, 1)]
        assert window.room == 0
        say(window, first, first + 8, 1)
        persist(window)
    assert window.start == 0
    assert window.unfinished == 1
    assert window.holds_back is None


def test_the_span_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w, "MAX_SPAN", 50)
    window = opened()
    take(window, 0, "slow")
    take(window, 200)
    assert window.end == 50
    say(window, 1, 49, 1)
    persist(window)
    assert not window.may_acquire
    assert window.holds_back is not None
    assert window.holds_back == w.HeldBack(0, "with a member", 1, "slow")


def test_runs_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w, "MAX_RUNS", 20)
    window = opened()
    take(window, 39)
    for offset in range(1, 40, 2):
        say(window, offset, offset, 1)
    persist(window)
    assert (window.room, len(window.runs)) == (0, 40)
    window.release("a", 0)
    assert len(take(window, 99, "b")) == 20, "what is in the window is given out again"
    assert window.end == 40


def test_the_log_starts_above() -> None:
    window = opened()
    take(window, 9)
    assert window.log_starts(5)
    assert window.unfinished == 5
    assert window.log_starts(30)
    assert persist(window).start == 30
    assert (window.start, window.end, window.next_offset) == (30, 30, 30)
    assert not window.log_starts(30)


def test_a_new_start_is_persisted() -> None:
    window = Window(ShareState(start=40), ShareLimits(), fresh=True)
    assert persist(window) == w.StateWrite(40, 0, ())
    assert window.begin_write() is None


@pytest.mark.parametrize(
    "batches",
    [
        [AckBatch(3, 2, [1])], [AckBatch(-1, 2, [1])], [AckBatch(0, 2, [1, 1])], [AckBatch(0, 0, [5])],
        [AckBatch(0, w.MAX_SPAN, [1] * (w.MAX_SPAN + 1))],
        [AckBatch(0, 0, [-1])], [AckBatch(0, 0, [])], [AckBatch(0, 2, [1]), AckBatch(2, 3, [1])],
    ],
)  # fmt: skip
def test_acknowledgements_that_cannot_be(batches: list[AckBatch]) -> None:
    with pytest.raises(WrongAcknowledgement) as caught:
        checked(batches)
    assert caught.value.error is ErrorCode.INVALID_REQUEST


def test_what_is_given_back_waits_longer_each_time() -> None:
    window = Window(ShareState(start=0), ShareLimits(10, 5, LOCK_MS, backoff_ms=1_000, backoff_max_ms=3_000))
    now_ms = 0
    for count, wait_ms in enumerate((1_000, 2_000, 3_000, 3_000), 1):
        assert take(window, 0, now_ms=now_ms) == [Acquired(0, 0, count)]
        say(window, 0, 0, 2, now_ms=now_ms)
        persist(window, now_ms)
        assert not window.expire(now_ms + wait_ms - 1)
        assert window.next_offset == 1
        now_ms += wait_ms + wait_ms // 16
        assert window.next_deadline_ms is not None
        assert window.next_deadline_ms <= now_ms
        assert window.expire(now_ms)
    assert take(window, 0, now_ms=now_ms) == [Acquired(0, 0, 5)]
    window.release("a", now_ms)
    assert (window.waiting, window.unfinished) == (0, 0), "that was the last delivery"


def test_records_that_wait_hold_up_no_others() -> None:
    window = Window(ShareState(start=0), ShareLimits(10, 5, LOCK_MS, backoff_ms=1_000, backoff_max_ms=3_000))
    take(window, 9)
    assert not window.may_acquire, "ten are with a member"
    say(window, 0, 9, 2)
    persist(window)
    assert (window.waiting, window.room) == (10, 10)
    assert take(window, 19, "b") == [Acquired(10, 19, 1)]
    window.expire(1_200)
    assert not window.may_acquire, "no more than ten are out, whatever is free"


def test_a_record_that_was_delivered_often_comes_with_fewer_others() -> None:
    window = Window(ShareState(start=0), ShareLimits(100, 6, LOCK_MS))
    for count in (1, 2, 3):
        assert take(window, 69) == [Acquired(0, 69, count)]
        window.release("a", 0)
    assert take(window, 80) == [Acquired(0, 63, 4)], "from half of the deliveries on so many at most"
    assert take(window, 80) == [Acquired(64, 69, 4)], "and without others"
    assert take(window, 80) == [Acquired(70, 80, 1)]
    window.release("a", 0)
    assert take(window, 80) == [Acquired(0, 31, 5)]
    window.release("a", 0)
    assert [take(window, 3) for _ in range(4)] == [[Acquired(at, at, 6)] for at in range(4)], "at last each alone"


def burying(deliveries: int = 2) -> Window:
    """Offsets 0 to 9 are with member "m"."""
    window = Window(ShareState(start=0), ShareLimits(100, deliveries, 1_000))
    window.bury(True)
    window.acquire("m", (0, 9), [(0, 9)], 10, 0)
    return window


def test_what_is_rejected_ends_with_its_letter() -> None:
    window = burying()
    pieces = [(0, 1, AckType.ACCEPT), (2, 3, AckType.REJECT), (4, 9, AckType.ACCEPT)]
    assert window.acknowledge("m", pieces, 0) == Noted.WRITE | Noted.BURIAL
    write = window.begin_write()
    assert write is not None
    assert (write.start, [batch[:2] for batch in write.batches]) == (2, [(4, 9)]), "the doomed wait"
    window.end_write(True, 0)
    assert window.doomed == [Doomed(2, 3, 1, Doom.REJECTED)]
    assert window.begin_write() is None
    burial = window.begin_burial([(2, 2)])
    assert burial is not None
    assert (burial.start, burial.batches) == (3, ()), "what is below the start needs no state"
    window.end_write(True, 0)
    assert (window.start, window.doomed) == (3, [Doomed(3, 3, 1, Doom.REJECTED)])


def test_a_burial_passes_nothing_that_is_not_persisted() -> None:
    window = burying()
    assert window.acknowledge("m", [(0, 0, AckType.REJECT), (1, 1, AckType.ACCEPT)], 0) == Noted.WRITE | Noted.BURIAL
    burial = window.begin_burial([(0, 0)])
    assert burial is not None
    assert burial.start == 1
    window.end_write(True, 0)
    assert window.unsaved, "its acceptance has yet to be persisted"


def test_a_rejection_that_is_not_buried_was_never_said() -> None:
    window = burying()
    window.acknowledge("m", [(0, 9, AckType.REJECT)], 0)
    assert window.begin_burial([(0, 9)]) is not None
    window.end_write(False, 0)
    assert window.doomed == []
    assert window.acknowledge("m", [(0, 9, AckType.ACCEPT)], 0) == Noted.WRITE, "it has its lock"


def test_what_was_delivered_too_often_stays_doomed_also_for_the_next_leader() -> None:
    window = burying(1)
    assert window.expire(1_000)
    assert window.doomed == [Doomed(0, 9, 1, Doom.TOO_MANY_DELIVERIES)]
    assert window.begin_burial([(0, 9)]) is not None
    window.end_write(False, 1_000)
    assert window.doomed == [Doomed(0, 9, 1, Doom.TOO_MANY_DELIVERIES)]
    write = window.begin_write()
    assert write is not None
    assert write.batches == (StateBatch(0, 9, RecordState.AVAILABLE, 1),), "Kafka's states alone are persisted"
    window.end_write(True, 1_000)
    successor = Window(ShareState(start=0, batches=write.batches), ShareLimits(100, 1, 1_000))
    successor.bury(True)
    assert successor.doomed == [Doomed(0, 9, 1, Doom.TOO_MANY_DELIVERIES)]
    assert not successor.acquire("n", (0, 9), [(0, 9)], 10, 0)
    successor.bury(False)
    assert successor.begin_write() is not None, "without letters it is archived"
    successor.end_write(True, 0)
    assert successor.start == 10


def test_what_retention_takes_has_its_letter_all_the_same() -> None:
    window = burying(1)
    window.expire(1_000)
    window.log_starts(5)
    assert window.doomed == [Doomed(0, 9, 1, Doom.TOO_MANY_DELIVERIES)]


# --- records that wait for their time ---------------------------------------------------------------------------


def delaying(kept: int = 100) -> Window:
    return Window(ShareState(start=0), ShareLimits(100, 3, LOCK_MS, delay_max_ms=1_000, times_kept=kept))


def take_by(window: Window, last: int, wall_ms: int, due: dict[int, int]) -> list[Acquired]:
    first = window.next_offset
    first = window.read_again if first > last and window.read_again is not None else first
    times = RecordTimes(wall_ms, [(offset, ms) for offset, ms in due.items() if first <= offset <= last])
    return window.acquire("a", (first, last), [(first, last)] if first <= last else [], 1_000, 0, times)


def test_records_wait_for_their_time_and_hold_nobody() -> None:
    window, due = delaying(), {1: 500, 2: 500, 3: 300, 5: 9_000}
    assert take_by(window, 5, 0, due) == [Acquired(0, 0, 1), Acquired(4, 5, 1)], "what is too far ahead comes at once"
    assert (window.delayed, window.locked, window.next_time_ms, window.next_offset) == (3, 3, 300, 6)
    assert not window.due(299)
    assert window.due(300)
    assert take_by(window, 5, 300, due) == [Acquired(3, 3, 1)]
    assert window.due(500)
    assert take_by(window, 5, 499, due) == [], "the clock went back"
    assert window.due(500)
    assert take_by(window, 5, 500, due) == [Acquired(1, 2, 1)]
    assert say(window, 1, 1, 2)
    persist(window)
    assert take_by(window, 5, 0, due) == [Acquired(1, 1, 2)], "what was given out once waits no more for it"


def test_a_clock_that_is_set_back_makes_nobody_wait_longer_than_permitted() -> None:
    window, due = delaying(), {0: 3_600_500, 1: 3_600_900}
    assert take_by(window, 1, 3_600_000, due) == []
    assert window.due(300), "an hour ago it is: the times are read again"
    assert take_by(window, 1, 300, due) == [Acquired(0, 1, 1)]


def test_a_million_records_that_wait_are_one_run_and_are_all_given_out() -> None:
    window, count = delaying(kept=200), 4_000
    due = {offset: 100 + offset // 200 for offset in range(count)}
    assert take_by(window, count - 1, 0, due) == []
    assert take_by(window, count, 0, due) == [Acquired(count, count, 1)], "those behind them go on"
    assert len(window.runs) == 2
    given = 0
    for wall_ms in range(100, 125):
        window.due(wall_ms)
        for _ in range(60):
            got = take_by(window, count - 1, wall_ms, due)
            given += sum(last - first + 1 for first, last, _ in got)
            for first, last, _ in got:
                assert max(due[first], due[last]) <= wall_ms
                assert say(window, first, last, 1)
                persist(window)
    assert given == count


def test_a_crowded_window_gives_out_at_the_edges_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w, "MAX_RUNS", 1)
    window, due = delaying(), {0: 300, 1: 100, 2: 300, 3: 100}
    assert take_by(window, 3, 0, due) == []
    window.limits = window.limits._replace(records=99)
    assert window.due(100)
    assert [(run.first, run.last) for run in window.runs if run.free] == [(1, 1), (3, 3)], "there was one run"
    assert take_by(window, 3, 100, due) == [Acquired(1, 1, 1), Acquired(3, 3, 1)]
    due = {0: 300, 2: 300}
    assert window.due(300)
    assert take_by(window, 3, 300, due) == [Acquired(0, 0, 1), Acquired(2, 2, 1)]


def test_where_records_may_not_wait_any_more_they_do_not() -> None:
    window = delaying()
    assert take_by(window, 3, 0, dict.fromkeys(range(4), 500)) == []
    window.limits = window.limits._replace(delay_max_ms=0)
    assert take_by(window, 3, 0, {}) == [Acquired(0, 3, 1)]


def test_a_slow_record_stops_none_of_those_that_wait_and_a_delayed_one_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(w, "MAX_SPAN", 10)
    window = delaying()
    assert take_by(window, 0, 0, {0: 900}) == []
    for offset in range(1, 40):
        assert take_by(window, offset, 0, {0: 900}) == [Acquired(offset, offset, 1)]
        assert say(window, offset, offset, 1)
        persist(window)
    assert (window.start, window.end) == (0, 40), "it is no part of the span"


def test_the_key_with_most_records_holds_the_window_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w, "MAX_KEYED", 6)
    window = opened()
    window.ordered = True
    keys = [(offset, b"b" if offset in (0, 9) else b"a" if offset > 2 else None) for offset in range(12)]
    assert window.acquire_in_order("m", (0, 11), keys, 2, 0) == [Acquired(0, 1, 1)]
    assert window.holds_back == w.HeldBack(3, "free", 0, None, b"a")
