"""What a leader refuses of a client, and what it rewrites."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog._native.batch import Record, encode_batch, parse_header, validate_batch
from fleetlog.brokers.log import LogSettings
from fleetlog.brokers.log.validation import LEVEL_UP_TO, QUICKEST_ABOVE, build_batch, pack_quickly
from fleetlog.wire import compression
from fleetlog.wire.errors import ErrorCode
from tests.support.logs import (
    NOW,
    append,
    batch,
    by_time,
    config,
    content,
    headers,
    marker,
    open_log,
    patched,
    produced,
    records,
)


@pytest.fixture
def log(tmp_path):
    return open_log(tmp_path / "events-0")


LIES = {
    "empty": (b"", ErrorCode.INVALID_RECORD),
    "short": (batch(1)[:40], ErrorCode.CORRUPT_MESSAGE),
    "torn": (batch(2)[:-1], ErrorCode.CORRUPT_MESSAGE),
    "trailing": (batch(1) + b"\0", ErrorCode.CORRUPT_MESSAGE),
    "crc": (batch(1)[:-1] + b"\x55", ErrorCode.CORRUPT_MESSAGE),
    "magic 1": (batch(1)[:16] + b"\1" + batch(1)[17:], ErrorCode.INVALID_RECORD),
    "magic 3": (batch(1)[:16] + b"\3" + batch(1)[17:], ErrorCode.CORRUPT_MESSAGE),
    "base offset": (patched(batch(1), base_offset=5), ErrorCode.INVALID_RECORD),
    "control": (marker(1, 0, commit=True), ErrorCode.INVALID_RECORD),
    "more records than counted": (patched(batch(3), record_count=2, last_offset_delta=1), ErrorCode.CORRUPT_MESSAGE),
    "fewer records than counted": (patched(batch(2), record_count=3, last_offset_delta=2), ErrorCode.CORRUPT_MESSAGE),
    "no records": (patched(batch(1), b"", record_count=0, last_offset_delta=0), ErrorCode.INVALID_RECORD),
    "delta and count differ": (patched(batch(2), last_offset_delta=5), ErrorCode.INVALID_RECORD),
    "negative delta": (patched(batch(1), last_offset_delta=-1), ErrorCode.CORRUPT_MESSAGE),
    "codec 5": (patched(batch(1), attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "not gzip": (patched(batch(1), attributes=1), ErrorCode.CORRUPT_MESSAGE),
    "producer without epoch": (patched(batch(1), producer_id=4, base_sequence=0), ErrorCode.INVALID_RECORD),
    "producer without sequence": (patched(batch(1), producer_id=4, producer_epoch=0), ErrorCode.INVALID_RECORD),
    "transactional without producer": (patched(batch(1), attributes=0x10), ErrorCode.INVALID_RECORD),
    "append time": (patched(batch(1), attributes=0x08), ErrorCode.INVALID_TIMESTAMP),
    "far future": (batch(1, timestamp=NOW + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
    "two idempotent batches": (produced(1, 0, 0) + produced(1, 0, 1), ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("name", LIES)
def test_a_batch_that_lies_is_refused_and_not_appended(log, name):
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
        from fleetlog._native.batch import crc32c

        fixed[17:21] = crc32c(memoryview(mutated)[21:]).to_bytes(4, "big")
        mutated = bytes(fixed)
    log = open_log(tmp_path_factory.mktemp("m") / "e-0")
    info = append(log, mutated)
    if info.error == ErrorCode.NONE:
        assert len(records(log)) == info.record_count == log.log_end_offset
    else:
        assert log.log_end_offset == 0
    log.abandon()


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


def test_missing_keys_on_a_compacted_topic(tmp_path):
    log = open_log(tmp_path / "e-0", config=config(cleanup_policy=("compact",)))
    rows = [Record(-1, NOW, key, b"v", ()) for key in (b"a", None, b"c", None)]
    info = append(log, encode_batch(rows))
    assert info.error == ErrorCode.INVALID_RECORD
    assert [index for index, _ in info.record_errors] == [1, 3]
    assert append(log, batch(2)).error == ErrorCode.NONE


def test_all_bad_records_are_named_or_none(tmp_path):
    """A client takes the records that are not named for good ones: librdkafka's say so to the application."""
    log = open_log(tmp_path / "e-0", config=config(cleanup_policy=("compact",)))
    rows = [Record(-1, NOW, None if index % 10 else b"k", b"v", ()) for index in range(1000)]
    info = append(log, encode_batch(rows))
    assert [index for index, _ in info.record_errors] == [index for index in range(1000) if index % 10]
    messages = [message for _, message in info.record_errors]
    assert all(messages[:100]), "the first say what is wrong"
    assert not any(messages[100:]), "the others have the batch's message: they cost a few bytes each"
    assert "900 records" in info.error_message
    assert len(append(log, encode_batch(rows), explain=1000).record_errors) == 900
    assert append(log, encode_batch(rows), explain=999).record_errors == ()
    log.config = config(message_timestamp_after_max_ms=5)
    late = encode_batch([Record(-1, NOW + 6 + index, b"k", b"v", ()) for index in range(7)])
    assert [index for index, _ in append(log, late).record_errors] == list(range(7))
    assert append(log, late, explain=6).record_errors == ()


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


