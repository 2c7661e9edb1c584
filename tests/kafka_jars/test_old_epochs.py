"""An AdminClient of librdkafka that sends an old leader epoch in ListOffsets: as at Apache Kafka, so here."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition as Partition

from tests.kafka_jars.kafka import Kafka
from tests.support.clients import Confluent, Message
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC = "epochs"


@pytest.fixture
def kafka(classpath: str, tmp_path: Path) -> Iterator[Kafka]:
    """Two brokers of Apache Kafka."""
    homes = [tmp_path / name for name in ("first", "second")]
    for home in homes:
        home.mkdir()
    first = Kafka(classpath, homes[0])
    second = Kafka(classpath, homes[1], joins=first)
    try:
        for node in (first, second):
            node.format()
            node.start()
        yield first
    finally:
        for node in (second, first):
            node.stop(signal.SIGKILL)


def outcomes(bootstrap: str, brokers: tuple[int, int]) -> list[str]:
    """What the AdminClient is answered before the leader changes to another broker and back, twice after it, and when
    its metadata is new."""
    partition = TopicPartition(TOPIC, 0)

    def admin() -> AdminClient:
        return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def ask(client: AdminClient) -> str:
        try:
            return f"end {client.list_offsets({partition: OffsetSpec.latest()})[partition].result(60).offset}"
        except KafkaException as error:
            return str(error.args[0].name())

    def leads(broker_id: int) -> bool:
        """A new client finds it."""
        client = admin()
        row = client.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0]
        return row.leader == broker_id and row.replicas == [broker_id] and ask(client) == "end 1"

    mover, old = KafkaAdminClient(bootstrap_servers=bootstrap), admin()
    try:
        eventually(lambda: set(brokers) <= set(old.list_topics(timeout=60).brokers), "both are there")
        Confluent().create_topic(bootstrap, TOPIC)
        Confluent().produce(bootstrap, TOPIC, [Message(b"one", partition=0)])
        first = old.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0].leader
        answers = [eventually(lambda: ask(old), "its first answer", good=lambda text: text == "end 1")]
        for broker_id in (sum(brokers) - first, first):
            mover.alter_partition_reassignments({Partition(TOPIC, 0): [broker_id]})
            eventually(partial(leads, broker_id), f"broker {broker_id} leads")
        answers += [ask(old), ask(old)]
        old.list_topics(TOPIC, timeout=60)
        return [*answers, ask(old)]
    finally:
        mover.close()


def test_an_old_epoch_is_answered_as_by_kafka(kafka: Kafka, tmp_path: Path) -> None:
    theirs = outcomes(kafka.bootstrap, (1, 2))
    assert theirs == ["end 1", "FENCED_LEADER_EPOCH", "FENCED_LEADER_EPOCH", "end 1"]
    fleet = Fleet(tmp_path / "fleet", 2)
    try:
        assert outcomes(fleet.start().bootstrap, (1, 2)) == theirs
    finally:
        fleet.close()
