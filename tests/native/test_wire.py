"""The wire kernel: the twins agree on any bytes, and with kafka-python's classes on every version."""

from __future__ import annotations

import random
import struct
import uuid
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fleetlog._native.wire_cy as cython_twin
import fleetlog._native.wire_py as pure_twin
import fleetlog.wire.messages as m
from fleetlog._native.byte_reader import ReplacedText, put_varint
from fleetlog._native.errors import LooseMessage, MalformedMessage
from fleetlog._native.wire_py import (
    MAX_ASKED,
    NO_HIGH_WATERMARK,
    FetchOutcome,
    FetchPart,
    MetadataPartition,
    NodeEndpoint,
    ProduceOutcome,
    ProducePart,
)
from tests.support.draw import examples
from tests.support.fetching import fetch_frame
from tests.support.samples import request, response

PRODUCE, FETCH, METADATA = 0, 1, 3
DECODERS = {PRODUCE: "decode_produce", FETCH: "decode_fetch"}
VERSIONS = [(PRODUCE, version) for version in range(3, 14)] + [(FETCH, version) for version in range(4, 19)]


def both(name: str, *arguments: Any, **options: Any) -> tuple[str, Any]:
    """The same call on both twins: equal results, or equal errors."""
    outcomes: list[tuple[str, Any]] = []
    for twin in (pure_twin, cython_twin):
        try:
            outcomes.append(("ok", getattr(twin, name)(*arguments, **options)))
        except LooseMessage as error:
            outcomes.append(("loose", (str(error), error.message)))
        except MalformedMessage as error:
            outcomes.append(("malformed", str(error)))
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def accepted_by_the_library(key: int, version: int, body: bytes) -> bool:
    try:
        m.decode_request(key, version, memoryview(body))
    except m.MalformedRequest:
        return False
    return True


@given(
    st.sampled_from([0, 1, 3, 18, 77, -1]), st.integers(-2, 20), st.integers(-(2**31), 2**31 - 1),
    st.integers(-3, 12) | st.just(2**15 - 1), st.binary(max_size=24),
    st.sampled_from([b"", b"\0", b"\1\5\3abc", b"\x41"]),
)  # fmt: skip
@settings(max_examples=examples(300))
def test_headers_are_read_alike(
    key: int, version: int, correlation_id: int, length: int, name: bytes, tags: bytes
) -> None:
    frame = struct.pack(">hhih", key, version, correlation_id, length) + name + tags
    for cut in (len(frame), 9, 12):
        verdict, found = both("parse_request_header", frame[:cut], {0: 9, 1: 12, 3: 9, 18: 3})
        if verdict == "ok":
            assert type(found) is pure_twin.RequestHeader
            assert found[:3] == (key, version, correlation_id)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_requests_decode_alike(key: int, version: int) -> None:
    rng = random.Random(version)
    for _ in range(40):
        message = request(key, version, rng)
        body = bytes(message.encode(version=version))
        verdict, found = both(DECODERS[key], version, body)
        assert verdict == "ok"
        if key == PRODUCE:
            expected = [
                (topic.topic_id if version >= 13 else topic.name, part.index, part.records)
                for topic in message.topic_data
                for part in topic.partition_data
            ]
            names = [p.topic_id if version >= 13 else p.topic for p in found.parts]
            records = [None if p.records is None else bytes(p.records) for p in found.parts]
            assert list(zip(names, [p.partition for p in found.parts], records, strict=True)) == expected
        else:
            assert len(found.parts) == sum(len(topic.partitions) for topic in message.topics)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_every_cut_is_refused_alike(key: int, version: int) -> None:
    body = bytes(request(key, version, random.Random(key * 100 + version)).encode(version=version))
    for cut in range(len(body)):
        verdict, _ = both(DECODERS[key], version, body[:cut])
        assert verdict == "malformed"


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_what_is_loose_is_read_alike(key: int, version: int) -> None:
    """Strings that are not UTF-8 are replaced as Java does it; bytes behind the last field are told."""
    for seed in range(40):
        body = bytes(request(key, version, random.Random(seed)).encode(version=version))
        _, message = both(DECODERS[key], version, body)
        assert both(DECODERS[key], version, body + b"more") == ("loose", ("4 bytes left over", message))
        latin = body.replace("ä".encode(), b"\xe4-").replace("本".encode(), b"\xe6\x9cx")
        verdict, found = both(DECODERS[key], version, latin)
        assert verdict == ("ok" if latin == body else "loose")
        if verdict == "loose":
            assert found[0] == "a string is not UTF-8"


