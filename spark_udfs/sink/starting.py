"""Starts queries into the sink, from any Python thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.sink.events import SinkEvent
from fleetlog.spark.sink.foreach_batch import encoded_rows, exactly_once_batch, prepared_rows
from fleetlog.spark.sink.options import SinkOptions, WriteOptions
from fleetlog.spark.sink.running import is_connect, refuse_connect
from fleetlog.spark.versions import require_data_sources, session_class

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def use_in_thread(spark: SparkSession) -> None:
    """Make a session the active one of this Python thread: ``format("fleetlog")`` then starts here, too.

    Spark finds data sources that are written in Python by the thread's active session. A thread that Python starts has
    none, and ``start()`` ends with DATA_SOURCE_NOT_FOUND. `write_stream` calls this. Over Spark Connect, which has no
    such threads, it does nothing.
    """
    if is_connect(spark):
        return
    session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def write_stream(
    df: DataFrame,
    *,
    bootstrap_servers: str,
    sink_id: str,
    checkpoint_location: str,
    topic: str | None = None,
    query_name: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    output_mode: str = "append",
    options: Mapping[str, str] | None = None,
    on_event: Callable[[SinkEvent], None] | None = None,
    by_format: bool = False,
    **kafka: Any,
) -> StreamingQuery:
    """Start a streaming query into the sink, from any thread. Options and columns are checked before it starts.

    ``kafka``: settings, ``_`` for ``.``; ``trigger`` as in Spark. The way is ``foreachBatch`` with
    `exactly_once_batch`, or with ``by_format`` that of ``format("fleetlog")``, which Spark Connect has, too.

    Raises OptionError; FenceError for ``foreachBatch`` over Spark Connect.
    """
    if not by_format:
        refuse_connect(df.sparkSession)
    if output_mode.lower() == "complete":
        raise OptionError("output mode complete rewrites its whole result in every batch; a topic can't be rewritten")
    every = {
        **{f"kafka.{name.replace('_', '.')}": str(value) for name, value in kafka.items()},
        **(options or {}),
        "kafka.bootstrap.servers": bootstrap_servers,
        "sinkId": sink_id,
        "checkpointLocation": checkpoint_location,
        **({} if topic is None else {"topic": topic}),
    }
    if by_format:
        require_data_sources()
        writer = _format_writer(df, every, output_mode, on_event)
    else:
        subject = SinkOptions.parse(every).subject
        if subject is not None:
            encoded_rows(df, topic or every.get("topic"), subject)
        writer = df.writeStream.foreachBatch(exactly_once_batch(every, on_event=on_event))
    writer = writer.outputMode(output_mode).option("checkpointLocation", checkpoint_location)
    if query_name is not None:
        writer = writer.queryName(query_name)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    use_in_thread(df.sparkSession)
    query: StreamingQuery = writer.start()
    return query


def _format_writer(df: DataFrame, options: Mapping[str, str], output_mode: str, on_event: Any) -> Any:
    if output_mode.lower() != "append":
        raise OptionError(f"output mode {output_mode}: Spark has it for foreachBatch only: leave by_format out")
    if on_event is not None:
        raise OptionError("on_event: the format commits in another process; a SinkListener is given its figures")
    rows = prepared_rows(df, options.get("topic"), structs=any(name.lower() == "schema.subject" for name in options))
    WriteOptions.parse(options, rows.schema).with_schema(rows.schema)
    return rows.writeStream.format("fleetlog").options(**options)
