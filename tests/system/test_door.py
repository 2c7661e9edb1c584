"""A topic that asks for schemas' ids on real brokers: what librdkafka is told, how fast brokers learn of a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.support.copies import Cluster
from tests.support.fleet import Fleet
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

INVALID_RECORD = 87
PARTITIONS = 3
ORDER = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": []})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    fleet = Fleet(tmp_path_factory.mktemp("door"))
    try:
        yield Cluster(fleet.start())
    finally:
        fleet.close()


def framed(number: int, payload: bytes = b"payload") -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


@pytest.fixture(autouse=True)
def schemas(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    """The topic of schemas, on all brokers, unless there is one. All are asked for: to name one makes it, on one."""
    from confluent_kafka.admin import AdminClient

    if request.function is test_without_schemas_a_check_is_refused:
        return
    if "_schemas" not in AdminClient({"bootstrap.servers": cluster.alive}).list_topics(timeout=PATIENCE_S).topics:
        cluster.create("_schemas", cleanup_policy="compact")


def register(
    cluster: Cluster,
    subject: str,
    number: int,
    *,
    version: int = 1,
    gone: bool = False,
    schema: str = ORDER,
    kind: str = "AVRO",
) -> None:
    """As a registry writes it."""
    from confluent_kafka import Producer

    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    value = {"subject": subject, "version": version, "id": number, "schema": schema, "deleted": False}
    value |= {} if kind == "AVRO" else {"schemaType": kind}
    producer = Producer({"bootstrap.servers": cluster.alive})
    producer.produce("_schemas", None if gone else json.dumps(value), json.dumps(key))
    assert producer.flush(PATIENCE_S) == 0


def in_sync(cluster: Cluster, *topics: str) -> None:
    """Wait until all brokers are back, and each topic's first partition is on all of them."""
    for topic in topics:
        eventually(lambda topic=topic: len(cluster.state(topic).isrs), f"{topic} is in sync", good=PARTITIONS.__eq__)


