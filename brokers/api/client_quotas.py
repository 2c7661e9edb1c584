"""DescribeClientQuotas and AlterClientQuotas (KIP-546): served from ZooKeeper, by any broker.

A quota is acknowledged when it is written and this broker keeps it; the others follow within a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from fleetlog.brokers.acls.access import ALTER_CONFIGS_CLUSTER, DESCRIBE_CONFIGS_CLUSTER
from fleetlog.brokers.acls.image import AclOperation
from fleetlog.brokers.api.base import WRITE_SECONDS, Context, Done, in_task, unfit
from fleetlog.brokers.api.changes import brief
from fleetlog.brokers.api.rows import Recorded, Row
from fleetlog.brokers.audit.events import Change, Changes
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.brokers.quotas.cache import write_quotas
from fleetlog.brokers.quotas.entities import (
    CLIENT_ID,
    IP,
    USER,
    Component,
    QuotaAlteration,
    QuotaRequestRefused,
    check_components,
    entity_matches,
    entity_of,
    entity_path,
)
from fleetlog.brokers.quotas.image import DEFAULT, Entity
from fleetlog.coordination.store import UNANSWERED, StoreError
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import AlterClientQuotasRequest, DescribeClientQuotasRequest

QUOTA_ENTRIES_MAX: Final = 1_000
"""Entities of one request; each of them is read, and written, by itself."""
NAME_CHARACTERS_MAX: Final = 1_000
_TOO_MANY: Final = f"more than {QUOTA_ENTRIES_MAX} entities in a request; ask in several ones"

logger = logging.getLogger(__name__)

R = TypeVar("R")


@Row(api_keys.DESCRIBE_CLIENT_QUOTAS, (DESCRIBE_CONFIGS_CLUSTER,))
@in_task
async def handle_describe_client_quotas(request: DescribeClientQuotasRequest, context: Context) -> Done:
    """DescribeClientQuotas v0-v1: the quotas of the entities that all components of the filter match."""
    if (denied := context.refusal(*DESCRIBE_CONFIGS_CLUSTER)) is not ErrorCode.NONE:
        return _described(context, denied, None, None)
    components = [Component(one.entity_type, one.match_type, one.match) for one in request.components]
    try:
        check_components(components)
        await _refresh(context)
    except QuotaRequestRefused as refused:
        return _described(context, refused.code, str(refused), None)
    entry = messages.DescribeClientQuotasResponse.EntryData
    rows = []
    for entity, values in sorted(context.services.quotas.values.items(), key=lambda row: entity_path(row[0])):
        await context.yield_now()
        if entity_matches(entity, components, request.strict):
            quotas = [entry.ValueData(key=key, value=value) for key, value in sorted(values.items())]
            rows.append(entry(entity=_parts(entity, entry.EntityData), values=quotas))
    return _described(context, ErrorCode.NONE, None, rows)


def _parts(entity: Entity, make: Callable[..., R]) -> list[R]:
    named = ((USER, entity.user), (CLIENT_ID, entity.client_id), (IP, entity.ip))
    return [
        make(entity_type=kind, entity_name=None if name is DEFAULT else name)
        for kind, name in named
        if name is not None
    ]


def _described(
    context: Context,
    error: ErrorCode,
    message: str | None,
    rows: list[messages.DescribeClientQuotasResponse.EntryData] | None,
) -> Done:
    response = messages.DescribeClientQuotasResponse
    return Done(
        response(version=context.api_version, error_code=int(error), error_message=message, entries=rows)
    )  # fmt: skip


async def _refresh(context: Context) -> None:
    """Read what was written before. Raises QuotaRequestRefused."""
    configs = context.services.client_configs
    try:
        if configs is None:
            raise StoreError("the broker is starting")
        async with asyncio.timeout(WRITE_SECONDS):
            await configs.refresh()
    except (StoreError, TimeoutError) as error:
        logger.warning("quotas cannot be read: %s", error)
        raise QuotaRequestRefused(ErrorCode.REQUEST_TIMED_OUT, UNANSWERED) from None


def _alter_quotas(request: AlterClientQuotasRequest, response: messages.AlterClientQuotasResponse) -> Changes:
    for entry, row in zip(request.entries, response.entries, strict=True):
        name = brief("", (f"{one.entity_type}={one.entity_name or '<default>'}" for one in entry.entity)).strip()
        detail = brief("quotas", (f"{'remove' if op.remove else 'set'} {op.key}" for op in entry.ops))
        yield Change("ClientQuota", name, AclOperation.ALTER_CONFIGS, ErrorCode(row.error_code), detail)


@Row(api_keys.ALTER_CLIENT_QUOTAS, (ALTER_CONFIGS_CLUSTER,), Recorded(_alter_quotas, ("entries",)))
@in_task
async def handle_alter_client_quotas(request: AlterClientQuotasRequest, context: Context) -> Done:
    """AlterClientQuotas v0-v1: the quotas of each entity are altered together or not at all."""
    denied = context.refusal(*ALTER_CONFIGS_CLUSTER)
    too_many = len(request.entries) > QUOTA_ENTRIES_MAX
    outcomes: list[tuple[ErrorCode, str | None]] = []
    unreachable: QuotaRequestRefused | None = None
    written = False
    for entry in request.entries:
        await context.yield_now()
        if denied is not ErrorCode.NONE or too_many:
            outcomes.append((ErrorCode.INVALID_REQUEST, _TOO_MANY) if denied is ErrorCode.NONE else (denied, None))
            continue
        try:
            if unreachable is not None:
                raise unreachable  # each would wait as long as the one before
            entity = _named([(one.entity_type, one.entity_name) for one in entry.entity])
            await _write(
                context, entity, [QuotaAlteration(one.key, one.value, one.remove) for one in entry.ops], request
            )
        except QuotaRequestRefused as refused:
            unreachable = refused if refused.code is ErrorCode.REQUEST_TIMED_OUT else unreachable
            outcomes.append((refused.code, str(refused)))
            continue
        written = True
        outcomes.append((ErrorCode.NONE, None))
    if written and not request.validate_only:
        try:
            await _refresh(context)
        except QuotaRequestRefused:
            pass  # written it is; this broker follows as the others do
    return await _altered(context, request, outcomes)


def _named(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Raises QuotaRequestRefused."""
    entity = entity_of(list(parts))
    for name in entity:
        if name in (".", ".."):
            raise QuotaRequestRefused(ErrorCode.INVALID_REQUEST, f"{name} is a name that ZooKeeper cannot store")
        if isinstance(name, str) and (len(name) > NAME_CHARACTERS_MAX or unfit(name)):
            raise QuotaRequestRefused(
                ErrorCode.INVALID_REQUEST, f"a name must be UTF-8, and have {NAME_CHARACTERS_MAX} characters at most"
            )
    return entity


