"""The steps of the main job, each a function over a fleet's address: usable on any Kafka-compatible fleet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from examples.access import FleetAccess
from examples.flights import data
from fleetlog.spark import Fence, read_fence, spark_environment

PARTITIONS = 6
BATCHES = 7
STARTS = 5
"""Of a driver whose Python process does not call back in the ten seconds that Spark gives it."""

Say = Callable[[str], None]
OnEvent = Callable[[dict[str, Any]], None]


class StepFailed(RuntimeError):
    """A step did not do what the job needs; the message says where to look."""


class TooSlow(StepFailed):
    """The machine was too busy for Spark to start a Python process, before the driver's first batch."""


def create_topics(access: FleetAccess, *topics: str) -> None:
    """Six partitions each, on three brokers (where there are three) of which two must have a record before it counts.

    Kept for ever, since the records' timestamps are of 2013.
    """
    admin = AdminClient({**access.librdkafka(), "log_level": 3})
    brokers = len(admin.list_topics(timeout=30).brokers)
    config = {"retention.ms": "-1", "min.insync.replicas": str(min(2, brokers))}
    wanted = [
        NewTopic(topic, num_partitions=PARTITIONS, replication_factor=min(3, brokers), config=config)
        for topic in topics
    ]
    for topic, done in admin.create_topics(wanted).items():
        try:
            done.result(30)
        except KafkaException as exc:
            raise StepFailed(f"topic {topic} can't be created: {exc.args[0].str()}") from exc


def produce(access: FleetAccess, topic: str, limit: int | None, say: Say) -> tuple[int, int]:
    """Every flight as JSON, keyed by tail number; (records, those without a key). Fails if one is not acknowledged."""
    producer = Producer(
        {
            **access.librdkafka(),
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 50,
            "partitioner": "murmur2_random",
            "message.timeout.ms": 60_000,
        }
    )
    refused: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            refused.append(str(error))

    count = keyless = 0
    for flight in data.flights(limit):
        key = flight["tailnum"]
        value = json.dumps(flight, separators=(",", ":"))
        while True:
            try:
                producer.produce(topic, value, key, timestamp=data.scheduled_ms(flight), on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.2)
        count += 1
        keyless += key is None
        if count % 100_000 == 0:
            say(f"{count:,} flights")
        if count % 1000 == 0:
            producer.poll(0)
    left = producer.flush(60)
    if refused or left:
        raise StepFailed(f"{len(refused) + left} flights were not acknowledged; the first error: {refused[:1]}")
    return count, keyless


@dataclass
class Driver:
    """One run of the query's process, and what it said."""

    events: list[dict[str, Any]] = field(default_factory=list)
    killed_at: str = ""
    pid: int = 0

    def batches(self, stage: str) -> list[int]:
        """The batches that reached a stage in this run."""
        return [event["batch"] for event in self.events if event["stage"] == stage]


@dataclass(frozen=True)
class Query:
    """How to start the query."""

    access: FleetAccess
    source: str
    target: str
    sink_id: str
    directory: Path
    batch_rows: int
    fence: bool = True

    @property
    def checkpoint(self) -> Path:
        """Spark's own notes."""
        return self.directory / "checkpoint"

    def committed_in_spark(self) -> int:
        """The last batch in Spark's commit log; -1 for none."""
        names = [path.name for path in (self.checkpoint / "commits").glob("*") if path.name.isdigit()]
        return max(map(int, names), default=-1)

    def fence_now(self) -> Fence | None:
        """The last batch that is committed in Kafka."""
        return read_fence(self.access.bootstrap, self.sink_id, **self.access.login())

    def run(self, name: str, stop_at: str, say: Say, on_event: OnEvent | None = None) -> Driver:
        """Starts a driver, and kills it with SIGKILL when it stands at ``stop_at`` (empty: lets it end).

        JVM and Python die together: they are one process group, as a machine that loses power would have it.
        """
        starts_left = STARTS
        while True:
            starts_left -= 1
            try:
                return self._run_once(name, stop_at, say, on_event)
            except TooSlow:
                if not starts_left:
                    raise
                say("Spark gave up its Python process before the first batch: once more")

    def _environment(self) -> dict[str, str]:
        """What a killed driver leaves behind, and its JVM and workers, is in the run's directory and goes with it."""
        temporary = self.directory / "temporary"
        temporary.mkdir(exist_ok=True)
        environment = {**spark_environment(), "TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}
        given = environment.get("JAVA_TOOL_OPTIONS", "")
        environment["JAVA_TOOL_OPTIONS"] = f'{given} "-Djava.io.tmpdir={temporary}" -XX:-UsePerfData'.strip()
        return environment

    def _run_once(self, name: str, stop_at: str, say: Say, on_event: OnEvent | None) -> Driver:
        command = [sys.executable, "-m", "examples.flights.job", "--bootstrap", self.access.bootstrap]
        if self.access.command_config is not None:
            command += ["--command-config", str(self.access.command_config)]
        command += ["--source", self.source, "--target", self.target, "--airlines", str(data.airlines_file())]
        command += ["--checkpoint", str(self.checkpoint), "--sink-id", self.sink_id]
        command += ["--batch-rows", str(self.batch_rows), "--stop-at", stop_at]
        command += [] if self.fence else ["--no-fence"]
        log = self.directory / f"{name}.log"
        driver = Driver()
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=Path(__file__).parents[2],
                env=self._environment(),
                start_new_session=True,
            )
            driver.pid = process.pid
            try:
                for event in _events(process):
                    driver.events.append(event)
                    _tell(event, say)
                    if on_event is not None:
                        on_event(event)
                    if event["stage"] == "waiting":
                        driver.killed_at = stop_at
                        break
            finally:
                if process.poll() is None and (driver.killed_at or not driver.batches("done")):
                    _kill_group(process)
                process.wait()
                assert process.stdout is not None
                process.stdout.close()
        if driver.killed_at != stop_at or (not stop_at and process.returncode != 0):
            said = log.read_text(errors="replace")
            began = any("batch" in event for event in driver.events)
            kind = TooSlow if "failed to connect back" in said and not began else StepFailed
            raise kind(f"the Spark driver ended with {process.returncode}, see {log}:\n{said[-3000:]}")
        return driver


