"""Client quotas, as a broker answers that has none, and SASL on connections that have nothing to log in for.

What comes before a login never gets here: ``brokers.server.login`` answers it.
"""

from __future__ import annotations

from typing import Any

from brokers.api.access import ALTER_CONFIGS, CLUSTER, DESCRIBE_CONFIGS
from brokers.api.base import Context, Done, Paced
from wire import messages
from wire.admin_requests import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
)
from wire.errors import ErrorCode
from wire.requests import SaslAuthenticateRequest, SaslHandshakeRequest

SASL_HANDSHAKE_KEY = 17
SASL_AUTHENTICATE_KEY = 36
DESCRIBE_CLIENT_QUOTAS_KEY = 48
ALTER_CLIENT_QUOTAS_KEY = 49

NO_QUOTAS = "Client quotas are not in this release of the broker."
NO_SASL = "There is no login to do: the connection has one already, or its listener is PLAINTEXT."


def _unless_denied(denied: ErrorCode, error: ErrorCode, message: str | None) -> tuple[ErrorCode, str | None]:
    return (error, message) if denied is ErrorCode.NONE else (denied, None)


def handle_sasl_handshake(request: SaslHandshakeRequest, context: Context) -> Done:
    """SaslHandshake v0-v1: refused on a PLAINTEXT listener, and after a login."""
    response = messages.response_class(SASL_HANDSHAKE_KEY)
    return Done(response(version=context.api_version, error_code=int(ErrorCode.ILLEGAL_SASL_STATE), mechanisms=[]))


def handle_sasl_authenticate(request: SaslAuthenticateRequest, context: Context) -> Done:
    """SaslAuthenticate v0-v2: refused on a PLAINTEXT listener, and after a login."""
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
