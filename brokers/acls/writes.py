"""Changes of ACLs in ZooKeeper: compare-and-set of each pattern's znode together with its change node, by any broker.

No controller is needed: of two concurrent writers one fails on a znode's version, and repeats its change on the other's
result. Returning means that the change is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fleetlog.brokers.acls.cache import AclCache
from fleetlog.brokers.acls.image import Entries, ResourcePattern
from fleetlog.brokers.acls.znodes import (
    EXTENDED_CHANGES,
    LITERAL_CHANGES,
    acl_path,
    change_node,
    decode_entries,
    encode_entries,
)
from fleetlog.brokers.documents import BadDocument
from fleetlog.brokers.metadata.config_writes import ATTEMPTS, RETRY_SECONDS, Contended
from fleetlog.brokers.metadata.loading import read_many
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

PATTERNS_PER_MULTI = 50
CHANGES_KEPT = 500
CHANGES_MOST = 1000
"""Change nodes at which the oldest go, but for those kept: a broker that missed one reads all ACLs again."""

Edit = Callable[[Entries], Entries]
"""From a pattern's present entries to the wanted ones. May run more than once."""
Failure = BadDocument | StoreError | Contended


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
    except (TooLarge, BadDocument, Contended) as problem:
        if len(edits) == 1:
            return dict.fromkeys(edits, problem)
    except StoreError as problem:
        return dict.fromkeys(edits, problem)
    outcomes: dict[ResourcePattern, EditedEntries | Failure] = {}
    for pattern, edit in edits.items():
        outcomes |= await _edit_some(store, {pattern: edit})
    return outcomes


async def _written(store: Store, edits: Mapping[ResourcePattern, Edit]) -> dict[ResourcePattern, EditedEntries]:
    """Raises BadDocument, Contended, and the store's exceptions but MultiFailed and UnknownOutcome."""
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
