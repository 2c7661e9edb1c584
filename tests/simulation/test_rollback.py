"""ZooKeeper restored from an older copy, in the histories that the other seeds do not have."""

from __future__ import annotations

import pytest

from tests.simulation.runs import story
from tests.simulation.world import NOTED_SEEDS, ROLLBACK, World, goes_back


@pytest.mark.parametrize("seed", range(8))
def test_brokers_lead_and_delete_nothing_beside_an_older_zookeeper(seed: int) -> None:
    report = World(seed, kinds=(ROLLBACK,)).run()
    assert report.ok, story(report)
    assert report.checked["put forward"] + report.checked["repaired"] == 1


def test_one_of_fifty_ordinary_histories_has_one() -> None:
    """None of the seeds that are noted does."""
    drawn = [seed for seed in range(NOTED_SEEDS + 500) if goes_back(seed)]
    assert drawn[0] >= NOTED_SEEDS
    assert 2 <= len(drawn) <= 25
    for seed in drawn[:2]:
        report = World(seed).run()
        assert report.ok, story(report)
        assert report.checked["put forward"] + report.checked["repaired"] == 1


def test_a_topic_that_its_operator_deletes_after_the_repair_was_not_given_up() -> None:
    report = World(802834).run()
    assert report.ok, story(report)
    assert report.checked["repaired"] == 1


def test_replicas_that_the_repair_writes_are_no_move_that_ended_too_early() -> None:
    """The older copy has a move under way, which the logs have finished."""
    report = World(801234).run()
    assert report.ok, story(report)
    assert report.checked["repaired"] == 1
