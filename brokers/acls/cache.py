"""Follows the ACLs in ZooKeeper: gives each new image to the broker's authorizer.

A change node names the pattern whose entries changed; only that znode is read again. After a reconnect, a gap in the
numbers of the change nodes, or one that cannot be read, all ACLs are read again. While ZooKeeper is unreachable, the
authorizer decides by what was read last. An entry that cannot be read denies its pattern to all but super users.

Source: Kafka 3.9's AclAuthorizer and ZkAclChangeStore for the tree.

Changes of ACLs in ZooKeeper: compare-and-set of each pattern's znode together with its change node, by any broker.

No controller is needed: of two concurrent writers one fails on a znode's version, and repeats its change on the other's
result. Returning means that the change is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fleetlog.brokers.acls.decisions import AclRules
from fleetlog.brokers.acls.image import AclImage, Entries, PatternType, ResourcePattern, ResourceType
from fleetlog.brokers.acls.znodes import (
    ACL_PARENTS,
    ACL_ROOTS,
    CHANGE_NAME,
    DENIED_TO_ALL,
    EXTENDED_CHANGES,
    LITERAL_ACLS,
    LITERAL_CHANGES,
    TYPE_NAMES,
    acl_path,
    change_node,
    changed_pattern,
    decode_entries,
    encode_entries,
    pattern_at,
)
from fleetlog.brokers.metadata.config_writes import ATTEMPTS, RETRY_SECONDS, Contended
from fleetlog.brokers.metadata.loading import children_or_none, gather_bounded, read_many
from fleetlog.brokers.metadata.watcher import ZnodeWatcher
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.coordination.store import (
    BadVersion,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    Operation,
    SetData,
    Store,
    StoreError,
    TooLarge,
    UnknownOutcome,
)

logger = logging.getLogger(__name__)

ACLS_PER_READ = 50
"""The entries of one pattern may have a few hundred kilobytes."""

_ROOTS = (LITERAL_CHANGES, EXTENDED_CHANGES)


def _sequence_of(name: str) -> int:
    """The number of a change node; -1 for a node of another name."""
    digits = name.removeprefix(CHANGE_NAME)
    return int(digits) if digits.isdigit() and name != digits else -1


class AclCache:
    """See the module. ``rules`` start with an empty image; ``on_change`` is called after each new one."""

    def __init__(self, store: Store, rules: AclRules, on_change: Callable[[], None] = lambda: None) -> None:
        self.rules = rules
        self._store = store
        self._on_change = on_change
        self._seen = dict.fromkeys(_ROOTS, -1)
        self._listed: dict[str, list[int]] = {root: [] for root in _ROOTS}
        self.watcher = ZnodeWatcher(store, "ACLs", self._read, ACL_PARENTS, whole_after_reconnect=True)

    @property
    def image(self) -> AclImage:
        """The ACLs that decide now."""
        return self.rules.image

    def outdated_changes(self, root: str, keep: int) -> list[str]:
        """Paths of the change nodes below ``root`` but for the ``keep`` newest ones, as last listed."""
        return [f"{root}/{CHANGE_NAME}{sequence:010d}" for sequence in self._listed[root][:-keep]]

    # ------------------------------------------------------------ following ZooKeeper

    async def start(self) -> None:
        """Read all ACLs and follow their changes; returns when they are read, however long that takes."""
        await self.watcher.start()

    async def stop(self) -> None:
        """Stop following; the authorizer decides by the last image."""
        await self.watcher.stop()

    async def refresh(self) -> None:
        """Take over everything that was written before this call. Raises StoreError."""
        await self._store.sync(LITERAL_CHANGES)
        await self.watcher.read_now()

    async def _read(self, whole: bool) -> None:
        listed = {root: await self._list(root) for root in _ROOTS}
        changed = None if whole or self._has_gap(listed) else await self._changed_patterns(listed)
        image = await self._read_all() if changed is None else await self._read_changed(changed)
        self._listed = listed
        self._seen = {root: sequences[-1] if sequences else -1 for root, sequences in listed.items()}
        if image is not None:
            self.rules.replace(image)
        if image is not None or not self.watcher.has_read:
            self._on_change()

    async def _list(self, root: str) -> list[int]:
        names = await children_or_none(self._store, root, self.watcher.watch)
        return sorted(sequence for sequence in map(_sequence_of, names) if sequence >= 0)

    def _has_gap(self, listed: dict[str, list[int]]) -> bool:
        for root, sequences in listed.items():
            seen, last = self._seen[root], sequences[-1] if sequences else -1
            news = [sequence for sequence in sequences if sequence > seen]
            if last < seen or news != list(range(seen + 1, last + 1)):
                logger.info("gap in the changes of ACLs after %s: reading all ACLs again", seen)
                return True
        return False

    async def _changed_patterns(self, listed: dict[str, list[int]]) -> set[ResourcePattern] | None:
        """What the new change nodes name; None if one is gone or cannot be read."""
        paths = [
            f"{root}/{CHANGE_NAME}{sequence:010d}"
            for root, sequences in listed.items()
            for sequence in sequences
            if sequence > self._seen[root]
        ]
        patterns = set()
        for path, node in zip(paths, await read_many(self._store, paths), strict=True):
            try:
                if node is None:
                    return None
                patterns.add(changed_pattern(path, node[0]))
            except BadZnode as problem:
                logger.warning("reading all ACLs again: %s", problem)
                return None
        return patterns

    # ------------------------------------------------------------ reading ACLs

    async def _read_all(self) -> AclImage | None:
        """The image of all ACLs; None if they are those that decide already."""
        await self._store.sync(LITERAL_ACLS)
        places = [(root, kind, shape) for root, shape in ACL_ROOTS for kind in ResourceType if kind in TYPE_NAMES]

        async def names(place: tuple[str, ResourceType, PatternType]) -> list[str]:
            return await children_or_none(self._store, f"{place[0]}/{TYPE_NAMES[place[1]]}")

        patterns = [
            pattern
            for place, children in zip(places, await gather_bounded(places, names), strict=True)
            for name in children
            if (pattern := pattern_at(*place, name)) is not None
        ]
        entries = {pattern: children for pattern, children in (await self._read_entries(patterns)).items() if children}
        before = self.image
        if entries == before.entries:
            return None
        return AclImage(entries, before.version + 1)

    async def _read_changed(self, patterns: set[ResourcePattern]) -> AclImage | None:
        before = self.image
        changes = {
            pattern: entries
            for pattern, entries in (await self._read_entries(sorted(patterns))).items()
            if entries != before.entries.get(pattern, frozenset())
        }
        return before.updated(changes) if changes else None

    async def _read_entries(self, patterns: list[ResourcePattern]) -> dict[ResourcePattern, Entries]:
        """The entries of each pattern; none where the znode is gone."""
        paths = [acl_path(pattern) for pattern in patterns]
        entries: dict[ResourcePattern, Entries] = {}
        nodes = await read_many(self._store, paths, ACLS_PER_READ)
        for pattern, path, node in zip(patterns, paths, nodes, strict=True):
            try:
                entries[pattern] = frozenset() if node is None else decode_entries(path, node[0])
            except BadZnode as problem:
                logger.error("unreadable ACLs: all but super users are denied what they are about: %s", problem)
                entries[pattern] = DENIED_TO_ALL
        return entries


PATTERNS_PER_MULTI = 50
CHANGES_KEPT = 500
CHANGES_MOST = 1000
"""Change nodes at which the oldest go, but for those kept: a broker that missed one reads all ACLs again."""

Edit = Callable[[Entries], Entries]
"""From a pattern's present entries to the wanted ones. May run more than once."""
Failure = BadZnode | StoreError | Contended


