"""CI's suites fit into its time, with room for those to come."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.suites import LEAST_SHARE, ROOT, Suite, Table, read, run, share


def test_all_suites_and_those_to_come_fit_into_the_limit() -> None:
    table = read()
    assert table.limit_minutes <= 45
    assert table.minutes <= table.limit_minutes


def test_whoever_is_late_draws_less_but_never_nothing() -> None:
    assert share(20, 30) == 1
    assert share(20, 10) == 0.5
    assert share(20, -5) == LEAST_SHARE


def test_a_command_is_given_what_fits() -> None:
    suite = Suite("x", 4, "{flickers} run x -- x --seconds {seconds} --seed {seed} {{try}}", drawn_s=100)
    command, more = suite.given(0.5, "a b")
    assert command.endswith("x --seconds 120 --seed 'a b' {try}")
    assert more == {"FLEETLOG_DRAWN_S": "50"}


def test_the_first_that_fails_ends_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    table = Table(
        45,
        (Suite("a", 1, "echo ran $FLEETLOG_DRAWN_S", drawn_s=7), Suite("b", 1, "exit 3"), Suite("c", 1, "echo never")),
        {},
    )
    assert run(table, [], "seed", 0) == 3
    out = capfd.readouterr().out
    assert "ran 7" in out
    assert "b failed; again: .ci/run b" in out
    assert "never" not in out


def test_some_run_by_their_names_and_a_wrong_one_is_told() -> None:
    table = Table(45, (Suite("a", 1, "exit 3"), Suite("b", 1, "true")), {})
    assert run(table, ["b"], "seed", 0) == 0
    (line,) = (line for line in (ROOT / ".ci" / "run").read_text().splitlines() if "-m tests.suites" in line)
    words = line.replace('"$@"', "tets").replace('"$SECONDS"', "1").split()
    done = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no suite tets; there are set-up, lint" in done.stderr
