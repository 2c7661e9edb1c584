"""Appending: offsets and epochs, how segments roll, followers, and that all ways in end alike."""

from __future__ import annotations

import errno
import itertools
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog._native.batch import parse_header, scan, stamp
from fleetlog.brokers.log import Log, Origin
from fleetlog.wire.errors import ErrorCode
from tests.support.draw import examples
from tests.support.faulty import Fault, FaultyDisk, FaultyFile, Killed
from tests.support.logs import (
    DEFAULTS,
    NOW,
    append,
    append_as_leader,
    append_together,
    append_txn,
    assert_every_time_is_found,
    batch,
    config,
    content,
    end_txn,
    files,
    headers,
    look_at_all,
    looked_at,
    marker,
    open_log,
    patched,
    produced,
    records,
)


@pytest.fixture
def log(tmp_path):
    return open_log(tmp_path / "events-0")


def test_offsets_and_epoch_are_assigned(log):
    assert append(log, batch(3), epoch=4).first_offset == 0
    info = append(log, batch(2), epoch=5)
    assert (info.first_offset, info.last_offset, info.record_count) == (3, 4, 2)
    assert info.log_append_time_ms == -1
    assert [(h.base_offset, h.partition_leader_epoch) for h in headers(log)] == [(0, 4), (3, 5)]
    assert [r.offset for r in records(log)] == [0, 1, 2, 3, 4]
    assert log.epochs.entries == [(4, 0), (5, 3)]


def test_a_writable_buffer_is_stamped_in_place_and_a_readonly_one_is_not(log):
    append(log, batch(1))
    readonly = batch(1)
    before = bytes(readonly)
    append_as_leader(log, readonly, leader_epoch=1, now_ms=NOW)
    assert readonly == before
    writable = bytearray(batch(1))
    append_as_leader(log, memoryview(writable), leader_epoch=1, now_ms=NOW)
    assert parse_header(writable).base_offset == 2


def test_several_plain_batches_at_once(log):
    second = patched(batch(2), base_offset=3)
    info = append(log, batch(3) + second)
    assert (info.first_offset, info.last_offset, info.record_count) == (0, 4, 5)
    assert [h.base_offset for h in headers(log)] == [0, 3]


def test_coordinators_may_write_markers_and_any_sequence(log):
    assert append(log, marker(1, 0, commit=True), origin=Origin.COORDINATOR).error == ErrorCode.NONE
    assert headers(log)[0].is_control


# ---- rolling


def test_rolls_by_size(tmp_path):
    size = len(batch(1))
    log = open_log(tmp_path / "e-0", config=config(segment_bytes=3 * size))
    for _ in range(7):
        append(log, batch(1))
    assert [s.base_offset for s in log.segments] == [0, 3, 6]
    assert sorted(f.name for f in (tmp_path / "e-0").glob("*.log")) == [f"{n:020d}.log" for n in (0, 3, 6)]
    assert (tmp_path / "e-0" / f"{3:020d}.snapshot").exists()
    assert len(records(log)) == 7


def test_a_closed_segments_time_index_ends_with_its_largest_timestamp(tmp_path):
    """Kafka takes the last entry for it; here the index may be too sparse to have one."""
    log = open_log(tmp_path, config=config(index_interval_bytes=1 << 20))
    for later_ms in (0, 50, 20):
        append(log, batch(1, timestamp=NOW + later_ms))
    closed = log.segments.active
    log.appender.roll(NOW)
    assert closed.time_index.last() == (NOW + 50, 1)


def test_rolls_by_the_records_time(tmp_path):
    log = open_log(tmp_path / "e-0", config=config(segment_ms=1000))
    append(log, batch(1, timestamp=NOW))
    append(log, batch(1, timestamp=NOW + 1000), now_ms=NOW + 99_999)
    assert len(log.segments) == 1
    append(log, batch(1, timestamp=NOW + 1001), now_ms=NOW)
    assert [s.base_offset for s in log.segments] == [0, 2]


def test_rolls_by_age_without_timestamps(tmp_path):
    log = open_log(tmp_path / "e-0", config=config(segment_ms=1000))
    append(log, batch(1, timestamp=-1), now_ms=NOW)
    append(log, batch(1, timestamp=-1), now_ms=NOW + 1000)
    assert len(log.segments) == 1
    append(log, batch(1, timestamp=-1), now_ms=NOW + 1001)
    assert len(log.segments) == 2