@pytest.mark.parametrize("version", range(3, 14))
def test_a_transactional_id_that_is_not_utf_8_makes_no_run(version: int) -> None:
    frame = a_produce(version, b"r", transactional_id="ä日本").replace("ä日本".encode(), b"\xe4-\xe6\x97\xa5\xe6\x9cx")
    assert both("decode_produce_run", frame, 0, len(frame), 3, 13, 8) == ("ok", None)
    header = pure_twin.parse_request_header(frame[4:], {PRODUCE: 9})
    verdict, (_, found) = both("decode_produce", version, frame[4 + header.body :])
    assert (verdict, found.transactional_id) == ("loose", "\ufffd-日\ufffdx")
    assert type(found.transactional_id) is ReplacedText


def test_a_client_id_that_is_not_utf_8_is_read_alike() -> None:
    frame = struct.pack(">hhih", METADATA, 1, 7, 4) + b"J\xf6rg"
    verdict, (_, header) = both("parse_request_header", frame, {})
    assert (verdict, header.client_id, type(header.client_id), header.body) == ("loose", "J\ufffdrg", str, 14)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
@given(data=st.data())
@settings(max_examples=40)
def test_mutated_requests_are_judged_alike(key: int, version: int, data: st.DataObject) -> None:
    body = bytearray(request(key, version, random.Random(data.draw(st.integers(0, 50)))).encode(version=version))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFF)))
    verdict, _ = both(DECODERS[key], version, bytes(body))
    assert (verdict == "ok") == accepted_by_the_library(key, version, bytes(body))


def a_produce(
    version: int, records: bytes | None, correlation_id: int = 0, *, acks: int = -1, topic: str = "t", index: int = 3,
    client: str = "me", transactional_id: str | None = None, timeout_ms: int = 9, parts: int = 1,
) -> bytes:  # fmt: skip
    """A Produce as a frame with its size."""
    data = m.request_class(PRODUCE).TopicProduceData
    message = m.request_class(PRODUCE)(
        version=version, transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms,
        topic_data=[data(
            name=topic, topic_id=uuid.UUID(int=len(topic)),
            partition_data=[data.PartitionProduceData(index=index, records=None)] * parts,
        )],
    )  # fmt: skip
    frame = bytes(m.encode_request(PRODUCE, version, correlation_id, client, message))[4:]
    null, behind = (b"\0", b"\0\0\0") if version >= 9 else (b"\xff\xff\xff\xff", b"")
    if records is not None:
        assert frame.endswith(null + behind)
        assert parts == 1
        size = bytearray()
        if version >= 9:
            put_varint(size, len(records) + 1)
        else:
            size += struct.pack(">i", len(records))
        frame = frame[: len(frame) - len(null + behind)] + size + records + behind
    return struct.pack(">i", len(frame)) + frame


def a_run(data: Any, start: int = 0, end: int | None = None, lowest: int = 3, highest: int = 13, most: int = 99) -> Any:
    found = len(data) if end is None else end
    return both("decode_produce_run", memoryview(data), start, found, lowest, highest, most)[1]


@pytest.mark.parametrize("version", range(3, 14))
def test_requests_that_differ_only_in_partition_and_records_make_a_run(version: int) -> None:
    carried = [(0, b"x"), (1, b"p" * 126), (0, b"h" * 127), (0, b"x" * 128), (2, b"x" * 20000), (1, b"xxx")]
    frames = [a_produce(version, data, 70 + number, index=index) for number, (index, data) in enumerate(carried)]
    sent = b"".join(frames)
    data = b"before" + sent + a_produce(version, b"other", timeout_ms=1) + b"behind"
    run = a_run(data, 6)
    assert run.correlation_ids == [70, 71, 72, 73, 74, 75]
    assert run.groups == [0, 1, 0, 0, 2, 1]
    assert [[bytes(part) for part in batches] for batches in run.batches] == [
        [data for index, data in carried if index == number] for number in range(3)
    ]
    assert run.ends[-1] == 6 + len(sent)
    assert (run.version, run.acks, run.timeout_ms) == (version, -1, 9)
    by_id = version >= 13
    assert run.parts == [
        ProducePart(None if by_id else "t", uuid.UUID(int=1) if by_id else None, n, None) for n in range(3)
    ]
    assert a_run(data, 6, most=2).correlation_ids == [70, 71]
    assert a_run(data, 6, 6 + len(sent) - 1).correlation_ids == [70, 71, 72, 73, 74]
    assert a_run(data, 6, lowest=version + 1) is None
    assert a_run(data, 6, highest=version - 1) is None


