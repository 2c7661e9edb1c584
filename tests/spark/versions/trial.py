"""One version's trial: traffic, drivers that are killed, and the count."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.spark.matrix.reader import consumer
from tests.spark.matrix.sessions import signal_all
from tests.spark.versions.driver import TOO_BUSY
from tests.spark.versions.environments import ROOT

RATE = 300
"""Records a second."""
OLD, MEANWHILE = 40, 25
"""Records of each partition before a query starts for the first time, and between its first two starts."""
PARTITIONS = 3
STUCK_S = 180.0
"""A driver whose log has no new line for so long at the trial's end stands still; another was only too slow."""
TRIES = 4
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7"
"""Spark's own source for 3.5: the newest that Maven Central has, which runs on every 3.5."""


Row = tuple[bytes, bytes, tuple[Any, ...], int]
"""Key, value, headers, time."""


class NoFault(Exception):
    """Nothing was found out: no driver was killed inside a micro-batch, or none came so far in time."""


class Traffic(threading.Thread):
    """Records with a key, headers and a time of their own, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
        self._topic = topic
        self._end = threading.Event()
        self.sent = 0

    def run(self) -> None:
        while not self._end.wait(0.1):
            for _ in range(RATE // 10):
                number, self.sent = self.sent, self.sent + 1
                self._producer.produce(
                    self._topic, key=f"k{number % 97}", value=f"v{number}", partition=number % PARTITIONS,
                    headers=[("n", str(number).encode()), ("e", b"")], timestamp=1_700_000_000_000 + 1234 * number,
                )  # fmt: skip
            self._producer.poll(0)

    def stop(self) -> int:
        """End it; how many records stand in the topic."""
        self._end.set()
        self.join()
        assert self._producer.flush(60) == 0
        return self.sent


class Driver:
    """A driver process. ``deadline``: of what it is waited for, by the monotonic clock."""

    def __init__(self, python: Path, given: dict[str, Any], log: Path, deadline: float) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        for name in ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            env.pop(name, None)
        self._log, self._deadline = log, deadline
        self.lines: list[dict[str, Any]] = []
        command = [str(python), "-m", "tests.spark.versions.driver", json.dumps(given)]
        with log.open("ab") as err:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, cwd=given["directory"],
                env=env, start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"event"'):
                self.lines.append(json.loads(line))

    def wait(self, event: str) -> dict[str, Any]:
        """The event of that name. Raises AssertionError, NoFault."""
        while True:
            ended = self.process.poll() is not None
            found = next((line for line in self.lines if line["event"] == event), None)
            if found is not None:
                return found
            self._check(ended, event)
            time.sleep(0.05)

    def check(self, awaited: str) -> None:
        """That it runs, and there is time left. Raises AssertionError, NoFault."""
        self._check(self.process.poll() is not None, awaited)

    def _check(self, ended: bool, awaited: str) -> None:
        if ended and self.process.returncode == TOO_BUSY:
            raise NoFault("the machine was too busy: no Python worker of Spark's started within ten seconds")
        if ended and not self.lines and re.search("UNRESOLVED DEPENDENCIES|FAILED DOWNLOADS", self.tail()):
            raise NoFault(f"Maven's repository did not answer for {CONNECTOR}")
        assert not ended, f"the driver ended with {self.process.returncode}: {self.tail()}"
        if time.monotonic() > self._deadline:
            assert time.time() - self._log.stat().st_mtime < STUCK_S, f"it stands still, no {awaited}: {self.tail()}"
            raise NoFault(f"the machine was too slow: no {awaited} in time, and the driver was at work")

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def kill(self) -> None:
        """SIGKILL to its Python, its JVM and its workers."""
        signal_all(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Checkpoint:
    """What a query's checkpoint says of its last batch."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _last(self, log: str) -> int:
        names = (path.name for path in (self._directory / log).glob("*"))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    @property
    def inside_first(self) -> bool:
        """Whether the first batch is planned, and not committed."""
        return self._last("offsets") == 0 and self._last("commits") == -1

    @property
    def inside(self) -> int | None:
        """The batch that is under way, from the second on."""
        planned, committed = self._last("offsets"), self._last("commits")
        return planned if planned > max(0, committed) else None

    def forget(self) -> None:
        """As a driver leaves it that is killed after the sink's commit and before Spark's note of it."""
        for path in (self._directory / "commits").glob(f"*{self._last('commits')}*"):
            path.unlink()


def committed_records(bootstrap: str, topic: str) -> list[Message]:
    """All that a reader of committed records sees."""
    client = consumer(bootstrap)
    client.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[Message] = []
    left = set(range(PARTITIONS))
    while left:
        message = client.poll(60)
        assert message is not None, f"{topic}: no answer in 60 s"
        if message.error() is None:
            found.append(message)
        else:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            left.discard(message.partition())
    client.close()
    return found


def read_form(message: Message) -> Row:
    """A record of a source as the driver's queries write it."""
    value = message.value() + f":{message.partition()}:{message.offset()}".encode()
    return message.key(), value, tuple(message.headers()), message.timestamp()[1]


