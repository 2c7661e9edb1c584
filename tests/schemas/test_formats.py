"""Formats by their tables: Avro's verdicts are those of Avro's own library, the others follow Confluent's rules."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from fleetlog.brokers.schemas import registry
from fleetlog.brokers.schemas.formats import AVRO, JSON, TEXT_BYTES_MAX, ParsedSchema
from fleetlog.brokers.schemas.protobuf import PROTOBUF
from fleetlog.brokers.schemas.registry import RegistryRefusal, changes
from tests.schemas.rules import cases

HERE = Path(__file__).parent


def parsed(kind: str, schema: Any, **references: str) -> ParsedSchema:
    return registry.parse(kind, schema if kind == PROTOBUF else json.dumps(schema), references)


def test_avro_says_what_its_own_library_says() -> None:
    rows = [line.split("\t") for line in (HERE / "avro.tsv").read_text("utf-8").splitlines()]
    assert len(rows) > 1_000
    wrong = []
    for backward, forward, older, newer in rows:
        old, new = registry.parse(AVRO, older, {}), registry.parse(AVRO, newer, {})
        assert (old.text, new.text) == (older, newer), "it is written as the library writes it"
        for said, problems in ((backward, changes(old, new)), (forward, changes(new, old))):
            if (said == "yes") != (not problems):
                wrong.append((said, problems, older, newer))
    assert wrong == []


def test_json_schema_and_protobuf_follow_the_rules() -> None:
    rows = cases()
    assert len(rows) > 300
    wrong = []
    for kind, rule, before, after, in_the_way in rows:
        named = sorted({name for name, _ in changes(parsed(kind, before), parsed(kind, after))})
        if named != sorted(in_the_way):
            wrong.append((rule, named, before, after))
    assert wrong == []


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (AVRO, "{", "not JSON"),
        (AVRO, "", "not known"),
        (AVRO, '{"type":"record","name":"R"}', "fields"),
        (AVRO, '{"type":"record","name":"R","fields":[{"name":"a","type":"X"}]}', "not known"),
        (AVRO, '["null",["int"]]', "union"),
        (AVRO, '["int","int"]', "twice"),
        (AVRO, '{"type":"enum","name":"E","symbols":["A"],"default":"B"}', "Default"),
        (AVRO, '{"type":"fixed","name":"F","size":-1}', "bytes"),
        (AVRO, '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}', "name"),
        (AVRO, '{"type":"array"}', "items"),
        (AVRO, '{"type":"int","type":"int"}', "twice"),
        (AVRO, "[" * 2_000 + "]" * 2_000, "nested"),
        (AVRO, json.dumps([{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(9_000)]), "parts"),
        (AVRO, '{"type":"record","name":"R","namespace":["a"],"fields":[]}', "namespace"),
        (AVRO, '{"type":"record","name":"","fields":[]}', "empty"),
        (JSON, "7", "an object"),
        (JSON, '{"$schema":["a"]}', "draft"),
        (JSON, '{"$schema":"http://[a"}', "draft"),
        (JSON, '{"type":"text"}', "not a JSON Schema"),
        (JSON, '{"$ref":"#/definitions/a"}', "nowhere"),
        (JSON, '{"$ref":"http://elsewhere.example/a.json"}', "references"),
        (JSON, '{"a":' * 100 + "1" + "}" * 100, "nested"),
        (JSON, '{"minimum": NaN}', "no value"),
        (JSON, '{"maximum": 1e999}', "larger"),
        (JSON, '{"title": "\\ud800"}', "surrogate"),
        (AVRO, '"\ud800"', "surrogate"),
        (JSON, '{"$ref":"#b","definitions":{"a":{"$anchor":"a"}}}', "anchor"),
        (PROTOBUF, "message M {", "schema.proto:1"),
        (PROTOBUF, 'syntax = "proto3"; import "a.proto";', "a.proto"),
        (PROTOBUF, 'syntax = "proto3"; import "/etc/passwd";', "passwd"),
        (PROTOBUF, "message M {" * 70 + "}" * 70, "nested"),
        (PROTOBUF, base64.b64encode(b"\x0a\x01a").decode(), "no message"),
    ],
)
def test_what_is_no_schema_is_named(kind: str, text: str, says: str) -> None:
    with pytest.raises(RegistryRefusal, match=says) as refused:
        registry.parse(kind, text, {})
    assert refused.value.code in {42201, 42209}


def test_texts_that_do_not_end_are_read_once() -> None:
    """An expression that fails there would begin anew at each of these marks, which takes hours."""
    for kind, text in (
        (JSON, '{"a": "' + '\\"' * 300_000), (AVRO, '{"a": "' + '\\"' * 300_000), (PROTOBUF, "/*" * 300_000),
        (PROTOBUF, 'option a = "' + '\\"' * 300_000), (PROTOBUF, "option a = '" + "\\'" * 300_000),
    ):  # fmt: skip
        with pytest.raises(RegistryRefusal, match=r"not JSON|schema\.proto:1"):
            registry.parse(kind, text, {})


def test_lists_without_an_order_are_short() -> None:
    for values in ([{"a": n} for n in range(1_001)], [None, *map(str, range(1_001))]):
        with pytest.raises(RegistryRefusal, match="only texts"):
            registry.parse(JSON, json.dumps({"enum": values}), {})
    assert parsed(JSON, {"enum": [str(n) for n in range(5_000)]})


def test_schemas_that_are_too_large_are_not_compiled() -> None:
    for kind in registry.KINDS:
        with pytest.raises(RegistryRefusal) as refused:
            registry.parse(kind, " " * (TEXT_BYTES_MAX + 1), {})
        assert refused.value.code == 42209


def test_references_that_lead_in_a_circle_end() -> None:
    circle = {"definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"$ref": "#/definitions/a"}}}
    looped = circle | {"properties": {"x": {"$ref": "#/definitions/a"}}, "type": "object"}
    with pytest.raises(RegistryRefusal, match="circle"):
        changes(parsed(JSON, looped), parsed(JSON, looped | {"title": "t"}))
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    wider = tree | {"properties": {"next": {"$ref": "#"}, "more": {"type": "string"}}}
    assert changes(parsed(JSON, tree), parsed(JSON, wider)) == []


def test_combinations_that_explode_are_given_up() -> None:
    """Each level compares all parts of one side with all of the other: more than the bound, and not forever."""

    def nested(depth: int, leaf: str) -> Any:
        if depth == 0:
            return {"type": leaf}
        return {"oneOf": [{"type": "array", "items": nested(depth - 1, leaf), "maxItems": n} for n in range(1, 6)]}

    with pytest.raises(RegistryRefusal, match="too many parts"):
        changes(parsed(JSON, nested(5, "string")), parsed(JSON, nested(5, "number")))


def test_a_type_that_is_used_twice_at_each_level_is_told_once() -> None:
    """Differences of 60 types, each used twice by the next: all of them would be 2 ** 60."""

    def tower(leaf: str) -> Any:
        fields: list[Any] = [{"name": "a", "type": leaf}]
        rows: list[Any] = []
        for n in range(60):
            rows.append({"name": f"r{n}", "type": {"type": "record", "name": f"R{n}", "fields": fields}})
            fields = [{"name": name, "type": f"R{n}"} for name in "ab"]
        return {"type": "record", "name": "Top", "fields": rows}

    told = changes(parsed(AVRO, tower("int")), parsed(AVRO, tower("string")))
    assert [rule for rule, _ in told] == ["TYPE_MISMATCH"]
    levels = {f"d{n}": {"properties": {name: {"$ref": f"#/definitions/d{n - 1}"} for name in "ab"}}
              for n in range(1, 60)}  # fmt: skip
    trees = [{"$ref": "#/definitions/d59", "definitions": {"d0": {"type": leaf}, **levels}}
             for leaf in ("string", "boolean")]  # fmt: skip
    assert changes(parsed(JSON, trees[0]), parsed(JSON, trees[1]))[0][0] == "TYPE_CHANGED"


def test_properties_are_not_tried_against_patterns_without_bound() -> None:
    old = {"type": "object", "properties": {f"p{n}": True for n in range(2_000)}}
    new = {"type": "object", "patternProperties": {f"q{n}": True for n in range(2_000)}}
    with pytest.raises(RegistryRefusal, match="too many parts"):
        changes(parsed(JSON, old), parsed(JSON, new))
    large = {"type": "object", "patternProperties": {rf"(\pL{{30}}){{30}}{n}": True for n in range(60)}}
    with pytest.raises(RegistryRefusal, match="too many parts"):
        changes(parsed(JSON, old), parsed(JSON, large))
    names = {r"^\p{L}[\p{L}\p{N}_ -]{0,60}$": {"type": "string"}, "(?=a)": False}
    older = {"type": "object", "properties": {"Größe": {"type": "string"}}, "additionalProperties": False}
    newer = {"type": "object", "patternProperties": names, "additionalProperties": False}
    assert changes(parsed(JSON, older), parsed(JSON, newer)) == []


@pytest.mark.parametrize(
    "odd",
    [{"type": {"a": 1}}, {"properties": [1]}, {"multipleOf": 0}, {"anyOf": 7}, {"enum": 1}, {"required": [[1]]},
     {"patternProperties": {"a": 1, "b": [1]}, "minLength": "x"}, {"items": 5, "prefixItems": 5}],
)  # fmt: skip
def test_what_a_reference_leads_to_may_be_no_schema(odd: Any) -> None:
    """No validator looks behind words that JSON Schema does not know."""
    texts = [parsed(JSON, {"$ref": "#/odd", "odd": one}) for one in (odd, {"multipleOf": 3, "properties": {"a": {}}})]
    for old, new in (texts, texts[::-1]):
        try:
            changes(old, new)
        except RegistryRefusal as refused:
            assert refused.code == 42201  # noqa: PT017


def test_a_pattern_that_explodes_is_matched_in_linear_time() -> None:
    old = {"type": "object", "additionalProperties": False, "patternProperties": {"(a+)+$": {"type": "string"}}}
    new = old | {"properties": {"a" * 5_000 + "!": {"type": "string"}}}
    assert changes(parsed(JSON, old), parsed(JSON, new)) == []


PROTO = """\
syntax = "proto3";
package a.b;
import "google/protobuf/timestamp.proto";
message M {
  int32 id = 1;
  map<string, .a.b.M> by_name = 2;
  oneof choice {
    string x = 3;
    .a.b.M.Kind kind = 4;
  }
  optional string maybe = 5;
  .google.protobuf.Timestamp at = 6;
  repeated int32 numbers = 7 [packed = false];
  string odd = 8 [json_name = "Odd"];
  enum Kind {
    option allow_alias = true;
    NONE = 0;
    NOTHING = 0;
  }
  reserved 9 to 11;
  reserved "old";
}
service S {
  rpc Get (.a.b.M) returns (stream .a.b.M);
}
"""


def test_protobuf_is_the_same_as_source_and_as_file_descriptor() -> None:
    source = registry.parse(PROTOBUF, PROTO, {})
    again = registry.parse(PROTOBUF, source.serialized, {})
    assert (again.text, again.identity) == (PROTO, source.identity)
    loose = registry.parse(PROTOBUF, PROTO.replace("\n", "  // a comment\n"), {}, normalize=True)
    assert (loose.text, loose.identity) == (PROTO, source.identity)


def test_what_the_compiler_writes_is_bounded() -> None:
    """Each of many lines has a long name in it: as a type's full name, and in what is wrong."""
    name = "N" * 100_000
    types = "message I {} " + " ".join(f"I f{n} = {n};" for n in range(1, 200))
    for text in (f'syntax = "proto3"; message {name} {{ {types} }}', f"message {name} {{ {'int32 a = 1; ' * 200} }}"):
        with pytest.raises(RegistryRefusal, match="not a schema of Protobuf") as refused:
            registry.parse(PROTOBUF, text, {})
        assert len(str(refused.value)) < 1_000


