"""Reads all metadata from ZooKeeper: at a start, after a gap in the change log, by a new controller.

The reads are not one snapshot. Instead the change log brackets them: writes during the reads are in entries after
``sequence``, and applying these brings every part to the same point.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.image import MetadataDelta, MetadataImage
from fleetlog.brokers.metadata.znodes import (
    BadZnode,
    Change,
    ConfigChanged,
    StatesChanged,
    TopicChanged,
    TopicDeleted,
    TopicZnode,
)
from fleetlog.brokers.model import PartitionState, TopicPartition
from fleetlog.coordination.store import MAX_GET_MANY, NoNode, Stat, Store, Watch

READS_IN_FLIGHT = 64
BULK_READS_IN_FLIGHT = 4
"""Requests in flight: enough to hide the round trip, few enough not to delay the session's heartbeats."""
CHANGES_PER_READ = 16
"""Entries of the change log may have a few hundred kilobytes each."""

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")


@dataclass(slots=True)
class LoadedMetadata:
    """The result. ``deleting`` are topics with a deletion in progress: not in the image, but to be completed.

    ``deleted`` are the ids of topics whose deletions the tree names, done or in progress.
    """

    image: MetadataImage
    sequence: int
    deleting: list[str]
    deleted: frozenset[uuid.UUID] = frozenset()


async def gather_bounded(
    items: Iterable[_Item], work: Callable[[_Item], Awaitable[_Value]], limit: int = READS_IN_FLIGHT
) -> list[_Value]:
    """``work`` over all items, at most ``limit`` at a time, results in order; the first exception is raised."""
    gate = asyncio.Semaphore(limit)

    async def one(item: _Item) -> _Value:
        async with gate:
            return await work(item)

    return await asyncio.gather(*(one(item) for item in items))


async def read_many(store: Store, paths: Sequence[str], at_once: int = MAX_GET_MANY) -> list[tuple[bytes, Stat] | None]:
    """Data and Stat of each path in order, None where the znode is gone."""
    runs = [paths[start : start + at_once] for start in range(0, len(paths), at_once)]
    return [row for run in await gather_bounded(runs, store.get_many, BULK_READS_IN_FLIGHT) for row in run]


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


async def read_changes(store: Store, sequences: Sequence[int]) -> list[tuple[list[Change], int]] | None:
    """The entries with these numbers, in order, and when ZooKeeper made each (ms).

    None if one was pruned or is unreadable: reload then.
    """
    rows = await read_many(store, [znodes.change_path(s) for s in sequences], CHANGES_PER_READ)
    entries: list[tuple[list[Change], int]] = []
    for sequence, entry in zip(sequences, rows, strict=True):
        if entry is None:
            return None
        try:
            entries.append((znodes.decode_changes(znodes.change_path(sequence), entry[0]), entry[1].created_ms))
        except BadZnode:
            return None
    return entries


async def load_metadata(store: Store, attempts: int = 5) -> LoadedMetadata:
    """All metadata; raises BadZnode for a tree that is not fleetlog's, and the store's exceptions."""
    for _ in range(attempts):
        loaded = await _load_once(store)
        if loaded is not None:
            return loaded
    raise BadZnode(znodes.CHANGES, f"the change log was pruned faster than it could be read, {attempts} times")


async def _load_once(store: Store) -> LoadedMetadata | None:
    await store.sync(znodes.CHANGES)
    before = await list_changes(store)
    first = before[-1] if before else -1
    image = MetadataImage()
    delta = MetadataDelta()
    deleting = await children_or_none(store, znodes.DELETE_TOPICS)
    names = [name for name in await children_or_none(store, znodes.TOPICS) if name not in set(deleting)]
    deleted = await _read_deletions(store, deleting)
    image.apply(await _read_topics(store, names), delta)
    entities = [
        (kind, entity)
        for kind in znodes.CONFIG_KINDS
        for entity in await children_or_none(store, f"{znodes.CONFIG}/{kind}")
    ]
    image.apply(await _read_configs(store, entities), delta)
    # Only a log without gaps proves that no entry was missed between the two listings.
    after = await list_changes(store)
    tail = [sequence for sequence in after if sequence > first]
    if tail != list(range(first + 1, first + 1 + len(tail))):
        return None
    entries = await read_changes(store, tail)
    if entries is None:
        return None
    for changes, _ in entries:
        image.apply(changes, delta)
        deleted.update(change.id for change in changes if isinstance(change, TopicDeleted))
    return LoadedMetadata(image, tail[-1] if tail else first, deleting, frozenset(deleted))


async def _read_deletions(store: Store, deleting: list[str]) -> set[uuid.UUID]:
    """The ids in the marks of deleted topics. A mark that cannot be read (Kafka's have no id) names none."""
    names = await children_or_none(store, znodes.DELETED_TOPICS)
    paths = [*map(znodes.deleted_topic_path, names), *map(znodes.delete_topic_path, deleting)]
    ids = set()
    for path, mark in zip(paths, await read_many(store, paths), strict=True):
        if mark is not None:
            with suppress(BadZnode):
                ids.add(znodes.decode_delete_mark(path, mark[0]))
    return ids


async def _read_topics(store: Store, names: list[str]) -> list[Change]:
    topics: dict[str, tuple[TopicZnode, int]] = {}
    for name, row in zip(names, await read_many(store, [znodes.topic_path(n) for n in names]), strict=True):
        if row is not None:
            data, stat = row
            topics[name] = znodes.decode_topic(znodes.topic_path(name), data), stat.version
    partitions = [
        TopicPartition(name, index) for name, (topic, _) in topics.items() for index in range(len(topic.assignment))
    ]
    paths = [znodes.state_path(tp) for tp in partitions]
    states: dict[str, dict[int, PartitionState]] = {name: {} for name in topics}
    for tp, path, row in zip(partitions, paths, await read_many(store, paths), strict=True):
        if row is not None:
            data, stat = row
            replicas = topics[tp.topic][0].assignment[tp.partition]
            states[tp.topic][tp.partition] = znodes.decode_state(path, data, replicas, stat.version)
    changes: list[Change] = []
    for name, (topic, version) in topics.items():
        changes += (TopicChanged(name, topic, version), StatesChanged(name, topic.id, states[name]))
    return changes


async def _read_configs(store: Store, entities: list[tuple[str, str]]) -> list[Change]:
    paths = [znodes.config_path(kind, entity) for kind, entity in entities]
    return [
        ConfigChanged(kind, entity, row[1].version, znodes.decode_config(path, row[0]))
        for (kind, entity), path, row in zip(entities, paths, await read_many(store, paths), strict=True)
        if row is not None
    ]
