"""``foreachBatch`` in executor mode: each task writes under its own member of one batch transaction."""

from __future__ import annotations

import pickle
import time
from typing import TYPE_CHECKING, Any

from fleetlog.spark.client.connections import Client
from fleetlog.spark.sink.batch_transactions import BatchTransactions, Heartbeats, OpenBatch, SentRequests
from fleetlog.spark.sink.collector import Collector
from fleetlog.spark.sink.events import BatchFigures, ReportStage, record_figures
from fleetlog.spark.sink.fence import Decision, Fence, decide
from fleetlog.spark.sink.options import WriteOptions
from fleetlog.spark.sink.writer import TaskResult, commit_task_results, task_figures, task_function
from fleetlog.spark.sink.writes import Write

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class ExecutorMode:
    """Writes a query's batches, one at a time."""

    def __init__(self, options: WriteOptions, report: ReportStage, takeover: str = "", small_rows: int = 0) -> None:
        self._options = options
        self._takeover = takeover
        self._report = report
        self._client = Client(options.settings)
        self._transactions = BatchTransactions(self._client, options.sink_id)
        self._small_rows = small_rows
        self._collector = Collector(small_rows)
        self._last_rows = 0
        self._sent_begin: Any = None

    def prefetch(self) -> None:
        """Send the next batch's BeginBatch, which travels while Spark plans. Without a batch it does no harm."""
        self._sent_begin = self._transactions.send_begin(self._options.transaction_timeout_ms)

    def write(self, rows: DataFrame, write: Write) -> bool:
        """Write the rows of a batch; False where it was committed before.

        Raises FenceConflict, FenceLost, TaskFenced, ClientError, and the errors of Spark's job.
        """
        query_id, batch_id = write.query_id, write.batch_id
        batch = self._begin(query_id, batch_id)
        decision = decide(batch.fence, query_id, batch_id, adopt=self._options.adopt)
        write.settle(decision, batch.digest)
        if decision is Decision.SKIP:
            record_figures(self._options.sink_id, query_id, batch_id, BatchFigures("skipped"))
            self._report("skipped", query_id, batch_id, 0)
            return False
        began = time.monotonic()
        try:
            self._report("begun", query_id, batch_id, 0)
            with Heartbeats(self._options.settings, batch, self._options.transaction_timeout_ms):
                results = self._write(rows, batch)
                count = self._last_rows = sum(result.rows for result in results)
                self._report("written", query_id, batch_id, count)
            written = time.monotonic()
            commit_task_results(self._transactions, batch, results, query_id, batch_id, write.target)
            times = (written - began) * 1000, (time.monotonic() - written) * 1000
            record_figures(self._options.sink_id, query_id, batch_id, task_figures(results, *times))
        except BaseException:
            self._transactions.abort(batch)
            raise
        self._report("committed", query_id, batch_id, count)
        return True

    def _write(self, rows: DataFrame, batch: OpenBatch) -> list[TaskResult]:
        """By tasks; a small batch after a small one by a member of this process: it needs no Python worker."""
        if self._small_rows and self._last_rows <= self._small_rows:
            sent = self._transactions.send_writer(batch, self._options.rows)  # the answers come while Spark works
            parts = self._collector.collect(rows)
            if parts is not None:
                return [self._write_here(parts, batch, sent)]
        frames = rows.mapInArrow(task_function(self._options, batch), "result binary").collect()
        return [pickle.loads(frame[0]) for frame in frames]

    def _write_here(self, parts: list[pa.RecordBatch], batch: OpenBatch, sent: SentRequests) -> TaskResult:
        if not any(part.num_rows for part in parts):
            return TaskResult(batch, None, 0, 0, "")
        member, producer = self._transactions.writer(batch, self._options.rows, sent)
        for part in parts:
            producer.write(part)
        producer.flush()
        return TaskResult(batch, member, producer.rows, producer.bytes, "")

    def _begin(self, query_id: str, batch_id: int) -> OpenBatch:
        sent, self._sent_begin = self._sent_begin, None
        batch = self._transactions.begin(self._options.transaction_timeout_ms, sent)
        if self._takeover and batch.fence is not None and batch.fence.query_id == self._takeover != query_id:
            self._transactions.reset(self._takeover, Fence(query_id, batch_id - 1) if batch_id else None)
            batch = self._transactions.begin(self._options.transaction_timeout_ms)
        return batch
