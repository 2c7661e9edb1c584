"""The pages of groups over HTTP: lag in records and in seconds, and Burrow's status, of groups and of partitions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.cli.shell import Shell
from tests.console.served import Served, Visitor
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.zookeeper

INTERVAL_MS = 200


@pytest.fixture(scope="module")
def lagged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three brokers that compute the lag often: a window of ten commits is over soon."""
    fleet = Fleet(tmp_path_factory.mktemp("lagged"), group_lag_interval_ms=INTERVAL_MS)
    try:
        yield fleet.start()
    finally:
        fleet.close()


@pytest.fixture
def guest(lagged: Fleet) -> Iterator[Visitor]:
    console = Served(lagged.bootstrap)
    yield Visitor(console)
    assert console.close() == 0


def commit(fleet: Fleet, group: str, topic: str, offsets: dict[int, int]) -> None:
    """As a consumer that was assigned the partitions by hand."""
    consumer = Consumer({"bootstrap.servers": fleet.bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, p, offset) for p, offset in offsets.items()], asynchronous=False)
    consumer.close()


def test_lag_in_records_and_seconds_and_a_group_that_stopped(lagged: Fleet, guest: Visitor) -> None:
    topic = f"lag-{uuid.uuid4().hex[:8]}"
    ahead, stopped = f"a-{topic}", f"b-{topic}"
    Shell(lagged).run("topics", "create", topic, "-p", "2", "-r", "3")
    producer = Producer({"bootstrap.servers": lagged.bootstrap})
    for partition in (0, 1):
        for n in range(10):
            producer.produce(topic, str(n), partition=partition)
    assert producer.flush(20) == 0
    commit(lagged, ahead, topic, {0: 10, 1: 10})
    commit(lagged, stopped, topic, {0: 10, 1: 4})
    value = eventually(
        lambda: guest.json(f"/group?name={stopped}"), "the group has stopped", good=lambda one: one["status"] == "ERR"
    )
    assert (value["lag"], value["worst"], value["unknown"]) == (6, f"{topic}:1 STOP", [])
    assert 0 <= value["age_s"] < 60
    rows = {one["partition"]: one for one in value["offsets"]}
    assert [(rows[p]["lag"], rows[p]["lag_read_committed"], rows[p]["status"]) for p in (0, 1)] == [
        (0, 0, "OK"), (6, 6, "STOP"),
    ]  # fmt: skip
    assert rows[0]["seconds"] == 0.0
    assert value["seconds"] == rows[1]["seconds"] > 0
    page = guest.page(f"/group?name={stopped}")
    assert "<dt>Lag in seconds</dt>" in page
    for words in (">ERR</span>", ">STOP</span>", ">OK</span>", f"the worst is {topic}:1 STOP"):
        assert words in page, words

    listed = eventually(
        lambda: guest.json(f"/groups?name={topic}"), "both groups are judged",
        good=lambda found: all(one["status"] for one in found["groups"]),
    )  # fmt: skip
    assert [(one["group"], one["lag"], one["status"]) for one in listed["groups"]] == [
        (ahead, 0, "OK"), (stopped, 6, "ERR"),
    ]  # fmt: skip
    assert listed["groups"][0]["seconds"] == 0.0
    assert listed["groups"][1]["seconds"] > 0
    assert (listed["order"], listed["unknown"]) == ("name", [])
    first = guest.json(f"/groups?name={topic}&order=behind")["groups"]
    assert [one["group"] for one in first] == [stopped, ahead]
    assert ">ERR</span>" in guest.page(f"/groups?name={topic}")
    assert guest.get("/groups?order=age").status == 400


@pytest.fixture
def unlagged(tmp_path: Path) -> Iterator[Fleet]:
    """One broker that computes no lag."""
    fleet = Fleet(tmp_path, 1, group_lag_interval_ms=0)
    try:
        yield fleet.start()
    finally:
        fleet.close()


def test_records_are_shown_where_a_coordinator_computes_no_seconds(unlagged: Fleet) -> None:
    shell = Shell(unlagged)
    shell.run("topics", "create", "orders", "-p", "1", "-r", "1")
    shell.run("produce", "orders", stdin="one\ntwo\nthree\n")
    shell.run("consume", "orders", "-g", "billing", "-n", "1")
    console = Served(unlagged.bootstrap)
    try:
        visitor = Visitor(console)
        for order in ("name", "behind"):
            value = visitor.json(f"/groups?order={order}")
            (one,) = value["groups"]
            assert (one["group"], one["lag"], one["seconds"], one["status"]) == ("billing", 2, None, None)
            assert any("group.lag.interval.ms is 0" in text for text in value["unknown"])
        value = visitor.json("/group?name=billing")
        assert (value["lag"], value["seconds"], value["status"], value["age_s"]) == (2, None, None, None)
        assert [(row["lag"], row["seconds"], row["status"]) for row in value["offsets"]] == [(2, None, None)]
        for path in ("/groups", "/group?name=billing"):
            assert "group.lag.interval.ms is 0" in visitor.page(path)
    finally:
        assert console.close() == 0


def test_deleted_records_count_no_more(lagged: Fleet, guest: Visitor) -> None:
    topic = f"lag-{uuid.uuid4().hex[:8]}"
    shell = Shell(lagged)
    shell.run("topics", "create", topic, "-p", "1", "-r", "3")
    shell.run("produce", topic, stdin="".join(f"{n}\n" for n in range(10)))
    commit(lagged, topic, topic, {0: 2})
    shell.run("topics", "trim", topic, "--before", "9", "--yes")
    value = eventually(
        lambda: guest.json(f"/group?name={topic}"), "the coordinator counts anew",
        good=lambda one: [row["lag_read_committed"] for row in one["offsets"]] == [1],
    )  # fmt: skip
    assert (value["lag"], value["lag_by_topic"]) == (1, [{"topic": topic, "lag": 1}])
    assert [one["lag"] for one in guest.json(f"/groups?name={topic}")["groups"]] == [1]
