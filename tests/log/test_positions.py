"""The set of accepted positions: whatever writers send, repeat and leave out, each record is accepted once."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleetlog._native.compact import Position, page_positions
from fleetlog.brokers.log.positions import (
    FLOOR_COST,
    LEADERS_SHARE,
    PAGE_COST,
    PAGE_POSITIONS,
    SOURCE_COST,
    BelowFloor,
    NoRoom,
    PositionSets,
    Sifted,
    decode_dedup_file,
    encode_dedup_file,
    encode_positions,
    load_positions,
    split_positions,
)

WINDOW_MS = 60_000
A, B = b"a", b"b"
LAST = 2**63 - 4097
"""The largest position that a record may have."""


def sets_of(max_bytes: int = 16 * 1024 * 1024, window_ms: int = WINDOW_MS) -> PositionSets:
    return PositionSets(window_ms=window_ms, max_bytes=max_bytes)


class Leader:
    """Accepts batches into sets and keeps what it accepted, as a log does."""

    def __init__(self, sets: PositionSets | None = None) -> None:
        self.sets = sets or sets_of()
        self.log: list[Position] = []
        self.batches = 0

    def write(self, batch: list[Position], now_ms: int = 0) -> Sifted | BelowFloor | NoRoom:
        outcome = self.sets.sift(batch, now_ms)
        if isinstance(outcome, Sifted):
            self.sets.forget(outcome.going, {source for source, _, _ in outcome.fresh})
            self.sets.accept(page_positions(outcome.fresh), self.batches, now_ms, exact=True)
            self.log += outcome.fresh
            self.batches += 1
        return outcome

    def copy(self) -> PositionSets:
        """A follower's sets: made of the log alone, at some other time."""
        sets = sets_of(self.sets.max_bytes)
        for offset, one in enumerate(self.log):
            sets.accept(page_positions([one]), offset, 1_000_000, exact=False)
        return sets


positions = st.tuples(
    st.sampled_from([A, B, b"longer:name"]),
    st.integers(0, 3 * PAGE_POSITIONS) | st.integers(0, 40) | st.sampled_from([LAST, 2**40]),
    st.sampled_from([0, 0, 0, 1, 2**31 - 1]),
)
writings = st.lists(st.lists(positions, max_size=8), max_size=40)


@settings(max_examples=40)
@given(writings)
def test_each_position_is_accepted_once(batches: list[list[Position]]) -> None:
    leader = Leader()
    for batch in batches:
        outcome = leader.write(batch)
        assert isinstance(outcome, Sifted)
        assert len(outcome.duplicates) + len(outcome.fresh) == len(batch)
        assert [one for index, one in enumerate(batch) if index not in outcome.duplicates] == outcome.fresh
    assert sorted(leader.log) == sorted({one for batch in batches for one in batch})


@given(writings, st.integers(0, 3), st.sampled_from([2, 3, 9]))
def test_what_is_taken_at_once_is_what_a_look_at_each_record_takes(
    batches: list[list[Position]], at_once: int, room: int
) -> None:
    """A run of batches, with little memory: none is taken at once that is not all new, and all that are."""
    sets, now_ms = small(room, sources=3), 0
    batches = [list(dict.fromkeys(batch)) for batch in batches]
    while batches:
        run, batches = batches[: at_once + 1], batches[at_once + 1 :]
        now_ms += WINDOW_MS // 3
        before = encode_positions(sets)
        taken = sets.takes(map(page_positions, run), now_ms)
        assert encode_positions(sets) == before
        for number, batch in enumerate(run):
            before = encode_positions(sets)
            outcome = sets.sift(batch, now_ms)
            assert encode_positions(sets) == before
            forgot = isinstance(outcome, Sifted) and bool(outcome.going)
            if number < taken:
                assert (outcome, forgot) == (Sifted([], batch), False)
            elif number == 0:
                assert outcome != Sifted([], batch) or forgot
            if isinstance(outcome, Sifted):
                sets.forget(outcome.going, {source for source, _, _ in outcome.fresh})
                sets.accept(page_positions(outcome.fresh), 0, now_ms, exact=True)


