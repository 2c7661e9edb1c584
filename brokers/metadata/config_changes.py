"""Follows ``/config/changes``, the list of changed users, clients and addresses: what has credentials and quotas.

A change is one multi of the entity's znode and a sequential znode below this list. Kafka's own tools write the same, so
their changes are seen, too.

Source: kafka/zk/ZkData.scala (ConfigEntityZNode, ConfigEntityChangeNotificationZNode), DynamicConfigManager.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from fleetlog.brokers.metadata.loading import read_many
from fleetlog.brokers.metadata.watcher import ZnodeWatcher
from fleetlog.brokers.metadata.znodes import BadZnode, dump_document, load_document
from fleetlog.coordination.store import Create, Delete, MultiFailed, NoNode, Store

CHANGES: Final = "/config/changes"
CHANGE_PREFIX: Final = "config_change_"
CHANGES_KEPT: Final = 1_000
PRUNED_AT_ONCE: Final = 100

ReadEntities = Callable[[frozenset[str] | None], Awaitable[None]]
"""Reads the znodes of the entities with these paths below ``/config`` (``users/alice``, ``users/alice/clients/app``;
names are sanitised); None: all of them. May raise StoreError: the same or more are read again."""


def change_notice(entity_path: str) -> Create:
    """What a writer adds to its multi: the entry that names the entity."""
    return Create(
        f"{CHANGES}/{CHANGE_PREFIX}", dump_document({"version": 2, "entity_path": entity_path}), sequence=True
    )


class ConfigChanges:
    """See the module: ``start`` once and ``stop`` once. A start waits until ZooKeeper can be read.

    ``read`` is called in each pass that found changes, and in the first one.
    """

    def __init__(self, store: Store, read: ReadEntities) -> None:
        self._store = store
        self._read_entities = read
        self._newest = -1
        self._watcher = ZnodeWatcher(
            store,
            "users and quotas",
            self._read,
            parents=(CHANGES,),
            whole_after_relist=True,  # a tool may write a znode without an entry of the list
        )

    async def start(self) -> None:
        """Read all and follow the changes."""
        await self._watcher.start()

    async def stop(self) -> None:
        """Stop following."""
        await self._watcher.stop()

    async def refresh(self) -> None:
        """Take over everything that was written before this call. Raises StoreError."""
        await self._watcher.read_now()

    async def _read(self, whole: bool) -> None:
        await self._store.sync(CHANGES)
        names = sorted(await self._store.children(CHANGES, self._watcher.watch), key=_sequence)
        news = [name for name in names if _sequence(name) > self._newest]
        newest = _sequence(names[-1]) if names else -1
        has_gap = newest < self._newest or [*map(_sequence, news)] != [*range(self._newest + 1, newest + 1)]
        changed = None if whole or has_gap else await self._changed(news)
        if changed is None or changed:
            await self._read_entities(changed)
        self._newest = newest
        if len(names) > CHANGES_KEPT:
            await self._prune(names[: min(len(names) - CHANGES_KEPT, PRUNED_AT_ONCE)])

    async def _changed(self, names: Sequence[str]) -> frozenset[str] | None:
        """The entities that entries name; None: one of them cannot be read, and all must be."""
        rows = await read_many(self._store, [f"{CHANGES}/{name}" for name in names])
        changed = set()
        for name, row in zip(names, rows, strict=True):
            try:
                document: dict[str, Any] = load_document(name, row[0]) if row is not None else {}
                changed.add(str(document["entity_path"]))
            except (BadZnode, KeyError):
                return None
        return frozenset(changed)

    async def _prune(self, names: Iterable[str]) -> None:
        """Delete the oldest entries: Kafka's brokers, which do it after 15 minutes, are not here."""
        for name in names:
            try:
                await self._store.multi([Delete(f"{CHANGES}/{name}")])
            except (MultiFailed, NoNode):
                continue


def _sequence(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1