class Trial:
    """One version of PySpark on one broker. ``deadline``: of its end, by the monotonic clock."""

    def __init__(self, python: Path, spark: str, bootstrap: str, directory: Path, deadline: float) -> None:
        self._deadline = deadline
        self._python, self._spark, self._bootstrap, self._directory = python, spark, bootstrap, directory
        self._formats = not spark.startswith("3.")
        self._killed_ways = ["format", "tasks"] if self._formats else ["tasks"]
        self._ways = [*self._killed_ways, "small", "driver"]
        run = uuid.uuid4().hex[:8]
        self._topic = f"source-{run}"
        self._targets = {way: f"{way}-{run}" for way in [*self._ways, *(["job"] if self._formats else [])]}
        self._first = {way: f"first-{way}-{run}" for way in self._ways}

    def run(self) -> str:
        """What was counted. Raises AssertionError, NoFault."""
        began = time.monotonic()
        self._create(self._topic, *self._targets.values())
        traffic = Traffic(self._bootstrap, self._topic)
        traffic.start()
        try:
            replays = self._kill_inside()
        finally:
            sent = traffic.stop()
        killed = time.monotonic()
        last = self._start(self._ways, once=True)
        try:
            done = last.wait("done")
        finally:
            last.kill()
        ran = time.monotonic()
        self._check(sent, done)
        self._first_batch()
        times = f"{killed - began:.0f} s until it was killed, {ran - killed:.0f} s to the end, "
        times += f"{time.monotonic() - ran:.0f} s for kills in first batches"
        return f"{self._spark}, {sent} records by {', '.join(self._targets)}, killed {replays} ({times})"

    def _create(self, *names: str) -> None:
        topics = [NewTopic(name, PARTITIONS, 1, config={"retention.ms": "-1"}) for name in names]
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        for made in admin.create_topics(topics).values():
            made.result(30)

    def _start(self, ways: list[str], *, once: bool, **other: Any) -> Driver:
        given = {
            "bootstrap": self._bootstrap, "topic": self._topic, "targets": self._targets, "ways": ways, "once": once,
            "directory": str(self._directory), "source": "fleetlog" if self._formats else "kafka",
            "packages": "" if self._formats else CONNECTOR, "starting": "earliest", "hold": False, **other,
        }  # fmt: skip
        driver = Driver(self._python, given, self._directory / "driver.log", self._deadline)
        try:
            assert driver.wait("ready")["spark"] == self._spark
            if not once:
                driver.wait("started")
        except BaseException:
            driver.kill()
            raise
        return driver

    def _first_batch(self) -> None:
        """Kill a driver while each way is inside its first batch, and run it again when more has come.

        It reads partition 0 from ``latest``, the others from ``earliest``, so that its first batch has records, which
        wait in a function: none is written before the kill. Raises AssertionError, NoFault.
        """
        topic = self._topic.replace("source", "first")
        directory = self._directory / "first"
        directory.mkdir()
        self._create(topic, *self._first.values())
        self._send(topic, OLD)
        starts = {topic: {str(number): -2 if number else -1 for number in range(PARTITIONS)}}
        told = {
            "topic": topic, "targets": self._first, "directory": str(directory), "starting": json.dumps(starts)
        }  # fmt: skip
        checkpoints = [Checkpoint(directory / way) for way in self._ways]
        driver = self._start(self._ways, once=False, hold=True, **told)
        driver.kill()
        assert all(checkpoint.inside_first for checkpoint in checkpoints), "a batch was committed that was held"
        self._send(topic, MEANWHILE)
        last = self._start(self._ways, once=True, **told)
        try:
            last.wait("done")
        finally:
            last.kill()
        source = committed_records(self._bootstrap, topic)
        wanted = Counter(read_form(message) for message in source if message.partition() or message.offset() >= OLD)
        assert wanted.total() == PARTITIONS * (OLD + MEANWHILE) - OLD
        for way, target in self._first.items():
            self._compare(f"{way} from its first batch on", target, wanted)

    def _send(self, topic: str, count: int) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        for number in range(count * PARTITIONS):
            producer.produce(topic, f"v{number}", f"k{number}", partition=number % PARTITIONS, headers=[("e", b"")])
        assert producer.flush(60) == 0

    def _compare(self, what: str, target: str, wanted: Counter[Row]) -> None:
        rows = committed_records(self._bootstrap, target)
        counted = Counter((m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1]) for m in rows)
        assert counted == wanted, (
            f"{what}: {len(rows)} of {wanted.total()} records, missing {list((wanted - counted).items())[:3]}, "
            f"too many {list((counted - wanted).items())[:3]}"
        )

    def _kill_inside(self) -> str:
        """Kill a driver while each way is inside a micro-batch.

        A way that has ended its batch by then is to replay it: as after a kill between the sink's commit and Spark's.
        """
        checkpoints = {way: Checkpoint(self._directory / way) for way in self._killed_ways}
        for _ in range(TRIES):
            driver = self._start(self._killed_ways, once=False)
            try:
                while any(checkpoint.inside is None for checkpoint in checkpoints.values()):
                    driver.check("second batch")
                    time.sleep(0.01)
            finally:
                driver.kill()
            inside = {way: number for way, one in checkpoints.items() if (number := one.inside) is not None}
            for way in checkpoints.keys() - inside.keys():
                checkpoints[way].forget()
            if inside:
                return ", ".join(f"in batch {number} of {way}" for way, number in inside.items())
        raise NoFault(f"no driver died inside a batch, in {TRIES} tries")

    def _check(self, sent: int, done: dict[str, Any]) -> None:
        source = committed_records(self._bootstrap, self._topic)
        assert len(source) == sent
        wanted = Counter(map(read_form, source))
        for way, topic in self._targets.items():
            plain = Counter((key, value, (), time_ms) for key, value, _, time_ms in wanted) if way == "job" else wanted
            self._compare(way, topic, plain)
        if self._formats:
            assert done["read"] == [sent, sent, sent], done
            assert 0 < done["narrow"] < sent, done
        refused = {"format": not self._formats, "limits": self._spark.startswith(("4.0.", "4.1."))}
        assert {name for name, expected in refused.items() if expected} == set(done["refusals"]), done
        for sentence in done["refusals"].values():
            assert f"this is {self._spark}: " in sentence, sentence
