"""Keys and values as ``fleetlog consume`` shows them: by the schemas of a registry, or by one way for all.

What cannot be decoded is shown as its bytes, and why is said once for each schema. Bytes inside of decoded values are
text as Avro's JSON (a character for each byte) and Protobuf's (base64) have them, so that `fleetlog produce --schema`
reads what stands here.
"""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

from fleetlog.brokers.cli.output import warn
from fleetlog.brokers.cli.record_filter import FilteredRecord
from fleetlog.brokers.cli.registries import BY_SCHEMA
from fleetlog.brokers.cli.schema_values import (
    PREFIX_BYTES,
    PageSchemas,
    SchemaProblem,
    SchemaRegistry,
    schema_header,
    schema_id,
)

FIELDS_MAX: Final = 200_000
"""Fields and items of one record."""
SILENT_S: Final = 5.0
"""How long a registry that did not answer is left alone."""
UNKNOWN_MAX: Final = 20
"""After so many ids that the registry does not know, ``auto`` asks for no more: bytes may begin so by chance."""
TOLD_MAX: Final = 20


class DecodedPart(NamedTuple):
    """A key or value. ``value`` is of what JSON has where ``is_json``, ``schema`` the id that led to it."""

    text: bytes | None
    value: Any = None
    is_json: bool = False
    schema: int | None = None


class RecordDecoding:
    """How keys and values are decoded: each by one of ``consume.DECODERS``. ``registry``: None where none is known."""

    def __init__(
        self,
        key: str,
        value: str,
        registry: SchemaRegistry | None,
        tell: Callable[[str], None] = warn,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._how = {"key": key, "value": value}
        self._registry, self._tell, self._now_s = registry, tell, now_s
        self._told: set[int | str | bytes] = set()
        self._unknown: set[int] = set()
        self._silent_until_s = -math.inf
        self._silence = SchemaProblem("")

    def seen(self, record: Any) -> DecodedRecord:
        """A record of kafka-python; what is asked for of it is decoded."""
        return DecodedRecord(record, self)

    def part(self, field: str, raw: bytes | None, headers: Any, place: str) -> DecodedPart:
        """``field`` is key or value; ``place`` is where the record stands."""
        how = self._how[field]
        if raw is None or how == "raw":
            return DecodedPart(raw)
        if how in {"hex", "string"}:
            text = raw.hex() if how == "hex" else raw.decode(errors="replace")
            return DecodedPart(text.encode(), text, is_json=True)
        header = schema_header(headers, field)
        number = schema_id(raw) if header is None else None
        try:
            if header is not None and self._registry is not None:
                return self._by_header(how, raw, field, headers)
            if number is not None and self._is_asked(how, number):
                return self._by_schema(how, number, raw)
            if how in BY_SCHEMA:
                raise SchemaProblem("not in the registry's format: a zero byte and a schema's id come first")
            return _json_part(raw, None) if how == "json" else DecodedPart(raw)
        except SchemaProblem as problem:
            about = header if header is not None else field if number is None else number
            self._say(about, f"{place}: the {field} is shown as bytes: {problem}")
            return DecodedPart(raw)

    def _is_asked(self, how: str, number: int) -> bool:
        known = number in self._unknown or len(self._unknown) < UNKNOWN_MAX
        return self._registry is not None and (how != "auto" or known)

    def _by_schema(self, how: str, number: int, raw: bytes) -> DecodedPart:
        """Raises SchemaProblem."""
        assert self._registry is not None, "it is asked"
        if self._now_s() < self._silent_until_s:
            raise self._silence
        try:
            decoded = PageSchemas(self._registry, fields=FIELDS_MAX).decoded(raw)
        except SchemaProblem as problem:
            if problem.silent:
                self._silence, self._silent_until_s = problem, self._now_s() + SILENT_S
            elif problem.unknown:
                self._unknown.add(number)
            raise
        kind = "json" if decoded is None else decoded.kind
        if how not in {"auto", kind}:
            raise SchemaProblem(f"schema {number} is one of {kind}")
        if decoded is None:
            return _json_part(raw[PREFIX_BYTES:], number)
        value = _in_json(decoded.value, kind)
        return DecodedPart(_dumped(value), value, is_json=True, schema=number)

    def _by_header(self, how: str, raw: bytes, field: str, headers: Any) -> DecodedPart:
        """Raises SchemaProblem."""
        assert self._registry is not None, "it is asked"
        if self._now_s() < self._silent_until_s:
            raise self._silence
        try:
            framed = PageSchemas(self._registry).framed(raw, headers, field)
        except SchemaProblem as problem:
            if problem.silent:
                self._silence, self._silent_until_s = problem, self._now_s() + SILENT_S
            raise
        assert framed is not None, "there is a header, and a value"
        number = schema_id(framed)
        assert number is not None, "it is framed"
        return self._by_schema(how, number, framed)

    def _say(self, about: int | str | bytes, text: str) -> None:
        if about in self._told or len(self._told) > TOLD_MAX:
            return
        self._told.add(about)
        self._tell(text if len(self._told) <= TOLD_MAX else f"{text}; why others are so is not said any more")


class DecodedRecord(FilteredRecord):
    """A record of kafka-python with its key and value decoded, as filters see it."""

    def __init__(self, record: Any, decoding: RecordDecoding) -> None:
        one = record
        super().__init__(one.topic, one.partition, one.offset, one.timestamp, one.key, one.value, one.headers)
        place = f"{one.topic}-{one.partition}, offset {one.offset}"
        self._record, self._part = record, partial(decoding.part, headers=one.headers, place=place)

    @cached_property
    def key_part(self) -> DecodedPart:
        """The key."""
        return self._part("key", self._record.key)

    @cached_property
    def value_part(self) -> DecodedPart:
        """The value."""
        return self._part("value", self._record.value)

    def _inside(self, field: str) -> Any:
        part = self.key_part if field == "key" else self.value_part
        return part.value if part.is_json else super()._inside(field)

    @property
    def as_shown(self) -> Any:
        """The record with the texts of its key and value instead of their bytes."""
        return self._record._replace(key=self.key_part.text, value=self.value_part.text)


def _json_part(raw: bytes, number: int | None) -> DecodedPart:
    """JSON as it stands, on one line. Raises SchemaProblem."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        about = "it is not JSON" if number is None else f"schema {number} is one of JSON, and the value is not"
        raise SchemaProblem(about) from None
    one_line = bytes(raw).strip()
    return DecodedPart(_dumped(value) if b"\n" in one_line else one_line, value, is_json=True, schema=number)


def _dumped(value: Any) -> bytes:
    # half of a surrogate pair, which JSON may name, is no character: it stays as it was written
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace")


def _in_json(value: Any, kind: str) -> Any:
    """A decoded value of what JSON has; as deep as decoders go."""
    if isinstance(value, dict):
        return {name: _in_json(one, kind) for name, one in value.items()}
    if isinstance(value, list):
        return [_in_json(one, kind) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode() if kind == "protobuf" else value.decode("latin-1")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
