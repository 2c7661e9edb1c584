"""What a broker of this version writes before anything new is used, met by brokers of the version before; and back.

And a fleet at work that is upgraded, until its groups have moved to the consumer protocol, or share groups serve it.

Processes, not containers: the old version runs from its sources, with kernels that nothing has to compile.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

import fleetlog.wire.messages as m
from fleetlog.wire.errors import ErrorCode
from tests.cli.shell import Shell
from tests.containers.images import PREVIOUS, ROOT
from tests.containers.workload import wait_in_sync
from tests.interop.processes import PARTITIONS, WAIT_S, Member, committed_once, read_by, shared
from tests.support.clients import CLIENTS, Message
from tests.support.fleet import Broker, Fleet
from tests.support.harness import Client
from tests.support.waiting import eventually

pytestmark = pytest.mark.containers

NEWEST = {"transaction.version": 2, "group.version": 1, "fleetlog.schema.version": 3}


TIERLESS = "83a85b9a"
"""A commit whose brokers store what tiered storage is set by without effect."""
KAFKAS = {
    "remote.log.storage.system.enable": "true", "remote.log.manager.task.interval.ms": 500,
    "remote.log.storage.manager.class.name": "io.aiven.kafka.tieredstorage.RemoteStorageManager",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "log.local.retention.bytes": 200_000, "log.retention.check.interval.ms": 500, "log.segment.delete.delay.ms": 0,
}  # fmt: skip
"""A properties file from before, as one has it who comes from Kafka."""


SHARELESS = "0dfdd1e3"
"""The last commit whose brokers know no share groups."""


def tree_of(commit: str, directory: Path) -> Path:
    """The sources of a commit."""
    tree = directory / "old"
    tree.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    return tree


class Mixed:
    """Three brokers, each of the old version or of this one."""

    def __init__(self, fleet: Fleet, old_tree: Path, old_module: str) -> None:
        self.fleet = fleet
        self._old_module = old_module
        self._old = ["env", f"PYTHONPATH={old_tree}", "FLEETLOG_NATIVE=pure"]
        self._topics: dict[str, int] = {}
        self._sent = 0

    def restart(self, number: int, *, old: bool) -> Broker:
        """Stop it cleanly, if it runs, and start it as that version."""
        broker = self.fleet.brokers[number - 1]
        if broker.process is not None and broker.process.poll() is None:
            assert broker.stop() == 0, broker.output()
        broker.module = self._old_module if old else Broker.module
        broker.within = self._old if old else []
        broker.start()
        broker.wait_ready()
        living = [one.address for one in self.fleet.brokers if one.process is not None and one.process.poll() is None]
        for topic, replicas in self._topics.items():
            wait_in_sync(",".join(living), topic, replicas)
        return broker

    def ask(self, number: int, message: Any, version: int) -> Any:
        client = Client(self.fleet.brokers[number - 1].port)
        try:
            return client.ask(message, version)
        finally:
            client.close()

    def finalize(self, number: int, *, dry: bool = False) -> ErrorCode:
        """Ask a broker to finalize the newest levels."""
        return self.update(NEWEST, number, dry=dry)

    def update(self, levels: dict[str, int], number: int = 1, *, kind: int = 1, dry: bool = False) -> ErrorCode:
        """Ask a broker for levels of features; ``kind`` is the type of the change."""
        key = m.UpdateFeaturesRequest.FeatureUpdateKey
        updates = [key(feature=name, max_version_level=level, upgrade_type=kind) for name, level in levels.items()]
        request = m.UpdateFeaturesRequest(timeout_ms=20_000, feature_updates=updates, validate_only=dry)
        answer = self.ask(number, request, 1)
        return next(
            (ErrorCode(row.error_code) for row in answer.results if row.error_code), ErrorCode(answer.error_code)
        )

    def joins(self, group: str) -> ErrorCode:
        """Ask the group's coordinator for a membership of the consumer protocol."""
        find = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        found = eventually(
            lambda: self.ask(1, find, 4).coordinators[0], "the group has a coordinator",
            good=lambda row: row.error_code == 0, timeout_s=60,
        )  # fmt: skip
        beat = m.ConsumerGroupHeartbeatRequest(
            group_id=group, member_id="member", member_epoch=0, rebalance_timeout_ms=60_000,
            subscribed_topic_names=["held"], topic_partitions=[],
        )  # fmt: skip

        def answered() -> ErrorCode:
            return ErrorCode(self.ask(found.node_id, beat, 1).error_code)

        return eventually(
            answered, "the coordinator has loaded", timeout_s=60,
            good=lambda error: error not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR),
        )  # fmt: skip

    def unregister(self, number: int, gone: int) -> ErrorCode:
        return ErrorCode(self.ask(number, m.UnregisterBrokerRequest(broker_id=gone), 0).error_code)

    def make(self, topic: str, *replicas: int, partitions: int = 1, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.fleet.brokers[0].address})
        placed = [list(replicas)] * partitions
        new = NewTopic(topic, partitions, replica_assignment=placed, config={"min.insync.replicas": "2", **config})
        admin.create_topics([new])[topic].result(30)
        self._topics[topic] = len(replicas)

    def written(self, topic: str) -> None:
        """More records reach every replica that is in sync, and all are there."""
        client, bootstrap = CLIENTS[1], self.fleet.brokers[0].address  # which asks for no coordinator of groups
        client.produce(bootstrap, topic, [Message(b"%d" % n) for n in range(self._sent, self._sent + 20)])
        self._sent += 20
        values = [message.value for message in client.consume(bootstrap, topic, self._sent)]
        assert values == [b"%d" % n for n in range(self._sent)]


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Mixed]:
    fleet = Fleet(tmp_path / "fleet", 3)
    try:
        yield Mixed(fleet, tree_of(PREVIOUS, tmp_path), "brokers.cli.main")  # as that version was imported
    finally:
        fleet.close()


