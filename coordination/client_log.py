"""The log of kazoo, without what its requests and answers contain.

kazoo writes them as they are: the passwords of logins and of sessions, and the data of znodes, such as credentials of
SCRAM. Its levels can change while a broker runs, so no level may show them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

_HARMLESS = (str, int, float, BaseException, type(None))


def client_log(name: str) -> logging.Logger:
    """The logger of that name for kazoo: errors alone, since it warns at every attempt to connect."""
    logger = logging.getLogger(name)
    logger.setLevel(logging.ERROR)
    logger.addFilter(_without_contents)
    return logger


def _without_contents(record: logging.LogRecord) -> bool:
    """Leave of requests, answers and bytes their type, and the path if they have one."""
    args = (record.args,) if isinstance(record.args, Mapping) else record.args or ()
    record.args = tuple(one if isinstance(one, _HARMLESS) else _kind(one) for one in args)
    return True


def _kind(one: object) -> str:
    path = getattr(one, "path", None)
    return f"{type(one).__name__} {path}" if isinstance(path, str) else type(one).__name__