@st.composite
def interleavings(draw: st.DrawFn) -> tuple[list[list[Position]], set[Position]]:
    """What several writers of one source send: each its own part, skipping batches and repeating from before them."""
    sent: list[list[list[Position]]] = []
    for _ in range(draw(st.integers(1, 3))):
        row = [(A, at, 0) for at in range(draw(st.integers(0, 50)), draw(st.integers(50, 120)))]
        size = draw(st.integers(1, 7))
        batches = [row[at : at + size] for at in range(0, len(row), size)]
        for _ in range(draw(st.integers(0, 4))):  # a batch that is given up, then perhaps all from somewhere again
            if batches and draw(st.booleans()):
                del batches[draw(st.integers(0, len(batches) - 1))]
            back = draw(st.integers(0, len(row)))
            batches += [row[at : at + size] for at in range(back, len(row), size)]
        sent.append(batches)
    order = draw(st.permutations([number for number, batches in enumerate(sent) for _ in batches]))
    queues = [iter(batches) for batches in sent]
    mixed = [next(queues[number]) for number in order]
    return mixed, {one for batch in mixed for one in batch}


@settings(max_examples=30)
@given(interleavings(), st.data())
def test_any_writers_in_any_order_over_changing_leaders(
    sent: tuple[list[list[Position]], set[Position]], data: st.DataObject
) -> None:
    batches, union = sent
    leader = Leader()
    for batch in batches:
        change = data.draw(st.sampled_from(["none", "none", "follower", "restart"]))
        if change == "follower":
            leader.sets = leader.copy()
        elif change == "restart":
            body, rest = split_positions(memoryview(encode_positions(leader.sets)))
            assert body is not None
            assert not len(rest)
            leader.sets = sets_of()
            load_positions(leader.sets, body)
        assert isinstance(leader.write(batch), Sifted)
    assert len(leader.log) == len(set(leader.log))
    assert set(leader.log) == union


@settings(max_examples=40)
@given(writings)
def test_a_snapshot_says_everything(batches: list[list[Position]]) -> None:
    leader = Leader()
    for number, batch in enumerate(batches):
        leader.write(batch, now_ms=number)
    data = encode_positions(leader.sets)
    loaded = sets_of()
    body, rest = split_positions(memoryview(data + b"tail"))
    assert body is not None
    assert bytes(rest) == b"tail"
    load_positions(loaded, body)
    assert encode_positions(loaded) == data
    assert loaded.cost == leader.sets.cost
    for one in {one for batch in batches for one in batch}:
        assert loaded.sift([one], 0) == Sifted([0], [])


@pytest.mark.parametrize("cut", [1, 5, 30, 36, 60])
def test_half_a_snapshot_is_refused(cut: int) -> None:
    leader = Leader()
    leader.write([(A, at, at % 2) for at in range(30)])
    body, _ = split_positions(memoryview(encode_positions(leader.sets)))
    assert body is not None
    sets = sets_of()
    with pytest.raises(ValueError, match="accepted positions"):
        load_positions(sets, body[:-cut])
    assert not sets.sources
    with pytest.raises(ValueError, match="accepted positions"):
        load_positions(sets, memoryview(bytes(body) + b"\0"))
    with pytest.raises(ValueError, match="need"):
        split_positions(memoryview(encode_positions(leader.sets))[:-1])


def test_the_file_of_a_log_keeps_its_settings() -> None:
    again = decode_dedup_file(encode_dedup_file(PositionSets(window_ms=5, max_bytes=7)))
    assert (again.window_ms, again.max_bytes) == (5, 7)
    for damaged in (b"", b"1\n5\n7\n", b"0\n5\n"):
        assert decode_dedup_file(damaged).window_ms > 10**15


# ---- the floor


def test_a_gap_is_filled_later() -> None:
    leader = Leader()
    leader.write([(A, 10, 0), (A, 30_000, 0)])
    assert leader.write([(A, 9, 0), (A, 10, 0), (A, 11, 0)]) == Sifted([1], [(A, 9, 0), (A, 11, 0)])


