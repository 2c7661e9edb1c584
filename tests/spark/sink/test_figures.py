"""What was committed is said where people look: the driver's log, and a SinkListener in every way of writing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from fleetlog.spark import offsets_behind_latest
from fleetlog.spark.java import spark_environment
from fleetlog.spark.sink.events import BatchFigures
from fleetlog.spark.sink.handover import (
    close_handover,
    directory_of,
    hand_over_figures,
    open_handover,
    take_over_figures,
)
from tests.spark.conftest import Cluster
from tests.spark.sink.job import committed

ROOT = Path(__file__).parents[3]
FIGURES = BatchFigures("committed", 60, 1200, 3, 12.5, 3.25)
LINE = "sink s, query q, batch 7: committed, 60 rows, 1200 bytes, 3 tasks, written in 12 ms, commit in 3 ms"
LOG = f"from fleetlog.spark.sink.events import *; log_batch('s', 'q', 7, BatchFigures{tuple(FIGURES)!r})"

JOB = """
import json, os, sys
from pathlib import Path
from pyspark.sql import SparkSession
from fleetlog.spark import SinkListener, write_stream
from tests.spark.conftest import run_to_end
from tests.spark.realtime.query import spark_home
bootstrap, source, directory, targets = sys.argv[1:4] + [json.loads(sys.argv[4])]
os.environ |= {"SPARK_HOME": str(spark_home(Path(directory))), "SPARK_LOCAL_IP": "127.0.0.1"}
spark = (SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.memory", "1g").config("spark.sql.shuffle.partitions", "2")
    .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC").getOrCreate())
def tell(one):
    f = one.figures
    print(json.dumps([one.query_id, f and [f.stage, f.rows, f.tasks, f.write_ms > 0, f.commit_ms > 0]]), flush=True)
spark.streams.addListener(SinkListener(tell))
def where(rows):
    import pyarrow
    yield pyarrow.record_batch([pyarrow.array([os.getcwd()])], ["found"])
print("executors", len(set(spark.range(0, 4, 1, 4).mapInArrow(where, "found string").collect())))
rows = (spark.readStream.format("fleetlog").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source)
    .option("startingOffsets", "earliest").load().select("value"))
given = {"small": {"sink.small.batch.rows": "1000"}, "driver": {"sink.mode": "driver"}}
try:
    for way, target in targets.items():
        run_to_end(lambda: write_stream(rows, bootstrap_servers=bootstrap, sink_id=target, topic=target,
            checkpoint_location=f"{directory}/{way}", trigger={"availableNow": True}, by_format=way == "format",
            options=given.get(way, {})))
finally:
    spark.stop()
"""


def ran(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    env = {**spark_environment(), "PYTHONUNBUFFERED": "1"} if arguments else dict(os.environ)
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=env, timeout=560)
    assert done.returncode == 0, done.stderr[-5000:]
    return done


def test_a_batch_is_a_line_on_stderr_where_nothing_configures_logging() -> None:
    assert ran(LOG).stderr.endswith(f"INFO fleetlog: {LINE}\n")


def test_configured_logging_decides_by_its_level() -> None:
    assert not ran(f"import logging; logging.basicConfig(); {LOG}").stderr
    configured = f"import logging; logging.basicConfig(level='INFO'); {LOG}"
    assert ran(configured).stderr == f"INFO:fleetlog.spark.sink.events:{LINE}\n"


def test_figures_are_handed_over_once_and_only_to_a_listener(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    query = str(uuid.uuid4())
    hand_over_figures(query, 0, FIGURES)
    assert not directory_of(query).exists()
    open_handover(query)
    hand_over_figures(query, 1, FIGURES)
    assert take_over_figures(query, 0) is None
    assert take_over_figures(query, 1) == FIGURES
    assert take_over_figures(query, 1) is None
    assert directory_of(query).stat().st_mode & 0o077 == 0
    close_handover(query)
    hand_over_figures(query, 2, FIGURES)
    assert not directory_of(query).exists()


def test_a_listener_that_was_killed_is_left_no_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    query = str(uuid.uuid4())
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    open_handover(query)
    (directory_of(query) / "listener").write_bytes(ended.stdout)
    hand_over_figures(query, 0, FIGURES)
    assert not directory_of(query).exists()


def test_lag_has_the_form_of_sparks_own_source() -> None:
    source = SimpleNamespace(
        endOffset='{"t": {"0": 10, "1": 5}, "topic ids": {"t": "x"}}', latestOffset='{"t": {"0": 12, "1": 10}}'
    )
    assert offsets_behind_latest(SimpleNamespace(sources=[source])) == {
        "avgOffsetsBehindLatest": "3.5",
        "maxOffsetsBehindLatest": "5",
        "minOffsetsBehindLatest": "2",
    }
    assert offsets_behind_latest(SimpleNamespace(sources=[])) == {}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark")
def test_every_way_on_executors_of_their_own_is_exact_and_tells_the_driver_and_its_listener(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Two executors, each a process with a Python of its own: ``local-cluster``. A batch by each way.

    A small batch, and one of driver mode, has one writer.
    """
    source, targets = cluster.topic(2), {way: cluster.topic(2) for way in ("format", "tasks", "small", "driver")}
    rows = [{"value": f"v{n:02}", "partition": n % 2} for n in range(60)]
    cluster.send(source, rows)
    done = ran(JOB, cluster.bootstrap, source, str(tmp_path), json.dumps(targets))
    assert "executors 2\n" in done.stdout
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    figures = [(query, of_batch) for query, of_batch in told if of_batch]
    by_tasks, by_driver = ["committed", 60, 2, True, True], ["committed", 60, 1, True, True]
    assert [of_batch for _, of_batch in figures] == [by_tasks, by_tasks, by_driver, by_driver], done.stdout
    for (query, _), target in zip(figures, targets.values(), strict=True):
        line = f"INFO fleetlog: sink {target}, query {query}, batch 0: committed, 60 rows, "
        assert sum(line in said for said in done.stderr.splitlines()) == 1, done.stderr[-3000:]
    for way, target in targets.items():
        assert committed(cluster, target, len(rows)) == [row["value"] for row in rows], way
