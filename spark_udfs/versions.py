"""What the installed PySpark has, asked here and nowhere else; the other modules take these names from here.

| since | |
|---|---|
| 3.5 | ``foreachBatch``: the oldest that is supported |
| 4.0 | data sources in Python, with Arrow batches for a batch job's writer |
| 4.1 | Arrow batches for a stream's writer, filters for a batch read, Arrow functions, partitions by their number |
| 4.2 | read limits: how far a micro-batch goes is the source's choice |

Where an interface lacks, a class or a function of the same name stands in for it here.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyspark

from fleetlog.spark.client.failures import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "ARROW_FUNCTIONS", "DATA_SOURCES", "JAVA_25", "OLDEST", "READ_LIMITS", "VERSION", "ArrowFunction",
    "ArrowWriter", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "StreamArrowWriter",
    "SupportsTriggerAvailableNow", "WriterCommitMessage", "arrow_function", "arrow_schema", "arrow_type", "by_row",
    "has_filters", "newest_java", "repartition_by_number", "require", "require_data_sources", "session_class",
    "too_old", "version_of",
]  # fmt: skip

OLDEST = (3, 5)
DATA_SOURCES = (4, 0)
ARROW_FUNCTIONS = (4, 1)
READ_LIMITS = (4, 2)
JAVA_25 = (4, 2)
"""Before it Spark calls what Java 24 took away."""


def version_of(text: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    match = re.match(r"(\d+)\.(\d+)", text)
    assert match is not None, text
    return int(match[1]), int(match[2])


def too_old(text: str) -> str:
    """Why a PySpark of that version can't be used; empty where it can."""
    if version_of(text) >= OLDEST:
        return ""
    return f"fleetlog needs PySpark {_named(OLDEST)} or newer, and this is {text}: pip install 'pyspark>=3.5,<4.4'"


def _named(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


VERSION = version_of(pyspark.__version__)
if reason := too_old(pyspark.__version__):
    raise ImportError(reason)


def require(what: str, since: tuple[int, int], instead: str) -> None:
    """Raises OptionError where this PySpark is older than ``since``. ``instead``: what to do without it."""
    if since > VERSION:
        raise OptionError(f"{what} needs PySpark {_named(since)}, and this is {pyspark.__version__}: {instead}")


def require_data_sources() -> None:
    """Raises OptionError where PySpark has no data sources in Python."""
    require(
        "format('fleetlog')",
        DATA_SOURCES,
        "write with write_stream(...), and read with Spark's own format('kafka')",
    )


# ---- classes that a data source derives from -------------------------------------------------------------------------

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter as ArrowWriter
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
else:
    if VERSION >= DATA_SOURCES:
        from pyspark.sql import datasource
        from pyspark.sql.datasource import DataSourceArrowWriter as ArrowWriter
        from pyspark.sql.datasource import WriterCommitMessage
    else:
        datasource = None
        ArrowWriter = WriterCommitMessage = object

    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        StreamArrowWriter = datasource.DataSourceStreamArrowWriter
    elif datasource is not None:
        # Tasks of 4.0 give Arrow batches to any writer of this class, and look no further.
        class StreamArrowWriter(datasource.DataSourceStreamWriter, ArrowWriter):
            """A stream's writer of Arrow batches."""
    else:
        StreamArrowWriter = object

    if VERSION >= READ_LIMITS:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    else:
        SupportsTriggerAvailableNow = object

        class ReadLimit:
            """How far a micro-batch goes; no limit here."""

        class ReadAllAvailable(ReadLimit):
            """To the end."""

        class ReadMaxRows(ReadLimit):
            """So many rows: refused before one is made."""

            def __init__(self, max_rows: int) -> None:
                self.max_rows = max_rows


def newest_java() -> int | None:
    """The newest Java on which this PySpark runs; None for any."""
    return None if VERSION >= JAVA_25 else 22


def has_filters() -> bool:
    """Whether Spark hands filters to a batch read."""
    return VERSION >= ARROW_FUNCTIONS


# ---- functions -------------------------------------------------------------------------------------------------------


class ArrowFunction:
    """A column function of Arrow arrays. Before 4.1 Spark calls it for each row, with arrays of one value.

    A session's kind decides what Spark makes of it, one with a JVM or one of Spark Connect. Modules are imported before
    there is a session, so it is made with the first call.
    """

    def __init__(self, func: Callable[..., pa.Array], kind: DataType) -> None:
        self.func, self._kind = func, kind
        self._made: dict[bool, Any] = {}

    def __call__(self, *columns: Column) -> Column:
        from pyspark.sql import functions as f
        from pyspark.sql.utils import is_remote

        remote = is_remote()
        if remote not in self._made:
            arrow: Any = getattr(f, "arrow_udf", None)
            self._made[remote] = arrow(self._kind)(self.func) if arrow else by_row(self.func, self._kind)
        made: Column = self._made[remote](*columns)
        return made


def arrow_function(kind: DataType) -> Callable[[Callable[..., pa.Array]], ArrowFunction]:
    """Decorates a function of Arrow arrays whose values are of that type."""
    return functools.partial(ArrowFunction, kind=kind)


def by_row(function: Callable[..., pa.Array], kind: DataType) -> Any:
    """A column function that calls one of Arrow arrays for each row. A null counts as binary."""
    import pyarrow
    from pyspark.sql import functions as f

    @functools.wraps(function)
    def of_row(*values: Any) -> Any:
        arrays = (pyarrow.array([value], pyarrow.binary() if value is None else None) for value in values)
        return function(*arrays)[0].as_py()

    return f.udf(of_row, kind)


def repartition_by_number(rows: DataFrame, partitions: int, number: Column) -> DataFrame:
    """Rows by the number of their partition. Before 4.1 by its hash: several numbers may share a partition."""
    if VERSION >= ARROW_FUNCTIONS:
        return rows.repartitionById(partitions, number)
    return rows.repartition(partitions, number)


def session_class(jvm: Any) -> Any:
    """The JVM's class of classic sessions."""
    return jvm.org.apache.spark.sql.classic.SparkSession if VERSION[0] >= 4 else jvm.org.apache.spark.sql.SparkSession


def arrow_schema(schema: StructType, large: bool) -> pa.Schema | None:
    """The schema of the Arrow batches that Spark makes of a frame; None where PySpark does not tell.

    ``large``: with 64-bit lengths.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    if large and "prefers_large_types" not in inspect.signature(to_arrow_schema).parameters:
        return None
    return _with_known(to_arrow_schema, schema, timezone="UTC", prefers_large_types=large)


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type of Spark's, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    return _with_known(to_arrow_type, kind, timezone="UTC")


def _with_known(function: Callable[..., Any], first: Any, **options: Any) -> Any:
    """Call it with those of the options that it has. Without ``timezone`` it makes times in UTC."""
    known = inspect.signature(function).parameters
    return function(first, **{name: value for name, value in options.items() if name in known})
