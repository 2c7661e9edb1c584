"""A log that drops duplicates: what leaders append of batches, and that followers, recovery, cuts and snapshots know
what was accepted.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog._native.batch import BatchHeader, Record, encode_batch, scan
from fleetlog._native.compact import page_positions
from fleetlog.brokers.api.produce import count
from fleetlog.brokers.log import DiskFull, Origin, RealDisk
from fleetlog.brokers.log.admission import Terms
from fleetlog.brokers.log.positions import DEDUP_FILE, PAGE_COST, PAGE_POSITIONS, PositionSets, encode_positions
from fleetlog.brokers.log.read import MOST_BATCHES
from fleetlog.brokers.log.validation import read_marker
from fleetlog.brokers.metrics.topics import TopicFigures
from fleetlog.wire import compression
from fleetlog.wire.errors import ErrorCode
from tests.log.sourced import DEDUP, accepted, known, replicate, sets_of, sourced, values
from tests.support.crashes import RecordingDisk, image
from tests.support.faulty import Fault, FaultyDisk
from tests.support.logs import (
    NOW,
    append,
    append_together,
    append_txn,
    batch,
    content,
    end_txn,
    files,
    look_at_all,
    looked_at,
    open_log,
    records,
)

TRANSACTIONAL = 0x10


class FullDisk(RealDisk):
    """Has no room for new files while ``full``."""

    full = False

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if self.full:
            raise DiskFull(path, "No space left on device")
        super().replace(path, data, durable=durable)


@pytest.mark.parametrize("codec", [0, compression.GZIP, compression.ZSTD])
def test_what_was_accepted_is_left_out(tmp_path: Path, codec: int) -> None:
    log = open_log(tmp_path / "events-0", config=DEDUP)
    first = append(log, sourced(1, 2, 3, codec=codec))
    assert (first.first_offset, first.last_offset) == (0, 2)
    some = append(log, sourced(2, 3, 4, 4, codec=codec))
    assert (some.first_offset, some.last_offset, some.error) == (3, 6, ErrorCode.NONE)
    none = append(log, sourced(1, 4, codec=codec))
    assert (none.first_offset, none.last_offset, none.error) == (7, 8, ErrorCode.NONE)
    assert log.log_end_offset == 9
    assert values(log) == [(0, b"1"), (1, b"2"), (2, b"3"), (5, b"4")]
    headers = [header for segment in log.segments for _, header in segment.headers()]
    assert [(h.base_offset, h.last_offset_delta, h.record_count) for h in headers] == [(0, 2, 3), (3, 3, 1), (7, 1, 0)]
    assert headers[1].max_timestamp == NOW + 2
    assert headers[1].codec == codec
    assert headers[2].size == 61
    assert sets_of(log).dropped == 5


def test_what_is_new_needs_no_closer_look(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events-0", config=DEDUP)
    append(log, sourced(0))  # the first of a segment does
    closer = looked_at(log)
    assert append(log, sourced(1, 2)).last_offset == 2
    assert append(log, sourced(3, producer_id=9, producer_epoch=0, base_sequence=0)).last_offset == 3
    found = append_together(log, [sourced(4), sourced(5, 6), sourced(6, 7), sourced(7, 8), sourced(9, 9), sourced(10)])
    assert [(info.error, *info[:2]) for info in found] == [
        (ErrorCode.NONE, first, last) for first, last in ((4, 4), (5, 6), (7, 8), (9, 10), (11, 12), (13, 13))
    ]
    assert closer == [sourced(6, 7), sourced(7, 8), sourced(9, 9)]
    assert [value for _, value in values(log)] == [b"%d" % one for one in range(11)]
    assert sets_of(log).dropped == 3


SENT = st.builds(
    lambda source, positions, ordinal, codec, producer: sourced(
        *positions, source=source, ordinal=ordinal, codec=codec, **producer
    ),
    st.sampled_from([b"a", b"a", b"b:0"]),
    st.lists(st.integers(0, 9) | st.integers(PAGE_POSITIONS - 2, PAGE_POSITIONS + 2), min_size=1, max_size=4),
    st.sampled_from([0, 0, 0, 1, 7]),
    st.sampled_from([0, 0, 0, 0, compression.GZIP]),
    st.sampled_from([{}, {}, *({"producer_id": 5, "producer_epoch": 0, "base_sequence": at} for at in (0, 1, 2))]),
)
TOPICS: list[dict[str, Any]] = [
    {}, {}, {"segment_bytes": 700}, {"message_timestamp_type": "LogAppendTime"}, {"fleetlog_dedup_window_ms": 50},
    {"compression_type": "gzip"}, {"fleetlog_dedup_max_bytes": 4000}, {"max_message_bytes": 150},
]  # fmt: skip


@given(st.sampled_from(TOPICS), st.lists(st.lists(SENT, min_size=1, max_size=4), max_size=8), st.integers(-90, 90))
def test_a_run_ends_as_a_closer_look_at_each_of_its_batches(
    topic: dict[str, Any], runs: list[list[bytes]], later_ms: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        settings = dataclasses.replace(DEDUP, **topic)
        quick, thorough = (open_log(Path(name) / f"{way}-0", config=settings) for way in ("quick", "thorough"))
        look_at_all(thorough)
        for number, run in enumerate(runs):
            now_ms = NOW + number * later_ms
            expected = [append(thorough, data, now_ms=now_ms) for data in run]
            assert append_together(quick, run, now_ms=now_ms) == expected
        assert content(quick) == content(thorough)
        assert encode_positions(sets_of(quick)) == encode_positions(sets_of(thorough))
        assert sets_of(quick).cost == sets_of(thorough).cost
        assert sets_of(quick).dropped == sets_of(thorough).dropped
        for log in (quick, thorough):
            log.close()
        assert files(Path(quick.directory)) == files(Path(thorough.directory))


def test_sequences_go_on_over_what_was_dropped(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events-0", config=DEDUP)
    sequence = 0
    for positions in ((1, 2), (1, 2), (2, 3), (2, 3), (5,)):
        data = sourced(*positions, producer_id=7, producer_epoch=0, base_sequence=sequence)
        assert append(log, data).error is ErrorCode.NONE
        assert append(log, data).duplicate
        sequence += len(positions)
    out_of_order = append(log, sourced(9, producer_id=7, producer_epoch=0, base_sequence=sequence + 1))
    assert out_of_order.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [value for _, value in values(log)] == [b"1", b"2", b"3", b"5"]
    assert append(log, sourced(9)).error is ErrorCode.NONE
    assert values(log)[-1][1] == b"9"


def test_the_appends_time_counts_where_the_topic_says_so(tmp_path: Path) -> None:
    changed = dataclasses.replace(DEDUP, message_timestamp_type="LogAppendTime")
    log = open_log(tmp_path / "events-0", config=changed)
    append(log, sourced(1, 2), now_ms=NOW + 500)
    info = append(log, sourced(2, 3), now_ms=NOW + 900)
    assert info.log_append_time_ms == NOW + 900
    assert [record.timestamp - NOW for record in records(log)] == [500, 500, 900]


@pytest.mark.parametrize(
    "headers",
    [(), (("fleetlog.source", None),), (("fleetlog.source", b"q:1"),), (("fleetlog.source", b"q:1:0"),) * 2],
)
def test_a_record_without_its_position_is_refused(
    tmp_path: Path, headers: tuple[tuple[str, bytes | None], ...]
) -> None:
    log = open_log(tmp_path / "events-0", config=DEDUP)
    rows = [Record(-1, NOW, b"k", b"v", (("fleetlog.source", b"q:1:0"),)), Record(-1, NOW, b"k", b"v", headers)]
    info = append(log, encode_batch(rows))
    assert info.error is ErrorCode.INVALID_RECORD
    assert [index for index, _ in info.record_errors] == [1]
    assert info.error_message is not None
    assert "source:position:ordinal" in info.error_message
    assert log.log_end_offset == 0
    assert append(log, sourced(1)).error is ErrorCode.NONE
    assert len(values(log)) == 1, "the refused batch left nothing behind"


def test_a_transactional_batch_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events-0", config=DEDUP)
    data = sourced(1, producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    info = append(log, data, whole_request=True)
    assert info.error is ErrorCode.INVALID_RECORD
    assert "takes no transactional batches" in (info.error_message or "")


def test_a_position_below_the_floor_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events-0", config=dataclasses.replace(DEDUP, fleetlog_dedup_window_ms=1000))
    append(log, sourced(1), now_ms=NOW)
    append(log, sourced(PAGE_POSITIONS), now_ms=NOW + 900)
    append(log, sourced(PAGE_POSITIONS + 1), now_ms=NOW + 1001)
    info = append(log, sourced(2), now_ms=NOW + 1001)
    assert info.error is ErrorCode.INVALID_RECORD
    assert f"position 2 of source q:1 is below {PAGE_POSITIONS}" in (info.error_message or "")


def test_beyond_its_memory_a_partition_refuses(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events-0", config=dataclasses.replace(DEDUP, fleetlog_dedup_max_bytes=64 * 1024))
    far = 0
    while (info := append(log, sourced(far))).error is ErrorCode.NONE:
        far += PAGE_POSITIONS
        assert far < 200 * PAGE_POSITIONS
    assert info.error is ErrorCode.POLICY_VIOLATION
    assert "fleetlog.dedup.max.bytes" in (info.error_message or "")
    assert append(log, sourced(*range(10, 20))).error is ErrorCode.NONE
    log.config = dataclasses.replace(DEDUP, fleetlog_dedup_max_bytes=1024 * 1024)
    assert append(log, sourced(far)).error is ErrorCode.NONE


def test_a_batch_that_the_disk_refuses_moves_no_floor(tmp_path: Path) -> None:
    """Its followers never hear of it, and what a source repeats is still known to be in the log."""
    disk = FaultyDisk()
    settings = dataclasses.replace(DEDUP, fleetlog_dedup_max_bytes=24 * PAGE_COST, fleetlog_dedup_window_ms=1000)
    log = open_log(tmp_path / "events-0", disk, config=settings)
    sources = [b"s%d" % n for n in range(12)]
    for source in sources:
        assert append(log, sourced(0, source=source)).error is ErrorCode.NONE
    before, floors = known(log), dict(sets_of(log).floors)
    disk.faults.append(Fault("write", ".log", times=1))
    late = sourced(0, source=b"t")
    assert append(log, late, now_ms=NOW + 10_000).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert (known(log), sets_of(log).floors) == (before, floors)
    assert append(log, sourced(0, source=sources[0]), now_ms=NOW + 10_000).record_count == 0, "it repeats"
    assert append(log, late, now_ms=NOW + 10_000).error is ErrorCode.NONE
    assert b"t" in known(log)
    assert len(known(log)) < len(before), "room was made"


def test_a_batch_has_no_more_records_than_are_looked_at_in_a_short_time(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events-0", config=DEDUP)
    info = append(log, sourced(*range(50_001), codec=compression.ZSTD))
    assert info.error is ErrorCode.RECORD_LIST_TOO_LARGE
    assert "takes 50000 records in a batch, not 50001" in (info.error_message or "")
    assert log.log_end_offset == 0


@pytest.mark.parametrize("stamped", ["CreateTime", "LogAppendTime"])
def test_what_is_dropped_does_not_count_as_appended(tmp_path: Path, stamped: str) -> None:
    log = open_log(tmp_path / "events-0", config=dataclasses.replace(DEDUP, message_timestamp_type=stamped))
    figures = TopicFigures()
    for positions in (range(100), range(50, 150), range(100)):
        terms = Terms(Origin.CLIENT, whole_request=True)
        count(figures, log.appender.append([bytearray(sourced(*positions))], 0, NOW, terms))
    assert figures.records_in == len(records(log)) == 150
    assert figures.bytes_in == log.size_bytes


def test_a_writer_that_crashes_twice_goes_on(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events-0", config=DEDUP)
    for at in range(0, 4 * PAGE_POSITIONS, 512):
        append(log, sourced(*range(at, at + 512)))
    later = NOW + 10 * DEDUP.fleetlog_dedup_window_ms
    repeats = [range(at, at + 512) for at in range(2 * PAGE_POSITIONS, 4 * PAGE_POSITIONS, 512)]
    for crash in range(2):
        for positions in (*repeats, range(4 * PAGE_POSITIONS, 4 * PAGE_POSITIONS + 9)):
            info = append(log, sourced(*positions), now_ms=later + crash)
            assert info.error is ErrorCode.NONE
    assert len(values(log)) == 4 * PAGE_POSITIONS + 9
    assert append(log, sourced(5), now_ms=later + 9).error is ErrorCode.INVALID_RECORD


def test_an_idle_source_is_known_after_a_killed_broker_starts_again(tmp_path: Path) -> None:
    path = tmp_path / "events-0"
    log = open_log(path, config=DEDUP)
    for at in range(0, 3 * PAGE_POSITIONS, 512):
        append(log, sourced(*range(at, at + 512)))
    log.appender.roll(NOW)
    append(log, sourced(3 * PAGE_POSITIONS))
    log.flusher.flush()
    log.abandon()
    later = NOW + 86_400_000
    again = open_log(path, config=DEDUP, now_ms=later, recovery_point=log.recovery_point)
    assert sets_of(again).sources[b"q:1"].pages[3].touched_ms == later, "it was replayed"
    assert append(again, sourced(100), now_ms=later).error is ErrorCode.NONE
    assert len(values(again)) == 3 * PAGE_POSITIONS + 1


def test_the_last_position_does_not_stop_a_log(tmp_path: Path) -> None:
    last = 2**63 - 4097
    settings = dataclasses.replace(DEDUP, fleetlog_dedup_max_bytes=64 * 1024, fleetlog_dedup_window_ms=1000)
    log = open_log(tmp_path / "events-0", config=settings)
    assert append(log, sourced(last + 1, source=b"x")).error is ErrorCode.INVALID_RECORD
    append(log, sourced(last, source=b"x"))
    for number in range(90):
        append(log, sourced(number * PAGE_POSITIONS), now_ms=NOW + 5000)
    assert sets_of(log).floors == {b"x": last + 1}
    log.appender.roll(NOW + 6000)
    log.close()
    again = open_log(tmp_path / "events-0", clean=True)
    assert sets_of(again).floors == {b"x": last + 1}


def test_settings_that_are_not_written_do_not_count(tmp_path: Path) -> None:
    disk = FullDisk()
    log = open_log(tmp_path / "events-0", disk, config=DEDUP)
    disk.full = True
    other = dataclasses.replace(DEDUP, fleetlog_dedup_window_ms=1000)
    with pytest.raises(DiskFull):
        log.config = other
    assert sets_of(log).window_ms == DEDUP.fleetlog_dedup_window_ms
    disk.full = False
    log.config = other
    assert sets_of(log).window_ms == 1000


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_a_log_that_is_opened_again_knows_what_it_accepted(tmp_path: Path, how: str) -> None:
    path, rng = tmp_path / "events-0", random.Random(how)
    log = open_log(path, config=dataclasses.replace(DEDUP, segment_bytes=900))
    for start in range(0, 400, 10):
        append(log, sourced(*rng.sample(range(start, start + 40), 10), codec=rng.choice((0, compression.GZIP))))
    before, content = known(log), values(log)
    assert len(log.segments) > 3
    if how == "clean":
        log.close()
    else:
        log.abandon()
    again = open_log(path, clean=how == "clean")  # its topic's settings are not known yet
    assert known(again) == before
    assert sets_of(again).max_bytes == DEDUP.fleetlog_dedup_max_bytes
    again.config = DEDUP
    append(again, sourced(*range(440)))
    assert values(again)[: len(content)] == content
    assert sorted(int(value or b"") for _, value in values(again)) == list(range(440))


def test_a_lost_snapshot_is_made_up_for_by_the_log(tmp_path: Path) -> None:
    path = tmp_path / "events-0"
    log = open_log(path, config=dataclasses.replace(DEDUP, segment_bytes=500))
    for start in range(0, 200, 10):
        append(log, sourced(*range(start, start + 10)))
    before = known(log)
    log.close()
    for number, snapshot in enumerate(sorted(path.glob("*.snapshot"))):
        if number % 2:
            snapshot.unlink()
        else:
            snapshot.write_bytes(snapshot.read_bytes()[:-1])
    again = open_log(path, clean=True)
    assert known(again) == before


def test_what_retention_has_deleted_is_still_known_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "events-0"
    log = open_log(path, config=dataclasses.replace(DEDUP, segment_bytes=500))
    for start in range(0, 200, 10):
        append(log, sourced(*range(start, start + 10)))
    closed = list(log.segments)[:-1]
    log.truncation.delete_records_before(log.segments.active.base_offset)
    log.truncation.remove_segments(closed, NOW)
    log.flusher.flush()
    before = known(log)
    log.abandon()
    again = open_log(path, recovery_point=log.recovery_point, log_start_offset=log.log_start_offset)
    assert known(again) == before


def test_a_follower_accepts_what_its_leader_did(tmp_path: Path) -> None:
    leader, follower = (open_log(tmp_path / name, config=DEDUP) for name in ("a", "b"))
    rng = random.Random(3)
    for _ in range(40):
        append(leader, sourced(*[rng.randrange(90) for _ in range(6)], ordinal=rng.randrange(2)))
        if rng.random() < 0.3:
            replicate(leader, follower)
        if rng.random() < 0.1:
            leader, follower = follower, leader
            leader.truncation.truncate_to(min(leader.log_end_offset, follower.log_end_offset))
            follower.truncation.truncate_to(leader.log_end_offset)
    replicate(leader, follower)
    assert values(leader) == values(follower)
    assert known(leader) == known(follower)
    seen = [(record.value, dict(record.headers)["fleetlog.source"]) for record in records(leader)]
    assert len(seen) == len(set(seen))


def test_a_cut_makes_unknown_what_it_takes_away(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events-0", config=DEDUP)
    append(log, sourced(1, 2))
    append(log, sourced(2, 3))
    log.truncation.truncate_to(2)
    append(log, sourced(1, 2, 3))
    assert [value for _, value in values(log)] == [b"1", b"2", b"3"]
    log.truncation.restart_at(50)
    assert append(log, sourced(1)).error is ErrorCode.KAFKA_STORAGE_ERROR, "what was accepted before is not known"
    log.truncation.restart_at(0)
    append(log, sourced(1))
    assert values(log) == [(0, b"1")]


def test_after_a_power_cut_what_is_there_is_what_is_known(tmp_path: Path) -> None:
    disk = RecordingDisk()
    root = tmp_path / "disk"
    log = open_log(root / "events-0", disk, config=dataclasses.replace(DEDUP, segment_bytes=700))
    rng = random.Random(11)
    for number in range(40):
        append(log, sourced(*[rng.randrange(200) for _ in range(5)]))
        if number % 9 == 0:
            log.flusher.flush()
    for number in range(8):
        target = tmp_path / f"image{number}"
        image(disk.ops, rng.randrange(40, len(disk.ops)), rng, str(root), target)
        cut = open_log(target / "events-0")
        assert accepted(cut) == {int(record.value or b"") for record in records(cut)}


def test_a_log_that_begins_to_drop_duplicates_knows_its_records(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events-0")
    append(log, sourced(1, 2))
    append(log, sourced(2))
    append(log, batch(3))
    log.config = DEDUP
    append(log, sourced(1, 2, 3))
    assert [value for _, value in values(log)] == [b"1", b"2", b"2", b"v", b"v", b"v", b"3"]


def test_a_coordinator_ends_a_transaction_of_before(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events-0")
    append_txn(log, 7, 0, 0)
    log.config = DEDUP
    assert end_txn(log, 7, 0, commit=True).error is ErrorCode.NONE
    assert log.last_stable_offset == log.log_end_offset


def test_other_topics_have_nothing_of_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events-0")
    append(log, sourced(1, 1))
    assert len(values(log)) == 2
    assert log.producers.positions is None
    log.close()
    assert not (tmp_path / "events-0" / DEDUP_FILE).exists()


def test_a_snapshot_is_as_large_as_what_it_knows() -> None:
    sets = PositionSets(window_ms=1000, max_bytes=1 << 30)
    sets.accept(page_positions((b"q", at, 0) for at in range(100 * PAGE_POSITIONS)), 0, 0, exact=True)
    assert len(encode_positions(sets)) < 100 * (PAGE_POSITIONS // 8 + 40)


def test_a_reader_passes_over_batches_without_records(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events-0", config=DEDUP)
    for position in [7, *[7, 7] * 200, 8]:
        append(log, sourced(position))

    def answer(offset: int, limit: int = 1 << 20) -> BatchHeader | None:
        found = log.reader.read(offset, limit, log.log_end_offset)
        passed = log.reader.passing(found)
        if passed is None:
            found.release()
            return None
        ((at, header),) = scan(passed)
        assert (at, header.is_control, header.is_transactional, header.producer_id) == (0, True, False, -1)
        assert header.size == len(passed)
        assert read_marker(passed, 0, header) is not None
        return header

    def last(header: BatchHeader | None) -> int:
        assert header is not None
        assert header.record_count == 1
        return header.last_offset

    assert answer(0) is None, "a record is the first"
    assert last(answer(1)) == MOST_BATCHES, "no more are looked at"
    assert answer(MOST_BATCHES + 1) is None, "a record follows"
    assert last(answer(1, limit=150)) == 2, "two of 61 bytes"
    assert answer(log.log_end_offset - 1) is None
