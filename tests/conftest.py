"""Fixtures that every part of the suite may use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import _native
from tests.fleet import Fleet

# The machine is shared: a slow example is no bug. CI tries the same examples every time; everybody else new ones.
settings.register_profile("fleetlog", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("fleetlog")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Failed tests are kept by their own names, too: by that with their group alone, ``--last-failed`` loses them."""
    cache = getattr(session.config, "cache", None)
    if cache is None or hasattr(session.config, "workerinput"):
        return
    failed = cache.get("cache/lastfailed", {})
    plain = failed | {re.sub(r"@[\w-]+$", "", name): value for name, value in failed.items()}
    if plain != failed:
        cache.set("cache/lastfailed", plain)


def pytest_report_header() -> str:
    return f"fleetlog kernels: {_native.IMPLEMENTATION}"


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three brokers shared by a worker's tests: use fresh topic and group names, and leave the brokers running."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        yield fleet.start()
    finally:
        fleet.close()


@pytest.fixture
def own_fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Three brokers of the test's own, to kill and restart as it likes. Not started yet."""
    fleet = Fleet(tmp_path)
    try:
        yield fleet
    finally:
        fleet.close()
