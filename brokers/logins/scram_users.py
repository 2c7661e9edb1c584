"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554) over the ``config`` maps of users.

One map holds a user's credentials, under the names of the mechanisms, and quotas; all else in it is left alone. The
client sends the salted password: no password passes here. Stored keys are in no answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fleetlog.brokers.logins.principals import has_outer_blanks
from fleetlog.brokers.logins.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISM_OF_CODE,
    ScramMechanism,
    credential_from,
    credential_of,
    credential_text,
)
from fleetlog.wire.errors import ErrorCode

_SALT_BYTES_MAX: Final = 1024
UNSTORABLE: Final = frozenset({"", ".", ".."})
"""Names of users that cannot be znodes."""


class Deletion(NamedTuple):
    """A credential to remove; ``mechanism`` is the number in the request."""

    user: str
    mechanism: int


class Upsertion(NamedTuple):
    """A credential to set."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"Upsertion(user={self.user!r}, mechanism={self.mechanism}, iterations={self.iterations})"


class AlteredUser(NamedTuple):
    """The outcome for one user: the map to write, or an error."""

    error: ErrorCode
    message: str | None
    config: Mapping[str, str] | None


class DescribedUser(NamedTuple):
    """The outcome for one user: (mechanism's number, iterations) of each credential, or an error."""

    error: ErrorCode
    message: str | None
    credentials: tuple[tuple[int, int], ...] = ()


def credential_at(config: Mapping[str, str], mechanism: ScramMechanism) -> str | None:
    """The stored text of a user's credential; None: the user has none for that mechanism."""
    return config.get(mechanism.value)


def users_to_read(deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]) -> list[str]:
    """The users of a request, in its order, each once: their maps are what :func:`alter_users` needs."""
    return list(dict.fromkeys([*(one.user for one in deletions), *(one.user for one in upsertions)]))


def alter_users(
    configs: Mapping[str, Mapping[str, str]], deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
) -> dict[str, AlteredUser]:
    """What becomes of each user of a request: with one wrong part nothing of that user changes."""
    results = {}
    for user in users_to_read(deletions, upsertions):
        gone = [one for one in deletions if one.user == user]
        new = [one for one in upsertions if one.user == user]
        config = dict(configs.get(user, {}))
        refused = _refusal(user, config, gone, new)
        if refused is not None:
            results[user] = AlteredUser(*refused, None)
            continue
        for deletion in gone:
            del config[MECHANISM_OF_CODE[deletion.mechanism].value]
        for one in new:
            mechanism = MECHANISM_OF_CODE[one.mechanism]
            credential = credential_of(mechanism, one.salted_password, one.salt, one.iterations)
            config[mechanism.value] = credential_text(credential)
        results[user] = AlteredUser(ErrorCode.NONE, None, config)
    return results


def _refusal(
    user: str, config: Mapping[str, str], deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
) -> tuple[ErrorCode, str] | None:
    if not user:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if user in UNSTORABLE:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Username must not be {user}, which ZooKeeper cannot store"
    if upsertions and has_outer_blanks(user):
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Username must not begin or end with a blank: {user!r}"
    mechanisms = [one.mechanism for one in deletions] + [one.mechanism for one in upsertions]
    if any(code not in MECHANISM_OF_CODE for code in mechanisms):
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if len(set(mechanisms)) < len(mechanisms):
        message = "A user credential cannot be altered twice in the same request"
        return ErrorCode.DUPLICATE_RESOURCE, message
    for one in upsertions:
        if not ITERATIONS_MIN <= one.iterations <= ITERATIONS_MAX:
            which = "Too few" if one.iterations < ITERATIONS_MIN else "Too many"
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, f"{which} iterations"
        if not 0 < len(one.salt) <= _SALT_BYTES_MAX:
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, f"The salt must have 1 to {_SALT_BYTES_MAX} bytes"
        if len(one.salted_password) != MECHANISM_OF_CODE[one.mechanism].key_bytes:
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salted password has not the size of the mechanism's hash"
    if any(credential_at(config, MECHANISM_OF_CODE[one.mechanism]) is None for one in deletions):
        return ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
    return None


def describe_users(configs: Mapping[str, Mapping[str, str]], asked: Sequence[str] | None) -> dict[str, DescribedUser]:
    """The credentials of the users that are asked for; None or none: of all that have one."""
    if not asked:
        return {user: known for user, config in configs.items() if (known := _described(user, config)).credentials}
    results = {}
    for user, times in Counter(asked).items():
        if times > 1:
            message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            results[user] = DescribedUser(ErrorCode.DUPLICATE_RESOURCE, message)
        else:
            results[user] = _described(user, configs.get(user, {}))
    return results


def _described(user: str, config: Mapping[str, str]) -> DescribedUser:
    """A credential that cannot be read counts as none, as it does at a login."""
    credentials = []
    for mechanism in ScramMechanism:
        text = credential_at(config, mechanism)
        if text is not None:
            try:
                credentials.append((mechanism.code, credential_from(mechanism, text).iterations))
            except ValueError:
                continue
    if not credentials:
        message = f"Attempt to describe a user credential that does not exist: {user}"
        return DescribedUser(ErrorCode.RESOURCE_NOT_FOUND, message)
    return DescribedUser(ErrorCode.NONE, None, tuple(credentials))
