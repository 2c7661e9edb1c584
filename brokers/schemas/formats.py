"""Avro and JSON Schema for a registry: whether a text is a schema, how it is written, and what an update may change.

A schema is bounded before a parser sees it, in bytes, nesting and parts; so is a comparison of two.
Sources: Avro 1.12 (schema resolution, as org.apache.avro.SchemaCompatibility decides it); JSON Schema (drafts 4 to
2020-12), with the names that Confluent's registry gives to what an update of a schema breaks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

AVRO: Final = "AVRO"
JSON: Final = "JSON"
TEXT_BYTES_MAX: Final = 800_000
"""Of a schema with all that it refers to: a record of ``_schemas`` stays below the default of max.message.bytes."""
DEPTH_MAX: Final = 64
PARTS_MAX: Final = 20_000
"""Objects, arrays and values of a schema in JSON."""
COMPARISONS_MAX: Final = 100_000
CHANGES_MAX: Final = 20
"""Differences that are told of one pair of schemas: a type that is used often would bring its own each time."""
UNSORTABLE_MAX: Final = 1_000
"""Values of a list that JSON Schema compares each with each, since they have no order."""
_PATH_MAX: Final = 500
_PATTERN_STEPS: Final = 10
_LARGE_PATTERN_STEPS: Final = 2_000
"""What compiling a pattern counts, in steps of a comparison: at least, and if RE2 finds it too large."""
_TYPE_WORD: Final = "type"

Change = tuple[str, str]
"""What is in the way: the name of the rule, and the path in the schema."""


class FormatError(ValueError):
    """A text is no schema, or larger than the registry takes; the message says why. ``too_large`` says which."""

    def __init__(self, text: str, *, too_large: bool = False) -> None:
        super().__init__(text)
        self.too_large = too_large


class ParsedSchema(NamedTuple):
    """``text`` is stored and shown; ``identity`` is the same for schemas that are the same. ``model`` is compared."""

    kind: str
    text: str
    identity: str
    model: Any
    serialized: str = ""
    """Protobuf: the FileDescriptorProto in base64."""


class ComparisonBudget:
    """How much one comparison may do."""

    def __init__(self) -> None:
        self._left = COMPARISONS_MAX

    def spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise FormatError("the schemas have too many parts that refer to each other to compare them")


_JSON_MARK: Final = re.compile(r'"(?:[^"\\]|\\.?)*"?|[\[{]|[\]}]', re.DOTALL)
"""A text, also one that does not end: an expression that failed there would begin anew at each quote in it."""


def check_nesting(text: str) -> None:
    """Raises FormatError for JSON that is nested too deeply."""
    depth = 0
    for mark in _JSON_MARK.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark[0], 0)
        if depth > DEPTH_MAX:
            raise FormatError(f"the schema is nested deeper than {DEPTH_MAX} levels", too_large=True)


def json_document(text: str) -> Any:
    """The document, bounded. Raises FormatError."""
    check_nesting(text)
    try:
        document = json.loads(
            text, parse_constant=no_constant, parse_float=finite_number, object_pairs_hook=unique_names
        )
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(f"the schema is not JSON: {error}") from None
    if any(number >= PARTS_MAX for number, _ in enumerate(values_of(document))):
        raise FormatError(f"the schema has more than {PARTS_MAX} parts", too_large=True)
    return document


def values_of(document: Any, skipped: Set[str] = frozenset()) -> Iterator[Any]:
    """The document, and each value in it but those of the names that are skipped."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        yield value
        if isinstance(value, dict):
            waiting += [inner for name, inner in value.items() if name not in skipped]
        elif isinstance(value, list):
            waiting += value


def no_constant(name: str) -> Any:
    """For ``parse_constant``. Raises FormatError."""
    raise FormatError(f"{name} is no value of JSON")


def finite_number(text: str) -> float:
    """For ``parse_float``. Raises FormatError."""
    value = float(text)
    if math.isinf(value):
        raise FormatError(f"{text[:40]} is larger than numbers can be")
    return value


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For ``object_pairs_hook``. Raises FormatError."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise FormatError("a name stands twice in an object")
    return fields


def dumped(document: Any, *, ordered: bool = False) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, sort_keys=ordered)


# ---- Avro ----------------------------------------------------------------------------------------------------------

_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_PROMOTIONS: Final = {
    "long": {"int"}, "float": {"int", "long"}, "double": {"int", "long", "float"},
    "bytes": {"string"}, "string": {"bytes"},
}  # fmt: skip
"""The primitive types that a reader's type reads besides itself."""
_AVRO_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _AvroField(NamedTuple):
    name: str
    aliases: tuple[str, ...]
    type: _AvroType
    has_default: bool


