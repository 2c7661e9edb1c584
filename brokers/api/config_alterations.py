"""What an alteration of a configuration does to it, and which ones are refused. Pure.

Source: KIP-133, KIP-339 (incremental).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from fleetlog.brokers.config import (
    BROKER_SETTINGS,
    CONSUMER_TIMES,
    LIVE_TOGETHER,
    BrokerConfig,
    ConfigError,
    TopicConfig,
    check_together,
)
from fleetlog.brokers.controller.requests import Refused, check_schemas, check_tiering
from fleetlog.brokers.groups.requests import ConsumerSettings
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.metadata.features import (
    SHARE_ORDER_LEVEL,
    SHARE_VERSION,
    TIERING_VERSION,
    TIERING_WAITS,
    TIERING_WAITS_LEVEL,
)
from fleetlog.brokers.setting_kinds import Setting, SettingType, resembling, suggest
from fleetlog.brokers.tls.dynamic_settings import of_tls, refused_change
from fleetlog.brokers.topic_config import CHECKED_TOGETHER, SCHEMA_SETTINGS
from fleetlog.wire.errors import ErrorCode

OF_LEVEL_2 = ("remote_log_copy_disable", "remote_copy_lag_ms", "remote_copy_lag_bytes")
"""What leaders of the first level of tiering do not heed."""

MISSPELT = 0.85
"""Likeness from which an unknown name of a broker's setting is taken for a misspelling."""

MAX_UNKNOWN = 100
"""Unknown names in a request that are compared with the known ones, which takes up to 2 ms each."""


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


class Unknown:
    """How many more unknown names of a request are compared with the known ones."""

    def __init__(self) -> None:
        self.left = MAX_UNKNOWN

    def take(self) -> bool:
        """Whether this one is."""
        self.left -= 1
        return self.left >= 0


def check_topic(present: Mapping[str, str], wanted: Mapping[str, str], base: TopicConfig) -> None:
    """Refuse settings of a topic that contradict each other or can't be changed any more: INVALID_CONFIG."""
    changed = {name for name in present.keys() | wanted.keys() if present.get(name) != wanted.get(name)}
    if changed.isdisjoint(CHECKED_TOGETHER) and not any(
        name.startswith("fleetlog.dedup") for name in (*present, *wanted)
    ):
        return
    before = present.get("fleetlog.dedup", base.fleetlog_dedup)
    try:
        after = TopicConfig.parse(wanted, base)
        if after.fleetlog_dedup != before:
            raise ConfigError(
                "fleetlog.dedup", after.fleetlog_dedup, f"is set when a topic is created, this one has {before}: "
                "create another topic",
            )  # fmt: skip
        after.check_together()
    except ConfigError as wrong:
        raise Refused(ErrorCode.INVALID_CONFIG, str(wrong)) from wrong


def check_schema_settings(
    name: str, present: Mapping[str, str], wanted: Mapping[str, str], base: TopicConfig, metadata: MetadataCache
) -> None:
    """Refuse that the topic begins to check schemas where that is not possible: INVALID_CONFIG."""
    if any(present.get(one) != wanted.get(one) for one in SCHEMA_SETTINGS):
        check_schemas(name, TopicConfig.parse(wanted, base), metadata.topics, metadata.features)


def check_tiering_settings(
    name: str, present: Mapping[str, str], wanted: Mapping[str, str], base: TopicConfig, features: Mapping[str, int]
) -> None:
    """Refuse that the topic begins to be tiered where that is not possible, or ends to be: INVALID_CONFIG."""
    before, after = (TopicConfig.parse(settings, base) for settings in (present, wanted))
    begins, finalized = after.tiers and not before.tiers, features.get(TIERING_VERSION, 0) >= 1
    flagged = after.remote_storage_enable and not before.remote_storage_enable
    if flagged or (begins and before.fleetlog_tiering_waits):
        check_tiering(name, after, features)
    elif begins and finalized:
        raise Refused(
            ErrorCode.INVALID_CONFIG, "the topic has remote.storage.enable from when it had no effect, and would begin"
            " to be tiered: delete that setting first, and set it again afterwards if it is meant",
        )  # fmt: skip
    elif after.tiers and finalized and any(getattr(before, one) != getattr(after, one) for one in OF_LEVEL_2):
        check_tiering(name, after, features)
    elif before.tiers and not after.tiers and finalized:
        _check_end(after, features)


