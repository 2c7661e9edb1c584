"""Decoded keys and values on pages: as trees, cells of columns and bytes in lines; and what differs in two records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup, escape

from fleetlog.brokers.cli.record_filter import FilteredRecord, Path, literal_text, path_text

DEPTH_MAX: Final = 30
"""Deeper branches of a tree are text."""
ITEMS_MAX: Final = 200
LEAF_MAX: Final = 300
PREVIEW_MAX: Final = 240
CELL_MAX: Final = 200
HEX_MAX: Final = 2_048
LEAVES_MAX: Final = 2_000
_KINDS: Final = ("json", "avro", "protobuf")


@dataclass(slots=True)
class TreeNodes:
    """How many more nodes the trees of a page may have; records beyond them are shown as text."""

    left: int = 5_000


def json_tree(part: Mapping[str, Any], field: str, nodes: TreeNodes, topic: str = "") -> Markup:
    """The tree of a key or value that is an object or a list and shown whole; empty for any other.

    With a topic each leaf has links to the topic's messages, with its column, or filtered by it.
    """
    if part["kind"] not in _KINDS or part["cut"] or part["text"][:1] not in {"{", "["} or nodes.left <= 0:
        return Markup("")
    try:
        value = json.loads(part["text"])
    except (ValueError, RecursionError):
        return Markup("")
    return Markup(_encodable("".join(_branch(value, (field,), nodes, topic, 0))))


def json_preview(part: Mapping[str, Any]) -> str:
    """The beginning of JSON on one line."""
    text = re.sub(r"(?<=[\[{])\n *|\n *(?=[\]}])", "", part["text"][: 4 * PREVIEW_MAX])
    text = re.sub(r"\n *", " ", text)
    return text if len(text) <= PREVIEW_MAX else f"{text[:PREVIEW_MAX]}…"


def _branch(value: Any, path: Path, nodes: TreeNodes, topic: str, depth: int) -> Iterator[str]:
    yield '<ul class="tree">'
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for number, (step, inner) in enumerate(items):
        if nodes.left <= 0 or number >= ITEMS_MAX:
            yield f'<li class="none">{len(value) - number} more</li>'
            break
        nodes.left -= 1
        inner_path: Path = (*path, step)
        name = escape(path_text(inner_path))
        if isinstance(inner, dict | list) and inner and depth < DEPTH_MAX:
            size = f"{{{len(inner)}}}" if isinstance(inner, dict) else f"[{len(inner)}]"
            yield f"<li><details open><summary>{escape(str(step))} "
            yield f'<span class="none">{size}</span></summary>'
            yield from _branch(inner, inner_path, nodes, topic, depth + 1)
            yield "</details></li>"
        else:
            text = json.dumps(inner, ensure_ascii=False)
            shown = text if len(text) <= LEAF_MAX else f"{text[:LEAF_MAX]}…"
            kind = "text" if isinstance(inner, str) else "number"
            yield f'<li><span data-path="{name}">{escape(str(step))}</span>: '
            yield f'<code class="{kind}">{escape(shown)}</code>'
            yield _links(inner_path, inner, topic) if topic and shown == text else ""
            yield "</li>"
    yield "</ul>"


def _links(path: Path, value: Any, topic: str) -> str:
    """Without JavaScript, what a click on the name offers with it."""
    address, name = f"/topics/{quote(topic, '')}/messages", _encodable(path_text(path))
    condition = _encodable(f"{name} == {literal_text(value)}")
    return (
        f' <a class="small" href="{address}?columns={quote(name, "")}">column</a>'
        f' <a class="small" href="{address}?from=beginning&amp;filter={quote(condition, "")}">filter</a>'
    )


def cell_text(value: Any) -> str | None:
    """A part of a record in a column: texts as they are, others as JSON, cut; None where there is nothing."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=lambda raw: raw.hex(" "))
    return _encodable(text if len(text) <= CELL_MAX else f"{text[:CELL_MAX]}…")


def hex_lines(raw: bytes | None) -> str:
    """The first bytes, sixteen on a line, as hexadecimal digits and as ASCII."""
    lines = []
    for at in range(0, min(len(raw or b""), HEX_MAX), 16):
        part = (raw or b"")[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:06x}  {part.hex(' '):<47}  {text}")
    return "\n".join(lines)


def record_differences(one: FilteredRecord, other: FilteredRecord) -> list[dict[str, Any]]:
    """Where two records differ: the path, and what stands there in each; None where there is nothing."""
    left, right = dict(_leaves(one)), dict(_leaves(other))
    return [
        {"path": path, "this": left.get(path), "other": right.get(path)}
        for path in {**left, **right}
        if left.get(path) != right.get(path)
    ]


def _leaves(record: FilteredRecord) -> Iterator[tuple[str, str | None]]:
    whole = {name: record.inner(name) for name in ("key", "value")}
    texts = {"key": record.key, "value": record.value}
    branches: list[tuple[Path, Any]] = [
        *(((name,), whole[name] if isinstance(whole[name], dict | list) else texts[name]) for name in whole),
        (("headers",), record.headers),
    ]
    left = LEAVES_MAX
    branches.reverse()
    while branches and left:
        path, value = branches.pop()
        left -= 1
        if isinstance(value, dict | list) and value and len(path) <= DEPTH_MAX:
            inner = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
            branches += [((*path, step), one) for step, one in reversed(inner[:LEAVES_MAX])]
        elif path != ("headers",):
            yield _encodable(path_text(path)), "null" if value is None else cell_text(value)


def _encodable(text: str) -> str:
    """Half of a surrogate pair, which JSON may name, is no character."""
    return text.encode(errors="backslashreplace").decode()
