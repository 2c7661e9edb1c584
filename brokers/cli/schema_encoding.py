"""JSON as the bytes that a registered schema describes, checked by it.

Avro takes values as ``fleetlog consume`` shows them: plain, with ISO times and decimals as text; a union's branch may
be named, as Avro's JSON does it. JSON Schema is checked by jsonschema, its patterns by RE2, which takes linear time.
Protobuf is written by Google's library, from the file descriptors that the registry has compiled.
Sources: the Apache Avro specification, 1.12 (binary and JSON encoding); Confluent's wire format.
"""

from __future__ import annotations

import base64
import binascii
import functools
import importlib
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final
from urllib.parse import urljoin

from fleetlog._native.byte_reader import put_varint, zigzag
from fleetlog.brokers.cli.options import need_packages, regular_expression
from fleetlog.brokers.cli.output import count_text
from fleetlog.brokers.cli.schema_values import (
    DEPTH_MAX,
    UNITS,
    AvroError,
    AvroSchema,
    FieldBudget,
    RegisteredSchema,
    Schema,
)

FIELDS_MAX: Final = 200_000
"""Fields, items and branches that are tried for one value."""
REASON_MAX: Final = 300
_DIGITS_MAX: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
"""As JSON has doubles that it has no numbers for."""
_WELL_KNOWN: Final = re.compile(r"google/protobuf/([a-z_]{1,40})\.proto")

Encoder = Callable[[bytes], bytes]
"""From a text of JSON to the bytes of a record. Raises EncodeError."""


class EncodeError(ValueError):
    """A value is not of its schema, or the schema cannot be written by; the text says why."""


def encoder_of(number: int, schema: RegisteredSchema, message: str = "") -> Encoder:
    """Writes values by the schema with this id. ``message`` names one of a Protobuf schema that has several.

    Raises EncodeError, and CliError where a package is missing.
    """
    if message and schema.kind != "PROTOBUF":
        raise EncodeError(f"schema {number} is {schema.kind}, which has no messages")
    head = struct.pack(">bI", 0, number)
    if isinstance(schema.decoder, AvroSchema):
        avro = schema.decoder
        return lambda text: head + _avro_bytes(avro, _json(text))
    if schema.kind == "PROTOBUF":
        return _protobuf_encoder(head, schema.texts, message)
    if schema.kind == "JSON":
        return _json_encoder(head, schema.texts)
    raise EncodeError(f"schema {number} is {schema.kind[:40]}, which is not known here")


