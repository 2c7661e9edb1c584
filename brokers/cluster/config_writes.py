"""Changes of dynamic configurations: compare-and-set of one znode together with its change-log entry, by any broker.

No controller is needed: two writers of the same entity meet in the znode's version, and the loser starts over from
what the winner wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from brokers.cluster import znodes
from brokers.cluster.loading import read_or_none
from brokers.cluster.view import ClusterView
from brokers.cluster.znodes import ConfigChanged
from coordination.changes import entry
from coordination.store import Check, Create, MultiFailed, Operation, SetData, Store, UnknownOutcome

ATTEMPTS = 20
RETRY_SECONDS = 0.05
VIEW_WAIT_MS = 2_000

Alteration = Callable[[Mapping[str, str]], dict[str, str]]
"""From the configuration as it is to the one wanted; raises what the caller understands. May run more than once."""


class EntityGone(Exception):
    """The topic to configure was deleted meanwhile."""


class Contended(Exception):
    """Others kept changing the configuration; nothing of ours was written, as far as we know."""


async def alter_config(store: Store, view: ClusterView, kind: str, entity: str, alteration: Alteration) -> None:
    """Apply the alteration to what ZooKeeper has now, and wait until our view shows it.

    Raises EntityGone, Contended, SessionExpired, and whatever ``alteration`` raises.
    """
    path = znodes.config_path(kind, entity)
    for _ in range(ATTEMPTS):
        found = await read_or_none(store, path)
        present = {} if found is None else znodes.decode_config(path, found[0])
        wanted = alteration(present)
        if found is not None and wanted == present:
            await _shown(view, kind, entity, found[1])
            return
        version = 0 if found is None else found[1] + 1
        write: Operation = (
            Create(path, znodes.encode_config(wanted))
            if found is None
            else SetData(path, znodes.encode_config(wanted), found[1])
        )
        change = ConfigChanged(kind, entity, version, wanted)
        try:
            await store.multi([*await _guard(store, kind, entity), write, entry(znodes.encode_changes([change]))])
        except (MultiFailed, UnknownOutcome):
            # lost the race, or don't know: the next look at the znode tells which
            await asyncio.sleep(RETRY_SECONDS)
            continue
        await _shown(view, kind, entity, version)
        return
    raise Contended(f"the configuration of {entity} kept changing")


async def _guard(store: Store, kind: str, entity: str) -> list[Operation]:
    """A topic must exist when its configuration is written, or a dead topic's settings would greet the next one."""
    if kind != znodes.CONFIG_TOPICS:
        return []
    topic = await read_or_none(store, znodes.topic_path(entity))
    if topic is None:
        raise EntityGone(entity)
    return [Check(znodes.topic_path(entity), topic[1])]


async def _shown(view: ClusterView, kind: str, entity: str, version: int) -> None:
    def shown() -> bool:
        seen = view.config_version(kind, entity)
        return seen is not None and seen >= version

    await view.wait_until(shown, VIEW_WAIT_MS)
