"""The query in whose micro-batch a function of foreachBatch is called, as Spark's JVM knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetlog.spark.client.failures import FenceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def is_connect(session: Any) -> bool:
    """Whether a session is one of Spark Connect: its Python has no JVM."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def refuse_connect(session: Any) -> None:
    """Raises FenceError for a session of Spark Connect, where a function of foreachBatch has no access to its query."""
    if is_connect(session):
        raise FenceError(
            "write_stream and exactly_once_batch need a classic Spark session: over Spark Connect a function of "
            "foreachBatch has no access to the id of its query. There write_stream(..., by_format=True) works, and "
            "df.writeStream.format('fleetlog')"
        )


@dataclass(frozen=True)
class RunningQuery:
    """A query's id, as its checkpoint keeps it, and the id of its run, which a restart changes."""

    id: str
    run_id: str
    _execution: Any

    def runs(self) -> bool:
        """Whether this run goes on: a query has one at a time."""
        return bool(self._execution.isActive())


def running_query(df: DataFrame, checkpoint: str) -> RunningQuery:
    """The query that runs this batch.

    Raises FenceError when the query's checkpoint is not ``checkpoint``, or when its output mode is complete.
    """
    session = df.sparkSession
    query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query_id:
        raise FenceError("exactly_once_batch works only as the function of foreachBatch in a streaming query")
    jvm, jsession = session._jvm, session._jsparkSession
    assert jvm is not None
    execution = _execution(session, query_id)
    if execution is None:
        raise FenceError(f"Spark does not list query {query_id} among its running ones")
    if execution.outputMode().toString().lower() == "complete":
        raise FenceError("output mode complete rewrites its whole result in every batch; a topic can't be rewritten")
    wanted = jvm.org.apache.hadoop.fs.Path(checkpoint)
    filesystem = wanted.getFileSystem(jsession.sessionState().newHadoopConf())
    if (
        filesystem.makeQualified(wanted).toString()
        != filesystem.makeQualified(jvm.org.apache.hadoop.fs.Path(execution.resolvedCheckpointRoot())).toString()
    ):
        raise FenceError(
            f"the query keeps its checkpoint in {execution.resolvedCheckpointRoot()}, and the sink's option "
            f"checkpointLocation is {checkpoint}: give both the same one, or a restart would be taken for a new query"
        )
    return RunningQuery(str(query_id), str(execution.runId()), execution)


def is_active(session: SparkSession, query_id: str) -> bool:
    """Whether a query with that id runs, in whichever session of the application; not when Spark has been stopped."""
    from py4j.protocol import Py4JError  # a client of Spark Connect comes without it

    try:
        return _execution(session, query_id) is not None
    except (Py4JError, OSError):
        return False


def _execution(session: SparkSession, query_id: str) -> Any:
    jvm = session._jvm
    assert jvm is not None
    running = session._jsparkSession.sharedState().activeStreamingQueries()
    return running.get(jvm.java.util.UUID.fromString(query_id))
