"""Points in time as people write them, on a machine whose own zone is another."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click
import pytest

from fleetlog.brokers.cli.times import Point, PointType, parse_moment, parse_point, parse_time


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T01:00", 3600),
        ("1970-01-01T01:00Z", 3600),
        ("1970-01-01T01:00+01:00", 0),
        ("1970-01-02", 86400),
        ("@000000001000", 1),
        ("@19700102", 86400),
        ("19700102", 86400),
        ("@19700102T00", 86400),
        ("@1769860800000", 1769860800),
    ],
)
def test_a_time_without_a_zone_is_utc_wherever_the_command_runs(elsewhere: None, text: str, seconds: int) -> None:
    assert parse_time(text) == seconds * 1000


@pytest.mark.parametrize(
    "text",
    ["@1000", "@1769860800", "@20260101123", "@2026", "@20261301", "@", "@@20260101", "@" + "9" * 19, "20260101123",
     "1769860800000", "@-20260101", "@20260101 "],
)  # fmt: skip
def test_digits_that_are_neither_a_date_nor_milliseconds_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"neither|[Ii]nvalid|must be"):
        parse_time(text)


def test_a_date_without_dashes_is_no_moment_of_1970() -> None:
    assert parse_point("@20260101") == parse_point("2026-01-01") == Point("timestamp", 1_767_225_600_000)
    assert parse_moment("@20260101") == 1_767_225_600_000
    assert parse_point("20260101") == Point("offset", 20_260_101)
    with pytest.raises(click.BadParameter, match="12 digits or more"):
        PointType().convert("@1769860800", None, None)


def test_the_words_of_other_command_lines_for_the_two_ends() -> None:
    assert parse_point("start") == parse_point("beginning")
    assert parse_point("end") != parse_point("start")
