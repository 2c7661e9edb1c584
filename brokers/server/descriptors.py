"""How many file descriptors the process has left, and whether it has run out of them lately.

A broker without descriptors accepts no connection and opens no segment; what is open continues.
"""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable

logger = logging.getLogger(__name__)

FREE_AT_LEAST = 16
"""A broker with fewer left, or less than a fiftieth of its limit, is in trouble."""
SHARE = 50
REMEMBERED_MS = 60_000
"""How long a want of descriptors is reported after it has passed; it is logged once in that time."""
REMEDY = "raise the limit (ulimit -n, LimitNOFILE), or close connections"


def in_use() -> tuple[int, int | None]:
    """The process' open descriptors and its limit (RLIMIT_NOFILE), None for no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = os.stat("/proc/self/fd").st_size  # since Linux 6.2; else 0, and to count thousands takes milliseconds
        used = used or len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:
        used = 0  # no /proc: nothing is known
    except OSError:
        used = limit  # looking takes a descriptor, too
    return used, None if limit == resource.RLIM_INFINITY else limit


class Descriptors:
    """See the module. ``usage`` tells descriptors in use and the limit."""

    def __init__(
        self, mono_ms: Callable[[], int], usage: Callable[[], tuple[int, int | None]] = in_use
    ) -> None:  # fmt: skip
        self._mono_ms = mono_ms
        self._usage = usage
        self._ran_out_ms: int | None = None
        self._logged_ms: int | None = None

    def ran_out(self, what: str, error: OSError) -> None:
        """The system refused one: ``what`` waits for it."""
        now_ms = self._mono_ms()
        self._ran_out_ms = now_ms
        if self._logged_ms is None or now_ms - self._logged_ms >= REMEMBERED_MS:
            self._logged_ms = now_ms
            logger.error("%s: %s; %s: %s", what, error.strerror or error, self._counted(), REMEDY)

    def troubles(self) -> list[str]:
        """At most one line: few are left, or there was none within the last minute."""
        used, limit = self._usage()
        ran_out = self._ran_out_ms is not None and self._mono_ms() - self._ran_out_ms < REMEMBERED_MS
        few = limit is not None and used + max(FREE_AT_LEAST, limit // SHARE) > limit
        if not ran_out and not few:
            return []
        refused = ", and connections had to wait for one within the last minute" if ran_out else ""
        return [f"{self._counted()}{refused}: {REMEDY}"]

    def _counted(self) -> str:
        used, limit = self._usage()
        return f"{used} of {limit if limit is not None else 'unlimited'} file descriptors are in use"
