"""Real ZooKeeper servers: one shared by a worker's tests (each in its own chroot), and some of a test's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordination.ensemble import Ensemble, ZooKeeperNode, local_ensemble, start_local

TICK_MS = 250
_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperNode]:
    node = start_local(tmp_path_factory.mktemp("zookeeper"), tick_ms=TICK_MS)
    yield node
    node.close()


@pytest.fixture
def connect(shared_zookeeper: ZooKeeperNode) -> str:
    """A connect string with an empty tree behind it."""
    return f"{shared_zookeeper.address}/t{next(_numbers)}"


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[ZooKeeperNode]:
    """A server to kill and restart."""
    node = start_local(tmp_path / "zookeeper", tick_ms=TICK_MS)
    yield node
    node.close()


@pytest.fixture
def make_ensemble(tmp_path: Path) -> Iterator[Callable[[int], Ensemble]]:
    """Start an ensemble of that many servers."""
    made: list[Ensemble] = []

    def make(size: int) -> Ensemble:
        ensemble = local_ensemble(tmp_path / f"ensemble{len(made)}", size, tick_ms=TICK_MS)
        made.append(ensemble)
        ensemble.start()
        return ensemble

    yield make
    for ensemble in made:
        ensemble.close()
