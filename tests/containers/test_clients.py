"""Stock clients with the fleet in containers: from this machine, and from a container beside it."""

from __future__ import annotations

import itertools

import pytest
from confluent_kafka.admin import AdminClient
from docker.errors import ContainerError

from tests.containers.fleet import BROKERS, Fleet
from tests.containers.images import Images
from tests.containers.workload import MIN_INSYNC_REPLICAS, REPLICATION_FACTOR, create_topic
from tests.support.clients import CLIENTS, READ_COMMITTED, Client, Message

pytestmark = pytest.mark.containers
_numbers = itertools.count()


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    return request.param  # type: ignore[no-any-return]


def test_outside_clients_get_addresses_they_can_reach(fleet: Fleet) -> None:
    for name in BROKERS:
        seen = AdminClient({"bootstrap.servers": fleet.address(name)}).list_topics(timeout=30).brokers
        assert {f"{broker.host}:{broker.port}" for broker in seen.values()} == set(fleet.bootstrap.split(","))


def test_records_and_transactions(fleet: Fleet, client: Client) -> None:
    topic = create_topic(fleet.bootstrap, 3)
    messages = [Message(b"v%d" % number, b"k", partition=number % 3) for number in range(300)]
    placed = client.produce(fleet.bootstrap, topic, messages, idempotent=True, compression="lz4")
    assert sorted(placed) == [(partition, offset) for partition in range(3) for offset in range(100)]
    producer = client.transactional(fleet.bootstrap, f"id-{next(_numbers)}")
    for end in (producer.abort, producer.commit):
        producer.begin()
        for partition in range(3):
            producer.send(topic, Message(end.__name__.encode(), partition=partition))
        end()
    producer.close()
    for partition in range(3):
        found = client.consume(fleet.bootstrap, topic, 101, partition=partition, isolation=READ_COMMITTED)
        assert [message.value for message in found[:100]] == [m.value for m in messages if m.partition == partition]
        assert found[100].value == b"commit"


def test_a_group_shares_and_keeps_its_place(fleet: Fleet) -> None:
    from kafka import KafkaConsumer

    topic = create_topic(fleet.bootstrap, 3)
    client = CLIENTS[0]
    client.produce(fleet.bootstrap, topic, [Message(b"%d" % n, partition=n % 3) for n in range(90)])
    group = f"g-{next(_numbers)}"

    def read(count: int) -> list[int]:
        consumer = KafkaConsumer(
            topic, bootstrap_servers=fleet.bootstrap.split(","), group_id=group, auto_offset_reset="earliest",
            enable_auto_commit=False, consumer_timeout_ms=60_000,
        )  # fmt: skip
        try:
            values = [int(record.value) for record in itertools.islice(consumer, count)]
            consumer.commit()
        finally:
            consumer.close()
        return values

    assert sorted(read(90)) == list(range(90))
    client.produce(fleet.bootstrap, topic, [Message(b"%d" % n, partition=n % 3) for n in range(90, 99)])
    assert sorted(read(9)) == list(range(90, 99)), "the group began somewhere else"


def test_topics_of_the_fleet_are_replicated_as_the_file_says(fleet: Fleet) -> None:
    from confluent_kafka.admin import ConfigResource, ResourceType

    topic = create_topic(fleet.bootstrap)
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    topics = admin.list_topics(timeout=30).topics
    for name in (topic, "__consumer_offsets", "__transaction_state"):
        for number, partition in topics[name].partitions.items():
            assert len(partition.replicas) == REPLICATION_FACTOR, f"{name}-{number}: {partition.replicas}"
    resource = ConfigResource(ResourceType.TOPIC, topic)
    settings = admin.describe_configs([resource])[resource].result(30)
    assert settings["min.insync.replicas"].value == str(MIN_INSYNC_REPLICAS)


def test_a_client_in_a_container_beside_it(fleet: Fleet, images: Images) -> None:
    """It joins the network `clients`, bootstraps from the second listener, and finds no ZooKeeper there."""
    docker = fleet.container("broker-1").client
    network = fleet.network("clients")
    topic = create_topic(fleet.bootstrap, 1)

    def run(command: str) -> str:
        output = docker.containers.run(
            images.broker, ["-c", command], entrypoint="sh", network=network, remove=True, stderr=True
        )
        return str(output.decode())

    bootstrap = "broker-1:9093,broker-2:9093,broker-3:9093"
    run(f"echo from-inside | fleetlog produce -b {bootstrap} {topic}")
    assert "from-inside" in run(f"fleetlog consume -b {bootstrap} {topic} --from beginning -n 1")
    (found,) = CLIENTS[0].consume(fleet.bootstrap, topic, 1)
    assert found.value == b"from-inside"
    with pytest.raises(ContainerError):
        run("python3 -c 'import socket; socket.create_connection((\"zookeeper-1\", 2181), 3)'")
