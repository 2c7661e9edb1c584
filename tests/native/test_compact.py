"""The compaction kernel: the map of keys, and the records of a batch that stay."""

from __future__ import annotations

import random
import re
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog._native import compact_cy, compact_py
from fleetlog._native.batch import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    decode_records,
    encode_batch,
    encode_records,
    parse_header,
    validate_records,
)
from fleetlog._native.errors import CorruptBatch
from tests.support.draw import examples

SECRET = bytes(range(16))
VECTORS = {  # of the reference implementation (veorq/SipHash, vectors_sip128)
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    3: "9c70b60c5267a94e5f33b6b02985ed51",
    4: "f88164c12d9c8faf7d0f6e7c7bcd5579",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
}
NOW = 1_700_000_000_000
TWINS: list[Any] = [compact_py, compact_cy]
HEADER = b"fleetlog.source"


def batch_of(records: list[Record], **fields: Any) -> tuple[bytes, BatchHeader]:
    """A payload and its header, with ``fields`` of the header replaced."""
    data = encode_batch(records, base_offset=records[0].offset if records else 0)
    return data[HEADER_SIZE:], parse_header(data)._replace(**fields)


def row(offset: int, key: bytes | None, value: bytes | None = b"v", timestamp: int = NOW) -> Record:
    return Record(offset, timestamp, key, value, (("name", b"x"),) if offset % 3 == 0 else ())


def filled(twin: Any, offsets: dict[bytes, int], slots: int = 64) -> Any:
    keys = twin.KeyMap(slots, slots - 1, SECRET)
    for key, offset in offsets.items():
        assert keys.put(key, offset)
    return keys


@pytest.mark.parametrize("size", VECTORS)
def test_the_hash_is_siphash(compact: ModuleType, size: int) -> None:
    halves = compact.siphash128(SECRET, bytes(range(size)))
    assert b"".join(half.to_bytes(8, "little") for half in halves).hex() == VECTORS[size]


@given(st.binary(max_size=70), st.binary(min_size=16, max_size=16))
def test_both_twins_hash_alike(data: bytes, secret: bytes) -> None:
    assert compact_py.siphash128(secret, data) == compact_cy.siphash128(secret, memoryview(data))


@pytest.mark.parametrize("slots", [2, 3, 7, 100])
def test_the_map_keeps_the_largest_offset_of_each_key(compact: ModuleType, slots: int) -> None:
    rng = random.Random(slots)
    keys, known = compact.KeyMap(slots, slots - 1, SECRET), dict[bytes, int]()
    for _ in range(slots * 30):
        key, offset = b"k%d" % rng.randrange(2 * slots), rng.choice((0, rng.randrange(1000), 2**63 - 1))
        fits = key in known or len(known) < slots - 1
        assert keys.put(key, offset) is fits
        if fits:
            known[key] = max(known.get(key, -1), offset)
    assert len(keys) == len(known) == keys.limit == slots - 1
    for number in range(2 * slots):
        assert keys.get(b"k%d" % number) == known.get(b"k%d" % number, -1)


def test_another_secret_is_another_order(compact: ModuleType) -> None:
    assert compact.siphash128(SECRET, b"key") != compact.siphash128(bytes(16), b"key")


@pytest.mark.parametrize(("slots", "limit"), [(0, 0), (5, 5), (5, 6), (5, 0), (-1, -2), (2**62, 5)])
def test_sizes_that_make_no_map(compact: ModuleType, slots: int, limit: int) -> None:
    with pytest.raises(ValueError, match=f"{limit} keys in {slots} slots"):
        compact.KeyMap(slots, limit, SECRET)


def test_a_secret_has_sixteen_bytes(compact: ModuleType) -> None:
    for secret in (b"", bytes(15), bytes(17)):
        with pytest.raises(ValueError, match="16 are needed"):
            compact.KeyMap(8, 4, secret)
        with pytest.raises(ValueError, match="16 are needed"):
            compact.siphash128(secret, b"")


def test_keys_are_collected_from_an_offset_on(compact: ModuleType) -> None:
    payload, header = batch_of([row(5, b"a"), row(6, b"b"), row(7, None), row(8, b"a"), row(9, b"c")])
    keys = filled(compact, {})
    assert compact.collect_keys(payload, header, keys, 6) == -1
    assert [keys.get(key) for key in (b"a", b"b", b"c", b"")] == [8, 6, 9, -1]
    assert len(keys) == 3


