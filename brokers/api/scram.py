"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554): served from ZooKeeper, by any broker.

Answers are those of Kafka 3.9; stored keys are in none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from fleetlog.brokers.acls.access import ALTER_CLUSTER, DESCRIBE_CLUSTER
from fleetlog.brokers.acls.image import AclOperation
from fleetlog.brokers.api.base import WRITE_SECONDS, Context, Done, in_task, unfit
from fleetlog.brokers.api.changes import DETAILS_MAX, codes_of, named
from fleetlog.brokers.api.rows import Recorded, Row
from fleetlog.brokers.audit.events import Changes
from fleetlog.brokers.logins.scram import MECHANISM_OF_CODE
from fleetlog.brokers.logins.scram_users import AlteredUser, Deletion, Upsertion, describe_users, users_to_read
from fleetlog.brokers.logins.users import read_users, write_users
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.coordination.store import UNANSWERED, StoreError
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest

USERS_MAX: Final = 1_000
"""Users of one request; each of them is read, and written, by itself."""
CHANGES_MAX: Final = 4 * USERS_MAX
NAME_CHARACTERS_MAX: Final = 1_000

_TOO_MANY: Final = f"more than {USERS_MAX} users in a request; ask in several ones"

logger = logging.getLogger(__name__)


@Row(api_keys.DESCRIBE_USER_SCRAM_CREDENTIALS, (DESCRIBE_CLUSTER,))
@in_task
async def handle_describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, context: Context
) -> Done:  # fmt: skip
    """DescribeUserScramCredentials v0: mechanisms and iterations; of all users if none is named."""
    asked = [one.name for one in request.users or ()]
    if (denied := context.refusal(*DESCRIBE_CLUSTER)) is not ErrorCode.NONE:
        return _described(denied, None, [])
    if len(asked) > USERS_MAX:
        return _described(ErrorCode.INVALID_REQUEST, _TOO_MANY, [])
    wanted = [user for user in dict.fromkeys(asked) if _fits(user)] if asked else None
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            configs = await read_users(context.services.store, wanted)
    except (StoreError, TimeoutError) as error:
        logger.warning("SCRAM users cannot be read: %s", error)
        return _described(ErrorCode.COORDINATOR_NOT_AVAILABLE, UNANSWERED, [])
    result = messages.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    rows = []
    for user, described in describe_users(configs, asked).items():
        await context.yield_now()
        infos = [result.CredentialInfo(mechanism=code, iterations=count) for code, count in described.credentials]
        rows.append(
            result(user=user, error_code=int(described.error), error_message=described.message, credential_infos=infos)
        )  # fmt: skip
    return _described(ErrorCode.NONE, None, rows)


def _described(
    error: ErrorCode,
    message: str | None,
    rows: list[messages.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult],
) -> Done:
    response = messages.DescribeUserScramCredentialsResponse
    return Done(response(version=0, error_code=int(error), error_message=message, results=rows))


def _alter_users(
    request: AlterUserScramCredentialsRequest, response: messages.AlterUserScramCredentialsResponse
) -> Changes:
    details: dict[str, list[str]] = {}
    for verb, rows in (("delete", request.deletions), ("set", request.upsertions)):
        for one in rows:
            known = MECHANISM_OF_CODE.get(one.mechanism)
            mechanism = str(one.mechanism) if known is None else known.value
            details.setdefault(one.name, []).append(f"{verb} the credential of {mechanism}")
    names = ((name, "; ".join(done[:DETAILS_MAX])) for name, done in details.items())
    return named("User", AclOperation.ALTER, names, codes_of(response.results, "user"))


@Row(api_keys.ALTER_USER_SCRAM_CREDENTIALS, (ALTER_CLUSTER,), Recorded(_alter_users, ("upsertions", "deletions")))
@in_task
async def handle_alter_user_scram_credentials(request: AlterUserScramCredentialsRequest, context: Context) -> Done:
    """AlterUserScramCredentials v0: each user's changes are done together or not at all."""
    deletions = [Deletion(one.name, one.mechanism) for one in request.deletions]
    upsertions = [
        Upsertion(one.name, one.mechanism, one.iterations, bytes(one.salt), bytes(one.salted_password))
        for one in request.upsertions
    ]
    users = users_to_read(deletions, upsertions)
    if (denied := context.refusal(*ALTER_CLUSTER)) is not ErrorCode.NONE:
        return _altered((user, AlteredUser(denied, None, None)) for user in users)
    if len(users) > USERS_MAX or len(deletions) + len(upsertions) > CHANGES_MAX:
        return _altered((user, AlteredUser(ErrorCode.INVALID_REQUEST, _TOO_MANY, None)) for user in users)
    gone: dict[str, list[Deletion]] = {}
    new: dict[str, list[Upsertion]] = {}
    for deletion in deletions:
        gone.setdefault(deletion.user, []).append(deletion)
    for upsertion in upsertions:
        new.setdefault(upsertion.user, []).append(upsertion)
    results: dict[str, AlteredUser] = {}
    reached = True
    for user in users:
        await context.yield_now()
        if not reached:  # each would wait as long as the one before
            results[user] = AlteredUser(ErrorCode.REQUEST_TIMED_OUT, UNANSWERED, None)
            continue
        if not _fits(user):
            message = f"Username must be UTF-8, and have {NAME_CHARACTERS_MAX} characters at most"
            results[user] = AlteredUser(ErrorCode.UNACCEPTABLE_CREDENTIAL, message, None)
            continue
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                results |= await write_users(context.services.store, gone.get(user, ()), new.get(user, ()))
        except (StoreError, TimeoutError, BadZnode) as error:
            reached = isinstance(error, BadZnode)
            logger.warning("the credentials of a user cannot be written: %s", error)
            results[user] = AlteredUser(ErrorCode.REQUEST_TIMED_OUT, UNANSWERED, None)
    return _altered(results.items())


def _altered(results: Iterable[tuple[str, AlteredUser]]) -> Done:
    response = messages.AlterUserScramCredentialsResponse
    rows = [
        response.AlterUserScramCredentialsResult(user=user, error_code=int(one.error), error_message=one.message)
        for user, one in results
    ]
    return Done(response(version=0, results=rows))


def _fits(user: str) -> bool:
    return len(user) <= NAME_CHARACTERS_MAX and not unfit(user)
