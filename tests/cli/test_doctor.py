"""``fleetlog doctor`` names the true cause of each trouble: real brokers, and real troubles."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from kafka.admin import KafkaAdminClient

import fleetlog.wire.messages as m
from fleetlog.brokers.cli import doctor
from fleetlog.brokers.cli.client import Target, admin
from fleetlog.brokers.cli.doctor import gathered
from tests.chaos.clocks import HostClock, build
from tests.cli.shell import Shell
from tests.support.fleet import Fleet
from tests.support.tls_fleet import TlsFleet
from tests.support.tls_listeners import Certificates
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.interop]

FINE, WARNINGS, ERRORS = 0, 3, 4
FILES = 300


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Broker 3 has a clock of its own, broker 2 few file descriptors."""
    directory = tmp_path_factory.mktemp("doctor")
    fleet = Fleet(
        directory, 3, default_replication_factor=3, min_insync_replicas=2, group_lag_interval_ms=200,
        log_cleaner_dedupe_buffer_size=1_048_576, max_connections_per_ip=10 * FILES,
    )  # fmt: skip
    clock = HostClock(build(directory), directory / "clock")
    fleet.brokers[2].within = ["env", *(f"{name}={value}" for name, value in clock.environment.items())]
    fleet.brokers[1].within = ["prlimit", f"--nofile={FILES}:{FILES}"]
    fleet.brokers[2].clock = clock  # type: ignore[attr-defined]
    try:
        yield fleet.start()
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def topic(fleet: Fleet) -> str:
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    admin.create_topics([NewTopic("orders", 3, 3)])["orders"].result(60)
    producer = Producer({"bootstrap.servers": fleet.bootstrap})
    for n in range(30):
        producer.produce("orders", str(n), partition=n % 3)
    assert producer.flush(60) == 0
    return "orders"