def _check_end(after: TopicConfig, features: Mapping[str, int]) -> None:
    """Refuse that a topic is tiered no longer, unless what is in the bucket only is to be deleted."""
    if after.remote_storage_enable:
        why = "a topic that is tiered cannot be compacted, or wait: what is in the bucket only would be lost"
    elif not after.remote_log_delete_on_disable:
        why = (
            "what is in the bucket only would be lost. To keep it and copy no more, set remote.log.copy.disable=true;"
            " to delete it, set remote.storage.enable=false and remote.log.delete.on.disable=true"
        )
    elif features.get(TIERING_VERSION, 0) < TIERING_WAITS_LEVEL:
        level = f"{TIERING_VERSION}={TIERING_WAITS_LEVEL}"
        why = f"brokers of earlier versions would not delete what is in the bucket: fleetlog features upgrade {level}"
    else:
        return
    raise Refused(ErrorCode.INVALID_CONFIG, why)


def without_idle_mark(wanted: dict[str, str], base: TopicConfig) -> dict[str, str]:
    """A topic whose ``remote.storage.enable`` is taken away waits for nothing any more."""
    if TIERING_WAITS in wanted and not TopicConfig.parse(wanted, base).remote_storage_enable:
        del wanted[TIERING_WAITS]
    return wanted


def check_broker_settings(
    present: Mapping[str, str], wanted: Mapping[str, str], broker: Callable[[], BrokerConfig]
) -> None:
    """Refuse settings with which a broker would not start: INVALID_CONFIG. ``broker`` tells what all would be then."""
    changed = {name for name in present.keys() | wanted.keys() if present.get(name) != wanted.get(name)}
    if changed.isdisjoint(LIVE_TOGETHER):
        return  # what was stored before is no reason to refuse another setting
    try:
        check_together(broker())
    except ConfigError as wrong:
        raise Refused(ErrorCode.INVALID_CONFIG, str(wrong)) from wrong


def check_group_settings(
    present: Mapping[str, str], wanted: Mapping[str, str], broker: BrokerConfig, features: Mapping[str, int]
) -> None:
    """Refuse a group's times outside the brokers' bounds, in Kafka's words, and what older leaders ignore."""
    changed = {name for name, value in wanted.items() if present.get(name) != value}
    newer = sorted(name for name in changed if name.startswith("fleetlog.share."))
    if newer and features.get(SHARE_VERSION, 0) < SHARE_ORDER_LEVEL:
        raise Refused(
            ErrorCode.INVALID_CONFIG, f"{newer[0]} needs {SHARE_VERSION} {SHARE_ORDER_LEVEL}, which brokers of earlier "
            f"versions do not know: fleetlog features upgrade {SHARE_VERSION}={SHARE_ORDER_LEVEL}.",
        )  # fmt: skip
    for time in CONSUMER_TIMES:
        name, (low, high) = f"consumer.{time}", ConsumerSettings.bounds(broker, time)
        if name in changed and not low <= int(wanted[name]) <= high:
            raise Refused(ErrorCode.INVALID_CONFIG, f"{name} must be in the range {low} to {high} inclusive.")
    session, heartbeat = (f"consumer.{name}" for name in CONSUMER_TIMES[:2])
    times = ConsumerSettings.of(broker, wanted)
    if not changed.isdisjoint((session, heartbeat)) and times.session_timeout_ms <= times.heartbeat_interval_ms:
        raise Refused(ErrorCode.INVALID_CONFIG, f"{session} must be greater than {heartbeat}")


