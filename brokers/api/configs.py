"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

Any broker answers and alters; only a broker's static settings are known to itself alone. Each resource of a request
succeeds or fails by itself. A setting that can't change without a restart is refused: stored, it would take
effect at some later restart.

Source: KIP-133, KIP-226, KIP-339 (incremental), KIP-1142 (ListConfigResources).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from fleetlog.brokers.acls.access import (
    ALTER_CONFIGS,
    ALTER_CONFIGS_CLUSTER,
    ALTER_CONFIGS_GROUP,
    ALTER_CONFIGS_TOPIC,
    CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_CONFIGS_CLUSTER,
    DESCRIBE_CONFIGS_GROUP,
    DESCRIBE_CONFIGS_TOPIC,
    GROUP,
    TOPIC,
)
from fleetlog.brokers.acls.image import CLUSTER_NAME, AclOperation
from fleetlog.brokers.api.base import WRITE_SECONDS, Context, Done, Paced, in_slices, in_task
from fleetlog.brokers.api.changes import brief
from fleetlog.brokers.api.config_alterations import (
    Alteration,
    Operation,
    Resource,
    Unknown,
    altered,
    check_broker_settings,
    check_group_settings,
    check_internal_topic,
    check_schema_settings,
    check_tiering_settings,
    check_topic,
    setting_of,
    without_idle_mark,
)
from fleetlog.brokers.api.config_values import (
    GROUP_SETTINGS,
    ConfigEntry,
    Source,
    broker_entries,
    default_broker_entries,
    group_entries,
    topic_entries,
)
from fleetlog.brokers.api.letter_topics import check_group_letters, check_schema_letters
from fleetlog.brokers.api.logger_levels import alter_levels, logger_entries
from fleetlog.brokers.api.rows import Recorded, Row
from fleetlog.brokers.audit.events import Change, Changes
from fleetlog.brokers.audit.settings import refused_alteration
from fleetlog.brokers.config import BROKER_SETTINGS, TOPIC_SETTINGS
from fleetlog.brokers.controller.requests import Refused, check_name
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.metadata.config_writes import METADATA_WAIT_MS, Contended, EntityGone, alter_config
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.brokers.model import AUDIT_TOPIC, INTERNAL_TOPICS
from fleetlog.brokers.setting_kinds import ConfigError, Setting, without_effect
from fleetlog.brokers.tls.dynamic_settings import DynamicTls, of_tls
from fleetlog.coordination.store import UNANSWERED, StoreError, TooLarge
from fleetlog.coordination.tree import may_be_named
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import (
    AlterConfigsRequest,
    AlterConfigsResources,
    DescribeConfigsRequest,
    DescribeConfigsResources,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResources,
    ListConfigResourcesRequest,
)

if TYPE_CHECKING:
    _Answer = TypeVar("_Answer", type[messages.AlterConfigsResponse], type[messages.IncrementalAlterConfigsResponse])
    _Altered = (
        messages.AlterConfigsResponse.AlterConfigsResourceResponse
        | messages.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    )
    _Described = messages.DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
    _Made = dict[tuple[object, ...], list[_Described]]

logger = logging.getLogger(__name__)

MAX_ALTERATIONS = 1_000
"""Settings of one resource that a request may alter; there are not half as many."""


MAX_KEPT_CONFIGS = 1_000
"""Different configurations that one DescribeConfigs keeps for the resources that have the same."""


class ConfigPlan(NamedTuple):
    """What a request wants of one resource; ``size`` alterations, which are left out where they are too many."""

    kind: int
    name: str
    alterations: list[Alteration]
    size: int


_KINDS = {
    Resource.TOPIC: znodes.CONFIG_TOPICS,
    Resource.BROKER: znodes.CONFIG_BROKERS,
    Resource.GROUP: znodes.CONFIG_GROUPS,
}
_TABLES: dict[Resource, Mapping[str, Setting]] = {
    Resource.TOPIC: TOPIC_SETTINGS,
    Resource.BROKER: BROKER_SETTINGS,
    Resource.GROUP: GROUP_SETTINGS,
}


_DENIED = {TOPIC: "Topic authorization failed.", GROUP: "Group authorization failed."}


def _check_access(operation: AclOperation, kind: int, name: str, context: Context) -> None:
    """Raises Refused unless the client may do that to the configuration of the resource."""
    resource = {Resource.TOPIC: TOPIC, Resource.GROUP: GROUP}.get(kind, CLUSTER)  # type: ignore[call-overload]
    refusal = context.refusal(operation, resource, CLUSTER_NAME if resource is CLUSTER else name)
    if refusal is not ErrorCode.NONE:
        raise Refused(refusal, _DENIED.get(resource, "Cluster authorization failed."))


