"""The commands about replicas, against four real brokers: moved, throttled, interrupted, cancelled, and failed over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from fleetlog.brokers.cli.client import Target, admin, wait_for_topics
from tests.cli.shell import Shell
from tests.support.fleet import Broker, Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

LIMIT_S = 90
MB = 1_000_000
THROTTLES = ("leader.replication.throttled", "follower.replication.throttled")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Brokers 1 to 3; the fourth is for a test to add."""
    fleet = Fleet(
        tmp_path_factory.mktemp("replication"),
        4,
        default_replication_factor=3,
        offsets_topic_replication_factor=3,
        transaction_state_log_replication_factor=3,
        transaction_state_log_min_isr=2,
    )
    try:
        yield fleet.start(3)
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def shell(fleet: Fleet) -> Shell:
    return Shell(fleet)


def described(shell: Shell, topic: str) -> list[dict[str, Any]]:
    (found,) = shell.json("topics", "describe", topic)
    rows: list[dict[str, Any]] = found["partitions"]
    return rows


def in_sync(shell: Shell, topic: str) -> bool:
    return all(set(p["isr"]) == set(p["replicas"]) for p in described(shell, topic))


def create(shell: Shell, topic: str, *replicas: str, **config: str) -> None:
    """A topic whose partition i has the replicas ``replicas[i]``, like "1,2", all in sync."""
    assignments = {index: [int(b) for b in one.split(",")] for index, one in enumerate(replicas)}
    with admin(Target(shell.environment["FLEETLOG_BOOTSTRAP"], LIMIT_S)) as client:
        client.create_topics({topic: {"assignments": assignments, "configs": config}})
        assert wait_for_topics(client, [topic], LIMIT_S) == []
    eventually(lambda: in_sync(shell, topic), f"{topic} is in sync", LIMIT_S)


