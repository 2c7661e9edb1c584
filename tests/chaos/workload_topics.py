"""A topic that one process makes, writes, reads and deletes, again and again, always under the same name."""

from __future__ import annotations

import os
import time
from typing import Any

from tests.chaos import bucket
from tests.chaos.cluster import MIN_INSYNC, REPLICATION
from tests.chaos.login import confluent as confluent_login
from tests.chaos.recorder import Recorder, RoleControl, pack, unpack
from tests.chaos.workload_produce import CONFLUENT
from tests.chaos.workload_read import CONSUMER

TOPIC = "again"
CALL_S = 10.0
READ_S = 30.0
RECORDS = 12


class _Topic:
    """The topic as an admin client sees it."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        self._error = KafkaException
        self._admin = AdminClient({**confluent_login(bootstrap), "log_level": 2})

    def id(self) -> str | None:
        """Its id, "" when there is none, None when no broker says."""
        from confluent_kafka import KafkaError, TopicCollection

        try:
            found = self._admin.describe_topics(TopicCollection([TOPIC]), request_timeout=CALL_S)[TOPIC].result(CALL_S)
        except self._error as error:
            return "" if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART else None
        except Exception:
            return None
        return str(found.topic_id)

    def make(self) -> None:
        """Ask for it."""
        from confluent_kafka.admin import NewTopic

        config = {"min.insync.replicas": str(MIN_INSYNC)}
        if bucket.VARIABLE in os.environ:
            config |= bucket.SETTINGS | {"segment.bytes": "500", "local.retention.bytes": "500"}
        self._try(self._admin.create_topics([NewTopic(TOPIC, 1, REPLICATION, config=config)], request_timeout=CALL_S))

    def delete(self) -> None:
        """Ask that it goes."""
        self._try(self._admin.delete_topics([TOPIC], request_timeout=CALL_S))

    @staticmethod
    def _try(asked: Any) -> None:
        try:
            asked[TOPIC].result(CALL_S + 5)
        except Exception:  # what became of it, the id tells
            pass


def again(recorder: Recorder, control: RoleControl, bootstrap: str) -> None:
    """Make it, write, read all, delete it. A round counts only if the topic was the same before and after.

    A late request of an earlier round (a create, a delete, a Produce that names the topic) may still arrive: then the
    id differs, or a record is there that was sent to an earlier one and never acknowledged.
    """
    topic = _Topic(bootstrap)
    while control.on:
        while control.on and topic.id() != "":  # that of the round before, or of a process that was killed
            topic.delete()
            control.pause(0.2)
        while control.on and not (before := topic.id()):
            if before == "":
                topic.make()
            control.pause(0.2)
        if not control.on:
            return
        start = recorder.now()
        sent, acked = _write(recorder, control, bootstrap)
        read = _read(bootstrap, len(acked))
        after = topic.id()
        recorder.single(
            "again", start, id=before, sent=sent, acked=acked if after == before else [],
            read=read if after == before else None,
        )  # fmt: skip


def _write(recorder: Recorder, control: RoleControl, bootstrap: str) -> tuple[list[str], list[str]]:
    """Some records by an idempotent producer of their own: all that were sent, and those that were acknowledged."""
    from confluent_kafka import Producer

    producer = Producer({**confluent_login(bootstrap), "enable.idempotence": True, "linger.ms": 2, **CONFLUENT})
    sent: list[str] = []
    acked: list[str] = []
    start = recorder.now()
    for number in range(RECORDS):
        value = f"{recorder.proc}.{start}.{number}"
        sent.append(value)
        producer.produce(
            TOPIC, pack(value), partition=0,
            on_delivery=lambda error, _, value=value: acked.append(value) if error is None else None,
        )  # fmt: skip
        producer.poll(0)
        control.pause(control.rng.random() * 0.3)
    producer.flush(READ_S)
    producer.purge()
    producer.flush(1.0)
    return sent, list(acked)


def _read(bootstrap: str, acked: int) -> list[str] | None:
    """Everything up to the end, by a fresh consumer; None when no end is reached in time.

    An end below the number of acknowledged records is asked for again until the time is over, and only then believed:
    a broker that is cut off from ZooKeeper serves fetches below its high watermark without a lease, and until it hears
    that the topic was made again it does so for the deleted topic of the same name, whose log may be empty.
    """
    deadline = time.monotonic() + READ_S
    found: list[str] | None = None
    while time.monotonic() < deadline and (found is None or len(found) < acked):
        end = _read_to_end(bootstrap, deadline)
        if end is not None:
            found = end
        if found is None or len(found) < acked:
            time.sleep(0.5)
    return found


def _read_to_end(bootstrap: str, deadline: float) -> list[str] | None:
    """What one fresh consumer reads up to the first end that it is told; None when it is told none in time."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer({**confluent_login(bootstrap), "group.id": "unused", "enable.partition.eof": True, **CONSUMER})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    values: list[str] = []
    try:
        while time.monotonic() < deadline:
            for message in consumer.consume(100, 0.5):
                error = message.error()
                if error is None:
                    values.append(unpack(message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return values
        return None
    finally:
        consumer.close()
