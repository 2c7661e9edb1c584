"""Protobuf's values by a registry's descriptor: as another implementation wrote them, and from bytes of strangers."""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory

from fleetlog.brokers.cli.protobuf_values import ProtobufError, ProtobufSchema
from fleetlog.brokers.cli.schema_values import AvroError, FieldBudget, PageSchemas, SchemaRegistry
from fleetlog.brokers.console.message_pages import decode_bytes
from tests.support.schema_registry import FakeRegistry
from tests.support.schema_samples import described


@pytest.fixture(scope="module")
def kinds() -> dict[str, Any]:
    """The other implementation's classes."""
    from google.protobuf import timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(described())
    names = ("shop.Order", "shop.Other.Inner")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names}


VALUES: dict[str, list[Any]] = {
    "double": [1.5, -2.25], "float": [0.5, 1024.0], "int64": [-(2**63), 5], "uint64": [2**64 - 1, 1],
    "int32": [-(2**31), 7], "fixed64": [2**64 - 1, 1], "fixed32": [2**32 - 1, 1], "bool": [True, False],
    "string": ["é", "b"], "bytes": [b"\xff\0", b"x"], "uint32": [2**32 - 1, 1], "sfixed32": [-1, 2],
    "sfixed64": [-(2**63), 2], "sint32": [-(2**31), 2], "sint64": [-(2**63), 2**63 - 1],
}  # fmt: skip


def test_what_another_implementation_wrote_is_read(kinds: dict[str, Any]) -> None:
    order = kinds["shop.Order"]()
    for name, values in VALUES.items():
        setattr(order, f"a_{name}", values[0])
        getattr(order, f"all_{name}").extend(values)
    order.state = -1
    order.at.FromJsonString("2026-01-31T12:00:00.5Z")
    order.parent.a_string = "up"
    order.by_name["x"].a_int32 = 3
    schema = ProtobufSchema(described().SerializeToString())
    decoded = schema.decode(b"\x02\x02" + order.SerializeToString(), FieldBudget(1000).spend)
    for name, values in VALUES.items():
        assert (decoded[f"a_{name}"], decoded[f"all_{name}"]) == (values[0], values), name
    assert decoded["state"] == "LOST"
    assert decoded["at"] == "2026-01-31T12:00:00.500000+00:00"
    assert decoded["parent"] == {"a_string": "up"}
    assert decoded["by_name"] == {"x": {"a_int32": 3}}
    inner = kinds["shop.Other.Inner"](n=5).SerializeToString()
    assert schema.decode(b"\x04\x00\x00" + inner, FieldBudget(9).spend) == {"n": 5}
    assert schema.decode(b"\x00", FieldBudget(9).spend) == {}
    assert schema.decode(b"\x00\x08\x05", FieldBudget(9).spend) == {"1": 5}


@pytest.mark.parametrize(
    "raw", [b"", b"\x02", b"\x02\x08", b"\x02\x02\x08", b"\x02\x02\x0b", b"\x02\x02" + b"\xff" * 20, b"\xff" * 12,
            b"\x02\x02\x4a\x05ab", b"\x02\x02\x4a\x01\xff", b"\x02\x02\x4d\x00", b"\x02\x02\x1a\x01a"]
)  # fmt: skip
def test_a_value_that_is_not_of_its_schema_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtobufError):
        ProtobufSchema(described().SerializeToString()).decode(raw, FieldBudget(1000).spend)


def test_bytes_of_strangers_are_a_value_or_an_error_in_bounded_work() -> None:
    chance, schema = random.Random(42), ProtobufSchema(described().SerializeToString())
    for _ in range(3000):
        raw = b"\x02\x02" + chance.randbytes(chance.randrange(40))
        try:
            json.dumps(schema.decode(raw, FieldBudget(1000).spend), default=bytes.hex)
        except (ProtobufError, AvroError):
            pass
    whole = described().SerializeToString()
    for _ in range(1000):
        broken = bytearray(whole)
        broken[chance.randrange(len(whole))] = chance.randrange(256)
        try:
            ProtobufSchema(bytes(broken)).decode(b"\x02\x02\x08\x05", FieldBudget(1000).spend)
        except (ProtobufError, AvroError):
            pass
    deep = b""
    for _ in range(200):
        size = len(deep)
        deep = b"\x92\x03" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + deep
    with pytest.raises(ProtobufError, match="deeper than 100"):
        schema.decode(b"\x02\x02" + deep, FieldBudget(1000).spend)
    with pytest.raises(AvroError, match="too many fields"):
        schema.decode(b"\x02\x02" + b"\x28\x05" * 2000, FieldBudget(1000).spend)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    served = FakeRegistry()
    yield served
    served.close()


def test_a_page_shows_a_value_by_the_registrys_descriptor(registry: FakeRegistry, kinds: dict[str, Any]) -> None:
    number = registry.add("orders-value", 'syntax = "proto3";', "PROTOBUF")
    registry.serialized[number] = base64.b64encode(described().SerializeToString()).decode()
    raw = (
        struct.pack(">bI", 0, number)
        + b"\x02\x02"
        + kinds["shop.Order"](a_string="tea", a_bytes=b"\xff").SerializeToString()
    )
    schemas = PageSchemas(SchemaRegistry(registry.url))
    shown = decode_bytes(raw, "auto", schemas=schemas)
    assert (shown.kind, shown.schema, shown.problem) == ("protobuf", number, "")
    assert json.loads(shown.text or "") == {"a_string": "tea", "a_bytes": "ff"}
    bare = registry.add("bare-value", 'syntax = "proto2";', "PROTOBUF")
    shown = decode_bytes(struct.pack(">bI", 0, bare) + b"\0", "auto", schemas=schemas)
    assert shown.problem == f"schema {bare} is PROTOBUF, and the registry does not compile it"
