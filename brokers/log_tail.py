"""The newest lines of the process's log, kept in memory for those who may describe the cluster.

They are bounded in number and length. Lines of a text that look as if they had a secret are not kept, and nothing of
loggers that are left out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from fleetlog.brokers.log_levels import level_name
from fleetlog.brokers.setting_kinds import HIDDEN, secret

LINES_MAX: Final = 1_000
CHARS_MAX: Final = 1_000
_FORMAT: Final = logging.Formatter()


class LogLine(NamedTuple):
    """One line; ``number`` counts from 1 since the start of the process, ``level`` is Kafka's name."""

    number: int
    time_ms: int
    level: str
    logger: str
    message: str


class LogTail(logging.Handler):
    """Keeps lines since that time. From any thread."""

    def __init__(self, since_ms: int, left_out: Iterable[str] = ()) -> None:
        super().__init__()
        self.since_ms = since_ms
        self._left_out = frozenset(left_out)
        self._lines: deque[LogLine] = deque(maxlen=LINES_MAX)
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """By logging, which holds the handler's lock."""
        if record.name in self._left_out:
            return
        try:
            text = record.getMessage()
            if record.exc_info:
                text = f"{text}\n{_FORMAT.formatException(record.exc_info)}"
        except Exception:
            self.handleError(record)
            return
        self._number += 1
        shown = "\n".join(HIDDEN if secret(line) else line for line in text[:CHARS_MAX].split("\n"))
        time_ms = round(record.created * 1000)
        self._lines.append(LogLine(self._number, time_ms, level_name(record.levelno), record.name, shown))

    def behind(self, number: int, limit: int) -> list[LogLine]:
        """The oldest that are kept behind that number, or if it is negative the newest; at most ``limit``."""
        self.acquire()
        try:
            first = self._lines[0].number if self._lines else 1
            kept = len(self._lines)
            begin = max(0, min(kept, kept - limit if number < 0 else number + 1 - first))
            return list(islice(self._lines, begin, begin + limit))
        finally:
            self.release()


def kept_log_tail() -> LogTail | None:
    """That of the process, where something keeps its log."""
    return next((one for one in logging.root.handlers if isinstance(one, LogTail)), None)