def test_the_floor_passes_only_what_was_quiet_for_the_window() -> None:
    leader = Leader()
    leader.write([(A, 5, 0)], now_ms=0)
    leader.write([(A, PAGE_POSITIONS, 0)], now_ms=WINDOW_MS)
    assert leader.write([(A, 5, 0), (A, 4, 0)], now_ms=WINDOW_MS) == Sifted([0], [(A, 4, 0)])
    leader.write([(A, PAGE_POSITIONS + 1, 0)], now_ms=2 * WINDOW_MS + 1)
    outcome = leader.write([(A, PAGE_POSITIONS + 2, 0), (A, 6, 0)], now_ms=2 * WINDOW_MS + 1)
    assert outcome == BelowFloor(1, (A, 6, 0), PAGE_POSITIONS)
    assert leader.sets.refused == 1
    assert leader.write([(A, PAGE_POSITIONS + 2, 0), (A, PAGE_POSITIONS + 1, 0)]) == Sifted(
        [1], [(A, PAGE_POSITIONS + 2, 0)]
    )


def test_a_clock_that_is_ahead_by_more_than_the_window_ends_in_refusals_not_in_duplicates() -> None:
    leader = Leader()
    leader.write([(A, 5, 0)], now_ms=0)
    leader.write([(A, PAGE_POSITIONS, 0)], now_ms=2 * WINDOW_MS)
    assert leader.write([(A, 5, 0)], now_ms=1) == BelowFloor(0, (A, 5, 0), PAGE_POSITIONS)
    assert leader.write([(A, PAGE_POSITIONS, 0), (A, PAGE_POSITIONS + 1, 0)], now_ms=1) == Sifted(
        [0], [(A, PAGE_POSITIONS + 1, 0)]
    )


def test_a_page_above_a_live_one_stays() -> None:
    leader = Leader()
    leader.write([(A, PAGE_POSITIONS, 0)], now_ms=0)
    leader.write([(A, 1, 0)], now_ms=WINDOW_MS)
    leader.write([(A, 9 * PAGE_POSITIONS, 0)], now_ms=WINDOW_MS + 1)
    assert leader.write([(A, PAGE_POSITIONS, 0)], now_ms=WINDOW_MS + 1) == Sifted([0], [])


def test_an_idle_source_is_known_after_any_time() -> None:
    leader = Leader()
    leader.write([(A, 7, 0)], now_ms=0)
    leader.write([(B, 7, 0)], now_ms=100 * WINDOW_MS)
    assert leader.write([(A, 7, 0), (A, 8, 0)], now_ms=100 * WINDOW_MS) == Sifted([0], [(A, 8, 0)])


# ---- memory


def small(pages: int, sources: int = 1) -> PositionSets:
    """Sets with room at the leader for so many pages of so many sources with names of one byte."""
    return sets_of(int((pages * PAGE_COST + sources * (SOURCE_COST + 1)) / LEADERS_SHARE) + 1)


def pages(source: bytes, *numbers: int) -> list[Position]:
    return [(source, number * PAGE_POSITIONS, 0) for number in numbers]


def test_what_does_not_fit_is_refused() -> None:
    leader = Leader(small(3))
    assert isinstance(leader.write(pages(A, 0, 1, 2)), Sifted)
    refused = leader.write(pages(A, 3))
    assert isinstance(refused, NoRoom)
    assert refused.needed > refused.limit
    assert leader.write(pages(A, 0, 1, 2)) == Sifted([0, 1, 2], [])
    assert isinstance(leader.write([(A, 1, 0)]), Sifted)
    assert isinstance(leader.write([(B, 1, 0)]), NoRoom)
    assert leader.sets.refused == 2


def test_ordinals_count_too() -> None:
    leader = Leader(small(1))
    outcome = leader.write([(A, 0, ordinal) for ordinal in range(1, 50)])
    assert isinstance(outcome, NoRoom)


def test_idle_pages_make_room_and_leave_their_floor() -> None:
    leader = Leader(small(3, sources=2))
    leader.write(pages(A, 0), now_ms=0)
    leader.write(pages(A, 1), now_ms=WINDOW_MS)
    leader.write(pages(B, 0), now_ms=WINDOW_MS)
    outcome = leader.write(pages(B, 1), now_ms=WINDOW_MS + 1)
    assert isinstance(outcome, Sifted)
    assert leader.write([(A, 5, 0)], now_ms=WINDOW_MS + 1) == BelowFloor(0, (A, 5, 0), PAGE_POSITIONS)
    assert leader.write(pages(A, 1), now_ms=WINDOW_MS + 1) == Sifted([0], [])


def reloaded(sets: PositionSets) -> PositionSets:
    """What a snapshot of them says."""
    again = sets_of(sets.max_bytes)
    body, _ = split_positions(memoryview(encode_positions(sets)))
    assert body is not None
    load_positions(again, body)
    assert again.cost == sets.cost
    return again


