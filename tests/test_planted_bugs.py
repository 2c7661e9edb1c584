"""Tests can fail: each deliberate bug that the simulation does not see is noticed by those that are named for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.planted_bugs import BUG, BUGS, PlantedBug

ROOT = Path(__file__).parents[1]


def run(tests: tuple[str, ...], bug: str) -> int:
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "tests.support.planted_bugs",
        *tests,
    ]  # fmt: skip
    environment = {**os.environ, BUG: bug}
    for name in ("PYTEST_CURRENT_TEST", "FLEETLOG_SAMPLE"):  # nothing is drawn from these tests
        environment.pop(name, None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=250, check=False)
    return done.returncode


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_bug_is_noticed(bug: PlantedBug) -> None:
    assert run(bug.tests, bug.name) == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_without_a_bug_they_pass() -> None:
    assert run(tuple(dict.fromkeys(test for bug in BUGS for test in bug.tests)), "") == pytest.ExitCode.OK
