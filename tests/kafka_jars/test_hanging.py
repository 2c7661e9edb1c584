"""A hanging transaction, found and ended by Kafka's own tool (KIP-664): WriteTxnMarkers from an admin client."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.kafka_jars.conftest import Tools
from tests.support.clients import Confluent, Message
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