def test_of_a_source_without_pages_the_floor_stays() -> None:
    leader = Leader(small(1, sources=2))
    leader.write(pages(A, 0), now_ms=0)
    assert isinstance(leader.write(pages(B, 0), now_ms=WINDOW_MS + 1), Sifted)
    assert leader.sets.floors == {A: PAGE_POSITIONS}
    assert isinstance(leader.write(pages(B, 1), now_ms=WINDOW_MS + 1), NoRoom)
    leader.sets = reloaded(leader.sets)
    assert leader.write(pages(A, 0), now_ms=9 * WINDOW_MS) == BelowFloor(0, (A, 0, 0), PAGE_POSITIONS)
    assert isinstance(leader.write(pages(A, 1), now_ms=9 * WINDOW_MS), Sifted)
    assert leader.sets.floors == {B: PAGE_POSITIONS}
    assert leader.sets.cost == PAGE_COST + SOURCE_COST + 1 + FLOOR_COST + 1
    assert isinstance(leader.write(pages(A, 0), now_ms=9 * WINDOW_MS), BelowFloor)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("wanted", [20, 90])
def test_a_batch_that_is_refused_takes_nothing_away(exact: bool, wanted: int) -> None:
    sets = small(50, sources=2)
    sets.accept(page_positions(pages(A, *range(40))), 0, 0, exact=True)
    sets.accept(page_positions(pages(A, 0) if exact else pages(A, *range(5))), 1, 0, exact=exact)
    before, now_ms = encode_positions(sets), 0 if not exact or wanted == 20 else 2 * WINDOW_MS
    assert isinstance(sets.sift(pages(b"x", *range(wanted)), now_ms), NoRoom)
    assert encode_positions(sets) == before
    assert sets.sift(pages(A, *range(40)), now_ms) == Sifted(list(range(40)), [])


def test_a_batch_that_repeats_what_might_go_is_no_less_a_repeat() -> None:
    sets = small(3)
    sets.accept(page_positions(pages(A, 0, 1, 2)), 0, 0, exact=False)
    before = encode_positions(sets)
    assert isinstance(sets.sift(pages(A, 3, 0), 0), NoRoom)
    assert encode_positions(sets) == before
    sifted = sets.sift(pages(A, 3, 1), 0)
    assert sifted == Sifted([1], pages(A, 3), (A,))
    assert encode_positions(sets) == before, "a batch that the disk refuses moves no floor"
    sets.forget(sifted.going, {A})
    assert sets.sources[A].floor == PAGE_POSITIONS


def test_replayed_pages_make_room_for_new_ones() -> None:
    leader = Leader(small(3))
    leader.sets.accept(page_positions(pages(A, 0, 1, 2)), 0, 0, exact=False)
    assert isinstance(leader.write(pages(A, 3)), Sifted)
    assert isinstance(leader.write(pages(A, 1)), BelowFloor), "a sixteenth more than is needed went"
    assert leader.write(pages(A, 2, 3)) == Sifted([0, 1], [])


class Counting(PositionSets):
    """Counts how often all sources are looked at."""

    searches = 0

    def _going(self, *given: Any, **options: Any) -> Any:
        self.searches += 1
        return super()._going(*given, **options)


def test_the_limit_is_not_searched_for_by_each_batch() -> None:
    sets = Counting(window_ms=WINDOW_MS, max_bytes=1 << 20)
    leader = Leader(sets)
    at = 0
    while isinstance(leader.write([(b"job%d" % at, 0, 0)], now_ms=at), Sifted):
        at += 1
    assert sets.searches == 1
    for again in range(50):
        assert isinstance(leader.write([(b"new%d" % again, 0, 0)], now_ms=at + again), NoRoom)
    assert sets.searches == 1, "until the first page may go nothing has changed"
    for again in range(50):
        now_ms = 2 * WINDOW_MS + again
        assert isinstance(leader.write([(b"new%d" % again, 0, 0)], now_ms=now_ms), Sifted)
    assert sets.searches <= 3
    assert isinstance(leader.write([(b"job0", 0, 0)], now_ms=2 * WINDOW_MS), BelowFloor)


