"""Kafka's own tools for replicas: what is in sync, leaders, moves with a throttle, log directories."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_jars.conftest import Tools
from tests.support.clients import Confluent, Message
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop]

PACKAGE = "org.apache.kafka.tools"
TOPICS = f"{PACKAGE}.TopicCommand"
REASSIGN = f"{PACKAGE}.reassign.ReassignPartitionsCommand"
ELECT = f"{PACKAGE}.LeaderElectionCommand"
LIMIT_S = 90
_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"replicated-{next(_numbers)}"


def partitions(tools: Tools, topic: str) -> dict[int, dict[str, str]]:
    """Leader, Replicas, Isr, ... by partition, as kafka-topics prints them."""
    found = {}
    for line in tools(TOPICS, "--describe", "--topic", topic).splitlines():
        row = dict(part.split(": ", 1) for part in re.split(r"\t", line.strip()) if ": " in part)
        if "Partition" in row:
            found[int(row["Partition"])] = row
    return found


def fill(tools: Tools, topic: str, count: int, partitions: int = 1) -> None:
    """``count`` records of 10 kB that don't compress, spread over the partitions."""
    records = [Message(os.urandom(10_000), partition=number % partitions) for number in range(count)]
    Confluent().produce(tools.bootstrap, topic, records)


def read(tools: Tools, topic: str, count: int, partitions: int) -> bool:
    """Whether each partition has that many records to read."""
    client = Confluent()
    found = [len(client.consume(tools.bootstrap, topic, count, partition=index)) for index in range(partitions)]
    return found == [count] * partitions


def in_sync(tools: Tools, topic: str, factor: int) -> Callable[[], bool]:
    return lambda: all(len(row["Isr"].split(",")) == factor for row in partitions(tools, topic).values())


def test_a_dead_broker_shows_and_leaders_come_back(classpath: str, own_fleet: Fleet, topic: str) -> None:
    tools = Tools(classpath, own_fleet.start())
    tools(
        TOPICS, "--create", "--topic", topic, "--partitions", "3", "--replication-factor", "3",
        "--config", "min.insync.replicas=2",
    )  # fmt: skip
    eventually(in_sync(tools, topic, 3), "all replicas are in sync", LIMIT_S)
    preferred = {index: row["Replicas"].split(",")[0] for index, row in partitions(tools, topic).items()}
    broker = own_fleet.brokers[2]
    broker.kill()

    def under_replicated() -> str:
        return tools(TOPICS, "--describe", "--topic", topic, "--under-replicated-partitions")

    found = eventually(
        under_replicated, "three partitions are under-replicated", LIMIT_S, good=lambda text: text.count("Leader:") == 3
    )
    assert "Leader: 3" not in found
    assert "Isr: " in found
    for flag in ("--unavailable-partitions", "--under-min-isr-partitions"):
        assert "Leader:" not in tools(TOPICS, "--describe", "--topic", topic, flag)
    assert tools(TOPICS, "--describe", "--topic", topic, "--at-min-isr-partitions").count("Leader:") == 3
    fill(tools, topic, 30, 3)
    broker.start()
    broker.wait_ready()
    eventually(under_replicated, "all are in sync again", LIMIT_S, good=lambda text: "Leader:" not in text)
    lost = [index for index, leader in preferred.items() if leader == "3"]
    assert lost, "broker 3 was to lead something"
    tools(ELECT, "--election-type", "PREFERRED", "--topic", topic, "--partition", str(lost[0]))
    eventually(
        lambda: partitions(tools, topic)[lost[0]]["Leader"], "the preferred replica leads", LIMIT_S,
        good=lambda leader: leader == "3",
    )  # fmt: skip
    out = tools(ELECT, "--election-type", "preferred", "--all-topic-partitions")
    assert "Error" not in out
    assert {index: row["Leader"] for index, row in partitions(tools, topic).items()} == preferred
    out = tools(ELECT, "--election-type", "UNCLEAN", "--topic", topic, "--partition", "0")
    assert "Valid replica already elected" in out


def assignment(path: Path, topic: str, replicas: dict[int, list[int]]) -> str:
    rows = [{"topic": topic, "partition": index, "replicas": brokers} for index, brokers in replicas.items()]
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(path)


def throttles(tools: Tools, topic: str) -> str:
    """Every throttle that is set, on the topic and on any broker."""
    command = "org.apache.kafka.tools.ConfigCommand"
    text = tools(command, "--describe", "--entity-type", "topics", "--entity-name", topic)
    for broker_id in ("1", "2", "3"):
        text += tools(command, "--describe", "--entity-type", "brokers", "--entity-name", broker_id)
    return "\n".join(line for line in text.splitlines() if "throttled" in line)


def test_partitions_are_reassigned_with_a_throttle(tools: Tools, topic: str, tmp_path: Path) -> None:
    tools(TOPICS, "--create", "--topic", topic, "--replica-assignment", "1:2,2:1")
    fill(tools, topic, 200, 2)
    to_move = tmp_path / "topics.json"
    to_move.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    generated = tools(REASSIGN, "--generate", "--topics-to-move-json-file", str(to_move), "--broker-list", "1,2,3")
    assert "Proposed partition reassignment configuration" in generated
    plan = assignment(tmp_path / "plan.json", topic, {0: [3, 2], 1: [1, 3]})
    out = tools(REASSIGN, "--execute", "--reassignment-json-file", plan, "--throttle", "1000000")
    assert "Successfully started partition reassignments" in out
    assert "throttled" in throttles(tools, topic)

    def verify() -> str:
        return tools(REASSIGN, "--verify", "--reassignment-json-file", plan)

    out = eventually(verify, "both moves are completed", LIMIT_S, good=lambda text: text.count("is completed") == 2)
    assert "Clearing broker-level throttles" in out
    eventually(lambda: throttles(tools, topic), "no throttle is left", LIMIT_S, good=lambda text: not text)
    found = partitions(tools, topic)
    assert [found[index]["Replicas"] for index in (0, 1)] == ["3,2", "1,3"]
    assert [set(found[index]["Isr"].split(",")) for index in (0, 1)] == [{"3", "2"}, {"1", "3"}]
    assert read(tools, topic, 100, 2)
    assert "No partition reassignments found." in tools(REASSIGN, "--list")


