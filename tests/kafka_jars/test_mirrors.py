"""MirrorMaker 2 between Apache Kafka and a fleet, both ways, with groups' offsets synchronised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from tests.kafka_jars.kafka import Kafka
from tests.kafka_jars.programs import Program, read_topic, write_properties
from tests.support.clients import Confluent, Message
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop, pytest.mark.timeout(600)]

LIMIT_S = 150.0
COUNT, READ = 200, 120
OWN = {"fleetlog.dedup.max.bytes": "1048576"}
"""A setting that Apache Kafka does not know."""
PAGE = Path(__file__).parents[2] / "docs" / "running.md"
RECIPE = next(line for line in PAGE.read_text().splitlines() if line.startswith("config.properties.exclude"))
"""As printed."""
SETTINGS = {
    "clusters": "kafka, fleet",
    "kafka->fleet.enabled": "true",
    "fleet->kafka.enabled": "true",
    "topics": "orders, payments",
    "groups": "readers-.*",
    "replication.factor": 1,
    "checkpoints.topic.replication.factor": 1,
    "heartbeats.topic.replication.factor": 1,
    "offset-syncs.topic.replication.factor": 1,
    "offset.storage.replication.factor": 1,
    "status.storage.replication.factor": 1,
    "config.storage.replication.factor": 1,
    "offset.storage.partitions": 3,
    "status.storage.partitions": 2,
    "sync.group.offsets.enabled": "true",
    "sync.topic.acls.enabled": "false",
    "sync.group.offsets.interval.seconds": 1,
    "emit.checkpoints.interval.seconds": 1,
    "refresh.topics.interval.seconds": 2,
    "refresh.groups.interval.seconds": 2,
    "sync.topic.configs.interval.seconds": 2,
    "offset.lag.max": 0,
    "emit.offset-syncs.enabled": "true",
    "exactly.once.source.support": "enabled",
    "dedicated.mode.enable.internal.rest": "false",
    "plugin.discovery": "service_load",
    "fleet->kafka." + RECIPE.partition(" = ")[0]: RECIPE.partition(" = ")[2],
}


@pytest.fixture
def kafka(classpath: str, tmp_path: Path) -> Iterator[Kafka]:
    home = tmp_path / "kafka"
    home.mkdir()
    made = Kafka(classpath, home, properties={"group.initial.rebalance.delay.ms": 0})
    made.format()
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def mirror(connect_classpath: str, tmp_path: Path, kafka: Kafka, fleet: Fleet) -> Iterator[Program]:
    clusters = {"kafka.bootstrap.servers": kafka.bootstrap, "fleet.bootstrap.servers": fleet.bootstrap}
    file = write_properties(tmp_path / "mirror.properties", {**SETTINGS, **clusters})
    made = Program(connect_classpath, tmp_path / "mirror.out", "org.apache.kafka.connect.mirror.MirrorMaker", str(file))
    try:
        yield made
    finally:
        made.kill()


def messages(first: int) -> list[Message]:
    return [
        Message(b"value %d" % n, b"key %d" % n, timestamp=1_760_000_000_000 + n) for n in range(first, first + COUNT)
    ]


def read_some(bootstrap: str, topic: str, group: str) -> None:
    """A consumer of a group reads the first records of the topic, commits, and goes."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "session.timeout.ms": 6000})
    consumer.subscribe([topic])
    count = 0
    while count < READ:
        found = consumer.consume(READ - count, 60)
        assert found, f"{group} reads nothing from {topic}"
        count += len(found)
    consumer.commit(offsets=[Place(topic, 0, READ)], asynchronous=False)
    consumer.close()


def plain(found: list[Message]) -> list[Message]:
    return [Message(message.value, message.key, (), message.timestamp) for message in found]


def test_topics_and_groups_are_mirrored_both_ways(kafka: Kafka, fleet: Fleet, mirror: Program) -> None:
    client = Confluent()
    ways = [
        (kafka.bootstrap, "orders", "readers-of-kafka", fleet.bootstrap, "kafka.orders"),
        (fleet.bootstrap, "payments", "readers-of-fleet", kafka.bootstrap, "fleet.payments"),
    ]
    for source, topic, group, _, _ in ways:
        settings = {"cleanup.policy": "compact", "retention.ms": "-1", "preallocate": "true"}
        client.create_topic(source, topic, **settings, **(OWN if source == fleet.bootstrap else {}))
        client.produce(source, topic, messages(0))
        read_some(source, topic, group)
    mirror.start()

    def present(bootstrap: str, topic: str) -> bool:
        assert mirror.alive(), mirror.tail()
        return topic in client.topics(bootstrap)

    for _, _, _, target, copy in ways:
        eventually(lambda target=target, copy=copy: present(target, copy), f"{copy} is there", LIMIT_S, pause_s=0.5)
    for source, topic, _, _, _ in ways:
        client.produce(source, topic, messages(COUNT))
    for _, _, group, target, copy in ways:
        eventually(
            lambda target=target, copy=copy: len(read_topic(target, copy)), f"{copy} is whole", LIMIT_S,
            good=(2 * COUNT).__le__, pause_s=0.5,
        )  # fmt: skip
        assert plain(read_topic(target, copy)) == messages(0) + messages(COUNT)
        eventually(
            lambda target=target, copy=copy: client.topic_config(target, copy)["cleanup.policy"],
            f"the settings of {copy} are mirrored", LIMIT_S, good="compact".__eq__, pause_s=0.5,
        )  # fmt: skip
        eventually(
            lambda target=target, copy=copy, group=group: client.committed(target, group, copy),
            f"the offset of {group} stands", LIMIT_S, good=lambda offset: offset is not None and offset > 0, pause_s=1,
        )  # fmt: skip
    for source, topic, group, target, copy in ways:
        translated = client.committed(target, group, copy)
        assert translated is not None
        assert translated <= READ, "a translated offset never skips a record"
        client.alter_topic(source, topic, True, **{"retention.ms": "123456789"})
        eventually(
            lambda target=target, copy=copy: client.topic_config(target, copy)["retention.ms"],
            f"a changed setting of {copy} is mirrored", LIMIT_S, good="123456789".__eq__, pause_s=0.5,
        )  # fmt: skip
    said = [line for broker in fleet.brokers for line in broker.log_file.read_text().splitlines()]
    said = [line for line in said if "kafka.orders: settings are stored, but without effect here" in line]
    assert len(said) <= 1, "each sync sets what has no effect; it was set once"
    assert client.topic_config(kafka.bootstrap, "fleet.payments")["preallocate"] == "true", "nothing else is left out"
