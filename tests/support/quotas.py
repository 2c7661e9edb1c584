"""DescribeClientQuotas and AlterClientQuotas sent to real brokers, as plain values."""

from __future__ import annotations

from typing import Any

import fleetlog.wire.messages as m
from fleetlog.wire.errors import ErrorCode
from tests.support.fleet import Broker
from tests.support.harness import Client

DESCRIBE, ALTER = 48, 49
Quotas = dict[tuple[tuple[str, str | None], ...], dict[str, float]]


def described(broker: Broker, *components: tuple[str, int, str | None], strict: bool = False) -> Quotas:
    answer = asked(broker, *components, strict=strict)
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return {
        tuple((one.entity_type, one.entity_name) for one in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


def asked(broker: Broker, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1) -> Any:
    kind = m.request_class(DESCRIBE)
    rows = [
        kind.ComponentData(version=version, entity_type=name, match_type=how, match=match)
        for name, how, match in components
    ]  # fmt: skip
    client = Client(broker.port)
    try:
        return client.ask(kind(version=version, components=rows, strict=strict), version)
    finally:
        client.close()


def alter(broker: Broker, *entries: Any, validate_only: bool = False, version: int = 1) -> list[int]:
    """Each entry: an entity, and values by key, None to remove."""
    row = m.request_class(ALTER).EntryData
    rows = [
        row(
            version=version,
            entity=[row.EntityData(version=version, entity_type=kind, entity_name=name) for kind, name in entity],
            ops=[
                row.OpData(version=version, key=key, value=value or 0.0, remove=value is None)
                for key, value in values.items()
            ],
        )
        for entity, values in entries
    ]
    client = Client(broker.port)
    try:
        request = m.request_class(ALTER)(version=version, entries=rows, validate_only=validate_only)
        answer = client.ask(request, version)
    finally:
        client.close()
    assert [[(one.entity_type, one.entity_name) for one in entry.entity] for entry in answer.entries] == [
        list(entity) for entity, _ in entries
    ]
    return [entry.error_code for entry in answer.entries]


def remove_all(broker: Broker) -> None:
    """No quota is left."""
    for entity, values in described(broker).items():
        assert alter(broker, (entity, dict.fromkeys(values))) == [ErrorCode.NONE]