# ---------------------------------------------------------------- describing


@Row(api_keys.DESCRIBE_CONFIGS, (DESCRIBE_CONFIGS_TOPIC, DESCRIBE_CONFIGS_GROUP, DESCRIBE_CONFIGS_CLUSTER))
@in_slices
def handle_describe_configs(request: DescribeConfigsRequest, context: Context) -> Paced:
    """DescribeConfigs v0-v4: every setting, with its source, synonyms, type and documentation.

    A resource that is named again with the same keys is answered once. Thousands of topics have a handful of
    configurations: the entries of each are made once.
    """
    response = messages.DescribeConfigsResponse
    results = []
    made: _Made = {}
    asked: dict[tuple[int, str, frozenset[str]], DescribeConfigsResources] = {}
    for resource in request.resources:
        yield
        keys = frozenset(resource.configuration_keys or ())
        asked.setdefault((resource.resource_type, resource.resource_name, keys), resource)
    for (_, _, keys), resource in asked.items():
        yield
        kind, name = resource.resource_type, resource.resource_name
        row = response.DescribeConfigsResult(resource_type=kind, resource_name=name, error_message=None)
        try:
            _check_access(DESCRIBE_CONFIGS, kind, name, context)
            row.configs = _configs(kind, name, keys, request, context, made)
        except Refused as refused:
            row.error_code, row.error_message = int(refused.error), refused.message
        results.append(row)
    return Done(response(version=context.api_version, results=results))


def _configs(
    kind: int, name: str, wanted: frozenset[str], request: DescribeConfigsRequest, context: Context, made: _Made
) -> list[_Described]:
    """The entries of a resource; ``made`` keeps it for those that have the same overrides."""
    metadata = context.services.metadata
    same: tuple[object, ...] = (kind, name, wanted)
    if kind == Resource.TOPIC:
        same = (kind, frozenset(_topic(name, metadata).items()), wanted)
    elif kind == Resource.GROUP:
        _check_group(name)
        same = (kind, frozenset(metadata.dynamic_config(znodes.CONFIG_GROUPS, name).items()), wanted)
    described = made.get(same)
    if described is None:
        entries = [entry for entry in _entries(kind, name, metadata) if not wanted or entry.name in wanted]
        row = messages.DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
        described = [_described(entry, request, row, context.api_version) for entry in entries]
        if len(made) < MAX_KEPT_CONFIGS:
            made[same] = described
    return described