def test_file_descriptors_that_do_not_hold_together_are_refused() -> None:
    bad = b'"\x0a\x0a\x01M\x12\x05\x0a\x01a\x48\x07'
    with pytest.raises(RegistryRefusal, match="oneof") as refused:
        registry.parse(PROTOBUF, base64.b64encode(bad).decode(), {})
    assert refused.value.code == 42201


def test_references_are_texts_by_name() -> None:
    other = 'syntax = "proto3"; message Other { int32 a = 1; }'
    importing = 'syntax = "proto3"; import "dir/other.proto"; message M { Other o = 1; }'
    assert registry.parse(PROTOBUF, importing, {"dir/other.proto": other}).text == importing
    for name in ("../other.proto", "/other.proto", "schema.proto", "./schema.proto", "a//b.proto", "a" * 201):
        with pytest.raises(RegistryRefusal, match="named by the file"):
            registry.parse(PROTOBUF, importing, {name: other})
    with pytest.raises(RegistryRefusal, match="a file and a directory"):
        registry.parse(PROTOBUF, importing, {"dir": other, "dir/other.proto": other})
    inner = json.dumps({"type": "record", "name": "x.A", "fields": [{"name": "b", "type": "int"}]})
    outer = '{"type":"record","name":"R","fields":[{"name":"a","type":"x.A"}]}'
    assert registry.parse(AVRO, outer, {"x.A": inner}).text == outer
    closed = json.dumps({"$id": "http://x.example/a.json", "definitions": {"n": {"type": "integer"}}})
    for reference in ("a.json#/definitions/n", "http://x.example/a.json#/definitions/n"):
        text = json.dumps({"properties": {"a": {"$ref": reference}}}, separators=(",", ":"))
        assert registry.parse(JSON, text, {"a.json": closed}).text == text
