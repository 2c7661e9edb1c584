"""What a partition takes of its broker's memory, which may have ten thousand of them."""

from __future__ import annotations

import gc
import tracemalloc
import uuid
from pathlib import Path

from perf.stage import LoneLeader

TOPICS, PARTITIONS = 20, 10
BYTES = 7_000
"""For the log, its files and indexes, and the replica. It is 6,730 with CPython 3.11."""


def test_a_partition_with_a_record_takes_few_bytes(tmp_path: Path) -> None:
    stage = LoneLeader(tmp_path, 1_700_000_000_000)

    def write(prefix: str) -> None:
        for number in range(TOPICS):
            name = f"{prefix}-{number}"
            stage.topic(name, PARTITIONS, uuid.uuid4())
            for index in range(PARTITIONS):
                stage.append(name, index=index)

    write("first")  # what is imported and made once
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        write("second")
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / (TOPICS * PARTITIONS) <= BYTES
