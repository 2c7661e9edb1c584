"""What a management request changed, for the audit topic: one change for each resource that it names, with its outcome.

Never a value that a client sent: of settings and quotas the names, of credentials the mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from fleetlog.brokers.model import id_text
from fleetlog.brokers.security.acl_znodes import OPERATION_NAMES, PERMISSION_NAMES, TYPE_NAMES
from fleetlog.brokers.security.acls import CLUSTER_NAME, AclOperation, Permission, ResourceType
from fleetlog.brokers.security.audit import NAME_CHARS_MAX, Change
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.wire import admin_requests, requests

    _AlterConfigsRequest = admin_requests.AlterConfigsRequest | admin_requests.IncrementalAlterConfigsRequest
    _AlteredResource = admin_requests.AlterConfigsResources | admin_requests.IncrementalAlterConfigsResources

_ALTER, _DELETE, _ALTER_CONFIGS = AclOperation.ALTER, AclOperation.DELETE, AclOperation.ALTER_CONFIGS
_CLUSTER_ACTION = AclOperation.CLUSTER_ACTION
_CONFIG_KINDS: Final = {2: "Topic", 4: "Broker", 8: "BrokerLogger", 16: "ClientMetrics", 32: "Group"}
_SCRAM_NAMES: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_CONFIG_VERBS: Final = {0: "set", 1: "delete", 2: "append to", 3: "subtract from"}
_DETAILS_MAX: Final = 100
"""So many settings, partitions or quotas of one resource are named."""

Changes = Iterator[Change]
_Reader = Callable[[Any, Any], Changes]


def _error(code: int) -> ErrorCode:
    return ErrorCode(code)


def _codes(rows: Any, name: str) -> dict[Any, int]:
    """The error of each row of an answer, by the row's name; of rows with partitions the first error among them."""
    found: dict[Any, int] = {}
    for row in rows or ():
        parts = getattr(row, "partitions", None)
        if parts is None:
            parts = getattr(row, "partition_result", None)
        codes = [row.error_code] if parts is None else [part.error_code for part in parts]
        key = getattr(row, name)
        found[key] = found.get(key) or next((code for code in codes if code), 0)
    return found


def _named(
    kind: str, operation: AclOperation, names: Iterable[tuple[str, str]], codes: dict[Any, int], whole: int = 0
) -> Changes:
    """A change for each different name, in their order, with a detail."""
    for name, detail in dict(names).items():
        code = whole or codes.get(name, 0)
        yield Change(kind, name, operation, _error(code), detail)


def _listed(verb: str, items: Iterable[object]) -> str:
    texts: list[str] = []
    length = 0
    for item in items:
        text = str(item)
        length += len(text)
        if len(texts) == _DETAILS_MAX or length > NAME_CHARS_MAX:
            texts.append("...")
            break
        texts.append(text)
    return f"{verb} {', '.join(texts)}" if texts else ""


# ---------------------------------------------------------------- topics


def _create_topics(request: admin_requests.CreateTopicsRequest, response: Any) -> Changes:
    only = "validated only" if request.validate_only else ""
    names = ((topic.name, only) for topic in request.topics)
    return _named("Topic", AclOperation.CREATE, names, _codes(response.topics, "name"))


def _delete_topics(request: admin_requests.DeleteTopicsRequest, response: Any) -> Changes:
    for row in response.responses:
        topic_id = getattr(row, "topic_id", None)
        identity = id_text(topic_id) if topic_id is not None else ""
        detail = f"topic id {identity}" if row.name and identity else ""
        yield Change("Topic", row.name or identity, _DELETE, _error(row.error_code), detail)


def _delete_records(request: admin_requests.DeleteRecordsRequest, response: Any) -> Changes:
    def names() -> Iterator[tuple[str, str]]:
        for topic in request.topics:
            parts = (f"{part.partition_index} before {part.offset}" for part in topic.partitions)
            yield topic.name, _listed("partitions", parts)

    return _named("Topic", _DELETE, names(), _codes(response.topics, "name"))


def _compact_topics(request: admin_requests.CompactTopicsRequest, response: Any) -> Changes:
    verb = "compact at once" if request.now else "compact"
    names = ((topic.name, _listed(verb, topic.partitions)) for topic in request.topics)
    return _named("Topic", _ALTER, names, _codes(response.topics, "name"))


def _create_partitions(request: admin_requests.CreatePartitionsRequest, response: Any) -> Changes:
    names = ((topic.name, f"{topic.count} partitions") for topic in request.topics)
    return _named("Topic", _ALTER, names, _codes(response.results, "name"))


def _elect_leaders(request: admin_requests.ElectLeadersRequest, response: Any) -> Changes:
    kind = "unclean" if getattr(request, "election_type", 0) else "preferred"
    whole = getattr(response, "error_code", 0)
    if request.topic_partitions is None:
        yield Change("Cluster", CLUSTER_NAME, _ALTER, _error(whole), f"{kind} leaders of all partitions")
        return
    names = ((one.topic, _listed(f"{kind} leaders of partitions", one.partitions)) for one in request.topic_partitions)
    yield from _named("Topic", _ALTER, names, _codes(response.replica_election_results, "topic"), whole)


