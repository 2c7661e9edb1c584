"""What was accepted before a log's first record: a log that does not know it drops and takes nothing, and learns it
from its leader; what the leader tells is what it had accepted by then.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog._native.compact import page_positions
from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.log import DiskFull, Log, RealDisk
from fleetlog.brokers.log.positions import PAGE_COST, PAGE_POSITIONS, PositionSets, load_positions
from fleetlog.brokers.log.store import LogStore
from fleetlog.brokers.model import TopicPartition
from fleetlog.brokers.replication.accepted import AcceptedPositions, accepted_as_of
from fleetlog.wire import compression
from fleetlog.wire.errors import ErrorCode
from tests.log.sourced import DEDUP, accepted, known, replicate, sets_of, sourced, values
from tests.support.clocks import ManualClock
from tests.support.faulty import Fault, FaultyDisk
from tests.support.logs import NOW, append, open_log

WINDOW = DEDUP.fleetlog_dedup_window_ms
LATER = NOW + 3 * WINDOW


def told_by(leader: Log, offset: int) -> AcceptedPositions | None:
    work = accepted_as_of(leader, offset, LATER)
    while True:
        try:
            next(work)
        except StopIteration as end:
            told: AcceptedPositions | None = end.value
            return told


def sets_from(told: AcceptedPositions | None) -> PositionSets:
    assert told is not None
    sets = PositionSets(window_ms=WINDOW, max_bytes=DEDUP.fleetlog_dedup_max_bytes)
    load_positions(sets, memoryview(told.body))
    return sets


def learn(follower: Log, leader: Log) -> None:
    follower.learn_positions(sets_from(told_by(leader, follower.segments.first.base_offset)))


def retain_nothing(log: Log) -> None:
    log.appender.set_high_watermark(log.log_end_offset)
    closed = [segment for segment in log.segments if segment is not log.segments.active]
    log.truncation.delete_records_before(log.segments.active.base_offset)
    log.truncation.remove_segments(closed, NOW)


@pytest.fixture
def left_behind(tmp_path: Path) -> tuple[Log, Log]:
    """A leader that refuses position 5, with none of the records from then, and a follower that fell off its log."""
    leader, follower = open_log(tmp_path / "a-0", config=DEDUP), open_log(tmp_path / "b-0", config=DEDUP)
    append(leader, sourced(5))
    replicate(leader, follower)
    follower.appender.set_high_watermark(1)
    append(leader, sourced(3 * PAGE_POSITIONS), now_ms=LATER)
    assert append(leader, sourced(5), now_ms=LATER).error is ErrorCode.INVALID_RECORD
    leader.appender.roll(LATER)
    append(leader, sourced(3 * PAGE_POSITIONS + 1), now_ms=LATER)
    retain_nothing(leader)
    follower.truncation.restart_at(leader.log_start_offset)
    return leader, follower


def test_a_log_that_starts_over_takes_nothing_before_it_has_learnt(left_behind: tuple[Log, Log]) -> None:
    leader, follower = left_behind
    assert follower.lacks_positions
    info = append(follower, sourced(5), now_ms=LATER)
    assert (info.error, info.record_count, follower.log_end_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, 0, 2)
    learn(follower, leader)
    replicate(leader, follower)
    assert not follower.lacks_positions
    assert append(follower, sourced(5), now_ms=LATER).error is ErrorCode.INVALID_RECORD
    assert known(follower) == known(leader)
    assert append(follower, sourced(3 * PAGE_POSITIONS, 3 * PAGE_POSITIONS + 1, 3 * PAGE_POSITIONS + 2)).error is (
        ErrorCode.NONE
    )
    assert [value for _, value in values(follower)] == [b"%d" % (3 * PAGE_POSITIONS + n) for n in (1, 2)]


@pytest.mark.parametrize("how", ["clean", "killed"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_restart_knows_whether_it_has_learnt(left_behind: tuple[Log, Log], how: str, when: str) -> None:
    leader, follower = left_behind
    if when == "after":
        learn(follower, leader)
        replicate(leader, follower)
    before = known(follower)
    if how == "clean":
        follower.close()
    else:
        follower.abandon()
    again = open_log(Path(follower.directory), clean=how == "clean", now_ms=LATER)
    assert again.lacks_positions == (when == "before")
    assert known(again) == before


def test_one_that_lacks_positions_writes_no_snapshot_that_hides_it(left_behind: tuple[Log, Log]) -> None:
    _, follower = left_behind
    follower.close()
    again = open_log(Path(follower.directory), clean=True)
    again.settled = False
    again.close()
    assert list(Path(again.directory).glob("*.snapshot"))
    assert open_log(Path(again.directory), clean=True).lacks_positions


def test_without_sound_snapshots_the_first_record_is_where_knowledge_begins(tmp_path: Path) -> None:
    path = tmp_path / "events-0"
    leader = open_log(path, config=dataclasses.replace(DEDUP, segment_bytes=500))
    follower = open_log(tmp_path / "other-0", config=DEDUP)
    for start in range(0, 200, 10):
        append(leader, sourced(*range(start, start + 10)))
    replicate(leader, follower)
    follower.appender.set_high_watermark(200)
    closed = list(leader.segments)[:-2]
    leader.truncation.delete_records_before(closed[-1].base_offset)
    leader.truncation.remove_segments(closed, NOW)
    leader.close()
    for snapshot in path.glob("*.snapshot"):
        snapshot.write_bytes(snapshot.read_bytes()[:-1])
    damaged = open_log(path, clean=True)
    assert damaged.lacks_positions
    learn(damaged, follower)
    assert known(damaged) == known(follower)
    damaged.truncation.truncate_to(damaged.segments.active.base_offset)
    assert damaged.lacks_positions, "the snapshots from before are what they were"


def test_a_snapshot_from_before_the_first_segment_does_not_count(tmp_path: Path) -> None:
    """One of an earlier clean stop: what was accepted between it and the first record is in neither."""
    path = tmp_path / "events-0"
    log = open_log(path, config=DEDUP)
    append(log, sourced(1))
    log.close()
    log = open_log(path, clean=True)
    append(log, sourced(2))
    log.appender.roll(NOW)
    append(log, sourced(3))
    retain_nothing(log)
    log.flusher.flush()
    log.abandon()
    assert sorted(one.name for one in path.glob("*.snapshot")) == [f"{1:020d}.snapshot", f"{2:020d}.snapshot"]
    (path / f"{2:020d}.snapshot").unlink()
    again = open_log(path, recovery_point=log.recovery_point, log_start_offset=2)
    assert again.lacks_positions


def test_a_clean_stop_does_not_count_for_a_directory_that_lacks_positions(tmp_path: Path) -> None:
    def store() -> LogStore:
        config = BrokerConfig(broker_id=1, log_dirs=(str(tmp_path / "d"),))
        return LogStore(config, RealDisk(), ManualClock(), topic_config=lambda _: DEDUP)

    first = store()
    first.load()
    log = first.create(TopicPartition("once", 0), None, DEDUP)
    append(log, sourced(1))
    log.appender.roll(NOW)
    append(log, sourced(2))
    retain_nothing(log)
    first.close()
    second = store()
    assert not second.load().lost
    second.close()
    for snapshot in (tmp_path / "d" / "once-0").glob("*.snapshot"):
        snapshot.write_bytes(b"damaged")
    third = store()
    report = third.load()
    assert [text for text in report.lost if "no sound producer snapshot" in text]
    assert set(report.stopped.values()) == {None}
    third.close()


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_is_told_is_what_was_accepted_by_then(seed: int, deletes: bool, lossy: bool) -> None:
    """At any offset, from whichever snapshots there are: equal to a log that ends there."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        leader = open_log(Path(name) / "a-0", config=dataclasses.replace(DEDUP, segment_bytes=900))
        witnesses: dict[int, dict[bytes, set[int]]] = {0: {}}
        for start in range(0, 300, 10):
            batch = rng.sample(range(start, start + 30), 10)
            append(leader, sourced(*batch, codec=rng.choice((0, compression.GZIP)), source=rng.choice((b"a", b"b"))))
            witnesses[leader.log_end_offset] = everything(sets_of(leader))
        if deletes:
            leader.truncation.delete_records_before(rng.choice([*witnesses]))
            keep = leader.segments.floor(leader.log_start_offset)
            leader.truncation.remove_segments(
                [segment for segment in leader.segments if segment.base_offset < keep.base_offset], NOW
            )
        if lossy:
            kept = leader.segments.first.base_offset
            for path in Path(leader.directory).glob("*.snapshot"):
                if int(path.stem) != kept and rng.random() < 0.5:
                    path.write_bytes(path.read_bytes()[:-1])
        for offset in witnesses:
            told = told_by(leader, offset)
            assert told is not None
            assert told.offset == max(offset, leader.log_start_offset)
            assert everything(sets_from(told)) == witnesses[told.offset]
        leader.abandon()


