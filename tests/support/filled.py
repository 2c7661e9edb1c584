"""Requests of every API that name one of everything, and the errors in their answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import fleetlog.wire.messages as m

SECRET = "secret"
"""The topic, group and transactional id that the requests name."""


NAMES = {
    "topic", "topics", "name", "topic_name", "topic_names", "group_id", "groups", "groups_names", "group_ids",
    "transactional_id", "transactional_ids", "v3_and_below_transactional_id", "key", "coordinator_keys", "sink_id",
    "sink_ids", "subscribed_topic_names", "resource_name",
}  # fmt: skip
VALUES: dict[str, Any] = {
    "topic_id": None, "resource_type": 2, "replica_id": -1, "session_id": 0, "session_epoch": -1, "max_bytes": 1 << 20,
    "min_bytes": 0, "partition_max_bytes": 1 << 20, "timestamp": -1, "current_leader_epoch": -1, "acks": -1, "count": 1,
    "timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1, "max_wait_ms": 0, "resource_types": 2, "cursor": None,
    "match_type": 2, "endpoint_type": 1, "response_partition_limit": 10, "operation": 3, "generation_id": -1,
    "include_topic_authorized_operations": True, "include_cluster_authorized_operations": True,
    "include_authorized_operations": True, "last_fetched_epoch": -1, "group_instance_id": None, "validate_only": False,
    "transactional_id_pattern": "", "duration_filter": -1,
    "allow_auto_topic_creation": True, "transaction_timeout_ms": 1000, "enable2_pc": False,
}  # fmt: skip


def filled(key: int, version: int, **others: Any) -> Any:
    """A request that names one of everything; ``others`` are values by field name."""
    cls = m.request_class(key)
    tagged = [field.name for field in cls._struct.fields.values() if field.tagged_field_q(version)]
    given = {name: others[name] for name in tagged if name in others}
    return cls(version=version, **_fields(cls._struct, version, VALUES | others), **given)


def _fields(schema: Any, version: int, values: dict[str, Any]) -> dict[str, Any]:
    return {
        field.name: _value(field, version, values)
        for field in schema.fields.values()
        if field.for_version_q(version) and not field.tagged_field_q(version)
    }


def _value(field: Any, version: int, values: dict[str, Any]) -> Any:
    if field.is_struct_array():
        if field.name in values:
            return values[field.name]
        return [field.data_class(version=version, **_fields(field.array_of, version, values))]
    if field.is_array():
        if field.name in ("state_filters", "producer_id_filters", "states_filter", "types_filter"):
            return []
        if values.get(field.name, 0) is None:
            return None
        return [_scalar(field.name, field.array_of.type_str, values)]
    if field.is_struct():
        return None if values.get(field.name, 0) is None else field.data_class(version=version)
    return _scalar(field.name, field.type_str, values)


def _scalar(name: str, kind: str, values: dict[str, Any]) -> Any:
    if name in values:
        return values[name]
    if kind == "string":
        return SECRET if name in NAMES else "1"
    return {"bytes": b"", "bool": False, "uuid": uuid.UUID(int=1), "float64": 1.0, "records": None}.get(kind, 0)


def codes(message: Any) -> Iterator[int]:
    """All error codes of an answer, but 0."""
    for name, value in message.to_dict().items() if hasattr(message, "to_dict") else message.items():
        if name.endswith("error_code") and value:
            yield value
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict) or hasattr(one, "to_dict"):
                yield from codes(one)