def check_internal_topic(topic: str, present: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuse what makes an internal topic lose offsets or transactions; back to what it was made with is no harm."""
    for name, safe in (("cleanup.policy", "compact"), ("retention.ms", None), ("retention.bytes", None)):
        value = wanted.get(name)
        if value not in {present.get(name), safe}:
            what = "unset" if value is None else value
            raise Refused(
                ErrorCode.POLICY_VIOLATION, f"{name} of the internal topic {topic} must not become {what}: what groups "
                "and producers committed would be lost. The brokers' setting internal.topics.alter.enable permits it.",
            )  # fmt: skip


def setting_of(
    alteration: Alteration,
    table: Mapping[str, Setting],
    resource: Resource,
    unknown: Unknown,
    *,
    of_all_brokers: bool = False,
) -> Setting | None:
    """What an alteration sets, None if it deletes; raises Refused for what can't be, whatever is set now. Pure."""
    name, operation, value = alteration
    if operation == Operation.DELETE:
        return None  # an unknown setting may be deleted
    row = table.get(name)
    if resource is Resource.BROKER and of_tls(name):
        row = _of_tls(name, of_all_brokers)
    elif row is None:
        row = _unknown(name, table, resource, unknown)
    elif resource is Resource.BROKER and not row.live:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Cannot update these configs dynamically: {name}")
    if value is None:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
    match operation:
        case Operation.SET:
            _check(row, value)
        case Operation.APPEND | Operation.SUBTRACT:
            _check_list(row, operation)
        case _:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Unknown operation {operation} for {name}")
    return row


def altered(
    present: Mapping[str, str],
    alterations: Sequence[Alteration],
    settings: Mapping[str, Setting],
    defaults: Mapping[str, str],
) -> dict[str, str]:
    """The configuration after the alterations, with what :func:`setting_of` says of each; raises Refused. Pure."""
    wanted = dict(present)
    for name, operation, value in alterations:
        if operation == Operation.DELETE or value is None:
            wanted.pop(name, None)
        elif operation == Operation.SET:
            wanted[name] = value
        else:
            wanted[name] = _listed(wanted.get(name, defaults.get(name, "")), operation, value)
            _check(settings[name], wanted[name])
    return wanted


def _check(row: Setting, value: str) -> None:
    try:
        row.parse(value)
    except ConfigError as problem:
        raise Refused(ErrorCode.INVALID_CONFIG, str(problem)) from problem


def _unknown(name: str, table: Mapping[str, Setting], resource: Resource, unknown: Unknown) -> Setting:
    """A setting that is not ours: only a broker takes it, as Kafka does for plugins; a misspelt one is refused."""
    compared = unknown.take()
    if resource is not Resource.BROKER:
        hint = suggest(name, table) if compared else ""
        raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown configuration '{name[:100]}'{hint or '.'}")
    if not compared:
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"More than {MAX_UNKNOWN} unknown configurations; set them in several requests."
        )
    meant = resembling(name, table, MISSPELT)
    if meant is not None:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown configuration '{name[:100]}'; did you mean {meant}?")
    return Setting(name, SettingType.STRING, None, "No setting of fleetlog.", live=True, inert=True)


def _of_tls(name: str, of_all_brokers: bool) -> Setting:
    refused = refused_change(name, of_all_brokers=of_all_brokers)
    if refused is not None:
        raise Refused(ErrorCode.INVALID_CONFIG, refused)
    return BROKER_SETTINGS[of_tls(name)]._replace(name=name, inert=False)


def _check_list(row: Setting, operation: int) -> None:
    if row.type is not SettingType.LIST:
        verb = "append" if operation == Operation.APPEND else "subtract"
        raise Refused(ErrorCode.INVALID_CONFIG, f"Config value {verb} is not allowed for config key: {row.name}")


def _listed(present: str, operation: int, value: str) -> str:
    items = [item.strip() for item in present.split(",") if item.strip()]
    given = [item.strip() for item in value.split(",") if item.strip()]
    if operation == Operation.APPEND:
        have = set(items)
        return ",".join([*items, *(item for item in given if item not in have)])
    gone = set(given)
    return ",".join(item for item in items if item not in gone)
