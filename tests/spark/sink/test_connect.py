"""Spark Connect, with a real server: the format in and out, exactly once while the server is killed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlog.spark import exactly_once_batch, write_stream
from fleetlog.spark.client.failures import FenceError
from tests.spark.conftest import Cluster
from tests.spark.connected import Connected
from tests.spark.sink.job import committed

ROWS, PARTITIONS = 600, 3
FIRST_BATCHES = 30
"""Offsets of each: what is left when the second is committed and its server killed takes long enough."""


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., Connected]]:
    """Starts server and client; ends what was started."""
    made: list[Connected] = []

    def start(name: str, **given: Any) -> Connected:
        made.append(Connected(tmp_path, name, ["-m", "tests.spark.sink.connect_client"], **given))
        return made[-1]

    yield start
    for one in made:
        one.kill()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark")  # never two Sparks side by side
def test_a_server_is_killed_and_each_row_counts_once(cluster: Cluster, connect: Any, tmp_path: Path) -> None:
    source, target, job_target = cluster.topic(2), cluster.topic(PARTITIONS), cluster.topic(1)
    values = sorted(f"v{number}" for number in range(ROWS))
    cluster.send(source, [{"key": value, "value": value} for value in values], partitioner="murmur2_random")
    given = {
        "bootstrap": cluster.bootstrap,
        "source": source,
        "target": target,
        "job_target": job_target,
        "partitions": PARTITIONS,
        "sink_id": f"connect-{uuid.uuid4().hex[:8]}",
        "checkpoint": str(tmp_path / "checkpoint"),
        "values": values,
    }
    first = connect("first", what="stream", per_batch=FIRST_BATCHES, **given)
    assert first.client.exit_code is None
    assert first.server.wait("batch 1: committed"), first.server.log()[-4000:]
    first.kill()
    assert len(cluster.values(target)) < ROWS
    for note in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        note.unlink()  # as when the kill comes before Spark's note of the batch, which it may have been in time for
    second = connect("last", what="everything", per_batch=ROWS, query_name="orders to the fleet", **given)
    last = second.client
    last.wait()
    assert last.exit_code == 0, last.log()[-4000:]
    seen = json.loads(next(line for line in last.log().splitlines() if line.startswith("{")))
    assert seen["values"] == committed(cluster, target, ROWS) == values
    assert "batch 1: skipped, it was committed before" in second.server.log()
    assert seen["apart"] == 0
    commits = (int(path.name) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert seen["counted"] == max(commits) > 1, "the last batch that counts, as the client is told by the brokers"
    assert committed(cluster, job_target, ROWS) == values
    assert "by_format=True" in seen["refused"]
    assert "option subscibe is unknown; did you mean subscribe?" in seen["misspelt"]


class ConnectSession:
    """What a session of Spark Connect looks like from outside; its package needs gRPC to be imported."""


ConnectSession.__module__ = "pyspark.sql.connect.session"


def test_functions_refuse_a_session_without_a_jvm() -> None:
    df: Any = SimpleNamespace(sparkSession=ConnectSession())
    with pytest.raises(FenceError, match=r"classic Spark session.*writeStream\.format"):
        write_stream(df, bootstrap_servers="127.0.0.1:1", sink_id="s", checkpoint_location="/c", topic="t")
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "sinkId": "s", "checkpointLocation": "/c", "topic": "t"}
    with pytest.raises(FenceError, match="classic Spark session"):
        exactly_once_batch(options)(df, 0)