def everything(sets: PositionSets) -> dict[bytes, set[int]]:
    """The accepted positions of each source; all floors are 0."""
    assert not sets.floors
    return {
        name: {number * PAGE_POSITIONS + place for number, page in source.pages.items() for place in range(600)
               if page.bits >> place & 1}
        for name, source in sets.sources.items()
    }  # fmt: skip


def test_where_no_snapshot_below_is_sound_more_is_told_but_all_of_it_committed(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "a-0", config=dataclasses.replace(DEDUP, segment_bytes=500))
    for start in range(0, 200, 10):
        append(leader, sourced(*range(start, start + 10)), commit_hw=False)
    bases = [segment.base_offset for segment in leader.segments]
    leader.appender.set_high_watermark(bases[3] + 1)
    leader.truncation.delete_records_before(bases[1])
    leader.truncation.remove_segments([leader.segments.first], NOW)
    snapshots = {int(path.stem): path for path in (tmp_path / "a-0").glob("*.snapshot")}
    snapshots[bases[1]].unlink()
    told = told_by(leader, 0)
    assert told is not None
    assert told.offset == bases[2]
    for base in bases[2:4]:
        snapshots[base].unlink()
    assert told_by(leader, 0) is None, "what lies above the high watermark may never be committed"


def test_a_log_that_is_cut_meanwhile_tells_nothing(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "a-0", config=DEDUP)
    for start in range(0, 50, 10):
        append(leader, sourced(*range(start, start + 10)))
    work = accepted_as_of(leader, 40, LATER)
    next(work)
    leader.truncation.truncate_to(20)
    with pytest.raises(StopIteration) as end:
        next(work)
    assert end.value.value is None


