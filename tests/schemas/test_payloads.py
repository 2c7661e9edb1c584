"""Checks of payloads by JSON Schema and Protobuf, as the process beside a broker makes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from fleetlog._native.batch import HEADER_SIZE, Record, encode_batch, parse_header
from fleetlog.brokers.schemas.payloads import Checker, NoCheck, json_check, protobuf_check

ORDER = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "id": {"type": "integer", "maximum": 1000},
            "address": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}},
            "items": {"type": "array", "items": {"type": "number"}},
            "at": {"format": "date-time"},
        },
        "required": ["id"],
        "additionalProperties": False,
    }
)
HOSTILE_PATTERN = json.dumps({"pattern": "^((a+)+)(?=b)$"})
PROTO2 = """syntax = "proto2"; package shop;
message Order {
  required int64 id = 1; optional string name = 2; optional Address address = 3; repeated int32 counts = 4;
  extensions 100 to 200; enum State { NEW = 0; PAID = 1; } optional State state = 5;
  message Line { optional double price = 1; } optional group Note = 6 { optional string text = 7; } }
message Address { required string zip = 1; optional Order order = 2; }
"""
PROTO3 = """syntax = "proto3"; import "other.proto"; import "google/protobuf/timestamp.proto";
message Event {
  string name = 1; other.Thing thing = 2; google.protobuf.Timestamp at = 3; map<string, int32> counts = 4;
}
"""
OTHER = 'syntax = "proto3"; package other; message Thing { fixed32 number = 1; bool on = 2; }'
FIRST = b"\0"
"""The first message of a file, as serializers write its place."""


@pytest.mark.parametrize("value", [{"id": 7}, {"id": 1000, "address": {"zip": "12345"}, "items": [1, 2.5, 1e300]}])
def test_json_of_its_schema_is_taken(value: Any) -> None:
    assert json_check(ORDER, {})(json.dumps(value).encode(), b"") is None


@pytest.mark.parametrize(
    ("payload", "path", "reason"),
    [
        (b"{}", "", '"id" is a required property'),
        (b'{"id": 1001}', "id", "is greater than the maximum of 1000"),
        (b'{"id": 1, "address": {"zip": "1234"}}', "address.zip", 'does not match "^[0-9]{5}$"'),
        (b'{"id": 1, "items": [1, "two"]}', "items.1", 'is not of type "number"'),
        (b'{"id": 1, "at": "noon"}', "at", 'is not a "date-time"'),
        (b'{"id": 1, "more": 2}', "", "Additional properties are not allowed ('more' was unexpected)"),
        (b'{"id": 1, "id": 2}', "", "cannot be read by all readers: a name stands twice in an object"),
        (b'{"id": NaN}', "", "cannot be read by all readers: NaN is no value of JSON"),
        (b'{"id": 1, "items": [1e999]}', "", "cannot be read by all readers: 1e999 is larger than numbers can be"),
        (b'{"id": 1', "", "is no JSON: Expecting ',' delimiter: line 1 column 9 (char 8)"),
        (b'{"id": 1}{', "", "is no JSON: Extra data: line 1 column 10 (char 9)"),
        (b"", "", "is no JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"id": "\xff"}', "", "is no UTF-8"),
        ('{"id": 1}'.encode("utf-16"), "", "is no UTF-8"),
        (b'{"id": 1, "address": {"zip": "\\ud800"}}', "", "has half of a surrogate pair"),
        (b"[" * 100_000, "", "is nested too deeply"),
    ],
)
def test_json_is_refused_by_field_and_reason(payload: bytes, path: str, reason: str) -> None:
    assert json_check(ORDER, {})(payload, b"") == (path, reason)


def test_a_pattern_that_explodes_ends() -> None:
    wrong = json_check(HOSTILE_PATTERN, {})(json.dumps("a" * 1000).encode(), b"")
    assert wrong is not None
    assert wrong[0] == ""


def test_json_refers_to_what_is_named_and_to_nothing_else() -> None:
    named = {"customer.json": '{"type": "object", "required": ["name"]}'}
    schema = json.dumps({"properties": {"customer": {"$ref": "customer.json"}}})
    assert json_check(schema, named)(b'{"customer": {"name": 1}}', b"") is None
    assert json_check(schema, named)(b'{"customer": {}}', b"") == ("customer", '"name" is a required property')
    with pytest.raises(NoCheck, match="none of the schema's references"):
        json_check(json.dumps({"$ref": "http://127.0.0.1:1/x.json"}), {})
    with pytest.raises(NoCheck, match="none of the schema's references"):
        json_check(json.dumps({"$ref": "file:///etc/hostname"}), {})


def test_json_that_refers_to_itself_is_a_schema() -> None:
    tree = json.dumps({"type": "object", "properties": {"left": {"$ref": "#"}}})
    assert json_check(tree, {})(b'{"left": {"left": 5}}', b"") == ("left.left", 'is not of type "object"')
    assert json_check('{"$ref": "#"}', {})(b"5", b"") is None


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{" * 70, "nested deeper than 64"),
        (json.dumps([[]] * 20_001), "parts"),
        (json.dumps({"anyOf": [{"pattern": "a"}] * 1001}), "more than 1000 patterns"),
        (json.dumps({"pattern": "(a{1000}){1000}"}), "is not valid under|pattern|regex|exceeds"),
        (json.dumps({"type": "nonsense"}), "nonsense|is not valid"),
        (json.dumps({"$schema": "http://nowhere/draft"}), "Unknown meta-schema"),
    ],
)
def test_a_json_schema_is_bounded(schema: str, reason: str) -> None:
    with pytest.raises(NoCheck, match=reason):
        json_check(schema, {})


def made(source: str, kind: str, /, **fields: Any) -> bytes:
    """A message as Protobuf's library writes it, by a schema of its own."""
    from fleetlog.brokers.schemas.protobuf import file_descriptors

    pool = descriptor_pool.DescriptorPool()
    for file in file_descriptors(source, {"other.proto": OTHER}):
        pool.AddSerializedFile(file.SerializeToString())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName(kind))(**fields)
    return bytes(message.SerializeToString())


