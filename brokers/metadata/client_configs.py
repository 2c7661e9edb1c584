"""What ``/config/users``, ``/config/clients`` and ``/config/ips`` hold, followed: SCRAM credentials and quotas.

Each znode that :mod:`brokers.metadata.config_changes` names is read once, for all that take from it. While ZooKeeper is
unreachable, what was read last stays.

Source: kafka/zk/ZkData.scala (ConfigEntityZNode).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.config_changes import ConfigChanges
from fleetlog.brokers.metadata.loading import children_or_none, gather_bounded, read_many
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.coordination.store import Store

USERS: Final = "users"
CLIENTS: Final = "clients"
IPS: Final = "ips"
KINDS: Final = (USERS, CLIENTS, IPS)

Configs = Mapping[str, Mapping[str, str]]
"""The ``config`` maps by the entity's path below ``/config``; empty where there is none, or it cannot be read."""
TakeConfigs = Callable[[Configs, bool], None]
"""Gets what was read; with True that is all there is, else what changed."""

logger = logging.getLogger(__name__)


def decode_entity(path: str, data: bytes) -> dict[str, str]:
    """The ``config`` map in an entity's znode. Raises BadZnode, whose text holds nothing of the content."""
    if not data:
        return {}  # Kafka creates parents of other entities without data
    return znodes.decode_config(path, data)


class ClientConfigs(ConfigChanges):
    """See the module. :meth:`subscribe`, then :meth:`start` once, :meth:`stop` once."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, self._take_changes)
        self._takers: list[TakeConfigs] = []

    def subscribe(self, take: TakeConfigs) -> None:
        """Give what is read to ``take``, too; before :meth:`start`."""
        self._takers.append(take)

    async def _take_changes(self, paths: frozenset[str] | None) -> None:
        whole = paths is None
        known = () if paths is None else sorted(filter(_is_entity, paths))
        configs = await self._read_all() if whole else await self._configs_at(known)
        for take in self._takers:
            if whole or configs:
                take(configs, whole)

    async def _read_all(self) -> dict[str, dict[str, str]]:
        """Everything below the three roots; the client ids of a user are listed only where it has children."""
        configs: dict[str, dict[str, str]] = {}
        for kind in KINDS:
            names = await children_or_none(self._store, f"{znodes.CONFIG}/{kind}")
            paths = [path for path in (f"{kind}/{name}" for name in names) if _is_entity(path)]
            rows = await read_many(self._store, [f"{znodes.CONFIG}/{path}" for path in paths])
            parents = []
            for path, row in zip(paths, rows, strict=True):
                if row is not None:
                    configs[path] = config_of(path, row[0])
                    if kind == USERS and row[1].child_count:
                        parents.append(f"{path}/{CLIENTS}")
            configs |= await self._configs_at([one for some in await self._listed(parents) for one in some])
        return configs

    async def _listed(self, parents: Sequence[str]) -> list[list[str]]:
        async def children(parent: str) -> list[str]:
            names = await children_or_none(self._store, f"{znodes.CONFIG}/{parent}")
            return [path for path in (f"{parent}/{name}" for name in names) if _is_entity(path)]

        return await gather_bounded(parents, children)

    async def _configs_at(self, paths: Sequence[str]) -> dict[str, dict[str, str]]:
        rows = await read_many(self._store, [f"{znodes.CONFIG}/{path}" for path in paths])
        return {
            path: {} if row is None else config_of(path, row[0]) for path, row in zip(paths, rows, strict=True)
        }  # fmt: skip


def _is_entity(entity_path: str) -> bool:
    """Whether that is the path of a user, a client id, both, or an address; others have brokers' and topics'."""
    parts = entity_path.split("/")
    known = (len(parts) == 2 and parts[0] in KINDS) or (len(parts) == 4 and parts[0::2] == [USERS, CLIENTS])
    return known and not {"", ".", ".."}.intersection(parts)


def config_of(path: str, data: bytes) -> dict[str, str]:
    """The map in an entity's znode, by its path below ``/config``; empty where it cannot be read, which is logged."""
    try:
        return decode_entity(f"{znodes.CONFIG}/{path}", data)
    except BadZnode as error:
        logger.warning("credentials or quotas cannot be read: %s", error)
        return {}
