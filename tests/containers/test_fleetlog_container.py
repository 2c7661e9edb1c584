"""FleetlogContainer: the example of its documentation as it stands there, and what the example doesn't show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import docker
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from testcontainers.core.container import DockerContainer
from testcontainers.core.exceptions import ContainerStartException
from testcontainers.core.network import Network

from fleetlog.testing import FleetlogContainer
from tests.containers.images import ROOT, Images
from tests.support.clients import CLIENTS, Message

pytestmark = pytest.mark.containers


def left_over() -> tuple[int, int]:
    client = docker.from_env()
    try:
        return len(client.containers.list(all=True)), len(client.networks.list())
    finally:
        client.close()


def test_the_example_of_the_documentation(images: Images, tmp_path: Path) -> None:
    document = (ROOT / "docs/containers.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    before = left_over()
    (tmp_path / "test_example.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{example.count('def test_')} passed" in done.stdout
    assert left_over() == before, "the example left containers or networks behind"


def test_settings_groups_and_transactions(images: Images) -> None:
    with FleetlogContainer(settings={"num.partitions": 4}).with_setting("auto.create.topics.enable", True) as fleetlog:
        bootstrap = fleetlog.get_bootstrap_server()
        for client in CLIENTS:
            topic = client.name
            client.produce(bootstrap, topic, [Message(b"1", partition=0)], idempotent=True)
            producer = client.transactional(bootstrap, f"id-{client.name}")
            producer.begin()
            producer.send(topic, Message(b"2", partition=3))
            producer.send_offsets({(topic, 0): 1}, "group")
            producer.commit()
            producer.close()
            (found,) = client.consume(bootstrap, topic, 1, partition=3, isolation="read_committed")
            assert found.value == b"2"
            assert client.committed(bootstrap, "group", topic) == 1


def test_a_secured_container_serves_only_clients_with_its_settings(images: Images) -> None:
    """Clients on this machine and inside use what the container tells; without it they are not served."""
    with Network() as network:
        fleetlog = FleetlogContainer(secure=True).with_network(network).with_network_aliases("kafka")
        with fleetlog:
            settings = fleetlog.client_settings()
            assert settings["security.protocol"] == "SASL_SSL"
            producer = Producer({**settings, "acks": "all"})
            producer.produce("orders", b"one")
            assert producer.flush(60) == 0
            consumer = Consumer({**settings, "group.id": "shop", "auto.offset.reset": "earliest"})
            consumer.subscribe(["orders"])
            message = consumer.poll(60)
            assert message is not None
            assert message.value() == b"one"
            consumer.close()
            with pytest.raises(KafkaException):
                AdminClient({"bootstrap.servers": settings["bootstrap.servers"]}).list_topics(timeout=5)
            admin = AdminClient(fleetlog.client_settings("admin"))
            all_of = AclBindingFilter(
                ResourceType.ANY, None, ResourcePatternType.ANY, "User:app", None, AclOperation.ANY,
                AclPermissionType.ANY,
            )  # fmt: skip
            assert len(admin.describe_acls(all_of).result(30)) == 4
            config = "--command-config /tmp/fleetlog-security/admin.properties"
            listed = fleetlog.exec(["sh", "-c", f"fleetlog topics list -b kafka:9092 {config}"])
            assert b"orders" in listed.output


def test_containers_beside_it(images: Images) -> None:
    """A program under test that runs in a container of its own, on the same network."""
    with Network() as network:
        fleetlog = FleetlogContainer().with_network(network).with_network_aliases("kafka")
        with fleetlog:
            inside = fleetlog.get_internal_bootstrap_server()
            assert inside == "kafka:9092"
            program = DockerContainer(images.broker, entrypoint="sh").with_network(network)
            with program.with_command(["-c", f"echo hello | fleetlog produce -b {inside} greetings"]) as running:
                assert running.get_wrapped_container().wait(timeout=60)["StatusCode"] == 0, running.get_logs()
            (found,) = CLIENTS[0].consume(fleetlog.get_bootstrap_server(), "greetings", 1)
            assert found.value == b"hello"


def test_a_broker_that_cannot_start_says_why_and_leaves_nothing(images: Images) -> None:
    before = left_over()
    with pytest.raises(ContainerStartException, match=r"num\.partitions"):
        FleetlogContainer(settings={"num.partitions": "many"}).start()
    assert left_over() == before
