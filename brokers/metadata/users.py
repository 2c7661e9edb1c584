"""SCRAM credentials in ``/config/users/<name>``, as Kafka 3.9 keeps them: followed by brokers, read and written.

A change is one multi of the user's znode and a sequential znode below ``/config/changes``, which names it. Brokers
watch that list, and read again the users that new entries name. Kafka's own tools write the same, so what they change
is seen, too. The credentials stand in no other znode. While ZooKeeper is unreachable the last ones stay.

Source: kafka/zk/ZkData.scala (ConfigEntityZNode, ConfigEntityChangeNotificationZNode), DynamicConfigManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from brokers.metadata import znodes
from brokers.metadata.loading import children_or_none, read_many, read_or_none
from brokers.metadata.znodes import BadZnode
from brokers.security.documents import BadDocument, desanitised, dump_document, load_document, sanitised
from brokers.security.scram import ScramCredential, ScramMechanism, credential_from
from brokers.security.scram_users import (
    UNSTORABLE,
    AlteredUser,
    Deletion,
    Upsertion,
    alter_users,
    credential_at,
    users_to_read,
)
from coordination.store import (
    Create,
    Delete,
    MultiFailed,
    NoNode,
    Operation,
    SessionEvent,
    SessionState,
    SetData,
    Store,
    StoreError,
    UnknownOutcome,
    WatchEvent,
)
from coordination.tree import ensure
from wire.errors import ErrorCode

USERS: Final = "/config/users"
CHANGES: Final = "/config/changes"
CHANGE_PREFIX: Final = "config_change_"

_ATTEMPTS: Final = 20
_RETRY_S: Final = 0.05
_FOLLOW_RETRY_S: Final = 0.2
_RELIST_S: Final = 20.0
_KEPT_CHANGES: Final = 1_000
_PRUNED_AT_ONCE: Final = 100

log = logging.getLogger(__name__)


def user_path(user: str) -> str:
    """The znode of a user's credentials and quotas."""
    return f"{USERS}/{sanitised(user)}"


