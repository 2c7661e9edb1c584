"""Filters of records, such as ``value.price > 10 && key startsWith 'eu-'``: what strangers write, in bounded work.

    either    = both {"||" both}                 both = one {"&&" one}
    one       = "!" one | "(" either ")" | operand [compares operand]
    compares  = "==" "!=" "<" "<=" ">" ">=" "contains" "startsWith" "endsWith" "matches"
    operand   = number | 'text' | true | false | null | field {"." name | "[" number or 'text' "]"}
    field     = key | value | headers | time | topic | partition | offset
    columns   = field with its path {"," field with its path}

A parsed filter is a tree of functions: nothing is evaluated as Python, expressions are of RE2; length, size and depth
are bounded. What is not there is null; a text beside a number counts as the number that it spells.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Final, NamedTuple

from fleetlog.brokers.cli.options import regular_expression
from fleetlog.brokers.cli.times import parse_moment

LENGTH_MAX: Final = 2_000
NODES_MAX: Final = 100
DEPTH_MAX: Final = 20
EXPRESSION_MAX: Final = 500
INSTRUCTIONS_MAX: Final = 1_500
"""Of all expressions of a filter together, as RE2 compiles them; ``\\pL`` has 1,200, ``.*`` a dozen."""
STEPS_MAX: Final = 100_000_000
"""Characters times a filter's instructions that a record may need at most: 0.6 s, where RE2 must follow all at once."""
FIELDS: Final = ("key", "value", "headers", "time", "topic", "partition", "offset")

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>-?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?)
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<mark>&&|\|\||==|!=|<=|>=|[<>!().,\[\]])
    |(?P<word>[A-Za-z_][A-Za-z0-9_-]*))""",
    re.VERBOSE | re.DOTALL,
)
_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_TEXTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "contains": lambda text, part: part in text, "startsWith": str.startswith, "endsWith": str.endswith,
}  # fmt: skip
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NUMBER: Final = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")
_PLAIN_NUMBERS: Final = (int, float)
_scan_json: Final[Callable[[str, int], tuple[Any, int]]] = getattr(json.JSONDecoder(), "scan_once")  # noqa: B009
_CONSTANTS: Final = {"true": True, "false": False, "null": None}


class FilterError(ValueError):
    """A filter that cannot be read; the text says where and why."""


class FilteredRecord:
    """A record as filters see it; keys and values are decoded once, and only if they are asked for."""

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        time_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]],
    ) -> None:
        self.topic, self.partition, self.offset, self.time = topic, partition, offset, time_ms
        self._key, self._value, self._headers = key, value, headers
        self._inner: dict[str, Any] = {}

    @cached_property
    def key(self) -> str | None:
        """As text."""
        return _text(self._key)

    @cached_property
    def value(self) -> str | None:
        """As text."""
        return _text(self._value)

    @cached_property
    def headers(self) -> dict[str, str | None]:
        """As text; of a name that comes twice, the last."""
        return {name: _text(value) for name, value in self._headers}

    def inner(self, field: str) -> Any:
        """What a path leads into: the names of headers, or what the key or value is as JSON, None if it is none."""
        if field not in self._inner:
            self._inner[field] = self.headers if field == "headers" else self._inside(field)
        return self._inner[field]

    def _inside(self, field: str) -> Any:
        return self.decoded(self._key if field == "key" else self._value)

    def decoded(self, raw: bytes | None) -> Any:
        """The value of these bytes of JSON; None if they are none."""
        return None if raw is None else json_of(raw)


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else bytes(raw).decode(errors="replace")


def json_of(raw: bytes) -> Any:
    """The value of these bytes of JSON; None if they are none."""
    text = str(raw, "utf-8", "replace")
    try:
        value, end = _scan_json(text, 0)  # looking for spaces around it takes as long again
    except (StopIteration, ValueError, RecursionError):
        end = -1
    if end == len(text):
        return value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


Operand = Callable[[FilteredRecord], Any]
Path = tuple[str | int, ...]
"""A field of a record, and the steps into it: ``("value", "items", 0)``."""


class RecordFilter(NamedTuple):
    """Whether a record matches; ``paths`` are those that it looks at."""

    matches: Callable[[FilteredRecord], bool]
    paths: frozenset[Path]

    def __call__(self, record: FilteredRecord) -> bool:
        """Whether it matches."""
        return self.matches(record)


class RecordPart(NamedTuple):
    """A part of records by its name, such as ``value.items[0]``."""

    name: str
    path: Path
    part: Operand


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse_filter(text: str) -> RecordFilter:
    """Whether a record matches. Raises FilterError."""
    return _Parser(text).whole()


def parse_columns(text: str) -> list[RecordPart]:
    """Parts of records, as ``value.price, headers.source`` names them; raises FilterError."""
    return _Parser(text).columns() if text else []


def path_text(path: Path) -> str:
    """As a filter names it."""
    first, *steps = path
    return str(first) + "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" if _NAME.fullmatch(step) else f"[{literal_text(step)}]"
        for step in steps
    )


def literal_text(value: str | float | bool | None) -> str:
    """A value as a filter compares with it."""
    if not isinstance(value, str):
        return json.dumps(value)
    return "'" + re.sub(r"(['\"\\])", r"\\\1", value) + "'"


class _Parser:
    """By recursive descent, as deep as DEPTH_MAX."""

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise FilterError(f"a filter has at most {LENGTH_MAX} characters")
        self._tokens: list[_Token] = []
        self._paths: set[Path] = set()
        self._at = self._nodes = self._depth = self._instructions = 0
        end, text = 0, text.rstrip()
        while end < len(text):
            match = _TOKEN.match(text, end)
            if match is None or match.lastgroup is None:
                left = text[end:].lstrip()
                raise FilterError(f"character {len(text) - len(left) + 1}: {left[:20]!r} is not understood")
            self._tokens.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup) + 1))
            end = match.end()
        self._end = _Token("end", "", len(text) + 1)

    def whole(self) -> RecordFilter:
        either = self._either()
        if self._next.kind != "end":
            raise self._wrong("&& or || or the end")
        return RecordFilter(either, frozenset(self._paths))

    def columns(self) -> list[RecordPart]:
        columns: list[RecordPart] = []
        while not columns or self._takes(","):
            self._paths.clear()
            part = self._operand()
            if not self._paths:
                raise FilterError(f"a column is a part of {', '.join(FIELDS)}")
            (path,) = self._paths
            columns.append(RecordPart(path_text(path), path, part))
        if self._next.kind != "end":
            raise self._wrong(", or the end")
        return columns

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else self._end

    def _wrong(self, wanted: str) -> FilterError:
        there = repr(self._next.text[:40]) if self._next.text else "the end"
        return FilterError(f"character {self._next.at}: {wanted} is expected, there is {there}")

    def _takes(self, *marks: str) -> str:
        """The mark or word if it is one of these, which is passed; empty otherwise."""
        if self._next.kind not in {"mark", "word"} or self._next.text not in marks:
            return ""
        self._at += 1
        return self._tokens[self._at - 1].text

    def _spend(self) -> None:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise FilterError(f"a filter has at most {NODES_MAX} fields, values and comparisons")

    def _either(self) -> Callable[[FilteredRecord], bool]:
        parts = [self._both()]
        while self._takes("||"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda record: any(part(record) for part in parts)

    def _both(self) -> Callable[[FilteredRecord], bool]:
        parts = [self._one()]
        while self._takes("&&"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else lambda record: all(part(record) for part in parts)

    def _one(self) -> Callable[[FilteredRecord], bool]:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise FilterError(f"a filter is at most {DEPTH_MAX} deep")
        try:
            if self._takes("!"):
                inner = self._one()
                return lambda record: not inner(record)
            if self._takes("("):
                inner = self._either()
                if not self._takes(")"):
                    raise self._wrong(")")
                return inner
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Callable[[FilteredRecord], bool]:
        begin = self._at
        left = self._operand()
        how = self._takes("==", "!=", *_ORDERS, *_TEXTS, "matches")
        if not how:
            return lambda record: left(record) not in (None, False)
        self._spend()
        if how == "matches":
            return _matches(left, self._literal_text(), lambda: self._instructions)
        behind = self._at
        right = self._operand()
        if "time" in {self._whole_field(begin, behind - 1), self._whole_field(behind, self._at)}:
            left, right = _moments(left), _moments(right)
        if how in _TEXTS:
            return _texts(_TEXTS[how], left, right)
        if how in _ORDERS:
            return _ordered(_ORDERS[how], left, right)
        equal = how == "=="
        return lambda record: _equal(left(record), right(record)) == equal

    def _whole_field(self, begin: int, end: int) -> str:
        """The name of a field without a path between these tokens."""
        return self._tokens[begin].text if end == begin + 1 and self._tokens[begin].kind == "word" else ""

    def _operand(self) -> Operand:
        self._spend()
        token = self._next
        constant: Any
        if token.kind == "number":
            constant = _number(token.text)
        elif token.kind == "text":
            constant = _unquoted(token)
        elif token.kind == "word" and token.text in _CONSTANTS:
            constant = _CONSTANTS[token.text]
        elif token.kind == "word" and token.text in FIELDS:
            self._at += 1
            path = self._path()
            self._paths.add((token.text, *path))
            return _field(token.text, path)
        else:
            raise self._wrong(f"{', '.join(FIELDS)}, a number or a 'text'")
        self._at += 1
        return lambda _: constant

    def _literal_text(self) -> Any:
        token = self._next
        if token.kind != "text":
            raise self._wrong("an 'expression'")
        text = _unquoted(token)
        if len(text) > EXPRESSION_MAX:
            raise FilterError(f"an expression has at most {EXPRESSION_MAX} characters")
        self._at += 1
        try:
            expression = regular_expression(text)
        except ValueError as error:
            raise FilterError(f"character {token.at}: {error}") from None
        self._instructions += expression.programsize
        if self._instructions > INSTRUCTIONS_MAX:
            raise FilterError(
                f"character {token.at}: the expressions so far have {self._instructions} instructions together, of at"
                f" most {INSTRUCTIONS_MAX}: repeat less, and name smaller classes of characters"
            )
        return expression

    def _path(self) -> list[str | int]:
        steps: list[str | int] = []
        while mark := self._takes(".", "["):
            self._spend()
            token = self._next
            if mark == "." and token.kind != "word":
                raise self._wrong("a name (others stand in ['...'])")
            if mark == "[" and token.kind != "text" and not (token.kind == "number" and token.text.isdecimal()):
                raise self._wrong("a number or a 'text'")
            self._at += 1
            steps.append(_unquoted(token) if token.kind == "text" else int(token.text) if mark == "[" else token.text)
            if mark == "[" and not self._takes("]"):
                raise self._wrong("]")
        return steps


def _unquoted(token: _Token) -> str:
    """A backslash stands before a quote or another; before others it stays: it is an expression's."""
    return re.sub(r"\\(['\"\\])", r"\1", token.text[1:-1])


