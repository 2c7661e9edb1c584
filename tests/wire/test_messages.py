"""Every API in every advertised version: the decoder reads what the library writes, and refuses invalid bytes."""

from __future__ import annotations

import random
import subprocess
import sys
import tracemalloc
from types import SimpleNamespace

import pytest

import fleetlog.wire.messages as m
from fleetlog._native.errors import LooseMessage
from fleetlog.wire import bounded
from fleetlog.wire.apis import APIS
from fleetlog.wire.bounded import MAX_FIELDS, MAX_TAGS, PARTITION_FIELDS, MalformedRequest, Reader
from tests.support.message_defaults import assert_defaults_untouched
from tests.support.samples import ALL_VERSIONS, request, response


@pytest.mark.parametrize(("key", "version"), ALL_VERSIONS)
def test_requests_survive_the_round_trip(key: int, version: int) -> None:
    rng = random.Random(key * 100 + version)
    for _ in range(20):
        message = request(key, version, rng)
        frame = memoryview(m.encode_request(key, version, 7, "client-ü", message))
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        header = m.parse_request_header(frame[4:])
        assert header[:4] == (key, version, 7, "client-ü")
        decoded = m.decode_request(key, version, frame[4 + header.body :])
        assert decoded.to_dict(json=False) == message.to_dict(json=False)
        assert decoded.encode(version=version) == message.encode(version=version)


@pytest.mark.parametrize(("key", "version"), ALL_VERSIONS)
def test_responses_survive_the_round_trip_and_equal_the_librarys_reading(key: int, version: int) -> None:
    rng = random.Random(key * 100 + version)
    for _ in range(20):
        message = response(key, version, rng)
        if key == 18:
            message.error_code = 0
        body = m.encode_response(message, key, version)
        decoded = m.decode_response(key, version, body)
        reference = m.response_class(key).decode(body, version=version)
        assert decoded.to_dict(json=False) == message.to_dict(json=False) == reference.to_dict(json=False)


@pytest.mark.parametrize(("key", "version"), ALL_VERSIONS)
def test_cut_requests_are_refused_and_lengthened_ones_read(key: int, version: int) -> None:
    rng = random.Random(key)
    message = request(key, version, rng)
    body = bytes(message.encode(version=version))
    for cut in range(len(body)):
        with pytest.raises(m.MalformedRequest) as refused:
            m.decode_request(key, version, memoryview(body[:cut]))
        assert type(refused.value) is m.MalformedRequest
    for more in b"\0", b"more":
        with pytest.raises(LooseMessage, match=f"{len(more)} bytes left over") as loose:
            m.decode_request(key, version, memoryview(body + more))
        assert loose.value.message.to_dict(json=False) == message.to_dict(json=False)


@pytest.mark.parametrize(("key", "version"), ALL_VERSIONS)
def test_strings_that_are_not_utf_8_are_replaced(key: int, version: int) -> None:
    changed = 0
    for seed in range(20):
        message = request(key, version, random.Random(seed))
        body = bytes(message.encode(version=version))
        latin = body.replace("ä".encode(), b"\xe4-")
        if latin == body:
            continue
        changed += 1
        with pytest.raises(LooseMessage, match="not UTF-8") as loose:
            m.decode_request(key, version, memoryview(latin))
        expected = repr(message.to_dict(json=False)).replace("ä", "\ufffd-")
        assert repr(loose.value.message.to_dict(json=False)) == expected
    assert changed or "ä" not in repr([request(key, version, random.Random(n)).to_dict(json=False) for n in range(20)])


def test_librdkafkas_request_for_all_topics_is_understood() -> None:
    """As librdkafka 2.16 sends it: three bytes of a reserved count stay behind in the middle."""
    with pytest.raises(LooseMessage) as loose:
        m.decode_request(3, 13, memoryview(bytes.fromhex("00000000010000")))
    assert loose.value.message.topics is None


