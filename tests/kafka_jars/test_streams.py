"""Kafka Streams, exactly once: two instances with standby replicas, of which one is killed again and again; a broker is
killed, too. What they write equals a computation over the same input by a few lines of Python.

FLEETLOG_STREAMS_ROUNDS is how often an instance is killed, 2 by default.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka_jars.programs import Program, compiled, read_topic, write_properties
from tests.support.clients import READ_UNCOMMITTED, Confluent, Message
from tests.support.copies import Cluster
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop, pytest.mark.timeout(900)]

ROUNDS = int(os.environ.get("FLEETLOG_STREAMS_ROUNDS", "2"))
LIMIT_S = 240.0
PARTITIONS = 3
INPUTS, OUTPUTS = ("lines", "left", "right"), ("counts", "windowed", "pairs")
WINDOW_MS = 10_000
WORDS = [f"word{number}" for number in range(60)]
APPLICATION = "wordcount"
SETTINGS = {
    "application.id": APPLICATION,
    "processing.guarantee": "exactly_once_v2",
    "num.standby.replicas": 1,
    "replication.factor": 3,
    "commit.interval.ms": 200,
    "statestore.cache.max.bytes": 0,
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 1500,
    "producer.transaction.timeout.ms": 60000,
    "producer.batch.size": 4096,
    "topic.segment.bytes": 10240,
    "topic.min.cleanable.dirty.ratio": 0.01,
    "metadata.max.age.ms": 5000,
}
BEFORE_S = 3600
"""The first record is an hour old: retention goes by timestamps, and nothing is to be deleted in a long run."""


class Inputs:
    """Everything that was written, slice after slice, and what follows from it."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._rng = random.Random(11)
        self._time_ms = int(time.time() - BEFORE_S) * 1000
        self.written: dict[str, list[Message]] = {topic: [] for topic in INPUTS}

    def write(self, count: int = 300) -> None:
        """``count`` lines, and a third as many on either side of the join."""
        client = Confluent()
        made: dict[str, list[Message]] = {topic: [] for topic in INPUTS}
        for number in range(count):
            self._time_ms += self._rng.randrange(200)
            line = " ".join(self._rng.choices(WORDS, k=4))
            made["lines"].append(Message(line.encode(), b"%d" % number, timestamp=self._time_ms))
            if number % 3 == 0:
                for side in ("left", "right"):
                    value, key = f"{side}-{self._time_ms}-{number}", f"key{self._rng.randrange(8)}"
                    made[side].append(Message(value.encode(), key.encode(), timestamp=self._time_ms))
        for topic, messages in made.items():
            client.produce(self._bootstrap, topic, messages, idempotent=True)
            self.written[topic] += messages

    def words(self) -> Iterator[tuple[str, int]]:
        for message in self.written["lines"]:
            assert message.value is not None
            assert message.timestamp is not None
            for word in message.value.decode().split(" "):
                yield word, message.timestamp

    def counts(self) -> Counter[str]:
        return Counter(word for word, _ in self.words())

    def windowed(self) -> Counter[str]:
        return Counter(f"{word}@{time_ms - time_ms % WINDOW_MS}" for word, time_ms in self.words())

    def pairs(self) -> Counter[str]:
        rights = defaultdict(list)
        for right in self.written["right"]:
            rights[right.key].append(right)
        return Counter(
            f"{left.value.decode()}|{right.value.decode()}"  # type: ignore[union-attr]
            for left in self.written["left"]
            for right in rights[left.key]
            if abs(left.timestamp - right.timestamp) <= WINDOW_MS  # type: ignore[operator]
        )


def texts(messages: list[Message]) -> list[tuple[str, str]]:
    return [((message.key or b"").decode(), (message.value or b"").decode()) for message in messages]


def check_counts(found: list[Message], wanted: Counter[str]) -> None:
    """Each key's counts are 1, 2, 3, ... in that order: no update is lost, repeated or out of order."""
    seen = defaultdict(list)
    for key, value in texts(found):
        seen[key].append(int(value))
    assert {key: values for key, values in seen.items() if values != list(range(1, len(values) + 1))} == {}
    assert {key: len(values) for key, values in seen.items()} == wanted