def examined(fleet: Fleet, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and what was found but for notes: that of the few file descriptors of broker 2 is one."""
    shell = Shell(fleet)
    from click.testing import CliRunner

    from fleetlog.brokers.cli.main import cli

    names = ("--sync-ms", "--zookeeper-ms", "--loop-ms", "--clock-ms")  # a machine that runs tests may be slow
    patient = (*(word for name in names for word in (name, "60000")), *options)
    done = CliRunner().invoke(cli, ["doctor", "--json", *patient], env=shell.environment, catch_exceptions=False)
    found = json.loads(done.stdout)
    return done.exit_code, [one for one in found if one["severity"] != "note"]


def checks(found: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(one["check"], one["where"]) for one in found}


def until_fine(fleet: Fleet, *options: str) -> None:
    eventually(lambda: examined(fleet, *options)[1] == [], "nothing is wrong any more")


def until_told(
    fleet: Fleet, *wanted: tuple[str, str], options: tuple[str, ...] = ()
) -> tuple[int, list[dict[str, Any]]]:
    """``examined`` once it is these troubles and no others: a broker may answer late, and a change is read late."""
    return eventually(
        lambda: examined(fleet, *options), f"{wanted} and no more", good=lambda look: checks(look[1]) == set(wanted)
    )


def test_a_healthy_fleet_has_few_files_at_one_broker_only(fleet: Fleet, topic: str) -> None:
    until_fine(fleet)
    text = Shell(fleet).run("doctor", "--zookeeper-ms", "60000", "--loop-ms", "60000", "--sync-ms", "60000").stdout
    assert text.startswith("3 brokers and ")
    assert f"broker 2\n  what    it may open {FILES} files only" in text
    assert "do      raise LimitNOFILE" in text


def test_a_client_that_is_used_again_measures_growth_since_its_last_look(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a page of the console neither waits between two looks nor asks for all sizes twice."""
    topic = "growing"
    Shell(fleet).run("topics", "create", topic, "-p", "1")
    monkeypatch.setattr(doctor, "LEAST_SPAN_S", 0.0)
    target = Target(fleet.bootstrap, 30.0, {})
    with admin(target) as client:
        gathered(client)
        Shell(fleet).run("produce", topic, stdin="a record\n" * 100)
        facts = gathered(client)
        assert max(rate for tp, rate in facts.rates.items() if tp.topic == topic) > 0
        assert client.looked is not None
        assert client.looked[1] is facts.overview.brokers, "the overview's look was the last one"
    with admin(target) as client:
        facts = gathered(client)
        assert max(rate for tp, rate in facts.rates.items() if tp.topic == topic) == 0
        assert client.looked is not None
        assert client.looked[1] is not facts.overview.brokers


def test_brittle_and_weak_topics_are_told(fleet: Fleet, topic: str) -> None:
    shell = Shell(fleet)
    for name, minimum in ((f"{topic}-brittle", 3), (f"{topic}-weak", 1)):
        shell.run("topics", "create", name, "-p", "1", "-r", "3", "-c", f"min.insync.replicas={minimum}")
    text = shell.run("doctor", code=WARNINGS).stdout
    assert re.search(f"needs every replica for a write: .*{topic}-brittle", text)
    assert re.search(f"takes writes with one replica in sync: .*{topic}-weak", text)
    for name in (f"{topic}-brittle", f"{topic}-weak"):
        shell.run("topics", "delete", name, "--yes")


def test_a_broker_describes_its_health(fleet: Fleet, topic: str) -> None:
    client = KafkaAdminClient(bootstrap_servers=fleet.bootstrap)
    try:
        for read_store in (True, False):
            request = m.DescribeHealthRequest(version=0, read_store=read_store)
            answer = client._manager.run(client._manager.send, request, 2)
            assert (answer.error_code, answer.file_limit, answer.certificates) == (0, FILES, [])
            assert 20 < answer.open_files < FILES
            assert abs(answer.wall_ms - time.time() * 1000) < 5_000
            assert answer.lease_ms > 0
            assert (answer.zoo_keeper_micros > 0) is read_store
            assert 0 <= answer.loop_lag_micros <= answer.loop_lag_max_micros < 60_000_000
    finally:
        client.close()


def test_few_file_descriptors_are_left(fleet: Fleet, topic: str) -> None:
    process = fleet.brokers[1].process
    assert process is not None
    used = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
    clients = [socket.create_connection(("127.0.0.1", fleet.brokers[1].port)) for _ in range(int(FILES * 0.88) - used)]
    try:
        eventually(lambda: ("files", "broker 2") in checks(examined(fleet)[1]), "the descriptors of broker 2 are told")
        code, found = examined(fleet)
        assert code == ERRORS
        (one,) = [one for one in found if one["check"] == "files"]
        assert f"of {FILES} file descriptors are in use" in one["what"]
    finally:
        for client in clients:
            client.close()
    until_fine(fleet)


def test_a_wrong_clock(fleet: Fleet, topic: str) -> None:
    fleet.brokers[2].clock.jump(-7.0)  # type: ignore[attr-defined]
    try:
        code, (one,) = until_told(fleet, ("clock", "broker 3"), options=("--clock-ms", "3000"))
        assert code == WARNINGS
        behind = re.match(r"its clock is (\d+\.\d) s behind", one["what"])
        assert behind is not None
        assert 4 < float(behind[1]) < 10, "less the time that the brokers' answers are apart"
    finally:
        fleet.brokers[2].clock.jump(0.0)  # type: ignore[attr-defined]
    until_fine(fleet)


def test_a_stuck_transaction(fleet: Fleet, topic: str) -> None:
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "transactional.id": "stuck"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, "half", partition=1)
    producer.flush(60)
    eventually(lambda: examined(fleet, "--transaction-s", "1")[1], "the transaction is told")
    code, (one,) = examined(fleet, "--transaction-s", "1")
    assert (code, one["check"], one["where"]) == (WARNINGS, "transaction", "stuck")
    assert "orders:1" in one["what"]
    assert "its producer has not ended it" in one["why"]
    until_fine(fleet)  # a minute is not long for a transaction
    producer.abort_transaction(60)
    until_fine(fleet, "--transaction-s", "0")


