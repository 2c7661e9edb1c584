"""What the settings say about the audit topic: what is recorded, how the topic is made, and what it must keep.

Audit that is configured by half ends the start: without an authorizer anyone could write the topic, and without a login
the brokers could not be told from their clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fleetlog.brokers.acls.settings import AuthorizerSettings, inter_broker_principal
from fleetlog.brokers.audit.events import AuditSettings, EventType, OnFull
from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.logins.principals import ANONYMOUS, BadPrincipal, parse_super_users
from fleetlog.brokers.setting_kinds import ConfigError

BATCH_BYTES: Final = 256 * 1024
"""About the most that is written at once."""
MAX_MESSAGE_BYTES: Final = 1_048_588
_RETENTION_MS: Final = "retention.ms"
_ALTERABLE: Final = frozenset({
    _RETENTION_MS, "compression.type", "flush.messages", "flush.ms", "segment.bytes", "segment.ms", "segment.jitter.ms",
    "leader.replication.throttled.replicas", "follower.replication.throttled.replicas",
})  # fmt: skip
"""What may change without events being lost or refused."""


def audit_settings(config: BrokerConfig) -> AuditSettings | None:
    """What is recorded; None: nothing. Raises ConfigError."""
    if not config.audit_enable:
        return None
    name = "audit.enable"
    if AuthorizerSettings.of(config) is None:
        allowed = "needs an authorizer, else every client could write the topic: set authorizer.class.name"
        raise ConfigError(name, "true", allowed)
    if inter_broker_principal(config) == str(ANONYMOUS):
        allowed = (
            "needs brokers that log in at each other, else a client could pass for one: use a listener with SASL "
            "among them (inter.broker.listener.name)"
        )
        raise ConfigError(name, "true", allowed)
    try:
        excluded = parse_super_users(config.audit_excluded_principals)
    except BadPrincipal as error:
        raise ConfigError("audit.excluded.principals", config.audit_excluded_principals, str(error)) from None
    return AuditSettings(
        types=frozenset(EventType(one) for one in config.audit_event_types),
        on_full=OnFull(config.audit_on_full),
        excluded_principals=excluded,
        excluded_topics=frozenset(config.audit_excluded_topics),
        queue_bytes_max=config.audit_queue_max_bytes,
    )


def audit_topic_configs(config: BrokerConfig) -> dict[str, str | None]:
    """The settings that the audit topic is made with: none of a broker's defaults can make it lose an event."""
    return {
        "cleanup.policy": "delete",
        _RETENTION_MS: str(config.audit_topic_retention_ms),
        "retention.bytes": "-1",
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
        "min.insync.replicas": str(min(2, config.audit_topic_replication_factor)),
        "unclean.leader.election.enable": "false",
    }


def refused_alteration(present: Mapping[str, str], wanted: Mapping[str, str], retention_ms: int) -> str | None:
    """Why the audit topic's settings cannot become ``wanted``; None if they can.

    ``retention_ms`` is the least time that the broker's settings let the topic keep an event.
    """
    for name in sorted(present.keys() | wanted.keys()):
        value = wanted.get(name)
        if value == present.get(name):
            continue
        if name not in _ALTERABLE:
            return f"{name} of the audit topic cannot be altered: events could be lost."
        if name == _RETENTION_MS and (value is None or 0 <= int(value) < retention_ms):
            return f"{name} of the audit topic must be at least audit.topic.retention.ms ({retention_ms}), or -1."
    return None
