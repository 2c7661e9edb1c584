"""What Spark's Python workers loaded is left out of the collection after each of their tasks."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from fleetlog.spark.data_source import FleetlogSource
from fleetlog.spark.source.options import ReadOptions
from fleetlog.spark.source.readers import BatchReader
from tests.spark.conftest import Cluster

OTHERS = """
import gc, sys
from fleetlog.spark.client.workers import keep_loaded
keep_loaded()
assert gc.get_freeze_count() == 0, gc.get_freeze_count()
"""
OF_DAEMON = """
import gc, sys
from types import SimpleNamespace
sys.modules["__main__"].__spec__ = SimpleNamespace(name="pyspark.daemon")
from fleetlog.spark.client import workers
workers.keep_loaded()
frozen = gc.get_freeze_count()
assert frozen > 1000, frozen
kept = [[] for _ in range(10_000)]
workers.keep_loaded()
assert gc.get_freeze_count() <= frozen, "what a task made was frozen, with nothing loaded"
import colorsys
workers.keep_loaded()
assert gc.get_freeze_count() > frozen, "what was loaded later is walked"
"""


class ProbeReader(BatchReader):
    """Replaces values by what the garbage collector of its worker has frozen, and what it still walks."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for rows in super().read(partition):
            figures = f"{gc.get_freeze_count()} {len(gc.get_objects())}".encode()
            values = pa.array([figures] * rows.num_rows, pa.binary())
            yield rows.set_column(rows.schema.names.index("value"), "value", values)


class Probe(FleetlogSource):
    @classmethod
    def name(cls) -> str:
        return "probe"

    def reader(self, schema: Any) -> ProbeReader:
        return ProbeReader(ReadOptions.parse(self.options, streaming=False))


class ProbeWriter(FleetlogSource):
    """Notes at each plan of a write what the garbage collector of the planning process has frozen, and still walks."""

    @classmethod
    def name(cls) -> str:
        return "probe_writer"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        found = super().writer(schema, overwrite)
        with Path(self.options["checkpointLocation"]).open("a") as notes:
            notes.write(f"{gc.get_freeze_count()} {len(gc.get_objects())}\n")
        return found


def ran(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_worker_walks_little_after_it_ran_a_task_of_ours(spark: Any, cluster: Cluster) -> None:
    topic = cluster.topic(partitions=1)
    cluster.send(topic, [{"value": f"v{number}".encode()} for number in range(10)])
    spark.dataSource.register(Probe)
    rows = spark.read.format("probe").option("kafka.bootstrap.servers", cluster.bootstrap).option("subscribe", topic)
    found = [rows.load().collect()[0].value for _ in range(4)]
    frozen, walked = map(int, found[-1].split())  # the first task of a process loads modules on its way
    assert frozen > 10 * walked, found


def test_the_process_that_plans_writes_walks_little(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.topic(partitions=1)
    spark.dataSource.register(ProbeWriter)
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic, "sinkId": f"sink-{topic}"}
    for _ in range(4):
        rows = spark.range(10).selectExpr("cast(id as string) as value")
        rows.write.format("probe_writer").options(**options, checkpointLocation=str(tmp_path / "notes")).mode(
            "append"
        ).save()
    found = (tmp_path / "notes").read_text().splitlines()
    frozen, walked = map(int, found[-1].split())  # the first plan of a process loads modules on its way
    assert frozen > 10 * walked, found


def test_only_what_was_loaded_is_frozen_and_again_when_more_was() -> None:
    ran(OF_DAEMON)


def test_other_processes_keep_their_collector() -> None:
    ran(OTHERS)
