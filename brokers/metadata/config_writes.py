"""Changes of dynamic configurations: compare-and-set of one znode together with its change-log entry, by any broker.

No controller is needed: of two concurrent writers one fails on the znode's version, and repeats its change on the
other's result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.metadata.client_configs import decode_entity
from fleetlog.brokers.metadata.config_changes import CHANGES, change_notice
from fleetlog.brokers.metadata.loading import read_or_none
from fleetlog.brokers.metadata.znodes import ConfigChanged
from fleetlog.coordination.changes import entry
from fleetlog.coordination.store import Check, Create, MultiFailed, Operation, SetData, Store, UnknownOutcome
from fleetlog.coordination.tree import ensure

AlteredEntity = Callable[[dict[str, str], bool], Mapping[str, str] | None]
"""From the present ``config`` map to the wanted one, None where nothing is to be written; True: the attempt before may
have been written, its answer was lost."""
ATTEMPTS = 20
RETRY_SECONDS = 0.05
METADATA_WAIT_MS = 2_000

Alteration = Callable[[Mapping[str, str]], dict[str, str]]
"""From the present configuration to the wanted one; its exceptions reach the caller. May run more than once."""


class EntityGone(Exception):
    """The topic to configure was deleted meanwhile."""


class Contended(Exception):
    """Other writers kept changing the configuration; the change was not written, as far as is known."""


async def alter_config(store: Store, metadata: MetadataCache, kind: str, entity: str, alteration: Alteration) -> None:
    """Apply the alteration to the configuration in ZooKeeper, and wait until the metadata cache shows it.

    Raises EntityGone, Contended, SessionExpired, and whatever ``alteration`` raises.
    """
    path = znodes.config_path(kind, entity)
    for _ in range(ATTEMPTS):
        row = await read_or_none(store, path)
        present = {} if row is None else znodes.decode_config(path, row[0])
        wanted = alteration(present)
        if row is not None and wanted == present:
            await _shown(metadata, kind, entity, row[1])
            return
        version = 0 if row is None else row[1] + 1
        write: Operation = (
            Create(path, znodes.encode_config(wanted))
            if row is None
            else SetData(path, znodes.encode_config(wanted), row[1])
        )
        change = ConfigChanged(kind, entity, version, wanted)
        try:
            await store.multi([*await _guard(store, kind, entity), write, entry(znodes.encode_changes([change]))])
        except (MultiFailed, UnknownOutcome):
            # another writer was first, or the outcome is unknown: the next read decides
            await asyncio.sleep(RETRY_SECONDS)
            continue
        await _shown(metadata, kind, entity, version)
        return
    raise Contended(f"the configuration of {entity} kept changing; try again")


async def alter_entity(store: Store, entity_path: str, altered: AlteredEntity) -> None:
    """The same for a user, a client or an address, by its path below ``/config``: with an entry of the list of changes.

    Raises Contended, BadZnode, the store's exceptions, and whatever ``altered`` raises.
    """
    path, perhaps = f"{znodes.CONFIG}/{entity_path}", False
    await ensure(store, CHANGES)
    for _ in range(ATTEMPTS):
        row = await read_or_none(store, path)
        config = altered({} if row is None else decode_entity(path, row[0]), perhaps)
        if config is None:
            return
        if row is None:
            await ensure(store, path.rpartition("/")[0])
        data = znodes.encode_config(config)
        write: Operation = Create(path, data) if row is None else SetData(path, data, row[1])
        try:
            await store.multi([write, change_notice(entity_path)])
        except (MultiFailed, UnknownOutcome) as error:  # another writer was first, or the next read decides
            perhaps = perhaps or isinstance(error, UnknownOutcome)
            await asyncio.sleep(RETRY_SECONDS)
            continue
        return
    raise Contended(f"the configuration of {entity_path} kept changing; try again")


async def _guard(store: Store, kind: str, entity: str) -> list[Operation]:
    """A check that the topic exists: otherwise a deleted topic's settings would apply to its successor."""
    if kind != znodes.CONFIG_TOPICS:
        return []
    topic = await read_or_none(store, znodes.topic_path(entity))
    if topic is None:
        raise EntityGone(entity)
    return [Check(znodes.topic_path(entity), topic[1])]


async def _shown(metadata: MetadataCache, kind: str, entity: str, version: int) -> None:
    def shown() -> bool:
        seen = metadata.config_version(kind, entity)
        return seen is not None and seen >= version

    await metadata.wait_until(shown, METADATA_WAIT_MS)
