"""What the schemas of a registry ask of payloads, as programs for the kernel (:mod:`_native.schemas`). Pure.

A schema is bounded before it is compiled: bytes, nesting, parts, names. Logical types whose attributes are not as they
must be count as not there, as Avro's specification says.

Source: Avro 1.12 (names, logical types).
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fleetlog._native.schemas import (
    ARRAY,
    BOOLEAN,
    BYTES,
    DECIMAL,
    ENUM,
    FIXED,
    INT,
    LONG,
    MAP,
    NOTHING,
    RECORD,
    STRING,
    TIME_MICROS,
    TIME_MILLIS,
    TRAIL_MAX,
    UNION,
    UUID,
)

TEXT_MAX: Final = 800_000
"""Characters of a schema with all that it refers to, as the registry takes them."""
NESTING_MAX: Final = 64
"""Also of records that are the only field of each other, which take a step of the kernel each, but no byte."""
PARTS_MAX: Final = 20_000
DIGITS_MAX: Final = 1_000
"""Of a decimal."""
_PRIMITIVES: Final = {
    "null": (NOTHING,), "boolean": (BOOLEAN,), "int": (INT,), "long": (LONG,), "float": (FIXED, 4),
    "double": (FIXED, 8), "bytes": (BYTES,), "string": (STRING,),
}  # fmt: skip
_LOGICAL: Final = {
    ("int", "time-millis"): (TIME_MILLIS,), ("long", "time-micros"): (TIME_MICROS,), ("string", "uuid"): (UUID,),
}  # fmt: skip
"""Logical types that have fewer values than their types; a date and a timestamp may be any number."""


class NoProgram(ValueError):
    """Why payloads of a schema cannot be checked."""


class Program(NamedTuple):
    """``code`` for the kernel; the names of a record's fields by its place in the code."""

    code: bytes
    fields: Mapping[int, tuple[str, ...]]

    def path(self, trail: Sequence[tuple[int, int]]) -> str:
        """The field that a trail of the kernel leads to, with those around it; empty for the whole."""
        names = [self.fields[place][number] for place, number in reversed(trail)]
        return ".".join(name[:100] for name in (names if len(names) < TRAIL_MAX else ["...", *names]))


class _Type:
    """A type: its words without those of ``parts``, the types that it is made of. ``names`` are those of fields."""

    __slots__ = ("chain", "empty", "names", "parts", "place", "words")

    def __init__(self, *words: int) -> None:
        self.words = words
        self.parts: list[_Type] = []
        self.names: tuple[str, ...] = ()
        self.empty = words in ((NOTHING,), (FIXED, 0))
        """Whether its values have no bytes."""
        self.chain = 0
        """How many records follow on each other without a byte between them."""
        self.place = 0


def compile_avro(text: str, references: Sequence[str] = ()) -> Program:
    """The program of a schema; ``references`` are the texts of what it refers to, each after those that it needs.

    Raises NoProgram.
    """
    reader = _AvroReader()
    root = _Type(NOTHING)
    if len(text) + sum(map(len, references)) > TEXT_MAX:
        raise NoProgram(f"the schema has more than {TEXT_MAX} characters")
    for part in (*references, text):
        try:
            document = json.loads(part) if part.lstrip()[:1] in {"{", "[", '"'} else part.strip()
            root = reader.read(document, "", 0)
        except NoProgram:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise NoProgram(f"the schema is none of Avro: {type(error).__name__} {str(error)[:100]}") from None
    return _assembled(root)


