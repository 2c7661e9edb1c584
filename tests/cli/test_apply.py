"""``fleetlog apply`` on a real fleet with an authorizer, users, ACLs and quotas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaException, Producer

from fleetlog.brokers.cli.main import cli
from tests.support.fleet import Fleet
from tests.support.secured import BROKER_PASSWORD, BROKER_USER, SCRAM_MODULE, jaas, secured_fleet

pytestmark = pytest.mark.zookeeper

FILE = """
topics:
  orders: {partitions: 3, replication: 1, config: {retention.ms: 3600000}}
  sources: {partitions: 1, replication: 1, config: {retention.ms: 1900000, fleetlog.dedup: source}}
users:
  carol: {password_env: CAROL_PASSWORD, mechanisms: [SCRAM-SHA-512]}
acls:
  - {principal: "User:carol", topic: orders, allow: [Write]}
quotas:
  - {user: carol, producer_byte_rate: 1000000}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = secured_fleet(
        tmp_path / "fleet", 1,
        **{"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": f"User:{BROKER_USER}"},
    )  # fmt: skip
    try:
        yield made.start()
    finally:
        made.close()


def test_a_file_is_applied_once(fleet: Fleet, tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    login = jaas(SCRAM_MODULE, username=BROKER_USER, password=BROKER_PASSWORD)
    properties.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={login}\n")
    file = tmp_path / "fleet.yaml"
    file.write_text(FILE)

    def run(*words: str, code: int = 0, password: str = "of-carol-5") -> Result:
        arguments = ["apply", "-f", str(file), "-b", fleet.bootstrap, "--command-config", str(properties), *words]
        result = CliRunner().invoke(cli, arguments, env={"CAROL_PASSWORD": password}, catch_exceptions=False)
        assert result.exit_code == code, result.stdout + result.stderr
        return result

    plan = [
        "+ topic orders: 3 partitions, 1 replica, retention.ms=3600000",
        "+ topic sources: 1 partition, 1 replica, retention.ms=1900000, fleetlog.dedup=source",
        "+ user carol: SCRAM-SHA-512 with 4096 iterations",
        "+ acl: Allow Write on literal Topic orders for User:carol",
        "+ quota of user carol: producer_byte_rate=1000000",
    ]
    assert run("--check", code=3).stdout.splitlines() == plan
    assert "needs --yes. Nothing was changed" in run(code=1).stderr
    assert "no password in the variable CAROL_PASSWORD" in run("--yes", code=1, password="").stderr
    assert run("--check", code=3).stdout.splitlines() == plan
    assert run("--yes").stdout.splitlines() == [*plan, "made 5 changes"]
    assert run("--check").stdout == "nothing to do\n"
    assert run("--yes").stdout == "nothing to do\n"

    failed: list[object] = []
    carol = {
        "bootstrap.servers": fleet.bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "carol", "sasl.password": "of-carol-5",
    }  # fmt: skip
    producer = Producer(carol)
    producer.produce("orders", b"x", on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    assert failed == []

    file.write_text(
        FILE.replace("partitions: 3", "partitions: 5").replace("3600000", "7200000")
        .replace("1900000", "6000000, fleetlog.dedup.window.ms: 5400000")
        .replace("[Write]", "[Describe]").replace("1000000", "2000000")
    )  # fmt: skip
    assert run("--yes", "--prune").stdout.splitlines() == [
        "~ topic orders: 5 partitions instead of 3",
        "~ topic orders: retention.ms=7200000 instead of 3600000",
        "~ topic sources: fleetlog.dedup.window.ms=5400000",  # not allowed with the retention.ms before
        "~ topic sources: retention.ms=6000000 instead of 1900000",
        "+ acl: Allow Describe on literal Topic orders for User:carol",
        "- acl: Allow Write on literal Topic orders for User:carol",
        "~ quota of user carol: producer_byte_rate=2000000 instead of 1000000",
        "made 7 changes",
    ]
    assert run("--check", "--prune").stdout == "nothing to do\n"
    producer.produce("orders", b"x", on_delivery=lambda error, _: failed.append(error) if error else None)
    producer.flush(30)
    (refused,) = failed
    assert "TOPIC_AUTHORIZATION_FAILED" in str(KafkaException(refused))

    file.write_text(FILE.replace("partitions: 3, ", "partitions: 2, "))
    assert "nothing was changed: topic orders: 2 partitions instead of 5" in run("--yes", code=1).stderr
    assert run("--check", code=3).stdout.startswith("! topic orders: 2 partitions")

    file.write_text("topics:\n  first: {partitions: 1}\n  second: {replication: 9}\n  third: {partitions: 1}\n")
    said = run("--yes", code=1).stderr
    assert "INVALID_REPLICATION_FACTOR" in said
    assert "1 of 3 changes are made, and stay: mend this one, and run the command again for the rest" in said
    file.write_text(file.read_text().replace("9", "1"))
    assert run("--yes").stdout.splitlines()[-1] == "made 2 changes"

    file.write_text("topics:\n  strict: {partitions: 1, config: {min.insync.replicas: 2}}\n")
    word = "min.insync.replicas={} is more than the 1 replica of strict"
    assert word.format(2) in run("--yes").stderr
    file.write_text(file.read_text().replace("2}", "3}"))
    assert word.format(3) in run("--yes").stderr
