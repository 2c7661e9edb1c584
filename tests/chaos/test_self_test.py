"""The self-test of a chaos run corrupts only what must be seen: not a record that may be gone, nor one sent twice."""

from __future__ import annotations

import random

import pytest

from tests.chaos import corrupt
from tests.chaos.checker import check_events
from tests.chaos.history import COMPACTED
from tests.chaos.run import TRIED
from tests.chaos.tale import Tale

TABLE = f"{COMPACTED}/0"


def _compacted_and_trimmed() -> Tale:
    """Most of what was acknowledged may be gone: superseded in a compacted topic, or below a DeleteRecords."""
    tale = Tale()
    for offset, value in enumerate(("w.1@a", "w.2@b", "w.3@a", "w.4@a")):
        tale.send(value, offset, key=TABLE)
    for offset, value in enumerate("abcd"):
        tale.send(value, offset)
    tale.txn([("u/0", "e", 0), ("u/0", "f", 1)])
    shown = {TABLE: [(1, "w.2@b"), (3, "w.4@a")], "t/0": [(3, "d")], "u/0": [(0, "e"), (1, "f")]}
    tale.poll((0, "a"), (1, "b"), (2, "c"), (3, "d"))
    tale.poll((0, "e"), (1, "f"), key="u/0")
    tale.trim(3)
    tale.final(shown, ends={TABLE: (4, 4), "t/0": (4, 4), "u/0": (3, 3)})
    return tale


def test_the_history_itself_is_good() -> None:
    assert not check_events(_compacted_and_trimmed().events).anomalies


@pytest.mark.parametrize("name", TRIED)
def test_what_it_corrupts_is_seen(name: str) -> None:
    for seed in range(60):
        events = _compacted_and_trimmed().events
        expected = corrupt.CORRUPTIONS[name](random.Random(seed), events)
        assert expected, "there is something to corrupt"
        found = check_events(events)
        assert found.kinds & expected, f"seed {seed}: {expected} expected\n{found.render()}"
