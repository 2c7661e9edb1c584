"""Stock consumers read from the replica in their own rack, and elsewhere when it is gone (KIP-392)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from urllib.request import urlopen

import pytest

from tests.support.copies import Cluster
from tests.support.fleet import Broker, Fleet
from tests.support.polling import polled_values
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.interop]

RACKS = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RECORDS, SIZE = 400, 10_000
DEADLINE_S = 60.0

Consume = Callable[[str, str, str, int], list[bytes]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(
        tmp_path_factory.mktemp("racks"), brokers=2, replica_selector_class=RACKS, zookeeper_session_timeout_ms=10_000
    )  # fmt: skip
    for broker in fleet.brokers:
        with broker.config_file.open("a") as file:
            file.write(f"broker.rack=rack-{broker.id}\n")
    try:
        yield fleet.start()
    finally:
        fleet.close()


def confluent(bootstrap: str, topic: str, rack: str, count: int) -> list[bytes]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({
        "bootstrap.servers": bootstrap, "client.rack": rack, "group.id": uuid.uuid4().hex,
        "fetch.message.max.bytes": 100_000,
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    return polled_values(consumer, count, DEADLINE_S)


def kafka_python(bootstrap: str, topic: str, rack: str, count: int) -> list[bytes]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","), client_rack=rack, max_partition_fetch_bytes=100_000,
        metrics_enabled=False,
    )  # fmt: skip
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records"
            for records in consumer.poll(500).values():
                found.extend(record.value for record in records)
    finally:
        consumer.close()
    return found


def aiokafka(bootstrap: str, topic: str, rack: str, count: int) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.structs import TopicPartition

    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, client_rack=rack, max_partition_fetch_bytes=100_000
        )  # fmt: skip
        await consumer.start()
        found: list[bytes] = []
        try:
            consumer.assign([TopicPartition(topic, 0)])
            await consumer.seek_to_beginning()
            async with asyncio.timeout(DEADLINE_S):
                while len(found) < count:
                    for records in (await consumer.getmany(timeout_ms=500)).values():
                        found.extend(record.value for record in records)
        finally:
            await consumer.stop()
        return found

    return asyncio.run(read())


def produce(bootstrap: str, topic: str, first: int, count: int) -> list[bytes]:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5})
    values = [b"%d" % n + b"." * SIZE for n in range(first, first + count)]
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(DEADLINE_S) == 0
    return values


def sent(broker: Broker) -> float:
    """Bytes that the broker has sent so far."""
    text = urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics").read().decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("fleetlog_sent_bytes_total"))


@pytest.mark.parametrize("consume", [confluent, kafka_python, aiokafka])
def test_a_consumer_reads_from_the_replica_in_its_rack(fleet: Fleet, consume: Consume) -> None:
    cluster = Cluster(fleet)
    topic = f"near-{consume.__name__}"
    cluster.create(topic, replicas=2)
    values = produce(fleet.bootstrap, topic, 0, RECORDS)
    leader = cluster.leader(topic)
    (follower,) = (broker for broker in fleet.brokers if broker is not leader)
    eventually(lambda: set(cluster.state(topic, 0, leader).isrs) == {1, 2}, "both are in sync")
    size = RECORDS * SIZE
    for rack, near, far in ((follower, follower, leader), (leader, leader, follower)):
        before = {broker.id: sent(broker) for broker in fleet.brokers}
        assert consume(fleet.bootstrap, topic, f"rack-{rack.id}", RECORDS) == values
        assert sent(near) - before[near.id] >= size
        assert sent(far) - before[far.id] < size / 2


@pytest.mark.parametrize("consume", [confluent, kafka_python])
def test_without_the_near_replica_the_leader_serves(fleet: Fleet, consume: Consume) -> None:
    cluster = Cluster(fleet)
    topic = f"gone-{consume.__name__}"
    cluster.create(topic, replicas=2)
    values = produce(fleet.bootstrap, topic, 0, 50)
    leader = cluster.leader(topic)
    (follower,) = (broker for broker in fleet.brokers if broker is not leader)
    follower.kill()
    try:
        assert consume(leader.address, topic, f"rack-{follower.id}", 50) == values
    finally:
        follower.start()
        follower.wait_ready()
