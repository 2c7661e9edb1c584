"""Quotas in znodes and in requests: names, values, filters, alterations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.brokers.quotas.entities import (
    Component,
    QuotaAlteration,
    QuotaRequestRefused,
    altered_config,
    check_components,
    entity_at,
    entity_matches,
    entity_of,
    entity_path,
    quotas_from,
)
from fleetlog.brokers.quotas.image import DEFAULT, Entity
from fleetlog.wire.errors import ErrorCode

# ---------------------------------------------------------------- znodes


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (Entity("alice"), "users/alice"),
        (Entity("CN=a b,O=*"), "users/CN%3Da%20b%2CO%3D%2A"),
        (Entity(DEFAULT), "users/<default>"),
        (Entity("<default>"), "users/%3Cdefault%3E"),
        (Entity("alice", "app/1"), "users/alice/clients/app%2F1"),
        (Entity(DEFAULT, DEFAULT), "users/<default>/clients/<default>"),
        (Entity(None, "app"), "clients/app"),
        (Entity(None, DEFAULT), "clients/<default>"),
        (Entity(ip="10.0.0.1"), "ips/10.0.0.1"),
        (Entity(ip="::1"), "ips/::1"),
        (Entity(ip=DEFAULT), "ips/<default>"),
    ],
)
def test_each_entity_has_a_path(entity: Entity, path: str) -> None:
    assert entity_path(entity) == path
    assert entity_at(path) == entity


@pytest.mark.parametrize(
    "path", ["", "users", "users/", "users/a/b", "users/a/clients/", "topics/a", "clients/a/users/b", "users/%ff"]
)
def test_paths_of_no_entity(path: str) -> None:
    with pytest.raises(BadZnode):
        entity_at(path)


def test_quotas_are_read_in_thousandths() -> None:
    config = {"producer_byte_rate": "1048576", "request_percentage": "12.5", "SCRAM-SHA-256": "salt=..."}
    assert quotas_from("users/a", config) == {"producer_byte_rate": 1_048_576_000, "request_percentage": 12_500}
    assert quotas_from("users/a", {"consumer_byte_rate": "1.0E7"}) == {"consumer_byte_rate": 10_000_000_000}
    assert quotas_from("ips/1.1.1.1", {"connection_creation_rate": "5", "producer_byte_rate": "1"}) == {
        "connection_creation_rate": 5000
    }
    assert quotas_from("users/a", {"connection_creation_rate": "5"}) == {}
    for least in ("0", "-3", "0.0000001", "-1E99999999"):
        assert quotas_from("clients/a", {"request_percentage": least}) == {"request_percentage": 1}


@pytest.mark.parametrize("value", ["", "many", "NaN", "Infinity", "1E99999999", "0x10"])
def test_values_that_cannot_be_read(value: str) -> None:
    with pytest.raises(BadZnode):
        quotas_from("users/a", {"producer_byte_rate": value})


# ---------------------------------------------------------------- DescribeClientQuotas


ENTITIES = [
    Entity("a"), Entity(DEFAULT), Entity("a", "c"), Entity("a", DEFAULT), Entity(DEFAULT, "c"),
    Entity(None, "c"), Entity(None, DEFAULT), Entity(ip="1.1.1.1"), Entity(ip=DEFAULT),
]  # fmt: skip


def found(*components: Component, strict: bool = False) -> list[Entity]:
    check_components(components)
    return [entity for entity in ENTITIES if entity_matches(entity, components, strict)]


def test_filters_select_entities() -> None:
    exact, default, any_user = Component("user", 0, "a"), Component("user", 1, None), Component("user", 2, None)
    assert found() == ENTITIES
    assert found(strict=True) == []
    assert found(exact) == [Entity("a"), Entity("a", "c"), Entity("a", DEFAULT)]
    assert found(exact, strict=True) == [Entity("a")]
    assert found(default) == [Entity(DEFAULT), Entity(DEFAULT, "c")]
    assert found(any_user, strict=True) == [Entity("a"), Entity(DEFAULT)]
    assert found(any_user, Component("client-id", 0, "c"), strict=True) == [Entity("a", "c"), Entity(DEFAULT, "c")]
    assert found(Component("client-id", 1, None)) == [Entity("a", DEFAULT), Entity(None, DEFAULT)]
    assert found(Component("client-id", 2, None), strict=True) == [Entity(None, "c"), Entity(None, DEFAULT)]
    assert found(Component("ip", 2, None)) == [Entity(ip="1.1.1.1"), Entity(ip=DEFAULT)]
    assert found(Component("user", 0, "<default>")) == []


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([Component("", 0, "a")], ErrorCode.INVALID_REQUEST),
        ([Component("group", 0, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([Component("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([Component("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([Component("user", 1, "a")], ErrorCode.INVALID_REQUEST),
        ([Component("user", 0, "a"), Component("user", 1, None)], ErrorCode.INVALID_REQUEST),
        ([Component("user", 0, "a"), Component("ip", 1, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_filters_that_are_refused(components: list[Component], code: ErrorCode) -> None:
    with pytest.raises(QuotaRequestRefused) as caught:
        check_components(components)
    assert caught.value.code is code


# ---------------------------------------------------------------- AlterClientQuotas


def test_entities_of_requests() -> None:
    assert entity_of([("client-id", None), ("user", "a")]) == Entity("a", DEFAULT)
    assert entity_of([("ip", "2001:DB8::0:1")]) == Entity(ip="2001:db8::1")
    assert entity_of([("ip", None)]) == Entity(ip=DEFAULT)


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([], ErrorCode.INVALID_REQUEST),
        ([("user", "")], ErrorCode.INVALID_REQUEST),
        ([("user", "a"), ("user", "b")], ErrorCode.INVALID_REQUEST),
        ([("ip", "1.1.1.1"), ("user", "b")], ErrorCode.INVALID_REQUEST),
        ([("ip", "example.org")], ErrorCode.INVALID_REQUEST),
        ([("ip", "1.1.1.1/8")], ErrorCode.INVALID_REQUEST),
        ([("", "a")], ErrorCode.INVALID_REQUEST),
        ([("team", "a")], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_entities_that_are_refused(parts: list[tuple[str, str | None]], code: ErrorCode) -> None:
    with pytest.raises(QuotaRequestRefused) as caught:
        entity_of(parts)
    assert caught.value.code is code


def test_alterations_leave_the_rest() -> None:
    config = {"SCRAM-SHA-256": "salt=...", "producer_byte_rate": "5", "consumer_byte_rate": "6"}
    altered = altered_config(
        Entity("a"),
        config,
        [
            QuotaAlteration("producer_byte_rate", 0, True),
            QuotaAlteration("consumer_byte_rate", 7.0, False),
            QuotaAlteration("request_percentage", 12.5, False),
            QuotaAlteration("controller_mutation_rate", 0, True),
        ],
    )
    assert altered == {"SCRAM-SHA-256": "salt=...", "consumer_byte_rate": "7", "request_percentage": "12.5"}
    assert config["producer_byte_rate"] == "5"


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        (Entity("a"), "SCRAM-SHA-256", 1.0),
        (Entity("a"), "connection_creation_rate", 1.0),
        (Entity(ip="1.1.1.1"), "producer_byte_rate", 1.0),
        (Entity("a"), "producer_byte_rate", 1.5),
        (Entity("a"), "producer_byte_rate", 0.0),
        (Entity("a"), "producer_byte_rate", -1.0),
        (Entity("a"), "request_percentage", float("nan")),
        (Entity("a"), "request_percentage", float("inf")),
        (Entity("a"), "producer_byte_rate", 2.0**63),
    ],
)
def test_alterations_that_are_refused(entity: Entity, key: str, value: float) -> None:
    with pytest.raises(QuotaRequestRefused) as caught:
        altered_config(entity, {}, [QuotaAlteration(key, value, False)])
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_removing_an_unknown_key_is_refused() -> None:
    with pytest.raises(QuotaRequestRefused):
        altered_config(Entity("a"), {"SCRAM-SHA-256": "x"}, [QuotaAlteration("SCRAM-SHA-256", 0, True)])


@given(st.floats(0.001, 2.0**62), st.booleans())
def test_what_is_written_can_be_read(value: float, whole: bool) -> None:
    key = "producer_byte_rate" if whole else "request_percentage"
    number = float(round(value) or 1) if whole else value
    config: dict[str, Any] = altered_config(Entity("a"), {}, [QuotaAlteration(key, number, False)])
    assert abs(quotas_from("users/a", config)[key] - number * 1000) <= max(1.0, number * 1e-9)
