"""Every setting of a topic, broker or group with its value and its origin, as DescribeConfigs tells it. Pure.

Source: KIP-226 (sources and synonyms), KIP-569 (types and documentation).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from brokers.cluster.view import ClusterView
from brokers.cluster.znodes import CONFIG_BROKERS, DEFAULT_ENTITY
from brokers.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig
from brokers.settings import Setting, SettingType, attribute


def _group(kind: SettingType, name: str, default: object, doc: str, **bounds: Any) -> Setting:
    return Setting(name, kind, default, doc, live=True, **bounds)


_GROUP_ROWS = (
    _group(SettingType.INT, "consumer.session.timeout.ms", 45_000, "Session timeout of consumers (KIP-848).", low=1),
    _group(SettingType.INT, "consumer.heartbeat.interval.ms", 5_000, "Heartbeats of consumers (KIP-848).", low=1),
    _group(SettingType.INT, "share.session.timeout.ms", 45_000, "Session timeout of share consumers.", low=1),
    _group(SettingType.INT, "share.heartbeat.interval.ms", 5_000, "Heartbeats of share consumers.", low=1),
    _group(SettingType.INT, "share.record.lock.duration.ms", 30_000, "How long a record stays acquired.", low=1_000),
    _group(SettingType.STRING, "share.auto.offset.reset", "latest", "Where a new share group starts."),
    _group(
        SettingType.STRING, "share.isolation.level", "read_uncommitted", "What share consumers see of transactions.",
        choices=("read_committed", "read_uncommitted"),
    ),
    _group(SettingType.INT, "streams.session.timeout.ms", 45_000, "Session timeout of streams members.", low=1),
    _group(SettingType.INT, "streams.heartbeat.interval.ms", 5_000, "Heartbeats of streams members.", low=1),
    _group(SettingType.INT, "streams.num.standby.replicas", 0, "Standby tasks of a streams group.", low=0),
)  # fmt: skip
GROUP_SETTINGS: dict[str, Setting] = {row.name: row for row in _GROUP_ROWS}
"""Settings of a group, as Kafka 4.1 has them: stored and told; those of protocols that aren't here do nothing yet."""


class Source(IntEnum):
    """Where a value comes from, numbered as on the wire."""

    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class Synonym(NamedTuple):
    """One place that gives (or would give) the value; the first in a list is the one that counts."""

    name: str
    value: str | None
    source: Source


class ConfigEntry(NamedTuple):
    """One setting of one resource."""

    name: str
    value: str | None
    source: Source
    read_only: bool
    sensitive: bool
    type: SettingType
    doc: str
    synonyms: tuple[Synonym, ...]


def topic_entries(overrides: Mapping[str, str], view: ClusterView) -> list[ConfigEntry]:
    """All settings of a topic with those overrides, sorted by name."""
    return [_topic_entry(row, overrides, view) for _, row in sorted(TOPIC_SETTINGS.items())]


def _topic_entry(row: Setting, overrides: Mapping[str, str], view: ClusterView) -> ConfigEntry:
    synonyms = []
    if row.name in overrides:
        synonyms.append(Synonym(row.name, overrides[row.name], Source.TOPIC_CONFIG))
    if row.synonym:
        synonyms += _broker_synonyms(BROKER_SETTINGS[row.synonym], view, str(view.static.broker_id))
    else:
        synonyms.append(Synonym(row.name, row.format(row.default), Source.DEFAULT_CONFIG))
    return _entry(row, synonyms, read_only=False)


def broker_entries(broker_id: int, view: ClusterView) -> list[ConfigEntry]:
    """All settings of this broker, sorted by name; its static ones are known to itself only."""
    return [
        _entry(row, _broker_synonyms(row, view, str(broker_id)), read_only=not row.live)
        for _, row in sorted(BROKER_SETTINGS.items())
    ]


def default_broker_entries(view: ClusterView) -> list[ConfigEntry]:
    """The cluster-wide dynamic settings: only those that are set."""
    entries = []
    for name, value in sorted(view.dynamic_config(CONFIG_BROKERS, DEFAULT_ENTITY).items()):
        row = BROKER_SETTINGS.get(name)
        if row is not None:
            entries.append(
                _entry(row, [Synonym(name, value, Source.DYNAMIC_DEFAULT_BROKER_CONFIG)], read_only=not row.live)
            )
    return entries


def group_entries(stored: Mapping[str, str]) -> list[ConfigEntry]:
    """All settings of a group, sorted by name; groups need not exist to have some."""
    entries = []
    for name, row in sorted(GROUP_SETTINGS.items()):
        synonyms = [Synonym(name, row.format(row.default), Source.DEFAULT_CONFIG)]
        if name in stored:
            synonyms.insert(0, Synonym(name, stored[name], Source.GROUP_CONFIG))
        entries.append(_entry(row, synonyms, read_only=False))
    return entries


def _broker_synonyms(row: Setting, view: ClusterView, broker_id: str) -> list[Synonym]:
    found = []
    own = view.dynamic_config(CONFIG_BROKERS, broker_id)
    shared = view.dynamic_config(CONFIG_BROKERS, DEFAULT_ENTITY)
    if row.live and row.name in own:
        found.append(Synonym(row.name, own[row.name], Source.DYNAMIC_BROKER_CONFIG))
    if row.live and row.name in shared:
        found.append(Synonym(row.name, shared[row.name], Source.DYNAMIC_DEFAULT_BROKER_CONFIG))
    static = static_value(row, view.static)
    if static is not None and static != row.format(row.default):
        found.append(Synonym(row.name, static, Source.STATIC_BROKER_CONFIG))
    found.append(Synonym(row.name, row.format(row.default), Source.DEFAULT_CONFIG))
    return found


def static_value(row: Setting, config: BrokerConfig) -> str | None:
    """The value in the broker's own configuration."""
    return row.format(getattr(config, attribute(row.name)))


def _entry(row: Setting, synonyms: list[Synonym], *, read_only: bool) -> ConfigEntry:
    sensitive = row.type is SettingType.PASSWORD
    if sensitive:
        synonyms = [synonym._replace(value=None) for synonym in synonyms]
    first = synonyms[0]
    return ConfigEntry(row.name, first.value, first.source, read_only, sensitive, row.type, row.doc, tuple(synonyms))