def _reassign(request: admin_requests.AlterPartitionReassignmentsRequest, response: Any) -> Changes:
    def names() -> Iterator[tuple[str, str]]:
        for topic in request.topics:
            parts = (
                f"{part.partition_index} to {'the present ones' if part.replicas is None else list(part.replicas)}"
                for part in topic.partitions
            )
            yield topic.name, _listed("replicas of", parts)

    return _named("Topic", _ALTER, names(), _codes(response.responses, "name"), response.error_code)


def _move_directories(request: admin_requests.AlterReplicaLogDirsRequest, response: Any) -> Changes:
    names = ((topic.name, _listed("directories of", topic.partitions)) for one in request.dirs for topic in one.topics)
    return _named("Topic", _ALTER, names, _codes(response.results, "topic_name"))


# ---------------------------------------------------------------- groups and sinks


def _delete_groups(request: admin_requests.DeleteGroupsRequest, response: Any) -> Changes:
    names = ((name, "") for name in request.groups_names)
    return _named("Group", _DELETE, names, _codes(response.results, "group_id"))


def _delete_offsets(request: admin_requests.OffsetDeleteRequest, response: Any) -> Changes:
    codes = _codes(response.topics, "name")
    code = response.error_code or next((code for code in codes.values() if code), 0)
    detail = _listed("offsets of", (topic.name for topic in request.topics))
    yield Change("Group", request.group_id, _DELETE, _error(code), detail)


def _reset_sink(request: requests.ResetSinkRequest, response: Any) -> Changes:
    kind = TYPE_NAMES[ResourceType.TRANSACTIONAL_ID]
    yield Change(kind, request.sink_id, _ALTER, _error(response.error_code), "the sink's fence is moved")


# ---------------------------------------------------------------- configurations, rights, users


def _alter_configs(request: _AlterConfigsRequest, response: Any) -> Changes:
    resources: Sequence[_AlteredResource] = request.resources
    for resource, row in zip(resources, response.responses, strict=True):
        kind = _CONFIG_KINDS.get(resource.resource_type, str(resource.resource_type))
        verbs: dict[str, list[str]] = {}
        for one in resource.configs:
            verbs.setdefault(_CONFIG_VERBS.get(getattr(one, "config_operation", 0), "alter"), []).append(one.name)
        detail = "; ".join(_listed(verb, names) for verb, names in verbs.items())
        if request.validate_only:
            detail = f"validated only: {detail}"
        name = resource.resource_name or "<default>"
        yield Change(kind, name, _ALTER_CONFIGS, _error(row.error_code), detail)


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


def _create_acls(request: admin_requests.CreateAclsRequest, response: Any) -> Changes:
    for one, row in zip(request.creations, response.results, strict=True):
        kind = _name_of(TYPE_NAMES, ResourceType, one.resource_type)
        detail = f"ACL: {_acl_text(one.permission_type, one.principal, one.host, one.operation)}"
        yield Change(kind, one.resource_name, _ALTER, _error(row.error_code), detail)


def _delete_acls(request: admin_requests.DeleteAclsRequest, response: Any) -> Changes:
    for one, row in zip(request.filters, response.filter_results, strict=True):
        kind = _name_of(TYPE_NAMES, ResourceType, one.resource_type_filter)
        asked = _acl_text(one.permission_type, one.principal_filter, one.host_filter, one.operation)
        detail = f"{len(row.matching_acls)} ACLs deleted by the filter: {asked}"
        code = row.error_code or next((acl.error_code for acl in row.matching_acls if acl.error_code), 0)
        yield Change(kind, one.resource_name_filter or "*", _ALTER, _error(code), detail)


def _alter_quotas(request: admin_requests.AlterClientQuotasRequest, response: Any) -> Changes:
    for entry, row in zip(request.entries, response.entries, strict=True):
        name = _listed("", (f"{one.entity_type}={one.entity_name or '<default>'}" for one in entry.entity)).strip()
        detail = _listed("quotas", (f"{'remove' if op.remove else 'set'} {op.key}" for op in entry.ops))
        yield Change("ClientQuota", name, _ALTER_CONFIGS, _error(row.error_code), detail)


def _alter_users(request: admin_requests.AlterUserScramCredentialsRequest, response: Any) -> Changes:
    details: dict[str, list[str]] = {}
    for verb, rows in (("delete", request.deletions), ("set", request.upsertions)):
        for one in rows:
            mechanism = _SCRAM_NAMES.get(one.mechanism, str(one.mechanism))
            details.setdefault(one.name, []).append(f"{verb} the credential of {mechanism}")
    names = ((name, "; ".join(done[:_DETAILS_MAX])) for name, done in details.items())
    return _named("User", _ALTER, names, _codes(response.results, "user"))


