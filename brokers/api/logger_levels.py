"""The resource BROKER_LOGGER of DescribeConfigs and IncrementalAlterConfigs: levels of this broker's loggers.

They are this process's own: clients send such a request to the broker that it names. A request's resource is checked
as a whole before its first level changes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fleetlog.brokers.api.base import Context
from fleetlog.brokers.api.config_alterations import Alteration, Operation
from fleetlog.brokers.api.config_values import ConfigEntry, Source
from fleetlog.brokers.controller.requests import Refused
from fleetlog.brokers.log_levels import (
    NotALevel,
    WrongLoggerRequest,
    change,
    check_delete,
    check_named_broker,
    check_set,
    loggers,
)
from fleetlog.brokers.setting_kinds import SettingType
from fleetlog.wire.errors import ErrorCode

log = logging.getLogger(__name__)


def logger_entries(name: str, broker_id: int) -> list[ConfigEntry]:
    """All loggers of the broker with the levels in force, sorted by name; raises Refused for another broker's."""
    try:
        check_named_broker(name, broker_id)
    except WrongLoggerRequest as problem:
        raise Refused(ErrorCode.INVALID_REQUEST, str(problem)) from problem
    doc = "The level from which this logger writes."
    source = Source.DYNAMIC_BROKER_LOGGER_CONFIG
    return [
        ConfigEntry(logger, level, source, False, False, SettingType.STRING, doc, ())
        for logger, level in sorted(loggers().items())
    ]


def alter_levels(name: str, alterations: Sequence[Alteration], context: Context, *, validate_only: bool) -> None:
    """Change levels as an incremental request says. Raises Refused before anything is changed."""
    broker_id = context.services.config.broker_id
    try:
        check_named_broker(name, broker_id)
        levels = [(one.name, _level(one)) for one in alterations]
    except NotALevel as problem:
        raise Refused(ErrorCode.INVALID_CONFIG, str(problem)) from problem
    except WrongLoggerRequest as problem:
        raise Refused(ErrorCode.INVALID_REQUEST, str(problem)) from problem
    if validate_only:
        return
    change(levels)
    context.services.access.levels_changed()
    for logger, level in levels:
        log.warning("level of %s: %s, by %s", logger, level or "that above it", context.connection.principal)


def _level(alteration: Alteration) -> str | None:
    name, operation, level = alteration
    match operation:
        case Operation.SET:
            check_set(name, level or "")
            return level
        case Operation.DELETE:
            check_delete(name)
            return None
        case Operation.APPEND | Operation.SUBTRACT:
            verb = Operation(operation).name
            raise WrongLoggerRequest(f"{verb} operation is not allowed for the BROKER_LOGGER resource")
    raise WrongLoggerRequest(f"Unknown operation type {operation} is not allowed for the BROKER_LOGGER resource")
