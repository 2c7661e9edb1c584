"""``foreachBatch`` whose rows never see the driver: each task writes under its own member of one batch transaction."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spark_udfs import batches, listener
from spark_udfs import fence as fences
from spark_udfs.batches import Ahead, Batch, KeptAlive, Sink
from spark_udfs.client import Client
from spark_udfs.collecting import Collector
from spark_udfs.fence import Decision, Fence
from spark_udfs.listener import BatchFigures
from spark_udfs.writer import TaskResult, WriteOptions, commit_batch, task_function

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Tell = Callable[[str, str, int, int], None]
"""(stage, query id, batch id, rows)"""


class ExecutorMode:
    """Writes a query's batches. Not for two batches at a time."""

    def __init__(self, options: WriteOptions, adopt: bool, takeover: str, tell: Tell, small_rows: int = 0) -> None:
        self._options = options
        self._adopt = adopt
        self._takeover = takeover
        self._tell = tell
        self._client = Client(options.settings)
        self._sink = Sink(self._client, options.sink_id)
        self._small_rows = small_rows
        self._collector = Collector(small_rows)
        self._last_rows = 0
        self._sent: Any = None

    def ahead(self) -> None:
        """Send the next batch's BeginBatch, which travels while Spark plans. Without a batch it does no harm."""
        self._sent = self._sink.send_begin(self._options.transaction_timeout_ms)

    def write(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        """Raises FenceConflict, FenceLost, TaskFenced, ClientError, and whatever Spark's job ends with."""
        batch = self._begin(query_id, batch_id)
        if self._decide(batch, query_id, batch_id) is Decision.SKIP:
            listener.record(query_id, batch_id, BatchFigures("skipped"))
            self._tell("skipped", query_id, batch_id, 0)
            return
        began = time.monotonic()
        try:
            self._tell("begun", query_id, batch_id, 0)
            with KeptAlive(self._options.settings, batch, self._options.transaction_timeout_ms):
                results = self._write(rows, batch)
                count = self._last_rows = sum(result.rows for result in results)
                self._tell("written", query_id, batch_id, count)
            written = time.monotonic()
            commit_batch(self._sink, batch, results, query_id, batch_id)
            listener.record(query_id, batch_id, _figures(results, began, written))
        except BaseException:
            self._sink.abort(batch)
            raise
        self._tell("committed", query_id, batch_id, count)

    def _write(self, rows: DataFrame, batch: Batch) -> list[TaskResult]:
        """By tasks; a batch like the last one, which was small, by a member of this process's own: no Python worker."""
        if self._small_rows and self._last_rows <= self._small_rows:
            sent = self._sink.send_writer(batch, self._options.rows)  # the answers come while Spark works
            parts = self._collector.collect(rows)
            if parts is not None:
                return [self._write_here(parts, batch, sent)]
        frames = rows.mapInArrow(task_function(self._options, batch), "result binary").collect()
        return [pickle.loads(frame[0]) for frame in frames]

    def _write_here(self, parts: list[pa.RecordBatch], batch: Batch, sent: Ahead) -> TaskResult:
        if not any(part.num_rows for part in parts):
            return TaskResult(batch, None, 0, 0, "")
        member, producer = self._sink.writer(batch, self._options.rows, sent)
        for part in parts:
            producer.write(part)
        producer.flush()
        return TaskResult(batch, member, producer.rows, producer.bytes, "")

    def _begin(self, query_id: str, batch_id: int) -> Batch:
        sent, self._sent = self._sent, None
        batch = self._sink.begin(self._options.transaction_timeout_ms, sent)
        if self._takeover and batch.fence is not None and batch.fence.query_id == self._takeover != query_id:
            self._sink.reset(self._takeover, batches.Fence(query_id, batch_id - 1, "") if batch_id else None)
            batch = self._sink.begin(self._options.transaction_timeout_ms)
        return batch

    def _decide(self, batch: Batch, query_id: str, batch_id: int) -> Decision:
        found = None if batch.fence is None else Fence(batch.fence.query_id, batch.fence.batch_id)
        return fences.decide(found, query_id, batch_id, adopt=self._adopt)


def _figures(results: list[TaskResult], began: float, written: float) -> BatchFigures:
    return BatchFigures(
        "committed",
        sum(result.rows for result in results),
        sum(result.bytes for result in results),
        sum(result.member is not None for result in results),
        (written - began) * 1000,
        (time.monotonic() - written) * 1000,
    )
