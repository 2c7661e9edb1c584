"""Commands that begin right after a broker was killed, while nobody has noticed: they wait for its successor."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetlog.brokers.cli.client import Target, admin, wait_for_topics
from tests.cli.shell import Shell
from tests.support.fleet import Broker, Fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.zookeeper

LIMIT_S = 120
GROUPS = [f"g{number}" for number in range(6)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Three brokers, of which each leads a partition of t; a dead one is believed to live for ten seconds."""
    fleet = Fleet(tmp_path, 3, zookeeper_session_timeout_ms=10_000, default_replication_factor=3)
    try:
        yield fleet.start()
    finally:
        fleet.close()


def coordinators(shell: Shell) -> dict[str, int]:
    return {row["group"]: row["coordinator"] for row in shell.json("groups", "describe", *GROUPS)}


def started(fleet: Fleet, address: str, *arguments: str) -> subprocess.Popen[str]:
    return Shell(fleet).start(*arguments, "--json", "-b", address, "--timeout", str(LIMIT_S))


def answer(command: subprocess.Popen[str]) -> Any:
    out, errors = command.communicate(timeout=2 * LIMIT_S)
    assert command.returncode == 0, errors
    return json.loads(out)


def prepared(fleet: Fleet) -> tuple[Broker, Broker]:
    """A broker, and another one that coordinates a group and leads a partition."""
    shell = Shell(fleet)
    with admin(Target(fleet.bootstrap, LIMIT_S)) as client:
        client.create_topics({"t": {"assignments": {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]}}})
        assert wait_for_topics(client, ["t"], LIMIT_S) == []
    for partition in range(3):
        shell.run("produce", "t", "-p", str(partition), stdin="one\ntwo\n")
    for name in GROUPS:
        shell.run("groups", "reset", name, "--topic", "t", "--to-offset", "1", "--execute")
    victim = max(coordinators(shell).values())
    dead = next(broker for broker in fleet.brokers if broker.id == victim)
    return next(broker for broker in fleet.brokers if broker.id != victim), dead


def test_commands_wait_for_the_successor_of_a_killed_broker(fleet: Fleet) -> None:
    alive, dead = prepared(fleet)
    dead.kill()
    asked = {
        "describe": started(fleet, alive.address, "groups", "describe", *GROUPS),
        "list": started(fleet, alive.address, "groups", "list"),
        "reset": started(fleet, alive.address, "groups", "reset", GROUPS[0], "--to-latest"),
        "transactions": started(fleet, alive.address, "transactions", "list"),
        "producers": started(fleet, alive.address, "transactions", "producers", "t"),
    }
    found = {name: answer(command) for name, command in asked.items()}
    assert [(row["group"], row["lag"]) for row in found["describe"]] == [(name, 3) for name in GROUPS]
    assert dead.id not in {row["coordinator"] for row in found["describe"]}
    assert {row["group"] for row in found["list"]} == set(GROUPS)
    assert [row["new"] for row in found["reset"]] == [2, 2, 2]


def test_a_command_whose_time_is_over_says_whom_it_waited_for(fleet: Fleet) -> None:
    alive, dead = prepared(fleet)
    name = next(name for name, broker_id in coordinators(Shell(fleet)).items() if broker_id == dead.id)
    dead.pause()
    try:
        line = Shell(fleet).fails("groups", "describe", name, "-b", alive.address, "--timeout", "3")
    finally:
        dead.resume()
    waited = f"no answer from broker {dead.id} at {dead.address}, which coordinates {name}, within 3 s"
    assert waited in line
    eventually(lambda: dead.caught_up(), "the broker is back")