class _AvroType:
    """A node of a schema's graph, in which names lead to the types that they name."""

    __slots__ = ("aliases", "default", "fields", "items", "kind", "name", "size", "symbols")

    def __init__(self, kind: str, name: str = "", aliases: Sequence[str] = ()) -> None:
        self.kind, self.name, self.aliases = kind, name, frozenset(aliases)
        self.fields: list[_AvroField] = []
        self.items: list[_AvroType] = []
        self.symbols: list[str] = []
        self.default: str | None = None
        self.size = 0


def parse_avro(text: str, references: Mapping[str, str], normalize: bool) -> ParsedSchema:
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    reader = _AvroReader()
    checked: dict[str, Any] = {}
    document: Any = None
    root = _AvroType("null")
    for part in (*references.values(), text):
        document = json_document(part) if part.lstrip()[:1] in {"{", "[", '"'} else part.strip()
        try:
            parse_schema(document, named_schemas=checked)
            root = reader.read(document, "")
        except UnknownType as error:
            raise FormatError(f"the type {error.name} is not known") from None
        except SchemaParseException as error:
            raise FormatError(f"not a schema of Avro: {error}") from None
        except KeyError as error:
            raise FormatError(f"not a schema of Avro: {error} is missing") from None
        except (TypeError, AttributeError) as error:
            raise FormatError(f"not a schema of Avro: {error}") from None
    written = reader.text(document, "", ordered=normalize)
    canonical = dumped(written)
    return ParsedSchema(AVRO, canonical, canonical, root)


class _AvroReader:
    """Makes the graph of types, and the text as Avro's own library writes it."""

    def __init__(self) -> None:
        self._types: dict[str, _AvroType] = {}

    def read(self, schema: Any, space: str) -> _AvroType:
        """The type of a schema in a namespace. Raises FormatError."""
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _AvroType(schema)
            return self._types[self._full_name(schema, space)]
        if isinstance(schema, list):
            union = _AvroType("union")
            union.items = [self.read(branch, space) for branch in schema]
            names = [branch.name or branch.kind for branch in union.items]
            if "union" in names or len(set(names)) < len(names):
                raise FormatError("a union has another union in it, or the same type twice")
            return union
        kind = schema[_TYPE_WORD]
        if not isinstance(kind, str):
            return self.read(kind, space)
        if kind in {"array", "map"}:
            collection = _AvroType(kind)
            collection.items = [self.read(schema["items" if kind == "array" else "values"], space)]
            return collection
        if kind not in {"record", "error", "enum", "fixed"}:
            return self.read(kind, space)
        return self._named(schema, "record" if kind == "error" else kind, space)

    def _named(self, schema: Any, kind: str, space: str) -> _AvroType:
        name, inner = _avro_name(schema, space)
        aliases = [_joined(inner, alias) for alias in _strings(schema.get("aliases", []))]
        made = self._types[name] = _AvroType(kind, name, aliases)
        if kind == "fixed":
            made.size = schema["size"]
            if not isinstance(made.size, int) or isinstance(made.size, bool) or made.size < 0:
                raise FormatError(f"the size of {name} is not a number of bytes")
        elif kind == "enum":
            made.symbols = _strings(schema["symbols"])
            made.default = schema.get("default")
            bad = [symbol for symbol in made.symbols if not _AVRO_NAME.fullmatch(symbol)]
            if bad or len(set(made.symbols)) < len(made.symbols):
                raise FormatError(f"the symbols of {name} must be different names")
            if made.default is not None and made.default not in made.symbols:
                raise FormatError(f"the default of {name} is none of its symbols")
        else:
            for field in schema["fields"]:
                row = _AvroField(
                    field["name"], tuple(_strings(field.get("aliases", []))), self.read(field[_TYPE_WORD], inner),
                    "default" in field,
                )  # fmt: skip
                made.fields.append(row)
            names = [field.name for field in made.fields]
            if len(set(names)) < len(names) or not all(map(_AVRO_NAME.fullmatch, names)):
                raise FormatError(f"the fields of {name} must have different names, of letters, digits and _")
        return made

    def _full_name(self, name: str, space: str) -> str:
        full = _joined(space, name)
        if full not in self._types and name in self._types:
            return name
        if full not in self._types:
            raise FormatError(f"the type {full} is not known")
        return full

    def text(self, schema: Any, space: str, *, ordered: bool) -> Any:
        """The schema with its attributes in the order of Avro's own library, and names no longer than needed."""
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return schema
            return _short_name(self._full_name(schema, space), space)
        if isinstance(schema, list):
            return [self.text(branch, space, ordered=ordered) for branch in schema]
        kind = schema[_TYPE_WORD]
        if not isinstance(kind, str):
            return self.text(kind, space, ordered=ordered)
        own = {name: value for name, value in schema.items() if name not in _AVRO_WORDS}
        own = dict(sorted(own.items())) if ordered else own
        if kind in {"array", "map"}:
            items = "items" if kind == "array" else "values"
            return {_TYPE_WORD: kind, items: self.text(schema[items], space, ordered=ordered), **own}
        if kind not in {"record", "error", "enum", "fixed"}:
            return {_TYPE_WORD: kind, **own} if own and kind in _PRIMITIVES else self.text(kind, space, ordered=ordered)
        name, inner = _avro_name(schema, space)
        written: dict[str, Any] = {_TYPE_WORD: kind, "name": name.rpartition(".")[2]}
        if inner != space:
            written["namespace"] = inner
        if schema.get("doc") is not None:
            written["doc"] = schema["doc"]
        if kind == "fixed":
            written["size"] = schema["size"]
        elif kind == "enum":
            written["symbols"] = schema["symbols"]
            if schema.get("default") is not None:
                written["default"] = schema["default"]
        else:
            written["fields"] = [self._field_text(field, inner, ordered) for field in schema["fields"]]
        written |= own
        if schema.get("aliases"):
            written["aliases"] = [_short_name(_joined(inner, alias), inner) for alias in schema["aliases"]]
        return written

    def _field_text(self, field: Any, space: str, ordered: bool) -> Any:
        written = {"name": field["name"], _TYPE_WORD: self.text(field[_TYPE_WORD], space, ordered=ordered)}
        if field.get("doc") is not None:
            written["doc"] = field["doc"]
        if "default" in field:
            written["default"] = field["default"]
        if str(field.get("order", "ascending")).lower() != "ascending":
            written["order"] = field["order"]
        if field.get("aliases"):
            written["aliases"] = field["aliases"]
        own = {name: value for name, value in field.items() if name not in _FIELD_WORDS}
        return written | (dict(sorted(own.items())) if ordered else own)


