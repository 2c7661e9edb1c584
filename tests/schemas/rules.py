"""Pairs of JSON Schema and of Protobuf, each by the rule of Confluent's registry that it shows.

A row is the rule's name, the old schema, the new one, and what is in the way of reading the old one's data by the new
one: the rule itself where it is an incompatible change, nothing where it is a compatible one, or what is listed.
"""

from __future__ import annotations

from typing import Any

CLOSED = {"additionalProperties": False}
TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def limits(kind: str, word: str, rule: str, less: Any, more: Any) -> list[tuple[str, Any, Any]]:
    """The four changes of a limit; those that take something away have the rule's name first."""
    plain, low, high = {"type": kind}, {"type": kind, word: less}, {"type": kind, word: more}
    tight, loose = (low, high) if rule.startswith(("MAX", "EXCLUSIVE_MAX")) else (high, low)
    moves = ("DECREASED", "INCREASED") if tight is low else ("INCREASED", "DECREASED")
    return [
        (f"{rule}_ADDED", plain, low),
        (f"{rule}_REMOVED+", low, plain),
        (f"{rule}_{moves[0]}", loose, tight),
        (f"{rule}_{moves[1]}+", tight, loose),
    ]


JSON_RULES: list[tuple[Any, ...]] = [
    ("TITLE_CHANGED+", {"title": "a", **TEXT}, {"title": "b", **TEXT}),
    ("DESCRIPTION_CHANGED+", {"description": "a", **TEXT}, {"description": "b", **TEXT}),
    ("DEFAULT_CHANGED+", {"default": "a", **TEXT}, {"default": "b", **TEXT}),
    ("ID_CHANGED+", {"$id": "http://x.example/a", **TEXT}, {"$id": "http://x.example/b", **TEXT}),
    ("TYPE_CHANGED", TEXT, NUMBER),
    ("TYPE_CHANGED", {"type": "object"}, {"type": "array"}),
    ("TYPE_CHANGED", {"type": "null"}, {"type": "boolean"}),
    ("TYPE_EXTENDED+", WHOLE, NUMBER),
    ("TYPE_NARROWED", NUMBER, WHOLE),
    ("SCHEMA_WITHOUT_WORDS+", of(a=TEXT), {}),
    ("SCHEMA_WITHOUT_WORDS+", of(a=TEXT), True),
    ("FALSE_TO_ANYTHING+", False, TEXT),
    *limits("string", "maxLength", "MAX_LENGTH", 5, 8),
    *limits("string", "minLength", "MIN_LENGTH", 5, 8),
    ("PATTERN_ADDED", TEXT, {**TEXT, "pattern": "a"}),
    ("PATTERN_CHANGED", {**TEXT, "pattern": "a"}, {**TEXT, "pattern": "b"}),
    ("PATTERN_REMOVED+", {**TEXT, "pattern": "a"}, TEXT),
    *limits("number", "maximum", "MAXIMUM", 5, 8),
    *limits("number", "minimum", "MINIMUM", 5, 8),
    *limits("number", "exclusiveMaximum", "EXCLUSIVE_MAXIMUM", 5, 8),
    *limits("number", "exclusiveMinimum", "EXCLUSIVE_MINIMUM", 5, 8),
    ("MULTIPLE_OF_ADDED", NUMBER, {**NUMBER, "multipleOf": 2}),
    ("MULTIPLE_OF_REMOVED+", {**NUMBER, "multipleOf": 2}, NUMBER),
    ("MULTIPLE_OF_EXPANDED", {**NUMBER, "multipleOf": 2}, {**NUMBER, "multipleOf": 10}),
    ("MULTIPLE_OF_REDUCED+", {**NUMBER, "multipleOf": 10}, {**NUMBER, "multipleOf": 2}),
    ("MULTIPLE_OF_CHANGED", {**NUMBER, "multipleOf": 10}, {**NUMBER, "multipleOf": 11}),
    ("REQUIRED_ATTRIBUTE_ADDED", of(a=TEXT), {**of(a=TEXT), "required": ["a"]}),
    ("REQUIRED_ATTRIBUTE_REMOVED+", {**of(a=TEXT), "required": ["a"]}, of(a=TEXT)),
    ("REQUIRED_ATTRIBUTE_WITH_DEFAULT_ADDED+", of(a=TEXT), {**of(a={**TEXT, "default": ""}), "required": ["a"]}),
    *limits("object", "maxProperties", "MAX_PROPERTIES", 5, 8),
    *limits("object", "minProperties", "MIN_PROPERTIES", 5, 8),
    ("ADDITIONAL_PROPERTIES_ADDED+", {**of(a=TEXT), **CLOSED}, of(a=TEXT)),
    ("ADDITIONAL_PROPERTIES_REMOVED", of(a=TEXT), {**of(a=TEXT), **CLOSED}),
    ("ADDITIONAL_PROPERTIES_NARROWED", of(a=TEXT), {**of(a=TEXT), "additionalProperties": TEXT}),
    ("ADDITIONAL_PROPERTIES_EXTENDED+", {**of(a=TEXT), "additionalProperties": TEXT}, of(a=TEXT)),
    ("DEPENDENCY_ARRAY_ADDED", of(a=TEXT), {**of(a=TEXT), "dependencies": {"a": ["b"]}}),
    ("DEPENDENCY_ARRAY_REMOVED+", {**of(a=TEXT), "dependencies": {"a": ["b"]}}, of(a=TEXT)),
    ("DEPENDENCY_ARRAY_EXTENDED", {"dependencies": {"a": ["b"]}}, {"dependencies": {"a": ["b", "c"]}}),
    ("DEPENDENCY_ARRAY_NARROWED+", {"dependencies": {"a": ["b", "c"]}}, {"dependencies": {"a": ["b"]}}),
    ("DEPENDENCY_ARRAY_CHANGED", {"dependencies": {"a": ["b"]}}, {"dependencies": {"a": ["c"]}}),
    ("DEPENDENCY_SCHEMA_ADDED", of(a=TEXT), {**of(a=TEXT), "dependencies": {"a": of(b=TEXT)}}),
    ("DEPENDENCY_SCHEMA_REMOVED+", {**of(a=TEXT), "dependencies": {"a": of(b=TEXT)}}, of(a=TEXT)),
    ("PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL+", of(a=TEXT, b=TEXT), of(a=TEXT)),
    ("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", of(a=TEXT), of(a=TEXT, b=TEXT)),
    ("PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL+", of(a=TEXT), of(a=TEXT, b={})),
    ("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", {**of(a=TEXT, b=TEXT), **CLOSED}, {**of(a=TEXT), **CLOSED}),
    ("PROPERTY_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL+", {**of(a=TEXT, b=False), **CLOSED},
     {**of(a=TEXT), **CLOSED}),
    ("OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL+", {**of(a=TEXT), **CLOSED}, {**of(a=TEXT, b=TEXT), **CLOSED}),
    ("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", {**of(a=TEXT), **CLOSED},
     {**of(a=TEXT, b=TEXT), **CLOSED, "required": ["b"]}),
    ("REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_UNOPEN_CONTENT_MODEL+", {**of(a=TEXT), **CLOSED},
     {**of(a=TEXT, b={**TEXT, "default": ""}), **CLOSED, "required": ["b"]}),
    ("PROPERTY_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL+", {**of(a=TEXT), "additionalProperties": TEXT},
     {**of(a=TEXT, b=TEXT), "additionalProperties": TEXT}),
    ("PROPERTY_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL+",
     {**of(), **CLOSED, "patternProperties": {"^I": WHOLE}},
     {**of(I1=NUMBER), **CLOSED, "patternProperties": {"^I": WHOLE}}),
    ("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", {**of(a=TEXT), "additionalProperties": TEXT},
     {**of(a=TEXT, b=NUMBER), "additionalProperties": TEXT}, ["TYPE_CHANGED"]),
    ("PROPERTY_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL+", {**of(a=TEXT, b=TEXT), **CLOSED},
     {**of(a=TEXT), "additionalProperties": TEXT}),
    ("PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", {**of(a=TEXT, b=NUMBER), **CLOSED},
     {**of(a=TEXT), "additionalProperties": TEXT}, ["TYPE_CHANGED"]),
    ("TYPE_CHANGED", of(a=of(b=TEXT)), of(a=of(b=NUMBER))),
    *limits("array", "maxItems", "MAX_ITEMS", 5, 8),
    *limits("array", "minItems", "MIN_ITEMS", 5, 8),
    ("UNIQUE_ITEMS_ADDED", {"type": "array"}, {"type": "array", "uniqueItems": True}),
    ("UNIQUE_ITEMS_REMOVED+", {"type": "array", "uniqueItems": True}, {"type": "array"}),
    ("TYPE_CHANGED", {"type": "array", "items": TEXT}, {"type": "array", "items": NUMBER}),
    ("ADDITIONAL_ITEMS_ADDED+", {"type": "array", "items": [TEXT], "additionalItems": False},
     {"type": "array", "items": [TEXT]}),
    ("ADDITIONAL_ITEMS_REMOVED", {"type": "array", "items": [TEXT]},
     {"type": "array", "items": [TEXT], "additionalItems": False}),
    ("ADDITIONAL_ITEMS_NARROWED", {"type": "array", "items": [TEXT]},
     {"type": "array", "items": [TEXT], "additionalItems": TEXT}),
    ("ADDITIONAL_ITEMS_EXTENDED+", {"type": "array", "items": [TEXT], "additionalItems": TEXT},
     {"type": "array", "items": [TEXT]}),
    ("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", {"type": "array", "items": [TEXT]}, {"type": "array", "items": [TEXT, TEXT]}),
    ("ITEM_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL+", {"type": "array", "items": [TEXT]},
     {"type": "array", "items": [TEXT, {}]}),
    ("ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL+", {"type": "array", "items": [TEXT, TEXT]},
     {"type": "array", "items": [TEXT]}),
    ("ITEM_ADDED_TO_CLOSED_CONTENT_MODEL+", {"type": "array", "items": [TEXT], "additionalItems": False},
     {"type": "array", "items": [TEXT, TEXT], "additionalItems": False}),
    ("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", {"type": "array", "items": [TEXT, TEXT], "additionalItems": False},
     {"type": "array", "items": [TEXT], "additionalItems": False}),
    ("ITEM_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL+",
     {"type": "array", "items": [TEXT, WHOLE], "additionalItems": False},
     {"type": "array", "items": [TEXT], "additionalItems": NUMBER}),
    ("ENUM_ARRAY_EXTENDED+", {"enum": ["a"]}, {"enum": ["a", "b"]}),
    ("ENUM_ARRAY_CHANGED", {"enum": ["a", "b"]}, {"enum": ["a"]}),
    ("CONST_CHANGED", {"const": 1}, {"const": 2}),
    ("PRODUCT_TYPE_NARROWED+", {**TEXT, "enum": ["a"]}, TEXT),
    ("PRODUCT_TYPE_EXTENDED", {"allOf": [TEXT]}, {"allOf": [TEXT, {"maxLength": 3}]}),
    ("PRODUCT_TYPE_NARROWED+", {"allOf": [TEXT, {"maxLength": 3}]}, {"allOf": [TEXT]}),
    ("SUM_TYPE_EXTENDED+", {"oneOf": [TEXT]}, {"oneOf": [NUMBER, TEXT]}),
    ("SUM_TYPE_EXTENDED+", {"type": ["object"]}, {"type": ["object", "array"]}),
    ("SUM_TYPE_EXTENDED+", TEXT, {"anyOf": [NUMBER, TEXT]}),
    ("SUM_TYPE_EXTENDED+", TEXT, {"type": ["string", "null"]}),
    ("SUM_TYPE_NARROWED", {"oneOf": [NUMBER, TEXT]}, {"oneOf": [TEXT]}),
    ("COMBINED_TYPE_EXTENDED+", {"oneOf": [TEXT, NUMBER]}, {"anyOf": [TEXT, NUMBER]}),
    ("COMBINED_TYPE_EXTENDED+", {"anyOf": [TEXT]}, {"oneOf": [NUMBER, TEXT]}),
    ("COMBINED_TYPE_CHANGED", {"anyOf": [NUMBER, TEXT]}, {"oneOf": [NUMBER, TEXT]}),
    ("COMBINED_TYPE_CHANGED", {"anyOf": [TEXT]}, {"allOf": [NUMBER, TEXT]}),
    ("COMBINED_TYPE_SUBSCHEMAS_CHANGED", {"oneOf": [TEXT]}, {"oneOf": [NUMBER]}),
    ("COMBINED_TYPE_SUBSCHEMAS_CHANGED", {"allOf": [TEXT, {"enum": ["a"]}]}, {"allOf": [TEXT, {"enum": ["b"]}]}),
    ("COMBINED_IN_ANOTHER_ORDER+", {"allOf": [TEXT, {"enum": ["a"]}]}, {"allOf": [{"enum": ["a", "b"]}, TEXT]}),
    ("COMBINED_WITH_DUPLICATES+", {"allOf": [TEXT]}, {"allOf": [TEXT, TEXT]}),
    ("NOT_TYPE_NARROWED+", {"not": NUMBER}, {"not": WHOLE}),
    ("NOT_TYPE_EXTENDED", {"not": WHOLE}, {"not": NUMBER}),
    ("REFERENCES_ARE_FOLLOWED+", {"definitions": {"t": TEXT}, **of(a={"$ref": "#/definitions/t"})}, of(a=TEXT)),
    ("TYPE_CHANGED", {"definitions": {"t": TEXT}, **of(a={"$ref": "#/definitions/t"})},
     {"definitions": {"t": NUMBER}, **of(a={"$ref": "#/definitions/t"})}),
]  # fmt: skip


