"""``python -m tests.simulation SEED [--trace]``: one history again. ``--seeds A-B``: many. See ``--help``."""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time

from tests.simulation.lines import covered
from tests.simulation.mutations import MUTATIONS, RARE, caught
from tests.simulation.runs import Summary, run_seeds, story
from tests.simulation.world import World

PROGRESS_S = 30.0
UNIT_TESTS = (
    *(f"tests/replication/test_{part}.py" for part in ("partition", "followers", "in_sync_set", "confirmations")),
    "tests/log", "tests/txn", "tests/groups", "tests/coordinators",
)  # fmt: skip
"""Tests in one process, where a deliberate bug is."""


def _one(seed: int, trace: bool, kinds: list[str]) -> int:
    report = World(seed, verbose=trace, kinds=kinds).run()
    print(story(report) if trace or not report.ok else f"seed {seed}: good, {report.steps} steps")
    print(f"hash {report.hash:08x}, checked {dict(report.checked)}, faults {dict(report.faults)}")
    return 0 if report.ok else 1


def _many(first: int, last: int, jobs: int, seconds: float, shown: int = 5) -> int:
    summary, began, told = Summary(), time.monotonic(), time.monotonic()
    for report in run_seeds(range(first, last + 1), jobs):
        summary.add(report)
        if not report.ok and len(summary.failed) <= shown:
            print(story(report), flush=True)
        if time.monotonic() - began > seconds:
            break
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            print(f"{summary.runs} seeds in {told - began:.0f} s, {len(summary.failed)} failed", flush=True)
    print("\n".join(summary.lines()))
    print(f"  {time.monotonic() - began:.0f} s")
    thin = summary.thin()
    if thin:
        print(f"REFUSED: {'; '.join(thin)}")
    return 1 if summary.failed or thin else 0


def _mutations(name: str, first: int, within: int) -> int:
    missed = 0
    for mutation in (*MUTATIONS, *RARE):
        if name not in mutation.name:
            continue
        began = time.monotonic()
        for seed in range(first, first + within):
            report = caught(mutation, seed)
            if report is not None:
                print(f"{mutation.name}: seed {seed}, {time.monotonic() - began:.0f} s: {report.violations[0]}")
                break
        else:
            missed += 1
            print(f"{mutation.name}: NOT caught by {within} seeds in {time.monotonic() - began:.0f} s")
        sys.stdout.flush()
    return missed


def _unit_tests(name: str) -> int:
    """Which ordinary tests notice a deliberate bug; 0 if none does."""
    noticed = 0
    for mutation in MUTATIONS:
        if name not in mutation.name and name != "all":
            continue
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "tests.simulation.plugin", *UNIT_TESTS],
            env={**os.environ, "MUTATION": mutation.name}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        failed = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        noticed += bool(failed)
        print(f"{mutation.name}: {len(failed)} tests fail: {failed[:3]}" if failed else f"{mutation.name}: all green")
        sys.stdout.flush()
    return noticed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--trace", action="store_true", help="everything that was logged, in virtual time")
    parser.add_argument("--seeds", help="A-B: run them all; N: the first N")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="with --seeds: as many of them as this lets run"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--mutation", help="look for a seed that catches the mutations whose names contain this")
    parser.add_argument("--unit-tests", metavar="NAME", help="ordinary tests with these mutations, or all")
    parser.add_argument("--within", type=int, default=200)
    parser.add_argument("--coverage", action="store_true", help="with --seeds: lines of the cores that ran")
    parser.add_argument("--faults", default="", help="only these kinds of faults, with commas between them")
    asked = parser.parse_args()
    first, last = 0, 0
    if asked.seeds is not None:
        low, dash, high = asked.seeds.partition("-")
        first, last = (int(low), int(high)) if dash else (0, int(low) - 1)
    if asked.mutation is not None:
        return _mutations(asked.mutation, asked.seed or first, asked.within)
    if asked.unit_tests is not None:
        return _unit_tests(asked.unit_tests)
    if asked.coverage:
        print("\n".join(covered(range(first, last + 1)).lines()))
        return 0
    if asked.seeds is not None:
        return _many(first, last, asked.jobs, asked.seconds)
    if asked.seed is None:
        parser.error("which seed?")
    return _one(asked.seed, asked.trace, [kind.strip() for kind in asked.faults.split(",") if kind.strip()])


if __name__ == "__main__":
    sys.exit(main())