@pytest.mark.parametrize("compacted", [False, True])
def test_a_record_of_a_compressed_batch_has_a_length(tmp_path, compacted):
    """Kafka counts a record's own length field, and looks only where it decompresses."""
    policy = ("compact",) if compacted else ("delete",)
    log = open_log(tmp_path / "e-0", config=config(max_decompressed_message_bytes=2_000, cleanup_policy=policy))

    def packed(codec: int, *values: int) -> bytes:
        rows = [Record(-1, NOW, b"k", bytes(size), ()) for size in values]
        pack = (lambda payload: compression.compress(codec, payload)) if codec else None
        return encode_batch(rows, attributes=codec, compress=pack)

    length = 1_990 + len(b"k") + 7  # attributes, deltas of time and offset, the two lengths, headers
    for codec in sorted(set(compression.NAMES) - {0}):
        assert append(log, packed(codec, *[1_000] * 20)).error == ErrorCode.NONE
        assert append(log, packed(codec, 1, 1_990, 1)).error == ErrorCode.NONE
        info = append(log, packed(codec, 1, 1_993, 1))
        assert info.error == ErrorCode.INVALID_RECORD
        assert f"{length + 3} bytes" in info.error_message
        assert "max.decompressed.message.bytes is 2000" in info.error_message
    assert append(log, packed(0, 10_000)).error == ErrorCode.NONE


def test_log_append_time(tmp_path):
    log = open_log(tmp_path / "e-0", config=config(message_timestamp_type="LogAppendTime"))
    info = append(log, batch(2, timestamp=5), now_ms=NOW + 77)
    assert info.log_append_time_ms == NOW + 77
    (header,) = headers(log)
    validate_batch(content(log))
    assert header.is_log_append_time
    assert header.max_timestamp == NOW + 77
    assert [r.timestamp for r in records(log)] == [NOW + 77] * 2
    assert by_time(log, NOW) == (0, NOW + 77, 0)
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


@pytest.mark.parametrize(("codec", "level", "size", "chosen"), [
    (compression.GZIP, 9, LEVEL_UP_TO, 9), (compression.GZIP, 9, LEVEL_UP_TO + 1, None),
    (compression.GZIP, 1, QUICKEST_ABOVE, 1), (compression.GZIP, None, QUICKEST_ABOVE, None),
    (compression.GZIP, None, QUICKEST_ABOVE + 1, 1), (compression.ZSTD, 22, LEVEL_UP_TO + 1, None),
    (compression.ZSTD, 2, QUICKEST_ABOVE, 2), (compression.ZSTD, 22, QUICKEST_ABOVE + 1, 1),
    (compression.LZ4, 17, LEVEL_UP_TO, 17), (compression.LZ4, 17, LEVEL_UP_TO + 1, None),
    (compression.LZ4, 17, QUICKEST_ABOVE + 1, None), (compression.SNAPPY, None, QUICKEST_ABOVE + 1, None),
])  # fmt: skip
def test_long_batches_are_packed_quickly(
    monkeypatch: pytest.MonkeyPatch, codec: int, level: int | None, size: int, chosen: int | None
) -> None:
    """The loop waits: with zstd's highest level a batch that unpacks to 64 MiB would take half a minute."""
    found: list[int | None] = []
    monkeypatch.setattr(compression, "compress", lambda codec, payload, level=None: found.append(level))
    pack_quickly(codec, bytes(size), level)
    assert found == [chosen]


@pytest.mark.parametrize(("target", "least", "most"), [("gzip", 1, 9), ("lz4", 9, 12), ("zstd", -1000, 19)])
def test_the_topic_chooses_the_level(tmp_path, target, least, most):
    value = b"".join(b"%d and %d" % (n * 7919 % 1000, n) for n in range(2000))
    sizes = []
    for number, level in enumerate((least, most)):
        changes = {"compression_type": target, f"compression_{target}_level": level}
        log = open_log(tmp_path / f"e-{number}", config=config(**changes))
        assert append(log, batch(3, value=value)).error == ErrorCode.NONE
        assert [record.value for record in records(log)] == [value] * 3
        sizes.append(log.size_bytes)
    assert sizes[0] > sizes[1]


def test_a_wrong_max_timestamp_is_put_right(log):
    append(log, patched(batch(3), max_timestamp=NOW + 999_999_999))
    (header,) = headers(log)
    assert header.max_timestamp == NOW + 2
    validate_batch(content(log))
