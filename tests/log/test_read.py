"""Reading: by offset and by time, in pieces, with aborted transactions; slices that outlive what was read."""

from __future__ import annotations

import random

import pytest

from fleetlog._native.batch import Record, encode_batch, scan
from fleetlog.brokers.api.base import through
from fleetlog.brokers.log import LogOffline, OffsetOutOfRange, Origin, SliceGone
from fleetlog.brokers.log.store import delete_old_segments
from fleetlog.wire.errors import ErrorCode
from tests.support.logs import (
    NOW,
    aborted_entries,
    append,
    append_txn,
    batch,
    by_time,
    config,
    content,
    end_txn,
    forty_batches,
    latest,
    marker,
    open_log,
    records,
)


@pytest.fixture
def log(tmp_path):
    return forty_batches(tmp_path / "events-0")


def _first_batch(result):
    return scan(b"".join(part.read() for part in result.slices))[0][1]


def test_every_offset_finds_its_batch(log):
    for offset in range(log.log_end_offset):
        result = log.reader.read(offset, 1, end_offset=log.log_end_offset)
        header = _first_batch(result)
        assert header.base_offset <= offset <= header.last_offset
        assert result.next_offset == header.last_offset + 1
        assert result.size == header.size
        result.release()


@pytest.mark.parametrize("max_bytes", [1, 100, 333, 1000, 5000, 1 << 30])
def test_reading_in_pieces_gives_everything_once(log, max_bytes):
    assert content(log, max_bytes=max_bytes) == content(log)
    assert [r.offset for r in records(log)] == list(range(log.log_end_offset))


@pytest.mark.parametrize("max_bytes", [1, 100, 333, 1000, 5000])
def test_no_more_than_asked_for_but_one_batch(log, max_bytes):
    for offset in range(0, log.log_end_offset, 3):
        result = log.reader.read(offset, max_bytes, end_offset=log.log_end_offset)
        batches = scan(b"".join(part.read() for part in result.slices))
        assert len(batches) == 1 or result.size <= max_bytes
        assert batches[-1][0] + batches[-1][1].size == result.size, "whole batches only"
        result.release()
        bounded = log.reader.read(offset, max_bytes, end_offset=log.log_end_offset, min_one_batch=False)
        assert bounded.size <= max_bytes
        bounded.release()


def test_nothing_at_or_above_the_end_asked_for(log):
    borders = {header.base_offset for _, header in scan(content(log))}
    for end in sorted(borders):
        offsets = [h.last_offset for _, h in scan(content(log, 0, end))]
        assert (max(offsets) if offsets else -1) == end - 1
    inside = next(n for n in range(20, log.log_end_offset) if n not in borders)
    assert max([h.last_offset for _, h in scan(content(log, 0, inside))]) < inside


def test_what_readers_left_behind_changes_no_answer(log):
    """Where reads ended, cuts and borders are known; a reader that knows nothing finds the same."""
    rng = random.Random(11)
    offset = 0
    for _ in range(2_000):
        end_offset = rng.choice([log.log_end_offset, log.log_end_offset, rng.randint(1, log.log_end_offset)])
        max_bytes = rng.choice([0, 1, 61, 100, 200, 500, 2_000, 1 << 20])
        one = rng.random() < 0.8
        near = log.reader.read(offset, max_bytes, end_offset=end_offset, min_one_batch=one)
        hints = [(segment, dict(segment.hints)) for segment in log.segments]
        for segment, _ in hints:
            segment.hints.clear()
        far = log.reader.read(offset, max_bytes, end_offset=end_offset, min_one_batch=one)
        for segment, known in hints:
            segment.hints.update(known)
        assert [(p.file, p.position, p.length) for p in near.slices] == [
            (p.file, p.position, p.length) for p in far.slices
        ]
        assert near[1:] == far[1:]
        ended = near.next_offset if near.next_offset < log.log_end_offset else 0
        offset = rng.choice([ended, ended, ended, rng.randrange(log.log_end_offset)])
        near.release()
        far.release()


def test_a_cut_through_what_is_no_batch_is_reported(log):
    segment = log.segments.active
    segment.hints[segment.base_offset] = 0
    with open(segment.log.path, "r+b") as file:
        file.write(b"\xff" * segment.log.size)
    with pytest.raises(LogOffline, match="damaged batch"):
        log.reader.read(segment.base_offset, segment.log.size - 1, end_offset=log.log_end_offset)


