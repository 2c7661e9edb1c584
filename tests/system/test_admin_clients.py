"""Stock clients' admin calls against three real broker processes."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from fleetlog.wire import messages
from tests.cli.shell import Shell
from tests.support.fleet import Fleet
from tests.support.waiting import eventually, eventually_async

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper]

_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"admin-{next(_numbers)}"


@pytest.fixture(scope="module")
def admin(fleet: Fleet) -> AdminClient:
    return AdminClient({"bootstrap.servers": fleet.bootstrap, "socket.timeout.ms": 10_000})


def result(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(20)


def told(ask: Callable[[], dict[Any, Any]], what: str, good: Callable[[Any], object] = bool) -> Any:
    """The first good answer; a broker that has not read what another one has done may be asked."""

    def look() -> Any:
        try:
            return result(ask())
        except KafkaException:
            return None

    return eventually(look, what, good=lambda found: found and good(found))


def failure(futures: dict[Any, Any]) -> str:
    with pytest.raises(KafkaException) as problem:
        result(futures)
    return str(problem.value.args[0].name())


def test_librdkafka_topics(admin: AdminClient, topic: str) -> None:
    result(admin.create_topics([NewTopic(topic, 6, 1, config={"retention.ms": "-1"})]))
    eventually(lambda: topic in admin.list_topics(timeout=10).topics, f"{topic} is listed")
    described = told(
        lambda: admin.describe_topics(TopicCollection([topic]), include_authorized_operations=True), "it is described"
    )
    assert [p.id for p in described.partitions] == list(range(6))
    assert {p.leader.id for p in described.partitions} == {1, 2, 3}
    assert described.authorized_operations
    assert failure(admin.create_topics([NewTopic(topic, 1, 1)])) == "TOPIC_ALREADY_EXISTS"
    assert failure(admin.create_topics([NewTopic(topic + "x", 1, 9)])) == "INVALID_REPLICATION_FACTOR"
    assert failure(admin.create_topics([NewTopic("no good", 1, 1)])) == "TOPIC_EXCEPTION"
    assert failure(admin.create_topics([NewTopic(topic + "y", 1, 1, config={"no.such": "1"})])) == "INVALID_CONFIG"
    result(admin.create_topics([NewTopic(topic + "-dry", 1, 1)], validate_only=True))
    assert topic + "-dry" not in admin.list_topics(timeout=10).topics
    result(admin.create_partitions([NewPartitions(topic, 9)]))
    eventually(
        lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 9, "the topic has nine partitions"
    )
    assert failure(admin.create_partitions([NewPartitions(topic, 3)])) == "INVALID_PARTITIONS"
    result(admin.delete_topics([topic]))
    eventually(lambda: topic not in admin.list_topics(timeout=10).topics, f"{topic} is listed no more")
    assert failure(admin.delete_topics([topic])) == "UNKNOWN_TOPIC_OR_PART"


def test_librdkafka_configs(admin: AdminClient, topic: str) -> None:
    result(admin.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "1234"})]))
    eventually(lambda: topic in admin.list_topics(timeout=10).topics, f"{topic} is listed")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = told(lambda: admin.describe_configs([resource]), "its settings are described")
    assert found["retention.ms"].value == "1234"
    assert found["retention.ms"].source == 1
    assert found["segment.bytes"].is_default
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
            ConfigEntry("max.message.bytes", "5000", incremental_operation=AlterConfigOpType.SET),
        ],
    )
    result(admin.incremental_alter_configs([change]))
    found = told(
        lambda: admin.describe_configs([resource]), "the limit is 5000",
        good=lambda settings: settings["max.message.bytes"].value == "5000",
    )  # fmt: skip
    assert found["cleanup.policy"].value == "delete,compact"
    assert found["retention.ms"].is_default
    missing = ConfigResource(ResourceType.TOPIC, "there-is-none", incremental_configs=change.incremental_configs)
    assert failure(admin.incremental_alter_configs([missing])) == "UNKNOWN_TOPIC_OR_PART"
    assert failure(admin.describe_configs([missing])) == "UNKNOWN_TOPIC_OR_PART"


def test_librdkafka_broker_configs(admin: AdminClient) -> None:
    found = result(admin.describe_configs([ConfigResource(ResourceType.BROKER, "2")]))
    assert found["broker.id"].value == "2"
    assert found["broker.id"].is_read_only
    change = ConfigResource(
        ResourceType.BROKER,
        "2",
        incremental_configs=[ConfigEntry("background.threads", "7", incremental_operation=AlterConfigOpType.SET)],
    )
    result(admin.incremental_alter_configs([change]))
    found = result(admin.describe_configs([ConfigResource(ResourceType.BROKER, "2")]))
    assert found["background.threads"].value == "7"


def test_librdkafka_describes_the_cluster(admin: AdminClient) -> None:
    cluster = admin.describe_cluster(include_authorized_operations=True).result(20)
    assert sorted(node.id for node in cluster.nodes) == [1, 2, 3]
    assert cluster.controller.id in (1, 2, 3)
    assert cluster.cluster_id


def test_features_are_finalized_by_clients_and_by_the_command_line(fleet: Fleet) -> None:
    """UpdateFeatures: a new fleet has the newest levels; each broker says so once one was asked."""
    from kafka.admin import KafkaAdminClient, UpdateFeatureType

    shell = Shell(fleet)

    def described() -> tuple[Any, int]:
        found = shell.json("features", "describe")
        (row,) = (one for one in found["features"] if one["feature"] == "transaction.version")
        return (row["feature"], row["supported"], row["finalized"]), found["epoch"]

    row, epoch = described()
    assert row == ("transaction.version", [0, 2], 2)
    assert shell.lines("features", "describe")[-1] == f"epoch {epoch}"
    client = KafkaAdminClient(bootstrap_servers=fleet.bootstrap)
    try:
        client.update_features({"transaction.version": (UpdateFeatureType.SAFE_DOWNGRADE, 1)})
    finally:
        client.close()
    for broker in fleet.brokers:
        eventually(lambda: Shell(fleet).json("features", "describe")["epoch"] == epoch + 1, f"{broker} knows it")
    refused = shell.run("features", "upgrade", "transaction.version=3", code=1)
    assert "only supports versions 0-2" in refused.stderr
    shell.run("features", "upgrade", "newest", code=2)
    assert "possible" in shell.run("features", "upgrade", "--dry-run").stdout
    assert shell.json("features", "upgrade") == {
        "features": {
            "fleetlog.schema.version": 3, "fleetlog.tiering.version": 2, "group.version": 1, "share.version": 2,
            "transaction.version": 2,
        },
        "finalized": True,
    }  # fmt: skip
    eventually(lambda: described() == (row, epoch + 2), "the newest level is back")


def has_four_partitions(described: list[Any]) -> bool:
    """Whether that is the one topic; another broker than the one that listed it may know less."""
    return [len(one["partitions"]) for one in described] == [4]


def test_kafka_python_creates_describes_and_deletes_topics(fleet: Fleet, topic: str) -> None:
    from kafka.admin import KafkaAdminClient
    from kafka.admin import NewTopic as KafkaPythonTopic

    client = KafkaAdminClient(bootstrap_servers=fleet.bootstrap)
    try:
        client.create_topics([KafkaPythonTopic(name=topic, num_partitions=4, replication_factor=1)])
        eventually(lambda: topic in client.list_topics(), f"{topic} is listed")
        eventually(lambda: client.describe_topics([topic]), "four partitions are described", good=has_four_partitions)
        assert len(client.describe_cluster()["brokers"]) == 3
        client.delete_topics([topic])
        eventually(lambda: topic not in client.list_topics(), f"{topic} is listed no more")
    finally:
        client.close()


def test_aiokafka_creates_describes_and_deletes_topics(fleet: Fleet, topic: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.admin import NewTopic as AioTopic

    async def run(step: Callable[[AIOKafkaAdminClient], Any]) -> Any:
        client = AIOKafkaAdminClient(bootstrap_servers=fleet.bootstrap)
        await client.start()
        try:
            return await step(client)
        finally:
            await client.close()

    async def steps(client: AIOKafkaAdminClient) -> None:
        made = await client.create_topics([AioTopic(topic, 4, 1)])
        assert made.topic_errors[0][1] == 0
        while topic not in await client.list_topics():
            await asyncio.sleep(0.05)
        await eventually_async(
            lambda: client.describe_topics([topic]), "four partitions are described", good=has_four_partitions
        )
        assert len((await client.describe_cluster())["brokers"]) == 3
        await client.delete_topics([topic])
        while topic in await client.list_topics():
            await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(run(steps), 120))


def _ask(port: int, key: int, version: int, request: Any) -> Any:
    """One request straight to one broker."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(messages.encode_request(key, version, 1, "test", request))
        stream = connection.makefile("rb")
        frame = stream.read(int.from_bytes(stream.read(4), "big"))
    _, body = messages.split_response(key, version, frame)
    return messages.decode_response(key, version, body)


