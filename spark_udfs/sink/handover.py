"""Figures of batches from the process that commits to the driver's Python, as files on their common machine.

The format's commit runs in a process of Spark's, from which PySpark's API returns nothing. A listener makes a directory
for each query when the query starts; without that directory nothing is written.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from pathlib import Path

from fleetlog._native.temporary import own_directory
from fleetlog.spark.sink.events import BatchFigures

_OWNER = "listener"

logger = logging.getLogger(__name__)


def directory_of(query_id: str) -> Path:
    """Where a query's figures are handed over. Raises PermissionError where others might have made it."""
    return own_directory("figures") / query_id


def open_handover(query_id: str) -> None:
    """Take figures of a query from now on. A directory that cannot be made is logged: there are no figures then."""
    try:
        directory = directory_of(query_id)
        shutil.rmtree(directory, ignore_errors=True)  # of a driver that was killed
        directory.mkdir(mode=0o700)
        (directory / _OWNER).write_text(str(os.getpid()))
    except OSError as problem:
        logger.warning("query %s: no figures of the sink: %s", query_id, problem)


def close_handover(query_id: str) -> None:
    """End it; figures that were not taken go."""
    with contextlib.suppress(OSError):
        shutil.rmtree(directory_of(query_id))


def hand_over_figures(query_id: str, batch_id: int, figures: BatchFigures) -> None:
    """Leave a batch's figures for the query's listener, if it has one that still runs. Raises nothing."""
    try:
        directory = directory_of(query_id)
        os.kill(int((directory / _OWNER).read_text()), 0)
        scratch = directory / f"{batch_id}.part"
        scratch.write_text(json.dumps(figures))
        scratch.rename(directory / str(batch_id))
    except ProcessLookupError:
        close_handover(query_id)
    except FileNotFoundError:
        pass  # no listener
    except (OSError, ValueError) as problem:
        logger.warning("query %s, batch %d: its figures could not be handed over: %s", query_id, batch_id, problem)


def take_over_figures(query_id: str, batch_id: int) -> BatchFigures | None:
    """What was handed over for a batch, once."""
    try:
        path = directory_of(query_id) / str(batch_id)
        figures = BatchFigures(*json.loads(path.read_text()))
        path.unlink()
    except (OSError, ValueError, TypeError):
        return None
    return figures
