"""Topics that drop duplicates under all faults: whatever is given up, repeated and led by others, each record is there
once.
"""

from __future__ import annotations

import pytest

from tests.simulation.runs import story
from tests.simulation.world import REPEATS, TRIMS, World


@pytest.mark.parametrize("seed", range(5))
def test_what_is_repeated_is_there_once(seed: int) -> None:
    report = World(seed, kinds=(REPEATS,)).run()
    assert report.ok, story(report)
    assert report.checked["repeats"] > 0


@pytest.mark.parametrize("seed", range(4))
def test_what_is_deleted_is_not_taken_again(seed: int) -> None:
    report = World(seed, kinds=(REPEATS, TRIMS, "power", "kill", "isolate", "cut")).run()
    assert report.ok, story(report)
    assert report.checked["repeats"] > 0
    assert report.checked["records deleted"] > 0
