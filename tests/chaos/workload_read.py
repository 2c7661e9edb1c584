"""Readers: assigned consumers, members of a group that commit, and a client that asks for offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from tests.chaos.history import Records
from tests.chaos.login import confluent as confluent_login
from tests.chaos.login import python as python_login
from tests.chaos.outcomes import code_of, end_of, text_of
from tests.chaos.recorder import Recorder, RoleControl, unpack

CONSUMER = {
    "enable.auto.commit": False, "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 100, "topic.metadata.refresh.interval.ms": 5_000,
    "socket.timeout.ms": 8_000, "reconnect.backoff.max.ms": 1_000, "fetch.error.backoff.ms": 100, "log_level": 2,
    "socket.connection.setup.timeout.ms": 5_000,
}  # fmt: skip
MEMBER = {"auto.offset.reset": "earliest", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}
MOVER = {"auto.offset.reset": "earliest", "group.protocol": "consumer"}
POLL_S = 0.2
COMMIT = 0.5
"""How often a member commits after a poll."""
SUBSCRIBE_ANEW = 1 / 200
CALL_S = 10.0


def records_of(recorder: Recorder, messages: Iterable[Any]) -> dict[str, Records]:
    """librdkafka's messages by key; errors among them go to the history."""
    found: dict[str, Records] = {}
    for message in messages:
        if message.error() is not None:
            recorder.single("poll", recorder.now(), e="info", error=str(message.error())[:120])
            continue
        key = f"{message.topic()}/{message.partition()}"
        found.setdefault(key, []).append((message.offset(), unpack(message.value(), message.headers())))
    return found


def confluent_rack(
    recorder: Recorder, control: RoleControl, bootstrap: str, topics: dict[str, int], isolation: str
) -> None:
    """The same near one of the brokers: it reads from followers (KIP-392)."""
    confluent(recorder, control, bootstrap, topics, isolation, f"rack-{control.rng.randint(1, 4)}")


def confluent(
    recorder: Recorder, control: RoleControl, bootstrap: str, topics: dict[str, int], isolation: str, rack: str = ""
) -> None:
    """librdkafka, all partitions assigned, from the beginning."""
    from confluent_kafka import Consumer, TopicPartition

    level = "read_committed" if isolation == "rc" else "read_uncommitted"
    consumer = Consumer(
        {
            **confluent_login(bootstrap),
            "group.id": "unused",
            "isolation.level": level,
            "client.rack": rack,
            **CONSUMER,
        }
    )
    parts = [TopicPartition(topic, p, 0) for topic, count in topics.items() for p in range(count)]
    consumer.assign(parts)
    recorder.single("position", recorder.now(), r={f"{part.topic}/{part.partition}": 0 for part in parts})
    while control.on:
        start = recorder.now()
        recorder.polled(start, records_of(recorder, consumer.consume(200, POLL_S)))
    consumer.close()


def aiokafka(recorder: Recorder, control: RoleControl, bootstrap: str, topics: dict[str, int], isolation: str) -> None:
    """aiokafka, all partitions assigned, from the beginning."""
    asyncio.run(_aiokafka(recorder, control, bootstrap, topics, isolation))


async def _aiokafka(
    recorder: Recorder, control: RoleControl, bootstrap: str, topics: dict[str, int], isolation: str
) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(
        **python_login(bootstrap), enable_auto_commit=False, fetch_max_wait_ms=100, auto_offset_reset="earliest",
        isolation_level="read_committed" if isolation == "rc" else "read_uncommitted", request_timeout_ms=8_000,
        metadata_max_age_ms=5_000,
    )  # fmt: skip
    await consumer.start()
    parts = [TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]
    consumer.assign(parts)
    for part in parts:
        consumer.seek(part, 0)
    recorder.single("position", recorder.now(), r={f"{part.topic}/{part.partition}": 0 for part in parts})
    while control.on:
        start = recorder.now()
        try:
            found = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=200)
        except Exception as error:
            recorder.single("poll", start, e="info", error=text_of(error))
            continue
        recorder.polled(start, _by_key(found))
    await consumer.stop()


def kafka_python(
    recorder: Recorder, control: RoleControl, bootstrap: str, topics: dict[str, int], isolation: str
) -> None:
    """kafka-python, all partitions assigned, from the beginning."""
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    consumer = KafkaConsumer(
        **python_login(bootstrap), enable_auto_commit=False, fetch_max_wait_ms=100,
        isolation_level="read_committed" if isolation == "rc" else "read_uncommitted", request_timeout_ms=8_000,
        metadata_max_age_ms=5_000, auto_offset_reset="earliest",
    )  # fmt: skip
    parts = [TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]
    consumer.assign(parts)
    for part in parts:
        consumer.seek(part, 0)
    recorder.single("position", recorder.now(), r={f"{part.topic}/{part.partition}": 0 for part in parts})
    while control.on:
        start = recorder.now()
        try:
            found = consumer.poll(timeout_ms=int(POLL_S * 1000), max_records=200)
        except Exception as error:
            recorder.single("poll", start, e="info", error=text_of(error))
            continue
        recorder.polled(start, _by_key(found))
    consumer.close()


def _by_key(found: dict[Any, Any]) -> dict[str, Records]:
    """What kafka-python and aiokafka return, by key."""
    return {
        f"{part.topic}/{part.partition}": [(m.offset, unpack(m.value, m.headers)) for m in messages]
        for part, messages in found.items() if messages
    }  # fmt: skip


