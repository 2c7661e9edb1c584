"""Histories with lodgers, whose passwords go in the middle of logins and of their renewals."""

from __future__ import annotations

from collections import Counter

from tests.simulation.logins import INVARIANTS
from tests.simulation.runs import story
from tests.simulation.world import World

KINDS = ("logins", "slow", "kill")
SEEDS = range(3)


def test_no_broker_serves_by_a_password_that_is_gone() -> None:
    checked: Counter[str] = Counter()
    for seed in SEEDS:
        report = World(seed, kinds=KINDS).run()
        assert report.ok, story(report)
        checked += report.checked
    assert all(checked[what] for what in INVARIANTS[:2]), checked
    assert checked[INVARIANTS[-1]] == len(SEEDS)
