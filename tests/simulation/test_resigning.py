"""Coordinators that hear late that they have resigned: what they acknowledge meanwhile is known to their successors."""

from __future__ import annotations

from typing import Any

from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
from tests.simulation.replacing import Mutation, instead, mutated
from tests.simulation.runs import story
from tests.simulation.world import World

KINDS = ("kill", "stop", "isolate", "hold the loop", "cut from zookeeper")


def test_a_coordinator_that_resigns_a_turn_later_acknowledges_nothing_that_is_lost() -> None:
    """The oracle compares each offset that is told with those acknowledged before, by whichever coordinator."""
    resigned = compared = 0

    def a_turn_later(original: Any, self: Any, tp: Any) -> None:
        nonlocal resigned
        resigned += 1
        self._loop.call_soon(original, self, tp)

    late = Mutation("resigns a turn later", (instead(CoordinatorRuntime.partition_resigned, a_turn_later),), 0)
    for seed in range(8):
        with mutated(late):
            report = World(seed, kinds=KINDS).run()
        assert report.ok, story(report)
        compared += report.checked["group offsets"]
    assert resigned > 8
    assert compared > 8
