"""Runs a step of CI and keeps account of what passes only when it is tried again.

    python -m tests.flickers suite jars -- make test-jars
    python -m tests.flickers run chaos --again 2:2 --again 3:2 -- python -m tests.chaos.run --ci --seed {try}
    python -m tests.flickers report

A *suite* is pytest behind a make target that takes PYTEST_ARGS: what failed runs once more by itself and must pass
then. A *run* is a command whose exit codes say why it failed; ``--again CODE:TIMES`` names the codes that say "could
not be tried", every other code fails at once; ``{try}`` in an argument is the number of the try.

What passed at a later try is a flicker: a line of ``build/ci/flickers.jsonl`` with its name, seed (the commit, which
chooses the samples) and the file with the output of the first try. A fixture that tests share and that failed once is
one flicker, not one for each of them. A flicker fails the run when its name stands in ``tests/flickered.txt``, the list
of what flickered before, or when it is the third of this run. A crashed pytest worker fails the run, whatever its tests
do at the second try.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "flickered.txt"
FLICKERS_MAX = 2
"""More than that in a run, and it fails."""
TESTS_FAILED = 1
"""pytest's exit code; make turns it into 2."""
CRASHED = re.compile(r"worker '?gw\d+'? crashed|^\[gw\d+\] node down", re.MULTILINE)
OUTPUT_KEPT_LINES = 60
SAME_LETTERS = 200
"""Errors whose messages begin alike for so long have one cause."""


class Account:
    """The flickers of one run of CI, as JSON lines in ``directory``."""

    def __init__(self, directory: Path, known: Path = LIST, seed: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / "flickers.jsonl"
        self._known = {
            line.split("#")[0].strip() for line in known.read_text().splitlines() if line.split("#")[0].strip()
        }
        self._seed = seed

    def is_known(self, name: str) -> bool:
        """Whether a test or run flickered before."""
        return without_parameters(name) in self._known

    def rows(self) -> list[dict[str, str]]:
        """What flickered so far."""
        if not self._file.exists():
            return []
        return [json.loads(line) for line in self._file.read_text().splitlines()]

    def add(self, names: Sequence[str], output: Path) -> None:
        """Note what passed at a later try only."""
        with self._file.open("a") as file:
            for name in names:
                file.write(json.dumps({"name": name, "seed": self._seed, "output": str(output)}) + "\n")

    def problems(self) -> list[str]:
        """Why the flickers of this run fail it; empty when they don't."""
        rows = self.rows()
        again = [row["name"] for row in rows if self.is_known(row["name"])]
        found = [f"{name} flickered before (tests/flickered.txt): find its cause" for name in again]
        if len(rows) > FLICKERS_MAX:
            found.append(f"{len(rows)} flickers in one run, more than {FLICKERS_MAX}")
        return found

    def report(self) -> str:
        """The last lines of a run: each flicker, with the end of what its first try printed."""
        lines = []
        for row in self.rows():
            lines.append(f"FLICKERED {row['name']} (seed {row['seed']}; {row['output']})")
            output = Path(row["output"])
            if output.exists():
                told = [line for line in output.read_text(errors="replace").splitlines() if telling(line)]
                lines += [f"    {line[:300]}" for line in told[-OUTPUT_KEPT_LINES:]]
        lines += [f"FAILED flickers - {problem}" for problem in self.problems()]
        return "\n".join(lines)


def telling(line: str) -> bool:
    """Whether a line of a failed run's output says what failed: pytest's errors and summary, a run's own last words."""
    return line.startswith(("E  ", "FAILED", "ERROR", "_____", "try ", "chaos could not"))


def without_parameters(name: str) -> str:
    """``tests/x.py::test_y`` of ``tests/x.py::test_y[3]@group``."""
    return re.sub(r"(\[.*)?(@[\w-]+)?$", "", name)


def failed_tests(report: Path) -> set[str]:
    """The tests of a JUnit report that failed or could not be set up or torn down, by class and name."""
    failed = set()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(test_name(case))
    return failed


def counted_tests(report: Path, account: Account) -> list[str]:
    """Those of the failed tests that are flickers of their own: each that failed, and one for each error.

    Of the tests with the same error the first stands for all, beside those that flickered before.
    """
    counted, errors = set(), set()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name, error = test_name(case), case.find("error")
        if case.find("failure") is not None:
            counted.add(name)
        elif error is not None:
            message = (error.get("message") or name)[:SAME_LETTERS]
            if message not in errors or account.is_known(name):
                counted.add(name)
            errors.add(message)
    return sorted(counted)


def passed_tests(report: Path) -> set[str]:
    """The tests of a JUnit report that ran and passed: neither failed, nor skipped."""
    bad = ("failure", "error", "skipped")
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {test_name(case) for case in cases if all(case.find(kind) is None for kind in bad)}


def test_name(case: ElementTree.Element) -> str:
    """``tests/log/test_append.py::test_x[1]``, as pytest names it from here, of an element of its JUnit report."""
    parts = (case.get("classname") or "").split(".")
    split = next((n for n in range(len(parts), 0, -1) if Path("/".join(parts[:n]) + ".py").exists()), len(parts))
    place = "/".join(parts[:split]) + ".py"
    return "::".join([place, *parts[split:], re.sub(r"@[\w-]+$", "", case.get("name") or "")])


def execute(command: Sequence[str], output: Path, environment: dict[str, str] | None = None) -> int:
    """Run it, show what it prints and keep it in ``output``; its exit code."""
    with output.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {})},
        )
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            file.write(line)
        return process.wait()


