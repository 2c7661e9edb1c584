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

from spark_udfs import offsets_behind_latest
from spark_udfs.java import spark_environment
from spark_udfs.sink.events import BatchFigures
from spark_udfs.sink.handover import (
    close_handover,
    directory_of,
    hand_over_figures,
    open_handover,
    take_over_figures,
)
from tests.spark.conftest import Cluster

ROOT = Path(__file__).parents[3]
FIGURES = BatchFigures("committed", 60, 1200, 3, 12.5, 3.25)
LINE = "sink s, query q, batch 7: committed, 60 rows, 1200 bytes, 3 tasks, written in 12 ms, commit in 3 ms"
LOG = f"from spark_udfs.sink.events import *; log_batch('s', 'q', 7, BatchFigures{tuple(FIGURES)!r})"

JOB = """
import json, logging, sys
from pyspark.sql import SparkSession
from spark_udfs import SinkListener, write_stream
bootstrap, source, target, directory = sys.argv[1:]
spark = (SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.memory", "1g").config("spark.sql.shuffle.partitions", "2")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC").getOrCreate())
def tell(one):
    f = one.figures
    print(json.dumps([one.query_id, f and [f.stage, f.rows, f.tasks, f.write_ms > 0, f.commit_ms > 0]]), flush=True)
spark.streams.addListener(SinkListener(tell))
rows = (spark.readStream.format("fleetlog").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source)
    .option("startingOffsets", "earliest").load().select("value"))
for by_format in (True, False):
    query = write_stream(rows, bootstrap_servers=bootstrap, sink_id=f"{target}-{by_format}", topic=target,
        checkpoint_location=f"{directory}/{by_format}", trigger={"availableNow": True}, by_format=by_format)
    query.awaitTermination(120)
spark.stop()
"""


def ran(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    env = {**spark_environment(), "PYTHONUNBUFFERED": "1"} if arguments else dict(os.environ)
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=env, timeout=240)


def test_a_batch_is_a_line_on_stderr_where_nothing_configures_logging() -> None:
    assert ran(LOG).stderr.endswith(f"INFO fleetlog: {LINE}\n")


def test_configured_logging_decides_by_its_level() -> None:
    assert not ran(f"import logging; logging.basicConfig(); {LOG}").stderr
    configured = f"import logging; logging.basicConfig(level='INFO'); {LOG}"
    assert ran(configured).stderr == f"INFO:spark_udfs.sink.events:{LINE}\n"


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
@pytest.mark.xdist_group("spark")
def test_every_way_tells_the_driver_and_its_listener(cluster: Cluster, tmp_path: Path) -> None:
    source, target = cluster.topic(2), cluster.topic(2)
    cluster.send(source, [{"value": f"v{n}"} for n in range(60)])
    done = ran(JOB, cluster.bootstrap, source, target, str(tmp_path))
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert [figures for _, figures in told if figures] == [["committed", 60, 2, True, True]] * 2, done.stdout
    for query, sink in zip([query for query, figures in told if figures], ("True", "False"), strict=True):
        line = f"INFO fleetlog: sink {target}-{sink}, query {query}, batch 0: committed, 60 rows, "
        assert sum(line in said for said in done.stderr.splitlines()) == 1, done.stderr[-3000:]
