"""The judge of the real-time run sees what is doubled, missing and strange; its histogram is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.spark.realtime import figures

SENT = 5000


def whole() -> figures.Rows:
    """A run without a fault: each wanted record came 7 ms after it was due."""
    identities = np.flatnonzero(figures.wanted(SENT))
    due = identities * 50
    return np.stack([identities, due, due + 7000], axis=1)


def test_values_are_read_as_they_were_written() -> None:
    values = [figures.value_of(number, 10**15 + number) for number in (0, 7, 10**10 - 1)]
    assert {len(value) for value in values} == {figures.VALUE_BYTES}
    rows = figures.parse([value + b":%d" % (at % 2) for at, value in enumerate(values)], 2 * 10**15)
    assert rows.tolist() == [
        [0, 10**15, 2 * 10**15],
        [15, 10**15 + 7, 2 * 10**15],
        [2 * (10**10 - 1), 2 * 10**15 - 1 - 10**15 + 10**10, 2 * 10**15],
    ]
    with pytest.raises(ValueError, match="reshape"):
        figures.parse([values[0] + b":0", values[0]], 0)


def test_all_once_is_clean(tmp_path: Path) -> None:
    rows = whole()
    assert SENT < len(rows) < SENT * 1.2
    rows.tofile(tmp_path / "figures")
    assert figures.judge(figures.load(tmp_path / "figures"), SENT).clean


def test_each_fault_is_seen() -> None:
    rows = whole()
    twice = figures.judge(np.concatenate([rows, rows[40:42], rows[40:41]]), SENT)
    assert (twice.duplicates, twice.missing, twice.strange) == (3, 0, 0)
    assert twice.examples["duplicates"] == rows[40:42, 0].tolist()
    absent = figures.judge(np.delete(rows, [3, len(rows) - 1], axis=0), SENT)
    assert (absent.duplicates, absent.missing, absent.strange) == (0, 2, 0)
    assert absent.examples["missing"] == rows[[3, -1], 0].tolist()
    never = int(np.flatnonzero(figures.wanted(SENT) == 0)[0])
    odd = np.array([[never, 0, 1], [2 * SENT, 0, 1], [-2, 0, 1]])
    strange = figures.judge(np.concatenate([rows, odd]), SENT)
    assert (strange.duplicates, strange.missing, strange.strange) == (0, 0, 3)
    assert strange.examples["strange"] == [never, 2 * SENT, -2]


def test_the_histogram_has_the_chosen_ones() -> None:
    rows = np.array([[at, at * 1000, at * 1000 + 100 * (at + 1)] for at in range(100)])
    assert sum(figures.histogram(rows, 0, 50_000).values()) == 50
    counts = figures.histogram(rows, 0, 100_000)
    assert counts == {at + 1: 1 for at in range(100)}
    assert figures.quantile_ms(counts, 0.99) == pytest.approx(10.0)
    assert figures.quantile_ms(counts, 1.0) == pytest.approx(10.1)
    assert figures.merged([counts, {"100": 5}])[100] == 6
    assert figures.by_second(rows, 0, 99_999, 0.99) == []
    assert figures.by_second(np.array([[0, 5, 905], [2, 1_000_005, 1_003_905]]), 0, 2_000_000, 0.99) == [1.0, 4.0]
    assert figures.shown({}) == "no record"
    with pytest.raises(ValueError, match="no record"):
        figures.quantile_ms({}, 0.5)
