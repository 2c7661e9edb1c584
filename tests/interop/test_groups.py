"""Consumer groups of stock clients: three members join, one leaves, one is killed; another resumes at the commits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest

from tests.interop.processes import Member
from tests.support.clients import Client, Message
from tests.support.waiting import eventually

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PARTITIONS = 6
WAIT_S = 60.0


@pytest.fixture
def start(bootstrap: str) -> Iterator[Callable[..., Member]]:
    members: list[Member] = []

    def starter(client: Client, topic: str, group: str, instance: str | None = None) -> Member:
        members.append(Member(client.name, bootstrap, topic, group, instance))
        return members[-1]

    yield starter
    for member in members:
        member.process.kill()
        member.process.wait()


def _settled(members: list[Member], quiet_s: float = 4.0) -> None:
    """Wait until there was no assignment for a while: kafka-python's leader joins once more when it learns of
    a fresh topic's partitions again, also without a reason."""
    deadline = time.monotonic() + WAIT_S
    seen, since = [len(member.assignments) for member in members], time.monotonic()
    while time.monotonic() - since < quiet_s:
        time.sleep(0.1)
        now = [len(member.assignments) for member in members]
        if now != seen:
            seen, since = now, time.monotonic()
        assert time.monotonic() < deadline, [member.assignments for member in members]


def _share(members: list[Member], what: str) -> None:
    """Wait until each partition belongs to exactly one of the members, and all of them have some."""
    eventually(lambda: [member.assignment for member in members], what, good=_covered)


def _covered(assignments: list[list[int]]) -> bool:
    return sorted(itertools.chain(*assignments)) == list(range(PARTITIONS)) and all(assignments)


def _write(client: Client, bootstrap: str, topic: str, tag: str) -> set[str]:
    values = {f"{tag}-{n}" for n in range(60)}
    client.produce(
        bootstrap, topic, [Message(v.encode(), partition=n % PARTITIONS) for n, v in enumerate(sorted(values))]
    )
    return values


def test_three_members_join_leave_and_die(
    client: Client, bootstrap: str, fresh: Callable[[str], str], start: Callable[..., Member]
) -> None:
    topic, group = fresh("grouped"), fresh("group")
    client.create_topic(bootstrap, topic, PARTITIONS)
    expected = _write(client, bootstrap, topic, "one")
    members = [start(client, topic, group) for _ in range(3)]
    _share(members, "three members share the partitions")
    expected |= _write(client, bootstrap, topic, "two")

    def read() -> set[str]:
        return {value for member in members for _, _, value in member.records}

    eventually(read, "all records are read by three members", good=lambda values: values == expected)
    members[0].process.terminate()
    _share(members[1:], "two members take over from the one that left")
    expected |= _write(client, bootstrap, topic, "three")
    eventually(read, "all records are read by two members", good=lambda values: values == expected)
    members[1].process.kill()
    _share(members[2:], "one member takes over from the one that died")
    expected |= _write(client, bootstrap, topic, "four")
    eventually(read, "all records are read by the last member", good=lambda values: values == expected)
    seen = [record for member in members for record in member.records]
    # A record may be read twice only around a rebalance, between its read and its commit.
    assert len(seen) - len(set(seen)) <= PARTITIONS * 4


def test_a_restarted_group_resumes_from_its_commits(
    client: Client, bootstrap: str, fresh: Callable[[str], str], start: Callable[..., Member]
) -> None:
    topic, group = fresh("resumed"), fresh("group")
    client.create_topic(bootstrap, topic, PARTITIONS)
    first = _write(client, bootstrap, topic, "one")
    member = start(client, topic, group)
    eventually(
        lambda: {value for _, _, value in member.records},
        "the first run reads all",
        good=lambda values: values == first,
    )
    member.process.terminate()
    member.process.wait(WAIT_S)
    second = _write(client, bootstrap, topic, "two")
    again = start(client, topic, group)
    eventually(
        lambda: {value for _, _, value in again.records},
        "the second run reads what is new",
        good=lambda values: values >= second,
    )
    assert {value for _, _, value in again.records} == second
    assert [client.committed(bootstrap, group, topic, p) for p in range(PARTITIONS)] == [20] * PARTITIONS


def test_a_static_member_comes_back_without_a_rebalance(
    client: Client, bootstrap: str, fresh: Callable[[str], str], start: Callable[..., Member]
) -> None:
    topic, group = fresh("static"), fresh("group")
    client.create_topic(bootstrap, topic, PARTITIONS)
    members = [start(client, topic, group, f"instance-{n}") for n in range(2)]
    _share(members, "two static members share the partitions")
    _settled(members)
    rounds = len(members[0].assignments)
    before = members[1].assignment
    members[1].process.kill()
    members[1].process.wait()
    back = start(client, topic, group, "instance-1")
    eventually(
        lambda: back.assignments,
        "the restarted static member gets its old partitions",
        good=lambda rounds: rounds[-1:] == [before],
    )
    assert len(members[0].assignments) == rounds, "the other member was rebalanced"


def test_share_consumers_fail_at_once(bootstrap: str, fresh: Callable[[str], str]) -> None:
    consumer = confluent_kafka.ShareConsumer({"bootstrap.servers": bootstrap, "group.id": fresh("g")})
    try:
        consumer.subscribe([fresh("t")])
        with pytest.raises(confluent_kafka.KafkaException, match="not supported"):
            consumer.poll(60)
    finally:
        consumer.close()