def test_rolls_when_an_index_is_full(tmp_path):
    log = open_log(tmp_path / "e-0", config=config(segment_index_bytes=64, index_interval_bytes=0))
    for _ in range(30):
        append(log, batch(1))
    assert len(log.segments) > 2
    for segment in log.segments:
        assert segment.offset_index.size_bytes <= 64
        assert segment.time_index.size_bytes <= 64 + 12
    assert len(records(log)) == 30


def test_endless_segments_and_any_timestamp(tmp_path):
    """Each setting may be as large as a number of 64 bits."""
    endless = config(segment_ms=2**63 - 1, message_timestamp_after_max_ms=2**63 - 1)
    log = open_log(tmp_path / "e-0", config=endless)
    for number in range(3):
        assert append(log, batch(1, timestamp=NOW + number)).first_offset == number
    assert append(log, batch(1, timestamp=2**63 - 1)).first_offset == 3
    assert len(log.segments) == 1


def test_offsets_too_far_apart_for_one_segment(tmp_path):
    log = open_log(tmp_path / "e-0")
    append(log, batch(1))
    far = bytearray(batch(1))
    far[0:8] = (2**31 + 5).to_bytes(8, "big")
    assert log.appender.append_as_follower(far, now_ms=NOW).error == ErrorCode.NONE
    assert [s.base_offset for s in log.segments] == [0, 2**31 + 5]


# ---- followers


def _copy_to(tmp_path, leader: Log) -> Log:
    follower = open_log(tmp_path / "follower")
    data = content(leader)
    assert follower.appender.append_as_follower(data + data[:30], now_ms=NOW).error == ErrorCode.NONE
    return follower


def test_a_follower_is_byte_equal(tmp_path, log):
    append(log, batch(3), epoch=1)
    append(log, produced(1, 0, 0, 2), epoch=1)
    append(log, batch(3, codec=4), epoch=3)
    follower = _copy_to(tmp_path, log)
    assert content(follower) == content(log)
    assert follower.epochs.entries == log.epochs.entries
    assert follower.producers.entries.keys() == log.producers.entries.keys()


def test_a_follower_refuses_what_does_not_follow(tmp_path, log):
    append(log, batch(3))
    follower = _copy_to(tmp_path, log)
    assert follower.appender.append_as_follower(content(log), now_ms=NOW).error == ErrorCode.OFFSET_OUT_OF_RANGE
    damaged = bytearray(batch(1))
    damaged[0:8] = (3).to_bytes(8, "big")
    damaged[-1] ^= 1
    assert follower.appender.append_as_follower(damaged, now_ms=NOW).error == ErrorCode.CORRUPT_MESSAGE
    assert follower.log_end_offset == 3


def test_defaults_are_kafkas():
    assert DEFAULTS.segment_bytes == 1 << 30
    assert DEFAULTS.max_message_bytes == 1_048_588
    assert scan(batch(1))


TOPICS = [
    {}, {}, {"segment_bytes": 700}, {"segment_ms": 50}, {"message_timestamp_type": "LogAppendTime"},
    {"cleanup_policy": ("compact",)}, {"message_timestamp_before_max_ms": 1000}, {"message_timestamp_after_max_ms": 40},
    {"flush_messages": 2}, {"index_interval_bytes": 0}, {"compression_type": "uncompressed"},
    {"compression_type": "gzip"}, {"max_message_bytes": 150}, {"segment_index_bytes": 24, "index_interval_bytes": 0},
]  # fmt: skip
SENT = st.builds(
    lambda count, value, shift, codec, attributes, key, fields: patched(
        batch(count, value=b"v" * value, key=key, timestamp=NOW + shift, codec=codec, attributes=attributes), **fields
    ),
    st.integers(1, 4),
    st.integers(0, 200),
    st.sampled_from([0, 0, 0, 30, 60, -5000, -1 - NOW]),
    st.sampled_from([0, 0, 0, 0, 1]),
    st.sampled_from([0, 0, 0, 0, 8, 64]),
    st.sampled_from([b"k", b"k", None]),
    st.sampled_from(
        [{}, {}, {}, {"base_offset": 1}, {"max_timestamp": 7}, {"record_count": 9}, {"producer_id": 5},
         {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}]
    ),
)  # fmt: skip