def proto(body: str, head: str = "package p;", syntax: str = "proto3") -> str:
    return f'syntax = "{syntax}"; {head} {body}'


def field(text: str, more: str = "") -> str:
    return proto(f"message M {{ {text} }} message A {{}} message B {{}} enum E {{ Z = 0; }} {more}")


def old(text: str) -> str:
    return proto(f"message M {{ {text} }}", syntax="proto2")


PROTOBUF_RULES: list[tuple[Any, ...]] = [
    ("PACKAGE_CHANGED", proto("message M {}"), proto("message M {}", "package q;")),
    ("MESSAGE_ADDED+", proto("message M {}"), proto("message M {} message N {}")),
    ("MESSAGE_REMOVED", proto("message M {} message N {}"), proto("message M {}")),
    ("MESSAGE_MOVED+", proto("message M {} message N {}"), proto("message N {} message M {}")),
    ("MESSAGE_REMOVED", proto("message M { message N {} }"), proto("message M {}")),
    ("ENUM_ADDED+", proto("message M {}"), proto("message M {} enum E { Z = 0; }")),
    ("ENUM_REMOVED+", proto("message M {} enum E { Z = 0; }"), proto("message M {}")),
    ("ENUM_CONST_ADDED+", proto("enum E { Z = 0; }"), proto("enum E { Z = 0; A = 1; }")),
    ("ENUM_CONST_REMOVED+", proto("enum E { Z = 0; A = 1; }"), proto("enum E { Z = 0; }")),
    ("ENUM_CONST_CHANGED+", proto("enum E { Z = 0; A = 1; }"), proto("enum E { Z = 0; B = 1; }")),
    ("FIELD_ADDED+", field(""), field("int32 a = 1;")),
    ("FIELD_REMOVED+", field("int32 a = 1;"), field("")),
    ("FIELD_NAME_CHANGED+", field("int32 a = 1;"), field("int32 b = 1;")),
    ("FIELD_KIND_CHANGED", field("int32 a = 1;"), field("A a = 1;")),
    ("FIELD_KIND_CHANGED", field("map<string, int32> a = 1;"), field("int32 a = 1;")),
    ("FIELD_KIND_CHANGED", field("map<string, int32> a = 1;"), field("A a = 1;")),
    ("FIELD_NAMED_TYPE_CHANGED", field("A a = 1;"), field("B a = 1;")),
    ("FIELD_SCALAR_KIND_CHANGED", field("map<string, int32> a = 1;"), field("map<string, double> a = 1;")),
    ("FIELD_SCALAR_KIND_CHANGED", field("map<string, int32> a = 1;"), field("map<int32, int32> a = 1;")),
    ("FIELD_NUMERIC_LABEL_CHANGED", field("int32 a = 1;"), field("repeated int32 a = 1;")),
    ("FIELD_NUMERIC_LABEL_CHANGED", field("repeated double a = 1;"), field("double a = 1;")),
    ("FIELD_STRING_OR_BYTES_LABEL_CHANGED+", field("string a = 1;"), field("repeated string a = 1;")),
    ("FIELD_MADE_OPTIONAL+", field("int32 a = 1;"), field("optional int32 a = 1;")),
    ("REQUIRED_FIELD_ADDED", old(""), old("required int32 a = 1;")),
    ("REQUIRED_FIELD_REMOVED", old("required int32 a = 1;"), old("")),
    ("ONEOF_ADDED+", field(""), field("oneof o { int32 a = 1; }")),
    ("ONEOF_REMOVED+", field("oneof o { int32 a = 1; }"), field("")),
    ("ONEOF_FIELD_ADDED+", field("oneof o { int32 a = 1; }"), field("oneof o { int32 a = 1; int32 b = 2; }")),
    ("ONEOF_FIELD_REMOVED", field("oneof o { int32 a = 1; int32 b = 2; }"), field("oneof o { int32 a = 1; }")),
    ("FIELD_MOVED_TO_ONEOF+", field("int32 a = 1;"), field("oneof o { int32 a = 1; }")),
    ("MULTIPLE_FIELDS_MOVED_TO_ONEOF", field("int32 a = 1; int32 b = 2;"),
     field("oneof o { int32 a = 1; int32 b = 2; }")),
    ("FIELD_MOVED_TO_EXISTING_ONEOF", field("int32 a = 1; oneof o { int32 b = 2; }"),
     field("oneof o { int32 a = 1; int32 b = 2; }")),
    ("FIELD_MOVED_OUT_OF_ONEOF+", field("oneof o { int32 a = 1; int32 b = 2; }"),
     field("int32 a = 1; oneof o { int32 b = 2; }")),
    ("FIELD_SCALAR_KIND_CHANGED", field("oneof o { int32 a = 1; }"), field("oneof o { string a = 1; }")),
]  # fmt: skip

_GROUPS = (
    ("int32", "int64", "uint32", "uint64", "bool", "E"), ("sint32", "sint64"), ("string", "bytes"),
    ("fixed32", "sfixed32"), ("fixed64", "sfixed64"), ("float",), ("double",),
)  # fmt: skip
_SCALARS = [(name, number) for number, group in enumerate(_GROUPS) for name in group]
PROTOBUF_RULES += [
    (
        "FIELD_SCALAR_KIND_CHANGED" if before != after else "SCALAR_OF_THE_SAME_GROUP+",
        field(f"{one} a = 1;"),
        field(f"{other} a = 1;"),
    )
    for one, before in _SCALARS
    for other, after in _SCALARS
]


def cases() -> list[tuple[str, str, Any, Any, list[str]]]:
    """Kind, rule, old, new, and the names of what is in the way."""
    rows = [("JSON", row) for row in JSON_RULES] + [("PROTOBUF", row) for row in PROTOBUF_RULES]
    return [
        (kind, name.rstrip("+"), before, after, [] if name.endswith("+") else [name, *(more[0] if more else [])])
        for kind, (name, before, after, *more) in rows
    ]
