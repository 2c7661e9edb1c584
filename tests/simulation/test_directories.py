"""Log directories that go and come back, in the histories that the other seeds do not have."""

from __future__ import annotations

import pytest

from tests.simulation.runs import story
from tests.simulation.world import DIRECTORIES, World


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_lost_by_directories_that_come_back(seed: int) -> None:
    report = World(seed, kinds=(DIRECTORIES, "cut")).run()
    assert report.ok, story(report)
    assert report.faults["directories"]
