"""One real ZooKeeper per worker, a fresh tree in it per test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from coordination.ensemble import ZooKeeperNode, start_local

_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperNode]:
    node = start_local(tmp_path_factory.mktemp("zookeeper"), tick_ms=250)
    yield node
    node.close()


@pytest.fixture
def tree(cluster_zookeeper: ZooKeeperNode) -> str:
    """A connect string with an empty tree behind it."""
    return f"{cluster_zookeeper.address}/cluster{next(_numbers)}"
