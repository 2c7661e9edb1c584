"""A group of the consumer protocol under all faults: no partition is with two, and in the end each is with one."""

from __future__ import annotations

import pytest

from tests.simulation.runs import story
from tests.simulation.world import REBALANCES, World


@pytest.mark.parametrize("seed", range(4))
def test_no_partition_is_with_two_members(seed: int) -> None:
    report = World(seed, kinds=(REBALANCES,)).run()
    assert report.ok, story(report)
    assert report.checked["one holder each"] > 0
    assert report.checked["groups at rest"] == 1
