"""JSON by a registered schema: as another implementation writes it, and what is wrong, by its place."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2

from fleetlog.brokers.cli.protobuf_values import ProtobufSchema
from fleetlog.brokers.cli.record_decoding import _in_json
from fleetlog.brokers.cli.schema_encoding import EncodeError, Encoder, encoder_of
from fleetlog.brokers.cli.schema_values import AvroSchema, FieldBudget, RegisteredSchema
from tests.support.schema_samples import ORDER, described, framed, order, schema_of, value_of, written


def avro(schema: Any) -> Encoder:
    text = json.dumps(schema)
    return encoder_of(5, RegisteredSchema("AVRO", AvroSchema(text), {"": text}))


def json_schema(schema: Any, **references: str) -> Encoder:
    return encoder_of(5, RegisteredSchema("JSON", None, {**references, "": json.dumps(schema)}))


def reason(encoder: Encoder, value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    with pytest.raises(EncodeError) as caught:
        encoder(text)
    return str(caught.value)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_shown_of_any_value_is_written_as_it_was(seed: int) -> None:
    rng = random.Random(seed)
    schema = schema_of(rng, [])
    for _ in range(5):
        try:
            data = written(schema, value_of(schema, rng))
        except fastavro.schema.SchemaParseException:
            return  # ["null", "null"] is no union
        shown = _in_json(AvroSchema(json.dumps(schema)).decode(data, FieldBudget(100_000)), "avro")
        assert avro(schema)(json.dumps(shown).encode()) == framed(5, data)


SHOWN = {
    "id": 1, "note": None, "price": "-12.50", "day": "2026-01-31", "at": "2026-01-31T12:00:00Z", "raw": "\xff\0",
    "state": "PAID", "before": "OPEN", "lines": [{"a": 1.5}, {"b": True, "c": 2.25}], "parent": None,
}  # fmt: skip


def test_logical_types_and_branches_are_written_as_another_implementation_does() -> None:
    expected = framed(5, written(ORDER, order(1)))
    for shown in (
        SHOWN,
        SHOWN | {"price": -12.5, "day": 20_484, "at": 1_769_860_800_000},
        SHOWN | {"lines": [{"a": {"double": 1.5}}, {"b": {"boolean": True}, "c": 2.25}]},
    ):
        assert avro(ORDER)(json.dumps(shown).encode()) == expected
    named = {"parent": {"shop.Order": SHOWN | {"note": {"string": "é"}, "id": 2}}}
    assert avro(ORDER)(json.dumps(SHOWN | named).encode()) == framed(5, written(ORDER, order(1, order(2))))
    fields = [
        {"name": "a", "type": ["null", "long"], "default": None},
        {"name": "b", "type": "bytes", "default": "\xfe"},
    ]
    defaults = {"type": "record", "name": "D", "fields": fields}
    assert avro(defaults)(b"{}") == framed(5, written(defaults, {"a": None, "b": b"\xfe"}))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"price": "1.234"}, "price: 1.234 has more than 2 digits behind the point"),
        ({"price": "12345678.90"}, "price: 12345678.90 has more than 9 digits"),
        ({"price": "1e999999999"}, "price: a decimal is expected"),
        ({"id": 1.5}, "id: a whole number is expected, there is 1.5"),
        ({"id": True}, "id: a whole number is expected, there is true"),
        ({"id": 2**63}, "id: 9223372036854775808 is more than long has"),
        ({"state": "X"}, 'state: one of OPEN, PAID is expected, there is "X"'),
        ({"x": 1}, "shop.Order has no field 'x'"),
        ({"lines": [{"a": "x"}]}, "lines[0]['a']: one of double, boolean is expected"),
        ({"raw": "a"}, "raw: it has 1 byte, and shop.Two has 2"),
        ({"raw": "€a"}, "raw: bytes, a text whose characters"),
        ({"note": "\ud800"}, "note: it holds half of a surrogate pair"),
        ({"parent": SHOWN | {"note": 3}}, "parent.note: one of null, string is expected, there is 3"),
        ({"day": "tomorrow"}, "day: a date such as 2026-01-31 is expected"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_place(change: dict[str, Any], expected: str) -> None:
    assert expected in reason(avro(ORDER), SHOWN | change)


def test_what_is_missing_or_no_json() -> None:
    assert reason(avro(ORDER), {}) == "the field id is missing, and has no default"
    assert "stands in quotes" in reason(avro("string"), b"abc")
    assert "not UTF-8" in reason(avro("string"), b'"\xff"')
    assert "nested too deeply" in reason(avro("string"), b"[" * 100_000)
    assert "NaN is no value" in reason(avro("double"), b"NaN")
    assert "is more than double has" in reason(avro("double"), b"1e999")


def test_many_branches_that_almost_fit_end_soon() -> None:
    """Each level has two records that differ in their last field alone: 2**40 ways to try."""
    schema: Any = "null"
    for level in range(40):
        last = [{"name": "z", "type": kind} for kind in ("int", "boolean")]
        schema = [
            {
                "type": "record",
                "name": f"R{level}{n}",
                "fields": [{"name": "a", "type": schema if not n else f"R{level - 1}0" if level else "null"}, one],
            }
            for n, one in enumerate(last)
        ]
    value: Any = None
    for _ in range(40):
        value = {"a": value, "z": "neither"}
    assert "too many" in reason(avro(schema), value) or "expected" in reason(avro(schema), value)


def test_json_is_checked_with_what_its_schema_refers_to() -> None:
    schema = {
        "type": "object", "required": ["b"], "patternProperties": {"^x-": {"type": "integer"}},
        "properties": {"a": {"type": "integer"}, "b": {"$ref": "b.json"}, "c": {"pattern": "^(a+)+$"}},
        "additionalProperties": False,
    }  # fmt: skip
    encoder = json_schema(schema, **{"b.json": '{"type": "string", "maxLength": 3}'})
    text = b'{"x-1":1, "b": "two","c":"aa"}'
    assert encoder(text) == framed(5, text)
    assert reason(encoder, {"a": "1", "b": ""}) == "a: '1' is not of type 'integer'"
    assert "b: 'long!' is too long" in reason(encoder, {"b": "long!"})
    assert "'b' is a required property" in reason(encoder, {})
    assert "the property 'y' is none" in reason(encoder, {"b": "", "y": 1})
    assert "x-2" in reason(encoder, {"b": "", "x-2": "1"})
    assert "does not match" in reason(encoder, {"b": "", "c": "a" * 10_000 + "!"}), "in linear time"
    assert "leads nowhere" in reason(json_schema({"$ref": "gone.json"}), {})
    assert "nested too deeply" in reason(json_schema({"$ref": "#"}), {})
    assert "no expression of RE2" in reason(json_schema({"pattern": "(?=a)"}), "a")


def protobuf(message: str = "") -> Encoder:
    file = described()
    file.name = ""
    raw = file.SerializeToString()
    return encoder_of(
        5, RegisteredSchema("PROTOBUF", ProtobufSchema(raw), {"": base64.b64encode(raw).decode()}), message
    )


def test_protobuf_is_read_by_another_implementation() -> None:
    value = {
        "a_int64": 5,
        "at": "2026-01-31T12:00:00Z",
        "state": "PAID",
        "by_name": {"x": {"a_bool": True}},
        "a_bytes": "AAE=",
    }
    data = protobuf("Order")(json.dumps(value).encode())
    assert data[:7] == b"\0\0\0\0\5\2\2", "the second message of the file"
    pool: Any = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(described())
    read = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order")).FromString(data[7:])
    assert (read.a_int64, read.at.seconds, read.state, read.by_name["x"].a_bool) == (5, 1_769_860_800, 1, True)
    assert protobuf("shop.Other.Inner")(b'{"n": 3}') == b"\0\0\0\0\5\4\0\0\x08\3"
    assert protobuf("Other")(b"{}") == b"\0\0\0\0\5\0"
    for wrong, expected in (
        ({"zz": 1}, 'no field named "zz"'), ({"a_int32": 2**40}, "out of range"), ({"state": "N"}, "Invalid enum"),
    ):  # fmt: skip
        assert expected in reason(protobuf("Order"), wrong)
    with pytest.raises(EncodeError, match=r"several messages, name one of shop\.Order, shop\.Other"):
        protobuf()
    with pytest.raises(EncodeError, match="no message 'Nope'"):
        protobuf("Nope")
    with pytest.raises(EncodeError, match="has no messages"):
        encoder_of(5, RegisteredSchema("AVRO", AvroSchema('"long"'), {"": '"long"'}), "Order")
