"""Values that carry the id of a schema registry: the schema by its REST interface, the value by the schema.

Only ids of records are asked for, at the one address that the console was started with. A page asks for a few ids, and
waits for a few seconds at most; what a registry does not answer is shown as bytes, with the reason.
Source: Confluent's schema registry API (v1), its wire format (byte 0, schema id in four bytes, the encoded value).
"""

from __future__ import annotations

import base64
import json
import struct
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from fleetlog.brokers.console.avro import AvroError, AvroSchema, FieldBudget
from fleetlog.brokers.console.outside import direct_opener

_PREFIX: Final = struct.Struct(">bI")
PREFIX_BYTES: Final = _PREFIX.size
CONTENT: Final = "application/vnd.schemaregistry.v1+json"
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


class SchemaProblem(ValueError):
    """A value cannot be shown by a schema; the text says why. ``unknown``: the registry has no such id."""

    def __init__(self, text: str, *, unknown: bool = False) -> None:
        super().__init__(text)
        self.unknown = unknown


class RegisteredSchema(NamedTuple):
    """``kind``: AVRO, JSON or PROTOBUF. ``avro`` is there for AVRO."""

    kind: str
    avro: AvroSchema | None


class SchemaRegistry:
    """One registry, for all pages. ``user`` is ``name:password``, or empty. From any thread."""

    def __init__(self, url: str, user: str = "", now_s: Callable[[], float] = time.monotonic) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not the address of a schema registry, like http://registry:8081")
        if parts.username is not None:
            raise ValueError("a user and a password stand in the file of --schema-registry-config, not in the address")
        self._url, self._now_s = url.rstrip("/"), now_s
        self._headers = {"Accept": CONTENT}
        if user:
            self._headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
        self._opener = direct_opener()
        self._known: OrderedDict[int, RegisteredSchema] = OrderedDict()
        self._failed: OrderedDict[int, tuple[float, SchemaProblem]] = OrderedDict()
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
            if problem.unknown:
                with self._lock:
                    self._failed[number] = self._now_s() + ABSENT_S, problem
                    while len(self._failed) > SCHEMAS_KEPT:
                        self._failed.popitem(last=False)
            raise
        with self._lock:
            self._known[number] = schema
            while len(self._known) > SCHEMAS_KEPT:
                self._known.popitem(last=False)
        return schema

    def _asked(self, number: int) -> RegisteredSchema:
        request = urllib.request.Request(f"{self._url}/schemas/ids/{number}", headers=self._headers)
        try:
            with self._opener.open(request, timeout=ANSWER_S) as answer:
                body = answer.read(SCHEMA_BYTES_MAX + 1)
            if len(body) > SCHEMA_BYTES_MAX:
                raise SchemaProblem(f"schema {number} has more than {SCHEMA_BYTES_MAX} bytes", unknown=True)
            fields = json.loads(body)
            kind, text, references = (
                str(fields.get("schemaType") or "AVRO"),
                fields["schema"],
                fields.get("references"),
            )
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                raise SchemaProblem(f"the registry has no schema {number}", unknown=True) from None
            raise SchemaProblem(f"the registry answers {error.code} for schema {number}") from None
        except OSError as error:
            raise SchemaProblem(f"the registry does not answer: {getattr(error, 'reason', None) or error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise SchemaProblem(f"the registry's answer for schema {number} is not one") from None
        if references:
            raise SchemaProblem(f"schema {number} refers to others, which is not supported", unknown=True)
        try:
            return RegisteredSchema(kind, AvroSchema(str(text)) if kind == "AVRO" else None)
        except AvroError as error:
            raise SchemaProblem(f"schema {number}: {error}", unknown=True) from None


def schema_id(raw: bytes) -> int | None:
    """The id with which the bytes begin, if they may be of a registry."""
    return int(_PREFIX.unpack_from(raw)[1]) if len(raw) >= PREFIX_BYTES and raw[0] == 0 else None


class PageSchemas:
    """The registry as one page uses it: bounded in ids, seconds and fields."""

    def __init__(self, registry: SchemaRegistry, now_s: Callable[[], float] = time.monotonic) -> None:
        self._registry, self._now_s = registry, now_s
        self._asked = 0
        self._waited_s = 0.0
        self._silent: SchemaProblem | None = None
        self._budget = FieldBudget(PAGE_FIELDS)

    def avro(self, raw: bytes) -> tuple[int, Any] | None:
        """The schema's id, and the value by that schema; None for a schema of JSON. Raises SchemaProblem."""
        number = schema_id(raw)
        if number is None:
            raise SchemaProblem("not in the registry's format: a zero byte and a schema's id come first")
        schema = self._schema(number)
        if schema.avro is not None:
            try:
                return number, schema.avro.decode(raw, self._budget, PREFIX_BYTES)
            except AvroError as error:
                raise SchemaProblem(f"schema {number}: {error}") from None
        if schema.kind != "JSON":
            raise SchemaProblem(f"schema {number} is {schema.kind[:40]}, which is shown as bytes")
        return None

    def _schema(self, number: int) -> RegisteredSchema:
        known = self._registry.kept(number)
        if known is not None:
            return known
        if self._silent is not None:
            raise self._silent
        if self._asked >= PAGE_IDS or self._waited_s >= PAGE_S:
            raise SchemaProblem(f"schema {number} is not asked for: this page has asked for {self._asked}")
        self._asked += 1
        begun_s = self._now_s()
        try:
            return self._registry.schema(number)
        except SchemaProblem as problem:
            if not problem.unknown:
                self._silent = problem
            raise
        finally:
            self._waited_s += self._now_s() - begun_s
