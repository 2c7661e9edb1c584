"""The only member of an in-sync set comes back without its tail: what other replicas hold is not given up."""

from __future__ import annotations

import pytest

from tests.simulation.fleet import SETTINGS
from tests.simulation.lone import EligibleReplica, LoneMember, LostMember
from tests.simulation.runs import story
from tests.simulation.world import World


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("course", [LoneMember, EligibleReplica, LostMember])
def test_what_other_replicas_hold_is_asked_for_before_a_lone_member_leads(
    course: type[LoneMember], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SETTINGS, "auto_leader_rebalance_enable", False)
    world = World(seed)
    lone = course(world)
    report = world.run()
    assert report.ok, story(report)
    assert lone.alone
