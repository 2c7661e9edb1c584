"""Delegation tokens (KIP-48), answered as by a Kafka broker without ``delegation.token.secret.key``: there are none."""

from __future__ import annotations

from fleetlog.brokers.api.base import Context, Done
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode


def handle_delegation_token(request: object, context: Context) -> Done:
    """CreateDelegationToken v1-v3, Renew and ExpireDelegationToken v1-v2, DescribeDelegationToken v1-v3."""
    response = messages.response_class(context.api_key)
    return Done(response(version=context.api_version, error_code=int(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)))
