"""Fields of records that no page shows, by the rules of a file: on each line a pattern of topics and a path.

    orders-*   value.customer.email
    payments   key
    *          headers.authorization

A ``*`` in a pattern is any text, and as a step of a path any name; all items of a list are meant. Letters count in
either case. Where a key or value cannot be taken apart, all of it is masked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from fleetlog.brokers.cli.record_filter import FilterError, Path, parse_columns, path_text
from fleetlog.brokers.cli.topic_reader import StoredRecord
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC

MASK: Final = "***"
RULES_MAX: Final = 1_000
INTERNAL: Final = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)
"""A ``*`` means none of these: their records have no fields that are somebody's."""
_MASKABLE: Final = ("key", "value", "headers")
_WILD: Final = re.compile(r"\.\*(?=[.\[]|$)")


class MaskRule(NamedTuple):
    """Topics by a pattern, and a path in lower case."""

    topics: re.Pattern[str]
    path: Path


class TopicMask(NamedTuple):
    """What is masked in one topic; without paths nothing."""

    paths: tuple[Path, ...] = ()

    @property
    def names(self) -> list[str]:
        """The paths as text."""
        return sorted({path_text(path) for path in self.paths})

    def touched(self, paths: Iterable[Path]) -> str:
        """The name of a path that leads to something masked, into it, or around it; empty if none does."""
        for path in paths:
            if any(_overlap(path, masked) for masked in self.paths):
                return path_text(path)
        return ""

    def masked(self, record: StoredRecord, decoded: Callable[[bytes], Any]) -> StoredRecord:
        """The record as pages may have it. ``decoded`` takes bytes apart, or gives None."""
        if not self.paths or record.marker:
            return record
        headers = tuple(
            (name, MASK.encode() if value is not None and self._header(name) else value)
            for name, value in record.headers
        )
        key, value = self._part("key", record.key, decoded), self._part("value", record.value, decoded)
        return record._replace(key=key, value=value, headers=headers)

    def _header(self, name: str) -> bool:
        return any(path[0] == "headers" and (len(path) == 1 or path[1] in {"*", name.lower()}) for path in self.paths)

    def _part(self, field: str, raw: bytes | None, decoded: Callable[[bytes], Any]) -> bytes | None:
        inner = [path[1:] for path in self.paths if path[0] == field]
        if not inner or raw is None:
            return raw
        value = None if () in inner else decoded(raw)
        if not isinstance(value, dict | list):
            return MASK.encode()
        try:
            for steps in inner:
                _cover(value, steps, raw[:1] == b"\0")
            text = json.dumps(value, ensure_ascii=False, default=lambda one: one.hex(" "))
        except RecursionError:
            text = MASK
        return text.encode(errors="backslashreplace")


class Masks:
    """All rules."""

    def __init__(self, rules: Iterable[MaskRule] = ()) -> None:
        self._rules = tuple(rules)

    def of(self, topic: str) -> TopicMask:
        """What is masked in the topic."""
        if topic in INTERNAL:
            return TopicMask()
        return TopicMask(tuple(rule.path for rule in self._rules if rule.topics.fullmatch(topic)))


def read_masks(text: str) -> Masks:
    """The rules of a file's text; raises ValueError, which names the line."""
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split(None, 1)
        if not words or line.lstrip().startswith("#"):
            continue
        try:
            rules.append(_rule(*words))
        except (TypeError, ValueError) as error:
            why = str(error) if isinstance(error, ValueError) else "it has a pattern of topics and a path"
            raise ValueError(f"line {number}: {why}, such as: orders-* value.customer.email") from None
        if len(rules) > RULES_MAX:
            raise ValueError(f"there may be {RULES_MAX} rules")
    if not rules:
        raise ValueError("it has no rule, such as: orders-* value.customer.email")
    return Masks(rules)


def _rule(pattern: str, path: str) -> MaskRule:
    if not re.fullmatch(r"[A-Za-z0-9._*-]{1,249}", pattern):
        raise ValueError(f"{pattern[:40]!r} is no pattern of topics' names")
    if pattern in INTERNAL:
        raise ValueError(f"the records of {pattern} have no fields")
    try:
        columns = parse_columns(_WILD.sub("['*']", path.strip()))
    except FilterError as error:
        raise ValueError(str(error)) from None
    if len(columns) != 1 or columns[0].path[0] not in _MASKABLE:
        raise ValueError(f"{path[:40]!r} must be one part of {', '.join(_MASKABLE)}")
    if any(isinstance(step, int) for step in columns[0].path):
        raise ValueError(f"{path[:40]!r} has a number: all items of a list are masked")
    expression = ".*".join(re.escape(part) for part in re.split(r"\*+", pattern))
    return MaskRule(re.compile(expression), tuple(str(step).lower() for step in columns[0].path))


def _overlap(path: Path, masked: Path) -> bool:
    """Whether one may lead to what the other leads to, or into it. A number may be an item's, or a name."""
    at = {0}
    for step in path:
        onward: set[int] = set()
        for position in at:
            if position == len(masked):
                return True
            if str(step).isdecimal():
                onward.add(position)
            if masked[position] in {"*", str(step).lower()}:
                onward.add(position + 1)
        at = onward
    return bool(at)


def _cover(value: Any, steps: Path, by_schema: bool) -> None:
    """Mask what the steps lead to, in place; and texts on the way, which may be such values in writing.

    In a value ``by_schema``, what its schema does not know stands by its number: that may be the field.
    """
    branches = [(value, steps)]
    while branches:
        at, (step, *rest) = branches.pop()
        names = [name for name in at if step in {"*", name.lower()}] if isinstance(at, dict) else range(len(at))
        for name in names:
            inner, onward = at[name], tuple(rest) if isinstance(at, dict) else (step, *rest)
            if not onward or isinstance(inner, str | bytes):
                at[name] = MASK
            elif isinstance(inner, dict | list):
                branches.append((inner, onward))
        if by_schema and isinstance(at, dict):
            at |= {name: MASK for name, inner in at.items() if name.isdecimal() and isinstance(inner, bytes | int)}
