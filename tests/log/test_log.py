"""Reading, finding by time, epochs, truncation, slices and descriptors of one log."""

from __future__ import annotations

import gc
import random

import pytest

from _native.batch import Record, encode_batch, scan
from brokers.log import OffsetOutOfRange, Origin, RealDisk, SliceGone
from brokers.log.epochs import EpochCache
from tests.log.support import (
    NOW,
    TP,
    append,
    append_txn,
    batch,
    config,
    content,
    end_txn,
    marker,
    open_log,
    produced,
    records,
)
from wire.errors import ErrorCode


@pytest.fixture
def log(tmp_path):
    """40 batches of 1..4 records over several segments."""
    log = open_log(tmp_path / "events-0", config=config(segment_bytes=1200, index_interval_bytes=150))
    rng = random.Random(3)
    for i in range(40):
        append(log, batch(rng.randint(1, 4), value=b"v" * rng.randint(1, 60), timestamp=NOW + 100 * i), epoch=i // 10)
    return log


def _first_batch(result):
    return scan(b"".join(part.read() for part in result.slices))[0][1]


def test_every_offset_finds_its_batch(log):
    for offset in range(log.log_end_offset):
        result = log.read(offset, 1, end_offset=log.log_end_offset)
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
        result = log.read(offset, max_bytes, end_offset=log.log_end_offset)
        batches = scan(b"".join(part.read() for part in result.slices))
        assert len(batches) == 1 or result.size <= max_bytes
        assert batches[-1][0] + batches[-1][1].size == result.size, "whole batches only"
        result.release()
        bounded = log.read(offset, max_bytes, end_offset=log.log_end_offset, min_one_batch=False)
        assert bounded.size <= max_bytes
        bounded.release()


def test_nothing_at_or_above_the_end_asked_for(log):
    borders = {header.base_offset for _, header in scan(content(log))}
    for end in sorted(borders):
        offsets = [h.last_offset for _, h in scan(content(log, 0, end))]
        assert (max(offsets) if offsets else -1) == end - 1
    inside = next(n for n in range(20, log.log_end_offset) if n not in borders)
    assert max([h.last_offset for _, h in scan(content(log, 0, inside))]) < inside


def test_reading_on_answers_as_reading_does_or_not_at_all(log):
    rng = random.Random(11)
    answered = 0
    offset = 0
    for _ in range(3_000):
        end_offset = rng.choice([log.log_end_offset, log.log_end_offset, rng.randint(1, log.log_end_offset)])
        max_bytes = rng.choice([-1, 0, 1, 61, 100, 200, 500, 2_000, 1 << 20])
        near = log.read_on(offset, max_bytes, end_offset)
        result = log.read(offset, max(0, max_bytes), end_offset=end_offset)
        if near is not None:
            answered += 1
            (piece,), size, _, behind = near
            assert size == piece.length
            assert [(p.file, p.position, p.length) for p in result.slices] == [
                (piece.file, piece.position, piece.length)
            ]
            assert behind == result.next_offset
        ended = result.next_offset if result.next_offset < log.log_end_offset else 0
        offset = rng.choice([ended, ended, ended, rng.randrange(log.log_end_offset)])
    assert answered > 200
    assert log.read_on(log.log_end_offset, 100, log.log_end_offset) is None
    assert log.read_on(-1, 100, log.log_end_offset) is None


def test_reading_on_leaves_what_is_wrong_to_reading(log):
    end = log.log_end_offset
    segment = log.segments.active
    first = segment.base_offset
    segment.remember(first, 0)
    most = segment.log.size - 1
    assert log.read_on(first, most, end) is not None
    with open(segment.log.path, "r+b") as file:
        file.write(b"\xff" * segment.log.size)
    assert log.read_on(first, most, end) is None
    log.offline = True
    assert log.read_on(first, 1 << 20, end) is None


def test_out_of_range(log):
    end = log.log_end_offset
    assert log.read(end, 100, end_offset=end).slices == ()
    for offset in (-1, end + 1):
        with pytest.raises(OffsetOutOfRange) as info:
            log.read(offset, 100, end_offset=end)
        assert (info.value.low, info.value.high) == (0, end)


def test_read_while_writing(tmp_path):
    """A tail reader that always asks for what comes next, across rolls."""
    log = open_log(tmp_path / "e-0", config=config(segment_bytes=500))
    offset = 0
    for i in range(100):
        append(log, batch(1, value=b"%d" % i))
        result = log.read(offset, 1 << 20, end_offset=log.high_watermark)
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
        assert _first_batch(again.read(offset, 1, end_offset=end)).last_offset >= offset


# ---- by time


def test_offset_for_timestamp_equals_a_search(log):
    rows = records(log)
    for timestamp in range(NOW - 50, NOW + 4200, 37):
        want = next(((r.offset, r.timestamp) for r in rows if r.timestamp >= timestamp), None)
        found = log.offset_for_timestamp(timestamp)
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
        found = log.offset_for_timestamp(timestamp)
        assert (found[:2] if found else None) == want
    largest = max(r.timestamp for r in rows)
    found = log.max_timestamp()
    assert found is not None
    assert found[:2] == next((r.offset, r.timestamp) for r in rows if r.timestamp == largest)


def test_time_below_the_log_start_is_skipped(log):
    log.delete_records_before(30)
    assert log.offset_for_timestamp(0)[0] == 30


def test_no_time_in_an_empty_log(tmp_path):
    log = open_log(tmp_path / "e-0")
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp() is None


def test_a_wrong_time_index_does_no_harm(log, tmp_path):
    want = [log.offset_for_timestamp(NOW + n * 100) for n in range(40)]
    log.close()
    for file in (tmp_path / "events-0").glob("*.timeindex"):
        data = bytearray(file.read_bytes())
        for at in range(0, len(data) - 12, 12):
            data[at + 11] = (data[at + 11] + 1) % 7
        file.write_bytes(data)
    again = open_log(tmp_path / "events-0", clean=True, config=log.config)
    assert [again.offset_for_timestamp(NOW + n * 100) for n in range(40)] == want


# ---- epochs


def test_epoch_ends(log):
    ends = {}
    for _, header in scan(content(log)):
        ends[header.partition_leader_epoch] = header.last_offset + 1
    assert [log.epoch_end_offset(epoch) for epoch in range(4)] == [(e, ends[e]) for e in range(4)]
    assert log.epoch_end_offset(4) == (-1, -1)
    assert log.epoch_end_offset(-1) == (-1, -1)
    log.assign_epoch(7)
    assert log.latest_epoch == 7
    assert log.epoch_end_offset(5) == (3, log.log_end_offset)
    assert log.epoch_end_offset(7) == (7, log.log_end_offset)


def test_epoch_cache_truncations():
    cache = EpochCache()
    for epoch, start in ((2, 0), (4, 10), (5, 10), (9, 25)):
        cache.assign(epoch, start)
    assert cache.entries == [(2, 0), (5, 10), (9, 25)]
    assert cache.end_offset(4, 30) == (2, 10)
    assert cache.end_offset(1, 30) == (1, 0)
    assert cache.epoch_at(12) == 5
    cache.truncate_from_start(12)
    assert cache.entries == [(5, 12), (9, 25)]
    cache.truncate_from_start(25)
    assert cache.entries == [(9, 25)]
    cache.truncate_from_end(25)
    assert cache.entries == []


# ---- truncation


@pytest.mark.parametrize("share", [0.0, 0.1, 0.33, 0.5, 0.77, 0.99])
def test_truncation(log, tmp_path, share):
    whole = scan(content(log))
    offset = int(log.log_end_offset * share)
    kept = [h for _, h in whole if h.last_offset < offset]
    end = log.truncate_to(offset, now_ms=NOW)
    assert end == (kept[-1].last_offset + 1 if kept else 0) == log.log_end_offset
    assert [h.base_offset for _, h in scan(content(log))] == [h.base_offset for h in kept]
    assert log.high_watermark <= end
    assert all(entry.start_offset < end for entry in log.epochs.entries)
    assert append(log, batch(2), epoch=8).first_offset == end
    log.close(clean=False)
    again = open_log(tmp_path / "events-0", config=log.config)
    assert again.log_end_offset == end + 2
    assert again.epochs.entries == log.epochs.entries


def test_truncation_rebuilds_producers_and_aborts(tmp_path):
    log = open_log(tmp_path / "e-0", config=config(segment_bytes=500))
    states = {}
    for i in range(30):
        states[log.log_end_offset] = (
            {p: (e.last_sequence, e.txn_first_offset) for p, e in log.producers.entries.items()},
            log.aborted_entries(),
            log.last_stable_offset,
        )
        kind = i % 5
        if kind == 0:
            append_txn(log, 1, 0, i // 5, 1)
        elif kind == 1:
            append(log, produced(2, 0, i // 5))
        elif kind == 2:
            append_txn(log, 3 + i, 0, 0)
        elif kind == 3:
            end_txn(log, 1, 0, commit=False)
        else:
            append(log, batch(2))
    for end in sorted(states, reverse=True):
        log.truncate_to(end, now_ms=NOW)
        got = (
            {p: (e.last_sequence, e.txn_first_offset) for p, e in log.producers.entries.items()},
            log.aborted_entries(),
            log.last_stable_offset,
        )
        assert got == states[end]
    assert log.log_end_offset == 0


def test_restart_at(log):
    log.restart_at(1000, now_ms=NOW)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (1000, 1000, 1000)
    assert append(log, batch(1)).first_offset == 1000
    assert log.size_bytes == len(batch(1))


# ---- slices and descriptors


def test_slices_outlive_the_log(log):
    result = log.read(0, 1 << 20, end_offset=log.log_end_offset)
    data = [part.read() for part in result.slices]
    assert len(data) > 1
    log.restart_at(5000, now_ms=NOW)
    assert [part.read() for part in result.slices] == data
    result.release()


def test_a_slice_above_a_truncation_tells(log):
    result = log.read(0, 1 << 20, end_offset=log.log_end_offset)
    last = result.slices[-1]
    log.truncate_to(log.log_end_offset - 1, now_ms=NOW)
    with pytest.raises(SliceGone):
        last.read()
    result.release()


def test_a_slice_does_not_become_what_was_written_in_its_place(log):
    result = log.read(0, 1 << 20, end_offset=log.log_end_offset)
    end = log.log_end_offset
    before = [part.read() for part in result.slices[:-1]]
    log.truncate_to(end - 1, now_ms=NOW)
    while log.log_end_offset < end + 5:
        append(log, batch(1, value=b"of another leader"))
    for use in (result.slices[-1].read, result.slices[-1].fileno):
        with pytest.raises(SliceGone):
            use()
    assert [part.read() for part in result.slices[:-1]] == before
    fresh = log.read(end - 1, 1 << 20, end_offset=log.log_end_offset)
    assert [part.fileno() >= 0 for part in fresh.slices]
    fresh.release()
    result.release()


def test_forgotten_slices_give_their_descriptor_back(log):
    result = log.read(0, 100, end_offset=log.log_end_offset)
    file = result.slices[0].file
    assert file.pinned
    del result
    gc.collect()
    assert not file.pinned


def test_few_descriptors_for_many_segments(tmp_path):
    disk = RealDisk(max_open=5)
    log = open_log(tmp_path / "e-0", disk, config=config(segment_bytes=200))
    for i in range(100):
        append(log, batch(1, value=b"%d" % i))
    assert len(log.segments) > 30
    pinned = [log.read(i, 1, end_offset=100) for i in range(0, 12, 3)]
    assert [r.value for r in records(log)] == [b"%d" % i for i in range(100)]
    append(open_log(tmp_path / "f-0", disk), batch(1))
    assert disk.open_files <= 5 + len(pinned)
    for i, result in enumerate(pinned):
        assert scan(result.slices[0].read())[0][1].base_offset == 3 * i
        result.release()


def test_an_idle_log_holds_no_descriptor(tmp_path):
    disk = RealDisk()
    logs = [open_log(tmp_path / f"e-{i}", disk, TP._replace(partition=i), clean=True) for i in range(50)]
    assert disk.open_files == 0
    assert sorted(p.name for p in (tmp_path / "e-0").iterdir()) == [f"{0:020d}.log"]
    append(logs[0], batch(1))
    assert disk.open_files <= 2


def test_control_batch_reads_back(tmp_path):
    log = open_log(tmp_path / "e-0")
    info = log.append_control(marker(1, 0, commit=True), leader_epoch=0, now_ms=NOW)
    assert info.error == ErrorCode.NONE
    assert append(log, marker(2, 0, commit=True), origin=Origin.COORDINATOR).first_offset == 1


def test_asking_for_times_loads_no_index_of_segments_that_do_not_matter(log, tmp_path):
    end = log.log_end_offset
    log.close()
    again = open_log(tmp_path / "events-0", clean=True, config=log.config)
    assert again.offset_for_timestamp(NOW + 3900) is not None
    assert again.max_timestamp()[0] == end - 1
    loaded = [segment for segment in again.segments if segment.time_index.loaded]
    assert len(loaded) <= 2 < len(again.segments)