def test_a_request_with_a_codec_is_a_run_of_its_own() -> None:
    plain, compressed = bytes(80), bytes(21) + b"\0\x03" + bytes(80)
    sent = [a_produce(11, data, number, index=number) for number, data in enumerate([plain, plain, compressed, plain])]
    assert a_run(b"".join(sent)).groups == [0, 1]
    assert a_run(b"".join(sent[2:])).correlation_ids == [2]
    assert len(a_run(sent[0] + a_produce(11, compressed)).parts) == 1, "known by its first bytes, too"
    assert a_run(a_produce(11, compressed[:60]) + sent[0]).correlation_ids == [0, 0], "no batch is so small"


OTHERS: list[dict[str, Any]] = [
    {"acks": 0}, {"acks": 2}, {"parts": 2, "records": None}, {"records": None},
    {"records": b""},
]  # fmt: skip


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("change", OTHERS)
def test_what_makes_no_run(version: int, change: dict[str, Any]) -> None:
    assert a_run(a_produce(version, **{"records": b"r", **change})) is None


@pytest.mark.parametrize("change", [{"timeout_ms": 8}, {"acks": 1}, {"transactional_id": "x"}, *OTHERS])
def test_what_ends_a_run(change: dict[str, Any]) -> None:
    assert len(a_run(a_produce(11, b"r") + a_produce(11, **{"records": b"r", **change})).ends) == 1
    assert len(a_run(a_produce(11, b"r") + a_produce(12, b"r")).ends) == 1


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_the_requests_of_a_run_have_the_same_transactional_id(version: int) -> None:
    ids = ["x", "x", "x", "y"]
    sent = [a_produce(version, b"r", index=n, transactional_id=name) for n, name in enumerate(ids)]
    run = a_run(b"".join(sent))
    assert (run.transactional_id, run.groups) == ("x", [0, 1, 2])
    assert a_run(sent[3] + a_produce(version, b"r", index=3)).groups == [0]
    assert a_run(a_produce(version, b"r")).transactional_id is None


def test_a_run_has_so_many_partitions() -> None:
    run = a_run(b"".join(a_produce(11, b"r", index=index) for index in range(40)))
    assert run.groups == list(range(pure_twin.MAX_RUN_PARTS))


@given(st.sampled_from(range(3, 14)), st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=4), st.data())
@settings(max_examples=examples(400))
def test_a_run_says_what_its_requests_say_one_by_one(version: int, carried: list[bytes], data: st.DataObject) -> None:
    name = data.draw(st.none() | st.just("x"))
    frames = [a_produce(version, part, n, index=n % 2, transactional_id=name) for n, part in enumerate(carried)]
    raw = bytearray(b"".join(frames))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFF)))
    run = a_run(raw, 0, data.draw(st.just(len(raw)) | st.integers(0, len(raw))), most=3)
    if run is None:
        return
    at, turns = 0, [iter(batches) for batches in run.batches]
    for group, correlation_id, until in zip(run.groups, run.correlation_ids, run.ends, strict=True):
        frame = raw[at + 4 : until]
        assert int.from_bytes(raw[at : at + 4], "big") == len(frame)
        header = pure_twin.parse_request_header(frame, {PRODUCE: 9})
        request = pure_twin.decode_produce(run.version, memoryview(frame)[header.body :])
        assert (header.api_key, header.api_version, header.correlation_id) == (PRODUCE, run.version, correlation_id)
        part = run.parts[group]._replace(records=next(turns[group]))
        assert request == (run.transactional_id, run.acks, run.timeout_ms, [part])
        at = until


