"""DataFrame functions before the sink: dead letters to a topic of their own, rows to the task of their partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as f

from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.functions.columns import ColumnOrName, as_column, kafka_partition
from fleetlog.spark.versions import repartition_by_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HEADERS = "array<struct<key:string,value:binary>>"


def split_bad(
    df: DataFrame,
    bad: Column,
    *,
    topic: str,
    dead_letters: str,
    original: ColumnOrName = "value",
    reason: Column | None = None,
    reason_header: str = "error",
) -> DataFrame:
    """Rows for two topics: those of which ``bad`` is false as they are, all others (null, too) as dead letters.

    A dead letter has the key, timestamp and headers of its row, ``original`` as its value, no partition, and with
    ``reason`` a header that names it. The result has a column ``topic``: write it without the option
    ``topic``, and both topics get their rows of a micro-batch in one transaction. Raises OptionError for a column that
    the sink does not have.
    """
    known = ("key", "value", "timestamp", "partition", "headers")
    extra = as_column(original)
    names = {name.lower(): name for name in df.columns}
    if "value" not in names:
        raise OptionError(f"column value is required; there are {', '.join(df.columns)}")
    is_bad = f.coalesce(bad, f.lit(True))
    columns = [f.when(is_bad, f.lit(dead_letters)).otherwise(f.lit(topic)).alias("topic")]
    for name in known:
        if name not in names:
            continue
        column = f.col(f"`{names[name]}`")
        if name == "value":
            column = f.when(is_bad, extra.cast("binary")).otherwise(column.cast("binary"))
        elif name == "partition":
            column = f.when(~is_bad, column)
        elif name == "headers" and reason is not None:
            column = f.when(is_bad, f.concat(_or_none(column), _header(reason_header, reason))).otherwise(column)
        columns.append(column.alias(name))
    if reason is not None and "headers" not in names:
        columns.append(f.when(is_bad, _header(reason_header, reason)).alias("headers"))
    return df.select(*columns)


def _header(name: str, value: Column) -> Column:
    return f.array(f.struct(f.lit(name).alias("key"), value.cast("binary").alias("value"))).cast(HEADERS)


def _or_none(headers: Column) -> Column:
    return f.coalesce(headers, f.array().cast(HEADERS))


def repartition_by_key(df: DataFrame, partitions: int) -> DataFrame:
    """As many tasks as the topic has partitions, each with the rows of one: one marker for each partition and batch.

    Worth its shuffle where many tasks write a little to every partition. Rows without a key go by their value's hash,
    rows that name a partition to its task.
    """
    if partitions < 1:
        raise OptionError(f"a topic has at least one partition, not {partitions}")
    names = {name.lower(): name for name in df.columns}
    place = f.pmod(f.xxhash64(f.col(f"`{names['value']}`")), f.lit(partitions)).cast("int")
    if "key" in names:
        place = f.coalesce(kafka_partition(f.col(f"`{names['key']}`"), partitions), place)
    if "partition" in names:
        place = f.coalesce(f.pmod(f.col(f"`{names['partition']}`"), f.lit(partitions)).cast("int"), place)
    return repartition_by_number(df, partitions, place)
