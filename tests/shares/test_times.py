"""Times of records that wait: the soonest are known, and of the others when the soonest comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.shares.times import FAR, KnownTimes, in_runs, piece_at


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50))), st.integers(1, 5))
def test_what_is_forgotten_comes_later_than_the_soonest_that_is_not_known(
    times: list[tuple[int, int]], most: int
) -> None:
    known = KnownTimes()
    for offset, due_ms in times:
        known.remember(offset, due_ms, most)
    taken = known.take(60)
    assert len(taken) <= most
    assert taken == sorted(taken)
    forgotten = sorted(offset for offset, _ in times)
    for offset in taken:
        forgotten.remove(offset)
    dues = [due_ms for offset, due_ms in times if offset in forgotten]
    assert bool(forgotten) == (known.unknown_ms is not None)
    assert known.unknown_ms is None or known.unknown_ms <= max(dues)


def test_taken_once_their_time_has_come() -> None:
    known = KnownTimes()
    for offset, due_ms in ((7, 30), (3, 20), (5, 20)):
        known.remember(offset, due_ms, 9)
    assert (known.next_ms, known.take(19)) == (20, [])
    assert (known.take(29), known.next_ms) == ([3, 5], 30)
    assert (known.take(30), known.next_ms, known.unknown_ms) == ([7], None, None)


def test_pieces() -> None:
    pieces = list(in_runs([0, 1, 4, 5, 6, 9]))
    assert pieces == [(0, 1), (4, 6), (9, 9)]
    assert list(in_runs([])) == []
    assert [piece_at(pieces, offset) for offset in (0, 2, 5, 7, 9, 10)] == [
        (True, 1), (False, 3), (True, 6), (False, 8), (True, 9), (False, FAR),
    ]  # fmt: skip
