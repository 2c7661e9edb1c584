"""A compacted topic: updates and deletions of few keys by an idempotent producer, several in flight."""

from __future__ import annotations

from typing import Any

from tests.chaos.login import confluent as confluent_login
from tests.chaos.outcomes import end_of, text_of
from tests.chaos.recorder import NAME_HEADER, Recorder, RoleControl, pack
from tests.chaos.workload_produce import CONFLUENT, DELIVERY_MS, IN_FLIGHT_MAX

KEYS = 20
DELETIONS = 0.15
SETTINGS = {
    "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.05", "segment.bytes": "30000"
}  # fmt: skip
"""Deletions stay for ``delete.retention.ms``, a day: every reader of a run must be shown them."""


def table(recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, partitions: int, rate: float) -> None:
    """The name of each value ends with its record's key: ``PROC.N@KEY``. A deletion has its name in a header."""
    from confluent_kafka import KafkaException, Producer

    producer = Producer(
        {**confluent_login(bootstrap), "enable.idempotence": True, "acks": "all", "linger.ms": 2, **CONFLUENT}
    )
    open_ = set()
    fatal: list[Any] = []

    def report(name: dict[str, Any]) -> Any:
        def done(error: Any, message: Any) -> None:
            open_.discard(name["n"])
            if error is None:
                recorder.then(name, o=message.offset(), e="ok")
            else:
                recorder.then(name, **end_of(error.code() if error.code() > 0 else None), error=error.str()[:120])
                if error.fatal():
                    fatal.append(error)

        return done

    while control.on and not fatal:
        if len(open_) < IN_FLIGHT_MAX:
            number = control.rng.randrange(KEYS)
            partition, key = number % partitions, f"k{number}"
            value = f"{recorder.proc}.{recorder.next}@{key}"
            payload = None if control.rng.random() < DELETIONS else pack(value)
            name = recorder.begin("send", k=f"{topic}/{partition}", v=value)
            open_.add(name["n"])
            try:
                producer.produce(
                    topic, payload, key, partition=partition, headers=[(NAME_HEADER, value.encode())],
                    on_delivery=report(name),
                )  # fmt: skip
            except (KafkaException, BufferError) as error:  # not even queued
                open_.discard(name["n"])
                recorder.then(name, "fail", error=text_of(error))
        producer.poll(control.rng.random() * 2 / rate)
    producer.flush(DELIVERY_MS / 1000 if not fatal else 1)
