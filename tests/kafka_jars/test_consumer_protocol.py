"""Groups of the consumer protocol with Java 4.4's KafkaConsumer: members of both protocols, and what ends them."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka_jars.conftest import Tools
from tests.kafka_jars.programs import Program, compiled, read_topic
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop]

PARTITIONS = 6
PATIENCE_S = 120.0
SESSION = {"group_consumer_min_session_timeout_ms": 12_000, "group_consumer_session_timeout_ms": 12_000}
Place = tuple[str, int, int]


@pytest.fixture(scope="module")
def member_classpath(classpath: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(classpath, Path(__file__).parent / "Member.java", tmp_path_factory.mktemp("member"))


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), group_initial_rebalance_delay_ms=0, **SESSION)
    try:
        yield fleet.start()
    finally:
        fleet.close()


class Crowd:
    """Java members of a group, and a producer that never stops meanwhile."""

    def __init__(self, classpath: str, folder: Path, fleet: Fleet, group: str) -> None:
        self.classpath, self.folder, self.fleet, self.group = classpath, folder, fleet, group
        self.admin = AdminClient({"bootstrap.servers": fleet.bootstrap, "log_level": 0})
        self.members: dict[str, Program] = {}
        self.written: set[Place] = set()
        self.values: list[bytes] = []
        self._ended = threading.Event()
        self._producer = threading.Thread(target=self._produce)

    def create(self, topic: str, partitions: int = PARTITIONS) -> None:
        self.admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(60)

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.fleet.bootstrap, "enable.idempotence": True, "linger.ms": 20})

        def written(error: Any, message: Any) -> None:
            assert error is None
            self.written.add((message.topic(), message.partition(), message.offset()))

        while not self._ended.wait(0.02):
            number = len(self.values)
            self.values.append(b"%d" % number)
            producer.produce(self.group, b"%d" % number, partition=number % PARTITIONS, on_delivery=written)
            producer.poll(0)
        assert producer.flush(60) == 0

    def produces(self) -> None:
        self.create(self.group)
        self._producer.start()

    def join(self, name: str, protocol: str, topic: str = "", **settings: str) -> Program:
        own = [f"{key.replace('_', '.')}={value}" for key, value in settings.items()]
        arguments = (self.fleet.bootstrap, self.group, protocol, topic or self.group, *own)
        program = self.members[name] = Program(self.classpath, self.folder / name, "Member", *arguments, heap_mb=128)
        program.start()
        return program

    def described(self) -> Any:
        try:
            return self.admin.describe_consumer_groups([self.group], request_timeout=10)[self.group].result(20)
        except KafkaException:
            return None

    def shares(self) -> list[list[tuple[str, int]]]:
        described = self.described()
        members = described.members if described is not None else ()
        return sorted(
            sorted((tp.topic, tp.partition) for tp in member.assignment.topic_partitions if member.assignment)
            for member in members
        )

    def settled(self, kind: str, counts: list[int]) -> None:
        """Wait until the group is of that kind and stable, and its members have so many partitions each."""

        def reached() -> bool:
            one = self.described()
            if one is None or one.state.name != "STABLE" or one.type.name != kind:
                return False
            shares = [[*member.assignment.topic_partitions] for member in one.members]
            return sorted(map(len, shares)) == counts and len({str(tp) for share in shares for tp in share}) == sum(
                counts
            )

        eventually(reached, f"{kind} {counts}, is {self.shares()}", PATIENCE_S)

    def told(self, name: str) -> list[str]:
        """What a member's listener heard."""
        return re.findall(r"^(?:assigned|revoked|lost) .*$", self.members[name].printed(), re.MULTILINE)

    def committed(self) -> set[Place]:
        wanted = ConsumerGroupTopicPartitions(self.group)
        found = self.admin.list_consumer_group_offsets([wanted])[self.group].result(90)
        return {(tp.topic, tp.partition, offset) for tp in found.topic_partitions for offset in range(tp.offset)}

    def all_is_committed(self) -> None:
        """The producer ends, and the members have committed all that it wrote."""
        self._ended.set()
        self._producer.join()
        eventually(lambda: self.committed() >= self.written, "all is committed", PATIENCE_S)

    def read_all(self) -> None:
        """The members have committed all, and read it, nothing again that was committed."""
        self.all_is_committed()
        got: dict[Place, set[str]] = {}
        done: dict[Place, set[str]] = {}
        for name, program in self.members.items():
            open_: list[Place] = []
            for line in program.printed().splitlines():
                if found := re.fullmatch(r"got (\S+) (\d+) (\d+)", line):
                    open_.append((found[1], int(found[2]), int(found[3])))
                    got.setdefault(open_[-1], set()).add(name)
                elif line == "done":
                    for place in open_:
                        done.setdefault(place, set()).add(name)
                    open_.clear()
                elif line.startswith("again"):
                    open_.clear()
        assert got.keys() == self.written, "each record was read"
        assert not {place: names for place, names in done.items() if len(names) > 1}, "none after it was committed"

    def close(self) -> None:
        self._ended.set()
        for program in self.members.values():
            program.kill()
        if self._producer.ident is not None:
            self._producer.join()


