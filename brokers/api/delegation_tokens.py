"""Delegation tokens (KIP-48), answered as by a Kafka broker without ``delegation.token.secret.key``: there are none."""

from __future__ import annotations

from typing import Any

from fleetlog.brokers.acls.image import AclOperation, ResourceType
from fleetlog.brokers.acls.znodes import TYPE_NAMES
from fleetlog.brokers.api.base import Context, Done
from fleetlog.brokers.api.rows import Recorded, Row
from fleetlog.brokers.audit.events import Change, Changes
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode


def _tokens(request: object, response: Any) -> Changes:
    kind = TYPE_NAMES.get(ResourceType.DELEGATION_TOKEN, "DelegationToken")
    yield Change(kind, "", AclOperation.ALTER, ErrorCode(response.error_code))


@Row(api_keys.CREATE_DELEGATION_TOKEN, audit=Recorded(_tokens))
@Row(api_keys.RENEW_DELEGATION_TOKEN, audit=Recorded(_tokens))
@Row(api_keys.EXPIRE_DELEGATION_TOKEN, audit=Recorded(_tokens))
@Row(api_keys.DESCRIBE_DELEGATION_TOKEN)
def handle_delegation_token(request: object, context: Context) -> Done:
    """CreateDelegationToken v1-v3, Renew and ExpireDelegationToken v1-v2, DescribeDelegationToken v1-v3."""
    response = messages.response_class(context.api_key)
    return Done(response(version=context.api_version, error_code=int(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)))
