"""What a setting is: one declaration from which parsing, validation, DescribeConfigs, ``--help`` and docs are derived.

The property's name is the attribute's with dots for underscores; Kafka's names never contain an underscore.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple


class ConfigError(ValueError):
    """A setting that cannot be used. ``str()`` says which one, its value, what is allowed, and where it stands."""

    def __init__(self, name: str, value: str, allowed: str, where: str = "") -> None:
        place = f"{where}: " if where else ""
        super().__init__(f"{place}{name}={value!r}: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed


class SettingType(IntEnum):
    """Kafka's types, numbered as DescribeConfigs v3+ sends them."""

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

    ``synonym`` of a topic setting is the broker setting that gives its default. ``pattern`` is a regular expression
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

    def parse(self, text: str, where: str = "") -> Any:
        """The typed value of a property's text; raises ConfigError that says what is allowed."""
        text = text.strip()
        kind = self.type
        if kind is SettingType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise ConfigError(self.name, text, "must be true or false", where)
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
        try:
            value: int | float = float(text) if self.type is SettingType.DOUBLE else int(text)
        except ValueError:
            raise ConfigError(self.name, text, f"must be a number ({self.allowed()})", where) from None
        low = -(2**bits) if self.low is None else self.low
        high = 2**bits - 1 if self.high is None else self.high
        if not low <= value <= high:
            raise ConfigError(self.name, text, f"must be {self.allowed()}", where)
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
        if value is None:
            return None
        if self.type is SettingType.BOOLEAN:
            return "true" if value else "false"
        if self.type is SettingType.LIST:
            return ",".join(value)
        return str(value)


def setting(
    kind: SettingType,
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    live: bool = False,
    inert: bool = False,
    synonym: str = "",
    pattern: str = "",
) -> Any:
    """A dataclass field that declares a setting; the table is read off the dataclass by :func:`table_of`."""
    row = Setting("", kind, default, doc, low, high, choices, live, inert, synonym, pattern)
    return dataclasses.field(default=default, metadata={"setting": row})


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


def suggest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name, or an empty string."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
