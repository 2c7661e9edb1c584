"""Spark through listeners with SASL and an authorizer: source and both modes of the sink, each with its own ACLs."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from spark_udfs import write_stream
from spark_udfs.client.connections import Client
from spark_udfs.client.failures import ClientError
from spark_udfs.client.settings import kafka_python_settings, kafka_settings
from spark_udfs.sink.fence import FENCE_TOPIC
from spark_udfs.sink.modes import executor_fence
from tests.spark.conftest import Cluster, run_to_end
from tests.support.fleet import Fleet
from tests.support.ports import free_port
from tests.support.secured import (
    BROKER_PASSWORD,
    BROKER_USER,
    PASSWORD,
    SCRAM_MODULE,
    USER,
    confluent,
    jaas,
    secured_fleet,
)
from tests.support.tls_listeners import Certificates

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.xdist_group("spark")]

MECHANISM = "SCRAM-SHA-512"
PASSWORD_START = PASSWORD[:9]
WRONG = "not-of-alice-4711"
EXECUTOR, DRIVER = "executor", "driver"
TOPIC, GROUP, SINK = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
DESCRIBE = AclOperation.DESCRIBE
VALUES = sorted(f"v{number}" for number in range(100))
SOON_S = 25.0
"""An error that is not waited for: the clients' own timeouts are 60 s and more."""


class Secured(Cluster):
    """The fleet as its super user sees it, and the rights of alice."""

    def __init__(self, bootstrap: str, tls_bootstrap: str, authority: str) -> None:
        super().__init__(bootstrap)
        self.tls_bootstrap, self.authority = tls_bootstrap, authority
        self.operator = confluent(MECHANISM, BROKER_USER, BROKER_PASSWORD)
        self.admin = AdminClient({"bootstrap.servers": bootstrap, **self.operator})
        self.orders = self.made("orders")
        self.send(self.orders, [{"key": value, "value": value} for value in VALUES], **self.operator)

    def made(self, kind: str) -> str:
        name = f"{kind}-{uuid.uuid4().hex[:8]}"
        self.admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
        return name

    def allow(self, *rights: tuple[ResourceType, str, AclOperation], prefixed: bool = False) -> None:
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        allow, user = AclPermissionType.ALLOW, f"User:{USER}"
        acls = [AclBinding(kind, name, pattern, user, "127.0.0.1", right, allow) for kind, name, right in rights]
        for future in self.admin.create_acls(acls).values():
            future.result(30)

    def allow_sink(self, sink: str, mode: str) -> None:
        """The recipe of docs/security.md, without the topic."""
        if mode == EXECUTOR:
            self.allow((SINK, sink, WRITE), (TOPIC, FENCE_TOPIC, DESCRIBE))
            self.allow((GROUP, "spark-sink", DESCRIBE), prefixed=True)
        else:
            self.allow((SINK, sink, DESCRIBE), (TOPIC, FENCE_TOPIC, CREATE), (TOPIC, FENCE_TOPIC, READ))
            self.allow((SINK, "spark-sink", WRITE), (GROUP, "spark-sink", READ), prefixed=True)

    def tls_options(self) -> dict[str, str]:
        """The same user over TLS: the authority's file is on each machine."""
        return self.options() | {
            "kafka.bootstrap.servers": self.tls_bootstrap,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": self.authority,
        }

    def options(self, password: str = PASSWORD) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": MECHANISM,
            "kafka.sasl.jaas.config": jaas(SCRAM_MODULE, username=USER, password=password),
        }


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates, tls_port: int) -> Iterator[Fleet]:
    """One listener without TLS, which brokers use, too, and one with it."""
    named = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{BROKER_USER}",
        "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,TLS:SASL_SSL",
        "inter.broker.listener.name": "INSIDE",
        "listener.name.tls.sasl.enabled.mechanisms": MECHANISM,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.broker_file,
    }
    found = secured_fleet(tmp_path_factory.mktemp("secured"), 1, **named)
    (broker,) = found.brokers
    inside = f"listeners=INSIDE://127.0.0.1:{broker.port}"
    text = broker.config_file.read_text()
    assert inside in text
    broker.config_file.write_text(text.replace(inside, f"{inside},TLS://127.0.0.1:{tls_port}"))
    try:
        yield found.start()
    finally:
        found.close()


@pytest.fixture(scope="module")
def secured(fleet: Fleet, certificates: Certificates, tls_port: int) -> Secured:
    cluster = Secured(fleet.bootstrap, f"127.0.0.1:{tls_port}", certificates.authority.file)
    cluster.allow((TOPIC, cluster.orders, READ))
    return cluster


