"""The lag of groups as the fleet itself computes it: in its metrics, and by the command line."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.shell import Shell
from tests.support.families import DASHBOARDS, scraped, summed
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper]

INTERVAL_MS = 200
_numbers = itertools.count()


@pytest.fixture(scope="module")
def lagged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("lag"), group_lag_interval_ms=INTERVAL_MS)
    try:
        yield fleet.start()
    finally:
        fleet.close()


@pytest.fixture
def topic(lagged: Fleet) -> str:
    """Three partitions, each led by another broker, with ten records each."""
    name = f"lag-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": lagged.bootstrap})
    admin.create_topics([NewTopic(name, 3, 3)])[name].result(20)
    produce(lagged, name, 10)
    return name


def produce(fleet: Fleet, topic: str, count: int, *partitions: int) -> None:
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "linger.ms": 0})
    for partition in partitions or range(3):
        for n in range(count):
            producer.produce(topic, str(n), partition=partition)
    assert producer.flush(20) == 0


def commit(fleet: Fleet, group: str, topic: str, offset: int, *partitions: int) -> None:
    """As a consumer that was assigned the partitions by hand."""
    consumer = Consumer({"bootstrap.servers": fleet.bootstrap, "group.id": group, "enable.auto.commit": False})
    offsets = [TopicPartition(topic, partition, offset) for partition in partitions or range(3)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def lag(fleet: Fleet, group: str) -> Any:
    found = [one for one in Shell(fleet).json("groups", "lag") if one["group"] == group]
    return found[0] if found else None


def until(fleet: Fleet, group: str, holds: Callable[[Any], bool], what: str) -> Any:
    found: list[Any] = []

    def look() -> bool:
        found[:] = [lag(fleet, group)]
        return found[0] is not None and holds(found[0])

    eventually(look, what)
    return found[0]


def test_records_and_seconds_of_a_group_over_all_leaders(lagged: Fleet, topic: str) -> None:
    group, began = f"of-{topic}", time.monotonic()
    commit(lagged, group, topic, 4)
    shown = until(lagged, group, lambda one: one["lag"] == 18, "18 records are behind the group")
    assert [(row["partition"], row["committed"], row["end"]) for row in shown["partitions"]] == [
        (0, 4, 10), (1, 4, 10), (2, 4, 10),
    ]  # fmt: skip
    begun = shown["seconds"]
    assert 0 < begun < 60
    later = until(lagged, group, lambda one: one["seconds"] > begun + 1.2, "it grows")["seconds"]
    assert later < begun + time.monotonic() - began + 1, "the age of the same record"
    commit(lagged, group, topic, 10)
    shown = until(lagged, group, lambda one: one["lag"] == 0, "the group is at the end")
    assert (shown["seconds"], shown["status"]) == (0.0, "OK")
    sent = time.monotonic()
    produce(lagged, topic, 1, 1)
    shown = until(lagged, group, lambda one: one["lag"] == 1, "one record is behind the group")
    assert shown["worst"] == f"{topic}:1 OK"
    assert shown["seconds"] <= time.monotonic() - sent + 1, "no record from before counts"


def test_records_that_are_deleted_count_no_more_anywhere(lagged: Fleet, topic: str) -> None:
    group, shell = f"deleted-{topic}", Shell(lagged)
    commit(lagged, group, topic, 2)
    admin = AdminClient({"bootstrap.servers": lagged.bootstrap})
    for done in admin.delete_records([TopicPartition(topic, 0, 9)]).values():
        done.result(60)
    shown = until(lagged, group, lambda one: one["lag"] == 17, "1 + 8 + 8 records are behind the group")
    (described,) = shell.json("groups", "describe", group)
    assert 0 <= shown["age_s"] < 60
    assert "age_s" in shell.run("groups", "lag", group).stdout, "a person sees how old it is"
    for rows in (shown["partitions"], described["offsets"]):
        assert [row["lag"] for row in rows] == [1, 8, 8]
    assert described["lag"] == 17

    def counted() -> bool:
        metrics = scraped(lagged)
        of_group = {
            "fleetlog_group_lag_records": "group",
            "kafka_consumergroup_lag": "consumergroup",
            "kafka_consumergroup_lag_sum": "consumergroup",
            "kminion_kafka_consumer_group_topic_lag": "group_id",
        }
        return {summed(metrics, family, **{label: group}) for family, label in of_group.items()} == {17}

    eventually(counted, "all families of metrics count what the commands count")


def test_a_group_of_which_nothing_is_computed_yet_is_named(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 1, group_lag_interval_ms=3_600_000)
    try:
        shell = Shell(fleet.start())
        shell.run("topics", "create", "t")
        shell.run("groups", "reset", "g", "--topic", "t", "--to-latest", "--execute")
        assert "g: not computed yet" in shell.run("groups", "lag", "g").stderr
    finally:
        fleet.close()


def test_a_group_that_stops_and_one_that_stalls(lagged: Fleet, topic: str) -> None:
    stops, stalls = f"stops-{topic}", f"stalls-{topic}"
    commit(lagged, stops, topic, 3)
    found = until(lagged, stops, lambda one: one["status"] == "ERR", "the group counts as stopped")
    assert {row["status"] for row in found["partitions"]} == {"STOP"}
    consumer = Consumer({"bootstrap.servers": lagged.bootstrap, "group.id": stalls, "enable.auto.commit": False})

    def stalled() -> bool:
        consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        one = lag(lagged, stalls)
        return one is not None and [row["status"] for row in one["partitions"]] == ["STALL"]

    eventually(stalled, "a group that commits the same offset again and again counts as stalled")
    consumer.close()
    said = Shell(lagged).lines("groups", "lag", stalls)
    assert "STALL" in said[1]
    eventually(lambda: summed(scraped(lagged), "fleetlog_group_state", group=stops) == 2, "made while somebody scrapes")


def test_dashboards_find_their_series(lagged: Fleet, topic: str) -> None:
    group = f"dashboard-{topic}"
    consumer = Consumer(
        {"bootstrap.servers": lagged.bootstrap, "group.id": group, "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe([topic])
    try:
        eventually(lambda: consumer.poll(0.2) is not None, "the member is assigned")
        consumer.commit(offsets=[TopicPartition(topic, p, 7) for p in range(3)], asynchronous=False)

        def told() -> bool:
            series = scraped(lagged)
            assigned = summed(series, "kminion_kafka_consumer_group_topic_assigned_partitions", group_id=group)
            return assigned == 3 and summed(series, "kafka_consumergroup_lag", consumergroup=group) == 9

        eventually(told, "the group is in the metrics")
        series = scraped(lagged)
    finally:
        consumer.close()
    for dashboard, asked in DASHBOARDS.items():
        for name, labels in asked.items():
            found = [{label for label, _ in told} for one, told in series if one == name]
            assert found, f"{dashboard}: no {name}"
            assert all(one == labels for one in found), f"{dashboard}: {name} has {found[0]}, not {labels}"
    twice = [key for key, values in series.items() if len(values) > 1 and key[0].startswith("kafka_")]
    assert twice == [], "a sum over all brokers counts these twice"
    assert summed(series, "kafka_brokers") == 3
    assert summed(series, "kafka_topic_partition_current_offset", topic=topic) == 30
    assert summed(series, "kafka_topic_partition_under_replicated_partition", topic=topic) == 0
    assert summed(series, "kminion_kafka_consumer_group_members", group_id=group) == 1
    assert summed(series, "kminion_kafka_consumer_group_offset_commits_total", group_id=group) == 3
    assert summed(series, "kminion_kafka_topic_high_water_mark_sum", topic_name=topic) == 30


def test_the_page_is_what_prometheus_reads(lagged: Fleet) -> None:
    import urllib.request

    for broker in lagged.brokers:
        url = f"http://127.0.0.1:{broker.admin_port}/metrics"
        page = eventually(  # it is made after each round: also after the first one
            lambda url=url: urllib.request.urlopen(url, timeout=10).read().decode(), "there was a round", 60,
            good=lambda page: "kminion_exporter_up" in page,
        )  # fmt: skip
        families = {family.name: family.type for family in text_string_to_metric_families(page)}
        assert families["kminion_exporter_up"] == "gauge"
        assert len(families) == len([line for line in page.splitlines() if line.startswith("# TYPE")])


def test_another_coordinator_goes_on(lagged: Fleet, topic: str) -> None:
    group = f"moves-{topic}"
    commit(lagged, group, topic, 4)
    until(lagged, group, lambda one: one["lag"] == 18, "18 records are behind the group")
    coordinator = lag(lagged, group)["coordinator"]
    broker = lagged.brokers[coordinator - 1]
    broker.stop()
    found = until(
        lagged, group, lambda one: one["coordinator"] != coordinator and one["lag"] == 18, "another broker tells it"
    )
    assert found["seconds"] > 0
    broker.start()
    broker.wait_ready()


def test_off_costs_and_tells_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    fleet = Fleet(tmp_path_factory.mktemp("off"), 1, group_lag_interval_ms=0)
    try:
        fleet.start()
        said = Shell(fleet).run("groups", "lag").stderr
        assert "group.lag.interval.ms is 0" in said
        assert not [name for name, _ in scraped(fleet) if name.startswith(("kafka_", "kminion_"))]
    finally:
        fleet.close()
