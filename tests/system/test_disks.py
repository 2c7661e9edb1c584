"""Brokers on small file systems that fill up: the partition stays writable, and every report names the full disks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.clients import Confluent, Message
from tests.support.copies import Cluster
from tests.support.fleet import Broker, Fleet
from tests.support.small_disk import SmallDisk
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

client = Confluent()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, default_replication_factor=3, min_insync_replicas=2, auto_leader_rebalance_enable="false")
    try:
        yield fleet
    finally:
        fleet.close()


def described(fleet: Fleet) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "fleetlog.brokers.cli.main",
        "cluster",
        "describe",
        "--json",
        "-b",
        fleet.bootstrap,
    ]
    return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def partition(fleet: Fleet) -> Any:
    from confluent_kafka.admin import AdminClient

    topics = AdminClient({"bootstrap.servers": fleet.bootstrap}).list_topics("t", timeout=30).topics
    return topics["t"].partitions[0]


def readiness(broker: Broker, question: str = "ready") -> str:
    try:
        with urlopen(f"http://127.0.0.1:{broker.admin_port}/health/{question}", timeout=5) as answer:
            return str(answer.read().decode())
    except HTTPError as refused:
        return f"{refused.code} {refused.read().decode()}"


def test_a_full_disk_costs_no_writes_and_is_named(fleet: Fleet) -> None:
    disks = {broker.id: SmallDisk(broker) for broker in fleet.brokers}
    brokers = {broker.id: broker for broker in fleet.start().brokers}
    Cluster(fleet).create("t")
    sent = 0

    def send() -> None:
        nonlocal sent
        client.produce(fleet.bootstrap, "t", [Message(b"%d" % (sent + n) + b"." * 900) for n in range(20)], acks="all")
        sent += 20

    send()
    leader = partition(fleet).leader
    disks[leader].fill()
    send()
    eventually(lambda: partition(fleet).leader not in (-1, leader), "another replica leads")
    send()
    assert "has no room" in readiness(brokers[leader])
    told = described(fleet)
    assert told["troubles"][0]["broker"] == leader
    assert "is full" in told["troubles"][0]["trouble"]
    follower = next(b for b in partition(fleet).isrs if b != partition(fleet).leader)
    disks[leader].free()
    eventually(lambda: len(partition(fleet).isrs) == 3, "the broker has room and is in sync again")
    assert readiness(brokers[leader]) == "ready\n"
    disks[follower].fill()
    send()
    eventually(lambda: follower not in partition(fleet).isrs, "the follower left")
    send()
    disks[follower].free()
    eventually(lambda: len(partition(fleet).isrs) == 3, "it is back")
    values = [message.value for message in client.consume(fleet.bootstrap, "t", sent)]
    assert [int(value.rstrip(b".")) for value in values if value] == list(range(sent))
    assert described(fleet)["troubles"] == []


def test_several_full_disks_are_named_and_a_broker_that_lost_its_logs_is_not_caught_up(fleet: Fleet) -> None:
    """A broker whose disk is full serves on, and says so; one that starts again is back when it has all it should."""
    disks = {broker.id: SmallDisk(broker) for broker in fleet.brokers}
    brokers = {broker.id: broker for broker in fleet.start().brokers}
    Cluster(fleet).create("t", partitions=6)
    eventually(lambda: all(broker.caught_up() for broker in brokers.values()), "all are in sync once")
    full = [broker for broker in brokers if broker != 1]

    def in_sync() -> list[set[int]]:
        from confluent_kafka.admin import AdminClient

        topics = AdminClient({"bootstrap.servers": fleet.bootstrap}).list_topics("t", timeout=30).topics
        return [set(one.isrs) for one in topics["t"].partitions.values()]

    def write() -> None:
        rows = [Message(b"." * 900) for _ in range(60)]
        client.produce(fleet.bootstrap, "t", rows, acks=1)

    for broker in full:
        disks[broker].fill()

    def only_one_has_room() -> bool:
        write()
        return in_sync() == [{1}] * 6

    eventually(only_one_has_room, "the full disks' replicas left")
    for broker in full:
        assert "has no room" in readiness(brokers[broker])
        assert readiness(brokers[broker], "caught-up") == "yes\n", "clients of its other disks stay"
    assert readiness(brokers[1], "stoppable").startswith("503 no: too few replicas in sync without this broker")
    assert {one["broker"] for one in described(fleet)["troubles"]} >= set(full)
    lost = brokers[full[0]]
    lost.kill()  # its disk goes with it
    lost.start()
    lost.wait_ready()
    eventually(lost.caught_up, "it has all again")
    assert all(lost.id in members for members in in_sync())