@pytest.fixture
def tierless(tmp_path: Path) -> Iterator[Mixed]:
    fleet = Fleet(tmp_path / "fleet", 3, **KAFKAS)
    try:
        yield Mixed(fleet, tree_of(TIERLESS, tmp_path), Broker.module)
    finally:
        fleet.close()


@pytest.fixture
def shareless(tmp_path: Path) -> Iterator[Mixed]:
    fleet = Fleet(tmp_path / "fleet", 3, **{"share.coordinator.state.topic.num.partitions": 4})
    try:
        yield Mixed(fleet, tree_of(SHARELESS, tmp_path), Broker.module)
    finally:
        fleet.close()


def test_what_is_written_before_its_first_use_is_no_harm_to_the_old_version(mixed: Mixed) -> None:
    for number in (1, 2, 3):
        mixed.restart(number, old=True)
    mixed.make("held", 1, 2)
    mixed.written("held")
    assert mixed.fleet.brokers[2].stop() == 0
    mixed.restart(1, old=False)
    assert mixed.finalize(1, dry=True) is ErrorCode.INVALID_UPDATE_VERSION, "broker 2 lacks the level"
    assert mixed.finalize(1) is ErrorCode.INVALID_UPDATE_VERSION
    assert mixed.unregister(1, 2) is ErrorCode.POLICY_VIOLATION, "it holds replicas, whatever its version"
    assert mixed.unregister(1, 3) is ErrorCode.NONE
    assert mixed.unregister(1, 3) is ErrorCode.BROKER_ID_NOT_REGISTERED
    mixed.written("held")
    for number in (2, 1, 3):  # all meet the record of broker 3, itself included
        mixed.restart(number, old=True)
    mixed.make("all", 3, 1, 2)
    mixed.written("held")
    for number in (3, 2, 1):
        mixed.restart(number, old=False)
    assert mixed.unregister(1, 3) is ErrorCode.POLICY_VIOLATION, "it is back, and holds a replica"
    assert mixed.finalize(1, dry=True) is ErrorCode.NONE
    assert mixed.joins("early") is ErrorCode.UNSUPPORTED_VERSION, "an older coordinator would not know the group"
    mixed.restart(3, old=True)  # the last moment for that
    assert mixed.finalize(2) is ErrorCode.INVALID_UPDATE_VERSION
    mixed.restart(3, old=False)
    assert mixed.joins("early") is ErrorCode.UNSUPPORTED_VERSION
    assert mixed.finalize(2) is ErrorCode.NONE
    assert mixed.joins("early") is ErrorCode.NONE
    mixed.written("held")


class Load:
    """A producer that never stops, and members of one group that say what they read and what they have committed."""

    def __init__(self, mixed: Mixed, topic: str) -> None:
        self.topic = topic
        self.bootstrap = ",".join(broker.address for broker in mixed.fleet.brokers)
        self.written: set[str] = set()
        self.members: list[Member] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 20})
        number = 0
        while not self._ended.wait(0.05):
            self.written.add(str(number))
            producer.produce(self.topic, str(number), partition=number % PARTITIONS)
            producer.poll(0)
            number += 1
        assert producer.flush(120) == 0

    def join(self, client: str) -> Member:
        self.members.append(Member(client, self.bootstrap, self.topic, self.topic))
        return self.members[-1]

    def goes_on(self, what: str) -> None:
        """Some more is committed, from now on."""
        before = sum(len(member.commits) for member in self.members)
        eventually(
            lambda: sum(len(member.commits) for member in self.members), what, timeout_s=WAIT_S,
            good=lambda count: count > before + 20,
        )  # fmt: skip

    def kind(self) -> str:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        return str(admin.describe_consumer_groups([self.topic])[self.topic].result(60).type.name)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def close(self) -> None:
        self.end()
        for member in self.members:
            member.process.kill()
            member.process.wait()


