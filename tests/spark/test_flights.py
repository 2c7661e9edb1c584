"""The main job on a part of its data: drivers and a broker killed with SIGKILL, and the control without the fence."""

from __future__ import annotations

import argparse
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from examples.flights import data, fleet, steps
from examples.flights.__main__ import Progress, run
from tests.support.fleet import Fleet

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]

FLIGHTS = 14_000


def run_job(
    bootstrap: str, directory: Path, *, fence: bool, fleet_directory: Path | None = None
) -> tuple[steps.Result, dict[str, str]]:
    given = argparse.Namespace(prefix=f"t{uuid.uuid4().hex[:8]}-", flights=FLIGHTS, no_fence=not fence)
    result, evidence = run(bootstrap, directory, Progress(Console()), given, fleet_directory)
    return result, dict(evidence)


@pytest.fixture
def dev_fleet(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Three brokers as a person would start them, and where they are."""
    directory = tmp_path / "fleet"
    try:
        yield fleet.up(directory, fleet.free_port()), directory
    finally:
        fleet.down(directory)


def test_exactly_once_with_two_killed_drivers_and_a_killed_broker(dev_fleet: tuple[str, Path], tmp_path: Path) -> None:
    bootstrap, fleet_directory = dev_fleet
    result, evidence = run_job(bootstrap, tmp_path, fence=True, fleet_directory=fleet_directory)
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


def test_without_the_fence_the_same_kill_makes_duplicates(bootstrap: str, tmp_path: Path) -> None:
    result, _ = run_job(bootstrap, tmp_path, fence=False)
    assert not result.exactly_once
    assert (result.duplicates, result.missing, result.wrong) == (2000, 0, 0)


def test_exactly_once_while_every_broker_is_killed(own_fleet: Fleet, tmp_path: Path) -> None:
    own_fleet.start()
    steps.create_topics(own_fleet.bootstrap, "flights", "out")
    steps.produce(own_fleet.bootstrap, "flights", FLIGHTS, print)
    query = steps.Query(own_fleet.bootstrap, "flights", "out", "out", tmp_path / "spark", FLIGHTS // 7)
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
    result = steps.reconcile(own_fleet.bootstrap, "out", FLIGHTS)
    assert result.exactly_once, result


def test_expected_records_know_every_class() -> None:
    names = data.airline_names()
    found = {data.expected(flight, names)["delay_class"] for flight in data.flights(FLIGHTS)}
    assert found == {"on time", "late", "very late", "cancelled", "diverted"}
