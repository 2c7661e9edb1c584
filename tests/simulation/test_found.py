"""Histories that have found a fault, of the fleet or of what judges it."""

from __future__ import annotations

import pytest

from tests.simulation.runs import story
from tests.simulation.world import World


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(811184, id="a killed broker starts again by itself before its directories go"),
        pytest.param(808217, id="the operator permits a lone member, whose directory goes"),
        pytest.param(904040, id="a leader that slept tells which schemas there were before it did"),
        pytest.param(904749, id="a leader that slept, and has a successor, misses the batch before"),
        pytest.param(904640, id="a dead letter's transaction is open when its leader goes"),
        pytest.param(922614, id="a dead letter comes from a broker whose clock is ahead"),
        pytest.param(961665, id="a clock is set back by an hour while records wait for their time"),
        pytest.param(985108, id="a share partition that nobody had subscribed to when it began has a later leader"),
    ],
)
def test_it_is_good_now(seed: int) -> None:
    report = World(seed).run()
    assert report.ok, story(report)
