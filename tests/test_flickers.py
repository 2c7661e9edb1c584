"""CI's account of flickers: what passes at the second try is named, and fails the run when it is known or too much."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.flickers import LIST, Account, main, run, suite, without_parameters
from tests.suites import FLICKERS, TABLE, read

FLAKY = """
import pathlib, os, pytest
def first(name):
    path = pathlib.Path(name)
    seen = path.exists()
    path.touch()
    return not seen
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a make target that takes PYTEST_ARGS; its tests are written by each test."""
    (tmp_path / "Makefile").write_text(f"test:\n\t@{sys.executable} -m pytest -q -p no:xdist $(PYTEST_ARGS)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (tmp_path / "known.txt").write_text("# nothing\n")
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PYTEST")]:
        monkeypatch.delenv(name)
    return tmp_path


def account(project: Path) -> Account:
    return Account(project / "ci", project / "known.txt", seed="abc")


def write_tests(project: Path, text: str) -> None:
    (project / "test_it.py").write_text(FLAKY + text)


def run_suite(project: Path) -> tuple[int, Account]:
    kept = account(project)
    return suite("it", ["make", "test"], kept, project / "ci"), kept


def test_what_passes_leaves_no_line(project: Path) -> None:
    write_tests(project, "def test_a(): pass\n")
    code, kept = run_suite(project)
    assert (code, kept.rows(), kept.report()) == (0, [], "")


def test_a_flicker_is_named_with_seed_and_output(project: Path) -> None:
    write_tests(project, "def test_a(): assert not first('a'), 'the cause'\n")
    code, kept = run_suite(project)
    assert code == 0
    assert [(row["name"], row["seed"]) for row in kept.rows()] == [("test_it.py::test_a", "abc")]
    assert "FLICKERED test_it.py::test_a (seed abc" in kept.report()
    assert "the cause" in kept.report()


def test_a_flicker_that_is_known_fails_the_run(project: Path) -> None:
    (project / "known.txt").write_text("test_it.py::test_a  # seen before\n")
    write_tests(project, "@pytest.mark.parametrize('n', [1, 2])\ndef test_a(n): assert not (n == 2 and first('a'))\n")
    code, kept = run_suite(project)
    assert code == 1
    assert "FAILED flickers - test_it.py::test_a[2] flickered before" in kept.report()


def test_a_third_flicker_fails_the_run(project: Path) -> None:
    write_tests(project, "".join(f"def test_{n}(): assert not first('{n}')\n" for n in "abc"))
    code, kept = run_suite(project)
    assert code == 1
    assert "3 flickers in one run" in kept.report()


SHARED = """
@pytest.fixture(scope="module")
def shared(): assert not first('shared'), 'the cause'
@pytest.mark.parametrize('n', range(5))
def test_it(shared, n): pass
def test_other(shared): pass
"""


def test_a_shared_fixture_that_failed_once_is_one_flicker(project: Path) -> None:
    write_tests(project, SHARED + "def test_a(): assert not first('a')\n")
    code, kept = run_suite(project)
    assert code == 0
    assert [row["name"] for row in kept.rows()] == ["test_it.py::test_a", "test_it.py::test_it[0]"]


def test_each_of_its_tests_must_pass_at_the_second_try(project: Path) -> None:
    write_tests(project, SHARED + "def test_b(shared): assert False\n")
    code, kept = run_suite(project)
    assert (code, kept.rows()) == (1, [])


def test_one_of_its_tests_that_flickered_before_is_seen(project: Path) -> None:
    (project / "known.txt").write_text("test_it.py::test_other\n")
    write_tests(project, SHARED)
    code, kept = run_suite(project)
    assert code == 1
    assert "FAILED flickers - test_it.py::test_other flickered before" in kept.report()


def test_fixtures_that_fail_for_different_reasons_are_a_flicker_each(project: Path) -> None:
    made = "@pytest.fixture\ndef made_{0}(): assert not first('{0}'), 'cause {0}'\ndef test_{0}(made_{0}): pass\n"
    write_tests(project, "".join(made.format(name) for name in "abc"))
    code, kept = run_suite(project)
    assert code == 1
    assert "3 flickers in one run" in kept.report()


def test_what_fails_twice_fails_and_is_no_flicker(project: Path) -> None:
    write_tests(project, "def test_a(): assert False\ndef test_b(): assert not first('b')\n")
    code, kept = run_suite(project)
    assert (code, kept.rows()) == (1, [])


def test_a_failed_test_that_the_second_try_skips_is_no_pass(project: Path) -> None:
    write_tests(project, "def test_a():\n    if first('a'):\n        assert False\n    pytest.skip('not today')\n")
    code, kept = run_suite(project)
    assert (code, kept.rows()) == (1, [])


def test_a_suite_that_ends_without_naming_a_test_fails(project: Path) -> None:
    write_tests(project, "")
    assert run_suite(project)[0] == 1
    write_tests(project, "import nothing_of_this_name\n")
    assert run_suite(project)[0] == 1


def test_a_crashed_worker_fails_the_run(project: Path) -> None:
    (project / "Makefile").write_text(f"test:\n\t@{sys.executable} -m pytest -q -n 1 $(PYTEST_ARGS)\n")
    write_tests(project, "def test_a():\n    if first('a'):\n        os._exit(1)\n")
    code, kept = run_suite(project)
    assert (code, kept.rows()) == (1, [])


def by_try(*codes: int) -> list[str]:
    return [sys.executable, "-c", f"import sys; sys.exit({list(codes)}[int(sys.argv[1]) - 1])", "{try}"]


@pytest.mark.parametrize(
    ("codes", "code", "flickers"),
    [
        ((0,), 0, 0),
        ((1, 0), 1, 0),
        ((2, 0), 0, 1),
        ((2, 2, 0), 0, 1),
        ((2, 2, 2), 2, 0),
        ((3, 0), 3, 0),
        ((2, 1), 1, 0),
    ],
)
def test_only_what_could_not_be_tried_is_tried_again(
    project: Path, codes: tuple[int, ...], code: int, flickers: int
) -> None:
    kept = account(project)
    assert run("chaos", by_try(*codes), {2: 2}, kept, project / "ci") == code
    assert len(kept.rows()) == flickers


def lines_of_ci() -> list[list[str]]:
    """What CI's suites give this module, up to and with ``--``."""
    commands = [suite.given(1, "seed")[0].split(f"{FLICKERS} ") for suite in read().suites]
    steps = [shlex.split(command[1]) for command in commands if len(command) == 2]
    return [step[: step.index("--") + 1] for step in steps]


