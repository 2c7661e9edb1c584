"""Spark through secured listeners with an authorizer: source and each way of the sink, with the ACLs that it needs.

Logins are by password (with and without TLS), by client certificate, and by token, of an issuer or of a file.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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

from fleetlog.spark import write_stream
from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.failures import ClientError
from fleetlog.spark.client.settings import kafka_python_settings, kafka_settings, librdkafka_settings
from fleetlog.spark.sink.fence import FENCE_TOPIC
from fleetlog.spark.sink.modes import executor_fence
from tests.spark.conftest import Cluster, run_to_end
from tests.support.fleet import Fleet
from tests.support.issuer import CLIENT_ID, CLIENT_SECRET, Issuer
from tests.support.ports import free_port
from tests.support.recipes import recipe, run_printed
from tests.support.secured import (
    BROKER_PASSWORD,
    BROKER_USER,
    MECHANISMS,
    PASSWORD,
    SCRAM_MODULE,
    USER,
    confluent,
    jaas,
    secured_fleet,
    users,
)
from tests.support.tls_listeners import Certificates
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.xdist_group("spark")]

MECHANISM = "SCRAM-SHA-512"
PASSWORD_START = PASSWORD[:9]
WRONG = "not-of-alice-4711"
PRINTED_PASSWORD = "of-the-recipe-1"
SECRETS = (PASSWORD_START, WRONG, CLIENT_SECRET, PRINTED_PASSWORD, "eyJ")
FORMAT, EXECUTOR, SMALL, DRIVER = "format", "executor", "small batches", "driver"
PASSWORD_LOGIN, PASSWORD_OVER_TLS, CERTIFICATE, TOKEN, TOKEN_FILE = "SCRAM", "SCRAM over TLS", "mTLS", "OIDC", "token"
TOKEN_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
BATCH_ROWS = 40
TOPIC, GROUP, SINK = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
DESCRIBE = AclOperation.DESCRIBE
VALUES = sorted(f"v{number}" for number in range(100))
REFUSALS_MAX = 4
SOON_S = 55.0
"""An error that is not waited for: the clients' own timeouts are 60 s and more. Starts of workers count, too."""


class Secured(Cluster):
    """The fleet as its super user sees it, and the rights of alice."""

    def __init__(self, bootstrap: str, ports: Ports, certificates: Certificates, issuer: Issuer) -> None:
        super().__init__(bootstrap)
        self.ports, self.certificates, self.issuer = ports, certificates, issuer
        self.token_file = certificates.directory / "token"
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
        if mode != DRIVER:
            self.allow((SINK, sink, WRITE), (TOPIC, FENCE_TOPIC, DESCRIBE))
            self.allow((GROUP, "spark-sink", DESCRIBE), prefixed=True)
        else:
            self.allow((SINK, sink, DESCRIBE), (TOPIC, FENCE_TOPIC, CREATE), (TOPIC, FENCE_TOPIC, READ))
            self.allow((SINK, "spark-sink", WRITE), (GROUP, "spark-sink", READ), prefixed=True)

    def options_of(self, login: str) -> dict[str, str]:
        """The same user by another login. Files are on each machine."""
        trusted = {
            "kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": self.certificates.authority.file,
        }  # fmt: skip
        if login == PASSWORD_OVER_TLS:
            servers = {"kafka.bootstrap.servers": f"127.0.0.1:{self.ports.tls}"}
            return self.options() | trusted | servers | {"kafka.security.protocol": "SASL_SSL"}
        if login == CERTIFICATE:
            return trusted | {
                "kafka.bootstrap.servers": f"127.0.0.1:{self.ports.mutual}", "kafka.security.protocol": "SSL",
                "kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.location": self.certificates.alice,
            }  # fmt: skip
        endpoint, jaas_line = (
            f"{self.issuer.url}/token",
            jaas(TOKEN_MODULE, clientId=CLIENT_ID, clientSecret=CLIENT_SECRET),
        )
        if login == TOKEN_FILE:
            self.token_file.write_text(self.issuer.token(sub=USER))
            endpoint, jaas_line = self.token_file.as_uri(), jaas(TOKEN_MODULE)
        by_token = {
            "kafka.sasl.mechanism": "OAUTHBEARER", "kafka.sasl.jaas.config": jaas_line,
            "kafka.sasl.oauthbearer.token.endpoint.url": endpoint,
        }  # fmt: skip
        return self.options() | (by_token if login in (TOKEN, TOKEN_FILE) else {})

    def servers(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap}

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


class Ports(NamedTuple):
    """Of the listeners beside the brokers' own."""

    tls: int
    mutual: int


