"""A topic that asks for schemas under all faults: what is not of one is never readable, what is so is refused for a
moment at most.
"""

from __future__ import annotations

import pytest

from tests.simulation.runs import story
from tests.simulation.world import CHECKS, World


@pytest.mark.parametrize("seed", range(5))
def test_what_has_no_schema_does_not_get_in(seed: int) -> None:
    report = World(seed, kinds=(CHECKS, "kill", "isolate", "cut", "power")).run()
    assert report.ok, story(report)
    assert report.checked["schemas taken"] > 0
    assert report.checked["schemas refused"] + report.checked["letters"] > 0
