"""Collects the rows of a small micro-batch at the driver, with few of Spark's calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fleetlog.spark.versions import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ARROW_BATCHES_MAX = 2
"""A partition with so many Arrow batches has more rows than fit into one."""


class Collector:
    """Collects at most ``rows_max`` rows of each batch of a query. Keeps whether its batches have one partition."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._single_partition = True

    def collect(self, rows: DataFrame) -> list[pa.RecordBatch] | None:
        """All rows; None where they are too many."""
        parts = self._of_one_partition(rows) if self._single_partition else None
        if parts is None:
            limited: Any = rows.limit(self._rows_max + 1)
            parts = limited._collect_as_arrow()  # toArrow() without a dozen calls into the JVM for its schema
        return parts if sum(part.num_rows for part in parts) <= self._rows_max else None

    def _of_one_partition(self, rows: DataFrame) -> list[pa.RecordBatch] | None:
        """A job on the frame as it is: a limit would be planned anew, and return its rows through a socket.

        None for several partitions. Spark's take() on them runs one job after the other, and may stop at some of them:
        stateful operators of the query need all of theirs to be computed.
        """
        conf = rows.sparkSession._jconf
        if not self._rows_max < conf.arrowMaxRecordsPerBatch():
            return None
        large = conf.arrowUseLargeVarTypes()
        parts: Any = rows._jdf.toArrowBatchRdd()
        self._single_partition = parts.getNumPartitions() <= 1
        if not self._single_partition:
            return None
        schema = arrow_schema(rows.schema, large)
        if schema is None:
            return None
        messages = parts.take(_ARROW_BATCHES_MAX)
        return [pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in messages]
