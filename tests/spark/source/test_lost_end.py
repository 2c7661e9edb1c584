"""A log that ends below a stream's position although its topic is the same: its broker was started on an old copy."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from fleetlog.spark.client.failures import DataLoss
from fleetlog.spark.source.options import ReadOptions
from fleetlog.spark.source.readers import StreamReader
from fleetlog.spark.versions import ReadAllAvailable, ReadMaxRows
from tests.spark.conftest import Cluster
from tests.support.fleet import Fleet

KEPT, WRITTEN, AGAIN = 40, 100, 25


def values(numbers: range) -> list[dict[str, Any]]:
    return [{"value": f"v{number}"} for number in numbers]


def rows(reader: StreamReader, start: Any, end: Any) -> list[str]:
    found = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [value.decode() for batch in found for value in batch.column("value").to_pylist()]


@pytest.mark.zookeeper
def test_it_stops_the_query_or_is_read_from_its_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet(tmp_path, brokers=1)
    try:
        (broker,) = fleet.start().brokers
        cluster = Cluster(fleet.bootstrap)
        topic = cluster.topic(1)
        cluster.send(topic, values(range(KEPT)))
        broker.stop()
        shutil.copytree(broker.directory / "data", tmp_path / "copy")
        broker.start()
        broker.wait_ready()
        cluster.send(topic, values(range(KEPT, WRITTEN)))
        options = {"kafka.bootstrap.servers": fleet.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}

        def reader(loss: str) -> StreamReader:
            return StreamReader(ReadOptions.parse({**options, "failOnDataLoss": loss}, streaming=True))

        first = reader("true")
        position = first.latestOffset(first.initialOffset(), ReadAllAvailable())
        assert position[topic] == {"0": WRITTEN}
        broker.stop()
        shutil.rmtree(broker.directory / "data")
        shutil.copytree(tmp_path / "copy", broker.directory / "data")
        broker.start()
        broker.wait_ready()
        cluster.send(topic, values(range(KEPT, KEPT + AGAIN)))
        said = f"{topic}-0: the position is {WRITTEN}, and the log ends at {KEPT + AGAIN}: it is read from the start"
        with pytest.raises(DataLoss, match=said):
            reader("true").latestOffset(position, ReadAllAvailable())
        left = reader("false")
        caplog.set_level(logging.WARNING, "fleetlog.spark")
        found, ends = [], []
        for limit in (ReadMaxRows(50), ReadMaxRows(50), ReadMaxRows(50)):
            end = left.latestOffset(position, limit)
            found += rows(left, position, end)
            position = end
            ends.append(end[topic]["0"])
        assert found == [f"v{number}" for number in range(KEPT + AGAIN)]
        assert ends == [50, KEPT + AGAIN, KEPT + AGAIN]
        warned = [record.getMessage() for record in caplog.records if record.name.startswith("fleetlog.spark")]
        assert warned == [said]
    finally:
        fleet.close()
