"""Random messages made from the schemas: valid by construction, of every API and version."""

from __future__ import annotations

import random
import uuid
from typing import Any

import fleetlog.wire.messages as m
from fleetlog.wire.apis import APIS

ALL_VERSIONS = [(key, version) for key, row in APIS.items() for version in range(row.lowest, row.max_version + 1)]
_INT_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
WORDS = ("", "a", "topic", "gruppe-ä", "x" * 40, "日本")


def request(key: int, version: int, rng: random.Random, size: int = 3) -> Any:
    """A request with random content; arrays have up to ``size`` elements."""
    return _message(m.request_class(key), version, rng, size)


def response(key: int, version: int, rng: random.Random, size: int = 3) -> Any:
    """A response with random content."""
    return _message(m.response_class(key), version, rng, size)


def _message(cls: Any, version: int, rng: random.Random, size: int) -> Any:
    return cls(version=version, **_values(cls._struct, version, rng, size))


def _values(schema: Any, version: int, rng: random.Random, size: int) -> dict[str, Any]:
    return {
        field.name: _value(field, version, rng, size)
        for field in schema.fields.values()
        if field.for_version_q(version) and (not field.tagged_field_q(version) or rng.random() < 0.5)
    }


def _value(field: Any, version: int, rng: random.Random, size: int) -> Any:
    if field.nullable_for_version_q(version) and rng.random() < 0.3:
        return None
    if field.is_struct_array():
        count = rng.randrange(size + 1)
        return [field.data_class(version=version, **_values(field.array_of, version, rng, size)) for _ in range(count)]
    if field.is_array():
        return [_scalar(field.array_of.type_str, rng) for _ in range(rng.randrange(size + 1))]
    if field.is_struct():
        return field.data_class(version=version, **_values(field, version, rng, size))
    return _scalar(field.type_str, rng)


def _scalar(kind: str, rng: random.Random) -> Any:
    if kind in _INT_BITS:
        half = 1 << _INT_BITS[kind] - 1
        return rng.choice((0, 1, -1, half - 1, -half, rng.randrange(-half, half)))
    if kind == "uint16":
        return rng.randrange(1 << 16)
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.random()
    if kind == "string":
        return rng.choice(WORDS)
    if kind == "uuid":
        return uuid.UUID(int=rng.getrandbits(128) | 1)
    if kind == "bitfield":
        return {bit for bit in range(31) if rng.random() < 0.2} or None
    assert kind in ("bytes", "records"), kind
    return rng.randbytes(rng.randrange(30))
