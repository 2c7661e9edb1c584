"""Reading and writing bytes one value after the other: the one bounded reader and the one varint of all pure code."""

from __future__ import annotations

import struct
from typing import Any, Generic, TypeVar

from fleetlog._native.errors import LooseMessage, MalformedMessage

B = TypeVar("B", bytes, memoryview)
M = TypeVar("M")


class ReplacedText(str):
    """A string whose bytes were not UTF-8: U+FFFD stands for what could not be read, as in Java. No name to store."""

    __slots__ = ()


class ByteReader(Generic[B]):
    """A position in bytes, never past ``end``. What does not fit raises :meth:`error`, MalformedMessage by default."""

    __slots__ = ("data", "end", "pos", "replaced")

    def __init__(self, data: B, pos: int = 0) -> None:
        self.data: B = data
        self.pos = pos
        self.end = len(data)
        self.replaced = False

    def error(self, reason: str) -> Exception:
        """The exception for bytes that are not what they should be."""
        return MalformedMessage(reason)

    def take(self, size: int) -> B:
        """The next ``size`` bytes; of a view without a copy."""
        pos = self.pos
        after = pos + size
        if size < 0 or after > self.end:
            raise self.error(f"needs {size} bytes at {pos}, has {self.end - pos}")
        self.pos = after
        return self.data[pos:after]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Fixed fields; none is read unless all are present."""
        return layout.unpack(self.take(layout.size))

    def varint(self, bits: int = 32) -> int:
        """An unsigned varint of at most ``bits`` bits (32 or 64)."""
        data, pos, end = self.data, self.pos, self.end
        value = shift = 0
        while True:
            if pos >= end:
                wrong = "a varint is cut off"
                break
            byte = data[pos]
            pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> bits == 0:
                    self.pos = pos
                    return value
                wrong = "a varint is too large"
                break
            shift += 7
            if shift >= bits:
                wrong = "a varint is too long"
                break
        self.pos = pos
        raise self.error(wrong)

    def text(self, size: int) -> str:
        """The next ``size`` bytes as a string; what is not UTF-8 is replaced, and remembered for :meth:`whole`."""
        data = self.take(size)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError:
            self.replaced = True
            return ReplacedText(data, "utf-8", "replace")

    def whole(self, message: M) -> M:
        """The message that was read; LooseMessage with it, if strings are not UTF-8 or bytes are left over."""
        if self.replaced:
            raise LooseMessage("a string is not UTF-8", message)
        if self.pos != self.end:
            raise LooseMessage(f"{self.end - self.pos} bytes left over", message)
        return message

    def finish(self) -> None:
        """Raise unless everything was read."""
        if self.pos != self.end:
            raise self.error(f"{self.end - self.pos} bytes left over")


def put_varint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def varint_bytes(value: int) -> bytes:
    """An unsigned varint, as lengths are written in flexible versions (KIP-482)."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    put_varint(out, value)
    return bytes(out)


def zigzag(value: int) -> int:
    """A signed number of 64 bits as an unsigned one in which small magnitudes stay small."""
    return (value << 1) ^ (value >> 63)
