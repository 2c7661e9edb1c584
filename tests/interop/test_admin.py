"""Admin calls of stock clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import kafka.errors as kafka_errors
import pytest
from kafka import KafkaAdminClient, TopicPartition

from tests.interop.clients import Client, Confluent, Message

pytestmark = pytest.mark.interop


def _eventually(check: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.1)
    return check()


def test_topics_come_and_go(client: Client, bootstrap: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("admin")
    assert topic not in client.topics(bootstrap)
    client.create_topic(bootstrap, topic, 3)
    assert _eventually(lambda: topic in client.topics(bootstrap))
    client.delete_topic(bootstrap, topic)
    assert _eventually(lambda: topic not in client.topics(bootstrap))
    client.create_topic(bootstrap, topic, 1)
    assert _eventually(lambda: topic in client.topics(bootstrap))


def test_topic_settings_are_kept_and_described(client: Client, bootstrap: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("settings")
    client.create_topic(bootstrap, topic, 1, retention_ms="12345678", cleanup_policy="compact")
    settings = client.topic_config(bootstrap, topic)
    assert settings["retention.ms"] == "12345678"
    assert settings["cleanup.policy"] == "compact"
    assert settings["segment.bytes"] == str(1024 * 1024 * 1024)


def test_a_second_topic_of_the_same_name_is_refused(
    client: Client, bootstrap: str, fresh: Callable[[str], str]
) -> None:
    topic = fresh("twice")
    client.create_topic(bootstrap, topic)
    with pytest.raises(Exception, match=r"(?i)exist|36"):
        client.create_topic(bootstrap, topic)


def test_a_wrong_setting_is_refused(client: Client, bootstrap: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("wrong")
    with pytest.raises(Exception, match=r"(?i)config|40"):
        client.create_topic(bootstrap, topic, 1, retention_ms="soon")
    assert topic not in client.topics(bootstrap)


@pytest.mark.parametrize("incremental", [True, False], ids=["IncrementalAlterConfigs", "AlterConfigsRequest"])
def test_settings_change_without_a_restart(
    client: Client, bootstrap: str, fresh: Callable[[str], str], incremental: bool
) -> None:
    topic = fresh("altered")
    client.create_topic(bootstrap, topic, 1, retention_ms="1000000", max_message_bytes="500")
    with pytest.raises(Exception, match=r"(?i)size|large|10"):
        client.produce(bootstrap, topic, [Message(b"x" * 2000, partition=0)])
    client.alter_topic(bootstrap, topic, incremental, max_message_bytes="5000")
    assert _eventually(lambda: client.topic_config(bootstrap, topic)["max.message.bytes"] == "5000")
    # The older call replaces all settings; kafka-python sends along what was set; aiokafka has only the older one.
    keeps = client.name == "kafka-python" or (incremental and client.name != "aiokafka")
    kept = "1000000" if keeps else str(7 * 24 * 3600 * 1000)
    assert _eventually(lambda: client.topic_config(bootstrap, topic)["retention.ms"] == kept)

    def fits() -> bool:  # the leader may hear of the change a moment after the broker that was asked
        try:
            client.produce(bootstrap, topic, [Message(b"x" * 2000, partition=0)])
        except (Exception, AssertionError):
            return False
        return True

    assert _eventually(fits)


# --- replicas: what the clients' own admin calls can do; not every client has them all --------------------------------


@pytest.fixture
def python_admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    yield client
    client.close()


def _assigned(admin: KafkaAdminClient, name: str, *replicas: list[int]) -> None:
    """A topic with these replicas, all of them in sync."""
    admin.create_topics({name: {"assignments": dict(enumerate(replicas))}})
    assert _eventually(lambda: _isr(admin, name) == [set(one) for one in replicas]), _isr(admin, name)


def _partitions(admin: KafkaAdminClient, name: str) -> list[dict[str, Any]]:
    (topic,) = admin.describe_topics([name])
    return sorted(topic["partitions"], key=lambda p: int(p["partition_index"]))


def _isr(admin: KafkaAdminClient, name: str) -> list[set[int]]:
    return [set(p["isr_nodes"]) for p in _partitions(admin, name)]


def test_replicas_are_reassigned_and_leaders_elected(
    python_admin: KafkaAdminClient, bootstrap: str, fresh: Callable[[str], str]
) -> None:
    admin, topic = python_admin, fresh("moved")
    _assigned(admin, topic, [1, 2], [2, 1])
    wrote = [Message(b"%d" % number, partition=number % 2) for number in range(100)]
    Confluent().produce(bootstrap, topic, wrote)
    first, second, nowhere = TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(fresh("nowhere"), 0)
    answers = admin.alter_partition_reassignments({first: [3, 1], second: [2, 1, 3], nowhere: [1]})
    assert (answers[first], answers[second]) == (None, None)
    assert answers[nowhere] is kafka_errors.UnknownTopicOrPartitionError
    assert _eventually(lambda: _isr(admin, topic) == [{1, 3}, {1, 2, 3}]), _partitions(admin, topic)
    assert _eventually(lambda: admin.list_partition_reassignments() == {})
    assert [p["replica_nodes"] for p in _partitions(admin, topic)] == [[3, 1], [2, 1, 3]]
    none = admin.alter_partition_reassignments({first: None})
    assert none[first] is kafka_errors.NoReassignmentInProgressError
    admin.elect_leaders(0, {topic: [0, 1]})
    assert _eventually(lambda: [p["leader_id"] for p in _partitions(admin, topic)] == [3, 2])
    for partition in (0, 1):
        read = Confluent().consume(bootstrap, topic, 50, partition=partition)
        assert [m.value for m in read] == [m.value for m in wrote if m.partition == partition]


def test_elections_by_confluent(python_admin: KafkaAdminClient, bootstrap: str, fresh: Callable[[str], str]) -> None:
    from confluent_kafka import ElectionType, KafkaError
    from confluent_kafka import TopicPartition as Partition
    from confluent_kafka.admin import AdminClient

    topic = fresh("elected")
    _assigned(python_admin, topic, [1, 2, 3])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    answer = admin.elect_leaders(ElectionType.PREFERRED, [Partition(topic, 0), Partition(topic, 7)]).result(30)
    found = {one.partition: error for one, error in answer.items()}
    assert found[0].code() == KafkaError.ELECTION_NOT_NEEDED
    assert found[7].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_log_directories_are_described(
    python_admin: KafkaAdminClient, bootstrap: str, fresh: Callable[[str], str]
) -> None:
    topic = fresh("sized")
    _assigned(python_admin, topic, [1, 3])
    Confluent().produce(bootstrap, topic, [Message(b"x" * 10_000, partition=0) for _ in range(10)])

    def sizes() -> dict[int, int]:
        return {
            row["broker"]: one["partition_size"]
            for row in python_admin.describe_log_dirs([topic])
            for directory in row["log_dirs"]
            for found in directory["topics"]
            if found["name"] == topic
            for one in found["partitions"]
        }

    assert _eventually(lambda: len(set(sizes().values())) == 1 and min(sizes().values()) > 100_000), sizes()
    assert sizes().keys() == {1, 3}