@pytest.fixture(scope="module")
def proto2() -> Any:
    return protobuf_check(PROTO2, {})


@pytest.fixture(scope="module")
def proto3() -> Any:
    return protobuf_check(PROTO3, {"other.proto": OTHER})


def test_messages_of_their_schema_are_taken(proto2: Any, proto3: Any) -> None:
    order = made(
        PROTO2, "shop.Order", id=7, name="n", address={"zip": "1"}, counts=[1, 300], state="PAID", note={"text": "t"}
    )
    assert proto2(FIRST + order, b"") is None
    assert proto2(order, FIRST) is None, "its place stands in a header"
    assert proto2(bytes([4, 0, 0]) + made(PROTO2, "shop.Order.Line", price=1.5), b"") is None
    assert proto2(FIRST + order + b"\xa2\x06\x01x", b"") is None, "an extension"
    event = made(PROTO3, "Event", name="e", thing={"number": 7, "on": True}, at={"seconds": 5}, counts={"a": 1})
    assert proto3(FIRST + event, b"") is None
    assert proto3(FIRST, b"") is None, "all fields have their defaults"


@pytest.mark.parametrize(
    ("payload", "path", "reason"),
    [
        (b"", "", "names no message of its schema"),
        (b"\x02\x0e", "", "names no message of its schema"),
        (b"\x02\x01", "", "names no message of its schema"),
        (b"\xff" * 12, "", "names no message of its schema"),
        (FIRST, "id", "is required, and is not there"),
        (FIRST + b"\x08\x07\x1a\x00", "address.zip", "is required, and is not there"),
        (FIRST + b"\x08\x07\x12\x05ab", "name", "is cut off"),
        (FIRST + b"\x08", "id", "is cut off"),
        (FIRST + b"\x08\x07\x12\x7f", "name", "is cut off"),
        (FIRST + b"\x0a\x01\x07", "id", "is not of its type"),
        (FIRST + b"\x08\x07\x7a\x00", "number 15", "is none of the schema's fields"),
        (FIRST + b"\x08\x07\x1a\x05\x0a\x01x\x28\x01", "address.number 5", "is none of the schema's fields"),
        (FIRST + b"\x08\x07\x28\x09", "state", "is none of the enum's values"),
        (FIRST + b"\x08\x07\x00", "", "has bytes that are no field"),
        (FIRST + b"\x08\x07\x33\x3a\x01t", "note", "is cut off"),
        (FIRST + b"\x08\x07\x34", "", "has bytes that are no field"),
        (FIRST + b"\x08\x07trailing", "", "has bytes that are no field"),
    ],
)
def test_a_message_is_refused_by_field_and_reason(proto2: Any, payload: bytes, path: str, reason: str) -> None:
    assert proto2(payload, b"") == (path, reason)


