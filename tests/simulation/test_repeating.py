"""Topics that drop duplicates under all faults: whatever is given up, repeated and led by others, each record is there
once.
"""

from __future__ import annotations

import pytest

from tests.simulation.runs import story
from tests.simulation.world import REPEATS, World


@pytest.mark.parametrize("seed", range(5))
def test_what_is_repeated_is_there_once(seed: int) -> None:
    report = World(seed, kinds=(REPEATS,)).run()
    assert report.ok, story(report)
    assert report.checked["repeats"] > 0