def test_a_follower_keeps_what_is_live_among_sources_that_ended() -> None:
    leader, follower = sets_of(1 << 18), sets_of(1 << 18)
    full = False
    for at in range(1500):
        for batch in ([(b"job-%08d" % at, 0, 0)], [(b"steady", at, 0)]):
            outcome = leader.sift(batch, at * 1000)
            full = full or isinstance(outcome, NoRoom)
            if isinstance(outcome, Sifted):
                leader.accept(page_positions(outcome.fresh), at, at * 1000, exact=True)
                follower.accept(page_positions(outcome.fresh), at, at * 1000, exact=False)
        assert follower.sift([(b"steady", at, 0)], at * 1000) == Sifted([0], [])
        assert follower.cost <= follower.max_bytes
    assert full, "even floors take room"
    assert isinstance(follower.sift([(b"job-%08d" % 0, 0, 0)], 0), BelowFloor)


def test_the_floor_behind_the_last_position_fits_into_a_snapshot() -> None:
    leader = Leader(small(1, sources=2))
    leader.write([(A, LAST, 0)], now_ms=0)
    leader.write(pages(B, 0), now_ms=WINDOW_MS + 1)
    assert reloaded(leader.sets).floors == {A: LAST + 1}


# ---- time


def test_what_is_replayed_makes_nothing_old() -> None:
    """An idle source is replayed an hour later, from a snapshot on."""
    leader = Leader()
    leader.write([(A, at, 0) for at in range(5 * PAGE_POSITIONS)], now_ms=0)
    sets = reloaded(leader.sets)
    sets.accept(page_positions([(A, 5 * PAGE_POSITIONS, 0)]), 1, 60 * WINDOW_MS, exact=False)
    assert sets.sift([(A, 7, 0)], 60 * WINDOW_MS) == Sifted([0], [])
    sets.accept(page_positions([(A, 5 * PAGE_POSITIONS + 1, 0)]), 2, 62 * WINDOW_MS, exact=True)
    assert isinstance(sets.sift([(A, 7, 0)], 62 * WINDOW_MS), BelowFloor)


def test_what_is_repeated_stays_known_to_be_repeated_again() -> None:
    leader, now_ms = Leader(), 60 * WINDOW_MS
    rows = [(A, at, 0) for at in range(5 * PAGE_POSITIONS)]
    leader.write(rows, now_ms=0)
    again = rows[2 * PAGE_POSITIONS :]
    leader.sets.touch({(A, number) for number in (2, 3, 4, 9)} | {(B, 0)}, now_ms)
    leader.write([(A, 5 * PAGE_POSITIONS, 0)], now_ms=now_ms)
    assert leader.write(again, now_ms=now_ms + 1) == Sifted(list(range(len(again))), [])
    assert isinstance(leader.write(rows[:1], now_ms=now_ms + 1), BelowFloor)


# ---- snapshots


def test_a_snapshot_with_many_listed_positions_is_read() -> None:
    """As versions before wrote them: up to 128 of a page."""
    places = range(0, 4096, 32)
    body = struct.pack(">IBqqqI", 1, 1, 0, 5, 6, 1) + A
    body += struct.pack(">qqqBHI", 0, 6, 5, 1, len(places), 0) + struct.pack(f">{len(places)}H", *places)
    sets = sets_of()
    load_positions(sets, memoryview(body))
    assert sets.sift([(A, place, 0) for place in places], 0) == Sifted(list(range(128)), [])
    again = encode_positions(sets)
    assert len(again) > PAGE_POSITIONS // 8, "such a page is written as its bits"
    assert reloaded(sets).sift([(A, 31, 0)], 0) == Sifted([], [(A, 31, 0)])


