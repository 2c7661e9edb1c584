"""Who reads and writes a topic, on its page: members of groups, readers without a group, Spark's sinks; with the rights
of the viewer."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType
from confluent_kafka.admin import ResourceType as Resource
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.producer import MemberProducer
from fleetlog.spark.client.settings import kafka_python_settings
from fleetlog.spark.client.write_settings import WriteSettings
from fleetlog.spark.sink.batch_transactions import BatchTransactions
from tests.cli.shell import Shell
from tests.console.served import Served, Visitor, log_in, scram_config
from tests.support.fleet import Fleet
from tests.support.secured import BROKER_PASSWORD, BROKER_USER, PASSWORD, USER, confluent
from tests.support.waiting import eventually

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def topic(fleet: Fleet) -> str:
    name = f"used-{uuid.uuid4().hex[:8]}"
    Shell(fleet).run("topics", "create", name, "-p", "3", "-r", "3")
    Shell(fleet).run("produce", name, stdin="one\ntwo\nthree\n")
    return name


def _librdkafka(fleet: Fleet, name: str, group: str) -> Consumer:
    return Consumer({
        "bootstrap.servers": fleet.bootstrap, "group.id": group, "client.id": name, "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    })  # fmt: skip


def test_readers_without_a_group_and_members_of_one(visitor: Visitor, fleet: Fleet, topic: str) -> None:
    """librdkafka fetches without sessions, kafka-python with one."""
    group = f"group-{topic}"
    by_hand, member = _librdkafka(fleet, f"hand-{topic}", "unused"), _librdkafka(fleet, f"member-{topic}", group)
    python = KafkaConsumer(bootstrap_servers=fleet.bootstrap, client_id=f"fleetlog-spark-{topic}")
    by_hand.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 2, 0)])
    python.assign([PythonPartition(topic, 1)])
    python.seek_to_beginning()
    member.subscribe([topic])

    polled = [by_hand, member]

    def readers() -> dict[str, tuple[Any, Any, Any]]:
        for consumer in polled:
            consumer.poll(0.05)
        python.poll(50)
        rows = visitor.json(f"/topics/{topic}/clients")["readers"]
        assert rows["error"] is None
        return {row["client_id"]: (row["group"], row["partitions"], row["spark"]) for row in rows["rows"]}

    wanted = {
        f"hand-{topic}": (None, [0, 2], False),
        f"member-{topic}": (group, [0, 1, 2], False),
        f"fleetlog-spark-{topic}": (None, [1], True),
    }
    eventually(readers, "all three readers", 60, good=lambda told: told == wanted)
    page = visitor.page(f"/topics/{topic}/clients")
    assert f"hand-{topic}" in page
    assert f'<a href="/group?name={group}">' in page
    polled.remove(by_hand)
    by_hand.close()
    eventually(readers, "who has gone is told no more", good=lambda told: f"hand-{topic}" not in told)
    member.close()
    python.close()


def test_spark_sinks_stand_where_they_write(visitor: Visitor, fleet: Fleet, topic: str) -> None:
    """Also between batches, when only what the partitions remember says so. Their members are no other producers."""
    name, other = f"sink-{topic}", f"sink-elsewhere-{topic}"
    client = Client(kafka_python_settings({"bootstrap.servers": fleet.bootstrap}))
    BatchTransactions(client, other).commit(BatchTransactions(client, other).begin(60_000), "query-2", 1, "", [])
    sink = BatchTransactions(client, name)
    batch = sink.begin(60_000)
    (member,) = sink.enlist(batch)
    producer = MemberProducer(client, name, member, WriteSettings(topic))
    producer.write(pa.record_batch([pa.array([f"row {n}" for n in range(9)])], ["value"]))
    producer.flush()
    (row,) = visitor.json(f"/topics/{topic}/clients")["sinks"]["rows"]
    assert (row["sink"], row["state"], row["query"]) == (name, "Ongoing", None)
    assert row["open_partitions"]
    sink.commit(batch, "query-1", 7, "", [member])
    (row,) = eventually(
        lambda: visitor.json(f"/topics/{topic}/clients")["sinks"]["rows"],
        "the batch has ended", good=lambda rows: rows[0]["open_partitions"] == [],
    )  # fmt: skip
    assert (row["sink"], row["query"], row["batch"], len(row["producer_ids"])) == (name, "query-1", 7, 1)
    value = visitor.json(f"/topics/{topic}/clients")
    assert row["producer_ids"][0] not in {one["producer_id"] for one in value["producers"]["rows"]}
    page = visitor.page(f"/topics/{topic}/clients")
    assert name in page
    assert other not in page
    client.close()


def test_a_viewer_is_told_what_it_may_describe(guarded: Fleet, tmp_path: Path) -> None:
    admin = AdminClient({
        "bootstrap.servers": guarded.bootstrap, **confluent("SCRAM-SHA-256", BROKER_USER, BROKER_PASSWORD)
    })  # fmt: skip
    topic = f"seen-{uuid.uuid4().hex[:8]}"
    rule = AclBinding(
        Resource.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    words = ("--login", "SCRAM-SHA-256", "--command-config", str(scram_config(tmp_path)))
    console = Served(guarded.bootstrap, *words)
    try:
        owner, viewer = Visitor(console), Visitor(console)
        assert log_in(owner, BROKER_USER, BROKER_PASSWORD).status == 303
        assert log_in(viewer, USER, PASSWORD).status == 303
        token = owner.json("/topics")["form_token"]
        form = {"form_token": token, "topic": topic, "partitions": "1", "confirm": "yes"}
        assert owner.post("/change/create-topic", form).status == 303
        admin.create_acls([rule])[rule].result(20)
        value = eventually(
            lambda: viewer.get(f"/topics/{topic}/clients?format=json"), "the rule", good=lambda got: got.status == 200
        ).value
        assert "may describe the cluster" in value["readers"]["error"]
        assert value["producers"]["error"]
        assert (value["sinks"]["rows"], value["sinks"]["error"]) == ([], None)
        assert "may describe the cluster" in viewer.page(f"/topics/{topic}/clients")
        assert owner.json(f"/topics/{topic}/clients")["readers"] == {"rows": [], "error": None}
    finally:
        assert console.close() == 0
