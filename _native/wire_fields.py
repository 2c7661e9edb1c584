"""The fields of Kafka's messages, read and written one by one, for ``wire_py``.

A reader compares every length and count with the bytes that are left before it uses them, and counts what it decodes
against a budget. KIP-482 has the compact types and the tagged fields.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator, Sequence

from fleetlog._native.byte_reader import ByteReader, put_varint
from fleetlog._native.errors import MalformedMessage

Buffer = bytes | bytearray | memoryview

MAX_OBJECTS = 200_000
MAX_ASKED = 40_000
"""What a Fetch or a Produce may name: topics, partitions, tagged fields. The loop decodes so many in less than 50 ms.

20,000 partitions of a topic each fit in, and 39,999 of one topic; a follower names its partitions in portions.
"""
MAX_TAGS = 64
_MAX_STRING = 0x7FFF

I16, I32, I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


class Reader(ByteReader[memoryview]):
    """Reads the fields of a message; ``budget`` is the number of objects that it may still decode into."""

    __slots__ = ("budget",)

    def __init__(self, data: Buffer, budget: int) -> None:
        super().__init__(memoryview(data))
        self.budget = budget

    def spend(self, objects: int) -> None:
        """Count objects against the budget."""
        self.budget -= objects
        if self.budget < 0:
            raise MalformedMessage("decodes into too many objects")

    def string(self, flexible: bool) -> str | None:
        """A nullable string."""
        length: int = self.varint() - 1 if flexible else self.unpack(I16)[0]
        if length == -1:
            return None
        if length < 0 or length > _MAX_STRING:
            raise MalformedMessage(f"a string of {length} bytes")
        return self.text(length)

    def name(self, flexible: bool) -> str:
        """A string that must not be null."""
        value = self.string(flexible)
        if value is None:
            raise MalformedMessage("a name must not be null")
        return value

    def count(self, flexible: bool, smallest: int) -> int:
        """The length of an array whose elements have ``smallest`` bytes at least."""
        count: int = self.varint() - 1 if flexible else self.unpack(I32)[0]
        if count < 0:
            raise MalformedMessage("an array must not be null")
        if count > (self.end - self.pos) // smallest:
            raise MalformedMessage(f"an array claims {count} elements in {self.end - self.pos} bytes")
        self.spend(count)
        return count

    def nullable_count(self, smallest: int) -> int:
        """The length of a compact array that may be null, which counts as empty."""
        count = self.varint() - 1
        if count > (self.end - self.pos) // smallest:
            raise MalformedMessage(f"an array claims {count} elements in {self.end - self.pos} bytes")
        self.spend(max(0, count))
        return max(0, count)

    def topic_id(self) -> uuid.UUID:
        """16 bytes, unchanged."""
        return uuid.UUID(bytes=bytes(self.take(16)))

    def tags(self) -> Iterator[int]:
        """The tag of each tagged field; meanwhile the reader ends at the field's end; the unread rest is skipped."""
        count = self.varint()
        if count > MAX_TAGS:
            raise MalformedMessage(f"{count} tagged fields")
        self.spend(count)
        outer = self.end
        for _ in range(count):
            tag, size = self.varint(), self.varint()
            self.take(size)
            after = self.pos
            self.pos, self.end = after - size, after
            yield tag
            self.pos, self.end = after, outer

    def skip_tags(self) -> None:
        """Tagged fields none of which is known."""
        for _ in self.tags():
            pass


def put_string(out: bytearray, value: str | None, flexible: bool) -> None:
    data = None if value is None else value.encode()
    if flexible:
        put_varint(out, 0 if data is None else len(data) + 1)
    else:
        out += I16.pack(-1 if data is None else len(data))
    if data is not None:
        out += data


def put_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        put_varint(out, count + 1)
    else:
        out += I32.pack(count)


def put_numbers(out: bytearray, numbers: Sequence[int], flexible: bool) -> None:
    put_count(out, len(numbers), flexible)
    out += struct.pack(f">{len(numbers)}i", *numbers)


def put_tags(out: bytearray, fields: Sequence[tuple[int, bytes]]) -> None:
    put_varint(out, len(fields))
    for tag, payload in fields:
        put_varint(out, tag)
        put_varint(out, len(payload))
        out += payload
