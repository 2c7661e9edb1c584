"""SASL OAUTHBEARER on a real broker: stock clients with tokens of a test issuer, and tokens that must be refused."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AsyncTokenProvider
from confluent_kafka import Consumer, KafkaError, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from fleetlog.brokers.logins.oauthbearer import VerifiedToken, token_message
from fleetlog.brokers.logins.token_claims import TokenRules
from fleetlog.brokers.logins.token_signatures import checked_token, parse_keys, token_header
from fleetlog.wire.errors import ErrorCode
from tests.support.certificates import Authority
from tests.support.fleet import Fleet
from tests.support.issuer import CLIENT_ID, CLIENT_SECRET, Issuer, key_for, public_document, signed, unsigned
from tests.support.ports import free_port
from tests.support.sasl_wire import RawLogin
from tests.support.secured import MECHANISMS, secured_fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

WITH_TOKENS = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    found = Issuer()
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Fleet]:
    mechanisms = {"sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER"))}
    sessions = {"listener.name.inside.oauthbearer.connections.max.reauth.ms": 8000}
    found = secured_fleet(tmp_path_factory.mktemp("oidc"), 1, **mechanisms, **sessions, **issuer.settings())
    try:
        yield found.start()
    finally:
        found.close()


def librdkafka(fleet: Fleet, issuer: Issuer, **claims: Any) -> dict[str, Any]:
    """Tokens by a callback."""
    return {
        "bootstrap.servers": fleet.bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (issuer.token(**claims), time.time() + issuer.lifetime_s),
    }  # fmt: skip


def oidc(fleet: Fleet, issuer: Issuer, secret: str = CLIENT_SECRET) -> dict[str, Any]:
    """librdkafka fetches its tokens itself, by its client credentials."""
    return {
        "bootstrap.servers": fleet.bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.secret": secret, "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-1",
    }  # fmt: skip


def round_trip(topic: str, settings: dict[str, Any]) -> bytes | None:
    failed: list[Any] = []
    producer = Producer(settings)
    producer.poll(0)
    producer.produce(topic, b"v", on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    assert failed == []
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        message = eventually(lambda: consumer.poll(0.5), "a record", good=bool)
        return message.value() if message.error() is None else None
    finally:
        consumer.close()


def test_librdkafka_with_a_callback(fleet: Fleet, issuer: Issuer) -> None:
    assert round_trip("callback", librdkafka(fleet, issuer)) == b"v"


def test_librdkafka_with_client_credentials(fleet: Fleet, issuer: Issuer) -> None:
    assert round_trip("credentials", oidc(fleet, issuer)) == b"v"


def test_kafka_python_logs_in(fleet: Fleet, issuer: Issuer) -> None:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return issuer.token()

        def extensions(self) -> dict[str, str]:
            return {"traceId": "5"}

    settings = {"bootstrap_servers": fleet.bootstrap, **WITH_TOKENS, "sasl_oauth_token_provider": Tokens()}
    producer = KafkaProducer(**settings)
    producer.send("python", b"v").get(30)
    producer.close()
    consumer = KafkaConsumer("python", auto_offset_reset="earliest", consumer_timeout_ms=30_000, **settings)
    assert next(consumer).value == b"v"
    consumer.close()


def test_aiokafka_logs_in(fleet: Fleet, issuer: Issuer) -> None:
    class Tokens(AsyncTokenProvider):
        async def token(self) -> str:
            return issuer.token()

    settings = {"bootstrap_servers": fleet.bootstrap, **WITH_TOKENS, "sasl_oauth_token_provider": Tokens()}

    async def exchange() -> bytes:
        producer = AIOKafkaProducer(**settings)
        await producer.start()
        await producer.send_and_wait("aio", b"v")
        await producer.stop()
        consumer = AIOKafkaConsumer("aio", auto_offset_reset="earliest", **settings)
        await consumer.start()
        try:
            async with asyncio.timeout(30):
                return bytes((await consumer.getone()).value)
        finally:
            await consumer.stop()

    assert asyncio.run(exchange()) == b"v"


def test_librdkafka_hears_that_its_token_is_refused(fleet: Fleet, issuer: Issuer) -> None:
    errors: list[tuple[int, str]] = []
    client = Producer({
        **librdkafka(fleet, issuer, aud="elsewhere"),
        "error_cb": lambda error: errors.append((error.code(), error.str())),
    })  # fmt: skip
    eventually(lambda: client.poll(0.1) or list(errors), "an error", good=bool)
    assert errors[0][0] == KafkaError._AUTHENTICATION
    assert "invalid_token" in errors[0][1]
    eventually(
        lambda: fleet.brokers[0].log_file.read_text(), "the reason in the log",
        good=lambda text: "the token was refused: its audience is 'elsewhere'" in text,
    )  # fmt: skip


def refused(fleet: Fleet, token: str) -> None:
    raw = RawLogin(fleet.brokers[0].port)
    assert raw.handshake("OAUTHBEARER").error_code == 0
    answer = raw.authenticate(token_message(token))
    assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b'{"status": "invalid_token"}')
    answer = raw.authenticate(b"\x01")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    raw.closed_at_once()


def test_tokens_that_are_refused(fleet: Fleet, issuer: Issuer) -> None:
    """CVE-2026-33557: a broker that checked none of this."""
    stranger = key_for("RS256", issuer.key.kid)
    header = {"alg": "RS256", "kid": issuer.key.kid}
    for token in (
        unsigned(issuer.claims(), {"alg": "none"}),
        unsigned(issuer.claims(), {"alg": "HS256", "kid": issuer.key.kid}),
        signed(issuer.claims(), stranger, header),
        issuer.token(iss="https://another"),
        issuer.token(aud="another"),
        issuer.token(exp=int(time.time()) - 31),
        issuer.token(exp=None),
        issuer.token(sub=None),
    ):
        refused(fleet, token)
    assert round_trip("after-refusals", librdkafka(fleet, issuer)) == b"v"


def test_a_refused_token_serves_nothing(fleet: Fleet, issuer: Issuer) -> None:
    raw = RawLogin(fleet.brokers[0].port)
    raw.handshake("OAUTHBEARER")
    raw.authenticate(token_message(issuer.token(aud="another")))
    with pytest.raises(EOFError):
        raw.metadata()


def test_a_session_ends_with_its_token_and_is_renewed(fleet: Fleet, issuer: Issuer) -> None:
    raw = RawLogin(fleet.brokers[0].port)
    raw.handshake("OAUTHBEARER")
    ends = int(time.time()) + 4
    answer = raw.authenticate(token_message(issuer.token(exp=ends - 30)))  # the clock skew is 30 s
    assert answer.error_code == 0
    assert 0 < answer.session_lifetime_ms <= 4000
    raw.handshake("OAUTHBEARER")
    assert raw.authenticate(token_message(issuer.token(exp=ends - 26))).session_lifetime_ms > 4000
    time.sleep(max(0.0, ends - time.time()) + 0.2)
    assert len(raw.metadata()) == 1
    time.sleep(4.2)
    with pytest.raises(EOFError):
        raw.metadata()


def test_librdkafka_renews_its_session(fleet: Fleet, issuer: Issuer) -> None:
    """Sessions of eight seconds, one record after the other: a session that ended would lose one.

    librdkafka renews when nine tenths of a session have passed, and a stall may take the rest of one. A broker that
    does not renew sessions fails every run.
    """

    def run() -> tuple[list[Any], int, int]:
        """What failed, and how often librdkafka connected and began to log in."""
        failed: list[Any] = []
        statistics: list[dict[str, Any]] = []
        producer = Producer({
            **librdkafka(fleet, issuer), "error_cb": failed.append, "statistics.interval.ms": 500,
            "stats_cb": lambda text: statistics.append(json.loads(text)),
        })  # fmt: skip
        ends = time.monotonic() + 20
        while time.monotonic() < ends:
            producer.produce("renewed", b"v", on_delivery=lambda error, _: failed.append(error) if error else None)
            producer.poll(0.1)
        assert producer.flush(30) == 0
        (broker,) = (one for one in statistics[-1]["brokers"].values() if one["nodeid"] == 1)
        return failed, broker["connects"], broker["req"]["SaslHandshake"]

    runs: list[tuple[list[Any], int, int]] = []

    def renewed() -> bool:
        runs.append(run())
        failed, connects, handshakes = runs[-1]
        return failed == [] and connects == 1 and handshakes >= 3

    assert any(renewed() for _ in range(3)), runs


def test_the_recipe_in_the_documentation(tmp_path: Path) -> None:
    """The test issuer of docs/security.md: what it writes is what a broker reads."""
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    (script,) = re.findall(r"```python\n(# issuer\.py.*?)```", text, re.DOTALL)
    (tmp_path / "issuer.py").write_text(script)
    command = [sys.executable, "issuer.py", "alice"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    keys, token = parse_keys((tmp_path / "keys.json").read_bytes()), done.stdout.strip().encode()
    header = token_header(token)
    key = keys.find(header)
    assert key is not None
    rules = TokenRules("https://issuer.test", frozenset({"fleetlog"}))
    found = checked_token(token, header, key, rules, time.time_ns() // 1_000_000)
    assert isinstance(found, VerifiedToken)
    assert found.subject == "alice"


def test_keys_that_are_rotated_under_clients(fleet: Fleet, issuer: Issuer) -> None:
    """A new key is known when its first token comes; what came before 5 s after a fetch had to wait for it."""
    for number in range(2):
        time.sleep(5.2)
        issuer.rotate(f"rotated-{number}")
        assert round_trip(f"rotated-{number}", librdkafka(fleet, issuer)) == b"v"


def test_a_long_token(fleet: Fleet, issuer: Issuer) -> None:
    raw = RawLogin(fleet.brokers[0].port)
    raw.handshake("OAUTHBEARER")
    assert raw.authenticate(token_message(issuer.token(groups="g" * 350_000))).error_code == 0
    assert len(raw.metadata()) == 1
    raw = RawLogin(fleet.brokers[0].port)
    raw.handshake("OAUTHBEARER")
    with pytest.raises((EOFError, ConnectionError)):
        raw.authenticate(b"a" * 524_288)


def test_a_broker_without_the_issuer_does_not_start(tmp_path: Path, issuer: Issuer) -> None:
    settings = {"sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")), **issuer.settings()}
    url = next(name for name in settings if name.endswith("url"))
    fleet = secured_fleet(tmp_path, 1, **{**settings, url: "http://127.0.0.1:1/keys"})
    try:
        broker = fleet.brokers[0]
        broker.start()
        process = broker.process
        assert process is not None
        assert process.wait(60) != 0
        assert "listener INSIDE: the issuer's keys at http://127.0.0.1:1/keys cannot be" in broker.log_file.read_text()
    finally:
        fleet.close()


def test_over_tls(tmp_path: Path, issuer: Issuer) -> None:
    """A listener with SASL_SSL that takes tokens only, beside the brokers' own."""
    authority, port = Authority(tmp_path, "authority"), free_port()
    fleet = secured_fleet(tmp_path / "fleet", 1, **{
        "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,OUT:SASL_SSL", "inter.broker.listener.name": "INSIDE",
        "listener.name.out.ssl.keystore.type": "PEM",
        "listener.name.out.ssl.keystore.location": authority.pair("/CN=broker").store(tmp_path / "broker.pem"),
        "listener.name.out.sasl.enabled.mechanisms": "OAUTHBEARER", **issuer.settings("out"),
    })  # fmt: skip
    file = fleet.brokers[0].config_file
    inside = f"listeners=INSIDE://{fleet.brokers[0].address}"
    file.write_text(file.read_text().replace(inside, f"{inside},OUT://127.0.0.1:{port}"))
    try:
        fleet.start()
        client = {
            **librdkafka(fleet, issuer), "bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": "SASL_SSL",
            "ssl.ca.location": authority.file,
        }  # fmt: skip
        assert round_trip("tls", client) == b"v"
    finally:
        fleet.close()


def test_keys_of_a_file(tmp_path: Path, issuer: Issuer) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(public_document(issuer.key))
    settings = {"sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")), **issuer.settings()}
    url = next(name for name in settings if name.endswith("url"))
    fleet = secured_fleet(tmp_path, 1, **{**settings, url: path.as_uri()})
    try:
        fleet.start()
        assert round_trip("file", librdkafka(fleet, issuer)) == b"v"
    finally:
        fleet.close()