@pytest.fixture
def crowd(member_classpath: str, tmp_path: Path, brokers: Fleet, request: pytest.FixtureRequest) -> Iterator[Crowd]:
    crowd = Crowd(member_classpath, tmp_path, brokers, "java-" + re.sub(r"[^a-z_]", "_", request.node.name[5:]))
    try:
        yield crowd
    finally:
        crowd.close()


COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
EAGER = "org.apache.kafka.clients.consumer.RangeAssignor"


@pytest.mark.parametrize("assignor", [COOPERATIVE, EAGER], ids=["cooperative", "eager"])
def test_migrates(crowd: Crowd, assignor: str) -> None:
    """A rolling upgrade and a rolling downgrade of the consumers, one of whom is killed, while records come."""
    crowd.produces()
    classic = {"partition_assignment_strategy": assignor, "session_timeout_ms": "6000", "heartbeat_interval_ms": "1000"}
    crowd.join("a", "classic", **classic)
    crowd.join("b", "classic", **classic)
    crowd.settled("CLASSIC", [3, 3])
    crowd.join("c", "consumer")
    crowd.settled("CONSUMER", [2, 2, 2])
    crowd.members["a"].stop()
    crowd.settled("CONSUMER", [3, 3])
    crowd.members["b"].kill()
    crowd.join("d", "consumer")
    crowd.settled("CONSUMER", [3, 3])
    crowd.members["c"].stop()
    crowd.join("e", "classic", **classic)
    crowd.settled("CONSUMER", [3, 3])
    crowd.members["d"].stop()
    crowd.settled("CLASSIC", [6])
    crowd.read_all()


def has(told: list[str]) -> int:
    """How many partitions a member has, by what its listener heard."""
    return sum(len(re.findall(r"-\d+", line)) * (1 if line.startswith("assigned") else -1) for line in told)


def test_static_members_and_a_coordinator_that_is_killed(crowd: Crowd) -> None:
    crowd.produces()
    crowd.join("a", "consumer", group_instance_id="i")
    crowd.join("b", "consumer")
    crowd.settled("CONSUMER", [3, 3])
    held = crowd.shares()
    told = eventually(lambda: crowd.told("b"), "it knows all that it has", PATIENCE_S, good=lambda told: has(told) == 3)
    crowd.members["a"].stop()
    assert crowd.shares() == held, "its place is kept"
    crowd.join("a2", "consumer", group_instance_id="i")
    eventually(lambda: "assigned [" in crowd.members["a2"].printed(), "it is back", PATIENCE_S)
    crowd.settled("CONSUMER", [3, 3])
    assert crowd.shares() == held
    assert crowd.told("b") == told, "the other one keeps what it has, and hears nothing"
    broker = crowd.fleet.brokers[crowd.described().coordinator.id - 1]
    broker.kill()
    before = crowd.committed()
    eventually(lambda: len(crowd.committed()) > len(before) + 20, "they go on with another coordinator", PATIENCE_S)
    crowd.settled("CONSUMER", [3, 3])
    broker.start()
    broker.wait_ready()
    crowd.members["b"].stop()
    crowd.settled("CONSUMER", [6])
    crowd.read_all()


def test_a_member_that_pauses_beyond_its_session_has_lost_what_it_had(crowd: Crowd) -> None:
    """Its process stands still while the other member takes over; what it had got and not committed it commits not."""
    crowd.produces()
    paused = crowd.join("a", "consumer").process
    crowd.join("b", "consumer")
    crowd.settled("CONSUMER", [3, 3])
    eventually(lambda: has(crowd.told("a")) == 3, "it knows what it has", PATIENCE_S)
    assert paused is not None
    paused.send_signal(signal.SIGSTOP)
    crowd.settled("CONSUMER", [6])
    before = len(crowd.committed())
    eventually(lambda: len(crowd.committed()) > before + 50, "the other one goes on", PATIENCE_S)
    paused.send_signal(signal.SIGCONT)
    eventually(lambda: "lost [" in crowd.members["a"].printed(), "it hears of it", PATIENCE_S)
    crowd.settled("CONSUMER", [3, 3])
    crowd.read_all()