@pytest.mark.parametrize("index", [0, -1], ids=["a closed segment", "the active one"])
@pytest.mark.parametrize("hinted", [False, True])
def test_a_batch_that_reaches_beyond_its_segment_hides_nothing_in_silence(log, index, hinted):
    """Whose length is damaged: a reader was sent on to the next segment, and did not hear of what it missed."""
    segment = log.segments[index]
    _, (position, header), *_ = segment.headers()
    with open(segment.log.path, "r+b") as file:
        file.seek(position + 8)
        file.write((2**30).to_bytes(4, "big"))
    segment.hints.clear()
    segment.hints |= {header.base_offset: position} if hinted else {}
    with pytest.raises(LogOffline, match="reaches beyond the segment"):
        log.reader.read(header.base_offset, 100, end_offset=log.log_end_offset)


def test_out_of_range(log):
    end = log.log_end_offset
    assert log.reader.read(end, 100, end_offset=end).slices == ()
    for offset in (-1, end + 1):
        with pytest.raises(OffsetOutOfRange) as info:
            log.reader.read(offset, 100, end_offset=end)
        assert (info.value.low, info.value.high) == (0, end)


def test_read_while_writing(tmp_path):
    """A tail reader that always asks for what comes next, across rolls."""
    log = open_log(tmp_path / "e-0", config=config(segment_bytes=500))
    offset = 0
    for i in range(100):
        append(log, batch(1, value=b"%d" % i))
        result = log.reader.read(offset, 1 << 20, end_offset=log.high_watermark)
        assert [h.base_offset for _, h in scan(result.slices[0].read())] == [i]
        offset = result.next_offset
        result.release()
    assert offset == 100


def test_reads_equal_after_a_restart(log, tmp_path):
    whole, end = content(log), log.log_end_offset
    log.close()
    again = open_log(tmp_path / "events-0", clean=True, config=log.config)
    assert content(again) == whole
    for offset in range(end):
        assert _first_batch(again.reader.read(offset, 1, end_offset=end)).last_offset >= offset


def test_offset_for_timestamp_equals_a_search(log):
    rows = records(log)
    for timestamp in range(NOW - 50, NOW + 4200, 37):
        want = next(((r.offset, r.timestamp) for r in rows if r.timestamp >= timestamp), None)
        found = by_time(log, timestamp)
        assert (found[:2] if found else None) == want


def test_offset_for_timestamp_with_disorder(tmp_path):
    log = open_log(tmp_path / "e-0", config=config(segment_bytes=700, index_interval_bytes=0))
    rng = random.Random(5)
    for _ in range(60):
        rows = [Record(-1, NOW + rng.randrange(500), b"k", b"v", ()) for _ in range(3)]
        append(log, encode_batch(rows, attributes=0))
    rows = records(log)
    for timestamp in range(NOW - 5, NOW + 510, 5):
        want = next(((r.offset, r.timestamp) for r in rows if r.timestamp >= timestamp), None)
        found = by_time(log, timestamp)
        assert (found[:2] if found else None) == want
    largest = max(r.timestamp for r in rows)
    found = latest(log)
    assert found is not None
    assert found[:2] == next((r.offset, r.timestamp) for r in rows if r.timestamp == largest)


def one_late_record(directory):
    """Segments of records with one time, and one record that is later by 5 ms.

    No index leads to what is later by 3 ms: it has the first record of each time.
    """
    log = open_log(directory, config=config(segment_bytes=400_000, index_interval_bytes=0))
    for n in range(3_000):
        append(log, batch(1, timestamp=NOW + 5 * (n == 1_900), value=b"x" * 300))
    return log


def _finding(search, found):
    found.append((yield from search))


def test_a_search_through_batches_of_one_time_pauses_every_64_kib(tmp_path):
    log = one_late_record(tmp_path / "e-0")
    costs, found = [], []
    pauses = len(list(_finding(log.reader.search_timestamp(NOW + 3, costs.append), found)))
    assert found == [(1_900, NOW + 5, 0)]
    assert 2 <= pauses < 10, "only the segment that holds it is walked"
    assert all(cost > 64 * 1024 - 1_000 for cost in costs[:-2])
    assert max(costs) <= 64 * 1024


@pytest.mark.parametrize(
    ("start", "wanted"), [(1_000, (1_900, NOW + 5, 0)), (1_899, (1_900, NOW + 5, 0)), (1_901, None)]
)
def test_a_search_goes_on_in_a_log_that_changes(tmp_path, start, wanted):
    log = one_late_record(tmp_path / "e-0")
    search = log.reader.search_timestamp(NOW + 3, lambda _: None)
    next(search)
    log.truncation.delete_records_before(start)
    delete_old_segments(log, NOW)
    assert through(search) == wanted


