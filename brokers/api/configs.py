"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

Any broker answers and alters; only a broker's static settings are known to itself alone. Each resource of a request
succeeds or fails by itself. What can't change without a restart is refused, never stored to surprise somebody later.

Source: KIP-133, KIP-226, KIP-339 (incremental), KIP-1142 (ListConfigResources).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from brokers.api.base import Context, Done
from brokers.api.config_values import (
    GROUP_SETTINGS,
    ConfigEntry,
    broker_entries,
    default_broker_entries,
    group_entries,
    topic_entries,
)
from brokers.cluster import znodes
from brokers.cluster.config_writes import Contended, EntityGone, alter_config
from brokers.cluster.requests import Refused, check_name
from brokers.cluster.view import ClusterView
from brokers.config import BROKER_SETTINGS, TOPIC_SETTINGS, ConfigError
from brokers.settings import Setting, SettingType
from coordination.store import StoreError
from wire import messages
from wire.errors import ErrorCode

log = logging.getLogger(__name__)

DESCRIBE_CONFIGS_KEY = 32
ALTER_CONFIGS_KEY = 33
INCREMENTAL_ALTER_CONFIGS_KEY = 44
LIST_CONFIG_RESOURCES_KEY = 74


class Resource(IntEnum):
    """Kinds of resources, numbered as on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """What an incremental alteration does with one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    """One setting of an incremental request."""

    name: str
    operation: int
    value: str | None


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


# ---------------------------------------------------------------- describing


def handle_describe_configs(request: Any, context: Context) -> Done:
    """DescribeConfigs v1-v4: every setting, with its source, synonyms, type and documentation."""
    response = messages.response_class(DESCRIBE_CONFIGS_KEY)
    version = context.api_version
    results = []
    for resource in request.resources:
        fields: dict[str, Any] = {
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "error_code": 0,
            "error_message": None,
            "configs": [],
        }
        try:
            entries = _entries(resource.resource_type, resource.resource_name, context.services.view)
            wanted = None if resource.configuration_keys is None else set(resource.configuration_keys)
            fields["configs"] = [
                _described(entry, request, response.DescribeConfigsResult, version)
                for entry in entries
                if not wanted or entry.name in wanted
            ]
        except Refused as refused:
            fields["error_code"], fields["error_message"] = int(refused.error), refused.message
        results.append(response.DescribeConfigsResult(version=version, **fields))
    return Done(response(version=version, results=results))