step = st.tuples(
    st.integers(0, WINDOW_MS // 3),
    st.sampled_from([A, B, b"c"]),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(0, 99),
)
"""Milliseconds that pass; who writes; by how many pages it goes on; how many it goes back for this one; where there."""
ONE_IDLES = [
    *[(0, A, 2, 0, 0)] * 3, (0, A, 0, 1, 0), (0, A, 0, 3, 0), (0, B, 0, 0, 1),
    (17_279, A, 2, 1, 0), (0, A, 0, 0, 0), *[(0, A, 1, 0, 0)] * 2, (22_722, A, 1, 0, 0), (0, A, 1, 0, 0),
    (20_000, A, 1, 0, 0), (8_179, A, 1, 0, 0), (3_002, A, 1, 0, 0), (6_098, A, 1, 0, 0),
    (0, b"c", 0, 0, 0), (0, A, 1, 0, 0), (0, B, 0, 0, 0),
]  # fmt: skip
"""B writes again where it did 77 s before, which its leader knows, and a follower has forgotten for want of room."""


@given(st.lists(step, min_size=10, max_size=60), st.integers(0, 60))
@example(ONE_IDLES, 0)
@example(ONE_IDLES, 18)
@example(ONE_IDLES, 19)
def test_a_follower_that_catches_up_knows_the_window(
    steps: list[tuple[int, bytes, int, int, int]], restart: int
) -> None:
    """It reads a long log at once, by its own clock: what it forgets for want of room is older than the window."""
    leader, log = Leader(small(12, sources=3)), list[tuple[list[Position], int]]()
    now_ms, front = 0, {A: 0, B: 0, b"c": 0}
    for passed, source, onward, back, place in steps:
        now_ms += passed
        front[source] += onward
        batch = [(one, at + place, 0) for one, at, _ in pages(source, max(0, front[source] - back))]
        outcome = leader.write(batch, now_ms)
        if isinstance(outcome, Sifted):
            log.append((outcome.fresh, now_ms))
    follower, floors = sets_of(leader.sets.max_bytes), dict[bytes, int]()
    for offset, (fresh, _) in enumerate(log):
        follower.accept(page_positions(fresh), offset, 10**9, exact=False)
        assert follower.cost <= follower.max_bytes
        if offset == restart:
            follower = reloaded(follower)
        before = floors
        floors = follower.floors | {name: source.floor for name, source in follower.sources.items()}
        assert all(floors[name] >= floor for name, floor in before.items())
    follower = reloaded(follower)
    merged = sets_of(leader.sets.max_bytes)
    merged.merge(follower)
    for fresh, then_ms in log:
        if then_ms + WINDOW_MS >= now_ms:
            for sets in (follower, merged):
                assert sets.sift(fresh, 10**9) == Sifted(list(range(len(fresh))), [])


def forgetful() -> PositionSets:
    """A follower's sets: A's first page went for want of room, its leader took one more position there."""
    sets = sets_of()
    for offset, at in enumerate([1, PAGE_POSITIONS]):
        sets.accept(page_positions([(A, at, 0)]), offset, 0, exact=False)
    sets.forget([A])
    sets.accept(page_positions([(A, 7, 0), (A, 7, 3)]), 2, 0, exact=False)
    return sets


def test_below_the_floor_only_what_was_taken_since_is_known() -> None:
    leader = Leader(forgetful())
    assert leader.write([(A, 7, 0), (A, 7, 3), (A, PAGE_POSITIONS, 0)]) == Sifted([0, 1, 2], [])
    for one in [(A, 1, 0), (A, 7, 1), (A, 8, 0)]:
        assert leader.write([(A, 7, 0), one]) == BelowFloor(1, one, PAGE_POSITIONS)
        assert leader.sets.takes([page_positions([one])], 0) == 0
    leader.sets.forget([A, A])
    assert leader.sets.floors == {A: 2 * PAGE_POSITIONS}


def test_a_page_below_the_floor_that_goes_lowers_no_floor() -> None:
    sets = forgetful()
    sets.forget([A, A])
    sets.accept(page_positions([(A, 7, 0)]), 3, 0, exact=False)
    sets.forget([A])
    assert sets.floors == {A: 2 * PAGE_POSITIONS}


def test_older_versions_see_no_page_below_a_floor() -> None:
    """They take the last entry of a source that a snapshot has twice."""
    body, _ = split_positions(memoryview(encode_positions(forgetful())))
    assert body is not None
    entry, page = struct.Struct(">BqqqI"), struct.Struct(">qqqBHI")
    assert struct.unpack_from(">I", body) == (2,)
    first, second = 4, 4 + entry.size + len(A) + page.size + struct.calcsize(">H") + struct.calcsize(">Hi")
    seen = [
        (entry.unpack_from(body, at)[1::3], page.unpack_from(body, at + entry.size + 1)[0]) for at in (first, second)
    ]
    assert seen == [((PAGE_POSITIONS, 1), 0), ((PAGE_POSITIONS, 1), 1)]
