"""What a log that drops duplicates counts as accepted when the disk refuses, the clock goes back, or another broker
appended: neither more nor less than what its records say.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from fleetlog.brokers.log import Log
from fleetlog.brokers.log.positions import PAGE_COST, PAGE_POSITIONS, load_positions
from fleetlog.brokers.log.state import LogSettings
from fleetlog.brokers.replication.accepted import accepted_as_of
from fleetlog.wire.compression import GZIP
from fleetlog.wire.errors import ErrorCode
from tests.log.sourced import DECAY, DEDUP, accepted, damage, known, sets_of, sourced, values
from tests.support.faulty import Fault, FaultyDisk
from tests.support.logs import NOW, append, append_together, config, open_log

WINDOW = DEDUP.fleetlog_dedup_window_ms
SHORT = dataclasses.replace(DEDUP, fleetlog_dedup_window_ms=1000)


def data_of(log: object) -> list[bytes]:
    return [bytes(data[at : at + header.size]) for segment in log.segments  # type: ignore[attr-defined]
            for _, data, found in segment.chunks() for at, header in found]  # fmt: skip


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param([sourced(1, 2)], id="admitted by the kernel"),
        pytest.param([sourced(1, 2), sourced(3)], id="several by one write"),
        pytest.param([sourced(1, 1, 2)], id="with a duplicate of its own"),
        pytest.param([sourced(0, 1, 2)], id="with a duplicate of before"),
    ],
)
def test_what_the_disk_refused_was_not_accepted(tmp_path: Path, refused: list[bytes]) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "events-0", disk, config=DEDUP)
    assert append(log, sourced(0)).error is ErrorCode.NONE
    before = known(log)
    disk.faults.append(Fault("write", ".log", times=1))
    outcomes = append_together(log, refused)
    assert outcomes[0].error is ErrorCode.KAFKA_STORAGE_ERROR
    assert known(log) == before or len(refused) > 1, "a later batch of the run may have been taken"
    assert all(info.error is ErrorCode.NONE for info in append_together(log, refused))
    last = 3 if len(refused) > 1 else 2
    assert sorted(value or b"" for _, value in values(log)) == [b"%d" % one for one in range(last + 1)]


def test_what_the_disk_refused_to_a_follower_was_not_accepted(tmp_path: Path) -> None:
    leader, disk = open_log(tmp_path / "a-0", config=DEDUP), FaultyDisk()
    follower = open_log(tmp_path / "b-0", disk, config=DEDUP)
    append(leader, sourced(1, 2))
    (data,) = data_of(leader)
    disk.faults.append(Fault("write", ".log", times=1))
    assert follower.appender.append_as_follower(data, now_ms=NOW).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert known(follower) == {}
    assert append(follower, sourced(1, 2)).error is ErrorCode.NONE
    assert [value for _, value in values(follower)] == [b"1", b"2"]


@pytest.mark.parametrize("repeat", [sourced(1, 2), sourced(0, 1, 2)], ids=["admitted by the kernel", "looked at"])
def test_what_is_in_the_log_though_its_flush_failed_was_accepted(tmp_path: Path, repeat: bytes) -> None:
    """It was refused, but stays: a repeat that is taken would stand there twice."""
    disk = FaultyDisk()
    indexed = dataclasses.replace(DEDUP, index_interval_bytes=1)
    log = open_log(tmp_path / "events-0", disk, config=indexed, settings=LogSettings(flush_each_append=True))
    assert append(log, sourced(0)).error is ErrorCode.NONE
    disk.faults.append(Fault("write", "index"))
    assert append(log, repeat).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.log_end_offset > 1
    disk.faults.clear()
    assert append(log, sourced(0, 1, 2)).error is ErrorCode.NONE
    assert [value for _, value in values(log)] == [b"0", b"1", b"2"]


def test_fetched_batches_age_nothing(tmp_path: Path) -> None:
    """A follower fetches when it can: between two batches its leader may have waited for a day, or for no time."""
    leader, follower = open_log(tmp_path / "a-0", config=SHORT), open_log(tmp_path / "b-0", config=SHORT)
    append(leader, sourced(5))
    append(leader, sourced(3 * PAGE_POSITIONS), now_ms=NOW + 1)
    for number, data in enumerate(data_of(leader)):
        assert follower.appender.append_as_follower(data, now_ms=NOW + number * 5000).error is ErrorCode.NONE
    assert known(follower) == known(leader)
    assert append(follower, sourced(5), now_ms=NOW + 5000).record_count == 0, "its leader had dropped it, too"


@pytest.mark.parametrize("how", ["fetched", "replayed"])
def test_pages_of_which_only_records_tell_make_room(tmp_path: Path, how: str) -> None:
    """When they were written is not known, so nobody may be refused for them, as the leader that wrote them would."""
    full = dataclasses.replace(DEDUP, fleetlog_dedup_max_bytes=24 * PAGE_COST)
    log = open_log(tmp_path / "events-0", config=full)
    page = 0
    while append(log, sourced(page * PAGE_POSITIONS)).error is ErrorCode.NONE:
        page += 1
    if how == "fetched":
        other = open_log(tmp_path / "other-0", config=full)
        for data in data_of(log):
            other.appender.append_as_follower(data, now_ms=NOW)
    else:
        log.abandon()
        other = open_log(tmp_path / "events-0", config=full)
    assert append(other, sourced(page * PAGE_POSITIONS)).error is ErrorCode.NONE
    assert sets_of(other).sources[b"q:1"].floor > 0


@pytest.mark.parametrize("again", [sourced(6), sourced(5)], ids=["a new record", "a duplicate"])
def test_a_clock_that_goes_back_makes_nothing_older(tmp_path: Path, again: bytes) -> None:
    """Another leader's clock, or one that was put right: a source's own time never goes back."""
    log = open_log(tmp_path / "events-0", config=SHORT)
    append(log, sourced(5), now_ms=NOW + 1000)
    assert append(log, again, now_ms=NOW).error is ErrorCode.NONE
    assert append(log, sourced(PAGE_POSITIONS), now_ms=NOW + 1500).error is ErrorCode.NONE
    assert append(log, sourced(PAGE_POSITIONS + 1), now_ms=NOW + 1501).error is ErrorCode.NONE
    repeat = append(log, sourced(5), now_ms=NOW + 1600)
    assert (repeat.error, repeat.record_count) == (ErrorCode.NONE, 0)
    append(log, sourced(PAGE_POSITIONS + 2), now_ms=NOW + 2700)
    assert append(log, sourced(5), now_ms=NOW + 2701).error is ErrorCode.INVALID_RECORD


def test_a_source_that_writes_by_a_clock_that_went_back_keeps_its_time(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events-0", config=SHORT)
    append(log, sourced(5), now_ms=NOW)
    append(log, sourced(PAGE_POSITIONS), now_ms=NOW + 900)
    append(log, sourced(PAGE_POSITIONS + 1), now_ms=NOW - 50_000)
    source = sets_of(log).sources[b"q:1"]
    assert (source.last_ms, source.pages[1].touched_ms) == (NOW + 900, NOW + 900)
    append(log, sourced(PAGE_POSITIONS + 2), now_ms=NOW + 1001)
    assert source.floor == PAGE_POSITIONS


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_counted_of_what_a_start_cut_off(tmp_path: Path, seed: int) -> None:
    """At a damaged batch above the recovery point: neither positions nor floors, nor snapshots behind it."""
    rng, path = random.Random(seed), tmp_path / "events-0"
    log = open_log(path, config=dataclasses.replace(SHORT, segment_bytes=900))
    witnesses = [known(log)]
    for number in range(30):
        now_ms = NOW + number * rng.choice((1, 400))
        positions = rng.sample(range(number // 6 * 5000, number // 6 * 5000 + 60), 5)
        append(log, sourced(*positions, source=rng.choice((b"a", b"b")), codec=rng.choice((0, GZIP))), now_ms=now_ms)
        witnesses.append(known(log))
    flushed = rng.randrange(30)
    log.abandon()
    bad = rng.randrange(flushed, 30)
    end = damage(log, bad)
    again = open_log(path, recovery_point=log.segments.floor(end).base_offset)
    assert again.log_end_offset == end
    for source, (_, pages) in known(again).items():
        was = witnesses[bad].get(source, (0, {}))
        assert {page: bits for page, bits in pages.items() if page * PAGE_POSITIONS >= was[0]} == was[1]
        assert known(again)[source][0] <= was[0], "a floor that a batch moved that is not there"
    assert known(again).keys() == witnesses[bad].keys()


@pytest.mark.parametrize("codec", [0, GZIP])
@pytest.mark.parametrize("left", ["all snapshots", "none"])
@pytest.mark.parametrize("batch", [0, 6])
@pytest.mark.parametrize("what", DECAY)
def test_a_batch_that_decays_hides_and_invents_no_positions(
    tmp_path: Path, codec: int, left: str, batch: int, what: str
) -> None:
    """Below the recovery point the log is not cut: what is behind the damage is known; of the batch what is sound."""
    path = tmp_path / "events-0"
    log = open_log(path, config=dataclasses.replace(DEDUP, segment_bytes=2500))
    for start in range(0, 100, 5):
        append(log, sourced(*range(start * 2, start * 2 + 10, 2), codec=codec))
    log.flusher.flush()
    log.abandon()
    base = damage(log, batch, what)
    for snapshot in path.glob("*.snapshot") if left == "none" else ():
        snapshot.unlink()
    again = open_log(path, recovery_point=log.log_end_offset)
    assert again.log_end_offset == 100
    gone = left == "none" and "records" in what
    assert accepted(again) == set(range(0, 200, 2)) - set(range(base * 2, base * 2 + 10, 2) if gone else ())
    again.config = DEDUP
    if gone:
        assert again.lacks_positions
        assert again.accepted_from == base + 5
        assert append(again, sourced(1)).error is ErrorCode.KAFKA_STORAGE_ERROR
        again.learn_positions(None)  # it leads, and nobody else can tell
    assert append(again, sourced(*range(200))).error is ErrorCode.NONE


@pytest.mark.parametrize("what", DECAY)
def test_a_topic_that_begins_to_drop_duplicates_finds_those_behind_damage(tmp_path: Path, what: str) -> None:
    path = tmp_path / "events-0"
    log = open_log(path, config=config(segment_bytes=2500))
    for start in range(0, 100, 5):
        append(log, sourced(*range(start, start + 5)))
    log.close()
    base = damage(log, 6, what)
    again = open_log(path, clean=True, log_start_offset=0)
    again.config = DEDUP
    assert accepted(again) == set(range(100)) - set(range(base, base + 5) if "records" in what else ())
    assert not again.lacks_positions


@pytest.mark.parametrize("what", DECAY)
@pytest.mark.parametrize("committed", ["all", "not the last"])
def test_a_leader_with_damage_tells_all_that_it_knows_or_nothing(tmp_path: Path, what: str, committed: str) -> None:
    """Its followers would lead with less than their logs have. A later snapshot tells more than was asked."""
    log = open_log(tmp_path / "events-0", config=dataclasses.replace(DEDUP, segment_bytes=2500))
    for start in range(0, 100, 5):
        append(log, sourced(*range(start, start + 5)), commit_hw=False)
    log.appender.set_high_watermark(95 if committed != "all" else 100)
    base = damage(log, 6, what)
    told = [*told_by(log, base + 5)]
    assert told[0] >= set(range(base + 5))
    for snapshot in (tmp_path / "events-0").glob("*.snapshot"):
        snapshot.unlink()
    if committed == "all":
        assert told_by(log, base + 5) == [set(range(100))]
    else:
        assert told_by(log, base + 5) == [], "its last batch may be lost yet"


def told_by(log: Log, offset: int) -> list[set[int]]:
    """The positions that a leader tells as of an offset, if it does."""
    work = accepted_as_of(log, offset, NOW)
    while True:
        try:
            next(work)
        except StopIteration as end:
            if end.value is None:
                return []
            told = sets_of(log).like()
            load_positions(told, memoryview(end.value.body))
            pages = [page.bits for source in told.sources.values() for page in source.pages.values()]
            return [{place for page in pages for place in range(PAGE_POSITIONS) if page >> place & 1}]


@pytest.mark.parametrize("how", ["clean", "killed"])
@pytest.mark.parametrize("seed", range(8))
def test_older_snapshots_that_are_put_back_lose_double_and_accept_nothing(tmp_path: Path, seed: int, how: str) -> None:
    """By an operator's restore: the log behind them says the rest, or it is known that something is missing."""
    rng, path = random.Random(seed), tmp_path / "events-0"
    small = dataclasses.replace(DEDUP, segment_bytes=900)
    log, kept = open_log(path, config=small), dict[str, bytes]()
    for start in range(0, 300, 5):
        append(log, sourced(*rng.sample(range(start, start + 20), 5)))
        if start % 60 == 55:
            log.close()
            log = open_log(path, config=small, clean=True)
        kept |= {file.name: file.read_bytes() for file in path.glob("*.snapshot")}
    if seed % 2:
        closed = [segment for segment in log.segments if segment is not log.segments.active][: rng.randint(1, 8)]
        log.appender.set_high_watermark(log.log_end_offset)
        log.truncation.delete_records_before(log.segments[len(closed)].base_offset)
        log.truncation.remove_segments(closed, NOW)
    before, content = known(log), values(log)
    (log.close if how == "clean" else log.abandon)()
    for file in path.glob("*.snapshot"):
        file.unlink()
    put_back = rng.sample([*kept], rng.randint(1, len(kept) - 1))
    for name in put_back:
        (path / name).write_bytes(kept[name])
    again = open_log(path, config=small, clean=how == "clean", log_start_offset=log.log_start_offset)
    again.config = DEDUP
    if again.lacks_positions:
        assert log.log_start_offset, "all records are there"
        assert append(again, sourced(*range(320))).error is ErrorCode.KAFKA_STORAGE_ERROR
    else:
        assert known(again) == before
        assert append(again, sourced(*range(320))).error is ErrorCode.NONE
        fresh = [int(value or b"") for _, value in values(again)[len(content) :]]
        assert sorted(fresh) == sorted(set(range(320)) - {n for n in range(320) if 1 << n & bits_of(before)})


def bits_of(known_positions: dict[bytes, tuple[int, dict[int, int]]]) -> int:
    """Of the first page of the only source."""
    ((_, pages),) = known_positions.values()
    return pages[0]
