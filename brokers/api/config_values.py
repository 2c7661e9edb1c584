"""Every setting of a topic, broker or group with its value and its origin, as DescribeConfigs tells it. Pure.

Source: KIP-226 (sources and synonyms), KIP-569 (types and documentation).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from fleetlog.brokers.config import BROKER_SETTINGS, FALLBACKS, TOPIC_SETTINGS, BrokerConfig, TopicConfig
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.metadata.znodes import CONFIG_BROKERS, DEFAULT_ENTITY
from fleetlog.brokers.setting_kinds import Setting, SettingType, attribute
from fleetlog.brokers.tls.dynamic_settings import of_tls


def _group(kind: SettingType, name: str, default: object, doc: str, **bounds: Any) -> Setting:
    return Setting(name, kind, default, doc, live=True, **bounds)


_GROUP_ROWS = (
    _group(SettingType.INT, "consumer.session.timeout.ms", 45_000, "Session timeout of consumers (KIP-848).", low=1),
    _group(SettingType.INT, "consumer.heartbeat.interval.ms", 5_000, "Heartbeats of consumers (KIP-848).", low=1),
    _group(SettingType.INT, "consumer.assignment.interval.ms", 1_000, "Time between two assignments.", low=0),
    _group(
        SettingType.BOOLEAN, "errors.deadletterqueue.copy.record.enable", False, "Whether a dead letter has the record."
    ),
    _group(SettingType.STRING, "errors.deadletterqueue.topic.name", "", "The topic of a share group's dead letters."),
    _group(
        SettingType.LONG, "fleetlog.share.delay.max.ms", 0,
        "How far ahead the time may be from which on a record says that it is given out; 0: it is not looked at.",
        low=0, high=31_536_000_000,
    ),
    _group(
        SettingType.STRING, "fleetlog.share.order", "none",
        "With key no record of a share group overtakes another of its key.", choices=("none", "key"),
    ),
    _group(
        SettingType.STRING, "fleetlog.share.poison.key", "none",
        "With dlq what is behind a dead letter of its key becomes one, too, where a share group has an order by key.",
        choices=("none", "dlq"),
    ),
    _group(
        SettingType.INT, "fleetlog.share.retry.backoff.ms", 0,
        "How long a record that is given back waits before it is tried again; twice as long each time after.",
        low=0, high=86_400_000,
    ),
    _group(
        SettingType.INT, "fleetlog.share.retry.backoff.max.ms", 60_000, "The longest of these waits.",
        low=0, high=86_400_000,
    ),
    _group(SettingType.INT, "share.session.timeout.ms", 45_000, "Session timeout of share consumers.", low=1),
    _group(SettingType.INT, "share.heartbeat.interval.ms", 5_000, "Heartbeats of share consumers.", low=1),
    _group(SettingType.INT, "share.record.lock.duration.ms", 30_000, "How long a record stays acquired.", low=1_000),
    _group(SettingType.INT, "share.assignment.interval.ms", 1_000, "Time between two assignments.", low=0),
    _group(SettingType.INT, "share.delivery.count.limit", 5, "Deliveries of a record at most.", low=2),
    _group(SettingType.INT, "share.partition.max.record.locks", 2_000, "Records in flight at most.", low=100),
    _group(SettingType.BOOLEAN, "share.renew.acknowledge.enable", True, "Whether a lock may be renewed."),
    _group(SettingType.STRING, "share.auto.offset.reset", "latest", "Where a new share group starts."),
    _group(
        SettingType.STRING, "share.isolation.level", "read_uncommitted", "What share consumers see of transactions.",
        choices=("read_committed", "read_uncommitted"),
    ),
    _group(SettingType.INT, "streams.session.timeout.ms", 45_000, "Session timeout of streams members.", low=1),
    _group(SettingType.INT, "streams.heartbeat.interval.ms", 5_000, "Heartbeats of streams members.", low=1),
    _group(SettingType.INT, "streams.assignment.interval.ms", 1_000, "Time between two assignments.", low=0),
    _group(SettingType.STRING, "streams.assignor.name", None, "The assignor of a streams group."),
    _group(SettingType.INT, "streams.initial.rebalance.delay.ms", 3_000, "How long the first members wait.", low=0),
    _group(SettingType.LIST, "streams.rack.aware.assignment.tags", (), "Tags that keep standby tasks apart."),
    _group(SettingType.INT, "streams.num.standby.replicas", 0, "Standby tasks of a streams group.", low=0),
)  # fmt: skip
GROUP_SETTINGS: dict[str, Setting] = {row.name: row for row in _GROUP_ROWS}
"""Settings of a group, as in Kafka 4.4: stored and described; those of protocols that aren't here do nothing yet."""


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


def topic_entries(overrides: Mapping[str, str], metadata: MetadataCache) -> list[ConfigEntry]:
    """All settings of a topic with those overrides, sorted by name."""
    base = metadata.effective.topic_defaults()
    return [
        _topic_entry(row, overrides, base, metadata)
        for _, row in sorted(TOPIC_SETTINGS.items())
        if not row.retired or row.name in overrides
    ]


def _topic_entry(row: Setting, overrides: Mapping[str, str], base: TopicConfig, metadata: MetadataCache) -> ConfigEntry:
    synonyms = broker_synonyms(BROKER_SETTINGS[row.synonym], metadata) if row.synonym else []
    if row.name in overrides:
        synonyms.insert(0, Synonym(row.name, overrides[row.name], Source.TOPIC_CONFIG))
    value = synonyms[0].value if synonyms else row.format(getattr(base, attribute(row.name), row.default))
    return _entry(row, value, synonyms, read_only=False)


