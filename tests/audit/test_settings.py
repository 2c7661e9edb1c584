"""Audit as it is configured: what ends the start, what the topic is made with, and which alterations are refused."""

from __future__ import annotations

import pytest

from fleetlog.brokers.audit.events import EventType, OnFull
from fleetlog.brokers.audit.settings import audit_settings, audit_topic_configs, refused_alteration
from fleetlog.brokers.config import BrokerConfig, ConfigError, TopicConfig, load_config

DAY_MS = 86_400_000
LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="broker" password="p";'
SECURED = {
    "broker.id": "1",
    "zookeeper.connect": "none:1",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "listeners": "INSIDE://127.0.0.1:9092",
    "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    "listener.name.inside.scram-sha-256.sasl.jaas.config": LOGIN,
}
PLAINTEXT = {
    name: SECURED[name] for name in ("broker.id", "zookeeper.connect", "authorizer.class.name")
} | {"listeners": "PLAINTEXT://127.0.0.1:9092"}  # fmt: skip


def of(base: dict[str, str], **settings: str) -> BrokerConfig:
    return load_config(overrides=base | {name.replace("_", "."): value for name, value in settings.items()})


def test_it_is_off_unless_switched_on() -> None:
    assert audit_settings(of(SECURED)) is None
    assert audit_settings(of(PLAINTEXT, audit_on_full="refuse")) is None


def test_what_is_recorded() -> None:
    settings = audit_settings(of(
        SECURED, audit_enable="true", audit_event_types="produce,management", audit_on_full="refuse",
        audit_excluded_principals="User:CN=a,O=b;User:c", audit_excluded_topics="noise",
    ))  # fmt: skip
    assert settings is not None
    assert settings.types == {EventType.PRODUCE, EventType.MANAGEMENT}
    assert settings.on_full is OnFull.REFUSE
    assert settings.excluded_principals == {"User:CN=a,O=b", "User:c"}
    assert settings.excluded_topics == {"noise"}


@pytest.mark.parametrize(
    ("base", "settings", "name", "advice"),
    [
        (SECURED | {"authorizer.class.name": ""}, {}, "audit.enable", "set authorizer.class.name"),
        (PLAINTEXT, {}, "audit.enable", "inter.broker.listener.name"),
        (SECURED, {"audit_excluded_principals": "alice"}, "audit.excluded.principals", "User:alice"),
    ],
)
def test_half_of_it_ends_the_start(base: dict[str, str], settings: dict[str, str], name: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice) as raised:
        audit_settings(of(base, audit_enable="true", **settings))
    assert raised.value.name == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("audit_event_types", "everything"), ("audit_on_full", "wait"), ("audit_queue_max_bytes", "1000"),
        ("audit_topic_retention_ms", "1"), ("audit_topic_replication_factor", "0"),
    ],
)  # fmt: skip
def test_wrong_values(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name.replace("_", r"\.")):
        of(SECURED, **{name: value})


def test_the_topic_is_made_with_settings_that_there_are() -> None:
    made = audit_topic_configs(of(SECURED, audit_topic_retention_ms=str(DAY_MS)))
    parsed = TopicConfig.parse({name: value or "" for name, value in made.items()}, BrokerConfig().topic_defaults())
    assert (parsed.retention_ms, parsed.retention_bytes, parsed.cleanup_policy) == (DAY_MS, -1, ("delete",))


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({"retention.ms": str(7 * DAY_MS)}, False),
        ({"retention.ms": "-1"}, False),
        ({"segment.bytes": "1048576"}, False),
        ({"retention.ms": str(DAY_MS - 1)}, True),
        ({"retention.ms": None}, True),
        ({"retention.bytes": "100"}, True),
        ({"cleanup.policy": "compact,delete"}, True),
        ({"min.insync.replicas": "9"}, True),
        ({"max.message.bytes": None}, True),
        ({"message.timestamp.after.max.ms": "0"}, True),
    ],
)
def test_an_alteration_that_weakens_the_audit_is_refused(changed: dict[str, str | None], refused: bool) -> None:
    present = {name: str(value) for name, value in audit_topic_configs(of(SECURED)).items()}
    wanted = {name: value for name, value in (present | changed).items() if value is not None}
    reason = refused_alteration(present, wanted, DAY_MS)
    assert (reason is not None) is refused
    if reason is not None:
        assert next(iter(changed)) in reason
