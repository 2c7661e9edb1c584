"""Avro values as Python's, for a page: what strangers wrote is decoded in bounded time and depth.

Libraries decode as far as the schema leads: an array of nulls may have 2**60 items in ten bytes, and a record that
contains itself may be as deep as its bytes are many. Here the fields of a page are counted, and values nested deeper
than a hundred are refused.
Source: the Apache Avro specification, 1.11, binary encoding.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

DEPTH_MAX: Final = 100
TYPES_MAX: Final = 5_000
"""Types in a schema, named and not."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_VARINT_BYTES: Final = 10
_DIGITS_MAX: Final = 1_000

Schema = Any
"""A schema as JSON has it: a name, an object, or a list of branches."""


class AvroError(ValueError):
    """A schema that cannot be read, or a value that is not of its schema."""


class FieldBudget:
    """How many fields and items a page may still decode."""

    def __init__(self, fields: int) -> None:
        self.left = fields

    def spend(self) -> None:
        """One more; raises AvroError."""
        self.left -= 1
        if self.left < 0:
            raise AvroError("too many fields for one page")


class AvroSchema:
    """A schema with its named types found. Raises AvroError."""

    def __init__(self, text: str) -> None:
        self._named: dict[str, Schema] = {}
        self._types = 0
        try:
            self._root = self._resolved(json.loads(text), "", 0)
        except AvroError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise AvroError(f"it is not one of Avro: {type(error).__name__} {error}") from None

    def _resolved(self, schema: Schema, space: str, depth: int) -> Schema:
        """The schema, with the namespace in which its names stand."""
        self._types += 1
        if depth > DEPTH_MAX or self._types > TYPES_MAX:
            raise AvroError("it is too large")
        if isinstance(schema, list):
            return [self._resolved(branch, space, depth + 1) for branch in schema]
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVES else {"type": schema, "space": space}
        kind = schema["type"]
        if not isinstance(kind, str):
            return {**schema, "type": self._resolved(kind, space, depth + 1)}
        resolved = {**schema, "space": space}
        if kind in _NAMED:
            name = str(schema["name"])
            if "." in name:
                space = name.rpartition(".")[0]
            else:
                space = str(schema.get("namespace", space) or "")
                name = f"{space}.{name}" if space else name
            self._named[name] = resolved
        if kind in {"record", "error"}:
            resolved["fields"] = [
                {"name": str(field["name"]), "type": self._resolved(field["type"], space, depth + 1)}
                for field in schema["fields"]
            ]
        elif kind == "array":
            resolved["items"] = self._resolved(schema["items"], space, depth + 1)
        elif kind == "map":
            resolved["values"] = self._resolved(schema["values"], space, depth + 1)
        return resolved

    def named(self, name: str, space: str) -> Schema:
        """The type of that name; raises AvroError."""
        schema = self._named.get(f"{space}.{name}") if space and "." not in name else None
        schema = schema if schema is not None else self._named.get(name)
        if schema is None:
            raise AvroError(f"the schema has no type {name[:100]!r}")
        return schema

    def decode(self, data: bytes, budget: FieldBudget, start: int = 0) -> Any:
        """The value from ``start`` on, of what JSON has, and bytes. Raises AvroError."""
        reader = _AvroReader(self, data, budget, start)
        try:
            value = reader.value(self._root, 0)
        except AvroError:
            raise
        except (struct.error, IndexError, OverflowError, KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise AvroError(f"the value is not of its schema: {type(error).__name__} at byte {reader.at}") from None
        if reader.at != len(data):
            raise AvroError(f"the value is not of its schema: {len(data) - reader.at} bytes are left over")
        return value


class _AvroReader:
    """One value's bytes, and how far they are read."""

    def __init__(self, schema: AvroSchema, data: bytes, budget: FieldBudget, start: int) -> None:
        self._schema, self._data, self._budget = schema, data, budget
        self.at = start

    def value(self, schema: Schema, depth: int) -> Any:
        self._budget.spend()
        if depth > DEPTH_MAX:
            raise AvroError(f"the value is nested deeper than {DEPTH_MAX}")
        if isinstance(schema, list):
            branch = self._long()
            if not 0 <= branch < len(schema):
                raise AvroError(f"the value is not of its schema: there is no branch {branch} at byte {self.at}")
            return self.value(schema[branch], depth + 1)
        if isinstance(schema, str):
            return _PRIMITIVES[schema](self)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.value(kind, depth + 1)
        if kind in _PRIMITIVES:
            return _logical(schema, _PRIMITIVES[kind](self))
        if kind in _COMPLEX:
            return _COMPLEX[kind](self, schema, depth)
        return self.value(self._schema.named(kind, schema["space"]), depth + 1)

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self.at:
            raise AvroError(f"the value is not of its schema: {size} bytes wanted at byte {self.at}")
        self.at += size
        return self._data[self.at - size : self.at]

    def _long(self) -> int:
        number = shift = 0
        for _ in range(_VARINT_BYTES):
            byte = self._data[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
            shift += 7
        raise AvroError(f"the value is not of its schema: a number is too long at byte {self.at}")

    def _text(self) -> str:
        return self.take(self._long()).decode()

    def _boolean(self) -> bool:
        return self.take(1) != b"\0"

    def _float(self) -> float:
        return float(_FLOAT.unpack(self.take(4))[0])

    def _double(self) -> float:
        return float(_DOUBLE.unpack(self.take(8))[0])

    def _record(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        return {field["name"]: self.value(field["type"], depth + 1) for field in schema["fields"]}

    def _enum(self, schema: Mapping[str, Any], _: int) -> str:
        index, symbols = self._long(), schema["symbols"]
        if not 0 <= index < len(symbols):
            raise AvroError(f"the value is not of its schema: there is no symbol {index} at byte {self.at}")
        return str(symbols[index])

    def _fixed(self, schema: Mapping[str, Any], _: int) -> Any:
        return _logical(schema, self.take(int(schema["size"])))

    def _blocks(self, one: Callable[[], None]) -> None:
        while count := self._long():
            if count < 0:
                count = -count
                self._long()  # the block's bytes
            for _ in range(count):
                one()

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        items: list[Any] = []
        self._blocks(lambda: items.append(self.value(schema["items"], depth + 1)))
        return items

    def _map(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        entries: dict[str, Any] = {}

        def one() -> None:
            name = self._text()
            entries[name] = self.value(schema["values"], depth + 1)

        self._blocks(one)
        return entries


_PRIMITIVES: Final[dict[str, Callable[[_AvroReader], Any]]] = {
    "null": lambda _: None,
    "boolean": _AvroReader._boolean,
    "int": _AvroReader._long,
    "long": _AvroReader._long,
    "float": _AvroReader._float,
    "double": _AvroReader._double,
    "bytes": lambda reader: reader.take(reader._long()),
    "string": _AvroReader._text,
}
_COMPLEX: Final[dict[str, Callable[[_AvroReader, Mapping[str, Any], int], Any]]] = {
    "record": _AvroReader._record,
    "error": _AvroReader._record,
    "enum": _AvroReader._enum,
    "fixed": _AvroReader._fixed,
    "array": _AvroReader._array,
    "map": _AvroReader._map,
}
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})


def _logical(schema: Mapping[str, Any], value: Any) -> Any:
    """The value as its logical type shows it; as it stands where that type is unknown, or not of this value."""
    kind = schema.get("logicalType")
    try:
        if kind == "decimal" and isinstance(value, bytes) and len(value) < _DIGITS_MAX:
            number = Decimal(int.from_bytes(value, "big", signed=True))
            return str(number.scaleb(-int(schema.get("scale", 0)), Context(prec=3 * _DIGITS_MAX)))
        if not isinstance(value, int):
            return value
        if kind == "date":
            return (_EPOCH + timedelta(days=value)).date().isoformat()
        if kind in _UNITS:
            time = _EPOCH + timedelta(microseconds=value * _UNITS[kind])
            return time.isoformat() if not kind.startswith("local") else time.replace(tzinfo=None).isoformat()
    except (OverflowError, TypeError, ValueError, ArithmeticError):
        pass
    return value


_UNITS: Final = {
    "timestamp-millis": 1_000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1_000,
    "local-timestamp-micros": 1,
}
