"""How far the start is with the logs: which are left, and about how many bytes of them must be read.

The loop stands still while logs are loaded, so another thread reads these numbers.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from fleetlog.brokers.log.files import DiskPort
from fleetlog.brokers.log.segment import LOG_SUFFIX
from fleetlog.brokers.metrics import StartFigures
from fleetlog.brokers.model import Clock

logger = logging.getLogger(__name__)

TOLD_MS = 5_000
"""Between two lines in the broker's log."""
_SEGMENT = re.compile(r"(\d{20})" + re.escape(LOG_SUFFIX))


class StartProgress:
    """Counts down while a directory's logs are loaded."""

    def __init__(self, disk: DiskPort, clock: Clock, figures: StartFigures) -> None:
        self.figures = figures
        figures.under_way = True
        self._disk = disk
        self._clock = clock
        self._begun_ms = self._told_ms = clock.mono_ms()
        self._bytes: dict[str, int] = {}

    def expect(self, directories: Iterable[tuple[str, int]], *, clean: bool) -> None:
        """These partitions' directories will be loaded, each with its recovery point; raises DiskError.

        Below the recovery point nothing is read, nor after a clean stop.
        """
        for path, recovery_point in directories:
            size = 0 if clean else self._left_to_read(path, recovery_point)
            self._bytes[path] = size
            self.figures.logs_left += 1
            self.figures.bytes_left += size

    def _left_to_read(self, path: str, recovery_point: int) -> int:
        bases = sorted(int(found[1]) for name in self._disk.names(path) if (found := _SEGMENT.fullmatch(name)))
        first = max((base for base in bases if base <= recovery_point), default=-1)
        files = (f"{path}/{base:020d}{LOG_SUFFIX}" for base in bases if base >= first)
        return sum(self._disk.size(file) or 0 for file in files)

    def loaded(self, path: str) -> None:
        """That one is done."""
        figures, now_ms = self.figures, self._clock.mono_ms()
        figures.logs_left -= 1
        figures.logs_done += 1
        figures.bytes_left -= self._bytes.pop(path, 0)
        figures.seconds = (now_ms - self._begun_ms) / 1000
        if now_ms - self._told_ms >= TOLD_MS and figures.logs_left:
            self._told_ms = now_ms
            logger.info(
                "loading logs: %d done, %d left, at most %d MB of these to check; %.0f s so far",
                figures.logs_done, figures.logs_left, figures.bytes_left // 1_000_000, figures.seconds,
            )  # fmt: skip

    def ended(self) -> None:
        """Nothing is left, whatever became of it."""
        self.figures.logs_left = self.figures.bytes_left = 0
        self.figures.under_way = False
