"""Levels of the process's loggers, as Kafka's resource BROKER_LOGGER tells and changes them at run time.

A logger is named as the module that writes to it; a room's name (``fleetlog.brokers.replication``) stands for all its
modules. Levels have Kafka's names: FATAL is Python's CRITICAL, TRACE is below DEBUG. A change lasts until the process
ends.

Source: KIP-412, Kafka's LoggingController and RuntimeLoggerManager.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from fleetlog.brokers.model import BrokerId

ROOT = "root"
TRACE_LEVEL = 5
LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": TRACE_LEVEL,
}
"""Kafka's levels, the highest first, with Python's numbers."""


class NotALevel(ValueError):
    """A logger that is not there, or a level that there is not; the text is Kafka's."""


class WrongLoggerRequest(ValueError):
    """What can't be done with a logger, whatever its level; the text is Kafka's."""


def level_name(number: int) -> str:
    """Kafka's name of a level; one between two of them has the name of the lower."""
    return next((name for name, least in LEVELS.items() if number >= least), "TRACE")


def loggers() -> dict[str, str]:
    """Every logger, and every room of loggers, with the level in force, by name; the root is ``root``."""
    levels = {ROOT: level_name(logging.root.level)}
    for name in sorted(logging.root.manager.loggerDict):
        levels[name] = level_name(_in_force(name))
    return levels


def _in_force(name: str) -> int:
    """The level of a logger, or of the next one above it that has one."""
    while name:
        known = logging.root.manager.loggerDict.get(name)
        if isinstance(known, logging.Logger) and known.level:
            return known.level
        name = name.rpartition(".")[0]
    return logging.root.level


def check_named_broker(name: str, broker_id: BrokerId | int) -> None:
    """Whether a resource's name is that of this broker: levels are its process's own. Raises WrongLoggerRequest."""
    if not name:
        raise WrongLoggerRequest("Broker id must not be empty")
    if not re.fullmatch("-?[0-9]{1,10}", name):
        raise WrongLoggerRequest(f"Node id must be an integer, but it is: {name[:40]}")
    if int(name) != broker_id:
        raise WrongLoggerRequest(f"Unexpected broker id, expected {broker_id}, but received {name}")


def check_set(name: str, level: str) -> None:
    """Whether the logger may be set to that level. Raises NotALevel."""
    _check_exists(name)
    if level not in LEVELS:
        raise NotALevel(
            f"Cannot set the log level of {name} to {level[:40]} as it is not a supported log level. "
            f"Valid log levels are {', '.join(LEVELS)}"
        )


def check_delete(name: str) -> None:
    """Whether the logger's own level may be removed. Raises NotALevel, WrongLoggerRequest."""
    _check_exists(name)
    if name == ROOT:
        raise WrongLoggerRequest(f"Removing the log level of the {ROOT} logger is not allowed")


def _check_exists(name: str) -> None:
    if name != ROOT and name not in logging.root.manager.loggerDict:
        raise NotALevel(f"Logger {name[:100]} does not exist!")


def change(levels: Iterable[tuple[str, str | None]]) -> None:
    """Set loggers to levels, checked before; None removes a logger's own level: the one above it counts."""
    for name, level in levels:
        logger = logging.root if name == ROOT else logging.getLogger(name)
        logger.setLevel(logging.NOTSET if level is None else LEVELS[level])
