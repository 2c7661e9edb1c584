"""A writer of positions as a process of its own, to be killed: it repeats all since its last checkpoint.

``python -m tests.support.position_writer bootstrap topic source end checkpoint`` writes the positions below ``end``,
from the one in the file ``checkpoint`` on, and moves that only now and then, as a query with long batches does.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

EVERY = 2_000
"""Positions between two checkpoints; some 10,000 are written in a second."""


def main(bootstrap: str, topic: str, source: str, end: int, checkpoint: Path) -> None:
    """Write to the end; exits with 1 if a record was not taken."""
    from confluent_kafka import KafkaError, Message, Producer

    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 2, "enable.idempotence": True, "message.timeout.ms": 60_000,
         "compression.type": "lz4", "retry.backoff.ms": 50, "reconnect.backoff.max.ms": 500,
         "topic.metadata.refresh.interval.ms": 1000, "batch.num.messages": 200}
    )  # fmt: skip
    failures: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(str(error))

    start = int(checkpoint.read_text()) if checkpoint.exists() else 0
    for position in range(start, end):
        producer.produce(
            topic, str(position).encode(), partition=position % 2, on_delivery=delivered,
            headers=[("fleetlog.source", f"{source}:{position}:0".encode())],
        )  # fmt: skip
        if position % 100 == 0:
            producer.poll(0)
            time.sleep(0.01)
        if position % EVERY == EVERY - 1:
            _flush(producer, failures)
            fresh = checkpoint.with_suffix(".fresh")
            fresh.write_text(str(position + 1))
            os.replace(fresh, checkpoint)
    _flush(producer, failures)


def _flush(producer: object, failures: list[str]) -> None:
    left = producer.flush(60)  # type: ignore[attr-defined]
    if left or failures:
        sys.exit(f"{left} records are not acknowledged; failed: {failures[:3]}")


if __name__ == "__main__":
    _bootstrap, _topic, _source, _end, _checkpoint = sys.argv[1:]
    main(_bootstrap, _topic, _source, int(_end), Path(_checkpoint))