_AVRO_WORDS: Final = frozenset(
    {"aliases", "default", "doc", "fields", "items", "name", "namespace", "size", "symbols", "type", "values"}
)
_FIELD_WORDS: Final = frozenset({"aliases", "default", "doc", "name", "order", "type"})


def _strings(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise FormatError("aliases and symbols are lists of strings")
    return value


def _avro_name(schema: Any, space: str) -> tuple[str, str]:
    """The full name of a named type, and its namespace."""
    name = schema["name"]
    if not name or not isinstance(schema.get("namespace") or "", str):
        raise FormatError("a name or a namespace is empty or no text")
    if "." in name:
        return name.removeprefix("."), name.rpartition(".")[0]
    inner = schema.get("namespace", space) or ""
    return _joined(inner, name), inner


def _joined(space: str, name: str) -> str:
    """The full name of a name in a namespace, which it may have of its own."""
    return f"{space}.{name}" if space and "." not in name else name


def _short_name(full: str, space: str) -> str:
    before, _, name = full.rpartition(".")
    return name if before == space and name not in _PRIMITIVES else full


def avro_changes(old: _AvroType, new: _AvroType) -> Iterator[Change]:
    """What keeps a reader of ``new`` from values of ``old``."""
    yield from _AvroComparison().compare(new, old, "/")


class _AvroComparison:
    """One comparison of a reader's schema with a writer's; pairs that are compared already count as fitting."""

    def __init__(self) -> None:
        self._results: dict[tuple[int, int], list[Change]] = {}
        self._budget = ComparisonBudget()

    def compare(self, reader: _AvroType, writer: _AvroType, path: str) -> list[Change]:
        pair = id(reader), id(writer)
        known = self._results.get(pair)
        if known is not None:
            return known
        self._budget.spend()
        self._results[pair] = []
        self._results[pair] = result = self._compared(reader, writer, path)[:CHANGES_MAX]
        return result

    def _compared(self, reader: _AvroType, writer: _AvroType, path: str) -> list[Change]:
        if writer.kind == "union":
            problems = [
                (number, branch)
                for number, branch in enumerate(writer.items)
                if self.compare(reader, branch, f"{path}{number}/")
            ]
            if reader.kind == "union":
                return [("MISSING_UNION_BRANCH", f"{path}{number}") for number, _ in problems]
            return [change for number, branch in problems for change in self.compare(reader, branch, path)]
        if reader.kind == "union":
            if any(not self.compare(branch, writer, f"{path}{number}/") for number, branch in enumerate(reader.items)):
                return []
            return [("MISSING_UNION_BRANCH", path)]
        if reader.kind != writer.kind:
            return [] if writer.kind in _PROMOTIONS.get(reader.kind, ()) else [("TYPE_MISMATCH", path)]
        if reader.kind in {"array", "map"}:
            return self.compare(reader.items[0], writer.items[0], f"{path}items/")
        if not reader.name:
            return []
        result: list[Change] = []
        if reader.name.rpartition(".")[2] != writer.name.rpartition(".")[2] and writer.name not in reader.aliases:
            result.append(("NAME_MISMATCH", f"{path}name"))
        if reader.kind == "fixed" and reader.size != writer.size:
            result.append(("FIXED_SIZE_MISMATCH", f"{path}size"))
        if reader.kind == "enum" and reader.default is None and not set(writer.symbols) <= set(reader.symbols):
            result.append(("MISSING_ENUM_SYMBOLS", f"{path}symbols"))
        if reader.kind == "record":
            result += self._fields(reader, writer, path)
        return result

    def _fields(self, reader: _AvroType, writer: _AvroType, path: str) -> list[Change]:
        by_name = {field.name: field for field in writer.fields}
        result: list[Change] = []
        for number, field in enumerate(reader.fields):
            names = [name for name in (field.name, *field.aliases) if name in by_name]
            if len(names) > 1:
                result.append(("READER_FIELD_AMBIGUOUS", f"{path}fields/{number}"))
            elif names:
                result += self.compare(field.type, by_name[names[0]].type, f"{path}fields/{number}/type/")
            elif not field.has_default:
                result.append(("READER_FIELD_MISSING_DEFAULT_VALUE", f"{path}fields/{number}"))
        return result


# ---- JSON Schema ---------------------------------------------------------------------------------------------------

_COMBINED: Final = ("allOf", "anyOf", "oneOf")
_SNIFFED: Final = {
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties",
                         "patternProperties", "dependencies", "dependentRequired", "dependentSchemas"}),
    "array": frozenset({"items", "additionalItems", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"}),
    "string": frozenset({"minLength", "maxLength", "pattern"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}  # fmt: skip
"""The words that say of what type a schema without ``type`` is."""
_LIMITS: Final = {
    "object": ("maxProperties", "minProperties"),
    "array": ("maxItems", "minItems"),
    "string": ("maxLength", "minLength"),
    "number": ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"),
}


class _JsonModel(NamedTuple):
    """A document, and those that it refers to by their names or ``$id``."""

    document: Any
    named: Mapping[str, Any]
    root: str
    anchors: dict[int, dict[str, Any]]
    """Of documents that were searched, by their identity."""


def parse_json_schema(text: str, references: Mapping[str, str], normalize: bool) -> ParsedSchema:
    from jsonschema import Draft7Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    named = {}
    for name, part in references.items():
        named[name] = document = json_document(part)
        if isinstance(document, dict) and isinstance(document.get("$id"), str):
            named[document["$id"].rstrip("#")] = document
    document = json_document(text)
    if not isinstance(document, (dict, bool)):
        raise FormatError("a JSON Schema is an object, true or false")
    _check_lists(document)
    draft = document.get("$schema", "") if isinstance(document, dict) else ""
    try:
        if not isinstance(draft, str):
            raise ValueError
        validator = validator_for(document, default=Draft7Validator)
    except ValueError:
        raise FormatError(
            "$schema is not the address of a draft, such as http://json-schema.org/draft-07/schema#"
        ) from None
    try:
        validator.check_schema(document, format_checker=None)
    except SchemaError as error:
        raise FormatError(f"not a JSON Schema: {error.message[:300]}") from None
    root = ""
    if isinstance(document, dict):
        root = str(document.get("$id") or document.get("id") or "").rstrip("#")
        named.setdefault(root, document)
    model = _JsonModel(document, named, root, {})
    for reference in _references_of(document):
        _target(model, document, reference)
    canonical = dumped(document, ordered=normalize)
    return ParsedSchema(JSON, canonical, canonical, model)


def _check_lists(document: Any) -> None:
    """Raises FormatError for a list whose values jsonschema would compare each with each."""
    for value in values_of(document):
        if (
            isinstance(value, list)
            and len(value) > UNSORTABLE_MAX
            and not (all(isinstance(one, str) for one in value) or all(map(_is_number, value)))
        ):
            raise FormatError(
                f"a list of more than {UNSORTABLE_MAX} values must have only texts or only numbers", too_large=True
            )


def _references_of(document: Any) -> set[str]:
    """The ``$ref`` of a document."""
    schemas = values_of(document, {"enum", "const", "default", "examples"})
    references = (value.get("$ref") for value in schemas if isinstance(value, dict))
    return {reference for reference in references if isinstance(reference, str)}


def _target(model: _JsonModel, document: Any, reference: str) -> tuple[Any, Any]:
    """What a reference in a document leads to, and the document that has it. Raises FormatError."""
    base, _, fragment = reference.partition("#")
    if base:
        names = [base, base.removeprefix("./"), *(name for name in model.named if name.endswith(f"/{base}"))]
        names += [name for name in model.named if base.endswith(f"/{name}")]
        holder = next((model.named[name] for name in names if name in model.named), None)
        if holder is None:
            raise FormatError(f"{reference[:200]!r} is none of the schema's references")
        document = holder
    value = document
    if fragment.startswith("/"):
        for step in fragment[1:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~").replace("%25", "%")
            if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
                value = value[int(step)]
            elif isinstance(value, dict) and step in value:
                value = value[step]
            else:
                raise FormatError(f"{reference[:200]!r} leads nowhere")
    elif fragment:
        value = _anchored(model, document, fragment)
    return value, document


def _anchored(model: _JsonModel, document: Any, anchor: str) -> Any:
    """What has the anchor. Raises FormatError."""
    anchors = model.anchors.get(id(document))
    if anchors is None:
        anchors = {}
        for value in values_of(document):
            if isinstance(value, dict):
                names = value.get("$anchor"), value.get("$id"), value.get("id")
                for name in {n if not turn else n[1:] for turn, n in enumerate(names)
                             if isinstance(n, str) and (not turn or n.startswith("#"))}:  # fmt: skip
                    anchors.setdefault(name, value)
        model.anchors[id(document)] = anchors
    if anchor not in anchors:
        raise FormatError(f"there is no anchor {anchor[:200]!r}")
    return anchors[anchor]


class _JsonPart(NamedTuple):
    """A schema as one kind of thing: a type, ``enum``, ``const``, ``not``, ``true``, ``false``, or a combination."""

    kind: str
    schema: Any
    parts: tuple[Any, ...]
    holder: Any


def json_changes(old: _JsonModel, new: _JsonModel) -> Iterator[Change]:
    yield from _JsonComparison(old, new).compare((old.document, old.document), (new.document, new.document), "#")


_Located = tuple[Any, Any]
"""A schema, and the document it stands in."""


class _JsonComparison:
    """One comparison; ``old`` and ``new`` are schemas with the documents in which their references are found."""

    def __init__(self, old: _JsonModel, new: _JsonModel) -> None:
        self._models = {False: old, True: new}
        self._results: dict[tuple[int, int], list[Change]] = {}
        self._keep: list[Any] = []  # what the results are known by must not go while they are
        self._parts: dict[tuple[int, bool], _JsonPart] = {}
        self._branches: dict[tuple[int, bool], list[_JsonPart]] = {}
        self._texts: dict[int, str] = {}
        self._budget = ComparisonBudget()

    def compare(self, old: _Located, new: _Located, path: str) -> list[Change]:
        """The incompatible changes of a pair; a pair that is being compared counts as fitting."""
        pair = id(old[0]), id(new[0])
        known = self._results.get(pair)
        if known is not None:
            return known
        self._budget.spend()
        self._keep += [old[0], new[0]]
        self._results[pair] = []
        if len(path) > _PATH_MAX:
            path = f"{path[:_PATH_MAX]}..."
        self._results[pair] = result = self._compared(self._part(old, False), self._part(new, True), path)[:CHANGES_MAX]
        return result

    def _part(self, located: _Located, newer: bool) -> _JsonPart:
        schema, holder = located
        key = id(schema), newer
        if key not in self._parts:
            self._keep.append(schema)
            self._parts[key] = self._made(schema, holder, newer)
        return self._parts[key]

    def _made(self, schema: Any, holder: Any, newer: bool) -> _JsonPart:
        """A schema as one part, behind its references."""
        for _ in range(DEPTH_MAX):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                break
            schema, holder = _target(self._models[newer], holder, schema["$ref"])
        else:
            raise FormatError("references lead in a circle")
        if isinstance(schema, bool) or not isinstance(schema, dict):
            return _JsonPart("false" if schema is False else "true", schema, (), holder)
        parts: list[_JsonPart] = []
        types = schema.get(_TYPE_WORD)
        if isinstance(types, list):
            branches = tuple({**_typed(schema), _TYPE_WORD: one} for one in types)
            parts.append(_JsonPart("anyOf", schema, branches, holder))
        elif types is not None:
            parts.append(_JsonPart("number" if types == "integer" else types, schema, (), holder))
        else:
            parts += [_JsonPart(kind, schema, (), holder) for kind, words in _SNIFFED.items() if words & schema.keys()]
        parts += [_JsonPart(word, schema[word], (), holder) for word in ("enum", "const", "not") if word in schema]
        parts += [_JsonPart(word, schema, tuple(schema[word]), holder) for word in _COMBINED if schema.get(word)]
        if not parts:
            return _JsonPart("true", schema, (), holder)
        return parts[0] if len(parts) == 1 else _JsonPart("allOf", schema, tuple(parts), holder)

    def _compared(self, old: _JsonPart, new: _JsonPart, path: str) -> list[Change]:
        if old.kind == "false" or new.kind == "true":
            return []
        if new.kind in _COMBINED and old.kind not in _COMBINED:
            if (len(new.parts) == 1 or new.kind != "allOf") and any(
                not self._between(old, self._branch(new, part, True), path) for part in new.parts
            ):
                return []
        elif old.kind in _COMBINED and new.kind not in _COMBINED and (len(old.parts) == 1 or old.kind == "allOf"):
            told = [self._between(self._branch(old, part, False), new, path) for part in old.parts]
            return min(told, key=len) if len(told) == 1 or not all(told) else [("TYPE_CHANGED", path)]
        if old.kind != new.kind and not (old.kind in _COMBINED and new.kind in _COMBINED):
            return [("TYPE_CHANGED", path)]
        if old.kind in _COMBINED:
            return self._combined(old, new, path)
        if old.kind in {"enum", "const"}:
            before = old.schema if old.kind == "enum" else [old.schema]
            self._budget.spend(len(before) + (len(new.schema) if new.kind == "enum" else 1))
            after = {dumped(value, ordered=True) for value in (new.schema if new.kind == "enum" else [new.schema])}
            lost = [value for value in before if dumped(value, ordered=True) not in after]
            return (
                [("ENUM_ARRAY_CHANGED" if old.kind == "enum" else "CONST_CHANGED", f"{path}/{old.kind}")]
                if lost
                else []
            )
        if old.kind == "not":
            narrowed = self._swapped(old, new, f"{path}/not")
            return [] if narrowed else [("NOT_TYPE_EXTENDED", f"{path}/not")]
        by_type: Callable[..., list[Change]] = _JSON_TYPES.get(old.kind, _nothing)
        return self._limits(old, new, path) + by_type(self, old, new, path)

    def _between(self, old: _JsonPart, new: _JsonPart, path: str) -> list[Change]:
        self._budget.spend()
        return self._compared(old, new, path)

    def _branch(self, part: _JsonPart, schema: Any, newer: bool) -> _JsonPart:
        """A part of a combination, which is a schema or what was made of one."""
        return schema if isinstance(schema, _JsonPart) else self._part((schema, part.holder), newer)

    def _swapped(self, old: _JsonPart, new: _JsonPart, path: str) -> bool:
        """Whether what the new schema excludes was excluded before: the comparison the other way around."""
        other = _JsonComparison(self._models[True], self._models[False])
        other._budget = self._budget
        return not other.compare((new.schema, new.holder), (old.schema, old.holder), path)

    def _combined(self, old: _JsonPart, new: _JsonPart, path: str) -> list[Change]:
        single = len(old.parts) == 1
        allowed = new.kind in {old.kind, "anyOf"} or (single and (new.kind == "oneOf" or len(new.parts) == 1))
        if not allowed:
            return [("COMBINED_TYPE_CHANGED", path)]
        before, after = self._distinct(old, False), self._distinct(new, True)
        result: list[Change] = []
        if len(before) < len(after) and new.kind == "allOf":
            result.append(("PRODUCT_TYPE_EXTENDED", path))
        if len(before) > len(after) and new.kind != "allOf":
            result.append(("SUM_TYPE_NARROWED", path))
        fits = [
            [
                place
                for place, other in enumerate(after)
                if not self._between(part, other, f"{path}/{old.kind}/{number}")
            ]
            for number, part in enumerate(before)
        ]
        if _matched(fits) < min(len(before), len(after)):
            result.append(("COMBINED_TYPE_SUBSCHEMAS_CHANGED", path))
        return result

    def _distinct(self, part: _JsonPart, newer: bool) -> list[_JsonPart]:
        key = id(part), newer
        if key not in self._branches:
            self._keep.append(part)
            branches = [self._branch(part, schema, newer) for schema in part.parts]
            distinct = {(one.kind, self._text(one.schema)): one for one in branches}
            self._branches[key] = list(distinct.values())
        return self._branches[key]

    def _text(self, schema: Any) -> str:
        """The schema as text, which is made once of one that many branches refer to."""
        if id(schema) not in self._texts:
            self._keep.append(schema)
            self._texts[id(schema)] = dumped(schema, ordered=True)
        return self._texts[id(schema)]

    def _limits(self, old: _JsonPart, new: _JsonPart, path: str) -> list[Change]:
        """What a limit of the new schema refuses that the old one took."""
        result: list[Change] = []
        for word in _LIMITS.get(old.kind, ()):
            before, after = old.schema.get(word), new.schema.get(word)
            if not _is_number(after) or before == after:
                continue
            name = re.sub("([A-Z])", r"_\1", word).upper()
            upper = "max" in word.lower()
            if not _is_number(before):
                result.append((f"{name}_ADDED", f"{path}/{word}"))
            elif after < before if upper else after > before:
                result.append((f"{name}_{'DECREASED' if upper else 'INCREASED'}", f"{path}/{word}"))
        return result

    def string(self, old: _JsonPart, new: _JsonPart, path: str) -> list[Change]:
        """Texts: by their pattern."""
        before, after = old.schema.get("pattern"), new.schema.get("pattern")
        if after is None or before == after:
            return []
        return [("PATTERN_ADDED" if before is None else "PATTERN_CHANGED", f"{path}/pattern")]

    def number(self, old: _JsonPart, new: _JsonPart, path: str) -> list[Change]:
        """Numbers: by what they are multiples of, and whether they are whole."""
        before, after = old.schema.get("multipleOf"), new.schema.get("multipleOf")
        result: list[Change] = []
        if _is_number(after) and before != after:
            if not _is_number(before):
                result.append(("MULTIPLE_OF_ADDED", f"{path}/multipleOf"))
            elif before % after:
                expanded = not after % before
                result.append((f"MULTIPLE_OF_{'EXPANDED' if expanded else 'CHANGED'}", f"{path}/multipleOf"))
        if old.schema.get(_TYPE_WORD) != "integer" and new.schema.get(_TYPE_WORD) == "integer":
            result.append(("TYPE_NARROWED", path))
        return result

    def array(self, old: _JsonPart, new: _JsonPart, path: str) -> list[Change]:
        """Arrays: items at their places, those beyond, and whether they differ."""
        result: list[Change] = []
        if new.schema.get("uniqueItems") and not old.schema.get("uniqueItems"):
            result.append(("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems"))
        (before, rest_before), (after, rest_after) = _items(old.schema), _items(new.schema)
        result += self._rest(old, new, rest_before, rest_after, f"{path}/items", "ADDITIONAL_ITEMS")
        for number in range(max(len(before), len(after))):
            place = f"{path}/items/{number}"
            if number < min(len(before), len(after)):
                result += self.compare((before[number], old.holder), (after[number], new.holder), place)
            elif number < len(before):
                result += self._removed(before[number], rest_after, old, new, place, "ITEM")
            elif rest_before is not False:
                result += self._added(after[number], rest_before, old, new, place, "ITEM")
        return result

    def object(self, old: _JsonPart, new: _JsonPart, path: str) -> list[Change]:
        """Objects: their properties by whether the others are open, closed or described, and what they need."""
        before, after = old.schema.get("properties") or {}, new.schema.get("properties") or {}
        needed, needs = set(old.schema.get("required") or ()), set(new.schema.get("required") or ())
        result: list[Change] = []
        self._budget.spend(len(before) + len(after))
        removed = self._opened(new.schema, before.keys() - after.keys())
        added = self._opened(old.schema, after.keys() - before.keys())
        for name in sorted(before.keys() | after.keys()):
            place = f"{path}/properties/{name}"
            has_default = isinstance(after.get(name), dict) and "default" in after[name]
            if name not in after:
                result += self._removed(before[name], removed[name], old, new, place, "PROPERTY")
            elif name in before:
                result += self.compare((before[name], old.holder), (after[name], new.holder), place)
                if name in needs - needed and not has_default:
                    result.append(("REQUIRED_ATTRIBUTE_ADDED", f"{path}/required/{name}"))
            else:
                if added[name] is not False:
                    result += self._added(after[name], added[name], old, new, place, "PROPERTY")
                if not _is_open(old.schema) and name in needs and not has_default:
                    result.append(("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", place))
        result += self._dependencies(old, new, path)
        rest = old.schema.get("additionalProperties", True), new.schema.get("additionalProperties", True)
        return result + self._rest(old, new, *rest, f"{path}/additionalProperties", "ADDITIONAL_PROPERTIES")

    def _opened(self, schema: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
        """What a schema says of properties that it does not name: True, False, or a schema."""
        import re2

        opened = dict.fromkeys(names, _plain(schema.get("additionalProperties", True)))
        options = re2.Options()
        options.log_errors = False
        left = set(names)
        for pattern, described in (schema.get("patternProperties") or {}).items() if names else ():
            self._budget.spend(_PATTERN_STEPS)
            try:
                expression = re2.compile(pattern, options)
            except re2.error as error:  # what has no linear-time matcher matches nothing here
                self._budget.spend(_LARGE_PATTERN_STEPS if "too large" in str(error) else 0)
                continue
            self._budget.spend(expression.programsize // 100)
            for name in list(left):
                self._budget.spend(1 + len(name) // 100)
                if expression.search(name):
                    opened[name] = described
                    left.discard(name)
        return opened

    def _added(self, schema: Any, opened: Any, old: _JsonPart, new: _JsonPart, place: str, what: str) -> list[Change]:
        """A property or item that the old schema did not name, but took as anything or as ``opened`` says."""
        if opened is True:
            fits = self._part((schema, new.holder), True).kind == "true"
            return [] if fits else [(f"{what}_ADDED_TO_OPEN_CONTENT_MODEL", place)]
        inner = self.compare((opened, old.holder), (schema, new.holder), place)
        return [*inner, (f"{what}_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place)] if inner else []

    def _removed(self, schema: Any, opened: Any, old: _JsonPart, new: _JsonPart, place: str, what: str) -> list[Change]:
        """A property or item that the new schema does not name."""
        if opened is True:
            return []
        if opened is False:
            fits = self._part((schema, old.holder), False).kind == "false"
            return [] if fits else [(f"{what}_REMOVED_FROM_CLOSED_CONTENT_MODEL", place)]
        inner = self.compare((schema, old.holder), (opened, new.holder), place)
        return [*inner, (f"{what}_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place)] if inner else []

    def _rest(self, old: _JsonPart, new: _JsonPart, before: Any, after: Any, place: str, what: str) -> list[Change]:
        """Properties or items that a schema does not name: True, False, or the schema that they have."""
        if before is False or after is True:
            return []
        if after is False:
            return [(f"{what}_REMOVED", place)]
        if before is True:
            return [(f"{what}_NARROWED", place)]
        return self.compare((before, old.holder), (after, new.holder), place)

    def _dependencies(self, old: _JsonPart, new: _JsonPart, path: str) -> list[Change]:
        result: list[Change] = []
        before, after = _dependencies_of(old.schema), _dependencies_of(new.schema)
        for name, needs in after.items():
            place, had = f"{path}/dependencies/{name}", before.get(name)
            if isinstance(needs, list):
                if not isinstance(had, list):
                    result.append(("DEPENDENCY_ARRAY_ADDED", place))
                elif not set(needs) <= set(had):
                    grown = set(needs) >= set(had)
                    result.append((f"DEPENDENCY_ARRAY_{'EXTENDED' if grown else 'CHANGED'}", place))
            elif had is None or isinstance(had, list):
                result.append(("DEPENDENCY_SCHEMA_ADDED", place))
            else:
                result += self.compare((had, old.holder), (needs, new.holder), place)
        return result


def _nothing(*_: Any) -> list[Change]:
    return []


_JSON_TYPES: Final[Mapping[str, Callable[..., list[Change]]]] = {
    "string": _JsonComparison.string, "number": _JsonComparison.number, "array": _JsonComparison.array,
    "object": _JsonComparison.object,
}  # fmt: skip


def _typed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What a schema says besides combinations and values, which stand beside its types."""
    return {name: value for name, value in schema.items() if name not in {*_COMBINED, "enum", "const", "not"}}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _items(schema: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """The schemas of the first items, and what the others are: True, False, or a schema."""
    items = schema.get("items", True)
    if "prefixItems" in schema:
        return list(schema["prefixItems"]), _plain(items)
    if isinstance(items, list):
        return items, _plain(schema.get("additionalItems", True))
    return [], _plain(items)


def _plain(schema: Any) -> Any:
    return True if schema == {} else schema


def _is_open(schema: Mapping[str, Any]) -> bool:
    return not schema.get("patternProperties") and schema.get("additionalProperties", True) in (True, {})


def _dependencies_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    words = ("dependencies", "dependentRequired", "dependentSchemas")
    return {name: needs for word in words for name, needs in (schema.get(word) or {}).items()}


def _matched(fits: Sequence[Sequence[int]]) -> int:
    """How many parts find a place of their own (a maximum matching, by augmenting paths)."""
    taken: dict[int, int] = {}

    def place(part: int, tried: set[int]) -> bool:
        for wanted in fits[part]:
            if wanted not in tried:
                tried.add(wanted)
                if wanted not in taken or place(taken[wanted], tried):
                    taken[wanted] = part
                    return True
        return False

    return sum(place(part, set()) for part in range(len(fits)))
