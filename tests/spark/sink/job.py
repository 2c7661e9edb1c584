"""A streaming query from one topic into another that tests start, stop and replay."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import NewTopic

from fleetlog.spark import Fence, read_fence, write_stream
from fleetlog.spark.sink.events import SinkEvent
from tests.spark.conftest import Cluster, run_to_end
from tests.support.waiting import eventually

Read = Callable[..., Any]
FORMAT, FOREACH = "format", "foreachBatch"
SETTLED_S = 200


def replicated(cluster: Cluster, partitions: int = 3) -> str:
    topic = f"spark-{uuid.uuid4().hex[:10]}"
    config = {"min.insync.replicas": "2", "max.message.bytes": "200000"}
    cluster.create(NewTopic(topic, partitions, 3, config=config))
    return topic


def committed(cluster: Cluster, topic: str, count: int) -> list[str]:
    """The committed values once there are ``count``: markers are written a moment after the decision."""
    deadline = time.monotonic() + SETTLED_S
    while len(found := cluster.values(topic)) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


class Written:
    """What is seen of a sink and of its topic, in every mode."""

    cluster: Cluster
    target: str
    sink_id: str
    events: list[SinkEvent]

    def values(self, count: int = 0) -> list[str]:
        return committed(self.cluster, self.target, count)

    def fence(self) -> Fence | None:
        return read_fence(self.cluster.bootstrap, self.sink_id)

    def fences(self, wanted: Fence) -> None:
        """Wait for this fence: in driver mode it is written a moment after the decision, like the markers."""
        eventually(self.fence, f"the fence is {wanted}", good=lambda found: found == wanted)

    def stages(self) -> list[tuple[str, int, int]]:
        return [(event.stage, event.batch_id, event.rows) for event in self.events if event.stage != "begun"]


class Job(Written):
    """A query from one topic to another that runs when asked to, as a restarted driver would."""

    def __init__(self, cluster: Cluster, read_stream: Read, directory: Path) -> None:
        self.cluster = cluster
        self.source = cluster.topic(2)
        self.target = replicated(cluster)
        self.sink_id = f"sink-{uuid.uuid4().hex[:10]}"
        self.checkpoint = directory / "checkpoint"
        self.events: list[SinkEvent] = []
        self.on_event: Callable[[SinkEvent], None] = self.events.append
        self._read_stream = read_stream

    def send(self, *values: str) -> None:
        self.cluster.send(self.source, [{"key": value, "value": value} for value in values])

    def rows(self) -> Any:
        return self._read_stream(subscribe=self.source).select("key", "value")

    def start(self, df: Any = None, way: str = FORMAT, once: bool = True, mode: str = "append", **options: Any) -> Any:
        named = {name.replace("__", "."): str(value) for name, value in options.items()}
        trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": "200 milliseconds"}
        df = self.rows() if df is None else df
        if way == FOREACH:
            return write_stream(
                df,
                bootstrap_servers=self.cluster.bootstrap,
                sink_id=self.sink_id,
                checkpoint_location=str(self.checkpoint),
                topic=self.target or None,
                trigger=trigger,
                output_mode=mode,
                options=named,
                on_event=lambda event: self.on_event(event),
            )
        given = {
            "kafka.bootstrap.servers": self.cluster.bootstrap,
            **({"topic": self.target} if self.target else {}),
            "sinkId": self.sink_id,
            "checkpointLocation": str(self.checkpoint),
            **named,
        }
        return df.writeStream.format("fleetlog").outputMode(mode).options(**given).trigger(**trigger).start()

    def run(self, df: Any = None, way: str = FORMAT, **options: Any) -> str:
        """Runs to the end of what is there; raises what the query ends with. The query's id."""
        return str(run_to_end(lambda: self.start(df, way, **options)).id)

    def written(self) -> Counter[str]:
        """How often each value stands in the log, committed or not."""
        return Counter(self.cluster.values(self.target, "read_uncommitted"))

    def forget_commit(self, batch_id: int) -> None:
        """What a driver leaves behind that is killed after CommitBatch and before Spark's note of it."""
        for path in (self.checkpoint / "commits").glob(f"*{batch_id}*"):
            path.unlink()
