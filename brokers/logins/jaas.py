"""The one line of ``sasl.jaas.config``, read as text: nothing that it names is ever loaded.

``<module> <flag> key="value" key="value";`` with one of three module names. Errors quote no option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

_USER_PREFIX: Final = "user_"
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_SPACE: Final = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_TOKEN: Final = re.compile(
    r"""(?P<mark>[=;])|"(?P<double>(?:[^"\\\n]|\\.)*)"|'(?P<single>(?:[^'\\\n]|\\.)*)'|(?P<word>[\w.$-]+)"""
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{2}|[0-7]{1,2}|.)")
_CONTROLS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class LoginModule(Enum):
    """The modules that may be named; values are their class names in Java."""

    PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
    SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
    OAUTHBEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


class BadJaasLine(ValueError):
    """The line cannot be read; the text holds no option and no value."""


@dataclass(frozen=True, slots=True, repr=False)
class JaasLine:
    """A module and its options. Not shown by ``repr``: options are passwords."""

    module: LoginModule
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"JaasLine({self.module.name})"

    @property
    def passwords(self) -> dict[str, str]:
        """The users that a broker accepts with PLAIN: options ``user_<name>="<password>"``."""
        options = self.options.items()
        return {name.removeprefix(_USER_PREFIX): text for name, text in options if name.startswith(_USER_PREFIX)}

    @property
    def login(self) -> tuple[str, str] | None:
        """``username`` and ``password``, which this side logs in with; None if one of them is missing or empty."""
        user, password = self.options.get("username", ""), self.options.get("password", "")
        return (user, password) if user and password else None


class _Token(str):
    """A word, a quoted text or a mark."""

    __slots__ = ("mark",)
    mark: bool


def _tokens(text: str) -> list[_Token]:
    tokens, at = [], _SPACE.match(text, 0).end()  # type: ignore[union-attr]  # matches nothing at least
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadJaasLine("a quote is not closed, or there is a character that must stand in quotes")
        kind = str(match.lastgroup)
        token = _Token(match[kind] if kind in {"mark", "word"} else _unescaped(match[kind]))
        token.mark = kind == "mark"
        tokens.append(token)
        at = _SPACE.match(text, match.end()).end()  # type: ignore[union-attr]
    return tokens


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code, 8)) if code[0] in "01234567" else _CONTROLS.get(code, code)

    return _ESCAPE.sub(plain, text)


def parse_jaas(text: str) -> JaasLine:
    """Raises BadJaasLine where the line isn't one entry of one of the three modules."""
    tokens = _tokens(text)
    if not tokens:
        raise BadJaasLine("it is empty")
    names = ", ".join(module.value for module in LoginModule)
    module = next((one for one in LoginModule if one.value == tokens[0]), None)
    if module is None or tokens[0].mark:
        raise BadJaasLine(f"the login module must be one of {names}; no other is supported")
    if len(tokens) < 2 or tokens[1].lower() not in _FLAGS:
        raise BadJaasLine("the login module must be followed by 'required'")
    options: dict[str, str] = {}
    at = 2
    while at < len(tokens) and not (tokens[at].mark and tokens[at] == ";"):
        key, equals, value = (*tokens[at : at + 3], None, None)[:3]
        if equals is None or value is None or not equals.mark or equals != "=" or tokens[at].mark or value.mark:
            raise BadJaasLine(f'option {(at + 1) // 3} is not written as key="value"')
        if key is None or key in options:
            raise BadJaasLine(f"option {(at + 1) // 3} is given twice")
        options[str(key)] = str(value)
        at += 3
    if at != len(tokens) - 1:
        raise BadJaasLine("it must end with one semicolon, and contain one login module only")
    return JaasLine(module, options)
