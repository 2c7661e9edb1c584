"""``perf compaction``: passes of the cleaner over one log, with the Cython kernels and with their pure twins in turn.

A log of ``--megabytes`` of updates of ``--keys`` keys is cleaned from its files, each time from the same bytes. What
counts is MB of log (as it was before the pass) for each second of CPU; every pass must leave the same bytes.

Whole brokers, with ``--kafka`` beside Apache Kafka's: ``--kafka`` alone for speed, ``--produce`` for the latency of
produce beside passes (:mod:`perf.compaction_beside`), ``--updates`` for a large table (:mod:`perf.compaction_table`).
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType

from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.config import BrokerConfig, TopicConfig
from fleetlog.brokers.log import Log, Origin, RealDisk, Terms
from fleetlog.brokers.log.compaction import passes
from fleetlog.brokers.log.compaction.cleaner import Cleaner, CleanerSettings
from fleetlog.wire import compression
from fleetlog.wire.types import TopicPartition

TP = TopicPartition("changelog", 0)
NOW_MS = 1_700_000_000_000
KEYS = 20_000
BATCH_RECORDS = 100
VALUE_BYTES = 100
MB = 1_000_000


def _config() -> TopicConfig:
    return BrokerConfig(
        broker_id=1, zookeeper_connect="none:1", log_cleanup_policy=("compact",), log_segment_bytes=64 * 1024 * 1024,
        log_cleaner_min_cleanable_ratio=0.0,
    ).topic_defaults()  # fmt: skip


def fill(directory: Path, megabytes: int, keys: int, codec: int) -> None:
    """Write the log that the passes begin with."""
    log = _open(directory)
    source = random.Random(1)
    value = source.randbytes(VALUE_BYTES // 2) + b"." * (VALUE_BYTES // 2)
    compress = (lambda payload: compression.compress(codec, payload)) if codec else None
    written = 0
    while written < megabytes * MB:
        rows = [Record(-1, NOW_MS, b"key-%012d" % source.randrange(keys), value) for _ in range(BATCH_RECORDS)]
        data = bytearray(encode_batch(rows, attributes=codec, compress=compress))
        written += len(data)
        log.appender.append([data], 0, NOW_MS, Terms(Origin.COORDINATOR))
    log.appender.roll(NOW_MS)
    log.close()


def _open(directory: Path) -> Log:
    return Log.open(
        RealDisk(), str(directory / str(TP)), TP, _config(), now_ms=NOW_MS, clean=True, high_watermark=1 << 60
    )


def clean(directory: Path, twin: ModuleType) -> tuple[float, float, int, bytes]:
    """One pass over a copy: MB per second of CPU, MB per second, keys, and what is left."""
    vars(passes).update({name: getattr(twin, name) for name in ("KeyMap", "collect_keys", "keep_records")})
    with tempfile.TemporaryDirectory(dir=directory.parent) as copy:
        shutil.copytree(directory / str(TP), Path(copy) / str(TP))
        log = _open(Path(copy))
        before = log.size_bytes / MB
        cleaner = Cleaner(log.disk, {TP: log}, lambda: CleanerSettings(1 << 30, backoff_ms=0))
        cpu, began = time.process_time(), time.perf_counter()
        while cleaner.step(NOW_MS, 1 << 60):
            time.sleep(0.001)
        cpu, took = time.process_time() - cpu, time.perf_counter() - began
        left = b"".join(segment.log.read(0, segment.size) for segment in log.segments)
        log.close()
        return before / cpu, before / took, cleaner.figures.last_pass_keys, left


def _whole_brokers(found: argparse.Namespace) -> bool:
    """Whether that was what was asked for; it is done then."""
    if found.updates is not None:
        from perf.compaction_table import TABLE_KEYS, compare_tables

        compare_tables(found.updates, found.keys or TABLE_KEYS, kafka=found.kafka)
    elif found.produce:
        from perf.compaction_beside import compare_produce

        compare_produce(
            found.megabytes,
            found.keys or KEYS,
            found.rate,
            found.rounds,
            found.window,
            kafka=found.kafka,
            trees=found.tree,
        )
    elif found.kafka:
        from perf.compaction_peers import compare

        compare(found.megabytes, found.keys or KEYS)
    else:
        return False
    return True


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m perf compaction", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--keys", type=int, help="20,000; with --updates 1,048,576")
    parser.add_argument("--codec", choices=sorted(compression.CODES), default="none")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kafka", action="store_true", help="whole brokers beside Apache Kafka instead")
    parser.add_argument("--produce", action="store_true", help="p99 of produce beside passes of whole brokers")
    parser.add_argument("--rate", type=float, default=300.0, help="requests/s of that produce")
    parser.add_argument("--window", type=float, default=3.0, metavar="SECONDS", help="how long produce is measured")
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another source tree beside; repeatable")
    parser.add_argument("--updates", type=int, help="a pass over so many small updates, e.g. 100000000")
    found = parser.parse_args()
    if _whole_brokers(found):
        return 0
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "log"
        directory.mkdir()
        keys = found.keys or KEYS
        fill(directory, found.megabytes, keys, compression.CODES[found.codec])
        print(f"{found.megabytes} MB of updates of {keys} keys, codec {found.codec}")
        kept = set()
        for _ in range(found.rounds):
            for twin in (import_module(f"fleetlog._native.compact_{twin}") for twin in ("cy", "py")):
                per_cpu, per_second, mapped, left = clean(directory, twin)
                kept.add(left)
                print(
                    f"  {twin.__name__.rpartition('.')[2]:<12}{per_cpu:8.1f} MB per CPU second"
                    f"{per_second:8.1f} MB/s, {mapped} keys, {len(left) / MB:.1f} MB left"
                )
        if len(kept) != 1:
            print("the twins left different logs")
            return 1
    return 0