def _update_features(request: admin_requests.UpdateFeaturesRequest, response: Any) -> Changes:
    codes = {row.feature: row.error_code for row in response.results or ()}
    for row in request.feature_updates:
        error = _error(response.error_code or codes.get(row.feature, 0))
        yield Change("Cluster", CLUSTER_NAME, _ALTER, error, f"feature {row.feature} to level {row.max_version_level}")


def _tokens(request: object, response: Any) -> Changes:
    kind = TYPE_NAMES.get(ResourceType.DELEGATION_TOKEN, "DelegationToken")
    yield Change(kind, "", _ALTER, _error(response.error_code))


# ---------------------------------------------------------------- what only brokers do


def _of_brokers(request: object, response: Any) -> Changes:
    codes = [getattr(response, "error_code", 0)]
    for marker in getattr(response, "markers", ()):
        codes += (part.error_code for topic in marker.topics for part in topic.partitions)
    yield Change("Cluster", CLUSTER_NAME, _CLUSTER_ACTION, _error(next((code for code in codes if code), 0)))


_READERS: Final[dict[int, tuple[str, _Reader]]] = {
    api_keys.CONTROLLED_SHUTDOWN: ("", _of_brokers),
    api_keys.CREATE_TOPICS: ("topics", _create_topics),
    api_keys.DELETE_TOPICS: ("topics", _delete_topics),
    api_keys.DELETE_RECORDS: ("topics", _delete_records),
    api_keys.WRITE_TXN_MARKERS: ("", _of_brokers),
    api_keys.CREATE_ACLS: ("creations", _create_acls),
    api_keys.DELETE_ACLS: ("filters", _delete_acls),
    api_keys.ALTER_CONFIGS: ("resources", _alter_configs),
    api_keys.ALTER_REPLICA_LOG_DIRS: ("dirs", _move_directories),
    api_keys.CREATE_PARTITIONS: ("topics", _create_partitions),
    api_keys.CREATE_DELEGATION_TOKEN: ("", _tokens),
    api_keys.RENEW_DELEGATION_TOKEN: ("", _tokens),
    api_keys.EXPIRE_DELEGATION_TOKEN: ("", _tokens),
    api_keys.DELETE_GROUPS: ("groups_names", _delete_groups),
    api_keys.ELECT_LEADERS: ("topic_partitions", _elect_leaders),
    api_keys.INCREMENTAL_ALTER_CONFIGS: ("resources", _alter_configs),
    api_keys.ALTER_PARTITION_REASSIGNMENTS: ("topics", _reassign),
    api_keys.OFFSET_DELETE: ("", _delete_offsets),
    api_keys.ALTER_CLIENT_QUOTAS: ("entries", _alter_quotas),
    api_keys.ALTER_USER_SCRAM_CREDENTIALS: ("upsertions", _alter_users),
    api_keys.UPDATE_FEATURES: ("feature_updates", _update_features),
    api_keys.REPLICA_ENDS: ("", _of_brokers),
    api_keys.RESET_SINK: ("", _reset_sink),
    api_keys.COMPACT_TOPICS: ("topics", _compact_topics),
}
"""By API key: the list of the request that names the resources, and how its changes are read."""
MANAGEMENT_APIS: Final = frozenset(_READERS)
BETWEEN_BROKERS: Final = frozenset(
    {
        api_keys.CONTROLLED_SHUTDOWN,
        api_keys.CREATE_TOPICS,
        api_keys.WRITE_TXN_MARKERS,
        api_keys.REPLICA_ENDS,
        api_keys.LOG_POSITIONS,
        api_keys.ACCEPTED_POSITIONS,
    }
)
"""What brokers ask of each other on their own account; the topics among it that a client named in Metadata."""


def count_of_changes(api_key: int, request: object) -> int:
    """About how many changes the request asks for."""
    rows = _READERS[api_key][0]
    found = len(getattr(request, rows, None) or ()) if rows else 1
    if api_key == api_keys.DELETE_TOPICS:
        found += len(getattr(request, "topic_names", ()))
    if api_key == api_keys.ALTER_USER_SCRAM_CREDENTIALS:
        found += len(cast("admin_requests.AlterUserScramCredentialsRequest", request).deletions)
    return max(1, found)


def changes_of(api_key: int, request: object, response: Any) -> Changes:
    """What the request changed, by its answer (a decoded message)."""
    return _READERS[api_key][1](request, response)


def created_topics(errors: Mapping[str, ErrorCode]) -> Changes:
    """Topics that came into being, or not, because a client named them."""
    for name, error in errors.items():
        yield Change("Topic", name, AclOperation.CREATE, error, "created on first use")


def failed_changes(api_key: int, error: ErrorCode) -> Changes:
    """A request without an answer that names its resources."""
    yield Change("Cluster", CLUSTER_NAME, _ALTER, error, f"API key {api_key}")
