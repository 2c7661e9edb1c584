"""Schemas of Avro and Protobuf, their values, and what other implementations write of them."""

from __future__ import annotations

import io
import random
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2

ORDER = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "raw", "type": {"type": "fixed", "name": "Two", "size": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}},
        {"name": "before", "type": "State"},
        {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": ["double", "boolean"]}}},
        {"name": "parent", "type": ["null", "Order"]},
    ],
}  # fmt: skip


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def framed(number: int, value: bytes) -> bytes:
    return struct.pack(">bI", 0, number) + value


def order(number: int, parent: Any = None) -> dict[str, Any]:
    return {
        "id": number, "note": None if number % 2 else "é", "price": Decimal("-12.50"), "day": date(2026, 1, 31),
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC), "raw": b"\xff\0", "state": "PAID", "before": "OPEN",
        "lines": [{"a": 1.5}, {"b": True, "c": 2.25}], "parent": parent,
    }  # fmt: skip


def schema_of(rng: random.Random, names: list[str], depth: int = 0) -> Any:
    """Any schema, and names that later ones may use."""
    kinds = ["null", "boolean", "int", "long", "double", "bytes", "string"]
    if depth < 4:
        kinds += ["record", "array", "map", "union", "enum", "fixed"]
    kind = rng.choice(kinds)
    if kind == "record":
        name = f"R{len(names)}"
        names.append(name)
        fields = [{"name": f"f{n}", "type": schema_of(rng, names, depth + 1)} for n in range(rng.randrange(4))]
        return {"type": "record", "name": name, "namespace": rng.choice(["", "a.b"]), "fields": fields}
    if kind in {"array", "map"}:
        return {"type": kind, {"array": "items", "map": "values"}[kind]: schema_of(rng, names, depth + 1)}
    if kind == "union":
        return ["null", schema_of(rng, names, 9)] if rng.random() < 0.5 else ["long", "string"]
    names.append("x")
    if kind == "enum":
        return {"type": "enum", "name": f"E{len(names)}", "symbols": ["A", "B", "C"]}
    return {"type": "fixed", "name": f"F{len(names)}", "size": rng.randrange(5)} if kind == "fixed" else kind


def value_of(schema: Any, rng: random.Random) -> Any:
    if isinstance(schema, list):
        return value_of(rng.choice(schema), rng)
    kind = schema if isinstance(schema, str) else schema["type"]
    many = range(rng.randrange(4))
    return {
        "null": lambda: None, "boolean": lambda: rng.random() < 0.5, "int": lambda: rng.randrange(-(2**31), 2**31),
        "long": lambda: rng.randrange(-(2**63), 2**63), "double": rng.random,
        "bytes": lambda: rng.randbytes(rng.randrange(200)), "string": lambda: "é" * rng.randrange(100),
        "record": lambda: {f["name"]: value_of(f["type"], rng) for f in schema["fields"]},
        "array": lambda: [value_of(schema["items"], rng) for _ in many],
        "map": lambda: {str(n): value_of(schema["values"], rng) for n in many},
        "enum": lambda: rng.choice(schema["symbols"]), "fixed": lambda: rng.randbytes(schema["size"]),
    }[kind]()  # fmt: skip


DEEP = {"type": "record", "name": "Deep", "fields": [{"name": "next", "type": ["null", "Deep"]}]}


ENDLESS = {"type": "record", "name": "Endless", "fields": [{"name": "a", "type": "Endless"}]}


DOUBLING: Any = {"type": "record", "name": "D0", "fields": []}


for _level in range(1, 40):
    DOUBLING = {
        "type": "record", "name": f"D{_level}",
        "fields": [{"name": "a", "type": DOUBLING}, {"name": "b", "type": f"D{_level - 1}"}],
    }  # fmt: skip


KINDS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8, "string": 9,
    "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16, "sint32": 17, "sint64": 18,
}  # fmt: skip


def field(message: Any, name: str, number: int, kind: int, type_name: str = "", repeated: bool = False) -> None:
    message.field.add(name=name, number=number, type=kind, type_name=type_name or None, label=3 if repeated else 1)


def described() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    file.message_type.add(name="Other").nested_type.add(name="Inner").field.add(name="n", number=1, type=5, label=1)
    order = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate(KINDS.items(), 1):
        field(order, f"a_{name}", number, kind)
        field(order, f"all_{name}", number + 100, kind, repeated=True)
    field(order, "parent", 50, 11, ".shop.Order")
    field(order, "state", 51, 14, ".shop.Order.State")
    field(order, "at", 52, 11, ".google.protobuf.Timestamp")
    field(order, "by_name", 53, 11, ".shop.Order.ByNameEntry", repeated=True)
    states = order.enum_type.add(name="State")
    for number, name in ((0, "OPEN"), (1, "PAID"), (-1, "LOST")):
        states.value.add(name=name, number=number)
    entry = order.nested_type.add(name="ByNameEntry")
    entry.options.map_entry = True
    field(entry, "key", 1, 9)
    field(entry, "value", 2, 11, ".shop.Order")
    return file
