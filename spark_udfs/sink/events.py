"""Progress of batches in the driver's process: events for a callback, figures for a listener."""

from __future__ import annotations

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
    """What the sink did for one batch. ``stage``: committed or skipped; ``tasks`` that wrote rows; times in ms."""

    stage: str
    rows: int = 0
    bytes: int = 0
    tasks: int = 0
    write_ms: float = 0.0
    commit_ms: float = 0.0


_figures: OrderedDict[tuple[str, int], BatchFigures] = OrderedDict()


def record_figures(query_id: str, batch_id: int, figures: BatchFigures) -> None:
    """Keep a batch's figures for a listener."""
    _figures[query_id, batch_id] = figures
    while len(_figures) > FIGURES_MAX:
        _figures.popitem(last=False)


def take_figures(query_id: str, batch_id: int) -> BatchFigures | None:
    """A batch's figures, once; None for a batch that was not written in this process."""
    return _figures.pop((query_id, batch_id), None)