def test_offsets_in_transactions_copy_each_record_once(crowd: Crowd) -> None:
    """Of two copiers one is killed, then their coordinator; a third joins and moves what they have."""
    crowd.create(f"{crowd.group}-copy")
    crowd.produces()
    crowd.join("a", "consumer", transactional_id="java-a")
    crowd.join("b", "consumer", transactional_id="java-b")
    crowd.settled("CONSUMER", [3, 3])
    before = len(crowd.committed())
    eventually(lambda: len(crowd.committed()) > before + 20, "they copy", PATIENCE_S)
    crowd.members["a"].kill()
    crowd.join("a2", "consumer", transactional_id="java-a")
    crowd.join("c", "consumer", transactional_id="java-c")
    crowd.settled("CONSUMER", [2, 2, 2])
    broker = crowd.fleet.brokers[crowd.described().coordinator.id - 1]
    broker.kill()
    before = len(crowd.committed())
    eventually(lambda: len(crowd.committed()) > before + 20, "they go on with another coordinator", PATIENCE_S)
    broker.start()
    broker.wait_ready()
    crowd.all_is_committed()

    def copied() -> list[Any]:
        return [message.value for message in read_topic(crowd.fleet.bootstrap, f"{crowd.group}-copy")]

    found = eventually(copied, "all is copied", PATIENCE_S, good=lambda values: len(values) >= len(crowd.values))
    assert sorted(found) == sorted(crowd.values), "each record once"


def test_a_pattern_follows_the_topics(crowd: Crowd) -> None:
    topic = crowd.group
    crowd.create(topic, 2)
    crowd.join("a", "consumer", f"~{topic}(-more)?", metadata_max_age_ms="1000")
    crowd.settled("CONSUMER", [2])
    crowd.create(f"{topic}-more", 1)
    crowd.create(f"{topic}-others", 1)
    crowd.settled("CONSUMER", [3])
    assert crowd.shares() == [[(topic, 0), (topic, 1), (f"{topic}-more", 0)]]
    crowd.admin.delete_topics([topic])[topic].result(60)
    crowd.settled("CONSUMER", [1])
    failed = crowd.join("bad", "consumer", "~(")
    eventually(lambda: not failed.alive(), "its pattern is none", PATIENCE_S)
    assert "InvalidRegularExpression" in failed.printed()


TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_kafkas_tool_in_all_its_verbs(crowd: Crowd, kind: str, classpath: str) -> None:
    group, tools = crowd.group, Tools(classpath, crowd.fleet)
    crowd.produces()
    crowd.join("a", kind)
    crowd.settled(kind.upper(), [6])
    eventually(lambda: len(crowd.committed()) > 20, "it has committed", PATIENCE_S)
    named = ("--group", group)
    assert group in tools(TOOL, "--list").split()
    (row,) = [line.split() for line in tools(TOOL, "--list", "--type").splitlines() if group in line]
    assert row == [group, kind.capitalize()]
    assert group in tools(TOOL, "--list", "--type", kind).split()
    assert group not in tools(TOOL, "--list", "--type", "consumer" if kind == "classic" else "classic").split()
    (row,) = [line.split() for line in tools(TOOL, "--list", "--state").splitlines() if group in line]
    assert row == [group, "Stable"]
    rows = [line.split() for line in tools(TOOL, "--describe", *named).splitlines() if f" {group} " in f" {line} "]
    assert sorted(row[2] for row in rows) == list("012345")
    state = tools(TOOL, "--describe", *named, "--state", "--verbose").splitlines()
    assert any("Stable" in line and line.split()[-1] == "1" for line in state), state
    members = tools(TOOL, "--describe", *named, "--members", "--verbose")
    assert members.count(group) >= 2
    assert "0,1,2,3,4,5" in members.replace(" ", "")
    refused = tools(TOOL, "--delete", *named)
    assert "GroupNotEmptyException" in refused
    subscribed = tools(TOOL, "--delete-offsets", *named, "--topic", group)
    assert "GroupSubscribedToTopicException" in subscribed
    crowd.members["a"].stop()
    eventually(lambda: crowd.described().state.name == "EMPTY", "it has left", PATIENCE_S)
    tools(TOOL, *named, "--topic", group, "--reset-offsets", "--to-offset", "5", "--execute")
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(group, 3)])
    assert crowd.admin.list_consumer_group_offsets([wanted])[group].result(30).topic_partitions[0].offset == 5
    tools(TOOL, "--delete-offsets", *named, "--topic", f"{group}:3")
    assert crowd.admin.list_consumer_group_offsets([wanted])[group].result(30).topic_partitions[0].offset < 0
    tools(TOOL, "--delete", *named)
    assert group not in tools(TOOL, "--list").split()
