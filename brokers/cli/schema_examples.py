"""An example of what a registered schema describes, as JSON: where a person begins who writes a record.

The same schema has the same example; it is bounded in parts and depth, so a schema that is larger has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fleetlog.brokers.cli.protobuf_values import ProtobufSchema
from fleetlog.brokers.cli.schema_values import UNITS, AvroSchema, RegisteredSchema, Schema

PARTS_MAX: Final = 500
"""Also those that are tried in vain."""
_MOMENT: Final = "2026-01-31T12:00:00Z"
_AVRO: Final[Mapping[str, Any]] = {
    "null": None, "boolean": False, "int": 0, "long": 0, "float": 0.0, "double": 0.0, "bytes": "", "string": "",
}  # fmt: skip
_JSON: Final[Mapping[str, Any]] = {
    "null": None, "boolean": False, "integer": 0, "number": 0, "string": "", "array": [], "object": {},
}  # fmt: skip
_FORMATS: Final[Mapping[str, str]] = {
    "date-time": _MOMENT, "date": "2026-01-31", "time": "12:00:00Z", "email": "ada@example.org",
    "uri": "https://example.org/", "uuid": "00000000-0000-0000-0000-000000000000",
}  # fmt: skip


Inside = tuple[Any, ...]
"""The types around a part: one that is among them has no end there."""


class _NoEnd(Exception):
    """A type that needs itself."""


class _TooLarge(Exception):
    """The schema has more parts than an example may have."""


class _Parts:
    """How many more an example may have."""

    def __init__(self) -> None:
        self._left = PARTS_MAX

    def spend(self) -> None:
        """One more; raises _TooLarge."""
        self._left -= 1
        if self._left < 0:
            raise _TooLarge


def example_of(schema: RegisteredSchema) -> str:
    """Its text; empty where there is none. Of Protobuf's messages it is of the first."""
    parts = _Parts()
    try:
        if isinstance(schema.decoder, AvroSchema):
            value = _AvroExample(schema.decoder, parts).part(schema.decoder.root, ())
        elif isinstance(schema.decoder, ProtobufSchema):
            value = schema.decoder.example(parts.spend)
        else:
            value = _JsonExample(schema.texts, parts).part("", json.loads(schema.texts[""]), ())
        return json.dumps(value, indent=1, ensure_ascii=False)
    except (_NoEnd, _TooLarge, ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return ""


class _AvroExample:
    def __init__(self, schemas: AvroSchema, parts: _Parts) -> None:
        self._schemas, self._parts = schemas, parts

    def part(self, schema: Schema, inside: Inside) -> Any:
        """Raises _NoEnd and _TooLarge."""
        self._parts.spend()
        if isinstance(schema, list):
            return self._branch(schema, inside)
        if isinstance(schema, str):
            return _AVRO[schema]
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.part(kind, inside)
        if kind in {"record", "error"}:
            return self._record(schema, inside)
        if kind in {"array", "map"}:
            try:
                inner = self.part(schema["items" if kind == "array" else "values"], inside)
            except _NoEnd:
                return [] if kind == "array" else {}
            return [inner] if kind == "array" else {"key": inner}
        if kind == "enum":
            return schema["symbols"][0]
        if kind in _AVRO or kind == "fixed":
            return _scalar(schema)
        return self.part(self._schemas.named(kind, schema["space"]), inside)

    def _record(self, schema: Mapping[str, Any], inside: Inside) -> dict[str, Any]:
        if id(schema) in inside:
            raise _NoEnd
        value = {}
        for field in schema["fields"]:
            plain = isinstance(field["type"], str) and field.get("default") is not None
            value[field["name"]] = field["default"] if plain else self.part(field["type"], (*inside, id(schema)))
        return value

    def _branch(self, branches: list[Schema], inside: Inside) -> Any:
        """Of the first that is more than null and has an end; null where none is."""
        for branch in branches:
            if branch == "null":
                continue
            try:
                return self.part(branch, inside)
            except _NoEnd:
                pass
        if "null" not in branches:
            raise _NoEnd
        return None


def _scalar(schema: Mapping[str, Any]) -> Any:
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        return "0"
    if (logical == "date" and kind == "int") or (logical in UNITS and kind == "long"):
        return "2026-01-31" if logical == "date" else _MOMENT
    if logical == "uuid" and kind == "string":
        return _FORMATS["uuid"]
    return "\0" * int(schema["size"]) if kind == "fixed" else _AVRO[kind]


class _JsonExample:
    """Examples, defaults and constants of the schema where it has some; a pattern is not looked at."""

    def __init__(self, texts: Mapping[str, str], parts: _Parts) -> None:
        self._documents, self._parts = {name: json.loads(text) for name, text in texts.items()}, parts

    def part(self, home: str, schema: Any, inside: Inside) -> Any:
        """``home`` is the document that has the schema. Raises _NoEnd and _TooLarge."""
        self._parts.spend()
        if not isinstance(schema, dict):
            return {}
        for word in ("const", "default"):
            if word in schema:
                return schema[word]
        for word in ("examples", "enum"):
            if isinstance(schema.get(word), list) and schema[word]:
                return schema[word][0]
        if "$ref" in schema:
            return self._referred(home, str(schema["$ref"]), inside)
        for word in ("allOf", "oneOf", "anyOf"):
            if schema.get(word):
                return self._combined(home, schema, word, inside)
        kind = schema.get("type")
        kind = next((one for one in kind if one != "null"), "null") if isinstance(kind, list) else kind
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(home, schema, inside)
        if kind == "array":
            items = schema.get("items")
            return [self.part(home, items, inside)] if isinstance(items, dict) and items else []
        if kind == "string":
            return _FORMATS.get(str(schema.get("format")), "-" * min(int(schema.get("minLength", 0)), 100))
        if kind in {"integer", "number"}:
            return (
                max(schema.get("minimum", 0), 0)
                if "maximum" not in schema
                else schema.get("minimum", schema["maximum"])
            )
        return _JSON.get(str(kind), {})

    def _object(self, home: str, schema: Mapping[str, Any], inside: Inside) -> dict[str, Any]:
        value = {}
        for name, one in (schema.get("properties") or {}).items():
            try:
                value[name] = self.part(home, one, inside)
            except _NoEnd:
                if name in (schema.get("required") or ()):
                    raise
        return value

    def _combined(self, home: str, schema: Mapping[str, Any], word: str, inside: Inside) -> Any:
        """All of ``allOf``, the first of the others, with what stands beside it."""
        beside = {name: one for name, one in schema.items() if name != word}
        branches = schema[word] if word == "allOf" else schema[word][:1]
        made = [self.part(home, one, inside) for one in [*branches, *([beside] if "properties" in beside else [])]]
        if all(isinstance(one, dict) for one in made):
            return {name: inner for one in made for name, inner in one.items()}
        return made[0]

    def _referred(self, home: str, reference: str, inside: Inside) -> Any:
        base, _, fragment = reference.partition("#")
        base = base.removeprefix("./") or home
        if (base, fragment) in inside:
            raise _NoEnd
        schema = self._documents[base]
        for step in fragment.split("/")[1:]:
            schema = schema[step.replace("~1", "/").replace("~0", "~")]
        return self.part(base, schema, (*inside, (base, fragment)))