@pytest.fixture(scope="module")
def ports() -> Ports:
    return Ports(free_port(), free_port())


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    found = Issuer()
    found.client_user = USER
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates, ports: Ports, issuer: Issuer
) -> Iterator[Fleet]:
    """One listener without TLS, which brokers use, too, one with it, and one for client certificates."""
    named = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{BROKER_USER}",
        "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,TLS:SASL_SSL,MUTUAL:SSL",
        "inter.broker.listener.name": "INSIDE",
        "sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")),
        **issuer.settings(),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=([a-z]+),O=fleet$/$1/",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.authority.file,
        "listener.name.tls.sasl.enabled.mechanisms": MECHANISM,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.broker_file,
    }
    found = secured_fleet(tmp_path_factory.mktemp("secured"), 1, **named)
    (broker,) = found.brokers
    inside = f"listeners=INSIDE://127.0.0.1:{broker.port}"
    text = broker.config_file.read_text()
    assert inside in text
    broker.config_file.write_text(
        text.replace(inside, f"{inside},TLS://127.0.0.1:{ports.tls},MUTUAL://127.0.0.1:{ports.mutual}")
    )
    try:
        yield found.start()
    finally:
        found.close()


@pytest.fixture(scope="module")
def secured(fleet: Fleet, certificates: Certificates, ports: Ports, issuer: Issuer) -> Secured:
    cluster = Secured(fleet.bootstrap, ports, certificates, issuer)
    cluster.allow((TOPIC, cluster.orders, READ))
    return cluster


