"""How a broker's settings are read, and checked against each other; ``brokers.broker_config`` declares them.

Sources in rising order: the table's defaults, the properties file, the environment (``FLEETLOG_CONFIG_LOG_DIRS``), the
command line (``--override log.dirs=...``). An unknown name or a wrong value stops the start and says what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fleetlog.brokers.broker_config import BROKER_SETTINGS, FALLBACKS, LISTENER_PREFIX, BrokerConfig, broker_setting
from fleetlog.brokers.inert_settings import KAFKA_BROKER_SETTINGS
from fleetlog.brokers.properties import parse_properties
from fleetlog.brokers.setting_kinds import ConfigError, Setting, SettingType, attribute, suggest
from fleetlog.brokers.topic_config import TOPIC_SETTINGS, TopicConfig
from fleetlog.coordination.connect import CannotConnect, parse_connect

__all__ = [
    "BROKER_SETTINGS",
    "ENVIRONMENT_PREFIX",
    "FALLBACKS",
    "LISTENER_PREFIX",
    "TOPIC_SETTINGS",
    "BrokerConfig",
    "ConfigError",
    "Setting",
    "SettingType",
    "TopicConfig",
    "broker_setting",
    "load_config",
    "parse_properties",
]

ENVIRONMENT_PREFIX = "FLEETLOG_CONFIG_"


KRAFT_ONLY = ("process.roles", "controller.quorum.voters", "controller.quorum.bootstrap.servers")
"""What a file for Kafka without ZooKeeper has."""


def load_config(
    text: str = "",
    source: str = "<none>",
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """A complete, checked configuration; raises ConfigError with the place, the value and what is allowed."""
    entries = parse_properties(text, source)
    for variable, value in (environment or {}).items():
        if variable.startswith(ENVIRONMENT_PREFIX):
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
            entries[name] = (value, f"environment variable {variable}")
    for name, value in (overrides or {}).items():
        entries[name] = (value, "--override")
    values: dict[str, Any] = {}
    for name, (value, where) in entries.items():
        try:
            row = broker_setting(name)
        except LookupError:
            known = "is no setting of a broker" + suggest(name, BROKER_SETTINGS)
            raise ConfigError(name, value, known, where) from None
        if row is not None:
            parsed = row.parse(value, where)
            if name not in KAFKA_BROKER_SETTINGS:
                values[attribute(name)] = parsed
    _take_synonyms(values, entries)
    config = BrokerConfig(**values, given=tuple((name, value) for name, (value, _) in entries.items()))
    try:
        _check_whole(config)
    except ConfigError as error:
        where = entries[error.name][1] if error.name in entries else source
        raise ConfigError(error.name, error.value, error.allowed, where) from None
    return config


def _take_synonyms(values: dict[str, Any], entries: Mapping[str, tuple[str, str]]) -> None:
    """KRaft's ``node.id`` counts as ``broker.id``, ``log.dir`` where ``log.dirs`` is not given."""
    if "node.id" in entries:
        text, where = entries["node.id"]
        if values.setdefault("broker_id", int(text)) != int(text):
            raise ConfigError("node.id", text, f"must be the same as broker.id ({values['broker_id']})", where)
    if values.get("log_dir") is not None and "log_dirs" not in values:
        values["log_dirs"] = BROKER_SETTINGS["log.dirs"].parse(values["log_dir"], entries["log.dir"][1])


def _check_whole(config: BrokerConfig) -> None:
    """The values against each other: a configuration that would lose data or hang later is refused now."""
    if config.broker_id < 0:
        raise ConfigError("broker.id", "", "is required: an id that no other broker of the fleet has")
    if not config.zookeeper_connect:
        _check_not_kraft(dict(config.given))
        raise ConfigError("zookeeper.connect", "", "is required: host:port[,host:port...][/chroot]")
    try:
        parse_connect(config.zookeeper_connect)
    except CannotConnect as error:
        reason = str(error).partition(": ")[2]
        raise ConfigError("zookeeper.connect", config.zookeeper_connect, reason) from None
    if not config.log_dirs:
        raise ConfigError("log.dirs", "", "is required: at least one directory")
    if len({path.rstrip("/") for path in config.log_dirs}) < len(config.log_dirs):
        raise ConfigError("log.dirs", ",".join(config.log_dirs), "must name each directory once")
    _check_listeners(config)
    _check_together(config)
    if config.zookeeper_session_timeout_ms >= config.replica_lag_time_max_ms:
        raise ConfigError(
            "zookeeper.session.timeout.ms", str(config.zookeeper_session_timeout_ms),
            f"must be below replica.lag.time.max.ms ({config.replica_lag_time_max_ms}), "
            "else a dead leader could become the whole in-sync set",
        )  # fmt: skip
    if config.message_max_bytes > config.socket_request_max_bytes:
        raise ConfigError(
            "message.max.bytes", str(config.message_max_bytes),
            f"must not pass socket.request.max.bytes ({config.socket_request_max_bytes}): a Produce with such a batch "
            "would be refused before it is read; raise socket.request.max.bytes, too",
        )  # fmt: skip


