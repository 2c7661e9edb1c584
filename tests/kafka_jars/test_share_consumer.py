"""Share groups with Java 4.4's KafkaShareConsumer: members that are killed or stand still; leaders end."""

from __future__ import annotations

import re
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.cli.shell import Shell
from tests.kafka_jars.programs import Program, compiled
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop]

PARTITIONS = 3
PATIENCE_S = 120.0
SETTINGS = {
    "group_share_record_lock_duration_ms": 5_000, "group_share_min_record_lock_duration_ms": 1_000,
    "group_share_heartbeat_interval_ms": 1_000, "group_share_delivery_count_limit": 10,
    "share_coordinator_state_topic_num_partitions": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def member_classpath(classpath: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(classpath, Path(__file__).parent / "ShareMember.java", tmp_path_factory.mktemp("share-member"))


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), **SETTINGS)
    try:
        fleet.start()
        Shell(fleet).run("features", "upgrade", "share.version=2")
        yield fleet
    finally:
        fleet.close()


class Crew:
    """Java members of a share group, and what they have printed."""

    def __init__(self, classpath: str, folder: Path, fleet: Fleet) -> None:
        self._classpath, self._folder, self._fleet = classpath, folder, fleet
        self.name = f"java-{uuid.uuid4()}"
        self.members: dict[str, Program] = {}
        admin = AdminClient({"bootstrap.servers": fleet.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(self.name, PARTITIONS, 3)])[self.name].result(60)
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.GROUP, self.name, incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(60)

    def join(self, member: str) -> Program:
        arguments = (self._fleet.bootstrap, self.name, self.name)
        program = self.members[member] = Program(
            self._classpath, self._folder / member, "ShareMember", *arguments, heap_mb=128
        )
        program.start()
        return program

    def produce(self, what: str, count: int) -> set[str]:
        producer = Producer({"bootstrap.servers": self._fleet.bootstrap, "linger.ms": 20})
        values = [f"{what}-{number}" for number in range(count)]
        for number, value in enumerate(values):
            producer.produce(self.name, value, partition=number % PARTITIONS)
        assert producer.flush(60) == 0
        return set(values)

    def said(self, word: str, *members: str) -> Counter[str]:
        """How often they printed it of each record."""
        printed = "".join(self.members[name].printed() for name in members or self.members)
        return Counter(re.findall(rf"^{word} (\S+)", printed, re.MULTILINE))

    def has(self, members: int) -> None:
        """Wait until all of them have partitions."""

        def joined() -> bool:
            assigned = [
                row["assigned"] for row in Shell(self._fleet).json("groups", "describe", self.name)[0]["members"]
            ]
            return len(assigned) == members and all(assigned)

        eventually(joined, f"{members} have joined", PATIENCE_S)

    def finish(self, values: set[str]) -> None:
        eventually(lambda: values - self.said("done").keys(), "all are done", PATIENCE_S, good=lambda left: not left)

    def close(self) -> None:
        for program in self.members.values():
            program.kill()


@pytest.fixture
def crew(member_classpath: str, tmp_path: Path, brokers: Fleet) -> Iterator[Crew]:
    crew = Crew(member_classpath, tmp_path, brokers)
    try:
        yield crew
    finally:
        crew.close()


def test_members_join_leave_reject_and_give_back(crew: Crew) -> None:
    crew.join("a")
    first = crew.produce("one", 60) | crew.produce("bad", 6) | crew.produce("later", 6)
    crew.finish(first)
    crew.join("b")
    crew.has(2)
    second = crew.produce("two", 300)
    crew.finish(second)
    assert crew.said("got", "b"), "it has its share"
    crew.members["a"].stop()
    crew.finish(crew.produce("three", 30))
    crew.members["b"].stop()
    got = crew.said("got")
    assert {got[value] for value in first | second if not value.startswith("later")} == {1}
    assert {got[f"later-{number}"] for number in range(6)} == {2}
    assert max(crew.said("done").values()) == 1
    assert not crew.said("failed")


def test_what_a_killed_member_had_goes_to_others(crew: Crew) -> None:
    crew.join("a")
    values = crew.produce("one", 600)
    eventually(lambda: crew.said("got"), "it works", PATIENCE_S)
    crew.members["a"].kill()
    crew.join("b")
    crew.finish(values)
    assert max(crew.said("done").values()) == 1, "what was accepted does not come again"
    again = crew.said("got", "b").keys() & crew.said("done", "a").keys()
    assert not again


def test_a_member_that_stands_still_beyond_its_locks_has_lost_its_records(crew: Crew) -> None:
    paused = crew.join("a").process
    values = crew.produce("one", 600)
    eventually(lambda: crew.said("got"), "it works", PATIENCE_S)
    assert paused is not None
    paused.send_signal(signal.SIGSTOP)
    crew.join("b")
    crew.finish(values)
    paused.send_signal(signal.SIGCONT)
    more = crew.produce("two", 60)
    crew.finish(more)
    assert max(crew.said("done").values()) == 1, "what it says too late does not count"


def test_leaders_that_are_killed_lose_no_acknowledgement(crew: Crew, brokers: Fleet) -> None:
    crew.join("a")
    crew.join("b")
    first = crew.produce("one", 300)
    crew.finish(first)
    given = crew.said("got")
    brokers.brokers[0].kill()
    second = crew.produce("two", 300)
    crew.finish(second)
    brokers.brokers[0].start()
    brokers.brokers[0].wait_ready()
    third = crew.produce("three", 30)
    crew.finish(third)
    assert {value: crew.said("got")[value] for value in first} == {value: given[value] for value in first}
