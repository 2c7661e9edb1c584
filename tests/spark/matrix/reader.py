"""What a stock read_committed consumer saw, and whether it is right.

The consumer reads while everything goes wrong, and notes each time it came to a partition's last stable offset: what it
has read by then is one moment of that partition, and must hold every batch as a whole or not at all.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition


class Row(NamedTuple):
    """A row as read: which source row it is (partition, offset), which task and which run of the driver wrote it."""

    source: tuple[int, int]
    task: int
    run: str


def parse(value: bytes) -> Row:
    """A row from its bytes."""
    partition, offset, task, run, _ = value.decode().split(":", 4)
    return Row((int(partition), int(offset)), int(task), run)


class Seen(NamedTuple):
    """``rows``: by partition, in order. ``moments``: (partition, rows read by then), at last stable offsets."""

    rows: Mapping[int, Sequence[Row]]
    moments: Sequence[tuple[int, int]]


def judge(expected: Mapping[tuple[int, int], int], seen: Seen, due: Collection[int] | None = None) -> list[str]:
    """What is wrong; ``expected`` gives the micro-batch of each source row that must be there.

    ``due``: the batches whose rows must be there, where a run was broken off; default: all.

    DUP a row twice, MISSING a row not there, UNKNOWN a row that was never sent, TORN a moment with part of a batch,
    ORDER rows that a task read from one source partition, out of order in a partition,
    MIXED a batch with rows of several runs of the driver.
    """
    problems = []
    counts = Counter(row.source for rows in seen.rows.values() for row in rows)
    twice = sorted(source for source, count in counts.items() if count > 1)
    if twice:
        problems.append(f"DUP: {len(twice)} rows, {sum(counts[s] - 1 for s in twice)} too many, first {twice[0]}")
    missing = sorted(row for row, batch in expected.items() if row not in counts and (due is None or batch in due))
    if missing:
        problems.append(f"MISSING: {len(missing)} rows, first {missing[0]}")
    unknown = sorted(counts.keys() - expected.keys())
    if unknown:
        problems.append(f"UNKNOWN: {len(unknown)} rows, first {unknown[0]}")
    runs: dict[int, set[str]] = defaultdict(set)
    for partition, rows in sorted(seen.rows.items()):
        last: dict[tuple[int, int, int], int] = {}
        for row in rows:
            batch = expected.get(row.source, -1)
            runs[batch].add(row.run)
            came_from, offset = row.source
            if offset <= last.get((batch, row.task, came_from), -1):
                problems.append(f"ORDER: partition {partition}, batch {batch}, task {row.task}: {row}")
                break
            last[batch, row.task, came_from] = offset
    problems += [f"MIXED: batch {b} has rows of runs {sorted(found)}" for b, found in runs.items() if len(found) > 1]
    return problems + _torn(expected, seen)


def _torn(expected: Mapping[tuple[int, int], int], seen: Seen) -> list[str]:
    """The first moment of each partition that shows part of a batch."""
    problems = []
    for partition, rows in sorted(seen.rows.items()):
        batches = [expected.get(row.source, -1) for row in rows]
        whole = Counter(batches)
        shown: Counter[int] = Counter()
        upto = 0
        for moment in sorted({count for number, count in seen.moments if number == partition}):
            shown.update(batches[upto:moment])
            upto = moment
            part = [batch for batch, count in shown.items() if count != whole[batch]]
            if part:
                batch = part[0]
                problems.append(
                    f"TORN: partition {partition} showed {shown[batch]} of {whole[batch]} rows of batch {batch}"
                )
                break
    return problems


def consumer(bootstrap: str, isolation: str = "read_committed") -> Consumer:
    """A stock consumer."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"matrix-{uuid.uuid4().hex[:10]}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 2000,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )


def read_all(bootstrap: str, topic: str, partitions: int, isolation: str = "read_committed") -> dict[int, list[Any]]:
    """Everything up to the end, as (offset, value) by partition."""
    client = consumer(bootstrap, isolation)
    client.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: dict[int, list[Any]] = {number: [] for number in range(partitions)}
    left = set(found)
    deadline = time.monotonic() + 60
    while left:
        assert time.monotonic() < deadline, f"{topic} was not read to its end in 60 s"
        message = client.poll(1.0)
        if message is None:
            continue
        if message.error() is None:
            found[message.partition()].append((message.offset(), message.value()))
        elif message.error().name() == "_PARTITION_EOF":
            left.discard(message.partition())
    client.close()
    return found


class Watcher:
    """Reads a topic from its start until :meth:`close`, in a thread."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.found: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(partitions)}
        self.moments: list[tuple[int, int]] = []
        self.looks = 0
        self._topic = topic
        self._client = consumer(bootstrap)
        self._client.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        self._over = threading.Event()
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name=f"watcher of {topic}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            message = self._client.poll(0.2)
            if message is None:
                continue
            number, error = message.partition(), message.error()
            if error is None:
                self.found[number].append((message.offset(), message.value()))
            elif error.name() == "_PARTITION_EOF":
                self.looks += 1
                moment = (number, len(self.found[number]))
                if moment not in self.moments[-12:]:
                    self.moments.append(moment)
            elif error.name() == "_AUTO_OFFSET_RESET":
                self.problem = f"the consumer was told that its offset is gone: {error}"
        self._client.close()

    def count(self) -> int:
        """Rows so far."""
        return sum(len(rows) for rows in self.found.values())

    def close(self) -> None:
        """Stop reading."""
        self._over.set()
        self._thread.join(30)