def _events(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(b"{"):
            yield json.loads(line)
            if json.loads(line)["stage"] == "done":
                process.wait(60)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _tell(event: dict[str, Any], say: Say) -> None:
    stage = event["stage"]
    if stage == "spark":
        say("Spark is up")
    elif stage == "committed":
        say(f"batch {event['batch']}: {event['rows']:,} rows committed")
    elif stage == "skipped":
        say(f"batch {event['batch']}: replayed by Spark, skipped by the fence (it is committed already)")


def open_records(access: FleetAccess, topic: str) -> int:
    """Offsets above the last stable one: records of transactions that are still open."""
    total = 0
    ends = {}
    for isolation in ("read_uncommitted", "read_committed"):
        consumer = _consumer(access, isolation)
        ends[isolation] = [
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)[1] for number in range(PARTITIONS)
        ]
        consumer.close()
    total = sum(ends["read_uncommitted"]) - sum(ends["read_committed"])
    return int(total)


def _consumer(access: FleetAccess, isolation: str) -> Consumer:
    return Consumer(
        {
            **access.librdkafka(),
            "group.id": "flights-check",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )


def consume(access: FleetAccess, topic: str, isolation: str) -> Iterator[Any]:
    """Every message of a topic by a stock consumer, up to the end of each partition."""
    consumer = _consumer(access, isolation)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        open_partitions = set(range(PARTITIONS))
        silent_polls = 0
        while open_partitions:
            messages = consumer.consume(5_000, timeout=0.5)  # returns when it has that many, or at the timeout
            silent_polls = 0 if messages else silent_polls + 1
            if silent_polls > 60:
                raise StepFailed(f"topic {topic} gave nothing for 30 s; partitions {open_partitions} did not end")
            for message in messages:
                error = message.error()
                if error is None:
                    yield message
                elif error.name() == "_PARTITION_EOF":
                    open_partitions.discard(message.partition())
                else:
                    raise StepFailed(f"reading {topic}: {error}")
    finally:
        consumer.close()


@dataclass
class Result:
    """The reconciliation of input and output."""

    input: int = 0
    keyless: int = 0
    output: int = 0
    duplicates: int = 0
    missing: int = 0
    unexpected: int = 0
    wrong: int = 0
    wrong_example: str = ""
    skipped: int = 0  # records a read_committed reader does not get to see
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def exactly_once(self) -> bool:
        """Each flight once, with the right values, and nothing else."""
        return not (self.duplicates or self.missing or self.unexpected or self.wrong) and self.input == self.output


def reconcile(access: FleetAccess, target: str, limit: int | None) -> Result:
    """Reads the result as any application would and compares it with a join of our own."""
    result = Result()
    names = data.airline_names()
    wanted = {data.identity(flight): data.expected(flight, names) for flight in data.flights(limit)}
    seen: Counter[data.Identity] = Counter()
    for message in consume(access, target, "read_committed"):
        record = json.loads(message.value())
        result.output += 1
        key = data.identity(record)
        seen[key] += 1
        if key not in wanted:
            result.unexpected += 1
            continue
        # to_json leaves nulls out
        expected = {name: value for name, value in wanted[key].items() if value is not None}
        tail = message.key().decode() if message.key() is not None else None
        if record != expected or tail != record.get("tailnum"):
            result.wrong += 1
            result.wrong_example = f"{record} with key {tail}, expected {expected}"
        if seen[key] == 1:
            result.rows.append(record)
    result.input = len(wanted)
    result.keyless = sum(flight["tailnum"] is None for flight in wanted.values())
    result.duplicates = result.output - len(seen)
    result.missing = sum(key not in seen for key in wanted)
    result.skipped = sum(1 for _ in consume(access, target, "read_uncommitted")) - result.output
    return result
