"""How a broker's log lines look on stderr: as text, or one JSON object in each line (``log.format``)."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from fleetlog.brokers.log_levels import level_name

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
    """Write the process's log to stderr from that level on, as ``text`` or ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(broker_id) if form == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("kazoo").setLevel(logging.ERROR)
