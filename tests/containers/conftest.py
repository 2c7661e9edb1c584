"""The engine, the images and the fleet that container tests share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.containers.images import HERE, Images, build_all

if TYPE_CHECKING:
    from tests.containers.fleet import Fleet

# Set before testcontainers is imported: no container that cleans up (its image comes from a registry), and
# published ports are reached where the engine is, not at the container's own address.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
os.environ.setdefault("TESTCONTAINERS_CONNECTION_MODE", "docker_host")

_lines: list[str] = []
_TEST_TIMEOUT_S = 400
"""Of a test's own part: the first one's fixtures build the images."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(_TEST_TIMEOUT_S, func_only=True))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _lines:
        terminalreporter.section("what the container tests saw")
        for line in _lines:
            terminalreporter.write_line(line)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test shows what its brokers said."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        for fixture in ("shared_fleet", "old_fleet"):
            fleet = getattr(item, "funcargs", {}).get(fixture)
            for name in fleet.topology.services if fleet is not None else ():
                report.sections.append((f"{name} in the end", fleet.log(name)))


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Add a line to what is printed at the end."""
    return lambda line: _lines.append(f"{request.node.name}: {line}")


@pytest.fixture(scope="session")
def engine() -> str:
    """The engine's address; started (and installed) when none answers, and left running for the next run."""
    start = subprocess.run(["bash", HERE / "engine.sh", "start"], stdout=subprocess.PIPE, text=True, check=False)
    assert start.returncode == 0, "no Docker engine, see above"
    os.environ["DOCKER_HOST"] = start.stdout.strip()
    return os.environ["DOCKER_HOST"]


@pytest.fixture(scope="session")
def images(engine: str) -> Images:
    found = build_all()
    os.environ["FLEETLOG_IMAGE"], os.environ["ZOOKEEPER_IMAGE"] = found.broker, found.zookeeper
    return found


@pytest.fixture(scope="session")
def shared_fleet(images: Images) -> Iterator[Fleet]:
    from tests.containers.fleet import Fleet

    fleet = Fleet(images)
    try:
        yield fleet.start()
    finally:
        fleet.close()


@pytest.fixture
def fleet(shared_fleet: Fleet) -> Fleet:
    """The fleet, whole, whatever the test before did to it."""
    shared_fleet.heal()
    return shared_fleet
