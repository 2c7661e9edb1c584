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


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(811184, id="a killed broker starts again by itself before its directories go"),
        pytest.param(808217, id="the operator permits a lone member, whose directory goes"),
    ],
)
def test_all_brokers_are_back_in_the_end(seed: int) -> None:
    report = World(seed).run()
    assert report.ok, story(report)
