"""One console on the shared fleet, and one broker with logins and rights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.browser import Browser, pictures_in
from tests.console.served import Served, Visitor
from tests.support.fleet import Fleet
from tests.support.issuer import Issuer
from tests.support.secured import guarded_fleet


@pytest.fixture(scope="session")
def served(fleet: Fleet) -> Iterator[Served]:
    console = Served(fleet.bootstrap)
    yield console
    assert console.close() == 0


@pytest.fixture
def visitor(served: Served) -> Visitor:
    return Visitor(served)


@pytest.fixture(scope="session")
def issuer() -> Iterator[Issuer]:
    found = Issuer()
    yield found
    found.close()


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Fleet]:
    """One broker with an authorizer, whose super user is the broker's; users log in by passwords, or at the issuer."""
    fleet = guarded_fleet(tmp_path_factory.mktemp("guarded"), **issuer.settings())
    try:
        yield fleet.start()
    finally:
        fleet.close()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    found = Browser(pictures_in(tmp_path))
    yield found
    found.driver.quit()


@pytest.fixture
def plain_browser(tmp_path: Path) -> Iterator[Browser]:
    """One without JavaScript."""
    found = Browser(pictures_in(tmp_path), scripts=False)
    yield found
    found.driver.quit()