def test_time_below_the_log_start_is_skipped(log):
    log.truncation.delete_records_before(30)
    assert by_time(log, 0)[0] == 30


def test_no_time_in_an_empty_log(tmp_path):
    log = open_log(tmp_path / "e-0")
    assert by_time(log, 0) is None
    assert latest(log) is None


def test_a_wrong_time_index_does_no_harm(log, tmp_path):
    want = [by_time(log, NOW + n * 100) for n in range(40)]
    log.close()
    for file in (tmp_path / "events-0").glob("*.timeindex"):
        data = bytearray(file.read_bytes())
        for at in range(0, len(data) - 12, 12):
            data[at + 11] = (data[at + 11] + 1) % 7
        file.write_bytes(data)
    again = open_log(tmp_path / "events-0", clean=True, config=log.config)
    assert [by_time(again, NOW + n * 100) for n in range(40)] == want


def test_asking_for_times_loads_no_index_of_segments_that_do_not_matter(log, tmp_path):
    end = log.log_end_offset
    log.close()
    again = open_log(tmp_path / "events-0", clean=True, config=log.config)
    assert by_time(again, NOW + 3900) is not None
    assert latest(again)[0] == end - 1
    loaded = [segment for segment in again.segments if segment.time_index.loaded]
    assert len(loaded) <= 2 < len(again.segments)


def test_aborted_transactions_are_found_at_their_first_and_last_offset_and_no_further(tmp_path):
    log = open_log(tmp_path / "e-0")
    append(log, batch(2))
    append_txn(log, 1, 0, 0, 2)  # offsets 2 and 3, aborted by 4
    end_txn(log, 1, 0, commit=False)
    append(log, batch(2))
    append_txn(log, 2, 0, 0, 1)  # offset 7, aborted by 9
    append_txn(log, 3, 0, 0, 1)  # offset 8, aborted by 10
    end_txn(log, 2, 0, commit=False)
    end_txn(log, 3, 0, commit=False)

    def found(start, end):
        return [entry.first_offset for entry in log.reader.aborted_transactions(start, end)]

    assert [found(0, 2), found(0, 3), found(3, 4), found(4, 5), found(5, 7)] == [[], [2], [2], [2], []]
    assert [found(0, 8), found(8, 9), found(9, 10), found(10, 11), found(0, 11)] == [
        [2, 7], [7, 8], [7, 8], [8], [2, 7, 8]
    ]  # fmt: skip
    assert [entry.last_stable_offset for entry in aborted_entries(log)] == [5, 8, 11]


def test_control_batch_reads_back(tmp_path):
    log = open_log(tmp_path / "e-0")
    info = append(log, marker(1, 0, commit=True), origin=Origin.COORDINATOR, commit_hw=False)
    assert info.error == ErrorCode.NONE
    assert append(log, marker(2, 0, commit=True), origin=Origin.COORDINATOR).first_offset == 1


def test_slices_outlive_the_log(log):
    result = log.reader.read(0, 1 << 20, end_offset=log.log_end_offset)
    data = [part.read() for part in result.slices]
    assert len(data) > 1
    log.truncation.restart_at(5000, now_ms=NOW)
    assert [part.read() for part in result.slices] == data
    result.release()


def test_a_slice_above_a_truncation_raises(log):
    result = log.reader.read(0, 1 << 20, end_offset=log.log_end_offset)
    last = result.slices[-1]
    log.truncation.truncate_to(log.log_end_offset - 1, now_ms=NOW)
    with pytest.raises(SliceGone):
        last.read()
    result.release()


def test_a_slice_does_not_become_what_was_written_in_its_place(log):
    result = log.reader.read(0, 1 << 20, end_offset=log.log_end_offset)
    end = log.log_end_offset
    before = [part.read() for part in result.slices[:-1]]
    log.truncation.truncate_to(end - 1, now_ms=NOW)
    while log.log_end_offset < end + 5:
        append(log, batch(1, value=b"of another leader"))
    for use in (result.slices[-1].read, result.slices[-1].fileno):
        with pytest.raises(SliceGone):
            use()
    assert [part.read() for part in result.slices[:-1]] == before
    fresh = log.reader.read(end - 1, 1 << 20, end_offset=log.log_end_offset)
    assert [part.fileno() >= 0 for part in fresh.slices]
    fresh.release()
    result.release()
