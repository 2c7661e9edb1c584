"""A fleet of the version before becomes one of this version, one broker at a time, while it is used."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka.admin import AdminClient

from tests.containers.fleet import BROKERS, Fleet
from tests.containers.images import Images
from tests.containers.workload import Workload, create_topic, wait_in_sync
from tests.interop.clients import CLIENTS, READ_COMMITTED, Message, TransactionalProducer

pytestmark = pytest.mark.containers

PREVIOUS_REPLICAS = 1
"""The version before has one replica of everything; when it has more, this number and the settings below go."""
SETTINGS_FIT_FOR_BOTH = {
    "FLEETLOG_CONFIG_DEFAULT_REPLICATION_FACTOR": "1",
    "FLEETLOG_CONFIG_MIN_INSYNC_REPLICAS": "1",
    "FLEETLOG_CONFIG_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "FLEETLOG_CONFIG_OFFSETS_TOPIC_NUM_PARTITIONS": "6",
    "FLEETLOG_CONFIG_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "FLEETLOG_CONFIG_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "FLEETLOG_CONFIG_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "6",
}
INTERNAL = ("__consumer_offsets", "__transaction_state")


@pytest.fixture
def old_fleet(images: Images) -> Iterator[Fleet]:
    fleet = Fleet(images, broker_image=images.previous, environment=SETTINGS_FIT_FOR_BOTH)
    try:
        yield fleet.start()
    finally:
        fleet.close()


class Shop:
    """One group and one transactional producer that live through the upgrade: each order is booked once."""

    def __init__(self, fleet: Fleet) -> None:
        self._bootstrap = fleet.bootstrap
        self.topics = [create_topic(fleet.bootstrap, 1, PREVIOUS_REPLICAS) for _ in range(2)]
        self._orders, self._booked = self.topics
        # Not librdkafka: once a group's coordinator has been away for a moment, its send_offsets_to_transaction may not
        # return any more, with any broker (confluentinc/librdkafka#5511).
        self._producer: TransactionalProducer = CLIENTS[1].transactional(fleet.bootstrap, "shop")
        self._numbers = itertools.count()
        self._ordered = 0

    def trade(self, count: int = 20) -> None:
        """Write orders, then book them in transactions with the group's offset; every third one takes two attempts."""
        client = CLIENTS[1]
        client.produce(self._bootstrap, self._orders, [Message(b"%d" % next(self._numbers)) for _ in range(count)])
        self._ordered += count
        place = client.committed(self._bootstrap, "shop", self._orders) or 0
        orders = client.consume(self._bootstrap, self._orders, self._ordered - place, offset=place)
        assert [int(order.value or b"") for order in orders] == list(range(place, self._ordered))
        for order in orders:
            if order.offset % 3 == 0:
                self._book(order)
                self._producer.abort()
            self._book(order)
            self._producer.commit()

    def _book(self, order: Message) -> None:
        self._producer.begin()
        self._producer.send(self._booked, Message(order.value))
        self._producer.send_offsets({(self._orders, 0): order.offset + 1}, "shop")

    def close(self) -> None:
        """Everything was booked once, in order."""
        self._producer.close()
        booked = CLIENTS[2].consume(self._bootstrap, self._booked, self._ordered, isolation=READ_COMMITTED)
        assert [int(message.value or b"") for message in booked] == list(range(self._ordered))


def upgrade(fleet: Fleet, name: str, image: str, work: Workload) -> float:
    """The procedure of docs/upgrading.md for one broker; the seconds it took."""
    begun = time.monotonic()
    assert fleet.replace(name, image) == 0, f"{name} did not stop cleanly"
    fleet.wait_ready(name)
    wait_in_sync(fleet.bootstrap, work.topic, PREVIOUS_REPLICAS)
    work.wait_progress()
    return time.monotonic() - begun


def test_rolling_upgrade_and_a_step_back(old_fleet: Fleet, images: Images, say: Callable[[str], None]) -> None:
    fleet = old_fleet
    shop = Shop(fleet)
    shop.trade()
    topic = create_topic(fleet.bootstrap, replicas=PREVIOUS_REPLICAS)
    took = []
    with Workload(fleet.bootstrap, topic) as work:
        # The first broker goes back once, as one does who has seen something odd.
        for image in (images.broker, images.previous, images.broker):
            took.append(upgrade(fleet, BROKERS[0], image, work))
            shop.trade()
        for name in BROKERS[1:]:
            mixed = create_topic(fleet.bootstrap, 3, PREVIOUS_REPLICAS)
            took.append(upgrade(fleet, name, images.broker, work))
            shop.trade()
            found = AdminClient({"bootstrap.servers": fleet.bootstrap}).list_topics(mixed, timeout=30).topics[mixed]
            assert len(found.partitions) == 3, "a topic of the mixed fleet is not whole"
        raise_replication(fleet, [topic, *shop.topics, *INTERNAL])
        fleet.kill(BROKERS[1])
        work.wait_progress()
        shop.trade()
        fleet.heal()
        say(f"{work.finish()}; one broker takes {max(took):.1f} s")
    shop.close()


def raise_replication(fleet: Fleet, topics: Sequence[str]) -> None:
    """Three replicas for topics that had one: what an operator does after the upgrade."""
    from kafka import KafkaAdminClient, TopicPartition

    admin = KafkaAdminClient(bootstrap_servers=fleet.bootstrap.split(","))
    try:
        moves = {}
        described = AdminClient({"bootstrap.servers": fleet.bootstrap}).list_topics(timeout=30).topics
        for topic in topics:
            for number, partition in described[topic].partitions.items():
                others = [broker for broker in (1, 2, 3) if broker not in partition.replicas]
                moves[TopicPartition(topic, number)] = [*partition.replicas, *others]
        answers = admin.alter_partition_reassignments(moves)
        assert set(answers) == set(moves)
        assert set(answers.values()) == {None}, answers
    finally:
        admin.close()
    for topic in topics:
        wait_in_sync(fleet.bootstrap, topic, 3)
