"""DescribeAcls, CreateAcls and DeleteAcls. Without an authorizer they are refused as by Kafka (SECURITY_DISABLED).

ACLs are described from this broker's image, and written to ZooKeeper by the broker that is asked. A change is
acknowledged when it is written and this broker decides by it; the others follow within a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fleetlog.brokers.acls.access import ALTER_CLUSTER, DESCRIBE_CLUSTER, Need
from fleetlog.brokers.acls.cache import AclCache, Edit, EditedEntries, edit_acls
from fleetlog.brokers.acls.hosts import why_no_client_has
from fleetlog.brokers.acls.image import (
    AccessControlEntry,
    AclBinding,
    AclFilter,
    AclOperation,
    InvalidAcl,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    check_binding,
    check_filter,
    entries_with,
    entries_without,
)
from fleetlog.brokers.acls.znodes import OPERATION_NAMES, PERMISSION_NAMES, TYPE_NAMES
from fleetlog.brokers.api.base import WRITE_SECONDS, Context, Done, Paced, in_slices, in_task, unfit
from fleetlog.brokers.api.rows import Cost, Recorded, Row
from fleetlog.brokers.audit.events import Change, Changes
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.coordination.store import UNANSWERED, StoreError, TooLarge
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import (
    CreateAclsCreations,
    CreateAclsRequest,
    DeleteAclsFilters,
    DeleteAclsRequest,
    DescribeAclsRequest,
)

logger = logging.getLogger(__name__)

NO_AUTHORIZER = "No Authorizer is configured on the broker."

_Code = TypeVar("_Code", bound=IntEnum)


class AclRefusal(NamedTuple):
    """Why ACLs are not listed or not written."""

    error: ErrorCode
    message: str | None


Outcome = EditedEntries | AclRefusal
_OLD_BROKERS = "CIDR ranges as the host of an ACL do not count on brokers of the version before: first upgrade {}."
_UNWRITTEN = AclRefusal(ErrorCode.REQUEST_TIMED_OUT, UNANSWERED)


def _cache(context: Context, need: Need) -> AclCache | AclRefusal:
    """The ACLs, or why the client may not ask for them."""
    if (denied := context.refusal(*need)) is not ErrorCode.NONE:
        return AclRefusal(denied, None)
    return context.services.acls or AclRefusal(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)


def _code(kind: type[_Code], number: int) -> _Code:
    """The member of that number; UNKNOWN where there is none."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


def _filter(asked: DescribeAclsRequest | DeleteAclsFilters) -> AclFilter | AclRefusal:
    meant = AclFilter(
        type=_code(ResourceType, asked.resource_type_filter),
        name=asked.resource_name_filter,
        pattern_type=_code(PatternType, asked.pattern_type_filter),
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=_code(AclOperation, asked.operation),
        permission=_code(Permission, asked.permission_type),
    )
    try:
        check_filter(meant)
    except InvalidAcl as problem:
        return AclRefusal(ErrorCode.INVALID_REQUEST, str(problem))
    return meant


def _binding(asked: CreateAclsCreations, context: Context) -> AclBinding | AclRefusal:
    binding = AclBinding(
        ResourcePattern(
            _code(ResourceType, asked.resource_type),
            asked.resource_name,
            _code(PatternType, asked.resource_pattern_type),
        ),
        AccessControlEntry(
            asked.principal,
            asked.host,
            _code(AclOperation, asked.operation),
            _code(Permission, asked.permission_type),
        ),
    )
    try:
        check_binding(binding)
        if unfit(asked.principal, asked.host):
            raise InvalidAcl("A principal or host whose bytes are not UTF-8 cannot be given in an ACL.")
    except InvalidAcl as problem:
        return AclRefusal(ErrorCode.INVALID_REQUEST, str(problem))
    brokers = context.services.metadata.brokers.values()
    if "/" in asked.host and (old := sorted(one.id for one in brokers if not one.matches_ranges)):
        return AclRefusal(ErrorCode.UNSUPPORTED_VERSION, _OLD_BROKERS.format(", ".join(map(str, old))))
    return binding


# ---------------------------------------------------------------- describing


@Row(api_keys.DESCRIBE_ACLS, (DESCRIBE_CLUSTER,), cost=Cost.CHEAP)
@in_slices
def handle_describe_acls(request: DescribeAclsRequest, context: Context) -> Paced:
    """DescribeAcls v1-v3: the ACLs that a filter asks for, by resource."""
    response = messages.DescribeAclsResponse

    def answer(
        error: ErrorCode, message: str | None, resources: list[messages.DescribeAclsResponse.DescribeAclsResource]
    ) -> Done:
        return Done(
            response(version=context.api_version, error_code=int(error), error_message=message, resources=resources)
        )

    cache = _cache(context, DESCRIBE_CLUSTER)
    if isinstance(cache, AclRefusal):
        return answer(*cache, [])
    asked = _filter(request)
    if isinstance(asked, AclRefusal):
        return answer(*asked, [])
    resource = response.DescribeAclsResource
    rows = []
    for pattern, entries in cache.image.entries.items():
        yield
        if not asked.matches_pattern(pattern):
            continue
        acls = []
        for entry in entries:
            yield
            if asked.matches_entry(entry):
                acls.append(resource.AclDescription(**_entry_fields(entry)))
        if acls:
            rows.append(
                resource(
                    resource_type=int(pattern.type),
                    resource_name=pattern.name,
                    pattern_type=int(pattern.pattern_type),
                    acls=acls,
                )
            )
    return answer(ErrorCode.NONE, None, rows)


