"""Admin calls of stock clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kafka.errors as kafka_errors
import pytest
from kafka import KafkaAdminClient, TopicPartition

from tests.support.clients import Client, Confluent, Message
from tests.support.waiting import eventually

pytestmark = pytest.mark.interop


def _described(client: Client, bootstrap: str, topic: str, expected: dict[str, str]) -> dict[str, str]:
    """All settings of a topic, once they hold what is expected: a broker may hear of a change after its answer."""

    def look() -> dict[str, str]:
        try:
            return client.topic_config(bootstrap, topic)
        except (Exception, AssertionError):  # it may not know the topic yet
            return {}

    what = f"{topic} has the settings {expected}"
    return eventually(look, what, good=lambda found: expected.items() <= found.items())


def test_topics_come_and_go(client: Client, bootstrap: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("admin")
    assert topic not in client.topics(bootstrap)
    client.create_topic(bootstrap, topic, 3)
    eventually(lambda: client.topics(bootstrap), f"{topic} is listed", good=lambda topics: topic in topics)
    client.delete_topic(bootstrap, topic)
    eventually(lambda: client.topics(bootstrap), f"{topic} is listed no more", good=lambda topics: topic not in topics)
    client.create_topic(bootstrap, topic, 1)
    eventually(lambda: client.topics(bootstrap), f"{topic} is listed", good=lambda topics: topic in topics)


def test_topic_settings_are_kept_and_described(client: Client, bootstrap: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("settings")
    client.create_topic(bootstrap, topic, 1, retention_ms="12345678", cleanup_policy="compact")
    settings = _described(client, bootstrap, topic, {"retention.ms": "12345678", "cleanup.policy": "compact"})
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
    eventually(
        lambda: client.topic_config(bootstrap, topic)["max.message.bytes"],
        "the limit is 5000",
        good=lambda value: value == "5000",
    )
    # The older call replaces all settings; kafka-python sends along what was set; aiokafka has only the older one.
    keeps = client.name == "kafka-python" or (incremental and client.name != "aiokafka")
    kept = "1000000" if keeps else str(7 * 24 * 3600 * 1000)
    eventually(
        lambda: client.topic_config(bootstrap, topic)["retention.ms"],
        f"the retention is {kept}",
        good=lambda value: value == kept,
    )

    def fits() -> bool:  # the leader may learn of the change after the broker that was asked
        try:
            client.produce(bootstrap, topic, [Message(b"x" * 2000, partition=0)])
        except (Exception, AssertionError):
            return False
        return True

    eventually(fits, "a record of 2 kB fits")


# --- replicas: what the clients' own admin calls can do; not every client has them all --------------------------------


@pytest.fixture
def python_admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    yield client
    client.close()


def _assigned(admin: KafkaAdminClient, name: str, *replicas: list[int]) -> None:
    """A topic with these replicas, all of them in sync."""
    admin.create_topics({name: {"assignments": dict(enumerate(replicas))}})
    eventually(lambda: _isr(admin, name), "all are in sync", good=lambda isr: isr == [set(one) for one in replicas])


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
    eventually(lambda: _isr(admin, topic), "the moves end", good=lambda isr: isr == [{1, 3}, {1, 2, 3}])
    eventually(admin.list_partition_reassignments, "no move is left", good=lambda moves: moves == {})
    assert [p["replica_nodes"] for p in _partitions(admin, topic)] == [[3, 1], [2, 1, 3]]
    none = admin.alter_partition_reassignments({first: None})
    assert none[first] is kafka_errors.NoReassignmentInProgressError
    admin.elect_leaders(0, {topic: [0, 1]})
    eventually(
        lambda: [p["leader_id"] for p in _partitions(admin, topic)],
        "the preferred replicas lead",
        good=lambda leaders: leaders == [3, 2],
    )
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

    eventually(
        sizes,
        "the copies have the same size",
        good=lambda found: len(set(found.values())) == 1 and min(found.values()) > 100_000,
    )
    assert sizes().keys() == {1, 3}


def test_a_mirrored_topic_keeps_its_settings_beside_those_without_effect(
    client: Client, bootstrap: str, fresh: Callable[[str], str]
) -> None:
    """As MirrorMaker copies a topic: all names that differ from the default, of which some do nothing here."""
    topic = fresh("mirrored")
    wanted = {"cleanup_policy": "compact", "remote_log_copy_disable": "true", "retention_ms": "77000"}
    client.create_topic(bootstrap, topic, 1, **wanted)
    _described(client, bootstrap, topic, {name.replace("_", "."): value for name, value in wanted.items()})
    for more in ({}, {"local_retention_ms": "5", "compression_gzip_level": "7", "segment_ms": "88000"}):
        wanted |= more
        client.alter_topic(bootstrap, topic, True, **wanted)
        _described(client, bootstrap, topic, {name.replace("_", "."): value for name, value in wanted.items()})


def test_security_is_said_to_be_disabled(python_admin: KafkaAdminClient, bootstrap: str) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": bootstrap})
    what = (ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*")
    acl = AclBinding(*what, AclOperation.READ, AclPermissionType.ALLOW)
    with pytest.raises(KafkaException, match=r"SECURITY_DISABLED.*No Authorizer"):
        admin.create_acls([acl])[acl].result(30)
    assert admin.describe_user_scram_credentials().result(30) == {}
    from kafka.admin import ACLFilter, ACLResourcePatternType, ResourcePatternFilter
    from kafka.admin import ACLOperation as Operation
    from kafka.admin import ACLPermissionType as Permission
    from kafka.admin import ResourceType as Kind

    pattern = ResourcePatternFilter(Kind.ANY, None, ACLResourcePatternType.ANY)
    with pytest.raises(kafka_errors.SecurityDisabledError):
        python_admin.describe_acls(ACLFilter(None, None, Operation.ANY, Permission.ANY, pattern))
