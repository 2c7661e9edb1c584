"""Follows the ACLs in ZooKeeper: gives each new image to the broker's authorizer.

A change node names the pattern whose entries changed; only that znode is read again. After a reconnect, a gap in the
numbers of the change nodes, or one that cannot be read, all ACLs are read again. While ZooKeeper is unreachable, the
authorizer decides by what was read last. An entry that cannot be read denies its pattern to all but super users.

Source: Kafka 3.9's AclAuthorizer and ZkAclChangeStore for the tree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from fleetlog.brokers.acls.image import AclImage, Entries, PatternType, ResourcePattern, ResourceType
from fleetlog.brokers.acls.rules import AclRules
from fleetlog.brokers.acls.znodes import (
    ACL_PARENTS,
    ACL_ROOTS,
    CHANGE_NAME,
    EXTENDED_CHANGES,
    LITERAL_ACLS,
    LITERAL_CHANGES,
    TYPE_NAMES,
    acl_path,
    changed_pattern,
    entries_to_decide_by,
    pattern_at,
)
from fleetlog.brokers.documents import BadDocument
from fleetlog.brokers.metadata.loading import children_or_none, gather_bounded, read_many
from fleetlog.brokers.metadata.watcher import ZnodeWatcher
from fleetlog.coordination.store import Store

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
        self._watcher = ZnodeWatcher(store, "ACLs", self._read, ACL_PARENTS, whole_after_reconnect=True)

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
        await self._watcher.start()

    async def stop(self) -> None:
        """Stop following; the authorizer decides by the last image."""
        await self._watcher.stop()

    async def refresh(self) -> None:
        """Take over everything that was written before this call. Raises StoreError."""
        await self._store.sync(LITERAL_CHANGES)
        await self._watcher.read_now()

    async def _read(self, whole: bool) -> None:
        listed = {root: await self._list(root) for root in _ROOTS}
        changed = None if whole or self._has_gap(listed) else await self._changed_patterns(listed)
        image = await self._read_all() if changed is None else await self._read_changed(changed)
        self._listed = listed
        self._seen = {root: sequences[-1] if sequences else -1 for root, sequences in listed.items()}
        if image is not None:
            self.rules.replace(image)
        if image is not None or not self._watcher.has_read:
            self._on_change()

    async def _list(self, root: str) -> list[int]:
        names = await children_or_none(self._store, root, self._watcher.watch)
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
            except BadDocument as problem:
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
            entries[pattern] = frozenset() if node is None else entries_to_decide_by(path, node[0], _complain)
        return entries


def _complain(problem: BadDocument) -> None:
    logger.error("unreadable ACLs: all but super users are denied what they are about: %s", problem)
