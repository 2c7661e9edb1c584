"""What a process keeps of its sinks from one micro-batch to the next: coordinators, the topic's partitions, a thread.

The requests are counted on the client that a worker process shares between its tasks.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from fleetlog.spark.client import connections
from fleetlog.spark.client.connections import shared_client
from fleetlog.spark.client.write_settings import TaskMember
from fleetlog.spark.sink import batch_transactions as transactions
from fleetlog.spark.sink.batch_transactions import BatchTransactions, Heartbeats, OpenBatch
from fleetlog.spark.sink.options import WriteOptions
from fleetlog.spark.sink.writer import batch_transactions
from tests.spark.client.rig import Rig, rows
from tests.spark.conftest import Cluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("spark"), pytest.mark.timeout(180)]

LONG_MS = 60_000


class Sink:
    """A sink as a worker process has it; ``asked`` counts its requests by type."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        options = {"kafka.bootstrap.servers": rig.cluster.bootstrap, "kafka.client.id": rig.sink_id}
        self.options = WriteOptions.parse({**options, "topic": rig.topic, "sinkId": rig.sink_id})
        self.asked: Counter[str] = Counter()
        client = shared_client(self.options.settings)  # of this test alone: its client id is
        send = client._manager.send

        def counted(request: Any, *given: Any, **named: Any) -> Any:
            self.asked[type(request).__name__] += 1
            return send(request, *given, **named)

        monkeypatch.setattr(client._manager, "send", counted)
        self.committed = 0

    def begin(self) -> OpenBatch:
        return batch_transactions(self.options).begin(LONG_MS)

    def task(self, batch: OpenBatch, given: pa.RecordBatch) -> TaskMember:
        member, producer = batch_transactions(self.options).writer(batch, self.options.rows)
        producer.write(given)
        producer.flush()
        return member

    def commit(self, batch: OpenBatch, *members: TaskMember) -> None:
        batch_transactions(self.options).commit(batch, "q", self.committed, "", members)
        self.committed += 1

    def micro_batch(self, given: pa.RecordBatch) -> Counter[str]:
        """What it asked."""
        self.asked.clear()
        batch = self.begin()
        self.commit(batch, self.task(batch, given))
        return Counter(self.asked)


@pytest.fixture
def rig(cluster: Cluster) -> Iterator[Rig]:
    found = Rig(cluster)
    yield found
    found.client.close()


@pytest.fixture
def sink(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Sink:
    return Sink(rig, monkeypatch)


def test_a_later_micro_batch_asks_for_neither_coordinator_nor_topic(
    rig: Rig, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "METADATA_AGE_S", 3600.0)
    first = sink.micro_batch(rows(0, 10))
    assert first["FindCoordinatorRequest"] == 1
    assert first["MetadataRequest"] >= 1
    later = sink.micro_batch(rows(10, 10))
    # How often, partitions and the end of the batch before decide: one has leaders, the other may take a moment.
    assert later.keys() == {"BeginBatchRequest", "EnlistProducerRequest", "ProduceFrame", "CommitFrame"}
    assert rig.settled(20) == sorted(f"v{number}" for number in range(20))


def test_a_coordinator_that_moved_is_found_again(rig: Rig, sink: Sink) -> None:
    sink.micro_batch(rows(0, 10))
    kept = batch_transactions(sink.options)
    coordinator = kept._coordinator
    kept._coordinator = next(broker for broker in (1, 2, 3) if broker != coordinator)  # it answers NOT_COORDINATOR
    assert sink.micro_batch(rows(10, 10))["FindCoordinatorRequest"] == 1
    assert kept._coordinator == coordinator
    assert rig.settled(20) == sorted(f"v{number}" for number in range(20))


def test_a_process_takes_the_coordinator_that_a_batchs_driver_found(rig: Rig, sink: Sink) -> None:
    sink.micro_batch(rows(0, 10))
    kept = batch_transactions(sink.options)
    kept._coordinator = next(broker for broker in (1, 2, 3) if broker != kept._coordinator)
    batch = rig.sink.begin(LONG_MS)  # by another process
    sink.asked.clear()
    sink.commit(batch, sink.task(batch, rows(10, 10)))
    assert sink.asked["FindCoordinatorRequest"] == 0
    assert kept._coordinator == batch.coordinator
    assert rig.settled(20) == sorted(f"v{number}" for number in range(20))


def test_a_topic_is_asked_for_again_after_some_seconds(rig: Rig, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    sink.micro_batch(rows(0, 10))
    monkeypatch.setattr(connections, "METADATA_AGE_S", 0.0)
    assert sink.micro_batch(rows(10, 10))["MetadataRequest"] == 1


def test_a_row_for_a_partition_that_is_new_is_written(rig: Rig, sink: Sink) -> None:
    sink.micro_batch(rows(0, 10))
    rig.cluster.add_partitions(rig.topic, 5)
    sink.micro_batch(pa.record_batch([pa.array(["new"]), pa.array([4], pa.int32())], ["value", "partition"]))
    assert rig.settled(11) == sorted(["new", *(f"v{number}" for number in range(10))])
    assert rig.cluster.read(rig.topic)[-1].partition() == 4


def test_a_batch_that_ends_before_its_first_heartbeat_has_no_thread(rig: Rig, sink: Sink) -> None:
    batch = sink.begin()
    with Heartbeats(sink.options.settings, batch, LONG_MS):
        before = {thread.ident for thread in threading.enumerate()}
    for _ in range(3):
        with Heartbeats(sink.options.settings, batch, LONG_MS):
            assert {thread.ident for thread in threading.enumerate()} == before
    assert not transactions._first_heartbeats._due


def test_a_shorter_timeout_is_not_kept_waiting_by_a_longer_one(
    rig: Rig, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longer one's is due after two minutes and a half, and the process waits for it when the shorter one comes."""
    beats: list[OpenBatch] = []
    heartbeat = BatchTransactions.heartbeat

    def counted(self: BatchTransactions, batch: OpenBatch) -> None:
        heartbeat(self, batch)
        beats.append(batch)

    monkeypatch.setattr(BatchTransactions, "heartbeat", counted)
    waiting = transactions._FirstHeartbeats()  # of its own: that of the process may be due earlier
    monkeypatch.setattr(transactions, "_first_heartbeats", waiting)
    batch = rig.sink.begin(LONG_MS)
    member = sink.task(batch, rows(0, 10))
    settings = sink.options.settings
    with Heartbeats(settings, batch, 10 * LONG_MS):
        eventually(lambda: waiting._wakes_at, "the process waits for the longer one")
        with Heartbeats(settings, batch, 4000):
            eventually(lambda: beats, "a heartbeat of the shorter one", 60)
    rig.sink.commit(batch, "q", 0, "", [member])
    assert rig.settled(10) == sorted(f"v{number}" for number in range(10))
