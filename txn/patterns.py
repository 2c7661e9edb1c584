"""Regular expressions of untrusted clients, matched in time proportional to the text, without backtracking.

ListTransactions v2 filters ids by a pattern of the client (Kafka uses RE2 for it). In Python's engine twenty characters
can cause minutes of backtracking, so only its parser is used: the parsed pattern becomes a small automaton whose set of
states advances along the text. Groups, classes, alternatives, repetitions and anchors work; look-around and
back-references are rejected, as by RE2.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

__all__ = ["BadPattern", "Pattern"]

MAX_PATTERN = 1_000
MAX_STATES = 2_000
MAX_WORK = 3_000_000
"""The most steps of one pattern over all texts: about a second."""
_Test = Callable[[str], bool]

_CATEGORIES: dict[Any, _Test] = {
    sre.CATEGORY_DIGIT: lambda c: c in "0123456789",
    sre.CATEGORY_NOT_DIGIT: lambda c: c not in "0123456789",
    sre.CATEGORY_SPACE: lambda c: c in "\t\n\f\r ",
    sre.CATEGORY_NOT_SPACE: lambda c: c not in "\t\n\f\r ",
    sre.CATEGORY_WORD: lambda c: c == "_" or (c.isascii() and c.isalnum()),
    sre.CATEGORY_NOT_WORD: lambda c: not (c == "_" or (c.isascii() and c.isalnum())),
}
_START = frozenset({sre.AT_BEGINNING, sre.AT_BEGINNING_STRING})
_END = frozenset({sre.AT_END, sre.AT_END_STRING})


class BadPattern(ValueError):
    """Not a regular expression, or one of an unsupported kind or size."""


class Pattern:
    """A compiled pattern; ``matches`` applies to the whole text. Both raise BadPattern."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_PATTERN:
            raise BadPattern(f"a pattern of {len(text)} characters")
        try:
            parsed = parser.parse(text)
        except (re.error, OverflowError, RecursionError, ValueError) as error:
            raise BadPattern(str(error)) from error
        if parsed.state.flags & ~re.UNICODE.value:
            raise BadPattern("flags are not supported")
        # state -> (test, next state); a test of None is a free step, of True/False an anchor (start/end of the text)
        self._steps: list[list[tuple[_Test | bool | None, int]]] = []
        start, end = self._state(), self._state()
        try:
            self._build(parsed, start, end)
        except RecursionError as error:
            raise BadPattern("nested too deeply") from error
        self._start, self._end = start, end
        self._work_left = MAX_WORK

    def matches(self, text: str) -> bool:
        """Whether the pattern matches the whole text."""
        states = self._closure({self._start: None}, 0, len(text))
        for position, character in enumerate(text, 1):
            reached: dict[int, None] = {}
            self._work_left -= 1 + len(states)
            if self._work_left < 0:
                raise BadPattern("takes too long")
            for state in states:
                for test, target in self._steps[state]:
                    if callable(test) and test(character):
                        reached[target] = None
            if not reached:
                return False
            states = self._closure(reached, position, len(text))
        return self._end in states

    def _closure(self, states: dict[int, None], position: int, length: int) -> dict[int, None]:
        seen = dict(states)
        todo = list(states)
        while todo:
            for test, target in self._steps[todo.pop()]:
                free = test is None or (test is True and position == 0) or (test is False and position == length)
                if free and target not in seen:
                    seen[target] = None
                    todo.append(target)
        return seen

    # ---- building --------------------------------------------------------------------------------------------------

    def _state(self) -> int:
        if len(self._steps) >= MAX_STATES:
            raise BadPattern("too large")
        self._steps.append([])
        return len(self._steps) - 1

    def _build(self, nodes: Any, start: int, end: int) -> None:
        at = start
        for kind, argument in nodes:
            after = self._state()
            self._node(kind, argument, at, after)
            at = after
        self._steps[at].append((None, end))

    def _node(self, kind: Any, argument: Any, start: int, end: int) -> None:
        if kind is sre.SUBPATTERN:
            _group, added, removed, inner = argument
            if added or removed:
                raise BadPattern("flags are not supported")
            self._build(inner, start, end)
        elif kind is sre.BRANCH:
            for branch in argument[1]:
                self._build(branch, start, end)
        elif kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            self._repeat(argument, start, end)
        elif kind is sre.AT and argument in _START:
            self._steps[start].append((True, end))
        elif kind is sre.AT and argument in _END:
            self._steps[start].append((False, end))
        else:
            self._steps[start].append((_single(kind, argument), end))

    def _repeat(self, argument: tuple[int, Any, Any], start: int, end: int) -> None:
        least, most, inner = argument
        at = start
        for _ in range(least):
            after = self._state()
            self._build(inner, at, after)
            at = after
        if most is sre.MAXREPEAT:
            loop = self._state()
            self._steps[at].append((None, loop))
            self._build(inner, loop, loop)
            self._steps[loop].append((None, end))
            return
        self._steps[at].append((None, end))
        for _ in range(most - least):
            after = self._state()
            self._build(inner, at, after)
            self._steps[after].append((None, end))
            at = after


def _single(kind: Any, argument: Any) -> _Test:
    """The test of one character."""
    if kind is sre.LITERAL:
        literal = chr(argument)
        return lambda c: c == literal
    if kind is sre.NOT_LITERAL:
        literal = chr(argument)
        return lambda c: c != literal
    if kind is sre.ANY:
        return lambda c: c != "\n"
    if kind is sre.IN:
        return _class(argument)
    raise BadPattern(f"{str(kind).lower()} is not supported")


def _class(items: list[tuple[Any, Any]]) -> _Test:
    tests: list[_Test] = []
    negated = False
    for kind, argument in items:
        if kind is sre.NEGATE:
            negated = True
        elif kind is sre.RANGE:
            tests.append(_range(chr(argument[0]), chr(argument[1])))
        elif kind is sre.CATEGORY and argument in _CATEGORIES:
            tests.append(_CATEGORIES[argument])
        else:
            tests.append(_single(kind, argument))
    return lambda c: any(test(c) for test in tests) is not negated


def _range(low: str, high: str) -> _Test:
    return lambda c: low <= c <= high
