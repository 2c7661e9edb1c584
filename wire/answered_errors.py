"""The error codes in an answer, for the figures: at its top, and of the topics, partitions or groups in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleetlog.wire import hot, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.pieces import Shape, shape_of

MOST_ELEMENTS = 1_000
"""Elements of one answer that are looked at: some 100 microseconds."""


def answered_errors(message: Any, version: int) -> list[int]:
    """All codes but 0, of the first ``MOST_ELEMENTS`` elements."""
    shape = shape_of(message._struct, version)
    if shape.arrays:
        return list(_codes(message, shape, [MOST_ELEMENTS]))
    return [message.error_code] if shape.own and message.error_code else []


def _codes(item: Any, shape: Shape, left: list[int]) -> Iterator[int]:
    if shape.own and item.error_code:
        yield item.error_code
    for name, inner in shape.arrays:
        for element in (getattr(item, name) or ()) if inner.codes else ():
            if not left[0]:
                return
            left[0] -= 1
            yield from _codes(element, inner, left)


PRODUCE = 0


def error_response(key: int, version: int, request: Any, code: ErrorCode) -> Any:
    """An answer that says nothing but the error, if that API's answer has a place for one; else None.

    Most answers carry an ``error_code`` at the top. A Produce carries one per partition, so its request is needed.
    """
    response = messages.response_class(key)
    if key == PRODUCE and request is not None:
        return hot.encode_produce_response(version, [(part, hot.ProduceOutcome(code)) for part in request.parts])
    field = response._struct.fields.get("error_code")
    if field is None or not field.for_version_q(version):
        return None
    return response(version=version, error_code=code)