async def read_users(store: Store, users: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
    """The ``config`` maps of users, None for all; those without a znode are left out, unreadable ones are empty."""
    if users is None:
        names = await children_or_none(store, USERS)
        users = [name for name in map(_user_of, names) if name is not None]
    users = [user for user in users if user not in UNSTORABLE]
    found = await read_many(store, [user_path(user) for user in users])
    return {user: _config_of(user, row[0]) for user, row in zip(users, found, strict=True) if row is not None}


def _user_of(child: str) -> str | None:
    if child == znodes.DEFAULT_ENTITY:
        return None
    try:
        return desanitised(child)
    except ValueError:
        return None


def _config_of(user: str, data: bytes) -> dict[str, str]:
    try:
        return _decoded(user_path(user), data)
    except BadZnode as error:
        log.warning("the credentials of a user cannot be read: %s", error)
        return {}


def _decoded(path: str, data: bytes) -> dict[str, str]:
    """Raises BadZnode, whose text holds nothing of the content."""
    if not data:
        return {}  # Kafka creates parents of clients' quotas without data
    return znodes.decode_config(path, data)


async def write_users(
    store: Store, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
) -> dict[str, AlteredUser]:
    """Alter credentials, each user by itself; returns their outcomes in the order of the request.

    Raises the store's exceptions, BadZnode.
    """
    results = {}
    await ensure(store, USERS)
    await ensure(store, CHANGES)
    for user in users_to_read(deletions, upsertions):
        gone = [one for one in deletions if one.user == user]
        new = [one for one in upsertions if one.user == user]
        results[user] = await _write_user(store, user, gone, new)
    return results


async def _write_user(store: Store, user: str, gone: Sequence[Deletion], new: Sequence[Upsertion]) -> AlteredUser:
    if user in UNSTORABLE:
        return alter_users({}, gone, new)[user]
    path = user_path(user)
    notice = Create(
        f"{CHANGES}/{CHANGE_PREFIX}",
        dump_document({"version": 2, "entity_path": f"users/{sanitised(user)}"}),
        sequence=True,
    )
    unknown = False
    for _ in range(_ATTEMPTS):
        found = await read_or_none(store, path)
        present = {} if found is None else _decoded(path, found[0])
        result = alter_users({user: present}, gone, new)[user]
        if unknown and result.error is ErrorCode.RESOURCE_NOT_FOUND:
            return AlteredUser(ErrorCode.NONE, None, None)  # the attempt whose answer was lost did it
        if result.config is None:
            return result
        data = znodes.encode_config(result.config)
        write: Operation = Create(path, data) if found is None else SetData(path, data, found[1])
        try:
            await store.multi([write, notice])
        except (MultiFailed, UnknownOutcome) as error:  # another writer was first, or the next read decides
            unknown = unknown or isinstance(error, UnknownOutcome)
            await asyncio.sleep(_RETRY_S)
            continue
        return result
    return AlteredUser(ErrorCode.REQUEST_TIMED_OUT, "The user's configuration kept changing; try again", None)


class ScramUsers:
    """The credentials in ZooKeeper, followed. ``start`` once, ``stop`` once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._credentials: dict[tuple[str, str], ScramCredential] = {}
        self._newest = -1
        self._reload = True
        self._poked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """The credential of a user; None without one."""
        return self._credentials.get((mechanism.value, user))

    async def start(self) -> None:
        """Read all credentials and follow their changes. Raises the store's exceptions."""
        await ensure(self._store, USERS)
        await ensure(self._store, CHANGES)
        self._store.on_session(self._session_changed)
        await self._catch_up()
        self._task = asyncio.create_task(self._follow(), name="SCRAM users")

    async def stop(self) -> None:
        """Stop following; the credentials stay."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _session_changed(self, event: SessionEvent) -> None:
        if event.state is SessionState.CONNECTED:
            self._poked.set()

    def _watch(self, _event: WatchEvent) -> None:
        self._poked.set()

    async def _follow(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_RELIST_S):
                    await self._poked.wait()
            except TimeoutError:
                self._reload = True  # a tool may write a znode without an entry of the list
            self._poked.clear()
            try:
                await self._catch_up()
            except StoreError as error:
                log.info("reading SCRAM users from ZooKeeper failed, retrying: %s", error)
                await self._again()
            except Exception:  # stale credentials on a live broker would be worse than any bug
                log.exception("following the SCRAM users failed; reading all of them again")
                self._reload = True
                await self._again()

    async def _again(self) -> None:
        await asyncio.sleep(_FOLLOW_RETRY_S)
        self._poked.set()

    async def _catch_up(self) -> None:
        """One pass: the watch first, then the data that it guards."""
        await self._store.sync(CHANGES)
        names = sorted(await self._store.children(CHANGES, self._watch), key=_sequence)
        news = [name for name in names if _sequence(name) > self._newest]
        newest = _sequence(names[-1]) if names else -1
        if newest < self._newest or [*map(_sequence, news)] != [*range(self._newest + 1, newest + 1)]:
            self._reload = True  # entries are missing: the list was pruned, or this is the first look
        changed: set[str] | None = None if self._reload else await self._changed(news)
        users = await read_users(self._store, None if changed is None else sorted(changed))
        if changed is None:
            self._credentials = {}
        self._take(users if changed is None else {user: users.get(user, {}) for user in changed})
        self._newest, self._reload = newest, False
        if len(names) > _KEPT_CHANGES:
            await self._prune(names[: min(len(names) - _KEPT_CHANGES, _PRUNED_AT_ONCE)])

    async def _changed(self, names: Sequence[str]) -> set[str] | None:
        """The users that entries name; None: one of them cannot be read, and all users must be."""
        found = await read_many(self._store, [f"{CHANGES}/{name}" for name in names])
        changed = set()
        for name, row in zip(names, found, strict=True):
            try:
                document: dict[str, Any] = load_document(name, row[0]) if row is not None else {}
                kind, _, entity = str(document["entity_path"]).partition("/")
                if kind == "users" and "/" not in entity:
                    changed.add(desanitised(entity))
            except (BadDocument, KeyError, ValueError):
                return None
        return changed

    def _take(self, users: Mapping[str, Mapping[str, str]]) -> None:
        for user, config in users.items():
            for mechanism in ScramMechanism:
                key = (mechanism.value, user)
                self._credentials.pop(key, None)
                text = credential_at(config, mechanism)
                if text is None:
                    continue
                try:
                    self._credentials[key] = credential_from(mechanism, text)
                except ValueError as error:
                    log.warning("user %.100r: %s", user, error)

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