def _json(text: bytes, parse_float: Callable[[str], Any] = Decimal) -> Any:
    try:
        return json.loads(text, parse_float=parse_float, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        hint = "" if text[:1] in b'{["' else " (a text stands in quotes)"
        raise EncodeError(f"it is not JSON: {error.msg}, column {error.colno}{hint}") from None
    except UnicodeDecodeError:
        raise EncodeError("it is not UTF-8") from None
    except RecursionError:
        raise EncodeError("it is nested too deeply") from None
    except ValueError as error:
        raise EncodeError(f"it is not JSON: {str(error)[:REASON_MAX]}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no value of it")


# ---- Avro ----------------------------------------------------------------------------------------------------------


def _avro_bytes(schema: AvroSchema, value: Any) -> bytes:
    writer = _AvroWriter(schema)
    try:
        writer.write(schema.root, value, "", 0)
    except AvroError as error:
        raise EncodeError(str(error)) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise EncodeError(f"the schema cannot be written by: {type(error).__name__} {error}") from None
    return bytes(writer.out)


class _AvroWriter:
    """Writes one value; what is wrong is named by its path. Raises EncodeError and AvroError."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema, self._budget = schema, FieldBudget(FIELDS_MAX)
        self._in_default = False
        self.out = bytearray()

    def write(self, schema: Schema, value: Any, path: str, depth: int) -> None:
        self._budget.spend()
        if depth > DEPTH_MAX:
            raise EncodeError(f"the value is nested deeper than {DEPTH_MAX}")
        if isinstance(schema, list):
            self._union(schema, value, path, depth)
            return
        attributes = {"type": schema} if isinstance(schema, str) else schema
        kind = attributes["type"]
        if not isinstance(kind, str):
            self.write(kind, value, path, depth + 1)
        elif kind in _SCALARS:
            physical = value if self._in_default else _physical(attributes, value, path)
            _SCALARS[kind](self, attributes, physical, path)
        elif kind in _NESTED:
            _NESTED[kind](self, attributes, value, path, depth)
        else:
            self.write(self._schema.named(kind, attributes["space"]), value, path, depth + 1)

    def long(self, number: int) -> None:
        put_varint(self.out, zigzag(number))

    def sized(self, raw: bytes) -> None:
        self.long(len(raw))
        self.out += raw

    def _union(self, branches: list[Schema], value: Any, path: str, depth: int) -> None:
        """By the branch that the value names, as Avro's JSON does it, or the first that takes it."""
        named = [self._named(branch) for branch in branches]
        tag, inner = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else ("", None)
        tried = [(place, inner) for place, branch in enumerate(named) if tag and _branch_name(branch) == tag]
        tried += [(place, value) for place, branch in enumerate(named) if _may_be(branch, value)]
        told: EncodeError | None = None
        for place, taken in tried:
            size = len(self.out)
            self.long(place)
            try:
                self.write(branches[place], taken, path, depth + 1)
            except EncodeError as error:
                del self.out[size:]
                told = told or error
            else:
                return
        if told is not None:
            raise told
        raise _wrong(path, f"one of {', '.join(map(_branch_name, named))}", value)

    def _named(self, schema: Schema) -> Schema:
        """The type itself where its name, or an object with nothing but it, stands for it."""
        for _ in range(DEPTH_MAX):
            if isinstance(schema, (str, list)):
                return schema
            kind = schema["type"]
            if not isinstance(kind, str):
                schema = kind
            elif kind in _SCALARS or kind in _NESTED:
                return schema
            else:
                schema = self._schema.named(kind, schema["space"])
        raise EncodeError("the schema's names lead in a circle")

    def _record(self, schema: Mapping[str, Any], value: Any, path: str, depth: int) -> None:
        if not isinstance(value, dict):
            raise _wrong(path, f"an object, a {_branch_name(schema)},", value)
        fields = schema["fields"]
        names = {field["name"] for field in fields}
        for name in value:
            if name not in names:
                raise EncodeError(f"{_at(path)}{_branch_name(schema)} has no field {name[:100]!r}")
        for field in fields:
            name = field["name"]
            inner = f"{path}.{name}" if path else name
            if name not in value and "default" not in field:
                raise EncodeError(f"the field {inner} is missing, and has no default")
            if name in value:
                self.write(field["type"], value[name], inner, depth + 1)
            else:
                self._default(field, inner, depth)

    def _default(self, field: Mapping[str, Any], path: str, depth: int) -> None:
        """It stands in a schema without logical types, as Avro's JSON has it."""
        before, self._in_default = self._in_default, True
        self.write(field["type"], field["default"], path, depth + 1)
        self._in_default = before

    def _array(self, schema: Mapping[str, Any], value: Any, path: str, depth: int) -> None:
        if not isinstance(value, list):
            raise _wrong(path, "a list", value)
        if value:
            self.long(len(value))
            for place, item in enumerate(value):
                self.write(schema["items"], item, f"{path}[{place}]", depth + 1)
        self.long(0)

    def _map(self, schema: Mapping[str, Any], value: Any, path: str, depth: int) -> None:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        if value:
            self.long(len(value))
            for name, item in value.items():
                self.sized(_utf8(name, path))
                self.write(schema["values"], item, f"{path}[{name!r}]" if path else name, depth + 1)
        self.long(0)

    def _null(self, _: Mapping[str, Any], value: Any, path: str) -> None:
        if value is not None:
            raise _wrong(path, "null", value)

    def _boolean(self, _: Mapping[str, Any], value: Any, path: str) -> None:
        if not isinstance(value, bool):
            raise _wrong(path, "true or false", value)
        self.out.append(value)

    def _whole(self, schema: Mapping[str, Any], value: Any, path: str) -> None:
        bits = 31 if schema["type"] == "int" else 63
        if type(value) is not int:
            raise _wrong(path, "a whole number", value)
        if not -(2**bits) <= value < 2**bits:
            raise EncodeError(f"{_at(path)}{str(value)[:40]} is more than {schema['type']} has")
        self.long(value)

    def _real(self, schema: Mapping[str, Any], value: Any, path: str) -> None:
        if isinstance(value, str) and value in _NO_NUMBERS:
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise _wrong(path, "a number", value)
        try:
            number = float(value)
            if math.isinf(number) and not isinstance(value, float):
                raise OverflowError
            self.out += struct.pack("<f" if schema["type"] == "float" else "<d", number)
        except OverflowError:
            raise EncodeError(f"{_at(path)}{str(value)[:40]} is more than {schema['type']} has") from None

    def _text(self, _: Mapping[str, Any], value: Any, path: str) -> None:
        if not isinstance(value, str):
            raise _wrong(path, "a text", value)
        self.sized(_utf8(value, path))

    def _bytes(self, _: Mapping[str, Any], value: Any, path: str) -> None:
        self.sized(_latin(value, path))

    def _fixed(self, schema: Mapping[str, Any], value: Any, path: str) -> None:
        raw = _latin(value, path)
        if len(raw) != schema["size"]:
            has = count_text(len(raw), "byte")
            raise EncodeError(f"{_at(path)}it has {has}, and {_branch_name(schema)} has {schema['size']}")
        self.out += raw

    def _enum(self, schema: Mapping[str, Any], value: Any, path: str) -> None:
        if value not in schema["symbols"] or not isinstance(value, str):
            raise _wrong(path, f"one of {', '.join(schema['symbols'])[:REASON_MAX]}", value)
        self.long(schema["symbols"].index(value))


_SCALARS: Final[dict[str, Callable[[_AvroWriter, Mapping[str, Any], Any, str], None]]] = {
    "null": _AvroWriter._null, "boolean": _AvroWriter._boolean, "int": _AvroWriter._whole, "long": _AvroWriter._whole,
    "float": _AvroWriter._real, "double": _AvroWriter._real, "bytes": _AvroWriter._bytes, "string": _AvroWriter._text,
    "fixed": _AvroWriter._fixed, "enum": _AvroWriter._enum,
}  # fmt: skip
_NESTED: Final[dict[str, Callable[[_AvroWriter, Mapping[str, Any], Any, str, int], None]]] = {
    "record": _AvroWriter._record, "error": _AvroWriter._record, "array": _AvroWriter._array, "map": _AvroWriter._map,
}  # fmt: skip
_TAKEN_BY: Final[Mapping[str, tuple[type, ...]]] = {
    "null": (type(None),), "boolean": (bool,), "int": (int, str), "long": (int, str),
    "float": (int, float, Decimal, str), "double": (int, float, Decimal, str), "bytes": (str, int, Decimal),
    "fixed": (str, int, Decimal), "string": (str,), "enum": (str,), "record": (dict,), "error": (dict,),
    "map": (dict,), "array": (list,),
}  # fmt: skip
"""What a value of a union's branch may be in JSON; with a logical type also what stands for it."""


def _may_be(branch: Schema, value: Any) -> bool:
    kind = str(branch if isinstance(branch, str) else branch["type"] if isinstance(branch, dict) else "")
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, str) and kind in {"int", "long", "float", "double"}:
        return (isinstance(branch, dict) and "logicalType" in branch) or (kind[0] in "fd" and value in _NO_NUMBERS)
    return isinstance(value, _TAKEN_BY.get(kind, ()))


