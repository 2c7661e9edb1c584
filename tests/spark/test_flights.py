"""The main job on a part of its data: drivers and a broker killed with SIGKILL, and the control without the fence.

On a fleet without security, or on a secured one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from rich.console import Console

from examples.access import FleetAccess
from examples.flights import data, fleet, steps
from examples.flights.__main__ import Progress, run
from tests.support.draw import drawn
from tests.support.fleet import Fleet

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]

FLIGHTS = 14_000
FEW = 2_800
ROOT = Path(__file__).parents[2]


def run_job(
    access: FleetAccess, directory: Path, *, fence: bool, fleet_directory: Path | None = None
) -> tuple[steps.Result, dict[str, str]]:
    given = argparse.Namespace(prefix=f"t{uuid.uuid4().hex[:8]}-", flights=FLIGHTS, no_fence=not fence)
    result, evidence = run(access, directory, Progress(Console()), given, fleet_directory)
    return result, dict(evidence)


def open_fleet(directory: Path) -> None:
    fleet_directory = directory / "fleet"
    try:
        access = fleet.up(fleet_directory, fleet.free_port())
        result, evidence = run_job(access, directory, fence=True, fleet_directory=fleet_directory)
    finally:
        fleet.down(fleet_directory)
    assert result.exactly_once, result
    assert (result.input, result.output, result.duplicates, result.missing) == (FLIGHTS, FLIGHTS, 0, 0)
    # Batch 2 was in the log when the first driver died, and no reader of committed data has seen it.
    # The killed worker's attempt may have written rows, too, and so may attempts that a busy machine made Spark repeat.
    assert result.skipped >= 2000
    failed = re.match(
        r"(\d+) failed tasks in batch [34], run again; 2,000 rows", evidence["a Python worker, in a task"]
    )
    assert failed is not None, evidence
    assert int(failed[1]) >= 1
    assert (
        evidence["kill 1, inside a transaction"] == "2,000 uncommitted records of batch 2 in the log, fence at batch 1"
    )
    assert evidence["kill 2, after the commit"] == "fence at batch 4, Spark's commit log at batch 3"
    assert evidence["last run"] == "batches skipped by the fence: [4]"
    assert re.search(r"broker \d: others led after \d+\.\d s; .* all replicas in sync", evidence["kill 3, a broker"])


def secured_fleet(directory: Path) -> None:
    """All of it by the command ``--secure``: clients, queries and checks log in over TLS."""
    command = [sys.executable, "-m", "examples.flights", "--secure", "--flights", str(FEW), "--dir", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=540)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exactly once, 2 killed drivers, 1 killed Python worker, 1 killed broker" in done.stdout
    assert re.search(r"kill 1, inside a transaction\W+400 uncommitted records of batch 2", done.stdout), done.stdout
    assert "batches skipped by the fence: [4]" in done.stdout
    configs = sorted((directory / "fleet").rglob("*.properties"))
    listeners = [line for file in configs for line in file.read_text().splitlines() if line.startswith("listeners=")]
    assert len(listeners) == 3
    assert all(line.startswith("listeners=SECURE://") and "," not in line for line in listeners)
    passwords = json.loads((directory / "fleet" / "security" / "users.json").read_text()).values()
    logs = "".join(file.read_text(errors="replace") for file in directory.rglob("*.log"))
    assert not [word for word in passwords if word in done.stdout + done.stderr + logs]


KINDS = {kind.__name__: kind for kind in (open_fleet, secured_fleet)}


@pytest.mark.parametrize("kind", drawn(KINDS, os.environ.get("FLEETLOG_FLIGHTS", "")))
def test_exactly_once_with_two_killed_drivers_and_a_killed_broker(kind: str, tmp_path: Path) -> None:
    """The two take turns, a commit each; ``FLEETLOG_FLIGHTS=all`` runs both."""
    KINDS[kind](tmp_path / "job")


def test_without_the_fence_the_same_kill_makes_duplicates(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the killed driver leaves nothing in the temporary directory."""
    directory, temporary = tmp_path / "job", tmp_path / "temporary"
    directory.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(temporary))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.io.tmpdir={temporary}")
    result, _ = run_job(FleetAccess(bootstrap), directory, fence=False)
    assert not result.exactly_once
    assert (result.duplicates, result.missing, result.wrong) == (2000, 0, 0)
    assert [one.name for one in temporary.iterdir()] == []


def test_exactly_once_while_every_broker_is_killed(own_fleet: Fleet, tmp_path: Path) -> None:
    access = FleetAccess(own_fleet.start().bootstrap)
    steps.create_topics(access, "flights", "out")
    steps.produce(access, "flights", FLIGHTS, print)
    query = steps.Query(access, "flights", "out", "out", tmp_path / "spark", FLIGHTS // 7)
    query.directory.mkdir()
    killed = []

    def watch(text: str) -> None:
        print(text)
        if "committed" in text and len(killed) < len(own_fleet.brokers):
            broker = own_fleet.brokers[len(killed)]
            killed.append(broker.id)
            broker.kill()
            broker.start()
            broker.wait_ready()

    for attempt in range(3):  # a driver may give up; started again, it must go on where it stood
        try:
            query.run(f"driver-{attempt}", "", watch)
            break
        except steps.StepFailed as failure:
            print(failure)
    assert len(killed) == 3
    result = steps.reconcile(access, "out", FLIGHTS)
    assert result.exactly_once, result


def test_expected_records_know_every_class() -> None:
    names = data.airline_names()
    found = {data.expected(flight, names)["delay_class"] for flight in data.flights(FLIGHTS)}
    assert found == {"on time", "late", "very late", "cancelled", "diverted"}
