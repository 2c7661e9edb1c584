"""``fleet.yaml`` as values, what is refused in it, and what differs from a fleet."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
import yaml

from fleetlog.brokers.cli.fleet_changes import FleetFound, Impossible, TopicFound, differences
from fleetlog.brokers.cli.fleet_file import AclRow, TopicWanted, read_fleet
from fleetlog.brokers.cli.output import CliError

FILE = """
topics:
  orders:
    partitions: 6
    replication: 3
    config: {retention.ms: 604800000, cleanup.policy: [compact, delete], unclean.leader.election.enable: false}
  small:
users:
  alice: {password_env: ALICE, mechanisms: [SCRAM-SHA-256], iterations: 8192}
acls:
  - {principal: "User:alice", topic: orders, pattern: prefixed, allow: [read, Write]}
  - {principal: "User:bob", cluster: true, deny: [Alter], host: 10.0.0.1}
quotas:
  - {user: alice, client_id: <default>, producer_byte_rate: 1048576}
"""
ROWS: list[AclRow] = [
    ("Cluster", "kafka-cluster", "literal", "Deny", "Alter", "User:bob", "10.0.0.1"),
    ("Topic", "orders", "prefixed", "Allow", "Read", "User:alice", "*"),
    ("Topic", "orders", "prefixed", "Allow", "Write", "User:alice", "*"),
]
EMPTY = FleetFound({}, {}, (), {})


def test_the_file_as_values() -> None:
    found = read_fleet(FILE, "fleet.yaml")
    config = {
        "retention.ms": "604800000", "cleanup.policy": "compact,delete", "unclean.leader.election.enable": "false",
    }  # fmt: skip
    assert found.topics == {"orders": TopicWanted(6, 3, config), "small": TopicWanted(None, None, {})}
    assert found.users is not None
    assert found.users["alice"] == (("SCRAM-SHA-256",), 8192, None, "ALICE")
    assert found.acls is not None
    assert sorted(found.acls) == ROWS
    assert found.quotas == {("alice", "<default>", ""): {"producer_byte_rate": 1048576.0}}
    assert read_fleet(json.dumps(yaml.safe_load(FILE)), "fleet.json") == found


def test_a_section_that_is_not_there_is_not_asked_about() -> None:
    assert read_fleet("topics: {}", "f.yaml") == ({}, None, None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topic: {}", "topic: unknown key; did you mean topics?"),
        ("topics: {orders: {partitons: 3}}", "topics.orders.partitons: unknown key; did you mean partitions?"),
        (
            "topics: {orders: {config: {retention.mss: 3}}}",
            "retention.mss: is no setting of a topic; did you mean retent",
        ),
        ("topics: {orders: {config: {retention.ms: soon}}}", "retention.ms='soon'"),
        ("topics: {orders: {config: {retention.ms: {a: 1}}}}", "must be a text, a number"),
        ("topics: {orders: {partitions: 0}}", "0 must be a whole number from 1"),
        ("topics: {orders: {partitions: true}}", "True must be a whole number"),
        ("topics: [orders]", "topics: must be a mapping"),
        ("topics: {1: {}}", "the key 1 must be a text"),
        ("topics: {a: {}, a: {}}", "f.yaml:1: a stands twice"),
        ("topics: {", "no YAML"),
        ("- topics", "the file: must be a mapping"),
        ("users: {alice: {password: secret}}", "password: unknown key; did you mean password_"),
        ("users: {alice: {}}", "give password_file or password_env"),
        ("users: {alice: {password_env: A, mechanisms: [SCRAM-SHA-1]}}", "must be one of SCRAM-SHA-256"),
        ("users: {alice: {password_env: A, iterations: 1}}", "1 must be a whole number from 4096"),
        ("acls: [{principal: 'User:a', allow: [Read]}]", "acls.0: give one of topic, group"),
        ("acls: [{principal: 'User:a', topic: t, group: g, allow: [Read]}]", "acls.0: give one of topic, group"),
        ("acls: [{principal: 'User:a', topic: t}]", "give allow or deny"),
        ("acls: [{principal: 'User:a', topic: t, allow: [Reed]}]", "'Reed' is no operation; did you mean Read?"),
        ("acls: [{principal: alice, topic: t, allow: [Read]}]", "acls.0.principal"),
        ("acls: [{topic: t, allow: [Read]}]", "principal is missing"),
        ("acls: [{principal: 'User:a', cluster: true, pattern: prefixed, allow: [Read]}]", "of the cluster literal"),
        ("quotas: [{producer_byte_rate: 1}]", "give user, client_id or both"),
        ("quotas: [{user: a, ip: 10.0.0.1, producer_byte_rate: 1}]", "give user, client_id or both"),
        ("quotas: [{ip: 10.0.0.1, producer_byte_rate: 1}]", "is no quota of such an entity"),
        ("quotas: [{user: a, producer_byte_rate: -1}]", "-1 must be a number above 0"),
        ("quotas: [{user: a, producer_byte_rate: .nan}]", "nan must be a number above 0"),
        ("quotas: [{user: a, producer_byte_rate: .inf}]", "inf must be a number above 0"),
        ("quotas: [{user: a, producer_byte_rate: 9223372036854775808}]", "must be a number above 0 and below 2^63"),
        ("quotas: [{user: a}]", "names no quota"),
        ("quotas: [{user: a, producer_byte_rat: 1}]", "did you mean producer_byte_rate?"),
        ("quotas: [{user: a, request_percentage: 1}, {user: a, producer_byte_rate: 1}]", "stands twice"),
    ],
)
def test_what_is_wrong_is_refused(text: str, said: str) -> None:
    with pytest.raises(CliError) as found:
        read_fleet(text, "f.yaml")
    assert str(found.value).startswith("f.yaml:")
    assert said in str(found.value)


@pytest.mark.parametrize("name", ["f.yaml", "f.json"])
def test_what_stands_within_itself_too_deeply_is_refused(name: str) -> None:
    with pytest.raises(CliError, match=f"^{name}: lists or mappings stand within each other far too deeply"):
        read_fleet("[" * 100_000 + "]" * 100_000, name)


def test_an_empty_fleet_gets_all_of_it() -> None:
    lines = [str(one) for one in differences(read_fleet(FILE, "f.yaml"), EMPTY, False)]
    assert lines == [
        (
            "+ topic orders: 6 partitions, 3 replicas, retention.ms=604800000, cleanup.policy=compact,delete,"
            " unclean.leader.election.enable=false"
        ),
        "+ topic small: default partitions, default replicas",
        "+ user alice: SCRAM-SHA-256 with 8192 iterations",
        "+ acl: Deny Alter on literal Cluster kafka-cluster for User:bob from 10.0.0.1",
        "+ acl: Allow Read on prefixed Topic orders for User:alice",
        "+ acl: Allow Write on prefixed Topic orders for User:alice",
        "+ quota of user alice, client id <default>: producer_byte_rate=1048576",
    ]


def fleet(partitions: int = 6, factor: int = 3, rows: list[AclRow] = ROWS, **config: str) -> FleetFound:
    given: Mapping[str, str] = {
        "retention.ms": "604800000", "cleanup.policy": "compact,delete", "unclean.leader.election.enable": "false",
    }  # fmt: skip
    own = dict(given) | {name.replace("_", "."): text for name, text in config.items()}
    topics = {"orders": TopicFound(partitions, frozenset({factor}), own), "small": TopicFound(1, frozenset({1}), {})}
    quotas = {
        ("alice", "<default>", ""): {"producer_byte_rate": 1048576.0},
        ("bob", "", ""): {"request_percentage": 5.0},
    }
    return FleetFound(topics, {"alice": {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 4096}}, rows, quotas)


def test_a_fleet_that_has_it_all_needs_nothing() -> None:
    wanted = read_fleet(FILE, "f.yaml")
    assert differences(wanted, fleet(), True) == []
    assert differences(wanted, fleet(unclean_leader_election_enable="FALSE"), True) == []


def test_differences_are_told() -> None:
    wanted = read_fleet(FILE, "f.yaml")

    def lines(found: FleetFound, prune: bool = False) -> list[str]:
        return [str(one) for one in differences(wanted, found, prune)]

    assert lines(fleet(4)) == ["~ topic orders: 6 partitions instead of 4"]
    assert lines(fleet(retention_ms="1")) == ["~ topic orders: retention.ms=604800000 instead of 1"]
    (fewer,), (replicas,) = differences(wanted, fleet(9), False), differences(wanted, fleet(factor=2), False)
    assert isinstance(fewer, Impossible)
    assert isinstance(replicas, Impossible)
    assert "3 replicas instead of 2: move replicas with" in str(replicas)
    other: list[AclRow] = [
        ("Group", "g", "literal", "Allow", "Read", "User:alice", "*"),
        ("Group", "g", "literal", "Allow", "Read", "User:carol", "*"),
    ]
    assert lines(fleet(rows=[*ROWS, *other])) == []
    assert lines(fleet(rows=[*ROWS, *other]), True) == ["- acl: Allow Read on literal Group g for User:alice"]
    throttled = {"leader_replication_throttled_replicas": "*"}
    assert lines(fleet(max_message_bytes="7", **throttled)) == []
    assert lines(fleet(max_message_bytes="7", **throttled), True) == [
        "~ topic orders: max.message.bytes=its default instead of 7"
    ]
    more = fleet()
    more.quotas["alice", "<default>", ""]["request_percentage"] = 5.0  # type: ignore[index]
    assert lines(more) == []
    assert lines(more, True) == ["- quota of user alice, client id <default>: request_percentage=5"]
