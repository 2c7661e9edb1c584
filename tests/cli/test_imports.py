"""What a command loads: nothing that it does not use. Most of a short command's time was imports."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.shell import ROOT, Shell
from tests.support.fleet import Fleet

pytestmark = pytest.mark.zookeeper

FINDINGS = 3
"""What doctor ends with."""
OTHERS = (
    "rich", "asyncio", "uvloop", "kazoo", "confluent_kafka", "crc32c", "kafka.consumer", "kafka.producer",
    "kafka.protocol.consumer.fetch", "kafka.protocol.producer.produce", "kafka.protocol.admin.acl",
    "kafka.protocol.admin.users", "fleetlog._native.batch", "fleetlog._native.wire", "fleetlog._native.wire_py",
    "fleetlog._native.wire_cy", "fleetlog._native.wire_tuples",
    "fleetlog.brokers.app", "fleetlog.brokers.server", "fleetlog.brokers.api", "fleetlog.brokers.log",
    "fleetlog.brokers.metadata", "fleetlog.brokers.coordinators",
)  # fmt: skip
OF_MOVES = (
    "statistics", "fleetlog.brokers.cli.moves", "fleetlog.brokers.cli.moving", "fleetlog.brokers.cli.reassign",
    "fleetlog.brokers.controller.balance",
)  # fmt: skip
OWN_MESSAGES = (
    "fleetlog.wire.messages", "fleetlog._native", "re2",
    "fleetlog.brokers.logins.mechanisms", "fleetlog.brokers.logins.scram", "fleetlog.brokers.tls.contexts",
)  # fmt: skip
"""Needed by requests of our own APIs, and by logins."""
OF_RECORDS = ("rich", "asyncio", "email", "argparse", "crc32c._cli", "confluent_kafka", "kazoo", "pydantic")
OF_ZOOKEEPER = (
    "asyncio", "kazoo", "rich", "fleetlog.coordination", "fleetlog.brokers.tls.contexts", "fleetlog.brokers.metadata",
)  # fmt: skip


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("imports"), 1)
    try:
        fleet.start()
        shell = Shell(fleet)
        shell.run("topics", "create", "t")
        shell.run("produce", "t", stdin="one\n")
        shell.run("groups", "reset", "g", "--topic", "t", "--to-latest", "--execute")
        yield fleet
    finally:
        fleet.close()


def loaded(fleet: Fleet, *words: str) -> set[str]:
    """The modules that the command imports."""
    return imported(*words, "-b", fleet.bootstrap)


def imported(*words: str) -> set[str]:
    command = [sys.executable, "-X", "importtime", "-m", "fleetlog.brokers.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False, input="")
    assert done.returncode in {0, FINDINGS}, done.stderr[-2000:]
    return set(re.findall(r"^import time: .*\| +(\S+)$", done.stderr, re.MULTILINE))


@pytest.mark.parametrize(
    ("command", "unused"),
    [
        ("topics list", OTHERS + OWN_MESSAGES),
        ("topics describe t", OTHERS),
        ("topics alter t --set retention.ms=1000000", OTHERS + OWN_MESSAGES),
        ("groups list", OTHERS + OWN_MESSAGES),
        ("groups describe g", OTHERS + OWN_MESSAGES),
        ("groups lag", OTHERS),
        ("cluster describe", (*OTHERS, *OF_MOVES)),
        ("cluster health", OTHERS),
        ("cluster config get log.retention.ms", OTHERS),
        ("topics trim t --before 0 --dry-run", OTHERS),
        (
            "consume t --to end",
            (*OF_RECORDS, "re2", "fleetlog._native", "fleetlog.brokers.cli.record_filter"),
        ),
        ("produce t", OF_RECORDS),
        ("records write t --value one", OF_RECORDS),
        ("users list", OF_ZOOKEEPER),
        ("doctor", OTHERS),
    ],
)
def test_a_command_loads_nothing_that_it_does_not_use(fleet: Fleet, command: str, unused: tuple[str, ...]) -> None:
    modules = loaded(fleet, *command.split())
    assert "kafka.admin.client" in modules, "the list is that of the command"
    assert {name for name in modules if name.startswith(tuple(f"{one}." for one in unused)) or name in unused} == set()


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (["--help"], 140),
        (["topics", "--help"], 310),
        (["dev", "--help"], 195),
        (["users", "add", "--help"], 310),
    ],
)
def test_help_loads_little(words: list[str], most: int) -> None:
    modules = imported(*words)
    assert len(modules) <= most, f"{len(modules)}: {sorted(modules)}"
