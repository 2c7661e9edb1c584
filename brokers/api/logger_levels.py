"""The resource BROKER_LOGGER of DescribeConfigs and IncrementalAlterConfigs: levels of this broker's loggers.

They are this process's own: clients send such a request to the broker that it names. A request's resource is checked
as a whole before its first level changes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from fleetlog.brokers.api.base import Context
from fleetlog.brokers.api.config_alterations import Alteration, Operation
from fleetlog.brokers.api.config_values import ConfigEntry, Source
from fleetlog.brokers.controller.requests import Refused
from fleetlog.brokers.log_levels import LEVELS, ROOT, change, loggers
from fleetlog.brokers.setting_kinds import SettingType
from fleetlog.wire.errors import ErrorCode

log = logging.getLogger(__name__)


def logger_entries(name: str, broker_id: int) -> list[ConfigEntry]:
    """All loggers of the broker with the levels in force, sorted by name; raises Refused for another broker's."""
    _check_is_own(name, broker_id)
    doc = "The level from which this logger writes."
    source = Source.DYNAMIC_BROKER_LOGGER_CONFIG
    return [
        ConfigEntry(logger, level, source, False, False, SettingType.STRING, doc, ())
        for logger, level in sorted(loggers().items())
    ]


def alter_levels(name: str, alterations: Sequence[Alteration], context: Context, *, validate_only: bool) -> None:
    """Change levels as an incremental request says. Raises Refused before anything is changed."""
    _check_is_own(name, context.services.config.broker_id)
    levels = [(one.name, _level(one)) for one in alterations]
    if validate_only:
        return
    change(levels)
    context.services.access.levels_changed()
    for logger, level in levels:
        log.warning("level of %s: %s, by %s", logger, level or "that above it", context.connection.principal)


def _check_is_own(name: str, broker_id: int) -> None:
    """Raises Refused for a resource that is not this broker: levels are its process's own."""
    wrong = None
    if not name:
        wrong = "Broker id must not be empty"
    elif not re.fullmatch("-?[0-9]{1,10}", name):
        wrong = f"Node id must be an integer, but it is: {name[:40]}"
    elif int(name) != broker_id:
        wrong = f"Unexpected broker id, expected {broker_id}, but received {name}"
    if wrong is not None:
        raise Refused(ErrorCode.INVALID_REQUEST, wrong)


def _level(alteration: Alteration) -> str | None:
    """The level that is set, None for one that is removed. Raises Refused, in Kafka's words."""
    name, operation, level = alteration
    if operation in (Operation.APPEND, Operation.SUBTRACT):
        verb = Operation(operation).name
        raise Refused(ErrorCode.INVALID_REQUEST, f"{verb} operation is not allowed for the BROKER_LOGGER resource")
    if operation not in (Operation.SET, Operation.DELETE):
        text = f"Unknown operation type {operation} is not allowed for the BROKER_LOGGER resource"
        raise Refused(ErrorCode.INVALID_REQUEST, text)
    if name != ROOT and name not in logging.root.manager.loggerDict:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Logger {name[:100]} does not exist!")
    if operation == Operation.SET:
        if level not in LEVELS:
            text = (
                f"Cannot set the log level of {name} to {(level or '')[:40]} as it is not a supported log level. "
                f"Valid log levels are {', '.join(LEVELS)}"
            )
            raise Refused(ErrorCode.INVALID_CONFIG, text)
        return level
    if name == ROOT:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT} logger is not allowed")
    return None
