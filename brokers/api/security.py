"""Client quotas, SCRAM credentials and SASL, as a broker answers that has none of them.

Errors and messages of SCRAM and SASL are those of Kafka 4.1 with PLAINTEXT listeners.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from brokers.api.access import ALTER, ALTER_CONFIGS, CLUSTER, DESCRIBE, DESCRIBE_CONFIGS
from brokers.api.base import Context, Done, Paced
from wire import messages
from wire.admin_requests import (
    AlterClientQuotasRequest,
    AlterUserScramCredentialsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
)
from wire.errors import ErrorCode
from wire.requests import SaslAuthenticateRequest, SaslHandshakeRequest

SASL_HANDSHAKE_KEY = 17
SASL_AUTHENTICATE_KEY = 36
DESCRIBE_CLIENT_QUOTAS_KEY = 48
ALTER_CLIENT_QUOTAS_KEY = 49
DESCRIBE_SCRAM_KEY = 50
ALTER_SCRAM_KEY = 51

NO_QUOTAS = "Client quotas are not in this release of the broker."
NO_SCRAM = "SCRAM credentials are not in this release of the broker."
NO_SASL = "SASL is not in this release of the broker: its listeners are PLAINTEXT."


def _unless_denied(denied: ErrorCode, error: ErrorCode, message: str | None) -> tuple[ErrorCode, str | None]:
    return (error, message) if denied is ErrorCode.NONE else (denied, None)


def handle_sasl_handshake(request: SaslHandshakeRequest, context: Context) -> Done:
    """SaslHandshake v0-v1: a PLAINTEXT listener has no mechanisms."""
    response = messages.response_class(SASL_HANDSHAKE_KEY)
    return Done(response(version=context.api_version, error_code=int(ErrorCode.ILLEGAL_SASL_STATE), mechanisms=[]))


def handle_sasl_authenticate(request: SaslAuthenticateRequest, context: Context) -> Done:
    """SaslAuthenticate v0-v2: there is nothing to authenticate with."""
    response = messages.response_class(SASL_AUTHENTICATE_KEY)
    code = int(ErrorCode.ILLEGAL_SASL_STATE)
    return Done(response(version=context.api_version, error_code=code, error_message=NO_SASL, auth_bytes=b""))


def handle_describe_client_quotas(request: DescribeClientQuotasRequest, context: Context) -> Done:
    """DescribeClientQuotas v0-v1: there are none."""
    response = messages.response_class(DESCRIBE_CLIENT_QUOTAS_KEY)
    error = context.refusal(DESCRIBE_CONFIGS, CLUSTER)
    entries: list[Any] | None = [] if error is ErrorCode.NONE else None
    return Done(response(version=context.api_version, error_code=int(error), error_message=None, entries=entries))


def handle_alter_client_quotas(request: AlterClientQuotasRequest, context: Context) -> Paced:
    """AlterClientQuotas v0-v1: one refusal for each entity."""
    response = messages.response_class(ALTER_CLIENT_QUOTAS_KEY)
    version = context.api_version
    error, message = _unless_denied(context.refusal(ALTER_CONFIGS, CLUSTER), ErrorCode.UNSUPPORTED_VERSION, NO_QUOTAS)
    part = response.EntryData.EntityData
    entries = []
    for entry in request.entries:
        entity = []
        for one in entry.entity:
            yield
            entity.append(part(version=version, entity_type=one.entity_type, entity_name=one.entity_name))
        yield
        entries.append(response.EntryData(version=version, error_code=int(error), error_message=message, entity=entity))
    return Done(response(version=version, entries=entries))


def handle_describe_user_scram_credentials(request: DescribeUserScramCredentialsRequest, context: Context) -> Paced:
    """DescribeUserScramCredentials v0: no user has credentials; a named one does not exist."""
    response = messages.response_class(DESCRIBE_SCRAM_KEY)
    version = context.api_version
    if (denied := context.refusal(DESCRIBE, CLUSTER)) is not ErrorCode.NONE:
        return Done(response(version=version, error_code=int(denied), error_message=None, results=[]))
    results = []
    for user, count in Counter(one.name for one in request.users or ()).items():
        yield
        error, message = ErrorCode.RESOURCE_NOT_FOUND, "Attempt to describe a user credential that does not exist"
        if count > 1:
            error = ErrorCode.DUPLICATE_RESOURCE
            message = "Cannot describe SCRAM credentials for the same user twice in a single request"
        results.append(
            response.DescribeUserScramCredentialsResult(
                version=version,
                user=user,
                error_code=int(error),
                error_message=f"{message}: {user}",
                credential_infos=[],
            )
        )
    return Done(response(version=version, error_code=0, error_message=None, results=results))


def handle_alter_user_scram_credentials(request: AlterUserScramCredentialsRequest, context: Context) -> Paced:
    """AlterUserScramCredentials v0: one refusal for each user; what does not exist cannot be deleted."""
    response = messages.response_class(ALTER_SCRAM_KEY)
    refusals: dict[str, tuple[ErrorCode, str | None]] = {
        one.name: (ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        for one in request.deletions
    }
    refusals |= {one.name: (ErrorCode.UNSUPPORTED_VERSION, NO_SCRAM) for one in request.upsertions}
    denied = context.refusal(ALTER, CLUSTER)
    results = []
    for user, refusal in refusals.items():
        yield
        error, message = _unless_denied(denied, *refusal)
        results.append(
            response.AlterUserScramCredentialsResult(
                version=context.api_version, user=user, error_code=int(error), error_message=message
            )
        )
    return Done(response(version=context.api_version, results=results))
