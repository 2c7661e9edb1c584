"""SCRAM credentials in ``/config/users/<name>``, as Kafka 3.9 keeps them: read, written, taken from what is followed.

A change is one multi of the user's znode and of an entry of the list of changes (``config_changes``). The credentials
stand in no other znode. While ZooKeeper is unreachable the last ones stay.

Source: kafka/zk/ZkData.scala (ConfigEntityZNode).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fleetlog.brokers.logins.scram import (
    ITERATIONS_MIN,
    CredentialForm,
    ScramCredential,
    ScramMechanism,
    credential_from,
    form_of,
)
from fleetlog.brokers.logins.scram_users import (
    UNSTORABLE,
    AlteredUser,
    Deletion,
    Upsertion,
    alter_users,
    credential_at,
    users_to_read,
)
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.client_configs import USERS as CONFIG_USERS
from fleetlog.brokers.metadata.client_configs import Configs, config_of
from fleetlog.brokers.metadata.config_writes import RETRY_SECONDS, Contended, alter_entity
from fleetlog.brokers.metadata.loading import children_or_none, read_many, read_or_none
from fleetlog.brokers.metadata.znodes import BadZnode, desanitised, sanitised
from fleetlog.coordination.store import NodeExists, Store, UnknownOutcome
from fleetlog.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

LOGIN_SECRET: Final = "/fleetlog/login_secret"
SECRET_BYTES: Final = 32


async def login_secret(store: Store, new_secret: Callable[[int], bytes]) -> bytes:
    """The fleet's secret: made once, by ``new_secret(size)``, read by each broker at its start.

    Salts of SCRAM users that do not exist are derived from it, so that all brokers answer the same one, also after a
    restart: by what changes, a peer could tell which names exist. No API shows it. What can read it in ZooKeeper can
    read the credentials there, too. Raises the store's exceptions, BadZnode.
    """
    while True:
        row = await read_or_none(store, LOGIN_SECRET)
        if row is not None:
            if len(row[0]) != SECRET_BYTES:
                raise BadZnode(LOGIN_SECRET, f"is not {SECRET_BYTES} bytes: delete it, and a broker makes a new one")
            return row[0]
        try:
            await store.create(LOGIN_SECRET, new_secret(SECRET_BYTES), parents=True)
        except NodeExists:
            continue
        except UnknownOutcome:  # the next read decides
            await asyncio.sleep(RETRY_SECONDS)


USERS: Final = "/config/users"

_FORMS_MAX: Final = 16


async def read_users(store: Store, users: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
    """The ``config`` maps of users, None for all; those without a znode are left out, unreadable ones are empty."""
    if users is None:
        names = await children_or_none(store, USERS)
        users = [name for name in map(_user_of, names) if name is not None]
    users = [user for user in users if user not in UNSTORABLE]
    paths = [f"{CONFIG_USERS}/{sanitised(user)}" for user in users]
    rows = zip(users, paths, await read_many(store, [f"{znodes.CONFIG}/{path}" for path in paths]), strict=True)
    return {user: config_of(path, row[0]) for user, path, row in rows if row is not None}


def _user_of(child: str) -> str | None:
    if child == znodes.DEFAULT_ENTITY:
        return None
    try:
        return desanitised(child)
    except ValueError:
        return None


async def write_users(
    store: Store, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
) -> dict[str, AlteredUser]:
    """Alter credentials, each user by itself; returns their outcomes in the order of the request.

    Raises the store's exceptions, BadZnode.
    """
    results = {}
    for user in users_to_read(deletions, upsertions):
        gone = [one for one in deletions if one.user == user]
        new = [one for one in upsertions if one.user == user]
        results[user] = await _write_user(store, user, gone, new)
    return results


async def _write_user(store: Store, user: str, gone: Sequence[Deletion], new: Sequence[Upsertion]) -> AlteredUser:
    if user in UNSTORABLE:
        return alter_users({}, gone, new)[user]
    result = AlteredUser(ErrorCode.NONE, None, None)

    def altered(present: dict[str, str], perhaps: bool) -> Mapping[str, str] | None:
        nonlocal result
        result = alter_users({user: present}, gone, new)[user]
        if perhaps and result.error is ErrorCode.RESOURCE_NOT_FOUND:
            result = AlteredUser(ErrorCode.NONE, None, None)  # the attempt whose answer was lost did it
        return result.config

    try:
        await alter_entity(store, f"{CONFIG_USERS}/{sanitised(user)}", altered)
    except Contended:
        return AlteredUser(ErrorCode.REQUEST_TIMED_OUT, "The user's configuration kept changing; try again", None)
    return result


class ScramUsers:
    """The credentials in ZooKeeper, as ``ClientConfigs`` follows them: subscribe :meth:`take`.

    ``withdrawn`` is called with the credentials, as (mechanism, user), that are gone or were replaced by others.
    """

    def __init__(self, withdrawn: Callable[[frozenset[tuple[str, str]]], None]) -> None:
        self._withdrawn = withdrawn
        self._forms: dict[ScramMechanism, Mapping[CredentialForm, int]] = {}
        self._credentials: dict[tuple[str, str], ScramCredential] = {}

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """The credential of a user; None without one."""
        return self._credentials.get((mechanism.value, user))

    def forms(self, mechanism: ScramMechanism) -> Mapping[CredentialForm, int]:
        """How many credentials have each of the most frequent forms: one is shown for a user that does not exist."""
        return self._forms.get(mechanism, {})

    def take(self, configs: Configs, whole: bool) -> None:
        """Users that changed; ``whole``: these are all."""
        before = self._credentials
        self._credentials = {} if whole else dict(before)
        for path, config in configs.items():
            kind, _, name = path.partition("/")
            user = _user_of(name) if kind == CONFIG_USERS and "/" not in name else None
            if user is not None:
                self._take(user, config)
        if self._credentials == before:
            return
        for mechanism in ScramMechanism:
            forms = Counter(
                form_of(one)
                for (name, _), one in self._credentials.items()
                if name == mechanism.value and one.iterations >= ITERATIONS_MIN
            )
            self._forms[mechanism] = dict(forms.most_common(_FORMS_MAX))
        withdrawn = frozenset(key for key, old in before.items() if self._credentials.get(key) != old)
        if withdrawn:
            self._withdrawn(withdrawn)

    def _take(self, user: str, config: Mapping[str, str]) -> None:
        for mechanism in ScramMechanism:
            key = (mechanism.value, user)
            self._credentials.pop(key, None)
            text = credential_at(config, mechanism)
            if text is None:
                continue
            try:
                self._credentials[key] = credential_from(mechanism, text)
            except ValueError as error:
                logger.warning("user %.100r: %s", user, error)
