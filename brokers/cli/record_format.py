"""Records by a format such as ``%k %v %p %o\\n``: how ``consume`` writes them and ``produce`` reads them.

Sources: kcat's manual (-f), and ``rpk topic consume --help`` where kcat has no such part.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from fleetlog.brokers.cli.output import iso

WRITTEN: Final = {
    "k": "key", "v": "value", "s": "value", "K": "bytes of the key", "V": "bytes of the value",
    "S": "bytes of the value", "t": "topic", "p": "partition", "o": "offset", "T": "time", "d": "time",
    "e": "leader epoch", "h": "headers, or the last one of %h{name}", "H": "number of headers",
}  # fmt: skip
_PART: Final = re.compile(
    r"%(?P<verb>.)(?:\{(?P<detail>[^{}]*)\})?|\\(?P<escape>x[0-9a-fA-F]{2}|.)|[^%\\]+|.", re.DOTALL
)
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_ENCODINGS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "": bytes,
    "hex": lambda raw: raw.hex().encode(),
    "base64": base64.b64encode,
    "json": lambda raw: json.dumps(raw.decode(errors="replace"), ensure_ascii=False).encode(),
}


class Verb(NamedTuple):
    """``%k``, or ``%h{name}`` with its detail."""

    letter: str
    detail: str = ""

    def __str__(self) -> str:
        return f"%{self.letter}{{{self.detail}}}" if self.detail else f"%{self.letter}"


def parse_format(text: str) -> list[bytes | Verb]:
    """The parts of a format: bytes as they stand, and what is filled in. Raises ValueError that names what is wrong."""
    parts: list[bytes | Verb] = []
    if not text:
        raise ValueError("the format is empty: it has at least one part, such as %v")
    for match in _PART.finditer(text):
        verb, escape = match["verb"], match["escape"]
        if verb is not None and verb != "%":
            if text.startswith("{", match.end()):
                raise ValueError(f"the brace behind {match[0]} is not closed")
            parts.append(_checked(Verb(verb, match["detail"] or "")))
            continue
        if verb is not None:
            piece = b"%" + (f"{{{match['detail']}}}".encode() if match["detail"] is not None else b"")
        elif escape is None and match[0] in {"%", "\\"}:
            raise ValueError(f"the format ends with a single {match[0]}: write it twice")
        elif escape is not None and escape[0] == "x" and len(escape) == 3:
            piece = bytes([int(escape[1:], 16)])
        elif escape is not None and escape not in _ESCAPES:
            raise ValueError(f"\\{escape} is none of \\n, \\r, \\t, \\0, \\xNN and \\\\")
        else:
            piece = match[0].encode() if escape is None else _ESCAPES[escape]
        if parts and isinstance(parts[-1], bytes):
            parts[-1] += piece
        else:
            parts.append(piece)
    return parts


def _checked(verb: Verb) -> Verb:
    if verb.letter not in WRITTEN:
        raise ValueError(f"%{verb.letter} is none of {', '.join('%' + letter for letter in WRITTEN)} and %%")
    if verb.letter in "kvs" and verb.detail not in _ENCODINGS:
        raise ValueError(f"{verb}: the braces may have {', '.join(filter(None, _ENCODINGS))}")
    if verb.letter in "Td" and verb.detail not in {"", "iso"}:
        raise ValueError(f"{verb}: the braces may have iso; without them it is in milliseconds")
    if verb.detail and verb.letter not in "kvsTdh":
        raise ValueError(f"{verb}: %{verb.letter} takes no braces")
    return verb


class RecordText:
    """Writes records. Nothing is put behind one: a format of lines ends with \\n, as for kcat and rpk."""

    def __init__(self, text: str) -> None:
        """Raises ValueError."""
        self._parts = [part if isinstance(part, bytes) else _writer(part) for part in parse_format(text)]

    def of(self, record: Any, shown: Any = None) -> bytes:
        """The text of one record of kafka-python. ``shown`` has its key and value as text, where they are decoded."""
        shown = record if shown is None else shown
        return b"".join([part if isinstance(part, bytes) else part(record, shown) for part in self._parts])


def _writer(verb: Verb) -> Callable[[Any, Any], bytes]:
    letter, detail = verb
    if letter in "kvs":
        encode, name = _ENCODINGS[detail], "key" if letter == "k" else "value"
        if detail in {"hex", "base64"}:
            return lambda record, _: encode(getattr(record, name) or b"")
        return lambda _, shown: encode(getattr(shown, name) or b"")
    if letter in "KVS":
        name = "key" if letter == "K" else "value"
        return lambda record, _: b"-1" if getattr(record, name) is None else b"%d" % len(getattr(record, name))
    if letter == "h" and detail:
        return lambda record, _: next((value or b"" for key, value in reversed(record.headers) if key == detail), b"")
    if letter == "h":
        return lambda record, _: b",".join(key.encode() + b"=" + (value or b"") for key, value in record.headers)
    if letter == "H":
        return lambda record, _: b"%d" % len(record.headers)
    if letter in "Td" and detail:
        return lambda record, _: (iso(record.timestamp) or "").encode()
    name = {"t": "topic", "p": "partition", "o": "offset", "T": "timestamp", "d": "timestamp", "e": "leader_epoch"}[
        letter
    ]
    return lambda record, _: str(getattr(record, name)).encode()