async def _write(
    context: Context, entity: Entity, alterations: list[QuotaAlteration], request: AlterClientQuotasRequest
) -> None:  # fmt: skip
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            await write_quotas(context.services.store, entity, alterations, validate_only=request.validate_only)
    except (StoreError, TimeoutError) as error:
        logger.warning("quotas cannot be written: %s", error)
        raise QuotaRequestRefused(ErrorCode.REQUEST_TIMED_OUT, UNANSWERED) from None
    except BadZnode as error:
        logger.error("quotas cannot be altered: %s", error)
        text = f"/config/{entity_path(entity)} in ZooKeeper cannot be read; correct or delete it"
        raise QuotaRequestRefused(ErrorCode.INVALID_CONFIG, text) from None


async def _altered(
    context: Context, request: AlterClientQuotasRequest, outcomes: list[tuple[ErrorCode, str | None]]
) -> Done:
    response = messages.AlterClientQuotasResponse
    make = response.EntryData.EntityData
    rows = []
    for entry, (error, message) in zip(request.entries, outcomes, strict=True):
        parts = []
        for one in entry.entity:
            await context.yield_now()
            parts.append(make(entity_type=one.entity_type, entity_name=one.entity_name))
        rows.append(response.EntryData(error_code=int(error), error_message=message, entity=parts))
    return Done(response(version=context.api_version, entries=rows))