def test_every_broker_gets_topics_created_by_the_controller(fleet: Fleet, topic: str) -> None:
    request = messages.request_class(3)
    for broker in fleet.brokers:
        name = f"{topic}-by-{broker.id}"
        asked = request(version=12, topics=[request.MetadataRequestTopic(version=12, name=name)])

        def created(port: int = broker.port, asked: Any = asked) -> Any:
            (row,) = _ask(port, 3, 12, asked).topics
            return row

        found = eventually(created, f"{name} is there", good=lambda row: row.error_code == 0)
        assert len(found.partitions) == 1
        assert found.partitions[0].leader_id in (1, 2, 3)


@pytest.mark.parametrize("kind", [0, 1], ids=["group", "transaction"])
def test_all_brokers_name_the_same_coordinators(fleet: Fleet, kind: int) -> None:
    request = messages.request_class(10)

    def named(port: int) -> list[tuple[str, int]]:
        asked = request(version=4, key_type=kind, coordinator_keys=["a", "b", "c"])
        return [(c.key, c.node_id) for c in _ask(port, 10, 4, asked).coordinators]

    def agreed() -> bool:
        answers = [named(broker.port) for broker in fleet.brokers]
        assert all([key for key, _ in answer] == ["a", "b", "c"] for answer in answers)
        return answers[0] == answers[1] == answers[2] and all(node > 0 for _, node in answers[0])

    eventually(agreed, "all brokers name the same coordinators")


def test_a_setting_without_effect_is_warned_of_once_a_change(fleet: Fleet, admin: AdminClient, topic: str) -> None:
    """MirrorMaker sets what it mirrors every ten seconds, mostly to what it is."""
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(20)

    where = ConfigResource(ResourceType.TOPIC, topic)

    def alter(value: str) -> None:
        entry = ConfigEntry("message.timestamp.difference.max.ms", value, incremental_operation=AlterConfigOpType.SET)
        result(
            admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])])
        )
        for broker in fleet.brokers:
            one = AdminClient({"bootstrap.servers": broker.address})
            eventually(
                lambda one=one: result(one.describe_configs([where]))["message.timestamp.difference.max.ms"].value,
                "every broker knows it", good=lambda found: found == value,
            )  # fmt: skip

    for value in ("5", "5", "6", "6"):
        alter(value)
    logs = "".join(broker.log_file.read_text(errors="replace") for broker in fleet.brokers)
    assert logs.count(f"topic {topic}: settings are stored, but without effect here") == 2