def _entry_fields(entry: AccessControlEntry) -> dict[str, Any]:
    return {
        "principal": entry.principal,
        "host": entry.host,
        "operation": int(entry.operation),
        "permission_type": int(entry.permission),
    }


# ---------------------------------------------------------------- writing


async def _edited(
    cache: AclCache, context: Context, edits: Mapping[ResourcePattern, Edit]
) -> dict[ResourcePattern, Outcome]:
    """What became of each pattern."""
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            outcomes = await edit_acls(context.services.store, cache, edits)
    except TimeoutError:
        return dict.fromkeys(edits, _UNWRITTEN)
    return {
        pattern: outcome if isinstance(outcome, EditedEntries) else _refusal(pattern, outcome)
        for pattern, outcome in outcomes.items()
    }


def _refusal(pattern: ResourcePattern, problem: Exception) -> AclRefusal:
    logger.warning("writing the ACLs of %s %s: %s", pattern.type.name, pattern.name, problem)
    match problem:
        case TooLarge():
            return AclRefusal(ErrorCode.INVALID_REQUEST, "That resource would have more ACLs than ZooKeeper can store.")
        case BadZnode():
            return AclRefusal(ErrorCode.UNKNOWN_SERVER_ERROR, f"The ACLs in ZooKeeper cannot be read: {problem}.")
        case _:
            return _UNWRITTEN


def _create_acls(request: CreateAclsRequest, response: messages.CreateAclsResponse) -> Changes:
    for one, row in zip(request.creations, response.results, strict=True):
        kind = _name_of(TYPE_NAMES, ResourceType, one.resource_type)
        detail = f"ACL: {_acl_text(one.permission_type, one.principal, one.host, one.operation)}"
        yield Change(kind, one.resource_name, AclOperation.ALTER, ErrorCode(row.error_code), detail)


@Row(api_keys.CREATE_ACLS, (ALTER_CLUSTER,), Recorded(_create_acls, ("creations",)))
@in_task
async def handle_create_acls(request: CreateAclsRequest, context: Context) -> Done:
    """CreateAcls v1-v3: each ACL has an outcome of its own; one that exists already is created, too.

    One whose host no client has is created, and its message says so. Ranges of addresses are refused
    (UNSUPPORTED_VERSION) as long as a registered broker does not know them: there a Deny would not count.
    """
    response = messages.CreateAclsResponse
    version = context.api_version

    def row(error: ErrorCode, message: str | None) -> messages.CreateAclsResponse.AclCreationResult:
        return response.AclCreationResult(error_code=int(error), error_message=message)

    cache = _cache(context, ALTER_CLUSTER)
    if isinstance(cache, AclRefusal):
        return Done(response(version=version, results=[row(*cache)] * len(request.creations)))
    asked: list[AclBinding | AclRefusal] = []
    wanted: dict[ResourcePattern, set[AccessControlEntry]] = {}
    for creation in request.creations:
        await context.yield_now()
        binding = _binding(creation, context)
        asked.append(binding)
        if isinstance(binding, AclBinding):
            wanted.setdefault(binding.pattern, set()).add(binding.entry)
    edits: dict[ResourcePattern, Edit] = {
        pattern: partial(entries_with, created=entries) for pattern, entries in wanted.items()
    }
    outcomes = await _edited(cache, context, edits)
    listening = [endpoint.host for endpoint in context.services.metadata.static.listener_endpoints()]
    created = row(ErrorCode.NONE, None)
    rows, useless = [], []
    for one in asked:
        await context.yield_now()
        outcome = outcomes[one.pattern] if isinstance(one, AclBinding) else one
        if isinstance(one, AclBinding) and not isinstance(outcome, AclRefusal):
            reason = why_no_client_has(one.entry.host, listening)
            if reason is not None:
                useless.append(
                    f"the {one.entry.permission.name.capitalize()} for {one.entry.principal} from host"
                    f" {one.entry.host!r} never counts: it {reason}"
                )
            rows.append(created if reason is None else row(ErrorCode.NONE, useless[-1]))
        else:
            assert isinstance(outcome, AclRefusal)
            rows.append(row(*outcome))
    if useless:
        logger.warning("of the ACLs that were made %d never count; the first of them: %s", len(useless), useless[0])
    return Done(response(version=version, results=rows))


