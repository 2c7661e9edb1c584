"""The Java client and Kafka's command line tools over TLS and with logins: consoles, kafka-acls, kafka-configs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka_jars.conftest import Tools
from tests.support.certificates import serial_of
from tests.support.issuer import CLIENT_ID, CLIENT_SECRET, Issuer
from tests.support.secured import MECHANISMS, PASSWORD, PLAIN_MODULE, SCRAM_MODULE, USER, jaas
from tests.support.tls_fleet import KINDS, PRINCIPALS, PROTOCOLS, TlsFleet
from tests.support.tls_listeners import Certificates

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop]

PACKAGE = "org.apache.kafka.tools"
TOPICS, ACLS, CONFIGS = f"{PACKAGE}.TopicCommand", f"{PACKAGE}.AclCommand", "org.apache.kafka.tools.ConfigCommand"
TOKENS = "org.apache.kafka.common.security.oauthbearer"
MODULES = {"PLAIN": PLAIN_MODULE, "SCRAM-SHA-256": SCRAM_MODULE, "SCRAM-SHA-512": SCRAM_MODULE}


class Door:
    """The tools at one of the listeners, with the file of settings that its clients need."""

    def __init__(
        self, classpath: str, fleet: TlsFleet, directory: Path, kind: str, mechanism: str = "SCRAM-SHA-512",
        user: str = USER, password: str = PASSWORD, token_url: str = "",
    ) -> None:  # fmt: skip
        self.tools = Tools(classpath, fleet)
        self.tools.bootstrap = fleet.bootstrap_of(kind)
        settings = {"security.protocol": PROTOCOLS[kind]}
        if kind in KINDS:
            authority = fleet.certificates.authority.file
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
        if kind in ("MUTUAL", "BOTH"):
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": fleet.certificates.alice}
        if mechanism == "OAUTHBEARER":
            settings |= {
                "sasl.mechanism": mechanism,
                "sasl.jaas.config": jaas(f"{TOKENS}.OAuthBearerLoginModule", clientId=user, clientSecret=password),
                "sasl.login.callback.handler.class": f"{TOKENS}.OAuthBearerLoginCallbackHandler",
                "sasl.oauthbearer.token.endpoint.url": token_url,
            }
            self.tools.properties["org.apache.kafka.sasl.oauthbearer.allowed.urls"] = token_url
        elif PROTOCOLS[kind].startswith("SASL"):
            module = jaas(MODULES[mechanism], username=user, password=password)
            settings |= {"sasl.mechanism": mechanism, "sasl.jaas.config": module}
        self.file = directory / f"{kind}-{mechanism}-{user}.properties"
        lines = [f"{name}={value}".replace("\\", "\\\\") for name, value in settings.items()]
        self.file.write_bytes("\n".join(lines).encode("latin-1"))

    def admin(self, name: str, *arguments: str, code: int = 0) -> str:
        return self.tools(name, "--command-config", str(self.file), *arguments, code=code)

    def send(self, topic: str, lines: list[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        self.tools(
            f"{PACKAGE}.ConsoleProducer", "--topic", topic, "--command-config", str(self.file),
            "--request-required-acks", "all", "--sync", text=text,
        )  # fmt: skip

    def receive(self, topic: str, count: int) -> list[str]:
        seen = self.tools(
            f"{PACKAGE}.consumer.ConsoleConsumer", "--topic", topic, "--command-config", str(self.file),
            "--from-beginning", "--max-messages", str(count), "--timeout-ms", "60000", "--group", f"g-{topic}",
        )  # fmt: skip
        return seen.split("\n")[:count]


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    found = Issuer()
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[TlsFleet]:
    with_tokens = {"listener.name.login.sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER"))}
    found = TlsFleet(
        tmp_path_factory.mktemp("tls"),
        Certificates(tmp_path_factory.mktemp("certificates")),
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users=f"User:{USER};User:ANONYMOUS",
        allow_everyone_if_no_acl_found="true",
        **with_tokens,
        **issuer.settings("login"),
    )
    try:
        found.start()
        yield found
    finally:
        found.close()


@pytest.fixture
def login(classpath: str, fleet: TlsFleet, tmp_path: Path) -> Door:
    """The administrator's."""
    return Door(classpath, fleet, tmp_path, "LOGIN")


@pytest.mark.parametrize(
    ("kind", "mechanism"),
    [
        ("ONEWAY", ""), ("MUTUAL", ""), ("LOGIN", "SCRAM-SHA-512"), ("LOGIN", "SCRAM-SHA-256"), ("BOTH", "PLAIN"),
        ("CLEAR", "PLAIN"), ("CLEAR", "SCRAM-SHA-256"), ("CLEAR", "SCRAM-SHA-512"),
    ],
)  # fmt: skip
def test_the_console_producer_and_consumer(
    classpath: str, fleet: TlsFleet, tmp_path: Path, kind: str, mechanism: str
) -> None:
    door, lines = Door(classpath, fleet, tmp_path, kind, mechanism), [f"value {number}" for number in range(20)]
    topic = f"console-{kind}-{mechanism}"
    door.send(topic, lines)
    assert door.receive(topic, len(lines)) == lines


def test_the_consoles_with_tokens(classpath: str, fleet: TlsFleet, tmp_path: Path, issuer: Issuer) -> None:
    """The Java client fetches them itself, by its client credentials."""
    url = f"{issuer.url}/token"
    door = Door(classpath, fleet, tmp_path, "LOGIN", "OAUTHBEARER", CLIENT_ID, CLIENT_SECRET, url)
    door.send("console-tokens", ["one", "two"])
    assert door.receive("console-tokens", 2) == ["one", "two"]
    stranger = Door(classpath, fleet, tmp_path, "LOGIN", "OAUTHBEARER", CLIENT_ID, "another secret", url)
    stranger.admin(TOPICS, "--list", code=1)


