"""A fleet with two named listeners and a ZooKeeper chroot: clients and brokers each stay on their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import READ_COMMITTED, Confluent, Message
from tests.support.fleet import Fleet
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]


@pytest.fixture
def split_fleet(tmp_path: Path) -> Iterator[tuple[Fleet, dict[int, int]]]:
    """Two brokers with the listener CLIENTS on ``broker.port`` and INSIDE on the port of the second value."""
    fleet = Fleet(tmp_path, brokers=2)
    inside = {}
    for broker in fleet.brokers:
        inside[broker.id] = free_port()
        kept = [line for line in broker.config_file.read_text().splitlines() if not line.startswith(("listen", "zoo"))]
        kept += [
            f"listeners=CLIENTS://127.0.0.1:{broker.port},INSIDE://127.0.0.1:{inside[broker.id]}",
            "listener.security.protocol.map=CLIENTS:PLAINTEXT,INSIDE:PLAINTEXT",
            "inter.broker.listener.name=INSIDE",
            f"zookeeper.connect={fleet.zookeeper_connect}/deep/chroot",
        ]
        broker.config_file.write_text("\n".join(kept) + "\n")
    yield fleet, inside
    fleet.close()


def test_everybody_stays_on_their_own_listener(split_fleet: tuple[Fleet, dict[int, int]]) -> None:
    from confluent_kafka.admin import AdminClient

    fleet, inside = split_fleet
    fleet.start()
    bootstrap = f"127.0.0.1:{inside[1]}"
    for address, ports in (
        (fleet.bootstrap, {b.port for b in fleet.brokers}),
        (bootstrap, set(inside.values())),
    ):
        admin = AdminClient({"bootstrap.servers": address})
        eventually(  # a broker hears of the others a moment later
            lambda admin=admin: {b.port for b in admin.list_topics(timeout=30).brokers.values()},
            f"the brokers' ports are {sorted(ports)}",
            good=lambda found, ports=ports: found == ports,
        )
    # Markers and verification between the brokers go over INSIDE.
    client = Confluent()
    client.create_topic(fleet.bootstrap, "t", 4)
    producer = client.transactional(fleet.bootstrap, "across")
    producer.begin()
    for partition in range(4):
        producer.send("t", Message(b"v", partition=partition))
    producer.commit()
    producer.close()
    for partition in range(4):
        found = client.consume(bootstrap, "t", 1, partition=partition, isolation=READ_COMMITTED)
        assert [m.value for m in found] == [b"v"]
