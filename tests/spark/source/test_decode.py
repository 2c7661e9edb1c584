"""Fetched bytes to rows: what counts, what is skipped, what is damage. Without Spark and without a broker."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from fleetlog._native.batch import Record, control_batch, encode_batch
from fleetlog.spark.functions.columns import describe_batch
from fleetlog.spark.source.decode import Decoded, decode_rows, row_arrow_schema, row_batch
from fleetlog.wire.compression import compress
from fleetlog.wire.types import TopicPartition

TRANSACTIONAL = 0x10
LOG_APPEND_TIME = 0x08


def batch(base: int, *values: str, producer: int = -1, codec: int = 0, attributes: int = 0) -> bytes:
    records = [Record(base + n, 1000 + base + n, None, value.encode()) for n, value in enumerate(values)]
    return encode_batch(
        records,
        base_offset=base,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
        attributes=codec | attributes | (TRANSACTIONAL if producer >= 0 else 0),
        compress=(lambda payload: compress(codec, payload)) if codec else None,
    )


def marker(base: int, producer: int, *, commit: bool) -> bytes:
    return control_batch(
        commit=commit, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=5, base_offset=base
    )


def values(decoded: Decoded) -> list[str]:
    return [value.decode() for value in decoded.columns["value"].to_pylist()]


LOG = b"".join(
    [
        batch(0, "a", "b"),
        batch(2, "x", producer=7),
        batch(3, "c", producer=8),
        marker(4, 7, commit=False),
        batch(5, "d", producer=7),
        marker(6, 8, commit=True),
        marker(7, 7, commit=True),
        batch(8, "e"),
    ]
)


def test_aborted_records_are_left_out_and_the_producers_later_ones_are_kept() -> None:
    decoded = decode_rows(LOG, 0, 100, aborted=[(7, 2)])
    assert values(decoded) == ["a", "b", "c", "d", "e"]
    assert decoded.columns["offset"].to_pylist() == [0, 1, 3, 5, 8]
    assert decoded.next_offset == 9
    assert values(decode_rows(LOG, 0, 100, aborted=[(7, 2)], committed=False)) == ["a", "b", "x", "c", "d", "e"]
    assert values(decode_rows(LOG, 0, 100)) == ["a", "b", "x", "c", "d", "e"]  # nothing is listed as aborted


@pytest.mark.parametrize(("start", "end"), [(low, high) for low in range(10) for high in range(low + 1, 12)])
def test_every_range(start: int, end: int) -> None:
    decoded = decode_rows(LOG, start, end, aborted=[(7, 2)])
    rows = {0: "a", 1: "b", 3: "c", 5: "d", 8: "e"}
    assert values(decoded) == [value for offset, value in rows.items() if start <= offset < end]
    assert start <= decoded.next_offset <= end
    assert decoded.next_offset >= min(end, 9)


def test_a_transaction_that_began_before_the_answer() -> None:
    tail = batch(10, "x", producer=7) + marker(11, 7, commit=False) + batch(12, "y", producer=7)
    assert values(decode_rows(tail, 10, 20, aborted=[(7, 3)])) == ["y"]


def test_a_torn_batch_waits_for_the_next_fetch() -> None:
    whole = batch(0, "a") + batch(1, "b")
    for cut in range(len(batch(0, "a")), len(whole)):
        decoded = decode_rows(whole[:cut], 0, 10)
        assert values(decoded) == ["a"]
        assert decoded.next_offset == 1


def test_a_compacted_end_is_reached() -> None:
    """Offsets 5 to 9 were compacted away, and the range ends among them."""
    log = batch(4, "a") + batch(10, "b")
    assert decode_rows(log, 4, 8).next_offset == 8
    assert decode_rows(batch(10, "b"), 6, 8) == decode_rows(b"", 6, 8)._replace(next_offset=8)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_codecs_and_timestamps(codec: int) -> None:
    decoded = decode_rows(batch(0, "a" * 200, "b", codec=codec), 0, 10)
    assert values(decoded) == ["a" * 200, "b"]
    assert decoded.columns["timestamp"].to_pylist() == [
        datetime.fromtimestamp(1.0, UTC),
        datetime.fromtimestamp(1.001, UTC),
    ]
    assert decoded.columns["timestampType"].to_pylist() == [0, 0]


def test_a_timestamp_beyond_microseconds_names_its_record() -> None:
    most = (2**63 - 1) // 1000
    for ms in (most, -most, -1, 0):
        decoded = decode_rows(encode_batch([Record(0, ms, None, b"a")]), 0, 1)
        assert decoded.columns["timestamp"].cast(pa.int64()).to_pylist() == [ms * 1000]
    for ms in (most + 1, -most - 1, 2**63 - 1, -(2**63)):
        data = batch(3, "a") + encode_batch([Record(4, ms, None, b"b")], base_offset=4)
        with pytest.raises(ValueError, match=rf"^t-7: the record at offset 4 has the timestamp {ms} ms"):
            decode_rows(data, 0, 10, tp=TopicPartition("t", 7))
        assert values(decode_rows(data, 0, 4)) == ["a"], "below it there is nothing wrong"
        described = describe_batch(data[len(batch(3, "a")) :])
        assert described["error"].startswith(f"the record at offset 4 has the timestamp {ms} ms")
        assert "records" not in described


def test_headers_of_a_record_without_headers_are_null() -> None:
    records = [Record(0, 0, None, b"a"), Record(1, 0, None, b"b", (("h", None), ("h", b"1"))), Record(2, 0, None, b"c")]
    decoded = decode_rows(encode_batch(records), 0, 10, headers=True)
    pairs = [{"key": "h", "value": None}, {"key": "h", "value": b"1"}]
    assert decoded.columns["headers"].to_pylist() == [None, pairs, None]
    assert row_batch(decoded, TopicPartition("t", 0), row_arrow_schema(True)).column("headers").null_count == 2
    assert decode_rows(encode_batch(records), 1, 2, headers=True).columns["headers"].to_pylist() == [pairs]
    assert decode_rows(b"", 1, 2, headers=True).columns["headers"].to_pylist() == []


def test_log_append_time_is_said() -> None:
    decoded = decode_rows(batch(0, "a", attributes=LOG_APPEND_TIME), 0, 10)
    assert decoded.columns["timestampType"].to_pylist() == [1]


def test_damage_is_an_error() -> None:
    good = batch(0, "a", "b", codec=3)
    for position in range(17, len(good)):  # length, epoch and magic aside, every byte is under the checksum
        bad = bytearray(good)
        bad[position] ^= 0x40
        with pytest.raises(ValueError, match=r"."):
            decode_rows(bytes(bad), 0, 2**40, committed=False)


# -- the column function's inside ----------------------------------------------------------------------------------


def test_described_batch() -> None:
    record = Record(5, 1000, b"k", None, (("h", b"1"),))
    data = encode_batch([record], base_offset=5, producer_id=3, producer_epoch=1, base_sequence=9, attributes=0x10)
    described = describe_batch(data + b"trailing")
    assert described["crcValid"] is True
    assert "error" not in described
    assert (described["size"], described["baseOffset"], described["lastOffset"]) == (len(data), 5, 5)
    assert (described["producerId"], described["producerEpoch"], described["baseSequence"]) == (3, 1, 9)
    assert (described["isTransactional"], described["isControl"]) == (True, False)
    assert described["records"] == [
        {"offset": 5, "timestamp": 1_000_000, "key": b"k", "value": None, "headers": [{"key": "h", "value": b"1"}]}
    ]


def test_described_damage() -> None:
    good = batch(0, "a", codec=4)
    flipped = bytearray(good)
    flipped[-1] ^= 1
    described = describe_batch(bytes(flipped))
    assert described["crcValid"] is False
    assert "checksum" in described["error"]
    assert "records" not in described
    assert described["baseOffset"] == 0
    for cut in range(len(good)):
        torn = describe_batch(good[:cut])
        assert torn["crcValid"] is False
        assert torn["error"]
    lying = encode_batch([Record(0, 0, None, b"a")], attributes=4)  # says zstd, is not compressed
    described = describe_batch(lying)
    assert described["crcValid"] is True
    assert described["error"]
    assert "records" not in described
