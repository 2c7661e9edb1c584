"""The columns kernel on both twins: Kafka's partitioner, rows to columns and back."""

from __future__ import annotations

import struct
from array import array
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fleetlog._native.columns_cy as cython_twin
import fleetlog._native.columns_py as pure_twin
from fleetlog._native import columns as facade
from fleetlog._native.batch_py import Record, decode_records, encode_batch, parse_header, scan, validate_batch
from fleetlog._native.columns_py import Headers, Runs
from fleetlog._native.errors import CorruptBatch
from fleetlog.wire import compression
from tests.support.draw import examples

nullable = st.none() | st.binary(max_size=30)
rows_strategy = st.lists(
    st.builds(
        Record, st.just(-1), st.integers(0, 2**45), nullable, nullable,
        st.lists(st.tuples(st.text(max_size=5), nullable), max_size=2).map(tuple),
    ),
    min_size=1, max_size=20,
)  # fmt: skip


def both(name: str, *arguments: Any) -> Any:
    outcomes = []
    for twin in (pure_twin, cython_twin):
        try:
            outcomes.append(("ok", getattr(twin, name)(*arguments)))
        except CorruptBatch as error:
            outcomes.append(("corrupt", error.reason, error.position))
        except ValueError as error:
            outcomes.append(("value", str(error)))
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


# The Java client's own test vectors (org.apache.kafka.common.utils.UtilsTest).
MURMUR = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_murmur2_is_kafkas(columns: ModuleType) -> None:
    assert {key: columns.murmur2(key) for key in MURMUR} == MURMUR
    assert columns.partition_for_key(b"21", 1000) == (-973932308 & 0x7FFFFFFF) % 1000
    with pytest.raises(ValueError, match="at least one partition"):
        columns.partition_for_key(b"k", 0)


@given(st.binary(max_size=70), st.integers(1, 100))
def test_twins_hash_alike(key: bytes, partitions: int) -> None:
    both("murmur2", key)
    both("partition_for_key", key, partitions)


@given(st.lists(nullable, min_size=1, max_size=30), st.integers(1, 9))
def test_a_column_of_keys(keys: list[bytes | None], partitions: int) -> None:
    found = facade.partitions_for_keys(pa.array(keys, pa.binary()), partitions).to_pylist()
    assert found == [-1 if key is None else pure_twin.partition_for_key(key, partitions) for key in keys]
    runs = facade.runs_of(pa.array(keys, pa.binary()))
    both("hash_runs", runs, len(keys), 0)
    both("hash_runs", runs, len(keys), partitions)


def test_sliced_arrays_are_read_from_their_own_start() -> None:
    keys = pa.array([b"a", None, b"bc", b"def", None], pa.binary())
    for start in range(5):
        part = keys[start:]
        assert (
            facade.partitions_for_keys(part, 7).to_pylist() == facade.partitions_for_keys(keys, 7).to_pylist()[start:]
        )


@given(st.lists(rows_strategy, min_size=1, max_size=3), st.integers(0, 30), st.integers(0, 40), st.booleans())
@settings(max_examples=examples(200))
def test_batches_become_columns(batches: list[list[Record]], start: int, length: int, headers: bool) -> None:
    parts, expected, base = [], [], 0
    for number, records in enumerate(batches):
        raw = encode_batch(records, base_offset=base, attributes=0x08 if number % 2 else 0)
        header = parse_header(raw)
        parts.append((raw[61:], header))
        expected += [(r, number % 2) for r in decode_records(raw[61:], header) if start <= r.offset < start + length]
        base += len(records)
    _, found = both("decode_columns", parts, start, start + length, headers)
    arrays = facade.columns_to_arrow(found)
    assert arrays["offset"].to_pylist() == [r.offset for r, _ in expected]
    assert arrays["timestamp"].to_pylist() == [r.timestamp for r, _ in expected]
    assert arrays["timestampType"].to_pylist() == [kind for _, kind in expected]
    assert arrays["key"].to_pylist() == [r.key for r, _ in expected]
    assert arrays["value"].to_pylist() == [r.value for r, _ in expected]
    for array_ in arrays.values():
        array_.validate(full=True)
    if headers:
        pairs = [[{"key": k, "value": v} for k, v in r.headers] for r, _ in expected]
        assert arrays["headers"].to_pylist() == pairs