def _entries(kind: int, name: str, metadata: MetadataCache) -> list[ConfigEntry]:
    match kind:
        case Resource.TOPIC:
            return topic_entries(_topic(name, metadata), metadata)
        case Resource.BROKER:
            if not name:
                return default_broker_entries(metadata)
            _check_is_own(name, metadata)
            return broker_entries(metadata.static.broker_id, metadata)
        case Resource.GROUP:
            _check_group(name)
            return group_entries(metadata.dynamic_config(znodes.CONFIG_GROUPS, name), metadata)
        case Resource.CLIENT_METRICS:
            return []
        case Resource.BROKER_LOGGER:
            return logger_entries(name, metadata.static.broker_id)
    raise Refused(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")


def _topic(name: str, metadata: MetadataCache) -> Mapping[str, str]:
    wrong = check_name(name)
    if wrong is not None:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, wrong)
    topic = metadata.topics.get(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    return topic.configs


def _check_is_own(name: str, metadata: MetadataCache) -> None:
    own = str(metadata.static.broker_id)
    if name != own:
        text = f"Unexpected broker id, expected {own} or empty string, but received {name}"
        raise Refused(ErrorCode.INVALID_REQUEST, text)


def _check_group(name: str) -> None:
    if not name:
        raise Refused(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    if len(name.encode()) > 249 or not may_be_named(name):
        raise Refused(ErrorCode.INVALID_REQUEST, "This group's name can't carry a configuration.")


def _described(entry: ConfigEntry, request: DescribeConfigsRequest, row: type[_Described], version: int) -> _Described:
    synonyms = entry.synonyms if version >= 1 and request.include_synonyms else ()
    return row(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        is_default=entry.source is Source.DEFAULT_CONFIG,
        is_sensitive=entry.sensitive,
        config_source=int(entry.source),
        synonyms=[
            row.DescribeConfigsSynonym(name=one.name, value=one.value, source=int(one.source)) for one in synonyms
        ],
        config_type=int(entry.type),
        documentation=entry.doc if request.include_documentation else None,
    )


# ---------------------------------------------------------------- altering


def _alter_configs(
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    response: messages.AlterConfigsResponse | messages.IncrementalAlterConfigsResponse,
) -> Changes:
    resources: Sequence[AlterConfigsResources | IncrementalAlterConfigsResources] = request.resources
    rows: Sequence[_Altered] = response.responses
    for resource, row in zip(resources, rows, strict=True):
        kind = _CONFIG_KINDS.get(resource.resource_type, str(resource.resource_type))
        verbs: dict[str, list[str]] = {}
        for one in resource.configs:
            verbs.setdefault(_CONFIG_VERBS.get(getattr(one, "config_operation", 0), "alter"), []).append(one.name)
        detail = "; ".join(brief(verb, names) for verb, names in verbs.items())
        if request.validate_only:
            detail = f"validated only: {detail}"
        name = resource.resource_name or "<default>"
        yield Change(kind, name, AclOperation.ALTER_CONFIGS, ErrorCode(row.error_code), detail)


@Row(
    api_keys.ALTER_CONFIGS,
    (ALTER_CONFIGS_TOPIC, ALTER_CONFIGS_GROUP, ALTER_CONFIGS_CLUSTER),
    Recorded(_alter_configs, ("resources",)),
)
@in_task
async def handle_alter_configs(request: AlterConfigsRequest, context: Context) -> Done:
    """AlterConfigs v0-v2: the request names all overrides a resource shall have."""
    return await _alter(request, context, messages.AlterConfigsResponse, keep=False)


@Row(
    api_keys.INCREMENTAL_ALTER_CONFIGS,
    (ALTER_CONFIGS_TOPIC, ALTER_CONFIGS_GROUP, ALTER_CONFIGS_CLUSTER),
    Recorded(_alter_configs, ("resources",)),
)
@in_task
async def handle_incremental_alter_configs(request: IncrementalAlterConfigsRequest, context: Context) -> Done:
    """IncrementalAlterConfigs v0-v1: set, delete, append to and subtract from single settings."""
    return await _alter(request, context, messages.IncrementalAlterConfigsResponse, keep=True)


def _planned(resource: AlterConfigsResources | IncrementalAlterConfigsResources) -> ConfigPlan:
    """Without operations, as in AlterConfigs, each setting is set."""
    configs = resource.configs if len(resource.configs) <= MAX_ALTERATIONS else ()
    wanted = [Alteration(one.name, getattr(one, "config_operation", Operation.SET), one.value) for one in configs]
    return ConfigPlan(resource.resource_type, resource.resource_name, wanted, len(resource.configs))


async def _alter(
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest, context: Context, response: _Answer, *, keep: bool
) -> Done:
    plans = []
    for one in request.resources:
        await context.yield_now()
        plans.append(_planned(one))
    seen = Counter((plan.kind, plan.name) for plan in plans)
    topics = _Topics(context.services.metadata)
    unknown = Unknown()
    rows = []
    reached = True
    for plan in plans:
        kind, name = plan.kind, plan.name
        await context.yield_now()
        error, message = ErrorCode.NONE, None
        try:
            if not reached:  # each would wait as long as the one before
                raise Refused(ErrorCode.REQUEST_TIMED_OUT, UNANSWERED)
            _check_access(ALTER_CONFIGS, kind, name, context)
            if seen[kind, name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, f"Each resource must appear at most once: {name}")
            settings = await _settings(plan, unknown, context, keep=keep)
            if kind == Resource.TOPIC:
                await topics.await_new(name)
            if kind == Resource.BROKER_LOGGER:
                alter_levels(name, plan.alterations, context, validate_only=request.validate_only)
            else:
                async with asyncio.timeout(WRITE_SECONDS):
                    await _alter_one(plan, settings, context, keep=keep, validate_only=request.validate_only)
        except Refused as refused:
            error, message = refused.error, refused.message
        except EntityGone:
            error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        except TooLarge as problem:
            error, message = ErrorCode.INVALID_CONFIG, f"The configuration would be too large: {problem}."
        except BadZnode as problem:
            logger.error("altering the configuration of %s: %s", name, problem)
            error = ErrorCode.INVALID_CONFIG
            message = f"{problem.path} in ZooKeeper cannot be read ({problem.reason}); correct or delete it."
        except Contended as problem:
            logger.info("altering the configuration of %s: %s", name, problem)
            error, message = ErrorCode.REQUEST_TIMED_OUT, "The configuration kept changing; try again."
        except (StoreError, TimeoutError) as problem:
            logger.info("altering the configuration of %s: %s", name, problem)
            reached, error, message = False, ErrorCode.REQUEST_TIMED_OUT, UNANSWERED
        rows.append(
            response.AlterConfigsResourceResponse(
                error_code=int(error), error_message=message, resource_type=kind, resource_name=name
            )
        )
    return Done(response(version=context.api_version, responses=rows))


class _Topics:
    """The topics of one request. One that another broker has just created may be missing from this broker's view.

    Kafka has the controller alter configurations, which knows all topics; here any broker does.
    """

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._looked = False
        self._problem: StoreError | None = None

    async def await_new(self, name: str) -> None:
        """Wait until the view knows the topic, if it exists; once per request. Raises StoreError."""
        if name in self._metadata.topics or check_name(name) is not None:
            return
        if not self._looked:
            self._looked = True
            try:
                await self._metadata.refreshed(METADATA_WAIT_MS)
            except StoreError as problem:
                self._problem = problem
        if self._problem is not None:
            raise self._problem


async def _settings(plan: ConfigPlan, unknown: Unknown, context: Context, *, keep: bool) -> dict[str, Setting]:
    """What the request's names mean. All that can be said without the present configuration is refused here.

    Raises Refused, before anything is waited for.
    """
    if plan.kind == Resource.BROKER_LOGGER and not keep:
        raise Refused(
            ErrorCode.INVALID_REQUEST, "AlterConfigs is deprecated and does not support the resource type BROKER_LOGGER"
        )
    if plan.kind not in _KINDS and plan.kind != Resource.BROKER_LOGGER:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {plan.kind}")
    resource = Resource(plan.kind)
    if plan.size > MAX_ALTERATIONS:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"{plan.size} settings of one resource are to be altered; a request may alter {MAX_ALTERATIONS}.",
        )
    twice = [one for one, count in Counter(a.name for a in plan.alterations).items() if count > 1]
    if twice:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys: {','.join(sorted(twice))}")
    settings: dict[str, Setting] = {}
    if resource is Resource.BROKER_LOGGER:
        return settings
    for alteration in plan.alterations:
        await context.yield_now()
        row = setting_of(alteration, _TABLES[resource], resource, unknown, of_all_brokers=not plan.name)
        if row is not None:
            settings[alteration.name] = row
    return settings


async def _alter_one(
    plan: ConfigPlan, settings: Mapping[str, Setting], context: Context, *, keep: bool, validate_only: bool
) -> None:
    metadata = context.services.metadata
    name, alterations = plan.name, plan.alterations
    resource = _alterable(plan.kind, name, metadata)
    entity = name if resource is not Resource.BROKER or name else znodes.DEFAULT_ENTITY
    lists = any(one.operation in (Operation.APPEND, Operation.SUBTRACT) for one in alterations)
    defaults = _defaults(resource, metadata) if lists else {}

    def alteration(present: Mapping[str, str]) -> dict[str, str]:
        wanted = altered(present if keep else {}, alterations, settings, defaults)
        if resource is Resource.TOPIC:
            base = metadata.effective.topic_defaults()
            wanted = without_idle_mark(wanted, base)
            check_topic(present, wanted, base)
            check_schema_settings(name, present, wanted, base, metadata)
            check_schema_letters(name, present, wanted, base, context)
            check_tiering_settings(name, present, wanted, base, metadata.features)
        if resource is Resource.BROKER:
            check_broker_settings(present, wanted, partial(metadata.broker_with, entity, wanted))
        if resource is Resource.GROUP:
            check_group_settings(present, wanted, metadata.effective, metadata.features)
            check_group_letters(present, wanted, context)
        if resource is Resource.TOPIC and name in INTERNAL_TOPICS and not metadata.static.internal_topics_alter_enable:
            check_internal_topic(name, present, wanted)
        if resource is Resource.TOPIC and name == AUDIT_TOPIC and metadata.static.audit_enable:
            refused = refused_alteration(present, wanted, metadata.static.audit_topic_retention_ms)
            if refused is not None:
                raise Refused(ErrorCode.POLICY_VIOLATION, refused)
        return wanted

    certificates = None
    if resource is Resource.BROKER and name and any(of_tls(one.name) != "" for one in alterations):
        certificates = _certificates(name, context)
        await _check_certificates(certificates, alteration(metadata.dynamic_config(_KINDS[resource], entity)))
    if validate_only:
        alteration(metadata.dynamic_config(_KINDS[resource], entity))
    else:
        before = dict(metadata.dynamic_config(_KINDS[resource], entity))
        await alter_config(context.services.store, metadata, _KINDS[resource], entity, alteration)
        if certificates is not None:
            await certificates.applied()
        wanted = [one for one in alterations if one.operation != Operation.DELETE and not of_tls(one.name)]
        changed = {one.name: one.value for one in wanted if before.get(one.name) != one.value}
        inert = without_effect(changed, _TABLES[resource])
        if inert:
            entity = f"{resource.name.lower()} {name or 'defaults'}"
            logger.warning("%s: settings are stored, but without effect here: %s", entity, ", ".join(inert))


def _certificates(name: str, context: Context) -> DynamicTls:
    """What tries certificates: only a broker itself can read its files. Raises Refused."""
    _check_is_own(name, context.services.metadata)
    if context.services.certificates is None:
        raise Refused(ErrorCode.INVALID_CONFIG, "This broker has no listener with TLS.")
    return context.services.certificates


async def _check_certificates(certificates: DynamicTls, wanted: Mapping[str, str]) -> None:
    """Raises Refused where the broker's files cannot be used by the settings ``wanted``; the old ones stay then."""
    try:
        await certificates.check(wanted)
    except ConfigError as problem:
        raise Refused(ErrorCode.INVALID_CONFIG, str(problem)) from problem


def _alterable(kind: int, name: str, metadata: MetadataCache) -> Resource:
    resource = Resource(kind)
    if resource is Resource.TOPIC:
        _topic(name, metadata)
    elif resource is Resource.GROUP:
        _check_group(name)
    elif name and not (re.fullmatch("0|[1-9][0-9]{0,9}", name) and int(name) < 2**31):
        raise Refused(ErrorCode.INVALID_REQUEST, f"Broker resource name must be a broker id or empty: {name[:40]}")
    return resource


def _defaults(resource: Resource, metadata: MetadataCache) -> dict[str, str]:
    """What a list is appended to when there is no override yet."""
    match resource:
        case Resource.TOPIC:
            entries = topic_entries({}, metadata)
        case Resource.BROKER:
            entries = broker_entries(metadata.static.broker_id, metadata)
        case _:
            entries = []
    return {entry.name: entry.value for entry in entries if entry.value is not None}


# ---------------------------------------------------------------- listing


@Row(api_keys.LIST_CONFIG_RESOURCES, (DESCRIBE_CONFIGS_CLUSTER,))
@in_slices
def handle_list_config_resources(request: ListConfigResourcesRequest, context: Context) -> Paced:
    """ListConfigResources v0 (client metrics only: none) and v1 (all kinds, or those asked for)."""
    response = messages.ListConfigResourcesResponse
    version = context.api_version
    if (denied := context.refusal(*DESCRIBE_CONFIGS_CLUSTER)) is not ErrorCode.NONE:
        return Done(response(version=version, error_code=int(denied)))
    metadata = context.services.metadata
    names = {
        Resource.TOPIC: sorted(metadata.topics),
        Resource.BROKER: [str(broker_id) for broker_id in sorted(metadata.brokers)],
        Resource.BROKER_LOGGER: [str(broker_id) for broker_id in sorted(metadata.brokers)],
        Resource.CLIENT_METRICS: [],
        Resource.GROUP: metadata.config_entities(znodes.CONFIG_GROUPS),
    }
    asked = list(dict.fromkeys(request.resource_types)) if version >= 1 else [int(Resource.CLIENT_METRICS)]
    if any(kind not in names for kind in asked):
        return Done(response(version=version, error_code=int(ErrorCode.UNSUPPORTED_VERSION)))
    resources = []
    for kind in asked or list(names):
        for name in names[Resource(kind)]:
            yield
            resources.append(response.ConfigResource(resource_name=name, resource_type=int(kind)))
    return Done(response(version=version, config_resources=resources))


_CONFIG_KINDS: Final = {2: "Topic", 4: "Broker", 8: "BrokerLogger", 16: "ClientMetrics", 32: "Group"}
_CONFIG_VERBS: Final = {0: "set", 1: "delete", 2: "append to", 3: "subtract from"}