@pytest.mark.parametrize("version", range(3, 14))
def test_the_answers_of_a_run_are_those_of_its_requests(version: int) -> None:
    run = a_run(b"".join(a_produce(version, b"r", -number, index=number // 2) for number in range(4)))
    nothing = (0, 0, 0, -1, -1)
    admitted = [[(2**40, *nothing), (2**40 + 7, *nothing)], [(5, *nothing), (6, *nothing)]]
    _, frames = both("encode_produce_run", run, [4, 3], admitted)
    expected = b""
    for correlation_id, (number, offset) in enumerate([(0, 2**40), (0, 2**40 + 7), (1, 5), (1, 6)]):
        outcome = ProduceOutcome(0, offset, -1, (4, 3)[number])
        body = pure_twin.encode_produce_response(version, [(run.parts[number], outcome)])
        head = m.encode_response_header(PRODUCE, version, -correlation_id)
        expected += struct.pack(">i", len(head) + len(body)) + head + body
    assert frames == expected


@given(st.binary(max_size=80), st.sampled_from(VERSIONS))
@settings(max_examples=examples(500))
def test_any_bytes_are_judged_alike(body: bytes, which: tuple[int, int]) -> None:
    key, version = which
    both(DECODERS[key], version, body)


@pytest.mark.parametrize("name", ["decode_produce", "decode_fetch"])
def test_counts_cannot_make_us_allocate(name: str) -> None:
    version = 9 if name == "decode_produce" else 12
    front = b"\0" + b"\0\1\0\0\0\1" if name == "decode_produce" else b"\0" * 4 + b"\0" * 13 + b"\0" * 8
    verdict, reason = both(name, version, front + b"\xff\xff\xff\xff\x0f" + b"\0" * 50)
    assert verdict == "malformed"
    assert "claims 4294967294 elements" in reason


def test_objects_are_counted() -> None:
    body = bytes(request(FETCH, 12, random.Random(3)).encode(version=12))
    assert both("decode_fetch", 12, body)[0] == "ok"
    assert both("decode_fetch", 12, body, 1) == ("malformed", "decodes into too many objects")


@pytest.mark.parametrize("name", ["decode_produce", "decode_fetch"])
def test_a_request_names_so_many_partitions_and_no_more(name: str) -> None:
    if name == "decode_produce":
        version, front, part = 3, b"\xff\xff" + b"\0" * 6 + b"\0\0\0\1" + b"\0\1t", b"\0" * 8
    else:
        version, front, part = 4, b"\0" * 17 + b"\0\0\0\1" + b"\0\1t", b"\0" * 16
    for count, verdict in ((MAX_ASKED - 1, "ok"), (MAX_ASKED, "malformed")):
        body = front + count.to_bytes(4, "big") + part * count
        found, request = both(name, version, body)
        assert found == verdict
        assert request == "decodes into too many objects" if found == "malformed" else len(request.parts) == count


def test_records_are_views_into_the_frame() -> None:
    frame = bytearray(b"\xff\xff\0\1\0\0\0\1\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\0\0\0\4abcd")
    for twin in (pure_twin, cython_twin):
        (part,) = twin.decode_produce(3, memoryview(frame)).parts
        frame[-4:] = b"wxyz"
        assert part.records == b"wxyz"
        frame[-4:] = b"abcd"


class Piece:
    """A file slice whose content is not read here."""

    def __init__(self, length: int) -> None:
        self.position = 0
        self.length = length


names = st.text(max_size=6)
numbers = st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)
errors = st.integers(-1, 130)
leaders = st.none() | st.tuples(numbers, numbers)
ids = st.integers(0, 5).map(lambda n: uuid.UUID(int=n))
endpoints = st.lists(st.builds(NodeEndpoint, numbers, names, numbers, st.none() | names), max_size=2)
produce_outcomes = st.builds(
    ProduceOutcome, errors, longs, longs, longs, st.lists(st.tuples(numbers, st.none() | names), max_size=2),
    st.none() | names, leaders,
)  # fmt: skip
pieces = st.lists(st.integers(1, 200).map(Piece), max_size=2)
fetch_outcomes = st.builds(
    FetchOutcome, errors, longs, longs, longs, st.none() | st.lists(st.tuples(longs, longs), max_size=2), pieces,
    st.integers(0, 300), st.none() | st.tuples(numbers, longs), leaders, numbers,
)  # fmt: skip


@given(
    st.integers(0, 13),
    st.lists(st.tuples(st.builds(ProducePart, names, ids, numbers, st.none()), produce_outcomes), max_size=5),
    numbers,
    endpoints,
)
def test_produce_answers_are_equal(version: int, parts: Any, throttle: int, where: Any) -> None:
    both("encode_produce_response", version, parts, throttle, where)


@given(
    st.integers(4, 18),
    st.lists(
        st.tuples(st.builds(FetchPart, names, ids, numbers, *[st.just(0)] * 6), fetch_outcomes), max_size=5
    ),
    numbers,
    errors,
    numbers,
    endpoints,
)  # fmt: skip
def test_fetch_answers_are_equal(
    version: int, parts: Any, throttle: int, error: int, session: int, where: Any
) -> None:  # fmt: skip
    _, chunks = both("encode_fetch_response", version, parts, throttle, error, session, where)
    assert [c for c in chunks if isinstance(c, Piece)] == [p for _, outcome in parts for p in outcome.slices]


@given(
    st.integers(4, 18),
    numbers,
    st.lists(
        st.tuples(st.builds(FetchPart, names, ids, numbers, *[st.just(0)] * 6), fetch_outcomes), max_size=3
    ),
    numbers,
    endpoints,
)  # fmt: skip
def test_a_whole_fetch_answer_is_its_header_and_its_body(
    version: int, number: int, parts: Any, session: int, where: Any
) -> None:
    _, chunks = both("encode_fetch_answer", version, number, parts, session, where)
    body = pure_twin.encode_fetch_response(version, parts, 0, 0, session, where)
    header = number.to_bytes(4, "big", signed=True) + b"\0" * (version >= 12)
    records = sum(outcome.size for _, outcome in parts)
    size = len(header) + sum(len(c) for c in body if isinstance(c, bytes)) + records
    assert chunks[0] == size.to_bytes(4, "big") + header + body[0]
    assert chunks[1:] == body[1:]


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 255)), max_size=3), st.integers(0, 200), st.integers(0, 2))
def test_a_fetch_is_decoded_where_it_lies_or_not_at_all(changes: list[tuple[int, int]], end: int, most: int) -> None:
    frame = bytearray(fetch_frame("t"))
    for position, value in changes:
        frame[position % len(frame)] = value
    data = memoryview(b"xyz" + bytes(frame) + b"behind")
    end = min(3 + end, len(data)) if end < 180 else len(data)
    _, run = both("decode_fetch_run", data, 3, end, 4, 18, most)
    if not changes and most:
        assert (run is not None) == (end >= 3 + len(frame))
    if run is not None:
        (at,) = run.ends
        header = pure_twin.parse_request_header(data[7:at], {1: 12})
        assert run.request == pure_twin.decode_fetch(run.version, data[7 + header.body : at])
        assert run.correlation_ids == [header.correlation_id]


