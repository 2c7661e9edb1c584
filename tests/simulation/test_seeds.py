"""Many histories, each from its seed: nothing that is promised is broken, and a seed is one history, always.

``SIMULATION_SEEDS`` says how many; ``make simulate SEEDS=100000`` is for long runs. A failure tells how to see it
again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.faults import WEIGHTS
from tests.simulation.invariants import INVARIANTS
from tests.simulation.lines import covered
from tests.simulation.runs import CHECKED, ENOUGH, FIRED, Summary, run_seeds, story
from tests.simulation.world import Report, World

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("SIMULATION_SEEDS", "100"))
AT_ONCE = 100
COVERED_SEEDS = (*range(80), *range(1000, 1030))  # what newer histories have, too
COVERED_SHARE = 0.80


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_nothing_that_is_promised_is_broken(first: int) -> None:
    summary = Summary()
    for report in run_seeds(range(first, min(first + AT_ONCE, SEEDS))):
        assert report.ok, story(report)
        summary.add(report)
    print("\n".join(summary.lines()))


@pytest.mark.parametrize("seed", range(0, 200, 20))
def test_a_seed_is_one_history(seed: int) -> None:
    first, second = World(seed).run(), World(seed).run()
    assert first.ok, story(first)
    assert (first.hash, first.steps, first.trace) == (second.hash, second.steps, second.trace)
    assert first.hash != World(seed + 1).run().hash


def test_a_seed_is_one_history_in_every_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", str(seed)],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True,
        ).stdout
        for hash_seed in ("1", "2", "3")
        for seed in (7,)
    }  # fmt: skip
    assert len(outputs) == 1, outputs


@pytest.mark.mutations
@pytest.mark.timeout(1500)  # each line of the cores is traced
def test_the_cores_run_in_the_simulation() -> None:
    coverage = covered(COVERED_SEEDS)
    print("\n".join(coverage.lines()))
    assert coverage.total >= COVERED_SHARE, "\n".join(coverage.lines())


def test_a_failure_says_how_to_see_it_again() -> None:
    report = World(3, kinds=("cut", "slow")).run()
    assert 'tests.simulation 3 --faults "cut,slow" --trace' in story(report)
    assert "tests.simulation 4 --trace" in story(Report(4))


def test_many_seeds_that_show_little_are_refused() -> None:
    summary = Summary()
    summary.runs = ENOUGH
    summary.faults.update(dict.fromkeys(WEIGHTS, FIRED))
    summary.checked.update(dict.fromkeys(INVARIANTS, CHECKED))
    assert summary.thin() == []
    summary.faults["kill"] = FIRED - 1
    summary.checked["moves"] = 0
    assert summary.thin() == ["'kill' happened 9 times", "'moves' was checked 0 times"]
    summary.runs = ENOUGH - 1
    assert summary.thin() == []
