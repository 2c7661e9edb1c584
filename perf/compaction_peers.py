"""``perf compaction --kafka``: passes of fleetlog's cleaner and of Apache Kafka's over the same updates, in one run.

A topic is filled while its policy is ``delete``; with ``compact`` the pass begins. CPU is that of the whole broker,
less what it takes while idle; the second pass counts, so that Kafka's compiler is warm.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fleetlog._native.batch import Record, encode_batch
from perf.clients import cpu_s
from perf.generator.frames import produce_frame
from perf.load import KIB, send_all
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
EAGER: dict[str, Any] = {"log_cleaner_backoff_ms": 200, "log_cleaner_min_cleanable_ratio": 0.01}
"""Settings with which a pass begins as soon as there is something to do."""


class PassResult(NamedTuple):
    """One pass: bytes of closed segments before and after, time, CPU of the broker, its memory before and at most."""

    before: int
    after: int
    seconds: float
    cpu_s: float
    rest_kib: int
    most_kib: int


def compare(megabytes: int, keys: int) -> None:
    """Measure both and print. Raises TargetError."""
    print(f"{megabytes} MB of updates of {keys} keys, segments of 16 MiB; Apache Kafka {version()}")
    for cluster in (Fleetlog(**EAGER), Kafka(**EAGER)):
        with cluster.running():
            cluster.create_topic(TOPIC, cleanup_policy="delete", segment_bytes=SEGMENT_BYTES)
            for number in (1, 2):
                fill_topic(cluster, megabytes, keys, seed=number)
                most = keys * RECORD_BYTES + closed_bytes(cluster) // 5
                print_pass(cluster.label, f"pass {number}", measure_pass(cluster, most))
                alter(cluster, "delete")


def print_pass(label: str, name: str, found: PassResult) -> None:
    """A line for people."""
    mb = found.before / MB
    print(
        f"  {label:<10} {name}: {mb:6.0f} MB to {found.after / MB:6.2f} MB in {found.seconds:5.1f} s,"
        f" {mb / found.seconds:6.1f} MB/s, {mb / max(found.cpu_s, 0.01):6.1f} MB per CPU second, memory"
        f" {found.rest_kib / 1024:.0f} MiB before and {found.most_kib / 1024:.0f} MiB at most",
        flush=True,
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


def measure_pass(cluster: Cluster, most_bytes: int, timeout_s: float = TIMEOUT_S) -> PassResult:
    """From the change of the policy to the last change of the directory, when at most so much is left."""
    time.sleep(QUIET_S)  # what was written is flushed
    began, cpu = time.monotonic(), cpu_s(cluster)
    time.sleep(QUIET_S)
    idle = (cpu_s(cluster) - cpu) / (time.monotonic() - began)
    before, memory = closed_bytes(cluster), _memory_kib(cluster)
    began, cpu = time.monotonic(), cpu_s(cluster)
    alter(cluster, "compact")
    changed, state, most = began, list(_segments(cluster)), memory
    spent = cpu
    while time.monotonic() - changed < 5.0 or closed_bytes(cluster) > most_bytes:
        time.sleep(0.05)
        found = list(_segments(cluster))
        most = max(most, _memory_kib(cluster))
        if found != state:
            state, changed, spent = found, time.monotonic(), cpu_s(cluster)
        if time.monotonic() - began > timeout_s:
            raise TargetError(f"{cluster.label} has not compacted {TOPIC} in {timeout_s:.0f} s")
    seconds = changed - began
    return PassResult(before, closed_bytes(cluster), seconds, spent - cpu - idle * seconds, memory, most)


def alter(cluster: Cluster, policy: str) -> None:
    """Change the topic's ``cleanup.policy``."""
    cluster.alter("TOPIC", TOPIC, {"cleanup.policy": policy})


def _memory_kib(cluster: Cluster) -> int:
    text = Path(f"/proc/{cluster.pids[0]}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS")))
