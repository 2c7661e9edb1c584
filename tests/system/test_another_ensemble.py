"""A fleet moves to a new, empty ZooKeeper: the logs say what it had, and `fleetlog cluster repair` writes it there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from fleetlog.brokers.cli.main import cli
from fleetlog.coordination.ensemble import start_local
from tests.support.clients import READ_COMMITTED, Confluent, Message
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

client = Confluent()
GROUP, SHIFT = "readers", "late-shift"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, default_replication_factor=3, min_insync_replicas=2)
    try:
        yield fleet.start()
    finally:
        fleet.close()


def _repair(fleet: Fleet, *options: str) -> str:
    done = CliRunner().invoke(cli, ["cluster", "repair", str(fleet.brokers[0].config_file), *options])
    return done.output if done.exit_code == 0 else ""


def _told(fleet: Fleet) -> str:
    """The plan, once all brokers have told what they have."""
    plan = _repair(fleet)
    return plan if plan.startswith("brokers that have told what they have: 1, 2, 3\n") else ""


def _move(fleet: Fleet) -> None:
    """Stop all, end their ZooKeeper for good, and start them with one that has never had anything."""
    for broker in fleet.brokers:
        eventually(broker.caught_up, f"broker {broker.id} is in sync", 60)
    for broker in fleet.brokers:
        assert broker.stop(60) == 0
    old = fleet.zookeeper_connect
    fleet.zookeeper.stop()
    fleet.zookeeper = start_local(fleet.directory / "new-zookeeper")
    fleet.zookeeper_connect = fleet.zookeeper.address
    for broker in fleet.brokers:
        text = broker.config_file.read_text()
        broker.config_file.write_text(text.replace(f"connect={old}", f"connect={fleet.zookeeper_connect}"))
        broker.start()


def test_a_fleet_moves_to_a_new_ensemble(fleet: Fleet) -> None:
    """Its producers are new ones: librdkafka may wait for ever for a coordinator that it was told, and send nothing."""
    client.create_topic(fleet.bootstrap, "orders", 2)
    client.create_topic(fleet.bootstrap, "sums", 1)
    values = [b"%d" % n for n in range(60)]
    client.produce(fleet.bootstrap, "orders", [Message(value, partition=n % 2) for n, value in enumerate(values)])
    producer, late = (client.transactional(fleet.bootstrap, name) for name in ("summing", SHIFT))
    producer.begin()
    producer.send("sums", Message(b"first"))
    producer.send_offsets({("orders", 0): 10}, GROUP)
    producer.commit()
    late.begin()
    late.send("sums", Message(b"never"))
    late.send_offsets({("orders", 1): 20}, SHIFT)
    _move(fleet)
    plan = eventually(lambda: _told(fleet), "all have told", 90)
    for topic in ("orders", "sums", "__consumer_offsets", "__transaction_state"):
        assert f"topic {topic} (id " in plan
    assert "it will be empty" not in plan
    assert "done: the brokers register again" in _repair(fleet, "--execute", "--yes")
    for broker in fleet.brokers:
        broker.wait_ready()
    for index in range(2):
        found = client.consume(fleet.bootstrap, "orders", 30, partition=index)
        assert [one.value for one in found] == values[index::2]
    assert client.committed(fleet.bootstrap, GROUP, "orders") == 10
    producer = client.transactional(fleet.bootstrap, "summing")
    producer.begin()
    producer.send("sums", Message(b"second"))
    producer.send_offsets({("orders", 0): 20}, GROUP)
    producer.commit()
    successor = client.transactional(fleet.bootstrap, SHIFT)
    successor.begin()
    successor.send("sums", Message(b"third"))
    successor.send_offsets({("orders", 1): 25}, SHIFT)
    successor.commit()
    found = client.consume(fleet.bootstrap, "sums", 3, isolation=READ_COMMITTED)
    assert [one.value for one in found] == [b"first", b"second", b"third"]
    assert client.committed(fleet.bootstrap, GROUP, "orders") == 20
    assert client.committed(fleet.bootstrap, SHIFT, "orders", 1) == 25
    client.create_topic(fleet.bootstrap, "made-since", 3)
    client.produce(fleet.bootstrap, "made-since", [Message(b"new", partition=1)])
    eventually(lambda: all(broker.caught_up() for broker in fleet.brokers), "all are in sync", 60)
