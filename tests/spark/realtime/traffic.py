"""What surrounds the query, each a process of its own: a writer of the source and a reader of the target.

    python -m tests.spark.realtime.traffic write bootstrap topic rate        until standard input ends; says how many
    python -m tests.spark.realtime.traffic read bootstrap topic figures      until standard input ends

A value is ``number,microseconds`` with the time at which it was to be sent; the query adds ``:ordinal``. The reader
says once in a second how many records it has seen, and how many of them are distinct; at its end it leaves in the file
``figures``, for each record, its number, its ordinal, when it was sent and when it came (microseconds).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from array import array
from pathlib import Path
from typing import Any

KEYS = 1000


def key_of(number: int) -> bytes:
    """The key of the record with this number."""
    return b"k%d" % (number % KEYS)


def _until_input_ends() -> threading.Event:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    return ended


def write(bootstrap: str, topic: str, rate: int) -> None:
    """``rate`` records a second, evenly; a record that was due late has the time at which it was due."""
    from confluent_kafka import KafkaError, Message, Producer

    failures: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, "message.timeout.ms": 120_000,
         "topic.metadata.refresh.interval.ms": 1000, "reconnect.backoff.max.ms": 500, "retry.backoff.ms": 50}
    )  # fmt: skip
    ended = _until_input_ends()
    began, number = time.time_ns() // 1000, 0
    while not ended.is_set():
        due = (time.time_ns() // 1000 - began) * rate // 1_000_000
        for one in range(number, due):
            value = b"%d,%d" % (one, began + one * 1_000_000 // rate)
            producer.produce(topic, value, key_of(one), on_delivery=delivered)
        number = max(number, due)
        producer.poll(0.001)
    left = producer.flush(120)
    if left or failures:
        sys.exit(f"{left} records are not acknowledged; failed: {failures[:3]}")
    print(number, flush=True)


def read(bootstrap: str, topic: str, figures: Path) -> None:
    """All records from the topic's start."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "realtime", "enable.auto.commit": False,
         "auto.offset.reset": "error", "fetch.wait.max.ms": 20, "fetch.error.backoff.ms": 10,
         "topic.metadata.refresh.interval.ms": 1000, "reconnect.backoff.max.ms": 500}
    )  # fmt: skip
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    ended, found, distinct = _until_input_ends(), array("q"), set[tuple[int, int]]()
    say_at, errors = time.monotonic(), 0
    while not ended.is_set():
        messages: list[Any] = consumer.consume(1000, 0.001)
        now = time.time_ns() // 1000
        for message in messages:
            if message.error() is not None:
                if not message.error().retriable() and message.error().code() > 0:
                    print(message.error(), file=sys.stderr, flush=True)
                    errors += 1
                continue
            row, _, ordinal = message.value().partition(b":")
            number, _, sent = row.partition(b",")
            found.extend((int(number), int(ordinal), int(sent), now))
            distinct.add((int(number), int(ordinal)))
        if time.monotonic() >= say_at:
            say_at += 1
            print(json.dumps({"records": len(found) // 4, "distinct": len(distinct), "errors": errors}), flush=True)
    consumer.close()
    figures.write_bytes(found.tobytes())


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        read(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