def test_a_fleet_at_work_is_upgraded_and_its_group_moves_to_the_consumer_protocol(mixed: Mixed) -> None:
    """One broker goes back in between, and another before the first use: the last moment for that."""
    for number in (1, 2, 3):
        mixed.restart(number, old=True)
    mixed.make("moved", 1, 2, 3, partitions=PARTITIONS)
    load = Load(mixed, "moved")
    try:
        before = [load.join("classic-protocol") for _ in range(2)]
        shared(before, "two members share the partitions")
        for number, old in ((1, False), (1, True), (1, False), (2, False), (3, False), (3, True), (3, False)):
            mixed.restart(number, old=old)
            load.goes_on(f"broker {number} is {'the old one' if old else 'upgraded'}, and the group goes on")
        assert load.kind() == "CLASSIC"
        assert mixed.joins("early") is ErrorCode.UNSUPPORTED_VERSION
        assert mixed.finalize(1) is ErrorCode.NONE
        after = [load.join("consumer-protocol") for _ in range(2)]
        shared([*before, *after], "members of both protocols share the partitions")
        assert load.kind() == "CONSUMER"
        for member in before:
            member.process.terminate()
            load.goes_on("a member of the classic protocol leaves")
        shared(after, "those of the consumer protocol have all")
        load.end()
        read_by(load.members, load.written, "nothing is lost")
        committed_once(load.members)
    finally:
        load.close()


def test_what_was_stored_of_tiers_when_they_had_no_effect_begins_nothing_by_itself(tierless: Mixed) -> None:
    """Upgraded under load, with a step back, one before the first use, and one of the feature itself."""
    mixed, fleet, shell = tierless, tierless.fleet, Shell(tierless.fleet)
    bucket = fleet.directory / "bucket"
    for number in (1, 2, 3):
        mixed.restart(number, old=True)
    flag = {"remote.storage.enable": "true", "segment.bytes": "100000", "local.retention.bytes": "100000"}
    mixed.make("archived", 1, 2, 3, **flag, **{"retention.ms": "-1"})
    mixed.make("keyed", 1, 2, 3, **flag, **{"cleanup.policy": "compact"})
    mixed.make("moved", 1, 2, 3, partitions=PARTITIONS)
    CLIENTS[1].produce(fleet.bootstrap, "archived", [Message(b"%09d" % n + bytes(2_000)) for n in range(500)])
    load = Load(mixed, "moved")

    def tiers_nothing() -> None:
        assert len(list((fleet.brokers[0].directory / "data" / "archived-0").glob("*.log"))) > 5
        assert list(bucket.glob("topics/*")) == []

    try:
        before = [load.join("classic-protocol") for _ in range(2)]
        shared(before, "two members share the partitions")
        for number, old in ((1, False), (1, True), (1, False), (2, False), (3, False)):
            broker = mixed.restart(number, old=old)
            assert old or "has no effect without fleetlog.bucket.url" in broker.output()
            load.goes_on(f"broker {number} is {'the old one' if old else 'upgraded'}, and the group goes on")
        tiers_nothing()
        for broker in fleet.brokers:
            with broker.config_file.open("a") as properties:
                properties.write(f"fleetlog.bucket.url=file://{bucket}\n")
            mixed.restart(broker.id, old=False)
        tiers_nothing()
        assert "archived, keyed" in shell.fails("features", "upgrade", "fleetlog.tiering.version=1")
        shell.run("features", "upgrade", "fleetlog.tiering.version=2")
        states = {row["topic"]: row["state"] for row in shell.json("bucket", "enable")}
        assert states["archived"].startswith("waits")
        assert states["keyed"].startswith("compacted")
        load.goes_on("the feature is finalized")
        tiers_nothing()
        assert mixed.update({"fleetlog.tiering.version": 0}, kind=2) is ErrorCode.NONE
        properties_file = fleet.brokers[2].config_file
        with_bucket = properties_file.read_text()
        properties_file.write_text(with_bucket.replace("fleetlog.bucket.url=", "#"))  # which that version refuses
        mixed.restart(3, old=True)  # the last moment for that
        properties_file.write_text(with_bucket)
        mixed.restart(3, old=False)
        shell.run("features", "upgrade", "fleetlog.tiering.version=2")
        tiers_nothing()
        shell.run("bucket", "enable", "archived", "keyed", "--execute")
        eventually(
            lambda: list(bucket.glob("topics/archived.*/0/*.log")), "it is tiered once it is enabled", timeout_s=60
        )
        assert mixed.update({"fleetlog.tiering.version": 0}, kind=2) is ErrorCode.INVALID_UPDATE_VERSION
        assert list(bucket.glob("topics/keyed.*")) == []
        values = [(message.value or b"")[:9] for message in CLIENTS[1].consume(fleet.bootstrap, "archived", 500)]
        assert values == [b"%09d" % n for n in range(500)]
        load.goes_on("a topic is tiered")
        load.end()
        read_by(load.members, load.written, "nothing is lost")
        committed_once(load.members)
    finally:
        load.close()


