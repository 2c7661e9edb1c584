"""The example of a schema: a value of it, the same each time, and bounded."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from fleetlog.brokers.cli.protobuf_values import ProtobufSchema
from fleetlog.brokers.cli.schema_encoding import encoder_of
from fleetlog.brokers.cli.schema_examples import PARTS_MAX, example_of
from fleetlog.brokers.cli.schema_values import AvroError, AvroSchema, RegisteredSchema
from tests.support.schema_samples import DEEP, DOUBLING, ENDLESS, ORDER, described, schema_of


def avro(schema: Any) -> RegisteredSchema:
    return RegisteredSchema("AVRO", AvroSchema(json.dumps(schema)), {"": json.dumps(schema)})


def json_schema(schema: Any, **references: str) -> RegisteredSchema:
    return RegisteredSchema("JSON", None, {**references, "": json.dumps(schema)})


@pytest.mark.parametrize("seed", range(60))
def test_an_example_is_a_value_of_its_schema(seed: int) -> None:
    try:
        schema = avro(schema_of(random.Random(seed), []))
    except AvroError:
        return
    example = example_of(schema)
    assert example == example_of(schema)
    encoder_of(5, schema)(example.encode())


def test_of_avro() -> None:
    found = json.loads(example_of(avro(ORDER)))
    assert found | {"raw": 0} == {
        "id": 0, "note": "", "price": "0", "day": "2026-01-31", "at": "2026-01-31T12:00:00Z", "raw": 0,
        "state": "OPEN", "before": "OPEN", "lines": [{"key": 0.0}], "parent": None,
    }  # fmt: skip
    encoder_of(5, avro(ORDER))(json.dumps(found).encode())
    assert json.loads(example_of(avro(DEEP))) == {"next": None}
    assert example_of(avro(ENDLESS)) == example_of(avro(DOUBLING)) == ""
    wide = {"type": "record", "name": "W", "fields": [{"name": f"f{n}", "type": "int"} for n in range(PARTS_MAX)]}
    assert example_of(avro(wide)) == ""


def test_of_json_schema_and_protobuf() -> None:
    schema = {
        "type": "object", "required": ["id"], "$defs": {"tree": {"properties": {"left": {"$ref": "#/$defs/tree"}}}},
        "properties": {
            "id": {"type": "integer", "minimum": 3}, "kind": {"enum": ["a", "b"]}, "money": {"$ref": "money.json"},
            "at": {"type": "string", "format": "date-time"}, "tags": {"type": "array", "items": {"type": "string"}},
            "tree": {"$ref": "#/$defs/tree"}, "one": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        },
    }  # fmt: skip
    found = json_schema(schema, **{"money.json": '{"type": "number", "default": 1.5}'})
    assert json.loads(example_of(found)) == {
        "id": 3, "kind": "a", "money": 1.5, "at": "2026-01-31T12:00:00Z", "tags": [""], "tree": {}, "one": None,
    }  # fmt: skip
    encoder_of(5, found)(example_of(found).encode())
    assert example_of(json_schema({"$ref": "#"})) == example_of(json_schema({"$ref": "gone.json"})) == ""
    file = described()
    order = descriptor_pb2.FileDescriptorProto()
    order.CopyFrom(file)
    del order.message_type[0]
    for number, name in ((60, "either"), (61, "or")):
        order.message_type[0].field.add(name=name, number=number, type=9, label=1, oneof_index=0)
    order.message_type[0].oneof_decl.add(name="choice")
    raw = order.SerializeToString()
    protobuf = RegisteredSchema("PROTOBUF", ProtobufSchema(raw), {"": base64.b64encode(raw).decode()})
    example = json.loads(example_of(protobuf))
    assert (example["state"], example["at"], example["all_int32"]) == ("OPEN", "2026-01-31T12:00:00Z", [0])
    assert ("parent" in example, "either" in example, "or" in example) == (False, True, False)
    encoder_of(5, protobuf)(json.dumps(example).encode())