def test_text_of_a_message_is_utf_8(proto3: Any) -> None:
    assert proto3(FIRST + b"\x0a\x01\xff", b"") == ("name", "is no UTF-8")
    assert proto3(FIRST + b"\x22\x05\x0a\x01\xff\x10\x01", b"") == ("counts.key", "is no UTF-8")


def test_messages_that_nest_too_deeply_are_refused(proto2: Any) -> None:
    order = b"\x08\x07"
    for _ in range(60):
        address = b"\x0a\x01x\x12" + _length(order) + order
        order = b"\x08\x07\x1a" + _length(address) + address
    wrong = proto2(FIRST + order, b"")
    assert wrong is not None
    assert wrong[1] == "is nested deeper than 100 levels"
    assert wrong[0].startswith("...")


def _length(data: bytes) -> bytes:
    size, written = len(data), b""
    while size > 127:
        written, size = written + bytes([size & 127 | 128]), size >> 7
    return written + bytes([size])


def test_what_is_no_schema_of_protobuf_checks_nothing() -> None:
    with pytest.raises(NoCheck, match="not a schema of Protobuf"):
        protobuf_check("message {", {})
    with pytest.raises(NoCheck, match=r"other\.proto"):
        protobuf_check(PROTO3, {})


def asked(records: list[Record], schemas: dict[int, str], **more: Any) -> tuple[dict[str, Any], bytes]:
    """A question of values as a broker asks it."""
    data = encode_batch([row._replace(offset=at) for at, row in enumerate(records)])
    numbers = {number.to_bytes(4, "big").hex(): key for number, key in schemas.items()}
    side = {"keys": False, "header": "__value_schema_id", "schemas": numbers}
    told = {"batch": list(parse_header(data)), "most": len(records), "sides": [side], "texts": {}, **more}
    return told, bytes(data[HEADER_SIZE:])


def record(number: int, payload: bytes, *headers: tuple[str, bytes]) -> Record:
    return Record(0, 0, None, b"\0" + number.to_bytes(4, "big") + payload, headers)


def test_a_question_is_answered_by_record() -> None:
    checker = Checker()
    records = [
        record(1, b'{"id": 1}'), record(1, b"{}"), Record(0, 0, None, None, ()), record(2, b"whatever"),
        Record(0, 0, None, b'{"id": "x"}', (("__value_schema_id", b"\0\0\0\0\1"),)), record(3, b"7"),
    ]  # fmt: skip
    told, payload = asked(records, {1: "order", 3: "bad"})
    assert checker.answer(told, payload) == {"lacks": ["bad", "order"]}
    told["texts"] = {"order": ["JSON", ORDER, {}], "bad": ["JSON", "nonsense", {}]}
    answer = checker.answer(told, payload)
    assert [(index, number, path) for index, _, number, path, _ in answer["faults"]] == [
        (1, "00000001", ""), (4, "00000001", "id"), (5, "00000003", "")
    ]  # fmt: skip
    assert answer["faults"][1][4] == 'is not of type "integer"'
    assert answer["faults"][2][4].startswith("cannot be checked by its schema: the schema is not JSON")
    told["texts"], told["most"] = {}, 1
    assert len(checker.answer(told, payload)["faults"]) == 1


def test_schemas_are_kept_as_long_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetlog.brokers.schemas.payloads.SCHEMAS_MAX", 2)
    checker = Checker()
    for turn in range(4):
        told, payload = asked([record(1, b"{}")], {1: f"s{turn}"}, texts={f"s{turn}": ["JSON", "{}", {}]})
        assert checker.answer(told, payload) == {"faults": []}
    assert list(checker.schemas) == ["s2", "s3"]


def test_many_schemas_are_compiled_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetlog.brokers.schemas.payloads.COMPILED_AT_ONCE_S", -1)
    told, payload = asked([record(1, b"{}")], {1: "s"}, texts={"s": ["JSON", "{}", {}]})
    assert Checker().answer(told, payload) == {"more": True}


def test_the_registry_s_descriptors_are_what_a_check_reads() -> None:
    """A schema that was registered as a descriptor in base64, as Python's serializer does."""
    import base64

    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3")
    row = file.message_type.add(name="M")
    row.field.add(name="a", number=1, type=9, label=1)
    check = protobuf_check(base64.b64encode(file.SerializeToString()).decode(), {})
    assert check(FIRST + b"\x0a\x01x", b"") is None
    assert check(FIRST + b"\x10\x01", b"") == ("number 2", "is none of the schema's fields")