def _end_alike(ours: Log, theirs: Log, *, segments: tuple[str, ...] = (), logs: tuple[str, ...] = ()) -> None:
    """Two logs with the same content, state, indexes and files; closes them. More attributes may be named."""
    assert content(ours) == content(theirs)
    for one, other in zip(ours.segments, theirs.segments, strict=True):
        for what in ("base_offset", "max_timestamp", "first_timestamp", "_bytes_since_index", *segments):
            assert getattr(one, what) == getattr(other, what), what
    for what in ("log_end_offset", "last_now_ms", "unflushed_since_ms", *logs):
        assert getattr(ours, what) == getattr(theirs, what), what
    assert ours.epochs.entries == theirs.epochs.entries
    for log in (ours, theirs):
        log.close()
    assert files(Path(ours.directory)) == files(Path(theirs.directory))


@given(st.sampled_from(TOPICS), st.lists(st.tuples(SENT, st.integers(0, 120), st.integers(0, 1)), max_size=12))
@settings(max_examples=examples(150))
def test_the_short_way_ends_as_the_general_one(topic, sent):
    with tempfile.TemporaryDirectory() as name:
        short, general = (open_log(Path(name) / f"{way}-0", config=config(**topic)) for way in ("short", "general"))
        look_at_all(general)
        taken = 0
        epoch, now_ms = 0, NOW
        for data, later, next_epoch in sent:
            epoch, now_ms = epoch + next_epoch, now_ms + later
            outcomes = [append(log, data, epoch=epoch, now_ms=now_ms) for log in (short, general)]
            assert outcomes[0] == outcomes[1]
            taken += outcomes[0].error is ErrorCode.NONE
        _end_alike(short, general, segments=("hints",), logs=("high_watermark", "recovery_point"))


@given(st.sampled_from(TOPICS), st.lists(st.tuples(SENT, st.integers(0, 3), st.integers(0, 9)), max_size=16))
@settings(max_examples=examples(150))
def test_a_run_ends_as_its_batches_one_by_one(topic, sent):
    with tempfile.TemporaryDirectory() as name:
        runs, general = (open_log(Path(name) / f"{way}-0", config=config(**topic)) for way in ("runs", "general"))
        look_at_all(general)
        epoch, now_ms = 0, NOW
        while sent:
            data, later, next_epoch = sent[0]
            epoch, now_ms = epoch + (not next_epoch), now_ms + 40 * (not later)
            together = list(itertools.takewhile(lambda item: item[1] and item[2], sent[1:]))
            together = [bytearray(data), *(bytearray(item[0]) for item in together)]
            expected = [append(general, data, epoch=epoch, now_ms=now_ms) for data in together]
            sent = sent[len(together) :]
            assert append_together(runs, together, epoch=epoch, now_ms=now_ms) == expected
        if "flush_messages" in topic:  # a run is flushed as a whole: also the batches behind the one that was due
            general.unflushed_since_ms = runs.unflushed_since_ms
        _end_alike(runs, general)


def test_a_run_is_one_write_and_all_or_nothing_of_it_is_there(tmp_path):
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk)
    append(log, batch(1))
    disk.calls.clear()
    assert [info[:2] for info in append_together(log, [batch(2), batch(1)])] == [(1, 2), (3, 3)]
    assert [path for operation, path in disk.calls if operation == "write"] == [log.segments.active.log.path]
    before = content(log)
    disk.faults.append(Fault("write", ".log", written=100, times=1))
    refused = append_together(log, [batch(2), batch(1)])
    assert [info.error for info in refused] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert (content(log), log.log_end_offset) == (before, 4)
    assert append(log, batch(1)).first_offset == 4


def test_a_batch_that_is_looked_at_stands_between_those_that_are_ready(log):
    append(log, batch(1))
    closer = looked_at(log)
    found = append_together(log, [batch(1), batch(2, codec=1), batch(1)[:-1], batch(3)])
    assert [(info.error, *info[:2]) for info in found] == [
        (ErrorCode.NONE, 1, 1),
        (ErrorCode.NONE, 2, 3),
        (ErrorCode.CORRUPT_MESSAGE, -1, -1),
        (ErrorCode.NONE, 4, 6),
    ]
    assert closer == [batch(2, codec=1), batch(1)[:-1]]


