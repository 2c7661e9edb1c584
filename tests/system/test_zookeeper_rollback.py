"""ZooKeeper restored from an older copy: brokers notice, lead and delete nothing, and say so."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import Confluent, Message
from tests.support.fleet import Fleet
from tests.support.rollback import Copy, repair, repair_plan, wait_refusal
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

client = Confluent()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, brokers=2, log_segment_delete_delay_ms=100)
    try:
        yield fleet.start()
    finally:
        fleet.close()


def _fill(fleet: Fleet, topic: str) -> list[bytes]:
    client.create_topic(fleet.bootstrap, topic, 1)
    values = [b"%s-%d" % (topic.encode(), n) for n in range(50)]
    client.produce(fleet.bootstrap, topic, [Message(value, partition=0) for value in values])
    return values


def _read(fleet: Fleet, topic: str, count: int) -> list[bytes | None]:
    return [message.value for message in client.consume(fleet.bootstrap, topic, count, partition=0)]


def _logs(fleet: Fleet, topic: str) -> list[str]:
    return sorted(path.name for path in fleet.directory.glob(f"broker-*/data/{topic}-*"))


@pytest.mark.parametrize("marks", ["with marks", "without"])
def test_brokers_that_start_with_an_older_zookeeper_refuse(fleet: Fleet, marks: str) -> None:
    """Without the marks, as directories of earlier versions are, the logs' epochs and clean stops tell."""
    values = _fill(fleet, "old")
    before = Copy(fleet, "before")
    for broker in fleet.brokers:
        eventually(broker.caught_up, f"broker {broker.id} is in sync", 60)
        broker.kill()
        broker.start()
        broker.wait_ready()
    client.produce(fleet.bootstrap, "old", [Message(value, partition=0) for value in values])
    values_of_new = _fill(fleet, "new")
    for broker in fleet.brokers:
        assert broker.stop() == 0
    now = Copy(fleet, "now")
    files = sorted(fleet.directory.glob("broker-*/data/cluster-marks.json"))
    assert len(files) == 2
    if marks == "without":
        for file in files:
            file.unlink()
    before.put_back()
    for broker in fleet.brokers:
        broker.start()
    for broker in fleet.brokers:
        wait_refusal(broker, 60)
        said = broker.output()
        assert "ERROR" in said
        assert "ZooKeeper is older than what this broker has seen" in said
        assert "fleetlog cluster repair" in said
        assert "is an older copy" not in said, "the log directory is not to blame"
        assert broker.stop() == 0
    assert len(_logs(fleet, "new")) >= 1
    assert not any("stray" in name or "delete" in name for name in _logs(fleet, "new"))
    now.put_back()
    fleet.start()
    assert _read(fleet, "old", 100) == values * 2
    assert _read(fleet, "new", 50) == values_of_new


def test_running_brokers_notice_that_zookeeper_was_replaced(fleet: Fleet) -> None:
    values = _fill(fleet, "old")
    before = Copy(fleet, "before")
    eventually(lambda: all(broker.caught_up() for broker in fleet.brokers), "all are in sync", 60)
    values_of_new = _fill(fleet, "new")
    for broker in fleet.brokers:
        eventually(lambda broker=broker: client.topics(broker.address), f"broker {broker.id} has seen it", 60,
                   good=lambda topics: "new" in topics)  # type: ignore[misc]  # fmt: skip
    now = Copy(fleet, "now")
    eventually(lambda: all(broker.caught_up() for broker in fleet.brokers), "all are in sync", 60)
    before.put_back()
    for broker in fleet.brokers:
        wait_refusal(broker, 90)
        assert "ZooKeeper is older than what this broker has seen" in broker.output()
    assert not any("stray" in name or "delete" in name for name in _logs(fleet, "new"))
    now.put_back()
    for broker in fleet.brokers:
        broker.wait_ready()
    assert _read(fleet, "old", 50) == values
    assert _read(fleet, "new", 50) == values_of_new


def test_a_broker_that_has_seen_less_and_goes_on_hears_of_it(fleet: Fleet) -> None:
    """Up to the numbers that the other has seen; their znodes tell that they were made again. A repair keeps both."""
    one, two = fleet.brokers
    values = _fill(fleet, "old")
    eventually(one.caught_up, "in sync", 60)
    eventually(lambda: "leading old-0" in one.output(), "it leads")
    one.kill()
    eventually(lambda: "elected controller" in two.output(), "the other is the controller", 60)
    before = Copy(fleet, "before")
    eventually(two.caught_up, "it goes on", 60)
    values_of_new = _fill(fleet, "new")
    assert two.process is not None
    os.kill(two.process.pid, signal.SIGSTOP)
    try:
        before.put_back()
        one.start()
        eventually(lambda: one.output().count("leading old-0"), "it goes on alone", 60, good=lambda n: n == 2)
    finally:
        os.kill(two.process.pid, signal.SIGCONT)
    for broker in (two, one):
        wait_refusal(broker, 90)
    assert not any("stray" in name or "delete" in name for name in _logs(fleet, "new"))
    eventually(lambda: repair_plan(fleet), "both have told what they have", 30)
    assert "done" in repair(fleet, "--execute", "--yes")
    for broker in fleet.brokers:
        broker.wait_ready()
    assert _read(fleet, "new", 50) == values_of_new
    assert _read(fleet, "old", 50) == values


def test_a_repair_brings_zookeeper_and_logs_together(fleet: Fleet) -> None:
    values = _fill(fleet, "old")
    before = Copy(fleet, "before")
    for broker in fleet.brokers:
        eventually(broker.caught_up, f"broker {broker.id} is in sync", 60)
        broker.kill()
        broker.start()
        broker.wait_ready()
    client.produce(fleet.bootstrap, "old", [Message(value, partition=0) for value in values])
    values_of_new = _fill(fleet, "new")
    for broker in fleet.brokers:
        assert broker.stop() == 0
    before.put_back()
    for broker in fleet.brokers:
        broker.start()
    for broker in fleet.brokers:
        wait_refusal(broker, 60)
    plan = eventually(lambda: repair_plan(fleet), "both have told what they have", 30)
    assert "topic new (id " in plan
    assert "old-0: leader epoch" in plan
    assert "nothing was written" in plan
    assert "done" in repair(fleet, "--execute", "--yes")
    for broker in fleet.brokers:
        broker.wait_ready()
        assert "is an older copy" not in broker.output()
    assert _read(fleet, "old", 100) == values * 2
    assert _read(fleet, "new", 50) == values_of_new
    assert client.topic_config(fleet.bootstrap, "new")["retention.ms"] == "-1"
    client.produce(fleet.bootstrap, "old", [Message(b"after", partition=0)])
    assert _read(fleet, "old", 101)[-1] == b"after"
    assert not list(fleet.directory.glob("broker-*/data/*-stray"))
