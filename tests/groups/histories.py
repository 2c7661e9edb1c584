"""Random histories of groups: what their clients do, step by step."""

from __future__ import annotations

from hypothesis import strategies as st

from fleetlog.brokers.groups.records import CommittedOffset
from fleetlog.brokers.groups.requests import GroupSettings, Protocol
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.support.group_driver import Client, Driver, commit

SETTINGS = GroupSettings(max_size=4, offsets_retention_ms=120_000, offsets_retention_check_interval_ms=10_000)
GROUPS = ("g", "h")

steps = st.one_of(
    st.tuples(st.sampled_from(["join", "sync", "leave", "forget", "again", "resubscribe"]), st.integers(0, 5)),
    st.tuples(st.just("commit"), st.integers(0, 5)),
    st.tuples(st.just("transact"), st.integers(0, 5)),
    st.tuples(st.just("simple"), st.integers(0, 1)),
    st.tuples(st.sampled_from(["commit marker", "abort marker"]), st.integers(0, 2)),
    st.tuples(st.sampled_from(["delete group", "delete offsets"]), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.sampled_from([10, 3_000, 7_000, 70_000, 400_000])),
    st.tuples(st.just("fail"), st.just(0)),
    st.tuples(st.just("restart"), st.just(0)),
)


def crowd(driver: Driver) -> list[Client]:
    ranges = (Protocol("range", b"r"), Protocol("sticky", b"s"))
    return [
        Client(driver, "a", protocols=ranges),
        Client(driver, "b", session_ms=6_000),
        Client(driver, "s", instance_id="s-1", protocols=ranges),
        Client(driver, "t", instance_id="s-1"),
        Client(driver, "old", version=3, rebalance_ms=20_000),
        Client(driver, "h", group="h"),
    ]


def perform(driver: Driver, clients: list[Client], what: str, number: int) -> Driver:
    client = clients[number % len(clients)]
    group = GROUPS[number % 2]
    offsets = {TopicPartition("t", number): CommittedOffset(number)}
    match what:
        case "join":
            client.join()
        case "sync":
            client.sync({c.member_id: c.name.encode() for c in clients})
        case "leave":
            client.leave()
        case "forget":
            client.member_id = ""
        case "again":
            client.joins += 10
            client.member_id = ""
            client.join()
        case "resubscribe":
            client.protocols = (Protocol("range", b"new"),)
            client.join()
        case "commit":
            client.commit(number)
        case "transact":
            client.commit(number, partition=number, anonymous=number % 2 == 0, producer=(number % 3, 0))
        case "simple":
            commit(driver, group, offsets)
        case "commit marker" | "abort marker":
            driver.marker(number, 0, what == "commit marker")
        case "delete group":
            driver.submit(group, lambda shard, now, ticket: shard.delete_group(group, now, ticket))
        case "delete offsets":
            partitions = tuple(offsets)
            driver.submit(group, lambda shard, now, ticket: shard.delete_offsets(group, partitions, now, ticket))
        case "wait":
            driver.advance(number)
        case "fail":
            driver.fail_appends = ErrorCode.NOT_ENOUGH_REPLICAS
        case "restart":
            driver = driver.restart()
            for each in clients:
                each.driver = driver
    return driver
