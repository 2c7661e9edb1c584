"""A hanging transaction, found and ended by Kafka's own tool (KIP-664): WriteTxnMarkers from an admin client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.kafka_jars.conftest import Tools
from tests.support.clients import Confluent, Message
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop]

COMMAND = "org.apache.kafka.tools.TransactionsCommand"


def stable(bootstrap: str, topic: str) -> int:
    """The last stable offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "look", "isolation.level": "read_committed"})
    found = int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1])
    consumer.close()
    return found


def test_a_hanging_transaction_is_aborted_by_kafkas_tool(tools: Tools) -> None:
    topic, client = "hanging", Confluent()
    tools("org.apache.kafka.tools.TopicCommand", "--create", "--topic", topic)
    client.produce(tools.bootstrap, topic, [Message(b"before", partition=0)])
    producer = client.transactional(tools.bootstrap, "hangs")
    producer.begin()
    producer.send(topic, Message(b"open", partition=0))
    producer._producer.flush(30)  # type: ignore[attr-defined]
    client.produce(tools.bootstrap, topic, [Message(b"behind", partition=0)])
    assert stable(tools.bootstrap, topic) == 1
    lines = tools(COMMAND, "describe-producers", "--topic", topic, "--partition", "0").splitlines()
    (open_one,) = [line.split() for line in lines[1:] if line.split() and line.split()[-1] == "1"]
    found = tools(COMMAND, "find-hanging", "--topic", topic, "--partition", "0", "--max-transaction-timeout", "0")
    assert topic not in found, "its coordinator knows of it: open, but not hanging"
    tools(COMMAND, "abort", "--topic", topic, "--partition", "0", "--start-offset", open_one[-1])
    eventually(  # three records and the marker
        lambda: stable(tools.bootstrap, topic), "no transaction is open", good=lambda offset: offset >= 4, pause_s=0.2
    )
    values = [message.value for message in client.consume(tools.bootstrap, topic, 2, isolation="read_committed")]
    assert values == [b"before", b"behind"]
    producer.abort()
    producer.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Fleet]:
    """Two brokers whose coordinators may forget what they know."""
    fleet = Fleet(tmp_path, 2, internal_topics_alter_enable="true")
    try:
        yield fleet.start()
    finally:
        fleet.close()


def test_a_transaction_that_no_coordinator_knows_is_found_at_a_follower(classpath: str, pair: Fleet) -> None:
    tools, topic = Tools(classpath, pair), "forgotten"
    tools("org.apache.kafka.tools.TopicCommand", "--create", "--topic", topic, "--replication-factor", "2")
    admin = AdminClient({"bootstrap.servers": pair.bootstrap})
    leader = admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader
    follower = next(broker.id for broker in pair.brokers if broker.id != leader)
    producer = Producer({"bootstrap.servers": pair.bootstrap, "transactional.id": "forgets", "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(60) == 0

    def found(broker_id: int) -> list[list[str]]:
        asked = ("find-hanging", "--broker-id", str(broker_id), "--max-transaction-timeout", "0")
        return [line.split() for line in tools(COMMAND, *asked).splitlines() if line.startswith(topic)]

    assert found(follower) == [], "its coordinator knows of it: open, but not hanging"
    admin.delete_topics(["__transaction_state"])["__transaction_state"].result(60)
    eventually(
        lambda: max(broker.figure("fleetlog_oldest_transaction_seconds") for broker in pair.brokers),
        "no coordinator knows of a transaction", good=lambda age_s: age_s == 0,
    )  # fmt: skip
    ((_, partition, _, _, _, start, *_),) = hanging = found(follower)
    assert (partition, start) == ("0", "0")
    assert [row[:6] for row in found(leader)] == [hanging[0][:6]]
    tools(COMMAND, "abort", "--topic", topic, "--partition", "0", "--start-offset", start)
    eventually(lambda: found(follower), "the follower has its marker", good=lambda rows: rows == [])
    assert stable(pair.bootstrap, topic) == 2, "the record and the marker"
