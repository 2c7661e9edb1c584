"""A broker that starts with other log directories than it had loses nothing for anybody, and says what is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import Confluent, Message
from tests.support.copies import Cluster
from tests.support.fleet import Broker, Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

client = Confluent()
COUNT = 600


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, default_replication_factor=3, min_insync_replicas=2)
    try:
        yield fleet
    finally:
        fleet.close()


def directories(broker: Broker, *names: str) -> str:
    return "log.dirs=" + ",".join(str(broker.directory / name) for name in names)


def values(fleet: Fleet, topic: str) -> set[int]:
    """The committed values of all partitions."""
    command = [
        sys.executable,
        "-m",
        "fleetlog.brokers.cli.main",
        "consume",
        topic,
        "--from",
        "beginning",
        "--to",
        "end",
    ]
    done = subprocess.run([*command, "-b", fleet.bootstrap], capture_output=True, text=True, check=True)
    return {int(line) for line in done.stdout.split()}


def fill(fleet: Fleet, cluster: Cluster) -> None:
    """A topic of eight partitions, everywhere in sync."""
    cluster.create("t", partitions=8)
    client.produce(fleet.bootstrap, "t", [Message(b"%d" % n, key=b"%d" % n) for n in range(COUNT)], acks="all")
    for partition in range(8):
        cluster.wait_isr("t", {1, 2, 3}, partition)


@pytest.mark.parametrize("way", ["taken out", "not mounted"])
def test_what_was_committed_is_there_after_a_stop_of_all(fleet: Fleet, way: str) -> None:
    one, two, three = fleet.brokers
    for broker in fleet.brokers:
        broker.start(*([directories(two, "a", "b")] if broker is two else []))
    for broker in fleet.brokers:
        broker.wait_ready()
    cluster = Cluster(fleet)
    fill(fleet, cluster)
    for broker in (one, three, two):
        assert broker.stop() == 0
    assert list((two.directory / "b").glob("t-*")), "it holds replicas"
    (two.directory / "b").rename(two.directory / "hidden")
    two.start(directories(two, "a") if way == "taken out" else directories(two, "a", "b"))
    two.wait_ready()
    eventually(lambda: "1 log director(y/ies) that this broker had" in two.output(), "it says what is missing")
    assert str(two.directory / "b") in two.output()
    assert ("its volume may not be mounted" in two.output()) == (way == "not mounted")
    one.start()
    three.start()
    for partition in range(8):
        cluster.wait_isr("t", {1, 2, 3}, partition)
    assert values(fleet, "t") == set(range(COUNT))
    assert cluster.lost_commits() == 0
    assert two.stop() == 0
    shutil.rmtree(two.directory / "b", ignore_errors=True)
    (two.directory / "hidden").rename(two.directory / "b")
    two.start(directories(two, "a", "b"))
    two.wait_ready()
    for partition in range(8):
        cluster.wait_isr("t", {1, 2, 3}, partition)
    assert values(fleet, "t") == set(range(COUNT))
    assert cluster.lost_commits() == 0


def test_a_new_topic_is_written_at_once_though_a_broker_lacks_a_directory(tmp_path: Path) -> None:
    """A follower that thought its new log lost would hold acks=all up until it has left the in-sync sets."""
    fleet = Fleet(tmp_path, default_replication_factor=3, min_insync_replicas=2, replica_lag_time_max_ms=600_000)
    try:
        _, two, _ = fleet.brokers
        (two.directory / "b").write_text("no directory")
        two.start(directories(two, "a", "b"))
        two.wait_ready()
        assert two.stop() == 0  # by its next start its incarnation is no other broker's
        for broker in fleet.brokers:
            broker.start(*([directories(two, "a", "b")] if broker is two else []))
        for broker in fleet.brokers:
            broker.wait_ready()
        assert f"log directory {two.directory / 'b'} is not usable" in two.output()
        cluster = Cluster(fleet)
        fill(fleet, cluster)
        assert {cluster.leader("t", partition).id for partition in range(8)} == {1, 2, 3}
        assert sorted(two.directory.glob("*/t-*")) == [two.directory / "a" / f"t-{n}" for n in range(8)]
        assert values(fleet, "t") == set(range(COUNT))
    finally:
        fleet.close()


def test_a_lone_replica_without_its_log_begins_anew_only_by_an_operators_leave(fleet: Fleet) -> None:
    fleet.start()
    cluster = Cluster(fleet)
    cluster.create("t", replicas=1)
    client.produce(fleet.bootstrap, "t", [Message(b"1")], acks="all")
    leader = cluster.leader("t")
    assert leader.stop() == 0
    shutil.rmtree(leader.directory / "data")
    leader.start()
    leader.wait_ready()
    eventually(lambda: "fleetlog topics elect t --partition 0 --unclean" in leader.output(), "it says what to do")
    assert cluster.state("t").leader == -1
    command = [
        sys.executable,
        "-m",
        "fleetlog.brokers.cli.main",
        "topics",
        "elect",
        "t",
        "-p",
        "0",
        "--unclean",
        "--yes",
    ]
    done = subprocess.run([*command, "-b", fleet.bootstrap], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert cluster.leader("t") is leader
    client.produce(fleet.bootstrap, "t", [Message(b"2")], acks="all")
    assert values(fleet, "t") == {2}


def test_a_new_disk_is_accepted_in_place_of_a_lost_one(fleet: Fleet) -> None:
    _, two, _ = fleet.brokers
    for broker in fleet.brokers:
        broker.start(*([directories(two, "a", "b")] if broker is two else []))
    for broker in fleet.brokers:
        broker.wait_ready()
    cluster = Cluster(fleet)
    fill(fleet, cluster)
    assert two.stop() == 0
    held = sorted(path.name for path in (two.directory / "b").glob("t-*"))
    shutil.rmtree(two.directory / "b")
    accept = [sys.executable, "-m", "fleetlog.brokers.cli.main", "broker", str(two.config_file), "--override",
              directories(two, "a", "b"), "--new-directory"]  # fmt: skip
    refused = subprocess.run([*accept, str(two.directory / "a")], capture_output=True, text=True, check=False)
    assert (refused.returncode, "is no new directory" in refused.stderr) == (1, True)
    subprocess.run([*accept, str(two.directory / "b")], check=True)
    two.start(directories(two, "a", "b"))
    two.wait_ready()
    for partition in range(8):
        cluster.wait_isr("t", {1, 2, 3}, partition)
    assert len(sorted((two.directory / "b").glob("t-*"))) >= len(held) - 1, "its replicas are there again"
    assert cluster.lost_commits() == 0


def test_a_replica_that_alone_has_committed_records_keeps_them_until_somebody_decides(fleet: Fleet) -> None:
    """Its disk was not mounted for a while, and others lead since."""
    fleet.start()
    cluster = Cluster(fleet)
    cluster.create("t", min_insync_replicas=1)
    client.produce(fleet.bootstrap, "t", [Message(b"1")], acks="all")
    leader = cluster.leader("t")
    others = [broker for broker in fleet.brokers if broker is not leader]
    for broker in others:
        assert broker.stop() == 0
    cluster.wait_isr("t", {leader.id})
    client.produce(leader.address, "t", [Message(b"2"), Message(b"3")], acks="all")
    assert leader.stop() == 0
    data = leader.directory / "data"
    data.rename(leader.directory / "hidden")
    for broker in fleet.brokers:
        broker.start()
    for broker in fleet.brokers:
        broker.wait_ready()
    cluster.wait_isr("t", {1, 2, 3})
    assert values(fleet, "t") == {1}, "all are back, and none has more"
    client.produce(fleet.bootstrap, "t", [Message(b"4")], acks="all")
    assert leader.stop() == 0
    data.rename(leader.directory / "begun")
    (leader.directory / "hidden").rename(data)
    leader.start()
    leader.wait_ready()
    eventually(
        lambda: "and committed records 1 to 2 are here. To keep them stop broker " in leader.output(), "it stops"
    )
    command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "topics", "describe", "t", "-b", fleet.bootstrap]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "does not follow broker" in told
    assert cluster.lost_commits() == 0
    now_leads = cluster.leader("t")
    for broker in others:
        assert broker.stop() == 0
    elect = [sys.executable, "-m", "fleetlog.brokers.cli.main", "topics", "elect", "t", "--unclean", "--yes"]
    subprocess.run([*elect, "-b", leader.address], check=True)
    assert cluster.leader("t") is leader
    assert now_leads is not leader
    for broker in others:
        broker.start()
    cluster.wait_isr("t", {1, 2, 3})
    assert values(fleet, "t") == {1, 2, 3}