def test_a_lagging_group(fleet: Fleet, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": fleet.bootstrap, "group.id": "late", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    eventually(lambda: checks(examined(fleet)[1]) == {("group", "late")}, "the group is told")
    code, (one,) = examined(fleet)
    assert code == WARNINGS
    assert one["what"].startswith("it has no members: 7 records")
    assert "orders:0, committed 3 of 10" in one["why"]
    consumer.commit(offsets=[TopicPartition(topic, 0, 10)], asynchronous=False)
    consumer.close()
    until_fine(fleet)


def test_dangerous_settings(fleet: Fleet, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    risky = {"min.insync.replicas": "3", "unclean.leader.election.enable": "true"}
    admin.create_topics([NewTopic("risky", 1, 3, config=risky)])["risky"].result(60)
    resource = ConfigResource(ResourceType.BROKER, "2", set_config={"log.retention.ms": "5"})
    (altered,) = admin.alter_configs([resource]).values()
    altered.result(60)
    names = ("min.insync.replicas", "unclean.leader.election.enable", "log.retention.ms")
    _, found = until_told(fleet, *(("settings", name) for name in names))
    (differing,) = [one for one in found if one["where"] == "log.retention.ms"]
    assert "5 on broker 2" in differing["why"]
    admin.delete_topics(["risky"])["risky"].result(60)
    (altered,) = admin.alter_configs([ConfigResource(ResourceType.BROKER, "2", set_config={})]).values()
    altered.result(60)
    until_fine(fleet)


def test_a_paused_broker_and_a_killed_one(fleet: Fleet, topic: str) -> None:
    broker = fleet.brokers[2]
    broker.kill()
    code, found = until_told(fleet, ("broker", "broker 3"), ("partitions", "under-replicated"))
    assert code == ERRORS
    (missed,) = [one for one in found if one["check"] == "partitions"]
    assert "lack the replica on broker 3, which is not registered" in missed["why"]
    broker.start()
    broker.wait_ready()
    until_fine(fleet)
    broker.signal(signal.SIGSTOP)
    try:
        assert ("broker", "broker 3") in checks(examined(fleet)[1])
    finally:
        broker.signal(signal.SIGCONT)
    until_fine(fleet)


def test_zookeeper_that_hangs(fleet: Fleet, topic: str) -> None:
    import os

    pid = fleet.zookeeper.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        all_three = {("zookeeper", f"broker {n}") for n in (1, 2, 3)}
        eventually(lambda: all_three <= checks(examined(fleet)[1]), "each broker misses ZooKeeper")
        code, found = examined(fleet)
        assert code == ERRORS
        assert all("ZooKeeper does not answer" in one["what"] for one in found if one["check"] == "zookeeper")
    finally:
        os.kill(pid, signal.SIGCONT)
    until_fine(fleet)
    found = examined(fleet, "--zookeeper-ms", "1")[1]
    assert {one["check"] for one in found} <= {"zookeeper"}


def test_certificates_that_expire_and_files_that_cannot_be_used(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    fleet = TlsFleet(tmp_path / "fleet", certificates)
    certificates.authority.pair("/O=fleet/CN=broker", days=9).store(Path(fleet.store))
    try:
        fleet.start()
        code, found = eventually(
            lambda: examined(fleet), "certificates and nothing else",
            good=lambda look: {one["check"] for one in look[1]} == {"certificate"},
        )  # fmt: skip
        assert code == WARNINGS
        assert len(found) == 4, "one for each listener with TLS"
        assert all(one["what"].startswith(("its certificate expires in 9.0", "its certificate expires in 8.9"))
                   for one in found)  # fmt: skip
        Path(fleet.store).write_text("nothing of the kind")
        eventually(lambda: examined(fleet)[0] == ERRORS, "the damaged file is told")
        refused = [one for one in examined(fleet)[1] if one["severity"] == "error"]
        assert {one["what"] for one in refused} == {"the certificate on disk cannot be used"}
    finally:
        fleet.close()


def test_without_a_fleet_it_says_so() -> None:
    from click.testing import CliRunner

    from fleetlog.brokers.cli.main import cli

    done = CliRunner().invoke(cli, ["doctor", "-b", "127.0.0.1:1", "--timeout", "1"])
    assert done.exit_code == 1
    assert done.stderr.startswith("fleetlog: ")
