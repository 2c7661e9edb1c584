"""The id by content of a schema (GUID), as Confluent's Schema Registry 8.0 makes it.

Rules are the exception: there another text is made of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID


def guid_of(text: str, references: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any] | None, rules: Any) -> UUID:
    """Of the schema of that text; references have ``name``, ``subject`` and ``version``."""
    digest = hashlib.md5(_bytes(text), usedforsecurity=False)
    for row in references:
        version = (row["version"] % 2**32).to_bytes(4, "big")
        digest.update(_bytes(row["name"] + row["subject"]) + version)
    if metadata is not None:
        digest.update(b"\x01" + _bytes("".join(_metadata_parts(metadata))))
    if rules is not None:
        digest.update(b"\x01" + _bytes(text_of(rules)))
    return UUID(bytes=digest.digest())


def _bytes(text: str) -> bytes:
    """Also of what another registry took, though it has half of a surrogate pair."""
    return text.encode("utf-8", "surrogatepass")


def _metadata_parts(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Its texts in the order of their names; what is of another form as JSON."""
    for word in ("paths", "properties", "sensitive"):
        value = metadata.get(word)
        if isinstance(value, dict):
            for name, inner in sorted(value.items()):
                yield name
                yield from _texts(inner)
        elif value:
            yield from _texts(value)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return sorted(value)
    return [text_of(value)]


def text_of(value: Any) -> str:
    """The JSON of a value, the same for equal ones."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
