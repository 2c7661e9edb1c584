"""Runs the matrix: ``python -m tests.spark.matrix --list``, ``--sample 7 --seed abc``, ``--repeat 20``.

Results are JSON lines in a directory; what stands there is not run again, so that a long run may be stopped and
continued. The last lines say how many scenarios passed; the exit status is 0 when all that were begun did, 1 when
one found an anomaly, 3 when one only could not be tried to its end.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.spark.matrix.controls import CONTROLS, Control
from tests.spark.matrix.fleet import MatrixFleet
from tests.spark.matrix.rig import Rig
from tests.spark.matrix.scenarios import Scenario, load
from tests.spark.matrix.sessions import Sessions

ROOT = Path(__file__).parents[3]
UNTRIED = ("ERROR", "NO FAULT")
"""How problems begin that say nothing about the sink."""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Stage:
    """A fleet and Spark's processes, made when first needed and made anew when they were harmed."""

    def __init__(self, directory: Path, missing: str = "") -> None:
        self._directory = directory
        self._missing = missing
        self._fleet: MatrixFleet | None = None
        self._sessions: Sessions | None = None
        self._count = 0

    def fleet(self) -> MatrixFleet:
        """Brokers, all in sync."""
        if self._fleet is None:
            self._count += 1
            self._fleet = MatrixFleet(self._directory / f"fleet-{self._count}", self._missing)
            try:
                self._fleet.start()
            except BaseException:  # what was begun is ended: disks are mounted already
                fleet, self._fleet = self._fleet, None
                fleet.close()
                raise
        self._fleet.revive()
        return self._fleet

    def sessions(self, where: str) -> Sessions:
        """Drivers."""
        if self._sessions is None:
            self._count += 1
            self._sessions = Sessions(self._directory / f"spark-{self._count}")
        self._sessions.keep_only(where)
        return self._sessions

    def repair(self) -> None:
        """New drivers after a failure; new brokers only if the old ones don't get well."""
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            sessions.close()
        try:
            self.fleet()
        except Exception as problem:
            say(f"  the fleet does not get well: {problem}")
            self.close()

    def close(self) -> None:
        """End all."""
        sessions, self._sessions = self._sessions, None
        fleet, self._fleet = self._fleet, None
        if sessions is not None:
            sessions.close()
        if fleet is not None:
            fleet.close()


class BrokenStage(Stage):
    """Brokers without a safeguard, and somebody else's drivers."""

    def __init__(self, directory: Path, missing: str, drivers: Stage) -> None:
        super().__init__(directory, missing)
        self._drivers = drivers

    def sessions(self, where: str) -> Sessions:
        """Drivers."""
        return self._drivers.sessions(where)


def run_one(chosen: Scenario, stage: Stage, directory: Path) -> dict[str, Any]:
    """One scenario; what is written down of it."""
    began = time.monotonic()
    result: dict[str, Any] = {"name": chosen.name, "problems": [], "trace": [], "restarts": 0}
    rig: Rig | None = None
    try:
        rig = Rig(stage.fleet(), stage.sessions(chosen.where), directory, chosen.where)
        rig.say = lambda text: say(f"    {text[:200]}")
        chosen.run(rig)
        if not rig.trace:
            result["problems"].append("NO FAULT: nothing shows that the fault happened")
    except Exception as problem:
        result["problems"].append(f"ERROR: {type(problem).__name__}: {str(problem)[:3000]}")
        result["where"] = traceback.format_exc()[-3000:]
    if rig is not None:
        try:  # what the reader saw is told in any case
            rig.fleet.wire.clear()
            result["problems"] += rig.verdict()
            result["rows"], result["read"] = rig.rows, rig.watcher.count()
            result["looks"], result["moments"] = rig.watcher.looks, len(rig.watcher.moments)
        except Exception as problem:
            result["problems"].append(f"NO VERDICT: {type(problem).__name__}: {str(problem)[:1000]}")
        result["trace"], result["restarts"] = rig.trace, len(rig.errors)
        result["errors"] = [error[-1500:] for error in rig.errors]
        rig.close()
    result["seconds"] = round(time.monotonic() - began, 1)
    return result


