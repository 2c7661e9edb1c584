"""A decoder for schema-described messages that a hostile peer cannot use to fill memory or to stall the loop.

kafka-python's own decoder trusts its input: it tries to decode a count of two thousand million, a slice past the end
becomes a shorter string, each tagged section copies the rest of the message, unknown tags are kept. This one walks the
same schema (``StructField`` and friends) and builds the same message objects, but

- a count is compared with the bytes that are left, divided by the smallest size of an element,
- every field of every element and every tagged field is counted against one budget per message, so that no message
  holds the loop for long, however it is built,
- lengths are checked against the end before anything is sliced, booleans are any byte,
- null where the schema has no null is refused, as Kafka does,
- a tagged field must have exactly the size it claims; unknown ones are skipped and not retained,
- a message with strings that are not UTF-8, or with bytes left over at its end, is a LooseMessage: brokers serve it.

Known counterparts: CVE-2022-34917 and the two later count and tag bombs.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

from fleetlog._native.byte_reader import ByteReader
from fleetlog._native.errors import MalformedMessage
from fleetlog._native.wire_fields import MAX_TAGS

_ZERO_UUID = uuid.UUID(int=0)

MAX_FIELDS = 80_000
"""The bound on what a request decodes into: numbers and strings count 1, a struct 2 plus its fields.

