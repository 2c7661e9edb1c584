"""Core dumps are off: a process that holds keys and passwords would write them into one.

PR_SET_DUMPABLE is left alone: it would make ``/proc/self/io``, which is measured, and what operators' tools read of the
process belong to root.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

LIMIT_BYTES: Final = 1
"""Too little for a file. A handler that ``core_pattern`` names gets the dump at 0 all the same, at 1 it does not."""
FILTER: Final = Path("/proc/self/coredump_filter")


def switch_core_dumps_off() -> None:
    """For this process and its children, for good; the dump of a handler that ignores the limit has no memory in it."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    limit = LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(LIMIT_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
    with suppress(OSError):  # not Linux, or /proc cannot be written
        FILTER.write_text("0")