def test_a_listener_gets_another_certificate(fleet: TlsFleet, tmp_path: Path, login: Door) -> None:
    entity = ("--entity-type", "brokers", "--entity-name", "1")
    location = "listener.name.oneway.ssl.keystore.location"
    authority, first = fleet.certificates.authority, fleet.serial()
    renewed = authority.pair("/O=fleet/CN=broker")
    new = renewed.store(tmp_path / "new.pem")
    another = authority.pair("/CN=another").store(tmp_path / "another.pem")
    refused = login.admin(CONFIGS, "--alter", *entity, "--add-config", f"{location}={another}", code=1)
    assert "its subject is now" in refused
    assert fleet.serial() == first
    login.admin(CONFIGS, "--alter", *entity, "--add-config", f"{location}={new}")
    assert fleet.serial() == serial_of(renewed), "in use when it is answered"
    assert f"{location}={new}" in login.admin(CONFIGS, "--describe", *entity)
    login.admin(CONFIGS, "--alter", *entity, "--delete-config", location)
    assert fleet.serial() == first


def test_acls_of_a_certificates_principal(classpath: str, fleet: TlsFleet, tmp_path: Path, login: Door) -> None:
    door, principal = Door(classpath, fleet, tmp_path, "MUTUAL"), PRINCIPALS["MUTUAL"]
    login.admin(TOPICS, "--create", "--topic", "t-guarded")
    login.admin(ACLS, "--add", "--allow-principal", principal, "--consumer", "--topic", "t-guarded", "--group", "*")
    assert f"(principal={principal}, host=*, operation=READ, permissionType=ALLOW)" in login.admin(ACLS, "--list")
    assert "t-guarded" in door.admin(TOPICS, "--list").split()
    assert "Topic authorization failed" in door.admin(TOPICS, "--delete", "--topic", "t-guarded", code=1)
    login.admin(ACLS, "--add", "--allow-principal", principal, "--operation", "Delete", "--topic", "t-guarded")
    door.admin(TOPICS, "--delete", "--topic", "t-guarded")
    login.admin(ACLS, "--remove", "--force", "--topic", "t-guarded")
    login.admin(ACLS, "--remove", "--force", "--group", "*")
    assert "User:" not in login.admin(ACLS, "--list")


def test_users_are_made_changed_and_removed(classpath: str, fleet: TlsFleet, tmp_path: Path, login: Door) -> None:
    entity = ("--entity-type", "users", "--entity-name", "carol")
    login.admin(CONFIGS, "--alter", *entity, "--add-config", "SCRAM-SHA-512=[iterations=8192,password=of-carol-1]")
    assert "SCRAM-SHA-512=iterations=8192" in login.admin(CONFIGS, "--describe", *entity)
    carol = Door(classpath, fleet, tmp_path, "LOGIN", user="carol", password="of-carol-1")
    carol.admin(TOPICS, "--list")
    login.admin(CONFIGS, "--alter", *entity, "--add-config", "SCRAM-SHA-512=[password=of-carol-2]")
    assert "Authentication failed" in carol.admin(TOPICS, "--list", code=1)
    Door(classpath, fleet, tmp_path, "LOGIN", user="carol", password="of-carol-2").admin(TOPICS, "--list")
    login.admin(CONFIGS, "--alter", *entity, "--delete-config", "SCRAM-SHA-512")
    assert "SCRAM" not in login.admin(CONFIGS, "--describe", *entity)


def test_quotas_are_set_described_and_hold(fleet: TlsFleet, login: Door) -> None:
    user, client = (
        ("--entity-type", "users", "--entity-name", USER),
        ("--entity-type", "clients", "--entity-name", "slow"),
    )
    login.admin(CONFIGS, "--alter", *user, *client, "--add-config", "producer_byte_rate=5000,request_percentage=150")
    found = login.admin(CONFIGS, "--describe", *user, *client)
    assert f"for user-principal '{USER}', client-id 'slow' are" in found
    assert "producer_byte_rate=5000.0" in found
    assert "request_percentage=150.0" in found
    login.admin(
        CONFIGS, "--alter", "--entity-type", "users", "--entity-default", "--add-config", "consumer_byte_rate=9e8"
    )
    assert "consumer_byte_rate=9.0E8" in login.admin(
        CONFIGS, "--describe", "--entity-type", "users", "--entity-default"
    )

    def throttled_ms(client_id: str) -> float:
        """The longest time that the client was asked to wait."""
        printed = login.tools(
            f"{PACKAGE}.ProducerPerformance", "--topic", f"quota-{client_id}", "--num-records", "60",
            "--record-size", "1000", "--throughput", "-1", "--command-config", str(login.file), "--print-metrics",
            "--command-property", f"bootstrap.servers={login.tools.bootstrap}", f"client.id={client_id}",
            "batch.size=1000", bootstrap=False,
        )  # fmt: skip
        (line,) = [
            line for line in printed.splitlines() if line.startswith("producer-metrics:produce-throttle-time-max")
        ]
        return float(line.split(" : ")[1])

    assert throttled_ms("slow") > 0
    assert throttled_ms("other") == 0
    login.admin(CONFIGS, "--alter", *user, *client, "--delete-config", "producer_byte_rate,request_percentage")
    login.admin(
        CONFIGS, "--alter", "--entity-type", "users", "--entity-default", "--delete-config", "consumer_byte_rate"
    )
    assert "producer_byte_rate" not in login.admin(CONFIGS, "--describe", *user, *client)
    assert throttled_ms("slow") == 0