That is about 50 ms of the loop's time. Every list of 10,000 topics, partitions or offsets that a client sends fits in.
"""
PARTITION_FIELDS = 3
"""A number of a partition in an array of numbers: it is looked up, and becomes a row of the answer."""
NAME_FIELDS = 2
"""A string in an array of strings: it takes longer to decode than a number, and there is nothing else in the array."""
PARTITION_NUMBERS = ("partitions", "partition_indexes")
UUID_FIELDS = 3
STRUCT_FIELDS = 2


__all__ = ["MAX_FIELDS", "MAX_TAGS", "Codec", "MalformedRequest", "Reader", "decode_whole", "struct_codec"]

MalformedRequest = MalformedMessage
"""The bytes are not a message of that API and version. The connection is closed; nothing was executed."""


class Reader(ByteReader[memoryview]):
    """A position in a body, with the budget of objects that the body may still decode into."""

    __slots__ = ("budget",)

    def __init__(self, data: memoryview, pos: int = 0, budget: int = MAX_FIELDS) -> None:
        super().__init__(data, pos)
        self.budget = budget

    def spend(self, fields: int) -> None:
        """Count decoded fields against the budget."""
        self.budget -= fields
        if self.budget < 0:
            raise MalformedRequest("decodes into too many objects: split it into several requests")

    def skip_tags(self) -> None:
        """Skip a section of tagged fields none of which is known."""
        count = self.varint()
        if count > MAX_TAGS:
            raise MalformedRequest(f"{count} tagged fields")
        self.spend(count)
        for _ in range(count):
            self.varint()
            self.take(self.varint())


Decode = Callable[[Reader], Any]


class Codec:
    """One type in one version: how to read it, the fewest bytes it can take, and what it costs (``MAX_FIELDS``)."""

    __slots__ = ("fields", "min_size", "read")

    def __init__(self, read: Decode, min_size: int, fields: int = 1) -> None:
        self.read = read
        self.min_size = min_size
        self.fields = fields


def _fixed(letter: str) -> Codec:
    packed = struct.Struct(">" + letter)
    unpack, size = packed.unpack_from, packed.size

    def read(reader: Reader) -> Any:
        pos = reader.pos
        if pos + size > reader.end:
            raise MalformedRequest("ends inside a number")
        reader.pos = pos + size
        return unpack(reader.data, pos)[0]

    return Codec(read, size)


_NUMBERS = {
    "int8": _fixed("b"),
    "int16": _fixed("h"),
    "uint16": _fixed("H"),
    "int32": _fixed("i"),
    "int64": _fixed("q"),
    "float64": _fixed("d"),
    "bool": _fixed("?"),
}


def _uuid(reader: Reader) -> uuid.UUID | None:
    value = uuid.UUID(bytes=bytes(reader.take(16)))
    return None if value == _ZERO_UUID else value  # the library's convention: absent is None


def _bitfield(reader: Reader) -> set[int] | None:
    word = int.from_bytes(reader.take(4), "big")
    return None if word == 1 << 31 else {bit for bit in range(32) if word >> bit & 1}


def _length(compact: bool, width: int) -> Decode:
    """Reads a length; -1 is null."""
    if compact:
        return lambda reader: reader.varint() - 1
    unpack = struct.Struct(">h" if width == 2 else ">i").unpack

    def read(reader: Reader) -> Any:
        length = unpack(reader.take(width))[0]
        if length < -1:
            raise MalformedRequest(f"length {length}")
        return length

    return read


def _string(name: str, compact: bool, nullable: bool) -> Codec:
    length_of = _length(compact, 2)

    def read(reader: Reader) -> str | None:
        length = length_of(reader)
        if length < 0:
            if not nullable:
                raise MalformedRequest(f"{name} must not be null")
            return None
        if length > 0x7FFF:
            raise MalformedRequest(f"{name} is a string of {length} bytes")
        return reader.text(length)

    return Codec(read, 1 if compact else 2)


def _bytes(name: str, compact: bool, nullable: bool) -> Codec:
    length_of = _length(compact, 4)

    def read(reader: Reader) -> bytes | None:
        length = length_of(reader)
        if length < 0:
            if not nullable:
                raise MalformedRequest(f"{name} must not be null")
            return None
        return bytes(reader.take(length))

    return Codec(read, 1 if compact else 4)


def _array(name: str, element: Codec, compact: bool, nullable: bool) -> Codec:
    length_of = _length(compact, 4)
    read_element, smallest, fields = element.read, max(1, element.min_size), element.fields

    def read(reader: Reader) -> list[Any] | None:
        count = length_of(reader)
        if count < 0:
            if not nullable:
                raise MalformedRequest(f"{name} must not be null")
            return None
        if count * smallest > reader.end - reader.pos:
            raise MalformedRequest(f"{name} claims {count} elements in {reader.end - reader.pos} bytes")
        reader.spend(count * fields)
        return [read_element(reader) for _ in range(count)]

    return Codec(read, 1 if compact else 4)


def _nullable_struct(inner: Codec) -> Codec:
    def read(reader: Reader) -> Any:
        present = reader.take(1)[0]
        if present == 0xFF:
            return None
        if present != 1:
            raise MalformedRequest("a nullable struct starts with neither 1 nor -1")
        return inner.read(reader)

    return Codec(read, 1, inner.fields)


def _tag_section(known: dict[int, tuple[str, Codec]]) -> Callable[[Reader, Any], None]:
    """Reads the tagged fields of one struct into its object."""

    def read(reader: Reader, target: Any) -> None:
        count = reader.varint()
        if count > MAX_TAGS:
            raise MalformedRequest(f"{count} tagged fields")
        reader.spend(count)
        for _ in range(count):
            tag, size = reader.varint(), reader.varint()
            field = known.get(tag)
            if field is None:
                reader.take(size)
                continue
            name, codec = field
            inner = Reader(reader.take(size), 0, reader.budget)
            setattr(target, name, codec.read(inner))
            reader.replaced |= inner.replaced
            if inner.pos != inner.end:
                raise MalformedRequest(f"tagged field {name} has another size than it claims")
            reader.budget = inner.budget
            if target.tags is None:
                target.tags = set()
            target.tags.add(name)

    return read


def _field_codec(field: Any, version: int, compact: bool, flexible: bool, *, is_element: bool = False) -> Codec:
    # An array that may be null has no null elements, though the library lets its elements inherit that.
    nullable = not is_element and field.nullable_for_version_q(version)
    if field.is_array():
        element = field.array_of
        if field.is_struct_array():
            inner = struct_codec(element, version, flexible)
        else:
            inner = _field_codec(element, version, compact, flexible, is_element=True)
            if field.name in PARTITION_NUMBERS:
                inner = Codec(inner.read, inner.min_size, PARTITION_FIELDS)
            elif element.type_str == "string":
                inner = Codec(inner.read, inner.min_size, NAME_FIELDS)
        return _array(field.name, inner, compact, nullable)
    if field.is_struct():
        inner = struct_codec(field, version, flexible)
        return _nullable_struct(inner) if nullable else inner
    kind = field.type_str
    if kind in _NUMBERS:
        return _NUMBERS[kind]
    if kind == "string":
        return _string(field.name, compact, nullable)
    if kind in ("bytes", "records"):
        return _bytes(field.name, compact, nullable)
    if kind == "uuid":
        return Codec(_uuid, 16, UUID_FIELDS)
    assert kind == "bitfield", f"no decoder for type {kind}"
    return Codec(_bitfield, 4)


def struct_codec(schema: Any, version: int, flexible: bool, data_class: Any = None, fixed: Any = ()) -> Codec:
    """The decoder of a schema struct in one version.

    ``data_class`` is the message class of a top-level struct; ``fixed`` are slots to set besides the fields.
    """
    make = data_class if data_class is not None else schema.data_class
    fields = [(f.name, _field_codec(f, version, flexible, flexible)) for f in schema.untagged_fields(version)]
    reads = [(name, codec.read) for name, codec in fields]
    tagged = {f.tag: f for f in schema.fields.values() if f.for_version_q(version) and f.tagged_field_q(version)}
    tags = _tag_section({tag: (f.name, _field_codec(f, version, True, flexible)) for tag, f in tagged.items()})
    new = object.__new__

    def read(reader: Reader) -> Any:
        target = new(make)
        target._version = version
        target.tags = None
        target.unknown_tags = None
        for name, value in fixed:
            setattr(target, name, value)
        for name, read_field in reads:
            setattr(target, name, read_field(reader))
        if flexible:
            if reader.pos < reader.end and reader.data[reader.pos] == 0:
                reader.pos += 1
            else:
                tags(reader, target)
        return target

    smallest = sum(codec.min_size for _, codec in fields) + (1 if flexible else 0)
    return Codec(read, smallest, STRUCT_FIELDS + sum(codec.fields for _, codec in fields))


def decode_whole(codec: Codec, body: memoryview, budget: int = MAX_FIELDS) -> Any:
    """Decode a body that must end where the message ends.

    Raises:
        MalformedRequest: for anything that is not such a message.
        LooseMessage: with the message, where only its end or the encoding of a string is not right.

    """
    reader = Reader(body, 0, budget)
    try:
        message = codec.read(reader)
    except MalformedRequest:
        raise
    except Exception as error:  # a schema feature that this decoder lacks must not become a way to harm the broker
        raise MalformedRequest(f"{type(error).__name__}: {error}") from error
    return reader.whole(message)
