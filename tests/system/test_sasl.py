"""Listeners with SASL on real brokers: stock clients by each mechanism, refused logins, brokers among themselves."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
)

from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode
from tests.support import secured
from tests.support.fleet import Fleet
from tests.support.needs import needs
from tests.support.polling import polled_values
from tests.support.sasl_wire import RawLogin, metadata_request
from tests.support.secured import MECHANISMS, PASSWORD, USER, confluent, python_client, secured_fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

DELAY_MS = 700


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    delay = {"connection.failed.authentication.delay.ms": DELAY_MS}
    found = secured_fleet(tmp_path_factory.mktemp("sasl"), 1, **delay)
    try:
        yield found.start()
    finally:
        found.close()


def produce(fleet: Fleet, topic: str, values: list[bytes], settings: dict[str, Any]) -> None:
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "acks": "all", **settings})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    assert failed == []


def consume(fleet: Fleet, topic: str, count: int, settings: dict[str, Any]) -> list[bytes]:
    consumer = Consumer({
        "bootstrap.servers": fleet.bootstrap, "group.id": f"g-{topic}", "auto.offset.reset": "earliest", **settings,
    })  # fmt: skip
    consumer.subscribe([topic])
    return polled_values(consumer, count, 40)


def refused(fleet: Fleet, settings: dict[str, Any]) -> float:
    """How long librdkafka waits for the broker's refusal, in seconds."""
    began = time.monotonic()
    errors: list[tuple[int, float]] = []
    client = Producer({
        "bootstrap.servers": fleet.bootstrap, **settings,
        "error_cb": lambda error: errors.append((error.code(), time.monotonic() - began)),
    })  # fmt: skip
    eventually(lambda: client.poll(0.1) or [code for code, _ in errors], "an error", good=bool)
    assert errors[0][0] == KafkaError._AUTHENTICATION
    return errors[0][1]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in(fleet: Fleet, mechanism: str) -> None:
    topic = f"rd-{mechanism}"
    produce(fleet, topic, [b"a", b"b"], confluent(mechanism))
    assert consume(fleet, topic, 2, confluent(mechanism)) == [b"a", b"b"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in(fleet: Fleet, mechanism: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    topic, settings = f"py-{mechanism}", python_client(mechanism)
    producer = KafkaProducer(bootstrap_servers=fleet.bootstrap, **settings)
    producer.send(topic, b"v").get(30)
    producer.close()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=fleet.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **settings
    )
    assert next(consumer).value == b"v"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_logs_in(fleet: Fleet, mechanism: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    topic, settings = f"aio-{mechanism}", python_client(mechanism)

    async def exchange() -> bytes:
        producer = AIOKafkaProducer(bootstrap_servers=fleet.bootstrap, **settings)
        await producer.start()
        await producer.send_and_wait(topic, b"v")
        await producer.stop()
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=fleet.bootstrap, auto_offset_reset="earliest", **settings
        )  # fmt: skip
        await consumer.start()
        try:
            async with asyncio.timeout(30):
                return bytes((await consumer.getone()).value)
        finally:
            await consumer.stop()

    assert asyncio.run(exchange()) == b"v"


@needs("kcat")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kcat_logs_in(fleet: Fleet, mechanism: str) -> None:
    topic = f"kcat-{mechanism}"
    flags = [word for name, value in confluent(mechanism).items() for word in ("-X", f"{name}={value}")]
    produce(fleet, topic, [b"v"], confluent("PLAIN"))
    command = ["kcat", "-b", fleet.bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", *flags]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (b"v\n", 0), done.stderr


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", [USER, "does-not-exist"])
def test_a_refused_login_is_answered_after_the_delay(fleet: Fleet, mechanism: str, user: str) -> None:
    assert refused(fleet, confluent(mechanism, user, "another password")) >= DELAY_MS / 1000


# ---- what comes before a login


def test_a_request_before_the_login_closes_the_connection(fleet: Fleet) -> None:
    raw = RawLogin(fleet.brokers[0].port)
    raw.send(3, 12, metadata_request())
    raw.closed_at_once()


def test_a_request_in_the_middle_of_a_login_is_illegal(fleet: Fleet) -> None:
    raw = RawLogin(fleet.brokers[0].port)
    assert list(raw.handshake("SCRAM-SHA-256").mechanisms) == list(MECHANISMS)
    raw.send(12, 4, messages.request_class(12)(version=4, group_id="g", generation_id=1, member_id="m"))
    assert raw.answer(12, 4).error_code == ErrorCode.ILLEGAL_SASL_STATE
    raw.closed_at_once()


def test_what_a_client_calls_a_mechanism_is_bounded_and_escaped_in_the_log(fleet: Fleet) -> None:
    with contextlib.closing(RawLogin(fleet.brokers[0].port)) as raw:
        answer = raw.handshake("FORGED\n2026-01-01 00:00:00,000 INFO forged \x1b[2J" + "x" * 20_000)
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    log = fleet.brokers[0].log_file
    text = eventually(log.read_text, "the refusal in the log", good=lambda found: "FORGED" in found)
    (line,) = [one for one in text.splitlines() if "FORGED" in one]
    assert r"FORGED\n2026" in line
    assert "\x1b" not in line
    assert len(line) < 400


def test_an_unknown_mechanism_is_told_which_there_are(fleet: Fleet) -> None:
    raw = RawLogin(fleet.brokers[0].port)
    answer = raw.handshake("GSSAPI")
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert list(answer.mechanisms) == list(MECHANISMS)
    raw.closed_at_once()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\0\0\x08garbage!",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">ihh", 65_537, 36, 2),
        struct.pack(">ihhih", 10, 18, 99, 1, -1) * 40,
        struct.pack(">i", 4) + b"\0\x24\0\x02",
    ],
)
def test_garbage_before_the_login_closes_the_connection(fleet: Fleet, garbage: bytes) -> None:
    raw = RawLogin(fleet.brokers[0].port)
    raw.socket.sendall(garbage)
    raw.socket.settimeout(5)
    try:
        while raw.socket.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    produce(fleet, "after-garbage", [b"v"], confluent("PLAIN"))