class EditedEntries(NamedTuple):
    """A pattern's entries before and after the change."""

    before: Entries
    after: Entries


async def edit_acls(
    store: Store, cache: AclCache, edits: Mapping[ResourcePattern, Edit]
) -> dict[ResourcePattern, EditedEntries | Failure]:
    """Apply the edits, and wait until this broker decides by what was written; the outcome of each pattern.

    Patterns are written some at a time, each some at once or not at all. It ends only when this broker has read them:
    the caller brings a deadline.
    """
    patterns = list(edits)
    outcomes: dict[ResourcePattern, EditedEntries | Failure] = {}
    for start in range(0, len(patterns), PATTERNS_PER_MULTI):
        some = {pattern: edits[pattern] for pattern in patterns[start : start + PATTERNS_PER_MULTI]}
        outcomes |= await _edit_some(store, some)
    if any(isinstance(outcome, EditedEntries) for outcome in outcomes.values()):
        await _taken_over(cache)
    try:
        for root in (LITERAL_CHANGES, EXTENDED_CHANGES):
            if cache.outdated_changes(root, CHANGES_MOST):
                await _delete_changes(store, cache.outdated_changes(root, CHANGES_KEPT))
    except StoreError:
        pass  # it is written: the next writer makes up for it
    return outcomes