def test_what_most_producers_send_needs_no_closer_look(log):
    append(log, batch(1))  # the first of a segment does
    closer = looked_at(log)
    assert append(log, batch(2)).last_offset == 2
    assert append(log, produced(9, 0, 0)).last_offset == 3
    assert not closer


@pytest.mark.parametrize("how", ["one", "run", "follower"])
def test_indexes_stand_beside_the_active_segment(tmp_path, how):
    """Kafka's tools look for both from the first record on; nothing is read or written for it afterwards."""
    path = tmp_path / "e-0"
    log = open_log(path, config=config(segment_bytes=1000))
    for number in range(30):
        rows = batch(1, value=b"x" * 100)
        if how == "follower":
            rows = bytearray(rows)
            rows[:8] = log.log_end_offset.to_bytes(8, "big")
            assert log.appender.append_as_follower(rows, now_ms=NOW).error == 0
        elif how == "run":
            assert [info.error for info in append_together(log, [rows, rows])] == [0, 0]
        else:
            assert append(log, rows).error == 0
        stems = {file.stem for file in path.glob("*.log")}
        assert {file.stem for file in path.glob("*.index")} == stems == {file.stem for file in path.glob("*.timeindex")}
        assert not list(path.glob("*.txnindex"))
        assert number or len(stems) == 1
    assert len(log.segments) > 3


def test_a_disk_too_full_for_an_index_takes_the_batch(tmp_path):
    disk = FaultyDisk()
    log = open_log(tmp_path / "e-0", disk=disk)
    disk.faults.append(Fault("create", "index", errno.ENOSPC))
    assert append(log, batch(1)).error == 0
    assert not list((tmp_path / "e-0").glob("*index"))
    disk.faults.clear()
    log.close()
    assert len(list((tmp_path / "e-0").glob("*index"))) == 2


def test_an_abort_enters_the_index_of_the_segment_that_has_its_marker(tmp_path):
    log = open_log(tmp_path / "e-0", config=config(segment_bytes=250))
    append_txn(log, 1, 0, 0)
    append(log, batch(1, value=b"x" * 100))
    end_txn(log, 1, 0, commit=False)
    assert [(segment.base_offset, len(segment.txn_index)) for segment in log.segments] == [(0, 0), (2, 1)]


def _compacted(count):
    """Batches of five records each, by their offsets, and the log that has them."""
    batches = [bytearray(produced(7, 0, n * 5, 5, timestamp=NOW + n)) for n in range(count)]
    for n, data in enumerate(batches):
        stamp(data, 0, n * 5, 0, -1)
    return {n * 5: bytes(data) for n, data in enumerate(batches)}


def test_a_write_behind_a_hole_that_finds_no_room_leaves_no_segment_above_the_end(tmp_path):
    """Another leader may have what is missing here, and then it must go where readers look for it."""
    disk, batches = FaultyDisk(), _compacted(12)
    log = open_log(tmp_path / "e-0", disk, config=config(segment_bytes=400), may_have_holes=True)
    for offset in (0, 5, 10):
        assert log.appender.append_as_follower(batches[offset]).error == 0
    disk.faults.append(Fault("write", ".log", times=1, written=40))
    assert log.appender.append_as_follower(batches[45]).error is ErrorCode.KAFKA_STORAGE_ERROR
    log.abandon()
    for clean in (True, False):
        log = open_log(tmp_path / "e-0", config=log.config, clean=clean, may_have_holes=True)
        assert log.log_end_offset == 15
        log.abandon()
    log = open_log(tmp_path / "e-0", config=log.config, may_have_holes=True)
    for offset in (15, 20, 45):
        assert log.appender.append_as_follower(batches[offset]).error == 0
    assert [header.base_offset for header in headers(log)] == [0, 5, 10, 15, 20, 45]


def test_offsets_that_one_segment_cannot_address_come_in_two_writes(tmp_path):
    disk = FaultyDisk()
    log = open_log(tmp_path / "e-0", disk, may_have_holes=True)
    near, far = bytearray(batch(1)), bytearray(batch(1))
    stamp(near, 0, 0, 0, -1)
    stamp(far, 0, 3_000_000_000, 0, -1)
    assert log.appender.append_as_follower(bytes(near + far)).record_count == 1
    disk.faults.append(Fault("write", "3000000000.log", times=1))
    assert log.appender.append_as_follower(bytes(far)).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert [segment.base_offset for segment in log.segments] == [0]
    assert log.appender.append_as_follower(bytes(far)).error == 0
    log.appender.roll(NOW)
    log.abandon()
    again = open_log(tmp_path / "e-0", may_have_holes=True)
    assert [header.base_offset for header in headers(again)] == [0, 3_000_000_000]


