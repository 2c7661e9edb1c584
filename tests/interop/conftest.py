"""What interop tests share: the stock clients, the fleet's address (or another cluster's, to check the tests)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import pytest

from tests.support.clients import CLIENTS, Client

_numbers = itertools.count()


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The shared fleet. INTEROP_BOOTSTRAP names another cluster: the same tests must pass on Apache Kafka."""
    elsewhere = os.environ.get("INTEROP_BOOTSTRAP")
    return elsewhere or request.getfixturevalue("fleet").bootstrap


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names that no other test uses, also across workers and runs on one cluster."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    return lambda kind: f"{kind}-{worker}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def topic(client: Client, bootstrap: str, fresh: Callable[[str], str]) -> str:
    """A new topic with one partition, made through the client's own admin API."""
    name = fresh("topic")
    client.create_topic(bootstrap, name)
    return name