def confluent_member(recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, group: str) -> None:
    """A member of a group by librdkafka; it commits what it polled, now and then, and subscribes anew, rarely."""
    _confluent_member(recorder, control, bootstrap, topic, group, MEMBER)


def confluent_mover(recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, group: str) -> None:
    """The same by the consumer protocol (KIP-848): what it is assigned comes beside what it has."""
    _confluent_member(recorder, control, bootstrap, topic, group, MOVER)


def _confluent_member(
    recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, group: str, settings: dict[str, Any]
) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {**confluent_login(bootstrap), "group.id": group, "isolation.level": "read_committed", **CONSUMER, **settings}
    )

    def assigned(_: Any, parts: Any) -> None:
        at = {f"{part.topic}/{part.partition}": None for part in parts}
        recorder.single("position", recorder.now(), r=at, beside=settings is MOVER)

    consumer.subscribe([topic], on_assign=assigned)
    while control.on:
        start = recorder.now()
        found = records_of(recorder, consumer.consume(50, POLL_S))
        recorder.polled(start, found)
        if control.rng.random() < SUBSCRIBE_ANEW:
            consumer.unsubscribe()
            consumer.subscribe([topic], on_assign=assigned)
            continue
        if not found or control.rng.random() > COMMIT:
            continue
        ends = {key: records[-1][0] + 1 for key, records in found.items()}
        offsets = [TopicPartition(topic, int(key.rsplit("/", 1)[1]), offset) for key, offset in ends.items()]
        name = recorder.begin("commit", g=group, o=ends)
        try:
            done = consumer.commit(offsets=offsets, asynchronous=False)
            wrong = [part.error for part in done if part.error is not None]
            if wrong:
                recorder.then(name, **end_of(wrong[0].code()), error=str(wrong[0]))
            else:
                recorder.then(name, "ok")
        except KafkaException as error:
            code = error.args[0].code()
            recorder.then(name, **end_of(code if code > 0 else None), error=text_of(error))
    consumer.close()


def kafka_python_member(recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, group: str) -> None:
    """A member of the same group by kafka-python."""
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.structs import OffsetAndMetadata, TopicPartition

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            recorder.single("position", recorder.now(), r={f"{part.topic}/{part.partition}": None for part in assigned})

        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

    consumer = KafkaConsumer(
        **python_login(bootstrap), group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
        isolation_level="read_committed", session_timeout_ms=6_000, heartbeat_interval_ms=1_000,
        metadata_max_age_ms=5_000, request_timeout_ms=8_000, fetch_max_wait_ms=100,
    )  # fmt: skip
    consumer.partitions_for_topic(topic)
    consumer.subscribe([topic], listener=Listener())
    while control.on:
        start = recorder.now()
        try:
            found = _by_key(consumer.poll(timeout_ms=1000, max_records=50))
        except Exception as error:
            recorder.single("poll", start, e="info", error=text_of(error))
            continue
        recorder.polled(start, found)
        if not found or control.rng.random() > COMMIT:
            continue
        ends = {key: records[-1][0] + 1 for key, records in found.items()}
        offsets = {
            TopicPartition(topic, int(key.rsplit("/", 1)[1])): OffsetAndMetadata(offset, "", -1)
            for key, offset in ends.items()
        }
        name = recorder.begin("commit", g=group, o=ends)
        try:
            consumer.commit(offsets, timeout_ms=int(CALL_S * 1000))
            recorder.then(name, "ok")
        except Exception as error:
            recorder.then(name, **end_of(code_of(error)), error=text_of(error))
    consumer.close()


def asker(
    recorder: Recorder,
    control: RoleControl,
    bootstrap: str,
    topics: dict[str, int],
    groups: dict[str, str],
    rate: float,
) -> None:
    """Asks for the ends of all logs in both isolations (kafka-python) and for the groups' offsets (librdkafka)."""
    from confluent_kafka import Consumer, KafkaException
    from confluent_kafka import TopicPartition as Part
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    parts = [TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]
    levels = {
        short: KafkaConsumer(
            **python_login(bootstrap), isolation_level=level, request_timeout_ms=5_000,
            metadata_max_age_ms=5_000, enable_auto_commit=False, group_id=None,
        )
        for short, level in (("rc", "read_committed"), ("ru", "read_uncommitted"))
    }  # fmt: skip
    members = {
        group: Consumer(
            {**confluent_login(bootstrap), "group.id": group, "isolation.level": "read_committed", **CONSUMER}
        )
        for group in groups
    }
    while control.on:
        for short, consumer in levels.items():
            some = control.rng.sample(parts, 3)
            start = recorder.now()
            try:
                ends = consumer.end_offsets(some, timeout_ms=5_000)
                recorder.single("ends", start, iso=short, o={f"{p.topic}/{p.partition}": o for p, o in ends.items()})
            except Exception as error:
                recorder.single("ends", start, e="info", error=text_of(error))
        for group, topic in groups.items():
            start = recorder.now()
            wanted = [Part(topic, partition) for partition in range(topics[topic])]
            try:
                found = members[group].committed(wanted, 5.0)
                offsets = {f"{p.topic}/{p.partition}": max(p.offset, -1) for p in found if p.error is None}
                recorder.single("committed", start, g=group, o=offsets)
            except KafkaException as error:
                recorder.single("committed", start, e="info", error=text_of(error))
        control.pause(control.rng.random() * 2 / rate)