def fill(shell: Shell, topic: str, size: int, partition: int = 0) -> None:
    """Bytes that don't compress, in records of 10 kB."""
    producer = Producer({"bootstrap.servers": shell.environment["FLEETLOG_BOOTSTRAP"], "acks": "all"})
    for _ in range(size // 10_000):
        producer.produce(topic, os.urandom(10_000), partition=partition)
        producer.poll(0)
    assert producer.flush(LIMIT_S) == 0


def throttles(shell: Shell, topic: str) -> dict[str, str]:
    """Every throttle that is set, on the topic and on any broker that answers."""
    client = KafkaAdminClient(bootstrap_servers=shell.environment["FLEETLOG_BOOTSTRAP"].split(","))
    try:
        resources = [ConfigResource(ConfigResourceType.TOPIC, topic)]
        living = [broker["broker_id"] for broker in client.describe_cluster()["brokers"]]
        resources += [ConfigResource(ConfigResourceType.BROKER, str(broker_id)) for broker_id in living]
        found = client.describe_configs(resources, config_filter="modified")
    finally:
        client.close()
    return {
        f"{kind} {name}: {key}": str(row["value"])
        for kind, entities in found.items()
        for name, rows in entities.items()
        for key, row in rows.items()
        if key.startswith(THROTTLES)
    }


def unthrottled(shell: Shell, topic: str) -> None:
    """No throttle is left; brokers hear of that one by one."""
    eventually(lambda: not throttles(shell, topic), f"no throttle of {topic} is left", LIMIT_S)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, out + errors


class Traffic:
    """A producer and a group's consumer that run while a test changes the fleet."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.acknowledged: dict[int, list[int]] = defaultdict(list)
        self.refused: list[str] = []
        self.seen: dict[int, list[int]] = defaultdict(list)
        self._topic, self._partitions = topic, partitions
        self._over = threading.Event()
        common = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._producer = Producer({**common, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 60_000})
        self._consumer = Consumer({**common, "group.id": f"group-{topic}", "auto.offset.reset": "earliest"})
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(LIMIT_S)

    def _produce(self) -> None:
        number = 0
        while not self._over.is_set():
            self._producer.produce(
                self._topic, b"%d" % number, partition=number % self._partitions, on_delivery=self._delivered
            )
            number += 1
            self._producer.poll(0.002)
        self._producer.flush(LIMIT_S)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.refused.append(str(error))
        else:
            self.acknowledged[message.partition()].append(int(message.value()))

    def _consume(self) -> None:
        self._consumer.subscribe([self._topic])
        deadline = None
        while True:
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None and message.value().isdigit():
                    self.seen[message.partition()].append(int(message.value()))
            if self._over.is_set() and not self._threads[0].is_alive():
                deadline = deadline or time.monotonic() + LIMIT_S
                if self._caught_up() or time.monotonic() > deadline:
                    break
        self._consumer.close()

    def _caught_up(self) -> bool:
        return all(self.seen[p][-1:] == numbers[-1:] for p, numbers in self.acknowledged.items())


def even(shell: Shell, what: str) -> bool:
    counted = [broker[what] for broker in shell.json("cluster", "describe")["brokers"]]
    return max(counted) - min(counted) <= 1


def test_load_moves_to_a_new_broker_while_clients_continue(fleet: Fleet, shell: Shell) -> None:
    topic = "load"
    shell.run("topics", "create", topic, "-p", "8", "-r", "3", "-c", "min.insync.replicas=2")
    for partition in range(8):
        fill(shell, topic, MB, partition)
    newcomer = fleet.brokers[3]
    newcomer.start()
    newcomer.wait_ready()
    plan = shell.json("cluster", "rebalance", "--plan")
    assert plan["moves"]
    assert all(4 in move["replicas"] or move["before"] != move["replicas"] for move in plan["moves"])
    with Traffic(fleet.bootstrap, topic, 8) as traffic:
        eventually(lambda: len(traffic.acknowledged) == 8, "each partition has an acknowledged record", LIMIT_S)
        result = shell.json("cluster", "rebalance", "--execute", "--throttle", "20MB")
        assert result["failed"] == {}
        assert len(result["done"]) == len(result["moves"])
    assert traffic.refused == []
    assert dict(traffic.seen) == dict(traffic.acknowledged)
    rows = described(shell, topic)
    assert {b for p in rows for b in p["replicas"]} == {1, 2, 3, 4}
    assert in_sync(shell, topic)
    eventually(lambda: even(shell, "leads"), "the leaders are even", LIMIT_S)
    assert even(shell, "replicas")
    unthrottled(shell, topic)
    assert shell.json("cluster", "rebalance", "--plan")["moves"] == []
    value = shell.json("cluster", "describe")
    assert (value["moving"], value["offline"], len(value["brokers"])) == (0, 0, 4)


def test_a_broker_that_is_not_alive_is_named_before_any_plan(shell: Shell) -> None:
    create(shell, "unmoved", "1")
    for words in (
        ["topics", "reassign", "unmoved", "--replicas", "9"],
        ["cluster", "rebalance", "--plan", "--brokers", "1,9"],
    ):
        assert "broker 9 is not alive; there are 1, 2, 3" in shell.fails(*words)


def test_a_throttle_is_kept_and_taken_away(shell: Shell) -> None:
    topic = "throttled"
    create(shell, topic, "1")
    fill(shell, topic, 4 * MB)
    begun = time.monotonic()
    mover = shell.start("topics", "reassign", topic, "--replicas", "2", "--throttle", "1MB", "--yes")
    found = eventually(lambda: throttles(shell, topic), "a throttle is set", LIMIT_S)
    assert found[f"topic {topic}: leader.replication.throttled.replicas"] == "0:1"
    assert found[f"topic {topic}: follower.replication.throttled.replicas"] == "0:2"
    code, text = ended(mover)
    assert code == 0, text
    assert time.monotonic() - begun > 2, "4 MB at 1 MB/s take longer"
    assert f"{topic}-0: now on 2" in text
    unthrottled(shell, topic)
    (row,) = described(shell, topic)
    assert (row["replicas"], row["isr"], row["end_offset"]) == ([2], [2], 400)


def begin(shell: Shell, topic: str, *more: str) -> subprocess.Popen[str]:
    """A move of ``topic`` that never ends by itself, begun."""
    mover = shell.start("topics", "reassign", topic, "--replicas", "3", "--throttle", "1k", "--yes", *more)
    eventually(
        lambda: any(p["adding"] for p in described(shell, topic)) or mover.poll() is not None,
        "the move begins",
        LIMIT_S,
    )
    assert mover.poll() is None, ended(mover)
    return mover


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupted_move_leaves_no_throttle(shell: Shell, number: signal.Signals) -> None:
    topic = f"interrupted-{number}"
    create(shell, topic, "1")
    fill(shell, topic, 2 * MB)
    mover = begin(shell, topic)
    assert throttles(shell, topic)
    mover.send_signal(number)
    code, text = ended(mover)
    assert code == 130, text
    assert "continue without a throttle" in text
    unthrottled(shell, topic)
    eventually(lambda: not described(shell, topic)[0]["adding"], "without a throttle the move ends by itself", LIMIT_S)
    (row,) = described(shell, topic)
    assert (row["replicas"], row["end_offset"]) == ([3], 200)
    shell.run("topics", "reassign", topic, "--verify")


def test_a_move_is_cancelled(shell: Shell) -> None:
    topic = "cancelled"
    create(shell, topic, "1", "2")
    fill(shell, topic, 2 * MB, 0)
    fill(shell, topic, 2 * MB, 1)
    mover = begin(shell, topic)
    verified = shell.json("topics", "reassign", topic, "--verify", code=3)
    assert verified["moving"]
    assert [p["state"] for p in verified["partitions"]] == ["moving", "moving"]
    assert throttles(shell, topic), "what still moves keeps its throttle"
    (moves,) = [shell.json("cluster", "describe")["moves"]]
    assert [(m["topic"], m["partition"], m["adding"]) for m in moves] == [(topic, 0, [3]), (topic, 1, [3])]
    assert moves[0]["copied_bytes"] < moves[0]["bytes"]
    cancelled = shell.json("topics", "reassign", topic, "--cancel")
    assert cancelled["cancelled"] == [f"{topic}-0", f"{topic}-1"]
    code, text = ended(mover)
    assert code == 1
    assert "cancelled" in text
    rows = described(shell, topic)
    assert [(p["replicas"], p["isr"], p["adding"]) for p in rows] == [([1], [1], []), ([2], [2], [])]
    unthrottled(shell, topic)
    assert shell.json("topics", "reassign", topic, "--cancel")["cancelled"] == []


def test_a_killed_command_leaves_a_throttle_that_verify_clears(shell: Shell) -> None:
    topic = "killed"
    create(shell, topic, "1")
    fill(shell, topic, MB)
    mover = begin(shell, topic)
    mover.kill()
    ended(mover)
    assert throttles(shell, topic)
    shell.run("topics", "reassign", topic, "--cancel")
    unthrottled(shell, topic)


def test_a_move_survives_the_controllers_death(fleet: Fleet, shell: Shell) -> None:
    topic = "survives"
    controller = shell.json("cluster", "describe")["controller"]
    source, destination = [broker for broker in fleet.brokers if broker.id != controller and running(broker)][:2]
    create(shell, topic, str(source.id))
    fill(shell, topic, 4 * MB)
    mover = shell.start(
        "topics", "reassign", topic, "--replicas", str(destination.id), "--throttle", "500k", "--yes", "--json"
    )
    eventually(lambda: described(shell, topic)[0]["adding"], "the move begins", LIMIT_S)
    broker = fleet.brokers[controller - 1]
    broker.kill()
    code, text = ended(mover)
    assert code == 0, text
    (row,) = described(shell, topic)
    assert (row["replicas"], row["isr"], row["end_offset"]) == ([destination.id], [destination.id], 400)
    assert shell.json("cluster", "describe")["controller"] != controller
    broker.start()
    broker.wait_ready()
    # the killed broker may have had a throttle, which could not be removed there: check again now
    unthrottled(shell, topic)


def running(broker: Broker) -> bool:
    return broker.process is not None and broker.process.poll() is None


def test_a_replication_factor_changes_with_a_plan(shell: Shell) -> None:
    topic = "wider"
    create(shell, topic, "1", "2", "3")
    fill(shell, topic, MB)
    plan = shell.run("topics", "reassign", topic, "-r", "3", "--dry-run").stdout
    assert f"{topic}-0" in plan
    assert "3 partitions change" in plan
    assert all(len(p["replicas"]) == 1 for p in described(shell, topic)), "a dry run changes nothing"
    assert "change" in shell.run("topics", "reassign", topic, "-r", "3").stdout
    rows = described(shell, topic)
    assert all(len(p["replicas"]) == 3 and set(p["isr"]) == set(p["replicas"]) for p in rows)
    assert [p["leader"] for p in rows] == [1, 2, 3]
    assert "nothing to move" in shell.run("topics", "reassign", topic, "-r", "3").stdout
    shell.run("topics", "reassign", topic, "-r", "2", "-p", "1")
    assert [len(p["replicas"]) for p in described(shell, topic)] == [3, 2, 3]
    assert "77" in shell.run("topics", "reassign", topic, "--replicas", "1,77", code=1).output
    assert "need 9 brokers" in shell.fails("topics", "reassign", topic, "-r", "9")
    assert "not 7" in shell.fails("topics", "reassign", topic, "-p", "7", "-r", "2")


def live_brokers(shell: Shell) -> dict[int, int]:
    return {b["id"]: b["incarnation"] for b in shell.json("cluster", "describe")["brokers"]}


def test_a_minimum_above_the_replicas_is_taken_with_a_word(fleet: Fleet, shell: Shell) -> None:
    """As Kafka takes it, where all replicas must be in sync then."""
    topic = "strict"
    create(shell, topic, "1,2", "2,1")
    quiet = shell.run("topics", "alter", topic, "--set", "min.insync.replicas=2")
    assert quiet.stderr == ""
    word = "fleetlog: min.insync.replicas=3 is more than the 2 replicas of strict"
    for command in (["alter", topic], ["create", "stricter", "-r", "2"]):
        assert "did you mean min.insync.replicas?" in shell.fails("topics", *command, "--set", "min.insync.replica=3")
        told = shell.run("topics", *command, "--set", "min.insync.replicas=3").stderr
        assert told.startswith(f"{word.replace(topic, command[1])}: every replica")


def test_a_dead_broker_shows_and_is_not_waited_for(fleet: Fleet, shell: Shell) -> None:
    topic = "shrunk"
    create(shell, topic, "1,2", "2,1", **{"min.insync.replicas": "2"})
    broker, before = fleet.brokers[1], live_brokers(shell)
    broker.kill()
    begun = time.monotonic()
    described(shell, topic)
    assert time.monotonic() - begun < 25, "a dead leader is not waited for"
    eventually(lambda: all(p["leader"] == 1 for p in described(shell, topic)), "broker 1 leads everything", LIMIT_S)
    eventually(
        lambda: all(p["isr"] == [1] for p in described(shell, topic)), "the in-sync sets shrink to broker 1", LIMIT_S
    )
    rows = described(shell, topic)
    assert [(p["elr"], p["problem"], p["under_replicated"]) for p in rows] == [
        ([2], "under min ISR", True),
        ([2], "under min ISR", True),
    ]
    value = shell.json("cluster", "describe")
    assert {b["id"]: b["alive"] for b in value["brokers"]}[2] is False
    assert value["under_min_isr"] >= 2
    assert (topic, 0) in {(p["topic"], p["partition"]) for p in value["problems"]}
    text = shell.run("cluster", "describe").stdout
    assert "under min ISR" in text
    assert "down" in text
    refused = shell.run("topics", "elect", topic, "-p", "1", "--preferred", code=1)
    assert "PREFERRED_LEADER_NOT_AVAILABLE" in refused.output
    broker.start()
    broker.wait_ready()
    eventually(lambda: in_sync(shell, topic), "it is in sync again", LIMIT_S)
    assert [p["elr"] for p in described(shell, topic)] == [[], []]
    shell.run("topics", "elect", topic, "--preferred")
    eventually(lambda: [p["leader"] for p in described(shell, topic)] == [1, 2], "the preferred replicas lead", LIMIT_S)
    answers = shell.json("topics", "elect", topic, "-p", "0", "--preferred")
    assert answers == [{"topic": topic, "partition": 0, "result": "not needed"}]
    assert live_brokers(shell)[2] > before[2]


def test_a_paused_broker_holds_up_no_command(fleet: Fleet, shell: Shell) -> None:
    topic = "paused"
    create(shell, topic, "1", "2")
    fill(shell, topic, 10_000, 1)
    broker = fleet.brokers[0]
    broker.signal(signal.SIGSTOP)
    try:
        rows = described(shell, topic)
        assert (rows[0]["end_offset"], rows[1]["end_offset"]) == (None, 1)
        assert topic in {row["topic"] for row in shell.json("topics", "list")}
        states = {b["id"]: (b["alive"], b["log_dirs"]) for b in shell.json("cluster", "describe")["brokers"]}
        assert states[1][1] is None, "it says nothing of its directories"
        assert states[2][1]
        # no broker can become controller, or leader of a partition, before the broker's session ends
        shell.run("topics", "create", f"{topic}-meanwhile", "-p", "1", "-r", "2")
    finally:
        broker.signal(signal.SIGCONT)
    eventually(lambda: described(shell, topic)[0]["end_offset"] == 0, "broker 1 answers again", LIMIT_S)


def test_an_unclean_leader_is_elected_on_request_only(fleet: Fleet, shell: Shell) -> None:
    topic = "unclean"
    if not running(fleet.brokers[3]):
        fleet.brokers[3].start()
        fleet.brokers[3].wait_ready()
    create(shell, topic, "3,4")
    fill(shell, topic, 100_000)
    behind, ahead = fleet.brokers[3], fleet.brokers[2]
    behind.kill()
    eventually(lambda: described(shell, topic)[0]["isr"] == [3], "the in-sync set shrinks to broker 3", LIMIT_S)
    fill(shell, topic, 100_000)
    ahead.kill()
    behind.start()
    behind.wait_ready()
    eventually(lambda: described(shell, topic)[0]["leader"] is None, "the partition is offline", LIMIT_S)
    assert "LOSES DATA" in " ".join(shell.run("topics", "elect", "--help").stdout.split())
    shell.run("topics", "elect", topic, "--unclean", "--yes")
    (row,) = eventually(lambda: [p for p in described(shell, topic) if p["leader"] == 4], "broker 4 leads", LIMIT_S)
    assert row["end_offset"] == 10, "what only the dead leader had is given up"
    ahead.start()
    ahead.wait_ready()
    eventually(lambda: set(described(shell, topic)[0]["isr"]) == {3, 4}, "the previous leader follows", LIMIT_S)
    assert described(shell, topic)[0]["end_offset"] == 10


def test_plans_are_json_that_kafka_tools_read(shell: Shell, tmp_path: Path) -> None:
    topic = "planned"
    create(shell, topic, "1")
    value = shell.json("topics", "reassign", topic, "--replicas", "2", "--dry-run")
    (move,) = json.loads(json.dumps(value))["moves"]
    assert {key: move[key] for key in ("topic", "partition", "replicas")} == {
        "topic": topic,
        "partition": 0,
        "replicas": [2],
    }
