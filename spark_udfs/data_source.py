"""The data sources: ``fleetlog`` reads and writes topics, ``fleetlog_segments`` reads log directories.

Spark imports both in each process that looks for a format of any name, so what reads and writes is imported late.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from fleetlog.spark.client.failures import ClientError, DataLoss, FenceError, OptionError, RegistryError
from fleetlog.spark.client.workers import keep_loaded
from fleetlog.spark.source.options import ReadOptions, check_schema, checked_schema, refuse_table, row_schema
from fleetlog.spark.versions import ArrowWriter, StreamArrowWriter

logger = logging.getLogger(__name__)
_REASONS = (OptionError, FenceError, ClientError, DataLoss, RegistryError)
T = TypeVar("T")


def _in_few_lines(method: Callable[..., T]) -> Callable[..., T]:
    """Drops the frames below this module from an error of the package: Spark prints them around its one sentence."""

    @functools.wraps(method)
    def call(*args: Any, **named: Any) -> T:
        try:
            return method(*args, **named)
        except _REASONS as problem:
            logger.debug("refused", exc_info=True)
            reason = problem.with_traceback(None)
        raise reason from None

    return call


class FleetlogSource(DataSource):
    """``format("fleetlog")`` of ``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream``.

    Spark constructs the data source in the process that plans a write, and copies the writer made there to the tasks:
    that is the one place to begin the batch. The commit uses a writer of an unpickled data source, which begins none:
    a new batch would fence the one to be committed.
    """

    _is_copy = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        keep_loaded()
        self.__dict__.update(state)
        self._is_copy = True

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "fleetlog"

    @_in_few_lines
    def schema(self) -> str:
        """The columns of Spark's Kafka source; ``headers`` only with ``includeHeaders``. Raises OptionError."""
        return checked_schema(self.options)

    @_in_few_lines
    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader. Raises OptionError."""
        from fleetlog.spark.source.readers import BatchReader  # late: Spark asks for the schema in a process of its own

        refuse_table(self.options)
        check_schema(self.options, schema)
        return BatchReader(ReadOptions.parse(self.options, streaming=False))

    @_in_few_lines
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream reader. Raises OptionError."""
        from fleetlog.spark.source.readers import StreamReader

        refuse_table(self.options)
        check_schema(self.options, schema)
        return StreamReader(ReadOptions.parse(self.options, streaming=True))

    @_in_few_lines
    def writer(self, schema: StructType, overwrite: bool) -> ArrowWriter:
        """A batch writer: all rows or none. Raises OptionError, FenceError, ClientError."""
        from fleetlog.spark.sink.options import WriteOptions  # late: a worker that only reads loads no librdkafka
        from fleetlog.spark.sink.writer import BatchWriter

        keep_loaded()
        refuse_table(self.options)
        if overwrite:
            raise OptionError("mode overwrite would replace the topic's records, which can't be done: .mode('append')")
        writer = BatchWriter(WriteOptions.parse(self.options, schema))
        if not self._is_copy:
            writer.begin(schema)
        return writer

    @_in_few_lines
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamArrowWriter:  # noqa: N802
        """A stream writer, exactly once. Raises OptionError, FenceError, ClientError."""
        from fleetlog.spark.sink.options import WriteOptions
        from fleetlog.spark.sink.writer import StreamWriter

        keep_loaded()  # Spark hands the class to the process that plans: no source is unpickled there
        if overwrite:
            raise OptionError(
                "output mode complete rewrites its whole result in every batch; a topic can't be rewritten: use append"
            )
        writer = StreamWriter(WriteOptions.parse(self.options, schema))
        if not self._is_copy:
            writer.begin(schema)
        return writer


class SegmentsSource(DataSource):
    """``spark.read.format("fleetlog_segments").load(directory)``; several directories with commas between them."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "fleetlog_segments"

    def schema(self) -> str:
        """The columns of Spark's Kafka source; ``headers`` only with ``includeHeaders``."""
        refuse_table(self.options, self.name())
        return row_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader. Raises OptionError."""
        from fleetlog.spark.source.segments import SegmentsReader

        refuse_table(self.options, self.name())
        check_schema(self.options, schema)
        return SegmentsReader(self.options)