# ---- the follower's side of Fetch -----------------------------------------------------------------------------------

FOLLOWER_VERSIONS = range(13, 19)
fetch_parts = st.builds(
    FetchPart, st.none(), ids, numbers, numbers, longs, numbers, longs, numbers, st.just(NO_HIGH_WATERMARK) | longs
)
forgotten = st.lists(st.tuples(ids, st.lists(numbers, max_size=3)), max_size=3)


@pytest.mark.parametrize("version", FOLLOWER_VERSIONS)
@given(
    st.lists(fetch_parts, max_size=5),
    forgotten,
    names,
    st.integers(-1, 5),
    st.integers(-1, 9),
    st.tuples(numbers, numbers, numbers, st.integers(0, 1), numbers, numbers),
)
@settings(max_examples=60)  # fmt: skip
def test_a_followers_fetch_has_the_librarys_bytes(
    version: int, parts: list[FetchPart], gone: Any, rack: str, replica: int, epoch: int, limits: tuple[int, ...]
) -> None:  # fmt: skip
    fields = dict(zip(
        ("max_wait_ms", "min_bytes", "max_bytes", "isolation_level", "session_id", "session_epoch"), limits, strict=True
    ))  # fmt: skip
    _, found = both(
        "encode_fetch_request", version, replica_id=replica, replica_epoch=epoch, parts=parts, forgotten=gone,
        rack_id=rack, **fields,
    )  # fmt: skip
    cls = m.FetchRequest
    topics = []
    for topic_id, members in groupby(parts, lambda part: part.topic_id):
        made = [
            _known(
                cls.FetchTopic.FetchPartition, version, partition=p.partition,
                current_leader_epoch=p.current_leader_epoch, fetch_offset=p.fetch_offset,
                last_fetched_epoch=p.last_fetched_epoch, log_start_offset=p.log_start_offset,
                partition_max_bytes=p.max_bytes, high_watermark=p.high_watermark,
            )
            for p in members
        ]  # fmt: skip
        topics.append(_known(cls.FetchTopic, version, topic_id=topic_id, partitions=made))
    left = [_known(cls.ForgottenTopic, version, topic_id=t, partitions=indexes) for t, indexes in gone]
    state = None if (replica, epoch) == (-1, -1) else cls.ReplicaState(replica_id=replica, replica_epoch=epoch)
    message = _known(
        cls, version, replica_id=replica, replica_state=state, topics=topics, forgotten_topics_data=left, rack_id=rack,
        **fields,
    )  # fmt: skip
    assert found == bytes(message.encode(version=version))
    decoded = pure_twin.decode_fetch(version, found)
    assert decoded.replica_id == replica
    assert decoded.replica_epoch == (epoch if version >= 15 else -1)
    assert decoded.forgotten == gone
    known = [p if version >= 18 else p._replace(high_watermark=NO_HIGH_WATERMARK) for p in parts]
    assert decoded.parts == known


