"""Listeners with TLS on a real broker: stock clients over one-way and mutual TLS, and with a login over it."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.support.certificates import replaced
from tests.support.fleet import Broker
from tests.support.needs import needs
from tests.support.polling import polled_values
from tests.support.secured import PASSWORD
from tests.support.tls_fleet import KINDS, PRINCIPALS, TlsFleet
from tests.support.tls_listeners import Certificates
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

LARGE = [os.urandom(900_000) for _ in range(12)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsFleet]:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    found = TlsFleet(tmp_path_factory.mktemp("tls"), certificates)
    try:
        found.start()
        yield found
        assert "Traceback" not in found.brokers[0].log_file.read_text()
    finally:
        found.close()


def produce(settings: dict[str, Any], topic: str, values: list[bytes], **more: Any) -> None:
    failed: list[Any] = []
    producer = Producer({"message.max.bytes": 2_000_000, **settings, **more})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: failed.append(error) if error else 0)
    assert producer.flush(60) == 0
    assert failed == []


def consume(settings: dict[str, Any], topic: str, count: int) -> list[bytes]:
    consumer = Consumer({
        "group.id": f"g-{topic}", "auto.offset.reset": "earliest", "isolation.level": "read_committed",
        "fetch.max.bytes": 50_000_000, "max.partition.fetch.bytes": 20_000_000, **settings,
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    return polled_values(consumer, count, 60)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_librdkafka_writes_and_reads(fleet: TlsFleet, kind: str, acks: Any) -> None:
    topic, settings = f"rd-{kind}-{acks}", fleet.confluent(kind)
    values = [b"%d" % number for number in range(300)]
    produce(settings, topic, values, acks=acks, **{"linger.ms": 1})
    assert consume(settings, topic, len(values)) == values


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_large_fetches_of_librdkafka(fleet: TlsFleet, codec: str) -> None:
    """Answers of about 10 MiB, read back by all kinds of listeners."""
    topic = f"large-{codec}"
    produce(fleet.confluent("ONEWAY"), topic, LARGE, acks="all", **{"compression.type": codec})
    for kind in KINDS:
        assert consume(fleet.confluent(kind), topic, len(LARGE)) == LARGE


@pytest.mark.parametrize("kind", ["ONEWAY", "BOTH"])
def test_transactions_of_librdkafka(fleet: TlsFleet, kind: str) -> None:
    topic, settings = f"txn-{kind}", fleet.confluent(kind)
    producer = Producer({"transactional.id": f"id-{kind}", **settings})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        for part in (b"a", b"b"):
            producer.produce(topic, b"%d%s" % (number, part), partition=0)
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    assert consume(settings, topic, 6) == [b"%d%s" % (n, part) for n in (0, 2, 4) for part in (b"a", b"b")]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_logins_of_librdkafka(fleet: TlsFleet, mechanism: str) -> None:
    settings = fleet.confluent("LOGIN", mechanism)
    produce(settings, f"login-{mechanism}", [b"v"])
    assert consume(settings, f"login-{mechanism}", 1) == [b"v"]


@pytest.mark.parametrize("kind", KINDS)
def test_kafka_python_writes_and_reads(fleet: TlsFleet, kind: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    topic, settings = f"py-{kind}", fleet.python_client(kind)
    producer = KafkaProducer(max_request_size=2_000_000, **settings)
    for value in LARGE:
        producer.send(topic, value)
    producer.flush(60)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
        max_partition_fetch_bytes=20_000_000,
        **settings,
    )
    assert [next(consumer).value for _ in LARGE] == LARGE
    consumer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_aiokafka_writes_and_reads_large_transactions(fleet: TlsFleet, kind: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    topic, settings = f"aio-{kind}", fleet.python_client(kind)

    async def exchange() -> list[bytes]:
        producer = AIOKafkaProducer(max_request_size=2_000_000, transactional_id=topic, **settings)
        await producer.start()
        async with producer.transaction():
            for value in LARGE:
                await producer.send(topic, value)
        await producer.stop()
        consumer = AIOKafkaConsumer(
            topic, auto_offset_reset="earliest", isolation_level="read_committed", group_id=topic,
            max_partition_fetch_bytes=20_000_000, **settings,
        )  # fmt: skip
        await consumer.start()
        try:
            async with asyncio.timeout(60):
                return [bytes((await consumer.getone()).value) for _ in LARGE]
        finally:
            await consumer.stop()

    assert asyncio.run(exchange()) == LARGE


@needs("kcat")
@pytest.mark.parametrize("kind", KINDS)
def test_kcat_writes_and_reads(fleet: TlsFleet, kind: str) -> None:
    topic, settings = f"kcat-{kind}", fleet.confluent(kind)
    flags = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    bootstrap = fleet.bootstrap_of(kind)
    sent = subprocess.run(
        ["kcat", "-P", "-b", bootstrap, "-t", topic, *flags], input=b"a\nb\n", capture_output=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert sent.returncode == 0, sent.stderr
    command = ["kcat", "-b", bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", *flags]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (b"a\nb\n", 0), done.stderr


# ---- what is refused


def error_of(settings: dict[str, Any]) -> Any:
    """librdkafka's first error."""
    errors: list[Any] = []
    client = Producer({**settings, "error_cb": errors.append})
    eventually(lambda: client.poll(0.1) or errors, "an error", good=bool)
    return errors[0]


