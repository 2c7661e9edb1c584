"""An example with topics, sink and checkpoint of its own: run as its README says, killed, run again."""

from __future__ import annotations

import importlib
import json
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from fleetlog.spark import Fence, read_fence
from tests.spark.conftest import STARTS, Cluster
from tests.spark.examples.expected import Row, lines
from tests.spark.processes import SparkProcess
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]


class Run:
    """``inputs``: the option of each topic that is read, and the file that fills it, in one partition or ``parts``."""

    def __init__(
        self, name: str, inputs: Mapping[str, str], cluster: Cluster, directory: Path, per_batch: int, parts: int = 1
    ) -> None:
        self.module: Any = importlib.import_module(f"examples.{name}")
        self.cluster = cluster
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        self.sink_id = f"{name}-{uuid.uuid4().hex[:8]}"
        self.target = cluster.topic(3)
        self.sources = {option: cluster.topic(parts) for option in inputs}
        for option, file in inputs.items():
            rows = [{"key": key, "value": value and json.dumps(value)} for key, value in lines(file)]
            cluster.send(self.sources[option], rows)
        self.arguments = ["--bootstrap", cluster.bootstrap, "--checkpoint", str(self.checkpoint), "--once"]
        self.arguments += ["--target", self.target, "--sink-id", self.sink_id, "--per-batch", str(per_batch)]
        for option, topic in self.sources.items():
            self.arguments += [f"--{option}", topic]
        self._drivers = 0

    def driver(self) -> SparkProcess:
        """Starts the example's command."""
        self._drivers += 1
        command = [sys.executable, str(ROOT / "examples" / Path(self.module.__file__).name), *self.arguments]
        return SparkProcess(command, self.directory / f"driver-{self._drivers}.log")

    def kill_after(self, batch: int) -> None:
        """Runs the command and kills it as soon as it has committed a batch, which Spark has hardly noted then."""
        for attempts_left in reversed(range(STARTS)):
            driver = self.driver()
            try:
                if driver.wait(f"batch {batch}: committed"):
                    assert driver.exit_code is None, "it ended before it was killed"
                    return
                assert attempts_left, f"it fails again and again, see {driver.log_file}"
                assert driver.was_too_slow, driver.log()[-4000:]
            finally:
                driver.kill()

    def fence(self) -> Fence:
        """The last batch that counts."""
        found = read_fence(self.cluster.bootstrap, self.sink_id)
        assert found is not None
        return found

    def batches(self, topic: str) -> list[list[Row]]:
        """What each batch read of a topic, as Spark's checkpoint has it."""
        records = self.cluster.read(topic)
        found, before = [], dict.fromkeys((record.partition() for record in records), 0)
        for number in range(self.fence().batch_id + 1):
            _, _, *sources = (self.checkpoint / "offsets" / str(number)).read_text().splitlines()
            (ends,) = (json.loads(source)[topic] for source in sources if topic in source)
            after = {int(partition): end for partition, end in ends.items()}
            read = [one for one in records if before[one.partition()] <= one.offset() < after[one.partition()]]
            found.append([_row(one) for one in read])
            before = before | after
        return found

    def written(self) -> list[Row]:
        """The result as any reader of committed records has it, once no transaction is open."""
        eventually(lambda: not self._open(), f"the last transaction in {self.target} is over")
        return [_row(message) for message in self.cluster.read(self.target)]

    def _open(self) -> bool:
        ends = []
        for isolation in ("read_uncommitted", "read_committed"):
            settings = {"bootstrap.servers": self.cluster.bootstrap, "group.id": "ends", "isolation.level": isolation}
            consumer = Consumer(settings)
            ends.append([consumer.get_watermark_offsets(TopicPartition(self.target, n), 10)[1] for n in range(3)])
            consumer.close()
        return ends[0] != ends[1]


def _row(message: Any) -> Row:
    return message.key().decode(), None if message.value() is None else json.loads(message.value())


def in_order(rows: list[Row]) -> list[str]:
    """To compare what has no order."""
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def by_key(rows: list[Row]) -> dict[str, list[Any]]:
    """The values of each key in their order."""
    found: dict[str, list[Any]] = {}
    for key, value in rows:
        found.setdefault(key, []).append(value)
    return found
