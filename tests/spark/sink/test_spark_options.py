"""What Spark itself adds to a format's options, or takes away: each form works, or a sentence says which one does."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import Cluster, run_to_end
from tests.spark.sink.job import Job, Read

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side

NO_OPTIONS = r"no option is set\. Spark hands a table's options to no data source in Python"
NOT_MADE = r"a table can't be created"


@pytest.fixture
def job(cluster: Cluster, read_stream: Read, tmp_path: Path) -> Job:
    return Job(cluster, read_stream, tmp_path)


@pytest.fixture
def name(spark: Any) -> Any:
    """Of a table, which goes in the end."""
    chosen = f"t{uuid.uuid4().hex[:8]}"
    yield chosen
    spark.sql(f"DROP TABLE IF EXISTS {chosen}")


def sink_options(job: Job) -> dict[str, str]:
    return {"kafka.bootstrap.servers": job.cluster.bootstrap, "topic": job.target, "sinkId": job.sink_id}


@pytest.mark.parametrize(
    "write",
    [
        lambda writer, df, name, options: writer.save("/path"),
        lambda writer, df, name, options: writer.option("path", "/path").saveAsTable(name),
        lambda writer, df, name, options: df.writeTo(name).using("fleetlog").options(**options).create(),
    ],
    ids=["save(path)", "saveAsTable", "writeTo"],
)
def test_a_batch_is_written_whatever_it_is_called(job: Job, spark: Any, name: str, write: Callable[..., None]) -> None:
    df = spark.range(2).selectExpr("string(id) AS value")
    options = sink_options(job)
    write(df.write.format("fleetlog").mode("append").options(**options), df, name, options)
    assert job.values(2) == ["0", "1"]
    if spark.catalog.tableExists(name):
        with pytest.raises(Exception, match=NO_OPTIONS):
            spark.table(name).count()


@pytest.mark.parametrize(
    "start",
    [
        lambda writer, name: writer.start("/path"),
        lambda writer, name: writer.queryName(name).partitionBy("value").start(),
        lambda writer, name: writer.toTable(name),
    ],
    ids=["start(path)", "queryName", "toTable"],
)
def test_a_stream_is_written_whatever_it_is_called(job: Job, name: str, start: Callable[..., Any]) -> None:
    job.send("a")
    options = {**sink_options(job), "checkpointLocation": str(job.checkpoint)}
    writer = job.rows().writeStream.format("fleetlog").options(**options).trigger(availableNow=True)
    run_to_end(lambda: start(writer, name))
    assert job.values(1) == ["a"]


def test_tables_say_which_form_works(job: Job, spark: Any, name: str, tmp_path: Path) -> None:
    using = f"USING fleetlog OPTIONS (`kafka.bootstrap.servers` '{job.cluster.bootstrap}', subscribe '{job.source}')"
    with pytest.raises(Exception, match=NOT_MADE):
        spark.sql(f"CREATE TABLE {name} {using} LOCATION '{tmp_path}'")
    with pytest.raises(Exception, match=NOT_MADE):
        spark.catalog.createTable(name, source="fleetlog", subscribe=job.source)
    with pytest.raises(Exception, match=NO_OPTIONS):
        spark.sql(f"CREATE TABLE {name} {using} AS SELECT 'a' AS value")
    spark.sql(f"DROP TABLE IF EXISTS {name}")
    spark.sql(f"CREATE TABLE {name} (value STRING) {using}")  # Spark asks nobody
    with pytest.raises(Exception, match=NO_OPTIONS):
        spark.table(name).count()
    with pytest.raises(Exception, match=NO_OPTIONS):
        spark.sql(f"INSERT INTO {name} VALUES ('a')")
    with pytest.raises(Exception, match=NO_OPTIONS):
        spark.range(1).selectExpr("string(id) AS value").write.insertInto(name)
    assert job.values() == []


def test_paths_of_a_load(job: Job, spark: Any) -> None:
    """One has no meaning and is ignored, as by Spark's own source; a list is refused."""
    job.send("a")
    options = {"kafka.bootstrap.servers": job.cluster.bootstrap, "subscribe": job.source}
    assert spark.read.format("fleetlog").options(**options).load("/path").count() == 1
    with pytest.raises(Exception, match=r"option paths can't be set: .* named by subscribe"):
        spark.read.format("fleetlog").options(**options).load(["/path", "/other"])
