"""Runs CI's suites within their minutes (tests/suites.toml).

    python -m tests.suites                          the table
    python -m tests.suites run [NAME ...]           all of them, or some

A suite gets its minutes. If what ran before took longer than planned, those that draw draw less, so that the whole ends
in its time. The last lines say what each was given and took.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")
FLICKERS = ".venv/bin/python -m tests.flickers"
LEAST_SHARE = 0.3
"""However late it is, a suite draws so much of what it would."""


@dataclass(frozen=True)
class Suite:
    """A row of the table."""

    name: str
    minutes: float
    command: str = ""
    """With ``{seed}`` (the commit), ``{seconds}`` (what it is given), ``{flickers}``."""
    whole: str = ""
    drawn_s: int = 0

    def given(self, share: float, seed: str) -> tuple[str, dict[str, str]]:
        """The command, and what its environment has besides, for this share of its minutes."""
        seconds = round(60 * self.minutes * share)
        command = self.command.format(flickers=FLICKERS, seed=shlex.quote(seed), seconds=seconds)
        return command, {"FLEETLOG_DRAWN_S": str(round(self.drawn_s * share))} if self.drawn_s else {}


@dataclass(frozen=True)
class Table:
    """What stands in the file."""

    limit_minutes: float
    suites: tuple[Suite, ...]
    reserved: Mapping[str, float]

    @property
    def minutes(self) -> float:
        """All that is given out or kept for suites to come."""
        return sum(suite.minutes for suite in self.suites) + sum(self.reserved.values())


def read() -> Table:
    """The table of this tree."""
    table = tomllib.loads(TABLE.read_text())
    suites = tuple(Suite(name, **row) for name, row in table["suite"].items())
    return Table(table["limit_minutes"], suites, table["reserved"])


def share(planned_minutes: float, left_minutes: float) -> float:
    """The share of its minutes that the next suite is given: of those planned for it and the rest, so many are left."""
    return max(LEAST_SHARE, min(1.0, left_minutes / planned_minutes))


def shown(table: Table) -> Iterator[str]:
    for suite in table.suites:
        yield f"{suite.name:14}{suite.minutes:6g} min{'   whole: ' + suite.whole if suite.whole else ''}"
    for name, minutes in table.reserved.items():
        yield f"{name:14}{minutes:6g} min   reserved"
    yield f"{'':14}{table.minutes:6g} min of {table.limit_minutes:g}"


def run(table: Table, names: list[str], seed: str, spent_s: float) -> int:
    """Run these suites, or all, one after the other; the exit code of the first that fails, else 0."""
    began = time.monotonic() - spent_s
    chosen = [suite for suite in table.suites if suite.command and (not names or suite.name in names)]
    limit = table.limit_minutes - sum(table.reserved.values()) if not names else float("inf")
    took = [f"{'set-up':14}{spent_s / 60:6.1f} min"] if spent_s else []
    try:
        for number, suite in enumerate(chosen):
            beginning = time.monotonic()
            planned = sum(other.minutes for other in chosen[number:])
            part = share(planned, limit - (beginning - began) / 60)
            command, more = suite.given(part, seed)
            late = f", {part:.0%} of it, for it is late" if part < 1 else ""
            print(f"\n== {suite.name} ({beginning - began:.0f} s; {suite.minutes:g} min{late})", flush=True)
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=ROOT, env=os.environ | more)
            minutes = (time.monotonic() - beginning) / 60
            over = "" if minutes <= suite.minutes else f"   more than its {suite.minutes:g}"
            took.append(f"{suite.name:14}{minutes:6.1f} min{over}")
            if done.returncode:
                print(f"{suite.name} failed; again: .ci/run {suite.name}")
                return done.returncode
    finally:
        print("\n".join(["", *took]), flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["run"])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--spent", type=float, default=0, help="seconds that went by before")
    asked = parser.parse_args()
    table = read()
    if asked.what is None:
        print("\n".join(shown(table)))
        return 0
    known = [suite.name for suite in table.suites]
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        parser.error(f"no suite {unknown[0]}; there are {', '.join(known)}")
    return run(table, asked.names, os.environ["FLEETLOG_SAMPLE"], asked.spent)


if __name__ == "__main__":
    sys.exit(main())
