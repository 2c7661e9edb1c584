"""``perf spark``: source and sink beside Spark's own Kafka connector on Apache Kafka, in turns, in one Spark session.

fleetlog's sink writes exactly once (the engine of foreachBatch, and the data source's writer) and at least once (the
same producer without a transaction); Spark's own sink with its defaults, and tuned. CPU is that of the Spark process
with everything it started, and that of the brokers, per million rows; it contains what making the rows costs (case
"rows alone").
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.spark_connector import NoConnector, connector
from perf import machine
from perf.build import ROOT
from perf.clients import cpu_s
from perf.processes import TICK, ProcessTree
from perf.results import Results
from perf.spark_driver import TUNED
from perf.targets import Cluster, TargetError
from perf.targets.fleetlog import Fleetlog
from perf.targets.kafka import Kafka, version

LOOK_S = 0.5
ROW_BYTES = 200_000_000
"""About how many bytes a run writes."""
MOST_ROWS = 1_000_000
SHORT = 0.6
"""A short pass writes so much less, and runs only the main case more than once."""
SMALL_BATCHES, SMALL_WARMUP = 40, 10
COMMIT_TASKS = (2, 20, 200)
_numbers = itertools.count(1)


class Case(NamedTuple):
    """One kind of topic and rows."""

    size: int
    partitions: int = 6
    codec: str = "none"
    replicas: int = 1

    def __str__(self) -> str:
        parts = [f"{self.size} B", f"{self.partitions} partition{'s' if self.partitions > 1 else ''}"]
        parts += [] if self.codec == "none" else [self.codec]
        parts += [] if self.replicas == 1 else [f"{self.replicas} replicas"]
        return ", ".join(parts)


class Way(NamedTuple):
    """One way to write: where to, which command of the driver, with which options."""

    target: str
    kind: str
    options: Mapping[str, str]
    ours: bool


WAYS = (
    Way("kafka", "spark_sink", {}, ours=False),
    Way("kafka tuned", "spark_sink", TUNED, ours=False),
    Way("fleetlog", "exactly_once", {}, ours=True),
    Way("at least once", "at_least_once", {}, ours=True),
    Way("format", "exactly_once_format", {}, ours=True),
)
"""``fleetlog`` is exactly once from foreachBatch, ``format`` exactly once by the data source's writer."""
MAIN = Case(200)
ALL = tuple(
    Case(size, partitions, codec, replicas)
    for replicas in (1, 3)
    for codec in ("none", "lz4")
    for size in (200, 100, 1000)
    for partitions in (6, 1)
)
SHORT_CASES = (MAIN, Case(100), Case(1000), Case(200, 1), Case(200, codec="lz4"), Case(200, replicas=3))