def suite(name: str, command: Sequence[str], account: Account, directory: Path) -> int:
    """Tests behind a make target; 0 when all passed, at the second try at the latest."""
    report, output = directory / f"{name}-1.xml", directory / f"{name}-1.txt"
    report.unlink(missing_ok=True)
    code = execute([*command, f"PYTEST_ARGS=--junitxml={report}"], output)
    if CRASHED.search(output.read_text(errors="replace")):
        print(f"FAILED {name} - a worker of pytest crashed")
        return 1
    if code == 0:
        return 0
    failed = failed_tests(report) if report.exists() else set()
    if not failed:
        print(f"FAILED {name} - ended with {code} and names no failed test")
        return 1
    second = directory / f"{name}-2.xml"
    second.unlink(missing_ok=True)
    code = execute([*command, f"PYTEST_ARGS=--last-failed --junitxml={second}"], directory / f"{name}-2.txt")
    unproved = failed - passed_tests(second) if second.exists() else failed
    if code or unproved:
        print(f"FAILED {name} - {', '.join(sorted(unproved)[:5]) or code} at the second try, too")
        return 1
    account.add(counted_tests(report, account), output)
    return 1 if account.problems() else 0


def run(name: str, command: Sequence[str], again: dict[int, int], account: Account, directory: Path) -> int:
    """A command that says by its exit code whether it could be tried; its last exit code, 1 when flickers fail it."""
    tries = 0
    while True:
        tries += 1
        output = directory / f"{name}-{tries}.txt"
        code = execute([part.replace("{try}", str(tries)) for part in command], output)
        if code == 0:
            break
        if again.get(code, 0) <= 0:
            return code
        again[code] -= 1
        print(f"try {tries} of {name} ended with {code}: it could not be tried, once more", flush=True)
    if tries > 1:
        account.add([name], directory / f"{name}-1.txt")
    return 1 if account.problems() else 0


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """This module's own arguments and, after the first ``--``, the command's.

    argparse's REMAINDER begins right behind the first positional argument and would take ``--again`` for the command.
    """
    own = list(itertools.takewhile(lambda argument: argument != "--", arguments))
    return own, list(arguments[len(own) + 1 :])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "ci")
    steps = parser.add_subparsers(dest="step", required=True)
    one = steps.add_parser("suite")
    one.add_argument("name")
    one = steps.add_parser("run")
    one.add_argument("name")
    one.add_argument("--again", action="append", default=[], metavar="CODE:TIMES")
    steps.add_parser("report")
    own, command = split(sys.argv[1:] if arguments is None else arguments)
    given = parser.parse_args(own)
    seed = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    account = Account(given.directory.resolve(), seed=seed.stdout.strip())
    if given.step == "report":
        print(account.report())
        return 1 if account.problems() else 0
    if not command:
        parser.error("no command: write it after --, as in: suite jars -- make test-jars")
    print(shlex.join(command), flush=True)
    if given.step == "suite":
        return suite(given.name, command, account, given.directory.resolve())
    again = {int(code): int(times) for code, times in (text.split(":") for text in given.again)}
    return run(given.name, command, again, account, given.directory.resolve())


if __name__ == "__main__":
    sys.exit(main())