def test_a_full_map_says_where_it_was_full(compact: ModuleType) -> None:
    payload, header = batch_of([row(5, b"a"), row(6, b"b"), row(7, b"a"), row(8, b"c"), row(9, b"a"), row(10, b"d")])
    keys = compact.KeyMap(3, 2, SECRET)
    assert compact.collect_keys(payload, header, keys, 0) == 8
    assert (keys.get(b"a"), keys.get(b"b"), keys.get(b"c")) == (7, 6, -1), "nothing at or above that offset"
    assert compact.collect_keys(payload, header, compact.KeyMap(9, 8, SECRET), 0) == -1


def test_the_keys_of_records(compact: ModuleType) -> None:
    payload, header = batch_of([row(5, b"a"), row(6, b""), row(8, None), row(9, b"c" * 300)])
    assert compact.record_keys(payload, header, 6, 9) == [(6, b""), (8, None), (9, b"c" * 300)]
    assert compact.record_keys(memoryview(payload), header, 0, 2) == [(5, b"a"), (6, b"")]
    assert compact.record_keys(payload, header, 10, 9) == []


def test_the_values_of_a_header(compact: ModuleType) -> None:
    headers: list[tuple[tuple[str, bytes | None], ...]] = [
        (("at", b"1"), ("at", b"22")), (("ät", b"3"),), (), (("a", b"at"), ("at", None)), (("at", b""),),
    ]  # fmt: skip
    payload, header = batch_of([Record(5 + n, NOW, b"at", b"v", each) for n, each in enumerate(headers)])
    assert compact.header_values(memoryview(payload), header, "at") == [(5, b"22"), (8, None), (9, b"")]
    assert compact.header_values(payload, header, "bt") == []


def test_what_is_superseded_goes(compact: ModuleType) -> None:
    payload, header = batch_of([row(5, b"a"), row(6, b"b"), row(7, None), row(8, b"a"), row(9, b"c"), row(10, b"b")])
    kept = compact.keep_records(payload, header, filled(compact, {b"a": 8, b"b": 99}), 10, False, NOW)
    after = header._replace(record_count=kept.record_count)
    assert [(r.offset, r.key) for r in decode_records(kept.payload, after)] == [(8, b"a"), (9, b"c"), (10, b"b")]
    assert kept.base_timestamp == header.base_timestamp, "there is no tombstone"


def test_nothing_superseded_is_no_new_payload(compact: ModuleType) -> None:
    payload, header = batch_of([row(5, b"a"), row(6, b"b")])
    kept = compact.keep_records(payload, header, filled(compact, {b"a": 5}), 100, True, NOW)
    assert kept == (None, 2, header.base_timestamp, header.max_timestamp)


def test_tombstones_wait_for_their_horizon(compact: ModuleType) -> None:
    payload, header = batch_of([row(5, b"a", None, NOW - 7), row(6, b"b", None, NOW + 5), row(7, b"c", b"")])
    keys = filled(compact, {b"a": 5})
    kept = compact.keep_records(payload, header, keys, 7, False, NOW + 1000)
    assert (kept.record_count, kept.base_timestamp, kept.max_timestamp) == (3, NOW + 1000, NOW + 5)
    after = header._replace(base_timestamp=NOW + 1000)
    assert decode_records(kept.payload, after) == decode_records(payload, header), "times are the same as before"
    again = compact.keep_records(kept.payload, after, keys, 7, False, -1)
    assert again.payload is None
    gone = compact.keep_records(kept.payload, after, keys, 6, True, -1)
    left = decode_records(gone.payload, after._replace(record_count=gone.record_count))
    assert [r.offset for r in left] == [6, 7], "those beyond the end of the pass stay, and an empty value is a value"


def test_an_emptied_batch(compact: ModuleType) -> None:
    payload, header = batch_of([row(5, b"a"), row(6, None)], max_timestamp=77)
    kept = compact.keep_records(payload, header, filled(compact, {b"a": 9}), 9, False, NOW)
    assert kept == (b"", 0, header.base_timestamp, 77)
    assert (
        compact.keep_records(b"", header._replace(record_count=0), filled(compact, {}), 9, False, NOW).payload is None
    )