class Sender:
    """librdkafka with an id in each batch of its own, so that one bad record makes no other one fail."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        from confluent_kafka import Producer

        self.topic = topic
        self.errors: dict[bytes, int] = {}
        self.delivered: dict[int, list[bytes]] = {}
        self.producer = Producer(
            {"bootstrap.servers": cluster.alive, "enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 1,
             "max.in.flight": 5, "message.timeout.ms": int(1000 * PATIENCE_S)}
        )  # fmt: skip

    def send(self, value: bytes | None, partition: int = 0, key: bytes = b"k") -> None:
        self.producer.produce(self.topic, value, key, partition=partition, on_delivery=self._told)
        self.producer.poll(0)

    def _told(self, error: Any, message: Any) -> None:
        if error is None:
            self.delivered.setdefault(message.partition(), []).append(message.value())
        else:
            self.errors[message.value()] = error.code()

    def finish(self) -> None:
        assert self.producer.flush(PATIENCE_S) == 0


def read(cluster: Cluster, topic: str, partition: int) -> list[bytes | None]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": cluster.alive, "group.id": "r", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[bytes | None] = []
    while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
        values.append(message.value())
    consumer.close()
    return values


def test_without_schemas_a_check_is_refused(cluster: Cluster) -> None:
    shell = Shell(cluster.fleet)
    refused = shell.run("topics", "create", "early", "--config", "fleetlog.schema.validation=id", code=1)
    assert "there is no topic _schemas" in refused.stderr
    shell.run("topics", "create", "early")
    refused = shell.run("topics", "alter", "early", "--set", "confluent.value.schema.validation=true", code=1)
    assert "there is no topic _schemas" in refused.stderr
    cluster.create("_schemas", cleanup_policy="compact")
    refused = shell.run("topics", "alter", "early", "--set", "fleetlog.schema.invalid=tag", code=1)
    assert "dlq:TOPIC" in refused.stderr
    shell.run("topics", "alter", "early", "--set", "confluent.value.schema.validation=true")


def test_librdkafka_is_told_which_records_and_goes_on(cluster: Cluster) -> None:
    """Five requests are on their way when one of them is refused; what is good is there once, in order."""
    register(cluster, "orders-value", 7)
    cluster.create("orders", PARTITIONS, fleetlog_schema_validation="id", min_insync_replicas=2)
    sender = Sender(cluster, "orders")
    good = {partition: [framed(7, b"%d" % number) for number in range(120)] for partition in range(PARTITIONS)}
    bad = {b"plain", framed(8)}
    for number in range(120):
        for partition in range(PARTITIONS):
            sender.send(good[partition][number], partition)
            if number % 40 == 17:
                sender.send(sorted(bad)[partition % 2], partition)
    sender.send(None)
    sender.finish()
    assert sender.errors == dict.fromkeys(bad, INVALID_RECORD)
    for partition in range(PARTITIONS):
        taken = [value for value in read(cluster, "orders", partition) if value is not None]
        assert taken == good[partition], partition


def test_payloads_are_of_their_schemas_where_that_is_asked_for(cluster: Cluster) -> None:
    """Through librdkafka, which goes on behind what is refused."""
    register(
        cluster, "paid-value", 70, schema='{"type": "record", "name": "Paid", "fields": [{"name": "a", "type": "int"}]}'
    )
    cluster.create("paid", 1, fleetlog_schema_validation="full", min_insync_replicas=2)
    sender = Sender(cluster, "paid")
    good, bad = [framed(70, bytes([2 * number])) for number in range(60)], [framed(70, b""), framed(70, b"\2\2"), b"{}"]
    for number, value in enumerate(good):
        sender.send(value)
        if number % 20 == 7:
            sender.send(bad[number // 20])
    sender.finish()
    assert sender.errors == dict.fromkeys(bad, INVALID_RECORD)
    assert read(cluster, "paid", 0) == good


def test_payloads_are_checked_beside_the_leader_whoever_that_is(cluster: Cluster) -> None:
    """By JSON Schema, while the leader is killed: what is refused is not there, what is good is there in order."""
    register(cluster, "json-value", 80, schema='{"type": "object", "required": ["a"]}', kind="JSON")
    cluster.create("json", 1, fleetlog_schema_validation="full", min_insync_replicas=2)
    sender = Sender(cluster, "json")
    good, bad = [framed(80, b'{"a": %d}' % number) for number in range(90)], [framed(80, b"{}"), framed(80, b"{"), b"x"]
    for number, value in enumerate(good):
        sender.send(value)
        if number % 30 == 7:
            sender.send(bad[number // 30])
        if number == 30:
            leader = cluster.leader("json")
            leader.kill()
    sender.finish()
    assert sender.errors == dict.fromkeys(bad, INVALID_RECORD)
    assert read(cluster, "json", 0) == good
    leader.start()
    in_sync(cluster, "_schemas")


# ---- dead letters of what is not taken


def letters(cluster: Cluster, topic: str, isolation: str = "read_committed") -> list[tuple[bytes | None, str]]:
    """Values of the dead letters, each with where it was to go."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": cluster.alive, "group.id": "r", "enable.partition.eof": True,
         "isolation.level": isolation}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    rows: list[tuple[bytes | None, str]] = []
    while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
        told = {name: (value or b"").decode() for name, value in message.headers() or ()}
        assert told["fleetlog.dlq.reason"] == "schema"
        rows.append((message.value(), f"{told['__dlq.errors.topic']}:{told['__dlq.errors.partition']}"))
    consumer.close()
    return rows


