"""JSON of the znodes of this room, and the spelling of user names in paths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote_to_bytes


class BadDocument(Exception):
    """A znode's content is invalid for its path: another program or a newer version wrote it. Holds no secret."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def dump_document(document: Mapping[str, Any]) -> bytes:
    """Compact JSON."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def load_document(path: str, data: bytes) -> dict[str, Any]:
    """Raises BadDocument where the bytes are no JSON object."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise BadDocument(path, "not JSON") from None
    if not isinstance(document, dict):
        raise BadDocument(path, "not a JSON object")
    return document


def sanitised(name: str) -> str:
    """A principal's or client's name as Kafka writes it in a path: URL-encoded UTF-8, ``*`` and space as well."""
    return quote(name, safe="-_.").replace("~", "%7E")


def desanitised(text: str) -> str:
    """Inverse of :func:`sanitised`; raises ValueError where the bytes are no UTF-8."""
    return unquote_to_bytes(text).decode()
