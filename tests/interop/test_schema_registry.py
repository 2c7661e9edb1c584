"""A schema registry's topic, ``_schemas``, written and read as registries do it: registration, deletion, compaction,
restarts of brokers and of the registry's nodes, which read everything back.

The protocol (Confluent's, also Karapace's): one compacted partition; keys and values are JSON, and a key's bytes are
the same each time; one node at a time writes, the leader of a group of protocol type ``sr``. A node answers when its
own reader has seen what it wrote. A node that does not know the end of the topic writes a NOOP and reads up to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import fleetlog.wire.messages as m
from fleetlog.wire.errors import ErrorCode
from tests.support.clients import Confluent
from tests.support.copies import Cluster, quick_cleaning
from tests.support.raw_transactions import Wire
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPIC = "_schemas"
GROUP = "schema-registry"
SUBJECTS, VERSIONS = 8, 4


def json_bytes(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


class Store:
    """The writer and the reader of a registry's node; ``table`` is what it has read, by key."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap}
        self._producer = Producer({**settings, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
        self._consumer = Consumer(
            {**settings, "group.id": "schema-registry-unused", "enable.auto.commit": False,
             "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50}
        )  # fmt: skip
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self.table: dict[bytes, dict[str, Any]] = {}
        self.records_read = 0
        self._seen = -1
        self.write({"keytype": "NOOP", "magic": 0}, None)

    def write(self, key: dict[str, object], value: dict[str, object] | None) -> None:
        """Write, and wait until the reader has seen it."""
        placed: list[int] = []

        def done(error: Any, message: Any) -> None:
            assert error is None, error
            placed.append(message.offset())

        self._producer.produce(
            TOPIC, None if value is None else json_bytes(value), json_bytes(key), partition=0, on_delivery=done
        )
        assert self._producer.flush(PATIENCE_S) == 0
        eventually(self._read_more, f"offset {placed[0]} is read", good=placed[0].__le__, pause_s=0)

    def _read_more(self) -> int:
        for message in self._consumer.consume(500, 0.05):
            assert message.error() is None, message.error()
            assert message.offset() > self._seen, "the reader goes on, and never back"
            self._seen = message.offset()
            self.records_read += 1
            if message.value() is None:
                self.table.pop(message.key(), None)
            else:
                self.table[message.key()] = json.loads(message.value())
        return self._seen

    def close(self) -> None:
        self._consumer.close()


class Registry:
    """A node with the calls of the REST API that change something."""

    def __init__(self, bootstrap: str) -> None:
        self.store = Store(bootstrap)

    def versions(self, subject: str, deleted: bool = False) -> dict[int, dict[str, Any]]:
        found = {
            value["version"]: value
            for key, value in self.store.table.items()
            if json.loads(key)["keytype"] == "SCHEMA" and value["subject"] == subject
        }
        return {number: value for number, value in sorted(found.items()) if deleted or not value["deleted"]}

    def ids(self) -> set[int]:
        return {value["id"] for key, value in self.store.table.items() if json.loads(key)["keytype"] == "SCHEMA"}

    def register(self, subject: str, schema: str) -> int:
        """The schema's id: the same again for the same schema."""
        for value in self.versions(subject).values():
            if value["schema"] == schema:
                return int(value["id"])
        version = max(self.versions(subject, deleted=True), default=0) + 1
        number = max(self.ids(), default=0) + 1
        self._write_schema(subject, version, number, schema, deleted=False)
        return number

    def _write_schema(self, subject: str, version: int, number: int, schema: str, *, deleted: bool) -> None:
        digest = hashlib.md5(schema.encode(), usedforsecurity=False).hexdigest()
        self.store.write(
            {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1},
            {"subject": subject, "version": version, "id": number, "md5": digest, "schema": schema, "deleted": deleted},
        )

    def set_level(self, subject: str | None, level: str) -> None:
        self.store.write({"keytype": "CONFIG", "subject": subject, "magic": 0}, {"compatibilityLevel": level})

    def delete_version(self, subject: str, version: int, *, permanent: bool = False) -> None:
        if permanent:
            self.store.write({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}, None)
            return
        found = self.versions(subject)[version]
        self._write_schema(subject, version, found["id"], found["schema"], deleted=True)

    def delete_subject(self, subject: str) -> None:
        last = max(self.versions(subject))
        for version in self.versions(subject):
            self.delete_version(subject, version)
        key: dict[str, object] = {"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0}
        self.store.write(key, {"subject": subject, "version": last})


def schema(subject: int, version: int) -> str:
    fields = [{"name": f"f{number}", "type": "long", "default": 0} for number in range(version)]
    return json.dumps({"type": "record", "name": f"Subject{subject}", "fields": fields})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with quick_cleaning(tmp_path) as found:
        yield found


def test_schemas_are_registered_compacted_and_read_back(cluster: Cluster) -> None:
    settings = {"cleanup.policy": "compact", "segment.bytes": 16384, "min.cleanable.dirty.ratio": 0.01}
    cluster.create(TOPIC, **settings, **{"min.insync.replicas": 2})
    assert Confluent().topic_config(cluster.alive, TOPIC)["cleanup.policy"] == "compact", "or a registry refuses it"
    registry = Registry(cluster.alive)
    ids: dict[tuple[int, int], int] = {}
    for version in range(1, VERSIONS + 1):
        for subject in range(SUBJECTS):
            ids[subject, version] = registry.register(f"subject-{subject}-value", schema(subject, version))
    assert sorted(ids.values()) == list(range(1, SUBJECTS * VERSIONS + 1))
    assert registry.register("subject-3-value", schema(3, 2)) == ids[3, 2], "the same schema has the same id"
    levels = ("BACKWARD", "FORWARD", "FULL", "NONE", "BACKWARD_TRANSITIVE")
    for turn in range(150):
        registry.set_level(None if turn % 3 else f"subject-{turn % SUBJECTS}-value", levels[turn % len(levels)])
    registry.delete_version("subject-1-value", 2)
    registry.delete_version("subject-1-value", 2, permanent=True)
    registry.delete_subject("subject-5-value")
    leader = cluster.leader(TOPIC)
    leader.kill()
    cluster.leader(TOPIC, other_than=leader.id)
    ids[0, 9] = registry.register("subject-0-value", schema(0, 9))
    leader.start()
    leader.wait_ready()
    wanted = registry.store.table
    assert list(registry.versions("subject-1-value")) == [1, 3, 4]
    assert registry.versions("subject-5-value") == {}
    assert list(registry.versions("subject-5-value", deleted=True)) == list(range(1, VERSIONS + 1))

    written = registry.store.records_read

    def fresh_node() -> int:
        """How many records a new node reads; it knows what the old one knows."""
        store = Store(cluster.alive)
        store.close()
        assert store.table == wanted
        return store.records_read

    eventually(fresh_node, "older levels and NOOPs are dropped", good=lambda count: count < written - 100, pause_s=0.3)
    for broker in cluster.running:
        broker.stop()
        broker.start()
        broker.wait_ready()
        cluster.wait_isr(TOPIC, {1, 2, 3})
    again = Registry(cluster.alive)
    assert again.store.table == wanted
    assert again.register("subject-2-value", schema(2, 1)) == ids[2, 1]
    assert again.register("subject-new-value", schema(99, 1)) == max(ids.values()) + 1
    registry.store.close()
    again.store.close()


def test_a_registrys_leader_is_elected_by_a_group_of_its_own_protocol(cluster: Cluster) -> None:
    """Protocol type ``sr``, protocol ``v0``: the coordinator passes on what it does not understand, byte for byte."""
    coordinator = eventually(lambda: cluster.coordinator(GROUP), "a coordinator", good=lambda number: number > 0)
    port = cluster.broker(coordinator).port
    one, other = Elected(port, "one"), Elected(port, "other")
    one.send_join()
    assert one.joined().leader == one.member_id
    other.send_join()

    def told_to_join_again() -> Any:
        request = m.HeartbeatRequest(
            version=3, group_id=GROUP, generation_id=one.generation, member_id=one.member_id, group_instance_id=None
        )
        return one.wire.ask(request, 3).error_code

    eventually(told_to_join_again, "the second node's join", good=ErrorCode.REBALANCE_IN_PROGRESS.__eq__)
    one.send_join()
    first, second = one.joined(), other.joined()
    assert first.leader == second.leader
    leader, follower = (one, other) if first.leader == one.member_id else (other, one)
    members = {member.member_id: bytes(member.metadata) for member in (first if leader is one else second).members}
    assert members == {one.member_id: one.identity, other.member_id: other.identity}
    assignment = json_bytes({"error": 0, "master": leader.member_id, "master_identity": json.loads(leader.identity)})
    leader.send_sync(dict.fromkeys(members, assignment))
    follower.send_sync({})
    assert [bytes(node.wire.answer().assignment) for node in (leader, follower)] == [assignment, assignment]
    one.wire.close()
    other.wire.close()


class Elected:
    """A registry's node as a member of the group."""

    def __init__(self, port: int, name: str) -> None:
        self.wire = Wire("127.0.0.1", port, PATIENCE_S)
        self.identity = json_bytes({"version": 1, "host": name, "port": 8081, "master_eligibility": True})
        self.member_id, self.generation = "", -1
        self.send_join()
        answer = self.wire.answer()
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        self.member_id = answer.member_id

    def send_join(self) -> None:
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(version=5, name="v0", metadata=self.identity)
        request = m.JoinGroupRequest(
            version=5, group_id=GROUP, session_timeout_ms=10_000, rebalance_timeout_ms=20_000, protocol_type="sr",
            member_id=self.member_id, group_instance_id=None, protocols=[protocol],
        )  # fmt: skip
        self.wire.send(request, 5)

    def joined(self) -> Any:
        answer = self.wire.answer()
        assert (answer.error_code, answer.protocol_name) == (ErrorCode.NONE, "v0")
        self.generation = answer.generation_id
        return answer

    def send_sync(self, assignments: dict[str, bytes]) -> None:
        row = m.SyncGroupRequest.SyncGroupRequestAssignment
        request = m.SyncGroupRequest(
            version=3, group_id=GROUP, generation_id=self.generation, member_id=self.member_id, group_instance_id=None,
            assignments=[row(version=3, member_id=name, assignment=data) for name, data in assignments.items()],
        )  # fmt: skip
        self.wire.send(request, 3)