def test_what_is_not_taken_becomes_dead_letters(cluster: Cluster) -> None:
    """Of an idempotent producer, whose other records are there once and in order, while both leaders are killed."""
    shell = Shell(cluster.fleet)
    register(cluster, "buried-value", 500)
    settings = ("--config", "fleetlog.schema.validation=id", "--config", "fleetlog.schema.invalid=dlq:dlq.buried")
    refused = shell.run("topics", "create", "buried", "--partitions", "1", *settings, code=1)
    assert "topic dlq.buried cannot have dead letters: there is no such topic" in refused.stderr
    cluster.create("dlq.buried", 1, errors_deadletterqueue_group_enable=True, min_insync_replicas=2)
    shell.run(
        "topics",
        "create",
        "buried",
        "--partitions",
        "1",
        "--replication-factor",
        "3",
        "--config",
        "min.insync.replicas=2",
        *settings,
    )
    sender = Sender(cluster, "buried")
    good = [framed(500, b"%d" % number) for number in range(120)]
    bad = [b"plain %d" % number for number in range(12)]
    for number, value in enumerate(good):
        sender.send(value)
        if number % 10 == 7:
            sender.send(bad[number // 10])
        if number in (40, 80):
            sender.finish()
            leader = cluster.leader("dlq.buried" if number == 40 else "buried")
            leader.kill()
            sender.send(good[0] + b"again")
            sender.finish()
            leader.start()
            in_sync(cluster, "_schemas", "buried", "dlq.buried")
    sender.finish()
    assert not sender.errors
    taken = read(cluster, "buried", 0)
    assert [value for value in taken if value != good[0] + b"again"] == good
    rows = letters(cluster, "dlq.buried")
    assert sorted(set(rows)) == sorted((value, "buried:0") for value in bad)
    assert len(rows) == len(bad), "no letter was written while a leader was killed"
    listed = json.loads(shell.run("dlq", "list", "dlq.buried", "--json").stdout)
    assert [(row["record"], row["reason"], row["copied"]) for row in listed] == [("buried:0", "schema", True)] * 12
    shell.run("topics", "alter", "buried", "--set", "fleetlog.schema.validation=none")
    shell.run("dlq", "replay", "dlq.buried", "--execute")
    assert sorted(read(cluster, "buried", 0)[len(taken) :]) == sorted(bad)


def test_dead_letters_belong_to_the_transaction_of_their_producer(cluster: Cluster) -> None:
    from confluent_kafka import Producer

    register(cluster, "owed-value", 510)
    cluster.create("dlq.owed", 1, errors_deadletterqueue_group_enable=True, min_insync_replicas=2)
    cluster.create("owed", 1, fleetlog_schema_validation="id", fleetlog_schema_invalid="dlq:dlq.owed")
    producer = Producer({"bootstrap.servers": cluster.alive, "transactional.id": "owes", "linger.ms": 0})
    producer.init_transactions(PATIENCE_S)
    errors: list[Any] = []
    for turn in range(6):
        producer.begin_transaction()
        for number in range(3):
            for value in (framed(510, b"%d.%d" % (turn, number)), b"bad %d.%d" % (turn, number)):
                producer.produce("owed", value, on_delivery=lambda error, _: errors.append(error))
        producer.produce("dlq.owed", b"own", headers={"fleetlog.dlq.reason": "schema", "__dlq.errors.topic": "own",
                         "__dlq.errors.partition": "0"}, on_delivery=lambda error, _: errors.append(error))  # fmt: skip
        producer.flush(PATIENCE_S)
        if turn % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    assert set(errors) == {None}
    rows = [value for value, origin in letters(cluster, "dlq.owed") if origin == "owed:0"]
    assert rows == [b"bad %d.%d" % (turn, number) for turn in (0, 2, 4) for number in range(3)]
    everything = letters(cluster, "dlq.owed", "read_uncommitted")
    assert len(everything) == 6 * 4, "what was aborted is there, too"


def test_a_level_is_finalized_before_it_is_used_and_is_given_back_before_that(cluster: Cluster) -> None:
    """As when a fleet is upgraded: a level that is not finalized is no setting's, and what was not used can go."""
    from kafka.admin import KafkaAdminClient, UpdateFeatureType

    shell, name = Shell(cluster.fleet), "fleetlog.schema.version"

    def refused(setting: str) -> str:
        return shell.run("topics", "create", "level", "--config", setting, code=1).stderr

    with closing(KafkaAdminClient(bootstrap_servers=cluster.alive.split(","))) as admin:
        admin.update_features({name: (UpdateFeatureType.SAFE_DOWNGRADE, 0)})
        assert f"before {name} 1 is finalized" in refused("fleetlog.schema.validation=id")
        shell.run("features", "upgrade", f"{name}=1")
        assert f"before {name} 2 is finalized" in refused("fleetlog.schema.validation=full")
        admin.update_features({name: (UpdateFeatureType.SAFE_DOWNGRADE, 0)})
        assert f"before {name} 1 is finalized" in refused("confluent.key.schema.validation=true")
        shell.run("features", "upgrade", f"{name}=2")
    shell.run("topics", "create", "level", "--partitions", "1", "--config", "fleetlog.schema.validation=full")
    register(cluster, "level-value", 90, schema='{"type": "array"}', kind="JSON")
    sender = Sender(cluster, "level")
    sender.send(framed(90, b"[1]"))
    sender.send(framed(90, b"1"))
    sender.finish()
    assert (sender.errors, sender.delivered) == ({framed(90, b"1"): INVALID_RECORD}, {0: [framed(90, b"[1]")]})


def test_brokers_learn_of_a_schema_when_it_is_used(cluster: Cluster) -> None:
    cluster.create("learned", PARTITIONS, confluent_value_schema_validation=True)
    sender = Sender(cluster, "learned")
    for number in range(100, 110):
        register(cluster, "learned-value", number, version=number)
        for partition in range(PARTITIONS):
            sender.send(framed(number), partition)
    sender.finish()
    assert not sender.errors
    assert sorted(sender.delivered) == list(range(PARTITIONS))


def test_a_leader_of_the_schemas_that_is_killed_stops_nothing(cluster: Cluster) -> None:
    cluster.create("calm", PARTITIONS, fleetlog_schema_validation="id")
    register(cluster, "calm-value", 200)
    sender = Sender(cluster, "calm")
    for partition in range(PARTITIONS):
        sender.send(framed(200), partition)
    sender.finish()
    leader = cluster.leader("_schemas")
    leader.kill()
    for number in range(30):
        sender.send(framed(200, b"%d" % number), number % PARTITIONS)
    register(cluster, "calm-value", 201, version=2)
    for partition in range(PARTITIONS):
        sender.send(framed(201), partition)
    sender.finish()
    assert not sender.errors
    leader.start()
    in_sync(cluster, "_schemas")


def test_what_is_deleted_for_good_is_taken_no_longer(cluster: Cluster) -> None:
    cluster.create("ending", 1, fleetlog_schema_validation="id")
    register(cluster, "ending-value", 300)
    sender = Sender(cluster, "ending")
    sender.send(framed(300))
    sender.finish()
    assert not sender.errors
    register(cluster, "ending-value", 300, gone=True)

    def refused() -> bool:
        again = Sender(cluster, "ending")
        again.send(framed(300))
        again.finish()
        return bool(again.errors)

    eventually(refused, "the brokers know that it is gone")


@pytest.mark.parametrize(
    ("strategy", "subject"), [("RecordName", "shop.Order"), ("TopicRecordName", "named-TopicRecordName-shop.Order")]
)
def test_subjects_may_be_named_after_records(cluster: Cluster, strategy: str, subject: str) -> None:
    topic = f"named-{strategy}"
    cluster.create(topic, 1)
    Shell(cluster.fleet).run(
        "topics", "alter", topic, "--set", "fleetlog.schema.validation=id", "--set",
        f"confluent.value.subject.name.strategy=io.confluent.kafka.serializers.subject.{strategy}Strategy",
    )  # fmt: skip
    register(cluster, subject, 400 + len(strategy))
    register(cluster, f"{topic}-value", 399)
    sender = Sender(cluster, topic)
    sender.send(framed(400 + len(strategy)))
    sender.send(framed(399))
    sender.finish()
    assert sender.errors == {framed(399): INVALID_RECORD}
    assert sender.delivered == {0: [framed(400 + len(strategy))]}
