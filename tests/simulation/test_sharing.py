"""A share group under all faults: what was acknowledged stays so, and in the end every record is finished."""

from __future__ import annotations

import pytest

from tests.simulation.runs import story
from tests.simulation.world import SHARES, World


@pytest.mark.parametrize(
    "seed",
    [
        *range(4),
        pytest.param(36, id="a leader that stops while it persists"),
    ],
)
def test_what_was_finished_is_given_out_no_more(seed: int) -> None:
    report = World(seed, kinds=(SHARES,)).run()
    assert report.ok, story(report)
    assert report.checked["records of workers"] > 0
    assert report.checked["queues at rest"] == 1
