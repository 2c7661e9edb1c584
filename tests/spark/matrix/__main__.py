"""Runs the matrix: ``python -m tests.spark.matrix --list``, ``--sample 7 --seed abc``, ``--repeat 20``.

Results are JSON lines in a directory; what stands there is not run again, so that a long run may be stopped and
continued. The last lines say how many scenarios passed; the exit status is 0 when all that were begun did, 1 when
one found an anomaly, which is not tried again, 3 when one could not be tried to its end, or no time was left.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.matrix.controls import CONTROLS, Control
from tests.spark.matrix.fleet import MatrixFleet
from tests.spark.matrix.rig import COORDINATOR_PARTITIONS, Place, Rig
from tests.spark.matrix.scenarios import Scenario, load
from tests.spark.matrix.sessions import Sessions
from tests.spark.matrix.together import NotTried, Together

ROOT = Path(__file__).parents[3]
UNTRIED = ("NOT TRIED", "NO FAULT")
"""How problems begin that say nothing about the sink: the fleet or Spark did not start, or no fault took place."""
HALF_WAY = (*UNTRIED, "NO VERDICT", "READER", "UNFINISHED")
"""How those begin that say nothing about it either, where a run was broken off."""


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
    """Brokers without a safeguard, and drivers of others."""

    def __init__(self, directory: Path, missing: str, drivers: Stage) -> None:
        super().__init__(directory, missing)
        self._drivers = drivers

    def sessions(self, where: str) -> Sessions:
        """Drivers."""
        return self._drivers.sessions(where)


LIKE_GROUPS = 3
"""How many scenarios with one fault share a group: a driver costs as much as many runs."""


def anomalies_of(problems: list[str]) -> list[str]:
    """What is wrong with the sink itself."""
    broken_off = any(problem.startswith(UNTRIED) for problem in problems)
    return [problem for problem in problems if not (broken_off and problem.startswith(HALF_WAY))]


def run_group(chosen: list[Scenario], stage: Stage, directory: Path) -> list[dict[str, Any]]:
    """Runs at a time, of one scenario or of several with one fault; what is written down of each."""
    size = len(chosen)
    began = time.monotonic()
    nothing = {"problems": ["ERROR: no result"], "trace": [], "restarts": 0, "seconds": 0.0, "together": size}
    results: list[dict[str, Any]] = [{"name": one.name, **nothing} for one in chosen]
    try:
        fleet, sessions = stage.fleet(), stage.sessions(chosen[0].where)
    except Exception as problem:
        return [
            result | {"problems": [f"NOT TRIED: {type(problem).__name__}: {str(problem)[:3000]}"]} for result in results
        ]
    group, first, slot = Together(size), random.randrange(3), random.randrange(COORDINATOR_PARTITIONS)

    def run(member: int) -> None:
        try:
            make = functools.partial(
                Rig, fleet, sessions, directory / str(member), chosen[member].where, Place(group, member, first, slot)
            )
            results[member] = run_one(chosen[member], make, group, member) | {"together": size}
        finally:
            group.leave(member)

    threads = [threading.Thread(target=run, args=(member,), daemon=True) for member in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = round((time.monotonic() - began) / size, 1)
    return [result | {"share": spent} for result in results]


def run_one(chosen: Scenario, make: Callable[[], Rig], group: Together, member: int) -> dict[str, Any]:
    """One run of a scenario; what is written down of it."""
    began = time.monotonic()
    result: dict[str, Any] = {"name": chosen.name, "problems": [], "trace": [], "restarts": 0}
    rig: Rig | None = None
    try:
        rig = make()
        rig.say = lambda text: say(f"    [{member}] {text[:200]}")
        chosen.run(rig)
        if not rig.trace:
            result["problems"].append("NO FAULT: nothing shows that the fault happened")
    except Exception as problem:
        kind = "NOT TRIED" if isinstance(problem, NotTried) else "ERROR"
        result["problems"].append(f"{kind}: {type(problem).__name__}: {str(problem)[:3000]}")
        result["where"] = traceback.format_exc()[-3000:]
    group.leave(member)
    if rig is not None:
        try:  # what the reader saw is told in any case
            rig.release()
            result["problems"] += rig.verdict(whole=not result["problems"])
            result["rows"], result["read"] = rig.rows, rig.watcher.count()
            result["looks"], result["moments"] = rig.watcher.looks, len(rig.watcher.moments)
        except Exception as problem:
            result["problems"].append(f"NO VERDICT: {type(problem).__name__}: {str(problem)[:1000]}")
        result["trace"], result["restarts"] = rig.trace, len(rig.errors)
        result["errors"] = [error[-1500:] for error in rig.errors]
        rig.close()
        if not result["problems"]:
            with contextlib.suppress(Exception):  # topics that stay do no harm
                rig.clean()
    result["seconds"] = round(time.monotonic() - began, 1)
    return result


def run_control(control: Control, stage: Stage, directory: Path, size: int) -> list[dict[str, Any]]:
    """A scenario on brokers without a safeguard, with the drivers of ``stage``: passes when the anomaly is found."""
    broken = BrokenStage(directory / control.missing.replace(" ", "-"), control.missing, stage)
    try:
        results = run_group([load()[control.scenario]] * size, broken, directory / f"rig-{control.missing}")
    finally:
        broken.close()
    for result in results:
        _turn_round(control, result)
    return results


def _turn_round(control: Control, result: dict[str, Any]) -> None:
    """A control passes when the anomaly was found; without a single anomaly of any kind it could not be tried."""
    found = [problem for problem in result["problems"] if problem.startswith(control.anomalies)]
    result["name"] = control.name
    result["found"] = result["problems"]
    missed = "NOT TRIED" if any(problem.startswith(UNTRIED) for problem in result["problems"]) else "NOT CAUGHT"
    result["problems"] = [] if found else [f"{missed}: none of {control.anomalies}: {result['problems']}"]
    result["trace"].append(f"found: {found}")


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
                seconds = sum(row.get("share", row["seconds"]) for row in runs) / len(runs)
                passed = sum(not row["problems"] for row in runs)
                restarts = sum(row["restarts"] for row in runs)
                lines.append(f"| {name} | {len(runs)} | {passed} | {restarts} | {seconds:.0f} | {bad} |")
        return "\n".join(lines)


class Turns:
    """Turn after turn over the scenarios, each of which makes up what is lacking."""

    def __init__(self, directory: Path, scenarios: dict[str, Scenario]) -> None:
        self.results = Results(directory)
        self.begun: set[str] = set()
        self.anomalies: list[str] = []
        self.failed: set[str] = set()  # in this turn: the next one tries again
        self._scenarios = scenarios
        self._controls = {control.name: control for control in CONTROLS}
        self._work = directory / f"work-{time.strftime('%H%M%S')}"
        self.stage = Stage(self._work)

    def take(self, names: list[str], given: argparse.Namespace) -> None:
        """All turns; nothing is begun when the time is over, and no anomaly is tried away."""
        began = time.monotonic()
        for turn in range(1, -(-given.repeat // given.together) + 1):
            self.failed.clear()
            for name in names:
                while group := self._group(name, names, min(given.repeat, turn * given.together), given.together):
                    if time.monotonic() - began > given.minutes * 60:
                        return
                    self._run(group)

    def _of(self, name: str) -> Scenario:
        return self._scenarios[self._controls[name].scenario if name in self._controls else name]

    def _group(self, name: str, names: list[str], aim: int, together: int) -> list[str]:
        """The names to run at a time: as often as this one lacks, and others with the same fault."""

        def lacking(one: str) -> list[str]:
            return [one] * (aim - self.results.passes(one)) * (one not in self.anomalies and one not in self.failed)

        group = lacking(name)
        if not self._of(name).together or (name in self._controls and self._controls[name].alone):
            return group[:1]
        if group and self._of(name).fault and name not in self._controls:
            alike = [o for o in names if o not in (name, *self._controls) and self._of(o).fault == self._of(name).fault]
            for other in alike:
                group += lacking(other) if len(group) + len(lacking(other)) <= LIKE_GROUPS * together else []
        return group

    def _run(self, group: list[str]) -> None:
        name = group[0]
        self.begun |= set(group)
        for one in dict.fromkeys(group):
            say(f"[{self.results.passes(one)}] {one}" + f", {group.count(one)} times" * (len(group) > 1))
        place = self._work / f"{time.strftime('%H%M%S')}-{name.replace(' ', '-').replace(':', '')}"
        if name in self._controls:
            found = run_control(self._controls[name], self.stage, place, len(group))
        else:
            found = run_group([self._scenarios[one] for one in group], self.stage, place)
        for one, result in zip(group, found, strict=True):
            self.results.add(result)
            outcome = f"FAILED {result['problems']}" if result["problems"] else "passed"
            say(f"  {outcome}: {one} ({result['seconds']} s)")
            self.failed |= {one} if result["problems"] else set()
            self.anomalies += [one] * bool(anomalies_of(result["problems"]))
        if any(result["problems"] for result in found) and name not in self._controls:
            self.stage.repair()

    def report(self, names: list[str], repeat: int, least: int) -> int:
        """Prints what was found; the exit status. Fewer than ``least`` scenarios that passed are no pass."""
        print(self.results.table(names))
        lacking = [name for name in names if self.results.passes(name) < repeat]
        untried = [name for name in lacking if name not in self.begun]
        print(f"{len(names) - len(lacking)} of {len(names)} passed {repeat} times; {self.results.path}")
        for name in sorted(self.begun.intersection(lacking)):  # in the words in which a suite of tests says it
            problems = [problem for row in self.results.rows if row["name"] == name for problem in row["problems"]]
            print(f"FAILED {name} - {problems[-1][:500] if problems else 'not through'}")
        if untried:
            print(f"not begun, for the time was over: {', '.join(untried)}")
        if self.anomalies:
            print(f"ANOMALIES: {', '.join(dict.fromkeys(self.anomalies))}")
            return 1
        passed = len(names) - len(lacking)
        if passed < least:
            print(f"FAILED matrix - {passed} scenarios were tried to their end, fewer than {least}")
        return 0 if len(lacking) == len(untried) and passed >= least else 3


def chosen_names(given: argparse.Namespace, scenarios: dict[str, Scenario]) -> list[str]:
    """What was asked for."""
    if given.only:
        every = [*scenarios, *(control.name for control in CONTROLS)]
        names = list(dict.fromkeys(name for part in given.only for name in every if part in name))
        assert names, f"no scenario is called {given.only}"
        return names
    if given.sample:
        dice = random.Random(given.seed)
        drawn = dice.sample(sorted(scenarios), min(given.sample, len(scenarios)))
        return [
            dice.choice(CONTROLS).name,
            *(name for name in scenarios if name in drawn),
        ]  # the control is not left out
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
    parser.add_argument("--seed", default="", help="which sample, and which control with it; any text")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--together", type=int, default=1, metavar="N", help="runs of a scenario at a time")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after that long")
    parser.add_argument("--least", type=int, default=1, metavar="N", help="scenarios that must have passed")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "spark-chaos")
    given = parser.parse_args()
    scenarios = load()
    if given.list:
        for number, found in enumerate(scenarios.values(), 1):
            print(f"{number:3d} {found.where:8s} {found.name}: {found.about}")
        for control in CONTROLS:
            print(f"    control  {control.name}: {control.scenario}, without {control.missing}: {control.anomalies}")
        return 0
    names = chosen_names(given, scenarios)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and tidy up
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
    turns = Turns(given.directory.resolve(), scenarios)
    try:
        turns.take(names, given)
    finally:
        turns.stage.close()
    return turns.report(names, given.repeat, given.least)


if __name__ == "__main__":
    sys.exit(main())