def _check_together(config: BrokerConfig) -> None:
    """What Kafka's brokers check across those settings that have an effect here. Raises ConfigError."""
    kept = (
        ("ms", config.log_retention_ms),
        ("minutes", config.log_retention_minutes),
        ("hours", config.log_retention_hours),
    )
    unit, retention = next((unit, value) for unit, value in kept if value is not None)
    if retention == 0:
        raise ConfigError(f"log.retention.{unit}", "0", "must be at least 1, or -1 for ever")
    lag, idle = config.replica_lag_time_max_ms, config.connections_max_idle_ms
    if config.replica_fetch_wait_max_ms > lag:
        reason = f"must not pass replica.lag.time.max.ms ({lag}), else followers that wait leave the in-sync set"
        raise ConfigError("replica.fetch.wait.max.ms", str(config.replica_fetch_wait_max_ms), reason)
    if config.connection_failed_authentication_delay_ms >= idle:
        name, reason = "connection.failed.authentication.delay.ms", f"must be below connections.max.idle.ms ({idle})"
        raise ConfigError(name, str(config.connection_failed_authentication_delay_ms), reason)
    if config.max_connections_per_ip == 0 and not config.max_connections_per_ip_overrides:
        raise ConfigError("max.connections.per.ip", "0", "shuts out every client: name some in its .overrides")


def _check_not_kraft(given: Mapping[str, str]) -> None:
    """Say of a file for Kafka without ZooKeeper what it lacks. Raises ConfigError."""
    name = next((name for name in KRAFT_ONLY if name in given), None)
    if name is not None:
        raise ConfigError(
            name, given[name], "is of Kafka in KRaft mode. Here brokers coordinate by ZooKeeper, and each can be the "
            "controller: add zookeeper.connect=host:port[,host:port...][/chroot] to this file (a local one comes with "
            "`fleetlog dev up`); what is KRaft's may stay, without effect",
        )  # fmt: skip


def _check_listeners(config: BrokerConfig) -> None:
    for pair in config.listener_security_protocol_map:
        if re.fullmatch(r"[^:]+:[^:]+", pair) is None:
            listed = ",".join(config.listener_security_protocol_map)
            raise ConfigError("listener.security.protocol.map", listed, f"{pair!r} must be NAME:PROTOCOL")
    endpoints = config.listener_endpoints()
    listed, names = ",".join(config.listeners), [endpoint.listener for endpoint in endpoints]
    if not names or len(set(names)) != len(names):
        raise ConfigError("listeners", listed, "must name each listener once")
    taken = {(endpoint.host, endpoint.port) for endpoint in endpoints if endpoint.port}
    if len(taken) < sum(endpoint.port > 0 for endpoint in endpoints):
        raise ConfigError("listeners", listed, "must name each address once")
    if config.admin_listener and config.admin_endpoint() in taken:
        raise ConfigError("admin.listener", config.admin_listener, "is an address of listeners; choose another port")
    advertised = "advertised.listeners" if config.advertised_listeners else "listeners"
    for endpoint in config.advertised_endpoints():
        if endpoint.listener not in names:
            raise ConfigError(advertised, endpoint.listener, f"is none of listeners: {', '.join(names)}")
        if endpoint.host in ("0.0.0.0", "::", ""):
            raise ConfigError(advertised, endpoint.host, "no client can connect to that: set advertised.listeners")
    if "security.inter.broker.protocol" in dict(config.given):
        _check_inter_broker_protocol(config)
    if config.inter_broker_listener() not in names:
        raise ConfigError(
            "inter.broker.listener.name", config.inter_broker_listener_name, f"must be one of {', '.join(names)}"
        )


def _check_inter_broker_protocol(config: BrokerConfig) -> None:
    name, protocol = "security.inter.broker.protocol", config.security_inter_broker_protocol
    if config.inter_broker_listener_name:
        raise ConfigError(name, protocol, "stands beside inter.broker.listener.name: remove one of both")
    if not config.inter_broker_listener():
        raise ConfigError(name, protocol, "is the security protocol of none of listeners: add one, or set another")
