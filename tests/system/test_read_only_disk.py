"""A log directory that the system remounts read-only under a running broker, as ext4 does after an error."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import Client, Confluent, Message
from tests.support.copies import Cluster
from tests.support.fleet import Broker, Fleet
from tests.support.needs import needs_mounts
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

client: Client = Confluent()
PARTITIONS = 12
ROUND = 60


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(
        tmp_path, default_replication_factor=3, min_insync_replicas=2, auto_leader_rebalance_enable="false",
        log_flush_offset_checkpoint_interval_ms=1000,
    )  # fmt: skip
    try:
        yield fleet
    finally:
        fleet.close()


class Disks:
    """Two log directories of a broker, the second a mount in a namespace of the broker's own, which needs no root."""

    def __init__(self, broker: Broker) -> None:
        needs_mounts()
        self._broker = broker
        self.first, self.second = broker.directory / "a", broker.directory / "b"
        self.second.mkdir()

    def start(self, *, writable: bool) -> None:
        broker = self._broker
        mount = f'{self._mount(writable)} && exec "$@"'
        broker.within = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
        broker.start(f"log.dirs={self.first},{self.second}")
        broker.wait_ready()

    def remount_read_only(self) -> None:
        """What is opened from now on is read-only; the system lets no mount go while files are open for writing."""
        assert self._broker.process is not None
        inside = ["nsenter", "--preserve-credentials", "--user", "--mount", "--target", str(self._broker.process.pid)]
        subprocess.run([*inside, "sh", "-c", self._mount(writable=False)], check=True)

    def _mount(self, writable: bool) -> str:
        path = shlex.quote(str(self.second))
        read_only = f" && mount -o remount,bind,ro,nosuid,nodev,noexec {path}"
        return f"mount --bind {path} {path}" + ("" if writable else read_only)

    def partitions(self, directory: Path) -> set[int]:
        """The partitions of the topic whose log is there."""
        return {int(path.name[2:]) for path in directory.glob("t-*") if path.name[2:].isdecimal()}


def leaders(cluster: Cluster) -> dict[int, int]:
    state = {partition: cluster.state("t", partition) for partition in range(PARTITIONS)}
    return {partition: found.leader if found else -1 for partition, found in state.items()}


def command(fleet: Fleet, *words: str) -> str:
    line = [sys.executable, "-m", "fleetlog.brokers.cli.main", *words, "-b", fleet.bootstrap]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


def troubles(fleet: Fleet) -> list[Any]:
    return list(json.loads(command(fleet, "cluster", "describe", "--json"))["troubles"])


def test_a_directory_that_becomes_read_only_costs_no_record(fleet: Fleet) -> None:
    one, two, three = fleet.brokers
    disks = Disks(two)
    one.start()
    three.start()
    disks.start(writable=True)
    for broker in (one, three):
        broker.wait_ready()
    cluster = Cluster(fleet)
    cluster.create("t", partitions=PARTITIONS)
    sent = 0

    def send() -> None:
        nonlocal sent
        rows = [Message(b"%d" % n, key=b"%d" % n) for n in range(sent, sent + ROUND)]
        client.produce(fleet.bootstrap, "t", rows, acks="all")
        sent += ROUND

    def wait_in_sync(partitions: set[int], members: set[int]) -> None:
        for partition in partitions:
            cluster.wait_isr("t", members, partition)

    wait_in_sync(set(range(PARTITIONS)), {1, 2, 3})
    send()
    whole, failed = disks.partitions(disks.first), disks.partitions(disks.second)
    led = {partition for partition, leader in leaders(cluster).items() if leader == 2}
    assert led & whole
    assert led & failed

    disks.remount_read_only()
    send()
    wait_in_sync(failed, {1, 3})
    eventually(lambda: not {p for p, leader in leaders(cluster).items() if leader in (-1, 2)} & failed, "they move")
    assert {p for p, leader in leaders(cluster).items() if leader == 2} == led & whole, "the other directory serves"
    wait_in_sync(whole, {1, 2, 3})
    assert "Read-only file system" in two.output()
    found = troubles(fleet)
    assert any(trouble["broker"] == 2 and str(disks.second) in str(trouble) for trouble in found), found
    send()

    assert two.stop() == 0
    send()
    disks.start(writable=False)
    wait_in_sync(whole | failed, {1, 2, 3})
    assert f"log directory {disks.second} is not usable" in two.output()
    assert disks.partitions(disks.first) == whole | failed, "what others have is copied to the directory that is left"
    send()

    assert two.stop() == 0
    disks.start(writable=True)
    wait_in_sync(whole | failed, {1, 2, 3})
    send()
    assert not disks.partitions(disks.first) & disks.partitions(disks.second), "older copies are put aside"
    read = command(fleet, "consume", "t", "--from", "beginning", "--to", "end").split()
    assert {int(value) for value in read} == set(range(sent))
    told = [str(trouble["trouble"]) for trouble in troubles(fleet) if str(disks.second) in str(trouble)]
    assert [text.split(",")[0] for text in told] == [f"{len(failed)} log(s)"], told
    assert "lie aside" in told[0], "the directory serves again, and what is left is that its older copies are there"
    assert cluster.lost_commits() == 0
    assert cluster.mistakes() == []
