"""Answers of the same bytes are decoded once, within a budget."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from fleetlog.brokers.console.same_answers import SameAnswers
from fleetlog.wire import messages


class Response:
    """Decodes as the library's messages do, and counts."""

    decoded = 0

    @classmethod
    def decode(cls, data: Any, **_: Any) -> list[bytes]:
        """A new object each time."""
        Response.decoded += 1
        return [bytes(data)]


def body(letter: bytes, throttle: int = 0) -> bytes:
    return throttle.to_bytes(4, "big") + letter * 3_000


def test_the_same_bytes_are_decoded_once() -> None:
    class Kind(Response):
        pass

    SameAnswers().apply_to(Kind)
    first = Kind.decode(BytesIO(body(b"a")))
    assert Kind.decode(BytesIO(body(b"a"))) is first
    assert Kind.decode(body(b"b")) == [body(b"b")], "other bytes say something else"
    assert Kind.decode(body(b"a")[:100]) is not Kind.decode(body(b"a")[:100]), "small ones are not kept"
    late = body(b"a", throttle=500)
    assert Kind.decode(late) is not Kind.decode(late), "a throttle is obeyed each time"


def test_what_is_kept_has_a_limit_and_versions_are_apart() -> None:
    class Kind(Response):
        pass

    class Kind_v1(Kind):  # noqa: N801  as the library names versions
        pass

    SameAnswers(kept_bytes=7_000).apply_to(Kind)
    first = Kind.decode(body(b"a"))
    assert Kind_v1.decode(body(b"a")) is not first
    assert Kind.decode(body(b"a")) is first, "it was used last, so the other one goes"
    Kind.decode(body(b"c"))
    before = Response.decoded
    assert Kind.decode(body(b"a")) is first
    Kind_v1.decode(body(b"a"))
    assert Response.decoded == before + 1


def test_the_library_decodes_so() -> None:
    kind = messages.message_class("DescribeAclsResponse")
    SameAnswers().apply_to(kind)
    answer = kind(throttle_time_ms=0, error_code=0, error_message="x" * 3_000, resources=[])
    encoded = answer.encode(version=3)
    assert kind[3].decode(BytesIO(encoded)) is kind[3].decode(BytesIO(encoded))
    assert kind[3].decode(encoded).error_message == "x" * 3_000
