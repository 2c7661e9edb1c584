"""``perf compaction --updates``: a pass over so many updates of many keys, as a changelog of a large store has.

The updates are small, at random, and the same for each server. They are made by columns of bytes, as records one by
one would take longer than the pass. What is asked for: the bytes that are left, the broker's memory, and the time.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator

from fleetlog._native.batch import HEADER_SIZE, Record, crc32c, encode_batch
from perf.compaction_peers import EAGER, SEGMENT_BYTES, TOPIC, alter, measure_pass, print_pass
from perf.generator.frames import Frame, produce_frame
from perf.load import send_frames
from perf.targets import Cluster, TargetError
from perf.targets.fleetlog import Fleetlog
from perf.targets.kafka import Kafka

TABLE_KEYS = 1 << 20
KEYS_STEP = 1 << 16
LEAST = 8
"""Updates of each key."""
BATCH_RECORDS = 8192
_SHORT = 64
"""Records of a batch whose offset delta takes one byte."""
_VALUE_BYTES = 10
_KEY_AT, _KEY_BYTES = 5, 8
"""Where the key begins in a short record; in others it is a byte later."""
_SHORT_BYTES = 1 + 1 + 1 + 1 + 1 + _KEY_BYTES + 1 + _VALUE_BYTES + 1
_CRC_AT, _CRC_FROM = 17, 21
_LIMIT_S = 1500.0


def compare_tables(updates: int, keys: int, *, kafka: bool) -> None:
    """Measure and print. Raises TargetError."""
    if keys % KEYS_STEP or not 0 < keys <= 256 * KEYS_STEP:
        raise TargetError(f"{keys} keys: give a multiple of {KEYS_STEP}, up to {256 * KEYS_STEP}")
    if updates < LEAST * keys:
        raise TargetError(f"{updates} updates of {keys} keys are too few: give {LEAST * keys} or more")
    clusters: list[Cluster] = [Fleetlog(**EAGER)]
    if kafka:
        clusters.append(Kafka(**EAGER))
    print(f"{updates} updates of {keys} keys, records of {_SHORT_BYTES + 1} bytes, segments of 16 MiB")
    sizes = []
    for cluster in clusters:
        with cluster.running():
            cluster.create_topic(TOPIC, cleanup_policy="delete", segment_bytes=SEGMENT_BYTES)
            began = time.monotonic()
            send_frames(cluster.leaders(TOPIC)[0], _frames(updates, keys))
            print(f"  {cluster.label:<10} filled in {time.monotonic() - began:.0f} s", flush=True)
            found = measure_pass(cluster, 3 * keys * _SHORT_BYTES, _LIMIT_S)
            print_pass(cluster.label, "pass", found)
            sizes.append(found.after)
            alter(cluster, "delete")
    if kafka:
        print(f"  what is left here, of what is left by Apache Kafka: {100 * sizes[0] / sizes[1]:.3f} %")


def _frames(updates: int, keys: int) -> Iterator[Frame]:
    return (produce_frame(TOPIC, 0, batch) for batch in update_batches(updates, keys))


def update_batches(updates: int, keys: int = TABLE_KEYS) -> Iterator[bytes]:
    """Batches of updates of keys at random, at least so many, the same each time but for the timestamp."""
    rng = random.Random(1)
    high = bytes(byte % (keys // KEYS_STEP) for byte in range(256))
    now_ms = time.time_ns() // 1_000_000  # retention goes by it
    rows = [Record(-1, now_ms, bytes(_KEY_BYTES), b"." * _VALUE_BYTES, ())] * BATCH_RECORDS
    batch = bytearray(encode_batch(rows))
    long_from = HEADER_SIZE + _SHORT * _SHORT_BYTES
    short = (HEADER_SIZE + _KEY_AT, long_from, _SHORT_BYTES, 0, _SHORT)
    long = (long_from + _KEY_AT + 1, len(batch), _SHORT_BYTES + 1, _SHORT, BATCH_RECORDS)
    for _ in range(0, updates, BATCH_RECORDS):
        columns = [rng.randbytes(BATCH_RECORDS) for _ in range(4)]
        columns[0] = columns[0].translate(high)
        for place, column in zip((5, 6, 7, 8 + _VALUE_BYTES), columns, strict=True):
            for start, stop, step, first, last in (short, long):
                batch[start + place : stop : step] = column[first:last]
        struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_FROM:]))
        yield bytes(batch)
