"""A real ZooKeeper to compare the simulated one with."""

from __future__ import annotations

from tests.coordination.conftest import connect, shared_zookeeper

__all__ = ["connect", "shared_zookeeper"]