class _AvroReader:
    """Makes types of JSON."""

    def __init__(self) -> None:
        self._named: dict[str, _Type] = {}
        self._primitives = {name: _Type(*words) for name, words in _PRIMITIVES.items()}
        self._count = 0

    def read(self, schema: Any, space: str, depth: int) -> _Type:
        """The type of a schema in a namespace. Raises NoProgram, and KeyError or TypeError for what is no schema."""
        self._count += 1
        if depth > NESTING_MAX or self._count > PARTS_MAX:
            raise NoProgram(f"the schema is nested deeper than {NESTING_MAX} levels, or has {PARTS_MAX} parts")
        if isinstance(schema, str):
            full = _joined(space, schema)
            return self._primitives.get(schema) or self._named[full if full in self._named else schema]
        if isinstance(schema, list):
            return _of(UNION, [self._branch(branch, space, depth + 1) for branch in schema])
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.read(kind, space, depth + 1)
        if kind == "array":
            return _of(ARRAY, [self.read(schema["items"], space, depth + 1)])
        if kind == "map":
            return _of(MAP, [self.read(schema["values"], space, depth + 1)])
        if kind in {"record", "error", "enum", "fixed"}:
            return self._made(schema, kind, space, depth)
        logical = schema.get("logicalType")
        if kind == "bytes" and logical == "decimal":
            return _decimal(schema, -1) or self._primitives[kind]
        if isinstance(logical, str) and (kind, logical) in _LOGICAL:
            return _Type(*_LOGICAL[kind, logical])
        return self.read(kind, space, depth + 1)

    def _branch(self, schema: Any, space: str, depth: int) -> _Type:
        branch = self.read(schema, space, depth)
        if branch.words[0] == UNION:
            raise NoProgram("a union has another union in it")
        return branch

    def _made(self, schema: Any, kind: str, space: str, depth: int) -> _Type:
        name, inner = schema["name"], schema.get("namespace", space) or ""
        if "." in name:
            inner, _, name = name.rpartition(".")
        full = _joined(inner, name)
        if full in self._named or full in self._primitives:
            raise NoProgram(f"the type {full[:100]} is defined twice")
        if kind == "enum":
            made = self._named[full] = _Type(ENUM, len(schema["symbols"]))
        elif kind == "fixed":
            made = self._named[full] = _fixed(schema)
        else:
            made = self._named[full] = _Type(RECORD)
            fields = [(str(field["name"]), self.read(field["type"], inner, depth + 1)) for field in schema["fields"]]
            _complete(made, [(name, part) for name, part in fields if not part.empty])
        return made


def _joined(space: str, name: str) -> str:
    return f"{space}.{name}" if space and "." not in name else name


def _of(operation: int, parts: list[_Type]) -> _Type:
    made = _Type(operation, len(parts)) if operation == UNION else _Type(operation)
    made.parts = parts
    return made


def _complete(record: _Type, fields: list[tuple[str, _Type]]) -> None:
    """Give a record its fields that have bytes; one that is in itself is not complete, and counts as one of them."""
    record.words = (RECORD, len(fields))
    record.names, record.parts = tuple(name for name, _ in fields), [part for _, part in fields]
    record.empty = not fields
    if len(fields) == 1:
        record.chain = record.parts[0].chain + 1
        if record.chain > NESTING_MAX:
            raise NoProgram(f"more than {NESTING_MAX} records are the only field of each other")


def _fixed(schema: Any) -> _Type:
    size = schema["size"]
    if not isinstance(size, int) or not 0 <= size < 2**31:
        raise NoProgram(f"a fixed type has the size {str(size)[:20]}")
    return (schema.get("logicalType") == "decimal" and _decimal(schema, size)) or _Type(FIXED, size)


def _decimal(schema: Any, size: int) -> _Type | None:
    """A decimal of so many bytes, or of any; None if its attributes are not as they must be."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not (precision > 0 and 0 <= scale <= precision):
        return None
    if size == 0 or (0 < size <= DIGITS_MAX and precision >= len(str(2 ** (8 * size - 1) - 1))):
        return None
    if precision > DIGITS_MAX:
        raise NoProgram(f"a decimal has more than {DIGITS_MAX} digits")
    largest = 10**precision - 1
    limits = [
        number.to_bytes(bits // 8 + 1, "big", signed=True)
        for number, bits in ((largest, largest.bit_length()), (-largest, (largest - 1).bit_length()))
    ]
    words = array("i", b"".join(limits) + bytes(-sum(map(len, limits)) % 4))
    return _Type(DECIMAL, size, *map(len, limits), *words)


def _all(root: _Type) -> Iterator[_Type]:
    """Each type once."""
    waiting, seen = [root], {id(root)}
    while waiting:
        one = waiting.pop()
        yield one
        for part in one.parts:
            if id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)


def _assembled(root: _Type) -> Program:
    nothing = _Type(NOTHING)
    nothing.place = 1
    code, types = array("i", [0, NOTHING]), [one for one in _all(root) if not one.empty]
    place = len(code)
    for one in types:
        one.place = place
        place += len(one.words) + len(one.parts)
    for one in types:
        code.extend(one.words)
        code.extend((nothing if part.empty else part).place for part in one.parts)
    code[0] = (nothing if root.empty else root).place
    return Program(code.tobytes(), {one.place: one.names for one in types if one.names})
