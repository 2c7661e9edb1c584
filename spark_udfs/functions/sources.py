"""The header by which topics with ``fleetlog.dedup=source`` drop what a restarted query writes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as f

from fleetlog.spark.client.failures import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SOURCE_HEADER = "fleetlog.source"
_HEADERS = "array<struct<key:string,value:binary>>"
_POSITION = ("topic", "partition", "offset")
_MAX_ORDINAL = 2**31 - 1


def with_source(df: DataFrame, name: str, *, ordinal: Column | int = 0, partitions: int | None = None) -> DataFrame:
    """Rows of a Kafka source, ready for a sink, each with a header that says which input record it was made of.

    The last step before ``writeStream``: it takes the source's columns ``topic``, ``partition`` and ``offset`` out,
    which a sink would take for the target. ``name`` is the query's, the same after every restart and of no other query
    that writes to the topic. ``ordinal`` tells several outputs of one input apart (0, 1, ...; 2^31 - 1 at most), as
    ``posexplode`` numbers them. A repeat must reach the same partition: rows with a key do; with ``partitions``, the
    number that the topic has, rows without a key go by their offset, else one fails the query.

    Exact for queries in which a row depends on one input record only, and always in the same way (docs/
    deduplicating-topics.md). Raises OptionError for missing columns or a name that can't be one.
    """
    names = {one.lower(): one for one in df.columns}
    missing = [one for one in (*_POSITION, "value") if one not in names]
    if missing:
        raise OptionError(
            f"with_source needs the columns {', '.join(missing)}; there are {', '.join(df.columns)}. Keep the source's "
            "topic, partition and offset up to here"
        )
    if not name or len(name.encode()) > 100:
        raise OptionError(f"a source's name has 1 to 100 bytes, not {name[:40]!r}")
    if "key" not in names and partitions is None:
        raise OptionError("there is no column key: with_source(..., partitions=N) spreads rows by their offset")
    if partitions is not None and partitions < 1:
        raise OptionError(f"a topic has at least one partition, not {partitions}")
    if isinstance(ordinal, int) and not 0 <= ordinal <= _MAX_ORDINAL:
        raise OptionError(f"an ordinal is from 0 to {_MAX_ORDINAL}, not {ordinal}")
    topic, partition, offset = (f.col(f"`{names[one]}`") for one in _POSITION)
    number = f.lit(ordinal) if isinstance(ordinal, int) else ordinal
    source = f.concat(f.lit(f"{name}/"), topic, f.lit("-"), partition.cast("string"))
    text = f.concat_ws(":", source, offset.cast("string"), number.cast("string"))
    header = f.array(f.struct(f.lit(SOURCE_HEADER).alias("key"), text.cast("binary").alias("value"))).cast(_HEADERS)
    if "headers" in names:
        given = f.col(f"`{names['headers']}`")
        others = f.filter(f.coalesce(given, f.array().cast(_HEADERS)), lambda one: one["key"] != f.lit(SOURCE_HEADER))
        header = f.concat(others, header)
    keyless = f.col(f"`{names['key']}`").isNull() if "key" in names else f.lit(True)
    columns = [f.col(f"`{one}`") for one in df.columns if one.lower() not in (*_POSITION, "headers")]
    if partitions is None:
        wrong = "a row without a key has no partition that is the same after a restart: with_source(..., partitions=N)"
        header = f.when(keyless, f.raise_error(f.lit(wrong)).cast(_HEADERS)).otherwise(header)
    else:
        place = f.pmod(partition.cast("long") + offset, f.lit(partitions)).cast("int")
        columns.append(f.when(keyless, place).alias("partition"))
    return df.select(*columns, header.alias("headers"))
