"""The Java client and Kafka's command line tools, unchanged, against a fleet."""

from __future__ import annotations

import itertools

import pytest

from tests.kafka_jars.conftest import Tools
from tests.support.clients import Confluent, Message

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop]

PACKAGE = "org.apache.kafka.tools"
_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"java-{next(_numbers)}"


def test_kafkas_tool_creates_alters_and_deletes_topics(tools: Tools, topic: str) -> None:
    command = f"{PACKAGE}.TopicCommand"
    tools(command, "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=99999")
    assert topic in tools(command, "--list").split()
    described = tools(command, "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "retention.ms=99999" in described
    tools(command, "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in tools(command, "--describe", "--topic", topic)
    tools(command, "--delete", "--topic", topic)
    assert topic not in tools(command, "--list").split()


def test_kafkas_tool_sets_and_deletes_configs(tools: Tools, topic: str) -> None:
    command = "org.apache.kafka.tools.ConfigCommand"
    tools(f"{PACKAGE}.TopicCommand", "--create", "--topic", topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tools(command, "--alter", *entity, "--add-config", "max.message.bytes=12345")
    assert "max.message.bytes=12345" in tools(command, "--describe", *entity)
    tools(command, "--alter", *entity, "--delete-config", "max.message.bytes")
    assert "max.message.bytes=12345" not in tools(command, "--describe", *entity)


def test_kafkas_tool_sets_levels_of_loggers(tools: Tools) -> None:
    command, entity = "org.apache.kafka.tools.ConfigCommand", ("--entity-type", "broker-loggers", "--entity-name", "1")
    tools(command, "--alter", *entity, "--add-config", "fleetlog.brokers.peers=DEBUG")
    assert "fleetlog.brokers.peers.calls=DEBUG" in tools(command, "--describe", *entity)
    tools(command, "--alter", *entity, "--delete-config", "fleetlog.brokers.peers")
    assert "fleetlog.brokers.peers.calls=INFO" in tools(command, "--describe", *entity)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_java_producer_and_consumer(tools: Tools, topic: str, codec: str) -> None:
    lines = [f"k{n}:value {n}" for n in range(50)]
    tools(
        f"{PACKAGE}.ConsoleProducer", "--topic", topic, "--compression-codec", codec,
        "--reader-property", "parse.key=true", "--reader-property", "key.separator=:", text="\n".join(lines) + "\n",
    )  # fmt: skip
    seen = tools(
        f"{PACKAGE}.consumer.ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", "50",
        "--formatter-property", "print.key=true", "--formatter-property", "key.separator=:", "--timeout-ms", "60000",
    )  # fmt: skip
    assert seen.split("\n")[:50] == lines


def test_groups_and_offsets(tools: Tools, topic: str) -> None:
    client, group = Confluent(), f"group-{topic}"
    client.produce(tools.bootstrap, topic, [Message(b"%d" % n, partition=0) for n in range(20)])
    assert f"{topic}:0:20" in tools(f"{PACKAGE}.GetOffsetShell", "--topic", topic)
    assert f"{topic}:0:0" in tools(f"{PACKAGE}.GetOffsetShell", "--topic", topic, "--time", "earliest")
    tools(
        f"{PACKAGE}.consumer.ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", "20",
        "--group", group, "--timeout-ms", "60000",
    )  # fmt: skip
    command = f"{PACKAGE}.consumer.group.ConsumerGroupCommand"
    assert group in tools(command, "--list").split()
    (row,) = [line.split() for line in tools(command, "--describe", "--group", group).splitlines() if topic in line]
    assert row[:6] == [group, topic, "0", "20", "20", "0"]
    tools(command, "--group", group, "--topic", topic, "--reset-offsets", "--to-offset", "5", "--execute")
    assert client.committed(tools.bootstrap, group, topic) == 5
    tools(command, "--delete", "--group", group)
    assert group not in tools(command, "--list").split()


def test_kafkas_tool_shows_open_and_ended_transactions(tools: Tools, topic: str) -> None:
    client = Confluent()
    producer = client.transactional(tools.bootstrap, f"id-{topic}")
    producer.begin()
    producer.send(topic, Message(b"open"))
    producer._producer.flush(30)  # type: ignore[attr-defined]
    command = f"{PACKAGE}.TransactionsCommand"
    (row,) = [line.split() for line in tools(command, "list").splitlines() if f"id-{topic}" in line]
    assert row[-1] == "Ongoing"
    described = tools(command, "describe", "--transactional-id", f"id-{topic}")
    assert f"{topic}-0" in described
    (state,) = [
        line.split()
        for line in tools(command, "describe-producers", "--topic", topic, "--partition", "0").splitlines()[1:]
        if line.strip()
    ]
    assert state[-1] == "0", "the open transaction starts at offset 0"
    producer.commit()
    producer.close()
    (row,) = [line.split() for line in tools(command, "list").splitlines() if f"id-{topic}" in line]
    assert row[-1] == "CompleteCommit"


def test_the_java_transactional_producer(tools: Tools) -> None:
    """Protocol 2 (epoch bump on every end) as only the Java client speaks it: its own transactional load generator."""
    described = tools(f"{PACKAGE}.FeatureCommand", "describe")
    (words,) = (line.split() for line in described.splitlines() if "transaction.version" in line)
    assert words[words.index("FinalizedVersionLevel:") + 1] == "2", described
    out = tools(
        f"{PACKAGE}.ProducerPerformance", "--topic", "java-perf", "--num-records", "5000", "--record-size", "100",
        "--throughput", "-1", "--transactional-id", "java-perf", "--transaction-duration-ms", "50",
        "--command-property", f"bootstrap.servers={tools.bootstrap}", bootstrap=False,
    )  # fmt: skip
    assert "5000 records sent" in out
    client = Confluent()
    found = client.consume(tools.bootstrap, "java-perf", 5000, isolation="read_committed")
    assert len(found) == 5000
