"""Levels of the process's loggers, as Kafka's resource BROKER_LOGGER tells and changes them at run time.

A logger is named as the module that writes to it; a room's name (``fleetlog.brokers.replication``) stands for all its
modules. Levels have Kafka's names: FATAL is Python's CRITICAL, TRACE is below DEBUG. A change lasts until the process
ends.

Source: KIP-412, Kafka's LoggingController and RuntimeLoggerManager.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

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


def change(levels: Iterable[tuple[str, str | None]]) -> None:
    """Set loggers to levels, checked before; None removes a logger's own level: the one above it counts."""
    for name, level in levels:
        logger = logging.root if name == ROOT else logging.getLogger(name)
        logger.setLevel(logging.NOTSET if level is None else LEVELS[level])