def test_a_reassignment_is_cancelled(tools: Tools, topic: str, tmp_path: Path) -> None:
    tools(TOPICS, "--create", "--topic", topic, "--replica-assignment", "1,2")
    fill(tools, topic, 400, 2)
    plan = assignment(tmp_path / "plan.json", topic, {0: [2], 1: [3]})
    tools(REASSIGN, "--execute", "--reassignment-json-file", plan, "--throttle", "1000")
    listed = tools(REASSIGN, "--list")
    assert f"{topic}-0" in listed
    assert "adding: 2. removing: 1." in listed
    assert "still in progress" in tools(REASSIGN, "--verify", "--reassignment-json-file", plan)
    out = tools(REASSIGN, "--cancel", "--reassignment-json-file", plan)
    assert "Successfully cancelled partition reassignments" in out
    eventually(lambda: throttles(tools, topic), "no throttle is left", LIMIT_S, good=lambda text: not text)
    assert "No partition reassignments found." in tools(REASSIGN, "--list")
    found = partitions(tools, topic)
    assert [found[index]["Replicas"] for index in (0, 1)] == ["1", "2"]
    assert read(tools, topic, 200, 2)


def test_the_replication_factor_changes(tools: Tools, topic: str, tmp_path: Path) -> None:
    tools(TOPICS, "--create", "--topic", topic, "--replica-assignment", "1")
    fill(tools, topic, 10)
    plan = assignment(tmp_path / "plan.json", topic, {0: [2, 3, 1]})
    refused = tools(
        REASSIGN, "--execute", "--reassignment-json-file", plan, "--disallow-replication-factor-change", code=1
    )
    assert "replication factor" in refused.lower()
    tools(REASSIGN, "--execute", "--reassignment-json-file", plan)
    eventually(in_sync(tools, topic, 3), "three replicas are in sync", LIMIT_S)
    assert partitions(tools, topic)[0]["Replicas"] == "2,3,1"
    tools(REASSIGN, "--execute", "--reassignment-json-file", assignment(tmp_path / "less.json", topic, {0: [3]}))
    eventually(
        lambda: partitions(tools, topic)[0]["Replicas"], "one replica is left", LIMIT_S, good=lambda text: text == "3"
    )
    assert read(tools, topic, 10, 1)


def test_a_plan_that_cannot_be_is_refused(tools: Tools, topic: str, tmp_path: Path) -> None:
    tools(TOPICS, "--create", "--topic", topic, "--replica-assignment", "1")
    plan = assignment(tmp_path / "plan.json", topic, {0: [1, 77]})
    assert "77" in tools(REASSIGN, "--execute", "--reassignment-json-file", plan, code=1)
    plan = assignment(tmp_path / "plan.json", topic, {5: [1]})
    assert f"{topic}-5" in tools(REASSIGN, "--execute", "--reassignment-json-file", plan, code=1)


def test_log_directories(tools: Tools, topic: str) -> None:
    tools(TOPICS, "--create", "--topic", topic, "--replica-assignment", "1:2")
    fill(tools, topic, 20)

    def described() -> dict[int, dict[str, Any]]:
        out = tools(f"{PACKAGE}.LogDirsCommand", "--describe", "--topic-list", topic)
        (line,) = [line for line in out.splitlines() if line.startswith("{")]
        found = {}
        for broker in json.loads(line)["brokers"]:
            for directory in broker["logDirs"]:
                assert directory["error"] is None
                found[broker["broker"]] = {row["partition"]: row for row in directory["partitions"]}
        return found

    def copied(found: dict[int, dict[str, Any]]) -> bool:
        return found[1][f"{topic}-0"]["size"] == found[2][f"{topic}-0"]["size"]

    found = eventually(described, "the follower has it all", LIMIT_S, good=copied)
    assert found[1][f"{topic}-0"]["size"] > 200_000
    assert found[1][f"{topic}-0"] == {**found[1][f"{topic}-0"], "offsetLag": 0, "isFuture": False}
    assert found[3] == {}


def test_replica_verification_sees_equal_logs(tools: Tools, topic: str) -> None:
    tools(TOPICS, "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "3")
    fill(tools, topic, 50, 2)
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", tools.classpath]
    command += [f"{PACKAGE}.ReplicaVerificationTool", "--broker-list", tools.bootstrap]
    command += ["--topics-include", topic, "--time", "-2", "--report-interval-ms", "500"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    seen = ""
    try:
        deadline = time.monotonic() + LIMIT_S
        for line in process.stdout:
            seen += line
            # once it has read to the end of both partitions, no replica lags behind
            if re.search(r"max lag is 0 for partition \S+ at offset (?!0 )\d+ among 2 partitions", line):
                break
            assert time.monotonic() < deadline, seen[-3000:]
        else:
            raise AssertionError(f"it ended:\n{seen[-3000:]}")
        assert "difference" not in seen
    finally:
        process.kill()
        process.communicate()