@pytest.fixture(autouse=True)
def no_secret_is_told(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """In nothing that the driver logs or that its processes print. Tokens begin with their header."""
    caplog.set_level(logging.INFO)
    yield
    told = caplog.text + "".join(capfd.readouterr())
    assert not [secret for secret in SECRETS if secret in told]


def values(rows: Any) -> list[str]:
    return sorted(bytes(row.value).decode() for row in rows.collect())


def replaced(text: str, own_names: dict[str, str]) -> str:
    """A printed text with other names; each must stand there."""
    for name, own in own_names.items():
        assert name in text, name
        text = text.replace(name, own)
    return text


def printed_options(block: str, own_names: dict[str, str]) -> dict[str, str]:
    """The one dictionary that a block of Python makes."""
    names: dict[str, Any] = {}
    exec(replaced(block, own_names), names)
    (options,) = (value for value in names.values() if isinstance(value, dict) and "kafka.security.protocol" in value)
    return dict(options)


def read(spark: Any, options: dict[str, str], topic: str) -> list[str]:
    return values(spark.read.format("fleetlog").options(**options, subscribe=topic).load())


def settled(spark: Any, options: dict[str, str], topic: str) -> list[str]:
    """The same once every row is there: markers are written a moment after the decision."""
    return eventually(lambda: read(spark, options, topic), "every row", good=lambda found: len(found) >= len(VALUES))


def pipeline(
    spark: Any,
    secured: Secured,
    sink: str,
    target: str,
    mode: str,
    directory: Path,
    options: dict[str, str],
    source_options: dict[str, str] | None = None,
) -> Callable[[], Any]:
    source = spark.readStream.format("fleetlog").options(**source_options or options, subscribe=secured.orders)
    source = source.option("maxOffsetsPerTrigger", BATCH_ROWS) if mode == SMALL else source
    rows = source.option("startingOffsets", "earliest").load().select("key", "value")
    checkpoint, once = str(directory / "checkpoint"), {"availableNow": True}
    if mode == FORMAT:
        given = {**options, "topic": target, "sinkId": sink, "checkpointLocation": checkpoint}
        return lambda: rows.writeStream.format("fleetlog").options(**given).trigger(**once).start()
    how = {"sink.mode": EXECUTOR if mode == SMALL else mode}
    how |= {"sink.small.batch.rows": str(BATCH_ROWS)} if mode == SMALL else {}
    return lambda: write_stream(
        rows, bootstrap_servers=options["kafka.bootstrap.servers"], sink_id=sink, checkpoint_location=checkpoint,
        topic=target, trigger=once, options={**options, **how},
    )  # fmt: skip


def failure(call: Callable[[], Any], soon_s: float = SOON_S, began: list[float] | None = None) -> str:
    """What it ends with, soon; no password in it. ``began``: the times of its starts, of which the last counts."""
    began = [time.monotonic()] if began is None else began
    with pytest.raises(Exception) as raised:  # noqa: PT011  (Spark's own types; the callers check the text)
        call()
    assert time.monotonic() - began[-1] < soon_s
    text = f"{raised.value!r} {raised.value}"
    assert not [secret for secret in SECRETS if secret in text]
    return text


def failure_of_query(start: Callable[[], Any], soon_s: float = SOON_S) -> str:
    """The same of a query, which is started again when Spark gave its Python process up too early."""
    began: list[float] = []

    def started() -> Any:
        began.append(time.monotonic())
        return start()

    return failure(lambda: run_to_end(started), soon_s, began)


@pytest.mark.parametrize(
    ("mode", "login"),
    [
        *((mode, login) for mode in (FORMAT, DRIVER) for login in (PASSWORD_LOGIN, PASSWORD_OVER_TLS, TOKEN)),
        (EXECUTOR, CERTIFICATE), (SMALL, PASSWORD_OVER_TLS), (SMALL, TOKEN), (DRIVER, CERTIFICATE),
        (DRIVER, TOKEN_FILE),
    ],
)  # fmt: skip
def test_exactly_once_from_topic_to_topic(spark: Any, secured: Secured, tmp_path: Path, mode: str, login: str) -> None:
    sink, target = f"sink-{mode}-{login}".replace(" ", "-"), secured.made("totals")
    options = secured.options_of(login)
    secured.allow_sink(sink, mode)
    secured.allow((TOPIC, target, WRITE))
    start = pipeline(spark, secured, sink, target, mode, tmp_path, options)
    run_to_end(start)
    last = max(int(path.name) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    for commit in (tmp_path / "checkpoint" / "commits").glob(f"*{last}*"):
        commit.unlink()  # the last batch is done again, and counts once
    run_to_end(start)
    secured.allow((TOPIC, target, READ))
    assert settled(spark, options, target) == VALUES


@pytest.mark.parametrize("login", [CERTIFICATE, TOKEN, TOKEN_FILE])
def test_a_batch_job(spark: Any, secured: Secured, login: str, capfd: pytest.CaptureFixture[str]) -> None:
    """``spark.read`` and ``df.write``; plans have no secret."""
    sink, target, options = f"job-{login}", secured.made("totals"), secured.options_of(login)
    secured.allow_sink(sink, FORMAT)
    secured.allow((TOPIC, target, WRITE), (TOPIC, target, READ))
    rows = spark.read.format("fleetlog").options(**options, subscribe=secured.orders).load().select("key", "value")
    rows.explain(mode="extended")
    assert "Physical Plan" in capfd.readouterr().out
    for _ in range(2):  # with the same token it is written once
        writer = rows.write.format("fleetlog").options(**options, topic=target, sinkId=sink, batchToken="monday")
        writer.mode("append").save()
    assert settled(spark, options, target) == VALUES


@pytest.mark.parametrize("mode", [FORMAT, DRIVER])
def test_the_acls_of_the_documentation(spark: Any, fleet: Fleet, secured: Secured, tmp_path: Path, mode: str) -> None:
    """Commands and options of docs/security.md as printed, of a user without other rights; names are the test's."""
    user, sink, target = f"of-{mode}", f"documented-{mode}", secured.made("totals")
    users(fleet, "add", user, "--password-stdin", password=PRINTED_PASSWORD)
    lines = recipe("ACLs for a Spark job", "bash")[1].splitlines(keepends=True)
    executors, driver = (number for number, line in enumerate(lines) if line.startswith("#"))
    of_mode = lines[executors:driver] if mode == FORMAT else lines[driver:]
    own_names = {"totals-sink": sink, " totals": f" {target}", "orders": secured.orders, "alice": user}
    line = jaas(SCRAM_MODULE, username=BROKER_USER, password=BROKER_PASSWORD)
    operator = tmp_path / "operator.properties"
    operator.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={MECHANISM}\nsasl.jaas.config={line}\n")
    at = {"FLEETLOG_BOOTSTRAP": secured.bootstrap, "FLEETLOG_COMMAND_CONFIG": str(operator)}
    commands = "".join(lines[:executors] + of_mode)
    run_printed('HOSTS="--host 127.0.0.1"\n' + replaced(commands, own_names), tmp_path, **at)
    block = recipe("ACLs for a Spark job", "python")[0]
    options = printed_options(block, {"alice": user, '"..."': f'"{PRINTED_PASSWORD}"'})
    run_to_end(pipeline(spark, secured, sink, target, mode, tmp_path, {**options, **secured.servers()}))
    secured.allow((TOPIC, target, READ))
    assert settled(spark, secured.options(), target) == VALUES


def test_the_tls_options_of_the_documentation(spark: Any, secured: Secured) -> None:
    files = {'"ca.pem"': repr(secured.certificates.authority.file), "/etc/job/alice.pem": secured.certificates.alice}
    options = printed_options(recipe("ACLs for a Spark job", "python")[1], files)
    servers = {"kafka.bootstrap.servers": f"127.0.0.1:{secured.ports.mutual}"}
    assert read(spark, {**options, **servers}, secured.orders) == VALUES


@pytest.mark.parametrize("mode", [FORMAT, DRIVER])
def test_a_refused_client_secret_is_not_tried_again(spark: Any, secured: Secured, tmp_path: Path, mode: str) -> None:
    """One connection asks once for a token; a client that waits for better times would ask some hundred times."""
    sink, target, right = f"refused-{mode}", secured.made("t"), secured.options_of(TOKEN)
    options = right | {"kafka.sasl.jaas.config": jaas(TOKEN_MODULE, clientId=CLIENT_ID, clientSecret=WRONG)}
    before = secured.issuer.refused
    start = pipeline(spark, secured, sink, target, mode, tmp_path, options, right)
    told = failure_of_query(start, soon_s=math.inf)
    assert f"the token endpoint {secured.issuer.url}/token refused client {CLIENT_ID}: 401 invalid_client" in told
    assert 1 <= secured.issuer.refused - before <= REFUSALS_MAX


def test_a_certificate_of_another_authority_is_refused(secured: Secured) -> None:
    options = secured.options_of(CERTIFICATE) | {"kafka.ssl.keystore.location": secured.certificates.mallory}
    client = Client(kafka_python_settings(kafka_settings(options)), timeout_ms=3000)
    with pytest.raises(ClientError, match="over SSL so does a refused password or certificate"):
        client.topics([secured.orders])
    client.close()


def test_a_session_outlives_its_tokens(secured: Secured) -> None:
    """Tokens of three seconds: each connection, of either library, logs in again with the next one."""
    secured.issuer.lifetime_s = 3.0
    settings = kafka_settings(secured.options_of(TOKEN) | {"kafka.sasl.oauthbearer.scope": "short"})
    client, stock = Client(kafka_python_settings(settings)), AdminClient(librdkafka_settings(settings))
    fetched = len(secured.issuer.asked)
    try:
        ends = time.monotonic() + 10
        while time.monotonic() < ends:
            assert client.topics([secured.orders]) == {secured.orders: [0, 1]}
            assert stock.list_topics(secured.orders, timeout=20).topics[secured.orders].error is None
            time.sleep(0.3)
    finally:
        secured.issuer.lifetime_s = 300.0
        client.close()
    assert len(secured.issuer.asked) >= fetched + 2


def test_the_source_without_its_acl_names_the_topic(spark: Any, secured: Secured) -> None:
    secret = secured.made("secret")
    assert secret in failure(lambda: read(spark, secured.options(), secret))


@pytest.mark.parametrize("mode", [FORMAT, EXECUTOR, DRIVER])
def test_the_sink_without_its_topics_acl_names_the_topic(
    spark: Any, secured: Secured, tmp_path: Path, mode: str
) -> None:
    sink, target = f"denied-{mode}", secured.made("denied")
    secured.allow_sink(sink, mode)
    start = pipeline(spark, secured, sink, target, mode, tmp_path, secured.options())
    assert target in failure_of_query(start)


def test_the_sink_without_an_acl_of_its_id_names_the_sink(secured: Secured) -> None:
    asked = kafka_settings(secured.options())
    told = failure(lambda: executor_fence(asked, "not-allowed"))
    assert "sink not-allowed: no coordinator of sink not-allowed: TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in told


def test_a_wrong_password_is_refused_at_the_source(spark: Any, secured: Secured) -> None:
    told = failure(lambda: read(spark, secured.options(WRONG), secured.orders))
    assert f"refused the login of user {USER}" in told


@pytest.mark.parametrize("mode", [FORMAT, DRIVER])
def test_a_wrong_password_is_refused_at_the_sink(spark: Any, secured: Secured, tmp_path: Path, mode: str) -> None:
    sink, target = f"sink-{mode}", secured.made("t")
    start = pipeline(spark, secured, sink, target, mode, tmp_path, secured.options(WRONG), secured.options())
    assert f"refused the login of user {USER}" in failure_of_query(start)


def test_a_refused_login_is_an_error_at_once_each_time(secured: Secured) -> None:
    """The broker's answer arrives together with the end of the connection, in every order."""
    client = Client(kafka_python_settings(kafka_settings(secured.options(WRONG))))
    for _ in range(5):
        began = time.monotonic()
        with pytest.raises(ClientError, match=f"refused the login of user {USER}"):
            client.topics([secured.orders])
        assert time.monotonic() - began < 30  # one that waits for better times takes a minute
    client.close()
