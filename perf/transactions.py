"""``perf transactions``: how many small transactions a second commit, beside Apache Kafka, with a stock client.

Each is 100 records of 100 bytes over three partitions. Every producer of librdkafka runs in a thread of its own with
its own transactional id, so the rate at one producer says how long a transaction takes, at eight what a broker bears.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from perf.clients import cpu_s
from perf.options import Options
from perf.results import Results
from perf.targets import Cluster, TargetError
from perf.targets.kafka import Kafka, version

RECORDS, PARTITIONS, RECORD_BYTES = 100, 3, 100
PRODUCERS = (1, 8)
WARMUP_S = 4.0
_numbers = itertools.count(1)


def run(options: Options) -> Results:
    """Both in turns; ``--brokers 3`` replicates data and the transactions' own log three times."""
    suite = "transactions" if options.brokers == 1 else f"transactions-{options.brokers}"
    results = Results.begin(suite, rounds=options.rounds, seconds=options.measure_s, kafka=version())
    with (
        Kafka(options.brokers, options.directory).running() as kafka,
        options.fleetlog(options.brokers).running() as fleetlog,
    ):
        clusters = (kafka, fleetlog)
        for cluster in clusters:
            cluster.create_topic("transactions", PARTITIONS, options.brokers)
            measure(cluster, PRODUCERS[-1], WARMUP_S / 2 if options.short else WARMUP_S)
        for producers in PRODUCERS:
            for round_ in range(options.rounds):
                for cluster in clusters if round_ % 2 == 0 else reversed(clusters):
                    row = measure(cluster, producers, options.measure_s)
                    results.add(f"{producers} producers", cluster.label, row, round_=round_)
    return results


def measure(cluster: Cluster, producers: int, seconds: float) -> dict[str, Any]:
    """Commits per second, the time of one, and the brokers' CPU for it. Raises TargetError when one fails."""
    workers = [_Worker(cluster) for _ in range(producers)]
    for worker in workers:
        worker.prepare()
    before, started = cpu_s(cluster), time.monotonic()
    deadline = started + seconds
    threads = [threading.Thread(target=worker.work, args=(deadline,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, cpu = time.monotonic() - started, cpu_s(cluster) - before
    failed = [worker.failure for worker in workers if worker.failure is not None]
    if failed:
        raise TargetError(f"{cluster.label}: a transaction failed: {failed[0]}")
    times = sorted(itertools.chain.from_iterable(worker.times_s for worker in workers))
    commits = len(times)
    return {
        "commits_s": commits / took,
        "p50_ms": times[commits // 2] * 1000,
        "p99_ms": times[min(commits - 1, commits * 99 // 100)] * 1000,
        "cpu_us_commit": cpu / commits * 1e6,
    }


class _Worker:
    """One transactional producer."""

    def __init__(self, cluster: Cluster) -> None:
        from confluent_kafka import Producer

        self.times_s: list[float] = []
        self.failure: Exception | None = None
        self._value = b"v" * RECORD_BYTES
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap, "transactional.id": f"perf-{next(_numbers)}",
                "linger.ms": 0, "log_level": 0,
            }
        )  # fmt: skip

    def prepare(self) -> None:
        self._producer.init_transactions(60)
        self._one()

    def work(self, deadline: float) -> None:
        try:
            while time.monotonic() < deadline:
                started = time.monotonic()
                self._one()
                self.times_s.append(time.monotonic() - started)
        except Exception as error:
            self.failure = error

    def _one(self) -> None:
        producer = self._producer
        producer.begin_transaction()
        for number in range(RECORDS):
            producer.produce("transactions", self._value, partition=number % PARTITIONS)
        producer.commit_transaction(60)
