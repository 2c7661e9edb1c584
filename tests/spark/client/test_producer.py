"""The executor's producer and the sink's calls on a real fleet, without Spark: lost answers, zombies, dead leaders."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.admin import NewTopic

from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.failures import ClientError, FenceConflict, TaskFenced
from fleetlog.spark.client.producer import MemberProducer, _cuts, _row_bytes
from fleetlog.spark.client.write_settings import WriteSettings
from fleetlog.spark.sink.batch_transactions import BatchTransactions, Heartbeats
from fleetlog.spark.sink.fence import Fence
from fleetlog.wire.errors import ErrorCode
from tests.spark.client.rig import Rig, rows
from tests.spark.conftest import Cluster
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("spark-producing"), pytest.mark.timeout(180)]

LONG_MS = 60_000


def written(producer: MemberProducer, batch: pa.RecordBatch) -> None:
    """To the last answer: each call takes those that are there."""
    producer.write(batch)
    producer.flush()


def names(count: int, prefix: str = "v") -> list[str]:
    return sorted(f"{prefix}{n}" for n in range(count))


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("producing"))
    try:
        yield fleet.start()
    finally:
        fleet.close()


@pytest.fixture
def rig(brokers: Fleet) -> Iterator[Rig]:
    found = Rig(Cluster(brokers.bootstrap))
    yield found
    found.client.close()


def test_a_writers_requests_may_be_sent_before_its_rows_are_there(rig: Rig) -> None:
    batch = rig.sink.begin(LONG_MS)
    assert rig.client.topics([rig.topic])[rig.topic] == [0, 1, 2]
    assert rig.sink.send_writer(batch, rig.settings).topic is None  # it is known
    rig.client.forget_leaders()
    sent = [rig.sink.send_writer(batch, rig.settings) for _ in range(3)]
    assert all(ahead.enlist is not None and ahead.topic is not None for ahead in sent)
    written_by = []
    for number, ahead in enumerate(sent[:2]):  # the third is never asked for: a batch may turn out to be empty
        member, producer = rig.sink.writer(batch, rig.settings, ahead)
        written(producer, rows(100 * number, 100))
        written_by.append(member)
    assert len(set(written_by)) == 2
    rig.sink.commit(batch, "q", 0, "", written_by)
    assert rig.settled(200) == names(200)
    again = rig.sink.begin(LONG_MS)
    stale = rig.sink.send_writer(batch, rig.settings)
    with pytest.raises(TaskFenced):
        rig.sink.writer(batch, rig.settings, stale)
    assert again.fence == Fence("q", 0)


def test_a_writer_of_a_new_process_finds_coordinator_and_topic(rig: Rig) -> None:
    batch = rig.sink.begin(LONG_MS)
    client = Client({"bootstrap_servers": rig.cluster.bootstrap.split(",")})
    sink = BatchTransactions(client, rig.sink_id)
    assert sink.send_writer(batch, rig.settings) == (None, None)
    member, producer = sink.writer(batch, rig.settings)
    written(producer, rows(0, 10))
    client.close()
    rig.sink.commit(batch, "q", 0, "", [member])
    assert rig.settled(10) == names(10)


def test_a_prefetched_request_is_sent_again_where_its_answer_is_lost(rig: Rig) -> None:
    batch = rig.sink.begin(LONG_MS)
    rig.client.topics([rig.topic])
    rig.client.lose = lambda name: name == "EnlistProducerResponse" and rig.client.lost == 0
    member, producer = rig.sink.writer(batch, rig.settings, rig.sink.send_writer(batch, rig.settings))
    assert rig.client.lost == 1
    written(producer, rows(0, 10))
    rig.sink.commit(batch, "q", 0, "", [member])
    assert rig.settled(10) == names(10)


def test_lost_answers_lose_and_repeat_nothing(rig: Rig) -> None:
    counter = itertools.count()
    batch = rig.sink.begin(LONG_MS)
    rig.client.lose = lambda name: name == "ProduceResponse" and next(counter) % 3 == 1
    member, producer = rig.task(batch)
    for first in range(0, 3000, 250):
        producer.write(rows(first, 250))
    producer.flush()
    assert rig.client.lost > 3
    assert rig.values() == []
    assert not rig.sink.commit(batch, "q", 0, "", [member])
    assert rig.settled(3000) == names(3000)
    assert rig.values("read_uncommitted") == names(3000)


@pytest.mark.parametrize("call", ["BeginBatch", "EnlistProducer", "CommitBatch"])
def test_every_call_may_lose_its_answer(rig: Rig, call: str) -> None:
    lost: list[str] = []

    def lose(name: str) -> bool:
        if name == f"{call}Response" and len(lost) < 2:
            lost.append(name)
            return True
        return False

    rig.client.lose = lose
    batch = rig.sink.begin(LONG_MS)
    member, producer = rig.task(batch)
    producer.write(rows(0, 100))
    producer.flush()
    rig.sink.commit(batch, "q", 0, "d", [member])
    assert len(lost) == 2
    assert rig.settled(100) == names(100)
    assert rig.sink.fence() == Fence("q", 0)
    again = rig.sink.begin(LONG_MS)
    assert (again.fence, again.digest) == (Fence("q", 0), "d")
    assert rig.sink.commit(again, "q", 0, "d", []), "a replay of the same batch"
    with pytest.raises(FenceConflict, match="other content"):
        rig.sink.commit(again, "q", 0, "e", [])
    assert rig.values() == names(100)


def test_a_zombies_task_writes_nothing_that_counts(rig: Rig) -> None:
    old = rig.sink.begin(LONG_MS)
    member, zombie = rig.task(old)
    zombie.write(rows(0, 100, "zombie"))
    zombie.flush()
    new = rig.sink.begin(LONG_MS)
    with pytest.raises(TaskFenced):
        written(zombie, rows(100, 100, "zombie"))
    with pytest.raises(TaskFenced, match="newer driver"):
        rig.sink.enlist(old)
    with pytest.raises(TaskFenced):
        rig.sink.commit(old, "q", 0, "", [member])
    winner, producer = rig.task(new)
    assert (winner.producer_id, winner.epoch) != (member.producer_id, member.epoch)
    producer.write(rows(0, 100))
    producer.flush()
    with pytest.raises(TaskFenced, match="not enlisted"):
        rig.sink.commit(new, "q", 0, "", [winner, member])
    rig.sink.commit(new, "q", 0, "", [winner])
    assert rig.settled(100) == names(100)


def test_losers_of_a_batch_are_not_seen(rig: Rig) -> None:
    batch = rig.sink.begin(LONG_MS)
    tasks = [rig.task(batch) for _ in range(4)]
    for number, (_, producer) in enumerate(tasks):
        producer.write(rows(0, 50, f"t{number}-"))
        producer.flush()
    rig.sink.commit(batch, "q", 0, "", [tasks[1][0], tasks[3][0]])
    assert rig.settled(100) == sorted(names(50, "t1-") + names(50, "t3-"))


def test_memory_stays_within_its_bound(rig: Rig) -> None:
    settings = WriteSettings(rig.topic, batch_bytes=32 << 10, buffer_bytes=1 << 20)
    batch = rig.sink.begin(LONG_MS)
    member, producer = rig.task(batch, settings)
    most = [0]
    send = rig.client.send

    def watched(request: Any, node_id: int) -> Any:
        most.append(producer.unacknowledged_bytes)
        return send(request, node_id)

    rig.client.send = watched  # type: ignore[method-assign]
    producer.write(pa.record_batch([pa.array([b"x" * 1000] * 8000)], ["value"]))
    producer.flush()
    assert 1 << 20 < max(most) <= (1 << 20) + (40 << 10)
    assert producer.unacknowledged_bytes == 0
    rig.sink.commit(batch, "q", 0, "", [member])
    assert len(rig.settled(8000)) == 8000


def test_record_batches_are_cut_by_what_rows_weigh(rig: Rig) -> None:
    """Small rows first, then large ones: batches of an average row count would pass max.message.bytes."""
    values = [b"s" * 10] * 3000 + [b"L" * 90_000] * 10
    settings = WriteSettings(rig.topic, batch_bytes=200_000)
    batch = rig.sink.begin(LONG_MS)
    member, producer = rig.task(batch, settings)
    producer.write(pa.record_batch([pa.array(values)], ["value"]))
    producer.flush()
    rig.sink.commit(batch, "q", 0, "", [member])
    assert len(rig.settled(3010)) == 3010
    batch = rig.sink.begin(LONG_MS)
    _, producer = rig.task(batch, settings)
    with pytest.raises(ClientError, match=r"MESSAGE_TOO_LARGE: 1 rows .* max\.message\.bytes"):
        written(producer, pa.record_batch([pa.array([b"x" * 400_000])], ["value"]))


def test_pieces_cover_every_row() -> None:
    pair = [{"key": "h", "value": b"x" * 5000}]
    table = pa.record_batch(
        [
            pa.array([b"k" * 50, None, b"", b"k"] * 25),
            pa.array([b"v" * n * 40 for n in range(100)]),
            pa.array(
                [pair if n % 9 == 0 else None if n % 2 else [] for n in range(100)],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        ],
        ["key", "value", "headers"],
    ).slice(3, 90)
    order = np.arange(90, dtype=np.int32).tobytes()
    cuts = list(_cuts(order, 0, 90, _row_bytes(table), 10_000))
    assert [start for start, _ in cuts] == [0, *(end for _, end in cuts[:-1])]
    assert cuts[-1][1] == 90
    assert len(cuts) > 20
    for start, end in cuts:
        piece = table.slice(start, end - start)
        weight = sum(
            len(row["key"] or b"") + len(row["value"]) + sum(len(h["value"]) for h in row["headers"] or ())
            for row in piece.to_pylist()
        )
        assert weight <= 10_000


def _committed_late(rig: Rig, timeout_ms: int) -> None:
    batch = rig.sink.begin(timeout_ms)
    member, producer = rig.task(batch)
    producer.write(rows(10, 10))
    producer.flush()
    time.sleep(3 * timeout_ms / 1000)
    rig.sink.commit(batch, "q", 1, "", [member])


def test_heartbeats_keep_a_batch_open(rig: Rig, brokers: Fleet) -> None:
    timeout_ms = 12_000  # a quarter of it passes between two heartbeats, and a busy machine may need as long for one
    batch = rig.sink.begin(timeout_ms)
    member, producer = rig.task(batch)
    producer.write(rows(0, 10))
    producer.flush()
    with Heartbeats({"bootstrap_servers": brokers.bootstrap.split(",")}, batch, timeout_ms):
        time.sleep(15)  # what is tested: more than the time-out passes
    rig.sink.commit(batch, "q", 0, "", [member])
    assert rig.settled(10) == names(10)
    with pytest.raises(TaskFenced):  # by the commit at the latest: on a busy machine the time is over before it
        _committed_late(rig, timeout_ms=2000)
    assert rig.values() == names(10)


def test_a_topic_that_is_not_there_and_partitions_that_are_not_there(rig: Rig) -> None:
    batch = rig.sink.begin(LONG_MS)
    _, producer = rig.task(batch, WriteSettings("nowhere"))
    with pytest.raises(ClientError, match="topic nowhere does not exist"):
        producer.write(rows(0, 1))
    _, producer = rig.task(batch)
    table = pa.record_batch([pa.array(["a"]), pa.array([3], pa.int32())], ["value", "partition"])
    with pytest.raises(ValueError, match=r"names partition 3 of .* has 3"):
        producer.write(table)
    table = pa.record_batch([pa.array(["a", "b"]), pa.array([1, -3], pa.int32())], ["value", "partition"])
    with pytest.raises(ValueError, match=r"names partition -3 of"):
        producer.write(table)


def test_a_row_that_the_broker_refuses_is_named(rig: Rig) -> None:
    topic = f"{rig.topic}-compacted"
    rig.cluster.create(NewTopic(topic, 1, 3, config={"cleanup.policy": "compact"}))
    batch = rig.sink.begin(LONG_MS)
    _, producer = rig.task(batch, WriteSettings(topic, codec=1))
    table = pa.record_batch([pa.array(["a", None, None]), pa.array(["x", "é" * 50, "z"])], ["key", "value"])
    with pytest.raises(
        ClientError, match=r"INVALID_RECORD: the row with key null, value '\\.+' \(and 1 more of these 3\): "
    ):
        written(producer, table)
    rig.sink.abort(batch)
    assert rig.cluster.values(topic) == []


def test_a_timeout_tells_the_last_error_the_partition_and_its_leader(brokers: Fleet) -> None:
    rig = Rig(Cluster(brokers.bootstrap))
    topic = f"{rig.topic}-whole"
    rig.cluster.create(NewTopic(topic, 1, 3, config={"min.insync.replicas": "3"}))
    _, producer = rig.task(rig.sink.begin(LONG_MS), rig.settings._replace(topic=topic, delivery_timeout_ms=3000))
    brokers.brokers[2].stop()
    try:
        expected = rf"{topic}-0: not acknowledged for 3000 ms .*: NOT_ENOUGH_REPLICAS(_AFTER_APPEND)? from leader \d"
        with pytest.raises(ClientError, match=expected) as caught:
            written(producer, rows(0, 10))
        assert caught.value.code in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    finally:
        brokers.brokers[2].start()
        brokers.brokers[2].wait_ready()
        rig.client.close()
    _in_sync(rig)


def test_leaders_are_killed_under_a_task(brokers: Fleet, tmp_path: Path) -> None:
    rig = Rig(Cluster(brokers.bootstrap), partitions=6)
    batch = rig.sink.begin(LONG_MS)
    member, producer = rig.task(batch)
    for round_number in range(30):
        producer.write(rows(round_number * 200, 200))
        if round_number == 10:
            brokers.brokers[0].kill()
        if round_number == 20:
            producer.flush()
            brokers.brokers[0].start()
            brokers.brokers[0].wait_ready()
            _in_sync(rig)
            brokers.brokers[1].kill()
    producer.flush()
    rig.sink.commit(batch, "q", 0, "", [member])
    brokers.brokers[1].start()
    brokers.brokers[1].wait_ready()
    assert rig.settled(6000) == names(6000)
    assert rig.values("read_uncommitted") == names(6000)
    rig.client.close()


def _in_sync(rig: Rig) -> None:
    def sizes() -> list[int]:
        found = rig.cluster.admin.list_topics(rig.topic, timeout=30).topics[rig.topic].partitions
        return [len(part.isrs) for part in found.values()]

    eventually(sizes, "all replicas in sync", 60, good=lambda found: set(found) <= {3}, pause_s=0.2)