@given(rows_strategy, st.data())
@settings(max_examples=examples(300))
def test_twins_agree_on_mutated_payloads(records: list[Record], data: st.DataObject) -> None:
    raw = encode_batch(records)
    header = parse_header(raw)
    payload = bytearray(raw[61:])
    for _ in range(data.draw(st.integers(0, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    both("decode_columns", [(bytes(payload), header), (bytes(payload[:cut]), header)], 0, 100, True)


@given(rows_strategy, st.data())
def test_columns_become_records(records: list[Record], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(records)))
    last = data.draw(st.integers(first, len(records)))
    keys = facade.runs_of(pa.array([r.key for r in records], pa.binary()))
    values = facade.runs_of(pa.array([r.value for r in records], pa.binary()))
    times = array("q", [r.timestamp for r in records]).tobytes()
    _, payload = both("encode_columns", keys, values, times, first, last, 1000)
    plain = [Record(n, r.timestamp, r.key, r.value) for n, r in enumerate(records[first:last])]
    if plain:
        header = parse_header(encode_batch(plain))._replace(base_timestamp=1000)
        assert decode_records(payload, header) == plain
    both("encode_columns", None, values, times, first, last, 0)


@given(rows_strategy, st.integers(1, 5), st.data())
def test_rows_of_a_partition_become_a_batch_where_they_stand(
    records: list[Record], count: int, data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(0, count - 1), min_size=len(records), max_size=len(records)))
    _, (order, starts) = both("group_rows", array("i", places).tobytes(), count)
    headers = pa.array([[{"key": k, "value": v} for k, v in r.headers] for r in records], HEADERS)
    columns = (
        pa.array([r.key for r in records], pa.binary()),
        pa.array([r.value for r in records], pa.binary()),
        pa.array([r.timestamp for r in records], pa.int64()),
    )
    for place in range(count):
        first, last = starts[place : place + 2]
        expected = [r for r, at in zip(records, places, strict=True) if at == place]
        assert len(expected) == last - first
        if expected:
            raw = facade.encode_arrow(*columns, headers=headers, order=(order, first, last))
            assert decode_records(raw[61:], validate_batch(raw)) == [
                r._replace(offset=n) for n, r in enumerate(expected)
            ]
    times = array("q", [r.timestamp for r in records]).tobytes()
    values = facade.runs_of(columns[1])
    both("encode_columns", values, values, times, 0, len(records), 5, None, order, 7)


@given(st.binary(max_size=40), st.integers(-1, 4), st.integers(-1, 5), st.integers(0, 9))
def test_orders_that_lie_are_refused_alike(order: bytes, count: int, last: int, room: int) -> None:
    both("group_rows", order, count)
    values = Runs(None, bytes(4 * 4), b"")
    both("encode_columns", None, values, bytes(8 * 3), 0, last, 0, None, order, room - 1)


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@given(rows_strategy, st.data())
def test_headers_become_records(records: list[Record], data: st.DataObject) -> None:
    nulls = data.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
    lists = [
        None if null else [{"key": k, "value": v} for k, v in r.headers] for r, null in zip(records, nulls, strict=True)
    ]
    first = data.draw(st.integers(0, len(records) - 1))
    raw = facade.encode_arrow(
        pa.array([r.key for r in records], pa.binary())[first:],
        pa.array([r.value for r in records], pa.binary())[first:],
        pa.array([r.timestamp for r in records], pa.int64())[first:],
        headers=pa.array(lists, HEADERS)[first:],
    )  # fmt: skip
    expected = [
        r._replace(offset=n, headers=() if null else r.headers)
        for n, (r, null) in enumerate(list(zip(records, nulls, strict=True))[first:])
    ]
    assert decode_records(raw[61:], validate_batch(raw)) == expected
    headers = facade._headers_of(pa.array(lists, HEADERS))
    values = facade.runs_of(pa.array([r.value for r in records], pa.binary()))
    times = array("q", [r.timestamp for r in records]).tobytes()
    both("encode_columns", None, values, times, first, len(records), 5, headers)


def test_maps_are_headers_and_other_things_are_not() -> None:
    arguments = (None, pa.array(["v"]), pa.array([5], pa.int64()))
    raw = facade.encode_arrow(*arguments, headers=pa.array([[("h", b"x")]], pa.map_(pa.string(), pa.binary())))
    assert decode_records(raw[61:], validate_batch(raw))[0].headers == (("h", b"x"),)
    with pytest.raises(ValueError, match="lists of"):
        facade.encode_arrow(*arguments, headers=pa.array([["h"]]))
    with pytest.raises(ValueError, match="without a name"):
        facade.encode_arrow(*arguments, headers=pa.array([[{"key": None, "value": b"x"}]], HEADERS))
    with pytest.raises(ValueError, match="neither binary nor string"):
        facade.encode_arrow(None, pa.array([1]), pa.array([5], pa.int64()))
    with pytest.raises(ValueError, match="not be null"):
        facade.encode_arrow(None, pa.array(["v"]), pa.array([None], pa.int64()))


@given(st.binary(max_size=40), st.binary(max_size=20), st.none() | st.binary(max_size=3), st.integers(0, 12))
def test_columns_that_lie_are_refused_alike(offsets: bytes, data: bytes, validity: bytes | None, rows: int) -> None:
    runs = Runs(validity, offsets, data)
    times = struct.pack(f"={rows}q", *range(rows))
    both("hash_runs", runs, rows, 3)
    both("encode_columns", runs, runs, times, 0, rows, 0)
    both("encode_columns", None, runs, times, 0, rows + 1, 0)
    good = Runs(None, bytes(4 * (rows + 1)), b"")
    both("encode_columns", None, good, times, 0, rows, 0, Headers(validity, offsets, runs, runs))
    both("encode_columns", None, good, times, rows // 2, rows, 0, Headers(validity, offsets, runs, good))


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_arrow_to_batch_and_back(codec: int) -> None:
    keys = pa.array([b"a", None, b"ccc"], pa.binary())
    values = pa.array(["x", "y" * 500, None], pa.string())
    times = pa.array([30, 10, 20], pa.int64())
    raw = facade.encode_arrow(
        keys, values, times, codec=codec, compress=(lambda p: compression.compress(codec, p)) if codec else None
    )
    arrays = facade.decode_batches(
        raw, scan(raw), decompress=lambda c, p: compression.decompress(c, p, 1 << 20), headers=True
    )
    assert arrays["key"].to_pylist() == [b"a", None, b"ccc"]
    assert arrays["value"].to_pylist() == [b"x", b"y" * 500, None]
    assert arrays["timestamp"].to_pylist() == [30, 10, 20]
    assert arrays["headers"].to_pylist() == [[], [], []]
    header = parse_header(raw)
    assert (header.base_timestamp, header.max_timestamp, header.record_count) == (30, 30, 3)


def test_a_wrong_checksum_is_reported_with_its_place() -> None:
    raw = bytearray(encode_batch([Record(-1, 1, b"k", b"v")]) * 2)
    raw[-1] ^= 1
    with pytest.raises(CorruptBatch) as caught:
        facade.decode_batches(bytes(raw), scan(bytes(raw)), decompress=lambda c, p: b"")
    assert caught.value.position == len(raw) // 2