@pytest.mark.parametrize("version", FOLLOWER_VERSIONS)
def test_fetch_answers_decode_as_the_library_says(version: int) -> None:
    rng = random.Random(version)
    for _ in range(150):
        message = response(FETCH, version, rng)
        verdict, found = both("decode_fetch_response", version, bytes(message.encode(version=version)))
        assert verdict == "ok"
        head = (message.throttle_time_ms, message.error_code, message.session_id)
        assert (found.throttle_ms, found.error, found.session_id) == head
        expected = [
            (
                topic.topic_id, part.partition_index, part.error_code, part.high_watermark, part.last_stable_offset,
                part.log_start_offset, _diverging(part.diverging_epoch), _leader(part.current_leader),
                part.preferred_read_replica, bytes(part.records or b""),
            )
            for topic in message.responses
            for part in topic.partitions
        ]  # fmt: skip
        assert [tuple(part) for part in found.parts] == expected


def _diverging(value: Any) -> tuple[int, int] | None:
    return None if value is None or value.epoch < 0 else (value.epoch, value.end_offset)


def _leader(value: Any) -> tuple[int, int] | None:
    return None if value is None or value.leader_epoch < 0 else (value.leader_id, value.leader_epoch)


@pytest.mark.parametrize("version", FOLLOWER_VERSIONS)
def test_every_cut_of_an_answer_is_refused_alike(version: int) -> None:
    body = bytes(response(FETCH, version, random.Random(version)).encode(version=version))
    for cut in range(len(body)):
        assert both("decode_fetch_response", version, body[:cut])[0] == "malformed"


@pytest.mark.parametrize("version", FOLLOWER_VERSIONS)
@given(data=st.data())
@settings(max_examples=60)
def test_mutated_answers_are_judged_alike(version: int, data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 50)))
    body = bytearray(response(FETCH, version, rng).encode(version=version))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFF)))
    verdict, _ = both("decode_fetch_response", version, bytes(body))
    try:
        m.decode_response(FETCH, version, bytes(body))
    except m.MalformedRequest:
        return  # perhaps in fields that a follower does not read
    assert verdict == "ok"


@given(st.binary(max_size=120), st.sampled_from(FOLLOWER_VERSIONS))
@settings(max_examples=examples(500))
def test_any_answer_is_judged_alike(body: bytes, version: int) -> None:
    both("decode_fetch_response", version, body)