def test_an_index_that_leads_between_batches_stops_no_append(tmp_path):
    """What the first write after a start needs to know of the batches before it is looked up before it."""
    settings = config(index_interval_bytes=100)
    log = open_log(tmp_path / "e-0", config=settings)
    for n in range(20):
        append(log, batch(1, timestamp=NOW + n))
    log.close()
    path = tmp_path / "e-0" / f"{0:020d}.index"
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 7]))
    log = open_log(tmp_path / "e-0", config=settings, clean=True, recovery_point=20)
    for n in range(2):
        assert append(log, batch(1, timestamp=NOW + 20 + n)).first_offset == 20 + n
    assert_every_time_is_found(log)


def test_damage_at_the_end_of_what_is_there_refuses_a_write(tmp_path):
    log = open_log(tmp_path / "e-0", config=config(index_interval_bytes=100))
    for n in range(20):
        append(log, batch(1, timestamp=NOW + n))
    log.close()
    log = open_log(tmp_path / "e-0", config=log.config, clean=True, recovery_point=20)
    path, size = tmp_path / "e-0" / f"{0:020d}.log", log.size_bytes
    with path.open("r+b") as file:
        file.seek(size - len(batch(1)) + 16)
        file.write(b"\x07")
    info = append(log, batch(1))
    assert info.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert "damaged" in info.error_message
    assert (log.size_bytes, log.log_end_offset) == (size, 20)


class _StaysEmpty(FaultyFile):
    """The process ends before the first write into the far segment."""

    def write(self, data, position):
        if "3000000000.log" in self.path:
            raise Killed
        super().write(data, position)


@pytest.mark.parametrize("how", ["killed", "failed", "no room"])
@pytest.mark.parametrize("point", [0, 1])
def test_a_far_segment_that_got_no_batch(tmp_path, how, point):
    """It says nothing of where the log ends, and its snapshot nothing of the producers there."""
    disk = FaultyDisk()
    log = open_log(tmp_path / "e-0", disk, may_have_holes=True)
    near, far, next_one = (patched(batch(1), base_offset=offset) for offset in (0, 3_000_000_000, 1))
    assert log.appender.append_as_follower(near).error == 0
    if point:
        log.flusher.flush()
    if how == "killed":
        disk.file_class = _StaysEmpty
        with pytest.raises(Killed):
            log.appender.append_as_follower(far)
    else:
        op, error = ("write", errno.EIO) if how == "failed" else ("create", errno.ENOSPC)
        disk.faults.append(Fault(op, "3000000000.log", error=error))
        assert log.appender.append_as_follower(far).error is ErrorCode.KAFKA_STORAGE_ERROR
    if how == "no room":
        assert not [name for name in os.listdir(tmp_path / "e-0") if name.startswith("00000000003")]
    log.abandon()
    log = open_log(tmp_path / "e-0", may_have_holes=True, recovery_point=point)
    assert (log.log_end_offset, [segment.base_offset for segment in log.segments]) == (1, [0])
    assert not [name for name in os.listdir(tmp_path / "e-0") if name.startswith("00000000003")]
    assert log.appender.append_as_follower(next_one).error == 0
    assert log.appender.append_as_follower(far).error == 0
    log.abandon()
    log = open_log(tmp_path / "e-0", may_have_holes=True)
    assert log.log_end_offset == 3_000_000_001


def test_an_empty_segment_at_the_end_of_the_log_stays(tmp_path):
    log = open_log(tmp_path / "e-0", may_have_holes=True)
    for offset in (0, 5, 9):
        assert log.appender.append_as_follower(patched(batch(1), base_offset=offset)).error == 0
    log.appender.roll(NOW)
    for point in (0, 9, 10):
        log.abandon()
        log = open_log(tmp_path / "e-0", may_have_holes=True, recovery_point=point)
        assert (log.log_end_offset, [segment.base_offset for segment in log.segments]) == (10, [0, 10])
