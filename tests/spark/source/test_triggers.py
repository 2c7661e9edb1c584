"""When a micro-batch waits, and how its tasks are cut."""

from __future__ import annotations

import pytest

from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.source.offsets import Range, split_ranges
from fleetlog.spark.source.triggers import TriggerDelay, duration_ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [("250", 250), ("250ms", 250), ("30s", 30_000), ("15m", 900_000), ("15 min", 900_000), ("1H", 3_600_000),
     ("2d", 172_800_000)],
)  # fmt: skip
def test_durations_are_those_of_spark(text: str, expected: int) -> None:
    assert duration_ms("maxTriggerDelay", text) == expected


@pytest.mark.parametrize("text", ["", "s", "-5s", "5 weeks", "1.5h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"option maxTriggerDelay: .* is not a duration"):
        duration_ms("maxTriggerDelay", text)


def test_a_batch_of_few_offsets_waits_for_more_or_for_its_time() -> None:
    delay = TriggerDelay(100, 1000)
    assert not delay.delays(1, 0)  # the first one waits for nothing
    assert delay.delays(99, 10)
    assert not delay.delays(100, 20)
    assert delay.delays(99, 1019)
    assert not delay.delays(99, 1020)
    assert delay.delays(1, 1021)


def test_without_records_no_time_begins() -> None:
    delay = TriggerDelay(100, 1000)
    assert delay.delays(0, 0)
    assert not delay.delays(1, 5000)


def test_pieces_have_at_most_so_many_records() -> None:
    ranges = [Range("t", 0, 10, 35), Range("t", 1, 0, 7), Range("t", 2, 5, 5)]
    pieces = split_ranges(ranges, None, 8)
    assert [piece.size for piece in pieces] == [6, 6, 6, 7, 7]
    assert [(piece.start, piece.end) for piece in pieces[:4]] == [(10, 16), (16, 22), (22, 28), (28, 35)]
    assert len(split_ranges(ranges, 3, 8)) == 5
    more = split_ranges(ranges, 16, 8)
    assert 14 <= len(more) <= 18  # about so many
    assert sum(piece.size for piece in more) == 32
