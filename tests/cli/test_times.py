"""Points in time as people write them, on a machine whose own zone is another."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fleetlog.brokers.cli.times import parse_point, parse_time


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
        ("@1000", 1),
    ],
)
def test_a_time_without_a_zone_is_utc_wherever_the_command_runs(elsewhere: None, text: str, seconds: int) -> None:
    assert parse_time(text) == seconds * 1000


def test_the_words_of_other_command_lines_for_the_two_ends() -> None:
    assert parse_point("start") == parse_point("beginning")
    assert parse_point("end") != parse_point("start")
