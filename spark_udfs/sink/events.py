"""Progress of batches: events for a callback, figures for a listener, a line for the log."""

from __future__ import annotations

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

FIGURES_MAX = 1000
"""Batches whose figures are kept for a listener; older ones are dropped."""

ReportStage = Callable[[str, str, int, int], None]
"""(stage, query id, batch id, rows)"""


class SinkEvent(NamedTuple):
    """Progress of one batch. ``stage``: begun, written (all rows acknowledged, not committed), committed, skipped."""

    stage: str
    query_id: str
    batch_id: int
    rows: int


class BatchFigures(NamedTuple):
    """What the sink did for one batch. ``stage``: committed or skipped; ``tasks`` that wrote rows; times in ms.

    ``write_ms``: of all tasks together; where the format writes, of the longest one.
    """

    stage: str
    rows: int = 0
    bytes: int = 0
    tasks: int = 0
    write_ms: float = 0.0
    commit_ms: float = 0.0


logger = logging.getLogger(__name__)
_figures: OrderedDict[tuple[str, int], BatchFigures] = OrderedDict()


def log_batch(sink_id: str, query_id: str, batch_id: int, figures: BatchFigures) -> None:
    """A line at INFO; on stderr, which is the driver's log, where nothing configures Python's logging."""
    what = "skipped, it was committed before"
    if figures.stage == "committed":
        what = (
            f"committed, {figures.rows} rows, {figures.bytes} bytes, {figures.tasks} tasks, "
            f"written in {figures.write_ms:.0f} ms, commit in {figures.commit_ms:.0f} ms"
        )
    line = f"sink {sink_id}, query {query_id}, batch {batch_id}: {what}"
    if logger.hasHandlers():
        logger.info("%s", line)
    else:
        print(f"{time.strftime('%y/%m/%d %H:%M:%S')} INFO fleetlog: {line}", file=sys.stderr, flush=True)


def record_figures(sink_id: str, query_id: str, batch_id: int, figures: BatchFigures) -> None:
    """Log a batch, and keep its figures for a listener of this process."""
    log_batch(sink_id, query_id, batch_id, figures)
    _figures[query_id, batch_id] = figures
    while len(_figures) > FIGURES_MAX:
        _figures.popitem(last=False)


def take_figures(query_id: str, batch_id: int) -> BatchFigures | None:
    """A batch's figures, once; None for a batch that was not written in this process."""
    return _figures.pop((query_id, batch_id), None)
