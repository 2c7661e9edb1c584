"""The sink's figures beside Spark's own progress, and the source's lag.

The figures of a batch are known where the sink's function runs: in the driver's Python, which is also where a
StreamingQueryListener runs. The data source writer commits in another process of the driver's machine, which hands them
over (`fleetlog.spark.sink.handover`). Over Spark Connect the listener runs elsewhere: ``SinkProgress.figures`` is None.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from fleetlog.spark.sink.events import BatchFigures, take_figures
from fleetlog.spark.sink.handover import close_handover, open_handover, take_over_figures

logger = logging.getLogger(__name__)


class SinkProgress(NamedTuple):
    """One batch: Spark's progress, the sink's figures (None where another process wrote), and the source's lag."""

    query_id: str
    batch_id: int
    progress: Any
    figures: BatchFigures | None
    lag: dict[str, int]


def lag(progress: Any) -> dict[str, int]:
    """Offsets between the end of a batch and the end of the log, by ``topic-partition``, of sources ``fleetlog``.

    The end is the last stable offset when the batch was planned. Transaction markers count.
    """
    lags: dict[str, int] = {}
    for source in progress.sources:
        end, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
        for topic, partitions in latest.items():
            for number, offset in partitions.items():
                lags[f"{topic}-{number}"] = max(0, offset - end.get(topic, {}).get(number, 0))
    return lags


def offsets_behind_latest(progress: Any) -> dict[str, str]:
    """`lag` in the form that Spark's own Kafka source puts into ``metrics``: the least, the most and the average."""
    behind = list(lag(progress).values())
    if not behind:
        return {}
    return {
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "minOffsetsBehindLatest": str(min(behind)),
    }


def _offsets(text: Any) -> Mapping[str, Mapping[str, int]]:
    """Offsets in the form of this source (and of Spark's own); nothing for another source's."""
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
    """Calls a function for each batch of the session's queries; ``spark.streams.addListener(SinkListener(print))``.

    Without a function it writes a line into the log. An exception of the function is logged and stops no query.
    """

    def __init__(self, tell: Callable[[SinkProgress], None] | None = None) -> None:
        self._on_progress = tell or _log

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Another process may commit this query's batches, and hands its figures over."""
        open_handover(str(event.id))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A batch is complete."""
        progress = event.progress
        key = str(progress.id), int(progress.batchId)
        try:
            figures = take_figures(*key) or take_over_figures(*key)
            self._on_progress(SinkProgress(*key, progress, figures, lag(progress)))
        except Exception:
            logger.exception("query %s, batch %d: the listener's function failed", *key)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Ignored."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Every batch was reported."""
        close_handover(str(event.id))


def _log(one: SinkProgress) -> None:
    figures = one.figures
    logger.info(
        "query %s, batch %d: %s rows read, %s, lag %d", one.query_id, one.batch_id, one.progress.numInputRows,
        "no figures of the sink" if figures is None else
        f"{figures.stage} {figures.rows} rows, {figures.bytes} bytes by {figures.tasks} tasks in "
        f"{figures.write_ms:.0f} ms, commit {figures.commit_ms:.0f} ms",
        sum(one.lag.values()),
    )  # fmt: skip
