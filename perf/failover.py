"""How long a partition takes no acknowledged write when a broker goes: ``python -m perf.failover [--repetitions 10]``.

Three brokers, one topic (3 replicas, min.insync.replicas 2), one stock producer (librdkafka, acks=all, idempotent, its
defaults otherwise) that sends a record every few milliseconds. A broker is killed with SIGKILL - the partition's
leader, the controller, one that is both - or the leader is shut down as planned. What counts is the longest time
without an acknowledgement from that moment on, from the producer's side. Prints a table, and writes every single time
to perf/results/failover.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perf.targets.base import Broker
from perf.targets.fleetlog import Fleetlog

RESULTS = Path(__file__).parent / "results" / "failover.json"
TOPIC, PARTITIONS = "failover", 6
INTERVAL_S = 0.005
PLANNED_GOAL_MS = 200.0
SETTLE_S = 60.0
STOP_LIMIT_S = 20.0
TICK_MS = 500
"""Of the ZooKeeper that coordination.ensemble starts."""
KINDS = ("leader killed", "controller killed", "leader and controller killed", "leader shut down")


class Producer:
    """Sends without a pause, and remembers when acknowledgements came."""

    def __init__(self, bootstrap: str, partition: int) -> None:
        from confluent_kafka import Producer as Stock

        self._producer = Stock(
            {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
        )
        self._partition = partition
        self._on = True
        self.acknowledged: list[float] = []
        self.failed: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._on:
            self._producer.produce(TOPIC, b"x" * 100, partition=self._partition, on_delivery=self._delivered)
            self._producer.poll(INTERVAL_S)
        self._producer.flush(30)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is None:
            self.acknowledged.append(time.monotonic())
        else:
            self.failed.append(str(error))

    def stop(self) -> None:
        """Stop sending; what is on its way is waited for."""
        self._on = False
        self._thread.join()

    def gap_after(self, start: float, end: float) -> float:
        """Seconds: the longest time without an acknowledgement that ends in the interval."""
        times = [start, *(t for t in list(self.acknowledged) if start < t <= end)]
        return max((b - a for a, b in itertools.pairwise(times)), default=math.inf)


class Cluster:
    """The fleet, and its leader and controller."""

    def __init__(self, fleet: Fleetlog) -> None:
        self.fleet = fleet
        fleet.create_topic(TOPIC, PARTITIONS, 3, min_insync_replicas=2)

    def whole(self) -> Any:
        """Metadata once every replica is in sync; raises TimeoutError."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            found = self.fleet.admin.list_topics(timeout=5)
            parts = found.topics[TOPIC].partitions.values() if TOPIC in found.topics else ()
            if len(parts) == PARTITIONS and all(len(part.isrs) == 3 and part.leader > 0 for part in parts):
                return found
            time.sleep(0.2)
        raise TimeoutError(f"not all replicas of {TOPIC} are in sync after {SETTLE_S} s")

    def choose(self, kind: str) -> tuple[int, Broker]:
        """The partition to write to and the broker to end; evens out leadership until there are such two."""
        from confluent_kafka import ElectionType, TopicPartition

        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            found = self.whole()
            controller = found.controller_id
            for number, part in found.topics[TOPIC].partitions.items():
                if (part.leader == controller) == (kind == "leader and controller killed"):
                    target = controller if kind == "controller killed" else part.leader
                    return number, next(broker for broker in self.fleet.brokers if broker.number == target)
            wanted = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
            self.fleet.admin.elect_leaders(ElectionType.PREFERRED, wanted).result(30)
            time.sleep(1)
        raise TimeoutError(f"no partition for {kind}")


def measure(cluster: Cluster, kind: str, goal_ms: float) -> float:
    """One repetition: milliseconds."""
    partition, broker = cluster.choose(kind)
    producer = Producer(cluster.fleet.bootstrap, partition)
    try:
        _until(lambda: len(producer.acknowledged) > 100, 30)
        start = time.monotonic()
        planned = kind == "leader shut down"
        broker.end(signal.SIGTERM if planned else signal.SIGKILL, STOP_LIMIT_S)
        if planned and broker.process is not None and broker.process.returncode:
            raise AssertionError(f"{kind}: it ended with {broker.process.returncode}:\n{broker.output()}")
        patience = max(30.0, 4 * goal_ms / 1000)
        _until(lambda: bool(producer.acknowledged) and producer.acknowledged[-1] > start + 1.0, patience)
        time.sleep(1.0)
        gap = producer.gap_after(start, time.monotonic())
    finally:
        producer.stop()
    if producer.failed:
        raise AssertionError(f"{kind}: {len(producer.failed)} records were refused: {producer.failed[0]}")
    cluster.fleet.launch(broker)
    cluster.fleet.wait_serving(broker)
    return gap * 1000


def _until(true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing was acknowledged for {seconds} s")
        time.sleep(0.01)


@contextmanager
def running(session_ms: int) -> Iterator[Cluster]:
    """A cluster for the block."""
    fleet = Fleetlog(3, default_replication_factor=3, min_insync_replicas=2, zookeeper_session_timeout_ms=session_ms)
    with fleet.running():
        yield Cluster(fleet)


def percentile(times: Sequence[float], share: float) -> float:
    """The smallest time that at least this share of all do not pass."""
    return sorted(times)[max(0, math.ceil(share * len(times)) - 1)]


def main() -> int:
    """Measure, print, write; 1 when a goal was missed."""
    arguments = argparse.ArgumentParser(description="failover times")
    arguments.add_argument("--repetitions", type=int, default=10)
    arguments.add_argument("--session-ms", type=int, default=6_000, help="zookeeper.session.timeout.ms")
    arguments.add_argument("--kinds", default=",".join(KINDS))
    options = arguments.parse_args()
    kill_goal_ms = options.session_ms + TICK_MS + 1000.0
    goals = {kind: PLANNED_GOAL_MS if kind == "leader shut down" else kill_goal_ms for kind in options.kinds.split(",")}
    times: dict[str, list[float]] = {kind: [] for kind in goals}
    with running(options.session_ms) as cluster:
        for _ in range(options.repetitions):
            for kind, goal in goals.items():
                times[kind].append(measure(cluster, kind, goal))
    print(f"time without an acknowledged write, ms; session {options.session_ms} ms, tick {TICK_MS} ms")
    print(f"{'what happens':<30}{'n':>4}{'p50':>9}{'p90':>9}{'max':>9}{'goal':>9}")
    missed = False
    for kind, found in times.items():
        row = [percentile(found, 0.5), percentile(found, 0.9), max(found)]
        late = row[-1] > goals[kind]
        missed |= late
        print(
            f"{kind:<30}{len(found):>4}" + "".join(f"{value:>9.0f}" for value in row)
            + f"{goals[kind]:>9.0f}{'  MISSED' if late else ''}"
        )  # fmt: skip
    print(f"goal: session timeout + ZooKeeper's tick + 1 s after SIGKILL; {PLANNED_GOAL_MS:.0f} ms when it was planned")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps({"session_ms": options.session_ms, "tick_ms": TICK_MS, "goals_ms": goals, "times_ms": times})
    )
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
