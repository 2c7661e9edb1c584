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
    return _weight(message, shape_of(message._struct, version), LONG_ELEMENTS) > LONG_ELEMENTS


def pieces(message: Any, version: int) -> Iterator[bytes]:
    """The message's encoding, in order."""
    flexible = message.flexible_version_q(version)
    yield from _struct(message._struct, message, version, flexible)


class Shape(NamedTuple):
    """Where a struct has error codes, and its arrays of structs."""

    own: bool
    """Whether it has a code itself."""
    codes: bool
    """Whether it has one, or those in its arrays."""
    arrays: tuple[tuple[str, Shape], ...]


_SHAPES: dict[tuple[int, int], Shape] = {}


def shape_of(struct: Any, version: int) -> Shape:
    """The shape of a message's struct. Schemas never change, so it is cached."""
    shape = _SHAPES.get((id(struct), version))
    if shape is None:
        fields = struct.untagged_fields(version)
        arrays = tuple((field.name, shape_of(field.array_of, version)) for field in fields if field.is_struct_array())
        own = any(field.name == "error_code" for field in fields)
        shape = _SHAPES[id(struct), version] = Shape(own, own or any(inner.codes for _, inner in arrays), arrays)
    return shape


def _weight(item: Any, shape: Shape, enough: int) -> int:
    """How many elements the arrays of a struct have, and the arrays in those; some number above ``enough`` if more."""
    total = 0
    for name, inner in shape.arrays:
        elements = getattr(item, name)
        if elements:
            total += len(elements)
            if inner.arrays:
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
    shape = shape_of(struct, version)
    out, have = EncodeBuffer(BUFFER_BYTES), 0
    for element in elements:
        weight = 1 + (_weight(element, shape, PIECE_ELEMENTS) if shape.arrays else 0)
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
