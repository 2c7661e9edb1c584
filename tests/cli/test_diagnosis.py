"""What facts of a fleet are found to mean, where no real fleet is needed to gather them."""

from __future__ import annotations

import pytest

from fleetlog.brokers.cli.diagnosis import (
    DAY_MS,
    BrokerHealth,
    FleetFacts,
    ListenerCertificate,
    OpenTransaction,
    Severity,
    Thresholds,
    findings_of,
)
from fleetlog.brokers.cli.overview import BrokerOverview, Overview, PartitionOverview
from fleetlog.brokers.model import TopicPartition

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("offsets_s", "told"),
    [
        ([0.4], []),
        ([-7], ["broker 1: its clock is 7.0 s behind, compared with this machine's clock"]),
        ([7], ["broker 1: its clock is 7.0 s ahead, compared with this machine's clock"]),
        ([0, -7], ["broker 2: its clock is 7.0 s behind, compared with the other brokers"]),
        ([7, 0], ["broker 1: its clock is 7.0 s ahead, compared with the other brokers"]),
        ([60, 60, 53], ["broker 3: its clock is 7.0 s behind, compared with the other brokers"]),
    ],
)
def test_the_clock_that_is_wrong_is_named(offsets_s: list[float], told: list[str]) -> None:
    facts = FleetFacts(Overview("fleet", 1), NOW_MS)
    for broker_id, offset_s in enumerate(offsets_s, 1):
        facts.health[broker_id] = BrokerHealth(NOW_MS + int(offset_s * 1000), 1_000, 6_000, 50, -1, ())
    found = [one for one in findings_of(facts, Thresholds()) if one.check == "clock"]
    assert [f"{one.where}: {one.what}, {one.why.partition(';')[0]}" for one in found] == told


def slow_disks(*millis: int) -> list[str]:
    facts = FleetFacts(Overview("fleet", 1), NOW_MS)
    for broker_id, one in enumerate(millis, 1):
        facts.health[broker_id] = BrokerHealth(NOW_MS, 1_000, 6_000, 50, -1, (), one * 1000)
    return [f"{one.where}: {one.what}; {one.why}" for one in findings_of(facts, Thresholds()) if one.check == "disk"]


def test_a_slow_disk_is_named_by_its_broker() -> None:
    assert slow_disks(20, 500, 30) == []
    (told,) = slow_disks(20, 900, 30)
    assert told.startswith("broker 2: its disk is slow: an fsync takes 900 ms; of the last minutes, more than 500 ms;")
    assert told.endswith("the other brokers' disks are fast")
    assert [line.split(";")[0] for line in slow_disks(700, 900)] == [
        "broker 1: its disk is slow: an fsync takes 700 ms", "broker 2: its disk is slow: an fsync takes 900 ms",
    ]  # fmt: skip
    assert slow_disks(-1) == [], "a broker that has not called fsync, or does not tell"


def test_a_loop_that_is_late_is_named() -> None:
    facts = FleetFacts(Overview("fleet", 1), NOW_MS)
    for broker_id, (usual, most) in enumerate([(500, 900), (501, 1_250), (-1, -1)], 1):
        late = {"loop_micros": usual * 1000, "loop_max_micros": most * 1000}
        facts.health[broker_id] = BrokerHealth(NOW_MS, 1_000, 6_000, 50, -1, (), **late)
    found = [f"{one.where}: {one.what}" for one in findings_of(facts, Thresholds()) if one.check == "loop"]
    assert found == ["broker 2: its loop runs 501 ms late, once 1250 ms"]


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ([5e6, 1e5, 1e5], ["t-0: it gets 5.0 MB a second, 96 % of what the 3 partitions of t get"]),
        ([5e6, 0.0], ["t-0: it gets 5.0 MB a second, 100 % of what the 2 partitions of t get"]),
        ([0.9e6, 0.0], []),
        ([5e6], []),
        ([5e6, 3e6, 4e6], []),
        ([1e6, 1e6, 9e6, 1e6], ["t-2: it gets 9.0 MB a second, 75 % of what the 4 partitions of t get"]),
    ],
)
def test_a_hot_partition_gets_many_times_what_the_others_of_its_topic_get(rates: list[float], told: list[str]) -> None:
    facts = FleetFacts(Overview("fleet", 1), NOW_MS)
    facts.rates = {TopicPartition("t", index): rate for index, rate in enumerate(rates)}
    found = [one for one in findings_of(facts, Thresholds()) if one.check == "hot partition"]
    assert [f"{one.where}: {one.what}" for one in found] == told


@pytest.mark.parametrize("examined", [True, False])
def test_a_lack_of_descriptors_is_one_finding(examined: bool) -> None:
    """The broker says it and its figures do; where it does not tell them, its word is enough."""
    broker = BrokerOverview(1, host="127.0.0.1", port=9092, directories=[])
    broker.lacks = ["50 of 54 file descriptors are in use: raise the limit (ulimit -n, LimitNOFILE)"]
    facts = FleetFacts(Overview("fleet", 1, {1: broker}), NOW_MS)
    if examined:
        facts.health[1] = BrokerHealth(NOW_MS, 1_000, 6_000, 51, 54, ())
    (one,) = [one for one in findings_of(facts, Thresholds()) if one.check == "files"]
    assert one.where == "broker 1"
    assert one.what.endswith("of 54 file descriptors are in use")
    assert one.why == "without one no connection is accepted and no segment opened" or not examined


