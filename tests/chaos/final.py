"""The final reads: everything, by fresh clients of two kinds, in both isolations, up to the ends after the healing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tests.chaos.history import Records
from tests.chaos.login import confluent as confluent_login
from tests.chaos.login import python as python_login
from tests.chaos.recorder import Recorder, RoleControl, unpack
from tests.chaos.workload_read import CONSUMER

DEADLINE_S = 240.0
TRANSACTIONS_END_S = 60.0
LEVELS = {"rc": "read_committed", "ru": "read_uncommitted"}


class Unfinished(Exception):
    """The deadline passed before everything was read."""


def read_all(
    recorder: Recorder, control: RoleControl, bootstrap: str, topics: Mapping[str, int], groups: Mapping[str, str]
) -> None:
    """Wait until no transaction is open, ask for the groups' offsets, read everything; raises Unfinished."""
    deadline = time.monotonic() + DEADLINE_S
    ends = _settled(bootstrap, topics, deadline)
    for group, topic in groups.items():
        _committed(recorder, bootstrap, group, topic, topics[topic], deadline)
    for iso, end in ends.items():
        for read in (_confluent, _kafka_python):
            start = recorder.now()
            records = read(bootstrap, end, LEVELS[iso], deadline)
            recorder.single("final", start, iso=iso, r=records, end=end, by=read.__name__)


def _settled(bootstrap: str, topics: Mapping[str, int], deadline: float) -> dict[str, dict[str, int]]:
    """The ends of all logs by isolation; waits for the two to be equal, as long as transactions may take to end."""
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    parts = [TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]
    patience = min(deadline, time.monotonic() + TRANSACTIONS_END_S)
    consumers = {
        iso: KafkaConsumer(**python_login(bootstrap), isolation_level=level, group_id=None)
        for iso, level in LEVELS.items()
    }
    while True:
        try:
            ends = {
                iso: {
                    f"{p.topic}/{p.partition}": end for p, end in consumer.end_offsets(parts, timeout_ms=5_000).items()
                }
                for iso, consumer in consumers.items()
            }
            if ends["rc"] == ends["ru"] or time.monotonic() > patience:
                return ends
        except Exception as error:
            if time.monotonic() > deadline:
                raise Unfinished(f"ListOffsets: {error}") from error
        time.sleep(0.5)


def _committed(recorder: Recorder, bootstrap: str, group: str, topic: str, partitions: int, deadline: float) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {**confluent_login(bootstrap), "group.id": group, "isolation.level": "read_committed", **CONSUMER}
    )
    while True:
        start = recorder.now()
        try:
            found = consumer.committed([TopicPartition(topic, p) for p in range(partitions)], 10.0)
            offsets = {f"{p.topic}/{p.partition}": max(p.offset, -1) for p in found if p.error is None}
            if len(offsets) == partitions:
                recorder.single("committed", start, g=group, o=offsets, final=True)
                consumer.close()
                return
        except KafkaException as error:
            if time.monotonic() > deadline:
                raise Unfinished(f"OffsetFetch of {group}: {error}") from error
        if time.monotonic() > deadline:
            raise Unfinished(f"OffsetFetch of {group} gave only {found}")


def _confluent(bootstrap: str, ends: Mapping[str, int], level: str, deadline: float) -> dict[str, Records]:
    """librdkafka says where a log ends by an event of its own."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {**confluent_login(bootstrap), "group.id": "unused", "isolation.level": level, "enable.partition.eof": True,
         **CONSUMER}
    )  # fmt: skip
    missing = {key for key, end in ends.items() if end}
    records: dict[str, Records] = {key: [] for key in ends}
    consumer.assign([TopicPartition(*_part(key), 0) for key in sorted(missing)])
    while missing:
        for message in consumer.consume(500, 0.5):
            key, error = f"{message.topic()}/{message.partition()}", message.error()
            if error is None:
                records[key].append((message.offset() or 0, unpack(message.value(), message.headers())))
            elif error.code() == KafkaError._PARTITION_EOF and (message.offset() or 0) >= ends[key]:
                missing.discard(key)
        if time.monotonic() > deadline:
            raise Unfinished(f"librdkafka did not reach the ends of {sorted(missing)} ({level})")
    consumer.close()
    return records


def _kafka_python(bootstrap: str, ends: Mapping[str, int], level: str, deadline: float) -> dict[str, Records]:
    """kafka-python's position passes over what isn't shown."""
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    consumer = KafkaConsumer(
        **python_login(bootstrap), isolation_level=level, enable_auto_commit=False, group_id=None,
        fetch_max_wait_ms=100, auto_offset_reset="earliest",
    )  # fmt: skip
    parts = {key: TopicPartition(*_part(key)) for key, end in ends.items() if end}
    records: dict[str, Records] = {key: [] for key in ends}
    consumer.assign(list(parts.values()))
    for part in parts.values():
        consumer.seek(part, 0)
    missing = set(parts)
    while missing:
        found: dict[Any, Any] = consumer.poll(timeout_ms=500, max_records=500)
        for part, messages in found.items():
            records[f"{part.topic}/{part.partition}"] += [(m.offset, unpack(m.value, m.headers)) for m in messages]
        missing = {key for key in missing if consumer.position(parts[key]) < ends[key]}
        if time.monotonic() > deadline:
            raise Unfinished(f"kafka-python did not reach the ends of {sorted(missing)} ({level})")
    consumer.close()
    return records


def _part(key: str) -> tuple[str, int]:
    topic, partition = key.rsplit("/", 1)
    return topic, int(partition)
