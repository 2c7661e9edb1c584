"""What surrounds the query, each a process of its own: a writer of the source and a reader of the target.

    python -m tests.spark.realtime.traffic write bootstrap topic rate linger until standard input ends; says how many.
                                             Slowly at first, until a line comes
    python -m tests.spark.realtime.traffic read bootstrap topic figures      until standard input ends

The writer's records have the time at which they were due. The reader says once in a second how many records it has
seen, and how many of them are distinct; what it leaves in the file ``figures`` is described in ``figures.py``.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from tests.spark.realtime import figures

SPREAD = 0.001
"""Seconds between two looks at the clock."""
SLOW = 100
"""Records a second until the query runs, so that it has nothing to catch up with."""


def _input() -> tuple[threading.Event, threading.Event]:
    """Set when its first line has come, and when it ends."""
    begun, ended = threading.Event(), threading.Event()

    def follow() -> None:
        if sys.stdin.readline():
            begun.set()
            sys.stdin.read()
        ended.set()

    threading.Thread(target=follow, daemon=True).start()
    return begun, ended


def now_us() -> int:
    return time.monotonic_ns() // 1000


def write(bootstrap: str, topic: str, rate: int, linger_ms: str) -> None:
    """``rate`` records a second, evenly; a record that was due late has the time at which it was due."""
    from confluent_kafka import KafkaError, Message, Producer

    failures: list[str] = []

    def failed(error: KafkaError | None, _: Message) -> None:
        failures.append(str(error))

    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": linger_ms,
         "message.timeout.ms": 300_000, "delivery.report.only.error": True, "queue.buffering.max.messages": 5_000_000,
         "queue.buffering.max.kbytes": 2_000_000, "on_delivery": failed,
         "topic.metadata.refresh.interval.ms": 1000, "reconnect.backoff.max.ms": 500, "retry.backoff.ms": 50}
    )  # fmt: skip
    begun, ended = _input()
    began, first, number, pace = now_us(), 0, 0, SLOW
    while not ended.is_set():
        if first == 0 and begun.is_set():
            began, first, pace = now_us(), number, rate
        due = first + (now_us() - began) * pace // 1_000_000
        for one in range(number, due):
            value = figures.value_of(one, began + (one - first) * 1_000_000 // pace)
            producer.produce(topic, value, figures.key_of(one))
        number = max(number, due)
        producer.poll(0)
        time.sleep(SPREAD)
    left = producer.flush(300)
    if left or failures:
        sys.exit(f"{left} records are not acknowledged; failed: {failures[:3]}")
    print(number, flush=True)


def read(bootstrap: str, topic: str, target: Path) -> None:
    """All records from the topic's start."""
    import numpy as np
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "realtime", "enable.auto.commit": False,
         "auto.offset.reset": "error", "fetch.wait.max.ms": 50, "fetch.error.backoff.ms": 10,
         "topic.metadata.refresh.interval.ms": 1000, "reconnect.backoff.max.ms": 500}
    )  # fmt: skip
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    (_, ended), seen = _input(), np.zeros(1 << 20, np.bool_)
    say_at, errors, records, distinct = time.monotonic(), 0, 0, 0
    with target.open("wb") as out:
        while not ended.is_set():
            messages = consumer.consume(2000, SPREAD)
            came, values = now_us(), []
            for message in messages:
                error = message.error()
                if error is None:
                    values.append(message.value())
                elif not error.retriable() and error.code() > 0:
                    print(error, file=sys.stderr, flush=True)
                    errors += 1
            if values:
                rows = figures.parse(values, came)
                rows.tofile(out)
                which = np.unique(rows[:, 0])
                if which[-1] >= len(seen):
                    seen = np.concatenate([seen, np.zeros(int(which[-1]) + 1, np.bool_)])
                distinct += len(which) - int(np.count_nonzero(seen[which]))
                seen[which] = True
                records += len(rows)
            if time.monotonic() >= say_at:
                say_at += 1
                out.flush()
                print(json.dumps({"records": records, "distinct": distinct, "errors": errors}), flush=True)
    consumer.close()


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    else:
        read(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