class Spark:
    """The Spark process, and what it and all it started have used."""

    def __init__(self, jars: str, log: Path, settings: Mapping[str, str]) -> None:
        from fleetlog.spark import spark_environment

        given = json.dumps({"jars": jars, "settings": dict(settings)})
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "perf.spark_driver", given],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, env=spark_environment(),
                text=True,
            )  # fmt: skip
        self._tree = ProcessTree(self._process.pid)
        self._lock = threading.Lock()
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()
        self.version = str(self._answer()["ready"])

    def run(self, do: str, **given: Any) -> dict[str, Any]:
        """Carry out a command; its answer. Raises TargetError."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **given}) + "\n")
        self._process.stdin.flush()
        found = self._answer()
        if "failed" in found:
            raise TargetError(f"Spark, {do} {given}: {found['failed']}")
        return found

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise TargetError(f"the Spark process ended:\n{self._log.read_text(errors='replace')[-2000:]}")

    def cpu_s(self) -> float:
        """CPU of the process tree so far: the driver, the JVM, Python workers, and those of them that have ended."""
        with self._lock:
            return self._tree.cpu_s()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            with self._lock:
                self._tree.look()

    def stop(self) -> None:
        """End it."""
        self._over.set()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Suite:
    """One run."""

    def __init__(self, spark: Spark, results: Results, given: argparse.Namespace) -> None:
        self.spark = spark
        self.results = results
        self.given = given
        self.rounds: int = given.rounds or (2 if given.short else 3)

    def wanted(self, name: str) -> bool:
        return not self.given.only or any(word in name for word in self.given.only.split(";"))

    def rows_of(self, case: Case) -> int:
        share = SHORT if self.given.short else 1.0
        return int(min(MOST_ROWS, ROW_BYTES // case.size) * share)

    def rounds_of(self, case: Case) -> int:
        return 1 if self.given.short and case != MAIN else self.rounds

    def baseline(self) -> None:
        """What rows cost without a sink, and when Python only counts them."""
        for round_ in range(self.rounds):
            for kind in ("nothing", "counted"):
                count = self.rows_of(MAIN)
                row = self._measured(None, count, "write", kind=kind, rows=count, size=MAIN.size)
                self.results.add("rows alone, 200 B", kind, row, round_=round_)

    def sinks(self, case: Case, kafka: Cluster, fleetlog: Cluster) -> None:
        """Every way, in turns; the last round's topics are read back."""
        count = self.rows_of(case)
        ways = [way for way in WAYS if way.kind != "exactly_once_format" or case == MAIN]
        kept: dict[str, str] = {}
        rounds = self.rounds_of(case)
        for round_ in range(rounds):
            for way in ways if round_ % 2 == 0 else reversed(ways):
                cluster = fleetlog if way.ours else kafka
                topic = self._topic(cluster, case)
                options = {**way.options, "kafka.compression.type": case.codec}
                row = self._measured(
                    cluster, count, "write", kind=way.kind, bootstrap=cluster.bootstrap, topic=topic, rows=count,
                    size=case.size, options=options,
                )  # fmt: skip
                check_rows(cluster, topic, case.partitions, count)
                self.results.add(f"sink, {case}", way.target, row, round_=round_)
                if round_ == rounds - 1 and way.target in ("fleetlog", "kafka tuned"):
                    kept[way.target] = topic
                else:
                    cluster.delete_topic(topic)
        if case.replicas == 1:
            self._sources(case, kafka, fleetlog, kept)
        fleetlog.delete_topic(kept["fleetlog"])
        kafka.delete_topic(kept["kafka tuned"])

    def _sources(self, case: Case, kafka: Cluster, fleetlog: Cluster, topics: Mapping[str, str]) -> None:
        ways = [
            ("kafka", "kafka", kafka, topics["kafka tuned"]),
            ("fleetlog", "fleetlog", fleetlog, topics["fleetlog"]),
        ]
        for round_ in range(self.rounds_of(case)):
            for target, kind, cluster, topic in ways if round_ % 2 == 0 else reversed(ways):
                row = self._measured(
                    cluster, self.rows_of(case), "read", format=kind, bootstrap=cluster.bootstrap, topic=topic,
                    options={},
                )  # fmt: skip
                self.results.add(f"source, {case}", target, row, round_=round_)

    def small_batches(self, kafka: Cluster, fleetlog: Cluster) -> None:
        """Micro-batches of ten rows; fleetlog's by the driver's own member of the transaction, and by tasks.

        Rows that are only collected, or go to a format without a sink, are written nowhere.
        """
        small = {"sink.small.batch.rows": "1000"}
        ways: list[tuple[str, str, Cluster, dict[str, str]]] = [
            ("kafka", "kafka", kafka, {}),
            ("fleetlog", "foreach", fleetlog, small),
            ("by tasks", "foreach", fleetlog, {}),
            ("format", "fleetlog", fleetlog, {}),
            ("collected", "collect", fleetlog, {}),
            ("no sink", "nothing", fleetlog, {}),
        ]
        for round_ in range(-1, self.rounds):  # the first is not kept: the JVM compiles what each way uses
            for target, kind, cluster, options in ways if round_ % 2 == 0 else reversed(ways):
                topic = self._topic(cluster, MAIN)
                batches = SMALL_BATCHES // 2 if self.given.short else SMALL_BATCHES
                found = self._ran(
                    cluster, "small_batches", kind=kind, bootstrap=cluster.bootstrap, topic=topic, options=options,
                    batches=batches, warmup=SMALL_WARMUP // 2,
                )  # fmt: skip
                if round_ >= 0:
                    row = {name: found[name] for name in ("p50_ms", "cpu_ms", "others_cores")} | found["phases"]
                    self.results.add("micro-batch of 10 rows", target, row, round_=round_)
                cluster.delete_topic(topic)

    def commits(self, fleetlog: Cluster) -> None:
        """CommitBatch with 2 to 200 members, each of which wrote to all partitions."""
        for round_ in range(2 * self.rounds):
            for tasks in COMMIT_TASKS:
                topic = self._topic(fleetlog, MAIN)
                self.results.add(
                    f"commit, {tasks} tasks", "fleetlog", commit_times(fleetlog, topic, tasks), round_=round_
                )
                fleetlog.delete_topic(topic)

    def _topic(self, cluster: Cluster, case: Case) -> str:
        topic = f"perf-{next(_numbers)}"
        cluster.create_topic(topic, case.partitions, case.replicas)
        return topic

    def _measured(self, cluster: Cluster | None, count: int, do: str, **given: Any) -> dict[str, Any]:
        found = self._ran(cluster, do, **given)
        per_million = 1e6 / count
        return {
            "rows_s": count / found["seconds"],
            "cpu": (found["spark_s"] + found["broker_s"]) * per_million,
            "spark_cpu": found["spark_s"] * per_million,
            "broker_cpu": found["broker_s"] * per_million,
            "others_cores": found["others_cores"],
        }

    def _ran(self, cluster: Cluster | None, do: str, **given: Any) -> dict[str, Any]:
        """A command's answer, with the CPU it took of Spark and of brokers, and the cores that others used."""
        spark, broker, busy = self.spark.cpu_s(), cpu_s(cluster) if cluster else 0.0, busy_s()
        found = self.spark.run(do, **given)
        spark = self.spark.cpu_s() - spark
        broker = cpu_s(cluster) - broker if cluster else 0.0
        others = max(0.0, busy_s() - busy - spark - broker) / found["seconds"]
        return {**found, "spark_s": spark, "broker_s": broker, "others_cores": others}


