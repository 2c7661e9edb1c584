"""A query whose first batch is planned and not committed: what it reads when it is started again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka import TopicPartition

from tests.spark.conftest import Cluster, run_to_end, run_while
from tests.spark.connected import Connected
from tests.spark.pipelines import Pipeline
from tests.spark.processes import SUBMIT, SparkProcess
from tests.spark.sink.job import committed

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side

Read = Callable[..., Any]
TRIGGERS: dict[str, dict[str, Any]] = {
    "default": {},
    "processing time": {"processingTime": "200 milliseconds"},
    "available now": {"availableNow": True},
    "once": {"once": True},
}
GOES_ON = ("default", "processing time")


class Query:
    """A query that is started several times with one checkpoint."""

    def __init__(self, checkpoint: Path, trigger: str) -> None:
        self._checkpoint, self._trigger = checkpoint, trigger
        self.values: list[str] = []
        self.sizes: list[int] = []

    def _start(self, rows: Any, do: Callable[[Any, int], None]) -> Callable[[], Any]:
        writer = rows.writeStream.foreachBatch(do).option("checkpointLocation", str(self._checkpoint))
        return writer.trigger(**TRIGGERS[self._trigger]).start if TRIGGERS[self._trigger] else writer.start

    def fail(self, rows: Any, *, read: bool) -> None:
        """Batch 0 ends with an error, after its records were read or before."""

        def stop(df: Any, batch_id: int) -> None:
            if read:
                df.collect()
            raise ValueError(f"batch {batch_id} is given up")

        with pytest.raises(Exception, match="batch 0 is given up"):
            run_to_end(self._start(rows, stop))

    def run(self, rows: Any, count: int) -> None:
        """Until ``count`` records came in all, or to its end."""

        def keep(df: Any, _: int) -> None:
            found = [row.value.decode() for row in df.select("value").collect()]
            self.sizes.append(len(found))
            self.values.extend(found)

        start = self._start(rows, keep)
        if self._trigger not in GOES_ON:
            run_to_end(start)
            return
        query = run_while(start, lambda: len(self.values), f"{count} records", lambda seen: seen >= count)
        query.processAllAvailable()
        query.stop()


def numbered(first: int, last: int, **more: Any) -> list[dict[str, Any]]:
    return [{"value": f"v{number}", **more} for number in range(first, last)]


def text(first: int, last: int) -> list[str]:
    return [f"v{number}" for number in range(first, last)]


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_records_since_the_first_start_and_no_others(
    cluster: Cluster, read_stream: Read, tmp_path: Path, trigger: str
) -> None:
    topic = cluster.topic(partitions=1)
    cluster.send(topic, numbered(0, 10))
    query = Query(tmp_path / "checkpoint", trigger)
    latest = {"subscribe": topic, "startingOffsets": "latest"}
    query.fail(read_stream(**latest), read=trigger in GOES_ON)
    cluster.send(topic, numbered(10, 15))
    query.fail(read_stream(**latest), read=False)
    cluster.send(topic, numbered(15, 17))
    if trigger == "once":  # its one batch is the one that was planned
        query.run(read_stream(**latest), 0)
        assert query.values == []
    query.run(read_stream(**latest), 7)
    assert query.values == text(10, 17)
    assert query.sizes == [0, 7], "the batch that was planned before, and one for all that came since"


@pytest.mark.parametrize("trigger", ["default", "available now"])
def test_a_start_that_is_a_time_of_each_start(
    cluster: Cluster, read_stream: Read, tmp_path: Path, trigger: str
) -> None:
    topic = cluster.topic(partitions=1)
    now = int(time.time() * 1000)
    cluster.send(topic, numbered(0, 10, timestamp=now - 60_000))
    cluster.send(topic, numbered(10, 15, timestamp=now))
    query = Query(tmp_path / "checkpoint", trigger)
    query.fail(read_stream(subscribe=topic, startingTimestamp=now - 1000), read=True)
    query.run(read_stream(subscribe=topic, startingTimestamp=now + 3_600_000), 5)  # by itself an error: no such record
    assert query.values == text(10, 15)


def test_records_that_were_deleted_before_the_restart_are_data_loss(
    cluster: Cluster, read_stream: Read, tmp_path: Path
) -> None:
    topic = cluster.topic(partitions=1)
    cluster.send(topic, numbered(0, 10))
    query = Query(tmp_path / "checkpoint", "available now")
    query.fail(read_stream(subscribe=topic), read=False)
    for done in cluster.admin.delete_records([TopicPartition(topic, 0, 4)]).values():
        done.result(30)
    with pytest.raises(Exception, match=r"offset 0 of the range 0\.\.10 is gone; the log starts at 4"):
        query.run(read_stream(subscribe=topic), 10)
    query.run(read_stream(subscribe=topic, failOnDataLoss="false"), 6)
    assert query.values == text(4, 10)


def test_a_checkpoint_of_an_older_version(cluster: Cluster, read_stream: Read, tmp_path: Path) -> None:
    """It has no start of its first batch; of a later one it needs none."""
    topic = cluster.topic(partitions=1)
    cluster.send(topic, numbered(0, 10))
    latest = {"subscribe": topic, "startingOffsets": "latest"}
    query = Query(tmp_path / "checkpoint", "available now")
    query.fail(read_stream(**latest), read=False)
    note = tmp_path / "checkpoint" / "offsets" / "0"
    *before, end = note.read_text().splitlines()
    older = json.loads(end)
    del older["topic ids"]["planned from"]
    note.write_text("\n".join([*before, json.dumps(older)]))
    note.with_name(".0.crc").unlink(missing_ok=True)
    cluster.send(topic, numbered(10, 15))
    with pytest.raises(Exception, match=r"the batch ends at 10, below its start 15.*startingOffsets"):
        query.run(read_stream(**latest), 5)
    query.run(read_stream(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 10}})), 5)
    assert query.values == text(10, 15)
    cluster.send(topic, numbered(15, 20))
    query.run(read_stream(**latest), 10)
    assert query.values == text(10, 20)


def wait_until_held(directory: Path, process: SparkProcess) -> None:
    """Until `first_batch_job`, whose file is in the directory, stays in its batch 0."""
    note = directory / "values.held"
    assert process.wait_for(note), process.log()[-4000:]
    assert note.read_text() == "batch 0"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trigger", ["available now", "processing time"])
def test_a_driver_is_killed_in_its_first_batch(cluster: Cluster, tmp_path: Path, trigger: str) -> None:
    topic = cluster.topic(partitions=1)
    cluster.send(topic, numbered(0, 10))
    given = {
        "bootstrap": cluster.bootstrap, "topic": topic, "checkpoint": str(tmp_path / "checkpoint"),
        "trigger": TRIGGERS[trigger],
    }  # fmt: skip
    submit = str(Path(str(pyspark.__file__)).parent / "bin" / "spark-submit")
    job = str(Path(__file__).with_name("first_batch_job.py"))

    def started(name: str, **more: Any) -> SparkProcess:
        told = json.dumps({**given, "file": str(tmp_path / "values"), **more})
        return SparkProcess([submit, *SUBMIT, job, told], tmp_path / f"{name}.log")

    held = started("held", hold=True)
    try:
        wait_until_held(tmp_path, held)
        assert list(held.temporary.glob("blockmgr-*")), "what a killed Spark leaves is there"
    finally:
        held.kill()
    assert not held.temporary.exists()
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    cluster.send(topic, numbered(10, 15))
    again = started("again", hold=False)
    try:
        again.wait()
        assert again.exit_code == 0, again.log()[-4000:]
    finally:
        again.kill()
    assert (tmp_path / "values").read_text().split() == text(10, 15)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trigger", ["available now", "processing time"])
def test_a_connect_server_is_killed_in_the_first_batch_of_a_client(
    cluster: Cluster, tmp_path: Path, trigger: str
) -> None:
    topic = cluster.topic(partitions=1)
    cluster.send(topic, numbered(0, 10))
    given = {
        "bootstrap": cluster.bootstrap, "topic": topic, "checkpoint": str(tmp_path / "checkpoint"),
        "trigger": TRIGGERS[trigger], "file": str(tmp_path / "values"),
    }  # fmt: skip
    program = [str(Path(__file__).with_name("first_batch_job.py"))]
    held = Connected(tmp_path, "held", program, hold=True, **given)
    try:
        wait_until_held(tmp_path, held.client)
    finally:
        held.kill()
    assert (tmp_path / "checkpoint" / "offsets" / "0").exists()
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    cluster.send(topic, numbered(10, 15))
    again = Connected(tmp_path, "again", program, hold=False, **given)
    try:
        again.client.wait()
        assert again.client.exit_code == 0, again.client.log()[-4000:]
    finally:
        again.kill()
    assert (tmp_path / "values").read_text().split() == text(10, 15)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pipeline_is_killed_in_its_first_batch(cluster: Cluster, tmp_path: Path) -> None:
    """It reads partition 0 from its end; partition 1 has the records of the first batch, which are held."""
    source, target = cluster.topic(2), cluster.topic(1)
    cluster.send(source, numbered(0, 10, key="k", partition=0))
    cluster.send(source, numbered(10, 20, key="k", partition=1))
    pipeline = Pipeline(cluster.bootstrap, source, target, tmp_path)

    def more() -> None:
        for number in range(2):
            cluster.send(source, numbered(20 + 5 * number, 25 + 5 * number, key="k", partition=number))

    pipeline.run_again_after_a_kill_in_its_first_batch({"0": -1, "1": -2}, more)
    assert committed(cluster, target, 20) == [value.upper() for value in text(10, 30)]
