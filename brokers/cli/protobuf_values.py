"""Protobuf values as Python's, by the descriptor that a schema registry has compiled.

A registry tells a file's ``FileDescriptorProto``; values name a message of it by its indexes. What strangers wrote is
decoded in bounded time and depth: each field is counted, and values nested deeper than a hundred are refused. As in
Protobuf's JSON, fields that have their default are not there; what the schema does not know stands by its number.
Source: Protocol Buffers' encoding, descriptor.proto, and Confluent's wire format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

DEPTH_MAX: Final = 100
TYPES_MAX: Final = 5_000
_VARINT_BYTES: Final = 10
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_MESSAGE, _ENUM, _STRING, _RAW, _BOOL = 11, 14, 9, 12, 8
_REPEATED: Final = 3
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIXED: Final = {1: "<d", 2: "<f", 6: "<Q", 7: "<I", 15: "<i", 16: "<q"}
_TIMESTAMP: Final = ".google.protobuf.Timestamp"
_EXAMPLES: Final[dict[str, Any]] = {
    _TIMESTAMP: "2026-01-31T12:00:00Z", ".google.protobuf.Duration": "0s", ".google.protobuf.Struct": {},
}  # fmt: skip


class ProtobufError(ValueError):
    """A descriptor that cannot be read, or a value that is not of its message."""


class _Field(NamedTuple):
    name: str
    kind: int
    type_name: str
    is_repeated: bool
    oneof: int
    """Its number in the message; -1 for a field of none."""


class _Message(NamedTuple):
    name: str
    fields: dict[int, _Field]
    is_map: bool
    nested: list[str]


class ProtobufSchema:
    """The messages and enums of one file, and of ``others`` that it imports. Raises ProtobufError."""

    def __init__(self, serialized: bytes, others: Iterable[bytes] = ()) -> None:
        self._messages: dict[str, _Message] = {}
        self._enums: dict[str, dict[int, str]] = {}
        self._first: list[str] = []
        try:
            for file in (*others, serialized):
                self._first = self._file(file)
        except (struct.error, LookupError, TypeError, AttributeError, UnicodeDecodeError, OverflowError) as error:
            raise ProtobufError(f"its descriptor cannot be read: {type(error).__name__}") from None

    def _file(self, serialized: bytes) -> list[str]:
        """The names of its messages that are in no other."""
        parts, package = list(_parts(serialized)), ""
        names: list[str] = []
        for number, value in parts:
            package = f".{_text(value)}" if number == 2 else package
        for number, value in parts:
            if number == 4:
                names.append(self._message(value, package, 0))
            elif number == 5:
                self._enum(value, package)
        return names

    def _message(self, data: Any, space: str, depth: int) -> str:
        parts = list(_parts(data))
        name = next((f"{space}.{_text(value)}" for number, value in parts if number == 1), space)
        message = _Message(name, {}, any(number == 7 and (7, 1) in _parts(value) for number, value in parts), [])
        self._messages[name] = message
        if depth > DEPTH_MAX or len(self._messages) > TYPES_MAX:
            raise ProtobufError("it is too large")
        for number, value in parts:
            if number == 2:
                field = dict(_parts(value))
                message.fields[int(field[3])] = _Field(
                    _text(field[1]), int(field[5]), _text(field.get(6, b"")), field.get(4) == _REPEATED,
                    -1 if field.get(17) else int(field.get(9, -1)),
                )  # fmt: skip
            elif number == 3:
                message.nested.append(self._message(value, name, depth + 1))
            elif number == 4:
                self._enum(value, name)
        return name

    def _enum(self, data: Any, space: str) -> None:
        parts = list(_parts(data))
        values = [dict(_parts(value)) for number, value in parts if number == 2]
        name = next((_text(value) for number, value in parts if number == 1), "")
        self._enums[f"{space}.{name}"] = {_signed(int(one.get(2, 0)), 32): _text(one[1]) for one in values}

    def example(self, spend: Callable[[], None]) -> dict[str, Any]:
        """A value of its first message, of what JSON has: defaults, and one of what is repeated. ``spend`` counts."""
        return self._example(self._first[0], spend, ())

    def _example(self, name: str, spend: Callable[[], None], inside: tuple[str, ...]) -> dict[str, Any]:
        value: dict[str, Any] = {}
        oneofs: set[int] = set()
        for field in self._messages[name].fields.values():
            spend()
            inner = self._messages.get(field.type_name) if field.kind == _MESSAGE else None
            known = inner is not None or field.kind != _MESSAGE or field.type_name in _EXAMPLES
            if not known or field.oneof in oneofs or field.type_name in {name, *inside}:
                continue
            oneofs |= {field.oneof} - {-1}
            if inner is not None:
                one: Any = self._example(field.type_name, spend, (*inside, name))
            elif field.kind == _MESSAGE:
                one = _EXAMPLES[field.type_name]
            elif field.kind == _ENUM:
                one = next(iter(self._enums.get(field.type_name, {}).values()), 0)
            else:
                one = "" if field.kind in {_STRING, _RAW} else False if field.kind == _BOOL else 0
            if inner is not None and inner.is_map:
                value[field.name] = (
                    {"key" if one["key"] == "" else str(one["key"]).lower(): one["value"]} if "value" in one else {}
                )
            else:
                value[field.name] = [one] if field.is_repeated else one
        return value

    def decode(self, data: bytes, spend: Callable[[], None], start: int = 0) -> Any:
        """The value from ``start`` on: the indexes of its message, and the message. ``spend`` counts a field.

        Raises ProtobufError, and what ``spend`` raises.
        """
        try:
            count, at = _varint(data, start)
            indexes = []
            for _ in range(_zigzag(count)):
                index, at = _varint(data, at)
                indexes.append(_zigzag(index))
                if len(indexes) > DEPTH_MAX:
                    raise ProtobufError("the value names no message of its schema")
            names = self._first
            for index in indexes or [0]:
                if not 0 <= index < len(names):
                    raise ProtobufError("the value names no message of its schema")
                name = names[index]
                names = self._messages[name].nested
            return self._value(name, memoryview(data)[at:], spend, 0)
        except ProtobufError:
            raise
        except (struct.error, IndexError, UnicodeDecodeError, OverflowError, KeyError, TypeError) as error:
            raise ProtobufError(f"the value is not of its schema: {type(error).__name__}") from None

    def _value(self, name: str, data: Any, spend: Callable[[], None], depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise ProtobufError(f"the value is nested deeper than {DEPTH_MAX}")
        message = self._messages.get(name)
        decoded: dict[str, Any] = {}
        for number, raw in _parts(data):
            spend()
            field = message.fields.get(number) if message is not None else None
            if field is None:
                decoded[str(number)] = bytes(raw) if isinstance(raw, memoryview) else raw
                continue
            inner = self._messages.get(field.type_name) if field.kind == _MESSAGE else None
            if inner is not None and inner.is_map:
                entry = self._value(field.type_name, raw, spend, depth + 1)
                key = entry.get("key", "")
                decoded.setdefault(field.name, {})[key if isinstance(key, str) else str(key).lower()] = entry.get(
                    "value"
                )
            elif field.is_repeated:
                packed = isinstance(raw, memoryview) and field.kind not in {_STRING, _RAW, _MESSAGE}
                items = _unpacked(raw, field.kind) if packed else iter((raw,))
                for one in items:
                    spend()
                    decoded.setdefault(field.name, []).append(self._one(field, one, spend, depth))
            else:
                decoded[field.name] = self._one(field, raw, spend, depth)
        return _moment(decoded) if name == _TIMESTAMP else decoded

    def _one(self, field: _Field, raw: Any, spend: Callable[[], None], depth: int) -> Any:
        if field.kind == _MESSAGE:
            return self._value(field.type_name, raw, spend, depth + 1)
        if field.kind == _ENUM:
            number = _signed(raw, 32)
            return self._enums.get(field.type_name, {}).get(number, number)
        return _scalar(field.kind, raw)


def _parts(data: Any) -> Iterator[tuple[int, Any]]:
    """Number and raw value of each field: a number for varints, bytes for all others."""
    view, at = memoryview(data), 0
    while at < len(view):
        tag, at = _varint(view, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(view, at)
            yield number, value
            continue
        size = 8 if wire == _EIGHT else 4 if wire == _FOUR else -1
        if wire == _BYTES:
            size, at = _varint(view, at)
        if not number or not 0 <= size <= len(view) - at:
            raise ProtobufError(f"the value is not of its schema: no field begins at byte {at}")
        yield number, view[at : at + size]
        at += size


def _unpacked(raw: memoryview, kind: int) -> Iterator[Any]:
    at, size = 0, struct.calcsize(_FIXED[kind]) if kind in _FIXED else 0
    while at < len(raw):
        if size:
            yield raw[at : at + size]
            at += size
        else:
            value, at = _varint(raw, at)
            yield value


def _scalar(kind: int, raw: Any) -> Any:
    if kind in _FIXED:
        return struct.unpack(_FIXED[kind], raw)[0]
    if kind == _STRING:
        return _text(raw)
    if kind == _RAW:
        return _bytes(raw)
    if isinstance(raw, memoryview):
        raise ProtobufError("the value is not of its schema: bytes stand where a number should")
    if kind == 8:
        return raw != 0
    if kind in {3, 5}:
        return _signed(raw, 64)
    return _zigzag(raw) if kind in {17, 18} else raw


def _varint(data: Any, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 7 * _VARINT_BYTES, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at
    raise ProtobufError(f"the value is not of its schema: a number is too long at byte {at}")


def _zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _signed(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def _bytes(raw: Any) -> bytes:
    if not isinstance(raw, bytes | memoryview):  # bytes(number) are so many zeros
        raise ProtobufError("the value is not of its schema: a number stands where bytes should")
    return bytes(raw)


def _text(raw: Any) -> str:
    return _bytes(raw).decode()


def _moment(fields: dict[str, Any]) -> Any:
    """A timestamp as ISO 8601; its descriptor is not among those of the file."""
    seconds, nanos = _signed(int(fields.get("1", 0)), 64), int(fields.get("2", 0))
    try:
        return (_EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)).isoformat()
    except OverflowError:
        return fields
