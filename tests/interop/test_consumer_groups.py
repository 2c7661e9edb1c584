"""Groups of the consumer protocol (KIP-848) with librdkafka: members join, leave, die, come back; coordinators move."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import KafkaAdminClient, MemberToRemove, UpdateFeatureType
from kafka.errors import NoError

import fleetlog.wire.messages as m
from tests.cli.shell import Shell
from tests.interop.processes import PARTITIONS, WAIT_S, Member, committed_once, read_by, shared
from tests.support.fleet import Fleet
from tests.support.harness import Client
from tests.support.waiting import eventually

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.zookeeper]

SETTINGS = {
    "group_consumer_min_session_timeout_ms": 12_000,
    "group_consumer_session_timeout_ms": 12_000,
    "group_consumer_min_heartbeat_interval_ms": 500,
    "group_consumer_heartbeat_interval_ms": 500,
    "group_consumer_assignment_interval_ms": 0,
    "offsets_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 1,
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("consumers"), **SETTINGS).start()
    yield fleet
    fleet.close()


@pytest.fixture
def start(fleet: Fleet) -> Iterator[Callable[..., Member]]:
    members: list[Member] = []

    def starter(topic: str, group: str, instance: str | None = None, client: str = "consumer-protocol") -> Member:
        members.append(Member(client, fleet.bootstrap, topic, group, instance))
        return members[-1]

    yield starter
    for member in members:
        member.process.kill()
        member.process.wait()


def make(fleet: Fleet, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 3) for topic in topics]).values():
        future.result(60)


def write(fleet: Fleet, topic: str, tag: str) -> set[str]:
    values = {f"{topic}-{tag}-{number}" for number in range(60)}
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "enable.idempotence": True})
    for number, value in enumerate(sorted(values)):
        producer.produce(topic, value.encode(), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return values


def kill_each_broker(fleet: Fleet) -> None:
    """SIGKILL: each was the group's coordinator, and leads partitions."""
    for broker in fleet.brokers:
        broker.kill()
        broker.start()
        broker.wait_ready()


def test_a_consumer_fails_at_once_before_the_feature_is_finalized(fleet: Fleet, start: Callable[..., Member]) -> None:
    """Also where its operator goes back; librdkafka would wait for ever for a broker without the API."""
    make(fleet, "early")
    shell = Shell(fleet)
    admin = KafkaAdminClient(bootstrap_servers=fleet.bootstrap)
    try:
        admin.update_features({"group.version": (UpdateFeatureType.SAFE_DOWNGRADE, 0)})
    finally:
        admin.close()

    def served() -> list[int]:
        clients = [Client(broker.port) for broker in fleet.brokers]
        try:
            answers = [
                one.ask(m.ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4)
                for one in clients
            ]
        finally:
            for one in clients:
                one.close()
        return [
            row.max_version_level
            for answer in answers
            for row in answer.finalized_features
            if row.name == "group.version"
        ]

    eventually(served, "no broker serves it", good=lambda levels: not levels)
    consumer = Consumer({"bootstrap.servers": fleet.bootstrap, "group.id": "early", "group.protocol": "consumer"})
    try:
        consumer.subscribe(["early"])
        found = consumer.poll(60)
        assert found is not None, "the consumer waits without a word"
        assert "not supported" in found.error().str()
        assert found.error().code() == confluent_kafka.KafkaError._FATAL
    finally:
        consumer.close()
    assert shell.json("features", "upgrade")["features"]["group.version"] == 1
    read_by([start("early", "early")], write(fleet, "early", "one"), "it is served once it is finalized")


def test_members_join_leave_and_die_while_coordinators_move(fleet: Fleet, start: Callable[..., Member]) -> None:
    make(fleet, "grouped")
    expected = write(fleet, "grouped", "one")
    members = [start("grouped", "g")]
    read_by(members, expected, "the first member reads all")
    members += [start("grouped", "g") for _ in range(2)]
    shared(members, "three members share the partitions")
    expected |= write(fleet, "grouped", "two")
    read_by(members, expected, "three members read all")
    members[0].process.terminate()
    shared(members[1:], "two members take over from the one that left")
    kill_each_broker(fleet)
    expected |= write(fleet, "grouped", "three")
    read_by(members, expected, "two members read all behind the killed coordinators")
    members[1].process.kill()
    shared(members[2:], "one member takes over from the one that died")
    expected |= write(fleet, "grouped", "four")
    read_by(members, expected, "the last member reads all")
    committed_once(members)


def test_a_member_that_sleeps_beyond_its_session_comes_back(fleet: Fleet, start: Callable[..., Member]) -> None:
    make(fleet, "sleepy")
    expected = write(fleet, "sleepy", "one")
    members = [start("sleepy", "z"), start("sleepy", "z")]
    shared(members, "two members share the partitions")
    members[0].process.send_signal(signal.SIGSTOP)
    shared(members[1:], "the other takes over")
    expected |= write(fleet, "sleepy", "two")
    members[0].process.send_signal(signal.SIGCONT)
    shared(members, "it is fenced, and joins again")
    expected |= write(fleet, "sleepy", "three")
    read_by(members, expected, "nothing is lost")
    committed_once(members)


