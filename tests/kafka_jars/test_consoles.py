"""What kafka-ui and AKHQ ask of brokers, by Kafka's own Java AdminClient.

Neither of them is a package of Maven or npm (their releases are images, and files beside their sources), so the calls
of their admin clients are replayed: those of kafka-ui's ReactiveAdminClient and of AKHQ's AbstractKafkaWrapper, as far
as the client of Kafka 4.1 still has them. AlterConfigs, which it has not, is sent by librdkafka: AKHQ changes settings
by it, and kafka-ui does where brokers tell no inter.broker.protocol.version, which those of Kafka 4 do not either.
"""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.cli.shell import Shell
from tests.support.clients import Confluent, Message
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop]


def test_every_page_of_two_consoles_has_its_answers(classpath: str, fleet: Fleet) -> None:
    unique = uuid.uuid4().hex[:6]
    topic, stopped, live = f"consoles-{unique}", f"stopped-{unique}", f"live-{unique}"
    Shell(fleet).run("topics", "create", topic, "-p", "2", "-r", "3", "-c", "retention.ms=3600000")
    Confluent().produce(fleet.bootstrap, topic, [Message(b"v", partition=0) for _ in range(5)])
    settings = {"bootstrap.servers": fleet.bootstrap, "enable.auto.commit": False, "client.id": f"member-{unique}"}
    past, member = Consumer({**settings, "group.id": stopped}), Consumer({**settings, "group.id": live})
    try:
        past.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        past.close()
        member.subscribe([topic])
        while len(member.assignment()) < 2:
            member.poll(0.2)
        found = answers(classpath, fleet.bootstrap, topic, stopped, live)
    finally:
        member.close()
    assert found == {
        **_CLUSTER, **_CHANGES,
        "member": f"member-{unique} at /127.0.0.1",
        "its partitions": f"[{topic}-0, {topic}-1]",
        "bytes of the partition": found["bytes of the partition"],
        "newest time": found["newest time"],
    }  # fmt: skip
    assert 0 <= int(found["newest time"]) <= 4
    (size,) = found["bytes of the partition"].strip("[]").split(", ")
    assert 5 <= int(size) < 5000, "the same on all three replicas"
    assert altered(fleet.bootstrap, topic, {"retention.ms": "7200000"}) == ("7200000", "604800000")


def altered(bootstrap: str, topic: str, settings: dict[str, str]) -> tuple[str, str]:
    """The topic's retention.ms and segment.ms once AlterConfigs has replaced its settings by these."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = ConfigResource(ConfigResource.Type.TOPIC, topic, set_config=settings)
    admin.alter_configs([wanted])[wanted].result(60)

    def told() -> tuple[str, str]:
        found = admin.describe_configs([wanted])[wanted].result(60)
        return found["retention.ms"].value, found["segment.ms"].value

    return eventually(told, "the new settings", good=lambda found: found[0] == settings["retention.ms"])


def answers(classpath: str, *arguments: str) -> dict[str, str]:
    """What the program was told, by name."""
    source = Path(__file__).parent / "Consoles.java"
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath, str(source), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.rstrip().endswith("done"), done.stdout[-3000:] + done.stderr[-3000:]
    lines = (line.partition(" = ")[::2] for line in done.stdout.splitlines() if " = " in line)
    return dict(lines)


_CLUSTER = {
    "brokers": "[1, 2, 3]",
    "cluster id": "22",
    "controller is one of them": "true",
    "operations": "[CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE]",
    "settings that tell a version": "[]",
    "brokers' ids in their settings": "[1, 2, 3]",
    "directories with the topic": "3",
    "features": "[fleetlog.schema.version, group.version, transaction.version]",
    "internal topics are listed": "true",
    "internal topics are left out": "true",
    "topic is listed": "true",
    "partitions": "2",
    "replicas": "[3, 3]",
    "leader is in sync": "true",
    "internal": "true",
    "setting": "3600000 by DYNAMIC_TOPIC_CONFIG, before 1",
    "default": "604800000 by DEFAULT_CONFIG, before 0",
    "ends": "[0, 5]",
    "a consumer's bounds": "0 to 5",
    "groups are listed": "true",
    "stopped group": "Empty with 0",
    "live group": "Stable with 1 by range",
    "coordinator is known": "true",
    "committed": "{0=3}",
    "ACLs": "true",
}
_CHANGES = {
    "created": "1",
    "made with": "1000000",
    "altered": "2000000",
    "moved as wanted": "true",
    "extended": "2",
    "emptied to": "2",
    "begins at": "2",
    "deleted": "true",
    "offsets moved": "{0=4}",
    "offsets forgotten": "{}",
    "group deleted": "true",
}
