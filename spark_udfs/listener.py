"""Figures of the sink beside Spark's own progress, and the source's lag.

What a batch wrote is known where the sink's function runs: in the driver's Python, which is also where a
StreamingQueryListener runs. The data source writer commits in another process, and PySpark's API gives it no way to
report: its figures are in the log, and ``figures`` is None in what the listener tells.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

KEPT = 1000
"""Batches whose figures wait for a listener; older ones are forgotten."""

log = logging.getLogger(__name__)


class BatchFigures(NamedTuple):
    """What the sink did for one batch. ``stage``: committed or skipped; ``tasks`` that wrote something; times in ms."""

    stage: str
    rows: int = 0
    bytes: int = 0
    tasks: int = 0
    write_ms: float = 0.0
    commit_ms: float = 0.0


class SinkProgress(NamedTuple):
    """One batch: Spark's progress, the sink's figures (None if they are not known here), offsets not read yet."""

    query_id: str
    batch_id: int
    progress: Any
    figures: BatchFigures | None
    lag: dict[str, int]


_figures: OrderedDict[tuple[str, int], BatchFigures] = OrderedDict()


def record(query_id: str, batch_id: int, figures: BatchFigures) -> None:
    """Keep a batch's figures for a listener."""
    _figures[query_id, batch_id] = figures
    while len(_figures) > KEPT:
        _figures.popitem(last=False)


def lag(progress: Any) -> dict[str, int]:
    """Offsets between the end of a batch and the end of the log, by ``topic-partition``; of our sources only.

    The end is what a reader may see (the last stable offset), as it was when the batch was planned. Markers count.
    """
    found: dict[str, int] = {}
    for source in progress.sources:
        end, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
        for topic, partitions in latest.items():
            for number, offset in partitions.items():
                found[f"{topic}-{number}"] = max(0, offset - end.get(topic, {}).get(number, 0))
    return found


def _offsets(text: Any) -> Mapping[str, Mapping[str, int]]:
    """Offsets in the form of our source (and of Spark's own); nothing for another source's."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    if not isinstance(value, dict) or not all(isinstance(part, dict) for part in value.values()):
        return {}
    return {
        topic: {number: offset for number, offset in parts.items() if isinstance(offset, int)}
        for topic, parts in value.items()
    }


class SinkListener(StreamingQueryListener):
    """Tells each batch of the session's queries; ``spark.streams.addListener(SinkListener(print))``.

    Without a function it writes a line into the log. A failure of the function is logged: it must not stop a query.
    """

    def __init__(self, tell: Callable[[SinkProgress], None] | None = None) -> None:
        self._tell = tell or _log

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Nothing to tell yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A batch is done."""
        progress = event.progress
        key = str(progress.id), int(progress.batchId)
        try:
            self._tell(SinkProgress(*key, progress, _figures.pop(key, None), lag(progress)))
        except Exception:
            log.exception("query %s, batch %d: the listener failed", *key)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing came."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Its figures were told."""


def _log(one: SinkProgress) -> None:
    figures = one.figures
    log.info(
        "query %s, batch %d: %s rows read, %s, lag %d", one.query_id, one.batch_id, one.progress.numInputRows,
        "no figures of the sink" if figures is None else
        f"{figures.stage} {figures.rows} rows, {figures.bytes} bytes by {figures.tasks} tasks in "
        f"{figures.write_ms:.0f} ms, commit {figures.commit_ms:.0f} ms",
        sum(one.lag.values()),
    )  # fmt: skip