def _branch_name(schema: Schema) -> str:
    """As Avro's JSON names a union's branch."""
    if not isinstance(schema, dict):
        return schema if isinstance(schema, str) else "union"
    kind, name = str(schema["type"]), str(schema.get("name", ""))
    if kind not in {"record", "error", "enum", "fixed"} or "." in name:
        return name if "." in name else kind
    space = str(schema["namespace"] if "namespace" in schema else schema["space"] or "")
    return f"{space}.{name}" if space else name


def _physical(schema: Mapping[str, Any], value: Any, path: str) -> Any:
    """What is written for a value of a logical type; as it stands where it is none. Raises EncodeError."""
    logical = schema.get("logicalType")
    if logical == "decimal" and schema["type"] in {"bytes", "fixed"}:
        return _unscaled(schema, value, path)
    if not isinstance(value, str) or logical is None:
        return value
    try:
        if logical == "date" and schema["type"] == "int":
            return (date.fromisoformat(value) - _EPOCH.date()).days
        if logical in UNITS and schema["type"] == "long":
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is None or logical.startswith("local"):
                moment = moment.replace(tzinfo=UTC)
            past = moment - _EPOCH
            return (past.days * 86_400_000_000 + past.seconds * 1_000_000 + past.microseconds) // UNITS[logical]
    except (ValueError, OverflowError):
        raise _wrong(path, f"a {logical} such as 2026-01-31{'T12:00:00Z' if logical in UNITS else ''}", value) from None
    return value