def run_control(control: Control, stage: Stage, directory: Path) -> dict[str, Any]:
    """A scenario on brokers without a safeguard, with the drivers of ``stage``: passes when the anomaly is found."""
    broken = BrokenStage(directory / control.missing.replace(" ", "-"), control.missing, stage)
    try:
        result = run_one(load()[control.scenario], broken, directory / f"rig-{control.missing}")
    finally:
        broken.close()
    found = [problem for problem in result["problems"] if problem.startswith(control.anomalies)]
    result["name"] = control.name
    result["found"] = result["problems"]
    result["problems"] = [] if found else [f"NOT CAUGHT: none of {control.anomalies}: {result['problems']}"]
    result["trace"].append(f"found: {found}")
    return result


class Results:
    """JSON lines of what was run."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "results.jsonl"
        self.rows: list[dict[str, Any]] = []
        if self.path.exists():
            self.rows = [json.loads(line) for line in self.path.read_text().splitlines() if line]
        self.commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT, check=False
        ).stdout.strip()

    def passes(self, name: str) -> int:
        """How often this one has passed."""
        return sum(row["name"] == name and not row["problems"] for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Keep a result."""
        row |= {"commit": self.commit, "at": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())}
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def table(self, names: list[str]) -> str:
        """Everything so far, by name."""
        by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in self.rows:
            by_name[row["name"]].append(row)
        lines = ["| scenario | runs | passed | restarts | s | problems |", "|---|---|---|---|---|---|"]
        for name in names:
            runs = by_name.get(name, [])
            if runs:
                bad = "; ".join(p[:80] for row in runs for p in row["problems"])
                seconds = sum(row["seconds"] for row in runs) / len(runs)
                passed = sum(not row["problems"] for row in runs)
                restarts = sum(row["restarts"] for row in runs)
                lines.append(f"| {name} | {len(runs)} | {passed} | {restarts} | {seconds:.0f} | {bad} |")
        return "\n".join(lines)


def chosen_names(given: argparse.Namespace, scenarios: dict[str, Scenario]) -> list[str]:
    """What was asked for."""
    if given.only:
        every = [*scenarios, *(control.name for control in CONTROLS)]
        names = list(dict.fromkeys(name for part in given.only for name in every if part in name))
        assert names, f"no scenario is called {given.only}"
        return names
    if given.sample:
        drawn = random.Random(given.seed).sample(sorted(scenarios), min(given.sample, len(scenarios)))
        return [name for name in scenarios if name in drawn]
    return [*scenarios, *(control.name for control in CONTROLS)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PART",
        help="in the order given",
    )
    parser.add_argument("--sample", type=int, default=0, metavar="N")
    parser.add_argument("--seed", default="", help="which sample; any text")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after that long")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "spark-chaos")
    given = parser.parse_args()
    scenarios = load()
    controls = {control.name: control for control in CONTROLS}
    if given.list:
        for number, found in enumerate(scenarios.values(), 1):
            print(f"{number:3d} {found.where:8s} {found.name}: {found.about}")
        for control in CONTROLS:
            print(f"    control  {control.name}: {control.scenario}, without {control.missing}: {control.anomalies}")
        return 0
    names = chosen_names(given, scenarios)
    directory = given.directory.resolve()
    results = Results(directory)
    work = directory / f"work-{time.strftime('%H%M%S')}"
    stage = Stage(work)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and tidy up
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
    began = time.monotonic()
    begun: set[str] = set()
    try:
        for turn in range(1, given.repeat + 1):
            for name in names:
                if results.passes(name) >= turn or time.monotonic() - began > given.minutes * 60:
                    continue
                begun.add(name)
                say(f"[{turn}/{given.repeat}] {name}")
                if name in controls:
                    result = run_control(controls[name], stage, work / f"control-{turn}")
                else:
                    result = run_one(scenarios[name], stage, work / f"rig-{turn}-{name.replace(' ', '-')}")
                results.add(result)
                outcome = f"FAILED {result['problems']}" if result["problems"] else "passed"
                say(f"  {outcome} ({result['seconds']} s)")
                if result["problems"] and name not in controls:
                    stage.repair()
    finally:
        stage.close()
    print(results.table(names))
    lacking = [name for name in names if results.passes(name) < given.repeat]
    late = [name for name in lacking if name not in begun]
    print(f"{len(names) - len(lacking)} of {len(names)} passed {given.repeat} times; {results.path}")
    if late:
        print(f"not begun, for the time was over: {', '.join(late)}")
    if len(lacking) == len(late) < len(names):
        return 0
    found = [problem for row in results.rows if row["name"] in names for problem in row["problems"]]
    return 3 if all(problem.startswith(UNTRIED) for problem in found) else 1


if __name__ == "__main__":
    sys.exit(main())
