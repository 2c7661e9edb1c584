"""The stock clients as load: librdkafka (confluent-kafka), and the Java client by Kafka's own performance tools.

What they cost themselves is most of what is measured on a small machine, so these numbers say what an application
sees, not what a broker can do. Broker CPU per GB is shown beside them.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any

from perf.options import Options
from perf.results import Results
from perf.targets import Cluster, TargetError
from perf.targets.kafka import classpath, java

RECORD_BYTES = 1000
RECORDS = 300_000
SHORT_RECORDS = 100_000
PARTITIONS = 4
_numbers = itertools.count(1)


def run(results: Results, cluster: Cluster, options: Options, replicas: int) -> None:
    """Write and read the same records with each client."""
    records = SHORT_RECORDS if options.short else RECORDS
    jobs: list[tuple[str, Callable[[Cluster, str, int], float | None]]] = [
        ("confluent-kafka", _confluent_produce), ("confluent-kafka", _confluent_consume),
        ("java", _java_produce), ("java", _java_consume),
    ]  # fmt: skip
    for round_ in range(1 if options.short else min(3, options.rounds)):
        topics = {name: f"clients-{name}-{next(_numbers)}" for name in ("confluent-kafka", "java")}
        for topic in topics.values():
            cluster.create_topic(topic, PARTITIONS, replicas)
        for client, job in jobs:
            verb = "produces" if "produce" in job.__name__ else "consumes"
            row = _measured(cluster, lambda job=job, topic=topics[client]: job(cluster, topic, records), records)  # type: ignore[misc]
            results.add(f"{client} {verb}", cluster.label, row, round_=round_)
        for topic in topics.values():
            cluster.delete_topic(topic)


def _measured(cluster: Cluster, job: Callable[[], float | None], records: int) -> dict[str, Any]:
    before, started = cpu_s(cluster), time.monotonic()
    took = job()
    wall = time.monotonic() - started
    size = records * RECORD_BYTES
    return {
        "records_s": records / (took or wall),
        "mb_s": size / (took or wall) / 1e6,
        "cpu_s_gb": (cpu_s(cluster) - before) / size * 1e9,
    }


def cpu_s(cluster: Cluster) -> float:
    """Seconds of CPU that the cluster's processes have used."""
    import os
    from pathlib import Path

    total = 0
    for pid in cluster.pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def _confluent_produce(cluster: Cluster, topic: str, records: int) -> None:
    from confluent_kafka import Producer

    failed: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 5, "batch.size": 131072,
            "queue.buffering.max.messages": 200_000, "log_level": 0, "on_delivery": delivered,
        }
    )  # fmt: skip
    value = b"v" * RECORD_BYTES
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush(120)
    if failed:
        raise TargetError(f"{cluster.label}: {len(failed)} records were not delivered, first: {failed[0]}")


def _confluent_consume(cluster: Cluster, topic: str, records: int) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": topic, "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    seen, deadline = 0, time.monotonic() + 120
    while seen < records:
        messages = consumer.consume(10_000, timeout=1.0)
        seen += sum(message.error() is None for message in messages)
        if time.monotonic() > deadline:
            raise TargetError(f"{cluster.label}: only {seen} of {records} records came back")
    consumer.close()


def _java(name: str, *words: str) -> str:
    command = [java(), "-Xmx512m", "-cp", classpath(), name, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise TargetError(f"{name}: {(done.stdout + done.stderr)[-600:]}")
    return done.stdout


def _java_produce(cluster: Cluster, topic: str, records: int) -> float:
    out = _java(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records),
        "--record-size", str(RECORD_BYTES), "--throughput", "-1", "--producer-props",
        f"bootstrap.servers={cluster.bootstrap}", "acks=all", "linger.ms=5", "batch.size=131072",
    )  # fmt: skip
    found = re.findall(r"([\d.,]+) records/sec", out)
    if not found:
        raise TargetError(f"ProducerPerformance said no rate: {out[-300:]}")
    return records / float(found[-1].replace(",", ""))


def _java_consume(cluster: Cluster, topic: str, records: int) -> float:
    out = _java(
        "org.apache.kafka.tools.ConsumerPerformance", "--topic", topic, "--num-records", str(records),
        "--bootstrap-server", cluster.bootstrap, "--timeout", "60000",
    )  # fmt: skip
    lines = [line for line in out.splitlines() if "," in line]
    values = dict(zip(re.split(r",\s*", lines[0]), re.split(r",\s*", lines[-1]), strict=False))
    fetch_ms = float(values.get("fetch.time.ms", "0"))
    if not fetch_ms:
        raise TargetError(f"ConsumerPerformance said no time: {out[-300:]}")
    return fetch_ms / 1000
