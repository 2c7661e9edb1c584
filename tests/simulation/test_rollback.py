"""ZooKeeper restored from an older copy, in the histories that the other seeds do not have."""

from __future__ import annotations

import pytest

from tests.simulation.runs import story
from tests.simulation.world import ROLLBACK, World


@pytest.mark.parametrize("seed", range(8))
def test_brokers_lead_and_delete_nothing_beside_an_older_zookeeper(seed: int) -> None:
    report = World(seed, kinds=(ROLLBACK,)).run()
    assert report.ok, story(report)
    assert report.checked["put forward"] + report.checked["repaired"] == 1
