"""When a micro-batch waits for more records: ``minOffsetsPerTrigger`` and ``maxTriggerDelay``. Pure."""

from __future__ import annotations

import re

from fleetlog.spark.client.failures import OptionError

DEFAULT_MAX_DELAY_MS = 15 * 60_000
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")


def duration_ms(name: str, text: str) -> int:
    """A reader of Spark's durations: ``500ms``, ``30s``, ``15m`` or ``15min``, ``1h``, ``1d``; a mere number is ms."""
    match = _DURATION.fullmatch(text.strip().lower())
    unit = (match[2] or "ms") if match else ""
    if match is None or unit not in _UNITS_MS:
        raise OptionError(f"option {name}: {text!r} is not a duration such as 30s, 15m or 1h")
    return int(match[1]) * _UNITS_MS[unit]


class TriggerDelay:
    """Delays batches of few offsets, as Spark's own source does: the first one never, no other for longer than allowed.

    ``min_offsets``: a batch has at least so many, or comes ``max_delay_ms`` after the one before. Offsets without a row
    count.
    """

    def __init__(self, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._last_ms: float | None = None

    def delays(self, waiting: int, now_ms: float) -> bool:
        """Whether a batch of ``waiting`` offsets is put off; where it is not, ``now_ms`` counts as its time."""
        if waiting <= 0:
            return True
        due = self._last_ms is None or now_ms - self._last_ms >= self._max_delay_ms
        if waiting < self._min_offsets and not due:
            return True
        self._last_ms = now_ms
        return False
