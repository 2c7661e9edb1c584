"""``fleetlog brokers drain``, ``replace`` and ``unregister`` (UnregisterBroker): plans, and four real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.cli.handing_over import away_from, taken_over, without_source
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.cli.overview import BrokerOverview, Overview, PartitionOverview
from fleetlog.brokers.model import TopicPartition
from tests.cli.shell import Shell
from tests.support.fleet import Fleet
from tests.support.waiting import eventually


def planned(brokers: int, *replicas: tuple[int, ...], dead: int = 0) -> Overview:
    """Brokers 1 to n on hosts of their own; partition i of t has the i-th replicas."""
    found = Overview("c", 1)
    for number in range(1, brokers + 1):
        host = None if number == dead else f"h{number}"
        found.brokers[number] = BrokerOverview(number, host, 9092, domain=f"h{number}")
    for index, listed in enumerate(replicas):
        leader = next((b for b in listed if b != dead), -1)
        isr = tuple(b for b in listed if b != dead)
        found.partitions[TopicPartition("t", index)] = PartitionOverview("t", index, leader, 1, listed, isr)
    return found


@given(st.integers(4, 7), st.integers(1, 3), st.integers(1, 20), st.booleans())
def test_a_drained_broker_keeps_nothing_and_nothing_else_moves(
    count: int, factor: int, partitions: int, dead: bool
) -> None:
    rows = [tuple((index + n) % count + 1 for n in range(factor)) for index in range(partitions)]
    fleet = planned(count, *rows, dead=2 if dead else 0)
    wanted = away_from(fleet, 2)
    stuck = {p.tp for p in without_source(fleet, 2)}
    assert set(wanted) == {tp for tp, p in fleet.partitions.items() if 2 in p.target} - stuck
    assert stuck == ({tp for tp, p in fleet.partitions.items() if p.target == (2,)} if dead else set())
    for tp, after in wanted.items():
        before = fleet.partitions[tp].target
        assert 2 not in after
        assert len(set(after)) == len(after) == factor
        assert set(before) - {2} <= set(after) or factor == 1, "other replicas stay where they are"


def test_too_few_brokers_are_left() -> None:
    with pytest.raises(CliError, match="t-0 has 3 replicas, and 2 other broker"):
        away_from(planned(3, (1, 2, 3)), 3)


def test_a_replacement_takes_each_place() -> None:
    fleet = planned(4, (1, 2), (2, 3), (3, 1), dead=2)
    assert taken_over(fleet, 2, 4) == {TopicPartition("t", 0): (1, 4), TopicPartition("t", 1): (4, 3)}
    with pytest.raises(CliError, match="broker 9 is not alive; there are 1, 3, 4"):
        taken_over(fleet, 2, 9)
    with pytest.raises(CliError, match=r"broker 3 has 1 of the partitions already, such as t-1"):
        taken_over(fleet, 2, 3)


# ---------------------------------------------------------------- on real brokers


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Brokers 1 to 3 run; the fourth joins when the others have replicas."""
    fleet = Fleet(tmp_path_factory.mktemp("draining"), 4)
    try:
        yield fleet.start(3)
    finally:
        fleet.close()


def held(shell: Shell, broker_id: int) -> list[Any]:
    told = shell.json("topics", "describe", "orders")
    return [p for topic in told for p in topic["partitions"] if broker_id in p["replicas"]]


@pytest.mark.zookeeper
@pytest.mark.interop
def test_a_dead_broker_is_replaced_and_another_one_drained(fleet: Fleet) -> None:
    shell = Shell(fleet)
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    admin.create_topics([NewTopic("orders", 4, 2)])["orders"].result(60)
    producer = Producer({"bootstrap.servers": fleet.bootstrap})
    for n in range(200):
        producer.produce("orders", str(n), partition=n % 4)
    assert producer.flush(60) == 0
    fleet.brokers[1].kill()
    fleet.brokers[3].start()
    fleet.brokers[3].wait_ready()
    eventually(lambda: all(p["leader"] != 2 for p in held(shell, 2)), "others lead what broker 2 led")
    before = len(held(shell, 2))
    assert before
    refused = shell.fails("brokers", "unregister", "2")
    assert f"Broker 2 holds replicas of {before} partition(s), such as orders-" in refused
    plan = shell.json("brokers", "replace", "2", "--with", "4", "--plan")
    assert plan["moves"]
    assert not plan["done"]
    assert len(held(shell, 2)) == before, "a plan moves nothing"
    assert "not alive" in shell.run("brokers", "replace", "3", "--with", "2", "--yes", code=1).stderr
    shell.run("brokers", "replace", "2", "--with", "4", "--yes")
    assert (held(shell, 2), len(held(shell, 4))) == ([], before)
    assert "there is no broker 2" in shell.run("brokers", "replace", "2", "--with", "4", code=1).stderr
    shell.run("brokers", "unregister", "2")
    assert "Broker ID 2 is not currently registered" in shell.fails("brokers", "unregister", "2")
    shell.run("brokers", "drain", "3", "--yes")
    assert "Broker 3 is alive: stop it first" in shell.fails("brokers", "unregister", "3")
    assert (held(shell, 3), len(held(shell, 1)), len(held(shell, 4))) == ([], 4, 4)
    consumer = Consumer(
        {"bootstrap.servers": fleet.bootstrap, "group.id": "all", "auto.offset.reset": "earliest"}
    )  # fmt: skip
    consumer.subscribe(["orders"])
    read: set[bytes] = set()

    def all_read() -> bool:
        for message in consumer.consume(200, 1):
            assert not message.error()
            read.add(message.value())
        return len(read) == 200

    eventually(all_read, "all records are read")
    consumer.close()
    assert "has 3 replicas, and 2 other brokers are alive" in shell.run("brokers", "drain", "4", code=1).stderr
    assert "there is no broker 9" in shell.run("brokers", "drain", "9", code=1).stderr