@pytest.mark.parametrize("step", lines_of_ci(), ids=lambda step: step[1])
def test_the_steps_of_ci_execute_the_command_behind_the_dashes(project: Path, step: list[str]) -> None:
    write_tests(project, "def test_a(): assert not first('a')\n")
    times = [int(again.split(":")[1]) for again in step if ":" in again]
    codes = [int(again.split(":")[0]) for again in step if ":" in again]
    tried = [code for code, n in zip(codes, times, strict=True) for _ in range(n)]
    command = ["make", "test"] if step[0] == "suite" else by_try(*tried, 0)
    assert main(["--directory", str(project / "ci"), *step, *command]) == 0
    assert len((project / "ci" / "flickers.jsonl").read_text().splitlines()) == 1


def test_a_step_without_a_command_says_where_it_goes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--directory", str(project / "ci"), "suite", "jars"])
    assert "write it after --" in capsys.readouterr().err


def test_every_name_of_the_list_is_a_test_or_a_run_of_ci() -> None:
    root = LIST.parents[1]
    for line in LIST.read_text().splitlines():
        name = line.split("#")[0].strip()
        if name and "::" in name:
            place, test = name.split("::")[0], name.split("::")[1]
            assert test in (root / place).read_text(), f"{name} is gone: take it from the list"
        elif name:
            assert f" {name} " in TABLE.read_text(), name


def test_parameters_and_groups_are_no_part_of_a_name() -> None:
    assert without_parameters("tests/x.py::test_y[a[1]]@spark") == "tests/x.py::test_y"
    assert without_parameters("tests/x.py::TestWalk::runTest@g-1") == "tests/x.py::TestWalk::runTest"
