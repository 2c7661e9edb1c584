"""A store of one znode, which may lose answers: what the producer ids' allocator needs of ZooKeeper."""

from __future__ import annotations

import asyncio
from typing import Any

from fleetlog.brokers.coordinators.transactions.coordinator import PRODUCER_IDS_PATH
from fleetlog.coordination.store import BadVersion, NodeExists, NoNode, SessionExpired, Stat, UnknownOutcome


class OneZnode:
    """The part of a store that is used; ``mood`` decides about each write: ok, lost (done or not), expired."""

    def __init__(self, mood: Any = lambda: "ok") -> None:
        self.data: bytes | None = None
        self.version = -1
        self.mood = mood
        self.syncs = 0

    async def sync(self, path: str) -> None:
        assert path == PRODUCER_IDS_PATH
        self.syncs += 1

    async def get(self, path: str) -> tuple[bytes, Stat]:
        await asyncio.sleep(0)
        if self.data is None:
            raise NoNode("no", path)
        return self.data, Stat(self.version, 0, 0, 0)

    async def create(self, path: str, data: bytes, *, parents: bool = False) -> str:
        if self.data is not None:
            raise NodeExists("is", path)
        await self._write(path, data)
        return path

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        if version != self.version:
            raise BadVersion("other", path)
        await self._write(path, data)
        return Stat(self.version, 0, 0, 0)

    async def _write(self, path: str, data: bytes) -> None:
        mood = self.mood()
        if mood == "expired":
            raise SessionExpired("over", path)
        if mood != "lost, not done":
            self.data, self.version = data, self.version + 1
        await asyncio.sleep(0)
        if mood.startswith("lost"):
            raise UnknownOutcome("?", path)