def test_learning_keeps_the_higher_floor_and_both_pages(tmp_path: Path) -> None:
    """A replica that knows a part already: a floor that it moved for want of room stays."""
    mine, theirs = (PositionSets(window_ms=WINDOW, max_bytes=2**20) for _ in range(2))

    def take(sets: PositionSets, *positions: int, source: bytes = b"a", ordinal: int = 0) -> None:
        sets.accept(page_positions((source, one, ordinal) for one in positions), 7, NOW, exact=False)

    take(mine, 1, PAGE_POSITIONS + 1, 2 * PAGE_POSITIONS)
    mine.forget([b"a"])
    take(mine, 3, source=b"gone")
    mine.forget([b"gone"])
    take(theirs, 2, PAGE_POSITIONS + 2, 9 * PAGE_POSITIONS)
    take(theirs, PAGE_POSITIONS + 3, ordinal=4)
    take(theirs, 3, PAGE_POSITIONS + 9, source=b"gone")
    take(theirs, 5, source=b"floor")
    theirs.forget([b"floor"])
    mine.merge(theirs)
    assert mine.floors == {b"floor": PAGE_POSITIONS}
    assert {n: (s.floor, sorted(s.pages)) for n, s in mine.sources.items()} == {
        b"a": (PAGE_POSITIONS, [0, 1, 2, 9]), b"gone": (PAGE_POSITIONS, [0, 1]),
    }  # fmt: skip
    page = mine.sources[b"a"].pages[1]
    assert (page.bits, page.more) == (0b110, {(3, 4)})
    fresh = PositionSets(window_ms=WINDOW, max_bytes=2**20)
    fresh.merge(mine)
    assert fresh.cost == mine.cost
    small = PositionSets(window_ms=WINDOW, max_bytes=3 * PAGE_COST)
    small.merge(mine)
    assert small.cost <= small.max_bytes
    assert (small.floors.get(b"a") or small.sources[b"a"].floor) > PAGE_POSITIONS, "what has no room leaves its floor"


def test_what_was_not_saved_was_not_learnt(tmp_path: Path, left_behind: tuple[Log, Log]) -> None:
    leader, _ = left_behind
    disk = FaultyDisk()
    follower = open_log(tmp_path / "c-0", disk, config=DEDUP)
    follower.truncation.restart_at(leader.log_start_offset)
    disk.faults.append(Fault("replace", ".snapshot", times=1))
    with pytest.raises(DiskFull):
        learn(follower, leader)
    assert follower.lacks_positions
    learn(follower, leader)
    replicate(leader, follower)
    assert not follower.lacks_positions
    assert accepted(follower) == accepted(leader)
