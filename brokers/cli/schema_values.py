"""Values that carry the id of a schema registry: the schema by its REST interface, the value by the schema.

Only ids of records and what their schemas refer to are asked for, at the one address of an option. A page of the
console asks for a few ids, and waits for a few seconds at most; what a registry does not answer is shown as bytes, with
the reason. Source: Confluent's schema registry API (v1), its wire format (byte 0, schema id in four bytes, the value).

Avro values as Python's: what strangers wrote is decoded in bounded time and depth.

Libraries decode as far as the schema leads: an array of nulls may have 2**60 items in ten bytes, and a record that
contains itself may be as deep as its bytes are many. Here the fields of a page are counted, and values nested deeper
than a hundred are refused.
Source: the Apache Avro specification, 1.11, binary encoding.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from fleetlog.brokers.cli.outside import direct_opener
from fleetlog.brokers.cli.protobuf_values import ProtobufError, ProtobufSchema
from fleetlog.brokers.cli.registries import CONTENT, RegistryAccess

DEPTH_MAX: Final = 100
TYPES_MAX: Final = 5_000
"""Types in a schema, named and not."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_VARINT_BYTES: Final = 10
_DIGITS_MAX: Final = 1_000

T = TypeVar("T")
Schema = Any
"""A schema as JSON has it: a name, an object, or a list of branches."""


class AvroError(ValueError):
    """A schema that cannot be read, or a value that is not of its schema."""


class FieldBudget:
    """How many fields and items a page may still decode."""

    def __init__(self, fields: int) -> None:
        self.left = fields

    def spend(self) -> None:
        """One more; raises AvroError."""
        self.left -= 1
        if self.left < 0:
            raise AvroError("too many fields for one page")