def _field(name: str, path: list[str | int]) -> Operand:
    if not path:
        return operator.attrgetter(name)
    if name not in {"key", "value", "headers"}:
        raise FilterError(f"{name} has no parts")

    def part(record: FilteredRecord) -> Any:
        at = record.inner(name)
        for step in path:
            if isinstance(at, dict):
                at = at.get(str(step))
            elif isinstance(at, list) and isinstance(step, int) and step < len(at):
                at = at[step]
            else:
                return None
        return at

    return part


def _moments(operand: Operand) -> Operand:
    """Beside the field ``time`` a text is a time."""
    try:
        constant = operand(FilteredRecord("", 0, 0, 0, None, None, ()))
        if not isinstance(constant, str) or not constant:
            return operand
        moment = parse_moment(constant)
    except ValueError as error:
        raise FilterError(f"{error}: a time is like '2026-01-31T12:00', '@1769860800000' or '-1h'") from None
    return lambda _: moment


def _number(value: Any) -> Any:
    """A text as the number that it spells, anything else as it is."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    return float(value) if any(mark in value for mark in ".eE") else int(value)


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    if isinstance(left, int | float) and not isinstance(left, bool):
        return left, _number(right)
    if isinstance(right, int | float) and not isinstance(right, bool):
        return _number(left), right
    return left, right


def _equal(left: Any, right: Any) -> bool:
    if type(left) is type(right):
        return bool(left == right)
    left, right = _alike(left, right)
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _ordered(compare: Callable[[Any, Any], bool], one: Operand, other: Operand) -> Callable[[FilteredRecord], bool]:
    def matches(record: FilteredRecord) -> bool:
        left, right = one(record), other(record)
        if type(left) in _PLAIN_NUMBERS and type(right) in _PLAIN_NUMBERS:
            return compare(left, right)
        left, right = _alike(left, right)
        both_text = isinstance(left, str) and isinstance(right, str)
        both_number = isinstance(left, int | float) and isinstance(right, int | float)
        return (both_text or both_number) and compare(left, right)

    return matches


def _texts(compare: Callable[[str, str], bool], one: Operand, other: Operand) -> Callable[[FilteredRecord], bool]:
    def matches(record: FilteredRecord) -> bool:
        left, right = one(record), other(record)
        if isinstance(left, list) and compare is _TEXTS["contains"]:
            return any(_equal(item, right) for item in left)
        if isinstance(left, dict) and compare is _TEXTS["contains"]:
            return right in left if isinstance(right, str) else False
        return isinstance(left, str) and isinstance(right, str) and compare(left, right)

    return matches


def _matches(one: Operand, expression: Any, instructions: Callable[[], int]) -> Callable[[FilteredRecord], bool]:
    """``instructions``: of all expressions of the filter, since each of them may look at the same text."""

    def matches(record: FilteredRecord) -> bool:
        text = one(record)
        if not isinstance(text, str):
            return False
        if len(text) * instructions() > STEPS_MAX:
            raise FilterError(
                f"{record.topic}-{record.partition}, offset {record.offset}: a text of {len(text)} characters is too"
                f" long for expressions of {instructions()} instructions, which take"
                f" {STEPS_MAX // instructions()} at most"
            )
        # half of a surrogate pair, which JSON may name, is no character
        return expression.search(text.encode(errors="replace").decode()) is not None

    return matches
