"""Whole brokers with a ZooKeeper server: starts that must be refused, crashes, pauses, an ensemble that stops."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from kazoo.client import KazooClient

from tests.support.clients import Confluent, Message
from tests.support.fleet import Broker, Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

client = Confluent()


def _refused(broker: Broker) -> str:
    """Start a broker that must not come up; returns its output."""
    broker.start()
    assert broker.process is not None
    assert broker.process.wait(45) == 1
    return broker.output()


def _controller(fleet: Fleet) -> Broker:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    number = admin.list_topics(timeout=30).controller_id
    return next(broker for broker in fleet.brokers if broker.id == number)


def _values(fleet: Fleet, topic: str, count: int, partition: int = 0) -> list[bytes | None]:
    return [m.value for m in client.consume(fleet.bootstrap, topic, count, partition=partition)]


def _edit(broker: Broker, **settings: object) -> None:
    """Append settings (underscores for dots), replacing lines of the same name."""
    names = {name.replace("_", "."): value for name, value in settings.items()}
    kept = [line for line in broker.config_file.read_text().splitlines() if line.split("=")[0] not in names]
    broker.config_file.write_text("\n".join(kept + [f"{name}={value}" for name, value in names.items()]) + "\n")


@pytest.fixture
def one(tmp_path: Path):  # type: ignore[no-untyped-def]
    fleet = Fleet(tmp_path, brokers=1)
    yield fleet
    fleet.close()


def test_starts_that_are_refused(one: Fleet, tmp_path: Path) -> None:
    (broker,) = one.brokers
    _edit(broker, zookeeper_connect="127.0.0.1:1")
    assert "127.0.0.1:1" in _refused(broker)
    _edit(broker, zookeeper_connect=one.zookeeper_connect)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", broker.port))
        taken.listen()
        said = _refused(broker)
    assert f"127.0.0.1:{broker.port}" in said
    assert "listeners" in said
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=somebodyelses00000000\n")
    _edit(broker, log_dirs=foreign)
    assert "somebodyelses00000000" in _refused(broker)
    assert sorted(path.name for path in foreign.iterdir()) in (["meta.properties"], [".lock", "meta.properties"])


def test_a_second_broker_with_the_same_id_is_refused(one: Fleet) -> None:
    one.start()
    twin = Broker(one, 1)  # another port, the same id
    _edit(twin, log_dirs=one.directory / "twin")
    said = _refused(twin)
    assert "broker id 1 is in use" in said
    assert one.brokers[0].address in said
    client.produce(one.bootstrap, "still-there", [Message(b"v", partition=0)])


def test_a_clean_stop_needs_no_recovery_and_a_kill_does(one: Fleet) -> None:
    one.start()
    (broker,) = one.brokers
    client.produce(one.bootstrap, "t", [Message(b"%d" % n, partition=0) for n in range(100)])
    assert broker.stop() == 0
    assert (broker.directory / "data" / ".kafka_cleanshutdown").exists()
    broker.start()
    broker.wait_ready()
    assert not (broker.directory / "data" / ".kafka_cleanshutdown").exists()
    assert _values(one, "t", 100) == [b"%d" % n for n in range(100)]
    client.produce(one.bootstrap, "t", [Message(b"after", partition=0)])
    broker.kill()
    broker.start()
    broker.wait_ready()
    assert _values(one, "t", 101)[-1] == b"after"


def test_one_dead_broker_takes_only_its_own_partitions(own_fleet: Fleet) -> None:
    fleet = own_fleet.start()
    client.create_topic(fleet.bootstrap, "spread", 3)
    for partition in range(3):
        client.produce(fleet.bootstrap, "spread", [Message(b"before", partition=partition)])
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    leaders = {p: m.leader for p, m in admin.list_topics("spread", timeout=30).topics["spread"].partitions.items()}
    assert set(leaders.values()) == {1, 2, 3}, "round-robin placement"
    victim = fleet.brokers[0]
    lost = next(p for p, leader in leaders.items() if leader == victim.id)
    victim.kill()
    alive = ",".join(broker.address for broker in fleet.brokers[1:])
    survivor = AdminClient({"bootstrap.servers": alive})
    eventually(
        lambda: survivor.list_topics("spread", timeout=30).topics["spread"].partitions[lost].leader == -1,
        "the dead broker's partition goes offline",
    )
    for partition in set(leaders) - {lost}:
        client.produce(alive, "spread", [Message(b"meanwhile", partition=partition)])
    victim.start()
    victim.wait_ready()
    client.produce(fleet.bootstrap, "spread", [Message(b"after", partition=lost)])
    assert _values(fleet, "spread", 2, lost) == [b"before", b"after"]


def test_a_killed_controller_is_replaced(own_fleet: Fleet) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    fleet = own_fleet.start()
    client.create_topic(fleet.bootstrap, "first")
    old = _controller(fleet)
    old.kill()
    alive = ",".join(broker.address for broker in fleet.brokers if broker is not old)

    def created() -> bool:
        # A short request timeout: librdkafka asks for the controller once, and then waits for that broker.
        admin = AdminClient({"bootstrap.servers": alive})
        try:
            admin.create_topics([NewTopic("second", 2, 1)], request_timeout=2)["second"].result(10)
        except KafkaException as error:
            return "exist" in str(error).lower()
        return True

    eventually(created, "another broker becomes controller and creates a topic")
    survivors = AdminClient({"bootstrap.servers": alive})
    eventually(
        lambda: survivors.list_topics(timeout=30).controller_id not in (-1, old.id), "another broker is the controller"
    )
    old.start()
    old.wait_ready()
    assert {"first", "second"} <= client.topics(fleet.bootstrap)
    client.produce(fleet.bootstrap, "first", [Message(b"v", partition=0)])


def test_the_fleet_outlives_its_zookeeper(own_fleet: Fleet) -> None:
    fleet = own_fleet.start()
    client.create_topic(fleet.bootstrap, "t", 3)
    for partition in range(3):
        client.produce(fleet.bootstrap, "t", [Message(b"before", partition=partition)])
    fleet.zookeeper.kill()
    # What is committed stays readable without ZooKeeper, also after every lease has run out.
    time.sleep(8)
    for partition in range(3):
        assert _values(fleet, "t", 1, partition) == [b"before"]
    fleet.zookeeper.restart()
    for broker in fleet.brokers:
        broker.wait_ready()
    for partition in range(3):
        client.produce(fleet.bootstrap, "t", [Message(b"after", partition=partition)])
        assert _values(fleet, "t", 2, partition) == [b"before", b"after"]
    assert all(broker.process is not None and broker.process.poll() is None for broker in fleet.brokers)


def test_a_paused_broker_comes_back_with_a_new_incarnation(own_fleet: Fleet) -> None:
    fleet = own_fleet.start()
    client.create_topic(fleet.bootstrap, "t", 3)
    for partition in range(3):
        client.produce(fleet.bootstrap, "t", [Message(b"before", partition=partition)])
    paused = fleet.brokers[1]
    zookeeper = KazooClient(fleet.zookeeper_connect)
    zookeeper.start()
    try:
        paused.signal(signal.SIGSTOP)
        eventually(lambda: not zookeeper.exists(f"/brokers/ids/{paused.id}"), "ZooKeeper gives the broker up")
        paused.signal(signal.SIGCONT)
    finally:
        zookeeper.stop()
        zookeeper.close()
    eventually(lambda: "incarnation 2" in paused.output(), "the broker registers again")
    paused.wait_ready()
    for partition in range(3):
        client.produce(fleet.bootstrap, "t", [Message(b"after", partition=partition)])
        assert _values(fleet, "t", 2, partition) == [b"before", b"after"]


def test_health_and_metrics(one: Fleet) -> None:
    one.start()
    client.produce(one.bootstrap, "t", [Message(b"v" * 100, partition=0)] * 10)
    base = f"http://127.0.0.1:{one.brokers[0].admin_port}"
    assert urlopen(f"{base}/health/live").read() == b"live\n"
    text = urlopen(f"{base}/metrics").read().decode()
    assert "fleetlog_appended_records_total 10.0" in text
    assert "fleetlog_controller 1.0" in text
    assert 'fleetlog_coordinators{what="groups_partitions"} 0.0' in text
    one.zookeeper.kill()
    from urllib.error import HTTPError

    def unready() -> bool:
        try:
            urlopen(f"{base}/health/ready")
        except HTTPError as error:
            return error.code == 503
        return False

    eventually(unready, "a broker without its lease is not ready")
    assert urlopen(f"{base}/health/live").read() == b"live\n"


def test_a_broker_alone_with_the_defaults_of_a_fleet_says_what_groups_wait_for(one: Fleet) -> None:
    (broker,) = one.brokers
    _edit(broker, offsets_topic_replication_factor=3, transaction_state_log_replication_factor=3)
    one.start()
    client.create_topic(one.bootstrap, "t", 1)
    command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "consume", "t", "--group", "g"]
    command += ["-b", one.bootstrap, "--timeout"]
    ended = subprocess.run([*command, "8"], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 1, ended
    (line,) = [line for line in ended.stderr.splitlines() if "fleetlog:" in line]
    assert "set offsets.topic.replication.factor to the number of brokers" in line
    assert "COORDINATOR_NOT_AVAILABLE" in line
    said = [line for line in broker.log_file.read_text().splitlines() if "__consumer_offsets cannot be created" in line]
    assert len(said) == 1, "at once, and then now and then"
    assert "ERROR" in said[0]
    _edit(broker, offsets_topic_replication_factor=1, transaction_state_log_replication_factor=1)
    broker.stop()
    broker.start()
    broker.wait_ready()
    producer = client.transactional(one.bootstrap, "x")
    producer.begin()
    producer.send("t", Message(b"one"))
    producer.commit()
    ended = subprocess.run([*command, "60", "-n", "1"], capture_output=True, text=True, check=True)
    assert ended.stdout == "one\n"


def test_a_fleet_that_cannot_start_leaves_nothing_running(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 3)
    fleet.brokers[2].config_file.write_text("broker.id=none\n")
    with pytest.raises(AssertionError, match="broker 3 ended with"):
        fleet.start()
    assert [broker.process is not None and broker.process.poll() is not None for broker in fleet.brokers] == [True] * 3
    assert fleet.zookeeper.pid is None
