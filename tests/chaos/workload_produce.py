"""Producers: records with unique values, each an operation of its own, by three stock clients."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.chaos.login import confluent as confluent_login
from tests.chaos.login import python as python_login
from tests.chaos.outcomes import code_of, end_of, text_of
from tests.chaos.recorder import Recorder, RoleControl, pack

DELIVERY_MS = 30_000
"""How long a client tries to get a record acknowledged before it says that it doesn't know."""
IN_FLIGHT_MAX = 40
FINISHED = frozenset({45, 47})
"""OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH: aiokafka never recovers from a gap; a new producer does."""
CONFLUENT = {
    "message.timeout.ms": DELIVERY_MS, "request.timeout.ms": 5_000, "socket.timeout.ms": 8_000,
    "reconnect.backoff.max.ms": 1_000, "retry.backoff.ms": 100, "topic.metadata.refresh.interval.ms": 5_000,
    "socket.connection.setup.timeout.ms": 5_000, "log_level": 2,
    **({"debug": os.environ["CHAOS_DEBUG"], "log_level": 7} if "CHAOS_DEBUG" in os.environ else {}),
}  # fmt: skip
"""Impatient settings: a producer that waits minutes for a silent broker tests little."""


class Drawn(NamedTuple):
    """A record to send: its unique name among the values of its log, and what ``produce`` is called with."""

    partition: int
    name: str
    payload: bytes | None
    more: Mapping[str, Any] = MappingProxyType({})


def confluent(
    recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, partitions: int, rate: float
) -> None:
    """librdkafka, idempotent, several records in flight."""

    def draw(value: str) -> Drawn:
        return Drawn(control.rng.randrange(partitions), value, pack(value))

    several_in_flight(recorder, control, bootstrap, topic, rate, draw)


def several_in_flight(
    recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, rate: float, draw: Callable[[str], Drawn]
) -> None:
    """Sends what ``draw`` makes of a new name, by an idempotent producer of librdkafka."""
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
            drawn = draw(f"{recorder.proc}.{recorder.next}")
            name = recorder.begin("send", k=f"{topic}/{drawn.partition}", v=drawn.name)
            open_.add(name["n"])
            try:
                producer.produce(
                    topic, drawn.payload, partition=drawn.partition, on_delivery=report(name), **drawn.more
                )
            except (KafkaException, BufferError) as error:  # not even queued
                open_.discard(name["n"])
                recorder.then(name, "fail", error=text_of(error))
        producer.poll(control.rng.random() * 2 / rate)
    producer.flush(DELIVERY_MS / 1000 if not fatal else 1)


def kafka_python(
    recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, partitions: int, rate: float
) -> None:
    """kafka-python, acks=all, not idempotent, one record at a time: duplicates are allowed, losses are not."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        **python_login(bootstrap), acks="all", enable_idempotence=False, retries=100, linger_ms=0,
        request_timeout_ms=5_000, delivery_timeout_ms=DELIVERY_MS, max_block_ms=DELIVERY_MS, retry_backoff_ms=100,
        max_in_flight_requests_per_connection=1, metadata_max_age_ms=5_000, reconnect_backoff_max_ms=1_000,
    )  # fmt: skip
    while control.on:
        partition = control.rng.randrange(partitions)
        value = f"{recorder.proc}.{recorder.next}"
        name = recorder.begin("send", k=f"{topic}/{partition}", v=value, idem=False)
        try:
            result = producer.send(topic, pack(value), partition=partition).get(DELIVERY_MS / 1000 + 10)
            recorder.then(name, "ok", o=result.offset)
        except Exception as error:
            recorder.then(name, **end_of(code_of(error)), error=text_of(error))
        control.pause(control.rng.random() * 2 / rate)
    producer.close(5)


def aiokafka(
    recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, partitions: int, rate: float
) -> None:
    """aiokafka, idempotent, a few records in flight."""
    asyncio.run(_aiokafka(recorder, control, bootstrap, topic, partitions, rate))


async def _aiokafka(
    recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, partitions: int, rate: float
) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        **python_login(bootstrap), enable_idempotence=True, acks="all", request_timeout_ms=5_000, linger_ms=2,
        retry_backoff_ms=100, metadata_max_age_ms=5_000,
    )  # fmt: skip
    await producer.start()
    waiting: set[asyncio.Task[None]] = set()
    finished: list[Exception] = []

    async def settle(name: dict[str, Any], future: Any) -> None:
        try:
            async with asyncio.timeout(DELIVERY_MS / 1000):
                result = await asyncio.shield(future)
            recorder.then(name, "ok", o=result.offset)
        except Exception as error:
            recorder.then(name, **end_of(code_of(error)), error=text_of(error))
            if code_of(error) in FINISHED:
                finished.append(error)

    while control.on and not finished:
        if len(waiting) < IN_FLIGHT_MAX:
            partition = control.rng.randrange(partitions)
            value = f"{recorder.proc}.{recorder.next}"
            name = recorder.begin("send", k=f"{topic}/{partition}", v=value)
            try:
                async with asyncio.timeout(DELIVERY_MS / 1000):
                    future = await producer.send(topic, pack(value), partition=partition)
            except Exception as error:
                recorder.then(name, "info", error=text_of(error))
                if not isinstance(error, TimeoutError):
                    break
                continue
            task = asyncio.create_task(settle(name, future))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        await asyncio.sleep(control.rng.random() * 2 / rate)
    if waiting:
        await asyncio.wait(waiting, timeout=DELIVERY_MS / 1000)
    try:
        async with asyncio.timeout(5):
            await producer.stop()
    except TimeoutError:
        pass