def latest(messages: list[Message]) -> dict[bytes, int]:
    """Count by key of a changelog."""
    found = {message.key: message.value for message in messages}
    return {key: int.from_bytes(value, "big") for key, value in found.items() if key and value is not None}


class Instance(Program):
    def __init__(self, classpath: str, directory: Path, bootstrap: str, name: str) -> None:
        directory.mkdir()
        settings = {**SETTINGS, "bootstrap.servers": bootstrap, "state.dir": directory / "state", "client.id": name}
        super().__init__(
            classpath, directory / "out", "Streams", str(write_properties(directory / "properties", settings))
        )

    def wait_running(self, times: int) -> None:
        """Until it has been through a rebalance ``times`` times in all."""

        def running() -> bool:
            assert self.alive(), self.tail()
            return self.printed().count("state RUNNING") >= times

        eventually(running, "the instance is running", LIMIT_S, pause_s=0.3)


@pytest.fixture
def streams(classpath: str, tmp_path: Path) -> Iterator[tuple[Fleet, list[Instance]]]:
    fleet = Fleet(tmp_path / "fleet", log_cleaner_backoff_ms=100)
    instances: list[Instance] = []
    try:
        fleet.start()
        program = compiled(classpath, Path(__file__).parent / "Streams.java", tmp_path)
        instances += [Instance(program, tmp_path / name, fleet.bootstrap, name) for name in ("one", "other")]
        yield fleet, instances
    finally:
        for instance in instances:
            instance.kill()
        fleet.close()


def test_results_are_exact_though_an_instance_and_a_broker_are_killed(streams: tuple[Fleet, list[Instance]]) -> None:
    fleet, (one, other) = streams
    cluster = Cluster(fleet)
    for topic in (*INPUTS, *OUTPUTS):
        cluster.create(topic, PARTITIONS, min_insync_replicas=2)
    inputs = Inputs(fleet.bootstrap)
    inputs.write()
    one.start()
    other.start()
    other.wait_running(1)

    def results(topic: str) -> int:
        assert other.alive(), other.tail()
        return len(read_topic(fleet.bootstrap, topic))

    for turn in range(ROUNDS):
        one.wait_running(turn + 1)
        before = results("counts")
        inputs.write()
        eventually(lambda: results("counts"), "counts move on", LIMIT_S, good=lambda n, old=before: n > old)
        one.kill()
        if turn == 0:
            fleet.brokers[1].kill()
        inputs.write()
        one.start()
        if turn == 0:
            fleet.brokers[1].start()
            fleet.brokers[1].wait_ready()
    inputs.write()
    wanted = {"counts": inputs.counts(), "windowed": inputs.windowed(), "pairs": inputs.pairs()}
    for topic in OUTPUTS:
        full = wanted[topic].total()
        eventually(lambda topic=topic: results(topic), f"{topic}: {full}", LIMIT_S, good=full.__le__, pause_s=0.5)
    one.stop()
    other.stop()
    check_counts(read_topic(fleet.bootstrap, "counts"), wanted["counts"])
    check_counts(read_topic(fleet.bootstrap, "windowed"), wanted["windowed"])
    assert Counter(value for _, value in texts(read_topic(fleet.bootstrap, "pairs"))) == wanted["pairs"]
    check_changelogs(fleet.bootstrap, wanted["counts"])


def check_changelogs(bootstrap: str, counts: Counter[str]) -> None:
    """The store's topic is compacted, was compacted, and holds each key's last count."""
    client, changelog = Confluent(), f"{APPLICATION}-counted-changelog"
    assert client.topic_config(bootstrap, changelog)["cleanup.policy"] == "compact"
    windows = client.topic_config(bootstrap, f"{APPLICATION}-counted-by-window-changelog")
    assert set(windows["cleanup.policy"].split(",")) == {"compact", "delete"}
    assert client.topic_config(bootstrap, f"{APPLICATION}-words-repartition")["cleanup.policy"] == "delete"
    assert latest(read_topic(bootstrap, changelog)) == {key.encode(): count for key, count in counts.items()}
    eventually(
        lambda: len(read_topic(bootstrap, changelog, READ_UNCOMMITTED)),
        "passes of the cleaner dropped older counts",
        good=lambda kept: kept < counts.total() * 0.6,
    )
