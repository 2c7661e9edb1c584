"""A fleet whose ZooKeeper was killed: every place that judges its health says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.cli.shell import Shell
from tests.console.served import Served, Visitor
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.zookeeper
TROUBLE = "ZooKeeper does not answer this broker"
BROKERS = ["broker 1", "broker 2", "broker 3"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("away"), 3, zookeeper_session_timeout_ms=10_000)
    try:
        fleet.start()
        Shell(fleet).run("topics", "create", "before", "-p", "3", "-r", "3")
        fleet.zookeeper.kill()
        yield fleet
    finally:
        fleet.close()


def readiness(fleet: Fleet) -> list[str]:
    """What each broker's /health/ready says."""
    pages = []
    for broker in fleet.brokers:
        try:
            with urlopen(f"http://127.0.0.1:{broker.admin_port}/health/ready", timeout=20) as answer:
                pages.append(answer.read().decode())
        except HTTPError as error:
            pages.append(error.read().decode())
    return pages


def test_the_console_describe_doctor_and_readiness_agree(fleet: Fleet) -> None:
    shell, console = Shell(fleet), Served(fleet.bootstrap)
    try:
        visitor = Visitor(console)

        def told(health: dict[str, Any]) -> bool:
            return [one for one in BROKERS if any(f"{one}: {TROUBLE}" in text for text in health["words"])] == BROKERS

        first = eventually(lambda: visitor.json("/"), "the console tells", good=lambda page: told(page["health"]))
        assert first["health"]["level"] == "bad"
        assert [one["state"] for one in first["brokers"]] == ["no ZooKeeper"] * 3
        html = visitor.page("/")
        assert "Healthy" not in html
        assert "In trouble" in html
        described = eventually(
            lambda: shell.json("cluster", "describe"), "describe tells", good=lambda value: told(value["health"])
        )
        assert described["health"]["level"] == "bad"
        text = shell.run("cluster", "describe").stdout
        assert "3 of 3 brokers alive when last known: ZooKeeper answers 3 of them nothing" in text
        assert "no problems" not in text
        assert f"broker 2: {TROUBLE}" in text
        found = json.loads(shell.run("doctor", "--json", code=4).stdout)
        assert [one["where"] for one in found if one["what"] == TROUBLE and one["severity"] == "error"] == BROKERS
        eventually(
            lambda: readiness(fleet), "each broker's health tells",
            good=lambda pages: all("not ready" in page or f"but: {TROUBLE}" in page for page in pages),
        )  # fmt: skip
        eventually(
            lambda: readiness(fleet), "none is ready once its lease has run out",
            good=lambda pages: all("lease has run out" in page for page in pages),
        )  # fmt: skip
        assert told(visitor.json("/")["health"])
    finally:
        console.close()