@pytest.mark.parametrize("place", ["topics", "partitions", "aborted"])
def test_an_answers_counts_cannot_make_us_allocate(place: str) -> None:
    front = b"\0" * 10
    if place != "topics":
        front += b"\2" + b"\0" * 16
    if place == "aborted":
        front += b"\2" + b"\0" * 30
    verdict, reason = both("decode_fetch_response", 17, front + b"\xff\xff\xff\xff\x0f" + b"\0" * 99)
    assert verdict == "malformed"
    assert "claims 4294967294 elements" in reason


def test_an_answers_objects_are_counted() -> None:
    outcome = FetchOutcome(0, 1, 1, 0, [(1, 2)] * 3)
    part = FetchPart(None, uuid.UUID(int=1), 0, 0, 0, 0, 0, 0, 0)
    (body,) = pure_twin.encode_fetch_response(17, [(part, outcome)])
    assert both("decode_fetch_response", 17, body, 5)[0] == "ok"
    assert both("decode_fetch_response", 17, body, 4) == ("malformed", "decodes into too many objects")


def test_an_answers_records_are_views_into_the_body() -> None:
    part = FetchPart(None, uuid.UUID(int=1), 7, 0, 0, 0, 0, 0, 0)
    outcome = FetchOutcome(0, 9, 9, 0, None, [Piece(4)], 4)
    head, _, tail = pure_twin.encode_fetch_response(17, [(part, outcome)])
    body = bytearray(head + b"abcd" + tail)
    for twin in (pure_twin, cython_twin):
        (found,) = twin.decode_fetch_response(17, body).parts
        assert (found.partition, found.high_watermark, found.records) == (7, 9, b"abcd")
        assert found.records.obj is body
    body[len(head) : len(head) + 4] = b"wxyz"
    assert found.records == b"wxyz"


replicas = st.lists(st.integers(0, 9), max_size=3)
partitions = st.lists(
    st.builds(MetadataPartition, errors, numbers, numbers, numbers, replicas, replicas, replicas), max_size=4
)
topics = st.lists(
    st.tuples(errors, st.text(min_size=1, max_size=6), ids, st.booleans(), partitions, numbers), max_size=3
)


@pytest.mark.parametrize("version", range(14))
@given(topics, st.lists(st.builds(NodeEndpoint, numbers, names, numbers, st.none() | names), max_size=3), names)
@settings(max_examples=30)
def test_metadata_has_the_librarys_bytes(version: int, rows: Any, brokers: Any, cluster: str) -> None:
    parts = [both("encode_metadata_topic", version, *row)[1] for row in rows]
    _, found = both("join_metadata", version, brokers, cluster, 5, parts, 7, 11, 3 if version >= 13 else 0)
    response = m.MetadataResponse
    topic_type = response.MetadataResponseTopic
    partition_type = topic_type.MetadataResponsePartition
    made = [
        _known(
            topic_type, version, error_code=error, name=name, topic_id=topic_id, is_internal=internal,
            partitions=[
                _known(
                    partition_type, version, error_code=p.error, partition_index=p.partition, leader_id=p.leader_id,
                    leader_epoch=p.leader_epoch, replica_nodes=list(p.replicas), isr_nodes=list(p.in_sync),
                    offline_replicas=list(p.offline),
                )
                for p in members
            ],
            authorized_operations=_bits(operations),
        )
        for error, name, topic_id, internal, members, operations in rows
    ]  # fmt: skip
    where = [_known(response.MetadataResponseBroker, version, **b._asdict()) for b in brokers]
    expected = _known(
        response, version, throttle_time_ms=7, brokers=where, cluster_id=cluster, controller_id=5, topics=made,
        authorized_operations=_bits(11), error_code=3,
    )  # fmt: skip
    assert found == bytes(expected.encode(version=version))


def _bits(number: int) -> set[int] | None:
    word = number & 0xFFFFFFFF
    return None if word == 1 << 31 else {bit for bit in range(32) if word >> bit & 1}


def _known(cls: Any, version: int, **fields: Any) -> Any:
    """An object of the library with those of the fields that the version has."""
    schema = cls._struct.fields
    return cls(version=version, **{n: v for n, v in fields.items() if schema[n].for_version_q(version)})