def _entries(kind: int, name: str, view: ClusterView) -> list[ConfigEntry]:
    match kind:
        case Resource.TOPIC:
            return topic_entries(_topic(name, view), view)
        case Resource.BROKER:
            if not name:
                return default_broker_entries(view)
            if name != str(view.static.broker_id):
                raise Refused(
                    ErrorCode.INVALID_REQUEST,
                    f"Unexpected broker id, expected {view.static.broker_id} or empty string, but received {name}",
                )
            return broker_entries(view.static.broker_id, view)
        case Resource.GROUP:
            _check_group(name)
            return group_entries(view.dynamic_config(znodes.CONFIG_GROUPS, name))
        case Resource.CLIENT_METRICS:
            return []
        case Resource.BROKER_LOGGER:
            raise Refused(ErrorCode.INVALID_REQUEST, "Loggers can't be changed through the protocol here.")
    raise Refused(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")


def _topic(name: str, view: ClusterView) -> Mapping[str, str]:
    wrong = check_name(name)
    if wrong is not None:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, wrong)
    topic = view.topics.get(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    return topic.configs


def _check_group(name: str) -> None:
    if not name:
        raise Refused(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    if "/" in name or len(name.encode()) > 249 or name in (".", "..") or any(ord(char) < 32 for char in name):
        # the name becomes a znode's
        raise Refused(ErrorCode.INVALID_REQUEST, "This group's name can't carry a configuration.")


def _described(entry: ConfigEntry, request: Any, result: Any, version: int) -> Any:
    config = result.DescribeConfigsResourceResult
    fields: dict[str, Any] = {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": int(entry.source),
        "is_sensitive": entry.sensitive,
        "synonyms": [],
    }
    if request.include_synonyms:
        fields["synonyms"] = [
            config.DescribeConfigsSynonym(version=version, name=one.name, value=one.value, source=int(one.source))
            for one in entry.synonyms
        ]
    if version >= 3:
        fields["config_type"] = int(entry.type)
        fields["documentation"] = entry.doc if request.include_documentation else None
    return config(version=version, **fields)


# ---------------------------------------------------------------- altering


async def handle_alter_configs(request: Any, context: Context) -> Done:
    """AlterConfigs v0-v2: the request names all overrides a resource shall have."""
    plans = [
        (one.resource_type, one.resource_name, [Alteration(c.name, Operation.SET, c.value) for c in one.configs])
        for one in request.resources
    ]
    return await _alter(plans, context, ALTER_CONFIGS_KEY, request.validate_only, keep=False)


async def handle_incremental_alter_configs(request: Any, context: Context) -> Done:
    """IncrementalAlterConfigs v0-v1: set, delete, append to and subtract from single settings."""
    plans = [
        (
            one.resource_type,
            one.resource_name,
            [Alteration(c.name, c.config_operation, c.value) for c in one.configs],
        )
        for one in request.resources
    ]
    return await _alter(plans, context, INCREMENTAL_ALTER_CONFIGS_KEY, request.validate_only, keep=True)


async def _alter(
    plans: Sequence[tuple[int, str, list[Alteration]]], context: Context, key: int, validate_only: bool, *, keep: bool
) -> Done:
    response = messages.response_class(key)
    version = context.api_version
    seen = Counter((kind, name) for kind, name, _ in plans)
    rows = []
    for kind, name, alterations in plans:
        error, message = ErrorCode.NONE, None
        try:
            if seen[kind, name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, f"Each resource must appear at most once: {name}")
            await _alter_one(kind, name, alterations, context, keep=keep, validate_only=validate_only)
        except Refused as refused:
            error, message = refused.error, refused.message
        except EntityGone:
            error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        except (Contended, StoreError) as problem:
            log.info("altering the configuration of %s: %s", name, problem)
            error, message = ErrorCode.REQUEST_TIMED_OUT, "The configuration could not be written; try again."
        rows.append(
            response.AlterConfigsResourceResponse(
                version=version, error_code=int(error), error_message=message, resource_type=kind, resource_name=name
            )
        )
    return Done(response(version=version, responses=rows))


async def _alter_one(
    kind: int, name: str, alterations: list[Alteration], context: Context, *, keep: bool, validate_only: bool
) -> None:
    view = context.services.view
    resource = _alterable(kind, name, view)
    twice = [one for one, count in Counter(a.name for a in alterations).items() if count > 1]
    if twice:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys: {','.join(sorted(twice))}")
    entity = name if resource is not Resource.BROKER or name else znodes.DEFAULT_ENTITY
    defaults = _defaults(resource, view)

    def alteration(present: Mapping[str, str]) -> dict[str, str]:
        return altered(present if keep else {}, alterations, _TABLES[resource], defaults, resource)

    if validate_only:
        alteration(view.dynamic_config(_KINDS[resource], entity))
    else:
        await alter_config(context.services.store, view, _KINDS[resource], entity, alteration)


def _alterable(kind: int, name: str, view: ClusterView) -> Resource:
    if kind not in _KINDS:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")
    resource = Resource(kind)
    if resource is Resource.TOPIC:
        _topic(name, view)
    elif resource is Resource.GROUP:
        _check_group(name)
    elif name and not (name.isascii() and name.isdigit() and int(name) < 2**31 and name == str(int(name))):
        raise Refused(ErrorCode.INVALID_REQUEST, f"Broker resource name must be a broker id or empty: {name[:40]}")
    return resource


def _defaults(resource: Resource, view: ClusterView) -> dict[str, str]:
    """What a list is appended to when there is no override yet."""
    match resource:
        case Resource.TOPIC:
            entries = topic_entries({}, view)
        case Resource.BROKER:
            entries = broker_entries(view.static.broker_id, view)
        case _:
            entries = []
    return {entry.name: entry.value for entry in entries if entry.value is not None}


def altered(
    present: Mapping[str, str],
    alterations: Sequence[Alteration],
    table: Mapping[str, Setting],
    defaults: Mapping[str, str],
    resource: Resource,
) -> dict[str, str]:
    """The configuration after the alterations, all of it checked; raises Refused. Pure."""
    wanted = dict(present)
    for name, operation, value in alterations:
        row = table.get(name)
        if operation == Operation.DELETE:
            wanted.pop(name, None)  # whatever it is: what nobody knows may go
            continue
        if row is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown configuration '{name[:100]}'.")
        if resource is Resource.BROKER and not row.live:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Cannot update these configs dynamically: {name}")
        if value is None:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
        match operation:
            case Operation.SET:
                wanted[name] = value
            case Operation.APPEND | Operation.SUBTRACT:
                wanted[name] = _listed(row, wanted.get(name, defaults.get(name, "")), operation, value)
            case _:
                raise Refused(ErrorCode.INVALID_REQUEST, f"Unknown operation {operation} for {name}")
        try:
            row.parse(wanted[name])
        except ConfigError as problem:
            raise Refused(ErrorCode.INVALID_CONFIG, str(problem)) from problem
    return wanted


def _listed(row: Setting, present: str, operation: int, value: str) -> str:
    if row.type is not SettingType.LIST:
        verb = "append" if operation == Operation.APPEND else "subtract"
        raise Refused(ErrorCode.INVALID_CONFIG, f"Config value {verb} is not allowed for config key: {row.name}")
    items = [item.strip() for item in present.split(",") if item.strip()]
    given = [item.strip() for item in value.split(",") if item.strip()]
    if operation == Operation.APPEND:
        return ",".join([*items, *(item for item in given if item not in items)])
    return ",".join(item for item in items if item not in given)


# ---------------------------------------------------------------- listing


def handle_list_config_resources(request: Any, context: Context) -> Done:
    """ListConfigResources v0 (client metrics only: none) and v1 (all kinds, or those asked for)."""
    response = messages.response_class(LIST_CONFIG_RESOURCES_KEY)
    version = context.api_version
    view = context.services.view
    names = {
        Resource.TOPIC: sorted(view.topics),
        Resource.BROKER: [str(broker_id) for broker_id in sorted(view.brokers)],
        Resource.BROKER_LOGGER: [],
        Resource.CLIENT_METRICS: [],
        Resource.GROUP: view.config_entities(znodes.CONFIG_GROUPS),
    }
    asked = list(dict.fromkeys(request.resource_types)) if version >= 1 else [int(Resource.CLIENT_METRICS)]
    if any(kind not in names for kind in asked):
        return Done(response(version=version, error_code=int(ErrorCode.UNSUPPORTED_VERSION), config_resources=[]))
    resources = []
    for kind in asked or list(names):
        for name in names[Resource(kind)]:
            fields: dict[str, Any] = {"resource_name": name}
            if version >= 1:
                fields["resource_type"] = int(kind)
            resources.append(response.ConfigResource(version=version, **fields))
    return Done(response(version=version, error_code=0, config_resources=resources))