def test_the_time_of_an_append_stays(compact: ModuleType) -> None:
    payload, header = batch_of([row(5, b"a"), row(6, b"b", None)], attributes=8, max_timestamp=NOW + 999)
    kept = compact.keep_records(payload, header, filled(compact, {b"a": 9}), 9, False, NOW + 5)
    assert (kept.record_count, kept.base_timestamp, kept.max_timestamp) == (1, NOW + 5, NOW + 999)


def test_a_timestamp_that_is_too_far_away_keeps_the_batch_without_a_horizon(compact: ModuleType) -> None:
    payload, header = batch_of([row(0, b"a", None, -(2**63))], base_timestamp=-(2**63))
    payload = encode_records([row(0, b"a", None, -(2**63))], 0, -(2**63))
    kept = compact.keep_records(payload, header, filled(compact, {}), 9, False, NOW)
    assert kept.payload is None
    assert kept.base_timestamp == -(2**63)


_ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, b"", b"a", b"b", b"key", b"x" * 40]),
        st.sampled_from([None, b"", b"v" * 3, b"v" * 200]),
        st.integers(NOW - 10**6, NOW + 10**6) | st.sampled_from([0, -1, 2**61, -(2**61), NOW]),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(200), deadline=None)
@given(
    _ROWS, st.dictionaries(st.sampled_from([b"", b"a", b"b", b"key"]), st.integers(0, 30), max_size=4),
    st.integers(0, 40), st.booleans(), st.sampled_from([-1, NOW, 2**62]),
)  # fmt: skip
def test_records_stay_as_they_are_decoded_and_encoded(
    rows: list[Any], known: dict[bytes, int], end: int, gone: bool, horizon: int
) -> None:
    """Against a filter of decoded records."""
    records, offset = [], 3
    for key, value, timestamp, step in rows:
        records.append(row(offset, key, value, timestamp))
        offset += step
    payload, header = batch_of(records)
    wanted = [
        r
        for r in records
        if r.offset >= end
        or (r.key is not None and known.get(r.key, -1) <= r.offset and (r.value is not None or not gone))
    ]
    found = [twin.keep_records(memoryview(payload), header, filled(twin, known), end, gone, horizon) for twin in TWINS]
    assert found[0] == found[1]
    kept = found[0]
    after = header._replace(record_count=kept.record_count, base_timestamp=kept.base_timestamp)
    assert decode_records(payload if kept.payload is None else kept.payload, after) == wanted
    if kept.payload is not None and wanted:
        assert kept.payload == encode_records(wanted, header.base_offset, kept.base_timestamp)
        assert kept.max_timestamp == max(r.timestamp for r in wanted)
    maps = [filled(twin, {}) for twin in TWINS]
    assert [twin.collect_keys(payload, header, keys, end) for twin, keys in zip(TWINS, maps, strict=True)] == [-1, -1]
    keyed = [twin.record_keys(payload, header, end, 3) for twin in TWINS]
    assert keyed == [[(r.offset, r.key) for r in records if r.offset >= end][:3]] * 2
    named = [twin.header_values(payload, header, "name") for twin in TWINS]
    assert named == [[(r.offset, b"x") for r in records if r.headers]] * 2
    latest = {r.key: r.offset for r in records if r.key is not None and r.offset >= end}
    for key in (b"", b"a", b"b", b"key", b"x" * 40):
        assert [keys.get(key) for keys in maps] == [latest.get(key, -1)] * 2


def _collected(twin: Any, payload: bytes, header: BatchHeader) -> Any:
    try:
        return twin.collect_keys(payload, header, filled(twin, {}), 0)
    except CorruptBatch as wrong:
        return str(wrong), wrong.position


def _keys_of(twin: Any, payload: bytes, header: BatchHeader) -> Any:
    try:
        return twin.record_keys(payload, header, 2, 4), twin.header_values(payload, header, "name")
    except CorruptBatch as wrong:
        return str(wrong), wrong.position


def _kept(twin: Any, payload: bytes, header: BatchHeader) -> Any:
    try:
        return twin.keep_records(payload, header, filled(twin, {b"key1": 4}), 5, True, 9)
    except CorruptBatch as wrong:
        return str(wrong), wrong.position


def _gathered_of(twin: Any, payload: bytes, header: BatchHeader) -> Any:
    try:
        return twin.gather_positions(payload, header, HEADER, 3), twin.read_positions(payload, header, HEADER)
    except CorruptBatch as wrong:
        return str(wrong), wrong.position


