"""The rows of a small micro-batch, brought to the driver with as little of Spark's machinery as is safe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NOT_WHOLE = 2
"""A partition that gives so many Arrow batches has more rows than fit into one."""


class Collector:
    """Brings at most ``most`` rows. It remembers of a query whether its batches have one partition."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._single = True

    def collect(self, rows: DataFrame) -> list[pa.RecordBatch] | None:
        """All rows; None where they are too many."""
        found = self._of_one_partition(rows) if self._single else None
        if found is None:
            limited: Any = rows.limit(self._most + 1)
            found = limited._collect_as_arrow()  # toArrow() without a dozen calls into the JVM for its schema
        return found if sum(part.num_rows for part in found) <= self._most else None

    def _of_one_partition(self, rows: DataFrame) -> list[pa.RecordBatch] | None:
        """A job on the frame as it is: a limit would be planned anew, and its rows come by way of a socket.

        None for several partitions. Spark's own take() on them runs one job after the other; and to stop at some of
        them is not allowed: stateful operators of the query want all of theirs to be computed.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        conf = rows.sparkSession._jconf
        if not self._most < conf.arrowMaxRecordsPerBatch():
            return None
        large = conf.arrowUseLargeVarTypes()
        parts: Any = rows._jdf.toArrowBatchRdd()
        self._single = parts.getNumPartitions() <= 1
        if not self._single:
            return None
        schema = to_arrow_schema(rows.schema, timezone="UTC", prefers_large_types=large)
        messages = parts.take(_NOT_WHOLE)
        return [pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in messages]
