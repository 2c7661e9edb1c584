"""One console on the shared fleet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.console.served import Served, Visitor
from tests.support.fleet import Fleet


@pytest.fixture(scope="session")
def served(fleet: Fleet) -> Iterator[Served]:
    console = Served(fleet.bootstrap)
    yield console
    assert console.close() == 0


@pytest.fixture
def visitor(served: Served) -> Visitor:
    return Visitor(served)
