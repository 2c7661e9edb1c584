"""Encoding a long message a piece at a time, so that the loop can do something else in between.

The library encodes a message in one go, into a buffer that keeps the size of the largest message so far. Here a
message is walked by its schema, and each piece of some dozens of elements is bytes of its own. The library's own
encoders make the pieces; all pieces joined are what it encodes (``tests/wire/test_pieces.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fleetlog._native.byte_reader import varint_bytes
from fleetlog.wire.messages import EncodeBuffer

PIECE_ELEMENTS = 64
"""About how many array elements a piece has: some 100 microseconds of work."""
LONG_ELEMENTS = 4 * PIECE_ELEMENTS
BUFFER_BYTES = 4096


def is_long(message: Any, version: int) -> bool:
    """Whether the message has enough elements to be encoded in pieces."""
    return _weight(message, _nested(message._struct, version), LONG_ELEMENTS) > LONG_ELEMENTS


def pieces(message: Any, version: int) -> Iterator[bytes]:
    """The message's encoding, in order."""
    flexible = message.flexible_version_q(version)
    yield from _struct(message._struct, message, version, flexible)


class Nested(NamedTuple):
    """An array of structs in a struct, with the arrays of structs in its elements."""

    name: str
    inner: tuple[Nested, ...]


_KNOWN: dict[tuple[int, int], tuple[Nested, ...]] = {}


def _nested(struct: Any, version: int) -> tuple[Nested, ...]:
    """The arrays of structs in a struct, however deep. Schemas never change, so the result is cached."""
    nested = _KNOWN.get((id(struct), version))
    if nested is None:
        nested = _KNOWN[id(struct), version] = tuple(
            Nested(field.name, _nested(field.array_of, version))
            for field in struct.untagged_fields(version)
            if field.is_struct_array()
        )
    return nested


def _weight(item: Any, nested: tuple[Nested, ...], enough: int) -> int:
    """How many elements the arrays of a struct have, and the arrays in those; some number above ``enough`` if more."""
    total = 0
    for name, inner in nested:
        elements = getattr(item, name)
        if elements:
            total += len(elements)
            if inner:
                for element in elements:
                    if total > enough:
                        return total
                    total += _weight(element, inner, enough - total)
    return total


def _struct(struct: Any, item: Any, version: int, flexible: bool) -> Iterator[bytes]:
    for field in struct.untagged_fields(version):
        value = getattr(item, field.name)
        if field.is_struct_array() and value:
            count = len(value)
            yield varint_bytes(count + 1) if flexible else count.to_bytes(4, "big")
            yield from _elements(field.array_of, value, version, flexible)
        else:
            yield bytes(field.encode(value, version=version, compact=flexible, tagged=flexible))
    if flexible:
        yield bytes(struct.tagged_fields(version).encode(item, version=version))


def _elements(struct: Any, elements: Sequence[Any], version: int, flexible: bool) -> Iterator[bytes]:
    encode = struct.compiled_encode_into(version, compact=flexible, tagged=flexible)
    nested = _nested(struct, version)
    out, have = EncodeBuffer(BUFFER_BYTES), 0
    for element in elements:
        weight = 1 + (_weight(element, nested, PIECE_ELEMENTS) if nested else 0)
        if weight <= PIECE_ELEMENTS:
            encode(element, out)
            have += weight
            if have < PIECE_ELEMENTS:
                continue
        if out.pos:
            yield bytes(out.result())
            out, have = EncodeBuffer(BUFFER_BYTES), 0
        if weight > PIECE_ELEMENTS:
            yield from _struct(struct, element, version, flexible)
    if out.pos:
        yield bytes(out.result())