def test_a_static_member_that_restarts_moves_nobody(fleet: Fleet, start: Callable[..., Member]) -> None:
    make(fleet, "steady")
    first, other = start("steady", "s", "one"), start("steady", "s", "two")
    shared([first, other], "two static members share the partitions")
    had, moves = first.assignment, len(other.assignments)
    first.process.terminate()
    first.process.wait(60)
    again = start("steady", "s", "one")
    eventually(lambda: again.assignment, "it has what it had", good=lambda assigned: assigned == had, timeout_s=WAIT_S)
    assert len(other.assignments) == moves


def test_a_pattern_gets_topics_that_are_made_later(fleet: Fleet, start: Callable[..., Member]) -> None:
    make(fleet, "news-a")
    expected = write(fleet, "news-a", "one")
    member = start("^news-.*", "p")
    read_by([member], expected, "the topic that is there is read")
    make(fleet, "news-b")
    expected |= write(fleet, "news-b", "one")
    read_by([member], expected, "the one that comes is read, too")


def test_offsets_in_transactions_of_members_copy_each_record_once(fleet: Fleet, start: Callable[..., Member]) -> None:
    make(fleet, "from", "from-copy")
    expected = write(fleet, "from", "one")
    copiers = [start("from", "t", name, client="copier") for name in ("x", "y")]
    eventually(lambda: len(copiers[0].records) + len(copiers[1].records), "some are copied", timeout_s=WAIT_S)
    expected |= write(fleet, "from", "two")
    copiers[0].process.kill()
    expected |= write(fleet, "from", "three")
    copiers.append(start("from", "t", "x", client="copier"))
    kill_each_broker(fleet)
    expected |= write(fleet, "from", "four")
    reader = Consumer({
        "bootstrap.servers": fleet.bootstrap, "group.id": "reader", "isolation.level": "read_committed",
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    })  # fmt: skip
    copied: Counter[str] = Counter()

    def read() -> set[str]:
        for place, name in ((1, "y"), (2, "x")):
            if copiers[place].process.poll() is not None:  # it stood still (see there): another goes on with its work
                copiers[place] = start("from", "t", name, client="copier")
        copied.update(one.value().decode() for one in reader.consume(100, 0.2) if not one.error())
        return set(copied)

    try:
        reader.assign([TopicPartition("from-copy", number, 0) for number in range(PARTITIONS)])
        eventually(read, "all are copied", good=lambda values: values == expected, timeout_s=WAIT_S)
        for copier in copiers[1:]:
            copier.process.terminate()
        for copier in copiers[1:]:
            copier.process.wait(60)
        read()
        assert set(copied.values()) == {1}
    finally:
        reader.close()


def test_it_is_listed_and_its_offsets_are_kept(fleet: Fleet, start: Callable[..., Member]) -> None:
    make(fleet, "listed")
    expected = write(fleet, "listed", "one")
    member = start("listed", "l")
    read_by([member], expected, "all is read")
    shell = Shell(fleet)
    described = eventually(
        lambda: shell.json("groups", "describe", "l")[0], "it is described", good=lambda row: row["lag"] == 0
    )
    assert (described["state"], described["protocol"]) == ("Stable", "uniform")
    assert described["members"][0]["assigned"] == ["listed:0,1,2,3,4,5"]
    assert {row["member"] for row in described["offsets"]} == {described["members"][0]["member"]}
    refused = shell.run("groups", "reset", "l", "--to-earliest", "--execute", code=1)
    assert "NON_EMPTY_GROUP" in refused.stderr
    assert "NON_EMPTY_GROUP" in shell.run("groups", "delete", "l", "--yes", code=1).stderr
    refused = shell.run("groups", "delete", "l", "--topic", "listed", "--yes", code=1)
    assert "GROUP_SUBSCRIBED_TO_TOPIC" in refused.stderr
    (listed,) = (row for row in shell.json("groups", "list", "--type", "Consumer") if row["group"] == "l")
    assert (listed["state"], listed["type"]) == ("Stable", "consumer")
    assert "l" not in {row["group"] for row in shell.json("groups", "list", "--type", "classic")}
    eventually(
        lambda: shell.json("groups", "lag", "l"), "its lag is computed",
        good=lambda rows: [(row["status"], row["lag"]) for row in rows] == [("OK", 0)],
    )  # fmt: skip
    member.process.terminate()
    member.process.wait(60)
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("l")])["l"].result(60)
    assert sum(partition.offset for partition in offsets.topic_partitions) == 60
    again = start("listed", "l")
    more = write(fleet, "listed", "two")
    read_by([again], more, "it goes on where it was")
    removed = KafkaAdminClient(bootstrap_servers=fleet.bootstrap)
    try:
        told = shell.json("groups", "describe", "l")[0]["members"]
        answer = removed.remove_group_members("l", [MemberToRemove(member_id=told[0]["member"])])
    finally:
        removed.close()
    assert list(answer.values()) == [NoError]
    more |= write(fleet, "listed", "three")
    read_by([again], more, "a member that an operator removes comes back")
    again.process.terminate()
    again.process.wait(60)
    shell.run("groups", "delete", "l", "--yes")
    assert "GROUP_ID_NOT_FOUND" in shell.run("groups", "describe", "l", code=1).stderr