def broker_entries(broker_id: int, metadata: MetadataCache) -> list[ConfigEntry]:
    """All settings of this broker, sorted by name; its static ones are known to itself only."""
    given = dict(metadata.static.given)
    own = metadata.dynamic_config(CONFIG_BROKERS, str(broker_id))
    entries = []
    for name, row in sorted(BROKER_SETTINGS.items()):
        if not row.retired or name in given or name in own:
            synonyms = broker_synonyms(row, metadata)
            value = synonyms[0].value if synonyms else static_value(row, metadata.static)
            entries.append(_entry(row, value, synonyms, read_only=not row.live))
    return entries + [
        _foreign_entry(name, value, Source.DYNAMIC_BROKER_CONFIG)
        for name, value in sorted(own.items())
        if name not in BROKER_SETTINGS
    ]


def default_broker_entries(metadata: MetadataCache) -> list[ConfigEntry]:
    """The cluster-wide dynamic settings: only those that are set."""
    entries = []
    source = Source.DYNAMIC_DEFAULT_BROKER_CONFIG
    for name, value in sorted(metadata.dynamic_config(CONFIG_BROKERS, DEFAULT_ENTITY).items()):
        row = BROKER_SETTINGS.get(name)
        if row is None:
            entries.append(_foreign_entry(name, value, source))
        else:
            entries.append(_entry(row, value, [Synonym(name, value, source)], read_only=not row.live))
    return entries


def _foreign_entry(name: str, value: str, source: Source) -> ConfigEntry:
    """A setting of one listener, or a broker's that is not ours: Kafka does not know what a plugin's setting holds."""
    synonyms = [Synonym(name, value, source)]
    known = BROKER_SETTINGS.get(of_tls(name))
    if known is not None:
        return _entry(known._replace(name=name), value, synonyms, read_only=False)
    row = Setting(name, SettingType.UNKNOWN, None, "")
    return _entry(row, value, synonyms, read_only=False, sensitive=True)


def group_entries(stored: Mapping[str, str], metadata: MetadataCache) -> list[ConfigEntry]:
    """All settings of a group, sorted by name; groups need not exist to have some. The broker's are their synonyms."""
    entries = []
    for name, row in sorted(GROUP_SETTINGS.items()):
        broker = BROKER_SETTINGS.get(f"group.{name}")
        synonyms = broker_synonyms(broker, metadata) if broker is not None else []
        synonyms = synonyms or [Synonym(name, row.format(row.default), Source.DEFAULT_CONFIG)]
        if name in stored:
            synonyms.insert(0, Synonym(name, stored[name], Source.GROUP_CONFIG))
        entries.append(_entry(row, synonyms[0].value, synonyms, read_only=False))
    return entries


def broker_synonyms(row: Setting, metadata: MetadataCache) -> list[Synonym]:
    """The places that give a broker's setting its value, the one that counts first.

    As in Kafka 4.1, a setting in milliseconds has those of its FALLBACKS behind it, and no synonyms where it is
    not set itself; a default of null is no synonym.
    """
    names = next((family for family in _FAMILIES if row.name in family), (row.name,))
    own = metadata.dynamic_config(CONFIG_BROKERS, str(metadata.static.broker_id))
    shared = metadata.dynamic_config(CONFIG_BROKERS, DEFAULT_ENTITY)
    given = dict(metadata.static.given)
    rows = [BROKER_SETTINGS[name] for name in names]
    dynamic = ((own, Source.DYNAMIC_BROKER_CONFIG), (shared, Source.DYNAMIC_DEFAULT_BROKER_CONFIG))
    live = [r.name for r in rows if r.live]
    synonyms = [Synonym(name, of[name], source) for of, source in dynamic for name in live if name in of]
    for r in rows:
        value = static_value(r, metadata.static)
        if value is not None and (r.name in given or value != r.format(r.default)):
            synonyms.append(Synonym(r.name, value, Source.STATIC_BROKER_CONFIG))
    for r in rows:
        default = r.format(r.default)
        if default is not None:
            synonyms.append(Synonym(r.name, default, Source.DEFAULT_CONFIG))
    own_name = next((index for index, synonym in enumerate(synonyms) if synonym.name == row.name), len(synonyms))
    return synonyms[own_name:]


_FAMILIES = tuple(
    (first, *(name for name, _ in others)) for first, others in FALLBACKS.items() if first != "log.flush.interval.ms"
)


def static_value(row: Setting, config: BrokerConfig) -> str | None:
    """The value in the broker's own configuration."""
    if row.name == "node.id":
        return str(config.broker_id)
    held = attribute(row.name)
    if hasattr(config, held):
        return row.format(getattr(config, held))
    text = dict(config.given).get(row.name)
    return row.format(row.default if text is None else row.parse(text))


def _entry(
    row: Setting, value: str | None, synonyms: list[Synonym], *, read_only: bool, sensitive: bool = False
) -> ConfigEntry:
    sensitive = sensitive or row.type is SettingType.PASSWORD
    if sensitive:
        value = None
        synonyms = [synonym._replace(value=None) for synonym in synonyms]
    source = synonyms[0].source if synonyms else Source.DEFAULT_CONFIG
    kind = row.shown_as or row.type
    return ConfigEntry(row.name, value, source, read_only, sensitive, kind, row.doc, tuple(synonyms))
