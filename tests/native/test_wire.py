"""The wire kernel: the twins agree on any bytes, and with kafka-python's classes on every version."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import _native.wire_cy as cython_twin
import _native.wire_py as pure_twin
import wire.messages as m
from _native.errors import MalformedMessage
from _native.wire_py import (
    FetchOutcome,
    FetchPart,
    MetadataPartition,
    NodeEndpoint,
    ProduceOutcome,
    ProducePart,
)
from tests.wire.samples import request

PRODUCE, FETCH, METADATA = 0, 1, 3
DECODERS = {PRODUCE: "decode_produce", FETCH: "decode_fetch"}
VERSIONS = [(PRODUCE, version) for version in range(3, 14)] + [(FETCH, version) for version in range(4, 19)]


def both(name: str, *arguments: Any) -> tuple[str, Any]:
    """The same call on both twins: equal results, or equal errors."""
    outcomes: list[tuple[str, Any]] = []
    for twin in (pure_twin, cython_twin):
        try:
            outcomes.append(("ok", getattr(twin, name)(*arguments)))
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
@given(data=st.data())
@settings(max_examples=40)
def test_mutated_requests_are_judged_alike(key: int, version: int, data: st.DataObject) -> None:
    body = bytearray(request(key, version, random.Random(data.draw(st.integers(0, 50)))).encode(version=version))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFF)))
    verdict, _ = both(DECODERS[key], version, bytes(body))
    assert (verdict == "ok") == accepted_by_the_library(key, version, bytes(body))


@given(st.binary(max_size=80), st.sampled_from(VERSIONS))
@settings(max_examples=500)
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


def test_records_are_views_into_the_frame() -> None:
    frame = bytearray(b"\xff\xff\0\1\0\0\0\1\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\0\0\0\4abcd")
    for twin in (pure_twin, cython_twin):
        (part,) = twin.decode_produce(3, memoryview(frame)).parts
        frame[-4:] = b"wxyz"
        assert part.records == b"wxyz"
        frame[-4:] = b"abcd"


class Piece:
    """A file slice that nobody reads here."""

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
