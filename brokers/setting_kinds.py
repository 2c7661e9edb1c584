"""What a setting is: one declaration from which parsing, validation, DescribeConfigs, ``--help`` and docs are derived.

The property's name is the attribute's with dots for underscores; Kafka's names never contain an underscore.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")


HIDDEN = "[hidden]"
_SECRET = re.compile(
    r"jaas|sasl.*\.conf|pass(?!word\.encoder\.[cik])|pasw|pwd|secret|creden(?!tials\.client\.id$)|(^|\.)key$"
    r"|keystore\.k|\.certificate|user\.info$|^(user_|username)|-----BEGIN|://[^/\s]*@"
    r"|authorization[\"']?\s*[:=]|\bbearer\s+[\w~+/.-]{20,}|\beyJ[\w-]{8,}\.",  # of HTTP, and tokens
    re.IGNORECASE,
)
_PATH = re.compile(r"(file://)?/[\w./+-]*")


def secret(text: str) -> bool:
    """Whether a setting's name, perhaps misspelt, its value or a line of a file looks like one with a secret."""
    return _SECRET.search(text) is not None


class ConfigError(ValueError):
    """A setting that cannot be used. ``str()`` says which one, its value unless secret, what is allowed, where."""

    def __init__(self, name: str, value: str, allowed: str, where: str = "") -> None:
        place = f"{where}: " if where else ""
        if value and (secret(name) or (secret(value) and not _PATH.fullmatch(value))):
            value = HIDDEN
        super().__init__(f"{place}{name}={value!r}: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed
        self.where = where


class SettingType(IntEnum):
    """Kafka's types, numbered as DescribeConfigs v3+ sends them."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Setting(NamedTuple):
    """One setting. ``live`` ones may change without a restart; ``inert`` ones are Kafka's and do nothing here.

    ``retired`` ones, which Kafka itself no longer has, are listed only where they are set. ``shown_as`` is the type
    that DescribeConfigs shows where Kafka calls a list a string; an ``unset`` default is shown as null, as Kafka has
    it. ``synonym`` of a topic setting is the broker setting that gives its default. ``pattern`` is a regular expression
    that the value, or each item of a list, must match as a whole; ``doc`` then says what it means.
    """

    name: str
    type: SettingType
    default: Any
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    live: bool = False
    inert: bool = False
    synonym: str = ""
    pattern: str = ""
    retired: bool = False
    shown_as: SettingType | None = None
    unset: bool = False

    def parse(self, text: str, where: str = "") -> Any:
        """The typed value of a property's text; raises ConfigError that says what is allowed."""
        text = text.strip()
        kind = self.type
        if kind is SettingType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise ConfigError(self.name, text, "must be true or false", where)
            self._check_choice(text.lower(), text, where)
            return text.lower() == "true"
        if kind in (SettingType.INT, SettingType.SHORT, SettingType.LONG, SettingType.DOUBLE):
            return self._parse_number(text, where)
        if kind is SettingType.LIST:
            items = tuple(item.strip() for item in text.split(",") if item.strip())
            for item in items:
                self._check_choice(item, text, where)
            return items
        self._check_choice(text, text, where)
        return text

    def _parse_number(self, text: str, where: str) -> int | float:
        bits = {SettingType.SHORT: 15, SettingType.INT: 31}.get(self.type, 63)
        number = _DECIMAL if self.type is SettingType.DOUBLE else _WHOLE
        if number.fullmatch(text) is None:
            raise ConfigError(self.name, text, f"must be a number ({self.allowed()})", where)
        value: int | float = float(text) if self.type is SettingType.DOUBLE else int(text)
        low: float = -(2**bits) if self.low is None else self.low
        high: float = 2**bits - 1 if self.high is None else self.high
        if self.type is SettingType.DOUBLE and self.high is None:
            high = sys.float_info.max
        if value < low:
            raise ConfigError(self.name, text, f"must be at least {low}", where)
        if value > high:
            raise ConfigError(self.name, text, f"must be at most {high}", where)
        self._check_choice(text, text, where)
        return value

    def _check_choice(self, item: str, text: str, where: str) -> None:
        if self.choices and item not in self.choices:
            raise ConfigError(self.name, text, f"must be {self.allowed()}", where)
        if self.pattern and re.fullmatch(self.pattern, item) is None:
            raise ConfigError(self.name, text, f"{item!r} can't stand there ({self.doc})", where)

    def allowed(self) -> str:
        """What may stand there, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.low is not None and self.high is not None:
            return f"from {self.low} to {self.high}"
        if self.low is not None:
            return f"at least {self.low}"
        if self.high is not None:
            return f"at most {self.high}"
        return {SettingType.LIST: "a list with commas"}.get(self.type, f"a {self.type.name.lower()}")

    def format(self, value: Any) -> str | None:
        """The property's text of a typed value; None for an unset one."""
        if value is None or (self.unset and value == self.default):
            return None
        if self.type is SettingType.BOOLEAN:
            return "true" if value else "false"
        if self.type is SettingType.LIST:
            return ",".join(value)
        if self.type is SettingType.DOUBLE:
            return str(value).replace("e+", "E")  # as Java writes it
        return str(value)


def setting(kind: SettingType, default: Any, doc: str, **more: Any) -> Any:
    """A dataclass field that declares a setting; ``more`` are other fields of its row.

    The table is read off the dataclass by :func:`table_of`.
    """
    return field_of(Setting("", kind, default, doc, **more))


def field_of(row: Setting) -> Any:
    """A dataclass field that declares a setting as another row has it, whatever that one is called."""
    return dataclasses.field(default=row.default, metadata={"setting": row})


def table_of(config_class: type) -> dict[str, Setting]:
    """All settings declared by a dataclass, by property name."""
    rows = {}
    for item in dataclasses.fields(config_class):
        row: Setting | None = item.metadata.get("setting")
        if row is not None:
            name = item.name.replace("_", ".")
            rows[name] = row._replace(name=name)
    return rows


def attribute(name: str) -> str:
    """The attribute that holds a property."""
    return name.replace(".", "_")


def resembling(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known name of which ``name`` (its first 200 characters) looks like a misspelling, if there is one."""
    import difflib

    close = difflib.get_close_matches(name[:200], list(known), n=1, cutoff=likeness)
    return close[0] if close else None


def suggest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name, or an empty string."""
    close = resembling(name, known)
    return f"; did you mean {close}?" if close else ""


def without_effect(values: Mapping[str, str | None], table: Mapping[str, Setting]) -> list[str]:
    """Names, sorted, of the values that change nothing here: of an inert or unknown setting, and not its default."""
    ignored = []
    for name, value in values.items():
        row = table.get(name)
        if row is None or (row.inert and value != row.format(row.default)):
            ignored.append(name)
    return sorted(ignored)
