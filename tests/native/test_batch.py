"""The batch kernel: its results (on both twins), and that the twins agree on any bytes, errors included."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fleetlog._native.batch_cy as cython_twin
import fleetlog._native.batch_py as pure_twin
from fleetlog._native.batch_py import BatchHeader, Record
from fleetlog._native.errors import CorruptBatch
from tests.support.draw import examples

text = st.text(max_size=8)
nullable = st.none() | st.binary(max_size=40)
timestamps = st.integers(-1, 2**55)
records_strategy = st.lists(
    st.builds(
        Record, st.just(-1), timestamps, nullable, nullable, st.lists(st.tuples(text, nullable), max_size=3).map(tuple)
    ),
    min_size=1,
    max_size=12,
)


def both(call: Callable[[ModuleType], Any]) -> Any:
    """The same call on both twins: equal results, or equal errors."""
    outcomes = []
    for twin in (pure_twin, cython_twin):
        try:
            outcomes.append(("ok", call(twin)))
        except CorruptBatch as error:
            outcomes.append(("corrupt", error.reason, error.position))
        except ValueError as error:
            outcomes.append(("value", str(error)))
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def a_batch(count: int = 3, **options: Any) -> bytes:
    return pure_twin.encode_batch([Record(-1, 1000 + n, b"k%d" % n, b"v" * n, ()) for n in range(count)], **options)


def test_checksum_has_the_published_value(batch: ModuleType) -> None:
    assert batch.crc32c(b"123456789") == 0xE3069283  # RFC 3720 B.4 gives the same polynomial's test vectors
    assert batch.crc32c(b"\0" * 32) == 0x8A9136AA
    assert batch.crc32c(b"") == 0


@given(st.binary(max_size=300), st.integers(0, 300))
def test_checksums_continue(data: bytes, cut: int) -> None:
    whole = both(lambda twin: twin.crc32c(data))[1]
    assert both(lambda twin: twin.crc32c(data[cut:], twin.crc32c(data[:cut])))[1] == whole


def test_header_fields_stand_where_the_format_puts_them(batch: ModuleType) -> None:
    raw = a_batch(
        2, base_offset=7, leader_epoch=5, attributes=0x10, producer_id=99, producer_epoch=3, base_sequence=2**31 - 1
    )
    header = batch.parse_header(raw)
    assert isinstance(header, batch.BatchHeader)
    assert (header.base_offset, header.partition_leader_epoch, header.producer_id, header.producer_epoch) == (
        7,
        5,
        99,
        3,
    )
    assert (header.last_offset, header.size, header.last_sequence) == (8, len(raw), 0)
    assert header.is_transactional
    assert not header.is_control
    assert struct.unpack_from(">q", raw, 0)[0] == 7
    assert struct.unpack_from(">i", raw, 57)[0] == 2


@given(records_strategy, st.integers(0, 2**50), st.integers(-1, 2**40))
@settings(max_examples=examples(200))
def test_records_come_back(records: list[Record], base_offset: int, producer_id: int) -> None:
    raw = both(lambda twin: twin.encode_batch(records, base_offset=base_offset, producer_id=producer_id))[1]
    header = both(lambda twin: twin.validate_batch(raw))[1]
    decoded = both(lambda twin: twin.decode_records(raw[61:], header))[1]
    assert decoded == [r._replace(offset=base_offset + n) for n, r in enumerate(records)]
    largest, keyed = both(lambda twin: twin.validate_records(raw[61:], header))[1]
    assert largest == max(-1, max(r.timestamp for r in records))
    assert keyed == all(r.key is not None for r in records)
    lengths = []
    for row in decoded:
        alone = pure_twin.encode_records([row], base_offset, header.base_timestamp)
        lengths.append(len(alone) - next(at for at, byte in enumerate(alone, 1) if byte < 0x80))
    assert both(lambda twin: twin.longest_record(raw[61:], header))[1] == max(lengths)


@given(records_strategy, st.integers(0, 2**50), st.booleans(), st.data())
def test_the_first_record_from_a_timestamp_on_is_found(
    records: list[Record], base_offset: int, stamped: bool, data: st.DataObject
) -> None:
    raw = bytearray(pure_twin.encode_batch(records, base_offset=base_offset))
    pure_twin.stamp(raw, 0, base_offset, 0, 77 if stamped else -1)
    header = pure_twin.parse_header(raw)
    decoded = pure_twin.decode_records(raw[61:], header)
    wanted = data.draw(st.sampled_from([r.timestamp for r in decoded]) | st.integers(-10, 2**41))
    begin = base_offset + data.draw(st.integers(-1, len(records)))
    found = both(lambda twin: twin.find_timestamp(raw[61:], header, wanted, begin))[1]
    fit = [(r.offset, r.timestamp) for r in decoded if r.timestamp >= wanted and r.offset >= begin]
    assert found == (fit[0] if fit else None)
    oldest = both(lambda twin: twin.oldest_timestamp(raw[61:], header))[1]
    assert oldest == min((r.timestamp for r in records if r.timestamp != -1), default=2**63 - 1)


@given(records_strategy, st.integers(0, 2**40), st.integers(0, 1000), st.integers(-1, 2**41))
def test_stamping_keeps_the_batch_valid(records: list[Record], offset: int, epoch: int, append_time: int) -> None:
    raw = pure_twin.encode_batch(records)
    stamped = []
    for twin in (pure_twin, cython_twin):
        buffer = bytearray(raw)
        twin.stamp(buffer, 0, offset, epoch, append_time)
        stamped.append(bytes(buffer))
    assert stamped[0] == stamped[1]
    header = pure_twin.validate_batch(stamped[0])
    assert (header.base_offset, header.partition_leader_epoch) == (offset, epoch)
    if append_time >= 0:
        assert header.is_log_append_time
        assert {r.timestamp for r in pure_twin.decode_records(stamped[0][61:], header)} == {append_time}
    else:
        assert stamped[0][16:] == raw[16:]


@given(st.lists(st.integers(1, 4), max_size=5), st.integers(0, 400))
def test_scan_lists_whole_batches(counts: list[int], cut: int) -> None:
    raw = b"".join(a_batch(count) for count in counts)
    cut = min(cut, len(raw))
    found = both(lambda twin: twin.scan(raw, 0, cut))[1]
    assert all(position + header.size <= cut for position, header in found)
    assert [p for p, _ in found] == [sum(len(a_batch(c)) for c in counts[:n]) for n in range(len(found))]


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(61, 400), st.integers(-1, 400), st.integers(0, 9)
)
def test_a_walk_stops_at_the_limit_and_at_the_offset(counts: list[int], cut: int, limit: int, offset: int) -> None:
    raw = bytearray()
    ends, lasts = [0], [-1]
    for count in counts:
        at = len(raw)
        raw += a_batch(count)
        pure_twin.stamp(raw, at, lasts[-1] + 1, 0)
        ends.append(len(raw))
        lasts.append(lasts[-1] + count)
    seen = raw[:cut]
    (first, position, passed, base, last, size) = both(lambda twin: twin.walk(seen, limit, offset))[1]
    assert first == lasts[1]
    steps = ends.index(position)
    assert passed == (lasts[steps] + 1 if steps else -1)
    assert all(end <= limit for end in ends[1 : steps + 1])
    assert all(reached < offset for reached in lasts[1 : steps + 1])
    if size:
        assert (base, last, size) == (lasts[steps] + 1, lasts[steps + 1], ends[steps + 1] - position)
        assert last >= offset or position + size > limit
    else:
        assert len(seen) - position < 61


@given(st.lists(st.tuples(st.integers(-5, 60), st.integers(-5, 60)), max_size=40), st.integers(-6, 62), st.booleans())
def test_entries_of_an_index_are_found(entries: list[tuple[int, int]], wanted: int, torn: bool) -> None:
    columns = [sorted(column) for column in zip(*entries, strict=True)] or [[], []]
    data = b"".join(struct.pack(">ii", *entry) for entry in zip(*columns, strict=True)) + b"\0\0\0" * torn
    for field, column in ((0, columns[0]), (4, columns[1])):
        found = both(lambda twin, field=field: twin.index_floor(bytearray(data), 7, field, wanted))
        below = sum(value <= wanted for value in column)
        assert found == ("ok", (7 + columns[0][below - 1], columns[1][below - 1]) if below else (7, 0))


@given(records_strategy, st.data())
@settings(max_examples=examples(500))
def test_twins_agree_on_mutated_bytes(records: list[Record], data: st.DataObject) -> None:
    whole = pure_twin.encode_batch(records)
    raw = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(raw) - 1))
        raw[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for sample in (bytes(raw), bytes(raw[:cut])):
        both(lambda twin, s=sample: twin.scan(s))
        both(lambda twin, s=sample: twin.walk(s, 1000, 3))
        both(lambda twin, s=sample: twin.walk(whole + s, 1000, 3))
        both(lambda twin, s=sample: twin.validate_batch(s))
        verdict = both(lambda twin, s=sample: twin.parse_header(s))
        if verdict[0] == "ok":
            both(lambda twin, s=sample, h=verdict[1]: twin.decode_records(s[61:], h))
            both(lambda twin, s=sample, h=verdict[1]: twin.validate_records(s[61:], h))
            both(lambda twin, s=sample, h=verdict[1]: twin.find_timestamp(s[61:], h, 3, 1))
            both(lambda twin, s=sample, h=verdict[1]: twin.oldest_timestamp(s[61:], h))
            both(lambda twin, s=sample, h=verdict[1]: twin.longest_record(s[61:], h))


@given(st.binary(max_size=120), st.integers(0, 12))
@settings(max_examples=examples(500))
def test_twins_agree_on_any_payload(payload: bytes, count: int) -> None:
    header = pure_twin.parse_header(a_batch(1))._replace(record_count=count, last_offset_delta=max(0, count - 1))
    both(lambda twin: twin.decode_records(payload, header))
    both(lambda twin: twin.validate_records(payload, header))
    both(lambda twin: twin.find_timestamp(payload, header, 2**62, 0))


@pytest.mark.parametrize("position", range(21, 70))
def test_any_flipped_bit_behind_the_checksum_is_found(batch: ModuleType, position: int) -> None:
    raw = bytearray(a_batch(3))
    raw[position] ^= 0x04
    with pytest.raises(CorruptBatch):
        batch.validate_batch(bytes(raw))


def test_a_record_count_cannot_make_us_allocate(batch: ModuleType) -> None:
    header = pure_twin.parse_header(a_batch(1))._replace(record_count=2**31 - 1, last_offset_delta=2**31 - 1)
    with pytest.raises(CorruptBatch, match="cannot fit"):
        batch.decode_records(b"\0" * 1000, header)
    with pytest.raises(CorruptBatch, match="cannot fit"):
        batch.validate_records(b"\0" * 1000, header)


def test_the_twins_headers_are_the_same_but_for_their_type() -> None:
    raw = a_batch(
        2, base_offset=7, leader_epoch=5, attributes=0x38, producer_id=99, producer_epoch=3, base_sequence=2**31 - 1
    )
    pure, fast = pure_twin.parse_header(raw), cython_twin.parse_header(raw)
    names = [name for name in dir(BatchHeader) if isinstance(getattr(BatchHeader, name), property)]
    assert set(names) == {
        "size", "last_offset", "codec", "is_log_append_time", "is_transactional", "is_control", "last_sequence"
    }  # fmt: skip
    for name in (*BatchHeader._fields, *names):
        assert getattr(pure, name) == getattr(fast, name), name
        assert type(getattr(pure, name)) is type(getattr(fast, name)), name
    assert pure == fast
    assert fast == pure
    assert hash(pure) == hash(fast)
    assert repr(pure) == repr(fast)
    assert tuple(fast) == tuple(pure)
    assert (fast[0], fast[:5], len(fast)) == (pure[0], pure[:5], len(pure))
    assert pickle.loads(pickle.dumps(fast)) == fast
    changed = pure._replace(base_offset=8, crc=1)
    assert fast._replace(base_offset=8, crc=1) == changed != fast
    with pytest.raises(TypeError):
        fast._replace(colour=1)


HEADER_CHANGES: list[dict[str, Any]] = [
    {}, {}, {"attributes": 1}, {"attributes": 8}, {"attributes": 16}, {"attributes": 64}, {"base_offset": 3},
    {"producer_id": 0}, {"producer_id": -2}, {"record_count": 1}, {"record_count": 0, "last_offset_delta": 0},
    {"last_offset_delta": 11}, {"max_timestamp": 5}, {"max_timestamp": -1}, {"producer_epoch": 4, "base_sequence": 9},
    {"producer_id": 7, "producer_epoch": 4, "base_sequence": 9},
    {"producer_id": 8, "producer_epoch": 0, "base_sequence": 0, "attributes": 16},
]  # fmt: skip


class Known(NamedTuple):
    """What is known of a producer."""

    epoch: int
    batches: tuple[Any, ...]
    txn_first_offset: int = -1


def known(epoch: int, *last_sequences: int, txn: bool = False) -> Known:
    return Known(epoch, tuple(SimpleNamespace(last_sequence=last) for last in last_sequences), 0 if txn else -1)


PRODUCERS = {7: known(4, 3, 8), 8: known(0, 2**31 - 2, 2**31 - 1, txn=True), 9: known(1), 10: known(1, 50, 4)}


def with_header(raw: bytes, changes: dict[str, Any]) -> bytearray:
    """The batch with other fields in its header, and the checksum made right for them."""
    header = pure_twin.parse_header(raw)._replace(**changes)
    changed = bytearray(struct.pack(">qiibIhiqqqhii", *header) + raw[61:])
    struct.pack_into(">I", changed, 17, pure_twin.crc32c(changed[21:]))
    return changed


@given(records_strategy, st.sampled_from(HEADER_CHANGES), st.data())
def test_what_is_admitted_and_what_is_left_to_others(
    records: list[Record], changes: dict[str, Any], data: st.DataObject
) -> None:
    raw = with_header(pure_twin.encode_batch(records), changes)
    flipped = data.draw(st.none() | st.integers(0, len(raw) - 1))
    if flipped is not None:
        raw[flipped] ^= data.draw(st.integers(1, 255))
    raw = raw[: data.draw(st.sampled_from([len(raw), len(raw), len(raw), len(raw) - 1]))]
    raw += data.draw(st.sampled_from([b"", b"", b"", b"\0"]))
    base = data.draw(st.sampled_from([0, 7, 2**63 - 3]))
    latest = data.draw(st.sampled_from([2**63 - 1, 2**63 - 1, 1000, -1, -(2**63)]))
    most = data.draw(st.sampled_from([1_000_000, 3]))
    buffers: list[bytearray] = []

    def admitted(twin: ModuleType) -> Any:
        buffers.append(bytearray(raw))
        return twin.admit(
            [memoryview(buffers[-1])], base, 4, latest, most, len(raw), len(raw), PRODUCERS, True, False
        )  # fmt: skip

    told, produced = both(admitted)[1]
    assert buffers[0] == buffers[1]
    if not told:
        assert buffers[0] == raw
        return
    (found,) = told
    assert produced == (found.producer_id != -1)
    header = pure_twin.validate_batch(bytes(raw))
    last_offset = base + header.record_count - 1
    last_sequence = -1 if header.producer_id == -1 else header.last_sequence
    epoch = -1 if header.producer_id == -1 else header.producer_epoch
    assert type(found) is pure_twin.Admitted
    assert found == (
        base, last_offset, header.max_timestamp, len(raw), header.producer_id, epoch, last_sequence, header.attributes
    )  # fmt: skip
    stamped = bytearray(raw)
    pure_twin.stamp(stamped, 0, base, 4)
    assert buffers[0] == stamped


def test_a_plain_batch_is_admitted_unless_its_bytes_are_read_only(batch: ModuleType) -> None:
    raw = a_batch(3)
    size = len(raw)

    def admitted(data: Any, latest: int = 1002, most: int = 3, largest: int = size, room: int = 2 * size) -> Any:
        found, produced = batch.admit([data] * 3, 5, 1, latest, most, largest, room, {}, False, False)
        assert produced == 0
        return found

    assert admitted(bytearray(raw))[:1] == [(5, 7, 1002, size, -1, -1, -1, 0)]
    assert admitted(raw) == []
    assert admitted(bytearray(raw), latest=1001) == []
    assert admitted(bytearray(raw), most=2) == []
    assert admitted(bytearray(raw), largest=size - 1) == []
    assert admitted(bytearray(raw), room=size - 1) == []


def test_as_many_are_admitted_as_there_is_room_for(batch: ModuleType) -> None:
    sent = [bytearray(a_batch(1)) for _ in range(4)]
    found, _ = batch.admit(sent, 5, 1, 1002, 3, 1000, 3 * len(sent[0]) - 1, {}, False, False)
    assert [one.first_offset for one in found] == [5, 6]
    assert [one.size for one in found] == [len(sent[0])] * 2
    assert sent[2] == sent[3] == a_batch(1)


def test_records_that_were_validated_before_are_not_validated_again(batch: ModuleType) -> None:
    def admitted(walked: list[int] | None) -> Any:
        sent = [bytearray(data) for data in (a_batch(1), a_batch(3), a_batch(2))]
        return batch.admit(sent, 5, 1, 1002, 3, 1000, 10_000, {}, False, False, walked)

    assert admitted([1000, 1002, 1001]) == admitted(None)
    assert len(admitted(None)[0]) == 3
    assert len(admitted([1000, 1002, 7])[0]) == 2, "it is what the header has to say"
    damaged = bytearray(a_batch(3))
    damaged[-1] ^= 1
    assert batch.admit([damaged], 5, 1, 1002, 3, 1000, 10_000, {}, False, False, [1002])[0] == []


def of_producer(producer_id: int, epoch: int, sequence: int, count: int = 1, *, txn: bool = False) -> bytearray:
    return bytearray(
        a_batch(
            count, attributes=0x10 if txn else 0, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
    )


def admitted_of(
    batch: ModuleType, *batches: bytearray, producers: Any, transactional: bool = False, unknown: bool = False
) -> list[Any]:
    """What producer and last sequence is said of those that are admitted; the others are as they were."""
    sent = [bytearray(data) for data in batches]
    found, produced = batch.admit(sent, 5, 1, 2**62, 9, 9999, 2**31, producers, transactional, unknown)
    assert produced == sum(said.producer_id != -1 for said in found)
    assert sent[len(found) :] == list(batches[len(found) :])
    assert all(batch.parse_header(one).base_offset == said[0] for one, said in zip(sent, found, strict=False))
    assert all(batch.parse_header(one).attributes == said.attributes for one, said in zip(sent, found, strict=False))
    return [(said.producer_id, said.last_sequence) for said in found]


def test_sequences_that_follow_on_each_other_are_admitted(batch: ModuleType) -> None:
    producers = {7: known(4, 8), 8: known(0, 2, 3)}
    run = [of_producer(7, 4, 9, 2), of_producer(8, 0, 4), bytearray(a_batch(1)), of_producer(7, 4, 11)]
    expected = [(7, 10), (8, 4), (-1, -1), (7, 11)]
    assert admitted_of(batch, *run, producers=producers) == expected
    assert admitted_of(batch, *run, of_producer(7, 4, 11), producers=producers) == expected, "once more"
    assert admitted_of(batch, *run, of_producer(8, 0, 6), producers=producers) == expected, "one is missing"
    assert admitted_of(batch, *run, of_producer(8, 1, 0), producers=producers) == expected, "another epoch"


def test_sequences_wrap(batch: ModuleType) -> None:
    producers = {7: known(0, 2**31 - 3)}
    run = [of_producer(7, 0, 2**31 - 2, 4), of_producer(7, 0, 2)]
    assert admitted_of(batch, *run, producers=producers) == [(7, 1), (7, 2)]
    run = [of_producer(7, 0, 2**31 - 2, 2), of_producer(7, 0, 0)]
    assert admitted_of(batch, *run, producers=producers) == [(7, 2**31 - 1), (7, 0)]


@pytest.mark.parametrize(
    "producers",
    [
        {}, {7: known(0)}, {7: known(1, 8)}, {7: known(0, 7)}, {7: known(0, 9)}, {7: known(0, 10, 8)},
        {7: known(0, 2**30 + 8, 8)}, {7: known(0, 8, txn=True)}, {8: known(0, 8)},
    ],
)  # fmt: skip
def test_what_continues_nothing_is_left_to_others(batch: ModuleType, producers: Any) -> None:
    assert admitted_of(batch, of_producer(7, 0, 9), producers={7: known(0, 2**31 - 1, 7, 8)}) == [(7, 9)]
    assert admitted_of(batch, of_producer(7, 0, 9), producers=producers) == []


def test_only_an_open_transaction_continues(batch: ModuleType) -> None:
    sent = of_producer(7, 0, 9, txn=True)
    assert admitted_of(batch, sent, producers={7: known(0, 8, txn=True)}, transactional=True) == [(7, 9)]
    assert admitted_of(batch, sent, producers={7: known(0, 8, txn=True)}) == [], "the request names none"
    assert admitted_of(batch, sent, producers={7: known(0, 8)}, transactional=True) == [], "it would begin one"
    assert admitted_of(batch, of_producer(7, 0, 9), producers={7: known(0, 8)}, transactional=True) == [(7, 9)]
    strange = [{"producer_id": -2}, {"producer_epoch": -1}, {"base_sequence": -1}, {"attributes": 0x30}]
    for fields in strange:
        changed = with_header(bytes(sent), fields)
        producers = {7: known(0, 8, txn=True), -2: known(0, 8, txn=True)}
        assert admitted_of(batch, changed, producers=producers, transactional=True) == []


def test_the_first_of_an_unknown_producer_is_admitted_where_such_are(batch: ModuleType) -> None:
    first, more = of_producer(7, 4, 9, 2), of_producer(7, 4, 11)
    assert admitted_of(batch, first, more, producers={}) == []
    assert admitted_of(batch, first, more, producers={}, unknown=True) == [(7, 10), (7, 11)]
    assert admitted_of(batch, first, of_producer(7, 4, 12), producers={}, unknown=True) == [(7, 10)], "a gap"
    assert admitted_of(batch, first, of_producer(7, 5, 11), producers={}, unknown=True) == [(7, 10)], "another epoch"
    between = [first, of_producer(8, 0, 3), bytearray(a_batch(1)), more]
    assert admitted_of(batch, *between, producers={8: known(0, 2)}, unknown=True) == [(7, 10), (8, 3), (-1, -1)]
    txn = of_producer(7, 4, 9, txn=True)
    assert admitted_of(batch, txn, producers={}, transactional=True, unknown=True) == []
    for fields in ({"producer_epoch": -1}, {"base_sequence": -1}):
        assert admitted_of(batch, with_header(bytes(first), fields), producers={}, unknown=True) == []


NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 2**30, 2**31 - 3, 2**31 - 2, 2**31 - 1])


@given(
    st.dictionaries(
        st.integers(0, 2),
        st.builds(
            lambda epoch, lasts, txn: known(epoch, *lasts, txn=txn),
            st.sampled_from([-1, 0, 0, 1]), st.lists(st.integers(-1, -1) | NUMBERS, max_size=3), st.booleans(),
        ),
    ),
    st.lists(
        st.builds(
            lambda producer, epoch, sequence, count, txn: bytes(of_producer(producer, epoch, sequence, count, txn=txn)),
            st.integers(-2, 2), st.sampled_from([0, 0, 1, -1]), st.integers(-1, -1) | NUMBERS, st.integers(1, 3),
            st.booleans(),
        ),
        max_size=6,
    ),
    st.booleans(),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=examples(400))
def test_producers_are_judged_alike(
    producers: dict[int, Known], sent: list[bytes], transactional: bool, unknown: bool
) -> None:
    buffers: list[list[bytearray]] = []

    def admitted(twin: ModuleType) -> Any:
        buffers.append([bytearray(data) for data in sent])
        return twin.admit(buffers[-1], 5, 1, 2**62, 9, 9999, 2**31, producers, transactional, unknown)

    both(admitted)
    assert buffers[0] == buffers[1]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(-1, 9), st.integers(61, 300)), max_size=8),
    st.integers(0, 600), st.integers(0, 500), st.integers(-1, 9),
)  # fmt: skip
def test_index_entries_are_those_of_one_batch_after_the_other(
    sizes: list[tuple[int, int, int]], since: int, interval: int, largest: int
) -> None:
    batches: list[Any] = []
    offset = 7
    for count, timestamp, size in sizes:
        batches.append(pure_twin.Admitted(offset, offset + count - 1, timestamp, size, -1, -1, -1, 0))
        offset += count
    _, (entries, *left) = both(lambda twin: twin.index_entries(batches, 1000, since, interval, largest, 5))
    expected: list[Any] = []
    position, state = 1000, (since, largest, 5)
    for batch in batches:
        _, (one, *rest) = both(
            lambda twin, b=batch, p=position, s=state: twin.index_entries([b], p, s[0], interval, *s[1:])
        )
        expected += one
        position, state = position + batch.size, tuple(rest)
    assert (entries, tuple(left)) == (expected, state)
    assert [entry[1] for entry in entries] == sorted({entry[1] for entry in entries})


def test_an_entry_comes_after_more_than_the_interval(batch: ModuleType) -> None:
    one = pure_twin.Admitted(0, 4, 9, 100, -1, -1, -1, 0)
    entries, since, largest, offset = batch.index_entries([one], 50, 10, 9, 3, 2)
    assert (entries, since, largest, offset) == ([(4, 50, 9, 4)], 100, 9, 4)
    assert batch.index_entries([one], 50, 9, 9, 30, 2) == ([], 109, 30, 2)


def test_compression_is_the_callers(batch: ModuleType) -> None:
    import gzip

    raw = batch.encode_batch([Record(-1, 5, b"k", b"v" * 1000)], attributes=1, compress=gzip.compress)
    header = batch.validate_batch(raw)
    assert header.codec == 1
    (record,) = batch.decode_records(gzip.decompress(raw[61:]), header)
    assert record.value == b"v" * 1000


def test_a_control_batch_holds_its_marker(batch: ModuleType) -> None:
    raw = batch.control_batch(commit=True, producer_id=4, producer_epoch=2, coordinator_epoch=9, timestamp=77)
    header = batch.validate_batch(raw)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    (marker,) = batch.decode_records(raw[61:], header)
    assert (marker.key, marker.value) == (b"\0\0\0\1", b"\0\0\0\0\0\t")
    assert raw == pure_twin.control_batch(
        commit=True, producer_id=4, producer_epoch=2, coordinator_epoch=9, timestamp=77
    )


def test_offsets_with_gaps_survive_as_compaction_leaves_them(batch: ModuleType) -> None:
    records = [Record(10, 5, b"a", b"1"), Record(13, 6, b"b", b"2"), Record(19, 7, b"c", b"3")]
    raw = batch.encode_batch(records, base_offset=10)
    header = batch.validate_batch(raw)
    assert (header.base_offset, header.last_offset) == (10, 19)
    assert [r.offset for r in batch.decode_records(raw[61:], header)] == [10, 13, 19]


def test_an_empty_batch_is_refused(batch: ModuleType) -> None:
    with pytest.raises(ValueError, match="at least one record"):
        batch.encode_batch([])


INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64, INT64, st.integers(-5, 2**31 - 1), st.integers(0, 2**31 - 1))
@settings(max_examples=examples(300))
def test_twins_agree_at_the_ends_of_64_bits(base: int, timestamp: int, delta: int, last: int) -> None:
    both(lambda twin: twin.encode_records([Record(0, timestamp, None, None)], 0, base))
    raw = bytearray(a_batch(1))
    struct.pack_into(">q", raw, 0, base)
    struct.pack_into(">i", raw, 23, last)
    both(lambda twin: twin.parse_header(bytes(raw)))
    both(lambda twin: twin.encode_records([Record(delta, 0, b"k", None)], 3, 0))
    header = pure_twin.parse_header(a_batch(1))._replace(base_timestamp=base)
    payload = pure_twin.encode_records([Record(-1, timestamp // 2, None, None)], 0, 0)
    both(lambda twin: twin.decode_records(payload, header))
    both(lambda twin: twin.validate_records(payload, header))


@given(st.binary(max_size=200), st.integers(-3, 200), st.integers(-1, 5))
def test_stamping_what_is_no_batch_is_refused_alike(raw: bytes, position: int, append_time: int) -> None:
    def stamped(twin: Any) -> bytes:
        buffer = bytearray(raw)
        twin.stamp(buffer, position, 1, 2, append_time)
        return bytes(buffer)

    both(stamped)


@given(st.binary(max_size=300))
def test_the_checksum_needs_no_instruction(data: bytes) -> None:
    assert cython_twin.crc32c_without_instruction(data) == pure_twin.crc32c(data)


@pytest.mark.parametrize("size", [767, 768, 769, 1536, 12_287, 12_288, 12_289, 13_056, 30_000, 100_001])
def test_long_checksums_are_joined_from_stretches(size: int) -> None:
    data = bytes(n * 7 & 0xFF for n in range(size))
    assert cython_twin.crc32c(data) == pure_twin.crc32c(data) == cython_twin.crc32c_without_instruction(data)
    assert cython_twin.crc32c(data[5:], 77) == pure_twin.crc32c(data[5:], 77)