def _unscaled(schema: Mapping[str, Any], value: Any, path: str) -> str:
    """A decimal's digits as bytes, each as a character."""
    scale, precise = int(schema.get("scale", 0)), Context(prec=3 * _DIGITS_MAX)
    try:
        number = Decimal(value if type(value) in {int, str, Decimal} else "none")
        if not number.is_finite() or max(abs(number.adjusted()), len(number.as_tuple().digits)) > _DIGITS_MAX:
            raise InvalidOperation
        number = number.scaleb(scale, precise)
    except (InvalidOperation, ValueError, OverflowError):
        raise _wrong(path, "a decimal", value) from None
    if number != number.to_integral_value(context=precise):
        raise EncodeError(f"{_at(path)}{str(value)[:40]} has more than {scale} digits behind the point")
    whole = int(number)
    if len(str(abs(whole))) > int(schema.get("precision", _DIGITS_MAX)):
        raise EncodeError(f"{_at(path)}{str(value)[:40]} has more than {schema['precision']} digits")
    size = schema["size"] if schema["type"] == "fixed" else (whole + (whole < 0)).bit_length() // 8 + 1
    try:
        return whole.to_bytes(size, "big", signed=True).decode("latin-1")
    except OverflowError:
        raise EncodeError(f"{_at(path)}{str(value)[:40]} does not fit into {size} bytes") from None