@pytest.mark.parametrize(("key", "version"), ALL_VERSIONS)
def test_mutated_requests_decode_or_are_refused_never_anything_else(key: int, version: int) -> None:
    rng = random.Random(key + 1000 * version)
    for _ in range(200):
        body = bytearray(request(key, version, rng).encode(version=version))
        for _ in range(rng.randrange(1, 4)):
            if body:
                body[rng.randrange(len(body))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        try:
            m.decode_request(key, version, memoryview(bytes(body)))
        except m.MalformedRequest:
            pass


@pytest.mark.parametrize(("key", "version"), ALL_VERSIONS)
def test_a_count_of_two_thousand_million_costs_nothing(key: int, version: int) -> None:
    """Every position of a valid body is overwritten with the largest count there is."""
    body = bytes(request(key, version, random.Random(5), 2).encode(version=version))
    huge = b"\xff\xff\xff\xff\x07" if m.is_flexible(key, version) else b"\x7f\xff\xff\xff"
    tracemalloc.start()
    try:
        for position in range(len(body)):
            bomb = body[:position] + huge + body[position + len(huge) :] + b"\0" * 1000
            with pytest.raises(m.MalformedRequest):
                m.decode_request(key, version, memoryview(bomb))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_small_elements_cannot_fill_memory() -> None:
    """OffsetDelete and similar requests have elements of a few bytes: the decoded size is bounded, too."""
    count = MAX_FIELDS + 1
    body = b"\0\1g" + (1).to_bytes(4, "big") + b"\0\1t" + count.to_bytes(4, "big") + bytes(4 * count)
    with pytest.raises(m.MalformedRequest, match="too many objects"):
        m.decode_request(47, 0, memoryview(body))


@pytest.mark.parametrize("count", [20_000, 27_000])
def test_a_number_of_a_partition_counts_as_the_row_it_becomes(count: int) -> None:
    """OffsetFetch names partitions by numbers alone: twenty thousand of a topic are fine, as many as fields not."""
    body = b"\0\1g" + (1).to_bytes(4, "big") + b"\0\1t" + count.to_bytes(4, "big") + bytes(4 * count)
    if count * PARTITION_FIELDS < MAX_FIELDS - 10:
        assert len(m.decode_request(9, 1, memoryview(body)).topics[0].partition_indexes) == count
    else:
        with pytest.raises(m.MalformedRequest, match="too many objects"):
            m.decode_request(9, 1, memoryview(body))


def test_tagged_fields_are_capped_in_header_and_body() -> None:
    tags = bytes([MAX_TAGS + 1]) + b"".join(bytes([tag, 0]) for tag in range(MAX_TAGS + 1))
    head = (3).to_bytes(2, "big") + (12).to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    with pytest.raises(m.MalformedRequest, match="tagged fields"):
        m.parse_request_header(memoryview(head + tags))
    body = bytes(m.MetadataRequest(version=12, topics=[]).encode(version=12))
    with pytest.raises(m.MalformedRequest, match="tagged fields"):
        m.decode_request(3, 12, memoryview(body[:-1] + tags))


def test_unknown_tagged_fields_are_skipped() -> None:
    body = bytes(m.MetadataRequest(version=12, topics=[]).encode(version=12))
    decoded = m.decode_request(3, 12, memoryview(body[:-1] + b"\x01\x63\x03abc"))
    assert decoded.topics == []
    assert decoded.unknown_tags is None


@pytest.mark.parametrize(("frame", "why"), [
    (b"", "no header"),
    (b"\0\3\0\1\0\0\0\0", "no header"),
    (b"\0\3\0\1\0\0\0\0\0\5ab", "needs 5 bytes"),
    (b"\0\3\0\1\0\0\0\0\xff\xfe", "client id"),
])  # fmt: skip
def test_broken_headers_are_refused(frame: bytes, why: str) -> None:
    with pytest.raises(m.MalformedRequest, match=why):
        m.parse_request_header(memoryview(frame))


def test_headers_of_unknown_apis_and_versions_are_read_far_enough_to_answer() -> None:
    unknown = m.parse_request_header(memoryview(b"\3\xe7\0\1\0\0\0\7\0\1c"))
    assert (unknown.api_key, unknown.correlation_id, unknown.client_id) == (999, 7, "c")
    future = m.parse_request_header(memoryview(b"\0\x12\0\x63\0\0\0\7\0\1c\0rest"))
    assert (future.api_version, future.correlation_id) == (99, 7)


def test_apiversions_answers_with_the_old_header_and_others_do_not() -> None:
    assert m.encode_response_header(18, 4, 9) == b"\0\0\0\x09"
    assert m.encode_response_header(3, 12, 9) == b"\0\0\0\x09\0"
    assert m.encode_response_header(3, 8, 9) == b"\0\0\0\x09"


def test_an_apiversions_refusal_is_read_in_version_0() -> None:
    refusal = m.ApiVersionsResponse(version=0, error_code=35, api_keys=[])
    assert m.decode_response(18, 4, m.encode_response(refusal, 18, 0)).error_code == 35


def test_schemas_reach_what_the_table_advertises() -> None:
    for key, row in APIS.items():
        assert row.max_version <= m.schema_versions(key)[1], row


def test_an_array_that_may_be_null_has_no_null_elements() -> None:
    """Handlers take the names in an array for text."""
    assert m.decode_request(12006, 0, memoryview(b"\0\0")).sink_ids is None
    assert m.decode_request(12006, 0, memoryview(b"\2\2a\0")).sink_ids == ["a"]
    with pytest.raises(m.MalformedRequest, match="sink_ids"):
        m.decode_request(12006, 0, memoryview(b"\2\0\0"))


def test_no_default_list_was_changed() -> None:
    assert_defaults_untouched()
    m.MetadataResponse(version=12).topics.append("oops")
    with pytest.raises(AssertionError, match=r"MetadataResponse\.topics"):
        assert_defaults_untouched()
    m.MetadataResponse(version=12).topics.clear()


def test_what_the_library_lacks_is_declared_here() -> None:
    for key in (41, 76):
        low, high = m.schema_versions(key)
        for version in range(low, high + 1):
            message = response(key, version, random.Random(version))
            body = m.encode_response(message, key, version)
            assert m.decode_response(key, version, body).to_dict(json=False) == message.to_dict(json=False)


def test_a_class_is_made_when_it_is_asked_for() -> None:
    code = """
import gc
from fleetlog.wire import api_keys, messages
made = lambda: {cls.__name__ for cls in gc.get_objects() if isinstance(cls, type(messages._ApiMessage))}
before = made()
messages.request_class(api_keys.DESCRIBE_HEALTH)
print(*sorted(made() - before), len(made()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    request_name, response_name, number = done.stdout.split()
    assert (request_name, response_name) == ("DescribeHealthRequest", "DescribeHealthResponse")
    assert int(number) < 10


def test_flexible_versions_are_the_schemas() -> None:
    for api in APIS.values():
        for message in (m.request_class(api.key), m.response_class(api.key)):
            for version in range(api.max_version + 1):
                told = m.is_flexible(api.key, version)
                assert told == bool(message.flexible_version_q(version)), (api.key, version)


def test_a_varint_of_five_bytes_ends_at_32_bits() -> None:
    """A length above that would be a number that no other reader of the protocol sees."""
    assert Reader(memoryview(b"\xff\xff\xff\xff\x0f")).varint() == 0xFFFFFFFF
    for fifth in (b"\x10", b"\x1f", b"\x7f"):
        with pytest.raises(MalformedRequest, match="too large"):
            Reader(memoryview(b"\xff\xff\xff\xff" + fifth)).varint()


def test_what_stands_in_tagged_fields_counts_for_the_whole_message() -> None:
    """Else a request could decode into as many objects in each of its tagged fields."""
    elements = bounded._array("numbers", bounded._NUMBERS["int8"], compact=True, nullable=False)
    read = bounded._tag_section({0: ("numbers", elements)})
    body = b"\x01\x00\x0b" + bytes((11,)) + bytes(10)  # one tagged field, number 0, of 11 bytes: ten elements
    reader = Reader(memoryview(body), 0, budget=100)
    target = SimpleNamespace(tags=None, numbers=None)
    read(reader, target)
    assert target.numbers == [0] * 10
    assert reader.budget == 100 - 1 - 10
