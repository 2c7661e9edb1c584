"""The throttle time in answers that are encoded already, for every API and version."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from fleetlog.wire import hot, messages
from fleetlog.wire.apis import APIS
from fleetlog.wire.throttled import with_throttle_time

LEFT_MS = 123_456
VERSIONS = [(key, version) for key, row in APIS.items() for version in range(row.lowest, row.max_version + 1)]


def frame(key: int, version: int, body: bytes, correlation_id: int = 7) -> bytes:
    (whole,) = hot.framed(messages.encode_response_header(key, version, correlation_id), [body])
    return bytes(whole)


def decoded(key: int, version: int, data: bytes) -> tuple[int, Any]:
    assert len(data) == 4 + int.from_bytes(data[:4], "big")
    correlation_id, body = messages.split_response(key, version, data[4:])
    return correlation_id, messages.decode_response(key, version, body)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_only_the_throttle_time_differs(key: int, version: int) -> None:
    response = messages.response_class(key)(version=version)
    if key == 18:
        one = response.ApiVersion(api_key=3, min_version=0, max_version=9)
        response.api_keys = [one] * 200
    if key == 47:
        response.error_code = 5
    plain = frame(key, version, messages.encode_response(response, key, version))
    (found,) = with_throttle_time(key, version, [plain], LEFT_MS)
    before, after = decoded(key, version, plain), decoded(key, version, found)
    told = after[1].to_dict().pop("throttle_time_ms", 0) if hasattr(after[1], "throttle_time_ms") else None
    assert after[0] == before[0] == 7
    if not _has_time(response, version):
        assert found == plain
        return
    assert told == LEFT_MS
    after[1].throttle_time_ms = 0
    assert after[1].to_dict() == before[1].to_dict()


def _has_time(response: Any, version: int) -> bool:
    field = response._struct.fields.get("throttle_time_ms")
    return field is not None and bool(field.for_version_q(version))


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_answers_of_a_run_of_produce_requests(version: int) -> None:
    """Some with endpoints of leaders behind the throttle time, which no offset tells."""
    part = hot.ProducePart("topic" if version < 13 else "", uuid.uuid4() if version >= 13 else None, 3, None)
    endpoints = [hot.NodeEndpoint(1, "host", 9092, "rack")] if version >= 10 else []
    plain = [
        frame(0, version, hot.encode_produce_response(version, [(part, hot.ProduceOutcome(0, 5))], endpoints=some), n)
        for n, some in enumerate([[], endpoints, []])
    ]
    (found,) = with_throttle_time(0, version, [b"".join(plain)], LEFT_MS)
    for number, one in enumerate(plain):
        size = 4 + int.from_bytes(found[:4], "big")
        correlation_id, answer = decoded(0, version, found[:size])
        found = found[size:]
        assert (correlation_id, answer.throttle_time_ms) == (number, LEFT_MS)
        answer.throttle_time_ms = 0
        assert answer.to_dict() == decoded(0, version, one)[1].to_dict()
    assert found == b""


def test_slices_of_files_stay() -> None:
    piece = object()
    plain = frame(1, 12, messages.encode_response(messages.response_class(1)(version=12), 1, 12))
    found = with_throttle_time(1, 12, [plain, piece], 5)
    assert found[1] is piece
    assert decoded(1, 12, found[0])[1].throttle_time_ms == 5
    assert with_throttle_time(0, 9, [], 5) == []
