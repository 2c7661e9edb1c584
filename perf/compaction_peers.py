"""``perf compaction --kafka``: passes of fleetlog's cleaner and of Apache Kafka's over the same updates, in one run.

A topic is filled while its policy is ``delete``; with ``compact`` the pass begins. CPU is that of the whole broker,
less what it takes while idle; the second pass counts, so that Kafka's compiler is warm. Then the same again, while an
open loop produces to another topic: its p99 beside that without a pass.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from _native.batch import Record, encode_batch
from perf.clients import cpu_s
from perf.generator.frames import produce_frame
from perf.load import KIB, Load, Pace, Prepared, numbers, send_all
from perf.targets import Cluster, TargetError
from perf.targets.fleetlog import Fleetlog
from perf.targets.kafka import Kafka, version

TOPIC = "changelog"
SEGMENT_BYTES = 16 * KIB * KIB
BATCH_RECORDS = 500
VALUE_BYTES = 100
RECORD_BYTES = 125
QUIET_S = 3.0
TIMEOUT_S = 300.0
MB = 1_000_000
PACED = Load("paced produce 16 KiB", batch_bytes=16 * KIB, connections=16)


class PassResult(NamedTuple):
    """One pass: bytes of the closed segments before and after, time, CPU of the broker, growth of its memory."""

    before: int
    after: int
    seconds: float
    cpu_s: float
    grown_kib: int


def compare(megabytes: int, keys: int, rate: float) -> None:
    """Measure both and print. Raises TargetError."""
    settings = {"log_cleaner_backoff_ms": 200, "log_cleaner_min_cleanable_ratio": 0.01}
    print(f"{megabytes} MB of updates of {keys} keys, segments of 16 MiB; Apache Kafka {version()}")
    for cluster in (Fleetlog(**settings), Kafka(**settings)):
        with cluster.running():
            _measure(cluster, megabytes, keys, rate)


def _measure(cluster: Cluster, megabytes: int, keys: int, rate: float) -> None:
    cluster.create_topic(TOPIC, cleanup_policy="delete", segment_bytes=SEGMENT_BYTES)
    for number in (1, 2):
        fill_topic(cluster, megabytes, keys, seed=number)
        found = _pass(cluster, keys * RECORD_BYTES)
        mb = found.before / MB
        print(
            f"  {cluster.label:<10} pass {number}: {mb:6.0f} MB to {found.after / MB:5.1f} MB"
            f" in {found.seconds:5.1f} s, {mb / found.seconds:6.1f} MB/s,"
            f" {mb / max(found.cpu_s, 0.01):6.1f} MB per CPU second, memory +{found.grown_kib / 1024:.0f} MiB"
        )
        length_s = found.seconds
        _alter(cluster, "delete")
    pace = Pace(1.0, max(3.0, length_s), rate)
    Prepared(cluster, PACED).run(pace)
    without = numbers(Prepared(cluster, PACED).run(pace), PACED)
    fill_topic(cluster, megabytes, keys, seed=3)
    before = closed_bytes(cluster)
    _alter(cluster, "compact")
    during = numbers(Prepared(cluster, PACED).run(pace), PACED)
    cleaned = 100 * (1 - closed_bytes(cluster) / before)
    print(
        f"  {cluster.label:<10} p99 of produce, {rate:.0f} requests/s: {without['p99_ms']:.2f} ms without,"
        f" {during['p99_ms']:.2f} ms during a pass ({cleaned:.0f} % of the bytes went meanwhile),"
        f" p50 {without['p50_ms']:.2f} and {during['p50_ms']:.2f} ms"
    )


def fill_topic(cluster: Cluster, megabytes: int, keys: int, seed: int) -> None:
    """Append that many megabytes of updates, uncompressed."""
    source = random.Random(seed)
    address = cluster.leaders(TOPIC)[0]
    now_ms = int(time.time() * 1000)
    left = megabytes * MB
    batches: list[bytes] = []
    while left > 0:
        if len(batches) < 100:
            rows = [
                Record(-1, now_ms, b"key-%012d" % source.randrange(keys), source.randbytes(VALUE_BYTES), ())
                for _ in range(BATCH_RECORDS)
            ]
            batches.append(bytes(encode_batch(rows)))
        repeats = max(1, megabytes * MB // 100 // len(batches[-1]))
        send_all(address, produce_frame(TOPIC, 0, batches[-1]), repeats)
        left -= repeats * len(batches[-1])


def _segments(cluster: Cluster) -> Iterator[tuple[Path, int]]:
    folder = cluster.brokers[0].directory / "data" / f"{TOPIC}-0"
    for path in sorted(folder.glob("*.log")):
        try:
            yield path, path.stat().st_size
        except FileNotFoundError:  # the pass has just replaced it
            continue


def closed_bytes(cluster: Cluster) -> int:
    """Of all segments but the active one."""
    return sum(size for _, size in list(_segments(cluster))[:-1])


def _pass(cluster: Cluster, table_bytes: int) -> PassResult:
    """From the change of the policy to the last change of the directory, when little more than the table is left."""
    time.sleep(QUIET_S)  # what was written is flushed
    began, cpu = time.monotonic(), cpu_s(cluster)
    time.sleep(QUIET_S)
    idle = (cpu_s(cluster) - cpu) / (time.monotonic() - began)
    before, memory = closed_bytes(cluster), _memory_kib(cluster)
    began, cpu = time.monotonic(), cpu_s(cluster)
    _alter(cluster, "compact")
    changed, state, most = began, list(_segments(cluster)), memory
    spent = cpu
    while time.monotonic() - changed < 5.0 or closed_bytes(cluster) > table_bytes + before * 0.2:
        time.sleep(0.05)
        found = list(_segments(cluster))
        most = max(most, _memory_kib(cluster))
        if found != state:
            state, changed, spent = found, time.monotonic(), cpu_s(cluster)
        if time.monotonic() - began > TIMEOUT_S:
            raise TargetError(f"{cluster.label} has not compacted {TOPIC} in {TIMEOUT_S:.0f} s")
    seconds = changed - began
    return PassResult(before, closed_bytes(cluster), seconds, spent - cpu - idle * seconds, most - memory)


def _alter(cluster: Cluster, policy: str) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    for future in cluster.admin.incremental_alter_configs([resource]).values():
        future.result(30)


def _memory_kib(cluster: Cluster) -> int:
    text = Path(f"/proc/{cluster.pids[0]}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS")))