class AvroSchema:
    """A schema with its named types found, also in the ``references`` before it. Raises AvroError."""

    def __init__(self, text: str, references: Iterable[str] = ()) -> None:
        self._named: dict[str, Schema] = {}
        self._types = 0
        try:
            for part in (*references, text):
                self.root = self._resolved(json.loads(part), "", 0)
        except AvroError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise AvroError(f"it is not one of Avro: {type(error).__name__} {error}") from None

    def _resolved(self, schema: Schema, space: str, depth: int) -> Schema:
        """The schema, with the namespace in which its names stand."""
        self._types += 1
        if depth > DEPTH_MAX or self._types > TYPES_MAX:
            raise AvroError("it is too large")
        if isinstance(schema, list):
            return [self._resolved(branch, space, depth + 1) for branch in schema]
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVES else {"type": schema, "space": space}
        kind = schema["type"]
        if not isinstance(kind, str):
            return {**schema, "type": self._resolved(kind, space, depth + 1)}
        resolved = {**schema, "space": space}
        if kind in _NAMED:
            name = str(schema["name"])
            if "." in name:
                space = name.rpartition(".")[0]
            else:
                space = str(schema.get("namespace", space) or "")
                name = f"{space}.{name}" if space else name
            self._named[name] = resolved
        if kind in {"record", "error"}:
            resolved["fields"] = [
                {**field, "name": str(field["name"]), "type": self._resolved(field["type"], space, depth + 1)}
                for field in schema["fields"]
            ]
        elif kind == "array":
            resolved["items"] = self._resolved(schema["items"], space, depth + 1)
        elif kind == "map":
            resolved["values"] = self._resolved(schema["values"], space, depth + 1)
        return resolved

    def named(self, name: str, space: str) -> Schema:
        """The type of that name; raises AvroError."""
        schema = self._named.get(f"{space}.{name}") if space and "." not in name else None
        schema = schema if schema is not None else self._named.get(name)
        if schema is None:
            raise AvroError(f"the schema has no type {name[:100]!r}")
        return schema

    def decode(self, data: bytes, budget: FieldBudget, start: int = 0) -> Any:
        """The value from ``start`` on, of what JSON has, and bytes. Raises AvroError."""
        reader = _AvroReader(self, data, budget, start)
        try:
            value = reader.value(self.root, 0)
        except AvroError:
            raise
        except (struct.error, IndexError, OverflowError, KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise AvroError(f"the value is not of its schema: {type(error).__name__} at byte {reader.at}") from None
        if reader.at != len(data):
            raise AvroError(f"the value is not of its schema: bytes left over: {len(data) - reader.at}")
        return value


class _AvroReader:
    """One value's bytes, and how far they are read."""

    def __init__(self, schema: AvroSchema, data: bytes, budget: FieldBudget, start: int) -> None:
        self._schema, self._data, self._budget = schema, data, budget
        self.at = start

    def value(self, schema: Schema, depth: int) -> Any:
        self._budget.spend()
        if depth > DEPTH_MAX:
            raise AvroError(f"the value is nested deeper than {DEPTH_MAX}")
        if isinstance(schema, list):
            branch = self._long()
            if not 0 <= branch < len(schema):
                raise AvroError(f"the value is not of its schema: there is no branch {branch} at byte {self.at}")
            return self.value(schema[branch], depth + 1)
        if isinstance(schema, str):
            return _PRIMITIVES[schema](self)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.value(kind, depth + 1)
        if kind in _PRIMITIVES:
            return _logical(schema, _PRIMITIVES[kind](self))
        if kind in _COMPLEX:
            return _COMPLEX[kind](self, schema, depth)
        return self.value(self._schema.named(kind, schema["space"]), depth + 1)

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self.at:
            raise AvroError(f"the value is not of its schema: {size} bytes wanted at byte {self.at}")
        self.at += size
        return self._data[self.at - size : self.at]

    def _long(self) -> int:
        number = shift = 0
        for _ in range(_VARINT_BYTES):
            byte = self._data[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
            shift += 7
        raise AvroError(f"the value is not of its schema: a number is too long at byte {self.at}")

    def _text(self) -> str:
        return self.take(self._long()).decode()

    def _boolean(self) -> bool:
        return self.take(1) != b"\0"

    def _float(self) -> float:
        return float(_FLOAT.unpack(self.take(4))[0])

    def _double(self) -> float:
        return float(_DOUBLE.unpack(self.take(8))[0])

    def _record(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        return {field["name"]: self.value(field["type"], depth + 1) for field in schema["fields"]}

    def _enum(self, schema: Mapping[str, Any], _: int) -> str:
        index, symbols = self._long(), schema["symbols"]
        if not 0 <= index < len(symbols):
            raise AvroError(f"the value is not of its schema: there is no symbol {index} at byte {self.at}")
        return str(symbols[index])

    def _fixed(self, schema: Mapping[str, Any], _: int) -> Any:
        return _logical(schema, self.take(int(schema["size"])))

    def _blocks(self, one: Callable[[], None]) -> None:
        while count := self._long():
            if count < 0:
                count = -count
                self._long()  # the block's bytes
            for _ in range(count):
                one()

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        items: list[Any] = []
        self._blocks(lambda: items.append(self.value(schema["items"], depth + 1)))
        return items

    def _map(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        entries: dict[str, Any] = {}

        def one() -> None:
            name = self._text()
            entries[name] = self.value(schema["values"], depth + 1)

        self._blocks(one)
        return entries


_PRIMITIVES: Final[dict[str, Callable[[_AvroReader], Any]]] = {
    "null": lambda _: None,
    "boolean": _AvroReader._boolean,
    "int": _AvroReader._long,
    "long": _AvroReader._long,
    "float": _AvroReader._float,
    "double": _AvroReader._double,
    "bytes": lambda reader: reader.take(reader._long()),
    "string": _AvroReader._text,
}
_COMPLEX: Final[dict[str, Callable[[_AvroReader, Mapping[str, Any], int], Any]]] = {
    "record": _AvroReader._record,
    "error": _AvroReader._record,
    "enum": _AvroReader._enum,
    "fixed": _AvroReader._fixed,
    "array": _AvroReader._array,
    "map": _AvroReader._map,
}
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})


def _logical(schema: Mapping[str, Any], value: Any) -> Any:
    """The value as its logical type shows it; as it stands where that type is unknown, or not of this value."""
    kind = schema.get("logicalType")
    try:
        if kind == "decimal" and isinstance(value, bytes) and len(value) < _DIGITS_MAX:
            number = Decimal(int.from_bytes(value, "big", signed=True))
            return str(number.scaleb(-int(schema.get("scale", 0)), Context(prec=3 * _DIGITS_MAX)))
        if not isinstance(value, int):
            return value
        if kind == "date":
            return (_EPOCH + timedelta(days=value)).date().isoformat()
        if kind in UNITS:
            time = _EPOCH + timedelta(microseconds=value * UNITS[kind])
            return time.isoformat() if not kind.startswith("local") else time.replace(tzinfo=None).isoformat()
    except (OverflowError, TypeError, ValueError, ArithmeticError):
        pass
    return value


UNITS: Final = {
    "timestamp-millis": 1_000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1_000,
    "local-timestamp-micros": 1,
}


_PREFIX: Final = struct.Struct(">bI")
PREFIX_BYTES: Final = _PREFIX.size
GUID_BYTES: Final = 16
DEFAULT_CONTEXT: Final = "."
ANSWER_S: Final = 2.0
PAGE_S: Final = 3.0
"""How long one page waits for a registry."""
PAGE_IDS: Final = 20
"""Schemas that one page asks for; those of other pages are kept."""
PAGE_FIELDS: Final = 200_000
"""Fields and items of Avro that one page decodes."""
SCHEMAS_KEPT: Final = 1_000
ABSENT_S: Final = 30.0
"""How long an id is not asked for again that the registry did not know."""
SCHEMA_BYTES_MAX: Final = 1 << 20
"""Of one answer, and of a schema with all that it refers to."""
REFERENCES_MAX: Final = 200
"""As many as fleetlog's own registry takes."""
_PLACE: Final = re.compile("(.+):([0-9]{1,9}|latest)")


class SchemaProblem(ValueError):
    """A value cannot be shown by a schema; the text says why.

    ``unknown``: the registry has no such id, or none that can be used; ``silent``: it does not answer, or not as one.
    """

    def __init__(self, text: str, *, unknown: bool = False, silent: bool = False) -> None:
        super().__init__(text)
        self.unknown, self.silent = unknown, silent


class RegisteredSchema(NamedTuple):
    """``kind``: AVRO, JSON or PROTOBUF. What decodes is there for AVRO and PROTOBUF.

    ``texts``: what it refers to, by the names by which it does, each behind what that refers to; last itself, without a
    name. Of Protobuf they are file descriptors in base64.
    """

    kind: str
    decoder: AvroSchema | ProtobufSchema | None
    texts: Mapping[str, str]


class DecodedValue(NamedTuple):
    """A value by the schema of that id; ``kind`` is avro or protobuf."""

    schema: int
    value: Any
    kind: str


class SchemaRegistry:
    """One registry, for all pages. From any thread.

    ``user`` is ``name:password``, or empty; ``access`` has a login. An answer may take ``answer_s``, all that a schema
    refers to ``patience_s``.
    """

    def __init__(
        self,
        url: str,
        user: str = "",
        now_s: Callable[[], float] = time.monotonic,
        access: RegistryAccess | None = None,
        answer_s: float = ANSWER_S,
        patience_s: float = PAGE_S,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not the address of a schema registry, like http://registry:8081")
        if parts.username is not None:
            raise ValueError("a user and a password stand in the file of --schema-registry-config, not in the address")
        self._url, self._now_s = url.rstrip("/"), now_s
        self._answer_s, self._patience_s = answer_s, patience_s
        self._headers = {"Accept": CONTENT} if access is None else dict(access.headers)
        if user:
            self._headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
        self._opener = direct_opener() if access is None else access.opener
        self._known: OrderedDict[int, RegisteredSchema] = OrderedDict()
        self._by_guid: OrderedDict[str, int] = OrderedDict()
        self._failed: OrderedDict[int | str, tuple[float, SchemaProblem]] = OrderedDict()
        self._lock = threading.Lock()

    def kept(self, number: int) -> RegisteredSchema | None:
        """The schema if it was asked for before; raises SchemaProblem if that failed, a moment ago."""
        with self._lock:
            known, failed = self._known.get(number), self._failed.get(number)
        if known is None and failed is not None and self._now_s() < failed[0]:
            raise failed[1]
        return known

    def schema(self, number: int) -> RegisteredSchema:
        """The schema of the id. Raises SchemaProblem."""
        schema = self.kept(number)
        if schema is not None:
            return schema
        try:
            schema = self._asked(number)
        except SchemaProblem as problem:
            self._fail(number, problem)
            raise
        with self._lock:
            self._known[number] = schema
            while len(self._known) > SCHEMAS_KEPT:
                self._known.popitem(last=False)
        return schema

    def kept_guid(self, guid: str) -> int | None:
        """The id of a GUID that was asked for before; raises SchemaProblem if that failed, a moment ago."""
        with self._lock:
            known, failed = self._by_guid.get(guid), self._failed.get(guid)
        if known is None and failed is not None and self._now_s() < failed[0]:
            raise failed[1]
        return known

    def id_of(self, guid: str) -> int:
        """The id of the schema with that content in the default context, in which ids are asked for. Raises
        SchemaProblem."""
        known = self.kept_guid(guid)
        if known is not None:
            return known
        about = f"schema {guid}"
        try:
            rows = self._answer(about, "schemas", "guids", guid, "ids", kind=list)
            numbers = sorted(row["id"] for row in rows if row["context"] == DEFAULT_CONTEXT)
            if not numbers or not isinstance(numbers[0], int) or not 0 <= numbers[0] < 2**32:
                where = " in the default context" if rows else ""
                raise SchemaProblem(f"the registry has no {about}{where}", unknown=True)
        except (TypeError, LookupError):
            raise SchemaProblem(f"the registry's answer for {about} is not one") from None
        except SchemaProblem as problem:
            self._fail(guid, problem)
            raise
        with self._lock:
            self._by_guid[guid] = int(numbers[0])
            while len(self._by_guid) > SCHEMAS_KEPT:
                self._by_guid.popitem(last=False)
        return int(numbers[0])

    def _fail(self, key: int | str, problem: SchemaProblem) -> None:
        """Keep for a moment that there is no such schema."""
        if problem.unknown:
            with self._lock:
                self._failed[key] = self._now_s() + ABSENT_S, problem
                while len(self._failed) > SCHEMAS_KEPT:
                    self._failed.popitem(last=False)

    @classmethod
    def of(cls, access: RegistryAccess, patience_s: float) -> SchemaRegistry:
        """For a command, which waits so long."""
        return cls(access.url, access=access, answer_s=patience_s, patience_s=patience_s)

    def named(self, name: str) -> tuple[int, RegisteredSchema]:
        """Id and schema of an id, a subject (its latest version) or ``subject:version``. Raises SchemaProblem."""
        if re.fullmatch("[0-9]{1,10}", name):
            return int(name), self.schema(int(name))
        place = _PLACE.fullmatch(name)
        subject, version = (place[1], place[2]) if place is not None else (name, "latest")
        about = f"subject {subject}" + (f", version {version}" if place is not None else "")
        number = self._answer(about, "subjects", subject, "versions", version).get("id")
        if type(number) is not int:
            raise SchemaProblem(f"the registry's answer for {about} is not one")
        return number, self._asked(number, subject)

    def _asked(self, number: int, subject: str = "") -> RegisteredSchema:
        """``subject``: one that has it, in whose context the id is."""
        about, until_s = f"schema {number}", self._now_s() + self._patience_s
        fields = self._answer(about, "schemas", "ids", str(number), subject=subject)
        kind = str(fields.get("schemaType") or "AVRO")
        texts: dict[str, str] = {}
        self._gather(about, kind, fields, texts, until_s)
        texts[""] = self._text(about, kind, number, subject, fields)
        if sum(map(len, texts.values())) > SCHEMA_BYTES_MAX:
            raise SchemaProblem(f"{about} has more than {SCHEMA_BYTES_MAX} bytes with what it refers to", unknown=True)
        try:
            return RegisteredSchema(kind, _decoder(kind, list(texts.values())), texts)
        except (AvroError, ProtobufError) as error:
            raise SchemaProblem(f"{about}: {error}", unknown=True) from None
        except binascii.Error:
            raise SchemaProblem(f"{about} is PROTOBUF, and the registry does not compile it", unknown=True) from None

    def _gather(self, about: str, kind: str, fields: Mapping[str, Any], texts: dict[str, str], until_s: float) -> None:
        """Add what the schema of these fields refers to, each behind what that refers to."""
        listed = fields.get("references") or []
        if not isinstance(listed, list) or not all(isinstance(row, dict) for row in listed):
            raise SchemaProblem(f"the registry's answer for {about} is not one")
        for row in listed:
            name, subject, version = (str(row.get(word)) for word in ("name", "subject", "version"))
            if name in texts:
                continue
            if len(texts) >= REFERENCES_MAX:
                raise SchemaProblem(f"{about} refers to more than {REFERENCES_MAX} others", unknown=True)
            if self._now_s() > until_s:
                raise SchemaProblem(f"the registry takes too long for what {about} refers to", silent=True)
            there = self._answer(about, "subjects", subject, "versions", version)
            texts[name] = ""  # a circle ends here
            self._gather(about, kind, there, texts, until_s)
            del texts[name]
            texts[name] = self._text(about, kind, there.get("id"), subject, there)

    def _text(self, about: str, kind: str, number: Any, subject: str, fields: Mapping[str, Any]) -> str:
        """The schema's own; of Protobuf its file descriptor, as the registry has compiled it."""
        if kind == "PROTOBUF":
            fields = self._answer(about, "schemas", "ids", str(number), subject=subject, format="serialized")
        if not isinstance(fields.get("schema"), str):
            raise SchemaProblem(f"the registry's answer for {about} is not one")
        return str(fields["schema"])

    def _answer(self, about: str, *path: str, kind: type = dict, **query: str) -> Any:
        """An object, or what ``kind`` names; raises SchemaProblem."""
        address = "/".join([self._url, *(quote(part, safe="") for part in path)])
        words = urlencode({name: value for name, value in query.items() if value})
        request = urllib.request.Request(f"{address}?{words}" if words else address, headers=self._headers)
        try:
            with self._opener.open(request, timeout=self._answer_s) as answer:
                body = answer.read(SCHEMA_BYTES_MAX + 1)
            if len(body) > SCHEMA_BYTES_MAX:
                raise SchemaProblem(f"{about} has more than {SCHEMA_BYTES_MAX} bytes", unknown=True)
            fields = json.loads(body)
        except SchemaProblem:
            raise
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                raise SchemaProblem(f"the registry has no {about}", unknown=True) from None
            raise SchemaProblem(f"the registry answers {error.code} for {about}", silent=True) from None
        except OSError as error:
            problem = getattr(error, "reason", None) or error
            raise SchemaProblem(f"the registry does not answer: {problem}", silent=True) from None
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, kind):
            raise SchemaProblem(f"the registry's answer for {about} is not one")
        return fields


def _decoder(kind: str, texts: list[str]) -> AvroSchema | ProtobufSchema | None:
    """Raises AvroError, ProtobufError, binascii.Error."""
    if kind == "PROTOBUF":
        *others, own = (base64.b64decode(text, validate=True) for text in texts)
        return ProtobufSchema(own, others)
    return AvroSchema(texts[-1], texts[:-1]) if kind == "AVRO" else None


def schema_id(raw: bytes) -> int | None:
    """The id with which the bytes begin, if they may be of a registry."""
    return int(_PREFIX.unpack_from(raw)[1]) if len(raw) >= PREFIX_BYTES and raw[0] == 0 else None


def schema_header(headers: Iterable[tuple[str, bytes | None]], field: str) -> bytes | None:
    """What serializers since 8.0 may write beside a key or value, instead of in it; ``field`` is one of the two.

    A byte 1 and a GUID, or a byte 0 and an id; each with Protobuf's indexes behind it.
    """
    name = f"__{field}_schema_id"
    given = next((value for one, value in reversed([*headers]) if one == name), None)
    well_formed = given is not None and (
        (given[:1] == b"\1" and len(given) >= 1 + GUID_BYTES) or (given[:1] == b"\0" and len(given) >= PREFIX_BYTES)
    )
    return given if well_formed else None


class PageSchemas:
    """The registry as one page uses it: bounded in ids, seconds and fields."""

    def __init__(
        self, registry: SchemaRegistry, now_s: Callable[[], float] = time.monotonic, fields: int = PAGE_FIELDS
    ) -> None:
        self._registry, self._now_s = registry, now_s
        self._asked = 0
        self._waited_s = 0.0
        self._silent: SchemaProblem | None = None
        self._budget = FieldBudget(fields)

    def framed(self, raw: bytes | None, headers: Iterable[tuple[str, bytes | None]], field: str) -> bytes | None:
        """The bytes behind the id to which their header leads; as they are without one. Raises SchemaProblem."""
        header = None if raw is None else schema_header(headers, field)
        if raw is None or header is None:
            return raw
        if header[0] == 0:
            return header + raw
        digits = header[1 : 1 + GUID_BYTES].hex()
        guid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        registry = self._registry
        number = self._known(f"schema {guid}", lambda: registry.kept_guid(guid), lambda: registry.id_of(guid))
        return _PREFIX.pack(0, number) + header[1 + GUID_BYTES :] + raw

    def decoded(self, raw: bytes) -> DecodedValue | None:
        """The value by its schema; None for a schema of JSON. Raises SchemaProblem."""
        number = schema_id(raw)
        if number is None:
            raise SchemaProblem("not in the registry's format: a zero byte and a schema's id come first")
        schema = self._schema(number)
        try:
            if isinstance(schema.decoder, ProtobufSchema):
                return DecodedValue(number, schema.decoder.decode(raw, self._budget.spend, PREFIX_BYTES), "protobuf")
            if schema.decoder is not None:
                return DecodedValue(number, schema.decoder.decode(raw, self._budget, PREFIX_BYTES), "avro")
        except (AvroError, ProtobufError) as error:
            raise SchemaProblem(f"schema {number}: {error}") from None
        if schema.kind != "JSON":
            raise SchemaProblem(f"schema {number} is {schema.kind[:40]}, which is shown as bytes")
        return None

    def _schema(self, number: int) -> RegisteredSchema:
        registry = self._registry
        return self._known(f"schema {number}", lambda: registry.kept(number), lambda: registry.schema(number))

    def _known(self, about: str, kept: Callable[[], T | None], ask: Callable[[], T]) -> T:
        """Raises SchemaProblem."""
        known = kept()
        if known is not None:
            return known
        if self._silent is not None:
            raise self._silent
        if self._asked >= PAGE_IDS or self._waited_s >= PAGE_S:
            raise SchemaProblem(f"{about} is not asked for: this page has asked for {self._asked}")
        self._asked += 1
        begun_s = self._now_s()
        try:
            return ask()
        except SchemaProblem as problem:
            if not problem.unknown:
                self._silent = problem
            raise
        finally:
            self._waited_s += self._now_s() - begun_s
