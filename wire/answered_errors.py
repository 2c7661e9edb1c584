"""The error codes in an answer, for the figures: at its top, and of the topics, partitions or groups in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from fleetlog.wire import hot, messages
from fleetlog.wire.errors import ErrorCode

MOST_ELEMENTS = 1_000
"""Elements of one answer that are looked at: some 100 microseconds."""
_FIELD = "error_code"


class Coded(NamedTuple):
    """A struct that has error codes: its own, or those of the structs in the arrays of these names."""

    own: bool
    arrays: tuple[tuple[str, Coded], ...]


_KNOWN: dict[tuple[int, int], Coded | None] = {}


def _coded(struct: Any, version: int) -> Coded | None:
    """Where the struct's elements have codes; None if nowhere. Schemas never change, so the result is cached."""
    key = id(struct), version
    if key not in _KNOWN:
        fields = struct.untagged_fields(version)
        nested = ((field.name, _coded(field.array_of, version)) for field in fields if field.is_struct_array())
        arrays = tuple((name, inner) for name, inner in nested if inner is not None)
        own = any(field.name == _FIELD for field in fields)
        _KNOWN[key] = Coded(own, arrays) if own or arrays else None
    return _KNOWN[key]


def answered_errors(message: Any, version: int) -> list[int]:
    """All codes but 0, of the first ``MOST_ELEMENTS`` elements."""
    coded = _coded(message._struct, version)
    if coded is None:
        return []
    if not coded.arrays:
        return [message.error_code] if message.error_code else []
    return list(_codes(message, coded, [MOST_ELEMENTS]))


def _codes(item: Any, coded: Coded, left: list[int]) -> Iterator[int]:
    if coded.own and item.error_code:
        yield item.error_code
    for name, inner in coded.arrays:
        for element in getattr(item, name) or ():
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
