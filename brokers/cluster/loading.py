"""Reads the whole cluster state out of ZooKeeper: at a start, after a gap in the change log, at a take-over.

The reads aren't one snapshot. They are bracketed by the change log instead: what was written while we read stands in
entries after ``sequence``, and applying those brings every part to the same moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from brokers.cluster import znodes
from brokers.cluster.picture import Delta, Picture
from brokers.cluster.znodes import BadZnode, Change, ConfigChanged, StatesChanged, TopicChanged
from brokers.model import PartitionState, TopicPartition
from coordination.store import NoNode, Store, Watch

READS_IN_FLIGHT = 256
"""Reads outstanding at once: enough to hide the round trip, few enough not to hold up the session's heartbeats."""

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")


@dataclass(slots=True)
class Loaded:
    """What was read. ``deleting`` are topics whose deletion began: not in the picture, but work for a controller."""

    picture: Picture
    sequence: int
    deleting: list[str]


async def gather_bounded(
    items: Iterable[_Item], work: Callable[[_Item], Awaitable[_Value]], limit: int = READS_IN_FLIGHT
) -> list[_Value]:
    """``work`` over all items, at most ``limit`` at a time, results in order; the first exception is raised."""
    gate = asyncio.Semaphore(limit)

    async def one(item: _Item) -> _Value:
        async with gate:
            return await work(item)

    return await asyncio.gather(*(one(item) for item in items))


async def read_or_none(store: Store, path: str) -> tuple[bytes, int] | None:
    """Data and version, or None where the znode is gone."""
    try:
        data, stat = await store.get(path)
    except NoNode:
        return None
    return data, stat.version


async def children_or_none(store: Store, path: str, watch: Watch | None = None) -> list[str]:
    """Names of the children; empty where the parent doesn't exist yet."""
    try:
        return await store.children(path, watch)
    except NoNode:
        return []


async def list_changes(store: Store, watch: Watch | None = None) -> list[int]:
    """Sequence numbers of the change log's entries, rising."""
    return sorted(znodes.change_sequence(name) for name in await children_or_none(store, znodes.CHANGES, watch))


async def read_changes(store: Store, sequences: Sequence[int]) -> list[list[Change]] | None:
    """The entries of those numbers, in order; None when one is gone already (pruned) or can't be read: reload then."""
    found = await gather_bounded(sequences, lambda s: read_or_none(store, znodes.change_path(s)))
    entries: list[list[Change]] = []
    for sequence, entry in zip(sequences, found, strict=True):
        if entry is None:
            return None
        try:
            entries.append(znodes.decode_changes(znodes.change_path(sequence), entry[0]))
        except BadZnode:
            return None
    return entries


async def load(store: Store, attempts: int = 5) -> Loaded:
    """The whole state; raises BadZnode for a tree that isn't ours, and the store's exceptions."""
    for _ in range(attempts):
        loaded = await _load_once(store)
        if loaded is not None:
            return loaded
    raise BadZnode(znodes.CHANGES, f"the change log was pruned faster than it could be read, {attempts} times")


async def _load_once(store: Store) -> Loaded | None:
    await store.sync(znodes.CHANGES)
    before = await list_changes(store)
    first = before[-1] if before else -1
    picture = Picture()
    delta = Delta()
    deleting = await children_or_none(store, znodes.DELETE_TOPICS)
    names = [name for name in await children_or_none(store, znodes.TOPICS) if name not in set(deleting)]
    for changes in await gather_bounded(names, lambda name: _read_topic(store, name), limit=32):
        picture.apply(changes, delta)
    entities = [
        (kind, entity)
        for kind in znodes.CONFIG_KINDS
        for entity in await children_or_none(store, f"{znodes.CONFIG}/{kind}")
    ]
    configs = await gather_bounded(entities, lambda pair: _read_config(store, *pair))
    picture.apply([config for config in configs if config is not None], delta)
    # Only a log without holes proves that nothing was missed between the first and the second listing.
    after = await list_changes(store)
    tail = [sequence for sequence in after if sequence > first]
    if tail != list(range(first + 1, first + 1 + len(tail))):
        return None
    entries = await read_changes(store, tail)
    if entries is None:
        return None
    for entry in entries:
        picture.apply(entry, delta)
    return Loaded(picture, tail[-1] if tail else first, deleting)


async def _read_topic(store: Store, name: str) -> list[Change]:
    found = await read_or_none(store, znodes.topic_path(name))
    if found is None:
        return []
    topic = znodes.decode_topic(znodes.topic_path(name), found[0])

    async def state(index: int) -> tuple[int, PartitionState] | None:
        path = znodes.state_path(TopicPartition(name, index))
        read = await read_or_none(store, path)
        return None if read is None else (index, znodes.decode_state(path, read[0], topic.assignment[index], read[1]))

    states = await gather_bounded(range(len(topic.assignment)), state, limit=64)
    return [
        TopicChanged(name, topic, found[1]),
        StatesChanged(name, topic.id, dict(found_state for found_state in states if found_state is not None)),
    ]


async def _read_config(store: Store, kind: str, entity: str) -> ConfigChanged | None:
    path = znodes.config_path(kind, entity)
    found = await read_or_none(store, path)
    if found is None:
        return None
    return ConfigChanged(kind, entity, found[1], znodes.decode_config(path, found[0]))