@pytest.fixture(autouse=True)
def no_password_is_told(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """In nothing that the driver logs or that its processes print."""
    caplog.set_level(logging.INFO)
    yield
    told = caplog.text + "".join(capfd.readouterr())
    assert PASSWORD_START not in told
    assert WRONG not in told


def values(rows: Any) -> list[str]:
    return sorted(bytes(row.value).decode() for row in rows.collect())


def read(spark: Any, options: dict[str, str], topic: str) -> list[str]:
    return values(spark.read.format("fleetlog").options(**options, subscribe=topic).load())


def pipeline(
    spark: Any, secured: Secured, sink: str, target: str, mode: str, directory: Path, options: dict[str, str]
) -> Callable[[], Any]:
    given_to_source = {**secured.options(), **{n: v for n, v in options.items() if "jaas" not in n}}
    source = spark.readStream.format("fleetlog").options(**given_to_source, subscribe=secured.orders)
    rows = source.option("startingOffsets", "earliest").load().select("key", "value")
    checkpoint, once = str(directory / "checkpoint"), {"availableNow": True}
    if mode == EXECUTOR:
        given = {**options, "topic": target, "sinkId": sink, "checkpointLocation": checkpoint}
        return lambda: rows.writeStream.format("fleetlog").options(**given).trigger(**once).start()
    return lambda: write_stream(
        rows, bootstrap_servers=options["kafka.bootstrap.servers"], sink_id=sink, checkpoint_location=checkpoint,
        topic=target, trigger=once, options={**options, "sink.mode": DRIVER},
    )  # fmt: skip


def failure(call: Callable[[], Any]) -> str:
    """What it ends with, soon; no password in it."""
    began = time.monotonic()
    with pytest.raises(Exception) as raised:  # noqa: PT011  (Spark's own types; the callers check the text)
        call()
    assert time.monotonic() - began < SOON_S
    text = f"{raised.value!r} {raised.value}"
    assert PASSWORD_START not in text
    assert WRONG not in text
    return text


@pytest.mark.parametrize("tls", [False, True], ids=["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mode", [EXECUTOR, DRIVER])
def test_exactly_once_from_topic_to_topic(spark: Any, secured: Secured, tmp_path: Path, mode: str, tls: bool) -> None:
    sink, target = f"sink-{mode}{'-tls' if tls else ''}", secured.made("totals")
    options = secured.tls_options() if tls else secured.options()
    secured.allow_sink(sink, mode)
    secured.allow((TOPIC, target, WRITE))
    start = pipeline(spark, secured, sink, target, mode, tmp_path, options)
    run_to_end(start)
    for commit in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        commit.unlink()  # the batch is done again, and counts once
    run_to_end(start)
    secured.allow((TOPIC, target, READ))
    assert read(spark, options, target) == VALUES


def test_the_source_without_its_acl_names_the_topic(spark: Any, secured: Secured) -> None:
    secret = secured.made("secret")
    assert secret in failure(lambda: read(spark, secured.options(), secret))


@pytest.mark.parametrize("mode", [EXECUTOR, DRIVER])
def test_the_sink_without_its_topics_acl_names_the_topic(
    spark: Any, secured: Secured, tmp_path: Path, mode: str
) -> None:
    sink, target = f"denied-{mode}", secured.made("denied")
    secured.allow_sink(sink, mode)
    start = pipeline(spark, secured, sink, target, mode, tmp_path, secured.options())
    assert target in failure(lambda: run_to_end(start))


def test_the_sink_without_an_acl_of_its_id_names_the_sink(secured: Secured) -> None:
    asked = kafka_settings(secured.options())
    told = failure(lambda: executor_fence(asked, "not-allowed"))
    assert "sink not-allowed: no coordinator of sink not-allowed: TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in told


def test_a_wrong_password_is_refused_at_the_source(spark: Any, secured: Secured) -> None:
    told = failure(lambda: read(spark, secured.options(WRONG), secured.orders))
    assert f"refused the login of user {USER}" in told


@pytest.mark.parametrize("mode", [EXECUTOR, DRIVER])
def test_a_wrong_password_is_refused_at_the_sink(spark: Any, secured: Secured, tmp_path: Path, mode: str) -> None:
    sink, target = f"sink-{mode}", secured.made("t")
    start = pipeline(spark, secured, sink, target, mode, tmp_path, secured.options(WRONG))
    assert f"refused the login of user {USER}" in failure(lambda: run_to_end(start))


def test_a_refused_login_is_an_error_at_once_each_time(secured: Secured) -> None:
    """The broker's answer arrives together with the end of the connection, in every order."""
    client = Client(kafka_python_settings(kafka_settings(secured.options(WRONG))))
    for _ in range(5):
        began = time.monotonic()
        with pytest.raises(ClientError, match=f"refused the login of user {USER}"):
            client.topics([secured.orders])
        assert time.monotonic() - began < 5
    client.close()
