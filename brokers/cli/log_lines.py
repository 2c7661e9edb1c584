"""How a broker's log lines look on stderr: as text, or one JSON object in each line (``log.format``)."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime

from fleetlog.brokers.log_levels import level_name
from fleetlog.brokers.log_tail import LogTail

TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JsonLines(logging.Formatter):
    """One line is one object: time (UTC, ISO 8601), level (Kafka's name), logger, broker, message, and what follows.

    ``thread`` stands in lines that are not of the main thread, ``exception`` in those with a traceback. A message of
    several lines stays one line.
    """

    def __init__(self, broker_id: int) -> None:
        super().__init__()
        self._broker_id = broker_id

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": level_name(record.levelno),
            "logger": record.name,
            "broker": self._broker_id,
            "message": record.getMessage(),
        }
        if record.threadName not in (None, "MainThread"):
            line["thread"] = record.threadName
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def start_logging(form: str, broker_id: int, level: str) -> None:
    """Write the process's log to stderr from that level on, as ``text`` or ``json``, and keep its newest lines.

    Who did what and was refused is the audit's: those who may describe the cluster are not told.
    """
    from fleetlog.brokers.audit.events import LOGGER

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(broker_id) if form == "json" else logging.Formatter(TEXT))
    tail = LogTail(time.time_ns() // 1_000_000, (LOGGER,))
    logging.basicConfig(level=level.upper(), handlers=[handler, tail])
    logging.getLogger("kazoo").setLevel(logging.ERROR)