@pytest.mark.parametrize("seed", range(20))
def test_hostile_bytes(seed: int) -> None:
    """Bytes changed anywhere, cut anywhere, counts that lie: both twins find the same, and nothing else happens."""
    rng = random.Random(seed)
    rows = [row(n, b"key%d" % (n % 3), b"v" * n if n % 4 else None) for n in range(8)]
    rows = [one._replace(headers=(*one.headers, (HEADER.decode(), b"q:%d:0" % at))) for at, one in enumerate(rows)]
    whole, header = batch_of(rows)
    refused = 0
    for _ in range(300):
        payload = bytearray(whole)
        for _ in range(rng.randrange(4)):
            payload[rng.randrange(len(payload))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.3:
            del payload[rng.randrange(len(payload)) :]
        lying = header._replace(
            record_count=rng.choice((8, 8, 8, 7, 9, 0, -1, 2**31 - 1)),
            last_offset_delta=rng.choice((7, 7, 3, 2**31 - 1)),
        )
        data = bytes(payload)
        collected = [_collected(twin, data, lying) for twin in TWINS]
        kept = [_kept(twin, data, lying) for twin in TWINS]
        gathered = [_gathered_of(twin, data, lying) for twin in TWINS]
        assert gathered[0] == gathered[1], (data, lying)
        assert collected[0] == collected[1], (data, lying)
        keys = [_keys_of(twin, data, lying) for twin in TWINS]
        assert keys[0] == keys[1], (data, lying)
        assert kept[0] == kept[1], (data, lying)
        refused += isinstance(collected[0], tuple)
    assert refused > 50


def test_a_header_name_that_is_no_utf_8(compact: ModuleType) -> None:
    payload, header = batch_of([Record(0, NOW, b"k", b"v", (("é", None),))])
    assert compact.collect_keys(payload, header, filled(compact, {}), 0) == -1
    broken = payload.replace("é".encode(), b"\xff\xfe")
    with pytest.raises(CorruptBatch, match=re.escape("a header name is not UTF-8")):
        compact.collect_keys(broken, header, filled(compact, {}), 0)
    with pytest.raises(CorruptBatch, match=re.escape("a header name is not UTF-8")):
        compact.keep_records(broken, header, filled(compact, {}), 0, False, -1)


# ---- positions of deduplicating topics

digits = st.integers(0, 2**64).map(lambda number: b"%d" % number)
position_values = (
    st.none()
    | st.binary(max_size=12)
    | st.tuples(st.sampled_from([b"q", b"a:b", b":", b"", b"x" * 255, b"x" * 256]), digits, digits | st.just(b"0")).map(
        b":".join
    )
)
position_headers = st.lists(
    st.tuples(st.sampled_from(["fleetlog.source", "fleetlog.sourc", "é"]), position_values), max_size=3
)


@given(st.lists(position_headers, min_size=1, max_size=6))
def test_both_twins_read_the_same_positions(rows: list[list[tuple[str, bytes | None]]]) -> None:
    records = [Record(at, NOW, None, b"v" * at, tuple(headers)) for at, headers in enumerate(rows)]
    payload, header = batch_of(records)
    found = compact_py.read_positions(payload, header, HEADER)
    assert compact_cy.read_positions(payload, header, HEADER) == found
    assert len(found) == len(rows)
    for most in (0, 1, 2, 99):
        gathered = compact_py.gather_positions(payload, header, HEADER, most)
        assert compact_cy.gather_positions(payload, header, HEADER, most) == gathered


spots = st.tuples(
    st.sampled_from([b"a", b"a", b"b:1", b"longer" * 40]),
    st.integers(0, 9) | st.integers(4090, 4100) | st.sampled_from([2**63 - 4097, 2**40]),
    st.sampled_from([0, 0, 0, 0, 1, 2**31 - 1]),
)


@given(st.lists(spots, min_size=1, max_size=20), st.integers(1, 6))
def test_both_twins_gather_the_same_pages(found: list[tuple[bytes, int, int]], most: int) -> None:
    records = [
        Record(at, NOW, None, b"v" * at, ((HEADER.decode(), b"%s:%d:%d" % one),)) for at, one in enumerate(found)
    ]
    payload, header = batch_of(records)
    gathered = compact_py.gather_positions(payload, header, HEADER, most)
    assert compact_cy.gather_positions(memoryview(payload), header, HEADER, most) == gathered
    distinct = list(dict.fromkeys((source, position >> 12) for source, position, _ in found))
    assert (gathered is None) == (len(set(found)) < len(found) or len(distinct) > most)
    if gathered is not None:
        said = [
            (page.source, page.number << 12 | place, ordinal)
            for page in gathered.pages
            for place, ordinal in (*((at, 0) for at in range(4096) if page.bits >> at & 1), *page.more)
        ]
        assert sorted(said) == sorted(found)
        assert [(page.source, page.number) for page in gathered.pages] == distinct
        assert gathered.max_timestamp == validate_records(payload, header)[0]
    for twin in TWINS:
        pages = twin.page_positions(found)
        assert pages == compact_py.page_positions(dict.fromkeys(found))
        assert gathered is None or pages == gathered.pages


def test_a_batch_over_many_pages_is_gathered(compact: ModuleType) -> None:
    records = [
        Record(at, NOW, None, None, ((HEADER.decode(), b"%d:%d:0" % (at % 3, (at * 37 % 90) * 4096 + at)),))
        for at in range(900)
    ]
    payload, header = batch_of(records)
    pages = compact.gather_positions(payload, header, HEADER, 256).pages
    assert sum(page.bits.bit_count() for page in pages) == 900
    assert len(pages) == 90
    assert compact.gather_positions(payload, header, HEADER, 89) is None


@pytest.mark.parametrize(
    ("value", "position"),
    [
        (b"orders-3:1234:0", (b"orders-3", 1234, 0)),
        (b"a:b:5:6", (b"a:b", 5, 6)),
        (b"\xff:007:1", (b"\xff", 7, 1)),
        (b"q:9223372036854771711:2147483647", (b"q", 2**63 - 4097, 2**31 - 1)),
        (b"q:9223372036854771712:0", None),
        (b"q:9223372036854775807:0", None),
        (b"q:9223372036854775808:0", None),
        (b"q:1:2147483648", None),
        (b"q:1", None),
        (b":1:0", None),
        (b"q::0", None),
        (b"q:1:", None),
        (b"q:-1:0", None),
        (b"q:+1:0", None),
        (b"q: 1:0", None),
        (b"q:00000000000000000001:0", None),
        (None, None),
    ],
)
def test_what_is_a_position(compact: ModuleType, value: bytes | None, position: tuple[bytes, int, int] | None) -> None:
    payload, header = batch_of([Record(0, NOW, b"k", b"v", (("a", None), (HEADER.decode(), value), ("b", b"x:1:0")))])
    assert compact.read_positions(payload, header, HEADER) == [position]


@given(
    st.lists(st.tuples(st.binary(max_size=5), st.integers(-(2**62), 2**62)), min_size=1, max_size=8),
    st.sets(st.integers(0, 9)),
)
def test_what_is_left_out_is_gone(rows: list[tuple[bytes, int]], gone: set[int]) -> None:
    records = [Record(at, shift, b"k", value, (("h", value),)) for at, (value, shift) in enumerate(rows)]
    payload, header = batch_of(records)
    kept = compact_py.leave_out(payload, header, gone)
    assert compact_cy.leave_out(payload, header, gone) == kept
    stay = [record for at, record in enumerate(records) if at not in gone]
    assert decode_records(kept.payload, header._replace(record_count=kept.record_count)) == stay
    assert kept.max_timestamp == max((record.timestamp for record in stay), default=header.max_timestamp)


def test_records_that_can_not_be_read_have_no_positions(compact: ModuleType) -> None:
    payload, header = batch_of([row(0, b"k"), row(1, b"k")])
    for damaged in (payload[:-1], payload + b"\0", b"\xff" * len(payload)):
        for call in (
            lambda bad: compact.read_positions(bad, header, HEADER),
            lambda bad: compact.gather_positions(bad, header, HEADER, 9),
            lambda bad: compact.leave_out(bad, header, {0}),
        ):
            with pytest.raises(CorruptBatch):
                call(damaged)


def test_offsets_that_do_not_rise_are_no_records(compact: ModuleType) -> None:
    (first, _), (second, header) = (batch_of([row(0, b"k")]), batch_of([row(0, b"k"), row(1, b"k")]))
    for call in (
        lambda bad: compact.read_positions(bad, header, HEADER),
        lambda bad: compact.gather_positions(bad, header, HEADER, 9),
        lambda bad: compact.leave_out(bad, header, {0}),
    ):
        call(second)
        with pytest.raises(CorruptBatch, match="offset delta 0 after 0"):
            call(first + first)