def test_a_silent_connection_is_closed_after_ten_seconds(fleet: Fleet) -> None:
    began = time.monotonic()
    silent, halfway = RawLogin(fleet.brokers[0].port), RawLogin(fleet.brokers[0].port)
    halfway.handshake("SCRAM-SHA-256")
    silent.closed_within(30)
    assert time.monotonic() - began > 8
    halfway.closed_within(20)


def test_a_login_by_hand_and_one_too_many(fleet: Fleet) -> None:
    raw = RawLogin(fleet.brokers[0].port)
    raw.handshake("PLAIN")
    answer = raw.authenticate(f"\0{USER}\0{PASSWORD}".encode())
    assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", 0)
    raw.send(3, 12, metadata_request())
    assert len(raw.answer(3, 12).brokers) == 1
    assert raw.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert raw.authenticate(b"x").error_code == ErrorCode.ILLEGAL_SASL_STATE
    raw.send(3, 12, metadata_request())
    assert len(raw.answer(3, 12).brokers) == 1


def test_a_login_with_raw_tokens(fleet: Fleet) -> None:
    raw = RawLogin(fleet.brokers[0].port)
    raw.send(17, 0, messages.request_class(17)(version=0, mechanism="PLAIN"))
    assert raw.answer(17, 0).error_code == 0
    token = f"\0{USER}\0{PASSWORD}".encode()
    raw.socket.sendall(struct.pack(">i", len(token)) + token)
    assert raw.exactly(4) == b"\0\0\0\0"
    raw.send(3, 12, metadata_request())
    assert len(raw.answer(3, 12).brokers) == 1


def test_no_secret_is_told(fleet: Fleet) -> None:
    early = RawLogin(fleet.brokers[0].port)
    early.send(3, 12, metadata_request())
    early.closed_at_once()
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap, **confluent("PLAIN")})
    from confluent_kafka.admin import ConfigResource

    resource = ConfigResource(ConfigResource.Type.BROKER, str(fleet.brokers[0].id))
    (future,) = admin.describe_configs([resource]).values()
    told = {name: entry.value for name, entry in future.result(30).items()}
    assert told["sasl.enabled.mechanisms"] == ",".join(MECHANISMS)
    pages = fleet.brokers[0].operators_pages()
    assert 'fleetlog_refused_requests_total{reason="login"}' in pages
    everything = repr(told) + fleet.brokers[0].log_file.read_text() + pages
    for hidden in (PASSWORD, secured.BROKER_PASSWORD, "stored_key"):
        assert hidden not in everything
