"""What a leader refuses, what it rewrites, and how segments roll."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _native.batch import Record, encode_batch, parse_header, scan, validate_batch
from brokers.log import Log, LogSettings, Origin
from brokers.log.validation import build_batch
from tests.log.faulty import Fault, FaultyDisk
from tests.log.support import (
    DEFAULTS,
    NOW,
    append,
    batch,
    config,
    content,
    files,
    headers,
    marker,
    open_log,
    produced,
    records,
)
from wire import compression
from wire.errors import ErrorCode


@pytest.fixture
def log(tmp_path):
    return open_log(tmp_path / "events-0")


def _patched(data: bytes, payload: bytes | None = None, **fields) -> bytes:
    """A batch with header fields changed and the checksum made right again: a careful liar."""
    header = parse_header(data)._replace(**fields)
    return bytes(build_batch(header, data[61:] if payload is None else payload))


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
    log.append_as_leader(readonly, leader_epoch=1, now_ms=NOW)
    assert readonly == before
    writable = bytearray(batch(1))
    log.append_as_leader(memoryview(writable), leader_epoch=1, now_ms=NOW)
    assert parse_header(writable).base_offset == 2


LIES = {
    "empty": (b"", ErrorCode.INVALID_RECORD),
    "short": (batch(1)[:40], ErrorCode.CORRUPT_MESSAGE),
    "torn": (batch(2)[:-1], ErrorCode.CORRUPT_MESSAGE),
    "trailing": (batch(1) + b"\0", ErrorCode.CORRUPT_MESSAGE),
    "crc": (batch(1)[:-1] + b"\x55", ErrorCode.CORRUPT_MESSAGE),
    "magic 1": (batch(1)[:16] + b"\1" + batch(1)[17:], ErrorCode.INVALID_RECORD),
    "magic 3": (batch(1)[:16] + b"\3" + batch(1)[17:], ErrorCode.CORRUPT_MESSAGE),
    "base offset": (_patched(batch(1), base_offset=5), ErrorCode.INVALID_RECORD),
    "control": (marker(1, 0, commit=True), ErrorCode.INVALID_RECORD),
    "more records than counted": (_patched(batch(3), record_count=2, last_offset_delta=1), ErrorCode.CORRUPT_MESSAGE),
    "fewer records than counted": (_patched(batch(2), record_count=3, last_offset_delta=2), ErrorCode.CORRUPT_MESSAGE),
    "no records": (_patched(batch(1), b"", record_count=0, last_offset_delta=0), ErrorCode.INVALID_RECORD),
    "delta and count differ": (_patched(batch(2), last_offset_delta=5), ErrorCode.INVALID_RECORD),
    "negative delta": (_patched(batch(1), last_offset_delta=-1), ErrorCode.CORRUPT_MESSAGE),
    "codec 5": (_patched(batch(1), attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "not gzip": (_patched(batch(1), attributes=1), ErrorCode.CORRUPT_MESSAGE),
    "producer without epoch": (_patched(batch(1), producer_id=4, base_sequence=0), ErrorCode.INVALID_RECORD),
    "producer without sequence": (_patched(batch(1), producer_id=4, producer_epoch=0), ErrorCode.INVALID_RECORD),
    "transactional without producer": (_patched(batch(1), attributes=0x10), ErrorCode.INVALID_RECORD),
    "append time": (_patched(batch(1), attributes=0x08), ErrorCode.INVALID_TIMESTAMP),
    "far future": (batch(1, timestamp=NOW + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
    "two idempotent batches": (produced(1, 0, 0) + produced(1, 0, 1), ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("name", LIES)
def test_lies(log, name):
    data, error = LIES[name]
    append(log, batch(1))
    info = append(log, data)
    assert info.error == error, info
    assert info.error_message
    assert (log.log_end_offset, info.first_offset) == (1, -1)
    assert append(log, batch(1)).first_offset == 1


@given(data=st.binary(max_size=300))
def test_noise_never_gets_in(tmp_path_factory, data):
    log = open_log(tmp_path_factory.mktemp("n") / "e-0")
    assert append(log, data).error != ErrorCode.NONE
    log.abandon()


@given(data=st.data())
def test_mutated_batches_are_refused_or_right(tmp_path_factory, data):
    original = bytearray(batch(3, codec=data.draw(st.integers(0, 4)), headers=(("h", b"1"),)))
    for _ in range(data.draw(st.integers(1, 3))):
        original[data.draw(st.integers(0, len(original) - 1))] = data.draw(st.integers(0, 255))
    mutated = bytes(original)
    if data.draw(st.booleans()) and len(mutated) > 61:  # a liar that knows the checksum
        fixed = bytearray(mutated)
        from _native.batch import crc32c

        fixed[17:21] = crc32c(memoryview(mutated)[21:]).to_bytes(4, "big")
        mutated = bytes(fixed)
    log = open_log(tmp_path_factory.mktemp("m") / "e-0")
    info = append(log, mutated)
    if info.error == ErrorCode.NONE:
        assert len(records(log)) == info.record_count == log.log_end_offset
    else:
        assert log.log_end_offset == 0
    log.abandon()


def test_several_plain_batches_at_once(log):
    second = _patched(batch(2), base_offset=3)
    info = append(log, batch(3) + second)
    assert (info.first_offset, info.last_offset, info.record_count) == (0, 4, 5)
    assert [h.base_offset for h in headers(log)] == [0, 3]


def test_too_large(tmp_path):
    log = open_log(tmp_path / "e-0", config=config(max_message_bytes=200))
    assert append(log, batch(1, value=b"x" * 200)).error == ErrorCode.MESSAGE_TOO_LARGE
    assert append(log, batch(1, value=b"x" * 20)).error == ErrorCode.NONE
    log = open_log(tmp_path / "f-0", config=config(segment_bytes=200))
    assert append(log, batch(1, value=b"x" * 200)).error == ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_bomb_is_refused(tmp_path):
    log = open_log(tmp_path / "e-0", settings=LogSettings(inflate_limit=10_000))
    assert append(log, batch(1, value=b"\0" * 20_000, codec=compression.GZIP)).error == ErrorCode.CORRUPT_MESSAGE


def test_a_batch_of_very_many_records_is_refused(log):
    count = 1_000_001
    header = parse_header(batch(1))._replace(record_count=count, last_offset_delta=count - 1, attributes=4)
    data = bytes(build_batch(header, compression.compress(4, b"\0" * 7 * count)))
    assert append(log, data).error == ErrorCode.RECORD_LIST_TOO_LARGE


def test_missing_keys_on_a_compacted_topic(tmp_path, caplog):
    log = open_log(tmp_path / "e-0", config=config(cleanup_policy=("compact",)))
    assert "kept" in caplog.text
    rows = [Record(-1, NOW, key, b"v", ()) for key in (b"a", None, b"c", None)]
    info = append(log, encode_batch(rows))
    assert info.error == ErrorCode.INVALID_RECORD
    assert [index for index, _ in info.record_errors] == [1, 3]
    assert append(log, batch(2)).error == ErrorCode.NONE


def test_timestamp_bounds_name_the_records(tmp_path):
    log = open_log(
        tmp_path / "e-0",
        config=config(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500),
    )
    rows = [Record(-1, NOW + delta, b"k", b"v", ()) for delta in (0, -1001, 501, 500, -1000)]
    info = append(log, encode_batch(rows))
    assert info.error == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in info.record_errors] == [1, 2]
    assert append(log, encode_batch([rows[0], rows[3], rows[4]])).error == ErrorCode.NONE


def test_log_append_time(tmp_path):
    log = open_log(tmp_path / "e-0", config=config(message_timestamp_type="LogAppendTime"))
    info = append(log, batch(2, timestamp=5), now_ms=NOW + 77)
    assert info.log_append_time_ms == NOW + 77
    (header,) = headers(log)
    validate_batch(content(log))
    assert header.is_log_append_time
    assert header.max_timestamp == NOW + 77
    assert [r.timestamp for r in records(log)] == [NOW + 77] * 2
    assert log.offset_for_timestamp(NOW) == (0, NOW + 77, 0)
    # a far future is no mistake here: the producer's time is not used
    assert append(log, batch(1, timestamp=NOW * 2)).error == ErrorCode.NONE


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", sorted(compression.NAMES))
def test_the_topic_chooses_the_codec(tmp_path, target, codec):
    log = open_log(tmp_path / "e-0", config=config(compression_type=target))
    info = append(log, batch(20, value=b"value " * 10, codec=codec, headers=(("h", b"x"),)))
    assert info.error == ErrorCode.NONE
    data = content(log)
    header = validate_batch(data)
    assert compression.NAMES[header.codec] == target.replace("uncompressed", "none")
    assert [(r.offset, r.timestamp, r.value, r.headers) for r in records(log)] == [
        (i, NOW + i, b"value " * 10, (("h", b"x"),)) for i in range(20)
    ]
    assert len(data) == info.size == log.size_bytes


def test_a_wrong_max_timestamp_is_put_right(log):
    append(log, _patched(batch(3), max_timestamp=NOW + 999_999_999))
    (header,) = headers(log)
    assert header.max_timestamp == NOW + 2
    validate_batch(content(log))


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


def test_offsets_too_far_apart_for_one_segment(tmp_path):
    log = open_log(tmp_path / "e-0")
    append(log, batch(1))
    far = bytearray(batch(1))
    far[0:8] = (2**31 + 5).to_bytes(8, "big")
    assert log.append_as_follower(far, now_ms=NOW).error == ErrorCode.NONE
    assert [s.base_offset for s in log.segments] == [0, 2**31 + 5]


# ---- followers


def _copy_to(tmp_path, leader: Log) -> Log:
    follower = open_log(tmp_path / "follower")
    data = content(leader)
    assert follower.append_as_follower(data + data[:30], now_ms=NOW).error == ErrorCode.NONE
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
    assert follower.append_as_follower(content(log), now_ms=NOW).error == ErrorCode.OFFSET_OUT_OF_RANGE
    damaged = bytearray(batch(1))
    damaged[0:8] = (3).to_bytes(8, "big")
    damaged[-1] ^= 1
    assert follower.append_as_follower(damaged, now_ms=NOW).error == ErrorCode.CORRUPT_MESSAGE
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
    lambda count, value, shift, codec, attributes, key, fields: _patched(
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
@settings(max_examples=150)
def test_the_short_way_ends_as_the_general_one(topic, sent):
    with tempfile.TemporaryDirectory() as name:
        short, general = (open_log(Path(name) / f"{way}-0", config=config(**topic)) for way in ("short", "general"))
        general._append_plain = lambda *_, **__: None
        taken = 0
        epoch, now_ms = 0, NOW
        for data, later, next_epoch in sent:
            epoch, now_ms = epoch + next_epoch, now_ms + later
            outcomes = [append(log, data, epoch=epoch, now_ms=now_ms) for log in (short, general)]
            assert outcomes[0] == outcomes[1]
            taken += outcomes[0].error is ErrorCode.NONE
        _end_alike(short, general, segments=("hints",), logs=("high_watermark", "recovery_point"))


@given(st.sampled_from(TOPICS), st.lists(st.tuples(SENT, st.integers(0, 3), st.integers(0, 9)), max_size=16))
@settings(max_examples=150)
def test_a_run_ends_as_its_batches_one_by_one(topic, sent):
    with tempfile.TemporaryDirectory() as name:
        runs, general = (open_log(Path(name) / f"{way}-0", config=config(**topic)) for way in ("runs", "general"))
        general._append_plain = lambda *_, **__: None
        epoch, now_ms = 0, NOW
        while sent:
            data, later, next_epoch = sent[0]
            epoch, now_ms = epoch + (not next_epoch), now_ms + 40 * (not later)
            together = list(itertools.takewhile(lambda item: item[1] and item[2], sent[1:]))
            together = [bytearray(data), *(bytearray(item[0]) for item in together)]
            expected = [append(general, data, epoch=epoch, now_ms=now_ms) for data in together]
            sent = sent[len(together) :]
            while together:
                some = list(together)
                admitted = runs.admit_run(some, leader_epoch=epoch, now_ms=now_ms, transactional=True)
                if not admitted:
                    assert append(runs, together.pop(0), epoch=epoch, now_ms=now_ms) == expected.pop(0)
                    continue
                taken = len(admitted)
                assert runs.append_run(some[:taken], admitted, now_ms=now_ms) is None
                assert [one[:2] for one in admitted] == [
                    (one.first_offset, one.last_offset) for one in expected[:taken]
                ]
                assert [one[3] for one in admitted] == [one.size for one in expected[:taken]]
                assert all(one.error is ErrorCode.NONE for one in expected[:taken])
                del together[:taken], expected[:taken]
        _end_alike(runs, general)


def test_a_run_is_one_write_and_all_or_nothing_of_it_is_there(tmp_path):
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk)
    append(log, batch(1))

    def run(*batches):
        some = [bytearray(data) for data in batches]
        admitted = log.admit_run(some, leader_epoch=0, now_ms=NOW, transactional=True)
        return [one[:2] for one in admitted], log.append_run(some, admitted, now_ms=NOW)

    disk.calls.clear()
    assert run(batch(2), batch(1)) == ([(1, 2), (3, 3)], None)
    assert [path for operation, path in disk.calls if operation == "write"] == [log.segments.active.log.path]
    before = content(log)
    disk.faults.append(Fault("write", ".log", written=100, times=1))
    offsets, refusal = run(batch(2), batch(1))
    assert (offsets, refusal.error) == ([(4, 5), (6, 6)], ErrorCode.KAFKA_STORAGE_ERROR)
    assert (content(log), log.log_end_offset) == (before, 4)
    assert append(log, batch(1)).first_offset == 4


def test_what_most_producers_send_takes_the_short_way(log, monkeypatch):
    append(log, batch(1))  # the first of a segment goes the long way
    monkeypatch.setattr("brokers.log.log.check_for_leader", None)
    assert append(log, batch(2)).last_offset == 2
    with pytest.raises(TypeError):
        append(log, produced(9, 0, 0))