def busy_s() -> float:
    """CPU that all processes of this machine have used."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    user, nice, system, _, _, irq, softirq = map(int, fields[1:8])
    return (user + nice + system + irq + softirq) / TICK


def check_rows(cluster: Cluster, topic: str, partitions: int, rows: int) -> None:
    """Raises TargetError unless a stock consumer can read as many offsets as there were rows (or more: markers)."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "perf", "log_level": 0})
    deadline = time.monotonic() + 30
    while True:
        marks = [consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=30) for n in range(partitions)]
        found = sum(high for _, high in marks)
        if found >= rows:
            break
        if time.monotonic() > deadline:
            raise TargetError(f"{cluster.label}: {topic} has {found} of {rows} rows")
        time.sleep(0.1)
    consumer.close()


def commit_times(cluster: Cluster, topic: str, tasks: int) -> dict[str, float]:
    """Milliseconds of CommitBatch, and until a read_committed reader sees all that every task wrote everywhere."""
    import pyarrow as pa

    from fleetlog.spark.client.connections import Client
    from fleetlog.spark.client.numbers import LATEST, READ_COMMITTED, READ_UNCOMMITTED
    from fleetlog.spark.client.producer import MemberProducer
    from fleetlog.spark.client.write_settings import WriteSettings
    from fleetlog.spark.sink.batch_transactions import BatchTransactions
    from fleetlog.wire.types import TopicPartition

    client = Client({"bootstrap_servers": cluster.bootstrap.split(",")})
    sink = BatchTransactions(client, f"perf-{uuid.uuid4().hex}")
    batch = sink.begin(60_000)
    members = sink.enlist(batch, tasks)
    numbers = pa.array(range(MAIN.partitions), pa.int32())
    rows = pa.record_batch([pa.array(["v"] * MAIN.partitions), numbers], ["value", "partition"])
    for member in members:
        producer = MemberProducer(client, sink._sink_id, member, WriteSettings(topic))
        producer.write(rows)
        producer.flush()
    asked = {TopicPartition(topic, number): LATEST for number in range(MAIN.partitions)}
    started = time.monotonic()
    sink.commit(batch, "perf", 0, "", members)
    answered = time.monotonic()
    while client.offsets(asked, READ_COMMITTED) != client.offsets(asked, READ_UNCOMMITTED):
        if time.monotonic() > answered + 60:
            raise TargetError(f"{topic}: the batch is committed, and its markers are not written after a minute")
        time.sleep(0.001)
    seen = time.monotonic()
    client.close()
    return {"commit_ms": (answered - started) * 1000, "visible_ms": (seen - started) * 1000}


