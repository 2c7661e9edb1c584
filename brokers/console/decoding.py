"""Keys and values as text: JSON, Avro by a registry, strings, numbers, bytes, and the internal topics' own records."""

from __future__ import annotations

import base64
import codecs
import json
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from fleetlog.brokers.cli.topic_reader import StoredRecord
from fleetlog.brokers.console.schemas import PREFIX_BYTES, PageSchemas, SchemaProblem, schema_id

DECODERS: Final = ("auto", "json", "text", "number", "hex", "base64")
REGISTRY: Final = "registry"
"""The decoder of a console that was started with a schema registry."""
SHOWN_MAX: Final = 4_000
"""Characters of a key or value that a page shows; an export has all."""
READ_MAX: Final = 16 * 1024
"""Bytes of a key or value that are decoded for a page. JSON that is larger is shown as it stands."""
ON_A_LINE: Final = 120
"""Characters of JSON that stand on one line."""
INTERNAL: Final = ("__consumer_offsets", "__transaction_state")
_NUMBERS: Final = {1: ">b", 2: ">h", 4: ">i", 8: ">q"}


class ShownBytes(NamedTuple):
    """``kind`` is what the bytes were taken for; ``text`` is None for a null.

    ``schema`` is the id in a registry by which they were decoded; ``problem`` says why they were not.
    """

    kind: str
    text: str | None
    size: int
    cut: bool = False
    schema: int | None = None
    problem: str = ""


def decode_bytes(raw: bytes | None, how: str, limit: int = SHOWN_MAX, schemas: PageSchemas | None = None) -> ShownBytes:
    """The bytes as that decoder shows them; as hexadecimal digits where it cannot."""
    if raw is None:
        return ShownBytes("null", None, 0)
    if how == REGISTRY or (how == "auto" and schemas is not None and schema_id(raw) is not None):
        return _by_schema(raw, how, limit, schemas)
    return _without_schema(raw, how, limit)


def _without_schema(raw: bytes, how: str, limit: int) -> ShownBytes:
    large = len(raw) > READ_MAX
    for kind in ("json", "text", "hex") if how == "auto" or (how == "json" and large) else (how, "hex"):
        text = _AS[kind](raw[:READ_MAX], large, limit)
        if text is not None:
            return ShownBytes(kind, text[:limit], len(raw), large or len(text) > limit)
    raise AssertionError("hexadecimal digits show everything")


def _by_schema(raw: bytes, how: str, limit: int, schemas: PageSchemas | None) -> ShownBytes:
    """By the schema whose id comes first. Bytes that have that look by chance are shown as others, with a word."""
    try:
        if schemas is None:
            raise SchemaProblem("the console was started without --schema-registry")
        decoded = schemas.avro(raw)
    except SchemaProblem as problem:
        if how == "auto":
            return _without_schema(raw, how, limit)._replace(problem=str(problem))
        return _without_schema(raw, "hex", limit)._replace(problem=str(problem))
    number = schema_id(raw)
    if decoded is None:
        shown = _without_schema(raw[PREFIX_BYTES : PREFIX_BYTES + READ_MAX + 1], "json", limit)
        wrong = "" if shown.kind == "json" or shown.cut else f"schema {number} is one of JSON, and the value is not"
        return shown._replace(size=len(raw), schema=number, problem=wrong)
    text = _as_json(decoded[1], limit)
    return ShownBytes("avro", text[:limit], len(raw), len(text) > limit, number)


def _json(raw: bytes, large: bool, limit: int) -> str | None:
    if large:
        return None
    if raw[:1].strip() not in {b"{", b"[", b'"', b""} and not raw[:1].isdigit() and raw[:1] not in b"-tfn":
        return None
    try:
        return _as_json(json.loads(raw), limit)
    except (ValueError, RecursionError):
        return None


def _as_json(value: Any, limit: int) -> str:
    text = json.dumps(value, ensure_ascii=False, default=_bytes_in_json)
    if len(text) > ON_A_LINE:
        text = _indented(value, limit)
    return text.encode(
        errors="backslashreplace"
    ).decode()  # half of a surrogate pair is no character: as it was escaped


def _bytes_in_json(value: bytes) -> str:
    """Avro's bytes, as text where they are."""
    return _text(value, False, 0) or value.hex(" ")


def _indented(value: Any, limit: int) -> str:
    """JSON on many lines, made only until it is longer than the limit: deep values are mostly indentation."""
    parts, size = [], 0
    for part in json.JSONEncoder(ensure_ascii=False, indent=1, default=_bytes_in_json).iterencode(value):
        parts.append(part)
        size += len(part)
        if size > limit:
            break
    return "".join(parts)


def _text(raw: bytes, large: bool, _: int) -> str | None:
    try:
        text = codecs.utf_8_decode(raw, "strict", not large)[0]  # a cut may be in the middle of a character
    except UnicodeDecodeError:
        return None
    readable = sum(character.isprintable() or character in "\t\r\n" for character in text)
    return text if readable == len(text) else None


def _number(raw: bytes, _large: bool, _limit: int) -> str | None:
    layout = _NUMBERS.get(len(raw))
    return None if layout is None else str(struct.unpack(layout, raw)[0])


_AS: Final[dict[str, Callable[[bytes, bool, int], str | None]]] = {
    "json": _json,
    "text": _text,
    "number": _number,
    "hex": lambda raw, *_: raw.hex(" "),
    "base64": lambda raw, *_: base64.b64encode(raw).decode(),
}


def record_row(
    topic: str, record: StoredRecord, key_how: str, value_how: str, schemas: PageSchemas | None = None
) -> dict[str, Any]:
    """A record as a page shows it. A record of an internal topic has ``meaning``."""
    row: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": decode_bytes(record.key, key_how, schemas=schemas)._asdict(),
        "value": decode_bytes(record.value, value_how, schemas=schemas)._asdict(),
        "headers": [{"name": name, **decode_bytes(value, "auto")._asdict()} for name, value in record.headers],
        "size": record.size,
        "state": record.state,
        "marker": record.marker,
        "producer_id": record.producer_id,
        "producer_epoch": record.producer_epoch,
        "sequence": record.sequence,
        "leader_epoch": record.leader_epoch,
        "codec": record.codec,
    }
    if topic in INTERNAL and not record.marker:
        row["meaning"] = json.dumps(_meaning(topic, record), ensure_ascii=False, default=str)[:SHOWN_MAX]
    return row


def _meaning(topic: str, record: StoredRecord) -> dict[str, Any]:
    """In words. What reads them is imported when it is wanted: it brings the brokers' logs along, and their memory."""
    from fleetlog.brokers.cli.logdump import offsets_row, transactions_row

    return (offsets_row if topic == INTERNAL[0] else transactions_row)(record)
