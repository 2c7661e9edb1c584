"""What Spark's Python workers keep between their tasks.

A worker that Spark's daemon forked collects garbage after each task (``gc.collect()`` in ``pyspark.daemon``), which
walks every object that its modules made: tens of milliseconds for Spark, Arrow and the clients, in a micro-batch as
often as it has workers. What was loaded lives as long as the process and is taken out of that walk.
"""

from __future__ import annotations

import gc
import sys

DAEMON = "pyspark.daemon"
"""The program of processes that run one task after the other."""

_modules = 0


def keep_loaded() -> None:
    """Take what is loaded out of later collections, if modules came since the last call. Called as a task begins.

    Only where the process is one that Spark's daemon forked: in others the garbage collector belongs to the user's
    program. At the begin of a task, and after a collection, there is little else than what was loaded; references are
    counted as ever, so what is part of no cycle is freed all the same.
    """
    global _modules  # noqa: PLW0603
    if len(sys.modules) == _modules or not _forked_by_daemon():
        return
    _modules = len(sys.modules)
    gc.collect()
    gc.freeze()


def _forked_by_daemon() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == DAEMON