def _delete_acls(request: DeleteAclsRequest, response: messages.DeleteAclsResponse) -> Changes:
    for one, row in zip(request.filters, response.filter_results, strict=True):
        kind = _name_of(TYPE_NAMES, ResourceType, one.resource_type_filter)
        asked = _acl_text(one.permission_type, one.principal_filter, one.host_filter, one.operation)
        detail = f"{len(row.matching_acls)} ACLs deleted by the filter: {asked}"
        code = row.error_code or next((acl.error_code for acl in row.matching_acls if acl.error_code), 0)
        yield Change(kind, one.resource_name_filter or "*", AclOperation.ALTER, ErrorCode(code), detail)


@Row(api_keys.DELETE_ACLS, (ALTER_CLUSTER,), Recorded(_delete_acls, ("filters",)))
@in_task
async def handle_delete_acls(request: DeleteAclsRequest, context: Context) -> Done:
    """DeleteAcls v1-v3: each filter is answered with the ACLs that it found, and whether they are deleted."""
    response = messages.DeleteAclsResponse
    version = context.api_version
    result = response.DeleteAclsFilterResult

    def row(
        error: ErrorCode,
        message: str | None,
        matching: list[messages.DeleteAclsResponse.DeleteAclsFilterResult.DeleteAclsMatchingAcl],
    ) -> messages.DeleteAclsResponse.DeleteAclsFilterResult:
        return result(error_code=int(error), error_message=message, matching_acls=matching)

    cache = _cache(context, ALTER_CLUSTER)
    if isinstance(cache, AclRefusal):
        return Done(response(version=version, filter_results=[row(*cache, [])] * len(request.filters)))
    filters: list[AclFilter | AclRefusal] = []
    for one in request.filters:
        await context.yield_now()
        filters.append(_filter(one))
    valid = [one for one in filters if isinstance(one, AclFilter)]
    outcomes: Mapping[ResourcePattern, Outcome] = {}
    if valid:
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await cache.refresh()  # another broker may just have written what is to be deleted
        except (StoreError, TimeoutError):
            return Done(response(version=version, filter_results=[row(*_UNWRITTEN, [])] * len(filters)))
        outcomes = await _edited(cache, context, await _deletions(cache, valid, context))
    deleted = await _deleted(cache, outcomes, context)
    rows = []
    for asked in filters:
        if isinstance(asked, AclRefusal):
            rows.append(row(*asked, []))
            continue
        matching = []
        for (pattern, entry), outcome in deleted.items():
            await context.yield_now()
            if asked.matches_pattern(pattern) and asked.matches_entry(entry):
                matching.append(_matching(result, pattern, entry, outcome))
        rows.append(row(ErrorCode.NONE, None, matching))
    return Done(response(version=version, filter_results=rows))


async def _deletions(cache: AclCache, filters: list[AclFilter], context: Context) -> dict[ResourcePattern, Edit]:
    """The deletion of what the filters match, by the patterns that have something to delete."""
    edits: dict[ResourcePattern, Edit] = {}
    for pattern, entries in cache.image.entries.items():
        await context.yield_now()
        meant = [asked for asked in filters if asked.matches_pattern(pattern)]
        if meant and entries_without(pattern, entries, meant) != entries:
            edits[pattern] = partial(entries_without, pattern, filters=meant)
    return edits


async def _deleted(
    cache: AclCache, outcomes: Mapping[ResourcePattern, Outcome], context: Context
) -> dict[AclBinding, AclRefusal]:
    """The ACLs that are gone, and those of the patterns that could not be written."""
    refusals: dict[AclBinding, AclRefusal] = {}
    for pattern, outcome in outcomes.items():
        if isinstance(outcome, EditedEntries):
            entries, error = outcome.before - outcome.after, AclRefusal(ErrorCode.NONE, None)
        else:
            entries, error = cache.image.entries.get(pattern, frozenset()), outcome
        for entry in sorted(entries):
            await context.yield_now()
            refusals[AclBinding(pattern, entry)] = error
    return refusals


def _matching(
    result: type[messages.DeleteAclsResponse.DeleteAclsFilterResult],
    pattern: ResourcePattern,
    entry: AccessControlEntry,
    outcome: AclRefusal,
) -> messages.DeleteAclsResponse.DeleteAclsFilterResult.DeleteAclsMatchingAcl:
    return result.DeleteAclsMatchingAcl(
        error_code=int(outcome.error),
        error_message=outcome.message,
        resource_type=int(pattern.type),
        resource_name=pattern.name,
        pattern_type=int(pattern.pattern_type),
        **_entry_fields(entry),
    )


# ---------------------------------------------------------------- what the audit is told


def _name_of(names: Any, kind: Any, number: int) -> str:
    try:
        return str(names.get(kind(number), "Any"))
    except ValueError:
        return str(number)


def _acl_text(permission: int, principal: str | None, host: str | None, operation: int) -> str:
    allowed = _name_of(PERMISSION_NAMES, Permission, permission)
    return (
        f"{allowed} {_name_of(OPERATION_NAMES, AclOperation, operation)} to {principal or 'any'} from {host or 'any'}"
    )
