"""A fleet whose ZooKeeper was killed: every place that judges its health says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from fleetlog.brokers.cli.main import cli
from fleetlog.coordination.store import UNANSWERED
from tests.cli.shell import Shell
from tests.console.served import Served, Visitor
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.zookeeper
TROUBLE = "ZooKeeper does not answer this broker"
BROKERS = ["broker 1", "broker 2", "broker 3"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(
        tmp_path_factory.mktemp("away"), 3, zookeeper_session_timeout_ms=10_000, super_users="User:ANONYMOUS",
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
    )  # fmt: skip
    try:
        fleet.start()
        Shell(fleet).run("topics", "create", "before", "-p", "3", "-r", "3")
        fleet.zookeeper.kill()
        yield fleet
    finally:
        fleet.close()


def readiness(fleet: Fleet) -> list[str]:
    """What each broker's /health/ready says."""
    pages = []
    for broker in fleet.brokers:
        try:
            with urlopen(f"http://127.0.0.1:{broker.admin_port}/health/ready", timeout=20) as answer:
                pages.append(answer.read().decode())
        except HTTPError as error:
            pages.append(error.read().decode())
    return pages


def without_lease(fleet: Fleet) -> None:
    """Until then what is refused from memory may be told: an election that is not needed."""
    eventually(
        lambda: readiness(fleet), "none is ready once its lease has run out",
        good=lambda pages: all("lease has run out" in page for page in pages),
    )  # fmt: skip


def test_the_console_describe_doctor_and_readiness_agree(fleet: Fleet) -> None:
    shell, console = Shell(fleet), Served(fleet.bootstrap)
    try:
        visitor = Visitor(console)

        def told(health: dict[str, Any]) -> bool:
            return [one for one in BROKERS if any(f"{one}: {TROUBLE}" in text for text in health["words"])] == BROKERS

        first = eventually(lambda: visitor.json("/"), "the console tells", good=lambda page: told(page["health"]))
        assert first["health"]["level"] == "bad"
        assert [one["state"] for one in first["brokers"]] == ["no ZooKeeper"] * 3
        html = visitor.page("/")
        assert "Healthy" not in html
        assert "In trouble" in html
        described = eventually(
            lambda: shell.json("cluster", "describe"), "describe tells", good=lambda value: told(value["health"])
        )
        assert described["health"]["level"] == "bad"
        text = shell.run("cluster", "describe").stdout
        assert "3 of 3 brokers alive when last known: ZooKeeper answers 3 of them nothing" in text
        assert "no problems" not in text
        assert f"broker 2: {TROUBLE}" in text
        found = json.loads(shell.run("doctor", "--json", code=4).stdout)
        assert [one["where"] for one in found if one["what"] == TROUBLE and one["severity"] == "error"] == BROKERS
        eventually(
            lambda: readiness(fleet), "each broker's health tells",
            good=lambda pages: all("not ready" in page or f"but: {TROUBLE}" in page for page in pages),
        )  # fmt: skip
        without_lease(fleet)
        assert told(visitor.json("/")["health"])
    finally:
        console.close()


def test_what_cannot_be_written_names_the_cause_and_the_remedy(fleet: Fleet) -> None:
    created, altered, allowed, user = (  # one connection each: answers come in the order of the requests
        AdminClient({"bootstrap.servers": fleet.bootstrap, "log_level": 0}) for _ in range(4)
    )
    topic = ConfigResource(ResourceType.TOPIC, "before", {"retention.ms": "1000"})
    acl = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    secret = UserScramCredentialUpsertion("a", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret")
    asked = {
        "created": created.create_topics([NewTopic("t", 1, 1)], operation_timeout=5, request_timeout=90)["t"],
        "altered": altered.alter_configs([topic], request_timeout=90)[topic],
        "allowed": allowed.create_acls([acl], request_timeout=90)[acl],
        "user": user.alter_user_scram_credentials([secret], request_timeout=90)["a"],
    }
    told = {}
    for name, future in asked.items():
        with pytest.raises(KafkaException) as raised:
            future.result(100)
        told[name] = raised.value.args[0].str()
    assert told == dict.fromkeys(asked, UNANSWERED)


@pytest.mark.parametrize(
    "command",
    [
        "topics create t -p 1 -r 1",
        "topics alter before -c retention.ms=1000",
        "quotas list",
        "topics elect before --preferred",
        "features upgrade",
    ],
)
def test_commands_name_the_cause_and_the_remedy(fleet: Fleet, command: str) -> None:
    without_lease(fleet)
    done = CliRunner().invoke(cli, [*command.split(), "--timeout", "4"], env=Shell(fleet).environment)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert "ZooKeeper does not answer" in line
    assert "see whether the ZooKeeper servers run" in line
    assert "The request timed out" not in line
