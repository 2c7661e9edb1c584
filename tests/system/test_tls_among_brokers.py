"""Three brokers whose only listener has TLS, by certificates or by SCRAM over it; one is killed, all records stay."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
)

from tests.support.fleet import Broker, Fleet
from tests.support.secured import BROKER_PASSWORD, BROKER_USER, PASSWORD, USER, settings, users
from tests.support.tls_listeners import Certificates
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

RECORDS = 600
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def tls_fleet(directory: Path, made: Certificates, protocol: str, authorizer: str) -> Fleet:
    """Not started. An authorizer lets the brokers' principal and alice's do all, and no other."""
    fleet = Fleet(directory, 0)
    own = directory / "broker.pem"
    shutil.copy(made.broker_file, own)
    inside: dict[str, object] = {"ssl.client.auth": "required"}
    principals = "User:CN=broker,O=fleet;User:CN=alice,O=fleet"
    if protocol == "SASL_SSL":
        inside, principals = settings(), f"User:{BROKER_USER};User:{USER}"
    fleet.size = 3
    fleet.settings = {
        **inside,
        "listener.security.protocol.map": f"INSIDE:{protocol}",
        "inter.broker.listener.name": "INSIDE",
        "ssl.keystore.type": "PEM", "ssl.keystore.location": own,
        "ssl.truststore.type": "PEM", "ssl.truststore.location": made.authority.file,
        "authorizer.class.name": authorizer,
        **({"super.users": principals} if authorizer else {}),
    }  # fmt: skip
    fleet.brokers = [Broker(fleet, number) for number in (1, 2, 3)]
    for broker in fleet.brokers:
        text = broker.config_file.read_text()
        broker.config_file.write_text(text.replace("listeners=PLAINTEXT://", "listeners=INSIDE://"))
    if protocol == "SASL_SSL":
        users(fleet, "add", BROKER_USER, "--password-stdin", password=BROKER_PASSWORD)
        users(fleet, "add", USER, "--password-stdin", password=PASSWORD)
    return fleet


def client_settings(fleet: Fleet, made: Certificates, protocol: str) -> dict[str, Any]:
    found = {
        "bootstrap.servers": fleet.bootstrap, "security.protocol": protocol,
        "ssl.ca.location": made.authority.file,
    }  # fmt: skip
    if protocol == "SSL":
        return found | {"ssl.certificate.location": made.alice, "ssl.key.location": made.alice}
    return found | {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": USER, "sasl.password": PASSWORD}


@pytest.mark.parametrize(("protocol", "authorizer"), [("SSL", AUTHORIZER), ("SASL_SSL", AUTHORIZER), ("SSL", "")])
def test_three_brokers_secured_and_a_kill(tmp_path: Path, protocol: str, authorizer: str) -> None:
    made = Certificates(tmp_path)
    fleet = tls_fleet(tmp_path / "fleet", made, protocol, authorizer)
    try:
        fleet.start()
        client = client_settings(fleet, made, protocol)
        admin = AdminClient(client)
        admin.create_topics([NewTopic("t", 3, 3, config={"min.insync.replicas": "2"})])["t"].result(60)
        undelivered: list[Any] = []
        producer = Producer({**client, "acks": "all", "enable.idempotence": True})

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                undelivered.append(error)

        def send(first: int, last: int) -> None:
            for number in range(first, last):
                producer.produce("t", b"%d" % number, on_delivery=delivered)
                producer.poll(0.005)

        def in_sync() -> set[int]:
            return {len(one.isrs) for one in admin.list_topics("t", timeout=20).topics["t"].partitions.values()}

        send(0, RECORDS // 2)
        renewed = made.authority.pair("/O=fleet/CN=broker")
        renewed.store(tmp_path / "new.pem")
        (tmp_path / "new.pem").replace(fleet.directory / "broker.pem")  # the links after the kill begin with this one
        fleet.brokers[2].kill()
        send(RECORDS // 2, RECORDS)
        assert producer.flush(90) == 0
        assert undelivered == []
        fleet.brokers[2].start()
        fleet.brokers[2].wait_ready(90)
        eventually(in_sync, "all replicas in sync", 90, good=lambda found: found == {3})
        assert records(client) == [b"%d" % number for number in range(RECORDS)]
        logs = {broker.id: broker.log_file.read_text() for broker in fleet.brokers}
        assert not [text for text in logs.values() if "no connection to broker" in text or "Traceback" in text]
        assert any(
            "connections to other brokers use the new certificates from now on" in text for text in logs.values()
        )
    finally:
        fleet.close()


def records(client: dict[str, Any]) -> list[bytes]:
    """All records of the topic, in the order of their numbers; a record that stands there twice comes twice."""
    consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    found: list[bytes] = []
    deadline = time.monotonic() + 90
    quiet_since = time.monotonic()
    while time.monotonic() < deadline and (len(found) < RECORDS or time.monotonic() - quiet_since < 2):
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value())
            quiet_since = time.monotonic()
    consumer.close()
    return sorted(found, key=int)
