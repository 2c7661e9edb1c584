"""Options of source and sink: each is declared once, with the reader of its text and its default.

Spark hands options over with lower-cased names, so names are compared in lower case; messages use the documented
spelling. A reader checks the bounds. OptionError names the option and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.kafka_names import KAFKA_PREFIX, KNOWN, nearest, warn_without_effect

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

Reader = Callable[[str, str], Any]
"""(name of the option, its text) -> its value. Raises OptionError."""


def any_text(name: str, text: str) -> str:
    """The text as it is."""
    return text


def boolean(name: str, text: str) -> bool:
    """``true`` or ``false`` in any case."""
    if text.lower() not in ("true", "false"):
        raise OptionError(f"option {name}: {text!r} is neither true nor false")
    return text.lower() == "true"


def whole_number(low: int = 0, high: int = INT32_MAX) -> Reader:
    """A reader of whole numbers from ``low`` to ``high``, both included."""

    def read(name: str, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise OptionError(f"option {name}: {text!r} is not a whole number") from None
        if number < low:
            raise OptionError(f"option {name}: {number} is below {low}")
        if number > high:
            raise OptionError(f"option {name}: {number} is above {high}")
        return number

    return read


def one_of(*choices: str) -> Reader:
    """A reader of one of several words, in any case; the value has the spelling of ``choices``."""
    by_key = {choice.lower(): choice for choice in choices}
    listed = " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))

    def read(name: str, text: str) -> str:
        word = by_key.get(text.lower())
        if word is None:
            raise OptionError(f"option {name}: {text!r} is not {listed}")
        return word

    return read


@dataclass(frozen=True)
class Option:
    """An option. ``required``: why it can't be left out; a blank text counts as left out then."""

    name: str
    read: Reader = any_text
    default: Any = None
    required: str = ""

    def of(self, given: Mapping[str, str]) -> Any:
        """The option's value among options of lower-case names. Raises OptionError."""
        text = given.get(self.name.lower())
        if self.required and not (text or "").strip():
            raise OptionError(f"option {self.name} is required: {self.required}")
        return self.default if text is None else self.read(self.name, text)


class OptionTable:
    """The options of a reader or a writer.

    ``refused``: names that can't be set, and what to do. ``ignored``: accepted without effect, and why; a reason is
    logged. ``user``: what the options are of, for that line. With ``kafka`` every other ``kafka.*`` option is a setting
    of the connection.
    """

    def __init__(
        self,
        *options: Option,
        refused: Mapping[str, str] | None = None,
        ignored: Mapping[str, str] | None = None,
        kafka: bool = True,
        user: str = "",
    ) -> None:
        self._options = options
        self._refused = dict(refused or {})
        self._ignored = dict(ignored or {})
        self._known = {name.lower() for name in (*(option.name for option in options), *self._ignored, *self._refused)}
        self._kafka = kafka
        self._user = user
        names = [option.name for option in options if not (kafka and option.name.startswith(KAFKA_PREFIX))]
        self._listed = ", ".join([*(["kafka.*"] if kafka else []), *sorted(names)])
        self._candidates = [*names, *((KAFKA_PREFIX + name for name in KNOWN) if kafka else ())]

    def parse(self, options: Mapping[str, str], *, warn: bool = True) -> dict[str, Any]:
        """Every option's value by its documented name. ``warn``: log those without effect. Raises OptionError."""
        given = lowered(options)
        for name in options:
            if name.lower() not in self._known and not (self._kafka and name.lower().startswith(KAFKA_PREFIX)):
                hint = nearest(name, self._candidates)
                raise OptionError(f"option {name} is unknown{hint}; known are {self._listed}")
        for name, reason in self._refused.items():
            if name.lower() in given:
                raise OptionError(f"option {name} can't be set: {reason}")
        for name, reason in self._ignored.items():
            if warn and reason and name.lower() in given:
                warn_without_effect(name, self._user, reason)
        return {option.name: option.of(given) for option in self._options}


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """The options by lower-cased name, values as text."""
    return {name.lower(): str(value) for name, value in options.items()}
