"""The simulation can fail: each deliberate bug is caught by an invariant, and the same history without it is good."""

from __future__ import annotations

import gc

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation, caught, world_of
from tests.simulation.runs import story

pytestmark = pytest.mark.mutations


def test_there_are_many_and_each_has_its_name() -> None:
    assert len(MUTATIONS) >= 25
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_a_bug_is_caught(mutation: Mutation) -> None:
    for seed in (mutation.seed, *(seed for seed in range(mutation.within) if seed != mutation.seed)):
        report = caught(mutation, seed)
        gc.collect()  # a world is one heap of cycles
        if report is None:
            continue
        if seed != mutation.seed:
            print(f"the code has changed since {mutation.seed} was noted: now seed {seed} catches it")
        print(report.violations[0])
        without = world_of(mutation, seed).run()
        assert without.ok, story(without)
        return
    pytest.fail(f"seed {mutation.seed} and the first {mutation.within} do not notice")