def test_clients_that_do_not_fit_their_listener(fleet: TlsFleet) -> None:
    log = fleet.brokers[0].log_file
    stranger = {**fleet.confluent("ONEWAY"), "ssl.ca.location": fleet.certificates.stranger.file}
    refused = error_of(stranger)
    assert refused.code() in (KafkaError._SSL, KafkaError._TRANSPORT)  # by whether the alert goes out before the end
    assert "certificate verify failed" in refused.str()
    without = {**fleet.confluent("ONEWAY"), "bootstrap.servers": fleet.bootstrap_of("MUTUAL")}
    assert error_of(without).code() in (KafkaError._SSL, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
    plain = {"bootstrap.servers": fleet.bootstrap_of("ONEWAY")}
    assert error_of(plain).code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
    wrong = {**fleet.confluent("LOGIN"), "sasl.password": "another"}
    assert error_of(wrong).code() == KafkaError._AUTHENTICATION
    inside = {**fleet.confluent("ONEWAY"), "bootstrap.servers": fleet.bootstrap}
    assert error_of(inside).code() in (KafkaError._SSL, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
    text = log.read_text()
    for line in (
        r"listener MUTUAL is SSL, and the client showed no certificate",
        r"listener ONEWAY is SSL, and the client does not speak TLS: set security.protocol=SSL at the client",
        r"the client speaks TLS, this listener is PLAINTEXT: set security.protocol=PLAINTEXT",
        r"listener ONEWAY is SSL, and the peer refused TLS",
    ):
        assert len(re.findall(line, text)) == 1, (line, text[-3000:])


def test_no_secret_is_described_or_logged(fleet: TlsFleet) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    admin = AdminClient(fleet.confluent("ONEWAY"))
    (future,) = admin.describe_configs([resource]).values()
    told = {name: entry.value for name, entry in future.result(30).items()}
    assert told["ssl.keystore.location"] == fleet.store
    pages = fleet.brokers[0].operators_pages()
    assert 'fleetlog_certificate_seconds{listener="ONEWAY"}' in pages
    everything = repr(told) + fleet.brokers[0].log_file.read_text() + pages
    key = Path(fleet.store).read_text().splitlines()[1]
    for hidden in ("PRIVATE KEY", key, PASSWORD):
        assert hidden not in everything


# ---- principals


def test_principals_reach_the_authorizer(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    fleet = TlsFleet(tmp_path / "fleet", certificates, authorizer_class_name=authorizer, super_users="User:ANONYMOUS")
    try:
        fleet.start()
        for kind in ("MUTUAL", "LOGIN", "BOTH"):
            settings = fleet.confluent(kind)
            failed: list[Any] = []
            producer = Producer({**settings, "message.timeout.ms": 5_000})
            producer.produce("secret", b"v", on_delivery=lambda error, _: failed.append(error))  # noqa: B023
            producer.flush(20)
            assert failed[0] is not None
        denied = set(re.findall(r"Principal = (\S+) is Denied", fleet.brokers[0].log_file.read_text()))
        assert denied == {PRINCIPALS[kind] for kind in ("MUTUAL", "LOGIN", "BOTH")}
        produce(fleet.confluent("ONEWAY"), "secret", [b"v"])
    finally:
        fleet.close()


# ---- certificates that change


def metric(broker: Broker, name: str) -> float:
    page = urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=30).read().decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_a_bad_pair_is_refused_and_named(fleet: TlsFleet) -> None:
    broker, first = fleet.brokers[0], fleet.serial()
    good = Path(fleet.store).read_text()
    replaced(fleet.store, fleet.certificates.authority.pair("/CN=somebody").key + good)
    refused = 'fleetlog_certificate_refused{listener="ONEWAY"}'
    eventually(lambda: metric(broker, refused) == 1, "the refusal")
    assert fleet.serial() == first
    text = broker.log_file.read_text()
    assert text.count("listener ONEWAY: the old certificate stays in use: ssl.keystore.location=") == 1
    page = urlopen(f"http://127.0.0.1:{broker.admin_port}/health/ready", timeout=10).read().decode()
    assert "listener ONEWAY" in page
    replaced(fleet.store, good)
    eventually(lambda: metric(broker, refused) == 0, "the good one")


def alter(fleet: TlsFleet, name: str, value: str | None) -> str:
    """Set one of the broker's settings, or delete it with None; the error, or nothing."""
    operation = AlterConfigOpType.SET if value is not None else AlterConfigOpType.DELETE
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    (future,) = admin.incremental_alter_configs([resource]).values()
    try:
        future.result(30)
    except KafkaException as error:
        return str(error.args[0].str())
    return ""


def test_a_listener_gets_another_pair_by_an_alteration(fleet: TlsFleet, tmp_path: Path) -> None:
    broker, first = fleet.brokers[0], fleet.serial()
    location = "listener.name.oneway.ssl.keystore.location"
    other = fleet.certificates.authority.pair("/O=fleet/CN=broker").store(tmp_path / "other.pem")
    stranger = fleet.certificates.authority.pair("/CN=somebody").store(tmp_path / "stranger.pem")
    half = tmp_path / "half.pem"
    half.write_text(Path(stranger).read_text() + Path(other).read_text())
    for bad, said in (
        (str(tmp_path / "none.pem"), "cannot be read"),
        (stranger, "its subject is now"),
        (str(half), "has several private keys"),
    ):
        assert said in alter(fleet, location, bad)
        assert fleet.serial() == first
    assert alter(fleet, location, other) == ""
    second = fleet.serial()
    assert second != first, "in use when it is answered"
    assert metric(broker, 'fleetlog_certificate_refused{listener="ONEWAY"}') == 0
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values()
    assert future.result(30)[location].value == other
    broker.stop()
    broker.start()
    broker.wait_ready(60)
    assert fleet.serial() == second
    assert alter(fleet, location, None) == ""
    assert fleet.serial() == first


def test_a_listener_whose_stored_pair_is_gone_serves_none(fleet: TlsFleet, tmp_path: Path) -> None:
    """The file's own pair may be what was replaced."""
    broker, first = fleet.brokers[0], fleet.serial()
    location = "listener.name.oneway.ssl.keystore.location"
    other = fleet.certificates.authority.pair("/O=fleet/CN=broker").store(tmp_path / "other.pem")
    assert alter(fleet, location, other) == ""
    second, kept = fleet.serial(), Path(other).read_text()
    for back in (True, False):
        broker.stop()
        Path(other).unlink()
        broker.start()
        broker.wait_ready(60)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            fleet.serial()
        assert metric(broker, 'fleetlog_certificate_refused{listener="ONEWAY"}') == 1
        assert "listener ONEWAY serves no connection" in broker.log_file.read_text()
        if back:
            replaced(other, kept)
            eventually(lambda: metric(broker, 'fleetlog_certificate_refused{listener="ONEWAY"}') == 0, "it is back")
            assert fleet.serial() == second
    assert alter(fleet, location, None) == ""
    assert metric(broker, 'fleetlog_certificate_refused{listener="ONEWAY"}') == 0
    assert fleet.serial() == first


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ssl.keystore.location", "only per-listener using the listener prefix"),
        ("listener.name.oneway.ssl.keystore.key", "is a secret, which is not kept in ZooKeeper"),
        ("listener.name.oneway.ssl.key.password", "is a secret, which is not kept in ZooKeeper"),
        ("listener.name.oneway.ssl.client.auth", "Cannot update these configs dynamically"),
        ("listener.name.nowhere.ssl.keystore.location", "there is no listener 'nowhere'"),
        ("listener.name.inside.ssl.keystore.location", "which has no TLS"),
    ],
)
def test_alterations_that_are_refused(fleet: TlsFleet, name: str, said: str) -> None:
    assert said in alter(fleet, name, fleet.store)


# ---- the start


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("ssl.keystore.location=/nowhere.pem\n", "ssl.keystore.location='/nowhere.pem': cannot be read"),
        ("ssl.keystore.type=JKS\n", "ssl.keystore.type='JKS': Java keystores"),
        ("listener.name.both.ssl.keystore.key=x\n", "listener.name.both.ssl.keystore.key"),
    ],
)
def test_half_of_tls_ends_the_start(fleet: TlsFleet, tmp_path: Path, more: str, message: str) -> None:
    name = more.partition("=")[0]
    lines = fleet.brokers[0].config_file.read_text().splitlines(keepends=True)
    file = tmp_path / "broker.properties"
    file.write_text("".join(line for line in lines if not line.startswith(name + "=")) + more)
    command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "broker", str(file)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode != 0
    told = done.stderr + done.stdout
    assert message in told, told
    assert "Traceback" not in told