async def _taken_over(cache: AclCache) -> None:
    """Until this broker decides by what was written, however long its connection is away: no answer goes ahead."""
    while True:
        try:
            return await cache.refresh()
        except StoreError:
            await asyncio.sleep(RETRY_SECONDS)


async def _edit_some(
    store: Store, edits: Mapping[ResourcePattern, Edit]
) -> dict[ResourcePattern, EditedEntries | Failure]:
    """All of them by one multi; one by one if that is too large, or one of them cannot be read."""
    try:
        return dict(await _written(store, edits))
    except (TooLarge, BadZnode, Contended) as problem:
        if len(edits) == 1:
            return dict.fromkeys(edits, problem)
    except StoreError as problem:
        return dict.fromkeys(edits, problem)
    outcomes: dict[ResourcePattern, EditedEntries | Failure] = {}
    for pattern, edit in edits.items():
        outcomes |= await _edit_some(store, {pattern: edit})
    return outcomes


async def _written(store: Store, edits: Mapping[ResourcePattern, Edit]) -> dict[ResourcePattern, EditedEntries]:
    """Raises BadZnode, Contended, and the store's exceptions but MultiFailed and UnknownOutcome."""
    perhaps: dict[ResourcePattern, Entries] = {}
    for _ in range(ATTEMPTS):
        outcomes: dict[ResourcePattern, EditedEntries] = {}
        operations: list[Operation] = []
        paths = [acl_path(pattern) for pattern in edits]
        for (pattern, edit), path, node in zip(edits.items(), paths, await read_many(store, paths), strict=True):
            present = frozenset() if node is None else decode_entries(path, node[0])
            wanted = edit(present)
            outcomes[pattern] = EditedEntries(present | perhaps.get(pattern, frozenset()), wanted)
            if wanted != present:
                operations += _operations(pattern, wanted, None if node is None else node[1].version)
        if not operations:
            return outcomes
        try:
            await store.multi(operations)
        except MultiFailed as failed:
            if not _is_contention(failed):
                raise
        except UnknownOutcome:
            perhaps = {pattern: before for pattern, (before, _) in outcomes.items()}
            await store.sync(paths[0])
        else:
            return outcomes
        await asyncio.sleep(RETRY_SECONDS)
    raise Contended("the ACLs kept changing; try again")


def _is_contention(failed: MultiFailed) -> bool:
    return isinstance(failed.cause, BadVersion | NodeExists | NoNode)


def _operations(pattern: ResourcePattern, wanted: Entries, version: int | None) -> Sequence[Operation]:
    path, data = acl_path(pattern), encode_entries(wanted)
    change_path, change = change_node(pattern)
    write: Operation
    if version is None:
        write = Create(path, data)
    elif wanted:
        write = SetData(path, data, version)
    else:
        write = Delete(path, version)
    return write, Create(change_path, change, sequence=True)


async def _delete_changes(store: Store, paths: Sequence[str]) -> None:
    for path in paths:
        try:
            await store.delete(path)
        except NoNode:
            continue