def test_what_lies_aside_is_named_with_the_command_that_removes_it() -> None:
    broker = BrokerOverview(
        1, host="h", port=9092, directories=[], lacks=["2 log(s), 9 bytes, lie aside in /d: u-0, u-1"]
    )
    (told,) = [
        one
        for one in findings_of(FleetFacts(Overview("f", 1, {1: broker}), NOW_MS), Thresholds())
        if one.where == "broker 1"
    ]
    assert (told.severity.name, told.check, told.why) == ("WARNING", "stray", "u-0, u-1")
    assert told.what == "2 log(s), 9 bytes, lie aside in /d"
    assert "fleetlog log strays LOGDIR --remove" in told.todo


def test_a_move_to_a_broker_that_is_away_is_named() -> None:
    facts = FleetFacts(Overview("fleet", 1), NOW_MS)
    facts.overview.brokers[1] = BrokerOverview(1, "h", 9092)
    for index, adding in enumerate([(3,), (1,), (3,), ()]):
        tp = TopicPartition("t", index)
        facts.overview.partitions[tp] = PartitionOverview("t", index, 1, 0, (1, *adding), (1,), adding=adding)
    (told,) = [one for one in findings_of(facts, Thresholds()) if one.check == "move"]
    assert (told.where, told.what) == ("broker 3", "2 moves wait for it, and it is not registered: t-0, t-2")
    assert "--cancel" in told.todo


def certified(left_ms: int) -> tuple[ListenerCertificate, ...]:
    return (ListenerCertificate("SSL", NOW_MS + left_ms, None),)


FINE = BrokerHealth(NOW_MS, 1_000, 6_000, 50, -1, ())


@pytest.mark.parametrize(
    ("health", "told"),
    [
        (FINE._replace(read_micros=0), []),
        (FINE._replace(read_micros=-1), [("zookeeper", "ERROR")]),
        (FINE._replace(read_micros=100_000), []),
        (FINE._replace(read_micros=100_001), [("zookeeper", "WARNING")]),
        (FINE._replace(wall_ms=NOW_MS + 500), []),
        (FINE._replace(wall_ms=NOW_MS - 500), []),
        (FINE._replace(wall_ms=NOW_MS + 501), [("clock", "WARNING")]),
        (FINE._replace(sync_micros=500_000), []),
        (FINE._replace(sync_micros=500_001), [("disk", "WARNING")]),
        (FINE._replace(file_limit=0), []),
        (FINE._replace(file_limit=4_096), []),
        (FINE._replace(file_limit=4_095), [("files", "NOTE")]),
        (FINE._replace(open_files=79_999, file_limit=100_000), []),
        (FINE._replace(open_files=80_000, file_limit=100_000), [("files", "ERROR")]),
        (FINE._replace(certificates=certified(14 * DAY_MS)), []),
        (FINE._replace(certificates=certified(14 * DAY_MS - 1)), [("certificate", "WARNING")]),
        (FINE._replace(certificates=certified(2 * DAY_MS)), [("certificate", "WARNING")]),
        (FINE._replace(certificates=certified(2 * DAY_MS - 1)), [("certificate", "ERROR")]),
    ],
)
def test_where_a_trouble_begins(health: BrokerHealth, told: list[tuple[str, str]]) -> None:
    facts = FleetFacts(Overview("fleet", 1), NOW_MS, {1: health})
    found = [one for one in findings_of(facts, Thresholds()) if one.where.startswith("broker 1")]
    assert [(one.check, one.severity.name) for one in found] == told


def test_a_certificate_that_ends_now_has_expired() -> None:
    for left_ms, what in ((1, "its certificate expires in 0.0 days"), (0, "its certificate expired")):
        facts = FleetFacts(Overview("fleet", 1), NOW_MS, {1: FINE._replace(certificates=certified(left_ms))})
        assert [one.what for one in findings_of(facts, Thresholds()) if one.check == "certificate"] == [what]


@pytest.mark.parametrize("beyond", [0.0, 0.5])
def test_transactions_and_groups_that_are_just_too_late(beyond: float) -> None:
    facts = FleetFacts(Overview("fleet", 1), NOW_MS)
    facts.transactions = [OpenTransaction("x", "Ongoing", 900 + beyond, 60, ("t-0",))]
    part = {"topic": "t", "partition": 0, "lag": 7, "seconds": 600 + beyond, "status": "OK", "committed": 1, "end": 8}
    facts.groups = [{"group": "g", "seconds": 600 + beyond, "status": "OK", "lag": 7, "partitions": [part]}]
    found = [one.where for one in findings_of(facts, Thresholds()) if one.check in ("transaction", "group")]
    assert found == (["x", "g"] if beyond else [])


def test_what_is_wrong_with_the_bucket_is_named() -> None:
    texts = [
        "its bucket is of no use: s3://b was taken from this fleet by the one with cluster id x",
        "the tier of orders-0 rests: s3://b: there are no credentials",
        "it has no bucket, and topics are tiered: see remote.log.storage.system.enable",
    ]
    facts = FleetFacts(Overview("fleet", 1), NOW_MS, idle_tiers=["keyed", "old"])
    facts.overview.brokers[1] = BrokerOverview(1, "h", 1, lacks=texts, directories=[])
    told = findings_of(facts, Thresholds())
    rows = [(row.where, row.what, row.severity) for row in told if row.check == "bucket"]
    assert rows == [("broker 1", text.partition(": ")[0], Severity.ERROR) for text in texts]
    (idle,) = (row for row in told if row.where == "remote.storage.enable")
    assert "2 topics have the flag without effect: keyed, old" in idle.what
    assert "fleetlog bucket enable" in idle.todo