def accepted(mixed: Mixed, topic: str, count: int, rejects: frozenset[bytes] = frozenset()) -> list[bytes]:
    """What a share consumer of the group ``workers`` gets, until it has accepted so many, or rejected some."""
    settings = {"bootstrap.servers": mixed.fleet.bootstrap, "share.acknowledgement.mode": "explicit"}
    consumer = ShareConsumer({**settings, "group.id": "workers"})
    consumer.subscribe([topic])
    values: list[bytes] = []

    def more() -> int:
        for message in consumer.poll(1.0):
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
            consumer.acknowledge(message, AcknowledgeType.REJECT if values[-1] in rejects else AcknowledgeType.ACCEPT)
        return len(values)

    eventually(more, "share consumers are served", timeout_s=WAIT_S, good=lambda some: some >= count)
    assert not any(consumer.commit_sync(60.0).values())
    consumer.close()
    return values


def test_a_fleet_at_work_is_upgraded_and_gets_share_groups(shareless: Mixed) -> None:
    """With a step back, two before the first use, and one when all share groups have been deleted."""
    mixed, shell = shareless, Shell(shareless.fleet)
    for number in (1, 2, 3):
        mixed.restart(number, old=True)
    mixed.make("moved", 1, 2, 3, partitions=PARTITIONS)
    mixed.make("jobs", 1, 2, 3)
    mixed.written("jobs")
    load = Load(mixed, "moved")
    beat = m.ShareGroupHeartbeatRequest(
        version=1, group_id="early", member_id="m", member_epoch=0, subscribed_topic_names=["jobs"]
    )
    try:
        before = [load.join("classic-protocol") for _ in range(2)]
        shared(before, "two members share the partitions")
        for number, old in ((1, False), (1, True), (1, False), (2, False)):
            mixed.restart(number, old=old)
            load.goes_on(f"broker {number} is {'the old one' if old else 'upgraded'}, and the group goes on")
        assert mixed.update({"share.version": 1}) is ErrorCode.INVALID_UPDATE_VERSION, "broker 3 lacks the level"
        mixed.restart(3, old=False)
        for number in (1, 2, 3):
            assert mixed.ask(number, beat, 1).error_code == ErrorCode.UNSUPPORTED_VERSION
        mixed.restart(3, old=True)
        mixed.restart(3, old=False)
        assert mixed.update({"share.version": 1}) is ErrorCode.NONE
        assert mixed.update({"share.version": 0}, kind=2) is ErrorCode.NONE
        mixed.restart(3, old=True)  # the last moment for that
        mixed.restart(3, old=False)
        assert mixed.update({"share.version": 1}) is ErrorCode.NONE
        shell.run("groups", "alter", "workers", "--set", "share.auto.offset.reset=earliest")
        assert accepted(mixed, "jobs", 20) == [b"%d" % number for number in range(20)]
        load.goes_on("share groups are served")
        assert mixed.update({"share.version": 2}) is ErrorCode.NONE
        shell.run("topics", "create", "dlq.jobs", "--set", "errors.deadletterqueue.group.enable=true")
        shell.run("groups", "alter", "workers", "--set", "errors.deadletterqueue.topic.name=dlq.jobs")
        mixed.written("jobs")
        assert accepted(mixed, "jobs", 20, frozenset({b"30"})) == [b"%d" % number for number in range(20, 40)]
        assert [row["record"] for row in shell.json("dlq", "list", "dlq.jobs")] == ["jobs:0:30"]
        load.goes_on("a dead letter is written")
        eventually(lambda: shell.json("groups", "describe", "workers")[0]["state"], "they left", good="Empty".__eq__)
        shell.run("groups", "delete", "workers", "--yes")
        assert mixed.update({"share.version": 0}, kind=2) is ErrorCode.NONE
        mixed.restart(3, old=True)
        load.goes_on("a broker knows no share groups any more")
        mixed.restart(3, old=False)
        load.end()
        read_by(load.members, load.written, "nothing is lost")
        committed_once(load.members)
    finally:
        load.close()