def _utf8(text: str, path: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise EncodeError(f"{_at(path)}it holds half of a surrogate pair") from None


def _latin(value: Any, path: str) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode("latin-1")
    except UnicodeEncodeError:
        pass
    raise _wrong(path, "bytes, a text whose characters are those from \\u0000 to \\u00ff,", value)


def _at(path: str) -> str:
    return f"{path}: " if path else ""


def _wrong(path: str, wanted: str, value: Any) -> EncodeError:
    shown = json.dumps(value, ensure_ascii=False, default=float)
    return EncodeError(f"{_at(path)}{wanted} is expected, there is {shown if len(shown) <= 60 else f'{shown[:60]}...'}")


# ---- JSON Schema ---------------------------------------------------------------------------------------------------


def _json_encoder(head: bytes, texts: Mapping[str, str]) -> Encoder:
    need_packages("JSON Schema needs", ("jsonschema", "referencing"), "schemas")
    from jsonschema.exceptions import ValidationError
    from referencing.exceptions import Unresolvable

    try:
        validator = _validator(texts)
    except (ValueError, TypeError, AttributeError, LookupError, Unresolvable) as error:
        raise EncodeError(f"the schema cannot be used: {str(error)[:REASON_MAX]}") from None

    def encode(text: bytes) -> bytes:
        value = _json(text, float)
        try:
            error: ValidationError | None = next(iter(validator.iter_errors(value)), None)
        except Unresolvable as problem:
            raise EncodeError(f"the schema refers to {str(problem.ref)[:REASON_MAX]!r}, which leads nowhere") from None
        except RecursionError:
            raise EncodeError("it is nested too deeply") from None
        if error is not None:
            raise EncodeError(f"{_at(str(error.json_path).removeprefix('$').lstrip('.'))}{error.message[:REASON_MAX]}")
        return head + text

    return encode


def _validator(texts: Mapping[str, str]) -> Any:
    """With what the schema refers to, by the names that it may use for that; nothing is fetched."""
    from jsonschema import Draft7Validator
    from jsonschema.validators import extend, validator_for
    from referencing import Registry
    from referencing.jsonschema import specification_with

    own = _json(texts[""].encode(), float)
    base = validator_for(own, default=Draft7Validator)
    words = {"pattern": _pattern, "patternProperties": _by_patterns, "additionalProperties": _others}
    identity = str(own.get("$id", own.get("id", ""))) if isinstance(own, dict) else ""
    draft = specification_with(str(base.META_SCHEMA.get("$schema", base.META_SCHEMA.get("id"))))
    known: Any = Registry()
    for name, text in texts.items():
        document = _json(text.encode(), float)
        names = {name, f"./{name}", urljoin(identity, name)} if name else {identity}
        if isinstance(document, dict) and isinstance(document.get("$id"), str):
            names.add(document["$id"])
        known = known.with_resources([(one, draft.create_resource(document)) for one in names if one])
    return extend(base, words)(own, registry=known)


@functools.lru_cache(100)
def _matcher(pattern: str) -> Any:
    try:
        return regular_expression(pattern)
    except ValueError as error:
        raise EncodeError(f"the schema's pattern {pattern[:100]!r}: {error}") from None


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if isinstance(value, str) and not _matcher(pattern).search(value.encode(errors="replace").decode()):
        yield ValidationError(f"{value[:100]!r} does not match {pattern[:100]!r}")


def _by_patterns(validator: Any, patterns: Mapping[str, Any], value: Any, _: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for pattern, schema in patterns.items():
            matcher = _matcher(pattern)
            for name, inner in value.items():
                if matcher.search(name.encode(errors="replace").decode()):
                    yield from validator.descend(inner, schema, path=name, schema_path=pattern)


def _others(validator: Any, others: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if not isinstance(value, dict):
        return
    matchers = [_matcher(pattern) for pattern in schema.get("patternProperties", ())]
    for name in value:
        if name in schema.get("properties", {}) or any(
            matcher.search(name.encode(errors="replace").decode()) for matcher in matchers
        ):
            continue
        if others is False:
            yield ValidationError(f"the property {name[:100]!r} is none of the schema's")
        else:
            yield from validator.descend(value[name], others, path=name)


# ---- Protobuf ------------------------------------------------------------------------------------------------------


def _protobuf_encoder(head: bytes, texts: Mapping[str, str], wanted: str) -> Encoder:
    need_packages("Protobuf needs", ("google.protobuf",), "schemas")
    from google.protobuf import json_format, message_factory
    from google.protobuf.message import EncodeError as Unwritten

    files = _files(texts)
    path, full_name = _message_of(files[-1], wanted)
    pool = _pool(files)
    factory = message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))
    head += _indexes(path)

    def encode(text: bytes) -> bytes:
        value = _json(text, float)
        try:
            message = json_format.ParseDict(value, factory(), False, pool, DEPTH_MAX)
            return head + bytes(message.SerializeToString(deterministic=True))
        except (json_format.ParseError, Unwritten) as error:
            raise EncodeError(" ".join(str(error).split())[:REASON_MAX]) from None
        except (TypeError, AttributeError, ValueError, RecursionError) as error:
            raise EncodeError(f"it is not of the message {full_name}: {str(error)[:REASON_MAX]}") from None

    return encode


def _files(texts: Mapping[str, str]) -> list[Any]:
    """The file descriptors, each behind what it imports."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    files = []
    for name, text in texts.items():
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
        except (binascii.Error, DecodeError, ValueError):
            raise EncodeError("the registry does not compile the schema") from None
        file.name = name or "schema.proto"
        files.append(file)
    return files


def _pool(files: list[Any]) -> Any:
    from google.protobuf import descriptor_pool

    pool: Any = descriptor_pool.DescriptorPool()
    there: set[str] = set()

    def well_known(name: str) -> None:
        """Google's own types, which no registry keeps."""
        match = _WELL_KNOWN.fullmatch(name)
        if match is None or name in there:
            return
        try:
            descriptor = importlib.import_module(f"google.protobuf.{match[1]}_pb2").DESCRIPTOR
        except ImportError:
            return
        there.add(name)
        for inner in descriptor.dependencies:
            well_known(inner.name)
        pool.AddSerializedFile(descriptor.serialized_pb)

    try:
        for file in files:
            for name in {*file.dependency} - {one.name for one in files}:
                well_known(name)
            if file.name not in there:
                pool.AddSerializedFile(file.SerializeToString())
    except TypeError as error:
        raise EncodeError(f"the schema cannot be used: {' '.join(str(error).split())[:REASON_MAX]}") from None
    return pool


def _message_of(file: Any, wanted: str) -> tuple[list[int], str]:
    """Where the message is in the file, and its full name. Raises EncodeError."""
    space = f"{file.package}." if file.package else ""
    names: dict[str, list[int]] = {}
    waiting = [(space, [number], row) for number, row in enumerate(file.message_type)]
    while waiting:
        inside, path, row = waiting.pop()
        if not row.options.map_entry:
            names[f"{inside}{row.name}"] = path
        waiting += [(f"{inside}{row.name}.", [*path, number], one) for number, one in enumerate(row.nested_type)]
    first = [name for name, path in names.items() if len(path) == 1]
    name = wanted if wanted in names else f"{space}{wanted}" if wanted else first[0] if len(first) == 1 else ""
    if name not in names:
        listed = ", ".join(sorted(names if wanted else first))[:REASON_MAX]
        why = f"the schema has no message {wanted!r}, but" if wanted else "the schema has several messages, name one of"
        raise EncodeError(f"{why} {listed}" if first else "the schema has no message")
    return names[name], name


def _indexes(path: list[int]) -> bytes:
    """A message's place in its file, as the wire format has it: the first one is a zero byte."""
    if path == [0]:
        return b"\0"
    out = bytearray()
    for number in (len(path), *path):
        put_varint(out, zigzag(number))
    return bytes(out)
