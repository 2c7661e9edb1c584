"""Share groups (KIP-932) with librdkafka's share consumer: it reads, acknowledges, gives back; leaders end."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

import fleetlog.wire.messages as m
from fleetlog.brokers.metadata.features import SHARE_VERSION
from fleetlog.wire.errors import ErrorCode
from tests.cli.shell import Shell
from tests.support.fleet import Fleet
from tests.support.harness import Client
from tests.support.waiting import eventually

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.zookeeper]

PARTITIONS = 3
RECORDS = 300
WAIT_S = 40.0
SETTINGS = {
    "group_share_record_lock_duration_ms": 5_000,
    "group_share_min_record_lock_duration_ms": 1_000,
    "group_share_heartbeat_interval_ms": 500,
    "offsets_topic_num_partitions": 3,
    "share_coordinator_state_topic_num_partitions": 4,
    "errors_deadletterqueue_auto_create_topics_enable": True,
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("shares"), **SETTINGS).start()
    assert SHARE_VERSION not in Shell(fleet).json("features", "describe")["features"], "an operator finalizes it"
    Shell(fleet).run("features", "upgrade", f"{SHARE_VERSION}=2")
    yield fleet
    fleet.close()


@pytest.fixture
def names(fleet: Fleet) -> tuple[str, str]:
    """A topic with three partitions, and a group that begins at its start."""
    return made(fleet, PARTITIONS)


def made(fleet: Fleet, partitions: int, **settings: str) -> tuple[str, str]:
    topic, group = f"t-{uuid.uuid4()}", f"g-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(WAIT_S)
    configure(fleet, group, {"share.auto.offset.reset": "earliest", **settings})
    return topic, group


def configure(fleet: Fleet, group: str, settings: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    entries = [ConfigEntry(*one, incremental_operation=AlterConfigOpType.SET) for one in settings.items()]
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(WAIT_S)


def produce(fleet: Fleet, topic: str, first: int = 0, count: int = RECORDS, partitions: int = PARTITIONS) -> set[bytes]:
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "linger.ms": 20})
    values = [b"%d" % number for number in range(first, first + count)]
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(WAIT_S) == 0
    return set(values)


class Reader:
    """A share consumer in a thread, which does with each record what it is told."""

    def __init__(
        self, fleet: Fleet, names: tuple[str, str], answer: Callable[[Message], AcknowledgeType] | None = None
    ) -> None:
        self.values: list[bytes] = []
        self._answer = answer
        explicit = {"share.acknowledgement.mode": "explicit"} if answer is not None else {}
        self._consumer = ShareConsumer({"bootstrap.servers": fleet.bootstrap, "group.id": names[1], **explicit})
        self._consumer.subscribe([names[0]])
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            for message in self._consumer.poll(0.2) or ():
                assert message.error() is None, message.error()
                self.values.append(message.value())
                if self._answer is not None:
                    self._consumer.acknowledge(message, self._answer(message))
        self._consumer.close()

    def end(self) -> None:
        self._ends.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def read_all(reader: Reader, values: set[bytes]) -> None:
    eventually(lambda: values - set(reader.values), "all records are read", WAIT_S, good=lambda left: not left)


def test_members_read_each_record_once_and_those_after_them_go_on(fleet: Fleet, names: tuple[str, str]) -> None:
    values = produce(fleet, names[0])
    readers = [Reader(fleet, names), Reader(fleet, names)]
    both = lambda: Counter(value for reader in readers for value in reader.values)  # noqa: E731
    eventually(lambda: values - set(both()), "all records are read", WAIT_S, good=lambda left: not left)
    for reader in readers:
        reader.end()
    assert max(both().values()) == 1, "nobody died"
    more = produce(fleet, names[0], RECORDS, 30)
    last = Reader(fleet, names)
    read_all(last, more)
    last.end()
    assert set(last.values) == more, "what was acknowledged does not come again"


def test_what_is_given_back_comes_again_and_what_is_rejected_does_not(fleet: Fleet, names: tuple[str, str]) -> None:
    values = produce(fleet, names[0], 0, 30)
    tries: Counter[bytes] = Counter()

    def answer(message: Message) -> AcknowledgeType:
        tries[message.value()] += 1
        number = int(message.value())
        if number % 3 == 1:
            return AcknowledgeType.REJECT
        return AcknowledgeType.RELEASE if number % 3 == 2 else AcknowledgeType.ACCEPT

    reader = Reader(fleet, names, answer)
    released = {value for value in values if int(value) % 3 == 2}
    eventually(lambda: min(tries[v] for v in released), "they reach the limit", WAIT_S, good=lambda n: n == 5)
    more = produce(fleet, names[0], 30, 3)
    eventually(lambda: more <= tries.keys(), "those after them are read", WAIT_S)
    reader.end()
    assert {tries[value] for value in released} == {5}, "group.share.delivery.count.limit"
    assert {tries[value] for value in values - released} == {1}


def test_no_record_overtakes_another_of_its_key_while_that_waits_to_be_tried_again(fleet: Fleet) -> None:
    """Two workers fail the first record of each key twice; the other keys, and records without one, go on."""
    names = made(fleet, 1, **{"fleetlog.share.order": "key", "fleetlog.share.retry.backoff.ms": "400"})
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "linger.ms": 20, "compression.type": "zstd"})
    keys = [None if number % 5 == 4 else b"key %d " % (number % 5) * 4 for number in range(60)]
    for number, key in enumerate(keys):
        producer.produce(names[0], b"%d" % number, key=key, partition=0)
    assert producer.flush(WAIT_S) == 0
    tries: list[tuple[float, int]] = []
    lock = threading.Lock()

    def answer(message: Message) -> AcknowledgeType:
        number = int(message.value())
        with lock:
            tries.append((time.monotonic(), number))
            count = sum(other == number for _, other in tries)
        return AcknowledgeType.RELEASE if number < 4 and count < 3 else AcknowledgeType.ACCEPT

    readers = [Reader(fleet, names, answer) for _ in range(2)]
    wanted = Counter({**dict.fromkeys(range(60), 1), **dict.fromkeys(range(4), 3)})
    eventually(lambda: len(tries), "all are done", WAIT_S, good=lambda count: count >= wanted.total())
    for reader in readers:
        reader.end()
    assert Counter(number for _, number in tries) == wanted
    for key in range(4):
        mine = [number for _, number in tries if number % 5 == key]
        assert mine == sorted(mine), f"the records of a key in their order: {mine}"
        times = [at for at, number in tries if number == key]
        assert times[1] - times[0] >= 0.4
        assert times[2] - times[1] >= 0.8
    last_without_key = max(at for at, number in tries if number % 5 == 4)
    assert last_without_key < min(at for at, number in tries if number >= 5 and number % 5 < 4), "they wait for nobody"


def test_records_come_at_their_time_also_from_the_next_leader(fleet: Fleet) -> None:
    names = made(fleet, PARTITIONS, **{"fleetlog.share.delay.max.ms": "60000"})
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "linger.ms": 20, "compression.type": "lz4"})
    due: dict[bytes, float] = {}
    for number in range(60):
        value, ahead_s = b"%d" % number, 8 if number % 2 else 0
        due[value] = time.time() + ahead_s
        headers = {"fleetlog.deliver-at": str(int(due[value] * 1000))} if ahead_s else None
        producer.produce(names[0], value, partition=number % PARTITIONS, headers=headers)
    assert producer.flush(WAIT_S) == 0
    came: dict[bytes, float] = {}

    def answer(message: Message) -> AcknowledgeType:
        came.setdefault(message.value(), time.time())
        return AcknowledgeType.ACCEPT

    reader = Reader(fleet, names, answer)
    read_all(reader, {value for value in due if not int(value) % 2})
    told = Shell(fleet).json("groups", "describe", names[1])[0]["offsets"]
    assert sum(row["waiting"] for row in told) == 30
    assert all(row["held_back_by"] is None for row in told)
    fleet.brokers[0].kill()
    read_all(reader, set(due))
    fleet.brokers[0].start()
    fleet.brokers[0].wait_ready()
    reader.end()
    early = {value: due[value] - came[value] for value in due if came[value] < due[value] - 0.001}
    assert not early


def test_what_a_member_did_not_acknowledge_comes_again(fleet: Fleet) -> None:
    names = made(fleet, 1)  # which all members share
    values = produce(fleet, names[0], 0, 30, 1)
    lazy = ShareConsumer(
        {"bootstrap.servers": fleet.bootstrap, "group.id": names[1], "share.acknowledgement.mode": "explicit"}
    )
    lazy.subscribe([names[0]])
    held = eventually(lambda: [one.value() for one in lazy.poll(1) or ()], "it reads some", WAIT_S)
    reader = Reader(fleet, names)
    read_all(reader, values)
    assert set(held) <= set(reader.values), "its locks have ended"
    reader.end()
    lazy.close()


def test_a_leader_that_dies_loses_locks_and_no_acknowledgement(fleet: Fleet, names: tuple[str, str]) -> None:
    values = produce(fleet, names[0])
    reader = Reader(fleet, names)
    read_all(reader, values)
    reader.end()
    fleet.brokers[0].kill()
    more = produce(fleet, names[0], RECORDS, 30)
    later = Reader(fleet, names)
    read_all(later, more)
    later.end()
    fleet.brokers[0].start()
    fleet.brokers[0].wait_ready()
    assert set(later.values) == more, "what was acknowledged is persisted"


def test_described_and_listed(fleet: Fleet, names: tuple[str, str]) -> None:
    reader = Reader(fleet, names)

    def described() -> Any:
        """What the coordinator says; each broker is asked."""
        for broker in fleet.brokers:
            client = Client(broker.port)
            group = client.ask(m.ShareGroupDescribeRequest(group_ids=[names[1]]), 1).groups[0]
            client.close()
            if group.error_code == ErrorCode.NONE:
                return group
        return None

    group = eventually(described, "it has its member", WAIT_S, good=lambda one: one is not None and one.members)
    assert (group.group_state, group.assignor_name) == ("Stable", "simple")
    told = Shell(fleet).json("groups", "describe", names[1])[0]
    assert (told["state"], told["protocol"], told["type"]) == ("Stable", "simple", "share")
    assert [member["assigned"] for member in told["members"]] == [[f"{names[0]}:0,1,2"]]
    reader.end()
    left = eventually(described, "the member has left", WAIT_S, good=lambda one: one is not None and not one.members)
    assert left.group_state == "Empty"


def test_offsets_are_described_reset_and_deleted(fleet: Fleet, names: tuple[str, str]) -> None:
    topic, group = names
    values, shell = produce(fleet, topic, 0, 30), Shell(fleet)
    first = Reader(fleet, names)
    read_all(first, values)
    lags = lambda: {row["partition"]: row["lag"] for row in shell.json("groups", "describe", group)[0]["offsets"]}  # noqa: E731
    eventually(lags, "all is acknowledged", WAIT_S, good=lambda lag: lag == {0: 0, 1: 0, 2: 0})
    assert "active members" in shell.fails("groups", "reset", group, "--to-offset", "4", "--execute")
    first.end()
    produce(fleet, topic, 30, 6)
    assert lags() == {0: 2, 1: 2, 2: 2}
    plan = shell.json("groups", "reset", group, "--to-offset", "4")
    assert [(row["committed"], row["new"]) for row in plan] == [(10, 4)] * 3
    assert lags() == {0: 2, 1: 2, 2: 2}, "a plan changes nothing"
    shell.run("groups", "reset", group, "--to-offset", "4", "--execute")
    assert lags() == {0: 8, 1: 8, 2: 8}
    told = eventually(
        lambda: shell.json("groups", "lag", group),
        "lag is computed",
        WAIT_S,
        good=lambda one: bool(one[0]["partitions"]),
    )
    assert told[0]["lag"] == 24
    again = Reader(fleet, names)
    read_all(again, {b"%d" % number for number in range(12, 36)})
    again.end()
    assert min(int(value) for value in again.values) == 12, "nothing from before the offset"
    shell.run("groups", "delete", group, "--topic", topic, "--yes")
    assert lags() == {}
    shell.run("groups", "delete", group, "--yes")
    assert "GROUP_ID_NOT_FOUND" in shell.fails("groups", "describe", group)


@pytest.mark.parametrize("copies", ["true", "false"])
def test_dead_letters_and_their_replay(fleet: Fleet, copies: str) -> None:
    letters = f"dlq.{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    permitted = {"errors.deadletterqueue.group.enable": "true"}
    admin.create_topics([NewTopic(letters, 2, 3, config=permitted)])[letters].result(WAIT_S)
    named = {"errors.deadletterqueue.topic.name": letters, "errors.deadletterqueue.copy.record.enable": copies}
    names = made(fleet, PARTITIONS, **named)
    topic, group = names
    values = produce(fleet, topic, 0, 30)
    shell, tries = Shell(fleet), Counter[bytes]()

    def answer(message: Message) -> AcknowledgeType:
        tries[message.value()] += 1
        number = int(message.value())
        if number % 3 == 1:
            return AcknowledgeType.REJECT
        return AcknowledgeType.RELEASE if number % 3 == 2 else AcknowledgeType.ACCEPT

    reader = Reader(fleet, names, answer)
    dead = {value for value in values if int(value) % 3}
    listed = lambda: shell.json("dlq", "list", letters)  # noqa: E731
    rows = eventually(listed, "all dead letters are written", WAIT_S, good=lambda rows: len(rows) >= len(dead))
    reader.end()
    assert Counter(row["reason"] for row in rows) == {"rejected": 10, "too-many-deliveries": 10}
    assert len({row["record"] for row in rows}) == 20, "each once"
    assert {row["group"] for row in rows} == {group}
    assert {row["copied"] for row in rows} == {copies == "true"}
    assert {row["deliveries"] for row in rows} == {"1", "5"}
    left = eventually(
        lambda: [row["lag"] for row in shell.json("groups", "describe", group)[0]["offsets"]], "all has ended", WAIT_S,
        good=lambda lags: lags == [0, 0, 0],
    )  # fmt: skip
    assert left
    one = rows[0]
    shown = shell.json("dlq", "show", f"{letters}:{one['partition']}:{one['offset']}")
    assert shown["value"].encode() in dead
    assert shown["original"] == ("copy" if copies == "true" else "there")
    plan = shell.json("dlq", "replay", letters)
    assert [(row["topic"], row["what"], row["letters"]) for row in plan] == [(topic, "written", 20)]
    assert "reaches all groups that read it" in plan[0]["remarks"][0]
    assert shell.json("dlq", "replay", letters, "--execute") == plan
    assert shell.json("dlq", "replay", letters, "--execute") == [], "the position was committed with them"
    last = Reader(fleet, names)
    read_all(last, dead)
    last.end()
    assert Counter(last.values) == Counter(dead), "each once"
    place = f"{one['partition']}:{one['offset']}"
    assert shell.json("dlq", "replay", letters, "--letter", place, "--execute")[0]["letters"] == 1
    shell.run("dlq", "purge", letters, "--to", "end", "--yes")
    assert listed() == []


def test_what_is_behind_a_dead_letter_of_its_key_follows_it(fleet: Fleet) -> None:
    """To a topic that the first of them makes."""
    letters = f"dlq.{uuid.uuid4()}"
    named = {"errors.deadletterqueue.topic.name": letters, "fleetlog.share.order": "key"}
    names = made(fleet, 1, **named, **{"fleetlog.share.poison.key": "dlq"})
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "linger.ms": 20})
    for number in range(20):
        producer.produce(names[0], b"%d" % number, key=b"key %d" % (number % 2), partition=0)
    assert producer.flush(WAIT_S) == 0
    bad = b"6"
    reader = Reader(fleet, names, lambda one: AcknowledgeType.REJECT if one.value() == bad else AcknowledgeType.ACCEPT)
    shell, admin = Shell(fleet), AdminClient({"bootstrap.servers": fleet.bootstrap})
    topics = lambda: admin.list_topics(timeout=WAIT_S).topics  # noqa: E731
    rows = eventually(
        lambda: shell.json("dlq", "list", letters) if letters in topics() else [],
        "they are buried",
        WAIT_S,
        good=lambda rows: len(rows) >= 7,
    )
    read_all(reader, {b"%d" % number for number in range(1, 20, 2)})
    reader.end()
    assert Counter(row["reason"] for row in rows) == {"rejected": 1, "after-poison": 6}
    assert [int(row["record"].rpartition(":")[2]) for row in rows] == [6, 8, 10, 12, 14, 16, 18]
    assert {row["deliveries"] for row in rows} == {"1", "0"}
    assert set(reader.values) == {b"%d" % n for n in range(20) if n % 2 or n <= 6}, "the others were given to nobody"


def test_dead_letters_come_once_also_where_a_broker_ends_in_between(fleet: Fleet) -> None:
    letters = f"dlq.{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    permitted = {"errors.deadletterqueue.group.enable": "true"}
    admin.create_topics([NewTopic(letters, 1, 3, config=permitted)])[letters].result(WAIT_S)
    names = made(fleet, PARTITIONS, **{"errors.deadletterqueue.topic.name": letters})
    values = produce(fleet, names[0])
    shell = Shell(fleet)

    def answer(message: Message) -> AcknowledgeType:
        return AcknowledgeType.REJECT if int(message.value()) % 2 else AcknowledgeType.ACCEPT

    listed = lambda: shell.json("dlq", "list", letters, "--limit", "1000")  # noqa: E731
    reader = Reader(fleet, names, answer)
    eventually(lambda: len(reader.values) > len(values) // 4, "it has begun", WAIT_S)
    fleet.brokers[1].kill()
    fleet.brokers[1].start()
    fleet.brokers[1].wait_ready()
    rows = eventually(
        listed, "all rejected records have letters", 2 * WAIT_S,
        good=lambda rows: len({row["record"] for row in rows}) >= len(values) // 2,
    )  # fmt: skip
    reader.end()
    records = Counter(row["record"] for row in listed())
    assert set(records.values()) == {1}, "each once"
    assert len(records) == len(values) // 2 == len({row["record"] for row in rows})


def test_dead_letters_begin_once_their_level_is_finalized(tmp_path: Path) -> None:
    """The members and the group's settings are there before; a broker starts again at each level."""
    fleet = Fleet(tmp_path, **SETTINGS).start()
    shell = Shell(fleet)
    shell.run("features", "upgrade", f"{SHARE_VERSION}=1")
    letters = f"dlq.{uuid.uuid4()}"
    names = made(fleet, PARTITIONS, **{"errors.deadletterqueue.topic.name": letters})
    tries: Counter[bytes] = Counter()

    def answer(message: Message) -> AcknowledgeType:
        tries[message.value()] += 1
        return AcknowledgeType.REJECT if int(message.value()) % 2 else AcknowledgeType.ACCEPT

    reader = Reader(fleet, names, answer)
    topics = lambda: AdminClient({"bootstrap.servers": fleet.bootstrap}).list_topics(timeout=WAIT_S).topics  # noqa: E731
    lags = lambda: [row["lag"] for row in shell.json("groups", "describe", names[1])[0]["offsets"]]  # noqa: E731
    try:
        produce(fleet, names[0], 0, 30)
        eventually(lags, "all has ended", WAIT_S, good=lambda lag: len(tries) == 30 and lag == [0] * PARTITIONS)
        fleet.brokers[1].stop()
        fleet.brokers[1].start()
        fleet.brokers[1].wait_ready()
        assert letters not in topics(), "what was rejected was left out"
        shell.run("features", "upgrade", f"{SHARE_VERSION}=2")
        produce(fleet, names[0], 30, 30)
        rows = eventually(
            lambda: shell.json("dlq", "list", letters) if letters in topics() else [], "they are buried", WAIT_S,
            good=lambda rows: len(rows) >= 15,
        )  # fmt: skip
        assert {row["reason"] for row in rows} == {"rejected"}
        assert len({row["record"] for row in rows}) == len(rows) == 15
        offsets = {int(row["record"].rpartition(":")[2]) for row in rows}
        assert min(offsets) >= 10, "none of what was rejected before"
        fleet.brokers[2].kill()
        fleet.brokers[2].start()
        fleet.brokers[2].wait_ready()
        produce(fleet, names[0], 60, 6)
        eventually(lambda: shell.json("dlq", "list", letters), "they go on", WAIT_S, good=lambda rows: len(rows) == 18)
    finally:
        reader.end()
        fleet.close()
