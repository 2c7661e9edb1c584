"""A sink, its topic and a client whose answers may be lost, without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import kafka.errors
import pyarrow as pa
from confluent_kafka.admin import NewTopic

from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.producer import MemberProducer
from fleetlog.spark.client.write_settings import TaskMember, WriteSettings
from fleetlog.spark.sink.batch_transactions import BatchTransactions, OpenBatch
from tests.spark.conftest import Cluster
from tests.support.waiting import eventually


class Losing(Client):
    """Loses answers after the broker has acted: ``lose`` is asked about each answer's type."""

    lose: Callable[[str], bool] = staticmethod(lambda name: False)
    lost = 0

    def wait(self, future: Any) -> Any:
        answer = super().wait(future)
        if self.lose(type(answer).__name__):
            self.lost += 1
            raise kafka.errors.KafkaConnectionError("the answer was lost")
        return answer


class Rig:
    """A sink, its topic and a client on the fleet."""

    def __init__(self, cluster: Cluster, partitions: int = 3) -> None:
        self.cluster = cluster
        self.topic = f"rows-{uuid.uuid4().hex[:10]}"
        config = {"min.insync.replicas": "2", "max.message.bytes": "300000"}
        cluster.create(NewTopic(self.topic, partitions, 3, config=config))
        self.sink_id = f"sink-{uuid.uuid4().hex[:10]}"
        self.client = Losing({"bootstrap_servers": cluster.bootstrap.split(",")})
        self.sink = BatchTransactions(self.client, self.sink_id)
        self.settings = WriteSettings(self.topic, batch_bytes=4 << 10)

    def task(self, batch: OpenBatch, settings: WriteSettings | None = None) -> tuple[TaskMember, MemberProducer]:
        (member,) = self.sink.enlist(batch)
        return member, MemberProducer(self.client, self.sink_id, member, settings or self.settings)

    def values(self, isolation: str = "read_committed") -> list[str]:
        return self.cluster.values(self.topic, isolation)

    def settled(self, count: int) -> list[str]:
        """The committed values, once there are that many: markers come a moment after the decision."""
        return eventually(self.values, f"{count} values", 30, good=lambda found: len(found) >= count, pause_s=0.1)


def rows(first: int, count: int, prefix: str = "v", keys: bool = True) -> pa.RecordBatch:
    numbers = range(first, first + count)
    values = pa.array([f"{prefix}{n}" for n in numbers])
    if not keys:
        return pa.record_batch([values], ["value"])
    return pa.record_batch([pa.array([f"k{n}" if n % 7 else None for n in numbers]), values], ["key", "value"])
