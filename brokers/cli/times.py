"""Positions in a topic as users write them: ``beginning`` (rpk's ``start``), ``end``, an offset, a time, a duration."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_SHORT = re.compile(r"([0-9]{1,15}(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_ISO_DURATION = re.compile(
    r"P(?:(?P<w>[0-9]{1,6})W)?(?:(?P<d>[0-9]{1,6})D)?"
    r"(?:T(?:(?P<h>[0-9]{1,9})H)?(?:(?P<m>[0-9]{1,9})M)?(?:(?P<s>[0-9]{1,12}(?:\.[0-9]+)?)S)?)?",
    re.IGNORECASE,
)
DATE_DIGITS, MILLISECOND_DIGITS = 8, 12
"""Of a date without dashes, and the fewest of milliseconds since 1970, which have had as many since 1973."""
_NO_DURATION = "is not a duration such as 90s, 1h30m or PT1H30M"


class Point(NamedTuple):
    """``kind`` is beginning, end, before_end, offset or timestamp; ``value`` the offset, how many offsets before the
    end, or the milliseconds since the epoch."""

    kind: str
    value: int = -1


def parse_time(text: str) -> int:
    """ISO 8601 (without a zone: UTC), with ``@`` or not, or ``@`` and milliseconds; returns milliseconds, raises
    ValueError.

    Digits alone are a date (``20260131``), or, behind ``@``, twelve and more of them milliseconds since 1970.
    """
    digits = text.removeprefix("@")
    if re.fullmatch("[0-9]+", digits) and len(digits) != DATE_DIGITS:
        if digits == text or not MILLISECOND_DIGITS <= len(digits) <= 18:
            raise ValueError(
                f"{text!r} is neither a date nor milliseconds, which have {MILLISECOND_DIGITS} digits or more"
            )
        return int(digits)
    moment = datetime.fromisoformat(digits)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_moment(text: str) -> int:
    """A time, or ``-1h``: so long before now; returns milliseconds, raises ValueError."""
    ago = text.removeprefix("@")
    if not ago.startswith("-"):
        return parse_time(text)
    return max(time.time_ns() // 1_000_000 - parse_duration(ago[1:]), 0)


def parse_duration(text: str) -> int:
    """``90s``, ``1h30m`` or ISO 8601 (``PT1H30M``) in milliseconds; raises ValueError."""
    short = _SHORT.findall(text)
    if short and "".join(number + unit for number, unit in short) == text:
        return round(sum(float(number) * _UNITS_MS[unit] for number, unit in short))
    iso = _ISO_DURATION.fullmatch(text)
    if iso and any(iso.groups()):
        return round(sum(float(number) * _UNITS_MS[unit] for unit, number in iso.groupdict().items() if number))
    raise ValueError(f"{text!r} {_NO_DURATION}")


def parse_point(text: str) -> Point:
    """A position in a partition; raises ValueError."""
    if text in {"beginning", "start", "end"}:
        return Point("end" if text == "end" else "beginning")
    if re.fullmatch("[0-9]{1,18}", text):
        return Point("offset", int(text))
    if re.fullmatch("(end)?-[0-9]{1,18}", text):
        return Point("before_end", int(text.partition("-")[2]))
    return Point("timestamp", parse_moment(text))


if TYPE_CHECKING:  # click's types are generic in its stubs, and at run time from 8.2 on only
    _Base = click.ParamType[Any]
else:
    _Base = click.ParamType


class _ParsedType(_Base):
    """Option type of a text that ``parse`` reads; ``wrong`` says what is wrong with one that it does not take."""

    parse: Callable[[str], Any]
    wrong: str

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """By click."""
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError:
            at_digits = re.fullmatch("@[0-9]+", value)
            more = f"; milliseconds have {MILLISECOND_DIGITS} digits or more" if at_digits else ""
            self.fail(f"{value!r} {self.wrong}{more}", param, ctx)


class PointType(_ParsedType):
    """Option type of positions in a partition."""

    name, parse = "point", staticmethod(parse_point)
    wrong = (
        "is neither 'beginning', 'end', 'end-10', an offset, nor a time (2013-01-31T12:00, @20130131, @1359633600000, "
        "-1h)"
    )


class TimeType(_ParsedType):
    """Option type of a time, in milliseconds since the epoch."""

    name, parse = "time", staticmethod(parse_time)
    wrong = "is not a time such as 2013-01-31T12:00, 20130131 or @1359633600000"


class DurationType(_ParsedType):
    """Option type of a duration, in milliseconds."""

    name, parse, wrong = "duration", staticmethod(parse_duration), _NO_DURATION