@contextlib.contextmanager
def both(replicas: int, directory: Path | None) -> Iterator[tuple[Cluster, Cluster]]:
    """The two clusters."""
    with Kafka(replicas, directory).running() as kafka, Fleetlog(replicas, directory).running() as fleetlog:
        yield kafka, fleetlog


def warm(suite: Suite, kafka: Cluster, fleetlog: Cluster) -> None:
    """Each way twice, so that the JVMs have compiled what they use."""
    for way in (*WAYS, *WAYS[:3]):
        cluster = fleetlog if way.ours else kafka
        topic = suite._topic(cluster, MAIN)
        rows = suite.rows_of(MAIN) // 3
        given = {"bootstrap": cluster.bootstrap, "topic": topic, "options": dict(way.options)}
        suite.spark.run("write", kind=way.kind, rows=rows, size=MAIN.size, **given)
        suite.spark.run("read", **{**given, "format": "fleetlog" if way.ours else "kafka", "options": {}})
        cluster.delete_topic(topic)


def run(given: argparse.Namespace) -> Results:
    """Everything that ``--only`` does not leave out."""
    jars, named = connector()
    results = Results.begin("spark", kafka=version(), connector=named)
    with tempfile.TemporaryDirectory(prefix="perf-spark-", dir=given.dir) as name:
        spark = Spark(jars, Path(name) / "spark.log", dict(pair.split("=", 1) for pair in given.conf))
        results.about |= {"pyspark": spark.version, "command": machine.command().replace("perf", "perf spark", 1)}
        suite = Suite(spark, results, given)
        try:
            _all(suite)
        finally:
            spark.stop()
    return results


def _all(suite: Suite) -> None:
    cases: Sequence[Case] = SHORT_CASES if suite.given.short and not suite.given.grid else ALL
    cases = [case for case in cases if suite.wanted(f"sink, {case}")]
    for replicas in (1, 3):
        chosen = [case for case in cases if case.replicas == replicas]
        others = replicas == 1 and any(suite.wanted(name) for name in ("micro-batch", "commit", "rows alone"))
        if not chosen and not others:
            continue
        with both(replicas, suite.given.dir) as (kafka, fleetlog):
            if chosen:
                warm(suite, kafka, fleetlog)
            if replicas == 1 and suite.wanted("rows alone"):
                suite.baseline()
            for case in chosen:
                suite.sinks(case, kafka, fleetlog)
            if replicas == 1 and suite.wanted("micro-batch"):
                suite.small_batches(kafka, fleetlog)
            if replicas == 1 and suite.wanted("commit"):
                suite.commits(fleetlog)
        if not suite.given.only:
            suite.results.save()  # the rest may fail


def main() -> int:
    """Measure, print, write; 1 when it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m perf spark", description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer cases, rounds and rows: about ten minutes")
    parser.add_argument("--grid", action="store_true", help="with --short: every case nevertheless, most of them once")
    parser.add_argument("--rounds", type=int, help="how often each way is run, in turns")
    parser.add_argument(
        "--only", default="", help="only what has one of these in its name (with semicolons); nothing is written"
    )
    parser.add_argument("--conf", action="append", default=[], help="a Spark setting, NAME=VALUE")
    parser.add_argument("--dir", type=Path, default=None, help="where servers keep their data")
    given = parser.parse_args()
    started = time.monotonic()
    try:
        results = run(given)
    except (NoConnector, TargetError) as error:
        print(f"perf spark: {error}", file=sys.stderr)
        return 1
    results.about["took_s"] = round(time.monotonic() - started, 1)
    if not given.only:
        results.save()  # with how long it took
    from perf import report

    print(report.section(results))
    print(report.goals_table({"spark": results}, ("spark",)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
