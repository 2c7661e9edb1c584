"""Stock clients by each mechanism over SASL_SSL; three brokers log in at each other by SCRAM over TLS on both sides."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer

from tests.support.needs import needs
from tests.support.secured import BROKER_PASSWORD, MECHANISMS, PASSWORD
from tests.support.tls_fleet import TlsFleet
from tests.support.tls_listeners import Certificates
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsFleet]:
    found = TlsFleet(
        tmp_path_factory.mktemp("tls"),
        Certificates(tmp_path_factory.mktemp("certificates")),
        brokers=3,
        inside="BOTH",
        default_replication_factor=3,
        min_insync_replicas=2,
        num_partitions=3,
    )
    try:
        found.start()
        yield found
        logs = "".join(broker.log_file.read_text() for broker in found.brokers)
        for hidden in ("Traceback", PASSWORD, BROKER_PASSWORD, "PRIVATE KEY"):
            assert hidden not in logs
    finally:
        found.close()


def librdkafka(fleet: TlsFleet, kind: str, mechanism: str, topic: str) -> set[bytes]:
    settings = fleet.confluent(kind, mechanism)
    failed: list[object] = []
    producer = Producer({**settings, "acks": "all"})
    for partition in range(3):
        producer.produce(topic, b"%d" % partition, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(60) == 0
    assert failed == [None] * 3
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        found: set[bytes] = set()
        while len(found) < 3:
            message = eventually(lambda: consumer.poll(0.5), "a record", good=bool)
            assert message.error() is None
            found.add(message.value())
        return found
    finally:
        consumer.close()


def kafka_python(fleet: TlsFleet, kind: str, mechanism: str, topic: str) -> set[bytes]:
    settings = fleet.python_client(kind, mechanism)
    producer = KafkaProducer(acks="all", **settings)
    for number in range(3):
        producer.send(topic, b"%d" % number).get(60)
    producer.close()
    consumer = KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=60_000, **settings
    )  # fmt: skip
    found = {next(consumer).value for _ in range(3)}
    consumer.close()
    return found


def aiokafka(fleet: TlsFleet, kind: str, mechanism: str, topic: str) -> set[bytes]:
    settings = fleet.python_client(kind, mechanism)

    async def exchange() -> set[bytes]:
        producer = AIOKafkaProducer(acks="all", **settings)
        await producer.start()
        for number in range(3):
            await producer.send_and_wait(topic, b"%d" % number)
        await producer.stop()
        consumer = AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **settings)
        await consumer.start()
        try:
            async with asyncio.timeout(60):
                return {bytes((await consumer.getone()).value) for _ in range(3)}
        finally:
            await consumer.stop()

    return asyncio.run(exchange())


def kcat(fleet: TlsFleet, kind: str, mechanism: str, topic: str) -> set[bytes]:
    settings = {"topic.metadata.refresh.interval.ms": "200", **fleet.confluent(kind, mechanism)}
    flags = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    command = ["kcat", "-b", fleet.bootstrap_of(kind), "-t", topic, *flags]
    sent = subprocess.run([*command, "-P"], input=b"0\n1\n2\n", capture_output=True, timeout=60, check=False)
    assert sent.returncode == 0, sent.stderr
    done = subprocess.run(
        [*command, "-C", "-o", "beginning", "-e", "-q"], capture_output=True, timeout=60, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


CLIENTS = (librdkafka, kafka_python, aiokafka, pytest.param(kcat, marks=needs("kcat")))


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", ["LOGIN", "BOTH"])
def test_records_go_there_and_back(
    fleet: TlsFleet, kind: str, client: Callable[[TlsFleet, str, str, str], set[bytes]], mechanism: str
) -> None:
    assert client(fleet, kind, mechanism, f"{client.__name__}-{kind}-{mechanism}") == {b"0", b"1", b"2"}


def test_all_brokers_have_all_replicas(fleet: TlsFleet) -> None:
    """They have replicated by their own logins, and each listener's metadata names that listener's addresses."""
    admin = AdminClient(fleet.confluent("LOGIN"))
    seen = librdkafka(fleet, "BOTH", "SCRAM-SHA-256", "replicated")
    assert seen == {b"0", b"1", b"2"}
    partitions = admin.list_topics("replicated", timeout=20).topics["replicated"].partitions.values()
    assert [sorted(one.isrs) for one in partitions] == [[1, 2, 3]] * 3
    asked = admin.list_topics(timeout=20)
    assert len({broker.port for broker in asked.brokers.values()}) == 3
    assert fleet.ports["LOGIN"] in {broker.port for broker in asked.brokers.values()}
